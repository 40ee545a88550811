"""Lists: one answer with three skins; filters, order, pages; typos are errors."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fleet.api.columns import Column
from fleet.api.lists import KINDS

Bench = Any
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_answers_in_one_shape(calm: Bench, kind: str) -> None:
    body = calm.get(f"/v1/{kind}")
    assert body["apiVersion"] == "fleetd/v1"
    assert body["kind"].endswith("List")
    assert TIME.fullmatch(body["as_of"])
    assert set(body["observed"]) == {"aws", "gcp", "azure", "oci"}
    assert body["count"] == len(body["items"]) <= body["total"]
    for item in body["items"]:
        assert len(item["cells"]) == len(body["columns"])
        assert all(isinstance(c, str) and c for c in item["cells"]), item
        assert not [k for k in item if k.startswith("_")]
        for column in body["columns"]:
            assert column["key"] in item, "a column shows a field that JSON does not have"


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.name)
def test_columns_are_sound(kind: Any) -> None:
    names = [c.name for c in kind.columns]
    assert len(set(names)) == len(names)
    assert all(isinstance(c, Column) and c.priority in (0, 1, 2) for c in kind.columns)
    assert all(c.type in ("text", "number", "time", "bool") for c in kind.columns)


def test_nodes_show_service_and_spares(calm: Bench) -> None:
    body = calm.get("/v1/nodes")
    reasons = [i["reason_text"] for i in body["items"]]
    assert sum(r.startswith("in service: train-") for r in reasons) == 4
    assert sorted(r for r in reasons if r.startswith("spare")) == ["spare 1 of 2", "spare 2 of 2"]
    item = body["items"][0]
    assert item["price_usd_hour"] == 55.04
    assert item["boot_s"] > 30
    assert item["health"] == "ok"
    assert item["gate"] == "13/13"


def test_filters(calm: Bench) -> None:
    assert calm.get("/v1/nodes", provider="gcp")["total"] == 0
    assert calm.get("/v1/nodes", pool="train")["total"] == 6
    assert calm.get("/v1/nodes", state="ready,suspect")["total"] == 6
    assert calm.get("/v1/nodes", where="slot!=null")["total"] == 4
    assert calm.get("/v1/nodes", where="boot_s>1h or slot=train-00")["total"] == 1
    assert calm.get("/v1/nodes", where="not (provider=aws)")["total"] == 0
    assert calm.get("/v1/nodes", where='zone~"us-east" and gpus=8')["total"] == 6
    assert calm.get("/v1/events", reason="gate_passed")["total"] == 6
    assert calm.get("/v1/events", node="train-00")["items"][0]["object"] == "train-00"
    assert calm.get("/v1/events", actor="assign")["total"] == 4


@pytest.mark.parametrize(
    "params, code",
    [
        ({"pool": "trian"}, "unknown_pool"),
        ({"provider": "asw"}, "unknown_provider"),
        ({"state": "REDY"}, "unknown_state"),
        ({"reason": "gate_past"}, "unknown_reason"),
        ({"where": "boots>1"}, "unknown_column"),
        ({"sort_by": "PRIZE"}, "unknown_column"),
        ({"name": "n-00"}, "unknown_node"),
    ],
)
def test_a_typo_is_not_an_empty_list(calm: Bench, params: dict[str, str], code: str) -> None:
    body = calm.problem(calm.call("GET", "/v1/nodes", params=params), 404, code)
    assert body["fix"]


def test_near_names_are_told(calm: Bench) -> None:
    body = calm.problem(
        calm.call("GET", "/v1/nodes", params={"pool": "trian"}), 404, "unknown_pool"
    )
    assert body["near"] == ["train"]
    name = calm.serving()[0]
    body = calm.problem(calm.call("GET", f"/v1/nodes/{name}x"), 404, "unknown_node")
    assert name in body["near"]


@pytest.mark.parametrize(
    "where",
    ["boot_s>", "boot_s 5", "(boot_s>5", "boot_s>5)", "boot_s>five", "and", "=1", "a" * 1001,
     "(" * 20 + "gpus=8" + ")" * 20, 'name="open'],
)  # fmt: skip
def test_bad_filters(calm: Bench, where: str) -> None:
    response = calm.call("GET", "/v1/nodes", params={"where": where})
    assert response.status_code in (404, 422), response.text
    assert response.json()["code"] in ("bad_filter", "unknown_column")


@pytest.mark.parametrize(
    "params, code",
    [
        ({"limit": "0"}, "invalid_request"),
        ({"limit": "1001"}, "invalid_request"),
        ({"wait": "61"}, "invalid_request"),
        ({"window": "soon"}, "bad_window"),
        ({"page_token": "nonsense"}, "bad_page_token"),
        ({"poool": "train"}, "unknown_parameter"),
    ],
)
def test_bad_parameters(calm: Bench, params: dict[str, str], code: str) -> None:
    body = calm.problem(calm.call("GET", "/v1/nodes", params=params), 422, code)
    assert "detail" in body
    assert not isinstance(body["detail"], list), "FastAPI's own shape came through"


def test_bad_times(calm: Bench) -> None:
    calm.problem(calm.call("GET", "/v1/events", params={"since": "noon"}), 422, "bad_time")


@pytest.mark.parametrize("sort_by", ["", "AGE", "-AGE", "boot_s", "-boot_s", "ready_at", "SLOT"])
def test_pages_join_to_the_list(calm: Bench, sort_by: str) -> None:
    if sort_by == "SLOT":
        sort_by = "ASSIGNED-TO"
    whole = [i["name"] for i in calm.get("/v1/nodes", sort_by=sort_by)["items"]]
    found: list[str] = []
    token = ""
    for _ in range(10):
        body = calm.get("/v1/nodes", sort_by=sort_by, limit=2, page_token=token)
        found += [i["name"] for i in body["items"]]
        token = body["next_page_token"]
        assert body["total"] == 6
        if not token:
            break
    assert found == whole


def test_a_page_token_fits_its_own_query_only(calm: Bench) -> None:
    token = calm.get("/v1/nodes", limit=2)["next_page_token"]
    params = {"limit": 2, "page_token": token, "sort_by": "AGE"}
    calm.problem(calm.call("GET", "/v1/nodes", params=params), 422, "bad_page_token")


def test_nulls_sort_last_in_both_directions(calm: Bench) -> None:
    """kubernetes#36304: a time that may be null aborted the command."""
    for sort_by in ("deadline_s", "-deadline_s"):
        body = calm.get("/v1/nodes", sort_by=sort_by)
        values = [i["deadline_s"] for i in body["items"]]
        assert values == [None] * 6


def test_events_are_oldest_first_and_the_newest_of_them(calm: Bench) -> None:
    body = calm.get("/v1/events", limit=3)
    ids = [i["id"] for i in body["items"]]
    assert ids == sorted(ids)
    assert ids[-1] == body["total"]
    first = calm.get("/v1/events", limit=3, all=True)
    assert [i["id"] for i in first["items"]] == [1, 2, 3]
    assert first["next_page_token"]
    after = calm.get("/v1/events", after=ids[0])
    assert [i["id"] for i in after["items"]] == ids[1:]


def test_providers_have_both_ratios_with_their_n(calm: Bench) -> None:
    body = calm.get("/v1/providers", window="24h")
    aws = next(i for i in body["items"] if i["name"] == "aws")
    assert aws["asked"] == aws["accepted"] == aws["became_ready"] == aws["judged"] == 6
    low, high = aws["ready_share_95"]
    assert (round(low, 3), high) == (0.61, 1.0)
    assert aws["critical_per_gpu_hour"] == 0
    assert aws["spend_usd_hour"] == round(6 * 55.04, 2)
    gcp = next(i for i in body["items"] if i["name"] == "gcp")
    assert gcp["ready_share"] is None
    assert gcp["ready_share_95"] is None


def test_long_poll_returns_at_a_change_and_in_time(bench: Bench) -> None:
    version = bench.get("/v1/nodes")["version"]
    before = bench.trial.clock.now()
    body = bench.get("/v1/nodes", wait=20, version=version)
    assert 19 <= bench.trial.clock.now() - before <= 22
    assert body["version"] == version
    name = bench.spares()[0]
    bench.post("/v1/actions/cordon", {"nodes": [name], "reason": "x"})
    before = bench.trial.clock.now()
    assert bench.get("/v1/nodes", wait=20, version=version)["version"] != version
    assert bench.trial.clock.now() - before < 1


def test_reads_write_nothing(calm: Bench) -> None:
    version = calm.get("/v1/nodes")["version"]
    for kind in KINDS:
        calm.get(f"/v1/{kind}")
    calm.get("/v1")
    calm.get("/v1/system")
    assert calm.get("/v1/nodes")["version"] == version


def test_kinds_and_system(calm: Bench) -> None:
    counts = {i["name"]: i["count"] for i in calm.get("/v1")["items"]}
    assert counts["nodes"] == 6
    assert set(counts) == set(KINDS)
    system = calm.get("/v1/system")
    assert system["mode"] == "act"
    assert {t["name"] for t in system["tasks"]} >= {"observe", "lifecycle", "plan", "reap"}
    assert "k" * 32 not in str(system)


def test_unknown_routes_are_problems(calm: Bench) -> None:
    calm.problem(calm.call("GET", "/v1/nothing"), 404, "no_such_route")
    calm.problem(calm.call("GET", "/v1/nothing/x"), 404, "unknown_kind")
    calm.problem(calm.call("DELETE", "/v1/nodes"), 405, "method_not_allowed")

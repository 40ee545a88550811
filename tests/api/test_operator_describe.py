"""Describe: the page of each kind, for a well and for an ill node."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.api.lists import KINDS
from fleet.model import State
from fleet.sim.faults import Injection, Kind

Bench = Any


def labels(body: dict[str, Any]) -> dict[str, list[str]]:
    return {s["label"]: s["lines"] for s in body["sections"]}


def test_a_well_node(calm: Bench) -> None:
    name = calm.serving()[0]
    body = calm.get(f"/v1/nodes/{name}")
    page = labels(body)
    assert body["head"].startswith(f"{name}   READY since ")
    assert page["WHY"] == [f"in service: {calm.node(name).slot}"]
    assert [s["state"] for s in body["item"]["life"]] == [
        "REQUESTED", "LAUNCHING", "BOOTING", "CHECKING", "READY",
    ]  # fmt: skip
    assert page["LIFE"][0].endswith("…")
    assert page["CHECKS"][0].startswith("13 pass")
    assert page["MONEY"][0].startswith("$55.04/h list price")
    assert page["WHO"][0].startswith("created by plan")
    assert "8 × NVIDIA H100" in page["GPUS"][0]
    assert "BLAME" not in page or page["BLAME"] == []


def test_events_carry_no_inner_fields(calm: Bench) -> None:
    body = calm.get(f"/v1/nodes/{calm.serving()[0]}")
    assert "_rank" not in str(body)
    assert len(body["item"]["events"]) <= 10


@pytest.mark.parametrize("kind", KINDS)
def test_every_listed_name_can_be_described(calm: Bench, kind: str) -> None:
    for item in calm.get(f"/v1/{kind}", limit=5)["items"]:
        name = item["name"]
        if kind == "policies":
            name = f"{item['kind'].lower()}/{name}"
        body = calm.get(f"/v1/{kind}/{name}")
        assert body["name"] == item["name"]
        assert body["sections"]


def test_launch_by_prefix_and_by_node(calm: Bench) -> None:
    token = calm.get("/v1/launches")["items"][0]["token"]
    assert calm.get(f"/v1/launches/{token[:8]}")["name"] == token
    name = calm.serving()[0]
    assert name in calm.get(f"/v1/launches/{name}")["item"]["nodes"]
    calm.problem(calm.call("GET", "/v1/launches/b-"), 422, "name_too_short")
    calm.problem(calm.call("GET", "/v1/launches/zzzzzz"), 404, "unknown_launch")


def test_an_ill_node_tells_why_what_was_done_and_what_comes(bench: Bench) -> None:
    name = bench.serving()[0]
    slot = bench.node(name).slot
    place = bench.node(name).offer
    bench.run(_inject(bench, Injection(Kind.GPU_FAULT, provider=place.provider, code="xid_79")))
    view = bench.trial.up.cell.view
    assert bench.until(lambda: any(n.state is State.DRAINING for n in view.all()))
    ill = next(n for n in view.all() if n.state is State.DRAINING)
    body = bench.get(f"/v1/nodes/{ill.id}")
    page = labels(body)
    assert "xid_79" in page["WHY"][0]
    assert any("fatal by health policy" in line for line in page["WHY"])
    assert "moved to" in page["DONE"][0]
    assert page["NEXT"]
    assert page["REFILL"]
    assert page["BLAME"]
    assert body["item"]["health"] == "fatal"
    assert body["item"]["faults"][0]["code"] == "xid_79"
    listed = bench.get("/v1/nodes")["items"][0]
    assert listed["name"] == ill.id, "trouble comes first"
    assert listed["health_text"] == "✗ fatal"
    faults = bench.get("/v1/faults")
    assert faults["items"][0]["node"] == ill.id
    aws = next(i for i in bench.get("/v1/providers")["items"] if i["name"] == place.provider)
    assert aws["fatal"] == 1
    assert aws["critical_per_gpu_hour"] > 0
    assert bench.until(lambda: ill.id not in view.nodes, 6 * 3600)
    ended = bench.get(f"/v1/nodes/{ill.id}")
    assert ended["item"]["state"] == "TERMINATED"
    assert labels(ended)["LIFE"][0].endswith("TERMINATED")
    assert bench.get("/v1/nodes", state="TERMINATED")["items"][0]["name"] == ill.id
    assert bench.get("/v1/nodes", name=ill.id)["total"] == 1
    assert ill.id not in [i["name"] for i in bench.get("/v1/nodes")["items"]]
    assert slot in [i["name"] for i in bench.get("/v1/slots")["items"]]


async def _inject(bench: Bench, strike: Injection) -> None:
    bench.trial.world.inject(strike)

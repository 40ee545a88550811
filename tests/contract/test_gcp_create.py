"""What the Google adapter asks for: inserts, bulk inserts, deletions, images, settings. PC-001."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from canned_gcp import NAME, Canned, Request, create, delete, described, operation, ref, refusal
from pydantic import ValidationError
from wire_gcp import IMAGE, OTHER, PROJECT, REGION, TYPE, ZONE, gcp_settings, launch

from fleet.errors import (
    Ambiguous,
    Gone,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    Throttled,
    Unauthorized,
)
from fleet.model import Market, Need, Offer, Outcome
from providers import gcp
from providers.gce.nouns import names_of, prefix, properties, request_id, token_of


def test_the_body_of_an_insert() -> None:
    """Everything clouds.md 2.2 asks for, with names and request ids that repeat."""
    p = Canned(lambda r: (200, operation(r[3].get("name", "x"), status="DONE")))
    offer = Offer("gcp", REGION, ZONE, TYPE, Market.SPOT)
    for _ in range(2):
        p.run(lambda g: g.create(launch("tok", 2, offer=offer, tags={"fleetd-image": "B@1.0"})))
    first, again = p.sent[:2], p.sent[2:]
    assert sorted(first, key=str) == sorted(again, key=str)
    assert len({r[2]["requestId"] for r in first}) == 2
    _, _, query, body = min(first, key=lambda r: str(r[3]["name"]))
    assert query["requestId"] == request_id(PROJECT, ZONE, NAME)
    assert body["name"] == NAME == f"{prefix('cell')}tok-0"
    assert body["machineType"] == f"zones/{ZONE}/machineTypes/{TYPE}"
    assert body["scheduling"] == {
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
    }
    assert body["labels"] == {
        "fleetd-image": "b-1-0",
        "fleetd-cell": "cell",
        "fleetd-pool": "train",
        "fleetd-token": "tok",
    }
    assert {"key": "user-data", "value": "#cloud-config\n"} in body["metadata"]["items"]
    disk = body["disks"][0]
    assert (disk["boot"], disk["autoDelete"]) == (True, True)
    assert disk["initializeParams"] == {"sourceImage": IMAGE, "diskSizeGb": "200"}
    assert body["networkInterfaces"] == [{"network": "global/networks/default"}]


def test_what_the_settings_add_to_a_body() -> None:
    region = gcp.Region(
        zones=[ZONE], subnetwork="regions/us-central1/subnetworks/gpu", reservations={TYPE: "r1"}
    )
    machine = gcp.Machine(
        service_account="node@x", network_tags=["gpu"], external_ip=True, disk_type="pd-ssd"
    )
    offer = Offer("gcp", REGION, ZONE, TYPE, Market.RESERVED)
    body = properties(launch("tok", offer=offer), PROJECT, region, machine)
    assert body["reservation_affinity"]["values"] == ["r1"]
    assert body["service_accounts"][0]["email"] == "node@x"
    assert body["tags"] == {"items": ["gpu"]}
    assert body["network_interfaces"][0] == {
        "subnetwork": "regions/us-central1/subnetworks/gpu",
        "access_configs": [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}],
    }
    with pytest.raises(InvalidRequest, match="reservation"):
        properties(launch("tok", offer=offer), PROJECT, gcp.Region(zones=[ZONE]), machine)


@pytest.mark.parametrize(
    "over",
    [
        {"token": "Capital"},
        {"token": "x" * 41},
        {"pool": "Train"},
        {"tags": {"Key": "v"}},
        {"tags": {f"k{n}": "v" for n in range(64)}},
        {"user_data": "x" * 262_145},
        {"image_id": f"projects/{PROJECT}/global/images/family/base"},
        {"offer": Offer("gcp", REGION, "", TYPE)},
        {"offer": Offer("gcp", REGION, "europe-west4-b", TYPE)},
        {"offer": Offer("gcp", "europe-west4", "europe-west4-b", TYPE)},
    ],
)
def test_what_is_refused_before_anything_is_sent(over: dict[str, Any]) -> None:
    p = Canned(lambda _: (200, {}))
    token = over.pop("token", "tok")
    assert type(p.error(lambda g: g.create(launch(token, **over)))) is InvalidRequest
    assert p.sent == []


def test_names_are_of_one_cell_and_fit() -> None:
    """Cell ``a`` must not see the operations of cell ``a-b``; 63 characters at most."""
    long = names_of(launch("b" * 40, 1000, "c" * 32))
    assert len(set(long)) == 1000
    assert max(map(len, long)) <= 63
    assert token_of(long[7], "c" * 32) == "b" * 40
    assert token_of(long[7], "c") == ""
    assert not names_of(launch("t", 1, "a-b"))[0].startswith(prefix("a"))


def test_a_taken_name_is_adopted_if_it_is_ours() -> None:
    """PC-001: the request id was forgotten, the instance was not."""

    def script(r: Request) -> Any:
        if r[0] == "POST":
            return refusal(409, "alreadyExists", "The resource already exists")
        assert r[2]["filter"] == 'labels.fleetd-token="tok"'
        return 200, {"items": [described(NAME)]}

    (made,) = Canned(script).run(create)
    assert made.ref == ref(NAME)
    bulk = Canned(script).run(lambda g: g.create(launch("tok", 21)))
    assert [r.ref is not None for r in bulk] == [True, *[False] * 20]
    assert type(bulk[1].error) is Ambiguous


def test_busy_for_a_part_of_a_batch_is_tried_again() -> None:
    """Two of three went; the third goes once Google has time. All busy is Busy at once."""
    busy = {"left": 2}

    def script(r: Request) -> Any:
        if r[0] == "GET":
            return 200, {}
        if r[3]["name"].endswith("-2") and busy["left"]:
            busy["left"] -= 1
            return refusal(403, "rateLimitExceeded")
        return 200, operation(r[3]["name"], status="DONE")

    results = Canned(script).run(lambda g: g.create(launch("tok", 3)))
    assert [r.ref.instance_id for r in results] == names_of(launch("tok", 3))
    p = Canned(lambda _: refusal(403, "rateLimitExceeded"))
    assert type(p.error(lambda g: g.create(launch("tok", 3)))) is Throttled
    assert len(p.sent) == 3


def test_a_watch_that_fails_leaves_launches_accepted() -> None:
    def script(r: Request) -> Any:
        return (200, operation(NAME)) if r[0] == "POST" else refusal(503, "backendError")

    (made,) = Canned(script).run(create)
    assert made.ref == ref(NAME)


def test_a_bulk_insert_is_told_apart_by_its_group() -> None:
    """Failed ones by their own operation; one without any, after the end, is Ambiguous."""
    names = names_of(launch("tok", 21))
    stock = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no"}

    def script(r: Request) -> Any:
        whole = {**operation(""), "operationType": "bulkInsert", "operationGroupId": "g1"}
        if r[0] == "POST":
            assert r[1] == "bulkInsert"
            assert (r[3]["count"], r[3]["minCount"]) == ("21", "1")
            assert sorted(r[3]["perInstanceProperties"]) == sorted(names)
            assert r[3]["instanceProperties"]["machineType"] == TYPE
            return 200, whole
        assert r[2]["filter"] == 'operationGroupId="g1"'
        items = [operation(n, status="DONE") for n in names[:18]]
        items += [operation(n, stock) for n in names[18:20]]
        return 200, {"items": [*items, {**whole, "status": "DONE"}]}

    results = Canned(script).run(lambda g: g.create(launch("tok", 21)))
    kinds = [type(r.error) for r in results]
    assert kinds == [type(None)] * 18 + [InsufficientCapacity] * 2 + [Ambiguous]


def test_delete_asks_for_all_and_tells_the_first_failure() -> None:
    def script(r: Request) -> Any:
        if r[1] == "i-1":
            return refusal(404, "notFound", "The resource 'projects/p/zones/z/instances/i-1' was")
        return refusal(403, "forbidden") if r[1] == "i-2" else (200, operation(r[1]))

    p = Canned(script)
    assert type(p.error(lambda g: g.delete([ref(f"i-{n}") for n in range(5)]))) is Unauthorized
    assert sorted(r[1] for r in p.sent) == [f"i-{n}" for n in range(5)]
    assert not any("requestId" in r[2] for r in p.sent)
    Canned(script).run(lambda g: g.delete([ref("i-1"), ref("i-3"), ref("i-3")]))


def test_a_missing_project_is_not_a_missing_instance() -> None:
    missing = refusal(404, "notFound", f"The resource 'projects/{PROJECT}' was not found")
    assert type(Canned(lambda _: missing).error(delete)) is Unauthorized
    gone = refusal(404, "notFound", f"The resource 'projects/p/zones/z/instances/{NAME}' was")
    assert type(Canned(lambda _: gone).error(create)) is Gone


def test_a_family_is_resolved_for_registration() -> None:
    p = Canned(lambda r: (200, {"name": f"{r[1]}-v7"}))
    family = f"projects/{PROJECT}/global/images/family/base"
    assert p.run(lambda g: g.resolve_image(family)) == f"projects/{PROJECT}/global/images/base-v7"
    missing = refusal(404, "notFound", f"The resource '{family}' was not found")
    assert type(Canned(lambda _: missing).error(lambda g: g.resolve_image(family))) is ImageNotFound


def test_offers_are_in_configured_zones() -> None:
    need = Need("H100", 8, frozenset(Market))
    found = Canned(lambda _: (200, {})).run(lambda g: g.offers(need))
    assert {o.zone for o in found} == {ZONE, OTHER}
    assert {o.market for o in found} == {Market.ON_DEMAND, Market.SPOT}
    assert TYPE in {o.instance_type for o in found}


def test_settings_that_cannot_be() -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"endpoint": "https://compute.example"},
        {"regions": {}},
        {"regions": {REGION: {"zones": []}}},
        {"project": "No Project"},
        {"page_size": 501},
    )
    for over in wrong:
        with pytest.raises(ValidationError):
            gcp_settings("http://127.0.0.1:1", **over)


def test_importing_the_adapter_imports_no_sdk() -> None:
    """Seconds of start-up belong to the first call, in a thread."""
    code = "import sys, providers.gcp; sys.exit('google.cloud.compute_v1' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_died_codes_are_refusals() -> None:
    """registry.died_as reads them."""
    assert {k.outcome for k in gcp.DIED.values()} == {
        Outcome.INSUFFICIENT_CAPACITY,
        Outcome.QUOTA_EXCEEDED,
    }

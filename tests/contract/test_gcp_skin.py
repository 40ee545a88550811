"""The Compute Engine skin against the real SDK: what any tool will meet on it.

Operations that fail later, names and request ids, pages and filters, bulkInsert, refusals.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wire_gcp import IMAGE, OTHER, PROJECT, REGION, TYPE, ZONE, Bench, gcp_settings

from fleet.sim.wire.gce.filters import BadFilterError, parse
from providers import gcp

pytest.importorskip("google.cloud.compute_v1")
from google.api_core import exceptions as google

Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Bench] = []
    with asyncio.Runner() as runner:

        def one(level: int = 100, **over: Any) -> Bench:
            made.append(Bench(runner, level, **over))
            return made[-1]

        yield one
        for bench in made:
            bench.close()


@pytest.fixture
def b(make: Make) -> Bench:
    return make()


PLACE = {"project": PROJECT, "zone": ZONE}


def body(name: str, **over: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": name,
        "machine_type": f"zones/{ZONE}/machineTypes/{TYPE}",
        "disks": [{"boot": True, "initialize_params": {"source_image": IMAGE}}],
        "network_interfaces": [{"network": "global/networks/default"}],
        "scheduling": {"on_host_maintenance": "TERMINATE"},
        "labels": {"team": "red"},
    }
    return values | over


def put(c: Any, name: str, request_id: str = "", **over: Any) -> Any:
    request = {**PLACE, "instance_resource": body(name, **over)}
    if request_id:
        request["request_id"] = request_id
    return c.instances.insert_unary(request, **c.options)


def test_an_operation_from_running_to_done(b: Bench) -> None:
    """Ids are numbers, names and links lead on; wait comes back when it is done."""

    def work(c: Any) -> None:
        op = put(c, "n-1")
        assert (op.operation_type, op.status) == ("insert", type(op).Status.RUNNING)
        assert op.target_link.endswith(f"projects/{PROJECT}/zones/{ZONE}/instances/n-1")
        found = c.instances.get({**PLACE, "instance": "n-1"}, **c.options)
        assert (found.id, found.status) == (op.target_id, "PROVISIONING")
        b._added_s += 21
        done = c.operations.wait({**PLACE, "operation": op.name}, **c.options)
        assert (done.status, done.progress) == (type(op).Status.DONE, 100)
        found = c.instances.get({**PLACE, "instance": str(op.target_id)}, **c.options)
        assert (found.name, found.status) == ("n-1", "RUNNING")
        gone = c.instances.delete_unary({**PLACE, "instance": "n-1"}, **c.options)
        assert c.operations.get({**PLACE, "operation": gone.name}, **c.options).status == (
            type(op).Status.RUNNING
        )
        b._added_s += 31
        with pytest.raises(google.NotFound):
            c.instances.get({**PLACE, "instance": "n-1"}, **c.options)
        with pytest.raises(google.NotFound):
            c.instances.delete_unary({**PLACE, "instance": "n-1"}, **c.options)
        assert put(c, "n-1").target_id != op.target_id  # the name is free again

    b.sdk(work)


def test_request_ids_and_names(b: Bench) -> None:
    one, two = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2))

    def work(c: Any) -> None:
        first = put(c, "n-1", one)
        assert put(c, "n-1", one).name == first.name
        with pytest.raises(google.Conflict) as caught:
            put(c, "n-1", two)
        assert caught.value.errors[0]["reason"] == "alreadyExists"
        for bad in ("7", "00000000-0000-0000-0000-000000000000"):
            with pytest.raises(google.BadRequest):
                put(c, "n-2", bad)

    b.sdk(work)
    assert b.world.ever == 1


@pytest.mark.parametrize(
    "over",
    [
        {"name": "Capital"},
        {"name": "x" * 64},
        {"labels": {"Team": "red"}},
        {"labels": {"team": "Red"}},
        {"disks": []},
        {"network_interfaces": []},
        {"scheduling": {}},
        {"machine_type": f"zones/{ZONE}/machineTypes/a9-none"},
        {"metadata": {"items": [{"key": "user-data", "value": "x" * 262_145}]}},
    ],
)
def test_what_google_refuses(b: Bench, over: dict[str, Any]) -> None:
    def work(c: Any) -> None:
        with pytest.raises(google.BadRequest):
            put(c, **{"name": "n-1", **over})

    b.sdk(work)
    assert b.world.ever == 0


def test_lists_by_zone_and_over_all_with_filters_and_pages(b: Bench) -> None:
    def work(c: Any) -> None:
        for n in range(7):
            put(c, f"n-{n}", labels={"team": "red" if n % 2 else "blue"})
        request = {**PLACE, "filter": "labels.team=red", "max_results": 2}
        assert [i.name for i in c.instances.list(request, **c.options)] == ["n-1", "n-3", "n-5"]
        for text, count in (
            ('(name="n-1") OR (name="n-2")', 2),
            ("labels.team:*", 7),
            ("labels.cost:*", 0),
            ("labels.team=blue AND status=PROVISIONING", 4),
            ("name=n-*", 7),
            ("name eq n-[12]", 2),
            ("name ne n-[12]", 5),
            ("name!=n-1", 6),
        ):
            found = c.instances.list({**PLACE, "filter": text}, **c.options)
            assert len(list(found)) == count, text
        everywhere = {"project": PROJECT, "max_results": 3}
        scopes = dict(c.instances.aggregated_list(everywhere, **c.options))
        assert set(scopes) == {f"zones/{ZONE}", f"zones/{OTHER}"}
        assert scopes[f"zones/{OTHER}"].warning.code == "NO_RESULTS_ON_PAGE"
        pages = list(c.instances.aggregated_list(everywhere, **c.options).pages)
        assert [len(p.items[f"zones/{ZONE}"].instances) for p in pages] == [3, 3, 1]
        for wrong in ({"filter": "nonsense("}, {"max_results": 501}, {"page_token": "%"}):
            with pytest.raises(google.BadRequest):
                c.instances.list({**PLACE, **wrong}, **c.options)

    b.sdk(work)


def test_the_convenient_insert_raises_what_the_operation_says(make: Make) -> None:
    """The form in which a stock-out reaches other tools (clouds.md 2.2)."""
    b = make(0)

    def work(c: Any) -> None:
        op = put(c, "n-1")
        failed = c.operations.wait({**PLACE, "operation": op.name}, **c.options)
        assert failed.error.errors[0].code == "ZONE_RESOURCE_POOL_EXHAUSTED"
        assert (failed.http_error_status_code, failed.http_error_message) == (
            503,
            "SERVICE UNAVAILABLE",
        )
        info = failed.error.errors[0].error_details[0].error_info
        assert (info.reason, info.metadatas["vmType"]) == ("resource_availability", TYPE)

    b.sdk(work)


def test_a_bulk_insert_below_its_minimum_makes_nothing(make: Make) -> None:
    b = make(3)

    def work(c: Any) -> None:
        properties = {k: v for k, v in body("").items() if k != "name"} | {"machine_type": TYPE}
        resource = {"count": 5, "name_pattern": "n-#", "instance_properties": properties}
        request = {**PLACE, "bulk_insert_instance_resource_resource": resource}
        op = c.instances.bulk_insert_unary(request, **c.options)
        failed = c.operations.wait({**PLACE, "operation": op.name}, **c.options)
        assert failed.error.errors[0].code.startswith("ZONE_RESOURCE_POOL_EXHAUSTED")
        resource["min_count"] = 2
        op = c.instances.bulk_insert_unary(request, **c.options)
        words = {**PLACE, "filter": f'operationGroupId="{op.operation_group_id}"'}
        members = [o for o in c.operations.list(words, **c.options) if o.name != op.name]
        assert sorted(o.target_link[-3:] for o in members) == [f"n-{n}" for n in range(1, 6)]

    b.sdk(work)
    assert b.world.ever == 3


def test_places_types_and_images(make: Make) -> None:
    b = make(images=frozenset({IMAGE, IMAGE.replace("v1", "v2")}))

    def work(c: Any) -> None:
        from google.cloud import compute_v1

        def client(kind: Any) -> Any:
            transport = c.instances.transport
            made = kind(credentials=transport._credentials, client_options={"api_endpoint": b.url})
            made.transport._session.trust_env = False
            return made

        names = [z.name for z in client(compute_v1.ZonesClient).list(project=PROJECT)]
        assert names == [ZONE, OTHER]
        (region,) = client(compute_v1.RegionsClient).list(project=PROJECT)
        assert (region.name, len(region.zones)) == (REGION, 2)
        types = client(compute_v1.MachineTypesClient)
        found = types.get(**PLACE, machine_type=TYPE)
        assert found.accelerators[0].guest_accelerator_count == 8
        with pytest.raises(google.NotFound):
            types.get(**PLACE, machine_type="n1-standard-1")
        newest = c.images.get_from_family({"project": PROJECT, "family": "base"}, **c.options)
        assert (newest.name, newest.status) == ("base-v2", "READY")
        assert c.images.get({"project": PROJECT, "image": "base-v1"}, **c.options).name == "base-v1"
        for wrong in ({"image": "none"}, {"image": "base"}):
            with pytest.raises(google.NotFound):
                c.images.get({"project": PROJECT, **wrong}, **c.options)

    b.sdk(work)


@pytest.mark.parametrize("header", [None, "Basic eDp5", "Bearer", "Bearer two words"])
def test_a_token_of_the_right_form_is_needed(b: Bench, header: str | None) -> None:
    """No call without one, and an unknown path or field is refused too."""
    status, answer = b.run(_ask(b, "GET", f"projects/{PROJECT}/zones", header))
    assert (status, answer["error"]["errors"][0]["reason"]) == (401, "authError")


def test_unknown_paths_and_fields(b: Bench) -> None:
    status, _ = b.run(_ask(b, "GET", f"projects/{PROJECT}/global/networks", "Bearer x"))
    assert status == 404
    place = f"projects/{PROJECT}/zones/{ZONE}/instances"
    for wrong in ('{"nmae": "n"}', "{", "[]", ""):
        status, answer = b.run(_ask(b, "POST", place, "Bearer x", wrong))
        assert (status, answer["error"]["code"]) == (400, 400), wrong


async def _ask(b: Bench, method: str, path: str, header: str | None, text: str = "") -> Any:
    """One request without the SDK."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": text.encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", header.encode())] if header else []
    scope: dict[str, Any] = {
        "method": method,
        "path": f"/compute/v1/{path}",
        "query_string": b"",
        "headers": headers,
    }
    await b.app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("text", ["a", "a=", "(a=1", "a=1)", "AND", "OR a=1", "a=1 OR", "a ~ 1",
                                  "a eq ["])  # fmt: skip
def test_filters_that_cannot_be_read(text: str) -> None:
    """Never taken for "everything"."""
    with pytest.raises(BadFilterError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("a=1 b=2", True),
        ("a=1 b=3", False),
        ("a=1 AND (b=3 OR c:*)", True),
        ("a=2 OR b=2 AND c:*", True),
        ("a=2 OR b=3 AND c:*", False),
        ("n>9", True),
        ("n>=10 n<=10", True),
        ("n<9", False),
        ("none>1", False),
        ("t>'2026-11-30'", True),
        ("none!=x", True),
        ("", True),
    ],
)
def test_filters(text: str, result: bool) -> None:
    fields = {"a": "1", "b": "2", "c": "x", "n": "10", "t": "2026-12-01"}
    assert parse(text)(fields.get) is result


def test_ids_come_from_the_worlds_chance_alone(make: Make) -> None:
    """Numbers for Google, names for the agents that report."""

    def ids() -> list[int]:
        b = make()
        made = b.sdk(lambda c: [put(c, f"n-{n}").target_id for n in range(3)])
        assert sorted(m.id for m in b.world.existing()) == ["n-0", "n-1", "n-2"]
        return list(made)

    assert ids() == ids()


def test_settings_for_the_skin_are_checked() -> None:
    assert gcp_settings("http://127.0.0.1:4580").emulator_credentials
    assert gcp.loopback("http://[::1]:80") and not gcp.loopback("http://10.0.0.1")

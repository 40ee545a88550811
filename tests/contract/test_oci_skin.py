"""The Oracle skin against the real SDK: what any tool will meet on it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wire_oci import (
    COMPARTMENT,
    FAR,
    IMAGE,
    METAL,
    OTHER,
    SUBNET,
    TENANCY,
    TYPE,
    ZONE,
    Bench,
)

sdk = pytest.importorskip("oci")

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


class Typed:
    """The SDK as people use it: with its models on both ways."""

    def __init__(self, c: Any) -> None:
        for client in (c.compute, c.work, c.identity):
            client.base_client.skip_deserialization = False
        self.compute, self.work, self.identity = c.compute, c.work, c.identity


def details(**over: Any) -> Any:
    """What a person would write."""
    models = sdk.core.models
    values: dict[str, Any] = {
        "availability_domain": f"fLtD:{ZONE}",
        "compartment_id": COMPARTMENT,
        "shape": TYPE,
        "display_name": "mine",
        "freeform_tags": {"team": "red"},
        "metadata": {"user_data": base64.b64encode(b"#!/bin/sh\n").decode()},
        "source_details": models.InstanceSourceViaImageDetails(image_id=IMAGE),
        "create_vnic_details": models.CreateVnicDetails(subnet_id=SUBNET),
    }
    return models.LaunchInstanceDetails(**values | over)


def refused(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(sdk.exceptions.ServiceError) as caught:
        call()
    return caught.value.status, caught.value.code


def test_an_instance_from_its_launch_to_its_end(b: Bench) -> None:
    """Typed answers, etags, work requests, states."""

    def work(c: Any) -> None:
        c = Typed(c)
        answer = c.compute.launch_instance(details(), opc_retry_token="t-1")
        one = answer.data
        assert (one.lifecycle_state, one.display_name, one.region) == (
            "PROVISIONING",
            "mine",
            "phx",
        )
        assert one.source_details.image_id == IMAGE
        assert one.fault_domain.startswith("FAULT-DOMAIN-")
        again = c.compute.launch_instance(details(), opc_retry_token="t-1")
        assert (again.data.id, again.headers["etag"]) == (one.id, answer.headers["etag"])
        assert again.request_id != answer.request_id
        request = c.work.get_work_request(answer.headers["opc-work-request-id"]).data
        assert (request.operation_type, request.status) == ("LaunchInstance", "IN_PROGRESS")
        assert request.resources[0].identifier == one.id
        b._added_s += 21
        assert c.compute.get_instance(one.id).data.lifecycle_state == "RUNNING"
        (summary,) = c.work.list_work_requests(COMPARTMENT, resource_id=one.id).data
        assert (summary.status, summary.percent_complete) == ("SUCCEEDED", 100.0)
        assert summary.time_finished > summary.time_accepted
        stale = answer.headers["etag"]
        assert refused(lambda: c.compute.terminate_instance(one.id, if_match=stale)) == (
            412,
            "NoEtagMatch",
        )
        gone = c.compute.terminate_instance(one.id, preserve_boot_volume=False)
        assert gone.status == 204
        assert refused(lambda: c.compute.terminate_instance(one.id)) == (409, "IncorrectState")
        b._added_s += 31
        assert c.compute.get_instance(one.id).data.lifecycle_state == "TERMINATED"
        end = c.work.get_work_request(gone.headers["opc-work-request-id"]).data
        assert (end.operation_type, end.status) == ("TerminateInstance", "SUCCEEDED")
        assert refused(lambda: c.compute.terminate_instance(one.id))[0] == 404
        b._added_s += 1000
        assert refused(lambda: c.compute.get_instance(one.id)) == (404, "NotAuthorizedOrNotFound")

    b.sdk(work)


def test_lists_filter_and_page(make: Make) -> None:
    b = make(page_max=3)

    def work(c: Any) -> None:
        c = Typed(c)
        other = "ocid1.compartment.oc1..other"
        for n in range(7):
            c.compute.launch_instance(details(display_name=f"n-{n}"))
        c.compute.launch_instance(details(compartment_id=other))
        everything = sdk.pagination.list_call_get_all_results(
            c.compute.list_instances, COMPARTMENT
        ).data
        assert [i.display_name for i in everything] == [f"n-{n}" for n in range(7)]
        for query, count in (
            ({"display_name": "n-3"}, 1),
            ({"lifecycle_state": "RUNNING"}, 0),
            ({"lifecycle_state": "PROVISIONING", "limit": 2}, 2),
            ({"availability_domain": f"fLtD:{OTHER}"}, 0),
        ):
            assert len(c.compute.list_instances(COMPARTMENT, **query).data) == count, query
        assert len(c.compute.list_instances(other).data) == 1
        assert refused(lambda: c.compute.list_instances("nonsense"))[0] == 404
        assert refused(lambda: c.compute.list_instances(COMPARTMENT, page="%"))[0] == 400

    b.sdk(work)


@pytest.mark.parametrize(
    ("over", "status", "code"),
    [
        ({"compartment_id": "x"}, 404, "NotAuthorizedOrNotFound"),
        ({"compartment_id": None}, 400, "MissingParameter"),
        ({"shape": None}, 400, "MissingParameter"),
        ({"shape": "VM.Standard2.1"}, 400, "InvalidParameter"),
        ({"availability_domain": "AD-1"}, 400, "InvalidParameter"),
        ({"availability_domain": "fLtD:US-CHICAGO-1-AD-1"}, 400, "InvalidParameter"),
        ({"source_details": None}, 400, "MissingParameter"),
        ({"create_vnic_details": None}, 400, "RelatedResourceNotAuthorizedOrNotFound"),
        ({"display_name": "x" * 256}, 400, "InvalidParameter"),
        ({"freeform_tags": {f"k{n}": "v" for n in range(11)}}, 400, "InvalidParameter"),
        ({"freeform_tags": {"a b": "v"}}, 400, "InvalidParameter"),
        ({"metadata": {"user_data": "not base64!"}}, 400, "InvalidParameter"),
        ({"metadata": {"user_data": "A" * 32_000}}, 400, "InvalidParameter"),
    ],
)
def test_what_oracle_refuses(b: Bench, over: dict[str, Any], status: int, code: str) -> None:
    assert b.sdk(lambda c: refused(lambda: c.compute.launch_instance(details(**over)))) == (
        status,
        code,
    )
    assert b.world.ever == 0


def test_preemptible_bare_metal_does_not_exist(b: Bench) -> None:
    action = sdk.core.models.TerminatePreemptionAction(preserve_boot_volume=False)
    config = sdk.core.models.PreemptibleInstanceConfigDetails(preemption_action=action)

    def work(c: Any) -> None:
        wrong = details(shape=METAL, preemptible_instance_config=config)
        assert refused(lambda: c.compute.launch_instance(wrong)) == (400, "InvalidParameter")
        made = Typed(c).compute.launch_instance(details(preemptible_instance_config=config)).data
        assert made.preemptible_instance_config.preemption_action.type == "TERMINATE"

    b.sdk(work)


def test_one_token_with_two_bodies(b: Bench) -> None:
    def work(c: Any) -> None:
        c.compute.launch_instance(details(), opc_retry_token="t")
        other = details(display_name="other")
        assert refused(lambda: c.compute.launch_instance(other, opc_retry_token="t")) == (
            409,
            "InvalidatedRetryToken",
        )
        long = refused(lambda: c.compute.launch_instance(details(), opc_retry_token="t" * 65))
        assert long == (400, "InvalidParameter")

    b.sdk(work)
    assert b.world.ever == 1


def test_a_stockout_in_the_form_that_other_tools_meet(make: Make) -> None:
    b = make(0)

    def work(c: Any) -> None:
        with pytest.raises(sdk.exceptions.ServiceError) as caught:
            c.compute.launch_instance(details())
        e = caught.value
        assert (e.status, e.code, e.message) == (500, "InternalError", "Out of host capacity.")
        assert e.request_id

    b.sdk(work)


def test_a_failed_launch_in_its_work_request(b: Bench) -> None:
    b.inject("die_after_accept", 10)

    def work(c: Any) -> None:
        c = Typed(c)
        made = [c.compute.launch_instance(details()) for _ in range(6)]
        b._added_s += 30
        codes = set()
        for answer in made:
            ident = answer.headers["opc-work-request-id"]
            assert c.work.get_work_request(ident).data.status == "FAILED"
            (error,) = c.work.list_work_request_errors(ident).data
            codes.add((error.code, error.message.startswith("Out of host capacity.")))
        assert codes == {("OutOfHostCapacity", True), ("InternalServerError", False)}

    b.sdk(work)


def test_places_shapes_and_images(make: Make) -> None:
    b = make(images=frozenset({IMAGE, "ocid1.image.oc1.us-chicago-1.base-v1"}))

    def work(c: Any) -> None:
        c = Typed(c)
        found = [d.name for d in c.identity.list_availability_domains(TENANCY).data]
        assert found == [f"fLtD:{ZONE}", f"fLtD:{OTHER}"]
        shapes = {s.shape: s.gpus for s in c.compute.list_shapes(COMPARTMENT).data}
        assert shapes == {METAL: 8, TYPE: 2}
        (image,) = c.compute.list_images(COMPARTMENT, lifecycle_state="AVAILABLE").data
        assert (image.id, image.display_name) == (IMAGE, "base-v1")
        assert c.compute.get_image(IMAGE).data.lifecycle_state == "AVAILABLE"
        for wrong in ("ocid1.image.oc1.us-chicago-1.base-v1", "ocid1.image.oc1.phx.none", "x"):
            assert refused(lambda w=wrong: c.compute.get_image(w))[0] == 404

    b.sdk(work)


def test_without_a_region_in_the_path_all_are_one(b: Bench) -> None:
    """A tool that knows only an endpoint; the domain says where an instance is made."""

    def work(c: Any) -> None:
        c = Typed(c)
        assert len(c.identity.list_availability_domains(TENANCY).data) == 3
        far = "ocid1.image.oc1.us-chicago-1.base"
        source = sdk.core.models.InstanceSourceViaImageDetails(image_id=far)
        c.compute.launch_instance(details())
        c.compute.launch_instance(
            details(availability_domain="fLtD:US-CHICAGO-1-AD-1", source_details=source)
        )
        assert {i.region for i in c.compute.list_instances(COMPARTMENT).data} == {"phx", FAR}

    b.sdk(work, path="")


def signature(**over: str) -> str:
    fields = {
        "algorithm": "rsa-sha256",
        "headers": "date (request-target) host",
        "keyId": f"{TENANCY}/ocid1.user.oc1..u/{':'.join(['ab'] * 16)}",
        "signature": "c2ln",
        "version": "1",
    }
    return "Signature " + ",".join(f'{k}="{v}"' for k, v in {**fields, **over}.items())


DATE = "Tue, 01 Dec 2026 00:00:00 GMT"


@pytest.mark.parametrize(
    ("header", "date", "status"),
    [
        (signature(), DATE, 200),
        (signature(keyId="ST$eyJ.abc"), DATE, 200),
        (signature(headers="x-date (request-target) host"), DATE, 200),
        (None, DATE, 401),
        ("Bearer x", DATE, 401),
        (signature(algorithm="hmac-sha256"), DATE, 401),
        (signature(headers="date host"), DATE, 401),
        (signature(keyId="me"), DATE, 401),
        (signature(signature="%"), DATE, 401),
        (signature(), "today", 401),
        (signature(), "", 401),
    ],
)
def test_the_signatures_form(b: Bench, header: str | None, date: str, status: int) -> None:
    query = f"compartmentId={COMPARTMENT}"
    got, answer = b.run(_ask(b, "GET", "/20160918/instances", query, header, date))
    assert got == status
    assert answer == [] if status == 200 else answer["code"] == "NotAuthenticated"


def test_a_body_must_be_the_one_that_was_signed(b: Bench) -> None:
    wide = "date (request-target) host content-length content-type x-content-sha256"
    got, _ = b.run(_ask(b, "POST", "/20160918/instances", "", signature(headers=wide), DATE, "{}"))
    assert got == 401


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/20160918/volumes", 404, "NotFound"),
        ("PUT", "/20160918/shapes", 401, "NotAuthenticated"),
        ("DELETE", "/20160918/shapes", 405, "MethodNotAllowed"),
        ("GET", "/oci/mars-1/20160918/instances", 404, "NotAuthorizedOrNotFound"),
        ("GET", "/oci/instances", 404, "NotAuthorizedOrNotFound"),
        ("GET", "/20160918/instances", 400, "MissingParameter"),
    ],
)
def test_unknown_paths(b: Bench, method: str, path: str, status: int, code: str) -> None:
    got, answer = b.run(_ask(b, method, path, "", signature(), DATE))
    assert (got, answer["code"]) == (status, code)


@pytest.mark.parametrize("body", ["{", "[]", '"x"', '{"nmae": "x"}', '{"sourceDetails": {"x": 1}}',
                                  '{"freeformTags": [1]}', '{"sourceDetails": 7}'])  # fmt: skip
def test_bodies_that_cannot_be_read(b: Bench, body: str) -> None:
    """Never a crash, never a launch; unknown fields are refused as the real one does."""

    def work(c: Any) -> tuple[int, str]:
        return refused(lambda: c.compute.launch_instance(body))

    status, code = b.sdk(work)
    assert (status, code in ("CannotParseRequest", "InvalidParameter")) == (400, True)
    assert b.world.ever == 0


async def _ask(
    b: Bench, method: str, path: str, query: str, header: str | None, date: str, text: str = ""
) -> Any:
    """One request without the SDK."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": text.encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"date", date.encode())] if date else []
    headers += [(b"authorization", header.encode())] if header else []
    scope: dict[str, Any] = {
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": headers,
    }
    await b.app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])

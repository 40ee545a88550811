"""The Google adapter against canned answers: what every code and every form of an error means.

PC-166, PC-192: accepted-then-dead, throttling.
"""

from __future__ import annotations

from typing import Any

import pytest
from canned_gcp import NAME, Canned, Request, create, everything, operation, ref, refusal
from wire_gcp import IMAGE, OTHER, REGION, TYPE, ZONE

from fleet.errors import (
    Ambiguous,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fleet.model import Phase
from providers import gcp
from providers.gce.codes import CODES, DIED, OPERATION_CODES


@pytest.mark.parametrize("code", [c for c in CODES if not c.isdigit()])
def test_every_reason_of_an_answer_raises_its_class(code: str) -> None:
    """At once, with the vendor's words kept; a taken name is looked at first."""
    p = Canned(lambda r: refusal(400, code) if r[0] == "POST" else (200, {"items": []}))
    error = p.error(create)
    assert (type(error), error.code, error.message) == (CODES[code], code, error.message)
    assert error.message.endswith("the words")


@pytest.mark.parametrize("code", OPERATION_CODES)
def test_every_code_of_an_operation_raises_its_class(code: str) -> None:
    """The insert is accepted, the operation fails while it is watched."""

    def script(r: Request) -> Any:
        if r[0] == "POST":
            return 200, operation(NAME)
        if r[1] == "instances":
            return 200, {"items": []}
        return 200, {"items": [operation(NAME, {"code": code, "message": "the words"})]}

    error = Canned(script).error(create)
    assert (type(error), error.code, error.request_id) == (
        OPERATION_CODES[code],
        code,
        f"op-{NAME}",
    )


@pytest.mark.parametrize("code", OPERATION_CODES)
def test_an_accepted_launch_that_failed_is_listed_with_its_code(code: str) -> None:
    """PC-166: nothing is left of it but its operation."""

    def script(r: Request) -> Any:
        if r[1] == "operations":
            return 200, {"items": [operation(NAME, {"code": code, "message": "why"})]}
        return 200, {}

    found = Canned(script, ended_s=1e10, regions={REGION: gcp.Region(zones=[ZONE])}).run(everything)
    assert [(i.ref, i.phase, i.code, i.message) for i in found] == [
        (ref(NAME), Phase.TERMINATED, code, "why")
    ]
    assert (found[0].token, found[0].cell) == ("tok", "cell")
    assert found[0].died == (DIED[code].outcome if code in DIED else None)


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind"),
    [
        (404, "notFound", f"The resource '{IMAGE}' was not found", ImageNotFound),
        (
            400,
            "invalid",
            "Invalid value for field 'resource.disks[0].initializeParams.sourceImage': 'x'",
            ImageNotFound,
        ),
        (
            400,
            "invalid",
            "Machine type with name 'a3-highgpu-8g' does not exist in zone 'us-central1-f'.",
            InsufficientCapacity,
        ),
        (404, "notFound", "The resource 'projects/nobody' was not found", Unauthorized),
        (404, "notFound", "The resource 'projects/p/regions/r/subnetworks/s' was not found",
         InvalidRequest),
        (403, "rateLimitExceeded", "Rate Limit Exceeded", Throttled),
        (403, "quotaExceeded", "Quota 'X' exceeded.  Limit: 8.0 in region r.", QuotaExceeded),
        (403, "accessNotConfigured", "Compute Engine API has not been used", Unauthorized),
        (429, "", "slow down", Throttled),
        (401, "", "who?", Unauthorized),
        (503, "backendError", "try again", Unavailable),
        (503, "somethingNew", "try again", Unavailable),
        (500, "internalError", "perhaps", Ambiguous),
        (502, "", "a gateway's page", Ambiguous),
        (500, "somethingNew", "perhaps", Ambiguous),
        (400, "somethingNew", "who knows", Unavailable),
    ],
)  # fmt: skip
def test_what_a_refused_create_means(status: int, reason: str, message: str, kind: Any) -> None:
    """The reason decides, not the status; where it has two meanings, the message does."""
    error = Canned(lambda _: refusal(status, reason, message)).error(create)
    assert type(error) is kind
    assert message in error.message
    assert error.code == (reason or str(status))


def test_the_reason_may_stand_in_the_details_alone() -> None:
    """Newer answers carry an ErrorInfo and no list of errors."""
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "IAM_PERMISSION_DENIED"}
    error = Canned(lambda _: refusal(403, "", details=[info])).error(create)
    assert (type(error), error.code) == (Unauthorized, "IAM_PERMISSION_DENIED")


def test_a_hint_when_to_come_back_is_kept() -> None:
    p = Canned(lambda _: (429, {"error": {"message": "later"}, "headers": {"retry-after": "17"}}))
    assert p.error(everything).retry_after_s == 17.0


@pytest.mark.parametrize(
    ("message", "start"),
    [
        (
            "Quota 'NVIDIA_H100_GPUS' exceeded.  Limit: 8.0 in region us-central1.",
            "regional quota NVIDIA_H100_GPUS in us-central1: ",
        ),
        (
            "Quota 'NVIDIA_H100_GPUS' exceeded.  Limit: 0.0 in region us-central1.",
            "regional quota NVIDIA_H100_GPUS in us-central1, never granted: ",
        ),
        (
            "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.",
            "global quota GPUS_ALL_REGIONS, which blocks every region, never granted: ",
        ),
    ],
)
def test_regional_and_global_quota_are_told_apart(message: str, start: str) -> None:
    """In an answer and in an operation."""
    error = Canned(lambda _: refusal(403, "quotaExceeded", message)).error(create)
    assert error.message == start + message
    late = operation(NAME, {"code": "QUOTA_EXCEEDED", "message": message})
    error = Canned(lambda _: (200, late)).error(create)
    assert (type(error), error.message) == (QuotaExceeded, start + message)


def test_a_stockout_names_zones_with_capacity() -> None:
    detail = {
        "errorInfo": {
            "reason": "resource_availability",
            "domain": "compute.googleapis.com",
            "metadatas": {"zone": ZONE, "vmType": TYPE, "zonesAvailable": f"{OTHER},us-central1-f"},
        }
    }
    code = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    done = operation(NAME, {"code": code, "message": "no", "errorDetails": [detail]})
    error = Canned(lambda _: (200, done)).error(create)
    assert (type(error), error.zones_with_capacity) == (
        InsufficientCapacity,
        (OTHER, "us-central1-f"),
    )

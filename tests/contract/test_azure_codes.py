"""What the Azure adapter makes of refusals: every entry of its tables, over HTTP and the SDK."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from wire_azure import Asked, Canned, Said, everything, launch, refusal

from fleet.errors import (
    Ambiguous,
    Busy,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fleet.model import InstanceRef, Outcome, Phase
from providers import registry
from providers.arm.codes import (
    ALL_ZONES,
    BOOT_FAILED,
    BY_TEXT,
    CODES,
    DIED,
    NO_EFFECT,
    died_of,
    translate,
)
from providers.arm.vm import Status, instance, name_in, phase_of, status_of

_QUOTA = (
    "Operation could not be completed as it results in exceeding approved standardNDSv5Family "
    "Cores quota. Additional details - Current Limit: 0, Additional Required: 96."
)
_BUSY = "The server rejected the request because too many requests have been received."


def on_create(said: Said) -> ProviderError:
    """The error of a create that is answered so."""
    error: ProviderError = Canned(lambda _: said).error(lambda p: p.create(launch("t")))
    return error


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_raises_its_class(code: str) -> None:
    """With the vendor's code, words and request id."""
    error = on_create(refusal(code, headers={"x-ms-request-id": "req-1"}))
    assert type(error) is CODES[code]
    assert (error.code, error.request_id) == (code, "req-1")
    assert error.message.startswith("words of the vendor")
    assert ("every zone" in error.message) == (code in ALL_ZONES)


@pytest.mark.parametrize("code", sorted(c for c, kind in CODES.items() if kind is Unavailable))
def test_a_server_error_on_create_may_have_had_its_effect(code: str) -> None:
    """A 5xx is Busy only where nothing was done; on a list it always is."""
    kind = Unavailable if code in NO_EFFECT else Ambiguous
    assert type(on_create(refusal(code, status=503))) is kind
    assert type(Canned(lambda _: refusal(code, status=500)).error(everything)) is Unavailable


@pytest.mark.parametrize(
    ("message", "details", "kind"),
    [
        (_QUOTA, [], QuotaExceeded),
        ("exceeding approved Total Regional Cores quota", [], QuotaExceeded),
        ("exceeding approved LowPriorityCores quota", [], QuotaExceeded),
        (_BUSY, [], Throttled),
        ("no", [{"code": "TooManyRequests", "target": "PutVM", "message": "{}"}], Throttled),
        ("The disk is being detached.", [], Unavailable),
    ],
)
@pytest.mark.parametrize("status", [403, 409])
def test_operation_not_allowed_is_told_apart(
    message: str, details: list[Any], kind: type[ProviderError], status: int
) -> None:
    """Quota and throttling share a code; what is neither keeps its text and is Busy."""
    error = on_create(refusal("OperationNotAllowed", message, status, details=details))
    assert type(error) is kind
    assert error.message == message


@pytest.mark.parametrize("code", ["OperationNotAllowed", "QuotaExceeded", "Whatever"])
def test_429_is_throttling_whatever_the_code(code: str) -> None:
    """Status first: quota text or not."""
    error = on_create(refusal(code, _QUOTA, 429, headers={"Retry-After": "23"}))
    assert (type(error), error.retry_after_s) == (Throttled, 23.0)


@pytest.mark.parametrize(
    ("message", "headers", "wait_s"),
    [
        ("slow", {"Retry-After": "5"}, 5.0),
        ("Please try again after '17' seconds.", {}, 17.0),
        ("slow", {"x-ms-ratelimit-remaining-subscription-writes": "0"}, 60.0),
        ("slow", {"x-ms-ratelimit-remaining-resource": "Microsoft.Compute/A;3,M.C/B;0"}, 60.0),
        ("slow", {"x-ms-ratelimit-remaining-resource": "Microsoft.Compute/A;3"}, None),
    ],
)
def test_how_long_azure_wants_us_to_wait(
    message: str, headers: dict[str, str], wait_s: float | None
) -> None:
    """Its header, its words, or a bucket that it says is empty."""
    error = on_create(refusal("TooManyRequests", message, 429, headers=headers))
    assert (type(error), error.retry_after_s) == (Throttled, wait_s)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (refusal("GalleryImageNotFound", status=404), ImageNotFound),
        (refusal("InvalidParameter", status=400, target="imageReference"), ImageNotFound),
        (refusal("InvalidParameter", status=400, target="vmSize"), InvalidRequest),
        (refusal("ResourceNotFound", "'Microsoft.Compute/galleries/g'", 404), ImageNotFound),
        (refusal("ResourceNotFound", "'Microsoft.Network/x'", 404), InvalidRequest),
        (refusal("ResourceGroupNotFound", status=404), Unauthorized),
        (refusal("SubscriptionNotFound", status=404), Unauthorized),
        (refusal("Nonsense", status=401), Unauthorized),
        (refusal("Nonsense", status=403), Unauthorized),
        (refusal("QuotaExceeded", status=403), QuotaExceeded),
        (refusal("Nonsense", status=418), Unavailable),
        (refusal("Nonsense", status=500), Ambiguous),
        ((502, "<html>Bad Gateway</html>", {"content-type": "text/html"}), Ambiguous),
        ((409, "", {}), Unavailable),
    ],
)
def test_codes_that_need_more_than_their_name(said: Said, kind: type[ProviderError]) -> None:
    """By target, text and status."""
    assert type(on_create(said)) is kind


def test_an_unknown_code_keeps_the_vendors_text() -> None:
    """Counted and shown under the vendor's word, and Busy."""
    for work in (everything, lambda p: p.delete([InstanceRef("a", "eastus", "1", "x")])):
        error = Canned(lambda _: refusal("BrandNew", "a new way to say no", 400)).error(work)
        assert (type(error), str(error)) == (Unavailable, "BrandNew: a new way to say no")
        assert isinstance(error, Busy)


def test_a_failed_operation_arrives_with_status_200() -> None:
    """The SDK's poller raises what the operation said, with the poll's own status."""
    from azure.core.exceptions import HttpResponseError

    text = '{"status":"Failed","error":{"code":"AllocationFailed","message":"none left"}}'
    response: Any = SimpleNamespace(status_code=200, reason="OK", headers={}, text=lambda: text)
    error = translate(HttpResponseError(response=response), creates=True)
    assert (type(error), error.code) == (InsufficientCapacity, "AllocationFailed")


def test_tables_agree() -> None:
    """No code is in two tables that decide; deaths are refusals; the registry knows them."""
    assert not BY_TEXT & CODES.keys()
    assert not BOOT_FAILED & CODES.keys()
    assert ALL_ZONES <= DIED.keys() <= CODES.keys()
    assert CODES.keys() >= NO_EFFECT
    assert registry.died_as("azure", "AllocationFailed") is InsufficientCapacity
    assert registry.died_as("azure", "InternalExecutionError") is None


@pytest.mark.parametrize("code", sorted(DIED))
def test_every_death_is_the_refusal_it_amounts_to(code: str) -> None:
    """Accepted, then failed: the same memory as before acceptance."""
    found = instance("azure", _vm("Failed"), Status(code, "why", ""))
    assert (found.phase, found.code, found.message) == (Phase.FAILED, code, "why")
    assert found.died is DIED[code].outcome


@pytest.mark.parametrize("code", sorted(BOOT_FAILED))
def test_a_system_that_never_called_back_failed_its_boot(code: str) -> None:
    """The VM runs and is billed: FAILED, so that its owner deletes it."""
    found = instance("azure", _vm("Failed"), Status(code, "", "running"))
    assert (found.phase, found.code, found.died) == (Phase.FAILED, code, Outcome.BOOT_TIMEOUT)


def test_other_deaths() -> None:
    """Quota by its text; an unknown code blames nothing; none at all is named by us."""
    assert died_of("OperationNotAllowed", _QUOTA) is QuotaExceeded
    assert died_of("OperationNotAllowed", "busy") is None
    assert died_of("InternalExecutionError", "") is None
    found = instance("azure", _vm("Failed"), None)
    assert (found.phase, found.code, found.died) == (Phase.FAILED, "ProvisioningFailed", None)


@pytest.mark.parametrize(
    ("state", "power", "phase"),
    [
        ("Creating", "", Phase.PENDING),
        ("Creating", "running", Phase.RUNNING),
        ("Succeeded", "", Phase.RUNNING),
        ("Succeeded", "running", Phase.RUNNING),
        ("Updating", "running", Phase.RUNNING),
        ("Succeeded", "deallocating", Phase.STOPPING),
        ("Succeeded", "deallocated", Phase.STOPPED),
        ("Succeeded", "stopped", Phase.STOPPED),
        ("Deleting", "running", Phase.STOPPING),
        ("Failed", "running", Phase.FAILED),
        ("Canceled", "", Phase.FAILED),
        ("Dreaming", "", Phase.PENDING),
    ],
)
def test_phases(state: str, power: str, phase: Phase) -> None:
    """Failing and deleting beat the power state; a state nobody knows is PENDING."""
    assert phase_of(state, power) is phase
    assert instance("azure", _vm(state), Status("", "", power)).phase is phase


def test_a_deallocated_spot_vm_was_taken_back() -> None:
    """One of ours that was made to be deallocated instead of deleted, or on demand: not."""
    vm = _vm("Succeeded")
    assert not instance("azure", vm, Status("", "", "deallocated")).preempted
    vm["properties"]["priority"] = "Spot"
    found = instance("azure", vm, Status("", "", "deallocated"))
    assert (found.phase, found.preempted, found.code) == (Phase.STOPPED, True, "Deallocated")


def test_instance_views() -> None:
    """The code is the third part, if there is one; parts nobody knows are passed over."""
    statuses = [
        {"code": "ProvisioningState/failed/AllocationFailed", "message": "none"},
        {"code": "PowerState/running"},
        {"code": "HibernationState/Off"},
        {},
    ]
    assert status_of({"statuses": statuses}) == Status("AllocationFailed", "none", "running")
    assert status_of({"statuses": [{"code": "ProvisioningState/failed"}]}) == Status()
    assert status_of({}) == status_of({"statuses": None}) == Status()


def test_ids_ignore_case_and_other_groups() -> None:
    """ARM writes the same id in several ways."""
    ident = "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Compute/virtualMachines/Vm-1"
    assert name_in(ident, "rg") == name_in(ident.upper(), "Rg") == "vm-1"
    assert name_in(ident, "other") == name_in("nonsense", "rg") == ""


def test_gone_is_no_refusal_of_a_delete() -> None:
    """404 for the VM is success; the group missing is not."""

    def script(asked: Asked) -> Said:
        return refusal("ResourceNotFound", "'Microsoft.Compute/virtualMachines/x'", 404)

    ref = InstanceRef("azure", "eastus", "1", "x")
    canned = Canned(script)
    canned.run(lambda p: p.delete([ref, ref]))
    assert len(canned.asked) == 1
    assert "forceDeletion=true" in canned.asked[0].query
    assert type(Canned(lambda _: refusal("ResourceGroupNotFound", status=404)).error(
        lambda p: p.delete([ref]))) is Unauthorized  # fmt: skip


def _vm(state: str) -> dict[str, Any]:
    return {"name": "vm", "location": "eastus", "properties": {"provisioningState": state}}

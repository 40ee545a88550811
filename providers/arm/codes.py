"""Azure's error codes: what each means, and how an error of the SDK is read.

Invariant: every code that a decision rests on is in one of these tables, and a code that is in
none keeps the vendor's text and is Busy. Nothing here imports an SDK: its errors are known by the
names of their classes. Facts: clouds.md 4. Codes marked [K] are hypotheses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet.errors import (
    Ambiguous,
    Gone,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unavailable,
)

MAX_MESSAGE_CHARS = 500

CODES: Final[Mapping[str, type[ProviderError]]] = {
    "SkuNotAvailable": InsufficientCapacity,  # spot is full, or the size is not sold here
    "AllocationFailed": InsufficientCapacity,
    "ZonalAllocationFailed": InsufficientCapacity,
    "OverconstrainedAllocationRequest": InsufficientCapacity,
    "OverconstrainedZonalAllocationRequest": InsufficientCapacity,
    "OverconstrainedAllocationFailure": InsufficientCapacity,  # [K]
    "CapacityReservationGroupFull": InsufficientCapacity,  # [K]
    "QuotaExceeded": QuotaExceeded,
    "ResourceQuotaExceeded": QuotaExceeded,
    "SubnetIsFull": QuotaExceeded,
    "PrivateIPAddressesLimitReached": QuotaExceeded,  # [K]
    "RequestDisallowedByAzure": QuotaExceeded,  # the region is closed to this subscription
    "TooManyRequests": Throttled,
    "SubscriptionRequestsThrottled": Throttled,
    "TenantRequestsThrottled": Throttled,
    "ResourceRequestsThrottled": Throttled,
    "GalleryImageNotFound": ImageNotFound,
    "PlatformImageNotFound": ImageNotFound,
    "ImageNotFound": ImageNotFound,
    "ImageVersionDeprecated": ImageNotFound,  # [K]
    "InvalidParameter": InvalidRequest,
    "InvalidRequestContent": InvalidRequest,
    "InvalidRequestFormat": InvalidRequest,
    "InvalidTemplate": InvalidRequest,
    "BadRequest": InvalidRequest,
    "LinkedAuthorizationFailed": Unauthorized,  # may not join the subnet or use the identity
    "InvalidResourceReference": InvalidRequest,  # no such subnet or security group
    "LocationNotAvailableForResourceType": InvalidRequest,
    "NoRegisteredProviderFound": InvalidRequest,
    "AvailabilityZoneNotSupported": InvalidRequest,  # no zone of that number [K]
    "InvalidTagNameOrValue": InvalidRequest,  # [K]
    "PropertyChangeNotAllowedOnNewResource": InvalidRequest,  # [K]
    "RequestDisallowedByPolicy": InvalidRequest,
    "MissingApiVersionParameter": InvalidRequest,
    "InvalidApiVersionParameter": InvalidRequest,
    "AuthenticationFailed": Unauthorized,
    "AuthenticationFailedMissingToken": Unauthorized,
    "ExpiredAuthenticationToken": Unauthorized,
    "InvalidAuthenticationToken": Unauthorized,
    "InvalidAuthenticationTokenTenant": Unauthorized,
    "AuthorizationFailed": Unauthorized,
    "ReadOnlyDisabledSubscription": Unauthorized,
    "DisabledSubscription": Unauthorized,
    "InvalidSubscriptionId": Unauthorized,
    "SubscriptionNotFound": Unauthorized,
    "SubscriptionNotRegistered": Unauthorized,
    "MissingSubscriptionRegistration": Unauthorized,  # Microsoft.Compute is not switched on
    "ResourceGroupNotFound": Unauthorized,
    "ResourceGroupBeingDeleted": Unauthorized,
    "ScopeLocked": Unauthorized,  # a lock forbids deletes
    "InternalServerError": Unavailable,
    "InternalExecutionError": Unavailable,
    "InternalOperationError": Unavailable,
    "ServiceUnavailable": Unavailable,
    "ServerBusy": Unavailable,
    "ServerTimeout": Unavailable,
    "GatewayTimeout": Unavailable,
    "OperationPreempted": Unavailable,  # a newer operation on the same VM replaced this one
    "Conflict": Unavailable,
    "RetryableError": Unavailable,
    "AnotherOperationInProgress": Unavailable,
    # an earlier request under this name went through with another body: list() will tell
    "PropertyChangeNotAllowed": Ambiguous,
}


class AlreadyThere(Ambiguous):
    """A VM of this name exists: an earlier call with this token made it, or somebody else."""


#: What a PUT under ``If-None-Match: *`` is answered with beside the status 412.
EXISTS: Final = frozenset(
    {"PreconditionFailed", "ConditionNotMet", "ResourceExists", "ResourceAlreadyExists"}
)

#: Codes that mean a thing only together with their text; see ``kind_of``.
BY_TEXT: Final = frozenset({"OperationNotAllowed", "ResourceNotFound", "NotFound"})

#: 5xx answers that are given before anything is done. After any other (InternalServerError, a
#: gateway's own page, a code nobody knows) a PUT may have worked: it is Ambiguous.
NO_EFFECT: Final = frozenset({"ServiceUnavailable", "ServerBusy"})

#: Capacity codes that speak of the size in every zone of the region, not of one zone.
ALL_ZONES: Final = frozenset(
    {"SkuNotAvailable", "AllocationFailed", "OverconstrainedAllocationRequest"}
)

#: What a VM failed of after it was accepted, as the refusal it amounts to.
DIED: Final[Mapping[str, type[ProviderError]]] = {
    code: kind
    for code, kind in CODES.items()
    if kind in (InsufficientCapacity, QuotaExceeded, ImageNotFound)
}
#: The VM exists, runs and is billed, but its operating system never called back.
BOOT_FAILED: Final = frozenset(
    {
        "OSProvisioningTimedOut",
        "OSProvisioningClientError",
        "OSProvisioningInternalError",
        "VMStartTimedOut",
        "VMAgentStatusCommunicationError",
    }
)

#: The SDK's own errors by class name, most derived first. Those under Unavailable are raised
#: before anything is sent; any other may have had an effect.
LOCAL: Final[Mapping[str, type[ProviderError]]] = {
    "CredentialUnavailableError": Unauthorized,
    "ClientAuthenticationError": Unauthorized,
    "ServiceRequestTimeoutError": Unavailable,
    "SerializationError": InvalidRequest,
}
#: aiohttp's errors that the SDK hides in ServiceRequestError: no connection was made.
NOT_SENT: Final = frozenset({"ClientConnectorError", "ConnectionTimeoutError", "InvalidURL"})

_QUOTA: Final = re.compile(r"\bquota\b|exceeding approved|\bCores? limit\b", re.IGNORECASE)
_THROTTLED: Final = re.compile(r"too many requests|throttl|\brate limit", re.IGNORECASE)
_IMAGE: Final = re.compile(
    r"imageReference|/galleries/|\bgaller(?:y|ies)\b|/images/", re.IGNORECASE
)
_AGAIN: Final = re.compile(r"(?:after|in)\s+'?(\d{1,4})'?\s+seconds?", re.IGNORECASE)
#: Buckets of Azure's limits refill by the minute; used when a refusal names no time.
REFILL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Said:
    """An error document, flattened."""

    code: str = ""
    message: str = ""
    target: str = ""
    details: tuple[str, ...] = ()


def kind_of(said: Said, status: int, *, creates: bool) -> type[ProviderError]:
    """What an error answer means; ``creates`` when an effect would be a VM.

    429 is throttling whatever the code says, and a code beats a status otherwise (quota comes as
    409 or 403). ``OperationNotAllowed`` is quota or throttling by its details and text.
    """
    if status == 429:
        return Throttled
    if status == 412 or said.code in EXISTS:
        return AlreadyThere
    kind = CODES.get(said.code) or _by_text(said) or _by_status(said, status, creates=creates)
    if kind is InvalidRequest and _IMAGE.search(said.target):
        return ImageNotFound
    if creates and kind is Unavailable and status >= 500 and said.code not in NO_EFFECT:
        return Ambiguous
    return kind


def _by_text(said: Said) -> type[ProviderError] | None:
    if said.code == "OperationNotAllowed":
        words = " ".join((said.message, *said.details))
        if "TooManyRequests" in said.details or _THROTTLED.search(words):
            return Throttled
        return QuotaExceeded if _QUOTA.search(words) else Unavailable
    if said.code in BY_TEXT and _IMAGE.search(f"{said.target} {said.message}"):
        return ImageNotFound
    return None


def _by_status(said: Said, status: int, *, creates: bool) -> type[ProviderError]:
    if status in (401, 403):
        return Unauthorized
    if status == 404 and said.code in BY_TEXT:
        return InvalidRequest if creates else Gone
    return Unavailable


def died_of(code: str, message: str) -> type[ProviderError] | None:
    """The refusal that a failed VM amounts to; None where its code says nothing of that kind."""
    if code in DIED:
        return DIED[code]
    kind = _by_text(Said(code, message))
    return kind if kind in (QuotaExceeded, ImageNotFound) else None


def error_of(
    said: Said, status: int, headers: Mapping[str, str], *, creates: bool
) -> ProviderError:
    """The error of one answer, with the vendor's words, request id and wait."""
    kind = kind_of(said, status, creates=creates)
    message = said.message[:MAX_MESSAGE_CHARS]
    if kind is InsufficientCapacity and said.code in ALL_ZONES:
        message += " (of this size in every zone of the region)"
    return kind(
        message,
        code=said.code or str(status),
        request_id=headers.get("x-ms-request-id", ""),
        retry_after_s=wait_s(headers, said.message, throttled=kind is Throttled),
    )


def wait_s(headers: Mapping[str, str], message: str = "", *, throttled: bool) -> float | None:
    """How long Azure wants us to wait: Retry-After, else its words, else an empty bucket."""
    after = headers.get("retry-after", "").strip()
    if after.isdigit():
        return float(after)
    if not throttled:
        return None
    said = _AGAIN.search(message)
    if said is not None:
        return float(said.group(1))
    return REFILL_S if _empty(headers.items()) else None


def _empty(headers: Iterable[tuple[str, str]]) -> bool:
    """True when an ``x-ms-ratelimit-remaining-*`` header says that nothing is left."""
    for name, value in headers:
        if name.startswith("x-ms-ratelimit-remaining-"):
            counts = re.findall(r"(?:^|;)\s*(-?\d+)\s*(?=,|$)", value)
            if any(int(count) <= 0 for count in counts):
                return True
    return False


def translate(e: Exception, *, creates: bool) -> ProviderError:
    """What the SDK raised, as one of ours."""
    response = getattr(e, "response", None)
    if response is not None:
        headers = {str(k).lower(): str(v) for k, v in response.headers.items()}
        said = _said(getattr(e, "error", None), str(e))
        return error_of(said, int(response.status_code), headers, creates=creates)
    names = [c.__name__ for c in type(e).__mro__]
    if "ServiceRequestError" in names and _not_sent(e):
        kind: type[ProviderError] = Unavailable
    else:
        unknown = Ambiguous if creates else Unavailable
        kind = next((LOCAL[n] for n in names if n in LOCAL), unknown)
    text = str(e)[:MAX_MESSAGE_CHARS]
    if kind is Unauthorized:
        text += " (looked in: AZURE_* variables, workload and managed identity, the az login)"
    return kind(text, code=names[0])


def _said(error: Any, text: str) -> Said:
    """The SDK's reading of an error document; its text where there was none."""
    if error is None:
        return Said("", text)
    details = getattr(error, "details", None) or ()
    codes = tuple(str(d.code or "") for d in details)
    more = tuple(str(d.message or "") for d in details)
    return Said(
        str(error.code or ""),
        str(error.message or "") or text,
        str(error.target or ""),
        codes + more,
    )


def _not_sent(e: BaseException) -> bool:
    cause: BaseException | None = e.__cause__ or getattr(e, "inner_exception", None)
    return cause is not None and any(c.__name__ in NOT_SENT for c in type(cause).__mro__)

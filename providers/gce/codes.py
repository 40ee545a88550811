"""What Compute Engine's errors mean: one dict of codes, and the way from an SDK error to ours.

Invariant: ``CODES`` (refined by ``REFINED``, which reads the message where one code has two
meanings) decides what every vendor code means, nothing else does. Pure; imports nothing of google.

Facts and wire shapes: clouds.md 2.2 and 4. Codes marked [K] are hypotheses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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

#: Codes of failed operations. A launch ends with one of them seconds after it was accepted.
OPERATION_CODES: Final[Mapping[str, type[ProviderError]]] = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": InsufficientCapacity,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": InsufficientCapacity,
    "RESOURCE_POOL_EXHAUSTED": InsufficientCapacity,
    "REGION_RESOURCE_POOL_EXHAUSTED": InsufficientCapacity,
    "GPU_STOCKOUT": InsufficientCapacity,
    "STOCKOUT": InsufficientCapacity,
    # an instance that was preempted while it was being created ends like this
    "UNSUPPORTED_OPERATION": InsufficientCapacity,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "IP_SPACE_EXHAUSTED": QuotaExceeded,
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": QuotaExceeded,
    "RESOURCE_OPERATION_RATE_EXCEEDED": Throttled,
    "RATE_LIMIT_EXCEEDED": Throttled,
    "RESOURCE_NOT_FOUND": InvalidRequest,
    "RESOURCE_NOT_READY": Unavailable,
    "RESOURCE_ALREADY_EXISTS": Ambiguous,
    "INVALID_FIELD_VALUE": InvalidRequest,
    "INVALID_USAGE": InvalidRequest,
    "CONDITION_NOT_MET": InvalidRequest,
    "PERMISSIONS_ERROR": Unauthorized,
    "INTERNAL_ERROR": Unavailable,
}

CODES: Final[Mapping[str, type[ProviderError]]] = {
    **OPERATION_CODES,
    # reasons of answers that come at once
    "resourcesUnavailable": InsufficientCapacity,
    "insufficientCapacity": InsufficientCapacity,  # [K]
    "quotaExceeded": QuotaExceeded,
    "limitExceeded": QuotaExceeded,
    "rateLimitExceeded": Throttled,  # a 403, unlike quotaExceeded it passes with the minute
    "userRateLimitExceeded": Throttled,
    "concurrentLimitExceeded": Throttled,
    "429": Throttled,
    "notFound": InvalidRequest,
    "invalid": InvalidRequest,
    "invalidParameter": InvalidRequest,
    "badRequest": InvalidRequest,
    "required": InvalidRequest,
    "parseError": InvalidRequest,
    "conditionNotMet": InvalidRequest,
    "resourceInUseByAnotherResource": InvalidRequest,
    "authError": Unauthorized,
    "forbidden": Unauthorized,
    "accessNotConfigured": Unauthorized,
    "insufficientPermissions": Unauthorized,
    "billingNotEnabled": Unauthorized,
    "IAM_PERMISSION_DENIED": Unauthorized,
    "SERVICE_DISABLED": Unauthorized,
    "ACCESS_TOKEN_EXPIRED": Unauthorized,
    "401": Unauthorized,
    "backendError": Unavailable,
    "internalError": Unavailable,
    "resourceNotReady": Unavailable,
    # the name is taken by something that is not ours to adopt: list() will tell
    "alreadyExists": Ambiguous,
}

_MISSING: Final = frozenset({"notFound", "RESOURCE_NOT_FOUND"})
_WRONG: Final = frozenset({"invalid", "badRequest", "INVALID_FIELD_VALUE", *_MISSING})
#: One code, several meanings: the first line whose text is in the message decides.
REFINED: Final[tuple[tuple[frozenset[str], re.Pattern[str], type[ProviderError]], ...]] = (
    (_MISSING, re.compile(r"/instances/"), Gone),
    (_WRONG, re.compile(r"sourceImage|/images/|image resource"), ImageNotFound),
    # other zones of the region may have it
    (_WRONG, re.compile(r"[Mm]achine type with name .* does not exist in zone|/machineTypes/"),
     InsufficientCapacity),
    (_MISSING, re.compile(r"'projects/[^/']+'"), Unauthorized),
)  # fmt: skip

#: What the operation error of an accepted launch amounts to.
DIED: Final[Mapping[str, type[ProviderError]]] = {
    code: kind
    for code, kind in OPERATION_CODES.items()
    if kind in (InsufficientCapacity, QuotaExceeded)
}
PREEMPTED: Final = frozenset({"compute.instances.preempted"})
#: Operations of the cloud's own that end an instance; with DELETE as the termination action
#: nothing else tells of it.
ENDED: Final = PREEMPTED | {
    "compute.instances.hostError",
    "compute.instances.terminateOnHostMaintenance",
    "compute.instances.guestTerminate",
}

#: Exceptions of google.auth and requests by class name, most derived first. Those under
#: Unavailable are raised before anything is sent; any other may have had an effect.
LOCAL: Final[Mapping[str, type[ProviderError]]] = {
    "TransportError": Unavailable,  # no way to the token server
    "GoogleAuthError": Unauthorized,  # RefreshError, DefaultCredentialsError and their kin
    "ConnectTimeout": Unavailable,
    "ProxyError": Unavailable,
    "InvalidURL": InvalidRequest,
    "NewConnectionError": Unavailable,
    "NameResolutionError": Unavailable,
    "ConnectTimeoutError": Unavailable,
}

MAX_MESSAGE_CHARS = 500
_QUOTA = re.compile(
    r"Quota '(\w+)' exceeded\.?\s*Limit:\s*([\d.]+)(?: in region ([\w-]+))?", re.IGNORECASE
)
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z]")


def operation_error(op: Any) -> ProviderError | None:
    """Why an operation failed, as one of ours; None for one that did not, or not yet."""
    if not op.error.errors:
        return None
    first = op.error.errors[0]
    metadata: dict[str, str] = {}
    for detail in first.error_details:
        metadata.update(detail.error_info.metadatas)
    zones = metadata.get("zonesAvailable") or metadata.get("zonesWithCapacity") or ""
    return _error(first.code or str(op.http_error_status_code), first.message,
                  request_id=op.name, zones=tuple(_ZONE.findall(zones)))  # fmt: skip


def translate(e: Exception, *, creates: bool) -> ProviderError:
    """What the SDK raised, as one of ours; ``creates`` when an effect would be an instance."""
    status = getattr(e, "code", None)
    if isinstance(status, int) and hasattr(e, "errors"):
        return _from_answer(e, int(status), creates)
    names = [c.__name__ for c in type(e).__mro__]
    inner = getattr(e.args[0], "reason", None) if e.args else None  # urllib3's own reason
    names += [c.__name__ for c in type(inner).__mro__] if inner is not None else []
    kind = next((LOCAL[n] for n in names if n in LOCAL), Ambiguous if creates else Unavailable)
    if kind is Unauthorized and getattr(e, "retryable", False):
        kind = Unavailable  # the token server's trouble, not ours
    text = str(e)[:MAX_MESSAGE_CHARS]
    if kind is Unauthorized:
        text += " (Application Default Credentials: GOOGLE_APPLICATION_CREDENTIALS, gcloud's file,"
        text += " the machine's service account)"
    return kind(text, code=names[0])


def _from_answer(e: Any, status: int, creates: bool) -> ProviderError:
    """An unknown code keeps the vendor's words and is Unavailable.

    After any 5xx but 503 a create may have worked: a caller that gives up on Busy closes the
    launch as never made, so it is Ambiguous.
    """
    sync = [x["reason"] for x in e.errors if isinstance(x, dict) and x.get("reason")]
    words = [*sync, getattr(e, "reason", None) or "", str(status)]
    code = next((w for w in words if w in CODES), next(w for w in words if w))
    headers = getattr(e.response, "headers", None) or {}
    hint = str(headers.get("retry-after", ""))
    message = str(e.message).partition(": ")[2] or str(e.message)  # "POST https://…: " before it
    error = _error(code, message, retry_after_s=float(hint) if hint.isdigit() else None)
    if creates and type(error) is Unavailable and status >= 500 and status != 503:
        return Ambiguous(error.message, code=code)
    return error


def _error(
    code: str,
    message: str,
    *,
    request_id: str = "",
    retry_after_s: float | None = None,
    zones: tuple[str, ...] = (),
) -> ProviderError:
    kind = CODES.get(code, Unavailable)
    for codes, words, refined in REFINED:
        if code in codes and words.search(message):
            kind = refined
            break
    if kind is QuotaExceeded:
        message = f"{_quota_scope(message)}{message}"
    return kind(message[:MAX_MESSAGE_CHARS], code=code, request_id=request_id,
                retry_after_s=retry_after_s, zones_with_capacity=zones)  # fmt: skip


def _quota_scope(message: str) -> str:
    """Which quota, and whether it holds in one region or in all; a limit of 0 was never given."""
    found = _QUOTA.search(message)
    if found is None:
        return ""
    metric, limit, region = found.groups()
    never = ", never granted" if float(limit.rstrip(".")) == 0 else ""
    if region and "ALL_REGIONS" not in metric.upper():
        return f"regional quota {metric} in {region}{never}: "
    return f"global quota {metric}, which blocks every region{never}: "

"""What Oracle's errors mean: one dict of codes, and the way from an SDK error to ours.

Invariant: ``CODES`` (refined by ``REFINED``, which reads the message where one code has two
meanings) decides what every vendor code means, nothing else does. Pure; imports nothing of oci.

Facts: clouds.md 2.4 and 4, and Oracle's public table of API errors. Codes marked [K] are
hypotheses. Two traps: want of capacity comes as a 500 ``InternalError`` that only its text tells
from a fault, and a 404 ``NotAuthorizedOrNotFound`` says neither which of the two it is nor of
which resource it speaks (``providers/oci.py`` then asks about the image).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
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

#: The 404 (sometimes 403) that does not say whether a thing is missing or forbidden.
UNSEEN: Final = "NotAuthorizedOrNotFound"

CODES: Final[Mapping[str, type[ProviderError]]] = {
    "OutOfHostCapacity": InsufficientCapacity,  # of work requests [K]
    "OutOfCapacity": InsufficientCapacity,  # [K]
    "LimitExceeded": QuotaExceeded,  # Oracle's limit of the tenancy; the message names it
    "QuotaExceeded": QuotaExceeded,  # an administrator's quota of the compartment
    "TooManyRequests": Throttled,
    "429": Throttled,
    "InvalidParameter": InvalidRequest,
    "MissingParameter": InvalidRequest,
    "CannotParseRequest": InvalidRequest,
    "UnprocessableEntity": InvalidRequest,
    "RelatedResourceNotAuthorizedOrNotFound": InvalidRequest,  # something that the body names
    "NotFound": InvalidRequest,  # no such operation: a wrong endpoint
    "MethodNotAllowed": InvalidRequest,
    "RequestEntityTooLarge": InvalidRequest,
    "Conflict": InvalidRequest,  # unlike IncorrectState it does not pass
    "NotAuthenticated": Unauthorized,
    "NotAuthorized": Unauthorized,
    "NotAllowed": Unauthorized,
    "SignUpRequired": Unauthorized,
    "NamespaceNotFound": Unauthorized,
    UNSEEN: Unauthorized,
    "NotAuthorizedOrResourceAlreadyExists": Unauthorized,
    "401": Unauthorized,
    "403": Unauthorized,
    # the token's instance was made and has ended since: list() will tell (clouds.md 5)
    "InvalidatedRetryToken": Ambiguous,
    "IncorrectState": Unavailable,
    "ExternalServerIncorrectState": Unavailable,
    "NoEtagMatch": Unavailable,
    "InternalError": Unavailable,
    "InternalServerError": Unavailable,
    "ServiceUnavailable": Unavailable,
}

#: Want of capacity, whatever code it comes with. "Out of capacity for shape" is the same.
CAPACITY: Final = re.compile(r"out of (host )?capacity|OUT_OF_HOST_CAPACITY", re.IGNORECASE)

_WRONG: Final = frozenset({"InvalidParameter", "RelatedResourceNotAuthorizedOrNotFound", UNSEEN})
#: One code, several meanings: the first line whose text is in the message decides.
REFINED: Final[tuple[tuple[frozenset[str], re.Pattern[str], type[ProviderError]], ...]] = (
    # also an image that does not fit the shape: that artifact rests, the pool goes on
    (_WRONG, re.compile(r"\bimage(Id)?\b", re.IGNORECASE), ImageNotFound),
    # other availability domains of the region may have it
    (_WRONG, re.compile(r"\bshape\b.*\bnot (available|supported|found|valid) in\b", re.IGNORECASE),
     InsufficientCapacity),
)  # fmt: skip

#: Codes of failed work requests that say why an accepted launch died.
DIED: Final[Mapping[str, type[ProviderError]]] = {
    code: kind for code, kind in CODES.items() if kind in (InsufficientCapacity, QuotaExceeded)
}

#: Exceptions of the SDK and of the HTTP library inside it by class name, most derived first.
#: All of these are raised before anything is sent; any other may have had an effect.
LOCAL: Final[Mapping[str, type[ProviderError]]] = {
    "ClientError": Unauthorized,  # no or wrong configuration file, profile, key, passphrase
    "ConnectTimeout": Unavailable,
    "ProxyError": Unavailable,
    "InvalidURL": InvalidRequest,
    "NewConnectionError": Unavailable,
    "NameResolutionError": Unavailable,
    "ConnectTimeoutError": Unavailable,
}

MAX_MESSAGE_CHARS: Final = 500
MAX_CHAIN: Final = 8
#: Oracle refuses signatures whose date is off by more than this.
SKEW_S: Final = 300.0


def translate(
    e: Exception, *, now: float, creates: bool = False, instance: bool = False
) -> ProviderError:
    """What the SDK raised, as one of ours.

    ``now`` (Unix seconds) finds a wrong clock; ``creates`` when an effect would be an instance;
    ``instance`` when the call was about one that exists, so that a 404 means that it is gone.
    """
    status = getattr(e, "status", None)
    if isinstance(status, int) and hasattr(e, "headers"):
        return _from_answer(e, status, now, creates, instance)
    chain = _chain(e)
    names = [c.__name__ for one in chain for c in type(one).__mro__]
    kind = next((LOCAL[n] for n in names if n in LOCAL), Ambiguous if creates else Unavailable)
    return kind(str(chain[-1])[:MAX_MESSAGE_CHARS] or names[0], code=names[0])


def _chain(e: BaseException) -> list[BaseException]:
    """An error and what it came from: the SDK wraps requests' error, that one urllib3's reason."""
    found = [e]
    while len(found) < MAX_CHAIN:
        last = found[-1]
        inner = getattr(last, "reason", None) or last.__cause__ or last.__context__
        if not isinstance(inner, BaseException) or inner in found:
            break
        found.append(inner)
    return found


def unopened(e: Exception) -> ProviderError:
    """Why no client could be made: the configuration, unless it was the network."""
    names = [c.__name__ for c in type(e).__mro__]
    kind = Unavailable if "RequestException" in names else Unauthorized
    where = "the configuration file and its key, or the instance principal"
    return kind(f"{str(e)[:MAX_MESSAGE_CHARS]} (looked in: {where})", code=names[0])


def _from_answer(e: Any, status: int, now: float, creates: bool, instance: bool) -> ProviderError:
    """An unknown code keeps the vendor's words and is Unavailable.

    After any 5xx but 503 a create may have worked: a caller that gives up on Busy closes the
    launch as never made, so it is Ambiguous.
    """
    code = str(e.code or status)
    message = str(e.message or "")[:MAX_MESSAGE_CHARS]
    kind = meaning(code, message)
    headers = e.headers or {}
    if kind is Unavailable and status == 429:
        kind = Throttled
    if instance and status == 404:
        kind = Gone
    if creates and kind is Unavailable and status >= 500 and status != 503:
        kind = Ambiguous
    if status == 401:
        message += _skew(headers, now)
    hint = str(headers.get("retry-after") or "")
    return kind(message, code=code, request_id=str(getattr(e, "request_id", None) or ""),
                retry_after_s=float(hint) if hint.isdigit() else None)  # fmt: skip


def meaning(code: str, message: str) -> type[ProviderError]:
    """The class of a code with its message; Unavailable for one that no table knows."""
    if CAPACITY.search(message):
        return InsufficientCapacity
    for codes, words, refined in REFINED:
        if code in codes and words.search(message):
            return refined
    return CODES.get(code, Unavailable)


def _skew(headers: Mapping[str, str], now: float) -> str:
    """What a 401 may have to do with this machine's clock."""
    try:
        there = parsedate_to_datetime(str(headers.get("date", "")))
    except ValueError:
        there = None
    if there is not None:
        off_s = now - there.replace(tzinfo=there.tzinfo or UTC).timestamp()
        if abs(off_s) > SKEW_S:
            return f" (this machine's clock is off by {off_s:.0f} s; Oracle allows {SKEW_S:.0f})"
    return " (user, key and fingerprint must belong together, and the clock be right to 5 min)"

"""The error tree. An error class is a decision.

::

    FleetError
    ├── ProviderError            what a cloud did to us; attributes say what to do next
    │   ├── Refused              the cloud said no and nothing was made
    │   │   ├── InsufficientCapacity   this offer rests
    │   │   ├── QuotaExceeded          region × family rests, a person is told
    │   │   ├── InvalidRequest         the pool is held until its policy changes
    │   │   ├── ImageNotFound          that artifact rests
    │   │   └── Unauthorized           the provider is held
    │   ├── Busy                 same call, later
    │   │   ├── Throttled
    │   │   └── Unavailable
    │   ├── Ambiguous            maybe made: list() will tell
    │   └── Gone                 the thing asked for does not exist
    ├── StoreError
    │   ├── Stale                somebody else moved the row: drop this step
    │   ├── StoreFull            the disk is full; reads and drains go on
    │   └── StoreBroken          the store cannot be trusted: the process must end
    ├── InputError               a person's or machine's input is refused; names where and the fix
    ├── NotFound
    ├── Conflict                 a precondition (freeze, budget, version) says no
    └── Deadlock                 virtual time: nothing is ready and no timer is set
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from fleet.model import Outcome, Reason


class FleetError(Exception):
    """Anything fleetd raises on purpose."""


class Cooldown(StrEnum):
    """What rests after an error, from narrow to wide."""

    NOTHING = "nothing"
    OFFER = "offer"
    ARTIFACT = "artifact"
    REGION_FAMILY = "region_family"
    POOL = "pool"
    PROVIDER = "provider"


class ProviderError(FleetError):
    """What a cloud answered. Class attributes are the decision; ``code`` is the vendor's word.

    ``retry`` says that the same call with the same token may be sent again after
    ``retry_after_s`` (the vendor's own hint when it gave one).
    """

    outcome: ClassVar[Outcome | None] = None
    reason: ClassVar[Reason] = Reason.THROTTLED
    retry: ClassVar[bool] = False
    cooldown: ClassVar[Cooldown] = Cooldown.NOTHING

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "",
        request_id: str = "",
        retry_after_s: float | None = None,
        zones_with_capacity: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.zones_with_capacity = zones_with_capacity

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message


class Refused(ProviderError):
    """The cloud said no; nothing was made and nothing is billed."""

    outcome = Outcome.INVALID_REQUEST


class InsufficientCapacity(Refused):
    """No machine of this offer now. The offer rests, other offers are tried at once."""

    outcome = Outcome.INSUFFICIENT_CAPACITY
    reason = Reason.INSUFFICIENT_CAPACITY
    cooldown = Cooldown.OFFER


class QuotaExceeded(Refused):
    """The account may not have more of this family in this region; a person must ask for more."""

    outcome = Outcome.QUOTA_EXCEEDED
    reason = Reason.QUOTA_EXCEEDED
    cooldown = Cooldown.REGION_FAMILY


class InvalidRequest(Refused):
    """The request is wrong and will stay wrong: the pool is held until its policy changes."""

    outcome = Outcome.INVALID_REQUEST
    reason = Reason.INVALID_REQUEST
    cooldown = Cooldown.POOL


class ImageNotFound(Refused):
    """The artifact is not (yet) there in this region; only that artifact rests."""

    outcome = Outcome.INVALID_REQUEST
    reason = Reason.IMAGE_NOT_FOUND
    cooldown = Cooldown.ARTIFACT


class Unauthorized(Refused):
    """Credentials are missing, expired or too small: the provider is held, nothing is forgotten."""

    outcome = Outcome.UNAUTHORIZED
    reason = Reason.UNAUTHORIZED
    cooldown = Cooldown.PROVIDER


class Busy(ProviderError):
    """The cloud cannot answer now. The same call, same token, later."""

    outcome = Outcome.THROTTLED
    reason = Reason.THROTTLED
    retry = True
    #: Once its tries are used up: a new launch there would begin with the same storm.
    cooldown = Cooldown.OFFER


class Throttled(Busy):
    """Too many calls."""


class Unavailable(Busy):
    """A server-side failure without effect, or a vendor code no table knows."""


class Ambiguous(ProviderError):
    """A time-out or lost connection after the request left: it may have worked."""

    reason = Reason.CREATE_AMBIGUOUS


class Gone(ProviderError):
    """The instance asked for does not exist (only ``list()`` may conclude from it)."""

    reason = Reason.CONFIRMED_GONE


class StoreError(FleetError):
    """Anything wrong with durable state."""


class Stale(StoreError):
    """The row moved since it was read; the step built on it is dropped, not repeated."""


class StoreFull(StoreError):
    """No space for a write. Nothing was half-written."""


class StoreBroken(StoreError):
    """I/O error or corruption: what the store says can no longer be trusted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input: where it is, what it is, and how to mend it."""

    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" ({self.fix})" if self.fix else "")


class InputError(FleetError):
    """Input refused as a whole; ``problems`` names every place, not only the first."""

    def __init__(self, problems: list[Problem] | str) -> None:
        self.problems = [Problem("", problems)] if isinstance(problems, str) else problems
        super().__init__("; ".join(str(p) for p in self.problems))


class NotFound(FleetError):
    """The named thing does not exist; ``near`` holds the closest names that do."""

    def __init__(self, kind: str, name: str, near: tuple[str, ...] = ()) -> None:
        hint = f", did you mean {', '.join(near)}?" if near else ""
        super().__init__(f"no {kind} named {name!r}{hint}")
        self.kind, self.name, self.near = kind, name, near


class Conflict(FleetError):
    """A precondition says no. ``code`` is stable for scripts, ``fix`` is a next step."""

    def __init__(self, message: str, *, code: str = "conflict", fix: str = "") -> None:
        super().__init__(message)
        self.code, self.fix = code, fix


class Deadlock(FleetError):
    """Virtual time found nothing ready and no timer set: something waits for ever."""

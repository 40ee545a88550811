"""The nouns of fleetd as frozen types and closed enums; everything else speaks in these.

Invariant: a value of this module never changes after it is made and imports nothing of ours, so
every other module may hold one across an await. Times are seconds since the Unix epoch (UTC),
durations end in ``_s``, money in ``_usd_hour``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JSON = Mapping[str, Any]

NO_EVIDENCE: JSON = {}


class State(StrEnum):
    """Where a node is in its life. The allowed moves are ``fleet.lifecycle.NEXT``."""

    REQUESTED = "REQUESTED"
    LAUNCHING = "LAUNCHING"
    BOOTING = "BOOTING"
    CHECKING = "CHECKING"
    READY = "READY"
    SUSPECT = "SUSPECT"
    DRAINING = "DRAINING"
    QUARANTINED = "QUARANTINED"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"


LIVE: frozenset[State] = frozenset(State) - {State.TERMINATED}
#: States that count as capacity on its way or in place (PC-132: booting nodes are capacity).
CAPACITY: frozenset[State] = frozenset(
    {State.REQUESTED, State.LAUNCHING, State.BOOTING, State.CHECKING, State.READY}
)
IN_FLIGHT: frozenset[State] = frozenset(
    {State.REQUESTED, State.LAUNCHING, State.BOOTING, State.CHECKING}
)


class Market(StrEnum):
    """How capacity is bought."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"


class Outcome(StrEnum):
    """How one launch ended. Exactly one per launch, written when it is known."""

    READY = "ready"
    INSUFFICIENT_CAPACITY = "insufficient_capacity"
    QUOTA_EXCEEDED = "quota_exceeded"
    THROTTLED = "throttled"
    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    BOOT_TIMEOUT = "boot_timeout"
    GATE_FAILED = "gate_failed"
    PREEMPTED = "preempted"
    LOST = "lost"
    CANCELLED = "cancelled"


#: Outcomes that say the cloud broke its promise *after* it accepted the launch.
BROKEN_PROMISE: frozenset[Outcome] = frozenset(
    {Outcome.BOOT_TIMEOUT, Outcome.GATE_FAILED, Outcome.LOST}
)


class Phase(StrEnum):
    """What a cloud says of an instance, reduced to what decisions need."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATED = "terminated"
    FAILED = "failed"


class Reason(StrEnum):
    """Why something happened: the closed enum behind every REASON column and event."""

    # launches
    PLAN_SHORT = "plan_short"
    SPARES_SHORT = "spares_short"
    LAUNCH_SENT = "launch_sent"
    LAUNCH_ACCEPTED = "launch_accepted"
    INSUFFICIENT_CAPACITY = "insufficient_capacity"
    QUOTA_EXCEEDED = "quota_exceeded"
    THROTTLED = "throttled"
    INVALID_REQUEST = "invalid_request"
    IMAGE_NOT_FOUND = "image_not_found"
    UNAUTHORIZED = "unauthorized"
    CREATE_AMBIGUOUS = "create_ambiguous"
    NEVER_LISTED = "never_listed"
    CANCELLED = "cancelled"
    # boot and gate
    INSTANCE_RUNNING = "instance_running"
    FIRST_REPORT = "first_report"
    GATE_PASSED = "gate_passed"
    GATE_FAILED = "gate_failed"
    LAUNCH_TIMEOUT = "launch_timeout"
    BOOT_TIMEOUT = "boot_timeout"
    GATE_TIMEOUT = "gate_timeout"
    DIED_AFTER_ACCEPT = "died_after_accept"
    # health
    FATAL_FAULT = "fatal_fault"
    WARNING_PERSISTS = "warning_persists"
    AGENT_SILENT = "agent_silent"
    RECOVERED = "recovered"
    REBOOTED = "rebooted"
    SPOT_NOTICE = "spot_notice"
    MAINTENANCE_NOTICE = "maintenance_notice"
    PREEMPTED = "preempted"
    EXTERNALLY_TERMINATED = "externally_terminated"
    # leaving
    SURPLUS = "surplus"
    IMAGE_DRIFT = "image_drift"
    OPERATOR_DRAIN = "operator_drain"
    OPERATOR_REPLACE = "operator_replace"
    POOL_DELETED = "pool_deleted"
    DRAIN_DONE = "drain_done"
    DRAIN_TIMEOUT = "drain_timeout"
    QUARANTINE = "quarantine"
    QUARANTINE_OVER = "quarantine_over"
    CONFIRMED_GONE = "confirmed_gone"
    ORPHAN = "orphan"
    DUPLICATE = "duplicate"
    ADOPTED = "adopted"
    # service
    ASSIGNED = "assigned"
    MOVED = "moved"
    RELEASED = "released"
    # control
    CORDONED = "cordoned"
    UNCORDONED = "uncordoned"
    FROZEN = "frozen"
    UNFROZEN = "unfrozen"
    POLICY_APPLIED = "policy_applied"
    BUDGET_EXHAUSTED = "budget_exhausted"
    BLIND = "blind"
    CLOCK_JUMP = "clock_jump"
    PROVIDER_HELD = "provider_held"
    PROVIDER_RELEASED = "provider_released"
    OFFER_COOLING = "offer_cooling"
    POOL_HELD = "pool_held"
    POOL_RELEASED = "pool_released"
    NO_OFFER = "no_offer"
    TERMINATE_STUCK = "terminate_stuck"
    OBSERVE_ONLY = "observe_only"
    REPORT_REFUSED = "report_refused"


class Actor(StrEnum):
    """Who decided: a loop by its name, or a person (stored as ``user:NAME``)."""

    OBSERVE = "observe"
    LIFECYCLE = "lifecycle"
    PLAN = "plan"
    LAUNCH = "launch"
    ASSIGN = "assign"
    REAP = "reap"
    AGENT = "agent"


class CheckStatus(StrEnum):
    """Result of one probe. ``error`` means the probe itself failed: unknown, blames nobody."""

    PASS = "pass"  # noqa: S105 — a check that passed
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    ERROR = "error"


class Severity(StrEnum):
    """What a fault class may do to a node (gpu-health catalogue)."""

    FATAL = "fatal"
    WARNING = "warning"
    APPLICATION = "application"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing a cloud sells: where, what, how, and for how much (list price, per instance)."""

    provider: str
    region: str
    zone: str
    instance_type: str
    market: Market = Market.ON_DEMAND
    gpu: str = ""
    gpus: int = 0
    price_usd_hour: float | None = None

    @property
    def key(self) -> str:
        """The one spelling of this offer used by every memory, table and column (PC-081)."""
        return f"{self.provider}/{self.region}/{self.zone}/{self.instance_type}/{self.market}"


@dataclass(frozen=True, slots=True)
class Need:
    """What a pool is looking for when it asks a provider for offers."""

    gpu: str
    gpus: int
    markets: frozenset[Market] = frozenset({Market.ON_DEMAND})
    regions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose instances: the cell's name, written on every instance as a tag at creation."""

    cell: str


@dataclass(frozen=True, slots=True)
class InstanceRef:
    """Enough to ask a cloud to delete an instance."""

    provider: str
    region: str
    zone: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class Instance:
    """What a cloud says exists: an observed, immutable snapshot."""

    ref: InstanceRef
    phase: Phase
    token: str = ""
    pool: str = ""
    cell: str = ""
    instance_type: str = ""
    market: Market = Market.ON_DEMAND
    image_id: str = ""
    created_at: float = 0.0
    code: str = ""
    message: str = ""
    preempted: bool = False
    #: What the death of an accepted launch amounts to, by the adapter's table; None: unknown.
    died: Outcome | None = None

    @property
    def exists(self) -> bool:
        """True while the cloud may still bill or hold this instance."""
        return self.phase is not Phase.TERMINATED


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One create call for ``count`` like instances. Idempotent by ``token``; never edited."""

    token: str
    offer: Offer
    count: int
    image_id: str
    user_data: str
    tags: Mapping[str, str]
    pool: str = ""
    cell: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """Our durable record of one machine; joins a launch, an instance and a state.

    ``version`` guards every write; ``seq`` orders changes so that readers can follow them.
    """

    id: str
    pool: str
    state: State
    state_since: float
    version: int
    seq: int
    token: str
    offer: Offer
    image: str
    image_id: str
    created_at: float
    reason: Reason
    message: str = ""
    instance_id: str = ""
    zone: str = ""
    requested_at: float | None = None
    accepted_at: float | None = None
    running_at: float | None = None
    first_report_at: float | None = None
    ready_at: float | None = None
    boot_id: str = ""
    deadline_at: float | None = None
    cordoned_by: str = ""
    cordon_reason: str = ""
    wish: str = ""
    wish_by: str = ""
    wish_reason: str = ""
    drained_at: float | None = None
    slot: str = ""
    last_slot: str = ""
    fault: str = ""

    @property
    def ref(self) -> InstanceRef | None:
        """The instance bound to this node, or None while none is known."""
        if not self.instance_id:
            return None
        o = self.offer
        return InstanceRef(o.provider, o.region, self.zone or o.zone, self.instance_id)

    @property
    def cordoned(self) -> bool:
        """True while a person forbids new assignments on this node."""
        return bool(self.cordoned_by)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A consumer's exclusive claim (``slot``) on a READY node."""

    slot: str
    pool: str
    node_id: str
    since: float


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One probe's result as the agent sent it."""

    name: str
    status: CheckStatus
    value: float | None = None
    unit: str = ""
    message: str = ""
    gpu: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault class seen on a node, e.g. ``xid_79`` on GPU 3."""

    code: str
    gpu: int | None = None
    message: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What the agent sends. The first of a boot is what the Gate judges."""

    boot_id: str
    seq: int
    gpu: str = ""
    gpus: int = 0
    driver: str = ""
    checks: tuple[CheckResult, ...] = ()
    faults: tuple[Fault, ...] = ()
    notice: str = ""
    notice_at: float | None = None
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement with its evidence: what, why, by which rule, and from where the rule comes."""

    ok: bool
    summary: str
    rule: str
    source: str
    evidence: JSON = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Image:
    """One immutable version of an image family and its artifact per (provider, region)."""

    family: str
    version: str
    artifacts: Mapping[tuple[str, str], str]
    driver: str = ""

    @property
    def name(self) -> str:
        """``family@version``, how pools and columns name it."""
        return f"{self.family}@{self.version}"

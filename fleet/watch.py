"""What has been observed and lives in memory: the clouds' lists and the agents' reports.

Invariant: nothing here is needed to be correct after a crash; a fresh process starts with
"unknown" and learns again (start-up grace). Whatever changes a decision is also in the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fleet.lifecycle import Listed
from fleet.model import Fault, HealthReport, Instance, Node, Reason, State

#: Complete lists in a row that must lack an instance before it may be called missing; more for
#: one whose agent never spoke, since then the lists are the only witness.
MISSES: Final = 2
MISSES_UNHEARD: Final = 4
#: A fatal fault that was told once may be acted on this long, seconds, and one that is repeated
#: in every report this long after the last of them (report interval 15 s).
FATAL_S: Final = 900.0
REPEATED_S: Final = 45.0


@dataclass
class Sightings:
    """What one provider's complete lists showed."""

    provider: str
    visibility_s: float
    instances: dict[str, Instance] = field(default_factory=dict)
    misses: dict[str, int] = field(default_factory=dict)
    first_seen: dict[str, float] = field(default_factory=dict)
    by_token: dict[str, list[Instance]] = field(default_factory=dict)
    by_pool: dict[str, int] = field(default_factory=dict)
    listed_at: float | None = None
    started_at: float | None = None
    error: str = ""
    failing_since: float | None = None
    held: str = ""

    def took(self, instances: list[Instance], bound: dict[str, float], *, started_at: float,
             now: float) -> None:  # fmt: skip
        """Note one complete list that was started at ``started_at``.

        ``bound`` maps the instance ids we know of to when they were accepted: only lists that
        started a visibility window after that count as a miss.
        """
        self.instances = {i.ref.instance_id: i for i in instances}
        self.by_token, self.by_pool = {}, {}
        for instance in instances:
            if instance.token:
                self.by_token.setdefault(instance.token, []).append(instance)
            if instance.exists:
                self.by_pool[instance.pool] = self.by_pool.get(instance.pool, 0) + 1
        loose = self.instances.keys() - bound.keys()
        self.first_seen = {i: self.first_seen.get(i, now) for i in loose}
        misses = {}
        for instance_id, accepted_at in bound.items():
            if instance_id in self.instances:
                continue
            late = started_at >= accepted_at + self.visibility_s
            misses[instance_id] = self.misses.get(instance_id, 0) + (1 if late else 0)
        self.misses = misses
        self.listed_at, self.started_at = now, started_at
        self.error, self.failing_since = "", None

    def failed(self, error: str, now: float) -> None:
        """Note a list call that raised: what was seen before stays, older."""
        self.error = error[:500]
        self.failing_since = self.failing_since if self.failing_since is not None else now

    def listed(self, node: Node) -> Listed:
        """What the lists say of a node's instance."""
        if not node.instance_id or self.listed_at is None:
            return Listed.UNKNOWN
        if node.instance_id in self.instances:
            return Listed.PRESENT
        heard = node.first_report_at is not None or node.state is State.TERMINATING
        missing = self.misses.get(node.instance_id, 0) >= (MISSES if heard else MISSES_UNHEARD)
        return Listed.MISSING if missing else Listed.UNKNOWN

    def shift(self, step_s: float) -> None:
        """Step with the wall clock."""
        self.first_seen = {i: at + step_s for i, at in self.first_seen.items()}
        for name in ("listed_at", "started_at", "failing_since"):
            if (at := getattr(self, name)) is not None:
                setattr(self, name, at + step_s)

    def age_s(self, now: float) -> float | None:
        """Age of the last complete list in seconds, None if there was none."""
        return None if self.listed_at is None else now - self.listed_at


@dataclass
class Pulse:
    """What one node's agent has told us since this process started."""

    boot_id: str = ""
    seq: int = 0
    last_at: float | None = None
    reports: int = 0
    good: int = 0
    gate_report: HealthReport | None = None
    last_report: HealthReport | None = None
    fatal: Fault | None = None
    fatal_at: float = 0.0
    fatal_n: int = 0
    warning: Fault | None = None
    warning_since: float | None = None
    notice: str = ""
    notice_reason: Reason = Reason.SPOT_NOTICE
    drained: bool = False
    rebooted: bool = False

    def condemned(self, fault: Fault, at: float, n: int = 1) -> None:
        """Note a sighting of a fatal fault; the first one named stays the reason."""
        self.fatal = self.fatal or fault
        self.fatal_at, self.fatal_n = at, self.fatal_n + n

    def stands(self, now: float) -> Fault | None:
        """The fatal fault that may be acted on. One that the agent repeated and then left out of
        a report, or told once long ago, must be found by a new gate first (PC-155).
        """
        told = FATAL_S if self.fatal_n == 1 else REPEATED_S
        return self.fatal if now - self.fatal_at <= told else None

    def cured(self) -> None:
        """The gate has passed since: what was said before is no longer true."""
        self.fatal, self.fatal_at, self.fatal_n = None, 0.0, 0


@dataclass
class Watch:
    """Everything observed, and which nodes something new is known about."""

    sightings: dict[str, Sightings] = field(default_factory=dict)
    pulses: dict[str, Pulse] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)

    def pulse(self, node_id: str) -> Pulse:
        """The node's pulse, made when first asked for."""
        found = self.pulses.get(node_id)
        if found is None:
            found = self.pulses[node_id] = Pulse()
        return found

    def shift(self, step_s: float) -> None:
        """Step with the wall clock."""
        for seen in self.sightings.values():
            seen.shift(step_s)
        for pulse in self.pulses.values():
            pulse.fatal_at += step_s
            if pulse.last_at is not None:
                pulse.last_at += step_s
            if pulse.warning_since is not None:
                pulse.warning_since += step_s

    def forget(self, node_id: str) -> None:
        """Drop what is known of a node that has ended."""
        self.pulses.pop(node_id, None)
        self.dirty.discard(node_id)

    def instance(self, node: Node) -> Instance | None:
        """The last snapshot of a node's instance, None if never seen or no longer listed."""
        seen = self.sightings.get(node.offer.provider)
        return seen.instances.get(node.instance_id) if seen and node.instance_id else None

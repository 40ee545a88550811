"""Guards above all loops: what stops fleetd from making an outage worse.

Invariant: a guard only ever takes permissions away, is computed from current state (never from
replayed events), and says in words which rule it applied. Budget bounds repairs per pool ×
provider × zone, Blindness bounds conclusions from silence per provider, Grace covers the time
after a start, and a wall-clock jump pauses everything that destroys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

#: Destructive loops pause this long after a wall-clock step (public case PC-208).
JUMP_PAUSE_S: Final = 60.0
#: Blindness needs at least this many silent agents: one silent agent is a node, not a network.
BLIND_MIN_NODES: Final = 3
BLIND_SHARE: Final = 0.5
#: Blindness must end (PC-134): after this long, with fresh lists and the agents of another cloud
#: heard, silence is judged again and the Budget bounds the repairs.
BLIND_MAX_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """The repair breaker of one pool (defaults: field.md section 2, Karpenter, NVSentinel)."""

    share: float = 0.20
    floor: int = 1
    absolute: int = 10
    window_s: float = 900.0
    half_open_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Ward:
    """The state of one failure domain (pool × provider × zone) that Budget looks at.

    ``total`` nodes serve or served in the window; ``unhealthy`` are judged bad now and still
    serving; ``removed`` were taken out for health within the window; ``repairing`` are out or on
    their way with no replacement READY yet; ``last_repair_at`` is the newest removal.
    """

    total: int
    unhealthy: int
    removed: int
    repairing: int
    last_repair_at: float | None = None


@dataclass(frozen=True, slots=True)
class Permit:
    """Yes or no, with the rule in words. ``tripped`` says that the breaker is open: page."""

    ok: bool
    why: str = ""
    tripped: bool = False


def budget_limit(total: int, policy: RepairPolicy) -> int:
    """Nodes of a domain that may be ill or under repair at once: max(floor, share), at most
    ``absolute``, rounded up so that a pool of three can lose one (PC-070, PC-071, PC-159).
    """
    return max(policy.floor, min(policy.absolute, math.ceil(policy.share * total - 1e-9)))


def may_repair(ward: Ward, now: float, policy: RepairPolicy) -> Permit:
    """May one more node of this domain be taken out for health?

    Up to the limit: yes. In a domain so small that the limit is the floor: one at a time, however
    many are ill. Beyond it the breaker is open: one probe per ``half_open_s`` and a person is
    told, since so many ill at once is a sensor, an image or a cloud and not the machines.
    """
    limit = budget_limit(ward.total, policy)
    ill = ward.unhealthy + ward.removed
    if ill <= limit and ward.repairing < limit:
        return Permit(True)
    small = policy.share * ward.total <= policy.floor
    if small:
        if ward.repairing < policy.floor:
            return Permit(True)
        return Permit(False, f"{ward.repairing} under repair, {policy.floor} at a time")
    if ill <= limit:
        return Permit(False, f"{ward.repairing} of at most {limit} are already being replaced")
    rested = ward.last_repair_at is None or now - ward.last_repair_at >= policy.half_open_s
    if rested and ward.repairing == 0 and ward.removed == 0:
        return Permit(True, "half open: one probe", tripped=True)
    why = f"{ill} of {ward.total} ill within {policy.window_s:.0f} s, at most {limit} allowed"
    return Permit(False, why, tripped=True)


def blind(silent: int, watched: int, *, list_age_s: float | None, list_limit_s: float) -> str:
    """Why silence of one provider's agents proves nothing now, or "" if it does.

    Most agents silent together, or a cloud that has not answered a list call lately, points at
    the path between (dstack#1551, #2041; PC-141), not at the nodes.
    """
    if silent >= BLIND_MIN_NODES and silent > BLIND_SHARE * watched:
        return f"{silent} of {watched} agents fell silent together"
    if list_age_s is None or list_age_s > list_limit_s:
        age = "never" if list_age_s is None else f"{list_age_s:.0f} s ago"
        return f"the last complete list was {age}"
    return ""


@dataclass
class Grace:
    """No verdict and no sweep before one full list of each provider and two report intervals
    since this process began to watch (BOSH #2527, MCM #657).
    """

    started_at: float
    report_interval_s: float
    first_list_at: dict[str, float] = field(default_factory=dict)

    def over(self, provider: str, now: float) -> bool:
        """True when nodes of ``provider`` may be judged."""
        return (
            provider in self.first_list_at and now >= self.started_at + 2 * self.report_interval_s
        )

    def shift(self, step_s: float) -> None:
        """Step with the wall clock."""
        self.started_at += step_s
        self.first_list_at = {name: at + step_s for name, at in self.first_list_at.items()}


@dataclass
class Pause:
    """Stops destructive work until a time; set by a clock jump."""

    until: float = 0.0
    why: str = ""

    def jumped(self, step_s: float, monotonic: float) -> None:
        """Note a wall-clock step of ``step_s``."""
        self.until = max(self.until, monotonic + JUMP_PAUSE_S)
        self.why = f"the wall clock stepped {step_s:+.0f} s"

    def active(self, monotonic: float) -> bool:
        """True while destructive loops must wait."""
        return monotonic < self.until


#: How a person says that a large sweep is right; it holds for an hour.
CONFIRM: Final = "look at them, then confirm with fleetctl freeze and fleetctl unfreeze"
CONFIRMED_S: Final = 3600.0


def sweep_limit(instances: int) -> int:
    """Orphans one sweep may ask to delete: at most 5, or 5 % of what is listed (field.md 2)."""
    return max(5, math.ceil(0.05 * instances))


def sweep_refused(orphans: int, instances: int, nodes_known: int, confirmed: bool) -> str:
    """Why a sweep must not delete anything, or "".

    An empty store beside running instances is a lost store and not a fleet of orphans
    (opencode#36728, MCM PR 722); more than half of everything being an orphan is the same thing.
    """
    if confirmed or orphans == 0:
        return ""
    if nodes_known == 0:
        return f"the store knows no node but the clouds list {orphans} of ours: {CONFIRM}"
    if orphans > 5 and orphans > 0.5 * instances:
        return f"{orphans} of {instances} instances look like orphans: {CONFIRM}"
    return ""


def tripped_names(guards: Mapping[str, str]) -> tuple[str, ...]:
    """Names of guards that are holding something back, sorted for display."""
    return tuple(sorted(name for name, why in guards.items() if why))

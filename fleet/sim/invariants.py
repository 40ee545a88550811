"""What must hold in every trial after every step, whatever goes wrong in the world.

Invariant: a check reads the world (what really exists) and the store (what fleetd says), never
fleetd's own conclusions; a violation names the seed-independent rule, the object and the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import select
from sqlmodel import Session, col

from fleet.cell import Cell
from fleet.guards import budget_limit
from fleet.lifecycle import NEXT
from fleet.model import State
from fleet.sim.trial import Trial
from fleet.store.tables import Base, BatchRow, EventRow, NodeRow

#: An instance may be without a live record this long: create call, list lag, two sweeps.
UNOWNED_S: Final = 2400.0
#: A pass may be this late when it leaves a state (list interval, retries of the store).
LATE_S: Final = 60.0
HEALTH: Final = ("fatal_fault", "warning_persists", "agent_silent")


class Violation(AssertionError):
    """An invariant did not hold."""


@dataclass
class Invariants:
    """The checks of one trial and what they remember between steps."""

    trial: Trial
    _event_id: int = 0
    _state: dict[str, str] = field(default_factory=dict)
    _unowned: dict[str, float] = field(default_factory=dict)
    _drains: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    _held: dict[str, float] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    def check(self) -> None:
        """Raise Violation if anything is wrong now."""
        problems = list(self.trial.store.call(self._problems))
        if problems:
            raise Violation(f"t={self.trial.world.t:.0f} s: " + "; ".join(problems[:5]))

    def _problems(self, tx: Session) -> list[str]:
        rows = tx.execute(select(Base.metadata.tables["nodes"])).all()
        return [
            *self._tokens(tx), *self._binding(rows), *self._ceiling(), *self._ownership(rows),
            *self._closed(rows), *self._history(tx), *self._deadlines(rows), *self._slots(),
        ]  # fmt: skip

    # -- instances -------------------------------------------------------------------------------

    def _tokens(self, tx: Session) -> Iterator[str]:
        asked = dict(tx.execute(select(col(BatchRow.token), col(BatchRow.n))).all())
        for token, made in self.trial.world.ever_by_token.items():
            if made > asked.get(token, 0):
                yield f"{made} instances were made for {token}, a batch of {asked.get(token)}"

    def _binding(self, rows: Sequence[Any]) -> Iterator[str]:
        bound = Counter((r.provider, r.instance_id) for r in rows if r.instance_id)
        yield from (f"{k} is bound to {n} nodes" for k, n in bound.items() if n > 1)

    def _ceiling(self) -> Iterator[str]:
        cell = self.trial.daemon.cell if self.trial.daemon else None
        if cell is None:
            return
        real = self.trial.world.existing_by_pool()
        for name in cell.view.pools:
            rules = cell.rules(name)
            if rules is None or not isinstance(rules.pool.spec.spares, int):
                continue
            most = rules.pool.spec.nodes + rules.pool.spec.spares + rules.surge + rules.quarantine
            if real[name] > most:
                yield f"{real[name]} instances of {name} exist, at most {most} may"

    def _ownership(self, rows: Sequence[Any]) -> Iterator[str]:
        now = self.trial.clock.monotonic()  # the wall clock may jump
        owned = {r.instance_id for r in rows if r.state != State.TERMINATED}
        existing = {m.id: m for m in self.trial.world.existing()}
        for instance_id, machine in existing.items():
            if instance_id in owned:
                self._unowned.pop(instance_id, None)
                continue
            since = self._unowned.setdefault(instance_id, now)
            if now - since > UNOWNED_S:
                yield f"{instance_id} ({machine.token}) has no live record for {now - since:.0f} s"
        self._unowned = {i: at for i, at in self._unowned.items() if i in existing}

    def _closed(self, rows: Sequence[Any]) -> Iterator[str]:
        living = {m.id for m in self.trial.world.existing()}
        for r in rows:
            if r.state == State.TERMINATED and r.instance_id in living:
                yield f"{r.id} is closed while {r.instance_id} lives ({r.reason})"

    # -- records ---------------------------------------------------------------------------------

    def _history(self, tx: Session) -> Iterator[str]:
        events = tx.execute(
            select(EventRow).where(col(EventRow.id) > self._event_id).order_by(col(EventRow.id))
        ).scalars()
        for e in events:
            self._event_id = e.id or 0
            self.seen[e.reason] += 1
            if e.kind != "node" or not e.dst:
                continue
            before = self._state.get(e.object_id, "")
            if e.src != before:
                yield f"{e.object_id} moved from {e.src}, but was {before or 'unknown'}"
            elif before and State(e.dst) not in NEXT[State(before)]:
                yield f"{e.object_id}: {before} → {e.dst} is not allowed"
            self._state[e.object_id] = e.dst
            yield from self._budget(tx, e)

    def _budget(self, tx: Session, e: EventRow) -> Iterator[str]:
        """Nodes taken out for health per domain and window stay within the Budget."""
        if e.dst != State.DRAINING or e.reason not in HEALTH:
            return
        row = tx.get(NodeRow, e.object_id)
        cell = self.trial.daemon.cell if self.trial.daemon else None
        rules = cell.rules(e.pool) if cell else None
        if row is None or rules is None:
            return
        place = (row.pool, row.provider, row.placed_zone or row.zone)
        window = rules.repair.window_s
        recent = [t for t in self._drains.get(place, []) if e.at - t <= window] + [e.at]
        self._drains[place] = recent
        limit = budget_limit(rules.pool.spec.nodes + 100, rules.repair)
        if len(recent) > limit:
            yield f"{len(recent)} nodes of {place} taken out in {window:.0f} s, at most {limit}"

    def _deadlines(self, rows: Sequence[Any]) -> Iterator[str]:
        cell = self.trial.daemon.cell if self.trial.daemon else None
        if cell is None or cell.may_destroy():
            return
        now, up = self.trial.clock.now(), cell.grace.started_at
        self._note_held(cell, now)
        for r in rows:
            if r.deadline_at is None or r.state == State.TERMINATING:
                continue
            held_at = self._held.get(r.provider, 0.0)
            if r.state == State.SUSPECT:
                # Silence counts anew from the end of a blindness; the Budget may hold a repair.
                rules = cell.rules(r.pool)
                silent_s = rules.health.spec.report.replace_silent_s if rules else 600.0
                held_at = max(held_at + silent_s, self._held.get("budget", 0.0))
            if now > max(r.deadline_at, up + 120.0, held_at) + LATE_S:
                yield f"{r.id} is {r.state} {now - r.deadline_at:.0f} s past its deadline"

    def _note_held(self, cell: Cell, now: float) -> None:
        """Until when a guard kept deadlines from being acted on: blindness and old lists per
        provider, the Budget for all.
        """
        limit_s = cell.settings.timing.list_limit_s
        for provider, seen in cell.watch.sightings.items():
            age_s = seen.age_s(now)
            if f"blind:{provider}" in cell.guards or age_s is None or age_s > limit_s:
                self._held[provider] = now
        if any(name.startswith(("budget:", "waiting:")) for name in cell.guards):
            self._held["budget"] = now

    def _slots(self) -> Iterator[str]:
        cell = self.trial.daemon.cell if self.trial.daemon else None
        if cell is None:
            return
        served = Counter(s.node_id for s in cell.view.slots.values() if s.node_id)
        yield from (f"{node} serves {n} slots" for node, n in served.items() if n > 1)

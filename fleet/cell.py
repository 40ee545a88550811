"""What the loops share: store, view, what is observed, guards, providers, clock and chance.

Invariant: ``commit`` is how a loop writes: one transaction, then the view follows. A loop holds
no state of its own that a restart would miss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import structlog
from sqlmodel import Session

from fleet.clock import Chance, Clock
from fleet.config import Settings
from fleet.errors import StoreFull
from fleet.guards import Grace, Pause
from fleet.lifecycle import Rules, deadline
from fleet.model import Node, Owner, Reason, State
from fleet.plan import is_spare
from fleet.rules import DEFAULT_HEALTH, PoolRules, pool_rules
from fleet.store import control, write
from fleet.store.door import Store
from fleet.store.shift import shift
from fleet.store.view import View
from fleet.tasks import Driver, Effects
from fleet.watch import Sightings, Watch
from providers.base import Provider

log = structlog.get_logger("fleetd")

T = TypeVar("T")


@dataclass
class Cell:
    """One fleet and everything this process knows of it."""

    settings: Settings
    store: Store
    clock: Clock
    chance: Chance
    providers: Mapping[str, Provider]
    key: bytes = field(repr=False)
    agent_url: str = ""
    view: View = field(default_factory=View)
    watch: Watch = field(default_factory=Watch)
    pause: Pause = field(default_factory=Pause)
    guards: dict[str, str] = field(default_factory=dict)
    drivers: dict[str, Driver] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    full: bool = False
    #: Measured p99 of accepted→running and running→first report (s) per offer key.
    p99: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    #: What else keeps stamps in memory and must step with the wall clock.
    on_step: list[Callable[[float], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        timing = self.settings.timing
        for name in self.providers:
            source = getattr(self.providers[name], "inner", self.providers[name])
            visibility = getattr(source, "visibility_s", timing.visibility_s)
            self.watch.sightings[name] = Sightings(name, visibility)
        self._rules: dict[str, PoolRules] = {}
        self._rules_of = ""

    @cached_property
    def effects(self) -> Effects:
        """Cloud calls in flight."""
        return Effects(self.settings.limits.effects, lambda: self.wake("launch", "reap"))

    @cached_property
    def grace(self) -> Grace:
        """Start-up grace, counted from first use (the daemon's start)."""
        return Grace(self.clock.now(), DEFAULT_HEALTH.spec.report.interval_s)

    @property
    def owner(self) -> Owner:
        """Whose instances these are."""
        return Owner(self.settings.cell)

    @property
    def observe_only(self) -> bool:
        """True in observe mode: decide and log, do nothing."""
        return self.settings.mode == "observe"

    # -- writing ---------------------------------------------------------------------------------

    async def commit(self, fn: Callable[[Session], T]) -> T:
        """Run ``fn`` in one transaction, then let the view follow."""
        try:
            result = await self.store.run(fn)
        except StoreFull:
            await self._make_room()
            raise
        await self.follow()
        return result

    async def follow(self) -> None:
        """Take in what was committed; nodes that changed are due for the lifecycle loop."""
        await self.store.run(self.view.refresh)
        if self.view.changed:
            self.watch.dirty |= self.view.changed
            for node_id in self.view.changed - self.view.nodes.keys():
                self.watch.forget(node_id)
            self.view.changed.clear()

    async def _make_room(self) -> None:
        if not self.full and self.store.drop_ballast():
            log.error("disk full: gave the ballast to the database; launches stop until there is "
                      "space, drains go on", path=self.store.path)  # fmt: skip
        self.full = True
        self.guards["disk"] = "the disk of the database is full: no launches"

    # -- guards ----------------------------------------------------------------------------------

    def may_act(self) -> str:
        """Why nothing may be changed in the world now, or ""."""
        if self.observe_only:
            return "observe mode"
        if self.view.frozen:
            return f"frozen: {self.view.frozen}"
        return ""

    def may_destroy(self) -> str:
        """Why nothing may be ended or drained now, or ""."""
        why = self.may_act()
        if why:
            return why
        if self.pause.active(self.clock.monotonic()):
            return self.pause.why
        return ""

    async def stepped(self, step_s: float) -> None:
        """The wall clock stepped: pause what destroys, and let every stamp step with it, so that
        deadlines, rests and silences keep the length they had (PC-208).
        """
        self.pause.jumped(step_s, self.clock.monotonic())
        log.warning("clock jump", step_s=step_s)
        now = self.clock.now()
        self.watch.shift(step_s)
        self.grace.shift(step_s)
        for step in self.on_step:
            step(step_s)
        await self.commit(lambda tx: shift(tx, step_s, now=now))

    # -- policies --------------------------------------------------------------------------------

    def rules(self, pool: str) -> PoolRules | None:
        """Rules of an applied pool, cached until policies change."""
        version = self.view.meta.get("policies", "")
        if version != self._rules_of:
            self._rules, self._rules_of = {}, version
        found = self._rules.get(pool)
        if found is None and pool in self.view.pools:
            found = pool_rules(self.view.pools[pool], self.view.health)
            self._rules[pool] = found
        return found

    def limits(self, node: Node) -> Rules:
        """Deadlines and thresholds of one node, learned where policy leaves them open."""
        known = self.rules(node.pool)
        if known is None:
            return Rules()
        launch_p99, boot_p99 = self.p99.get(node.offer.key, (None, None))
        return known.rules(node.offer.instance_type, launch_p99, boot_p99)

    def deadline(self, node: Node, state: State, since: float) -> float | None:
        """When a node that entered ``state`` at ``since`` must have left it."""
        return deadline(state, since, self.limits(node))

    # -- small shared steps ----------------------------------------------------------------------

    def wake(self, *names: str) -> None:
        """Ask loops for a pass soon."""
        for name in names:
            driver = self.drivers.get(name)
            if driver is not None:
                driver.wake()

    def spares(self, pool: str) -> list[Node]:
        """READY nodes of a pool that could serve at once, best first."""
        found = [n for n in self.view.pool_nodes(pool) if is_spare(n)]
        return sorted(found, key=lambda n: (n.id in self.warned, n.ready_at or 0.0))

    @property
    def warned(self) -> frozenset[str]:
        """Nodes with an open warning."""
        return frozenset(i for i, p in self.watch.pulses.items() if p.warning is not None)

    def note(self, kind: str, object_id: str, reason: Reason, message: str, *, actor: str,
             pool: str = "") -> Callable[[Session], None]:  # fmt: skip
        """A function that appends one event, for ``commit``."""
        now = self.clock.now()

        def fn(tx: Session) -> None:
            write.event(tx, kind=kind, object_id=object_id, pool=pool, reason=reason, actor=actor,
                        at=now, message=message)  # fmt: skip

        return fn

    async def guard(self, name: str, why: str, *, reason: Reason, kind: str, object_id: str,
                    pool: str = "", actor: str) -> None:  # fmt: skip
        """Set or clear a guard; an event when it begins to hold something back, once."""
        before = self.guards.get(name, "")
        if why:
            self.guards[name] = why
            if not before:
                log.warning("guard", guard=name, why=why)
                await self.commit(self.note(kind, object_id, reason, why, actor=actor, pool=pool))
        else:
            self.guards.pop(name, None)

    def count_refused(self, why: str) -> None:
        """Count one refused agent request by its cause."""
        self.refused[why] = self.refused.get(why, 0) + 1


def finish(tx: Session, node: Node, *, now: float, actor: str, reason: Reason,
           message: str = "", **changes: Any) -> None:  # fmt: skip
    """The end of a node: TERMINATED, its token revoked, its slot (if any is left) emptied."""
    if node.slot:
        write.set_slot(tx, node.slot, None, now=now, moved=True)
    write.transition(
        tx, node, State.TERMINATED, reason, now=now, actor=actor, message=message, **changes
    )
    control.revoke_joins(tx, node.id, now)
    control.clear_faults(tx, node.id, now)

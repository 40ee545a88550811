"""Repairs: which nodes were taken out for health, and whether one more may be.

Invariant: the Budget is asked per node, against what is true at that moment in its pool, cloud
and zone; a guard that nobody has asked about for a minute is not standing any more.
"""

from __future__ import annotations

from typing import Final

from fleet import guards
from fleet.cell import Cell
from fleet.model import IN_FLIGHT, Actor, Node, Reason, State
from fleet.rules import PoolRules
from fleet.store import control

#: Leaving for these reasons is a repair and counts in the Budget.
HEALTH: Final = (Reason.FATAL_FAULT, Reason.WARNING_PERSISTS, Reason.AGENT_SILENT)
MEMORY_S: Final = 7200.0
STANDING_S: Final = 60.0
_SERVING: Final = (State.READY, State.SUSPECT)

Place = tuple[str, str, str]


def place_of(node: Node) -> Place:
    """The failure domain of a node: pool, provider, zone."""
    return node.pool, node.offer.provider, node.zone or node.offer.zone


class Repairs:
    """The Budget's memory for one cell."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._removed: dict[str, tuple[float, Place]] = {}
        self._asked: dict[Place, float] = {}
        cell.on_step.append(self._step)

    def _step(self, step_s: float) -> None:
        """Step with the wall clock."""
        self._removed = {i: (at + step_s, place) for i, (at, place) in self._removed.items()}
        self._asked = {place: at + step_s for place, at in self._asked.items()}

    async def load(self) -> None:
        """Read the removals that still count, so that a restart does not grant a new Budget."""
        since = self._cell.clock.now() - MEMORY_S
        rows = await self._cell.store.run(lambda tx: control.health_removals(tx, since))
        self._removed = {node_id: (at, place) for node_id, at, place in rows}

    def noted(self, node: Node, now: float) -> None:
        """A node was taken out for its health."""
        self._removed[node.id] = (now, place_of(node))
        self._removed = {i: r for i, r in self._removed.items() if now - r[0] < MEMORY_S}

    async def allowed(self, node: Node, known: PoolRules | None, now: float) -> bool:
        """May this node be taken out for health now? An open breaker is a guard and an event."""
        policy = known.repair if known else guards.RepairPolicy()
        place = place_of(node)
        self._asked[place] = now
        permit = guards.may_repair(self._ward(node, place, now, policy), now, policy)
        name = "/".join(place)
        if permit.ok or permit.tripped:
            self._cell.guards.pop(f"waiting:{name}", None)
        else:
            self._cell.guards[f"waiting:{name}"] = permit.why
        why = permit.why if permit.tripped and not permit.ok else ""
        await self._cell.guard(
            f"budget:{name}", why, reason=Reason.BUDGET_EXHAUSTED, kind="pool",
            object_id=node.pool, pool=node.pool, actor=Actor.LIFECYCLE,
        )  # fmt: skip
        return permit.ok

    def tidy(self, now: float) -> None:
        """Drop guards of domains in which no node waits for the Budget any more."""
        for place in [p for p, at in self._asked.items() if now - at > STANDING_S]:
            del self._asked[place]
            name = "/".join(place)
            self._cell.guards.pop(f"budget:{name}", None)
            self._cell.guards.pop(f"waiting:{name}", None)

    def _ward(
        self, node: Node, place: Place, now: float, policy: guards.RepairPolicy
    ) -> guards.Ward:
        mates = self._cell.view.pool_nodes(node.pool)
        here = [n for n in mates if place_of(n) == place]
        serving = [n for n in here if n.state in _SERVING]
        removed = {i: at for i, (at, where) in self._removed.items() if where == place}
        recent = [at for at in removed.values() if now - at <= policy.window_s]
        draining = sum(n.state is State.DRAINING and n.id in removed for n in here)
        refilling = any(n.state in IN_FLIGHT for n in mates)
        return guards.Ward(
            total=len(serving) + len(recent),
            unhealthy=sum(self._ill(n, now) for n in serving),
            removed=len(recent),
            repairing=max(draining, len(recent) if refilling else 0),
            last_repair_at=max(removed.values(), default=None),
        )

    def _ill(self, node: Node, now: float) -> bool:
        pulse = self._cell.watch.pulses.get(node.id)
        fatal = pulse.stands(now) if pulse is not None else None
        return node.state is State.SUSPECT or fatal is not None

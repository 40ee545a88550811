"""Assign: keeps a pool's slots filled with READY nodes.

Invariant: putting a spare into service is one transaction and no cloud call; a slot has at most
one node and a node at most one slot (a unique index says so too); a pool that shrinks loses its
empty slots first and its last-named ones next.
"""

from __future__ import annotations

import structlog
from sqlmodel import Session

from fleet.cell import Cell
from fleet.model import Actor, Node, Reason, State
from fleet.plan import fill_slots
from fleet.rules import PoolRules
from fleet.store import control, write
from fleet.store.view import Slot

log = structlog.get_logger("fleetd")

ME = Actor.ASSIGN


class Assign:
    """The loop that gives spares to empty slots."""

    name = "assign"

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.period_s = cell.settings.timing.assign_s
        self._settled: object = None  # what the last whole pass saw; the same again needs nothing

    async def run(self) -> None:
        """Fit slots to the policy, then fill the empty ones."""
        cell = self._cell
        state = (cell.view.seq, cell.view.meta.get("policies"))
        if cell.may_act() or state == self._settled:
            return
        by_pool: dict[str, list[Slot]] = {}
        for slot in cell.view.slots.values():
            by_pool.setdefault(slot.pool, []).append(slot)
        for name in sorted(cell.view.pools):
            rules = cell.rules(name)
            if rules is not None:
                await self._pool(rules, by_pool.get(name, []))
        self._settled = state

    async def _pool(self, rules: PoolRules, slots: list[Slot]) -> None:
        cell = self._cell
        now = cell.clock.now()
        have, want = {s.slot: s for s in slots}, dict.fromkeys(rules.slots)
        missing = [s for s in want if s not in have]
        extra = [s for s in have if s not in want]
        if missing:
            await cell.commit(lambda tx: write.add_slots(tx, rules.name, missing, now=now))
        if extra:
            await self._shrink(rules, extra, now)
        empty = [s.slot for s in slots if s.node_id is None and s.slot in want] + missing
        if not empty:
            return
        pairs = fill_slots(empty, cell.view.pool_nodes(rules.name), cell.warned)
        if pairs:
            await cell.commit(lambda tx: self._fill(tx, rules, pairs, now))
            cell.wake("plan", "deliver")

    def _fill(
        self, tx: Session, rules: PoolRules, pairs: list[tuple[str, str]], now: float
    ) -> None:
        for slot, node_id in pairs:
            node = self._cell.view.nodes[node_id]
            self._put(tx, rules, slot, node, now)

    def _put(self, tx: Session, rules: PoolRules, slot: str, node: Node, now: float) -> None:
        """One slot to one node, guarded by the node's version (it may just have fallen ill)."""
        assert node.state is State.READY
        write.update_node(tx, node, last_slot=slot)
        write.set_slot(tx, slot, node.id, now=now, moved=False)
        body = {
            "slot": slot, "pool": rules.name, "from": None, "to": node.id,
            "instance": node.instance_id, "reason": str(Reason.ASSIGNED), "at": now,
        }  # fmt: skip
        write.post(tx, pool=rules.name, urls=list(rules.urls), topic="slot.assigned", body=body,
                   now=now)  # fmt: skip
        write.event(tx, kind="slot", object_id=slot, pool=rules.name, dst=node.id, at=now,
                    reason=Reason.ASSIGNED, actor=ME,
                    message=f"{slot} is served by {node.id}")  # fmt: skip

    async def _shrink(self, rules: PoolRules, extra: list[str], now: float) -> None:
        cell = self._cell
        if cell.may_destroy():
            return

        def fn(tx: Session) -> None:
            for slot in extra:
                node_id = cell.view.slots[slot].node_id
                if node_id:
                    body = {"slot": slot, "pool": rules.name, "from": node_id, "to": None,
                            "reason": str(Reason.RELEASED), "at": now}  # fmt: skip
                    write.post(tx, pool=rules.name, urls=list(rules.urls), topic="slot.released",
                               body=body, now=now)  # fmt: skip
                write.event(tx, kind="slot", object_id=slot, pool=rules.name, src=node_id or "",
                            reason=Reason.RELEASED, actor=ME, at=now,
                            message="the pool was made smaller")  # fmt: skip
            control.remove_slots(tx, extra, now)

        await cell.commit(fn)
        cell.wake("plan")

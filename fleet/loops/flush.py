"""Flush: writes in batches what lives in memory, learns from history, keeps tables small.

Invariant: nothing here changes a decision; losing one pass loses seconds of accounting and no
event. GPU time is counted from the states of the moment times the measured time since the last
pass, at most two periods of it, so that a stopped or jumping clock cannot invent hours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import delete
from sqlmodel import Session, col

from fleet.cell import Cell
from fleet.errors import StoreFull
from fleet.loops.plan import Plan, Rates
from fleet.model import State
from fleet.store import control, queries, rollup
from fleet.store.tables import EventRow, NodeRow, OutboxRow

LEARN_S: Final = 1800.0
PRUNE_S: Final = 3600.0
SEEN_S: Final = 900.0
#: States in which an instance's GPUs are ours and powered.
POWERED: Final = frozenset(
    {State.BOOTING, State.CHECKING, State.READY, State.SUSPECT, State.DRAINING, State.QUARANTINED}
)


class Flush:
    """The loop for everything that may be late."""

    name = "flush"

    def __init__(self, cell: Cell, plan: Plan) -> None:
        self._cell, self._plan = cell, plan
        self.period_s = cell.settings.timing.flush_s
        self._last: float | None = None
        self._learned: float | None = None
        self._pruned: float | None = None
        self._saved: dict[str, float] = {}
        self._counted: tuple[int, dict[tuple[str, str], tuple[int, int]]] = (-1, {})

    async def run(self) -> None:
        """Write last-seen times and GPU hours; every half hour learn; every hour prune."""
        cell = self._cell
        step_s = cell.clock.jump_s()
        if step_s:
            self._saved.clear()
            await cell.stepped(step_s)
        mono, now = cell.clock.monotonic(), cell.clock.now()
        await self._save(mono, now)
        if self._due(self._learned, mono, LEARN_S):
            self._learned = mono
            await self._learn(now)
        if self._due(self._pruned, mono, PRUNE_S):
            self._pruned = mono
            await cell.store.run(self._prune(now))
        if cell.full and cell.store.keep_ballast():
            cell.full = False
            cell.guards.pop("disk", None)

    def _due(self, last: float | None, mono: float, every_s: float) -> bool:
        return last is None or mono - last >= every_s

    async def _save(self, mono: float, now: float) -> None:
        cell = self._cell
        span = 0.0 if self._last is None else min(mono - self._last, 2 * self.period_s)
        self._last = mono
        powered = self._powered()
        rows = self._seen()

        def fn(tx: Session) -> None:
            for (provider, region), (gpus, nodes) in powered.items():
                rollup.count_health(
                    tx, at=now, provider=provider, region=region, gpu_s=span * gpus,
                    node_s=span * nodes,
                )  # fmt: skip
            control.save_seen(tx, rows)

        try:
            await cell.store.run(fn)
        except StoreFull:
            cell.full = True

    def _powered(self) -> dict[tuple[str, str], tuple[int, int]]:
        """GPUs and nodes that run on our account by (provider, region), counted again only when
        a node changed.
        """
        view = self._cell.view
        if self._counted[0] != view.seq:
            counts: dict[tuple[str, str], tuple[int, int]] = {}
            for node in view.nodes.values():
                if node.state in POWERED:
                    key = (node.offer.provider, node.offer.region)
                    gpus, nodes = counts.get(key, (0, 0))
                    counts[key] = (gpus + node.offer.gpus, nodes + 1)
            self._counted = (view.seq, counts)
        return self._counted[1]

    def _seen(self) -> list[dict[str, object]]:
        """Nodes whose last report moved by a quarter of an hour or more since it was written."""
        rows: list[dict[str, object]] = []
        for node_id, pulse in self._cell.watch.pulses.items():
            if pulse.last_at is None or pulse.last_at - self._saved.get(node_id, 0.0) < SEEN_S:
                continue
            self._saved[node_id] = pulse.last_at
            rows.append({"node_id": node_id, "last_report_at": pulse.last_at,
                         "last_seq": pulse.seq, "boot_id": pulse.boot_id})  # fmt: skip
            if len(rows) >= 1000:
                break
        return rows

    async def _learn(self, now: float) -> None:
        """Deadlines from measured p99, spare counts from measured failures and refill time."""
        store = self._cell.store
        self._cell.p99 = await store.run(lambda tx: queries.phase_p99(tx, now - 30 * 86400))
        rates = await store.run(lambda tx: queries.pool_rates(tx, now - 7 * 86400))
        self._plan.rates = {pool: Rates(*values) for pool, values in rates.items()}
        live = self._cell.view.nodes.keys()
        self._saved = {i: at for i, at in self._saved.items() if i in live}

    def _prune(self, now: float) -> Callable[[Session], None]:
        limits = self._cell.settings.limits

        def fn(tx: Session) -> None:
            old = now - limits.events_days * 86400.0
            tx.execute(delete(EventRow).where(col(EventRow.at) < old))
            tx.execute(delete(OutboxRow).where(col(OutboxRow.done_at) < old))
            tx.execute(
                delete(NodeRow).where(
                    col(NodeRow.state) == str(State.TERMINATED),
                    col(NodeRow.state_since) < now - limits.terminated_s * 7,
                )
            )

        return fn

"""Who is late: the tasks, the event loop, the store; what systemd and /readyz are told.

Invariant: the watchdog hears of us only while every task makes passes; a pass that fails is a
pass (it is retried and counted), a pass that hangs is not.
"""

from __future__ import annotations

from typing import Final

from sqlmodel import Session

from fleet import sdnotify
from fleet.api.metrics import Meter
from fleet.daemon import Daemon
from fleet.errors import StoreError
from fleet.store import control, schema
from fleet.tasks import MAX_BACKOFF_S

#: A task that began no pass within this many periods is late (trust.md 2.5).
PERIODS: Final = 3.0
#: Readiness is asked by strangers; the store is read at most this often for them.
FRESH_S: Final = 1.0


class Watchman:
    """Watches one daemon from inside its loop."""

    def __init__(self, daemon: Daemon, meter: Meter) -> None:
        self._daemon, self._meter = daemon, meter
        self._passes: dict[str, tuple[int, float]] = {}
        self._told_at: float | None = None
        self._status = ""
        self._asked: tuple[float, str] | None = None
        self._watchdog_s = sdnotify.watchdog_s()

    def beat(self, span_s: float, lag_s: float) -> None:
        """Once a second: measure, and tell systemd when all is well."""
        self._meter.beat(self._daemon, span_s, max(0.0, lag_s))
        late = self.late()
        now = self._daemon.cell.clock.monotonic()
        status = late or self._summary()
        if status != self._status:
            self._status = status
            sdnotify.notify(STATUS=status)
        due = self._watchdog_s is not None and (
            self._told_at is None or now - self._told_at >= self._watchdog_s / 3
        )
        if due and not late:
            self._told_at = now
            sdnotify.notify(WATCHDOG="1")

    def late(self) -> str:
        """Which task has begun no pass within three periods and for how long, or ""."""
        now = self._daemon.cell.clock.monotonic()
        words: list[str] = []
        for name, driver in self._daemon.cell.drivers.items():
            status = driver.status
            before = self._passes.get(name)
            if before is None or before[0] != status.passes:
                self._passes[name] = before = (status.passes, now)
            allowed_s = PERIODS * status.period_s
            if status.failures_in_row:
                allowed_s += MAX_BACKOFF_S
            waited_s = now - before[1]
            if waited_s > allowed_s:
                # in steps, so that systemd is not told every second
                words.append(f"{name} {waited_s // 10 * 10:.0f} s without a pass")
        return "; ".join(words)

    async def ready(self) -> str:
        """Why requests should not come here, "" when all is well. Reads the sentinel row."""
        now = self._daemon.cell.clock.monotonic()
        if self._asked is None or now - self._asked[0] >= FRESH_S:
            self._asked = (now, await self._look())
        return self._asked[1]

    async def _look(self) -> str:
        drivers = self._daemon.cell.drivers.values()
        if any(d.status.last_ok_at is None for d in drivers):
            return "starting: not every task has made its first pass"
        try:
            seq = await self._daemon.cell.store.run(_sentinel)
        except StoreError:
            return "the store does not answer"
        if not seq:
            return "the store has lost its sentinel row"
        return "a task is late" if self.late() else ""

    def _summary(self) -> str:
        view = self._daemon.cell.view
        wanted = sum(p.spec.nodes for p in view.pools.values())
        serving = sum(1 for s in view.slots.values() if s.node_id)
        frozen = ", frozen" if view.frozen else ""
        return f"{serving} of {wanted} slots served, {len(view.nodes)} nodes{frozen}"


def _sentinel(tx: Session) -> str:
    connection = tx.connection()
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").fetchall()
    if [row[0] for row in found] != [_head()]:
        return ""
    return control.get_meta(tx, "seq")


_HEAD: list[str] = []


def _head() -> str:
    if not _HEAD:
        _HEAD.append(schema.head())
    return _HEAD[0]

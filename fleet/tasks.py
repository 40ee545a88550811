"""Periodic tasks: a period, a ``wake()`` that carries no data, a status, and jitter.

Invariant: the timed pass and the woken pass are the same code; a pass that raises is counted and
tried again with back-off; a task that dies for good or fails too often ends the process rather
than leaving half a daemon. Every asyncio task of fleetd is in one registry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from fleet.clock import Chance, Clock
from fleet.errors import StoreBroken

log = structlog.get_logger("fleetd")

MAX_BACKOFF_S: Final = 60.0
#: This many failed passes in a row end the process (trust.md 2.5), systemd starts it again.
FATAL_FAILURES: Final = 20
JITTER: Final = 0.1


class Task(Protocol):
    """One loop of fleetd: idempotent, bounded work per pass."""

    name: str
    period_s: float

    async def run(self) -> None:
        """One pass; raises only when the whole pass failed."""
        ...


@dataclass
class Status:
    """What is known of a task's passes, for ``/system``, metrics and the watchdog."""

    name: str
    period_s: float
    started_at: float = 0.0
    last_ok_at: float | None = None
    last_error: str = ""
    passes: int = 0
    failures: int = 0
    failures_in_row: int = 0
    last_pass_s: float = 0.0

    def late_s(self, now: float) -> float:
        """Seconds past the moment by which a pass should have succeeded."""
        since = self.last_ok_at if self.last_ok_at is not None else self.started_at
        return max(0.0, now - since - self.period_s)


class Driver:
    """Runs one Task for ever."""

    def __init__(self, task: Task, clock: Clock, chance: Chance) -> None:
        self.task = task
        self.status = Status(task.name, task.period_s)
        self._clock, self._chance = clock, chance
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Ask for a pass soon; many calls are one pass."""
        self._woken.set()

    async def run_forever(self) -> None:
        """Passes until cancelled; raises after FATAL_FAILURES in a row or on a broken store."""
        self.status.started_at = self._clock.monotonic()
        while True:
            self._woken.clear()
            await self._pass()
            await self._rest()

    async def _pass(self) -> None:
        status, start = self.status, self._clock.monotonic()
        status.passes += 1
        try:
            await self.task.run()
        except StoreBroken:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _cancelled():
                raise
            status.failures += 1
            status.failures_in_row += 1
            status.last_error = f"{type(error).__name__}: {error}"[:500]
            log.warning("pass failed", task=self.task.name, error=status.last_error,
                        in_row=status.failures_in_row, exc_info=True)  # fmt: skip
            if status.failures_in_row >= FATAL_FAILURES:
                raise
        else:
            status.failures_in_row = 0
            status.last_error = ""
            status.last_ok_at = self._clock.monotonic()
        status.last_pass_s = self._clock.monotonic() - start

    async def _rest(self) -> None:
        failures = self.status.failures_in_row
        if failures:
            await self._clock.sleep(min(MAX_BACKOFF_S, 0.5 * 2 ** min(failures, 10)))
            return
        spread = 1.0 + JITTER * (2.0 * self._chance.random() - 1.0)
        try:
            async with asyncio.timeout(self.task.period_s * spread):
                await self._woken.wait()
        except TimeoutError:
            pass


def _cancelled() -> bool:
    """True when it is we who were cancelled, and not something that a pass waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


@dataclass
class Tasks:
    """The one registry of asyncio tasks; nothing runs outside it."""

    on_death: Callable[[str, BaseException | None], None]
    _running: set[asyncio.Task[Any]] = field(default_factory=set)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``; if it ends other than by cancellation, ``on_death`` hears of it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            self.on_death(task.get_name(), task.exception())

    async def stop(self) -> None:
        """Cancel all and wait until they ended."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Effects:
    """Calls to the outside in flight: at most one per key, at most ``limit`` per group.

    A pass starts effects and never waits for them; when one ends, ``on_done`` wakes the loops.
    """

    def __init__(self, limit: int, on_done: Callable[[], None]) -> None:
        self.limit, self._on_done = limit, on_done
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._groups: dict[str, int] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._tasks

    def free(self, group: str) -> int:
        """How many more effects of ``group`` may start now."""
        return self.limit - self._groups.get(group, 0)

    def start(self, key: str, group: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Start ``work`` unless its key is in flight or its group is full."""
        if key in self._tasks or self.free(group) <= 0:
            return False
        task = asyncio.get_running_loop().create_task(work(), name=f"effect:{key}")
        self._tasks[key] = task
        self._groups[group] = self._groups.get(group, 0) + 1

        def done(ended: asyncio.Task[None]) -> None:
            self._tasks.pop(key, None)
            self._groups[group] -= 1
            if not ended.cancelled() and ended.exception() is not None:
                log.error("effect failed", key=key, exc_info=ended.exception())
            self._on_done()

        task.add_done_callback(done)
        return True

    async def stop(self, grace_s: float) -> None:
        """Give running effects ``grace_s`` seconds, then cancel; the store knows their tokens."""
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

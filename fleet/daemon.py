"""The composition root: the only place that knows every class.

Invariant: ``assemble`` builds the same objects for the real daemon, the demo and the simulator;
what differs comes in as arguments (clock, chance, providers, transport).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from fleet.api.agent import AgentDoor
from fleet.cell import Cell
from fleet.clock import Chance, Clock
from fleet.config import Settings
from fleet.loops.assign import Assign
from fleet.loops.deliver import Deliver
from fleet.loops.flush import Flush
from fleet.loops.launch import Launch
from fleet.loops.lifecycle import Lifecycle
from fleet.loops.observe import Observe
from fleet.loops.plan import Plan
from fleet.loops.reap import Reap
from fleet.restore import restore
from fleet.store.door import Store
from fleet.tasks import Driver, Task, Tasks
from providers.base import Provider

log = structlog.get_logger("fleetd")


@dataclass
class Daemon:
    """One fleetd: its cell, its loops and its doors."""

    cell: Cell
    tasks: Tasks
    agent_door: AgentDoor
    plan: Plan
    lifecycle: Lifecycle
    died: asyncio.Future[str]

    async def start(self) -> None:
        """Read the store, then run every loop. Returns at once."""
        cell = self.cell
        await cell.follow()
        await restore(cell)
        await self.agent_door.load()
        await self.lifecycle.load()
        _ = cell.grace  # the grace period begins now
        for name, driver in cell.drivers.items():
            self.tasks.start(name, driver.run_forever())

    async def stop(self) -> None:
        """No new decisions; in-flight cloud calls may finish, their tokens are committed anyway.
        No node is touched by a stop (PC-153).
        """
        await self.tasks.stop()
        await self.cell.effects.stop(self.cell.settings.timing.stop_s)
        for provider in self.cell.providers.values():
            await provider.aclose()


def assemble(
    settings: Settings, store: Store, clock: Clock, chance: Chance,
    providers: Mapping[str, Provider], key: bytes, agent_url: str,
) -> Daemon:  # fmt: skip
    """Wire one daemon together; needs a running event loop."""
    cell = Cell(settings, store, clock, chance, providers, key, agent_url)
    died: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_death(name: str, error: BaseException | None) -> None:
        if not died.done():
            died.set_result(f"task {name} ended: {error!r}")

    plan, lifecycle = Plan(cell), Lifecycle(cell)
    loops: list[Task] = [
        Observe(cell), lifecycle, plan, Launch(cell), Assign(cell), Reap(cell),
        Deliver(cell), Flush(cell, plan),
    ]  # fmt: skip
    cell.drivers = {task.name: Driver(task, clock, chance) for task in loops}
    return Daemon(cell, Tasks(on_death), AgentDoor(cell), plan, lifecycle, died)

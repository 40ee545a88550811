"""The simulated nodes of a world: an agent for every machine that comes up.

Invariant: a node's task lives from the world's ``on_boot`` to its ``on_end`` or the node's own
end, and a node's behaviour depends on the seed and its machine, not on how many others there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fleet.clock import Chance, SeededChance
from fleet.sim.faults import Injection
from fleet.sim.machine import Machine
from fleet.sim.node import NodeSettings, SimNode
from fleet.sim.transport import Transport
from fleet.sim.world import World


class Nodes:
    """All simulated nodes; made once per world, on the world's loop."""

    def __init__(
        self,
        world: World,
        transport: Transport,
        chance: Chance,
        settings: NodeSettings | None = None,
    ) -> None:
        """Start an agent on each machine that boots from now on."""
        self._world, self._transport = world, transport
        self._settings = settings or NodeSettings()
        self._salt = chance.token(8)
        self._nodes: dict[str, SimNode] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reports = self._refused = 0
        self.failures: list[BaseException] = []
        world.on_boot.append(self._boot)
        world.on_end.append(self._end)
        world.on_strike.append(self._strike)
        world.on_notice.append(self._notice)

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[SimNode]:
        return iter(self._nodes.values())

    def get(self, instance_id: str) -> SimNode | None:
        """The node on a machine that is up."""
        return self._nodes.get(instance_id)

    @property
    def reports(self) -> int:
        """Reports that fleetd took, of all nodes that ever lived."""
        return self._reports + sum(n.reports for n in self._nodes.values())

    @property
    def refused(self) -> int:
        """Requests that fleetd refused (4xx except try-again)."""
        return self._refused + sum(n.refused for n in self._nodes.values())

    async def aclose(self) -> None:
        """End all agents and let go of the transport."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.aclose()

    def _boot(self, machine: Machine) -> None:
        chance = SeededChance(f"{self._salt}/{machine.id}")
        world = self._world
        node = SimNode(
            machine, self._transport, chance, world.now, world.agents_cut, self._settings
        )
        task = asyncio.get_running_loop().create_task(node.run(), name=f"node {machine.id}")
        self._nodes[machine.id], self._tasks[machine.id] = node, task
        task.add_done_callback(self._done)

    def _end(self, machine: Machine) -> None:
        task = self._tasks.pop(machine.id, None)
        node = self._nodes.pop(machine.id, None)
        if node is not None:
            self._reports += node.reports
            self._refused += node.refused
        if task is not None:
            task.cancel()

    def _strike(self, machine: Machine, fault: Injection) -> None:
        node = self._nodes.get(machine.id)
        if node is not None:
            node.strike(fault)

    def _notice(self, machine: Machine) -> None:
        node = self._nodes.get(machine.id)
        if node is not None and machine.reclaim_at is not None:
            node.notice(machine.reclaim_at)

    def _done(self, task: asyncio.Task[None]) -> None:
        """A node that crashed is a bug of the simulator: keep it for the test to see."""
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(task.exception() or RuntimeError(task.get_name()))

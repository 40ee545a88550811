"""A trial: the whole daemon beside a simulated world on one loop, for tests, benches, the demo.

Invariant: the daemon in a trial is assembled by the same function as the real one; only clock,
chance, providers and the agents' transport are the simulator's. One seed, one log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from fleet.clock import Clock, SeededChance, VirtualClock, VirtualLoop
from fleet.config import Settings
from fleet.daemon import Daemon, assemble
from fleet.model import Market, State
from fleet.sim.fakecloud import FakeCloud
from fleet.sim.faults import FaultPlan
from fleet.sim.nodes import Nodes
from fleet.sim.spec import WorldSpec, four_clouds
from fleet.sim.transport import DirectTransport
from fleet.sim.world import World
from fleet.store import apply, schema
from fleet.store.door import Store
from policies.policyset import PolicySet
from policies.schema import HealthPolicy, Image, Pool
from providers.base import Provider

T = TypeVar("T")

ARTIFACTS = {
    "aws": "ami-0123456789abcdef0",
    "gcp": "projects/acme/global/images/gpu-base-v1",
    "azure": "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/fleet/providers/"
    "Microsoft.Compute/galleries/fleet/images/gpu-base/versions/1.0.0",
    "oci": "ocid1.image.oc1..aaaaaaaagpubase",
}


def image(world: WorldSpec, family: str = "gpu-base", version: str = "v1") -> Image:
    """An image with an artifact in every region of a simulated world."""
    artifacts = [
        {"provider": c.name, "region": r, "id": ARTIFACTS[c.kind]}
        for c in world.clouds
        for r in c.regions
    ]
    return Image.model_validate(
        {
            "apiVersion": "fleetd/v1", "kind": "Image", "metadata": {"name": family},
            "spec": {"versions": [{"version": version, "artifacts": artifacts}]},
        }
    )  # fmt: skip


def pool(
    world: WorldSpec, name: str = "train", *, nodes: int = 8, spares: Any = 2,
    markets: tuple[Market, ...] = (Market.ON_DEMAND,), **spec: Any,
) -> Pool:  # fmt: skip
    """A pool that may use every offer of a simulated world, cheapest cloud first."""
    offers = []
    for cloud in world.clouds:
        for o in cloud.offers:
            if o.market in markets:
                offers.append(
                    {"provider": cloud.name, "region": o.region, "zone": o.zone,
                     "type": o.instance_type, "market": str(o.market)}
                )  # fmt: skip
    return Pool.model_validate(
        {
            "apiVersion": "fleetd/v1", "kind": "Pool", "metadata": {"name": name},
            "spec": {"gpu": "H100", "gpus_per_node": 8, "nodes": nodes, "spares": spares,
                     "image": "gpu-base@v1", "offers": offers, **spec},
        }
    )  # fmt: skip


class Trial:
    """One daemon and one world on the running loop."""

    def __init__(
        self, seed: int, world: WorldSpec | None = None, plan: FaultPlan | None = None, *,
        policies: tuple[Pool | Image | HealthPolicy, ...] = (), store: Store | None = None,
        settings: Mapping[str, Any] | None = None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        loop = asyncio.get_running_loop()
        self.seed = seed
        self.spec = world or four_clouds(seed=seed)
        # Wall time made from the loop's time: right on virtual, scaled and real loops alike.
        self.clock: Clock = clock or VirtualClock(loop)
        self.world = World(self.clock.now, SeededChance(f"world {seed}"), self.spec, plan)
        self.store = store or Store("sqlite:///:memory:")
        self.settings = Settings(cell="trial", **dict(settings or {}))
        self.policies = policies or (image(self.spec), pool(self.spec))
        self.daemon: Daemon | None = None
        self.nodes: Nodes | None = None
        self._transport: DirectTransport | None = None
        self._starts = 0

    @property
    def up(self) -> Daemon:
        """The running daemon."""
        assert self.daemon is not None
        return self.daemon

    def providers(self) -> dict[str, Provider]:
        """The world's clouds as providers."""
        return {c.name: FakeCloud(self.world, c.name) for c in self.spec.clouds}

    async def start(self) -> None:
        """Make or open the store, apply the policies once, start daemon, world and agents."""
        schema.upgrade(self.store)
        self._starts += 1
        if self._starts == 1:
            now = self.clock.now()
            self.store.call(lambda tx: apply.apply(tx, self.policies, actor="trial", now=now))
            self.world.start()
        chance = SeededChance(f"daemon {self.seed} {self._starts}")
        self.daemon = assemble(
            self.settings, self.store, self.clock, chance, self.providers(), b"k" * 32,
            "http://fleetd.test",
        )  # fmt: skip
        if self.nodes is None:
            self.nodes = Nodes(self.world, _Through(self), SeededChance(f"nodes {self.seed}"))
        await self.daemon.start()

    async def stop(self) -> None:
        """Stop the daemon, orderly; the world goes on."""
        if self.daemon is not None:
            await self.daemon.stop()
            self.daemon = None

    async def crash(self) -> None:
        """End the daemon as ``kill -9`` would, as far as one process can: everything in memory
        and every call in flight is lost, what was committed stays.
        """
        if self.daemon is None:
            return
        await self.daemon.tasks.stop()
        await self.daemon.cell.effects.stop(0.0)
        self.daemon = None

    async def close(self) -> None:
        """End everything."""
        await self.stop()
        if self.nodes is not None:
            await self.nodes.aclose()
        self.world.stop()
        self.store.close()

    async def until(
        self, done: Callable[[], bool], *, timeout_s: float, step_s: float = 5.0
    ) -> bool:
        """Let time pass until ``done()``; False if it did not come true in time."""
        end = self.clock.monotonic() + timeout_s
        while not done():
            if self.clock.monotonic() >= end:
                return False
            await self.clock.sleep(step_s)
        return True

    def serving(self, pool_name: str = "train") -> int:
        """Slots of a pool that a READY node serves."""
        return sum(
            1 for n in self.up.cell.view.pool_nodes(pool_name) if n.slot and n.state is State.READY
        )

    def ready(self, pool_name: str = "train") -> int:
        """READY nodes of a pool."""
        return sum(1 for n in self.up.cell.view.pool_nodes(pool_name) if n.state is State.READY)

    def policy_set(self) -> PolicySet:
        """The policies of the trial."""
        return PolicySet.of(self.policies)


class _Through:
    """The agents' way to whichever daemon is up; no daemon is a refused connection."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    async def call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str = ""
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Hand the request to the daemon's door."""
        daemon = self._trial.daemon
        if daemon is None:
            raise ConnectionError("fleetd is down")
        return await daemon.agent_door.handle(method, path, headers, body, peer)

    async def aclose(self) -> None:
        """Nothing is held."""


def virtual(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``work()`` on a fresh virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())

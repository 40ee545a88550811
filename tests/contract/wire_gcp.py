"""The Google adapter on its wire skin, as the contract suite and the Google tests use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fleet.clock import LoopClock, SeededChance
from fleet.model import Instance, LaunchSpec, Market, Offer, Owner
from fleet.sim.faults import Injection, Kind
from fleet.sim.spec import Lognormal, OfferSpec, Steady, WorldSpec, cloud_spec
from fleet.sim.wire.gcp import PREFIX, GcpApp
from fleet.sim.wire.serve import Dispatcher, WireServer
from fleet.sim.world import World
from providers import gcp
from providers.base import TAG_IMAGE, Provider
from providers.gce.sdk import connect

PROJECT, REGION, TYPE = "fleetd-test", "us-central1", "a3-highgpu-8g"
ZONE, OTHER = "us-central1-a", "us-central1-c"
IMAGE = f"projects/{PROJECT}/global/images/base-v1"


def gcp_settings(url: str, **over: Any) -> gcp.Settings:
    """A project at a local endpoint, watched for a moment only: its world's time is ours."""
    values: dict[str, Any] = {
        "project": PROJECT,
        "regions": {REGION: gcp.Region(zones=[ZONE, OTHER])},
        "endpoint": url,
        "emulator_credentials": True,
        "settle_s": 0.3,
        "poll_s": 0.05,
    }
    return gcp.Settings(**values | over)


def gcp_world(level: int, other: int = 0, **over: Any) -> WorldSpec:
    """One cloud with ``level`` machines in one zone and ``other`` in the next, in both markets."""
    offers = tuple(
        OfferSpec(REGION, zone, TYPE, "H100", 8, 50.0, market, "", Steady(n))
        for zone, n in ((ZONE, level), (OTHER, other))
        for market in (Market.ON_DEMAND, Market.SPOT)
    )
    values: dict[str, Any] = {"buckets": {}, "latency_s": Lognormal(1e-4), "name": "gcp"}
    return WorldSpec((cloud_spec("gcp", offers, **values | over),))


def launch(token: str, count: int = 1, cell: str = "cell", **over: Any) -> LaunchSpec:
    """A launch of ``count`` instances under ``token``."""
    values: dict[str, Any] = {
        "token": token,
        "offer": Offer("gcp", REGION, ZONE, TYPE, Market.ON_DEMAND, "H100", 8, 50.0),
        "count": count,
        "image_id": IMAGE,
        "user_data": "#cloud-config\n",
        "tags": {TAG_IMAGE: "base@1.0.0"},
        "pool": "train",
        "cell": cell,
    }
    return LaunchSpec(**values | over)


class GcpWire:
    """What a harness needs beside its base: a world, the skin on a port, and the adapter."""

    name = "gcp-wire"
    can = frozenset({"tokens", "faults", "time", "capacity"})
    many = 2500
    run: Callable[[Any], Any]
    provider: Provider

    def __init__(self, runner: asyncio.Runner, level: int, **over: Any) -> None:
        self._runner = runner
        self._added_s = 0.0
        self.over = over
        self.run(self._open(level))

    async def _open(self, level: int) -> None:
        loop = asyncio.get_running_loop()
        spec = gcp_world(level, **self.over)
        self.world = World(lambda: 1.8e9 + loop.time() + self._added_s, SeededChance(7), spec)
        self.app = GcpApp(self.world, SeededChance(8), refuse_s=0.01)
        dispatcher = Dispatcher()
        dispatcher.add(PREFIX, self.app)
        self._server = WireServer(dispatcher)
        await self._server.start()
        self.url = self._server.url
        self.provider = self.adapter()

    def adapter(self, **over: Any) -> gcp.Gcp:
        """One more adapter at the same project: a restarted fleetd."""
        return gcp.Gcp(gcp_settings(self.url, **over), _WorldClock(self.world))

    def close(self) -> None:
        """Close the adapter and the server."""
        self.run(self.provider.aclose())
        self.run(self._server.aclose())

    async def pass_time(self, seconds: float) -> None:
        """The world's clock jumps: it runs what has become due with the next call."""
        self._added_s += seconds

    def inject(self, kind: str, seconds: float, value: float = 0.0) -> None:
        """A fault in the world, from now."""
        self.world.inject(Injection(Kind(kind), 0.0, seconds, value=value))

    def count(self, token: str) -> int:
        """What the world holds."""
        return sum(1 for _ in self.world.existing(token=token))

    def offer(self) -> Offer:
        """The world's one type."""
        return launch("any").offer

    def spec(self, token: str, count: int = 1, cell: str = "cell", **over: Any) -> LaunchSpec:
        """A launch of ``count`` instances under ``token``."""
        return launch(token, count, cell, **over)


class _WorldClock(LoopClock):
    """The adapter's wall time is the world's."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def now(self) -> float:
        return self._world.now()


@contextmanager
def gcp_wire(base: type[Any]) -> Iterator[Callable[[int], Any]]:
    """Google on the wire skin; ``base`` is the suite's Harness."""
    made: list[Any] = []
    with asyncio.Runner() as runner:

        def make(level: int) -> Any:
            made.append(type("GcpHarness", (GcpWire, base), {})(runner, level))
            return made[-1]

        yield make
        for harness in made:
            harness.close()


CALM: dict[str, Any] = {
    "pending_s": Lognormal(20.0, 0.0),
    "terminate_s": Lognormal(30.0, 0.0),
    "lag_s": 0.0,
}


class Bench(GcpWire):
    """The skin with a small adapter of its own; world time goes by when the test says so."""

    def __init__(self, runner: asyncio.Runner, level: int, **over: Any) -> None:
        self.run = runner.run
        super().__init__(runner, level, **{**CALM, **over})

    async def listed(self, cell: str = "cell") -> list[Instance]:
        return [i async for i in self.provider.list(Owner(cell))]

    def sdk(self, work: Callable[[Any], Any]) -> Any:
        """What the SDK's clients give, called in a thread as the adapter does."""

        async def main() -> Any:
            clients = await asyncio.to_thread(
                connect, self.url, emulator=True, direct=True, pool=4, timeout_s=10.0
            )
            try:
                return await asyncio.to_thread(work, clients)
            finally:
                clients.close()

        return self.run(main())

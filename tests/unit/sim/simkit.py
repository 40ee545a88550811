"""What the simulator's tests share: a hand-turned world and one on the virtual loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fleet.clock import SeededChance, VirtualClock, VirtualLoop
from fleet.model import LaunchSpec, Market, Need, Offer
from fleet.sim.capacity import Capacity, Lognormal, Steady
from fleet.sim.faults import FaultPlan, Injection
from fleet.sim.order import Order
from fleet.sim.spec import CloudSpec, OfferSpec, WorldSpec, cloud_spec
from fleet.sim.world import World
from providers.base import TAG_CELL, TAG_POOL, TAG_TOKEN

EPOCH = 1_800_000_000.0
PLENTY = Steady(100)
FLAT: dict[str, Any] = {
    "pending_s": Lognormal(20.0, 0.0),
    "boot_s": Lognormal(100.0, 0.0),
    "terminate_s": Lognormal(30.0, 0.0),
    "latency_s": Lognormal(0.5, 0.0),
    "lag_s": 0.0,
}


def one_cloud(kind: str = "aws", capacity: Capacity = PLENTY, **over: Any) -> CloudSpec:
    """A cloud that sells one type in two zones on both markets, with flat durations."""
    offers = tuple(
        OfferSpec("r1", zone, "gpu8", price_usd_hour=usd, market=market, capacity=capacity)
        for zone in ("z1", "z2")
        for market, usd in ((Market.ON_DEMAND, 60.0), (Market.SPOT, 20.0))
    )
    return cloud_spec(kind, offers, **(FLAT | over))


class Turned:
    """A world on a clock that a test turns by hand; every event falls at its own time."""

    def __init__(
        self,
        spec: CloudSpec | None = None,
        faults: Iterable[Injection] = (),
        until_s: float | None = None,
        seed: int = 1,
    ) -> None:
        self.t = 0.0
        self.spec = spec or one_cloud()
        self.world = World(
            lambda: EPOCH + self.t,
            SeededChance(seed),
            WorldSpec((self.spec,)),
            FaultPlan(faults, until_s),
        )
        self.cloud = self.world.clouds[self.spec.name]

    def turn(self, seconds: float) -> None:
        """Let time pass."""
        self.t += seconds
        self.world.advance()

    def order(self, key: str = "t-1", count: int = 1, **over: Any) -> Order:
        """An order that the cloud can fill."""
        values: dict[str, Any] = {
            "region": "r1",
            "zone": "z1",
            "instance_type": "gpu8",
            "market": Market.ON_DEMAND,
            "image_id": "img",
            "user_data": "ud",
            "tags": {TAG_CELL: "c", TAG_POOL: "p", TAG_TOKEN: key},
            "count": count,
            "key": key,
        }
        return Order(**(values | over))


def virtually(main: Callable[[VirtualClock], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``main(clock)`` on a virtual loop."""

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return await main(VirtualClock(loop, EPOCH))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def offer_of(name: str, zone: str = "z1", market: Market = Market.ON_DEMAND) -> Offer:
    """The offer that ``one_cloud`` sells."""
    return Offer(name, "r1", zone, "gpu8", market, "H100", 8, 60.0)


def launch(offer: Offer, token: str = "t-1", count: int = 1, **over: Any) -> LaunchSpec:
    """A LaunchSpec for ``offer``."""
    values: dict[str, Any] = {"user_data": "ud", "tags": {}, "pool": "p", "cell": "c"}
    return LaunchSpec(token, offer, count, "img", **(values | over))


NEED = Need("H100", 8, frozenset({Market.ON_DEMAND, Market.SPOT}))

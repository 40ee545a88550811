"""The Oracle adapter on its wire skin, as the contract suite and the Oracle tests use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fleet.clock import LoopClock, SeededChance
from fleet.model import Instance, LaunchSpec, Market, Offer, Owner
from fleet.sim.faults import Injection, Kind
from fleet.sim.spec import Lognormal, OfferSpec, Steady, WorldSpec, cloud_spec
from fleet.sim.wire.oci import PREFIX, REGION_PREFIX, OciApp
from fleet.sim.wire.serve import Dispatcher, WireServer
from fleet.sim.world import World
from providers import oci
from providers.base import TAG_IMAGE, Provider
from providers.oracle.sdk import Access, Clients, connect
from providers.pace import Bucket

TENANCY = "ocid1.tenancy.oc1..fleetdtest"
COMPARTMENT = "ocid1.compartment.oc1..fleetdtest"
SUBNET = "ocid1.subnet.oc1.phx.fleetdtest"
REGION, ZONE, OTHER = "us-phoenix-1", "PHX-AD-1", "PHX-AD-2"
FAR, FAR_ZONE = "us-chicago-1", "AD-1"
#: Sold as spot too, which bare metal never is.
TYPE, METAL = "VM.GPU.A10.2", "BM.GPU.H100.8"
IMAGE = "ocid1.image.oc1.phx.base-v1"

#: Nobody waits here for a bucket: the world's time is ours.
FAST: dict[str, Any] = {op: [Bucket(burst=1e6, refill_per_s=1e6)] for op in ("create", "delete")}


def oci_settings(url: str, **over: Any) -> oci.Settings:
    """A compartment at a local endpoint."""
    values: dict[str, Any] = {
        "tenancy": TENANCY,
        "compartment": COMPARTMENT,
        "regions": {
            REGION: oci.Region(availability_domains=[ZONE, OTHER], subnet=SUBNET),
        },
        "endpoint": f"{url}/oci/{{region}}",
        "emulator_credentials": True,
        "busy_s": 0.02,
        "rates": FAST,
    }
    return oci.Settings(**values | over)


def oci_world(level: int, other: int = 0, **over: Any) -> WorldSpec:
    """One cloud with ``level`` machines in one domain and ``other`` in the next, in both markets,
    the same in a second region, and bare metal on demand.
    """
    places = ((REGION, ZONE, level), (REGION, OTHER, other), (FAR, FAR_ZONE, level))
    offers = [
        OfferSpec(region, zone, TYPE, "A10", 2, 4.0, market, "", Steady(n))
        for region, zone, n in places
        for market in Market
    ]
    offers += [
        OfferSpec(region, zone, METAL, "H100", 8, 80.0, Market.ON_DEMAND, "", Steady(n))
        for region, zone, n in places
    ]
    values: dict[str, Any] = {"buckets": {}, "latency_s": Lognormal(1e-4), "name": "oci"}
    return WorldSpec((cloud_spec("oci", tuple(offers), **values | over),))


def offer(shape: str = TYPE, market: Market = Market.ON_DEMAND, zone: str = ZONE) -> Offer:
    """Something that is sold in the first region."""
    return Offer("oci", REGION, zone, shape, market, "A10", 2, 4.0)


def launch(token: str, count: int = 1, cell: str = "cell", **over: Any) -> LaunchSpec:
    """A launch of ``count`` instances under ``token``."""
    values: dict[str, Any] = {
        "token": token,
        "offer": offer(),
        "count": count,
        "image_id": IMAGE,
        "user_data": "#cloud-config\n",
        "tags": {TAG_IMAGE: "base@1.0.0"},
        "pool": "train",
        "cell": cell,
    }
    return LaunchSpec(**values | over)


class OciWire:
    """What a harness needs beside its base: a world, the skin on a port, and the adapter."""

    name = "oci-wire"
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
        page_max = self.over.pop("page_max", 200)
        other = self.over.pop("other", 0)
        spec = oci_world(level, other, **self.over)
        self.world = World(lambda: 1.8e9 + loop.time() + self._added_s, SeededChance(7), spec)
        self.app = OciApp(self.world, SeededChance(8), page_max=page_max)
        dispatcher = Dispatcher()
        dispatcher.add(PREFIX, self.app)
        dispatcher.add(REGION_PREFIX, self.app)
        self._server = WireServer(dispatcher)
        await self._server.start()
        self.url = self._server.url
        self.provider = self.adapter()

    def adapter(self, **over: Any) -> oci.Oci:
        """One more adapter at the same compartment: a restarted fleetd."""
        return oci.Oci(oci_settings(self.url, **over), LoopClock())

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
        """The world's one type of VM."""
        return offer()

    def spec(self, token: str, count: int = 1, cell: str = "cell", **over: Any) -> LaunchSpec:
        """A launch of ``count`` instances under ``token``."""
        return launch(token, count, cell, **over)


@contextmanager
def oci_wire(base: type[Any]) -> Iterator[Callable[[int], Any]]:
    """Oracle on the wire skin; ``base`` is the suite's Harness."""
    made: list[Any] = []
    with asyncio.Runner() as runner:

        def make(level: int) -> Any:
            made.append(type("OciHarness", (OciWire, base), {})(runner, level))
            return made[-1]

        yield make
        for harness in made:
            harness.close()


CALM: dict[str, Any] = {
    "pending_s": Lognormal(20.0, 0.0),
    "terminate_s": Lognormal(30.0, 0.0),
    "lag_s": 0.0,
}


class Bench(OciWire):
    """The skin with a small adapter of its own; world time goes by when the test says so."""

    def __init__(self, runner: asyncio.Runner, level: int, **over: Any) -> None:
        self.run = runner.run
        super().__init__(runner, level, **{**CALM, **over})

    async def listed(self, cell: str = "cell") -> list[Instance]:
        """The whole listing of a cell."""
        return [i async for i in self.provider.list(Owner(cell))]

    def sdk(self, work: Callable[[Clients], Any], path: str = f"/oci/{REGION}") -> Any:
        """What the SDK's clients give, called in a thread as the adapter does."""
        access = Access(TENANCY, "", "DEFAULT", False, self.url + path, True, True, 4, (5.0, 10.0))

        async def main() -> Any:
            clients = (await asyncio.to_thread(connect, access, [REGION]))[REGION]
            try:
                return await asyncio.to_thread(work, clients)
            finally:
                clients.close()

        return self.run(main())

"""The demo's stage: four simulated clouds, one real daemon between them, and real wires.

Invariant: what plays here is what runs in production, assembled by the same function; only the
clouds' insides, the agents and the speed of the clock are made up. Everything that the stage
opens (threads, sockets, files) is gone after ``aclose``.

Every cloud is reached by its own SDK (``demo_real``) over HTTP on one loopback port; one whose SDK
is not installed is a FakeCloud in this process.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from fleet.api.asgi import AgentApp
from fleet.api.serve import Listener, bind_tcp
from fleet.clock import SeededChance, VirtualClock
from fleet.config import HttpLimits, Settings
from fleet.daemon import Daemon, assemble
from fleet.model import Market, Need, Owner
from fleet.sim.demo_eye import SeenDoor, SeenView, Stopwatch
from fleet.sim.demo_real import PATIENCE_S, Real, installed
from fleet.sim.fakecloud import FakeCloud
from fleet.sim.nodes import Nodes
from fleet.sim.spec import Lognormal, OfferSpec, WorldSpec, cloud_spec
from fleet.sim.transport import DirectTransport, HttpTransport, Transport
from fleet.sim.trial import image
from fleet.sim.wire.serve import Dispatcher, WireServer
from fleet.sim.world import World
from fleet.store import apply, schema
from fleet.store.door import Store
from policies.schema import Pool
from providers import registry
from providers.base import Provider
from providers.catalog import catalog
from providers.pool import BlockingPool

#: The world begins on a Friday morning (2027-01-15 08:00 UTC).
EPOCH: Final = 1_800_000_000.0
POOL, NODES, SPARES = "train", 32, 4
#: Launches of one create call: a big order is divided among the clouds rather than lost at one.
BATCH: Final = 8
#: VMs of these worlds boot in two to four minutes; bare metal takes longer.
BOOT_LIMIT_S: Final = 300.0
METAL_LIMIT_S: Final = 720.0
QUARANTINE_S: Final = 600.0


@dataclass
class Dial:
    """A capacity that the script turns."""

    count: int
    step_s: float = 0.0

    def level(self, _t: float) -> int:
        """What it is set to."""
        return self.count


@dataclass(frozen=True, slots=True)
class Place:
    """One offer of the demo; the price comes from the catalogue. ``first`` is its capacity while
    the pool is filled.
    """

    kind: str
    region: str
    zone: str
    zone_id: str
    instance_type: str
    market: Market
    first: int

    @property
    def price_usd_hour(self) -> float:
        """The catalogue's list price of one instance here."""
        need = Need("H100", 8, frozenset({self.market}))
        zones = {self.region: {self.zone: self.zone_id}}
        return next(
            o.price_usd_hour
            for o in catalog().offers(self.kind, need, [self.region], zones=zones)
            if o.instance_type == self.instance_type and o.price_usd_hour is not None
        )


#: Cheapest first, as a pool would name them. The first two hold less than is asked of them.
PLACES: Final = {
    "spot": Place("aws", "us-east-1", "us-east-1e", "use1-az5", "p5.48xlarge", Market.SPOT, 6),
    "aws": Place("aws", "us-east-1", "us-east-1a", "use1-az1", "p5.48xlarge",
                 Market.ON_DEMAND, 7),
    "oci": Place("oci", "us-phoenix-1", "PHX-AD-1", "PHX-AD-1", "BM.GPU.H100.8",
                 Market.ON_DEMAND, 11),
    "gcp": Place("gcp", "us-central1", "us-central1-a", "", "a3-highgpu-8g",
                 Market.ON_DEMAND, 16),
    "azure": Place("azure", "eastus", "1", "", "Standard_ND96isr_H100_v5",
                   Market.ON_DEMAND, 24),
}  # fmt: skip

#: Boot times with less spread than in life, so that the acts keep their length.
_NATURE: Final[Mapping[str, Mapping[str, Any]]] = {
    "aws": {"boot_s": Lognormal(130.0, 0.15)},
    "oci": {"boot_s": Lognormal(210.0, 0.15), "pending_s": Lognormal(60.0, 0.2), "buckets": {}},
    "gcp": {"boot_s": Lognormal(95.0, 0.15), "pending_s": Lognormal(15.0, 0.0), "lag_s": 1.0,
            "buckets": {}},
    "azure": {"boot_s": Lognormal(150.0, 0.15), "pending_s": Lognormal(45.0, 0.2), "buckets": {}},
}  # fmt: skip


def clouds_of(dials: Mapping[str, Dial]) -> WorldSpec:
    """Four clouds that sell the demo's places at the catalogue's prices."""
    specs = []
    for kind, nature in _NATURE.items():
        offers = tuple(
            OfferSpec(p.region, p.zone, p.instance_type, "H100", 8, p.price_usd_hour, p.market,
                      "", dials[name])
            for name, p in PLACES.items() if p.kind == kind
        )  # fmt: skip
        specs.append(cloud_spec(kind, offers, **nature))
    return WorldSpec(tuple(specs))


def pool_of() -> Pool:
    """The pool as an operator would write it: 32 nodes of 8 H100 and 4 spares."""
    offers = [
        {"provider": p.kind, "region": p.region, "zone": p.zone, "type": p.instance_type,
         "market": str(p.market), "price_usd_hour": p.price_usd_hour}
        for p in PLACES.values()
    ]  # fmt: skip
    return Pool.model_validate(
        {
            "apiVersion": "fleetd/v1", "kind": "Pool", "metadata": {"name": POOL},
            "spec": {
                "gpu": "H100", "gpus_per_node": 8, "nodes": NODES, "spares": SPARES,
                "image": "gpu-base@v1", "offers": offers,
                "quarantine": {"max": 1, "for_s": QUARANTINE_S},
                "deadlines": {"boot_s": BOOT_LIMIT_S, "bare_metal": {"boot_s": METAL_LIMIT_S}},
            },
        }
    )  # fmt: skip


def zones_of(kind: str) -> Mapping[str, Mapping[str, str]]:
    """Region to zone to zone id of what the demo buys at one cloud."""
    found: dict[str, dict[str, str]] = {}
    for p in PLACES.values():
        if p.kind == kind:
            found.setdefault(p.region, {})[p.zone] = p.zone_id
    return found


class _Well:
    """Health of a stage: it stands."""

    async def ready(self) -> str:
        """Always."""
        return ""


@dataclass
class Stage:
    """Everything that plays, on the running loop. ``real`` False keeps to this process: no
    sockets, no threads and no files, as the virtual loop wants it.
    """

    seed: int
    speed: float
    real: bool = True
    store: Store = field(init=False)
    world: World = field(init=False)
    daemon: Daemon = field(init=False)
    nodes: Nodes = field(init=False)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.clock = VirtualClock(loop, EPOCH - loop.time())
        self.dials = {name: Dial(p.first) for name, p in PLACES.items()}
        self.spec = clouds_of(self.dials)
        self.watch = Stopwatch(loop.time, self.speed)
        self._folder: Path | None = None
        self._wire: WireServer | None = None
        self._agents: Listener | None = None
        self._opened: list[Callable[[], Any]] = []
        self.sdks: Mapping[str, Real] = installed() if self.real else {}

    @property
    def clouds(self) -> tuple[str, ...]:
        """The clouds by name, in the order in which they are shown."""
        return tuple(c.name for c in self.spec.clouds)

    def now(self) -> float:
        """World time, seconds since the Unix epoch."""
        return self.clock.now()

    async def load(self) -> None:
        """Import the SDKs in a thread, where they take seconds and keep nobody from leaving."""
        pool = BlockingPool("demo-load", 1)
        self._opened.append(pool.close)
        for sdk in self.sdks.values():
            loading = asyncio.ensure_future(pool.run(sdk.load))
            # An import must not be under way when the interpreter goes.
            self._opened.append(partial(asyncio.wait, [loading]))
            await asyncio.shield(loading)

    async def start(self) -> None:
        """Open everything; on an error what was opened is closed by ``aclose``."""
        self.world = World(self.clock.now, SeededChance(f"demo world {self.seed}"), self.spec)
        self.store = Store(self._store_url())
        self._opened.append(self.store.close)
        schema.upgrade(self.store)
        policies = (image(self.spec), pool_of())
        now = self.now()
        self.store.call(lambda tx: apply.apply(tx, policies, actor="user:demo", now=now))
        self.world.start()
        self._opened.append(self.world.stop)
        providers = await self._providers()
        sock = bind_tcp("127.0.0.1", 0, "agents") if self.real else None
        url = f"http://127.0.0.1:{sock.getsockname()[1]}" if sock else "http://fleetd.test"
        settings = Settings(**dict[str, Any](cell="demo", limits={"batch": BATCH}))
        self.daemon = assemble(
            settings, self.store, self.clock, SeededChance(f"demo daemon {self.seed}"),
            providers, b"d" * 32, url,
        )  # fmt: skip
        self.daemon.cell.view = SeenView(self.watch)
        self._opened.append(self.daemon.stop)
        door = SeenDoor(self.daemon.agent_door, self.watch)
        transport: Transport = DirectTransport(door)
        if sock is not None:
            await self._listen(sock, door)
            transport = HttpTransport(url, timeout_s=PATIENCE_S * self.speed)
        self.nodes = Nodes(self.world, transport, SeededChance(f"demo nodes {self.seed}"))
        self._opened.append(self.nodes.aclose)
        await self.daemon.start()

    def _store_url(self) -> str:
        if not self.real:
            return "sqlite:///:memory:"
        self._folder = Path(tempfile.mkdtemp(prefix="fleetd-demo-"))
        return f"sqlite:///{self._folder / 'fleetd.db'}"

    async def _providers(self) -> dict[str, Provider]:
        """Each cloud by its SDK where there is one, else as a FakeCloud."""
        if not self.real:
            return {c.name: FakeCloud(self.world, c.name) for c in self.spec.clouds}
        skins = Dispatcher()
        for c in self.spec.clouds:
            if c.kind in self.sdks:
                chance = SeededChance(f"demo {c.name} {self.seed}")
                skin = self.sdks[c.kind].skin(self.world, chance, c.name)
                for prefix in self.sdks[c.kind].prefixes:
                    skins.add(prefix, skin)
        self._wire = WireServer(skins)
        await self._wire.start()
        self._opened.append(self._wire.aclose)
        providers: dict[str, Provider] = {}
        for c in self.spec.clouds:
            if c.kind not in self.sdks:
                providers[c.name] = FakeCloud(self.world, c.name)
                continue
            raw = self.sdks[c.kind].settings(zones_of(c.kind), self._wire.url, self.speed)
            settings = registry.parse({"kind": c.kind, "name": c.name, **raw})
            chance = SeededChance(f"demo provider {c.name} {self.seed}")
            providers[c.name] = registry.open_provider(settings, clock=self.clock, chance=chance)
            self._opened.append(providers[c.name].aclose)
            async for _ in providers[c.name].list(Owner("demo")):  # the SDK's clients are made now
                pass
        return providers

    async def _listen(self, sock: Any, door: SeenDoor) -> None:
        """The daemon's own listener for agents, with its deadlines in real time."""
        cell, base = self.daemon.cell, HttpLimits()
        names = ("header_s", "body_s", "write_s", "idle_s")
        limits = base.model_copy(update={k: getattr(base, k) * self.speed for k in names})
        app = AgentApp(
            door, _Well(), names=("127.0.0.1",), refused=cell.count_refused,
            body_bytes=lambda: cell.settings.limits.body_bytes,
        )  # fmt: skip
        self._agents = Listener("agents", app, sock, limits, refused=cell.count_refused,
                                per_address=256)  # fmt: skip
        await self._agents.start()
        self._opened.append(self._agents.aclose)

    async def aclose(self) -> None:
        """End all, newest first; one that cannot end does not keep the others."""
        for close in reversed(self._opened):
            try:
                result = close()
                if asyncio.iscoroutine(result):
                    await result
            except Exception as error:  # noqa: BLE001 — the rest must be closed all the same
                self.watch.errors.append(f"{type(error).__name__}: {error}")
        self._opened.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

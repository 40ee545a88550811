"""Harnesses: one cloud each, as the contract suite sees it.

A new provider gets the whole suite by adding a harness to ``HARNESSES``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import LoopClock, SeededChance, VirtualClock, VirtualLoop
from fleet.model import Instance, LaunchSpec, Market, Offer, Owner
from fleet.sim.fakecloud import FakeCloud
from fleet.sim.faults import Injection, Kind
from fleet.sim.spec import Lognormal, OfferSpec, Steady, WorldSpec, cloud_spec
from fleet.sim.wire.ec2 import Ec2App
from fleet.sim.wire.serve import WireServer
from fleet.sim.world import World
from providers import aws
from providers.base import TAG_IMAGE, TAG_TOKEN, Provider
from providers.ec2 import Region

# so that the suites of this folder share canned_ec2.py in every import mode of pytest
sys.path.insert(0, str(Path(__file__).parent))

REGION, ZONE = "us-east-1", "us-east-1a"
TYPE = "p5.48xlarge"
IMAGE = "ami-0123456789abcdef0"


class Harness:
    """What the suite needs of a cloud under test."""

    name: str
    #: What this cloud can be made to do: tokens, faults, time, capacity.
    can: frozenset[str]
    #: The adapter itself, without its wrapping.
    provider: Provider
    #: How many instances the paging test makes.
    many: int

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop that this cloud lives on."""
        return self._runner.run(work)

    async def pass_time(self, seconds: float) -> None:
        """Let time go by in the cloud (at once, where its time is ours to give)."""
        raise NotImplementedError

    def inject(self, kind: str, seconds: float, value: float = 0.0) -> None:
        """Break something for a while; ``kind`` is a ``fleet.sim.faults.Kind``."""
        raise NotImplementedError

    def count(self, token: str) -> int:
        """How many instances under ``token`` really exist, whatever lists say."""
        raise NotImplementedError

    def offer(self) -> Offer:
        """Something this cloud sells."""
        raise NotImplementedError

    def spec(self, token: str, count: int = 1, cell: str = "cell", **over: Any) -> LaunchSpec:
        """A launch of ``count`` instances under ``token``."""
        values: dict[str, Any] = {
            "token": token,
            "offer": self.offer(),
            "count": count,
            "image_id": IMAGE,
            "user_data": "#cloud-config\n",
            "tags": {TAG_IMAGE: "base@1.0.0"},
            "pool": "train",
            "cell": cell,
        }
        return LaunchSpec(**values | over)

    async def listed(self, cell: str = "cell") -> list[Instance]:
        """The whole listing of a cell."""
        return [i async for i in self.provider.list(Owner(cell))]

    async def settled(self, cell: str, done: Callable[[list[Instance]], bool]) -> list[Instance]:
        """The listing once it is as ``done`` wants it; the last one when it never is."""
        found = await self.listed(cell)
        for _ in range(60):
            if done(found):
                break
            await self.pass_time(10)
            found = await self.listed(cell)
        return found


# -- the simulated world -----------------------------------------------------------------------


def world_spec(kind: str, level: int, **over: Any) -> WorldSpec:
    """One cloud that sells ``level`` machines of one type, as spot and on demand."""
    offers = tuple(
        OfferSpec(REGION, ZONE, TYPE, "H100", 8, 50.0, market, "", Steady(level))
        for market in (Market.ON_DEMAND, Market.SPOT)
    )
    return WorldSpec((cloud_spec(kind, offers, name=kind, buckets={}, **over),))


class FakeHarness(Harness):
    """FakeCloud on virtual time."""

    can = frozenset({"tokens", "faults", "time", "capacity"})
    many = 2500

    def __init__(self, runner: asyncio.Runner, kind: str, level: int) -> None:
        super().__init__(runner)
        self.name, self._kind = f"fake-{kind}", kind
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        clock = VirtualClock(loop)
        self.provider: Provider = self.run(self._open(clock, level))

    async def _open(self, clock: VirtualClock, level: int) -> Provider:
        self._world = World(clock.now, SeededChance(7), world_spec(self._kind, level))
        return FakeCloud(self._world, self._kind)

    async def pass_time(self, seconds: float) -> None:
        """Virtual seconds."""
        await asyncio.sleep(seconds)

    def inject(self, kind: str, seconds: float, value: float = 0.0) -> None:
        """A fault in the world, from now."""
        self._world.inject(Injection(Kind(kind), 0.0, seconds, value=value))

    def count(self, token: str) -> int:
        """What the world holds."""
        return sum(1 for _ in self._world.existing(token=token))

    def offer(self) -> Offer:
        """The world's one type."""
        return Offer(self._kind, REGION, ZONE, TYPE, Market.ON_DEMAND, "H100", 8, 50.0)


# -- moto: an emulator nobody here wrote -------------------------------------------------------


def aws_settings(url: str, **over: Any) -> aws.Settings:
    """An AWS account at a local endpoint."""
    values: dict[str, Any] = {
        "regions": {REGION: Region()},
        "endpoint_url": url,
        "emulator_credentials": True,
    }
    return aws.Settings(**values | over)


class MotoAws(aws.Aws):
    """moto launches MinCount instances where EC2 launches up to MaxCount: ask it for all."""

    def _connect(self) -> dict[str, Any]:
        clients = super()._connect()
        for client in clients.values():
            client.meta.events.register("provide-client-params.ec2.RunInstances", _all_or_nothing)
        return clients


def _all_or_nothing(params: dict[str, Any], **_: Any) -> None:
    params["MinCount"] = params["MaxCount"]


class MotoHarness(Harness):
    """The EC2 adapter on moto's server. It knows no tokens, no time and no faults."""

    name = "aws-moto"
    can: frozenset[str] = frozenset()
    many = 120

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        super().__init__(runner)
        # moto pages reservations, not instances: five of them a page
        self.provider: Provider = MotoAws(aws_settings(url, page_size=5), LoopClock())

    async def pass_time(self, seconds: float) -> None:
        """Instances of moto change state at once."""

    def inject(self, kind: str, seconds: float, value: float = 0.0) -> None:
        """Nothing breaks on request here."""
        raise AssertionError(kind)

    def count(self, token: str) -> int:
        """What moto's own memory holds."""
        from moto.ec2.models import ec2_backends

        backend = ec2_backends["123456789012"][REGION]
        return sum(
            1
            for reservation in backend.all_reservations()
            for i in reservation.instances
            if i.state != "terminated"
            and any(t["key"] == TAG_TOKEN and t["value"] == token for t in i.get_tags())
        )

    def offer(self) -> Offer:
        """Everything is sold here."""
        return Offer("aws", REGION, ZONE, TYPE, Market.ON_DEMAND, "H100", 8)


# -- the wire skin: real boto3 against our own world -------------------------------------------


class WireHarness(Harness):
    """The EC2 adapter on the wire skin. Its world's time is the loop's and what we add to it."""

    name = "aws-wire"
    can = frozenset({"tokens", "faults", "time", "capacity"})
    many = 2500

    def __init__(self, runner: asyncio.Runner, level: int) -> None:
        super().__init__(runner)
        self._added_s = 0.0
        self.run(self._open(level))

    async def _open(self, level: int) -> None:
        loop = asyncio.get_running_loop()
        spec = world_spec("aws", level, latency_s=Lognormal(1e-4))
        self._world = World(lambda: 1.8e9 + loop.time() + self._added_s, SeededChance(7), spec)
        self._server = WireServer(Ec2App(self._world, SeededChance(8)))
        await self._server.start()
        self.provider = aws.Aws(aws_settings(self._server.url), LoopClock())

    def close(self) -> None:
        """Close the adapter and the server."""
        self.run(self.provider.aclose())
        self.run(self._server.aclose())

    async def pass_time(self, seconds: float) -> None:
        """The world's clock jumps: it runs what has become due with the next call."""
        self._added_s += seconds

    def inject(self, kind: str, seconds: float, value: float = 0.0) -> None:
        """A fault in the world, from now."""
        self._world.inject(Injection(Kind(kind), 0.0, seconds, value=value))

    def count(self, token: str) -> int:
        """What the world holds."""
        return sum(1 for _ in self._world.existing(token=token))

    def offer(self) -> Offer:
        """The world's one type."""
        return Offer("aws", REGION, ZONE, TYPE, Market.ON_DEMAND, "H100", 8, 50.0)


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """One moto server for the session, on loopback."""
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


# -- the list of all ---------------------------------------------------------------------------

Make = Callable[[int], Harness]


@contextmanager
def fake(request: pytest.FixtureRequest, kind: str) -> Iterator[Make]:
    """A FakeCloud of one kind."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield lambda level: FakeHarness(runner, kind, level)


@contextmanager
def moto(request: pytest.FixtureRequest, kind: str) -> Iterator[Make]:
    """AWS on moto; capacity has no end there."""
    with asyncio.Runner() as runner:
        harness = MotoHarness(runner, request.getfixturevalue("moto_url"))
        yield lambda _: harness
        runner.run(harness.provider.aclose())


@contextmanager
def wire(_: pytest.FixtureRequest, kind: str) -> Iterator[Make]:
    """AWS on the wire skin."""
    made: list[WireHarness] = []
    with asyncio.Runner() as runner:

        def make(level: int) -> Harness:
            made.append(WireHarness(runner, level))
            return made[-1]

        yield make
        for harness in made:
            harness.close()


@contextmanager
def wire_gcp(_: pytest.FixtureRequest, kind: str) -> Iterator[Make]:
    """Google on the wire skin."""
    from wire_gcp import gcp_wire

    with gcp_wire(Harness) as make:
        yield make


def azure_on_wire(request: pytest.FixtureRequest, kind: str) -> Any:
    """Azure on the wire skin; its module is loaded by the tests that ask for it."""
    from wire_azure import azure_wire

    return azure_wire(request, kind)


@contextmanager
def wire_oci(_: pytest.FixtureRequest, kind: str) -> Iterator[Make]:
    """Oracle on the wire skin."""
    from wire_oci import oci_wire

    with oci_wire(Harness) as make:
        yield make


HARNESSES: dict[str, tuple[Any, str]] = {
    "fake-aws": (fake, "aws"),
    "fake-gcp": (fake, "gcp"),
    "fake-azure": (fake, "azure"),
    "fake-oci": (fake, "oci"),
    "aws-moto": (moto, "aws"),
    "aws-wire": (wire, "aws"),
    "azure-wire": (azure_on_wire, "azure"),
    "gcp-wire": (wire_gcp, "gcp"),
    "oci-wire": (wire_oci, "oci"),
}


@pytest.fixture(params=HARNESSES)
def made(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes the harness of one provider with so many machines to sell."""
    open_, kind = HARNESSES[request.param]
    with open_(request, kind) as make:
        yield make


@pytest.fixture
def h(made: Make) -> Harness:
    """A harness whose cloud has plenty to sell."""
    return made(10_000)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No test on canned answers leaves threads to the next."""
    yield
    canned = sys.modules.get("canned_ec2")
    while canned and canned.Canned.opened:
        asyncio.run(canned.Canned.opened.pop().aclose())

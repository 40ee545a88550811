"""The Azure adapter on its wire skin, as the contract suite and the Azure tests use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from fleet.clock import LoopClock, SeededChance
from fleet.errors import ProviderError
from fleet.model import Instance, LaunchSpec, Market, Offer, Owner
from fleet.sim.faults import Injection, Kind
from fleet.sim.spec import Lognormal, OfferSpec, Steady, WorldSpec, cloud_spec
from fleet.sim.wire.asgi import Answer, Receive, Scope, Send, headers_of, read_body, send_answer
from fleet.sim.wire.azure import AzureApp
from fleet.sim.wire.serve import Dispatcher, WireServer
from fleet.sim.world import World
from providers import azure
from providers.arm.vm import Region
from providers.base import TAG_IMAGE, Provider

SUBSCRIPTION, GROUP = "00000000-0000-0000-0000-0000000000aa", "fleetd-test"
REGION, ZONE, OTHER, TYPE = "eastus", "1", "2", "Standard_ND96isr_H100_v5"
_IN_GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers"
IMAGE = f"{_IN_GROUP}/Microsoft.Compute/galleries/g/images/base/versions/1.0.0"
SUBNET = f"{_IN_GROUP}/Microsoft.Network/virtualNetworks/net/subnets/nodes"


def azure_settings(url: str, **over: Any) -> azure.Settings:
    """A resource group at a local endpoint; create calls do not wait for fast failures."""
    values: dict[str, Any] = {
        "subscription": SUBSCRIPTION,
        "resource_group": GROUP,
        "regions": {REGION: Region(subnet=SUBNET, zones=[ZONE, OTHER])},
        "ssh_public_key": "ssh-ed25519 AAAA emulator",
        "endpoint_url": url,
        "emulator_credentials": True,
        "confirm_s": 0.0,
    }
    return azure.Settings(**values | over)


def azure_world(level: int, other: int = 0, **over: Any) -> WorldSpec:
    """One cloud with ``level`` machines in one zone and ``other`` in the next, in both markets."""
    offers = tuple(
        OfferSpec(REGION, zone, TYPE, "H100", 8, 50.0, market, "", Steady(n))
        for zone, n in ((ZONE, level), (OTHER, other))
        for market in (Market.ON_DEMAND, Market.SPOT)
    )
    values: dict[str, Any] = {"buckets": {}, "latency_s": Lognormal(1e-4), "name": "azure"}
    return WorldSpec((cloud_spec("azure", offers, **values | over),))


def offer(zone: str = ZONE, market: Market = Market.ON_DEMAND) -> Offer:
    """The world's one type."""
    return Offer("azure", REGION, zone, TYPE, market, "H100", 8, 50.0)


def launch(token: str, count: int = 1, cell: str = "cell", **over: Any) -> LaunchSpec:
    """A launch of ``count`` VMs under ``token``."""
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


class AzureWire:
    """A world, the skin on a port, and the adapter. Its time is the loop's and what we add."""

    name = "azure-wire"
    can = frozenset({"tokens", "faults", "time", "capacity"})
    many = 2500
    provider: Provider

    def __init__(self, runner: asyncio.Runner, level: int, *, settings: Any = None,
                 **over: Any) -> None:  # fmt: skip
        self._runner = runner
        self._added_s = 0.0
        self._settings = settings or {}
        self.run(self._open(level, over))

    async def _open(self, level: int, over: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        spec = azure_world(level, **over)
        self.world = World(lambda: 1.8e9 + loop.time() + self._added_s, SeededChance(7), spec)
        self.app = AzureApp(self.world, SeededChance(8))
        dispatcher = Dispatcher()
        dispatcher.add("/subscriptions", self.app)
        self.server = WireServer(dispatcher)
        await self.server.start()
        self.provider = self.adapter()

    def adapter(self) -> azure.Azure:
        """Another process's adapter of the same account."""
        return azure.Azure(azure_settings(self.server.url, **self._settings), LoopClock())

    def close(self) -> None:
        """Close the adapter and the server."""
        self.run(self.provider.aclose())
        self.run(self.server.aclose())

    def run(self, work: Any) -> Any:
        """Run a coroutine on the loop that this cloud lives on."""
        return self._runner.run(work)

    async def pass_time(self, seconds: float) -> None:
        """The world's clock jumps: it runs what has become due with the next call."""
        self._added_s += seconds

    def inject(self, kind: str, seconds: float, value: float = 0.0, **where: Any) -> None:
        """A fault in the world, from now."""
        self.world.inject(Injection(Kind(kind), 0.0, seconds, value=value, **where))

    def count(self, token: str) -> int:
        """What the world holds."""
        return sum(1 for _ in self.world.existing(token=token))

    def offer(self) -> Offer:
        """The world's one type."""
        return offer()

    def spec(self, token: str, count: int = 1, cell: str = "cell", **over: Any) -> LaunchSpec:
        """A launch of ``count`` VMs under ``token``."""
        return launch(token, count, cell, **over)

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


@contextmanager
def azure_wire(_: object, kind: str) -> Iterator[Callable[[int], AzureWire]]:
    """Azure on the wire skin."""
    made: list[AzureWire] = []
    with asyncio.Runner() as runner:

        def make(level: int, **over: Any) -> AzureWire:
            made.append(AzureWire(runner, level, **over))
            return made[-1]

        yield make
        for harness in made:
            harness.close()


class JumpClock(LoopClock):
    """A sleep takes no time here and all of it in the world."""

    def __init__(self, wire: AzureWire) -> None:
        super().__init__()
        self._wire = wire
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """The world's clock jumps."""
        self.slept.append(seconds)
        await self._wire.pass_time(seconds)


# -- answers out of a can ----------------------------------------------------------------------

Said = tuple[int, Any, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The JSON body."""
        return json.loads(self.raw)

    @property
    def name(self) -> str:
        """The path's last part."""
        return self.path.rsplit("/", 1)[1]


def refusal(
    code: str, message: str = "words of the vendor", status: int = 409, **more: Any
) -> Said:
    """An error document; ``headers`` are the answer's."""
    headers = more.pop("headers", {})
    return status, {"error": {"code": code, "message": message, **more}}, headers


class Canned:
    """A server that says what a script says, and the adapter on it."""

    def __init__(self, script: Callable[[Asked], Said], **over: Any) -> None:
        self._script, self._over = script, over
        self.asked: list[Asked] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request as the script wants it."""
        raw = await read_body(receive)
        query = scope["query_string"].decode()
        asked = Asked(scope["method"], scope["path"], query, headers_of(scope), raw)
        self.asked.append(asked)
        status, body, headers = self._script(asked)
        text = body if isinstance(body, str) else json.dumps(body)
        head = {"content-type": "application/json", **headers}
        await send_answer(send, Answer(status, text.encode(), head))

    def run(self, work: Callable[[azure.Azure], Any]) -> Any:
        """What ``work`` returns with an adapter on this server."""

        async def main() -> Any:
            async with WireServer(self) as server:
                provider = azure.Azure(azure_settings(server.url, **self._over), LoopClock())
                try:
                    return await work(provider)
                finally:
                    await provider.aclose()

        return asyncio.run(main())

    def error(self, work: Callable[[azure.Azure], Any]) -> ProviderError:
        """The error that ``work`` ends in."""

        async def catch(provider: azure.Azure) -> ProviderError:
            with pytest.raises(ProviderError) as caught:
                await work(provider)
            return caught.value

        found = self.run(catch)
        assert isinstance(found, ProviderError)
        return found


async def everything(provider: azure.Azure, cell: str = "cell") -> list[Instance]:
    """The whole list."""
    return [i async for i in provider.list(Owner(cell))]

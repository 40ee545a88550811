"""The clouds that ``fleetd emulate`` shows to strangers: what they sell, and their skins.

Invariant: a skin's SDK is loaded by the first request to its cloud, in a thread, never before: the
emulator is ready at once, and a cloud whose extra is not installed says so instead of failing the
others. Types, regions and zones are real ones; which zone really has which type is not known here,
so every zone sells everything.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from fleet.clock import SeededChance
from fleet.model import Market, Need
from fleet.sim.spec import CloudSpec, OfferSpec, Steady, WorldSpec, cloud_spec
from fleet.sim.wire.asgi import Answer, App, Receive, Scope, Send, send_answer
from fleet.sim.wire.azure import AzureApp
from fleet.sim.wire.ec2 import Ec2App
from fleet.sim.wire.gcp import GcpApp
from fleet.sim.wire.oci import OciApp
from fleet.sim.wire.serve import Dispatcher
from fleet.sim.world import World
from providers.catalog import Catalog, catalog, sells_spot
from providers.pool import BlockingPool

#: The GPUs of clouds.md section 6; older ones are left out.
GPUS: Final = frozenset(
    {"H100", "H200", "B200", "GB200", "B300", "A100-40GB", "A100-80GB", "A10", "A10G", "L4", "L40S"}
)

#: Kind of cloud to region to its zones.
PLACES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "aws": {
        "us-east-1": tuple(f"us-east-1{z}" for z in "abcdef"),
        "us-west-2": tuple(f"us-west-2{z}" for z in "abcd"),
    },
    "gcp": {
        "us-central1": tuple(f"us-central1-{z}" for z in "abcf"),
        "europe-west4": tuple(f"europe-west4-{z}" for z in "abc"),
    },
    "azure": {"eastus": ("1", "2", "3"), "westeurope": ("1", "2", "3")},
    "oci": {
        "us-ashburn-1": tuple(f"US-ASHBURN-AD-{n}" for n in (1, 2, 3)),
        "us-phoenix-1": tuple(f"PHX-AD-{n}" for n in (1, 2, 3)),
        "us-chicago-1": tuple(f"US-CHICAGO-1-AD-{n}" for n in (1, 2, 3)),
    },
}

PROJECT: Final = "fleetd-emulator"
SUBSCRIPTION: Final = "00000000-0000-0000-0000-00000000f1ee"
GROUP: Final = "fleetd"
TENANCY: Final = "ocid1.tenancy.oc1..emulator"
COMPARTMENT: Final = "ocid1.compartment.oc1..emulator"
_IN_GROUP: Final = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers"

#: The one image that each cloud has, good in all its regions.
IMAGES: Final[Mapping[str, str]] = {
    "aws": "ami-0123456789abcdef0",
    "gcp": f"projects/{PROJECT}/global/images/gpu-base-v1",
    "azure": f"{_IN_GROUP}/Microsoft.Compute/galleries/fleetd/images/gpu-base/versions/1.0.0",
    "oci": "ocid1.image.oc1..gpu-base-v1",
}
NETWORKS: Final[Mapping[str, str]] = {
    "aws": "subnet-0123456789abcdef0",
    "gcp": f"projects/{PROJECT}/global/networks/default",
    "azure": f"{_IN_GROUP}/Microsoft.Network/virtualNetworks/fleetd/subnets/nodes",
    "oci": "ocid1.subnet.oc1..nodes",
}
#: Examples: every account of the right form is taken.
ACCOUNTS: Final[Mapping[str, Mapping[str, str]]] = {
    "aws": {"access_key_id": "emulator", "secret_access_key": "emulator"},
    "gcp": {"project": PROJECT},
    "azure": {"subscription": SUBSCRIPTION, "resource_group": GROUP},
    "oci": {"tenancy": TENANCY, "compartment": COMPARTMENT, "user": "ocid1.user.oc1..emulator"},
}


def world_spec(level: int) -> WorldSpec:
    """All clouds; each offer can hold ``level`` instances."""
    return WorldSpec(tuple(_cloud(kind, level, catalog()) for kind in PLACES))


def _cloud(kind: str, level: int, known: Catalog) -> CloudSpec:
    offers: list[OfferSpec] = []
    for region, zones in PLACES[kind].items():
        prices = _prices(kind, region, known)
        for t in known.types(kind).values():
            markets = [Market.ON_DEMAND, *([Market.SPOT] if sells_spot(kind, t.name) else [])]
            offers += [
                OfferSpec(region, zone, t.name, t.gpu, t.gpus,
                          prices.get((t.name, market), 0.0), market, "", Steady(level))
                for zone in zones
                for market in markets
                if t.gpu in GPUS
            ]  # fmt: skip
    return cloud_spec(kind, tuple(offers), images=frozenset({IMAGES[kind]}))


def _prices(kind: str, region: str, known: Catalog) -> dict[tuple[str, Market], float]:
    """The table's list prices in a region, or anywhere when it does not know the region."""
    places = [region] if region in known.regions(kind) else sorted(known.regions(kind))
    found: dict[tuple[str, Market], float] = {}
    for o in known.offers(kind, Need("", 0, frozenset(Market)), places):
        if o.price_usd_hour is not None:
            found.setdefault((o.instance_type, o.market), o.price_usd_hour)
    return found


def skins(world: World, seed: int) -> Dispatcher:
    """All four clouds of ``world`` on one port."""

    def late(kind: str, sdk: tuple[str, ...], make: Callable[[], App]) -> Late:
        return Late(kind, sdk, make)

    def chance(kind: str) -> SeededChance:
        return SeededChance(f"wire {kind} {seed}")

    dispatcher = Dispatcher()
    dispatcher.add("/", late("aws", ("botocore.session",), lambda: Ec2App(world, chance("aws"))))
    google = late("gcp", ("google.cloud.compute_v1",), lambda: GcpApp(world, chance("gcp")))
    dispatcher.add("/compute/v1/", google)
    azure = ("azure.mgmt.compute.models", "azure.mgmt.compute.types")
    dispatcher.add("/subscriptions", late("azure", azure, lambda: AzureApp(world, chance("azure"))))
    core = ("oci.core.models", "oci.work_requests.models", "oci.identity.models", "oci.base_client")
    oracle = late("oci", core, lambda: OciApp(world, chance("oci")))
    dispatcher.add("/20160918/", oracle)
    dispatcher.add("/oci/", oracle)
    return dispatcher


class Late:
    """A skin that is made by its first request."""

    def __init__(self, kind: str, sdk: tuple[str, ...], make: Callable[[], App]) -> None:
        self._kind, self._sdk, self._make = kind, sdk, make
        self._app: App | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or 501 where the cloud's SDK is not installed."""
        try:
            app = self._app or await self._made()
        except ImportError as e:
            text = f"{e}; this emulator needs: pip install 'fleetd[{self._kind}]'\n"
            await send_answer(send, Answer(501, text.encode()))
            return
        await app(scope, receive, send)

    async def _made(self) -> App:
        async with self._making:
            if self._app is None:
                pool = BlockingPool(f"load-{self._kind}", 1)
                try:
                    await pool.run(lambda: [importlib.import_module(m) for m in self._sdk])
                finally:
                    pool.close()
                self._app = self._make()
            return self._app


def ready(url: str) -> dict[str, Any]:
    """What a program needs to know to use the emulator at ``url``."""
    return {
        "endpoint": url,
        "endpoints": {"aws": url, "gcp": url, "azure": url, "oci": f"{url}/oci/{{region}}"},
        "accounts": {kind: dict(account) for kind, account in ACCOUNTS.items()},
        "images": dict(IMAGES),
        "networks": dict(NETWORKS),
        "zones": {kind: {r: list(z) for r, z in by.items()} for kind, by in PLACES.items()},
    }

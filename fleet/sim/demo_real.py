"""The demo's clouds behind their own SDKs: which skin answers below which path, and the settings.

Invariant: importing this module loads no SDK; ``load`` does (seconds), so it is called in a thread.
A cloud whose SDK is not installed has no entry in ``installed()``; the stage then keeps it in this
process.

Deadlines that the loop keeps are in its seconds, which pass ``speed`` times as fast as ours; those
that an SDK's thread keeps are in ours. Rates and waits of the adapters stay the world's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from fleet.clock import Chance
from fleet.sim.trial import ARTIFACTS
from fleet.sim.wire import gcp, oci
from fleet.sim.wire.asgi import App
from fleet.sim.wire.azure import AzureApp
from fleet.sim.wire.ec2 import Ec2App
from fleet.sim.wire.gcp import GcpApp
from fleet.sim.wire.oci import OciApp
from fleet.sim.world import World
from providers import registry

#: Real seconds in which a call of an SDK or an agent must be answered, however fast time runs.
PATIENCE_S: Final = 20.0
#: Threads of one provider: two cores play the whole demo.
THREADS: Final = 4
#: Region to zone to its id as the price table knows it.
Zones = Mapping[str, Mapping[str, str]]

_GROUP: Final = ARTIFACTS["azure"].partition("/providers/")[0]


@dataclass(frozen=True, slots=True)
class Real:
    """How a cloud is reached by its own SDK: the SDK's name and modules, the paths below which its
    skin answers, and the provider settings that point there (zones, URL, loop seconds per second).
    """

    sdk: str
    modules: tuple[str, ...]
    prefixes: tuple[str, ...]
    skin: Callable[[World, Chance, str], App]
    settings: Callable[[Zones, str, float], Mapping[str, Any]]

    def load(self) -> None:
        """Import all that the adapter and the skin would import with their first call."""
        for module in self.modules:
            importlib.import_module(module)


def _limits(speed: float) -> Mapping[str, float]:
    return {f"{op}_s": PATIENCE_S * speed for op in ("create", "delete", "list", "offers")}


def _aws(zones: Zones, url: str, speed: float) -> Mapping[str, Any]:
    return {
        "regions": {region: {"zones": dict(ids)} for region, ids in zones.items()},
        "endpoint_url": url, "emulator_credentials": True, "max_threads": THREADS,
        "session_max_age_s": 86_400.0, "limits": _limits(speed),
    }  # fmt: skip


def _gcp(zones: Zones, url: str, speed: float) -> Mapping[str, Any]:
    return {
        "project": "fleetd-demo",
        "regions": {region: {"zones": list(ids)} for region, ids in zones.items()},
        "endpoint": url, "emulator_credentials": True, "max_threads": THREADS,
        "timeout_s": PATIENCE_S, "poll_s": 5.0, "limits": _limits(speed),
    }  # fmt: skip


def _azure(zones: Zones, url: str, speed: float) -> Mapping[str, Any]:
    _, _, subscription, _, group = _GROUP.split("/")
    subnet = f"{_GROUP}/providers/Microsoft.Network/virtualNetworks/demo/subnets/nodes"
    return {
        "subscription": subscription, "resource_group": group,
        "regions": {r: {"subnet": subnet, "zones": list(ids)} for r, ids in zones.items()},
        "ssh_public_key": "ssh-ed25519 AAAA demo",
        "endpoint_url": url, "emulator_credentials": True,
        "connect_timeout_s": PATIENCE_S * speed, "read_timeout_s": PATIENCE_S * speed,
        "limits": _limits(speed),
    }  # fmt: skip


def _oci(zones: Zones, url: str, speed: float) -> Mapping[str, Any]:
    def region(ids: Mapping[str, str]) -> Mapping[str, Any]:
        return {"availability_domains": list(ids), "subnet": "ocid1.subnet.oc1..demo"}

    return {
        "tenancy": "ocid1.tenancy.oc1..demo", "compartment": "ocid1.compartment.oc1..demo",
        "regions": {name: region(ids) for name, ids in zones.items()},
        "endpoint": f"{url}{oci.REGION_PREFIX}{{region}}", "emulator_credentials": True,
        "max_threads": THREADS, "read_timeout_s": PATIENCE_S, "limits": _limits(speed),
    }  # fmt: skip


REAL: Final[Mapping[str, Real]] = {
    "aws": Real("boto3", ("boto3", "botocore.session"), ("/",), Ec2App, _aws),
    "gcp": Real("google-cloud-compute", ("google.auth", "google.cloud.compute_v1"),
                (gcp.PREFIX,), GcpApp, _gcp),
    "azure": Real(
        "azure-mgmt-compute",
        ("azure.identity.aio", "azure.mgmt.compute.aio", "azure.mgmt.compute.models",
         "azure.mgmt.compute.types"),
        ("/subscriptions",), AzureApp, _azure,
    ),
    "oci": Real("oci", ("oci", "oci.core.models", "oci.work_requests.models",
                        "oci.identity.models", "oci.base_client"),
                (oci.PREFIX, oci.REGION_PREFIX), OciApp, _oci),
}  # fmt: skip


def installed() -> Mapping[str, Real]:
    """The clouds whose SDK is there."""
    return {kind: real for kind, real in REAL.items() if _there(registry.cloud(kind).SDK)}


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False

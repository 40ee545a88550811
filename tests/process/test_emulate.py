"""``fleetd emulate`` as strangers use it: the examples of docs/emulator.md, on each real SDK."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleetds import ROOT, Emulator, wait_for
from zygote import Zygote

from fleet.clock import LoopClock, SeededChance
from fleet.errors import ImageNotFound, InsufficientCapacity, ProviderError, Throttled
from fleet.model import Instance, LaunchSpec, Market, Offer, Owner, Phase
from fleet.sim.faults import FaultPlan, Kind
from fleet.sim.wire import emulator as shown
from providers import registry
from providers.base import Provider

PAGE = (ROOT / "docs/emulator.md").read_text("utf-8")
EXAMPLES = dict(
    re.findall(r"^### ([^\n]+)\n.*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
)
YAML = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
SPEED = 30.0


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, zygote: Zygote
) -> Iterator[tuple[Emulator, Path]]:
    """One emulator for all examples; its ready file is ``emulator.json`` in the folder."""
    folder = tmp_path_factory.mktemp("emulate")
    made = Emulator(folder, zygote, speed=SPEED)
    yield made, folder
    made.close()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_pages_examples_work(running: tuple[Emulator, Path], name: str) -> None:
    """Launch, running, list, terminate, gone: with boto3, google, azure twice, and oci."""
    env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[name]], cwd=running[1], env=env, capture_output=True,
        text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if "without" not in name:
        assert re.search(r"is running\n.* is gone\n$", done.stdout)


def test_there_is_an_example_for_each_sdk() -> None:
    assert len(EXAMPLES) == 5


def test_the_ready_file_and_what_is_printed(running: tuple[Emulator, Path]) -> None:
    emulator, folder = running
    assert set(emulator.ready) == {
        "endpoint", "endpoints", "accounts", "images", "networks", "zones"
    }  # fmt: skip
    places = emulator.ready["zones"]
    for kind, region in (("aws", "us-east-1"), ("gcp", "us-central1"), ("azure", "eastus"),
                         ("oci", "us-ashburn-1")):  # fmt: skip
        assert len(places[kind][region]) >= 3
    printed = (folder / "emulator.log").read_text()
    assert emulator.url in printed
    assert all(image in printed for image in emulator.ready["images"].values())


#: The GPU types of clouds.md section 6.
TYPES = {
    "aws": "p5.4xlarge p5.48xlarge p5e.48xlarge p5en.48xlarge p6-b200.48xlarge p6e-gb200.36xlarge"
    " p6-b300.48xlarge p4d.24xlarge p4de.24xlarge g5.xlarge g5.48xlarge g6.48xlarge g6e.48xlarge",
    "gcp": "a3-highgpu-1g a3-highgpu-8g a3-megagpu-8g a3-edgegpu-8g a3-ultragpu-8g a4-highgpu-8g"
    " a4x-highgpu-4g a2-highgpu-1g a2-megagpu-16g a2-ultragpu-8g g2-standard-4 g2-standard-96",
    "azure": "NC40ads_H100_v5 NC80adis_H100_v5 ND96isr_H100_v5 ND96isr_H200_v5"
    " ND128isr_NDR_GB200_v6 ND96asr_v4 ND96amsr_A100_v4 NC24ads_A100_v4 NV36ads_A10_v5"
    " NV72ads_A10_v5",
    "oci": "BM.GPU.H100.8 BM.GPU.H200.8 BM.GPU.B200.8 BM.GPU.GB200.4 BM.GPU4.8 BM.GPU.A100-v2.8"
    " VM.GPU.A10.1 VM.GPU.A10.2 BM.GPU.A10.4 BM.GPU.L40S.4",
}


@pytest.mark.parametrize("kind", TYPES)
def test_every_zone_sells_the_gpu_types(kind: str) -> None:
    """On demand, with the table's price where there is one; as spot where the cloud has that."""
    (cloud,) = [c for c in shown.world_spec(5).clouds if c.kind == kind]
    prefix = "Standard_" if kind == "azure" else ""
    for name in TYPES[kind].split():
        for region, zones in shown.PLACES[kind].items():
            sold = {(o.zone, o.market) for o in cloud.offers
                    if (o.region, o.instance_type) == (region, prefix + name)}  # fmt: skip
            assert {(z, Market.ON_DEMAND) for z in zones} <= sold, (name, region)
            assert ((zones[0], Market.SPOT) in sold) is not name.startswith("BM.")
    priced = [o for o in cloud.offers if o.price_usd_hour > 0]
    assert len(priced) > len(cloud.offers) / 3
    assert cloud.images == {shown.IMAGES[kind]}


def test_the_pages_provider_settings_and_faults_are_accepted() -> None:
    faults, fleet = YAML
    assert [registry.parse(raw).name for raw in fleet["providers"]] == [  # type: ignore[attr-defined]
        "aws", "gcp", "azure", "oci",
    ]  # fmt: skip
    assert len(list(FaultPlan.load(faults))) == len(faults["faults"])
    named = set(re.findall(r"`([a-z_]+)`", PAGE.partition("The kinds:")[2].partition("\n\n")[0]))
    assert named == set(Kind)


#: What the providers of docs/emulator.md launch.
WHERE = {
    "aws": ("us-east-1", "us-east-1a", "p5.48xlarge"),
    "gcp": ("us-central1", "us-central1-a", "a3-highgpu-8g"),
    "azure": ("eastus", "1", "Standard_ND96isr_H100_v5"),
    "oci": ("us-ashburn-1", "US-ASHBURN-AD-1", "BM.GPU.H100.8"),
}


def spec(kind: str, token: str, cell: str, **over: Any) -> LaunchSpec:
    return LaunchSpec(
        **{"token": token, "offer": Offer(kind, *WHERE[kind], Market.ON_DEMAND), "count": 2,
           "image_id": shown.IMAGES[kind], "user_data": "#cloud-config\n", "tags": {},
           "pool": "train", "cell": cell, **over}
    )  # fmt: skip


async def until(provider: Provider, done: Callable[[list[Instance]], bool]) -> None:
    """Look until the listing is as ``done`` wants it."""
    for _ in range(400):
        if done([i async for i in provider.list(Owner("adapters"))]):
            return
        await asyncio.sleep(0.2)
    raise AssertionError("the listing never was as it should be")


@pytest.mark.parametrize("kind", WHERE)
def test_fleetds_own_adapters_on_it(running: tuple[Emulator, Path], kind: str) -> None:
    """The page's settings, opened as the daemon opens them."""
    (raw,) = [p for p in YAML[1]["providers"] if p["kind"] == kind]
    key = "endpoint" if "endpoint" in raw else "endpoint_url"
    settings = registry.parse(
        {**raw, key: raw[key].replace("http://127.0.0.1:4580", running[0].url)}
    )

    async def main() -> None:
        provider = registry.open_provider(settings, clock=LoopClock(), chance=SeededChance(1))
        made = await provider.create(spec(kind, f"tok-{kind}", "adapters"))
        await until(provider, lambda found: [i.phase for i in found] == [Phase.RUNNING] * 2)
        await provider.delete([r.ref for r in made if r.ref])
        await until(provider, lambda found: not any(i.exists for i in found))
        with pytest.raises(ImageNotFound):
            await provider.create(spec(kind, f"tok-{kind}-2", "adapters",
                                       image_id=shown.IMAGES[kind].replace("0", "1")
                                       .replace("v1", "v2")))  # fmt: skip
        await provider.aclose()

    asyncio.run(asyncio.wait_for(main(), 90))


def test_faults_of_a_file(folder: Path, zygote: Zygote) -> None:
    plan = {
        "faults": [
            {"kind": "capacity_storm", "provider": "oci", "zone": "US-ASHBURN-AD-1",
             "duration_s": 1e6},
            {"kind": "throttle", "provider": "aws", "duration_s": 1e6},
            {"kind": "image_missing", "provider": "oci", "region": "us-phoenix-1",
             "duration_s": 1e6},
        ]
    }  # fmt: skip
    (folder / "faults.yaml").write_text(json.dumps(plan))
    emulator = Emulator(folder, zygote, "--faults", str(folder / "faults.yaml"), speed=SPEED)
    try:
        asyncio.run(asyncio.wait_for(_faults(emulator), 60))
    finally:
        os.kill(emulator.process.pid, signal.SIGTERM)
        assert emulator.process.wait(10) == 0


async def _faults(emulator: Emulator) -> None:
    subnet = {"subnet": shown.NETWORKS["oci"]}
    regions = {
        "us-ashburn-1": {"availability_domains": ["US-ASHBURN-AD-1"], **subnet},
        "us-phoenix-1": {"availability_domains": ["AD-1"], **subnet},
    }
    (raw,) = [p for p in YAML[1]["providers"] if p["kind"] == "oci"]
    oci = {**raw, "regions": regions, "endpoint": f"{emulator.url}/oci/{{region}}"}
    (raw,) = [p for p in YAML[1]["providers"] if p["kind"] == "aws"]
    aws = {**raw, "endpoint_url": emulator.url, "limits": {"attempts": 1}}
    phoenix = Offer("oci", "us-phoenix-1", "AD-1", "BM.GPU.H100.8", Market.ON_DEMAND)
    for raw, kind, over, error in (
        (oci, "oci", {}, InsufficientCapacity),
        (oci, "oci", {"offer": phoenix}, ImageNotFound),
        (aws, "aws", {}, Throttled),
    ):
        provider = registry.open_provider(
            registry.parse(raw), clock=LoopClock(), chance=SeededChance(1)
        )
        with pytest.raises(ProviderError) as caught:
            await provider.create(spec(kind, "tok", "cell", **over))
        assert type(caught.value) is error
        await provider.aclose()


def test_a_host_beyond_this_machine_is_refused(folder: Path, zygote: Zygote) -> None:
    child = zygote.spawn("emulate", "--host", "0.0.0.0", "--port", "0", log=folder / "log")
    wait_for(lambda: child.poll() is not None, 20, "the refusal")
    assert child.poll() != 0
    assert "this machine only" in (folder / "log").read_text()

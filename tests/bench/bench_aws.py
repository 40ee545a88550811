"""What launching through AWS costs: API calls per node and seconds, on the wire skin.

Real boto3, real HTTP over loopback, the adapter's own pacing against EC2's documented buckets: 5
RunInstances at once and 2 a second, 1,000 instances at once and 2 a second.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fleet.clock import LoopClock, SeededChance
from fleet.model import LaunchSpec, Offer, Owner, Phase
from fleet.sim.spec import Lognormal, OfferSpec, WorldSpec, cloud_spec
from fleet.sim.vendor import BUCKETS
from fleet.sim.wire.ec2 import Ec2App
from fleet.sim.wire.serve import WireServer
from fleet.sim.world import World
from providers import aws

BURST, PER_S = 5, 2


def _launch(token: str, count: int) -> LaunchSpec:
    offer = Offer("aws", "us-east-1", "us-east-1a", "p5.48xlarge", gpu="H100", gpus=8)
    tags = {"fleetd-cell": "cell", "fleetd-pool": "p", "fleetd-token": token}
    image_id, user_data = "ami-0123456789abcdef0", "#cloud-config\n"
    return LaunchSpec(token, offer, count, image_id, user_data, tags, pool="p", cell="cell")


async def _run(nodes: int, batch: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    offer = OfferSpec("us-east-1", "us-east-1a", "p5.48xlarge")
    spec = cloud_spec("aws", (offer,), buckets=BUCKETS["aws"], pending_s=Lognormal(15.0, 0.0))
    world = World(lambda: 1.8e9 + loop.time(), SeededChance(7), WorldSpec((spec,)))
    app = Ec2App(world, SeededChance(8))
    async with WireServer(app) as server:
        settings = aws.Settings(
            regions={"us-east-1": aws.Region()}, endpoint_url=server.url, emulator_credentials=True
        )
        provider = aws.open(settings, clock=LoopClock(), chance=SeededChance(9))
        _ = [i async for i in provider.list(Owner("warm"))]
        app.requests.clear()
        started = loop.time()
        results = await asyncio.gather(
            *(provider.create(_launch(f"b-{n}", batch)) for n in range(nodes // batch))
        )
        create_s = loop.time() - started
        assert sum(r.ref is not None for each in results for r in each) == nodes
        calls = sum(app.requests.values())
        while True:
            seen = [i async for i in provider.list(Owner("cell"))]
            if sum(i.phase is Phase.RUNNING for i in seen) == nodes:
                break
            await asyncio.sleep(5.0)
        await provider.aclose()
        total = sum(app.requests.values())
    return {
        "calls_per_node": round(calls / nodes, 3),
        "calls_per_node_until_running": round(total / nodes, 3),
        "create_s": round(create_s, 1),
        "rate_limit_bound_s": round(max(0, nodes // batch - BURST) / PER_S, 1),
    }


def figures() -> dict[str, Any]:
    """API calls per launched node for 100 and 1,000 nodes."""
    return {
        f"{nodes} nodes, batches of {batch}": asyncio.run(_run(nodes, batch))
        for nodes, batch in ((100, 100), (100, 10), (1000, 100), (1000, 10))
    }

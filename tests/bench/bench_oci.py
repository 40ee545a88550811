"""What launching through Oracle costs: API calls per node and seconds, on the wire skin.

Real SDK, real HTTP over loopback, the adapter's default pace against the bucket that the world
gives Oracle (20 calls a second, bursts of 5), batches as the engine sends them. Oracle has no call
for several instances, so a node costs one call and the bucket is the bound. The machines run
15 s after they were accepted, so that the bench is about launching.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from fleet.clock import LoopClock, SeededChance
from fleet.model import Owner, Phase
from fleet.sim.spec import Lognormal
from fleet.sim.vendor import BUCKETS
from fleet.sim.wire.oci import OciApp
from fleet.sim.wire.serve import WireServer
from fleet.sim.world import World
from providers import oci

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))


async def _launch(nodes: int, batch: int) -> dict[str, Any]:
    from wire_oci import launch, oci_settings, oci_world

    loop = asyncio.get_running_loop()
    spec = oci_world(10_000, buckets=BUCKETS["oci"], pending_s=Lognormal(15.0, 0.0))
    world = World(lambda: 1.8e9 + loop.time(), SeededChance(7), spec)
    app = OciApp(world, SeededChance(8))
    async with WireServer(app) as server:
        settings = oci_settings(server.url, rates={})
        provider = oci.open(settings, clock=LoopClock(), chance=SeededChance(9))
        _ = [i async for i in provider.list(Owner("warm"))]
        app.requests.clear()
        started = loop.time()
        results = await asyncio.gather(
            *(provider.create(launch(f"b-{n}", batch)) for n in range(nodes // batch))
        )
        accepted_s = loop.time() - started
        assert sum(r.ref is not None for each in results for r in each) == nodes
        calls = dict(app.requests)
        lists = 0
        while True:
            lists += 1
            before_s = loop.time()
            seen = [i async for i in provider.list(Owner("cell"))]
            list_s = loop.time() - before_s
            if sum(i.phase is Phase.RUNNING for i in seen) == nodes:
                break
            await asyncio.sleep(5.0)
        await provider.aclose()
        total = dict(app.requests)
    bucket = BUCKETS["oci"]["launch"]
    return {
        "nodes": nodes,
        "batch": batch,
        "calls": calls,
        "calls_per_node": round(sum(calls.values()) / nodes, 3),
        "calls_per_node_until_running": round(sum(total.values()) / nodes, 3),
        "throttled": app.errors.get("TooManyRequests", 0),
        "lists": lists,
        "last_list_s": round(list_s, 2),
        "create_s": round(accepted_s, 1),
        "rate_limit_bound_s": round(max(0.0, nodes - bucket.burst) / bucket.refill, 1),
    }


def figures() -> dict[str, Any]:
    """API calls per launched node for 100 and 1,000 nodes, in big batches and small ones."""
    return {
        f"{nodes} nodes, batches of {batch}": asyncio.run(_launch(nodes, batch))
        for nodes, batch in ((100, 100), (100, 10), (1000, 100), (1000, 10))
    }


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))

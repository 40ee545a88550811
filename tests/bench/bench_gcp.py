"""What launching through Google costs: API calls per node and seconds, on the wire skin.

Real SDK, real HTTP over loopback, the adapter's default watch (15 s, every 2 s), batches as the
engine sends them; the world's machines run about 15 s after they were accepted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from fleet.clock import LoopClock, SeededChance
from fleet.model import Owner, Phase
from fleet.sim.wire.gcp import GcpApp
from fleet.sim.wire.serve import WireServer
from fleet.sim.world import World
from providers import gcp

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))

#: Google's legacy default: writes per minute and project (clouds.md 5).
WRITES_PER_MIN = 1500


async def _launch(nodes: int, batch: int) -> dict[str, Any]:
    from wire_gcp import gcp_settings, gcp_world, launch

    loop = asyncio.get_running_loop()
    world = World(lambda: 1.8e9 + loop.time(), SeededChance(7), gcp_world(10_000))
    app = GcpApp(world, SeededChance(8))
    async with WireServer(app) as server:
        settings = gcp_settings(server.url, settle_s=15.0, poll_s=2.0)
        provider = gcp.Gcp(settings, LoopClock())
        _ = [i async for i in provider.list(Owner("warm"))]
        app.requests.clear()
        started = loop.time()
        await asyncio.gather(
            *(provider.create(launch(f"b-{n}", batch)) for n in range(nodes // batch))
        )
        accepted_s = loop.time() - started
        calls = dict(app.requests)
        lists = 0
        while True:
            lists += 1
            seen = [i async for i in provider.list(Owner("cell"))]
            if sum(i.phase is Phase.RUNNING for i in seen) == nodes:
                break
            await asyncio.sleep(5.0)
        await provider.aclose()
        total = dict(app.requests)
    writes = sum(n for name, n in calls.items() if "nsert" in name)
    return {
        "nodes": nodes,
        "batch": batch,
        "calls": calls,
        "calls_per_node": round(sum(calls.values()) / nodes, 3),
        "calls_per_node_until_running": round(sum(total.values()) / nodes, 3),
        "lists": lists,
        "create_s": round(accepted_s, 1),
        "rate_limit_bound_s": round(max(0, writes - WRITES_PER_MIN) * 60 / WRITES_PER_MIN, 1),
    }


def figures() -> dict[str, Any]:
    """API calls per launched node for 100 and 1,000 nodes, in bulk and one by one."""
    return {
        f"{nodes} nodes, batches of {batch}": asyncio.run(_launch(nodes, batch))
        for nodes, batch in ((100, 100), (100, 10), (1000, 100), (1000, 10))
    }


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))

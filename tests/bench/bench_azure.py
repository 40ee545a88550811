"""What launching through Azure costs: API calls per node and seconds, on the wire skin.

Real SDK, real HTTP over loopback, the adapter's own pacing, its look for fast failures after ten
seconds, and the skin's buckets (200 writes at once, then 10 a second), on a loop that runs
``SPEED`` times faster. The bound is what those buckets allow at best.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

from fleet.clock import LoopClock, ScaledLoop, SeededChance
from fleet.model import Owner, Phase
from fleet.sim.spec import Lognormal
from fleet.sim.vendor import BUCKETS
from fleet.sim.wire.azure import AzureApp
from fleet.sim.wire.serve import WireServer
from fleet.sim.world import World
from providers import azure

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))

SPEED: Final = 10.0
#: Resource Manager's bucket of writes (clouds.md 5).
WRITE_BURST, WRITES_PER_S = 200, 10
LIST_S: Final = 10.0


async def _launch(nodes: int, batch: int) -> dict[str, Any]:
    from wire_azure import azure_settings, azure_world, launch

    loop = asyncio.get_running_loop()
    spec = azure_world(10_000, buckets=BUCKETS["azure"], latency_s=Lognormal(0.4, 0.4))
    world = World(lambda: 1.8e9 + loop.time(), SeededChance(7), spec)
    app = AzureApp(world, SeededChance(8))
    async with WireServer(app) as server:
        clock = LoopClock()
        settings = azure_settings(server.url, confirm_s=10.0, read_timeout_s=30.0 * SPEED)
        provider = azure.open(settings, clock=clock, chance=SeededChance(9))
        _ = [i async for i in provider.list(Owner("warm"))]
        app.requests.clear()
        started = loop.time()
        made = await asyncio.gather(
            *(provider.create(launch(f"b-{n}", batch)) for n in range(nodes // batch))
        )
        accepted_s = loop.time() - started
        create_calls = dict(app.requests)
        assert sum(r.ref is not None for results in made for r in results) == nodes
        lists = 0
        while True:
            lists += 1
            seen = [i async for i in provider.list(Owner("cell"))]
            if sum(i.phase is Phase.RUNNING for i in seen) == nodes:
                break
            await clock.sleep(LIST_S)
        await provider.aclose()
        total = dict(app.requests)
    bound_s = max(0, nodes - WRITE_BURST) / WRITES_PER_S
    return {
        "nodes": nodes,
        "batch": batch,
        "calls": create_calls,
        "calls_per_node": round(sum(create_calls.values()) / nodes, 3),
        "calls_per_node_until_running": round(sum(total.values()) / nodes, 3),
        "throttled": app.errors.get("OperationNotAllowed", 0),
        "lists": lists,
        "create_s": round(accepted_s, 1),
        "rate_limit_bound_s": round(bound_s + settings.confirm_s, 1),
    }


def figures() -> dict[str, Any]:
    """API calls per launched node for 100 and 1,000 nodes, and seconds against the bound."""
    found = {}
    for nodes, batch in ((100, 100), (100, 10), (1000, 100), (1000, 10)):
        with asyncio.Runner(loop_factory=lambda: ScaledLoop(SPEED)) as runner:
            found[f"{nodes} nodes, batches of {batch}"] = runner.run(_launch(nodes, batch))
    return found


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))

"""Memory and CPU of the daemon at rest with 2,500 nodes, on real time.

The fleet is brought up on virtual time into a file; then a fresh process opens that file with the
same world beside it, lets it settle, and is measured while 2,500 agents report every 15 s straight
into the door (the HTTP side is ``report, over HTTP``).
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from typing import Any

from fleet.clock import ScaledLoop
from fleet.sim.spec import four_clouds
from fleet.sim.trial import Trial, image, pool

SPEED = 20.0
WATCHED_S = 600.0


def figures(nodes: int = 2500) -> dict[str, Any]:
    """CPU share of one core and peak memory, both with the simulator's own share included."""

    async def work() -> dict[str, Any]:
        world = four_clouds(level=3000)
        trial = Trial(3, world, policies=(image(world), pool(world, nodes=nodes, spares=50)))
        await trial.start()
        assert await trial.until(lambda: trial.serving() == nodes, timeout_s=7200, step_s=60)
        await trial.clock.sleep(300)
        cpu, start = time.process_time(), trial.clock.monotonic()
        await trial.clock.sleep(WATCHED_S)
        cpu = time.process_time() - cpu
        watched_s = trial.clock.monotonic() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await trial.close()
        return {
            "nodes": nodes, "cpu_percent_of_a_core": round(100 * cpu / watched_s, 2),
            "peak_rss_mb": round(peak / 1024), "watched_world_s": round(watched_s),
        }  # fmt: skip

    with asyncio.Runner(loop_factory=lambda: ScaledLoop(SPEED)) as runner:
        return runner.run(work())


if __name__ == "__main__":
    print(json.dumps(figures()))

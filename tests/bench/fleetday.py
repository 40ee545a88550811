"""A simulated day, and the way of a fault to a spare, on the whole daemon."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from fleet.sim.spec import Lognormal, OfferSpec, WorldSpec, cloud_spec, four_clouds
from fleet.sim.trial import Trial, image, pool, virtual
from fleet.store.door import Store
from policies.schema import HealthPolicy


def health(interval_s: float) -> HealthPolicy:
    """A health policy with this report interval."""
    report = {
        "interval_s": interval_s,
        "silent_s": max(90.0, 3 * interval_s),
        "replace_silent_s": max(600.0, 6 * interval_s),
    }
    return HealthPolicy.model_validate(
        {
            "apiVersion": "fleetd/v1",
            "kind": "HealthPolicy",
            "metadata": {"name": "default"},
            "spec": {"report": report},
        }
    )


def day(nodes: int = 2500, hours: float = 24.0, interval_s: float = 300.0) -> dict[str, Any]:
    """Real seconds for one simulated day of ``nodes`` that report every ``interval_s``, with the
    fault rate of Llama 3 (2e-5 per GPU-hour)."""

    async def work() -> dict[str, Any]:
        world = four_clouds(level=3000, fatal_per_gpu_hour=2e-5)
        spares = max(4, nodes // 50)
        policies = (image(world), pool(world, nodes=nodes, spares=spares), health(interval_s))
        trial = Trial(1, world, policies=policies)
        start = time.perf_counter()
        await trial.start()
        await trial.until(lambda: trial.serving() == nodes, timeout_s=3 * 3600, step_s=60)
        up_s = time.perf_counter() - start
        cpu = time.process_time()
        await trial.clock.sleep(max(0.0, hours * 3600 - trial.clock.monotonic()))
        took_s = time.perf_counter() - start
        assert trial.nodes is not None
        figures = {
            "nodes": nodes, "hours": hours, "real_s": round(took_s, 1), "up_s": round(up_s, 1),
            "steady_cpu_s": round(time.process_time() - cpu, 1),
            "reports": trial.nodes.reports, "launched": trial.world.ever,
            "serving": trial.serving(),
        }  # fmt: skip
        await trial.close()
        return figures

    return virtual(work)


def one_gpu_world(level: int) -> WorldSpec:
    """One cloud with single-GPU nodes in four zones."""
    offers = tuple(
        OfferSpec("us-east-1", f"us-east-1{z}", "p5.4xlarge", "H100", 1, 6.88) for z in "abcd"
    )
    return WorldSpec((cloud_spec("aws", offers, boot_s=Lognormal(60.0)),))


def fault(nodes: int, gpus: int, faults: int = 200) -> dict[str, Any]:
    """Milliseconds from a fatal report's bytes at the agents' door to its slot on a spare,
    committed to a SQLite file with full flushes; one fault at a time and a storm of ten at once."""

    async def work(folder: str) -> dict[str, Any]:
        world = one_gpu_world(30_000) if gpus == 1 else four_clouds(level=3000)
        spares = faults + 50
        over = {"gpus_per_node": gpus, "repair": {"share": "100%", "absolute": 10_000}}
        policies = (
            image(world),
            pool(world, nodes=nodes, spares=spares, quarantine={"max": 0}, **over),
            health(300.0),
        )
        store = Store(f"sqlite:///{Path(folder) / 'bench.db'}")
        trial = Trial(2, world, policies=policies, store=store)
        await trial.start()
        done = await trial.until(
            lambda: trial.serving() == nodes and trial.ready() >= nodes + spares,
            timeout_s=6 * 3600, step_s=60,
        )  # fmt: skip
        assert done, (trial.serving(), trial.ready())
        await trial.clock.sleep(120)
        waits = [await _one(trial, n) for n in range(faults)]
        await trial.close()
        waits.sort()
        return {
            "nodes": nodes, "gpus": nodes * gpus, "faults": faults,
            "p50_ms": round(1e3 * statistics.median(waits), 2),
            "p99_ms": round(1e3 * waits[int(0.99 * len(waits)) - 1], 2),
            "max_ms": round(1e3 * waits[-1], 2),
        }  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        return virtual(lambda: work(folder))


async def _one(trial: Trial, n: int) -> float:
    """Report one fatal fault of a serving node and wait until its slot has moved."""
    view, door = trial.up.cell.view, trial.up.agent_door
    serving = sorted(i for i in view.slot_of if view.nodes[i].state == "READY")
    node = view.nodes[serving[(n * 37) % len(serving)]]
    slot = node.slot
    token = next(h for h, i in door._nodes.items() if i == node.id)
    pulse = trial.up.cell.watch.pulse(node.id)
    body = json.dumps(
        {"boot_id": pulse.boot_id, "seq": pulse.seq + 1_000_000 + n,
         "faults": [{"code": "xid_79", "gpu": 0, "message": "GPU has fallen off the bus", "at": 0}]}
    ).encode()  # fmt: skip
    door._nodes[_digest("bench")] = node.id
    start = time.perf_counter()
    status, _, answer = await door.handle(
        "POST", "/v1/agent/report", {"authorization": "Bearer bench"}, body, "127.0.0.1"
    )
    assert status == 200, answer
    while view.slots[slot].node_id == node.id:
        await trial.clock.sleep(0)
    took = time.perf_counter() - start
    assert view.slots[slot].node_id
    door._nodes.pop(_digest("bench"), None)
    assert token
    await trial.clock.sleep(0.5)
    return took


def _digest(secret: str) -> str:
    from fleet.tokens import digest

    return digest(secret)

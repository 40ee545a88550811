"""One seed of the whole-daemon simulation: faults, restarts, invariants, then convergence."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import select

from fleet.clock import SeededChance
from fleet.sim.faults import FaultPlan
from fleet.sim.invariants import Invariants
from fleet.sim.spec import four_clouds
from fleet.sim.trial import Trial, image, pool, virtual
from fleet.store.tables import EventRow


@dataclass
class Run:
    """What one seed showed."""

    seed: int
    converged: bool
    digest: str
    events: int
    ever: int
    reasons: dict[str, int]


def run_seed(seed: int, *, nodes: int = 100, spares: int = 8, hours: float = 3.0) -> Run:
    """Run one seed for ``hours`` virtual hours: two thirds of them with faults and crashes."""

    async def work() -> Run:
        world = four_clouds(level=60, seed=seed, moving=True)
        chance = SeededChance(f"plan {seed}")
        faults_s = hours * 3600.0 * 2 / 3
        plan = FaultPlan.from_seed(chance, world, faults_s, per_hour=60.0)
        trial = Trial(seed, world, plan,
                      policies=(image(world), pool(world, nodes=nodes, spares=spares)))  # fmt: skip
        checks = Invariants(trial)
        await trial.start()
        crash_at = [chance.uniform(0, faults_s) for _ in range(2)]
        end = trial.clock.monotonic() + hours * 3600.0
        while trial.clock.monotonic() < end:
            await trial.clock.sleep(5.0)
            if crash_at and trial.world.t >= min(crash_at):
                crash_at.remove(min(crash_at))
                await trial.crash()
                await trial.clock.sleep(chance.uniform(0, 60))
                await trial.start()
            checks.check()
        target = nodes + spares
        converged = await trial.until(
            lambda: trial.serving() == nodes and trial.ready() >= target, timeout_s=3600.0
        )
        checks.check()
        rows = trial.store.call(
            lambda tx: tx.execute(
                select(
                    EventRow.at,
                    EventRow.object_id,
                    EventRow.src,
                    EventRow.dst,
                    EventRow.reason,
                    EventRow.message,
                ).order_by(EventRow.id)
            ).all()
        )
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()
        run = Run(seed, converged, digest, len(rows), trial.world.ever, dict(checks.seen))
        await trial.close()
        return run

    return virtual(work)

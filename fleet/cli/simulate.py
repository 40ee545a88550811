"""``fleetd simulate``: the whole daemon against a simulated world, in virtual time.

Invariant: one seed, one run; what must always hold is checked after every virtual minute, and
after the faults stop the target must be reached.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter

from fleet import logs
from fleet.clock import SeededChance
from fleet.errors import InputError
from fleet.sim.faults import FaultPlan
from fleet.sim.invariants import Invariants, Violation
from fleet.sim.spec import four_clouds
from fleet.sim.trial import Trial, image, pool, virtual
from fleet.store import queries

STEP_S = 60.0
#: Virtual seconds in which the target must be reached once the faults have stopped.
CALM_S = 6 * 3600.0


def main(seed: int, hours: float, nodes: int, faults_per_hour: float) -> int:
    """Run and print a summary; 0 when everything held and the target was reached."""
    if hours <= 0 or nodes <= 0:
        raise InputError("hours and nodes are greater than 0")
    logs.configure("json", level=logging.CRITICAL)
    return virtual(lambda: _run(seed, hours, nodes, faults_per_hour))


async def _run(seed: int, hours: float, nodes: int, faults_per_hour: float) -> int:
    world = four_clouds(seed=seed)
    until_s = hours * 3600.0
    plan = FaultPlan.from_seed(
        SeededChance(f"faults {seed}"), world, until_s, per_hour=faults_per_hour
    )
    policies = (image(world), pool(world, nodes=nodes, spares=max(1, nodes // 20)))
    trial = Trial(seed, world, plan, policies=policies)
    await trial.start()
    invariants = Invariants(trial)
    code = 0
    try:
        for _ in range(max(1, round(until_s / STEP_S))):
            await trial.clock.sleep(STEP_S)
            invariants.check()
        reached = await trial.until(lambda: trial.serving() == nodes, timeout_s=CALM_S)
        invariants.check()
        code = 0 if reached else 5
    except Violation as violation:
        print(f"error: an invariant does not hold (seed {seed})\n  why   {violation}",
              file=sys.stderr)  # fmt: skip
        code = 5
    _print(trial, seed, hours, plan)
    await trial.close()
    return code


def _print(trial: Trial, seed: int, hours: float, plan: FaultPlan) -> None:
    stats = trial.store.call(lambda tx: queries.launch_stats(tx, 0.0))
    events = trial.store.call(lambda tx: queries.events(tx, limit=queries.MOST))
    reasons = Counter(e.reason for e in events if e.kind == "node")
    faults = Counter(str(i.kind) for i in plan)
    kinds = ", ".join(f"{n} {k}" for k, n in sorted(faults.items())) or "none"
    print(f"seed {seed}, {hours:g} virtual hours; faults: {kinds}")
    wanted = trial.policies[1].spec.nodes  # type: ignore[union-attr]
    print(f"in service {trial.serving()} of {wanted}, {trial.ready()} READY, "
          f"{len(trial.up.cell.view.nodes)} live nodes")  # fmt: skip
    print(f"{'provider':<10}{'launches':>9}{'ready':>7}{'boot p50':>10}{'boot p95':>10}  outcomes")
    for row in stats:
        outcomes = ", ".join(f"{n} {o}" for o, n in row["outcomes"].items() if o != "ready")
        print(f"{row['provider']:<10}{row['launches']:>9}{row['ready']:>7}"
              f"{_s(row['boot_p50_s']):>10}{_s(row['boot_p95_s']):>10}  {outcomes}")  # fmt: skip
    top = ", ".join(f"{n} {r}" for r, n in reasons.most_common(8))
    print(f"moves by reason: {top}")


def _s(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f} s"

"""Seeds of the whole daemon: invariants hold under faults and restarts, then the target is met.

Public cases: PC-001, PC-004, PC-005, PC-007, PC-028, PC-034, PC-056, PC-061, PC-126, PC-127,
PC-129, PC-150, PC-191.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.seeds import run_seed

SEEDS = range(1, 301) if os.environ.get("FLEETD_SOAK") else range(1, 21)


@pytest.mark.parametrize("seed", SEEDS)
def test_seed_holds_and_converges(seed: int) -> None:
    run = run_seed(seed)
    assert run.converged, run
    assert run.ever >= 108


def test_same_seed_same_log() -> None:
    first = run_seed(7, nodes=30, spares=3, hours=1.0)
    second = run_seed(7, nodes=30, spares=3, hours=1.0)
    assert first.digest == second.digest
    assert first.digest != run_seed(8, nodes=30, spares=3, hours=1.0).digest

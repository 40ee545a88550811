"""Levels, traces, buckets and durations of the simulated clouds."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from fleet.clock import SeededChance
from fleet.sim.capacity import (
    Bucket,
    BucketSpec,
    Lognormal,
    Steady,
    Trace,
    Walk,
    exponential,
)


def test_steady_never_moves() -> None:
    assert {Steady(7).level(t) for t in (0, 1e6)} == {7}


def test_walk_depends_on_time_and_seed_only() -> None:
    a, b = Walk(20, 6, "s", step_s=60), Walk(20, 6, "s", step_s=60)
    late_first = [b.level(t) for t in range(6000, -1, -60)][::-1]
    assert [a.level(t) for t in range(0, 6001, 60)] == late_first
    assert all(14 <= level <= 26 for level in late_first)
    assert len(set(late_first)) > 3
    assert [Walk(20, 6, "other", step_s=60).level(t) for t in range(0, 6001, 60)] != late_first


def test_trace_replays_in_a_circle(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": [16, 0, 4]}))
    trace = Trace.load(file)
    assert [trace.level(t) for t in (0, 299, 300, 899, 900)] == [16, 16, 0, 4, 16]
    assert Trace.load(file, offset_s=300, scale=2.0).level(300) == 8


@pytest.mark.parametrize("text", ["[]", "{}", '{"metadata": {"gap_seconds": 1}, "data": []}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace.json"
    file.write_text(text)
    with pytest.raises((ValueError, KeyError, TypeError)):
        Trace.load(file)


def test_bucket_bursts_then_refills() -> None:
    """EC2's RunInstances: 5 at once, then 2 a second (clouds.md 5)."""
    bucket = Bucket(BucketSpec(5, 2))
    assert [bucket.take(1, 0.0) for _ in range(6)] == [True] * 5 + [False]
    assert not bucket.take(1, 0.4)
    assert bucket.take(1, 0.5)
    assert [bucket.take(1, 100.0) for _ in range(6)] == [True] * 5 + [False]


def test_bucket_lets_one_too_large_request_through_when_full() -> None:
    bucket = Bucket(BucketSpec(10, 1))
    assert bucket.take(12, 0.0)
    assert not bucket.take(1, 2.0)
    assert bucket.take(1, 3.0)


def test_lognormal_has_its_median() -> None:
    chance = SeededChance(1)
    drawn = [Lognormal(120.0, 0.3).draw(chance) for _ in range(4000)]
    assert statistics.median(drawn) == pytest.approx(120.0, rel=0.03)
    assert Lognormal(0.0).draw(chance) == 0.0
    assert Lognormal(5.0, 0.0).draw(chance) == 5.0


def test_exponential_has_its_mean() -> None:
    chance = SeededChance(2)
    drawn = [exponential(60.0, chance) for _ in range(8000)]
    assert statistics.mean(drawn) == pytest.approx(60.0, rel=0.05)

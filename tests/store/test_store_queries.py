"""What people and the learning loops read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storekit import ME, OFFER, T0, node, put, seen

from fleet.model import Fault, Node, Outcome, Reason, Severity, State
from fleet.store import control, queries, rollup, write
from fleet.store.door import Store
from fleet.store.queries import percentile

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

S = State


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300),
       percent=st.integers(1, 100))  # fmt: skip
def test_percentile_is_nearest_rank(values: list[float], percent: int) -> None:
    """At least ``percent`` of all values are at or below it, and it is one of them."""
    want = sorted(values)[max(1, math.ceil(percent * len(values) / 100)) - 1]
    assert percentile(values, percent / 100) == want


def test_percentile_of_nothing() -> None:
    assert percentile([], 0.99) is None


def boot(store: Store, i: int, launch_s: float, boot_s: float, outcome: Outcome = Outcome.READY,
         **changes: Any) -> Node:  # fmt: skip
    n = node(
        i, accepted_at=T0, running_at=T0 + launch_s, first_report_at=T0 + launch_s + boot_s,
        **changes,
    )  # fmt: skip
    put(store, n)
    at = T0 + launch_s + boot_s
    store.call(lambda tx: write.close_launch(tx, n, outcome, now=at, reason=Reason.GATE_PASSED))
    got: Node = seen(store).nodes[n.id]
    return got


def test_phase_p99_needs_enough_launches(store: Store) -> None:
    for i in range(19):
        boot(store, i, 10, 100 + i)
    assert store.call(lambda tx: queries.phase_p99(tx, T0)) == {}
    boot(store, 19, 40, 500)
    boot(store, 90, 1, 9999, Outcome.BOOT_TIMEOUT)
    found = store.call(lambda tx: queries.phase_p99(tx, T0))
    assert found == {OFFER.key: (40.0, 500.0)}
    assert store.call(lambda tx: queries.phase_p99(tx, T0 + 9000)) == {}


def test_launch_stats_read_the_rollup(store: Store) -> None:
    outcomes = [Outcome.READY] * 6 + [Outcome.GATE_FAILED, Outcome.LOST, Outcome.PREEMPTED,
                                      Outcome.CANCELLED]  # fmt: skip
    for i, outcome in enumerate(outcomes):
        boot(store, i, 10, 90 + i, outcome)
    (refused,) = put(store, node(50, offer=replace(OFFER, region="us-west-2")))
    store.call(
        lambda tx: write.close_launch(
            tx, refused, Outcome.INSUFFICIENT_CAPACITY, now=T0, reason=Reason.INSUFFICIENT_CAPACITY
        )
    )
    (all_,) = store.call(lambda tx: queries.launch_stats(tx, T0 - 60))
    assert (all_["provider"], all_["launches"], all_["accepted"]) == ("aws", 11, 10)
    assert (all_["judged"], all_["ready"]) == (8, 6), "preempted and cancelled are not judged"
    assert all_["boot_p50_s"] == pytest.approx(102, rel=0.05)
    by_region = store.call(lambda tx: queries.launch_stats(tx, T0 - 60, by_region=True))
    assert [(r["region"], r["launches"]) for r in by_region] == [
        ("us-east-1", 10),
        ("us-west-2", 1),
    ]
    assert store.call(lambda tx: queries.launch_stats(tx, T0 + 7200)) == []


def test_error_rates_have_both_halves(store: Store) -> None:
    (n,) = put(store, node(1, S.READY))
    store.call(lambda tx: rollup.count_health(tx, at=T0, provider="aws", region="r", gpu_s=7200.0))
    store.call(lambda tx: control.add_fault(tx, n, "b", Fault("xid_79", 0), Severity.FATAL, T0))
    (rate,) = store.call(lambda tx: queries.error_rates(tx, T0))
    assert (rate["gpu_hours"], rate["fatal"], rate["fatal_per_gpu_hour"]) == (2.0, 1, 0.5)


def test_a_rate_without_hours_is_none(store: Store) -> None:
    store.call(lambda tx: rollup.count_health(tx, at=T0, provider="aws", region="r", fatal=1))
    (rate,) = store.call(lambda tx: queries.error_rates(tx, T0))
    assert rate["fatal_per_gpu_hour"] is None


def test_pool_rates(store: Store) -> None:
    """Failures per node-hour and refill p95, each only with enough behind it."""
    for i in range(10):
        n = boot(store, i, 50, 50 + i, state=S.READY, ready_at=T0)
        if i < 3:
            reason = Reason.FATAL_FAULT if i else Reason.SURPLUS  # surplus is no failure
            store.call(
                lambda tx, n=n, r=reason: write.transition(
                    tx, n, S.DRAINING, r, now=T0 + 36_000, actor=ME
                )
            )
    rate, refill = store.call(lambda tx: queries.pool_rates(tx, T0))["train"]
    assert rate == pytest.approx(2 / 100)
    assert refill == 109
    boot(store, 30, 1, 1, pool="small", state=S.READY, ready_at=T0)
    assert store.call(lambda tx: queries.pool_rates(tx, T0))["small"] == (None, None)


def test_events_newest_last_and_bounded(store: Store) -> None:
    for i in range(30):
        store.call(
            lambda tx, i=i: write.event(tx, kind="node", object_id=f"n-{i % 2}", pool="train",
                                        reason=Reason.CORDONED, actor="user:a", at=T0 + i)
        )  # fmt: skip
    last = store.call(lambda tx: queries.events(tx, limit=5))
    assert [e.at for e in last] == [T0 + i for i in range(25, 30)]
    first = store.call(lambda tx: queries.events(tx, limit=5, newest=False))
    assert [e.id for e in first] == sorted(e.id or 0 for e in first)
    assert len(store.call(lambda tx: queries.events(tx, object_id="n-1", reason="cordoned"))) == 15
    window = store.call(lambda tx: queries.events(tx, since=T0 + 3, until=T0 + 5))
    assert [e.at for e in window] == [T0 + 3, T0 + 4, T0 + 5]
    after = last[2].id or 0
    assert len(store.call(lambda tx: queries.events(tx, after_id=after))) == 2


def test_lists_of_launches_nodes_and_faults(store: Store) -> None:
    for i in range(5):
        boot(store, i, i, i, Outcome.READY if i % 2 else Outcome.LOST, requested_at=T0 + i)
    got = store.call(lambda tx: queries.launches(tx, limit=3))
    assert [x.id for x in got] == ["n-4", "n-3", "n-2"]
    assert len(store.call(lambda tx: queries.launches(tx, outcome="ready"))) == 2
    n = replace(seen(store).nodes["n-1"], state=S.TERMINATING)
    store.call(
        lambda tx: write.transition(tx, n, S.TERMINATED, Reason.CONFIRMED_GONE, now=T0, actor=ME)
    )
    assert [x.id for x in store.call(lambda tx: queries.ended_nodes(tx, T0))] == ["n-1"]
    assert store.call(lambda tx: queries.ended_nodes(tx, T0 + 1)) == []
    store.call(lambda tx: control.add_fault(tx, n, "b", Fault("x"), Severity.FATAL, T0))
    assert len(store.call(lambda tx: queries.faults(tx, node_id="n-1"))) == 1
    assert store.call(lambda tx: queries.faults(tx, since=T0 + 1)) == []

"""Launches are counted once, and the rollup says what the raw rows say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import Session
from storekit import OFFER, T0, fresh, node, put, rows

from fleet.model import Market, Outcome, Reason
from fleet.store import rollup, write
from fleet.store.door import Store
from fleet.store.rollup import BUCKETS, bucket, decode, encode, merge, middle, quantile
from fleet.store.tables import HealthHour, LaunchHour, LaunchRow

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

LONGEST_S = 1.08 ** (BUCKETS - 1)


@given(seconds=st.floats(1.0, LONGEST_S))
def test_a_bucket_is_off_by_at_most_four_percent(seconds: float) -> None:
    assert abs(middle(bucket(seconds)) / seconds - 1) <= 0.04


@given(seconds=st.floats(0, 1e12))
def test_buckets_are_bounded_and_ordered(seconds: float) -> None:
    assert 0 <= bucket(seconds) < BUCKETS
    assert bucket(seconds) <= bucket(seconds * 1.5)


hists_st = st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 10_000), max_size=30)


@given(hist=hists_st)
def test_stored_form_round_trip(hist: dict[int, int]) -> None:
    assert decode(encode(hist)) == hist
    assert decode("") == {}


@given(hists=st.lists(hists_st, max_size=5))
def test_merge_adds(hists: list[dict[int, int]]) -> None:
    total = merge(encode(h) for h in hists)
    assert total == {i: sum(h.get(i, 0) for h in hists) for h in hists for i in h}


@settings(max_examples=200)
@given(values=st.lists(st.floats(1, 100_000), min_size=1, max_size=200), q=st.floats(0.01, 1))
def test_quantiles_are_those_of_the_values_within_four_percent(
    values: list[float], q: float
) -> None:
    hist: dict[int, int] = {}
    for v in values:
        hist[bucket(v)] = hist.get(bucket(v), 0) + 1
    exact = sorted(values)[max(0, math.ceil(q * len(values) - 1e-9) - 1)]
    found = quantile(hist, q)
    assert found is not None
    assert abs(found / exact - 1) <= 0.04


def test_quantile_of_nothing() -> None:
    assert quantile({}, 0.5) is None


# -- closing launches ----------------------------------------------------------------------------


def close(store: Store, i: int, outcome: Outcome, now: float) -> bool:
    n = node(i)
    return store.call(
        lambda tx: write.close_launch(tx, n, outcome, now=now, reason=Reason.GATE_PASSED)
    )


def counted(store: Store) -> dict[tuple[int, str, str, str, str, bool], int]:
    return {
        (r.hour, r.provider, r.region, r.market, r.outcome, r.accepted): r.n
        for r in rows(store, LaunchHour)
    }


def test_a_launch_closes_exactly_once(store: Store) -> None:
    put(store, node(1))
    assert close(store, 1, Outcome.READY, T0 + 200)
    assert not close(store, 1, Outcome.LOST, T0 + 300)
    assert not close(store, 1, Outcome.READY, T0 + 300)
    (launch,) = rows(store, LaunchRow)
    assert (launch.outcome, launch.ended_at) == ("ready", T0 + 200)
    (hour,) = rows(store, LaunchHour)
    assert (hour.n, hour.boot_hist, hour.boot_s_sum) == (1, f"{bucket(200)}:1", 200.0)


def test_closing_and_counting_are_one_transaction(store: Store) -> None:
    put(store, node(1))

    def fn(tx: Session) -> None:
        write.close_launch(tx, node(1), Outcome.LOST, now=T0, reason=Reason.NEVER_LISTED)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.call(fn)
    assert rows(store, LaunchRow)[0].outcome is None
    assert rows(store, LaunchHour) == []


launch_st = st.tuples(
    st.sampled_from(Outcome), st.floats(0, 4 * 3600), st.sampled_from(("aws", "gcp")),
    st.sampled_from(("east", "west")), st.sampled_from(Market), st.booleans(), st.integers(1, 3),
)  # fmt: skip


@settings(max_examples=60)
@given(launches=st.lists(launch_st, min_size=1, max_size=25))
def test_the_rollup_equals_a_recount(
    launches: list[tuple[Outcome, float, str, str, Market, bool, int]],
) -> None:
    store = fresh()
    start = int(T0 // 3600) * 3600.0
    boots = []
    for i, (outcome, after, provider, region, market, accepted, times) in enumerate(launches):
        offer = replace(OFFER, provider=provider, region=region, market=market)
        n = node(i, offer=offer, requested_at=start, accepted_at=start if accepted else None)
        put(store, n)
        for k in range(times):
            first = store.call(
                lambda tx, n=n, o=outcome, t=start + after + k: write.close_launch(
                    tx, n, o, now=t, reason=Reason.GATE_PASSED
                )
            )
            assert first == (k == 0)
        boots += [after] if outcome is Outcome.READY else []
    assert counted(store) == store.call(lambda tx: rollup.recount(tx, 0))
    assert sum(counted(store).values()) == len(launches)
    hours = rows(store, LaunchHour)
    hist = merge(h.boot_hist for h in hours)
    assert sum(hist.values()) == len(boots)
    assert hist == {b: sum(bucket(s) == b for s in boots) for b in map(bucket, boots)}
    assert sum(h.boot_s_sum for h in hours) == pytest.approx(sum(boots), abs=1e-6)
    store.close()


def test_recount_begins_at_an_hour(store: Store) -> None:
    put(store, node(1), node(2))
    close(store, 1, Outcome.LOST, T0)
    close(store, 2, Outcome.LOST, T0 + 7200)
    hour = int((T0 + 7200) // 3600)
    assert list(store.call(lambda tx: rollup.recount(tx, hour)).values()) == [1]


def test_health_hours_add_up(store: Store) -> None:
    for fatal, gpu_s in ((1, 100.0), (2, 50.0)):
        store.call(
            lambda tx, f=fatal, g=gpu_s: rollup.count_health(
                tx, at=T0, provider="aws", region="east", gpu_s=g, node_s=1, fatal=f, warning=1
            )
        )
    (hour,) = rows(store, HealthHour)
    assert (hour.gpu_s, hour.node_s, hour.fatal, hour.warning, hour.application) == (
        150,
        2,
        3,
        2,
        0,
    )

"""Spare counts against exact sums and scipy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.spares import MAX_SPARES, poisson_quantile, spares_needed

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")


def exact_cdf(k: int, mean: float) -> float:
    return math.fsum(math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) for i in range(k + 1))


@settings(max_examples=300)
@given(mean=st.floats(1e-6, 300), probability=st.floats(0.5, 0.999_999))
def test_the_quantile_is_the_smallest_k_that_suffices(mean: float, probability: float) -> None:
    k = poisson_quantile(mean, probability)
    assert exact_cdf(k, mean) >= probability - 1e-9
    assert k == 0 or exact_cdf(k - 1, mean) < probability + 1e-9


def test_against_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for mean in (0.01, 0.1, 0.5, 1.0, 2.5, 10.0, 99.5, 1000.0, 5000.0):
        for probability in (0.5, 0.9, 0.95, 0.99, 0.999, 0.999_999):
            assert poisson_quantile(mean, probability) == int(stats.poisson.ppf(probability, mean))


@given(mean=st.floats(0, 500), more=st.floats(0, 100), p=st.floats(0.5, 0.99),
       q=st.floats(0, 0.009))  # fmt: skip
def test_monotone_in_mean_and_probability(mean: float, more: float, p: float, q: float) -> None:
    assert poisson_quantile(mean, p) <= poisson_quantile(mean + more, p)
    assert poisson_quantile(mean, p) <= poisson_quantile(mean, p + q)


@pytest.mark.parametrize(("mean", "probability"), [(-1, 0.9), (1, 0), (1, 1), (1, -0.1), (1, 1.5)])
def test_nonsense_is_refused(mean: float, probability: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        poisson_quantile(mean, probability)


def test_bounds() -> None:
    assert poisson_quantile(0, 0.999) == 0
    assert poisson_quantile(1e7, 0.99) == MAX_SPARES


def test_a_probability_that_floats_cannot_reach_is_no_reason_for_ten_thousand_spares() -> None:
    """Ten thousand terms of rounding must not decide: the answer stays near the mean."""
    assert poisson_quantile(3.0, 1 - 1e-16) < 60


@pytest.mark.parametrize(("nodes", "rate", "refill_s", "p", "most", "want"), [
    (0, 1.0, 900, 0.99, 10, 0),  # nothing to protect
    (100, 1.0, 900, 0.99, 0, 0),  # none allowed
    (1, 0.0, 900, 0.99, 10, 1),  # a pool with nodes has at least one
    (250, 3.8 / 24_000, 900, 0.99, 10, 1),  # Llama 3 405B's rate, a boot of 15 minutes
    (2000, 3.8 / 24_000, 900, 0.999, 10, 2),
    (2000, 3.8 / 2_400, 900, 0.999, 10, 5),  # a day ten times as bad
    (10_000, 1.0, 3600, 0.99, 20, 20),  # never more than the policy's most
])  # fmt: skip
def test_spares_needed(
    nodes: int, rate: float, refill_s: float, p: float, most: int, want: int
) -> None:
    assert spares_needed(nodes, rate, refill_s, p, most) == want


@settings(max_examples=200)
@given(nodes=st.integers(1, 5000), rate=st.floats(0, 0.05), refill=st.floats(0, 7200),
       p=st.floats(0.5, 0.999), most=st.integers(1, 300), up=st.floats(1, 3))  # fmt: skip
def test_spares_monotone_and_bounded(
    nodes: int, rate: float, refill: float, p: float, most: int, up: float
) -> None:
    base = spares_needed(nodes, rate, refill, p, most)
    assert 1 <= base <= most
    assert base <= spares_needed(nodes, rate * up, refill, p, most)
    assert base <= spares_needed(nodes, rate, refill * up, p, most)
    assert base <= spares_needed(int(nodes * up), rate, refill, p, most)
    assert base <= spares_needed(nodes, rate, refill, p, most + 1)

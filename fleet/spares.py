"""How many spares a promise needs.

Invariant: pure, monotone in the failure rate, the refill time and the promised probability.
"""

from __future__ import annotations

import math

#: More spares than this many times the pool is a wrong input, not an answer.
MAX_SPARES = 10_000


def poisson_quantile(mean: float, probability: float) -> int:
    """The smallest k with P(Poisson(mean) <= k) >= probability.

    ``mean`` >= 0, 0 < ``probability`` < 1. Summed in log space so that means of thousands work.
    """
    if mean < 0 or not 0 < probability < 1:
        raise ValueError(f"mean {mean} must be >= 0 and probability {probability} in (0, 1)")
    if mean == 0:
        return 0
    log_mean, total, k = math.log(mean), 0.0, 0
    while k < MAX_SPARES:
        total += math.exp(k * log_mean - mean - math.lgamma(k + 1))
        if total >= probability:
            return k
        k += 1
    return MAX_SPARES


def spares_needed(
    nodes: int, failures_per_node_hour: float, refill_s: float, probability: float, most: int
) -> int:
    """Spares so that with ``probability`` a fault finds one ready.

    While one spare is being refilled (``refill_s``, p95 of request to READY) the other faults of
    the pool arrive as a Poisson stream with mean nodes × rate × refill time (gpu-health.md 7.9);
    the quantile of that count is the answer, at most ``most`` and, for a pool with nodes, at
    least one.
    """
    if nodes <= 0 or most <= 0:
        return 0
    mean = nodes * failures_per_node_hour * refill_s / 3600.0
    return max(1, min(most, poisson_quantile(mean, probability)))

"""Hourly rollups of launches and health: what reports read instead of millions of rows.

Invariant: a launch is counted exactly once, in the transaction that closes it, so the rollup can
always be recomputed from the raw rows to the same figures (``recount``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import select
from sqlmodel import Session, col

from fleet.model import Outcome
from fleet.store.tables import HealthHour, LaunchDay, LaunchHour, LaunchRow

HOUR_S: Final = 3600
DAY_H: Final = 24
#: Buckets grow by 8 % each from 1 s: 160 of them reach 2.6 days, a quantile is off by ≤ 4 %.
GROWTH: Final = 1.08
BUCKETS: Final = 160


def bucket(seconds: float) -> int:
    """The histogram bucket of a duration in seconds."""
    if seconds <= 1.0:
        return 0
    return min(BUCKETS - 1, math.ceil(math.log(seconds) / math.log(GROWTH)))


def middle(index: int) -> float:
    """The duration a bucket stands for: its geometric middle, in seconds."""
    return 1.0 if index == 0 else float(GROWTH ** (index - 0.5))


def decode(text: str) -> dict[int, int]:
    """A sparse histogram from its stored form ``"12:3 13:1"``."""
    pairs = (item.split(":") for item in text.split())
    return {int(i): int(n) for i, n in pairs}


def encode(hist: dict[int, int]) -> str:
    """The stored form of a sparse histogram."""
    return " ".join(f"{i}:{n}" for i, n in sorted(hist.items()))


def merge(texts: Iterable[str]) -> dict[int, int]:
    """The sum of several stored histograms."""
    total: dict[int, int] = {}
    for text in texts:
        for i, n in decode(text).items():
            total[i] = total.get(i, 0) + n
    return total


def quantile(hist: dict[int, int], q: float) -> float | None:
    """The ``q`` quantile of a histogram in seconds, None when it is empty."""
    n = sum(hist.values())
    if n == 0:
        return None
    rank, seen = q * n, 0
    for i in sorted(hist):
        seen += hist[i]
        if seen >= rank:
            return middle(i)
    return middle(max(hist))


def count_launch(
    tx: Session, *, at: float, provider: str, region: str, market: str, outcome: Outcome,
    accepted: bool, boot_s: float | None,
) -> None:  # fmt: skip
    """Add one closed launch to its hour and its day."""
    hour = int(at // HOUR_S)
    key = (provider, region, market, str(outcome), accepted)
    what: dict[str, Any] = dict(
        zip(("provider", "region", "market", "outcome", "accepted"), key, strict=True)
    )
    per_hour = tx.get(LaunchHour, (hour, *key)) or LaunchHour(hour=hour, **what)
    day = hour // DAY_H
    per_day = tx.get(LaunchDay, (day, *key)) or LaunchDay(day=day, **what)
    for row in (per_hour, per_day):
        tx.add(row)
        row.n += 1
        if boot_s is not None:
            hist = decode(row.boot_hist)
            i = bucket(boot_s)
            hist[i] = hist.get(i, 0) + 1
            row.boot_hist, row.boot_s_sum = encode(hist), row.boot_s_sum + boot_s
    tx.flush()


def count_health(
    tx: Session, *, at: float, provider: str, region: str, gpu_s: float = 0.0,
    node_s: float = 0.0, fatal: int = 0, warning: int = 0, application: int = 0,
) -> None:  # fmt: skip
    """Add GPU time or fault events to their hour."""
    key = (int(at // HOUR_S), provider, region)
    row = tx.get(HealthHour, key)
    if row is None:
        row = HealthHour(hour=key[0], provider=provider, region=region)
        tx.add(row)
    row.gpu_s += gpu_s
    row.node_s += node_s
    row.fatal += fatal
    row.warning += warning
    row.application += application
    tx.flush()


def recount(tx: Session, since_hour: int) -> dict[tuple[int, str, str, str, str, bool], int]:
    """Counts recomputed from raw launches closed in or after ``since_hour``, for the audit."""
    rows = tx.execute(
        select(
            col(LaunchRow.ended_at), col(LaunchRow.provider), col(LaunchRow.region),
            col(LaunchRow.market), col(LaunchRow.outcome), col(LaunchRow.accepted_at),
        ).where(col(LaunchRow.ended_at) >= since_hour * HOUR_S)
    )  # fmt: skip
    counts: dict[tuple[int, str, str, str, str, bool], int] = {}
    for ended_at, provider, region, market, outcome, accepted_at in rows:
        key = (int(ended_at // HOUR_S), provider, region, market, outcome, accepted_at is not None)
        counts[key] = counts.get(key, 0) + 1
    return counts

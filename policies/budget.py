"""How many, and when: shares of a pool as counts, and windows in local time.

Invariant: pure; ``now`` is passed in (seconds since the epoch, UTC). A window opens at the first
instant at which the local clock reads its start or later, and closes at the first instant at which
it reads its end or later; so an hour that a clock change leaves out opens nothing, and one that it
repeats is not closed half-way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from policies.schema.pool import Window

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = timedelta(days=1)
#: Most windows that ``next_times`` answers with.
MAX_TIMES: Final = 50

Span = tuple[float, float]


def share_count(share: int | str, total: int, *, floor: int = 0, most: int | None = None) -> int:
    """``share`` of ``total`` as a count: an int is itself, ``"20%"`` is rounded up.

    The answer is at least ``floor`` and at most ``most``. Rounding up lets a pool of three lose
    one node under 10 % (public cases PC-070, PC-071). Raises ``ValueError`` for a text that is no
    percentage; validated policies have none.
    """
    if isinstance(share, int):
        found = share
    elif share.endswith("%"):
        # Exact in hundredths of a percent: 0.07 * 100 must not become 8.
        hundredths = round(float(share[:-1]) * 100)
        found = -(-hundredths * total // 10_000)
    else:
        raise ValueError(f"{share!r} is neither a count nor a percentage")
    found = max(floor, found)
    return found if most is None else min(most, found)


def allowed_at(windows: Sequence[Window], now_utc: float) -> bool:
    """True if ``now_utc`` lies in a window. With no window at all everything is allowed."""
    if not windows:
        return True
    return any(
        start <= now_utc < end for window in windows for start, end in _around(window, now_utc)
    )


def next_times(windows: Sequence[Window], now: float, n: int = 3) -> tuple[Span, ...]:
    """The next ``n`` times (opens, closes) in UTC seconds that end after ``now``.

    One that is open now comes first, with its past opening. Windows that touch or overlap are
    merged; windows that leave no gap at all give one span of some weeks. Empty for no windows:
    then everything is allowed.
    """
    n = min(n, MAX_TIMES)
    if n <= 0:
        return ()
    spans: list[Span] = []
    for window in windows:
        # Whatever is not open always has a gap a week: ten days back finds the opening of what is
        # open now, two weeks beyond n find n more, clock changes included.
        today = _local(window, now).date()
        for offset in range(-10, 7 * (n + 2)):
            span = _span(window, today + offset * _DAY)
            if span is not None:
                spans.append(span)
    return tuple(span for span in _merged(sorted(spans)) if span[1] > now)[:n]


def _merged(spans: list[Span]) -> Iterator[Span]:
    current: Span | None = None
    for start, end in spans:
        if current is None:
            current = (start, end)
        elif start <= current[1]:
            current = (current[0], max(current[1], end))
        else:
            yield current
            current = (start, end)
    if current is not None:
        yield current


def _around(window: Window, now: float) -> Iterator[Span]:
    """The spans of ``window`` that may contain ``now``: those of today and the days before."""
    today = _local(window, now).date()
    for offset in (-2, -1, 0):
        span = _span(window, today + offset * _DAY)
        if span is not None:
            yield span


def _local(window: Window, now: float) -> datetime:
    return datetime.fromtimestamp(now, ZoneInfo(window.tz))


def _span(window: Window, day: date) -> Span | None:
    """When ``window`` is open for its opening on ``day``; None where it does not open."""
    if _DAYS[day.weekday()] not in window.days:
        return None
    zone = ZoneInfo(window.tz)
    opens, closes = _wall(day, window.start), _wall(day, window.end)
    if closes <= opens:
        closes += _DAY
    start, end = _first_instant(opens, zone), _first_instant(closes, zone)
    return (start, end) if start < end else None


def _wall(day: date, clock: str) -> datetime:
    if clock == "24:00":
        return datetime.combine(day, time()) + _DAY
    return datetime.combine(day, time(int(clock[:2]), int(clock[3:])))


def _first_instant(wall: datetime, zone: ZoneInfo) -> float:
    """The first UTC second at which clocks in ``zone`` read ``wall`` or later."""
    early = _utc(wall, zone, fold=0)
    if _reads(early, zone) == wall:
        return early
    # ``wall`` is skipped. With fold=1 the later offset applies, which lies before the change.
    low, high = _utc(wall, zone, fold=1), early
    while high - low > 1:
        middle = math.floor((low + high) / 2)
        if _reads(middle, zone) >= wall:
            high = middle
        else:
            low = middle
    return high


def _utc(wall: datetime, zone: ZoneInfo, fold: int) -> float:
    return wall.replace(tzinfo=zone, fold=fold).timestamp()


def _reads(instant: float, zone: ZoneInfo) -> datetime:
    moment = datetime.fromtimestamp(instant, UTC).astimezone(zone)
    return moment.replace(tzinfo=None)

"""Shares as counts, and windows through clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.budget import allowed_at, next_times, share_count
from policies.schema import Window


def at(text: str) -> float:
    """UTC seconds of an ISO time without zone."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def window(days: str, start: str, end: str, tz: str) -> Window:
    """A window; days by blanks."""
    return Window(days=tuple(days.split()), start=start, end=end, tz=tz)  # type: ignore[arg-type]


def spans(windows: list[Window], now: str, n: int) -> list[str]:
    """Openings as ``from/to`` in UTC."""

    def show(t: float) -> str:
        return datetime.fromtimestamp(t, UTC).strftime("%m-%dT%H:%M")

    return [f"{show(a)}/{show(b)}" for a, b in next_times(windows, at(now), n)]


@pytest.mark.parametrize(
    ("share", "total", "floor", "most", "count"),
    [
        ("10%", 3, 0, None, 1), ("10%", 30, 0, None, 3), ("10%", 31, 0, None, 4),
        ("7%", 100, 0, None, 7), ("0%", 50, 0, None, 0), ("0%", 50, 1, None, 1),
        ("20%", 26, 1, 10, 6), ("20%", 500, 1, 10, 10), ("100%", 7, 0, None, 7),
        ("33.33%", 3, 0, None, 1), ("0.01%", 10_000, 0, None, 1), ("50%", 0, 0, None, 0),
        (3, 100, 0, None, 3), (0, 100, 1, None, 1), (5, 2, 0, None, 5), (5, 2, 0, 2, 2),
    ],
)  # fmt: skip
def test_share_count(
    share: int | str, total: int, floor: int, most: int | None, count: int
) -> None:
    """Rounded up, then at least, then at most (PC-070, PC-071)."""
    assert share_count(share, total, floor=floor, most=most) == count


def test_share_count_refuses_other_text() -> None:
    """Unvalidated text is a programmer's error."""
    with pytest.raises(ValueError, match="neither a count nor a percentage"):
        share_count("many", 3)


@given(st.integers(0, 100), st.integers(0, 20_000))
def test_share_is_monotone_and_bounded(percent: int, total: int) -> None:
    """Never more than all, never less than the exact share."""
    found = share_count(f"{percent}%", total)
    assert percent * total <= found * 100 < percent * total + 100
    assert found <= total


def test_no_window_allows_always_and_any_denies_outside() -> None:
    """field.md section 2: default deny outside windows if any window is set."""
    night = window("mon", "22:00", "06:00", "UTC")
    assert allowed_at([], at("2026-01-01T12:00"))
    assert next_times([], at("2026-01-01T12:00")) == ()
    assert not allowed_at([night], at("2026-01-05T21:59:59"))  # a Monday
    assert allowed_at([night], at("2026-01-05T22:00"))
    assert allowed_at([night], at("2026-01-06T05:59:59"))
    assert not allowed_at([night], at("2026-01-06T06:00"))
    assert not allowed_at([night], at("2026-01-05T03:00")), "Sunday night is not listed"


@pytest.mark.parametrize(
    ("days", "start", "end", "tz", "now", "expected"),
    [
        # the hour that does not exist opens nothing: Berlin skips 02:00-03:00 on 29 March 2026
        ("sun", "02:00", "03:00", "Europe/Berlin", "2026-03-28T00:00", ["04-05T00:00/04-05T01:00"]),
        # a window that ends in the skipped hour closes at the change
        ("sun", "00:30", "02:30", "Europe/Berlin", "2026-03-28T00:00", ["03-28T23:30/03-29T01:00"]),
        # one that starts in it opens at the change
        ("sun", "02:30", "04:00", "Europe/Berlin", "2026-03-28T00:00", ["03-29T01:00/03-29T02:00"]),
        # one across it is an hour shorter
        ("sat", "22:00", "06:00", "Europe/Berlin", "2026-03-28T00:00", ["03-28T21:00/03-29T04:00"]),
        # the hour that comes twice: New York repeats 01:00-02:00 on 1 November 2026
        ("sun", "01:00", "02:00", "America/New_York", "2026-10-31T12:00",
         ["11-01T05:00/11-01T07:00"]),
        ("sun", "01:15", "01:45", "America/New_York", "2026-10-31T12:00",
         ["11-01T05:15/11-01T05:45"]),
        ("sat", "20:00", "04:00", "America/New_York", "2026-10-31T12:00",
         ["11-01T00:00/11-01T09:00"]),
        # half-hour changes and odd offsets
        ("sun", "02:00", "02:30", "Australia/Lord_Howe", "2026-10-03T00:00",
         ["10-10T15:00/10-10T15:30"]),
        ("thu", "09:00", "17:00", "Asia/Kathmandu", "2026-01-01T00:00",
         ["01-01T03:15/01-01T11:15"]),
        # Samoa left out Friday, 30 December 2011 altogether
        ("fri", "10:00", "12:00", "Pacific/Apia", "2011-12-28T00:00",
         ["01-05T20:00/01-05T22:00"]),
        # a whole day, two ways
        ("mon", "00:00", "24:00", "UTC", "2026-01-01T00:00", ["01-05T00:00/01-06T00:00"]),
        ("mon", "07:00", "07:00", "UTC", "2026-01-01T00:00", ["01-05T07:00/01-06T07:00"]),
    ],
)  # fmt: skip
def test_clock_changes(
    days: str, start: str, end: str, tz: str, now: str, expected: list[str]
) -> None:
    """Opens and closes at the first instant the local clock reads so or later."""
    assert spans([window(days, start, end, tz)], now, 1) == expected


def test_next_times_merges_and_includes_the_open_one() -> None:
    """Touching windows are one; what is open now comes first with its past start."""
    windows = [
        window("mon tue", "00:00", "24:00", "UTC"),
        window("wed", "10:00", "12:00", "UTC"),
        window("wed", "11:00", "13:00", "UTC"),
    ]
    assert spans(windows, "2026-01-06T05:00", 3) == [
        "01-05T00:00/01-07T00:00",
        "01-07T10:00/01-07T13:00",
        "01-12T00:00/01-14T00:00",
    ]
    assert next_times(windows, at("2026-01-06T05:00"), 0) == ()


ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia",
     "America/St_Johns", "Asia/Tehran", "Africa/Casablanca"]
)  # fmt: skip
CLOCKS = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.sampled_from([0, 1, 15, 30, 59]))
DAYS = st.lists(
    st.sampled_from(["mon", "tue", "wed", "thu", "fri", "sat", "sun"]),
    min_size=1, max_size=7, unique=True,
)  # fmt: skip
WINDOWS = st.builds(
    lambda days, start, end, tz: window(" ".join(days), start, end, tz), DAYS, CLOCKS, CLOCKS, ZONES
)


@given(st.lists(WINDOWS, min_size=1, max_size=3), st.integers(1_700_000_000, 1_900_000_000))
def test_allowed_at_and_next_times_agree(windows: list[Window], now: int) -> None:
    """Inside exactly the spans told, which are in order and apart."""
    told = next_times(windows, now, 3)
    assert allowed_at(windows, now) == (told[0][0] <= now < told[0][1])
    if told[0][1] - told[0][0] > 8 * 86_400:
        return  # no gap at all
    assert len(told) == 3
    for start, end in told:
        assert start < end
        assert allowed_at(windows, start)
        assert allowed_at(windows, end - 1)
        assert not allowed_at(windows, start - 1)
    assert all(a[1] < b[0] for a, b in pairwise(told))

"""How numbers and times are said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.api import say
from fleet.api.problems import Refusal
from fleet.api.where import parse


@pytest.mark.parametrize(
    "seconds, age, dur",
    [
        (None, "-", "-"), (0, "0s", "0s"), (45, "45s", "45s"), (370, "6m", "6m10s"),
        (11100, "3h", "3h05m"), (12 * 86400 + 4 * 3600, "12d", "12d 4h"), (-5, "0s", "0s"),
    ],
)  # fmt: skip
def test_ages(seconds: float | None, age: str, dur: str) -> None:
    assert say.age(seconds) == age
    assert say.dur(seconds) == dur


@pytest.mark.parametrize(
    "text, seconds",
    [("90", 90), ("90s", 90), ("10m", 600), ("24h", 86400), ("1h30m", 5400), ("7d", 604800),
     ("", None), ("m", None), ("10x", None), ("1h 30m", None), ("-5", None)],
)  # fmt: skip
def test_spans(text: str, seconds: float | None) -> None:
    assert say.span_s(text) == seconds


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_wilson_holds_the_share(k: int, n: int) -> None:
    k = min(k, n)
    found = say.wilson(k, n)
    assert found is not None
    low, high = found
    assert 0 <= low <= k / n <= high <= 1 or pytest.approx(k / n) in (low, high)


def test_wilson_against_the_textbook() -> None:
    """10 of 10: (0.722, 1); 1 of 10: (0.018, 0.404), Brown, Cai, DasGupta 2001."""
    low, high = say.wilson(10, 10) or (0, 0)
    assert (round(low, 3), round(high, 3)) == (0.722, 1.0)
    low, high = say.wilson(1, 10) or (0, 0)
    assert (round(low, 3), round(high, 3)) == (0.018, 0.404)
    assert say.wilson(0, 0) is None


@given(st.floats(-6e9, 1e11))
def test_times_come_back(at: float) -> None:
    text = say.rfc3339(at)
    assert text is not None
    assert text.endswith("Z")
    assert say.from_rfc3339(text) == pytest.approx(at, abs=0.001)


TYPES = {"name": "text", "boot_s": "number", "at": "time", "cordoned": "bool"}
ITEM = {"name": "n-1", "boot_s": 700.0, "at": "2026-12-01T12:00:00.000Z", "cordoned": False}


@pytest.mark.parametrize(
    "where, hit",
    [
        ("boot_s>600", True), ("boot_s>10m", True), ("boot_s<=699.9", False),
        ("boot-s > 600 and name=n-1", True), ("name~N-", True), ("name!=n-1", False),
        ("at>2026-11-30 and at<2026-12-02", True), ("cordoned=false", True),
        ("cordoned=true or (name='n-1' and not boot_s=1)", True), ("boot_s!=null", True),
        ("name=null", False), ('name="n-1"', True), ("boot_s=7e2", True),
    ],
)  # fmt: skip
def test_where(where: str, hit: bool) -> None:
    assert parse(where, TYPES)(ITEM) is hit


@given(st.text(max_size=60))
def test_where_never_does_anything_but_filter_or_refuse(text: str) -> None:
    try:
        test = parse(text, TYPES)
    except Refusal as refusal:
        assert refusal.code in ("bad_filter", "unknown_column")
    else:
        assert test(ITEM) in (True, False)

"""Public cases of the area time: windows are allow-lists in the pool's own time zone."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from fleet.errors import InputError
from policies.budget import allowed_at, next_times
from policies.load import load_text
from policies.schema.pool import Window

BERLIN = "Europe/Berlin"
HOUR_S = 3600.0


def window(days: str, start: str, end: str, tz: str = BERLIN) -> Window:
    return Window.model_validate({"days": days.split(), "start": start, "end": end, "tz": tz})


def at(text: str, tz: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()


def test_windows_allow_and_everything_else_is_denied() -> None:
    """PC-092, PC-094: one plain window denies all the rest of the week; none at all allows all."""
    night = [window("mon tue wed thu fri", "02:00", "05:00")]
    allowed = [h for h in range(24 * 7) if allowed_at(night, at("2026-03-02T00:30") + h * HOUR_S)]
    assert allowed == [24 * d + h for d in range(5) for h in (2, 3, 4)]
    assert allowed_at([], at("2026-03-02T12:00"))


def test_the_next_three_times_can_be_told() -> None:
    """PC-091: what an operator is shown when a schedule is applied."""
    times = next_times([window("sat", "22:00", "02:00")], at("2026-03-02T12:00"))
    assert [s for s, _ in times] == [at(f"2026-03-{d:02d}T22:00") for d in (7, 14, 21)]
    assert {e - s for s, e in times} == {4 * HOUR_S}


@pytest.mark.parametrize(
    ("tz", "utc_hour"), [("UTC", 2), (BERLIN, 1), ("Asia/Tokyo", 17), ("America/Los_Angeles", 10)]
)
def test_the_zone_is_the_windows_own(tz: str, utc_hour: int) -> None:
    """PC-095: not the container's TZ."""
    every = "mon tue wed thu fri sat sun"
    (opens, _), *_ = next_times([window(every, "02:00", "03:00", tz)], at("2026-01-14T00:00", tz))
    assert datetime.fromtimestamp(opens, ZoneInfo("UTC")).hour == utc_hour


def test_clock_changes_neither_lose_nor_double_a_window() -> None:
    """PC-095: spring's missing hour opens late or not; autumn's is not closed half-way."""
    spring = next_times([window("sun", "02:30", "04:00")], at("2026-03-28T12:00"), 1)
    assert spring == ((at("2026-03-29T03:00"), at("2026-03-29T04:00")),)
    autumn = next_times([window("sun", "01:30", "03:30")], at("2026-10-24T12:00"), 1)
    assert autumn[0][1] - autumn[0][0] == 3 * HOUR_S


@pytest.mark.parametrize(
    ("bad", "says"),
    [("days: [noday], start: '02:00', end: '05:00', tz: UTC", "days"),
     ("days: [mon], start: '2 am', end: '05:00', tz: UTC", "start"),
     ("days: [mon], start: '02:00', end: '05:00', tz: Europe/Berlinn", "tz"),
     ("cron: '0 2 * * *'", "cron")],
)  # fmt: skip
def test_a_bad_schedule_is_refused_with_file_and_line(bad: str, says: str) -> None:
    """PC-091: several windows, one of them wrong: the place is named, not a parser's mood."""
    text = f"""\
apiVersion: fleetd/v1
kind: Pool
metadata: {{name: train}}
spec:
  gpu: H100
  gpus_per_node: 8
  nodes: 1
  image: gpu-base@v1
  offers: [{{provider: aws, region: us-east-1, type: p5.48xlarge}}]
  disruption:
    windows:
      - {{days: [sat], start: '02:00', end: '05:00', tz: UTC}}
      - {{{bad}}}
"""
    with pytest.raises(InputError) as caught:
        load_text(text, "pool.yaml")
    words = [str(p) for p in caught.value.problems]
    assert any("pool.yaml:13" in w and says in w for w in words), words

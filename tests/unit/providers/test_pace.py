"""Pacing on virtual time: order, burst, refill, what a throttle does (PC-076)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fleet.errors import Throttled
from providers.pace import (
    FLOOR,
    HALVE_EVERY_S,
    Bucket,
    FairThrottler,
    Lane,
    Lanes,
    Pace,
    Plain,
    TokenBucket,
    build,
)

Virtual = Callable[[Any], Any]


async def arrivals(pace: Pace, n: int, cost: float = 1.0) -> list[tuple[int, float]]:
    """Who passed when, for ``n`` tasks that arrive together in order."""
    loop, passed = asyncio.get_running_loop(), list[tuple[int, float]]()

    async def one(i: int) -> None:
        await pace.acquire(cost)
        passed.append((i, round(loop.time(), 3)))

    await asyncio.gather(*(one(i) for i in range(n)))
    return passed


@pytest.mark.parametrize("rate", [Bucket(burst=5, refill_per_s=2), Plain(limit=5, period_s=2.0)])
def test_first_come_first_served(virtual: Virtual, rate: Bucket | Plain) -> None:
    """Nobody overtakes, however many wait."""
    passed = virtual(arrivals(build(rate), 60))
    assert [i for i, _ in passed] == list(range(60))


def test_bucket_gives_its_burst_then_its_refill(virtual: Virtual) -> None:
    """EC2's RunInstances: five at once, then one each half second."""
    times = [t for _, t in virtual(arrivals(TokenBucket(5, 2), 9))]
    assert times == [0, 0, 0, 0, 0, 0.5, 1.0, 1.5, 2.0]


def test_window_never_holds_more_than_its_limit(virtual: Virtual) -> None:
    """No window of the period, wherever it starts, has more than ``limit`` calls."""
    times = [t for _, t in virtual(arrivals(FairThrottler(3, 1.0), 10))]
    assert times == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


def test_cost_above_the_burst_passes_and_leaves_a_debt(virtual: Virtual) -> None:
    """A batch larger than the bucket is slow, never stuck."""
    times = [t for _, t in virtual(arrivals(TokenBucket(10, 1), 2, cost=25))]
    assert times == [0, 25]


def test_waiting_costs_no_polling(virtual: Virtual, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter sleeps once: 2,000 of them make about as many timers, not millions."""

    async def main() -> int:
        loop, sleeps = asyncio.get_running_loop(), 0
        call_at = loop.call_at

        def counted(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            nonlocal sleeps
            sleeps += 1
            return call_at(*args, **kwargs)

        monkeypatch.setattr(loop, "call_at", counted)
        await arrivals(TokenBucket(1, 100), 2000)
        return sleeps

    assert virtual(main()) <= 2100


@pytest.mark.parametrize("pace", [lambda: TokenBucket(10, 10), lambda: FairThrottler(10, 1.0)])
def test_throttle_halves_and_a_minute_brings_back_a_tenth(
    virtual: Virtual, pace: Callable[[], Pace]
) -> None:
    """Half the rate at once; 60 % after a minute; all of it after five."""

    async def per_10_s(p: Pace) -> int:
        loop = asyncio.get_running_loop()
        end, n = loop.time() + 10, 0
        while loop.time() < end - 1e-6:
            await p.acquire()
            n += 1
        return n

    async def main() -> list[int]:
        p = pace()
        await arrivals(p, 10)
        counts = [await per_10_s(p)]
        p.throttled()
        counts.append(await per_10_s(p))
        for minutes in (1, 4):
            await asyncio.sleep(60 * minutes - 10)
            await arrivals(p, 10)  # drink the burst that gathered while nobody asked
            counts.append(await per_10_s(p))
        return counts

    full, half, minute, five = virtual(main())
    assert full == pytest.approx(100, abs=10)  # a window is let in by the second
    assert half == pytest.approx(50, abs=6)
    assert minute == pytest.approx(60, abs=8)
    assert five == pytest.approx(100, abs=10)


def test_many_throttles_at_once_halve_once_and_never_below_the_floor(virtual: Virtual) -> None:
    """PC-076: one refusal seen by 70 callers is one refusal."""

    async def main() -> tuple[float, float]:
        p, loop = TokenBucket(1, 16), asyncio.get_running_loop()

        async def gap() -> float:
            await p.acquire()
            before = loop.time()
            await p.acquire()
            return loop.time() - before

        for _ in range(70):
            p.throttled()
        once = await gap()
        for _ in range(40):
            await asyncio.sleep(HALVE_EVERY_S)
            p.throttled()
        return once, await gap()

    once, often = virtual(main())
    assert once == pytest.approx(2 / 16, rel=0.01)
    assert often == pytest.approx(1 / 16 / FLOOR, rel=0.05)


def test_lane_counts_calls_and_instances(virtual: Virtual) -> None:
    """EC2's two buckets hold together: 5 calls at once, but only 100 instances here."""
    rates = [Bucket(burst=5, refill_per_s=2), Bucket(burst=100, refill_per_s=10, per_item=True)]

    async def main() -> list[float]:
        lane, loop, times = Lane(rates), asyncio.get_running_loop(), list[float]()
        for _ in range(4):
            await lane.enter(50)
            times.append(round(loop.time(), 3))
        return times

    assert virtual(main()) == [0, 0, 5, 10]


def test_full_lane_refuses(virtual: Virtual) -> None:
    """A line has an end: the caller hears Throttled and comes back later."""

    async def main() -> str:
        lane = Lane([Bucket(burst=1, refill_per_s=0.001)], max_waiting=3)
        tasks = [asyncio.ensure_future(lane.enter()) for _ in range(4)]
        await asyncio.sleep(1)
        with pytest.raises(Throttled) as e:
            await lane.enter()
        for t in tasks:
            t.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert lane.waiting == 0
        return e.value.code

    assert virtual(main()) == "PaceFull"


def test_cancelled_waiter_does_not_block_those_behind(virtual: Virtual) -> None:
    """The line closes up."""

    async def main() -> float:
        lane, loop = Lane([Bucket(burst=1, refill_per_s=1)]), asyncio.get_running_loop()
        await lane.enter()
        first = asyncio.ensure_future(lane.enter())
        second = asyncio.ensure_future(lane.enter())
        await asyncio.sleep(0.25)
        first.cancel()
        await second
        return loop.time()

    assert virtual(main()) == pytest.approx(1.0)


def test_lanes_are_apart_by_region_and_class(virtual: Virtual) -> None:
    """One region's throttle slows no other; a class without rates waits for nothing."""

    async def main() -> float:
        lanes = Lanes({"create": [Bucket(burst=1, refill_per_s=0.01)]})
        await lanes.lane("create", "a").enter()
        await lanes.lane("create", "b").enter()
        for _ in range(100):
            await lanes.lane("list", "a").enter()
        assert lanes.lane("create", "a") is lanes.lane("create", "a")
        return asyncio.get_running_loop().time()

    assert virtual(main()) == 0.0

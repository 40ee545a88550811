"""Virtual, scaled and real time, clock jumps, and repeatable chance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.clock import (
    JUMP_S,
    LoopClock,
    ScaledLoop,
    SeededChance,
    SystemChance,
    VirtualClock,
    VirtualLoop,
)
from fleet.errors import Deadlock

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

T = TypeVar("T")


def run(
    work: Coroutine[Any, Any, T], loop: Callable[[], asyncio.AbstractEventLoop] = VirtualLoop
) -> T:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)


def test_virtual_time_jumps_to_the_next_timer() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, loop.time()))

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("week", 604_800.0), ("day", 86_400.0), ("now", 0.0)):
                group.create_task(sleeper(name, seconds))
        return seen

    assert run(main()) == [("now", 0.0), ("day", 86_400.0), ("week", 604_800.0)]


@settings(max_examples=30)
@given(delays=st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_timers_fire_in_order_and_not_early(delays: list[float]) -> None:
    async def main() -> list[tuple[float, float]]:
        loop = asyncio.get_running_loop()
        fired: list[tuple[float, float]] = []
        for d in delays:
            loop.call_later(d, lambda d=d: fired.append((d, loop.time())))
        await asyncio.sleep(max(delays) + 1)
        return fired

    fired = run(main())
    assert [d for d, _ in fired] == sorted(delays)
    # asyncio runs what is due within its clock resolution, here a nanosecond or so
    assert all(at >= d - 1e-6 for d, at in fired)


def test_time_outs_are_virtual() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.sleep(7200)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(3600)


def test_waiting_for_ever_is_a_deadlock() -> None:
    with pytest.raises(Deadlock), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.Event().wait())


def test_a_virtual_clock_has_an_epoch_and_both_kinds_of_time() -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop(), epoch=1000.0)
        assert (clock.now(), clock.monotonic()) == (1000.0, 0.0)
        await clock.sleep(5)
        assert (clock.now(), clock.monotonic()) == (1005.0, 5.0)
        await clock.sleep(-3)
        assert clock.monotonic() == 5.0

    run(main())


@settings(max_examples=50)
@given(step=st.floats(-1e6, 1e6), wait=st.floats(0, 1e5))
def test_a_step_of_the_wall_clock_is_reported_once_and_then_adopted(
    step: float, wait: float
) -> None:
    """PC-208: both directions; durations never see it."""

    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        before, mono = clock.now(), clock.monotonic()
        clock.skew_s = step
        await clock.sleep(wait)
        assert clock.monotonic() - mono == pytest.approx(wait)
        assert clock.now() - before == pytest.approx(wait, abs=1e-3), "not obeyed before reported"
        found = clock.jump_s()
        if abs(step) > JUMP_S + 1e-3:
            assert found == pytest.approx(step, abs=1e-3)
            assert clock.now() - before == pytest.approx(wait + step, abs=1e-3)
        elif abs(step) < JUMP_S - 1e-3:
            assert found == 0.0
        assert clock.jump_s() == 0.0

    run(main())


def test_small_drift_is_no_jump() -> None:
    async def main() -> list[float]:
        clock = VirtualClock(asyncio.get_running_loop())
        clock.now()
        found = []
        for i in range(100):
            clock.skew_s = 0.04 * i  # 40 ms an hour
            await clock.sleep(3600)
            found.append(clock.jump_s())
        return found

    assert run(main()) == [0.0] * 100


def test_steps_that_add_up_are_found() -> None:
    async def main() -> list[float]:
        clock = VirtualClock(asyncio.get_running_loop())
        clock.now()
        found = []
        for skew in (4.0, 8.0, 8.0, 2.0):
            clock.skew_s = skew
            found.append(round(clock.jump_s(), 6))
        return found

    assert run(main()) == [0.0, 8.0, 0.0, -6.0]


def test_a_cancelled_sleep_ends() -> None:
    async def main() -> float:
        clock = LoopClock(lambda: 0.0)
        task = asyncio.create_task(clock.sleep(1e9))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.get_running_loop().time()

    assert run(main()) == 1.0


def test_scaled_time_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour at a million to one, measured on a clock of the test's own."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks) * 1e-4)

    async def main() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - start

    assert run(main(), lambda: ScaledLoop(1e6)) >= 3600


# -- chance --------------------------------------------------------------------------------------


@given(seed=st.integers() | st.text())
def test_one_seed_one_run(seed: int | str) -> None:
    def draw(chance: SeededChance) -> list[Any]:
        return [chance.random(), chance.uniform(3, 4), chance.token(), chance.ident("n"),
                chance.uuid(), chance.token(8)]  # fmt: skip

    first = draw(SeededChance(seed))
    assert first == draw(SeededChance(seed))
    assert first != draw(SeededChance(f"other {seed}"))


@pytest.mark.parametrize("chance", [SystemChance(), SeededChance(1)])
def test_shapes(chance: SystemChance | SeededChance) -> None:
    assert 0 <= chance.random() < 1
    assert 3 <= chance.uniform(3, 4) <= 4
    assert chance.ident("n").startswith("n-")
    assert len(chance.ident("b", 12)) == 2 + 24
    assert UUID(chance.uuid()).version == 4
    assert len(chance.token()) >= 43
    assert len({chance.ident("n") for _ in range(100)}) == 100

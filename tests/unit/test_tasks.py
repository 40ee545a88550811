"""Driver, Tasks and Effects on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.clock import SeededChance, VirtualClock, VirtualLoop
from fleet.errors import StoreBroken
from fleet.tasks import FATAL_FAILURES, JITTER, MAX_BACKOFF_S, Driver, Effects, Status, Tasks

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def now() -> float:
    return asyncio.get_running_loop().time()


class Job:
    """A task whose pass is a function of its number."""

    name = "job"

    def __init__(self, what: Callable[[int], Coroutine[Any, Any, None] | None] | None = None,
                 period_s: float = 10.0) -> None:  # fmt: skip
        self.period_s = period_s
        self.at: list[float] = []
        self._what = what

    async def run(self) -> None:
        self.at.append(now())
        work = self._what(len(self.at)) if self._what else None
        if work is not None:
            await work


def driver(job: Job) -> Driver:
    return Driver(job, VirtualClock(asyncio.get_running_loop()), SeededChance(7))


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_passes_come_every_period_with_jitter() -> None:
    async def main() -> list[float]:
        job = Job()
        d = driver(job)
        task = asyncio.create_task(d.run_forever())
        await asyncio.sleep(1000)
        await stopped(task)
        assert d.status.passes == len(job.at)
        assert d.status.failures == 0
        return job.at

    at = run(main())
    gaps = [b - a for a, b in pairwise(at)]
    assert at[0] == 0.0
    assert all(10 * (1 - JITTER) <= g <= 10 * (1 + JITTER) for g in gaps)
    assert len(set(gaps)) > 10


def test_wakes_are_one_pass_and_none_is_lost() -> None:
    async def main() -> list[float]:
        job = Job(lambda n: asyncio.sleep(5), period_s=1000)
        d = driver(job)
        task = asyncio.create_task(d.run_forever())
        await asyncio.sleep(2)
        for _ in range(50):
            d.wake()  # during the first pass: one more directly after it
        await asyncio.sleep(18)
        d.wake()  # while it rests
        d.wake()
        await asyncio.sleep(100)
        await stopped(task)
        return job.at

    assert run(main()) == [0.0, 5.0, 20.0]


def test_a_failing_pass_backs_off_and_recovers() -> None:
    def what(n: int) -> None:
        if n <= 9:
            raise ValueError(f"no {n}")

    async def main() -> tuple[list[float], Status]:
        job = Job(what)
        d = driver(job)
        task = asyncio.create_task(d.run_forever())
        await asyncio.sleep(200)
        during = (d.status.failures_in_row, d.status.last_error)
        assert during == (9, "ValueError: no 9")
        await asyncio.sleep(50)
        await stopped(task)
        return job.at, d.status

    at, status = run(main())
    gaps = [b - a for a, b in pairwise(at)][:8]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60]
    assert max(gaps) == MAX_BACKOFF_S
    assert (status.failures, status.failures_in_row, status.last_error) == (9, 0, "")


def test_too_many_failures_in_a_row_end_the_task() -> None:
    def what(n: int) -> None:
        raise ValueError(n)

    async def main() -> int:
        job = Job(what)
        died: list[tuple[str, BaseException | None]] = []
        tasks = Tasks(lambda name, error: died.append((name, error)))
        tasks.start("job", driver(job).run_forever())
        await asyncio.sleep(10_000)
        assert [(n, type(e)) for n, e in died] == [("job", ValueError)]
        return len(job.at)

    assert run(main()) == FATAL_FAILURES


def test_a_broken_store_ends_the_task_at_once() -> None:
    def what(n: int) -> None:
        raise StoreBroken("disk I/O error")

    async def main() -> None:
        await driver(Job(what)).run_forever()

    with pytest.raises(StoreBroken):
        run(main())


def test_cancellation_is_not_swallowed_in_a_pass_nor_in_a_rest() -> None:
    async def main() -> None:
        for seconds in (1, 50):  # during the pass, then during the rest
            d = driver(Job(lambda n: asyncio.sleep(20), period_s=1000))
            task = asyncio.create_task(d.run_forever())
            await asyncio.sleep(seconds)
            await stopped(task)
            assert d.status.failures == 0

    run(main())


def test_a_cancelled_inner_task_is_a_failure_and_not_the_end_of_the_driver() -> None:
    """CancelledError that nobody asked of us must not leave half a daemon."""

    async def inner() -> None:
        sub = asyncio.create_task(asyncio.sleep(100))
        sub.cancel()
        await sub

    async def main() -> tuple[int, int]:
        job = Job(lambda n: inner() if n == 1 else None)
        d = driver(job)
        died: list[str] = []
        tasks = Tasks(lambda name, error: died.append(name))
        tasks.start("job", d.run_forever())
        await asyncio.sleep(60)
        await tasks.stop()
        assert died == []
        return d.status.failures, len(job.at)

    failures, passes = run(main())
    assert failures == 1
    assert passes > 3


def test_lateness() -> None:
    status = Status("x", 10.0, started_at=100.0)
    assert status.late_s(105.0) == 0.0
    assert status.late_s(115.0) == 5.0
    status.last_ok_at = 200.0
    assert status.late_s(211.0) == 1.0


# -- Tasks ---------------------------------------------------------------------------------------


def test_on_death_hears_of_ends_and_errors_but_not_of_stop() -> None:
    async def main() -> list[tuple[str, str]]:
        died: list[tuple[str, str]] = []
        tasks = Tasks(lambda name, error: died.append((name, repr(error))))

        async def ends() -> None:
            await asyncio.sleep(1)

        async def fails() -> None:
            await asyncio.sleep(2)
            raise RuntimeError("no")

        async def stays() -> None:
            await asyncio.Event().wait()

        tasks.start("ends", ends())
        tasks.start("fails", fails())
        stay = tasks.start("stays", stays())
        await asyncio.sleep(3)
        await tasks.stop()
        assert stay.cancelled()
        return died

    assert run(main()) == [("ends", "None"), ("fails", "RuntimeError('no')")]


# -- Effects -------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(limit=st.integers(1, 4), plan=st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from(("aws", "gcp")), st.integers(1, 9),
              st.booleans()), max_size=30))  # fmt: skip
def test_one_effect_per_key_and_at_most_limit_per_group(
    limit: int, plan: list[tuple[str, str, int, bool]]
) -> None:
    async def main() -> None:
        running: dict[tuple[str, str], int] = {}
        done = 0

        def on_done() -> None:
            nonlocal done
            done += 1

        effects = Effects(limit, on_done)
        started = 0
        for key, group, seconds, fails in plan:

            async def work(
                key: str = key, group: str = group, seconds: int = seconds, fails: bool = fails
            ) -> None:
                running[(key, group)] = running.get((key, group), 0) + 1
                assert sum(n for (k, _), n in running.items() if k == key) == 1
                assert sum(n for (_, g), n in running.items() if g == group) <= limit
                await asyncio.sleep(seconds)
                running[(key, group)] -= 1
                if fails:
                    raise RuntimeError("the cloud is down")

            before = (key in effects, effects.free(group))
            took = effects.start(key, group, work)
            assert took == (not before[0] and before[1] > 0)
            started += took
            await asyncio.sleep(1)
        await asyncio.sleep(20)
        assert done == started
        assert (effects.free("aws"), effects.free("gcp")) == (limit, limit)
        assert not any(key in effects for key in "abcdef")

    run(main())


def test_stop_gives_grace_and_then_cancels() -> None:
    async def main() -> tuple[list[str], float]:
        ended: list[str] = []
        effects = Effects(10, lambda: None)

        async def work(name: str, seconds: float) -> None:
            try:
                await asyncio.sleep(seconds)
                ended.append(f"{name} done")
            except asyncio.CancelledError:
                ended.append(f"{name} cancelled")
                raise

        effects.start("short", "g", lambda: work("short", 3))
        effects.start("long", "g", lambda: work("long", 300))
        await asyncio.sleep(0)
        await effects.stop(10)
        await effects.stop(10)
        return ended, now()

    assert run(main()) == (["short done", "long cancelled"], 10.0)

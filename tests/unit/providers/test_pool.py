"""Daemon threads for SDKs that block. Real threads, gates instead of sleeps."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from fleet.errors import Unavailable
from providers.pool import BlockingPool


def test_at_most_so_many_threads_and_all_of_them_daemons() -> None:
    """Thirty calls, four threads: four run together, none more."""
    barrier, names = threading.Barrier(4), set[str]()

    def work() -> int:
        names.add(threading.current_thread().name)
        assert threading.current_thread().daemon
        barrier.wait(10)
        return 1

    async def main() -> int:
        pool = BlockingPool("aws-call", threads=4)
        total = sum(await asyncio.gather(*(pool.run(work) for _ in range(32))))
        pool.close()
        return total

    assert asyncio.run(main()) == 32
    assert names == {f"aws-call-{i}" for i in range(4)}


def test_exceptions_come_back() -> None:
    """Even those that end threads elsewhere."""

    def leave() -> None:
        raise SystemExit(3)

    async def main() -> None:
        pool = BlockingPool("p", threads=1)
        with pytest.raises(Unavailable, match="SystemExit"):
            await pool.run(leave)
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        assert await pool.run(lambda: 5) == 5

    asyncio.run(main())


def test_cancelled_before_its_turn_never_runs_and_running_work_goes_on() -> None:
    """So a cancelled create that had started is ambiguous."""
    started, release, ended, ran = (threading.Event() for _ in range(4))

    def slow() -> None:
        started.set()
        release.wait(10)
        ended.set()

    async def main() -> None:
        pool = BlockingPool("p", threads=1)
        first = asyncio.ensure_future(pool.run(slow))
        second = asyncio.ensure_future(pool.run(ran.set))
        while not started.is_set():  # noqa: ASYNC110 — a thread's event
            await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert not ended.is_set()
        release.set()
        assert await pool.run(lambda: 7) == 7
        assert ended.is_set()
        assert not ran.is_set()

    asyncio.run(main())


def test_full_and_closed_pools_refuse() -> None:
    """A queue has an end."""
    release = threading.Event()

    async def main() -> list[str]:
        pool = BlockingPool("p", threads=1, max_waiting=2)
        tasks = [asyncio.ensure_future(pool.run(lambda: release.wait(10)))]
        await asyncio.sleep(0)
        codes = list[str]()
        while not codes:  # the first job leaves the queue when its thread has started
            tasks.append(asyncio.ensure_future(pool.run(lambda: release.wait(10))))
            await asyncio.sleep(0)
            codes = [
                e.code for t in tasks if t.done() and isinstance(e := t.exception(), Unavailable)
            ]
        pool.close()
        release.set()
        with pytest.raises(Unavailable) as refused:
            await pool.run(lambda: None)
        await asyncio.gather(*tasks, return_exceptions=True)
        return [*codes, refused.value.code]

    assert asyncio.run(main()) == ["PoolFull", "PoolClosed"]


def test_a_hung_call_does_not_keep_the_process_alive() -> None:
    """The interpreter joins ThreadPoolExecutor's threads at exit; ours it lets go."""
    code = (
        "import asyncio, threading\n"
        "from providers.pool import BlockingPool\n"
        "async def main():\n"
        "    gate = threading.Event()\n"
        "    started = threading.Event()\n"
        "    def hang():\n"
        "        started.set()\n"
        "        gate.wait()\n"
        "    task = asyncio.ensure_future(BlockingPool('p').run(hang))\n"
        "    while not started.is_set():\n"
        "        await asyncio.sleep(0)\n"
        "asyncio.run(main())\n"
        "print('end')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr

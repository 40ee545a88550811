"""Threads for SDKs that block.

Invariant: at most ``threads`` calls of one provider run at once, at most ``max_waiting`` wait, and
no thread of ours ever keeps the process alive: the threads are daemons, unlike those of
``ThreadPoolExecutor``, which the interpreter joins at exit. ``asyncio.to_thread`` is never used:
its pool has six threads on two cores and is shared by everything (clouds.md 0.3).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from fleet.errors import Unavailable

T = TypeVar("T")
MAX_WAITING = 1000


class BlockingPool:
    """Runs blocking calls in named daemon threads, started as they are needed."""

    def __init__(self, name: str, threads: int = 16, max_waiting: int = MAX_WAITING) -> None:
        self._name = name
        self._max_threads = threads
        self._max_waiting = max_waiting
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._idle = 0
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises.

        Cancelling stops work that has not started; work that runs goes on to its end and its
        result is dropped, so a cancelled create is ambiguous. Raises Unavailable when the pool is
        closed or more than ``max_waiting`` jobs wait.
        """
        if self._closed or self._jobs.qsize() >= self._max_waiting:
            state = "closed" if self._closed else "full"
            raise Unavailable(f"thread pool {self._name} is {state}", code=f"Pool{state.title()}")
        job: Future[T] = Future()
        self._jobs.put((job, work))
        self._grow()
        return await asyncio.wrap_future(job)

    def _grow(self) -> None:
        with self._lock:
            enough = self._idle >= self._jobs.qsize()
            if enough or len(self._threads) >= self._max_threads:
                return
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            item = self._jobs.get()
            with self._lock:
                self._idle -= 1
            if item is None:
                return
            job, work = item
            if not job.set_running_or_notify_cancel():
                continue
            try:
                job.set_result(work())
            except Exception as e:  # noqa: BLE001 — handed to the waiter, whatever it is
                job.set_exception(e)
            except BaseException as e:  # noqa: BLE001 — an SDK may end its thread, not the loop
                job.set_exception(Unavailable(f"{type(e).__name__}: {e}", code="PoolThread"))
            del job, work, item  # a waiting thread must not hold the last answer in memory

    def close(self) -> None:
        """Refuse new work, cancel what waits, let running work end by itself; does not wait."""
        self._closed = True
        while True:
            try:
                item = self._jobs.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)

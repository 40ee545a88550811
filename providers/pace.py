"""Pacing of cloud calls: how fast we may ask, kept below what the cloud allows.

Invariant: calls of one lane (provider, region, API class) are served first come, first served, at
no more than the lane's rates; nobody polls; all waits run on the event loop's own time, so pacing
is exact under virtual time. The cloud's word beats our numbers: ``throttled()`` halves a rate,
which then recovers by a tenth of its full value per minute (clouds.md 8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from asyncio_throttle.throttler import Throttler
from pydantic import BaseModel, ConfigDict, Field

from fleet.errors import Throttled

RECOVER_PER_MIN = 0.1
#: However often a cloud throttles, this share of the full rate is kept.
FLOOR = 1 / 16
#: Calls in flight when a cloud throttles all fail together (PC-076): they halve the rate once.
HALVE_EVERY_S = 1.0
#: Calls that may wait in one lane; the next is refused as Throttled.
MAX_WAITING = 2000
#: Below this a difference of tokens or seconds is float noise, not a reason to wait.
_EPSILON = 1e-6


class Bucket(BaseModel):
    """A cloud's own token bucket: ``burst`` at once, then ``refill_per_s``.

    ``per_item`` buckets count instances, the others count calls.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    burst: float = Field(gt=0)
    refill_per_s: float = Field(gt=0)
    per_item: bool = False


class Plain(BaseModel):
    """A plain rate: at most ``limit`` calls in any window of ``period_s`` seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: int = Field(gt=0)
    period_s: float = Field(gt=0, default=1.0)


Rate = Bucket | Plain
#: API class (create, delete, list) to the rates that all hold for it.
Rates = Mapping[str, Sequence[Rate]]


class Pace(Protocol):
    """What a lane asks of one rate."""

    async def acquire(self, cost: float = 1.0) -> None:
        """Wait for one's turn and for ``cost`` units."""
        ...

    def throttled(self) -> None:
        """The cloud said "too many": halve the rate and let it recover."""
        ...


class _Share:
    """The share of its full rate that a pace may use: halved by a throttle, healing with time."""

    def __init__(self) -> None:
        self._value = 1.0
        self._at = 0.0
        self._halved_at: float | None = None

    def at(self, now: float) -> float:
        """The share at loop time ``now``, between FLOOR and 1."""
        self._value = min(1.0, self._value + RECOVER_PER_MIN * (now - self._at) / 60.0)
        self._at = now
        return self._value

    def halve(self, now: float) -> bool:
        """Halve it; False when it was halved less than HALVE_EVERY_S ago and stays."""
        if self._halved_at is not None and now - self._halved_at < HALVE_EVERY_S:
            return False
        self._value = max(FLOOR, self.at(now) / 2)
        self._halved_at = now
        return True


class FairThrottler(Throttler):
    """asyncio-throttle on the loop's time, first come first served, one sleep instead of polling.

    The parent measures with ``time.monotonic`` but waits with ``asyncio.sleep``, and each waiter
    polls every 10 ms and may overtake (clouds.md 0.8).
    """

    def __init__(self, rate_limit: int, period_s: float = 1.0) -> None:
        super().__init__(rate_limit, period_s)
        self._turn = asyncio.Lock()  # waiters of an asyncio.Lock are served in order
        self._share = _Share()

    def flush(self) -> None:
        """Forget calls that have left the window."""
        now = asyncio.get_running_loop().time()
        while self._task_logs and now - self._task_logs[0] >= self.period - _EPSILON:
            self._task_logs.popleft()

    async def acquire(self, cost: float = 1.0) -> None:
        """Wait for a place in the window; a call takes one place whatever its ``cost``."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            self.flush()
            while len(self._task_logs) >= self._places(loop.time()):
                await asyncio.sleep(self._task_logs[0] + self.period - loop.time())
                self.flush()
            self._task_logs.append(loop.time())

    def _places(self, now: float) -> int:
        return max(1, int(self.rate_limit * self._share.at(now)))

    def throttled(self) -> None:
        """Halve the number of places; it recovers by a tenth per minute."""
        self._share.halve(asyncio.get_running_loop().time())


class TokenBucket:
    """The same interface over a bucket of ``burst`` tokens that refills at ``refill_per_s``.

    A cost above the burst waits for a full bucket and leaves a debt: big batches are slow, never
    stuck.
    """

    def __init__(self, burst: float, refill_per_s: float) -> None:
        self._burst = burst
        self._refill_per_s = refill_per_s
        self._tokens = burst
        self._at: float | None = None
        self._share = _Share()
        self._turn = asyncio.Lock()

    def _fill(self) -> float:
        now = asyncio.get_running_loop().time()
        before = self._share.at(self._at if self._at is not None else now)
        passed_s = now - (self._at if self._at is not None else now)
        share = (before + self._share.at(now)) / 2  # the share heals linearly
        self._tokens = min(self._burst, self._tokens + share * self._refill_per_s * passed_s)
        self._at = now
        return self._refill_per_s * self._share.at(now)

    async def acquire(self, cost: float = 1.0) -> None:
        """Wait for one's turn and ``cost`` tokens, and take them."""
        async with self._turn:
            rate = self._fill()
            while (missing := min(cost, self._burst) - self._tokens) > _EPSILON:
                await asyncio.sleep(max(missing / rate, 1e-3))
                rate = self._fill()
            self._tokens -= cost

    def throttled(self) -> None:
        """Halve the refill and take the burst away: the cloud's own bucket is empty."""
        self._fill()
        if self._share.halve(asyncio.get_running_loop().time()):
            self._tokens = min(self._tokens, 0.0)


def build(rate: Rate) -> Pace:
    """The running form of a configured rate."""
    if isinstance(rate, Bucket):
        return TokenBucket(rate.burst, rate.refill_per_s)
    return FairThrottler(rate.limit, rate.period_s)


class Lane:
    """All rates of one (provider, region, API class), taken together in order of arrival."""

    def __init__(self, rates: Sequence[Rate], max_waiting: int = MAX_WAITING) -> None:
        self._paces = [(build(r), isinstance(r, Bucket) and r.per_item) for r in rates]
        self._turn = asyncio.Lock()
        self._max_waiting = max_waiting
        self.waiting = 0

    async def enter(self, items: int = 1) -> None:
        """Wait until a call about ``items`` instances may leave.

        Raises Throttled when more than ``max_waiting`` calls are already in line.
        """
        if self.waiting >= self._max_waiting:
            raise Throttled(f"{self.waiting} calls already wait in this lane", code="PaceFull")
        self.waiting += 1
        try:
            async with self._turn:
                for pace, per_item in self._paces:
                    await pace.acquire(float(items) if per_item else 1.0)
        finally:
            self.waiting -= 1

    def throttled(self) -> None:
        """The cloud throttled a call of this lane: every rate of it is halved."""
        for pace, _ in self._paces:
            pace.throttled()


class Lanes:
    """The lanes of one provider (one account), made on first use by (API class, region)."""

    def __init__(self, rates: Rates, make: Callable[[Sequence[Rate]], Lane] = Lane) -> None:
        self._rates = rates
        self._make = make
        self._lanes: dict[tuple[str, str], Lane] = {}

    def lane(self, op: str, region: str) -> Lane:
        """The lane of an API class in a region; one without rates lets everything through."""
        key = (op, region)
        if key not in self._lanes:
            self._lanes[key] = self._make(self._rates.get(op, ()))
        return self._lanes[key]

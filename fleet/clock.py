"""Time and chance: the only module that may read a clock or global randomness.

Invariant: everything else gets a ``Clock`` and a ``Chance`` by constructor, so the same daemon
runs on the machine's time, on scaled time (the demo) or on virtual time (the simulator), and one
seed gives one run. Durations are measured on the loop's monotonic time; wall time is for people
and for timestamps that outlive the process. A jump of the wall clock is detected, never obeyed.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import selectors
import time
import uuid
from collections.abc import Callable
from typing import Protocol

from fleet.errors import Deadlock

#: Wall-clock steps larger than this pause destructive loops (public case PC-208).
JUMP_S = 5.0


class Clock(Protocol):
    """What fleetd knows of time."""

    def now(self) -> float:
        """Seconds since the Unix epoch, steered by the monotonic clock between jumps."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellation is honoured."""
        ...

    def jump_s(self) -> float:
        """How far the wall clock stepped since the last call, 0.0 if it did not."""
        ...


class LoopClock:
    """A Clock on the running event loop.

    ``wall`` is read only to find jumps: ``now()`` is the wall time at start plus the loop's
    monotonic time, and moves to the new wall time when ``jump_s`` has reported a step. So a
    duration computed from two ``now()`` values is wrong only across a reported jump.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._loop: asyncio.AbstractEventLoop | None = None
        self._base = 0.0

    def _time(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._base = self._wall() - self._loop.time()
        return self._loop.time()

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        t = self._time()
        return t + self._base

    def monotonic(self) -> float:
        """The loop's monotonic seconds."""
        return self._time()

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` of this loop's time."""
        await asyncio.sleep(max(0.0, seconds))

    def jump_s(self) -> float:
        """Size of a wall-clock step since the last call (s); adopts the new wall time."""
        t = self._time()
        step = self._wall() - (t + self._base)
        if abs(step) <= JUMP_S:
            return 0.0
        self._base += step
        return step


class VirtualClock(LoopClock):
    """Wall time made from the loop's virtual time; ``skew_s`` can be set to make it jump."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: float = 1_800_000_000.0) -> None:
        self.skew_s = 0.0
        super().__init__(lambda: epoch + loop.time() + self.skew_s)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a number: when nothing is ready it jumps to the next timer."""

    def __init__(self) -> None:
        self.virtual_now = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.virtual_now


class _Jump(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._owner = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Deadlock("nothing is ready and no timer is set")
            self._owner.virtual_now += max(timeout, 0.0)
        return ready


class ScaledLoop(asyncio.SelectorEventLoop):
    """A real loop whose clock runs ``speed`` times faster; sockets and threads stay real."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._origin = time.monotonic()
        super().__init__(_Scaled(speed))

    def time(self) -> float:
        """Scaled seconds since the loop was made."""
        return (time.monotonic() - self._origin) * self._speed


class _Scaled(selectors.DefaultSelector):
    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / self._speed)


def scaled_wall(speed: float, since: float) -> Callable[[], float]:
    """A wall clock for a ScaledLoop: ``since`` (Unix seconds) is the moment at which it agreed
    with the real one, so that one process after another on the same data sees it go on.
    """
    return lambda: since + (time.time() - since) * speed


def monotonic_usec() -> int:
    """The machine's CLOCK_MONOTONIC in microseconds, as systemd wants it with RELOADING=1."""
    return time.monotonic_ns() // 1000


class Chance(Protocol):
    """Where randomness comes from."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def uniform(self, a: float, b: float) -> float:
        """Uniform in [a, b]."""
        ...

    def token(self, nbytes: int = 32) -> str:
        """A secret, URL-safe."""
        ...

    def ident(self, prefix: str, nbytes: int = 4) -> str:
        """A short public name such as ``n-7f3a2145``."""
        ...

    def uuid(self) -> str:
        """A UUID in canonical form, for idempotency keys."""
        ...


class SystemChance:
    """Randomness from the operating system."""

    def __init__(self) -> None:
        self._rng = random.SystemRandom()

    def random(self) -> float:
        """Uniform in [0, 1)."""
        return self._rng.random()

    def uniform(self, a: float, b: float) -> float:
        """Uniform in [a, b]."""
        return self._rng.uniform(a, b)

    def token(self, nbytes: int = 32) -> str:
        """A secret, URL-safe."""
        return secrets.token_urlsafe(nbytes)

    def ident(self, prefix: str, nbytes: int = 4) -> str:
        """A short public name."""
        return f"{prefix}-{secrets.token_hex(nbytes)}"

    def uuid(self) -> str:
        """A random UUID."""
        return str(uuid.uuid4())


class SeededChance:
    """The same numbers for the same seed; for the simulator and tests only."""

    def __init__(self, seed: int | str) -> None:
        self._rng = random.Random(seed)

    def random(self) -> float:
        """Uniform in [0, 1)."""
        return self._rng.random()

    def uniform(self, a: float, b: float) -> float:
        """Uniform in [a, b]."""
        return self._rng.uniform(a, b)

    def token(self, nbytes: int = 32) -> str:
        """A repeatable token."""
        return self._rng.randbytes(nbytes).hex()

    def ident(self, prefix: str, nbytes: int = 4) -> str:
        """A repeatable short name."""
        return f"{prefix}-{self._rng.randbytes(nbytes).hex()}"

    def uuid(self) -> str:
        """A repeatable UUID."""
        return str(uuid.UUID(bytes=self._rng.randbytes(16), version=4))

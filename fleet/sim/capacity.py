"""How much a cloud has to sell, and how often it may be asked: levels, traces and token buckets.

Invariant: a level depends on time and seed only, never on who asked before, so two runs that ask
at different moments see the same cloud. Times are seconds since the world began.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fleet.clock import Chance, SeededChance


class Capacity(Protocol):
    """How many instances of one offer this account could hold at a time."""

    @property
    def step_s(self) -> float:
        """Seconds between possible changes; 0 for a level that never moves."""
        ...

    def level(self, t: float) -> int:
        """Instances that could be held ``t`` seconds after the world began."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """A constant level."""

    count: int = 10_000
    step_s: float = 0.0

    def level(self, t: float) -> int:
        """The constant."""
        return self.count


@dataclass(slots=True)
class Walk:
    """A bounded random walk: each ``step_s`` the level moves by up to ``stride``."""

    mean: int
    spread: int
    seed: int | str
    step_s: float = 300.0
    stride: int = 4
    _levels: list[int] = field(default_factory=list, repr=False)
    _rng: Chance | None = field(default=None, repr=False)

    def level(self, t: float) -> int:
        """The level of the step that ``t`` falls into; drawn once, in order, from the seed."""
        if self._rng is None:
            self._rng = SeededChance(f"walk/{self.seed}")
            self._levels.append(self.mean)
        step = max(0, int(t // self.step_s))
        low, high = max(0, self.mean - self.spread), self.mean + self.spread
        while len(self._levels) <= step:
            moved = self._levels[-1] + round(self._rng.uniform(-self.stride, self.stride))
            self._levels.append(min(high, max(low, moved)))
        return self._levels[step]


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded availability trace, replayed in a circle from ``offset_s``.

    The format is ``{"metadata": {"gap_seconds": 300}, "data": [16, 16, 0, …]}``.
    """

    counts: Sequence[int]
    step_s: float
    offset_s: float = 0.0
    scale: float = 1.0

    @classmethod
    def load(cls, path: Path, offset_s: float = 0.0, scale: float = 1.0) -> Trace:
        """Read a trace file; raises OSError, ValueError or KeyError when it is not one."""
        raw = json.loads(path.read_text())
        counts = tuple(int(n) for n in raw["data"])
        if not counts:
            raise ValueError(f"{path.name}: no data")
        return cls(counts, float(raw["metadata"]["gap_seconds"]), offset_s, scale)

    def level(self, t: float) -> int:
        """The recorded count at ``t``, times ``scale``."""
        step = int((t + self.offset_s) // self.step_s)
        return int(self.counts[step % len(self.counts)] * self.scale)


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """A token bucket's burst and its refill per second (clouds.md section 5)."""

    burst: float
    refill: float


class Bucket:
    """A token bucket that starts full."""

    def __init__(self, spec: BucketSpec) -> None:
        self._spec = spec
        self._left = spec.burst
        self._at = -math.inf

    def take(self, tokens: float, now: float) -> bool:
        """Take ``tokens`` at ``now`` (s), or take nothing and return False."""
        spec = self._spec
        if now > self._at:
            gained = spec.burst if math.isinf(self._at) else (now - self._at) * spec.refill
            self._left = min(spec.burst, self._left + gained)
            self._at = now
        # A request larger than the burst is let through from a full bucket, or it never would be.
        if self._left + 1e-9 < min(tokens, spec.burst):
            return False
        self._left -= tokens
        return True


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A duration: its median in seconds and the sigma of its logarithm."""

    median_s: float
    sigma: float = 0.25

    def draw(self, chance: Chance) -> float:
        """One duration in seconds (Box-Muller, so that a Chance is all it needs)."""
        if self.median_s <= 0:
            return 0.0
        if self.sigma <= 0:
            return self.median_s
        u = 1.0 - chance.random()
        z = math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * chance.random())
        return self.median_s * math.exp(self.sigma * z)


def exponential(mean_s: float, chance: Chance) -> float:
    """One waiting time in seconds of a Poisson process with the given mean gap."""
    return -mean_s * math.log(1.0 - chance.random())

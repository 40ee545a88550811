"""Virtual time and a Provider that does what a script says."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from fleet.clock import LoopClock, VirtualLoop
from fleet.model import Instance, InstanceRef, LaunchSpec, Need, Offer, Owner
from providers.base import CreateResult

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]
Act = Callable[[], Awaitable[Any]]


@pytest.fixture
def virtual() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Runs a coroutine on a loop whose time is a number."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner.run


@pytest.fixture
def clock() -> LoopClock:
    """A clock on whatever loop runs."""
    return LoopClock(lambda: 0.0)


@dataclass
class Scripted:
    """A cloud whose every call takes the next act of its script; the last one repeats."""

    acts: list[Act]
    name: str = "cloud"
    at: list[tuple[str, float]] = field(default_factory=list)

    async def _next(self, verb: str) -> Any:
        self.at.append((verb, asyncio.get_running_loop().time()))
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        return await act()

    async def offers(self, need: Need) -> Sequence[Offer]:
        """Act."""
        found: Sequence[Offer] = await self._next("offers")
        return found

    async def create(self, spec: LaunchSpec) -> Sequence[CreateResult]:
        """Act."""
        results: Sequence[CreateResult] = await self._next("create")
        return results

    async def delete(self, refs: Sequence[InstanceRef]) -> None:
        """Act."""
        await self._next("delete")

    async def list(self, owner: Owner) -> AsyncIterator[Instance]:
        """Act, and yield what it returned; an exception in it is raised at its place."""
        for item in await self._next("list"):
            if isinstance(item, Exception):
                raise item
            yield item

    async def aclose(self) -> None:
        """Nothing."""


def gives(value: object) -> Act:
    """An act that returns."""

    async def act() -> object:
        return value

    return act


def raises(error: Exception) -> Act:
    """An act that raises."""

    async def act() -> object:
        raise error

    return act


def takes(seconds: float, value: object = None) -> Act:
    """An act that needs time."""

    async def act() -> object:
        await asyncio.sleep(seconds)
        return value

    return act


@dataclass
class Tape:
    """A Recorder that keeps what it was told."""

    calls: list[tuple[str, str, str, str, float]] = field(default_factory=list)

    def call(self, provider: str, op: str, region: str, code: str, seconds: float) -> None:
        """Keep it."""
        self.calls.append((provider, op, region, code, round(seconds, 6)))


@dataclass(frozen=True)
class Kit:
    """What tests of the wrapping build with."""

    Scripted: type[Scripted] = Scripted
    Tape: type[Tape] = Tape
    gives: Callable[[object], Act] = gives
    raises: Callable[[Exception], Act] = raises
    takes: Callable[..., Act] = takes


@pytest.fixture
def kit() -> Kit:
    """Builders, handed over as a fixture so that no test file imports another."""
    return Kit()

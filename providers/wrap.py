"""What every cloud gets around it: Recorded(Retried(Paced(cloud))).

Invariant: a wrapped provider raises ``ProviderError`` (or lets a cancellation through) and nothing
else; a call that timed out is ``Ambiguous`` when it may have created something, ``Unavailable``
when it cannot have; only ``Busy`` is retried, with the same arguments and so the same token.
SDK retries are off in every adapter: this is the one place that repeats a call (clouds.md 0.2).

A *cancelled* create is as unknown as a timed-out one: the caller sees ``CancelledError``, the
request goes on in its thread, and ``list()`` will tell.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
)

from fleet.clock import Chance, Clock
from fleet.errors import Ambiguous, Busy, ProviderError, Throttled, Unavailable
from fleet.model import Instance, InstanceRef, LaunchSpec, Need, Offer, Owner
from providers.base import CreateResult, Provider
from providers.pace import Lanes, Rates

T = TypeVar("T")

OK = "ok"
PARTIAL = "partial"
CANCELLED = "cancelled"
TIMEOUT = "Timeout"


class Recorder(Protocol):
    """Where calls are counted."""

    def call(self, provider: str, op: str, region: str, code: str, seconds: float) -> None:
        """One call ended. ``op`` is create, delete, list or offers; an attempt that will be
        repeated is counted under ``<op>.retry``. ``code`` is ``ok``, ``partial``, ``cancelled``,
        the vendor's own code, or the error's class name where the vendor gave none.
        """
        ...


class NoRecorder:
    """Counts nothing."""

    def call(self, provider: str, op: str, region: str, code: str, seconds: float) -> None:
        """Ignore it."""


class Limits(BaseModel):
    """Bounds of one provider's calls. A deadline is for one attempt, without waiting in line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempts: int = Field(default=4, ge=1, le=20)
    backoff_s: float = Field(default=1.0, gt=0)
    backoff_max_s: float = Field(default=20.0, gt=0)
    #: A vendor's hint above this is not waited for here: the caller gets the error and its hint.
    retry_after_max_s: float = Field(default=60.0, gt=0)
    create_s: float = Field(default=60.0, gt=0)
    delete_s: float = Field(default=60.0, gt=0)
    list_s: float = Field(default=300.0, gt=0)
    offers_s: float = Field(default=30.0, gt=0)
    #: Regions of one account listed at the same time; page parsing holds the GIL (clouds.md 7).
    lists_at_once: int = Field(default=2, ge=1)

    def deadline_s(self, op: str) -> float:
        """Seconds one attempt of ``op`` may take."""
        return {
            "create": self.create_s,
            "delete": self.delete_s,
            "list": self.list_s,
            "offers": self.offers_s,
        }[op]


@runtime_checkable
class ListsByRegion(Protocol):
    """Clouds that are listed region by region, so that one throttled region repeats alone."""

    @property
    def regions(self) -> Sequence[str]:
        """Every region of the account's configuration."""
        ...

    def list_region(self, owner: Owner, region: str) -> AsyncIterator[Instance]:
        """Every instance of ``owner`` in ``region``, or an error; never a part."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One call on its way through the stages."""

    op: str
    region: str
    items: int = 1


class Stage(Protocol):
    """One layer around a call."""

    async def run(self, call: Call, send: Callable[[], Awaitable[T]]) -> T:
        """Carry out ``send`` and return what it returned, or raise a ProviderError."""
        ...


class Paced:
    """The innermost stage: wait in line, send under a deadline, tell the line about throttling."""

    def __init__(self, lanes: Lanes, limits: Limits) -> None:
        self._lanes = lanes
        self._limits = limits

    async def run(self, call: Call, send: Callable[[], Awaitable[T]]) -> T:
        """One attempt. Anything that is no ProviderError becomes one here."""
        lane = self._lanes.lane(call.op, call.region)
        await lane.enter(call.items)
        deadline_s = self._limits.deadline_s(call.op)
        unknown = Ambiguous if call.op == "create" else Unavailable
        try:
            async with asyncio.timeout(deadline_s):
                return await send()
        except Throttled:
            lane.throttled()
            raise
        except ProviderError:
            raise
        except TimeoutError as e:
            raise unknown(f"no answer to {call.op} in {deadline_s:g} s", code=TIMEOUT) from e
        except Exception as e:  # a bug in an adapter must not look like a cloud without effect
            raise unknown(f"{type(e).__name__}: {e}", code=f"Internal.{type(e).__name__}") from e


class Retried:
    """Repeats Busy with exponential back-off and full jitter, at most ``attempts`` times."""

    def __init__(
        self,
        inner: Stage,
        *,
        clock: Clock,
        chance: Chance,
        limits: Limits,
        on_retry: Callable[[Call, ProviderError, float], None],
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._chance = chance
        self._limits = limits
        self._on_retry = on_retry

    def _again(self, error: BaseException) -> bool:
        hint_s = getattr(error, "retry_after_s", None) or 0.0
        return isinstance(error, Busy) and hint_s <= self._limits.retry_after_max_s

    def _wait(self, state: RetryCallState) -> float:
        """Full jitter (AWS architecture blog, 2015) on top of the vendor's own hint."""
        limits = self._limits
        ceiling_s = min(limits.backoff_max_s, limits.backoff_s * 2.0 ** (state.attempt_number - 1))
        error = state.outcome.exception() if state.outcome else None
        hint_s = getattr(error, "retry_after_s", None) or 0.0
        return float(hint_s) + self._chance.uniform(0.0, ceiling_s)

    async def run(self, call: Call, send: Callable[[], Awaitable[T]]) -> T:
        """Attempts until one ends in anything but Busy, or the last one's error."""
        started = self._clock.monotonic()

        async def attempt() -> T:
            nonlocal started
            started = self._clock.monotonic()
            return await self._inner.run(call, send)

        def before_sleep(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if isinstance(error, ProviderError):
                self._on_retry(call, error, self._clock.monotonic() - started)

        return await AsyncRetrying(
            sleep=self._clock.sleep,
            wait=self._wait,
            stop=stop_after_attempt(self._limits.attempts),
            retry=retry_if_exception(self._again),
            before_sleep=before_sleep,
            reraise=True,
        )(attempt)


def code_of(error: BaseException) -> str:
    """The word an error is counted under: the vendor's code, else the class name."""
    return getattr(error, "code", "") or type(error).__name__


def _verdict(result: object) -> str:
    """``ok``, or for a create that gave less than asked ``partial`` or why it gave nothing."""
    if not (isinstance(result, list | tuple) and result and isinstance(result[0], CreateResult)):
        return OK
    errors = [r.error for r in result if r.error is not None]
    if not errors:
        return OK
    return PARTIAL if len(errors) < len(result) else code_of(errors[0])


class Recorded:
    """The outermost stage: every call is counted once, with its whole duration."""

    def __init__(self, inner: Stage, *, provider: str, clock: Clock, recorder: Recorder) -> None:
        self._inner = inner
        self._provider = provider
        self._clock = clock
        self._recorder = recorder

    async def run(self, call: Call, send: Callable[[], Awaitable[T]]) -> T:
        """Carry out the call and count how it ended."""
        started, code = self._clock.monotonic(), OK
        try:
            result = await self._inner.run(call, send)
            code = _verdict(result)
            return result
        except asyncio.CancelledError:
            code = CANCELLED
            raise
        except ProviderError as e:
            code = code_of(e)
            raise
        finally:
            seconds = self._clock.monotonic() - started
            self._recorder.call(self._provider, call.op, call.region, code, seconds)


class Wrapped:
    """A Provider around a Provider. Optional protocols are asked of ``inner``."""

    def __init__(
        self,
        inner: Provider,
        *,
        clock: Clock,
        chance: Chance,
        recorder: Recorder | None = None,
        rates: Rates | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.inner = inner
        self.name = inner.name
        self._limits = limits or Limits()
        recorder = recorder or NoRecorder()

        def on_retry(call: Call, error: ProviderError, seconds: float) -> None:
            recorder.call(self.name, f"{call.op}.retry", call.region, code_of(error), seconds)

        paced = Paced(Lanes(rates or {}), self._limits)
        retried = Retried(paced, clock=clock, chance=chance, limits=self._limits, on_retry=on_retry)
        self._stages = Recorded(retried, provider=self.name, clock=clock, recorder=recorder)

    async def offers(self, need: Need) -> Sequence[Offer]:
        """What this account could buy for ``need``, cheapest first."""
        return await self._stages.run(Call("offers", ""), lambda: self.inner.offers(need))

    async def create(self, spec: LaunchSpec) -> Sequence[CreateResult]:
        """One batch, idempotent by its token; retried while Busy."""
        call = Call("create", spec.offer.region, spec.count)
        return await self._stages.run(call, lambda: self.inner.create(spec))

    async def delete(self, refs: Sequence[InstanceRef]) -> None:
        """Ask each region for its instances; raises the first failure after all have answered."""
        by_region: dict[str, list[InstanceRef]] = defaultdict(list)
        for ref in refs:
            by_region[ref.region].append(ref)
        results = await asyncio.gather(
            *(self._delete(region, some) for region, some in by_region.items()),
            return_exceptions=True,
        )
        for result in results:
            if result is not None:
                raise result

    async def _delete(self, region: str, refs: Sequence[InstanceRef]) -> None:
        await self._stages.run(Call("delete", region, len(refs)), lambda: self.inner.delete(refs))

    async def list(self, owner: Owner) -> AsyncIterator[Instance]:
        """Everything of ``owner``: nothing is yielded before every region is complete."""
        inner = self.inner
        pages: Sequence[Page]
        if isinstance(inner, ListsByRegion):
            pages = await self._list_regions(inner, owner)
        else:
            pages = [await self._gathered("", lambda: inner.list(owner))]
        for page in pages:
            for instance in page:
                yield instance

    async def _list_regions(self, inner: ListsByRegion, owner: Owner) -> Sequence[Page]:
        turn = asyncio.Semaphore(self._limits.lists_at_once)

        async def one(region: str) -> Page:
            async with turn:
                return await self._gathered(region, lambda: inner.list_region(owner, region))

        return await all_or_first_error(one(region) for region in inner.regions)

    async def _gathered(self, region: str, start: Callable[[], AsyncIterator[Instance]]) -> Page:
        async def whole() -> Page:
            return [instance async for instance in start()]

        return await self._stages.run(Call("list", region), whole)

    async def aclose(self) -> None:
        """Close the cloud."""
        await self.inner.aclose()


Page = list[Instance]


async def all_or_first_error(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of all, in order; on the first error the others are cancelled and it is raised."""
    tasks = [asyncio.ensure_future(w) for w in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

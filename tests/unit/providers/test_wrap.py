"""Recorded(Retried(Paced(cloud))): attempts, waits, deadlines, what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from fleet.clock import LoopClock, SeededChance
from fleet.errors import (
    Ambiguous,
    InsufficientCapacity,
    ProviderError,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fleet.model import Instance, InstanceRef, LaunchSpec, Need, Offer, Owner, Phase
from providers.base import CreateResult
from providers.pace import Bucket
from providers.wrap import Limits, ListsByRegion, Wrapped

Virtual = Callable[[Any], Any]
SPEC = LaunchSpec("t", Offer("cloud", "r1", "z", "big"), 2, "img", "", {})
OWNER = Owner("cell")


def instance(region: str, i: int) -> Instance:
    """Some instance."""
    return Instance(InstanceRef("cloud", region, "z", f"i-{i}"), Phase.RUNNING)


REF = instance("r1", 0).ref


class Half:
    """Chance that always says a half."""

    def random(self) -> float:
        """A half."""
        return 0.5

    def uniform(self, a: float, b: float) -> float:
        """The middle."""
        return (a + b) / 2

    def token(self, nbytes: int = 32) -> str:
        """Nothing secret."""
        return "t" * nbytes

    def ident(self, prefix: str, nbytes: int = 4) -> str:
        """Nothing unique."""
        return prefix + "0" * nbytes

    def uuid(self) -> str:
        """Nothing unique."""
        return "u"


def wrapped(cloud: Any, clock: LoopClock, tape: Any = None, **kw: Any) -> Wrapped:
    """The cloud in its wrapping."""
    kw.setdefault("chance", Half())
    return Wrapped(cloud, clock=clock, recorder=tape, **kw)


async def caught(work: Any) -> ProviderError:
    """The error a call ends in."""
    with pytest.raises(ProviderError) as e:
        await work
    return e.value


async def everything(p: Wrapped) -> list[Instance]:
    """The whole listing."""
    return [i async for i in p.list(OWNER)]


def test_busy_is_repeated_with_growing_waits(virtual: Virtual, clock: LoopClock, kit: Any) -> None:
    """Full jitter: half of 1, 2 and 4 s with this chance; each attempt is counted."""
    results = [CreateResult(ref=REF)] * 2
    acts = [kit.raises(Throttled(code="RequestLimitExceeded"))] * 2
    cloud, tape = (
        kit.Scripted([*acts, kit.raises(Unavailable("?")), kit.gives(results)]),
        kit.Tape(),
    )
    assert virtual(wrapped(cloud, clock, tape).create(SPEC)) == results
    assert [t for _, t in cloud.at] == [0, 0.5, 1.5, 3.5]
    assert [(op, code, s) for _, op, _, code, s in tape.calls] == [
        ("create.retry", "RequestLimitExceeded", 0),
        ("create.retry", "RequestLimitExceeded", 0),
        ("create.retry", "Unavailable", 0),
        ("create", "ok", 3.5),
    ]


@pytest.mark.parametrize("attempts", [1, 3, 7])
def test_attempts_are_bounded_by_count(
    virtual: Virtual, clock: LoopClock, kit: Any, attempts: int
) -> None:
    """The last error comes out unchanged."""
    error = Throttled(code="X")
    cloud = kit.Scripted([kit.raises(error)])
    p = wrapped(cloud, clock, limits=Limits(attempts=attempts))
    assert virtual(caught(p.create(SPEC))) is error
    assert len(cloud.at) == attempts


@pytest.mark.parametrize("error", [InsufficientCapacity("no"), Unauthorized("no"), Ambiguous("?")])
def test_only_busy_is_repeated(
    virtual: Virtual, clock: LoopClock, kit: Any, error: ProviderError
) -> None:
    """Refusals and ambiguity go up at once: others decide."""
    cloud = kit.Scripted([kit.raises(error)])
    assert virtual(caught(wrapped(cloud, clock).create(SPEC))) is error
    assert len(cloud.at) == 1


def test_retry_after_is_waited_for(virtual: Virtual, clock: LoopClock, kit: Any) -> None:
    """The vendor's hint, and jitter on top so that callers do not return together."""
    cloud = kit.Scripted([kit.raises(Throttled(retry_after_s=30.0)), kit.gives(None)])
    virtual(wrapped(cloud, clock).delete([REF]))
    assert [t for _, t in cloud.at] == [0, 30.5]


def test_long_retry_after_goes_to_the_caller(virtual: Virtual, clock: LoopClock, kit: Any) -> None:
    """Nobody sleeps an hour inside a call."""
    cloud = kit.Scripted([kit.raises(Throttled(retry_after_s=3600.0))])
    error = virtual(caught(wrapped(cloud, clock).delete([REF])))
    assert (error.retry_after_s, len(cloud.at)) == (3600.0, 1)


def test_jitter_is_full_and_capped(virtual: Virtual, clock: LoopClock, kit: Any) -> None:
    """Waits lie between nothing and min(cap, base times two to the n)."""
    cloud = kit.Scripted([kit.raises(Unavailable("x"))])
    limits = Limits(attempts=12, backoff_s=1, backoff_max_s=8)
    virtual(caught(wrapped(cloud, clock, chance=SeededChance(1), limits=limits).delete([REF])))
    times = [t for _, t in cloud.at]
    waits = [b - a for a, b in pairwise(times)]
    assert all(0 <= w <= min(8, 2**n) for n, w in enumerate(waits))
    assert len({round(w, 3) for w in waits}) == len(waits)


def test_timeouts_are_ambiguous_for_create_only(
    virtual: Virtual, clock: LoopClock, kit: Any
) -> None:
    """A create may have worked; a delete or list that timed out is simply repeated."""
    tape, limits = kit.Tape(), Limits(attempts=2, create_s=60, delete_s=20)
    p = wrapped(kit.Scripted([kit.takes(1e6)]), clock, tape, limits=limits)
    assert type(virtual(caught(p.create(SPEC)))) is Ambiguous
    assert type(virtual(caught(p.delete([REF])))) is Unavailable
    assert type(virtual(caught(everything(p)))) is Unavailable
    ends = [(op, code, s) for _, op, _, code, s in tape.calls if not op.endswith("retry")]
    assert ends == [
        ("create", "Timeout", 60),
        ("delete", "Timeout", 40.5),
        ("list", "Timeout", 600.5),
    ]


def test_deadline_does_not_count_the_wait_in_line(
    virtual: Virtual, clock: LoopClock, kit: Any
) -> None:
    """A call that waited ten minutes for its turn still has its whole deadline."""
    cloud = kit.Scripted([kit.takes(50, [CreateResult(ref=REF)])])
    rates = {"create": [Bucket(burst=1, refill_per_s=1 / 600)]}
    p = wrapped(cloud, clock, rates=rates, limits=Limits(create_s=60))

    async def main() -> None:
        await asyncio.gather(p.create(SPEC), p.create(SPEC))

    virtual(main())
    assert [t for _, t in cloud.at] == [0, 600]


def test_bug_in_an_adapter_is_never_a_quiet_failure(
    virtual: Virtual, clock: LoopClock, kit: Any
) -> None:
    """Only ProviderError comes out; for a create nobody knows what happened."""
    p = wrapped(kit.Scripted([kit.raises(KeyError("Instances"))]), clock)
    error = virtual(caught(p.create(SPEC)))
    assert (type(error), error.code) == (Ambiguous, "Internal.KeyError")
    assert type(virtual(caught(p.delete([REF])))) is Unavailable


def test_cancelled_create_is_counted_and_cancelled(
    virtual: Virtual, clock: LoopClock, kit: Any
) -> None:
    """CancelledError goes through; the count says so."""
    tape = kit.Tape()
    p = wrapped(kit.Scripted([kit.takes(1e6)]), clock, tape)

    async def main() -> None:
        task = asyncio.ensure_future(p.create(SPEC))
        await asyncio.sleep(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtual(main())
    assert tape.calls == [("cloud", "create", "r1", "cancelled", 3)]


@pytest.mark.parametrize(
    ("refs", "code"), [(2, "ok"), (1, "partial"), (0, "InsufficientInstanceCapacity")]
)
def test_create_is_counted_by_what_it_gave(
    virtual: Virtual, clock: LoopClock, kit: Any, refs: int, code: str
) -> None:
    """A create that answered but gave nothing is no success."""
    none = CreateResult(error=InsufficientCapacity("", code="InsufficientInstanceCapacity"))
    results, tape = [CreateResult(ref=REF)] * refs + [none] * (2 - refs), kit.Tape()
    virtual(wrapped(kit.Scripted([kit.gives(results)]), clock, tape).create(SPEC))
    assert tape.calls == [("cloud", "create", "r1", code, 0)]


def test_throttle_slows_the_lane(virtual: Virtual, clock: LoopClock, kit: Any) -> None:
    """After one throttle the refill of that lane is halved for everybody."""
    acts = [kit.raises(Throttled("slow"))] + [kit.gives([CreateResult(ref=REF)])] * 3
    rates = {"create": [Bucket(burst=1, refill_per_s=1)]}
    cloud = kit.Scripted(acts)
    p = wrapped(cloud, clock, rates=rates)

    async def main() -> None:
        await p.create(SPEC)
        await p.create(SPEC)

    virtual(main())
    times = [t for _, t in cloud.at]
    assert times == pytest.approx([0, 2, 4], rel=0.02)


def test_list_is_whole_or_an_error(virtual: Virtual, clock: LoopClock, kit: Any) -> None:
    """PC-188, PC-190: what was read before a page failed is thrown away and read again."""
    broken = [instance("r1", 0), instance("r1", 1), Throttled("page 2")]
    whole = [instance("r1", i) for i in range(3)]
    p = wrapped(kit.Scripted([kit.gives(broken), kit.gives(whole)]), clock)
    assert virtual(everything(p)) == whole
    p = wrapped(kit.Scripted([kit.gives(broken)]), clock)
    assert type(virtual(caught(everything(p)))) is Throttled


class Regions:
    """A cloud listed by region; a region named ``bad`` never answers well."""

    name = "cloud"

    def __init__(self, *regions: str) -> None:
        self.regions = regions
        self.listed: list[str] = []
        self.now = self.most = 0

    async def list_region(self, owner: Owner, region: str) -> AsyncIterator[Instance]:
        """One instance a region, after a second."""
        self.listed.append(region)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(1)
        self.now -= 1
        if region == "bad":
            raise Unavailable("down", code="RegionDown")
        yield instance(region, 1)


def test_regions_repeat_alone_and_one_bad_region_fails_the_list(
    virtual: Virtual, clock: LoopClock, kit: Any
) -> None:
    """Two at a time; a throttled region does not make the others read again."""
    cloud, tape = Regions("a", "b", "c", "bad"), kit.Tape()
    assert isinstance(cloud, ListsByRegion)
    p = wrapped(cloud, clock, tape, limits=Limits(attempts=2))
    error = virtual(caught(everything(p)))
    assert (error.code, cloud.most) == ("RegionDown", 2)
    assert cloud.listed == ["a", "b", "c", "bad", "bad"]
    assert ("cloud", "list", "bad", "RegionDown", 2.5) in tape.calls
    good = Regions("a", "b", "c")
    assert [i.ref.region for i in virtual(everything(wrapped(good, clock)))] == ["a", "b", "c"]


def test_delete_asks_every_region(virtual: Virtual, clock: LoopClock, kit: Any) -> None:
    """A region that refuses does not keep the others from being asked."""
    cloud = kit.Scripted([kit.raises(Unauthorized("no")), kit.gives(None)])
    refs = [instance("r1", 1).ref, instance("r2", 2).ref, instance("r1", 3).ref]
    error = virtual(caught(wrapped(cloud, clock).delete(refs)))
    assert (type(error), len(cloud.at)) == (Unauthorized, 2)
    virtual(wrapped(cloud, clock).delete([]))


def test_offers_pass_through(virtual: Virtual, clock: LoopClock, kit: Any) -> None:
    """Counted like the rest."""
    tape = kit.Tape()
    p = wrapped(kit.Scripted([kit.gives([SPEC.offer])]), clock, tape)
    assert virtual(p.offers(Need("H100", 8))) == [SPEC.offer]
    assert tape.calls == [("cloud", "offers", "", "ok", 0)]

"""FakeCloud raises our errors where a real adapter would, and forgets nothing it made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fleet.clock import SeededChance, VirtualClock
from fleet.errors import (
    Ambiguous,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fleet.model import Instance, InstanceRef, Market, Outcome, Owner, Phase
from fleet.sim.capacity import Steady
from fleet.sim.fakecloud import FakeCloud
from fleet.sim.faults import FaultPlan, Injection, Kind
from fleet.sim.spec import CloudSpec, WorldSpec
from fleet.sim.world import World
from providers.base import EmitsNotices, HasConsole

from .simkit import NEED, launch, offer_of, one_cloud, virtually

Story = Callable[[World, FakeCloud, VirtualClock], Coroutine[Any, Any, Any]]
KINDS = ["aws", "gcp", "azure", "oci"]


def play(story: Story, spec: CloudSpec | None = None, *faults: Injection) -> Any:
    async def main(clock: VirtualClock) -> Any:
        own = spec or one_cloud()
        world = World(clock.now, SeededChance(1), WorldSpec((own,)), FaultPlan(faults))
        world.start()
        cloud = FakeCloud(world, own.name)
        try:
            return await story(world, cloud, clock)
        finally:
            await cloud.aclose()
            world.stop()

    return virtually(main)


async def all_of(cloud: FakeCloud) -> list[Instance]:
    return [i async for i in cloud.list(Owner("c"))]


def test_offers_are_what_is_needed_cheapest_first() -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        offers = await cloud.offers(NEED)
        assert [o.price_usd_hour for o in offers] == [20.0, 20.0, 60.0, 60.0]
        assert {o.provider for o in offers} == {"aws"}

    play(story)


@pytest.mark.parametrize("kind", KINDS)
def test_create_list_delete(kind: str) -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        results = await cloud.create(launch(offer_of(kind), count=3))
        assert [r.error for r in results] == [None] * 3
        await clock.sleep(30)
        found = await all_of(cloud)
        assert {(i.phase, i.token, i.pool, i.cell) for i in found} == {
            (Phase.RUNNING, "t-1", "p", "c")
        }
        assert [i.ref for i in found] == [r.ref for r in results]
        await cloud.delete([i.ref for i in found] * 2)
        await clock.sleep(60)
        assert not [i for i in await all_of(cloud) if i.exists]
        await cloud.delete([i.ref for i in found])  # gone already is success

    play(story, one_cloud(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_repeating_a_create_tops_up_to_count_at_most(kind: str) -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        spec = launch(offer_of(kind), count=4)
        first = await cloud.create(spec)
        assert sum(r.ref is not None for r in first) == 2
        assert {type(r.error) for r in first if r.ref is None} == {InsufficientCapacity}
        again = await cloud.create(spec)
        assert [r.ref for r in again] == [r.ref for r in first]
        assert world.ever_by_token == {"t-1": 2}

    play(story, one_cloud(kind, Steady(2)))


@pytest.mark.parametrize(
    ("over", "error", "code"),
    [
        ({"capacity": Steady(0)}, InsufficientCapacity, "InsufficientInstanceCapacity"),
        ({"quota": {("r1", "gpu8"): 0}}, QuotaExceeded, "VcpuLimitExceeded"),
        ({"images": frozenset({"other"})}, ImageNotFound, "InvalidAMIID.NotFound"),
    ],
)
def test_refusals(over: dict[str, Any], error: type[ProviderError], code: str) -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        with pytest.raises(error) as caught:
            await cloud.create(launch(offer_of("aws")))
        assert caught.value.code == code
        assert world.ever == 0

    play(story, one_cloud(**over))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Kind.THROTTLE, Throttled),
        (Kind.UNAVAILABLE, Unavailable),
        (Kind.API_CUT, Unavailable),
        (Kind.CREDENTIALS, Unauthorized),
    ],
)
def test_closed_doors(kind: Kind, error: type[ProviderError]) -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        with pytest.raises(error):
            await cloud.create(launch(offer_of("aws")))
        with pytest.raises(error):
            await all_of(cloud)
        with pytest.raises(error):
            await cloud.delete([InstanceRef("aws", "r1", "z1", "i-1")])
        assert world.ever == 0
        await clock.sleep(100)
        await all_of(cloud)

    play(story, None, Injection(kind, 0, 100))


def test_wrong_requests_are_invalid() -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        with pytest.raises(InvalidRequest):
            await cloud.create(launch(offer_of("aws", "z9")))
        with pytest.raises(InvalidRequest):
            await cloud.create(launch(offer_of("aws"), user_data="x" * 17_000))
        await cloud.create(launch(offer_of("aws")))
        with pytest.raises(Ambiguous):  # the token went through with another body
            await cloud.create(launch(offer_of("aws"), user_data="other"))

    play(story)


@pytest.mark.parametrize(
    ("kind", "at_once", "later"),
    [(Kind.CREATE_LOST, 0, 0), (Kind.CREATE_UNHEARD, 2, 2), (Kind.CREATE_LATE, 0, 2)],
)
@pytest.mark.parametrize("cloud_kind", KINDS)
def test_time_outs_are_ambiguous(cloud_kind: str, kind: Kind, at_once: int, later: int) -> None:
    """PC-001: after a time-out only list() can tell."""

    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        before = clock.now()
        with pytest.raises(Ambiguous):
            await cloud.create(launch(offer_of(cloud_kind), count=2))
        assert clock.now() - before == pytest.approx(30.25)
        assert len(await all_of(cloud)) == at_once
        await clock.sleep(60)
        assert len(await all_of(cloud)) == later
        await cloud.create(launch(offer_of(cloud_kind), count=2))
        assert world.ever_by_token == {"t-1": 2}

    play(story, one_cloud(cloud_kind), Injection(kind, 0, 10, value=20))


@pytest.mark.parametrize(("after_s", "made"), [(0.2, 0), (0.3, 1)])
def test_a_caller_may_die_on_either_side_of_the_effect(after_s: float, made: int) -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        call = asyncio.ensure_future(cloud.create(launch(offer_of("aws"))))
        await clock.sleep(after_s)
        call.cancel()
        await asyncio.wait([call])
        await clock.sleep(10)
        assert world.ever == made

    play(story)


def test_a_truncated_list_is_an_error() -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        await cloud.create(launch(offer_of("aws"), count=10))
        listing = cloud.list(Owner("c"))
        assert len([await anext(listing) for _ in range(5)]) == 5
        with pytest.raises(Unavailable):
            await anext(listing)

    play(story, None, Injection(Kind.LIST_TRUNCATED, 0, 100))


def test_a_slipping_list_looks_complete() -> None:
    """PC-191: one complete list that misses an instance is no proof."""

    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        await cloud.create(launch(offer_of("aws"), count=50))
        assert 0 < len(await all_of(cloud)) < 50
        await clock.sleep(100)
        assert len(await all_of(cloud)) == 50

    play(story, None, Injection(Kind.LIST_SLIP, 0, 100, rate=0.2))


def test_deleting_what_is_not_shown_yet_does_nothing() -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        (made,) = await cloud.create(launch(offer_of("aws")))
        assert made.ref is not None
        await cloud.delete([made.ref])
        await clock.sleep(100)
        assert [i.phase for i in await all_of(cloud)] == [Phase.RUNNING]

    play(story, None, Injection(Kind.LIST_LAG, 0, 50, value=30))


def test_capacity_deaths_say_so_in_every_cloud() -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        await cloud.create(launch(offer_of("gcp"), count=20))
        await clock.sleep(30)
        died = {i.code: i.died for i in await all_of(cloud)}
        assert died["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"] is Outcome.INSUFFICIENT_CAPACITY
        assert died["INTERNAL_ERROR"] is not Outcome.INSUFFICIENT_CAPACITY

    play(story, one_cloud("gcp", p_die=1.0))


def test_notices_and_console() -> None:
    async def story(world: World, cloud: FakeCloud, clock: VirtualClock) -> None:
        assert isinstance(cloud, EmitsNotices)
        assert isinstance(cloud, HasConsole)
        (made,) = await cloud.create(launch(offer_of("aws", market=Market.SPOT)))
        assert made.ref is not None
        await clock.sleep(30)
        assert "panic" in await cloud.console(made.ref)
        await clock.sleep(200)
        assert "fleet-agent: started" in await cloud.console(made.ref)
        assert await cloud.notices() == []
        world.inject(Injection(Kind.SPOT_RECLAIM))
        await clock.sleep(1)
        (notice,) = await cloud.notices()
        assert (notice.ref, notice.kind) == (made.ref, "spot")

    play(story)

"""The Oracle adapter's hard paths on its skin.

Restarts, time-outs with and without effect, stock-outs, deaths, preemption, lag, pages, regions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wire_oci import (
    FAR,
    FAR_ZONE,
    IMAGE,
    METAL,
    OTHER,
    REGION,
    SUBNET,
    TYPE,
    ZONE,
    Bench,
    launch,
    offer,
)

from fleet.clock import LoopClock, SeededChance
from fleet.errors import (
    Ambiguous,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fleet.model import Market, Offer, Outcome, Owner, Phase
from fleet.sim.spec import BucketSpec, Lognormal
from providers import oci
from providers.pace import Bucket

pytest.importorskip("oci")

Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Bench] = []
    with asyncio.Runner() as runner:

        def one(level: int = 100, **over: Any) -> Bench:
            made.append(Bench(runner, level, **over))
            return made[-1]

        yield one
        for bench in made:
            bench.close()


@pytest.fixture
def b(make: Make) -> Bench:
    return make()


def refs(results: Any) -> list[str]:
    return [r.ref.instance_id for r in results if r.ref]


def test_a_restart_in_the_middle_makes_nothing_twice(b: Bench) -> None:
    """PC-001: the answers are lost with the daemon; another one repeats token and finds them."""
    b.inject("create_unheard", 30)

    async def main() -> None:
        spec = launch("tok", 20)
        with pytest.raises(Ambiguous):
            await b.provider.create(spec)
        assert b.count("tok") == 20
        await b.pass_time(60)
        second = b.adapter()
        again = refs(await second.create(spec))
        assert len(set(again)) == 20
        listed = [i.ref.instance_id async for i in second.list(Owner("cell"))]
        assert sorted(again) == sorted(listed)
        await second.aclose()

    b.run(main())
    assert b.world.ever == 20


def test_a_token_whose_instance_has_ended_is_not_launched_again(b: Bench) -> None:
    """Within its day the first answer comes again; once the instance is purged, 409: list tells."""

    async def main() -> None:
        (made,) = await b.provider.create(launch("tok"))
        await b.provider.delete([made.ref])
        await b.pass_time(60)
        assert refs(await b.provider.create(launch("tok"))) == refs([made])
        await b.pass_time(2000)
        with pytest.raises(Ambiguous, match="InvalidatedRetryToken"):
            await b.provider.create(launch("tok"))
        with pytest.raises(Ambiguous):
            await b.provider.create(launch("tok", user_data="#cloud-config\n#other"))

    b.run(main())
    assert b.world.ever == 1


def test_a_token_is_kept_for_a_day(b: Bench) -> None:
    """After that the same token launches anew: fleetd has settled the launch long before."""

    async def main() -> None:
        first = refs(await b.provider.create(launch("tok")))
        await b.pass_time(86_399)
        assert refs(await b.provider.create(launch("tok"))) == first
        await b.pass_time(2)
        assert refs(await b.provider.create(launch("tok"))) != first

    b.run(main())
    assert b.world.ever == 2


def test_a_create_that_times_out_with_and_without_effect(b: Bench) -> None:
    """The client gives up first; the instance is there, or it is not: list() will tell."""
    hasty = b.adapter(read_timeout_s=0.2)

    async def main() -> None:
        await hasty.create(launch("tok-warm", cell="warm"))
        b.inject("slow_api", 60, value=10_000.0)
        with pytest.raises(Ambiguous):
            await hasty.create(launch("tok-slow", cell="slow"))
        await asyncio.sleep(0.8)
        await b.pass_time(120)
        assert b.count("tok-slow") == 1
        assert [i.token for i in await b.listed("slow")] == ["tok-slow"]
        b.inject("create_lost", 60)
        with pytest.raises(Ambiguous):
            await hasty.create(launch("tok-lost", cell="lost"))
        await b.pass_time(120)
        assert (b.count("tok-lost"), await b.listed("lost")) == (0, [])
        await hasty.aclose()

    b.run(main())


def test_a_launch_that_appears_late(b: Bench) -> None:
    b.inject("create_late", 10, value=30.0)

    async def main() -> None:
        with pytest.raises(Ambiguous):
            await b.provider.create(launch("tok"))
        assert b.count("tok") == 0
        await b.pass_time(40)
        assert len(await b.listed()) == 1

    b.run(main())


def test_a_stockout_is_a_500_that_is_not_repeated(make: Make) -> None:
    """Three of forty; the rest is refused, most of it without being sent."""
    b = make(3)

    async def main() -> None:
        results = await b.provider.create(launch("tok", 40))
        assert len(refs(results)) == 3
        errors = [r.error for r in results if r.error]
        assert {(type(e), e.code) for e in errors} == {(InsufficientCapacity, "InternalError")}
        assert len(errors) == 37
        with pytest.raises(InsufficientCapacity, match="Out of host capacity"):
            await b.provider.create(launch("tok-none", 2))

    b.run(main())
    assert b.app.requests["LaunchInstance"] <= 3 + 16 + 2
    assert (b.count("tok"), b.count("tok-none")) == (3, 0)


def test_deaths_and_preemptions_are_listed_with_their_reason(b: Bench) -> None:
    """PC-166: dead launches by their work requests; a preempted VM by the lack of any request."""

    async def main() -> None:
        (spot,) = await b.provider.create(launch("tok-spot", offer=offer(market=Market.SPOT)))
        (asked,) = await b.provider.create(launch("tok-asked", offer=offer(market=Market.SPOT)))
        (host,) = await b.provider.create(launch("tok-host"))
        await b.pass_time(30)
        assert {i.phase for i in await b.listed()} == {Phase.RUNNING}
        cloud = b.world.clouds["oci"]
        by_token = {m.token: m for m in b.world.existing()}
        cloud.reclaim(by_token["tok-spot"])
        cloud.kill(by_token["tok-host"])
        stranger = b.adapter()
        await stranger.delete([asked.ref])
        await stranger.aclose()
        b.inject("die_after_accept", 10)
        await b.provider.create(launch("tok-die", 8))
        await b.pass_time(40)
        found = {i.ref.instance_id: i for i in await b.listed()}
        gone = found[spot.ref.instance_id]
        assert (gone.phase, gone.preempted, gone.code) == (Phase.TERMINATED, True, "Preempted")
        for other in (asked, host):
            ended = found[other.ref.instance_id]
            assert (ended.phase, ended.preempted, ended.code) == (Phase.TERMINATED, False, "")
        dead = [i for i in found.values() if i.token == "tok-die"]
        assert {(i.code, i.died) for i in dead} == {
            ("OutOfHostCapacity", Outcome.INSUFFICIENT_CAPACITY),
            ("InternalServerError", None),
        }
        before = dict(b.app.requests)
        await b.listed()
        asked_now = {k: v - before[k] for k, v in b.app.requests.items() if v != before.get(k)}
        assert asked_now == {"ListInstances": 1}
        await b.pass_time(1000)
        assert await b.listed() == []
        assert b.provider._fates[REGION] == {}

    b.run(main())


def test_listing_lags(b: Bench) -> None:
    """PC-106: a fresh instance is not listed, cannot be deleted, and is there all the same."""
    b.inject("list_lag", 600, value=40.0)

    async def main() -> None:
        made = await b.provider.create(launch("tok"))
        assert await b.listed() == []
        await b.provider.delete([r.ref for r in made])
        assert b.count("tok") == 1
        await b.pass_time(41)
        assert [i.phase for i in await b.listed()] == [Phase.PENDING]

    b.run(main())


def test_pages_are_as_small_as_oracle_likes(make: Make) -> None:
    """PC-190: 2,500 instances, 137 to a page whatever is asked for."""
    b = make(2500, page_max=137)

    async def main() -> None:
        for n in range(5):
            await b.provider.create(launch(f"tok-{n}", 500))
        before = b.app.requests.get("ListInstances", 0)
        assert len({i.ref for i in await b.listed()}) == 2500
        assert b.app.requests["ListInstances"] - before == 19

    b.run(main())


def test_regions_are_listed_each_by_itself(b: Bench) -> None:
    """Two regions at one account: instances come from their own, zones as they were offered."""
    regions = {
        REGION: oci.Region(availability_domains=["AD-1"], subnet=SUBNET),
        FAR: oci.Region(availability_domains=[FAR_ZONE], subnet="ocid1.subnet.oc1.us-chicago-1.x"),
    }
    wide = b.adapter(regions=regions)

    async def main() -> None:
        here = Offer("oci", REGION, "AD-1", TYPE)
        there = Offer("oci", FAR, FAR_ZONE, TYPE)
        image = "ocid1.image.oc1.us-chicago-1.base-v1"
        (one,) = await wide.create(launch("tok-1", offer=here))
        (two,) = await wide.create(launch("tok-2", offer=there, image_id=image))
        found = [i.ref async for i in wide.list(Owner("cell"))]
        assert found == [one.ref, two.ref]
        assert (found[0].zone, found[1].zone) == ("AD-1", FAR_ZONE)
        assert [i.ref async for i in wide.list_region(Owner("cell"), FAR)] == [two.ref]
        await wide.delete(found)
        await wide.aclose()

    b.run(main())
    assert {m.phase for m in b.world.existing()} == {Phase.STOPPING}


def test_an_image_is_of_one_region(make: Make) -> None:
    """The copy that has not arrived rests that artifact, not the provider."""
    b = make(images=frozenset({IMAGE}))

    async def main() -> None:
        for image in ("ocid1.image.oc1.iad.base-v1", "ocid1.image.oc1.phx.base-v2"):
            with pytest.raises(ImageNotFound, match="artifact not yet available"):
                await b.provider.create(launch("tok-1", 3, image_id=image))
        assert refs(await b.provider.create(launch("tok-2")))
        for error, where, shape in (
            (InsufficientCapacity, ZONE, "BM.GPU.NONE.8"),
            (InvalidRequest, "PHX-AD-3", TYPE),
        ):
            with pytest.raises(error):
                await b.provider.create(launch("tok-3", offer=Offer("oci", REGION, where, shape)))

    b.run(main())
    assert b.world.ever == 1


def test_the_clouds_own_limits(make: Make) -> None:
    """Oracle's limit names what to ask for; 429 comes when we are too fast and passes."""
    b = make(quota={(REGION, TYPE): 2}, buckets={"launch": BucketSpec(3, 1.0)})

    async def main() -> None:
        results = await b.provider.create(launch("tok", 3))
        (error,) = [r.error for r in results if r.error]
        assert type(error) is QuotaExceeded
        assert "gpu-a10-count" in error.message
        with pytest.raises(Throttled):
            await b.provider.create(launch("tok-more"))
        await b.pass_time(10)
        with pytest.raises(QuotaExceeded):
            await b.provider.create(launch("tok-more"))

    b.run(main())
    assert {"LimitExceeded", "TooManyRequests"} <= set(b.app.errors)


def test_a_batch_that_was_throttled_in_part_is_sent_on(make: Make) -> None:
    """One 429 does not give up the rest of a batch; no instance is made twice."""
    b = make(buckets={"launch": BucketSpec(8, 40.0)})
    patient = b.adapter(busy_s=0.4)

    async def main() -> None:
        assert len(set(refs(await patient.create(launch("tok", 20))))) == 20
        await patient.aclose()

    b.run(main())
    assert b.count("tok") == 20
    assert b.app.errors["TooManyRequests"] >= 1


def test_a_batch_is_paced_call_by_call(make: Make) -> None:
    """A wrapped provider stays below Oracle's own bucket: no call is refused."""
    b = make(buckets={"launch": BucketSpec(5, 20.0), "terminate": BucketSpec(5, 20.0)})
    settings = b.adapter()._settings.model_copy(
        update={"rates": {}, "machine": oci.Machine(boot_volume_gb=50)}
    )
    wrapped = oci.open(settings, clock=LoopClock(), chance=SeededChance(1))

    async def main() -> None:
        made = await wrapped.create(launch("tok", 15))
        await wrapped.delete([r.ref for r in made if r.ref])
        assert len(refs(made)) == 15
        await wrapped.aclose()

    b.run(main())
    assert b.app.errors == {}


def test_rates_can_be_set(b: Bench) -> None:
    slow = b.adapter(rates={"create": [Bucket(burst=1, refill_per_s=10, per_item=True)]})

    async def main() -> float:
        await slow.create(launch("tok-warm"))
        started = asyncio.get_running_loop().time()
        await slow.create(launch("tok", 4))
        await slow.aclose()
        return asyncio.get_running_loop().time() - started

    assert b.run(main()) >= 0.3


def test_bare_metal_boots_long_and_is_pending_meanwhile(make: Make) -> None:
    """No time-out of ours: the pool's bare-metal deadlines decide."""
    b = make(pending_s=Lognormal(1500.0, 0.0))

    async def main() -> None:
        await b.provider.create(launch("tok", offer=offer(METAL)))
        for seconds, phase in ((600, Phase.PENDING), (800, Phase.PENDING), (200, Phase.RUNNING)):
            await b.pass_time(seconds)
            assert [i.phase for i in await b.listed()] == [phase]

    b.run(main())


def test_capacity_in_the_next_domain(make: Make) -> None:
    b = make(0, other=5)

    async def main() -> None:
        with pytest.raises(InsufficientCapacity):
            await b.provider.create(launch("tok-1"))
        (made,) = await b.provider.create(launch("tok-2", offer=offer(zone=OTHER)))
        assert made.ref.zone == OTHER
        assert [i.ref.zone for i in await b.listed()] == [OTHER]

    b.run(main())


def test_user_data_and_tags_arrive_as_they_were(b: Bench) -> None:
    text = "#cloud-config\n# ünïcode " + "x" * 12_000

    async def main() -> None:
        await b.provider.create(launch("tok", user_data=text))

    b.run(main())
    (machine,) = b.world.existing()
    assert (machine.user_data, machine.image_id) == (text, IMAGE)
    assert (machine.cell, machine.pool, machine.token) == ("cell", "train", "tok")


def test_a_listing_while_the_cloud_has_no_time(b: Bench) -> None:
    for kind, error in (("throttle", Throttled), ("unavailable", Unavailable),
                        ("credentials", Unauthorized)):  # fmt: skip
        b.inject(kind, 10)
        with pytest.raises(error):
            b.run(b.listed())
        b.run(b.pass_time(20))
    assert b.run(b.listed()) == []

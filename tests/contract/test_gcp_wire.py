"""The Google adapter's hard paths on the Compute Engine skin.

Restarts, time-outs with and without effect, stock-outs in part, deaths, preemption, lag, quota.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wire_gcp import IMAGE, OTHER, PROJECT, REGION, TYPE, ZONE, Bench, launch

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
from fleet.model import Market, Offer, Owner, Phase
from fleet.sim.spec import BucketSpec, Lognormal
from providers.gce.nouns import names_of

pytest.importorskip("google.cloud.compute_v1")

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
        for count in (3, 30):
            spec = launch(f"tok-{count}", count)
            with pytest.raises(Ambiguous):
                await b.provider.create(spec)
            assert b.count(spec.token) == count
        await b.pass_time(60)
        second = b.adapter()
        for count in (3, 30):
            spec = launch(f"tok-{count}", count)
            assert refs(await second.create(spec)) == names_of(spec)
            assert b.count(spec.token) == count
        # even where Google has forgotten the request ids
        b.app._engine.operations._by_request.clear()
        for count in (3, 30):
            spec = launch(f"tok-{count}", count)
            assert refs(await second.create(spec)) == names_of(spec)
        await second.aclose()

    b.run(main())
    assert b.world.ever == 33


def test_a_create_that_times_out_with_and_without_effect(make: Make) -> None:
    """The client gives up first; the instance is there, or it is not: list() will tell."""
    b = make(latency_s=Lognormal(1e-4))
    hasty = b.adapter(timeout_s=0.2)

    async def main() -> None:
        await b.provider.create(launch("tok-warm"))
        _ = [i async for i in hasty.list(Owner("nobody"))]
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


@pytest.mark.parametrize("count", [5, 25])
def test_a_stockout_names_the_next_zone(make: Make, count: int) -> None:
    """One by one and in bulk: what there is, then refusals that say where there is more."""
    b = make(3, other=9)

    async def main() -> None:
        results = await b.provider.create(launch("tok", count))
        assert len(refs(results)) == 3
        errors = [r.error for r in results if r.error]
        assert {type(e) for e in errors} == {InsufficientCapacity}
        assert {e.zones_with_capacity for e in errors} == {(OTHER,)}
        assert {e.code for e in errors} == {"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"}
        with pytest.raises(InsufficientCapacity):
            await b.provider.create(launch("tok-none", count))

    b.run(main())
    assert (b.count("tok"), b.count("tok-none")) == (3, 0)


def test_deaths_and_preemptions_are_listed_with_their_reason(b: Bench) -> None:
    """PC-166: neither leaves an instance behind, both leave an operation."""

    async def main() -> None:
        spot = Offer("gcp", REGION, ZONE, TYPE, Market.SPOT)
        (kept,) = await b.provider.create(launch("tok-spot", offer=spot))
        (host,) = await b.provider.create(launch("tok-host"))
        await b.pass_time(30)
        assert {i.phase for i in await b.listed()} == {Phase.RUNNING}
        cloud = b.world.clouds["gcp"]
        by_token = {m.token: m for m in b.world.existing()}
        cloud.reclaim(by_token["tok-spot"])
        cloud.kill(by_token["tok-host"])
        b.inject("die_after_accept", 10)
        await b.provider.create(launch("tok-die", 4))
        await b.pass_time(40)
        found = {i.ref.instance_id: i for i in await b.listed()}
        assert kept.ref and host.ref
        gone = found[kept.ref.instance_id]
        assert (gone.phase, gone.preempted, gone.token) == (Phase.TERMINATED, True, "tok-spot")
        broken = found[host.ref.instance_id]
        assert (broken.code, broken.preempted) == ("compute.instances.hostError", False)
        dead = [i for i in found.values() if i.token == "tok-die"]
        assert {i.code for i in dead} <= {
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "INTERNAL_ERROR",
        }
        assert (len(dead), {i.phase for i in dead}) == (4, {Phase.TERMINATED})
        await b.pass_time(1000)
        assert await b.listed() == []

    b.run(main())


def test_listing_lags(make: Make) -> None:
    """PC-106: a fresh instance is not listed, cannot be deleted, and is there all the same."""
    b = make()
    b.inject("list_lag", 600, value=40.0)

    async def main() -> None:
        made = await b.provider.create(launch("tok"))
        assert await b.listed() == []
        await b.provider.delete([r.ref for r in made if r.ref])
        assert b.count("tok") == 1
        await b.pass_time(41)
        assert [i.phase for i in await b.listed()] == [Phase.PENDING]

    b.run(main())


def test_the_clouds_own_limits(make: Make) -> None:
    """403 twice: one passes with the minute, the other only when somebody asks for more."""
    b = make(
        quota={(REGION, TYPE): 2},
        buckets={"launch": BucketSpec(3, 1.0)},
    )

    async def main() -> None:
        results = await b.provider.create(launch("tok", 3))
        (error,) = [r.error for r in results if r.error]
        assert type(error) is QuotaExceeded
        words = "regional quota NVIDIA_H100_GPUS in us-central1: Quota 'NVIDIA_H100_GPUS' exceeded"
        assert error.message.startswith(words)
        with pytest.raises(Throttled):
            await b.provider.create(launch("tok-more"))
        with pytest.raises(QuotaExceeded):
            await b.pass_time(10)
            await b.provider.create(launch("tok-more"))

    b.run(main())
    assert {"quotaExceeded", "rateLimitExceeded"} <= set(b.app.errors)


def test_a_missing_image_and_a_zone_without_the_type(make: Make) -> None:
    b = make(images=frozenset({IMAGE}))

    async def main() -> None:
        other = f"projects/{PROJECT}/global/images/other"
        with pytest.raises(ImageNotFound):
            await b.provider.create(launch("tok-1", image_id=other))
        for kind, where, error in (
            ("a9-none-8g", ZONE, InsufficientCapacity),
            (TYPE, "us-central1-f", InvalidRequest),
        ):
            with pytest.raises(error):
                await b.provider.create(launch("tok-2", offer=Offer("gcp", REGION, where, kind)))
        assert refs(await b.provider.create(launch("tok-3")))
        provider: Any = b.provider
        family = f"projects/{PROJECT}/global/images/family/base"
        assert await provider.resolve_image(family) == IMAGE

    b.run(main())
    assert b.world.ever == 1


def test_user_data_and_metadata_arrive_as_they_were(b: Bench) -> None:
    text = "#cloud-config\n# ünïcode " + "x" * 12_000

    async def main() -> None:
        await b.provider.create(launch("tok", user_data=text, image_id="base-v1"))

    b.run(main())
    (machine,) = b.world.existing()
    assert machine.user_data == text
    assert machine.image_id == IMAGE
    assert (machine.cell, machine.pool, machine.token) == ("cell", "train", "tok")


def test_a_listing_while_the_cloud_has_no_time(b: Bench) -> None:
    for kind, error in (("throttle", Throttled), ("unavailable", Unavailable),
                        ("credentials", Unauthorized)):  # fmt: skip
        b.inject(kind, 10)
        with pytest.raises(error):
            b.run(b.listed())
        b.run(b.pass_time(20))
    assert b.run(b.listed()) == []

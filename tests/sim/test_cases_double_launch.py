"""Public cases of the area double-launch: never one instance more than was asked for."""

from __future__ import annotations

import asyncio

from scene import HOUR_S, Scene, cloud, world
from sqlalchemy import select
from sqlmodel import col

from fleet.model import State
from fleet.sim.faults import Injection, Kind
from fleet.sim.spec import WorldSpec
from fleet.sim.trial import image, pool, virtual
from fleet.store.tables import BatchRow


def test_two_pools_want_the_same_scarce_offer() -> None:
    """PC-013, PC-044, PC-049: four nodes are left and two pools want three each: nobody is served
    by a machine of the other, the loser goes on to its next offer, nothing is made twice."""

    async def work() -> None:
        spec = WorldSpec((cloud("aws", level=4), cloud("gcp")))
        pools = [pool(spec, name, nodes=3, spares=0) for name in ("one", "two")]
        scene = Scene(spec, policies=(image(spec), *pools))
        await scene.start()
        assert await scene.settle()
        assert len(scene.existing()) == scene.world.ever == 6
        assert len(scene.existing(provider="aws")) == 4
        for node in scene.nodes_in():
            assert scene.machine(node).pool == node.pool
        await scene.close()

    virtual(work)


def test_many_wakes_are_one_plan() -> None:
    """PC-010, PC-130, PC-175: woken a hundred times while it plans, and applied ten times at
    once: one plan per pool and pass on one snapshot, three instances."""

    async def work() -> None:
        scene = Scene()
        await scene.start()
        same = [scene.resize(2, 1) for _ in range(10)]
        await asyncio.gather(*same)
        for _ in range(100):
            scene.up.cell.wake("plan", "launch", "assign", "lifecycle")
            await scene.clock.sleep(0.05)
        assert await scene.settle()
        assert scene.world.ever == 3
        await scene.close()

    virtual(work)


def test_applied_by_several_at_once() -> None:
    """PC-014: of two sizes applied at the same moment one wins; the fleet follows that one."""

    async def work() -> None:
        scene = Scene()
        await scene.start()
        await asyncio.gather(scene.resize(2, 0), scene.resize(4, 0), scene.resize(3, 0))
        wanted = scene.up.cell.view.pools["train"].spec.nodes
        assert await scene.settle()
        await scene.run(300.0)
        assert len(scene.existing()) == wanted
        await scene.close()

    virtual(work)


def test_failover_waits_for_the_fate_of_the_first_attempt() -> None:
    """PC-004, PC-107, PC-126: a call without answer is no capacity failure: nothing is launched
    elsewhere while it may have worked, and wanted + spares is never exceeded."""

    async def work() -> None:
        spec = world("aws", "gcp")
        unheard = Injection(Kind.CREATE_UNHEARD, 0.0, 300.0, provider="aws")
        hidden = Injection(Kind.LIST_LAG, 0.0, 300.0, provider="aws", value=90.0)
        scene = Scene(spec, unheard, hidden, nodes=6, spares=2)
        await scene.start()
        assert await scene.settle()
        assert scene.calls["create gcp"] == 0
        assert scene.world.ever == 8
        await scene.close()

    virtual(work)


def test_an_empty_answer_never_means_create() -> None:
    """PC-105, PC-106: ids are known and lists come back empty: nothing is bought."""

    async def work() -> None:
        scene = Scene(nodes=4)
        await scene.start()
        assert await scene.settle()
        scene.world.inject(Injection(Kind.LIST_SLIP, 0.0, 1800.0, rate=1.0))
        await scene.run(2400.0)
        assert scene.world.ever == 5
        assert not scene.ended()
        await scene.close()

    virtual(work)


def test_what_leaves_counts_until_it_is_gone() -> None:
    """PC-126, PC-129, PC-176: the cloud does not end what it was asked to end: replacements stop
    at wanted + spares + surge of machines that really exist."""

    async def work() -> None:
        stuck = Injection(Kind.STUCK_TERMINATE, 0.0, 3 * HOUR_S)
        scene = Scene(world("aws"), stuck, nodes=3, spares=1, quarantine={"max": 0})
        await scene.start()
        assert await scene.settle()
        for _ in range(4):
            scene.hurt(next(n for n in scene.nodes_in(State.READY) if n.slot))
            await scene.run(1800.0, step_s=10.0)  # the invariants watch the ceiling
        assert len(scene.existing()) <= 3 + 1 + 1
        assert await scene.settle(timeout_s=4 * HOUR_S)
        await scene.close()

    virtual(work)


def test_a_token_is_never_used_for_two_intents() -> None:
    """PC-107, PC-108, PC-124: every batch and node is a record of its own; none is used again."""

    async def work() -> None:
        scene = Scene(nodes=2, spares=1, quarantine={"max": 0})
        await scene.start()
        assert await scene.settle()
        old = {n.id: n.token for n in scene.nodes_in()}
        scene.hurt(scene.nodes_in(State.READY)[0])
        await scene.run(1200.0)
        fresh = [n for n in scene.nodes_in() if n.id not in old]
        assert len(fresh) == 1
        assert fresh[0].token not in old.values()
        count = scene.store.call(
            lambda tx: len(tx.execute(select(col(BatchRow.token))).scalars().all())
        )
        assert count == 2
        await scene.close()

    virtual(work)

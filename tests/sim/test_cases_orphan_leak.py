"""Public cases of the area orphan-leak: nothing that exists is forgotten, nothing ends unseen."""

from __future__ import annotations

import pytest
from scene import HOUR_S, Scene, world

from fleet.model import Phase, State
from fleet.sim.faults import Injection, Kind
from fleet.sim.trial import virtual
from fleet.store import apply
from providers.base import TAG_CELL, TAG_POOL, TAG_TOKEN


async def empty(scene: Scene, *, timeout_s: float = 2 * HOUR_S) -> None:
    """Let everything end; nothing of it may be left."""
    end = scene.clock.monotonic() + timeout_s
    while scene.existing() or scene.nodes_in():
        assert scene.clock.monotonic() < end, (scene.nodes_in(), scene.existing())
        await scene.run(20.0, step_s=20.0)


def test_owned_from_the_first_moment() -> None:
    """PC-005, PC-029, PC-107: tags are on a machine when it is made, not when its batch is up:
    the siblings of a batch of which half dies are owned, kept or ended, none runs on alone."""

    async def work() -> None:
        dying = Injection(Kind.DIE_AFTER_ACCEPT, 0.0, 60.0, rate=0.5)
        scene = Scene(world("aws"), dying, nodes=8, spares=0)
        tags: list[dict[str, str]] = []
        made = scene.world.created
        scene.world.created = lambda m: (made(m), tags.append(dict(m.tags)))[0]  # type: ignore[method-assign,assignment,func-returns-value]
        await scene.start()
        assert await scene.settle()
        assert len(tags) > 8
        assert all({TAG_CELL, TAG_POOL, TAG_TOKEN} <= t.keys() for t in tags)
        assert not scene.unowned()
        assert len(scene.existing()) == 8
        await scene.close()

    virtual(work)


def test_a_failed_machine_is_deleted_too() -> None:
    """PC-027, PC-097, PC-137, PC-194, PC-199: Azure keeps a failed VM: it is seen within a list
    or two, counted as the capacity failure it was, and deleted until it is gone. (Its NIC and
    disk are the adapter's: tests/contract/test_azure.py, fast failures leave nothing.)"""

    async def work() -> None:
        dying = Injection(Kind.DIE_AFTER_ACCEPT, 0.0, 120.0, rate=0.7)
        scene = Scene(world("azure"), dying, nodes=6, spares=0)
        await scene.start()
        await scene.run(90.0)
        ended = scene.outcomes()
        assert ended["insufficient_capacity"] + ended["lost"] >= 1
        assert await scene.settle(timeout_s=2 * HOUR_S)
        await scene.run(300.0)
        assert {m.phase for m in scene.existing()} == {Phase.RUNNING}
        assert len(scene.existing()) == 6
        await scene.close()

    virtual(work)


def test_many_come_and_go_badly() -> None:
    """PC-028, PC-056, PC-058: 150 launches, many of which never boot, die, or are unheard, and
    all of which are wanted no more half-way: nothing with our tag is left."""

    async def work() -> None:
        faults = (
            Injection(Kind.NEVER_BOOT, 0.0, HOUR_S, rate=0.2),
            Injection(Kind.DIE_AFTER_ACCEPT, 0.0, HOUR_S, rate=0.1),
            Injection(Kind.CREATE_UNHEARD, 0.0, HOUR_S, rate=0.3),
            Injection(Kind.LIST_TRUNCATED, 0.0, HOUR_S, rate=0.2),
            Injection(Kind.STUCK_TERMINATE, 0.0, HOUR_S, rate=0.2),
        )
        scene = Scene(world("aws", "azure", level=80), *faults, nodes=140, spares=10)
        await scene.start()
        await scene.run(55.0)
        assert scene.existing()
        await scene.resize(0)
        scene.shrunk()
        await empty(scene)
        await scene.close()

    virtual(work)


@pytest.mark.parametrize("when_s", [2.0, 8.0, 20.0, 120.0])
def test_a_pool_is_deleted_while_it_launches(when_s: float) -> None:
    """PC-007, PC-028, PC-139, PC-140: a call in flight, a hidden instance, a booting node: the
    pool's record stays until nothing of it exists, and no instance is taken in after that."""

    async def work() -> None:
        hidden = Injection(Kind.LIST_LAG, 0.0, HOUR_S, value=60.0)
        scene = Scene(world("gcp"), hidden, nodes=3, spares=1)
        await scene.start()
        await scene.run(when_s, step_s=1.0)
        now = scene.clock.now()
        await scene.up.cell.commit(
            lambda tx: apply.delete_policy(tx, "Pool", "train", actor="user:ann", now=now)
        )
        await empty(scene)
        ever = scene.world.ever
        await scene.run(900.0)
        assert scene.world.ever == ever
        await scene.close()

    virtual(work)


def test_an_error_answer_closes_nothing() -> None:
    """PC-026, PC-059, PC-144: deletes fail for an hour: the record stays TERMINATING, asks come
    with back-off, an alarm after 15 minutes, and the end is only the cloud's word."""

    async def work() -> None:
        scene = Scene(nodes=1, spares=1, quarantine={"max": 0})
        await scene.start()
        assert await scene.settle()
        victim = next(n for n in scene.nodes_in(State.READY) if n.slot)
        refused = scene.world.clouds["aws"].admit

        def admit(action: str, region: str, items: int = 0) -> None:
            if action == "terminate" and scene.world.t < HOUR_S:
                raise scene.world.clouds["aws"].deny(Trouble.UNAVAILABLE)
            refused(action, region, items)

        from fleet.sim.vendor import Trouble

        scene.world.clouds["aws"].admit = admit  # type: ignore[method-assign]
        scene.hurt(victim)
        await scene.run(HOUR_S - scene.world.t - 5.0)
        assert victim.id in {n.id for n in scene.nodes_in(State.TERMINATING)}
        assert scene.events("terminate_stuck")
        assert 4 <= scene.calls["delete aws"] <= 12
        await scene.run(1800.0)
        assert victim.id not in scene.up.cell.view.nodes
        assert victim.instance_id not in {m.id for m in scene.existing()}
        await scene.close()

    virtual(work)


def test_instances_of_others_are_left_alone() -> None:
    """PC-086, PC-122, PC-171: what carries another cell's tag is not listed, adopted or swept."""

    async def work() -> None:
        scene = Scene()
        await scene.start()
        assert await scene.settle()
        from fleet.model import LaunchSpec
        from fleet.sim.fakecloud import FakeCloud

        offer = scene.nodes_in()[0].offer
        foreign = LaunchSpec("b-theirs", offer, 3, "ami-0123456789abcdef0", "", {}, "x", "other")
        theirs = await FakeCloud(scene.world, "aws").create(foreign)
        await scene.clock.sleep(2 * HOUR_S)
        ids = {r.ref.instance_id for r in theirs if r.ref}
        assert ids <= {m.id for m in scene.existing()}
        assert not scene.up.cell.view.frozen
        assert scene.calls["delete aws"] == 0
        await scene.close()

    virtual(work)


def test_a_duplicate_under_our_token_is_ended() -> None:
    """PC-127, PC-128: a cloud made one machine more than was asked for under a token: the
    recorded ones stay, the other is ended after two looks and ten minutes, with an event."""

    async def work() -> None:
        scene = Scene(nodes=2, spares=0)
        await scene.start()
        assert await scene.settle()
        kept = {m.id for m in scene.existing()}
        one = scene.existing()[0]
        from fleet.sim.order import Order

        o = one.offer
        order = Order(o.region, o.zone, o.instance_type, o.market, one.image_id, one.user_data,
                      dict(one.tags), count=1, key="another-key")  # fmt: skip
        (extra,) = scene.world.clouds["aws"].launch(order)
        await scene.run(300.0, check=False)
        assert extra.id in {m.id for m in scene.existing()}
        await scene.run(1500.0, check=False)
        assert {m.id for m in scene.existing()} == kept
        assert scene.events("duplicate")
        await scene.close()

    virtual(work)

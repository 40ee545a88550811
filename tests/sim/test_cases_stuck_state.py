"""Public cases of the areas stuck-state and credentials: every wait ends, one way or the other."""

from __future__ import annotations

import asyncio

import pytest
from scene import HOUR_S, Scene, cloud, world
from sqlalchemy import select, update
from sqlmodel import col

from fleet.model import State
from fleet.sim.faults import Injection, Kind
from fleet.sim.spec import Lognormal, WorldSpec
from fleet.sim.trial import virtual
from fleet.store.tables import BatchRow, NodeRow
from fleet.tasks import FATAL_FAILURES


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(Kind.NEVER_BOOT, "boot_timeout"), (Kind.STUCK_PENDING, "boot_timeout"),
     (Kind.DIE_AFTER_ACCEPT, "lost"), (Kind.IMAGE_DEFECT, "gate_failed"),
     (Kind.CREATE_LOST, "lost")],
)  # fmt: skip
def test_every_way_of_not_becoming_ready_ends_and_counts(kind: Kind, outcome: str) -> None:
    """PC-034, PC-082, PC-131, PC-167, PC-173: no report, never running, dead, a failed gate, no
    instance at all: each leaves its state by the deadline, has an outcome in the statistics, and
    its place is wanted again without a person."""

    async def work() -> None:
        fault = Injection(kind, 0.0, HOUR_S, code="gpu_count" if kind is Kind.IMAGE_DEFECT else "")
        scene = Scene(world("oci"), fault, nodes=2, spares=0, quarantine={"max": 0})
        await scene.start()
        await scene.run(1.6 * HOUR_S, step_s=10.0)
        assert scene.outcomes()[outcome] >= 1, scene.outcomes()
        assert await scene.settle(timeout_s=3 * HOUR_S)
        await scene.close()

    virtual(work)


def test_launches_that_never_boot_are_stopped_by_the_breaker_and_go_elsewhere() -> None:
    """PC-025, PC-152, PC-167, PC-168, PC-170: one cloud's launches are accepted and never boot:
    after three in a row that image rests there, attempts are bounded, the next cloud serves."""

    async def work() -> None:
        dead = Injection(Kind.NEVER_BOOT, 0.0, 6 * HOUR_S, provider="aws")
        scene = Scene(world("aws", "gcp"), dead, nodes=3, spares=1)
        await scene.start()
        assert await scene.settle(timeout_s=2 * HOUR_S)
        assert {n.offer.provider for n in scene.nodes_in(State.READY)} == {"gcp"}
        assert any(s.startswith("boot:train/aws") for s in scene.up.cell.view.rests)
        await scene.run(2 * HOUR_S, step_s=15.0)
        assert len(scene.events("boot_timeout")) <= 10
        await scene.close()

    virtual(work)


def test_a_throttle_that_never_ends_has_an_outcome() -> None:
    """PC-148, PC-152, PC-192: the same token is tried four times, then the launch is closed as
    throttled and a new one is planned: a request that did nothing is not a success."""

    async def work() -> None:
        storm = Injection(Kind.THROTTLE, 60.0, HOUR_S)
        scene = Scene(world("aws"), storm, nodes=1, spares=0)
        await scene.start()
        assert await scene.settle()
        await scene.run(60.0)
        await scene.resize(2)
        await scene.run(HOUR_S - scene.world.t - 60.0)
        assert scene.outcomes()["throttled"] + scene.outcomes()["cancelled"] >= 1
        attempts = scene.store.call(
            lambda tx: tx.execute(select(col(BatchRow.attempts))).scalars().all()
        )
        assert max(attempts) <= 4
        assert scene.calls["create aws"] <= 40
        assert await scene.settle()
        await scene.close()

    virtual(work)


def test_a_replacement_does_not_wait_for_its_predecessor() -> None:
    """PC-011, PC-129: the old machine stays in stopping for hours: no name is used again and the
    replacement is up within the boot time."""

    async def work() -> None:
        stuck = Injection(Kind.STUCK_TERMINATE, 0.0, 3 * HOUR_S)
        scene = Scene(world("aws"), stuck, nodes=2, spares=1, quarantine={"max": 0})
        await scene.start()
        assert await scene.settle()
        scene.hurt(scene.nodes_in(State.READY)[0])
        await scene.run(5.0)
        assert await scene.settle(timeout_s=300.0)
        assert scene.nodes_in(State.TERMINATING, State.DRAINING)
        await scene.close()

    virtual(work)


def test_one_hanging_call_blocks_nobody_else() -> None:
    """PC-053, PC-145: deletes and creates of one cloud never return: the other cloud's node is
    replaced and ended as ever, passes go on."""

    async def work() -> None:
        spec = WorldSpec((cloud("aws", level=2), cloud("gcp")))
        scene = Scene(spec, nodes=3, spares=1, surge=4, quarantine={"max": 0})
        await scene.start()
        assert await scene.settle(timeout_s=2 * HOUR_S)

        async def never(_: object) -> None:
            await asyncio.get_running_loop().create_future()

        aws = scene.up.cell.providers["aws"]
        aws.delete = aws.create = never  # type: ignore[method-assign,assignment]
        for name in ("aws", "gcp"):
            scene.hurt(next(
                n for n in scene.nodes_in(State.READY) if n.offer.provider == name
            ))  # fmt: skip
            await scene.run(60.0)
        await scene.run(1200.0)
        assert scene.serving() == 3
        assert not scene.nodes_in(State.TERMINATING, State.DRAINING) or {
            n.offer.provider for n in scene.nodes_in(State.TERMINATING, State.DRAINING)
        } == {"aws"}
        for driver in scene.up.cell.drivers.values():
            assert driver.status.late_s(scene.clock.monotonic()) < 60.0
        await scene.close()

    virtual(work)


def test_a_poison_row_halts_nobody() -> None:
    """PC-150, PC-151: one record that makes no sense is skipped and logged; the others live on."""

    async def work() -> None:
        scene = Scene(nodes=3, spares=1)
        await scene.start()
        assert await scene.settle()
        bad = scene.nodes_in(State.READY)[0]
        cell = scene.up.cell
        decide = scene.up.lifecycle._decide

        def poison(node: object, now: float) -> object:
            if getattr(node, "id", "") == bad.id:
                raise AssertionError("this row makes no sense")
            return decide(node, now)  # type: ignore[arg-type]

        scene.up.lifecycle._decide = poison  # type: ignore[method-assign,assignment]
        other = next(n for n in scene.nodes_in(State.READY) if n.slot and n.id != bad.id)
        scene.hurt(other)
        await scene.run(60.0)
        assert other.id in scene.ended()
        assert cell.drivers["lifecycle"].status.failures == 0
        await scene.run(600.0)
        assert scene.serving() == 3
        await scene.close()

    virtual(work)


def test_a_loop_that_fails_for_good_ends_the_process() -> None:
    """PC-054, PC-151: progress is measured; a loop that fails too often in a row is the end of
    the process (systemd starts it again) and never a daemon that only seems to run."""

    async def work() -> None:
        scene = Scene()
        await scene.start()
        assert await scene.settle()

        async def broken() -> None:
            raise RuntimeError("no")

        driver = scene.up.cell.drivers["plan"]
        driver.task.run = broken  # type: ignore[method-assign]
        before = {m.id for m in scene.existing()}
        died = await asyncio.wait_for(scene.up.died, 2 * HOUR_S)
        assert "plan" in died
        assert driver.status.failures_in_row == FATAL_FAILURES
        assert driver.status.late_s(scene.clock.monotonic()) > 0.0
        assert {m.id for m in scene.existing()} == before
        await scene.close()

    virtual(work)


def test_a_slow_type_boots_at_its_own_pace() -> None:
    """PC-082, PC-084, PC-113, PC-114, PC-149: bare metal that needs forty minutes after a queue of
    fifteen is not killed; the queue does not count as boot."""

    async def work() -> None:
        slow = cloud("oci", pending_s=Lognormal(900.0, 0.01), boot_s=Lognormal(2400.0, 0.01))
        scene = Scene(WorldSpec((slow,)), nodes=2, spares=0)
        await scene.start()
        assert await scene.settle(timeout_s=2 * HOUR_S)
        assert scene.outcomes() == {"ready": 2}
        assert scene.world.ever == 2
        await scene.close()

    virtual(work)


def test_a_stale_step_is_dropped() -> None:
    """PC-010, PC-146, PC-205: a row that moved since it was read refuses the older writer."""

    async def work() -> None:
        from fleet.errors import Stale
        from fleet.store import write

        scene = Scene()
        await scene.start()
        assert await scene.settle()
        node = scene.nodes_in(State.READY)[0]
        scene.store.call(
            lambda tx: tx.execute(
                update(NodeRow).where(col(NodeRow.id) == node.id).values(version=node.version + 1)
            )
        )
        with pytest.raises(Stale):
            scene.store.call(lambda tx: write.update_node(tx, node, fault="xid_79"))
        await scene.close()

    virtual(work)


# -- credentials ----------------------------------------------------------------------------------


def test_expired_credentials_are_asked_about_at_a_steady_pace() -> None:
    """PC-030, PC-031, PC-032, PC-206: for five hours no call works: lists go on at their interval
    (neither in a hot loop nor never again), what is shown stays, and the first good answer ends
    it within a minute."""

    async def work() -> None:
        hours = 5.0
        scene = Scene(nodes=2, spares=1)
        await scene.start()
        assert await scene.settle()
        scene.calls.clear()
        scene.world.inject(Injection(Kind.CREDENTIALS, 0.0, hours * HOUR_S))
        await scene.run(hours * HOUR_S - 5.0, step_s=30.0)
        assert hours * HOUR_S / 60.0 <= scene.calls["list aws"] <= hours * HOUR_S / 10.0
        assert scene.up.cell.watch.sightings["aws"].held
        assert len(scene.up.cell.view.nodes) == 3
        await scene.run(65.0)
        assert not scene.up.cell.watch.sightings["aws"].held
        assert scene.settled()
        assert not scene.ended()
        await scene.close()

    virtual(work)


def test_node_tokens_outlive_every_boot_token() -> None:
    """PC-033: what the daemon hands out does not run out under a node that works: a day."""

    async def work() -> None:
        scene = Scene(nodes=1, spares=0)
        await scene.start()
        assert await scene.settle()
        await scene.run(24 * HOUR_S, step_s=600.0)
        assert scene.settled()
        assert scene.world.ever == 1
        assert scene.nodes is not None
        assert scene.nodes.refused == 0
        await scene.close()

    virtual(work)

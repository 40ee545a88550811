"""Acceptance tests 1 and 2 (field.md section 4): a crash at any moment, and a lost store."""

from __future__ import annotations

import asyncio

import pytest
from scene import HOUR_S, CrashStore, Scene, cloud, world
from sqlalchemy import select

from fleet.model import State
from fleet.sim.faults import Injection, Kind
from fleet.sim.invariants import Invariants
from fleet.sim.spec import WorldSpec
from fleet.sim.trial import image, pool, virtual
from fleet.store.tables import BatchRow

HIDDEN_S = (1.0, 15.0, 45.0, 90.0, 120.0)
DOWN_S = (1.0, 20.0, 90.0)
#: At least the points from an empty store to three READY nodes, and of the way back to nothing.
LAUNCH_POINTS = 96
DELETE_POINTS = 50


def test_the_matrix_covers_the_whole_launch() -> None:
    async def work() -> None:
        scene = Scene()
        await scene.start()
        assert await scene.settle()
        names = scene.points.names
        assert len(names) <= LAUNCH_POINTS, "the way has become longer: so must the matrix"
        assert {"before create", "after create", "before commit", "after commit"} < set(names)
        await scene.close()

    virtual(work)


def crash_in_launch(kind: str, at: int, *faults: Injection, again_at: int | None = None) -> None:
    """Die at a point of a launch of three nodes; exactly three machines must ever exist."""

    async def work() -> None:
        hidden = Injection(Kind.LIST_LAG, 0.0, 2 * HOUR_S, value=HIDDEN_S[at % len(HIDDEN_S)])
        scene = Scene(world(kind), hidden, *faults, crash_at=at, seed=at)
        await scene.reborn(down_s=DOWN_S[at % len(DOWN_S)], again_at=again_at)
        assert await scene.settle(), scene.nodes_in()
        assert scene.world.ever == 3, "an instance too many was made"
        assert not scene.unowned()
        assert scene.outcomes() == {"ready": 3}
        asked = scene.store.call(lambda tx: tx.execute(select(BatchRow)).scalars().all())
        assert sum(b.n for b in asked) == 3
        await scene.close()

    virtual(work)


@pytest.mark.parametrize("at", range(1, LAUNCH_POINTS + 1))
def test_kill_at_each_point_of_a_batch_launch(at: int) -> None:
    """Acceptance 1. PC-001, PC-061, PC-107, PC-124: killed before and after each commit, create
    and list, with the new instances hidden for 1 to 120 s: the asked ones and no more, all owned.
    """
    crash_in_launch("aws", at)


@pytest.mark.parametrize("at", range(2, LAUNCH_POINTS - 4, 5))
def test_kill_at_each_point_of_single_launches(at: int) -> None:
    """Acceptance 1. PC-061, PC-062, PC-105: the same where each instance is a call of its own and
    a repeated create meets what the first one made."""
    crash_in_launch("gcp", at)


@pytest.mark.parametrize("at", range(10, 70, 10))
@pytest.mark.parametrize("fate", [Kind.CREATE_UNHEARD, Kind.CREATE_LATE, Kind.CREATE_LOST], ids=str)
def test_kill_while_the_answer_is_lost_too(fate: Kind, at: int) -> None:
    """PC-001, PC-107: the create call times out (made, made later, not made) and then the
    process dies: the same token settles it."""
    kind = ("aws", "gcp")[at // 10 % 2]
    crash_in_launch(kind, at, Injection(fate, 0.0, 120.0, value=30.0))


@pytest.mark.parametrize("at", range(8, 80, 9))
def test_kill_twice(at: int) -> None:
    """PC-061, PC-124, PC-204: the successor dies as well, while it takes over."""
    crash_in_launch("aws", at, again_at=5 + at // 2)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_kill_in_the_middle_of_a_batch(nth: int) -> None:
    """PC-028, PC-061, PC-126: the process dies when one of three single calls has made its
    machine and the others have not."""

    async def work() -> None:
        scene = Scene(world("oci"), Injection(Kind.LIST_LAG, 0.0, HOUR_S, value=60.0))
        created, seen = scene.world.created, []

        def die(machine: object) -> None:
            created(machine)  # type: ignore[arg-type]  # the world's own hook
            seen.append(machine)
            if len(seen) == nth:
                scene.points.dead = True
                scene.points.hit.set()

        scene.world.created = die  # type: ignore[method-assign]
        await scene.reborn(down_s=10.0)
        assert await scene.settle(timeout_s=2 * HOUR_S)
        assert scene.world.ever == 3
        assert not scene.unowned()
        await scene.close()

    virtual(work)


@pytest.mark.parametrize("at", range(2, DELETE_POINTS, 5))
def test_kill_at_each_point_of_a_deletion(at: int) -> None:
    """Acceptance 1. PC-005, PC-007, PC-026, PC-058, PC-059, PC-144: a pool goes to nothing and
    the process dies on the way: every instance ends, no record is closed before."""

    async def work() -> None:
        lag = Injection(Kind.LIST_LAG, 0.0, 9 * HOUR_S, value=HIDDEN_S[at % len(HIDDEN_S)])
        scene = Scene(world(("aws", "gcp")[at % 2]), lag, nodes=1, spares=1)
        await scene.start()
        assert await scene.settle()
        scene.points.revive(at)
        resize = asyncio.get_running_loop().create_task(scene.resize(0))
        await scene.reborn(down_s=DOWN_S[at % len(DOWN_S)])
        resize.cancel()
        end = scene.clock.monotonic() + HOUR_S
        while scene.nodes_in() or scene.existing():
            assert scene.clock.monotonic() < end, (scene.nodes_in(), scene.existing())
            await scene.run(10.0, step_s=10.0)
        await scene.close()

    virtual(work)


# -- 2: the store is not what it was --------------------------------------------------------------


async def lose_store(scene: Scene, store: CrashStore) -> None:
    """Crash, and come back with another database."""
    await scene.crash()
    scene.store = store
    store.points = scene.points
    scene.checks = Invariants(scene)
    await scene.start()


@pytest.mark.parametrize("slip", [0.0, 0.5], ids=["whole lists", "slipping lists"])
def test_an_empty_store_beside_running_instances(slip: float) -> None:
    """Acceptance 2. PC-006, PC-121, PC-122, PC-171: adopted by tags, frozen, nothing ended in a
    day, also when the first lists show only some of them; then an operator applies the pool and
    unfreezes, and the same machines serve."""

    async def work() -> None:
        scene = Scene(world("gcp"), nodes=3, spares=1)
        await scene.start()
        assert await scene.settle()
        machines = {m.id for m in scene.existing()}
        if slip:
            scene.world.inject(Injection(Kind.LIST_SLIP, 0.0, 600.0, rate=slip))
        await lose_store(scene, CrashStore("sqlite:///:memory:"))
        await scene.run((2 if slip else 24) * HOUR_S, step_s=300.0)
        assert scene.up.cell.view.frozen
        assert scene.calls["delete gcp"] == 0
        assert {m.id for m in scene.existing()} == machines
        assert {n.instance_id for n in scene.nodes_in()} == machines
        assert not scene.ended()
        await scene.apply(image(scene.spec), pool(scene.spec, nodes=3, spares=1))
        await scene.run(120.0)
        await scene.unfreeze()
        assert await scene.settle(timeout_s=1200.0), scene.nodes_in()
        await scene.run(HOUR_S, step_s=30.0)
        assert {m.id for m in scene.existing()} == machines, "healthy machines were replaced"
        await scene.close()

    virtual(work)


def test_an_empty_store_that_is_unfrozen_before_a_pool_is_applied() -> None:
    """PC-006, PC-122: an operator who lets go too early must not lose the fleet."""

    async def work() -> None:
        scene = Scene(world("aws"))
        await scene.start()
        assert await scene.settle()
        machines = {m.id for m in scene.existing()}
        await lose_store(scene, CrashStore("sqlite:///:memory:"))
        await scene.run(HOUR_S, step_s=60.0)
        await scene.unfreeze()
        await scene.run(HOUR_S, step_s=60.0)
        assert {m.id for m in scene.existing()} == machines
        await scene.apply(image(scene.spec), pool(scene.spec, nodes=2, spares=1))
        assert await scene.settle(timeout_s=1200.0)
        assert {m.id for m in scene.existing()} == machines
        await scene.close()

    virtual(work)


def copy_of(store: CrashStore) -> CrashStore:
    """A database as a backup would hold it now."""
    copy = CrashStore("sqlite:///:memory:")
    source, target = store.engine.raw_connection(), copy.engine.raw_connection()
    source.driver_connection.backup(target.driver_connection)  # type: ignore[union-attr]
    return copy


def test_a_store_restored_from_an_older_copy() -> None:
    """Acceptance 2. PC-006, PC-040, PC-121, PC-205: the copy knows two nodes of four and one that
    has ended since: the two others are adopted, nothing is ended before an operator says so, and
    then the pool serves with what there is."""

    async def work() -> None:
        scene = Scene(world("aws"))
        await scene.start()
        assert await scene.settle()
        assert isinstance(scene.store, CrashStore)
        old = copy_of(scene.store)
        victim = scene.nodes_in(State.READY)[0]
        scene.hurt(victim)
        await scene.resize(4, 1)
        assert await scene.settle()
        await scene.run(900.0)
        machines = {m.id for m in scene.existing()}
        assert len(machines) >= 5
        deletes = scene.calls["delete aws"]
        await lose_store(scene, old)
        await scene.run(6 * HOUR_S, step_s=300.0, check=False)
        assert scene.up.cell.view.frozen
        assert scene.calls["delete aws"] == deletes
        assert machines - {m.id for m in scene.existing()} == set()
        await scene.resize(4, 1)
        await scene.unfreeze()
        assert await scene.settle(timeout_s=2400.0), scene.nodes_in()
        assert not scene.unowned()
        await scene.close()

    virtual(work)


def test_a_store_that_does_not_answer_ends_nothing() -> None:
    """Acceptance 2. PC-121, PC-145, PC-203: no pass concludes anything while the store is away."""

    async def work() -> None:
        from fleet.errors import StoreError

        scene = Scene(WorldSpec((cloud("aws"), cloud("gcp"))))
        await scene.start()
        assert await scene.settle()
        before, run = {m.id for m in scene.existing()}, scene.store.run

        async def away(fn: object) -> object:
            raise StoreError("the database stayed locked")

        scene.store.run = away  # type: ignore[method-assign,assignment]
        await scene.run(300.0, check=False)
        scene.store.run = run  # type: ignore[method-assign]
        await scene.run(900.0)
        assert not scene.up.died.done()
        assert {m.id for m in scene.existing()} == before
        assert not scene.ended()
        await scene.close()

    virtual(work)

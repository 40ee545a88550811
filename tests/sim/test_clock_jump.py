"""A wall clock that jumps (PC-208): no mass action, and every deadline counts from where it was."""

from __future__ import annotations

import pytest
from scene import HOUR_S, Scene, world

from fleet.model import State
from fleet.sim.faults import Injection, Kind
from fleet.sim.trial import virtual

DAY_S = 24 * HOUR_S
JUMPS = [HOUR_S, -HOUR_S, DAY_S, -DAY_S]


@pytest.mark.parametrize("jump_s", JUMPS)
def test_nothing_happens_to_a_healthy_fleet(jump_s: float) -> None:
    """PC-208: ±1 h, ±1 day: nobody is suspected, ended or bought."""

    async def work() -> None:
        scene = Scene(world("aws", "gcp"), nodes=10, spares=2)
        await scene.start()
        assert await scene.settle()
        ever = scene.world.ever
        scene.wall.skew_s += jump_s
        await scene.run(70.0)
        assert abs(scene.clock.now() - scene.world.now() - jump_s) < 1.0
        await scene.run(1800.0)
        assert scene.world.ever == ever
        assert not scene.ended()
        assert not scene.events("agent_silent")
        assert scene.settled()
        await scene.close()

    virtual(work)


@pytest.mark.parametrize("jump_s", JUMPS)
def test_what_is_under_way_goes_on(jump_s: float) -> None:
    """PC-208, PC-034: a jump in the middle of launches, a boot that never ends, a drain and a
    deletion: the good launches succeed, the bad one and the drain end at their own deadlines."""

    async def work() -> None:
        scene = Scene(world("aws"), nodes=3, spares=1, quarantine={"max": 0})
        await scene.start()
        assert await scene.settle()
        scene.world.inject(Injection(Kind.NEVER_BOOT, 0.0, 120.0, rate=1.0))
        scene.hurt(scene.nodes_in(State.READY)[0])
        await scene.run(60.0)
        assert scene.nodes_in(State.BOOTING)
        began = scene.clock.monotonic()
        scene.wall.skew_s += jump_s
        booting = scene.nodes_in(State.BOOTING)[0]
        await scene.run(600.0)
        assert booting.id in {n.id for n in scene.nodes_in(State.BOOTING)}, "ended by the jump"
        while booting.id in {n.id for n in scene.nodes_in(State.BOOTING)}:
            assert scene.clock.monotonic() - began < 1100.0, "the deadline has moved away"
            await scene.run(5.0)
        assert await scene.settle(timeout_s=1800.0)
        await scene.close()

    virtual(work)


@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_silent_node_is_found_in_time(jump_s: float) -> None:
    """PC-134, PC-208: silence is counted over the jump and neither forgotten nor multiplied."""

    async def work() -> None:
        scene = Scene(world("aws"), nodes=4, spares=1)
        await scene.start()
        assert await scene.settle()
        victim = scene.nodes_in(State.READY)[0]
        scene.hurt(victim, Kind.NODE_SILENT)
        await scene.run(30.0)
        began = scene.clock.monotonic()
        scene.wall.skew_s += jump_s
        await scene.run(300.0)
        assert victim.id not in scene.ended(), "replaced by the jump"
        while victim.id not in scene.ended():
            assert scene.clock.monotonic() - began < 900.0, "the silence was forgotten"
            await scene.run(5.0)
        assert set(scene.ended()) == {victim.id}
        await scene.close()

    virtual(work)


@pytest.mark.parametrize("jump_s", JUMPS)
def test_an_unheard_create_call_is_settled_after_a_jump(jump_s: float) -> None:
    """PC-001, PC-208: the visibility window is measured in real seconds."""

    async def work() -> None:
        unheard = Injection(Kind.CREATE_UNHEARD, 0.0, 60.0)
        hidden = Injection(Kind.LIST_LAG, 0.0, 200.0, value=100.0)
        scene = Scene(world("gcp"), unheard, hidden)
        await scene.start()
        await scene.run(40.0)
        scene.wall.skew_s += jump_s
        assert await scene.settle(timeout_s=1200.0)
        assert scene.world.ever == 3
        await scene.close()

    virtual(work)


@pytest.mark.parametrize("jump_s", JUMPS)
def test_rests_keep_their_length(jump_s: float) -> None:
    """PC-050, PC-208: a dry offer is neither probed at once nor forgotten for a day."""

    async def work() -> None:
        dry = Injection(Kind.CAPACITY_STORM, 0.0, 1800.0)
        scene = Scene(world("aws"), dry, nodes=2, spares=0)
        await scene.start()
        await scene.run(700.0)
        before = scene.calls["create aws"]
        scene.wall.skew_s += jump_s
        await scene.run(300.0)
        assert scene.calls["create aws"] <= before + 1
        assert await scene.settle(timeout_s=2 * HOUR_S), "the offer rests for ever"
        await scene.close()

    virtual(work)


def test_a_clock_that_jumps_again_and_again_stops_only_what_destroys() -> None:
    """PC-208: one jump a minute for an hour: launches and assignments go on."""

    async def work() -> None:
        scene = Scene(world("aws"), nodes=3, spares=1)
        await scene.start()
        for n in range(60):
            scene.wall.skew_s += 600.0 if n % 2 else -900.0
            await scene.run(60.0)
        assert scene.settled()
        assert not scene.ended()
        await scene.close()

    virtual(work)

"""Acceptance tests 6, 7 and 8 (field.md section 4): repairs that must not become the outage."""

from __future__ import annotations

import math

import pytest
from scene import HOUR_S, Scene, world

from fleet.model import Node, State
from fleet.sim.faults import Injection, Kind
from fleet.sim.trial import virtual


async def settled(nodes: int, spares: int = 2, **spec: object) -> Scene:
    """A settled pool in one zone."""
    scene = Scene(world("aws"), nodes=nodes, spares=spares, **spec)
    await scene.start()
    assert await scene.settle()
    return scene


def drained(scene: Scene) -> list[tuple[float, str]]:
    """(when, which) of every node taken out of service."""
    return [(e.at, e.object_id) for e in scene.events(dst="DRAINING")]


# -- 6 --------------------------------------------------------------------------------------------


def test_a_sensor_broken_on_all_nodes() -> None:
    """Acceptance 6. PC-073, PC-155, PC-159, PC-163, PC-168: all nodes report a fatal fault at
    once and go on for three hours: a bounded number is replaced, a person is told, service goes on;
    when the sensor is well again nobody is replaced for what it said before."""

    async def work() -> None:
        nodes, hours = 10, 3.0
        scene = await settled(nodes)
        broken = Injection(Kind.GPU_FAULT, 0.0, hours * HOUR_S, code="xid_79", count=nodes + 2)
        began = scene.clock.now()
        scene.world.inject(broken)
        await scene.run(hours * HOUR_S, step_s=15.0)
        taken = drained(scene)
        limit = math.ceil(0.2 * (nodes + 2))
        first = [at for at, _ in taken if at < began + 900.0]
        assert 1 <= len(first) <= limit
        later = hours * HOUR_S / 1800.0  # then one probe for each half-open time at most
        assert len(taken) <= limit + later + 1
        assert scene.events("budget_exhausted")
        assert scene.serving() >= nodes - limit
        await scene.run(120.0)
        healed, n = scene.clock.now(), len(taken)
        await scene.run(2 * HOUR_S, step_s=15.0)
        replayed = [i for at, i in drained(scene)[n:] if at > healed]
        assert not replayed, "an old event was replayed"
        assert scene.settled()
        assert not any(g.startswith("budget:") for g in scene.up.cell.guards)
        await scene.close()

    virtual(work)


def test_a_broken_sensor_and_a_restart() -> None:
    """Acceptance 6. PC-155, PC-178: the restart in the middle neither opens a new budget nor
    takes the noted faults for new ones."""

    async def work() -> None:
        scene = await settled(10)
        scene.world.inject(Injection(Kind.GPU_FAULT, 0.0, HOUR_S, code="xid_79", count=12))
        for _ in range(3):
            await scene.run(600.0)
            await scene.crash()
            await scene.start()
        await scene.run(HOUR_S)
        n = len(drained(scene))
        assert n <= math.ceil(0.2 * 12) + 3
        await scene.run(1.5 * HOUR_S, step_s=15.0)
        assert len(drained(scene)) == n
        assert scene.settled()
        await scene.close()

    virtual(work)


def test_the_breaker_is_per_zone_and_does_not_hide_who_is_ill() -> None:
    """PC-073, PC-109, PC-110: a sensor that is broken in one zone stops repairs there; a bad
    node elsewhere is replaced as ever, and the ill ones can still be told from the others."""

    async def work() -> None:
        spec = world("aws", "gcp", level=11)  # ten nodes at each cloud
        scene = Scene(spec, nodes=20, spares=2, surge=4)
        await scene.start()
        assert await scene.settle(timeout_s=2 * HOUR_S)
        scene.world.inject(
            Injection(Kind.GPU_FAULT, 0.0, HOUR_S, provider="aws", code="xid_79", count=99)
        )
        await scene.run(300.0)
        alone = next(n for n in scene.nodes_in(State.READY) if n.offer.provider == "gcp")
        scene.hurt(alone)
        await scene.run(60.0)
        taken = [i for _, i in drained(scene)]
        assert alone.id in taken
        assert len(taken) <= 1 + math.ceil(0.2 * 11)
        ill = [
            n.id for n in scene.nodes_in(State.READY, State.SUSPECT)
            if scene.up.cell.watch.pulses[n.id].fatal is not None
        ]  # fmt: skip
        assert len(ill) >= 11 - math.ceil(0.2 * 11)
        await scene.close()

    virtual(work)


def test_warnings_on_all_nodes_serve_on() -> None:
    """PC-147, PC-163: a warning that persists everywhere is the breaker's business too."""

    async def work() -> None:
        scene = await settled(10)
        scene.world.inject(
            Injection(Kind.GPU_FAULT, 0.0, 1.5 * HOUR_S, code="pcie_width", count=12)
        )
        await scene.run(1.5 * HOUR_S, step_s=15.0)
        assert len(drained(scene)) <= math.ceil(0.2 * 12) + 3 * 2 + 1
        served = [n for n in scene.nodes_in(State.READY, State.SUSPECT) if n.slot]
        assert len(served) >= 10 - math.ceil(0.2 * 12) - 1
        await scene.close()

    virtual(work)


# -- 7 --------------------------------------------------------------------------------------------


def test_alternating_reasons_do_not_reset_the_clock() -> None:
    """Acceptance 7. PC-009, PC-034, PC-134: a node is silent, speaks once with a warning, is
    silent again: no reason lasts long enough by itself, yet the node is replaced in time."""

    async def work() -> None:
        scene = await settled(4)
        bad = scene.nodes_in(State.READY)[0]
        began = scene.clock.now()
        while scene.clock.now() < began + 1800.0 and bad.id not in scene.ended():
            scene.hurt(bad, Kind.NODE_SILENT, duration_s=200.0)
            await scene.run(205.0)
            scene.hurt(bad, Kind.GPU_FAULT, code="pcie_width", duration_s=20.0)
            await scene.run(30.0)
        assert bad.id in scene.ended(), "it alternates for ever"
        at = next(at for at, i in drained(scene) if i == bad.id)
        assert at - began <= 600.0 + 90.0 + 235.0
        assert await scene.settle()
        await scene.close()

    virtual(work)


def test_a_node_that_flaps_but_recovers_stays() -> None:
    """PC-142, PC-186: silence of two minutes now and then is a network: SUSPECT and back."""

    async def work() -> None:
        scene = await settled(4)
        node = scene.nodes_in(State.READY)[0]
        for _ in range(5):
            scene.hurt(node, Kind.NODE_SILENT, duration_s=120.0)
            await scene.run(600.0)
        assert not scene.ended()
        assert scene.events("recovered")
        assert scene.settled()
        await scene.close()

    virtual(work)


# -- 8 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "bad"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
@pytest.mark.parametrize("fault", [Kind.GPU_FAULT, Kind.NODE_SILENT], ids=str)
def test_small_pools_are_repaired_one_at_a_time(nodes: int, bad: int, fault: Kind) -> None:
    """Acceptance 8. PC-048, PC-070, PC-071, PC-111: pools of 1, 2 and 3 with one, two or all bad:
    the breaker's share rounds up to one, one is under repair at a time, and all are repaired."""
    if fault is Kind.NODE_SILENT and bad == 3:
        return  # three that fall silent together are a network: acceptance 5

    async def work() -> None:
        scene = await settled(nodes, spares=(nodes + bad) % 2)
        ill = sorted((n for n in scene.nodes_in(State.READY) if n.slot), key=lambda n: n.slot)
        victims: list[Node] = ill[:bad]
        for victim in victims:
            scene.hurt(victim, fault)
        end = scene.clock.monotonic() + 3 * HOUR_S
        left = {v.id for v in victims}
        while left - set(scene.ended()) or not scene.settled():
            assert scene.clock.monotonic() < end, (left, scene.nodes_in(), scene.up.cell.guards)
            await scene.run(5.0)
        assert {i for _, i in drained(scene)} == left, "a healthy node was taken out"
        await scene.close()

    virtual(work)


def test_no_repair_where_the_pool_says_none() -> None:
    """PC-143: repair.mode none: seen, told, never taken away."""

    async def work() -> None:
        scene = await settled(3, 1, repair={"mode": "none"})
        scene.hurt(scene.nodes_in(State.READY)[0])
        scene.hurt(scene.nodes_in(State.READY)[1], Kind.NODE_SILENT)
        # A SUSPECT node of such a pool has no end to wait for: nothing to hold against it.
        await scene.run(2 * HOUR_S, step_s=15.0, check=False)
        assert not scene.ended()
        await scene.close()

    virtual(work)

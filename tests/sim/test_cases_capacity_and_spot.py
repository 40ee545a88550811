"""Public cases of capacity-storm, remediation-storm, spot, quota and failover in the engine."""

from __future__ import annotations

import pytest
from scene import HOUR_S, Scene, cloud, world

from fleet.model import Market, State
from fleet.sim.faults import Injection, Kind
from fleet.sim.spec import WorldSpec
from fleet.sim.trial import image, pool, virtual


@pytest.mark.parametrize("kind", ["aws", "gcp", "azure", "oci"])
def test_a_dry_cloud_is_not_hammered(kind: str) -> None:
    """PC-050, PC-137, PC-197, PC-199: in each cloud's own words (OCI says it with a 500) no
    capacity is no capacity: the code is kept, the offer rests, the next cloud serves at once."""

    async def work() -> None:
        other = "gcp" if kind == "aws" else "aws"
        spec = WorldSpec((cloud(kind, level=0), cloud(other)))
        scene = Scene(spec, nodes=2, spares=0)
        await scene.start()
        assert await scene.settle(timeout_s=200.0)
        assert scene.calls[f"create {kind}"] == 1
        refused = scene.events("insufficient_capacity", dst="TERMINATED")
        assert refused
        assert refused[0].message
        await scene.close()

    virtual(work)


def test_quota_ends_the_attempt_at_once_and_is_remembered() -> None:
    """PC-016, PC-017, PC-018, PC-198: no quota in one region: told with the vendor's code, that
    region's family rests an hour and not a day, the other cloud is tried at once."""

    async def work() -> None:
        cut = Injection(Kind.QUOTA_CUT, 0.0, 600.0, provider="aws", value=0.0)
        scene = Scene(world("aws", "gcp"), cut, nodes=2, spares=0)
        await scene.start()
        assert await scene.settle(timeout_s=200.0)
        scopes = {s: r for s, r in scene.up.cell.view.rests.items() if s.startswith("family:aws")}
        assert len(scopes) == 1
        (rest,) = scopes.values()
        assert 0.75 * HOUR_S <= rest.until - scene.clock.now() <= 1.25 * HOUR_S
        assert scene.calls["create aws"] == 1
        await scene.run(1800.0)
        assert scene.calls["create aws"] == 1
        await scene.close()

    virtual(work)


def test_a_dry_zone_is_followed_by_the_next() -> None:
    """PC-081, PC-154: the offer that rests is exactly the one that was dry."""

    async def work() -> None:
        dry = Injection(Kind.CAPACITY_STORM, 0.0, HOUR_S, zone="us-east-1a")
        scene = Scene(world("aws", zones=2), dry, nodes=2, spares=0)
        await scene.start()
        assert await scene.settle(timeout_s=200.0)
        assert {n.offer.zone for n in scene.nodes_in()} == {"us-east-1b"}
        rests = [s for s in scene.up.cell.view.rests if s.startswith("offer:")]
        assert rests == ["offer:aws/us-east-1/us-east-1a/p5.48xlarge/on_demand"]
        await scene.close()

    virtual(work)


def test_a_missing_artifact_stops_that_region_only() -> None:
    """PC-069, PC-078, PC-170: the image is not there: the artifact rests, no create loop."""

    async def work() -> None:
        missing = Injection(Kind.IMAGE_MISSING, 0.0, HOUR_S, provider="aws")
        scene = Scene(world("aws", "gcp"), missing, nodes=2, spares=0)
        await scene.start()
        assert await scene.settle(timeout_s=200.0)
        await scene.run(HOUR_S)
        assert scene.calls["create aws"] <= 6
        await scene.close()

    virtual(work)


# -- spot -----------------------------------------------------------------------------------------


async def on_spot(**shape: object) -> Scene:
    """A settled pool on spot machines."""
    spec = world("aws", spot=True)
    only = pool(spec, nodes=3, spares=1, markets=(Market.SPOT,), **shape)
    scene = Scene(spec, policies=(image(spec), only))
    await scene.start()
    assert await scene.settle()
    return scene


def test_a_spot_notice_moves_the_slot_at_once() -> None:
    """PC-035, PC-085: the agent tells of the notice: the slot is on a spare within seconds, long
    before the machine goes, and no launch or image is blamed."""

    async def work() -> None:
        scene = await on_spot()
        victim = next(n for n in scene.nodes_in(State.READY) if n.slot)
        scene.hurt(victim, Kind.SPOT_RECLAIM)
        await scene.run(5.0, step_s=1.0)
        assert scene.serving() == 3
        assert victim.id in scene.ended()
        assert scene.events("spot_notice")
        assert await scene.settle()
        assert set(scene.outcomes()) == {"ready"}
        assert not [s for s in scene.up.cell.view.rests if s.startswith("boot:")]
        await scene.close()

    virtual(work)


def test_a_preemption_nobody_announced_is_found_by_the_list() -> None:
    """PC-023, PC-035, PC-060: ended by somebody else or with its host: known within two list
    intervals, replaced from the spares, and the record says how."""

    async def work() -> None:
        for kind in (Kind.EXTERNAL_TERMINATE, Kind.HOST_DEATH):
            scene = Scene(nodes=3, spares=1)
            await scene.start()
            assert await scene.settle()
            victim = next(n for n in scene.nodes_in(State.READY) if n.slot)
            scene.hurt(victim, kind)
            await scene.run(75.0)
            assert victim.id in scene.ended()
            assert scene.serving() == 3
            assert scene.events("externally_terminated")
            assert await scene.settle()
            await scene.close()

    virtual(work)


def test_preempted_during_boot_blames_nobody() -> None:
    """PC-036: taken back before its first report: preempted, neither image nor offer rests."""

    async def work() -> None:
        spec = world("aws", spot=True)
        only = pool(spec, nodes=3, spares=0, markets=(Market.SPOT,))
        scene = Scene(spec, Injection(Kind.SLOW_BOOT, 0.0, 60.0, value=20.0),
                      policies=(image(spec), only))  # fmt: skip
        await scene.start()
        assert await scene.until(lambda: len(scene.nodes_in(State.BOOTING)) == 3, timeout_s=300.0)
        for node in scene.nodes_in(State.BOOTING):
            scene.hurt(node, Kind.SPOT_RECLAIM)
        assert await scene.settle(timeout_s=HOUR_S)
        assert scene.outcomes() == {"preempted": 3, "ready": 3}
        assert not scene.up.cell.view.rests
        await scene.close()

    virtual(work)


# -- remediation-storm ----------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [True, False])
def test_the_end_of_the_daemon_is_neutral(crash: bool) -> None:
    """PC-121, PC-127, PC-153, PC-178: stopped or killed for two hours and started again: no node
    is ended on the way out, suspected on the way in, or bought again."""

    async def work() -> None:
        scene = Scene(world("aws", "gcp"), nodes=6, spares=2)
        await scene.start()
        assert await scene.settle()
        before = {m.id for m in scene.existing()}
        for _ in range(3):
            await (scene.crash() if crash else scene.stop())
            await scene.clock.sleep(2400.0)
            assert {m.id for m in scene.existing()} == before
            await scene.start()
            await scene.run(400.0)
        assert not scene.ended()
        assert not scene.events("agent_silent")
        assert scene.calls["delete aws"] == 0
        await scene.close()

    virtual(work)


def test_frozen_is_frozen() -> None:
    """PC-122, PC-155: nothing is launched, moved, drained, ended or swept while frozen; at the
    unfreeze the present is judged and not what happened meanwhile."""

    async def work() -> None:
        scene = Scene(nodes=6, spares=2)
        await scene.start()
        assert await scene.settle()
        before, ever = {m.id for m in scene.existing()}, scene.world.ever
        await scene.freeze()
        healed, ill = scene.nodes_in(State.READY)[:2]
        scene.hurt(healed, duration_s=600.0)
        scene.hurt(ill)
        await scene.run(2 * HOUR_S, step_s=15.0, check=False)
        assert {m.id for m in scene.existing()} == before
        assert scene.world.ever == ever
        await scene.unfreeze()
        await scene.run(1200.0)
        assert {e.object_id for e in scene.events(dst="DRAINING")} == {ill.id}
        assert scene.settled()
        await scene.close()

    virtual(work)


def test_repairs_of_one_place_do_not_repeat_for_ever() -> None:
    """PC-111, PC-152, PC-168, PC-202: every machine of the cloud fails soon after its gate: the
    Budget bounds the replacements per window, for hours."""

    async def work() -> None:
        scene = Scene(nodes=3, spares=1)
        await scene.start()
        assert await scene.settle()
        began, hurt = scene.clock.monotonic(), set[str]()
        while scene.clock.monotonic() - began < 2 * HOUR_S:
            for node in scene.nodes_in(State.READY):
                if node.id not in hurt and scene.clock.now() - (node.ready_at or 0.0) > 60.0:
                    hurt.add(node.id)
                    scene.hurt(node)
            await scene.run(60.0, step_s=15.0)
        per_window = scene.world.ever / (2 * HOUR_S / 900.0)
        assert per_window <= 8, scene.world.ever
        await scene.close()

    virtual(work)

"""Acceptance tests 3, 5, 9, 10, 11 and 12 (field.md section 4): clouds that fail in bulk."""

from __future__ import annotations

import pytest
from scene import HOUR_S, Scene, cloud, world

from fleet.model import State
from fleet.sim.faults import Injection, Kind
from fleet.sim.spec import WorldSpec
from fleet.sim.trial import image, pool, virtual

BAD_HOURS = 2.0


async def settled(*kinds: str, nodes: int = 4, spares: int = 1, **over: object) -> Scene:
    """A scene with a healthy pool whose nodes are at each of the clouds."""
    spec = world(*kinds, **over)
    per_cloud = [WorldSpec((c,)) for c in spec.clouds]
    pools = [
        pool(w, f"on-{w.clouds[0].name}", nodes=nodes, spares=spares, quarantine={"max": 0})
        for w in per_cloud
    ]  # fmt: skip
    scene = Scene(spec, policies=(image(spec), *pools))
    await scene.start()
    assert await scene.settle()
    return scene


def untouched(scene: Scene, machines: set[str]) -> None:
    """Every machine still exists, is READY and was never on its way out."""
    assert {m.id for m in scene.existing()} == machines
    assert not scene.ended()
    assert len(scene.nodes_in(State.READY)) == len(machines)


# -- 3 --------------------------------------------------------------------------------------------


def test_all_offers_dry_for_an_hour_with_500_wanted() -> None:
    """Acceptance 3. PC-025, PC-050, PC-053, PC-055, PC-099: create calls stay within the probes
    (one per offer and rest, rests double), the reason is told, a pool at another cloud is as fast
    as ever, and all 500 come once there is capacity."""

    async def work() -> None:
        spec = WorldSpec((cloud("aws", zones=2, regions=2, level=1000), cloud("gcp")))
        dry = Injection(Kind.CAPACITY_STORM, 0.0, HOUR_S, provider="aws")
        big = pool(WorldSpec(spec.clouds[:1]), "big", nodes=500, spares=0)
        small = pool(WorldSpec(spec.clouds[1:]), "small", nodes=4, spares=1)
        scene = Scene(spec, dry, policies=(image(spec), big, small))
        await scene.start()
        assert await scene.settle(pool_name="small", timeout_s=180.0), "the dry pool held it up"
        await scene.run(HOUR_S - scene.world.t, step_s=60.0)
        # Five batches of 100 find out; then rests of 180, 360, 720, 1440 s ±20 % per offer.
        offers, probes = 4, 5
        assert offers <= scene.calls["create aws"] <= 5 + offers * probes
        assert scene.calls["create gcp"] == 1
        planned = scene.up.plan.last["big"].plan
        assert "find no offer" in planned.blocked
        assert {key for key, _ in planned.tried} == {o.key for o in big.spec.offer_list()}
        assert planned.next_at is not None
        made = scene.calls["create aws"]
        await scene.until(lambda: scene.ready("big") == 500, timeout_s=2 * HOUR_S, step_s=30.0)
        scene.checks.check()
        assert scene.ready("big") == 500
        assert scene.calls["create aws"] - made <= 40, "back at full speed within a few batches"
        await scene.close()

    virtual(work)


# -- 5 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["agents and APIs", "agents", "APIs"])
def test_the_daemons_own_network_is_cut(cut: str) -> None:
    """Acceptance 5. PC-035, PC-127, PC-141: nobody answers for two hours: no verdict, nothing
    ended, nothing launched, a person is told; afterwards all is as before without help."""

    async def work() -> None:
        scene = await settled("aws", "gcp", "oci")
        machines, ever = {m.id for m in scene.existing()}, scene.world.ever
        if "agents" in cut:
            scene.world.inject(Injection(Kind.AGENT_CUT, 0.0, BAD_HOURS * HOUR_S))
        if "APIs" in cut:
            scene.world.inject(Injection(Kind.API_CUT, 0.0, BAD_HOURS * HOUR_S))
        await scene.run(BAD_HOURS * HOUR_S - 60.0, step_s=15.0)
        assert any(g.startswith("blind:") for g in scene.up.cell.guards)
        assert scene.events("blind")
        await scene.run(300.0)
        untouched(scene, machines)
        assert scene.world.ever == ever
        assert not scene.up.cell.guards
        assert scene.settled()
        await scene.close()

    virtual(work)


def test_a_restart_while_the_network_is_cut() -> None:
    """Acceptance 5. PC-121, PC-141, PC-178: the daemon comes up into the cut: it has heard nobody
    and listed nothing, and concludes nothing from that."""

    async def work() -> None:
        scene = await settled("aws", "gcp")
        machines = {m.id for m in scene.existing()}
        scene.world.inject(Injection(Kind.AGENT_CUT, 0.0, HOUR_S))
        scene.world.inject(Injection(Kind.API_CUT, 0.0, HOUR_S))
        await scene.run(300.0)
        await scene.crash()
        await scene.start()
        await scene.run(HOUR_S - 300.0, step_s=15.0)
        await scene.run(300.0)
        untouched(scene, machines)
        assert scene.settled()
        await scene.close()

    virtual(work)


# -- 9 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lists", [(Kind.LIST_TRUNCATED, 0.8), (Kind.LIST_SLIP, 0.3),
              (Kind.LIST_SLIP, 0.9)], ids=str,
)  # fmt: skip
@pytest.mark.parametrize("restart", [False, True])
def test_lists_that_lie_by_omission(lists: tuple[Kind, float], restart: bool) -> None:
    """Acceptance 9. PC-078, PC-106, PC-188, PC-190, PC-191: truncated lists and lists that look
    whole and miss entries for two hours: nothing that speaks is judged gone, nothing swept,
    nothing bought again."""

    async def work() -> None:
        scene = await settled("aws", "gcp")
        machines, ever = {m.id for m in scene.existing()}, scene.world.ever
        kind, rate = lists
        scene.world.inject(Injection(kind, 0.0, BAD_HOURS * HOUR_S, rate=rate))
        await scene.run(600.0)
        if restart:
            await scene.crash()
            await scene.start()
        await scene.run(BAD_HOURS * HOUR_S, step_s=15.0)
        untouched(scene, machines)
        assert scene.world.ever == ever
        await scene.close()

    virtual(work)


def test_lists_that_lie_while_nodes_launch_and_end() -> None:
    """Acceptance 9. PC-001, PC-166, PC-193: the same while a pool grows and shrinks: exactly the
    wanted machines in the end, no record closed over a living machine on the way."""

    async def work() -> None:
        scene = Scene(world("gcp"), Injection(Kind.LIST_SLIP, 0.0, HOUR_S, rate=0.3), nodes=6)
        await scene.start()
        assert await scene.settle()
        await scene.resize(2, 1)
        scene.shrunk()
        await scene.run(HOUR_S)
        assert len(scene.existing()) == 3
        assert scene.world.ever == 7
        assert scene.settled()
        await scene.close()

    virtual(work)


# -- 10 -------------------------------------------------------------------------------------------


def test_a_throttle_storm() -> None:
    """Acceptance 10. PC-021, PC-076, PC-079: nine of ten calls are throttled for two hours: list
    calls stay within O(regions) per interval whatever the number of nodes, are spread in time,
    and no node's health is judged by it."""

    async def work() -> None:
        scene = await settled("aws", "gcp", nodes=30, spares=2)
        machines = {m.id for m in scene.existing()}
        asked = list_times(scene)
        scene.world.inject(Injection(Kind.THROTTLE, 0.0, BAD_HOURS * HOUR_S, rate=0.9))
        scene.calls.clear()
        await scene.run(BAD_HOURS * HOUR_S, step_s=15.0)
        span = BAD_HOURS * HOUR_S
        for name in ("aws", "gcp"):
            assert span / 60.0 <= len(asked[name]) <= span / 10.0
        gaps = {round(b - a, 1) for a, b in zip(asked["aws"], asked["aws"][1:], strict=False)}
        assert len(gaps) > 10, "calls keep step: no jitter"
        assert set(scene.calls) == {"list aws", "list gcp"}
        untouched(scene, machines)
        await scene.close()

    virtual(work)


def list_times(scene: Scene) -> dict[str, list[float]]:
    """When each cloud's door was asked for a list from now on."""
    asked: dict[str, list[float]] = {}
    for name, at in scene.world.clouds.items():
        asked[name] = []

        def admit(
            action: str, region: str, items: int = 0, *, name: str = name, real=at.admit
        ) -> None:
            if action == "list":
                asked[name].append(scene.clock.monotonic())
            real(action, region, items)

        at.admit = admit  # type: ignore[method-assign]
    return asked


def test_a_throttled_launch_is_not_dropped() -> None:
    """Acceptance 10. PC-192: a create call refused by the rate limit is sent again, under the
    same token, until it is through."""

    async def work() -> None:
        storm = Injection(Kind.THROTTLE, 0.0, 900.0, rate=0.8)
        scene = Scene(world("aws"), storm, nodes=5, spares=1)
        await scene.start()
        assert await scene.settle(timeout_s=HOUR_S)
        assert scene.world.ever == 6
        assert scene.calls["create aws"] <= 40
        await scene.close()

    virtual(work)


# -- 11 -------------------------------------------------------------------------------------------


def test_credentials_expire_in_mid_flight() -> None:
    """Acceptance 11. PC-030, PC-031, PC-033, PC-144: launches pause, a person is told, nodes are
    not judged, what is to end is asked again and again and ends when the credentials are back."""

    async def work() -> None:
        scene = await settled("aws", "gcp")
        expired = Injection(Kind.CREDENTIALS, 0.0, HOUR_S, provider="aws")
        victim, *others = scene.nodes_in(State.READY, pool_name="on-aws")
        machines = {m.id for m in scene.existing()} - {victim.instance_id}
        scene.world.inject(expired)
        scene.hurt(victim)
        await scene.run(HOUR_S - 60.0)
        assert scene.events("provider_held")
        assert scene.calls["create aws"] <= 2, "launches go on without credentials"
        assert victim.instance_id in {m.id for m in scene.existing()}
        assert victim.id in scene.up.cell.view.nodes, "closed without the cloud's word"
        assert scene.up.cell.view.rests["provider:aws"].until > scene.clock.now()
        await scene.run(1800.0)
        assert victim.instance_id not in {m.id for m in scene.existing()}
        assert "provider:aws" not in scene.up.cell.view.rests
        assert scene.events("provider_released")
        assert machines <= {m.id for m in scene.existing()}
        assert scene.settled()
        assert {e.object_id for e in scene.events(dst="DRAINING")} == {victim.id}
        assert len(others) == 4
        await scene.close()

    virtual(work)


def test_credentials_expire_between_call_and_answer() -> None:
    """Acceptance 11. PC-001, PC-030: made, unheard, and then no list until the credentials are
    back: the launches are found then and not repeated."""

    async def work() -> None:
        unheard = Injection(Kind.CREATE_UNHEARD, 0.0, 60.0)
        expired = Injection(Kind.CREDENTIALS, 20.0, HOUR_S)
        scene = Scene(world("aws"), unheard, expired)
        await scene.start()
        await scene.run(HOUR_S)
        assert await scene.settle()
        assert scene.world.ever == 3
        await scene.close()

    virtual(work)


# -- 12 -------------------------------------------------------------------------------------------


def test_the_age_of_what_was_observed_is_known() -> None:
    """Acceptance 12. PC-022, PC-024, PC-060, PC-089: what is shown is what was last seen and how
    old it is; age grows while a cloud is silent and never hides behind a fresh-looking zero."""

    async def work() -> None:
        scene = await settled("aws")
        seen, now = scene.up.cell.watch.sightings["aws"], scene.clock.now
        age = seen.age_s(now())
        assert age is not None
        assert age <= 35.0
        instances = dict(seen.instances)
        scene.world.inject(Injection(Kind.API_CUT, 0.0, HOUR_S))
        scene.world.inject(Injection(Kind.AGENT_CUT, 0.0, HOUR_S))
        await scene.run(1800.0)
        age = seen.age_s(now())
        assert age is not None
        assert 1790.0 <= age <= 1840.0
        assert seen.error
        assert seen.failing_since is not None
        assert seen.instances == instances, "the last word stays, older"
        for node in scene.nodes_in():
            last = scene.up.cell.watch.pulses[node.id].last_at
            assert last is not None
            assert now() - last >= 1780.0
        await scene.run(1860.0)
        age = seen.age_s(now())
        assert age is not None
        assert age <= 35.0
        assert not seen.error
        await scene.close()

    virtual(work)

"""The world: lives of machines, what lists show of them, faults, and one seed for one history."""

from __future__ import annotations

import pytest

from fleet.clock import SeededChance, VirtualClock
from fleet.model import Market, Phase
from fleet.sim.capacity import Steady, Trace, Walk
from fleet.sim.faults import FaultPlan, Injection, Kind
from fleet.sim.machine import Machine
from fleet.sim.spec import WorldSpec, four_clouds
from fleet.sim.vendor import Denied, Trouble
from fleet.sim.world import World

from .simkit import EPOCH, Turned, one_cloud, virtually


def denied(call: object) -> Trouble:
    assert callable(call)
    with pytest.raises(Denied) as caught:
        call()
    return caught.value.trouble


def test_events_fall_at_their_own_time_however_late_they_are_pulled() -> None:
    w = Turned()
    (m,) = w.cloud.launch(w.order())
    w.turn(5000)
    assert m.history == [(EPOCH, Phase.PENDING), (EPOCH + 20, Phase.RUNNING)]
    assert m.up_at == EPOCH + 120
    w.cloud.terminate([m.id])
    w.turn(31)
    assert m.history[-2:] == [(EPOCH + 5000, Phase.STOPPING), (EPOCH + 5030, Phase.TERMINATED)]
    assert not m.exists


def test_hooks_fire_by_themselves_on_a_loop() -> None:
    async def main(clock: VirtualClock) -> list[tuple[float, str]]:
        world = World(clock.now, SeededChance(1), four_clouds())
        log: list[tuple[float, str]] = []
        world.on_boot.append(lambda m: log.append((world.t, "up")))
        world.on_end.append(lambda m: log.append((world.t, "down")))
        world.start()
        w = Turned()
        cloud = world.clouds["gcp"]
        offer = cloud.spec.offers[0]
        order = w.order(region=offer.region, zone=offer.zone, instance_type=offer.instance_type)
        (m,) = cloud.launch(order)
        await clock.sleep(1000)
        cloud.terminate([m.id])
        await clock.sleep(100)
        world.stop()
        return log

    (up, down) = virtually(main)
    assert up[1] == "up"
    assert 40 < up[0] < 600
    assert down == (pytest.approx(1000, abs=0.01), "down")


def test_events_that_a_pull_makes_fire_by_themselves() -> None:
    """A pull that runs events must leave the timer set for what those events lead to."""

    async def main(clock: VirtualClock) -> list[float]:
        late_s = 0.0
        world = World(lambda: clock.now() + late_s, SeededChance(1), WorldSpec((one_cloud(),)))
        up: list[float] = []
        world.on_boot.append(lambda m: up.append(world.t))
        world.start()
        world.clouds["aws"].launch(Turned().order())
        late_s = 30.0  # the process was held up: the pull comes before the timer
        world.advance()
        await clock.sleep(1000)
        world.stop()
        return up

    assert virtually(main) == [pytest.approx(120, abs=0.01)]


def test_tokens_make_at_most_count_whatever_is_repeated() -> None:
    w = Turned()
    first = w.cloud.launch(w.order(count=3))
    assert w.cloud.launch(w.order(count=3)) == first
    assert denied(lambda: w.cloud.launch(w.order(count=4))) is Trouble.MISMATCH
    assert denied(lambda: w.cloud.launch(w.order(count=3, user_data="x"))) is Trouble.MISMATCH
    w.cloud.terminate([m.id for m in first])
    w.turn(4000)
    assert w.cloud.launch(w.order(count=3)) == first
    assert w.world.ever_by_token == {"t-1": 3}


@pytest.mark.parametrize(("kind", "count"), [("aws", 2), ("gcp", 2), ("oci", 1), ("azure", 1)])
def test_scope_of_a_token(kind: str, count: int) -> None:
    """clouds.md 5: zonal at EC2 and GCE; a wider scope refuses the other zone as a mismatch."""
    w = Turned(one_cloud(kind))
    w.cloud.launch(w.order())
    if count == 2:
        w.cloud.launch(w.order(zone="z2"))
    else:
        assert denied(lambda: w.cloud.launch(w.order(zone="z2"))) is Trouble.MISMATCH
    assert w.world.ever_by_token["t-1"] == count


def test_capacity_is_counted_and_given_back() -> None:
    w = Turned(one_cloud(capacity=Steady(3)))
    made = w.cloud.launch(w.order(count=5))
    assert len(made) == 3
    assert denied(lambda: w.cloud.launch(w.order("t-2"))) is Trouble.CAPACITY
    w.cloud.terminate([made[0].id])
    w.turn(31)
    assert len(w.cloud.launch(w.order("t-2"))) == 1


def test_quota_counts_the_family_over_zones() -> None:
    w = Turned(one_cloud(quota={("r1", "gpu8"): 2}))
    w.cloud.launch(w.order("a"))
    w.cloud.launch(w.order("b", zone="z2"))
    assert denied(lambda: w.cloud.launch(w.order("c"))) is Trouble.QUOTA


def test_lists_lag_and_linger() -> None:
    w = Turned(one_cloud(linger_s=600.0), [Injection(Kind.LIST_LAG, 0, 10, value=40)])
    (m,) = w.cloud.launch(w.order())
    assert w.cloud.listing() == []
    w.turn(30)
    assert w.cloud.listing()[0].phase is Phase.RUNNING  # the later change overtook the older one
    w.turn(15)
    assert w.cloud.listing()[0].phase is Phase.RUNNING
    w.cloud.terminate([m.id])
    w.turn(30)
    assert w.cloud.listing()[0].phase is Phase.TERMINATED
    w.turn(601)
    assert w.cloud.listing() == []


def test_some_clouds_say_no_last_word() -> None:
    w = Turned(one_cloud("gcp"))
    (m,) = w.cloud.launch(w.order())
    w.turn(60)
    w.cloud.terminate([m.id])
    w.turn(31)
    assert w.cloud.listing() == []
    assert w.world.find(m.id) is None


@pytest.mark.parametrize(("kind", "phase"), [("aws", Phase.TERMINATED), ("azure", Phase.FAILED)])
def test_accepted_then_dead(kind: str, phase: Phase) -> None:
    w = Turned(one_cloud(kind, p_die=1.0))
    (m,) = w.cloud.launch(w.order())
    w.turn(25)
    (shown,) = w.cloud.listing()
    assert shown.phase is phase
    assert shown.code
    assert m.exists is (kind == "azure")  # Azure's failed VM stays until it is deleted
    if kind == "azure":
        w.cloud.terminate([m.id])
        w.turn(31)
        assert not m.exists


def test_never_boot_and_stuck_pending() -> None:
    w = Turned(faults=[Injection(Kind.NEVER_BOOT, 0, 1), Injection(Kind.STUCK_PENDING, 50, 500)])
    w.turn(50)
    (stuck,) = w.cloud.launch(w.order())
    w.turn(490)
    assert stuck.phase is Phase.PENDING
    w.turn(60)
    assert stuck.phase is Phase.RUNNING
    w.turn(200)
    assert stuck.up
    w2 = Turned(faults=[Injection(Kind.NEVER_BOOT, 0, 100)])
    (dead,) = w2.cloud.launch(w2.order())
    w2.turn(9999)
    assert dead.phase is Phase.RUNNING
    assert not dead.up


def test_image_defects_follow_the_image() -> None:
    w = Turned(
        faults=[
            Injection(Kind.IMAGE_DEFECT, 0, 999, image_id="bad", code="gpu_count"),
            Injection(Kind.IMAGE_DEFECT, 0, 999, image_id="dead"),
        ]
    )
    (good,) = w.cloud.launch(w.order("a"))
    (bad,) = w.cloud.launch(w.order("b", image_id="bad"))
    (dead,) = w.cloud.launch(w.order("c", image_id="dead"))
    w.turn(300)
    assert (good.up, good.failing) == (True, ())
    assert (bad.up, bad.failing) == (True, ("gpu_count",))
    assert not dead.up


def test_slow_and_stuck_terminations() -> None:
    w = Turned(
        faults=[
            Injection(Kind.STUCK_TERMINATE, 0, 500),
            Injection(Kind.SLOW_TERMINATE, 600, 9, value=4),
        ]
    )
    (m,) = w.cloud.launch(w.order())
    w.turn(100)
    w.cloud.terminate([m.id])
    w.turn(420)
    assert m.phase is Phase.STOPPING
    w.turn(15)
    assert m.phase is Phase.TERMINATED
    (m,) = w.cloud.launch(w.order("t-2"))
    w.turn(66)
    w.cloud.terminate([m.id])
    w.turn(119)
    assert m.exists
    w.turn(2)
    assert not m.exists


def test_spot_notice_then_reclaim() -> None:
    w = Turned(faults=[Injection(Kind.SPOT_RECLAIM, 200, count=9)])
    told: list[Machine] = []
    w.world.on_notice.append(told.append)
    (spot,) = w.cloud.launch(w.order("a", market=Market.SPOT))
    (kept,) = w.cloud.launch(w.order("b"))
    w.turn(201)
    assert told == [spot]
    assert spot.reclaim_at == EPOCH + 320
    assert spot.up
    w.turn(120)
    assert (spot.phase, spot.preempted, spot.code) == (
        Phase.TERMINATED,
        True,
        "Server.SpotInstanceTermination",
    )
    assert kept.up


def test_a_falling_trace_takes_spot_back() -> None:
    trace = Trace((5, 5, 2, 0, 5), 300)
    w = Turned(one_cloud(capacity=trace))
    spot = w.cloud.launch(w.order("a", 5, market=Market.SPOT))
    firm = w.cloud.launch(w.order("b", 5))
    w.turn(599)
    assert all(m.exists for m in spot)
    w.turn(130)
    assert [m.exists for m in spot] == [True, True, False, False, False]
    w.turn(300)
    assert not any(m.exists for m in spot)
    assert all(m.exists for m in firm)


def test_strikes_hit_as_many_as_they_say() -> None:
    w = Turned(
        faults=[
            Injection(Kind.HOST_DEATH, 300, count=2),
            Injection(Kind.EXTERNAL_TERMINATE, 400, count=1),
            Injection(Kind.GPU_FAULT, 500, rate=0.5, code="xid_31"),
        ]
    )
    struck: list[str] = []
    w.world.on_strike.append(lambda m, s: struck.append(s.code))
    made = w.cloud.launch(w.order(count=11))
    w.turn(301)
    assert sum(not m.exists for m in made) == 2
    w.turn(150)
    assert sum(not m.exists for m in made) == 3
    w.turn(100)
    assert struck == ["xid_31"] * 4


def test_all_faults_stop() -> None:
    w = Turned(
        one_cloud(p_die=1.0, p_refuse=1.0, fatal_per_gpu_hour=100.0),
        [Injection(Kind.THROTTLE, 0, 1e6), Injection(Kind.HOST_DEATH, 1000)],
        until_s=100,
    )
    assert denied(lambda: w.cloud.admit("launch", "r1")) is Trouble.THROTTLED
    struck: list[object] = []
    w.world.on_strike.append(lambda m, s: struck.append(s))
    w.turn(100)
    w.cloud.admit("launch", "r1")
    (m,) = w.cloud.launch(w.order())
    w.turn(5000)
    assert m.up
    assert not struck


def test_inject_counts_from_now() -> None:
    w = Turned()
    w.turn(1000)
    w.world.inject(Injection(Kind.CREDENTIALS, 5, 10))
    w.cloud.admit("list", "r1")
    w.turn(6)
    assert denied(lambda: w.cloud.admit("list", "r1")) is Trouble.AUTH


def test_inspection_counts_what_is() -> None:
    w = Turned(faults=[Injection(Kind.LIST_LAG, 0, 1e6, value=1e6)])
    w.cloud.launch(w.order("a", 2))
    gone = w.cloud.launch(w.order("b", 1))
    w.cloud.terminate([m.id for m in gone])
    w.turn(3600)
    assert w.cloud.listing() == []
    assert w.world.existing_by_token() == {"a": 2}
    assert w.world.existing_by_pool() == {"p": 2}
    assert w.world.ever_by_token == {"a": 2, "b": 1}
    assert len(list(w.world.existing(cell="c", pool="p", provider="aws"))) == 2
    assert list(w.world.existing(cell="other")) == []
    assert w.world.cost_usd()["aws"] == pytest.approx(2 * 60 + 60 * 30 / 3600)


def test_one_seed_one_history() -> None:
    def history(seed: int) -> list[tuple[str, list[tuple[float, Phase]]]]:
        walk = Walk(6, 4, seed, step_s=120)
        spec = one_cloud(
            capacity=walk, p_die=0.2, p_never_boot=0.1, p_refuse=0.1, reclaims_per_hour=2.0
        )
        w = Turned(spec, seed=seed)
        plan = FaultPlan.from_seed(SeededChance(seed), w.world.spec, 7200, per_hour=40)
        for injection in plan:
            w.world.inject(injection)
        made: list[Machine] = []
        for n in range(60):
            try:
                made += w.cloud.launch(w.order(f"t-{n}", market=Market.SPOT))
            except Denied:
                continue
            finally:
                w.turn(97)
        return [(m.id, m.history) for m in made]

    assert history(3) == history(3) != history(4)

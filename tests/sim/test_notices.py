"""A cloud's own notice drains a node whose agent cannot be heard (PC-035, PC-085)."""

from __future__ import annotations

from fleet.model import Market, Reason, State
from fleet.sim.faults import Injection, Kind
from fleet.sim.spec import Lognormal, OfferSpec, WorldSpec, cloud_spec
from fleet.sim.trial import Trial, image, pool, virtual


def spot_world() -> WorldSpec:
    offers = tuple(
        OfferSpec("us-east-1", zone, "p5.48xlarge", market=Market.SPOT, price_usd_hour=22.0)
        for zone in ("us-east-1a", "us-east-1b")
    )
    # Longer notice than one list interval, as a cloud-side notice needs to be heard in time.
    return WorldSpec((cloud_spec("aws", offers, boot_s=Lognormal(60.0), notice_s=120.0),))


def test_the_cloud_alone_tells_of_the_reclaim() -> None:
    async def work() -> None:
        world = spot_world()
        policies = (image(world), pool(world, nodes=4, spares=2, markets=(Market.SPOT,)))
        trial = Trial(5, world, policies=policies)
        await trial.start()
        assert await trial.until(
            lambda: trial.serving() == 4 and trial.ready() == 6, timeout_s=3600
        )
        await trial.clock.sleep(120)
        cell = trial.up.cell
        node = next(n for n in cell.view.all() if n.slot)
        machine = trial.world.find(node.instance_id)
        assert machine is not None
        trial.world.inject(Injection(Kind.AGENT_CUT, 0.0, 600.0))
        trial.world.strike(machine, Injection(Kind.SPOT_RECLAIM, 0.0))
        moved = await trial.until(
            lambda: node.id not in cell.view.slot_of, timeout_s=100, step_s=1.0
        )
        assert moved
        assert machine.exists, "the slot moved before the cloud took the machine"
        now = cell.view.nodes[node.id]
        assert (now.state, now.reason) == (State.DRAINING, Reason.SPOT_NOTICE)
        await trial.close()

    virtual(work)

"""A create that is repeated and answers after its node was given up leaves nothing behind.

Found by the kill -9 test on moto: the record was closed by a list that was older than the repeat.
PC-007: a record is never closed while its call may still make an instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fleet.errors import Ambiguous
from fleet.model import LaunchSpec, State
from fleet.sim.fakecloud import FakeCloud
from fleet.sim.spec import WorldSpec, four_clouds
from fleet.sim.trial import Trial, image, pool, virtual
from providers.base import CreateResult


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("answer_s", [100.0, 200.0, 400.0])
def test_an_instance_that_comes_late_is_bound_and_ended(
    monkeypatch: pytest.MonkeyPatch, answer_s: float, crash: bool
) -> None:
    create = FakeCloud.create
    calls: list[str] = []

    async def late(self: Any, spec: LaunchSpec) -> Sequence[CreateResult]:
        """The first call is lost; the second is made at once and answers late."""
        calls.append(spec.token)
        if len(calls) == 1:
            raise Ambiguous("lost on the way")
        if len(calls) == 2:
            await trial.clock.sleep(answer_s)
        return await create(self, spec)

    trial: Any = None
    monkeypatch.setattr(FakeCloud, "create", late)

    async def main() -> None:
        nonlocal trial
        world = WorldSpec(tuple(c for c in four_clouds(seed=1).clouds if c.kind == "aws"))
        trial = Trial(1, world, policies=(image(world), pool(world, nodes=1, spares=0)))
        await trial.start()
        for step in range(2000):
            await trial.clock.sleep(2.0)
            if crash and len(calls) == 2 and step % 10 == 0 and trial.daemon is not None:
                calls.append("crash")
                await trial.crash()
                await trial.start()
            nodes = {n.token: n for n in trial.up.cell.view.nodes.values()}
            for machine in trial.world.existing():
                node = nodes.get(machine.token)
                assert node is not None, f"{machine.id} is nobody's at {trial.world.t:.0f} s"
                assert node.state is not State.TERMINATED
        assert trial.serving() == 1
        assert len(list(trial.world.existing())) == 1
        await trial.close()

    virtual(main)

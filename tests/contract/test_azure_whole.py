"""The whole daemon on the real Azure adapter and its skin: nodes join, serve, fail and go."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from wire_azure import GROUP, SUBSCRIPTION, azure_settings, azure_world

from fleet.clock import LoopClock, ScaledLoop, SeededChance
from fleet.model import State
from fleet.sim.faults import Injection, Kind
from fleet.sim.trial import Trial
from fleet.sim.wire.azure import AzureApp
from fleet.sim.wire.serve import WireServer
from providers import azure
from providers.base import Provider

SPEED = 120.0


class Wired(Trial):
    """A trial whose cloud is reached over HTTP."""

    url = ""
    opened: ClassVar[list[Provider]] = []

    def providers(self) -> dict[str, Provider]:
        """The Azure adapter, paced and retried as in production."""
        patience: dict[str, Any] = {"read_timeout_s": 3600.0, "connect_timeout_s": 3600.0}
        settings = azure_settings(self.url, confirm_s=10.0, **patience)
        self.opened.append(azure.open(settings, clock=self.clock, chance=SeededChance(3)))
        return {"azure": self.opened[-1]}


def test_a_pool_comes_up_loses_a_node_is_restarted_and_leaves_nothing() -> None:
    """Agents join under the names of their VMs; a crash forgets nothing; no part is left."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        clock = LoopClock(lambda: 1.8e9 + loop.time())  # the wall clock does not run as fast
        trial = Wired(1, azure_world(50, 50), clock=clock)
        app = AzureApp(trial.world, SeededChance(2))
        async with WireServer(app) as server:
            trial.url = server.url
            await trial.start()
            assert await trial.until(lambda: trial.serving() == 8, timeout_s=1800)
            trial.world.inject(Injection(Kind.DIE_AFTER_ACCEPT, 0.0, 600.0, rate=0.7))
            trial.world.inject(Injection(Kind.HOST_DEATH, 1.0, count=2))
            failed = lambda: app.requests.get("delete_vm", 0) > 0  # noqa: E731
            assert await trial.until(failed, timeout_s=3600)
            await trial.crash()
            await trial.start()

            def whole() -> bool:
                nodes: Any = trial.up.cell.view.nodes.values()
                busy = [n for n in nodes if n.state not in (State.READY, State.TERMINATED)]
                return trial.serving() == 8 and trial.ready() == 10 and not busy

            assert await trial.until(whole, timeout_s=5400)
            await trial.clock.sleep(120)
            existing = {m.id for m in trial.world.existing()}
            bound = {n.instance_id for n in trial.up.cell.view.nodes.values()}
            parts = list(app.estate.resources(SUBSCRIPTION, GROUP))
            await trial.close()
            for provider in trial.opened:
                await provider.aclose()
        assert len(existing) == 10
        assert existing <= bound
        assert len(parts) == 30

    with asyncio.Runner(loop_factory=lambda: ScaledLoop(SPEED)) as runner:
        runner.run(main())

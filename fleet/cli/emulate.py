"""``fleetd emulate``: four simulated clouds on loopback, with nodes that report to a real fleetd.

Invariant: serves this machine only; nothing outlives the process.
"""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleet.clock import LoopClock, ScaledLoop, SeededChance
from fleet.errors import Conflict, InputError
from fleet.sim.faults import FaultPlan
from fleet.sim.nodes import Nodes
from fleet.sim.transport import Answer, HttpTransport
from fleet.sim.wire.emulator import IMAGES, ready, skins, world_spec
from fleet.sim.wire.serve import WireServer
from fleet.sim.world import World
from fleet.userdata import parse
from policies import yamlio

#: Real seconds an agent waits for fleetd's answer.
PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What the command line says."""

    host: str = "127.0.0.1"
    port: int = 0
    speed: float = 1.0
    faults: Path | None = None
    seed: int = 0
    level: int = 1000
    agents_url: str = ""
    ready_file: Path | None = None


class Told:
    """Agents speak to the fleetd that the newest machine's user data names."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._transport: HttpTransport | None = None

    def told(self, user_data: str) -> None:
        """A machine boots with ``user_data``."""
        try:
            url = parse(user_data).server
        except InputError:
            return
        if url != self._url:
            self._url, self._transport = url, None

    async def call(
        self, method: str, path: str, headers: Any, body: bytes, peer: str = ""
    ) -> Answer:
        """Send one request there."""
        if not self._url:
            raise ConnectionError("no machine has been told where fleetd is")
        if self._transport is None:
            self._transport = HttpTransport(self._url, timeout_s=self._timeout_s)
        return await self._transport.call(method, path, headers, body, peer)

    async def aclose(self) -> None:
        """Let go of connections."""
        if self._transport is not None:
            await self._transport.aclose()


def main(ask: Ask) -> int:
    """Serve until SIGINT or SIGTERM."""
    factory = (lambda: ScaledLoop(ask.speed)) if ask.speed != 1.0 else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_serve(ask))


async def _serve(ask: Ask) -> int:
    clock = LoopClock()
    spec, plan = world_spec(ask.level), _plan(ask.faults)
    world = World(clock.now, SeededChance(f"world {ask.seed}"), spec, plan)
    told = Told(ask.agents_url, PATIENCE_S * ask.speed)
    if not ask.agents_url:
        world.on_boot.append(lambda machine: told.told(machine.user_data))
    nodes = Nodes(world, told, SeededChance(f"nodes {ask.seed}"))
    if ask.ready_file is not None:
        ask.ready_file.unlink(missing_ok=True)  # an older one would be believed
    server = WireServer(skins(world, ask.seed), ask.host, ask.port)
    try:
        await server.start()
    except OSError as error:
        raise Conflict(f"port {ask.port} is taken: {error.strerror}", code="port_taken",
                       fix="set another one with --port") from None  # fmt: skip
    world.start()
    _announce(server.url, ask)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await nodes.aclose()
    world.stop()
    await server.aclose()
    return 0


def _announce(url: str, ask: Ask) -> None:
    """Say to people and to programs that we serve."""
    print(f"four clouds at {url}, {ask.speed:g} world seconds a second", flush=True)
    for kind, image in IMAGES.items():
        print(f"  {kind:<6} {ready(url)['endpoints'][kind]:<40} image {image}", flush=True)
    if ask.ready_file is not None:
        begun = ask.ready_file.with_name(f"{ask.ready_file.name}.new")
        begun.write_text(json.dumps(ready(url), indent=2) + "\n", "utf-8")
        begun.replace(ask.ready_file)  # whole or not at all


def _plan(path: Path | None) -> FaultPlan | None:
    if path is None:
        return None
    return FaultPlan.load(yamlio.load_file(path).value or {})

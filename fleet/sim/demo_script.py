"""The demo's script: five acts, each a fault in the world and what must be true before the next.

Invariant: the script touches the world only (injections, and how much a cloud has to sell), never
the daemon; what fleetd does about it is fleetd's own. An act ends when its condition holds, so any
seed plays the same story; one that never comes true is named in ``missed``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from fleet.model import Node, State
from fleet.sim.demo_eye import mark_of
from fleet.sim.demo_stage import NODES, POOL, SPARES, Stage
from fleet.sim.faults import Injection, Kind

#: Real seconds for reading a title, and the pause before the curtain.
READ_S: Final = 3.5
LAST_S: Final = 3.0
#: World seconds an act may take before the script goes on without it.
ACT_LIMIT_S: Final = 1200.0
FAULT: Final = "xid_79"
NAMES: Final = {"aws": "AWS", "gcp": "GCP", "azure": "Azure", "oci": "OCI"}


@dataclass(frozen=True, slots=True)
class Act:
    """A title in plain words and what is played under it."""

    title: str
    play: Callable[[], Coroutine[Any, Any, None]]


class Script:
    """Plays the acts on a stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.acts = (
            Act("Boots and gates", self._fill),
            Act("A GPU falls off the bus", self._gpu),
            Act("Capacity storm at AWS", self._storm),
            Act("GCP accepts launches that never boot", self._never_boot),
            Act("All is well again", self._settle),
        )
        self.n = 0
        self.narration = "Four clouds are being looked at before anything is asked of them."
        self.missed: list[str] = []
        self.ended = False
        #: World time at which each act began.
        self.began: list[float] = []
        #: Fewest nodes in service since the pool was full.
        self.least: int | None = None

    @property
    def title(self) -> str:
        """The title of the act that plays, "" before the first."""
        return self.acts[self.n - 1].title if self.n else ""

    async def run(self) -> None:
        """All acts, in order."""
        for n, act in enumerate(self.acts, 1):
            self.n = n
            self.began.append(self._stage.now())
            await act.play()
        self.ended = True

    # -- acts ------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        self._say(f"A pool wants {NODES} nodes of 8 H100 and {SPARES} spares. The cheapest offers "
                  "are asked first; each node boots and must pass its gate.")  # fmt: skip
        await self._until(self._whole)
        self._say(f"{NODES} nodes are in service and {SPARES} spares are ready.")
        self._turn(spot=7, oci=14)
        await self._read()

    async def _gpu(self) -> None:
        victim = self._serving(provider="aws", market="on_demand")[0]
        watch = self._stage.watch
        watch.aim(victim, FAULT)
        self._say(f"GPU fault {FAULT} on {victim.id}, which serves {victim.slot}: a spare takes "
                  "its place at once, the node is drained and a new one is ordered.")  # fmt: skip
        self._strike(victim, Injection(Kind.GPU_FAULT, code=FAULT))
        await self._until(lambda: watch.moved_ms is not None)
        if watch.moved_ms is not None:
            self._say(f"{victim.slot} was served again {watch.moved_ms:.0f} ms after the report "
                      f"of {FAULT} came in. {victim.id} drains; a new spare boots.")  # fmt: skip
        await self._read()
        await self._until(self._whole)

    async def _storm(self) -> None:
        self._open(Kind.CAPACITY_STORM, "aws", 3600.0)
        self._say("AWS takes three spot nodes back and has nothing else to sell. Spares take over; "
                  "the next cheapest cloud that has any is asked.")  # fmt: skip
        for node in self._serving(provider="aws", market="spot")[:3]:
            self._strike(node, Injection(Kind.SPOT_RECLAIM))
        await self._read()
        await self._until(lambda: self._whole() and self._seen("insufficient_capacity"))
        self._say(f"The launches went to {self._went()}. AWS rests and is only probed, a launch or "
                  "two at a time.")  # fmt: skip
        await self._read()

    async def _never_boot(self) -> None:
        self._open(Kind.NEVER_BOOT, "gcp", 3600.0)
        victims = self._serving(provider="aws", market="spot")
        self._say(f"AWS takes {len(victims)} more back and OCI is full. GCP accepts every launch, "
                  "and then nothing is ever heard of them.")  # fmt: skip
        for node in victims:
            self._strike(node, Injection(Kind.SPOT_RECLAIM))
        await self._until(lambda: any(s.startswith("boot:") for s in self._cell.view.rests))
        self._say("Accepted is not booted: after three in a row GCP rests for this pool and the "
                  "next cloud is asked. The spares carry the load meanwhile.")  # fmt: skip
        await self._read()
        await self._until(self._whole)
        self._say(f"{self._went()} delivered. Fewest nodes in service in all this time: "
                  f"{self.least} of {NODES}.")  # fmt: skip
        await self._read()

    async def _settle(self) -> None:
        world = self._stage.world
        world.plan.until_s = world.t  # every window closes now
        self._say("The storms are over. Every slot is served, the spares are back, and what was "
                  "ill is gone.")  # fmt: skip
        await self._until(self._calm)
        await self._pause(LAST_S)

    # -- what the acts are made of ---------------------------------------------------------------

    @property
    def _cell(self) -> Any:
        return self._stage.daemon.cell

    def _say(self, text: str) -> None:
        self.narration = text

    def _pool(self) -> list[Node]:
        return list(self._cell.view.pool_nodes(POOL))

    def _serving(self, *, provider: str, market: str) -> list[Node]:
        return [
            n for n in self._pool()
            if mark_of(n) == "serving" and n.offer.provider == provider
            and n.offer.market == market
        ]  # fmt: skip

    def _whole(self) -> bool:
        marks = [mark_of(n) for n in self._pool()]
        return marks.count("serving") == NODES and marks.count("spare") == SPARES

    def _calm(self) -> bool:
        quiet = (State.READY, State.QUARANTINED)
        return self._whole() and all(n.state in quiet for n in self._pool())

    def _seen(self, reason: str) -> bool:
        since = self.began[-1]
        return any(r.reason == reason and r.until > since for r in self._cell.view.rests.values())

    def _went(self) -> str:
        """Where nodes ordered in this act are ready now."""
        found = {
            n.offer.provider for n in self._pool()
            if n.created_at >= self.began[-1] and n.state is State.READY
        }  # fmt: skip
        return " and ".join(NAMES[name] for name in sorted(found)) or "nobody"

    def _turn(self, **levels: int) -> None:
        for name, level in levels.items():
            self._stage.dials[name].count = level

    def _strike(self, node: Node, fault: Injection) -> None:
        machine = self._stage.world.find(node.instance_id)
        if machine is not None:
            self._stage.world.strike(machine, fault)

    def _open(self, kind: Kind, provider: str, seconds: float) -> None:
        self._stage.world.inject(Injection(kind, 0.0, seconds, provider=provider))

    async def _until(self, done: Callable[[], bool]) -> None:
        """Let the world go on until ``done()``, or longer than an act may take."""
        clock, speed = self._stage.clock, self._stage.speed
        end = clock.monotonic() + ACT_LIMIT_S
        while not self._look(done):
            if clock.monotonic() >= end:
                if self.title not in self.missed:
                    self.missed.append(self.title)
                return
            await clock.sleep(0.05 * speed)

    def _look(self, done: Callable[[], bool]) -> bool:
        """Is it done, and how many serve?"""
        serving = sum(mark_of(n) == "serving" for n in self._pool())
        if self.least is not None or serving == NODES:
            self.least = min(serving, NODES if self.least is None else self.least)
        return done()

    async def _read(self) -> None:
        await self._pause(READ_S)

    async def _pause(self, seconds: float) -> None:
        """Real seconds."""
        await self._stage.clock.sleep(seconds * self._stage.speed)

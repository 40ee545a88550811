"""A scene: one Trial with what acceptance tests need to arrange, break and look at.

Invariant: a crash point is exact. From the moment it is reached no write of the old process is
committed and no call of it reaches a cloud, as after ``kill -9``; what was done before it stays.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import select
from sqlmodel import Session, col

from fleet.clock import VirtualClock, VirtualLoop
from fleet.model import (
    Instance,
    InstanceRef,
    LaunchSpec,
    Market,
    Need,
    Node,
    Offer,
    Owner,
    State,
)
from fleet.sim.capacity import Lognormal, Steady
from fleet.sim.faults import FaultPlan, Injection, Kind
from fleet.sim.invariants import Invariants
from fleet.sim.machine import Machine
from fleet.sim.spec import CloudSpec, OfferSpec, WorldSpec, cloud_spec
from fleet.sim.trial import Trial, image, pool
from fleet.store import apply, control
from fleet.store.door import Store
from fleet.store.tables import EventRow, LaunchRow, NodeRow
from policies.schema import HealthPolicy, Image, Pool
from providers.base import CreateResult, Provider

T = TypeVar("T")
HOUR_S: Final = 3600.0

_PLACES: Final = {
    "aws": ("us-east-1", "us-east-1{}", "ab", "p5.48xlarge"),
    "gcp": ("us-central1", "us-central1-{}", "ac", "a3-highgpu-8g"),
    "azure": ("eastus", "{}", "12", "Standard_ND96isr_H100_v5"),
    "oci": ("us-chicago-1", "AD-{}", "12", "BM.GPU.H100.8"),
}


def cloud(
    kind: str, *, zones: int = 1, level: int = 100, spot: bool = False, regions: int = 1,
    **over: Any,
) -> CloudSpec:  # fmt: skip
    """A small cloud whose machines run and boot within half a minute and die on demand."""
    region, zone, letters, type_ = _PLACES[kind]
    offers = [
        OfferSpec(
            region if r == 0 else f"{region}-x{r}", zone.format(letter), type_, "H100", 8,
            40.0 if market is Market.SPOT else 80.0, market, "", Steady(level),
        )
        for r in range(regions)
        for letter in letters[:zones]
        for market in ((Market.ON_DEMAND, Market.SPOT) if spot else (Market.ON_DEMAND,))
    ]  # fmt: skip
    quick: dict[str, Any] = {
        "pending_s": Lognormal(5.0, 0.1), "boot_s": Lognormal(20.0, 0.1),
        "terminate_s": Lognormal(10.0, 0.1), "lag_s": 0.0, "buckets": {},
    }  # fmt: skip
    return cloud_spec(kind, tuple(offers), **{**quick, **over})


def world(*kinds: str, **over: Any) -> WorldSpec:
    """Small clouds of these kinds."""
    return WorldSpec(tuple(cloud(kind, **over) for kind in kinds))


class Scene(Trial):
    """A Trial on the virtual loop with invariants, exact crashes and short looks at its state."""

    def __init__(
        self, spec: WorldSpec | None = None, *faults: Injection, seed: int = 1,
        policies: tuple[Pool | Image | HealthPolicy, ...] = (), store: Store | None = None,
        settings: dict[str, Any] | None = None, crash_at: int | None = None, **shape: Any,
    ) -> None:  # fmt: skip
        """``shape`` is the pool's (nodes, spares, ...); ``crash_at`` the crash point to die at."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        spec = spec or world("aws")
        self.wall = VirtualClock(loop)
        super().__init__(
            seed, spec, FaultPlan(faults),
            policies=policies or (image(spec), pool(spec, **{"nodes": 2, "spares": 1, **shape})),
            store=store or CrashStore("sqlite:///:memory:"), settings=settings, clock=self.wall,
        )  # fmt: skip
        # The world's own time is steady, whatever happens to the daemon's wall clock.
        self.world._now = VirtualClock(loop).now
        self.world._epoch = self.world._now()
        self.points = Points(crash_at)
        if isinstance(self.store, CrashStore):
            self.store.points = self.points
        self.calls: Counter[str] = Counter()
        self.checks = Invariants(self)

    def providers(self) -> dict[str, Provider]:
        """The world's clouds behind crash points and counters."""
        inner = super().providers()
        return {name: CrashCloud(p, self.points, self.calls) for name, p in inner.items()}

    # -- time ------------------------------------------------------------------------------------

    async def run(self, seconds: float, *, step_s: float = 5.0, check: bool = True) -> None:
        """Let time pass, checking the invariants after each step."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            await self.clock.sleep(min(step_s, end - self.clock.monotonic()))
            if check:
                self.checks.check()

    async def settle(self, *, timeout_s: float = HOUR_S, pool_name: str = "") -> bool:
        """Let time pass until every pool has all it wants; False if it does not come to that."""
        end = self.clock.monotonic() + timeout_s
        while not self.settled(pool_name):
            if self.clock.monotonic() >= end:
                return False
            await self.clock.sleep(5.0)
            self.checks.check()
        return True

    def settled(self, pool_name: str = "") -> bool:
        """True when slots are served, spares are ready and nothing is on its way out or in."""
        for name, wanted in self.up.cell.view.pools.items():
            if pool_name and name != pool_name:
                continue
            spares = wanted.spec.spares if isinstance(wanted.spec.spares, int) else 0
            if self.serving(name) != wanted.spec.nodes or self.ready(name) < (
                wanted.spec.nodes + spares
            ):
                return False
        return True

    async def reborn(self, *, down_s: float = 5.0, again_at: int | None = None) -> None:
        """Start if need be, wait for the crash point, die there, stay down, start again.

        With ``again_at`` the new process dies as well, that many points from its start.
        """
        await self._until_hit()
        await self.crash()
        await self.clock.sleep(down_s)
        self.points.revive(again_at)
        if again_at is not None:
            await self.reborn(down_s=down_s)
        else:
            await self.start()

    async def _until_hit(self) -> None:
        start = None if self.daemon else asyncio.get_running_loop().create_task(self.start())
        await self.points.hit.wait()
        if start is not None:
            start.cancel()

    # -- looks -----------------------------------------------------------------------------------

    def nodes_in(self, *states: State, pool_name: str = "") -> list[Node]:
        """Live nodes, in these states or in any."""
        nodes = self.up.cell.view.nodes.values()
        return [
            n for n in nodes
            if (not states or n.state in states) and (not pool_name or n.pool == pool_name)
        ]  # fmt: skip

    def machine(self, node: Node) -> Machine:
        """The machine behind a node."""
        found = self.world.find(node.instance_id)
        assert found is not None, node
        return found

    def existing(self, **of: str) -> list[Machine]:
        """Machines that really exist."""
        return list(self.world.existing(**of))

    def unowned(self) -> set[str]:
        """Instances that exist and that no live record knows."""
        rows = self.store.call(
            lambda tx: tx.execute(
                select(col(NodeRow.instance_id)).where(col(NodeRow.state) != "TERMINATED")
            ).scalars().all()
        )  # fmt: skip
        return {m.id for m in self.existing()} - set(rows)

    def events(self, *reasons: str, dst: str = "") -> list[EventRow]:
        """History with these reasons, oldest first."""
        query = select(EventRow).order_by(col(EventRow.id))
        if reasons:
            query = query.where(col(EventRow.reason).in_(reasons))
        if dst:
            query = query.where(col(EventRow.dst) == dst)
        return self.store.call(lambda tx: list(tx.execute(query).scalars()))

    def outcomes(self) -> Counter[str]:
        """How many launches ended how (``open`` for those that have not)."""
        rows = self.store.call(
            lambda tx: tx.execute(select(col(LaunchRow.outcome))).scalars().all()
        )
        return Counter(o or "open" for o in rows)

    def ended(self) -> list[str]:
        """Nodes that were ever taken towards their end."""
        return [e.object_id for e in self.events() if e.dst in ("DRAINING", "TERMINATING")]

    # -- what people do --------------------------------------------------------------------------

    async def apply(self, *policies: Pool | Image | HealthPolicy) -> None:
        """Apply policies as an operator would."""
        now = self.clock.now()
        await self.up.cell.commit(lambda tx: apply.apply(tx, policies, actor="user:ann", now=now))

    async def resize(self, nodes: int, spares: int = 0, name: str = "train", **spec: Any) -> None:
        """Give a pool another size."""
        await self.apply(pool(self.spec, name, nodes=nodes, spares=spares, **spec))

    def shrunk(self) -> None:
        """From now on there may be more than a pool wants: it has just been made smaller."""
        self.checks._ceiling = lambda: iter(())  # type: ignore[method-assign]

    async def unfreeze(self) -> None:
        """Let go of the stop cord, as an operator would."""
        now = self.clock.now()
        await self.up.cell.commit(
            lambda tx: control.unfreeze(tx, "looked at", actor="user:ann", now=now)
        )

    async def freeze(self) -> None:
        """Pull the stop cord."""
        now = self.clock.now()
        await self.up.cell.commit(lambda tx: control.freeze(tx, "drill", actor="user:ann", now=now))

    def hurt(
        self, node: Node, kind: Kind = Kind.GPU_FAULT, code: str = "xid_79", **of: Any
    ) -> None:
        """Strike one node's machine now."""
        self.world.strike(self.machine(node), Injection(kind, code=code, **of))


# -- exact crashes -------------------------------------------------------------------------------


class Points:
    """The places where a process may die; at the chosen one it does."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.names, self.dead = at, list[str](), False
        self.hit = asyncio.Event()

    async def __call__(self, name: str) -> None:
        """Pass one point, or die here. A dead process never comes back from it."""
        if not self.dead:
            self.names.append(name)
            if len(self.names) != self.at:
                return
            self.dead = True
            self.hit.set()
        task = asyncio.current_task()
        if task is not None and task.get_name().startswith("node "):
            raise ConnectionError("fleetd died")  # the agent's side of the connection
        await asyncio.get_running_loop().create_future()

    def revive(self, at: int | None = None) -> None:
        """A new process; it dies ``at`` points from now, or never."""
        self.dead, self.at = False, None if at is None else len(self.names) + at
        self.hit.clear()


class CrashStore(Store):
    """A store with a crash point before and after each commit that is not a mere look."""

    points: Points | None = None

    async def run(self, fn: Callable[[Session], T]) -> T:
        """One transaction between two points."""
        points = self.points
        if points is None or getattr(fn, "__name__", "") == "refresh":
            if points is not None and points.dead:
                await points("refresh")
            return await super().run(fn)
        await points("before commit")
        result = await super().run(fn)
        await points("after commit")
        return result


class CrashCloud:
    """A provider with crash points around each call; the effect is made before the second."""

    def __init__(self, inner: Provider, points: Points, calls: Counter[str]) -> None:
        self.name, self._inner, self._points, self._calls = inner.name, inner, points, calls

    async def offers(self, need: Need) -> Sequence[Offer]:
        """No effect, no point."""
        return await self._inner.offers(need)

    async def create(self, spec: LaunchSpec) -> Sequence[CreateResult]:
        """Create between two points."""
        self._calls[f"create {self.name}"] += 1
        await self._points("before create")
        results = await self._inner.create(spec)
        await self._points("after create")
        return results

    async def delete(self, refs: Sequence[InstanceRef]) -> None:
        """Delete between two points."""
        self._calls[f"delete {self.name}"] += 1
        await self._points("before delete")
        await self._inner.delete(refs)
        await self._points("after delete")

    async def list(self, owner: Owner) -> AsyncIterator[Instance]:
        """List between two points."""
        self._calls[f"list {self.name}"] += 1
        await self._points("before list")
        async for instance in self._inner.list(owner):
            yield instance
        await self._points("after list")

    async def aclose(self) -> None:
        """Nothing is held."""

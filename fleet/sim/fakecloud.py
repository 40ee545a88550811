"""FakeCloud: the provider protocol over a simulated cloud, for loops with any kind of time.

Invariant: raises ``ProviderError`` and nothing else, in the places where a real adapter would: a
refusal when nothing was made, ``Busy`` when nothing was sent, ``Ambiguous`` when the answer to a
create call was lost. It keeps no state of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from typing import Final

from fleet.errors import (
    Ambiguous,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fleet.model import (
    Instance,
    InstanceRef,
    LaunchSpec,
    Need,
    Offer,
    Outcome,
    Owner,
    Phase,
)
from fleet.sim.cloud import Cloud
from fleet.sim.machine import Machine
from fleet.sim.order import Fate, Order
from fleet.sim.vendor import CODES, Denied, Trouble
from fleet.sim.world import World
from providers.base import TAG_CELL, TAG_POOL, TAG_TOKEN, CloudNotice, CreateResult

PAGE = 300

_ERRORS: Final[dict[Trouble, type[ProviderError]]] = {
    Trouble.CAPACITY: InsufficientCapacity,
    Trouble.QUOTA: QuotaExceeded,
    Trouble.THROTTLED: Throttled,
    Trouble.INVALID: InvalidRequest,
    Trouble.TOO_LONG: InvalidRequest,
    # An earlier request with this token went through with another body: list() will tell.
    Trouble.MISMATCH: Ambiguous,
    Trouble.IMAGE: ImageNotFound,
    Trouble.AUTH: Unauthorized,
    Trouble.UNAVAILABLE: Unavailable,
}


def error_of(denied: Denied, region: str = "") -> ProviderError:
    """Our error class for a simulated cloud's refusal, with the vendor's code kept."""
    return _ERRORS[denied.trouble](
        denied.message, code=denied.code, request_id=f"sim-{region}" if region else "sim"
    )


class FakeCloud:
    """One simulated cloud account as a Provider, with EmitsNotices and HasConsole."""

    def __init__(self, world: World, name: str) -> None:
        """Raises KeyError when the world has no cloud ``name``."""
        self.name = name
        self._world = world
        self._cloud: Cloud = world.clouds[name]

    async def offers(self, need: Need) -> Sequence[Offer]:
        """What the account could buy for ``need``, cheapest first; price lists need no call."""
        found = [
            Offer(
                self.name,
                o.region,
                o.zone,
                o.instance_type,
                o.market,
                o.gpu,
                o.gpus,
                o.price_usd_hour,
            )
            for o in self._cloud.spec.offers
            if o.gpu == need.gpu
            and o.gpus == need.gpus
            and o.market in need.markets
            and (not need.regions or o.region in need.regions)
        ]
        return sorted(found, key=lambda o: (o.price_usd_hour or 0.0, o.key))

    async def create(self, spec: LaunchSpec) -> Sequence[CreateResult]:
        """Ask for ``spec.count`` instances: one call at AWS, one per instance elsewhere."""
        region = spec.offer.region
        if self._cloud.kind == "aws":
            made = await self._create(_order(spec, spec.count, spec.token))
            results = [CreateResult(ref=m.ref) for m in made]
            short = error_of(self._cloud.deny(Trouble.CAPACITY), region)
            return results + [CreateResult(error=short)] * (spec.count - len(results))
        each = await asyncio.gather(
            *(
                _settled(self._create(_order(spec, 1, f"{spec.token}-{n}")))
                for n in range(spec.count)
            )
        )
        errors = [e for e in each if isinstance(e, ProviderError)]
        # A whole call that failed alike is raised; an unheard one must never look like a refusal.
        unheard = next((e for e in errors if isinstance(e, Ambiguous)), None)
        if len(errors) == spec.count:
            raise unheard or errors[0]
        return [
            CreateResult(error=e) if isinstance(e, ProviderError) else CreateResult(ref=e[0].ref)
            for e in each
        ]

    async def _create(self, order: Order) -> list[Machine]:
        cloud, world = self._cloud, self._world
        way_back_s = await self._enter("launch", order.region, order.count)
        fate, delay_s = cloud.fate(order.region)
        if fate is Fate.HEARD:
            try:
                made = cloud.launch(order)
            except Denied as denied:
                raise error_of(denied, order.region) from None
            # A caller that dies during the way back has launched and does not know it.
            await asyncio.sleep(way_back_s)
            return made
        if fate is Fate.UNHEARD:
            _quietly(cloud, order)
        elif fate is Fate.LATE:
            world.after(cloud.spec.timeout_s + delay_s, lambda: _quietly(cloud, order))
        await asyncio.sleep(cloud.spec.timeout_s)
        raise Ambiguous("no answer to the create call", code="timeout")

    async def delete(self, refs: Sequence[InstanceRef]) -> None:
        """Ask for deletion. Unknown ids, and ids that lists do not show yet, change nothing."""
        by_region: defaultdict[str, list[str]] = defaultdict(list)
        for ref in refs:
            by_region[ref.region].append(ref.instance_id)
        for region, ids in sorted(by_region.items()):
            way_back_s = await self._enter("terminate", region, len(ids))
            # The cloud answers NotFound for what it does not show yet; an adapter takes that as
            # success, so only a caller that repeats until the list agrees gets rid of it.
            self._cloud.terminate([i for i in ids if i in self._cloud.shown])
            await asyncio.sleep(way_back_s)

    async def list(self, owner: Owner) -> AsyncIterator[Instance]:
        """Every instance of ``owner`` that the cloud shows; raises when the list broke off."""
        way_back_s = 0.0
        for region in self._cloud.spec.regions:
            way_back_s = await self._enter("list", region, 0)
        listed = self._cloud.listing(owner.cell)
        await asyncio.sleep(way_back_s)
        whole = not self._cloud.truncates()
        kept = len(listed) if whole else len(listed) // 2
        for n in range(kept):
            if n and n % PAGE == 0:
                await asyncio.sleep(self._cloud.latency_s())
            yield _as_adapter(listed[n])
        if not whole:
            raise Unavailable(
                "the list broke off", code=CODES[self._cloud.kind][Trouble.UNAVAILABLE]
            )

    async def notices(self) -> Sequence[CloudNotice]:
        """Spot machines that are about to be taken back, as the cloud's events tell it."""
        await self._enter("read", "", 0)
        return [
            CloudNotice(m.ref, "spot", m.reclaim_at, "the cloud takes the spot instance back")
            for m in self._world.existing(self.name)
            if m.reclaim_at is not None and m.id in self._cloud.shown
        ]

    async def console(self, ref: InstanceRef) -> str:
        """The serial console: how far the boot got."""
        await self._enter("read", ref.region, 0)
        m = self._world.find(ref.instance_id)
        if m is None or m.running_at is None:
            return ""
        if m.up_at is None:
            return "[    4.1] EXT4-fs error: unable to mount root fs\n[    4.1] Kernel panic"
        return "[    9.8] cloud-init: finished\nfleet-agent: started\n"

    async def aclose(self) -> None:
        """Nothing is held."""

    async def _enter(self, action: str, region: str, items: int) -> float:
        """The way to the cloud and through its door; raises when it is closed.

        Half of a call's latency is spent here; the other half is returned, for the way back.
        """
        cloud = self._cloud
        self._world.advance()
        if cloud.cut(region):
            raise Unavailable(f"cannot reach the {self.name} API", code="connect")
        half_s = cloud.latency_s() / 2
        await asyncio.sleep(half_s)
        self._world.advance()
        try:
            cloud.admit(action, region, items)
        except Denied as denied:
            raise error_of(denied, region) from None
        return half_s


def _order(spec: LaunchSpec, count: int, key: str) -> Order:
    o = spec.offer
    own = {TAG_CELL: spec.cell, TAG_POOL: spec.pool, TAG_TOKEN: spec.token}
    tags = {**spec.tags, **{k: v for k, v in own.items() if v}}
    return Order(
        o.region,
        o.zone,
        o.instance_type,
        o.market,
        spec.image_id,
        spec.user_data,
        tags,
        count=count,
        key=key,
    )


async def _settled(call: Awaitable[list[Machine]]) -> list[Machine] | ProviderError:
    """The result or the error of one call of several."""
    try:
        return await call
    except ProviderError as error:
        return error


def _quietly(cloud: Cloud, order: Order) -> None:
    """Launch without anybody hearing of it, not even of a refusal."""
    try:
        cloud.launch(order)
    except Denied:
        return


_CAPACITY: Final = re.compile(r"EXHAUSTED|Capacity|Allocation")


def _as_adapter(shown: Instance) -> Instance:
    """An adapter's words: a launch that died of capacity says so in a vendor-independent way."""
    if shown.phase in (Phase.TERMINATED, Phase.FAILED) and _CAPACITY.search(shown.code):
        return replace(shown, died=Outcome.INSUFFICIENT_CAPACITY)
    return shown

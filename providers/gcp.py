"""Google Compute Engine through google-cloud-compute.

Invariant: SDK retries are off, every call has a time-out and runs in this provider's own threads,
none of which waits for a launch; nothing here decides, ``gce.codes.CODES`` does. The SDK takes
seconds to import, so the first call imports it in a thread, never the importing of this module.

Only the ``*_unary`` methods are used, with our own operations client: the convenience calls hide a
client that ignores the endpoint (clouds.md 0.4). An instance's id here is its name, which every
verb takes and which no other launch ever gets.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fleet.clock import Chance, Clock
from fleet.errors import Ambiguous, Gone, InvalidRequest, ProviderError, Unavailable
from fleet.model import Instance, InstanceRef, LaunchSpec, Market, Need, Offer, Owner, Phase
from providers.base import TAG_CELL, CloudNotice, CreateResult, Provider
from providers.catalog import catalog
from providers.gce.account import Account, first_page, settled
from providers.gce.codes import DIED, ENDED
from providers.gce.launch import Launch
from providers.gce.nouns import (
    Machine,
    Region,
    ended,
    image_link,
    instance,
    last,
    moment,
    prefix,
    properties,
    region_of,
)
from providers.gce.sdk import Clients, connect
from providers.pace import Bucket, Rates
from providers.wrap import Limits, Recorder, Wrapped

__all__ = ["DIED", "SDK", "Gcp", "Machine", "Region", "Settings", "open"]

SDK = "google.cloud.compute_v1"

#: Google counts calls per project and minute (legacy default 1,500 in each group, clouds.md 5);
#: aggregated lists are "heavy-weight reads" of which it allows fewer.
RATES: Final[Rates] = {
    "create": [Bucket(burst=1000, refill_per_s=20, per_item=True)],
    "delete": [Bucket(burst=1000, refill_per_s=20, per_item=True)],
    "list": [Bucket(burst=30, refill_per_s=2)],
}

#: Above this a batch is one bulkInsert, which counts as one call (clouds.md 8).
BULK_ABOVE: Final = 20

#: What a page of an aggregated list gives.
Row = tuple[Instance, CloudNotice | None]
Page = tuple[list[Row], str]


class Settings(BaseModel):
    """One Google Cloud project as a provider."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["gcp"] = "gcp"
    name: str = Field(default="gcp", pattern=r"^[a-z][a-z0-9-]{0,31}$")
    project: str = Field(pattern=r"^[a-z0-9][a-z0-9:.-]{2,60}$")
    regions: dict[str, Region] = Field(min_length=1)
    machine: Machine = Machine()
    #: Only for emulators and tests. Credentials are the Application Default Credentials.
    endpoint: str = ""
    #: A made-up token for an emulator; only with an ``endpoint`` on this machine.
    emulator_credentials: bool = False
    max_threads: int = Field(default=16, ge=1, le=64)
    list_threads: int = Field(default=2, ge=1, le=8)
    #: Instances a page: parsing a page holds the GIL (clouds.md 7). Google takes at most 500.
    page_size: int = Field(default=250, ge=1, le=500)
    timeout_s: float = Field(default=15.0, gt=0)
    #: How long a create watches its operations: most stock-outs come within seconds.
    settle_s: float = Field(default=15.0, ge=0)
    poll_s: float = Field(default=2.0, gt=0)
    #: How long a listing tells of launches that failed and instances that Google ended.
    ended_s: float = Field(default=900.0, ge=0)
    rates: dict[Literal["create", "delete", "list"], list[Bucket]] = {}
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _emulator_is_local(self) -> Self:
        if self.emulator_credentials and not loopback(self.endpoint):
            raise ValueError("emulator_credentials needs an endpoint on this machine")
        return self


class Gcp:
    """Compute Engine as a Provider: one project, nothing kept that a restart would miss."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.name = settings.name
        self._settings = settings
        self._clock = clock
        self._account = Account(
            settings.name,
            settings.project,
            partial(
                connect,
                settings.endpoint,
                emulator=settings.emulator_credentials,
                direct=loopback(settings.endpoint),
                pool=settings.max_threads + settings.list_threads,
                timeout_s=settings.timeout_s,
            ),
            threads=settings.max_threads,
            list_threads=settings.list_threads,
            page_size=settings.page_size,
        )
        self._notices: list[CloudNotice] = []

    async def offers(self, need: Need) -> Sequence[Offer]:
        """The catalogue's offers in the configured zones; reservations only if configured."""
        regions = self._settings.regions
        zones = {name: dict.fromkeys(region.zones, "") for name, region in regions.items()}
        found = await self._account.calls.run(
            lambda: catalog().offers("gcp", need, regions, zones=zones, name=self.name)
        )
        return [
            o
            for o in found
            if o.market is not Market.RESERVED or o.instance_type in regions[o.region].reservations
        ]

    async def create(self, spec: LaunchSpec) -> Sequence[CreateResult]:
        """``count`` inserts, or one bulkInsert above BULK_ABOVE, watched for ``settle_s``.

        An operation that still runs then is an accepted launch: a listing tells if it fails.
        """
        s, region, zone = self._settings, self._region(spec.offer.region), spec.offer.zone
        if region_of(zone) != spec.offer.region:
            raise InvalidRequest(f"zone {zone!r} is not in {spec.offer.region}")
        body = properties(spec, s.project, region, s.machine)
        launch = Launch(
            self._account, self._clock, spec, body, settle_s=s.settle_s, poll_s=s.poll_s
        )
        told = await launch.run(bulk=spec.count > BULK_ABOVE)
        failed = [e for e in told.values() if e is not None]
        if len(failed) == len(told):
            # an unheard answer must never look like a refusal
            raise next((e for e in failed if isinstance(e, Ambiguous)), failed[0])
        return [
            CreateResult(ref=InstanceRef(self.name, spec.offer.region, zone, name))
            if error is None
            else CreateResult(error=error)
            for name, error in told.items()
        ]

    async def delete(self, refs: Sequence[InstanceRef]) -> None:
        """One call for each, without a request id: a repeat must be done, not ignored.

        A call that fails does not stop the others. Raises the first error; gone is success.
        """
        errors = await asyncio.gather(*(settled(self._delete(r)) for r in dict.fromkeys(refs)))
        for error in errors:
            if error is not None and not isinstance(error, Gone):
                raise error

    async def _delete(self, ref: InstanceRef) -> None:
        request = {
            "project": self._settings.project,
            "zone": ref.zone,
            "instance": ref.instance_id,
        }
        await self._account.call(lambda c: c.instances.delete_unary(request, **c.options))

    async def list(self, owner: Owner) -> AsyncIterator[Instance]:
        """Every instance of ``owner`` in all zones, then those of which only the end is told.

        A launch that failed and a spot instance that was taken back are in no list of instances;
        their operations name them for ``ended_s``. Raises when a zone could not be reached.
        """
        found: dict[str, Instance] = {}
        notices: list[CloudNotice] = []
        for item, notice in await self._account.paged("all zones", self._aggregated(owner)):
            found[item.ref.instance_id] = item
            notices += [notice] if notice is not None else []
        for item in await self._ended(owner):
            now = found.get(item.ref.instance_id)
            if now is None:
                found[item.ref.instance_id] = item
            elif now.phase in (Phase.STOPPED, Phase.STOPPING):
                found[item.ref.instance_id] = replace(
                    now, code=item.code, message=item.message, preempted=item.preempted
                )
        self._notices = notices
        for item in found.values():
            yield item

    def _aggregated(self, owner: Owner) -> Callable[[Clients, str], Page]:
        request: dict[str, Any] = {
            "project": self._settings.project,
            "filter": f'labels.{TAG_CELL}="{owner.cell}"',
            "max_results": self._settings.page_size,
        }

        def fetch(c: Clients, token: str) -> Page:
            more = {"return_partial_success": True} if c.partial else {}
            answer = c.instances.aggregated_list(
                {**request, **more, "page_token": token}, **c.options
            )
            page = first_page(answer)
            silent = [*page.unreachables]
            silent += [s for s, x in page.items.items() if x.warning.code == "UNREACHABLE"]
            if silent:
                where = ", ".join(sorted({last(s) for s in silent}))
                raise Unavailable(f"no answer from {where}", code="UNREACHABLE")
            rows = [i for scope in page.items.values() for i in scope.instances]
            read = [(instance(self.name, i), i) for i in rows]
            return [(one, _notice(one, i)) for one, i in read], page.next_page_token

        return fetch

    async def _ended(self, owner: Owner) -> Sequence[Instance]:
        """What operations of the last ``ended_s`` say of instances that lists no longer show."""
        if not self._settings.ended_s:
            return []
        words = " OR ".join(f'(operationType="{t}")' for t in ("insert", *sorted(ENDED)))
        since = self._clock.now() - self._settings.ended_s
        zones = [z for region in self._settings.regions.values() for z in region.zones]
        told = await asyncio.gather(
            *(settled(self._account.operations(z, words, since)) for z in dict.fromkeys(zones))
        )
        over: list[Instance] = []
        for one in told:
            if isinstance(one, ProviderError):
                raise one
            over += [
                ended(
                    self.name,
                    p.zone,
                    p.target,
                    owner.cell,
                    p.kind if p.error is None else p.error.code,
                    "ended by Google" if p.error is None else p.error.message,
                )
                for p in one
                if p.target.startswith(prefix(owner.cell)) and (p.error or p.kind in ENDED)
            ]
        return over

    async def notices(self) -> Sequence[CloudNotice]:
        """Maintenance that the last listing announced; makes no call."""
        return tuple(self._notices)

    async def resolve_image(self, image: str) -> str:
        """The immutable ``projects/…/global/images/NAME`` that an image or family link means now.

        For registration, never for a launch. Raises ImageNotFound when there is none.
        """
        family = "/family/" in image
        link = image if family else image_link(self._settings.project, image)
        parts = link.partition("projects/")[2].split("/")
        if len(parts) < 2:
            raise InvalidRequest(f"{image} is no image: write projects/P/global/images/NAME")
        request = {"project": parts[0], ("family" if family else "image"): parts[-1]}

        def ask(c: Clients) -> str:
            get = c.images.get_from_family if family else c.images.get
            return str(get(request, **c.options).name)

        return f"projects/{parts[0]}/global/images/{await self._account.call(ask)}"

    async def aclose(self) -> None:
        """Let the threads go; calls under way end by their own time-outs."""
        self._account.aclose()

    def _region(self, name: str) -> Region:
        try:
            return self._settings.regions[name]
        except KeyError:
            raise InvalidRequest(f"region {name} is not configured for {self.name}") from None


def loopback(url: str) -> bool:
    """True for the URL of a server on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _notice(one: Instance, i: Any) -> CloudNotice | None:
    """The maintenance that an instance's description announces."""
    plan = i.resource_status.upcoming_maintenance
    if not plan.window_start_time:
        return None
    text = f"{plan.type_} maintenance, {plan.maintenance_status}, until {plan.window_end_time}"
    return CloudNotice(one.ref, "maintenance", moment(plan.window_start_time), text)


def open(  # noqa: A001 — the registry's word for every cloud
    settings: Settings, *, clock: Clock, chance: Chance, recorder: Recorder | None = None
) -> Provider:
    """The provider for ``settings``: paced, retried, recorded; makes no call."""
    return Wrapped(
        Gcp(settings, clock),
        clock=clock,
        chance=chance,
        recorder=recorder,
        rates={**RATES, **{str(op): own for op, own in settings.rates.items()}},
        limits=settings.limits,
    )

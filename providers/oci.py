"""Oracle Cloud Infrastructure through the OCI SDK.

Invariant: SDK retries and circuit breakers are off, every call has a time-out and runs in this
provider's own threads; each launch carries a retry token that its spec decides, so a repeat makes
no second instance; nothing here decides, ``oracle.codes.CODES`` does. The SDK takes a second to
import, so the first call imports it in a thread, never the importing of this module.

Oracle launches one instance a call, so a batch is paced call by call, and one refusal ends it.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fleet.clock import Chance, Clock
from fleet.errors import (
    Ambiguous,
    Busy,
    Gone,
    ImageNotFound,
    InvalidRequest,
    ProviderError,
    Refused,
    Throttled,
)
from fleet.model import Instance, InstanceRef, LaunchSpec, Market, Need, Offer, Owner, Phase
from providers.base import CloudNotice, CreateResult, Provider
from providers.catalog import catalog
from providers.oracle.account import Account, Ended, following, item, items, settled
from providers.oracle.codes import CODES, DIED, UNSEEN, meaning
from providers.oracle.nouns import (
    Machine,
    Region,
    instance,
    launch_body,
    name_of,
    notice,
    ocid,
    of_cell,
    retry_token,
)
from providers.oracle.sdk import Access, Clients
from providers.pace import Bucket, Lanes, Rates
from providers.wrap import Limits, Recorder, Wrapped

__all__ = ["CODES", "DIED", "SDK", "Machine", "Oci", "Region", "Settings", "open"]

SDK = "oci"

#: Oracle publishes no numbers. Its own Karpenter provider keeps to 20 writes and 20 reads a second
#: with bursts of 5 (clouds.md 5); less a twentieth, for calls bunch up on their way. A listing is
#: one page after the other, none of which comes back within a twentieth of a second.
RATES: Final[Rates] = {
    "create": [Bucket(burst=4, refill_per_s=19, per_item=True)],
    "delete": [Bucket(burst=4, refill_per_s=19, per_item=True)],
    "list": [Bucket(burst=5, refill_per_s=1)],
}

#: Launches of a batch that was accepted in part are sent so often while Oracle is busy.
BUSY_TRIES: Final = 3
#: Answers to a DELETE of what is ending, or cannot end just now: the caller asks until it is gone.
ENDING: Final = frozenset({"IncorrectState", "Conflict"})

#: What a page of a list gives.
Row = tuple[Instance, CloudNotice | None]


class Settings(BaseModel):
    """One compartment of an Oracle Cloud tenancy as a provider."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["oci"] = "oci"
    name: str = Field(default="oci", pattern=r"^[a-z][a-z0-9-]{0,31}$")
    tenancy: str = Field(pattern=ocid("tenancy"))
    #: Holds this cell's instances and little else: lists have no filter for tags.
    compartment: str = Field(pattern=ocid("compartment|tenancy"))
    regions: dict[str, Region] = Field(min_length=1)
    machine: Machine = Machine()
    #: The SDK's configuration file; empty means its own default, ``~/.oci/config``.
    config_file: str = ""
    profile: str = "DEFAULT"
    #: Sign as the instance that fleetd runs on, without any file.
    instance_principal: bool = False
    #: Only for emulators and tests; ``{region}`` in it stands for each region's name.
    endpoint: str = ""
    #: A throw-away key for an emulator; only with an ``endpoint`` on this machine.
    emulator_credentials: bool = False
    max_threads: int = Field(default=16, ge=1, le=64)
    list_threads: int = Field(default=2, ge=1, le=8)
    #: Instances a page; Oracle may send fewer.
    page_size: int = Field(default=250, ge=1, le=1000)
    connect_timeout_s: float = Field(default=5.0, gt=0)
    read_timeout_s: float = Field(default=30.0, gt=0)
    #: Terminated instances whose reason one listing reads, at two calls each; others come later.
    reasons_at_once: int = Field(default=25, ge=0, le=1000)
    busy_s: float = Field(default=2.0, gt=0)
    rates: dict[Literal["create", "delete", "list"], list[Bucket]] = {}
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.emulator_credentials and not loopback(self.endpoint):
            raise ValueError("emulator_credentials needs an endpoint on this machine")
        if self.emulator_credentials and self.instance_principal:
            raise ValueError("give either emulator_credentials or instance_principal")
        if self.endpoint and "{region}" not in self.endpoint and len(self.regions) > 1:
            raise ValueError("with several regions the endpoint must contain {region}")
        return self


class Oci:
    """One compartment as a Provider: several regions, nothing kept that a restart would miss."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.name = settings.name
        self._settings = settings
        self._clock = clock
        self._account = Account(
            settings.name,
            Access(
                tenancy=settings.tenancy,
                config_file=settings.config_file,
                profile=settings.profile,
                instance_principal=settings.instance_principal,
                endpoint=settings.endpoint,
                emulator=settings.emulator_credentials,
                direct=loopback(settings.endpoint),
                pool=settings.max_threads + settings.list_threads,
                timeout_s=(settings.connect_timeout_s, settings.read_timeout_s),
            ),
            self.regions,
            clock,
            threads=settings.max_threads,
            list_threads=settings.list_threads,
        )
        #: Single calls inside a batch; the wrapping paces whole batches by the same numbers.
        self._lanes = Lanes(rates_of(settings))
        #: Region to instance to why it ended; an instance that needs no reason has an empty one.
        self._fates: dict[str, dict[str, Ended]] = {r: {} for r in settings.regions}
        self._notices: dict[str, list[CloudNotice]] = {}

    @property
    def regions(self) -> Sequence[str]:
        """The configured regions."""
        return tuple(self._settings.regions)

    async def offers(self, need: Need) -> Sequence[Offer]:
        """The catalogue's offers in the configured domains; reserved ones only if configured."""
        regions = self._settings.regions
        zones = {name: region.zones for name, region in regions.items()}
        found = await self._account.calls.run(
            lambda: catalog().offers("oci", need, regions, zones=zones, name=self.name)
        )
        return [
            o
            for o in found
            if o.market is not Market.RESERVED
            or o.instance_type in regions[o.region].capacity_reservations
        ]

    # -- create ----------------------------------------------------------------------------------

    async def create(self, spec: LaunchSpec) -> Sequence[CreateResult]:
        """One launch per instance, some at a time; a refusal ends the sending.

        What Oracle had no time for is sent again when other launches of the batch were accepted.
        A launch that dies later is listed as TERMINATED with its work request's reason.
        """
        s, region, where = self._settings, self._region(spec.offer.region), spec.offer.region
        domain = await self._account.domain(where, spec.offer.zone, region.availability_domains)
        body = launch_body(spec, s.compartment, domain, region, s.machine)
        found: dict[int, str | ProviderError] = {}
        waiting = list(range(spec.count))
        for attempt in range(BUSY_TRIES):
            found |= await self._launch_all(spec, body, waiting)
            waiting = [n for n, got in found.items() if isinstance(got, Busy)]
            whole = len(waiting) in (0, spec.count)
            if whole or attempt == BUSY_TRIES - 1:
                break
            await self._clock.sleep(s.busy_s * 2**attempt)
        errors = [e for e in found.values() if isinstance(e, ProviderError)]
        unseen = next((e for e in errors if e.code == UNSEEN and isinstance(e, Refused)), None)
        if unseen is not None and not isinstance(unseen, ImageNotFound):
            reason = await self._unseen(spec, unseen)
            found = {n: reason if e is unseen or _same(e, unseen) else e for n, e in found.items()}
            errors = [e for e in found.values() if isinstance(e, ProviderError)]
        if len(errors) == spec.count:
            # what was unheard must never look like a refusal
            raise next((e for e in errors if isinstance(e, Ambiguous)), errors[0])
        return [self._result(spec, found[n]) for n in range(spec.count)]

    def _result(self, spec: LaunchSpec, got: str | ProviderError) -> CreateResult:
        if isinstance(got, ProviderError):
            return CreateResult(error=got)
        return CreateResult(ref=InstanceRef(self.name, spec.offer.region, spec.offer.zone, got))

    async def _launch_all(
        self, spec: LaunchSpec, body: Mapping[str, Any], indices: Sequence[int]
    ) -> dict[int, str | ProviderError]:
        """Each index's instance id or error; what was not sent after a refusal is refused alike."""
        over: list[ProviderError] = []
        lane = self._lanes.lane("create", spec.offer.region)
        turn = asyncio.Semaphore(self._settings.max_threads)

        async def one(n: int) -> str | ProviderError:
            async with turn:
                try:
                    if not over:
                        await lane.enter()
                    return over[0] if over else await self._launch(spec, body, n)
                except ProviderError as e:
                    if isinstance(e, Refused | Throttled):
                        over.append(e)
                    if isinstance(e, Throttled):
                        lane.throttled()
                    return e

        return dict(zip(indices, await asyncio.gather(*map(one, indices)), strict=True))

    async def _launch(self, spec: LaunchSpec, body: Mapping[str, Any], n: int) -> str:
        details = {**body, "displayName": name_of(spec, n)}
        token = retry_token(spec, n)

        def send(c: Clients) -> str:
            return str(item(c.compute.launch_instance(details, opc_retry_token=token))["id"])

        return await self._account.call(spec.offer.region, send, creates=True)

    async def _unseen(self, spec: LaunchSpec, error: ProviderError) -> ProviderError:
        """What a launch's 404 was about: its image, which then rests, or what holds the provider.

        That is the compartment, the subnet or the right to launch.
        """
        region, image = spec.offer.region, spec.image_id
        why = await self._account.missing(region, self._settings.compartment, image)
        if not why:
            return error
        text = f"{why}: artifact not yet available"
        return ImageNotFound(text, code=error.code, request_id=error.request_id)

    # -- delete ----------------------------------------------------------------------------------

    async def delete(self, refs: Sequence[InstanceRef]) -> None:
        """One call for each, its boot volume goes with it; raises the first error.

        A 404 is success even where it means "forbidden": only a list may say that one is gone, and
        a list of a compartment that may not be seen fails.
        """
        failed: list[ProviderError] = []
        turn = asyncio.Semaphore(self._settings.max_threads)

        async def one(ref: InstanceRef) -> None:
            lane = self._lanes.lane("delete", ref.region)
            async with turn:
                if any(isinstance(e, Throttled) for e in failed):
                    return  # the caller asks again for all
                await lane.enter()
                try:
                    await self._delete(ref)
                except Gone:
                    pass
                except ProviderError as e:
                    if isinstance(e, Throttled):
                        lane.throttled()
                    if e.code not in ENDING:
                        failed.append(e)

        await asyncio.gather(*(one(ref) for ref in dict.fromkeys(refs)))
        if failed:
            raise failed[0]

    async def _delete(self, ref: InstanceRef) -> None:
        self._region(ref.region)

        def send(c: Clients) -> None:
            c.compute.terminate_instance(
                ref.instance_id,
                preserve_boot_volume=False,
                preserve_data_volumes_created_at_launch=False,
            )

        await self._account.call(ref.region, send, instance=True)
        self._fates[ref.region].setdefault(ref.instance_id, Ended())

    # -- list ------------------------------------------------------------------------------------

    async def list(self, owner: Owner) -> AsyncIterator[Instance]:
        """Every instance of ``owner`` in all regions; raises at the first region that fails."""
        for region in self.regions:
            async for one in self.list_region(owner, region):
                yield one

    async def list_region(self, owner: Owner, region: str) -> AsyncIterator[Instance]:
        """Every instance of ``owner`` in one region, terminated ones that are still listed too."""
        s, place = self._settings, self._region(region)

        def fetch(c: Clients, page: dict[str, str]) -> tuple[list[Row], str]:
            answer = c.compute.list_instances(s.compartment, limit=s.page_size, **page)
            mine = of_cell(items(answer), owner.cell)
            read = [(instance(self.name, region, place, i), i) for i in mine]
            return [(one, notice(one, i)) for one, i in read], following(answer)

        # items that move between pages while they are read may come twice
        rows = {row[0].ref.instance_id: row for row in await self._account.paged(region, fetch)}
        found = {ident: one for ident, (one, _) in rows.items()}
        self._notices[region] = [told for _, told in rows.values() if told is not None]
        await self._explain(region, found)
        fates = self._fates[region]
        for ident, one in found.items():
            fate = fates.get(ident)
            yield one if fate is None or one.exists else _with(one, fate)

    async def _explain(self, region: str, found: Mapping[str, Instance]) -> None:
        """Read why instances ended, once each and at most ``reasons_at_once`` in one listing.

        One that ran and was not preemptible, or that we deleted, did not die of its launch.
        """
        known = self._fates[region]
        fates = {i: known[i] for i in found if i in known}
        for ident, i in found.items():
            if i.phase is not Phase.PENDING and i.exists and i.market is not Market.SPOT:
                fates.setdefault(ident, Ended())
        self._fates[region] = fates
        untold = [i for ident, i in found.items() if not i.exists and ident not in fates]
        untold.sort(key=lambda i: -i.created_at)

        async def one(i: Instance) -> None:
            ident, compartment = i.ref.instance_id, self._settings.compartment
            fates[ident] = await self._account.ended(region, compartment, ident, i.market)

        # an error here hides no instance: the next listing asks again
        await asyncio.gather(*(settled(one(i)) for i in untold[: self._settings.reasons_at_once]))

    async def notices(self) -> Sequence[CloudNotice]:
        """Maintenance that the last listings announced; makes no call."""
        return [told for each in self._notices.values() for told in each]

    async def aclose(self) -> None:
        """Let the threads go; calls under way end by their own time-outs."""
        self._account.aclose()

    def _region(self, name: str) -> Region:
        try:
            return self._settings.regions[name]
        except KeyError:
            raise InvalidRequest(f"region {name} is not configured for {self.name}") from None


def _same(error: object, other: ProviderError) -> bool:
    return isinstance(error, ProviderError) and (type(error), error.code) == (
        type(other),
        other.code,
    )


def _with(i: Instance, fate: Ended) -> Instance:
    """A terminated instance with the reason of its end."""
    kind = meaning(fate.code, fate.message)
    died = kind.outcome if kind in DIED.values() else None
    return replace(i, code=fate.code, message=fate.message, preempted=fate.preempted, died=died)


def loopback(url: str) -> bool:
    """True for the URL of a server on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def rates_of(settings: Settings) -> Rates:
    """The configured rates over the usual ones."""
    return {**RATES, **{str(op): own for op, own in settings.rates.items()}}


def open(  # noqa: A001 — the registry's word for every cloud
    settings: Settings, *, clock: Clock, chance: Chance, recorder: Recorder | None = None
) -> Provider:
    """The provider for ``settings``: paced, retried, recorded; makes no call."""
    return Wrapped(
        Oci(settings, clock),
        clock=clock,
        chance=chance,
        recorder=recorder,
        rates=rates_of(settings),
        limits=settings.limits,
    )

"""Microsoft Azure through azure-mgmt-compute's async client.

Invariant: a VM is made by one PUT under a name that its token decides, only if nothing has that
name, and its NIC and disk live and die with it; so a repeat, a crash and a time-out can make no
second one. Nothing here decides, ``arm.codes`` does: each vendor code is one class of
``fleet.errors``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fleet.clock import Chance, Clock
from fleet.errors import (
    Ambiguous,
    Busy,
    Gone,
    InvalidRequest,
    ProviderError,
    Refused,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fleet.model import Instance, InstanceRef, LaunchSpec, Market, Need, Offer, Owner
from providers.arm.codes import DIED, AlreadyThere, died_of
from providers.arm.link import Link, Target, plain_loopback
from providers.arm.vm import Login, Region, Status, instance, name_in, status_of, vm_body, vm_name
from providers.base import TAG_CELL, TAG_TOKEN, CreateResult, Provider
from providers.catalog import catalog
from providers.pace import Bucket, Rates
from providers.pool import BlockingPool
from providers.wrap import Limits, Recorder, Wrapped

__all__ = ["DIED", "SDK", "Azure", "Region", "Settings", "open"]

SDK = "azure.mgmt.compute"

#: ARM's buckets per subscription, principal and region (200 at once, 10 a second) less a twentieth,
#: for calls bunch up on their way; then Compute's own (clouds.md 5). One listing is some ten calls
#: of Compute's 300 a minute.
RATES: Final[Rates] = {
    "create": [
        Bucket(burst=190, refill_per_s=9.5, per_item=True),
        Bucket(burst=1500, refill_per_s=500 / 60, per_item=True),
    ],
    "delete": [
        Bucket(burst=190, refill_per_s=9.5, per_item=True),
        Bucket(burst=1500, refill_per_s=500 / 60, per_item=True),
    ],
    "list": [Bucket(burst=10, refill_per_s=0.5)],
}

#: A listing that needs more pages than this is a server that never ends.
MAX_PAGES = 2000
#: Longest wait within one create call for what Azure asks us to wait (s).
HINT_MAX_S = 15.0


class Settings(BaseModel):
    """One resource group of an Azure subscription as a provider."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["azure"] = "azure"
    name: str = Field(default="azure", pattern=r"^[a-z][a-z0-9-]{0,31}$")
    subscription: str = Field(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")
    #: Holds this cell's VMs and little else: lists have no filter for tags.
    resource_group: str = Field(pattern=r"^[-\w.()]{0,89}[-\w()]$")
    regions: dict[str, Region] = Field(min_length=1)
    #: Azure refuses a Linux VM without a way in: the public key, or the file that holds it.
    ssh_public_key: str = ""
    ssh_public_key_file: str = ""
    admin_user: str = Field(default="fleetd", pattern=r"^[a-z_][a-z0-9_-]{0,31}$")
    #: Another cloud's Resource Manager, or an emulator; its tokens are then asked for there.
    endpoint_url: str = ""
    #: Made-up credentials for an emulator; only with a plain ``endpoint_url`` on this machine.
    emulator_credentials: bool = False
    #: Power states and failures come from a list of the whole subscription, which needs the right
    #: to read its VMs. Without it a failed VM shows no code and a stopped one looks running.
    power_states: bool = True
    #: How long after its last PUT a create call looks once for failures; 0: lists tell later.
    confirm_s: float = Field(default=10.0, ge=0, le=30)
    max_calls: int = Field(default=32, ge=1, le=100)
    connect_timeout_s: float = Field(default=5.0, gt=0)
    read_timeout_s: float = Field(default=30.0, gt=0)
    rates: dict[Literal["create", "delete", "list"], list[Bucket]] = {}
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.ssh_public_key) == bool(self.ssh_public_key_file):
            raise ValueError("give either ssh_public_key or ssh_public_key_file")
        url = self.endpoint_url
        if url and urlsplit(url).scheme != "https" and not plain_loopback(url):
            raise ValueError("endpoint_url must be https, or plain http on this machine")
        if self.emulator_credentials and not plain_loopback(url):
            raise ValueError("emulator_credentials needs a plain http endpoint_url on this machine")
        return self


class Azure:
    """One resource group as a Provider; nothing kept that a restart would miss."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.name = settings.name
        self._settings = settings
        self._clock = clock
        self._pool = BlockingPool(f"{self.name}-load", 1)
        self._turn = asyncio.Semaphore(settings.max_calls)
        self._link = Link(
            Target(
                subscription=settings.subscription,
                endpoint_url=settings.endpoint_url,
                emulator_credentials=settings.emulator_credentials,
                connect_timeout_s=settings.connect_timeout_s,
                read_timeout_s=settings.read_timeout_s,
            ),
            self._pool,
        )
        self._login: Login | None = None
        self._looking = asyncio.Lock()
        self._looked: tuple[float, Mapping[str, Status]] | None = None

    async def offers(self, need: Need) -> Sequence[Offer]:
        """The catalogue's offers in the configured regions and zones; reserved only if bought."""
        regions = self._settings.regions
        zones = {name: dict.fromkeys(region.zones, "") for name, region in regions.items()}
        found = await self._pool.run(
            lambda: catalog().offers("azure", need, regions, zones=zones, name=self.name)
        )
        return [
            o
            for o in found
            if o.market is not Market.RESERVED
            or o.instance_type in regions[o.region].capacity_reservations
        ]

    # -- create ----------------------------------------------------------------------------------

    async def create(self, spec: LaunchSpec) -> Sequence[CreateResult]:
        """One PUT per VM, some at a time, and one look for those that failed at once.

        A refusal ends the sending: what was not sent is refused alike. One 429 does not give up
        half a batch: what is Busy beside accepted VMs is sent once more.
        """
        region, login = self._region(spec.offer.region), await self._admin()
        bodies = [vm_body(spec, n, region, login) for n in range(spec.count)]
        found = await self._put_all(spec, dict(enumerate(bodies)))
        busy = {n: bodies[n] for n, e in found.items() if isinstance(e, Busy)}
        if busy and len(busy) < spec.count:
            await self._clock.sleep(_hint_s(found[n] for n in busy))
            found |= await self._put_all(spec, busy)
        errors = [e for e in found.values() if isinstance(e, ProviderError)]
        if len(errors) == spec.count:
            # what was unheard must never look like a refusal
            raise next((e for e in errors if isinstance(e, Ambiguous)), errors[0])
        found |= await self._fast_failures(spec, found)
        return [self._result(spec, n, found[n]) for n in range(spec.count)]

    def _result(self, spec: LaunchSpec, n: int, got: ProviderError | float) -> CreateResult:
        if isinstance(got, ProviderError):
            return CreateResult(error=got)
        offer = spec.offer
        return CreateResult(
            ref=InstanceRef(self.name, offer.region, offer.zone, vm_name(spec.token, n))
        )

    async def _put_all(
        self, spec: LaunchSpec, bodies: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, ProviderError | float]:
        """Each index's error, or the seconds after which Azure would be asked about it."""
        found: dict[int, ProviderError | float] = {}
        over: list[ProviderError] = []

        async def one(n: int, body: Mapping[str, Any]) -> None:
            async with self._turn:
                try:
                    found[n] = over[0] if over else await self._put(spec, n, body)
                except ProviderError as e:
                    found[n] = e
                    if isinstance(e, Refused | Throttled):
                        over.append(e)

        await asyncio.gather(*(one(n, body) for n, body in bodies.items()))
        return found

    async def _put(self, spec: LaunchSpec, n: int, body: Mapping[str, Any]) -> float:
        """Make one VM, or find that this token has made it before."""
        group, name = self._settings.resource_group, vm_name(spec.token, n)

        async def send(client: Any) -> float:
            from azure.core import MatchConditions

            poller = await client.virtual_machines.begin_create_or_update(
                group,
                name,
                dict(body),
                match_condition=MatchConditions.IfMissing,
                polling=False,
                cls=lambda answer, vm, _: answer.http_response.headers.get("Retry-After"),
            )
            after = str(await poller.result() or "")
            return float(after) if after.isdigit() else 0.0

        try:
            return await self._link.call(send, creates=True)
        except AlreadyThere:
            await self._adopt(spec, name)
            return 0.0

    async def _adopt(self, spec: LaunchSpec, name: str) -> None:
        """Make sure that the VM of this name is of this token; raises ProviderError if not."""
        group = self._settings.resource_group
        try:
            vm = await self._link.call(lambda client: client.virtual_machines.get(group, name))
        except Gone as e:
            raise Ambiguous(f"{name} was there and is gone", code=e.code) from e
        if (vm.get("tags") or {}).get(TAG_TOKEN) != spec.token:
            raise InvalidRequest(f"{name} exists and is not of this launch", code="NameTaken")

    async def _fast_failures(
        self, spec: LaunchSpec, found: Mapping[int, ProviderError | float]
    ) -> dict[int, ProviderError | float]:
        """Accepted VMs that have failed already, as refusals; what is left of them is deleted.

        One list answers for the whole batch, and for others that wait at the same time. Where it
        or the delete fails, lists tell: a failed VM stays until it is deleted.
        """
        waits_s = {n: s for n, s in found.items() if not isinstance(s, ProviderError)}
        if not self._settings.confirm_s or not self._settings.power_states:
            return {}
        hint_s = min(HINT_MAX_S, max(waits_s.values()))
        wait_s = max(self._settings.confirm_s, hint_s)
        soonest = self._clock.monotonic() + wait_s / 2
        await self._clock.sleep(wait_s)
        failed: dict[int, ProviderError | float] = {}
        try:
            statuses = await self._look(soonest)
            for n in waits_s:
                status = statuses.get(vm_name(spec.token, n), Status())
                kind = died_of(status.code, status.message)
                if kind is not None:
                    failed[n] = kind(status.message, code=status.code)
            await self._delete_all([vm_name(spec.token, n) for n in failed])
        except ProviderError:
            pass
        return failed

    async def _look(self, soonest: float) -> Mapping[str, Status]:
        """The statuses as of ``soonest`` (monotonic) or later; one caller asks for all."""
        async with self._looking:
            if self._looked is None or self._looked[0] < soonest:
                at = self._clock.monotonic()
                self._looked = (at, await self._statuses())
            return self._looked[1]

    # -- delete ----------------------------------------------------------------------------------

    async def delete(self, refs: Sequence[InstanceRef]) -> None:
        """One DELETE per VM, by force; its NIC and disk go with it. Raises the first failure."""
        await self._delete_all(list(dict.fromkeys(ref.instance_id for ref in refs)))

    async def _delete_all(self, names: Sequence[str]) -> None:
        failed: list[ProviderError] = []
        group = self._settings.resource_group

        async def one(name: str) -> None:
            async with self._turn:
                if any(isinstance(e, Throttled | Unauthorized) for e in failed):
                    return  # the caller asks again for all
                try:
                    await self._link.call(
                        lambda client: client.virtual_machines.begin_delete(
                            group, name, force_deletion=True, polling=False
                        )
                    )
                except Gone:
                    pass
                except ProviderError as e:
                    failed.append(e)

        await asyncio.gather(*(one(name) for name in names))
        if failed:
            raise failed[0]

    # -- list ------------------------------------------------------------------------------------

    async def list(self, owner: Owner) -> AsyncIterator[Instance]:
        """Every VM of ``owner`` in the resource group, which spans all regions."""
        group = self._settings.resource_group
        statuses = await self._statuses() if self._settings.power_states else {}
        for vm in await self._all(lambda client: client.virtual_machines.list(group)):
            if (vm.get("tags") or {}).get(TAG_CELL) == owner.cell:
                yield instance(self.name, vm, statuses.get(str(vm["name"]).lower()))

    async def _statuses(self) -> dict[str, Status]:
        """What the instance views of the resource group's VMs say, by lower-case name.

        A list of one group cannot carry them, a list of the subscription can, and then carries
        nothing else.
        """
        found: dict[str, Status] = {}
        items = await self._all(lambda client: client.virtual_machines.list_all(status_only="true"))
        for vm in items:
            if name := name_in(str(vm.get("id") or ""), self._settings.resource_group):
                view = (vm.get("properties") or {}).get("instanceView") or {}
                found[name] = status_of(view)
        return found

    async def _all(self, start: Callable[[Any], Any]) -> Sequence[Mapping[str, Any]]:
        """All pages of a list, or an error; never a part."""

        async def read(client: Any) -> Sequence[Mapping[str, Any]]:
            pages, seen = start(client).by_page(), set[str]()
            found: list[Mapping[str, Any]] = []
            for _ in range(MAX_PAGES):
                page = await anext(pages, None)
                if page is None:
                    return found
                found += [vm async for vm in page]
                following = pages.continuation_token or ""
                if following in seen:
                    break
                seen.add(following)
            raise Unavailable("the list does not end", code="EndlessListing")

        return await self._link.call(read)

    async def aclose(self) -> None:
        """Let the connections go; calls under way end by their own time-outs."""
        self._pool.close()
        await self._link.aclose()

    # -- settings ----------------------------------------------------------------------------------

    def _region(self, name: str) -> Region:
        try:
            return self._settings.regions[name]
        except KeyError:
            raise InvalidRequest(f"region {name} is not configured for {self.name}") from None

    async def _admin(self) -> Login:
        """Who may enter the VMs; the key file is read once, in a thread."""
        if self._login is None:
            s = self._settings
            try:
                key = s.ssh_public_key or await self._pool.run(
                    lambda: Path(s.ssh_public_key_file).read_text("utf-8")
                )
            except (OSError, UnicodeDecodeError) as e:
                raise InvalidRequest(f"{s.ssh_public_key_file} cannot be read: {e}") from e
            if not key.startswith(("ssh-", "ecdsa-")):
                raise InvalidRequest(f"the SSH public key of {self.name} is none")
            self._login = Login(s.admin_user, key.strip())
        return self._login


def _hint_s(errors: Iterable[object]) -> float:
    """The longest wait that Azure asked for, within what a create call can wait."""
    asked = [getattr(e, "retry_after_s", None) or 1.0 for e in errors]
    return min(HINT_MAX_S, max(asked))


def open(  # noqa: A001 — the registry's word for every cloud
    settings: Settings, *, clock: Clock, chance: Chance, recorder: Recorder | None = None
) -> Provider:
    """The provider for ``settings``: paced by Azure's buckets, retried, recorded; makes no call."""
    return Wrapped(
        Azure(settings, clock),
        clock=clock,
        chance=chance,
        recorder=recorder,
        rates={**RATES, **{str(op): own for op, own in settings.rates.items()}},
        limits=settings.limits,
    )

"""Amazon EC2 through boto3.

Invariant: SDK retries are off, every call has a time-out and runs in this provider's own threads;
nothing here decides, ``ec2.CODES`` does: each vendor code is one class of ``fleet.errors``. boto3
is imported in a thread when the first call needs it (0.5 s), never by importing this module.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fleet.clock import Chance, Clock
from fleet.errors import (
    Gone,
    InsufficientCapacity,
    InvalidRequest,
    ProviderError,
    Unauthorized,
    Unavailable,
)
from fleet.model import Instance, InstanceRef, LaunchSpec, Market, Need, Offer, Owner
from providers.base import TAG_CELL, CreateResult, Provider
from providers.catalog import catalog
from providers.ec2 import DIED, INSTANCE_ID, Region, instance, run_request, translate
from providers.pace import Bucket, Rates
from providers.pool import BlockingPool
from providers.wrap import Limits, Recorder, Wrapped

__all__ = ["DIED", "SDK", "Aws", "Region", "Settings", "open"]

SDK = "boto3"

#: EC2's buckets per account, region and action (clouds.md 5).
RATES: Final[Rates] = {
    "create": [
        Bucket(burst=5, refill_per_s=2),
        Bucket(burst=1000, refill_per_s=2, per_item=True),
    ],
    "delete": [
        Bucket(burst=100, refill_per_s=5),
        Bucket(burst=1000, refill_per_s=20, per_item=True),
    ],
    "list": [Bucket(burst=100, refill_per_s=20)],
}

#: EC2 takes 1,000 ids a call and advises small batches.
TERMINATE_CHUNK = 100
#: A listing that needs more pages than this is a server that never ends.
MAX_PAGES = 2000


class Settings(BaseModel):
    """One AWS account as a provider."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["aws"] = "aws"
    name: str = Field(default="aws", pattern=r"^[a-z][a-z0-9-]{0,31}$")
    regions: dict[str, Region] = Field(min_length=1)
    #: A profile of the AWS configuration files; empty means boto3's own chain.
    profile: str = ""
    #: Only for emulators and tests.
    endpoint_url: str = ""
    #: Made-up credentials for an emulator; only with an ``endpoint_url`` on this machine.
    emulator_credentials: bool = False
    max_threads: int = Field(default=16, ge=1, le=64)
    list_threads: int = Field(default=2, ge=1, le=8)
    #: Instances a page: parsing a page holds the GIL (clouds.md 7). EC2 takes 5 to 1000.
    page_size: int = Field(default=250, ge=5, le=1000)
    connect_timeout_s: float = Field(default=5.0, gt=0)
    read_timeout_s: float = Field(default=30.0, gt=0)
    #: Credentials are read anew after this long, and after every refusal of them (PC-031).
    session_max_age_s: float = Field(default=3600.0, ge=60)
    rates: dict[Literal["create", "delete", "list"], list[Bucket]] = {}
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _emulator_is_local(self) -> Self:
        if self.emulator_credentials and not _loopback(self.endpoint_url):
            raise ValueError("emulator_credentials needs an endpoint_url on this machine")
        return self


class Aws:
    """EC2 as a Provider: one account, several regions, nothing kept that a restart would miss."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.name = settings.name
        self._settings = settings
        self._clock = clock
        self._calls = BlockingPool(f"{self.name}-call", settings.max_threads)
        self._lists = BlockingPool(f"{self.name}-list", settings.list_threads)
        self._clients: dict[str, Any] = {}
        self._built_at: float | None = None
        self._building = asyncio.Lock()

    @property
    def regions(self) -> Sequence[str]:
        """The configured regions."""
        return tuple(self._settings.regions)

    async def offers(self, need: Need) -> Sequence[Offer]:
        """The catalogue's offers in the configured regions and zones; blocks only if bought."""
        regions = self._settings.regions
        zones = {name: region.zones for name, region in regions.items() if region.zones}
        found = await self._calls.run(
            lambda: catalog().offers("aws", need, regions, zones=zones, name=self.name)
        )
        return [
            o
            for o in found
            if o.market is not Market.RESERVED
            or o.instance_type in regions[o.region].capacity_blocks
        ]

    async def create(self, spec: LaunchSpec) -> Sequence[CreateResult]:
        """One RunInstances for the whole batch, as many as there are between 1 and ``count``."""
        region = spec.offer.region
        request = run_request(spec, self._region(region))
        answer = await self._call("run_instances", region, request)
        made = sorted(answer["Instances"], key=lambda i: int(i.get("AmiLaunchIndex", 0)))
        results = [CreateResult(ref=self._ref(region, i)) for i in made[: spec.count]]
        short = InsufficientCapacity(
            f"{len(made)} of {spec.count} launched",
            code="InsufficientInstanceCapacity",
            request_id=answer.get("ResponseMetadata", {}).get("RequestId", ""),
        )
        return results + [CreateResult(error=short)] * (spec.count - len(results))

    async def delete(self, refs: Sequence[InstanceRef]) -> None:
        """Terminate in chunks; a chunk that fails does not stop the others. Raises the first."""
        by_region: dict[str, list[str]] = defaultdict(list)
        for ref in refs:
            by_region[ref.region].append(ref.instance_id)
        failed: ProviderError | None = None
        for region, ids in by_region.items():
            unique = list(dict.fromkeys(ids))
            for at in range(0, len(unique), TERMINATE_CHUNK):
                try:
                    await self._terminate(region, unique[at : at + TERMINATE_CHUNK])
                except ProviderError as e:
                    failed = failed or e
        if failed is not None:
            raise failed

    async def _terminate(self, region: str, ids: Sequence[str]) -> None:
        """One wrong id fails a whole TerminateInstances: leave out those named, or halve."""
        try:
            await self._call("terminate_instances", region, {"InstanceIds": list(ids)})
        except (Gone, InvalidRequest) as e:
            gone = set(INSTANCE_ID.findall(e.message)) if isinstance(e, Gone) else set()
            left = [i for i in ids if i not in gone]
            if len(left) < len(ids):
                if left:
                    await self._terminate(region, left)
            elif len(ids) > 1:
                await self._terminate_halves(region, ids)
            elif not isinstance(e, Gone):
                raise

    async def _terminate_halves(self, region: str, ids: Sequence[str]) -> None:
        failed: ProviderError | None = None
        for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
            try:
                await self._terminate(region, half)
            except ProviderError as e:
                failed = failed or e
        if failed is not None:
            raise failed

    async def list(self, owner: Owner) -> AsyncIterator[Instance]:
        """Every instance of ``owner`` in all regions; raises at the first region that fails."""
        for region in self.regions:
            async for item in self.list_region(owner, region):
                yield item

    async def list_region(self, owner: Owner, region: str) -> AsyncIterator[Instance]:
        """Every instance of ``owner`` in one region, terminated ones that EC2 still shows too."""
        request: dict[str, Any] = {
            "Filters": [{"Name": f"tag:{TAG_CELL}", "Values": [owner.cell]}],
            "MaxResults": self._settings.page_size,
        }
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            page, following = await self._call(
                "describe_instances", region, request, lambda a: self._page(region, a)
            )
            for item in page:
                yield item
            if not following:
                return
            if following in seen:
                break
            seen.add(following)
            request["NextToken"] = following
        raise Unavailable(f"the listing of {region} does not end", code="EndlessListing")

    async def aclose(self) -> None:
        """Let the threads go; calls under way end by their own time-outs."""
        self._calls.close()
        self._lists.close()
        for client in self._clients.values():
            client.close()
        self._clients = {}
        self._built_at = None

    def _region(self, name: str) -> Region:
        try:
            return self._settings.regions[name]
        except KeyError:
            raise InvalidRequest(f"region {name} is not configured for {self.name}") from None

    def _ref(self, region: str, i: Mapping[str, Any]) -> InstanceRef:
        zone = i.get("Placement", {}).get("AvailabilityZone", "")
        return InstanceRef(self.name, region, zone, i["InstanceId"])

    def _page(self, region: str, answer: Mapping[str, Any]) -> tuple[Sequence[Instance], str]:
        found = [i for r in answer.get("Reservations", ()) for i in r.get("Instances", ())]
        return [instance(self._ref(region, i), i) for i in found], answer.get("NextToken") or ""

    async def _client(self, region: str) -> Any:
        """The region's client from a session young enough; all are made in one thread."""
        self._region(region)
        async with self._building:
            now = self._clock.monotonic()
            age_s = now - self._built_at if self._built_at is not None else None
            if age_s is None or age_s > self._settings.session_max_age_s:
                self._clients = await self._calls.run(self._connect)
                self._built_at = now
        return self._clients[region]

    def _connect(self) -> dict[str, Any]:
        import boto3
        from botocore.config import Config

        s = self._settings
        keys: dict[str, Any] = {}
        if s.emulator_credentials:
            keys = {"aws_access_key_id": "emulator", "aws_secret_access_key": "emulator"}
        session = boto3.Session(profile_name=s.profile or None, **keys)
        config = Config(
            connect_timeout=s.connect_timeout_s,
            read_timeout=s.read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=s.max_threads + s.list_threads,
            proxies={} if _loopback(s.endpoint_url) else None,
            user_agent_extra="fleetd",
        )
        return {
            region: session.client(
                "ec2", region_name=region, endpoint_url=s.endpoint_url or None, config=config
            )
            for region in s.regions
        }

    async def _call(
        self,
        operation: str,
        region: str,
        request: Mapping[str, Any],
        parse: Callable[[Any], Any] = lambda answer: answer,
    ) -> Any:
        """One SDK call and the reading of its answer, in a thread; errors become ours."""
        pool = self._lists if operation == "describe_instances" else self._calls
        try:
            client = await self._client(region)
            return await pool.run(lambda: parse(getattr(client, operation)(**request)))
        except ProviderError:
            raise
        except Exception as e:
            error = translate(e, creates=operation == "run_instances")
            if isinstance(error, Unauthorized):
                self._built_at = None  # read the credentials anew with the next call
            raise error from e


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open(  # noqa: A001 — every adapter's factory
    settings: Settings, *, clock: Clock, chance: Chance, recorder: Recorder | None = None
) -> Provider:
    """The provider for ``settings``: paced by EC2's buckets, retried, recorded; makes no call."""
    return Wrapped(
        Aws(settings, clock),
        clock=clock,
        chance=chance,
        recorder=recorder,
        rates={**RATES, **{str(op): own for op, own in settings.rates.items()}},
        limits=settings.limits,
    )

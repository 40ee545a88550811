"""EC2 answers out of a can, put in by botocore's ``before-send`` hook: nothing leaves the process.

Requests go through boto3's real serializer, answers through its real parser.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from urllib.parse import parse_qs

import pytest

from fleet.clock import LoopClock
from fleet.errors import (
    ProviderError,
)
from fleet.model import InstanceRef, LaunchSpec, Offer, Owner
from providers import aws
from providers.base import TAG_CELL
from providers.ec2 import Region

SPEC = LaunchSpec(
    token="4f1c2f0a-0000-4000-8000-000000000001",
    offer=Offer("aws", "us-east-1", "us-east-1a", "p5.48xlarge"),
    count=3,
    image_id="ami-1",
    user_data="#cloud-config\n# ü\n",
    tags={"fleetd-image": "base@1.0.0"},
    pool="train",
    cell="prod",
)
NS = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'
Request = dict[str, str]
Answer = tuple[int, str]
Script = Callable[[Request], Answer]


def refusal(code: str, message: str = "words of the vendor", status: int = 400) -> Answer:
    """An EC2 error document."""
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    body = f"<Response><Errors>{error}</Errors><RequestID>req-1</RequestID></Response>"
    return status, f'<?xml version="1.0" encoding="UTF-8"?>{body}'


def item(i: int, state: str = "running", more: str = "", cell: str = "prod") -> str:
    """One instance of a describe or run answer."""
    tags = f"<tagSet><item><key>{TAG_CELL}</key><value>{cell}</value></item></tagSet>"
    return (
        f"<item><instanceId>i-{i:017x}</instanceId><imageId>ami-1</imageId>"
        f"<instanceState><code>0</code><name>{state}</name></instanceState>"
        f"<instanceType>p5.48xlarge</instanceType><amiLaunchIndex>{i}</amiLaunchIndex>"
        f"<launchTime>2026-12-01T00:00:00.000Z</launchTime>"
        f"<placement><availabilityZone>us-east-1a</availabilityZone></placement>{tags}{more}</item>"
    )


def ran(*ids: int) -> Answer:
    """A RunInstances answer."""
    items = "".join(item(i, "pending") for i in ids)
    head = "<requestId>req-2</requestId><reservationId>r-1</reservationId>"
    body = f"{head}<instancesSet>{items}</instancesSet>"
    return 200, f"<RunInstancesResponse {NS}>{body}</RunInstancesResponse>"


def described(items: list[str], following: str = "") -> Answer:
    """A DescribeInstances answer: each instance its own reservation."""
    each = "".join(f"<item><instancesSet>{i}</instancesSet></item>" for i in items)
    token = f"<nextToken>{following}</nextToken>" if following else ""
    body = f"<requestId>req-3</requestId><reservationSet>{each}</reservationSet>{token}"
    return 200, f"<DescribeInstancesResponse {NS}>{body}</DescribeInstancesResponse>"


def terminated() -> Answer:
    """A TerminateInstances answer."""
    body = "<requestId>req-4</requestId><instancesSet/>"
    return 200, f"<TerminateInstancesResponse {NS}>{body}</TerminateInstancesResponse>"


class _Raw(io.BytesIO):
    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self.read()


class Canned(aws.Aws):
    """The adapter with its wire replaced by ``script``; ``sent`` is what went out."""

    opened: ClassVar[list[aws.Aws]] = []
    made: ClassVar[dict[str, Any]] = {}

    def __init__(self, script: Script, **over: Any) -> None:
        values: dict[str, Any] = {
            "regions": {"us-east-1": Region()},
            "endpoint_url": "http://127.0.0.1:9",
            "emulator_credentials": True,
        }
        super().__init__(aws.Settings(**values | over), LoopClock())
        self.script = script
        self.sent: list[Request] = []
        self.sessions = 0
        self.opened.append(self)

    def _connect(self) -> dict[str, Any]:
        self.sessions += 1
        if not self._settings.emulator_credentials:
            clients = super()._connect()
        else:  # making a client takes 0.3 s: the tests share them, one after the other
            if not self._settings.regions.keys() <= self.made.keys():
                self.made.update(super()._connect())
            clients = {region: self.made[region] for region in self._settings.regions}
        for client in clients.values():
            events = client.meta.events
            events.unregister("before-send.ec2", unique_id="canned")
            events.register("before-send.ec2", self._answer, unique_id="canned")
        return clients

    def _answer(self, request: Any, **_: Any) -> Any:
        from botocore.awsrequest import AWSResponse
        from botocore.compat import HTTPHeaders

        body = request.body if isinstance(request.body, str) else request.body.decode()
        sent = {k: v[0] for k, v in parse_qs(body, True).items()}
        self.sent.append(sent)
        status, text = self.script(sent)
        return AWSResponse(request.url, status, HTTPHeaders(), _Raw(text.encode()))


def run(work: Any) -> Any:
    """On a real loop: boto3 blocks in real threads."""
    return asyncio.run(work)


async def caught(work: Any) -> ProviderError:
    """The error a call ends in."""
    with pytest.raises(ProviderError) as e:
        await work
    return e.value


async def everything(p: aws.Aws, cell: str = "prod") -> list[Any]:
    """The whole listing."""
    return [i async for i in p.list(Owner(cell))]


def refs(*ids: int, region: str = "us-east-1") -> list[InstanceRef]:
    """Instances to delete."""
    return [InstanceRef("aws", region, "", f"i-{i:017x}") for i in ids]

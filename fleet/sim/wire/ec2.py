"""EC2 over a simulated cloud: the query protocol, so that the real boto3 works against it.

Invariant: this skin decides nothing about instances; it checks a request's form, lets the cloud
admit it, asks the cloud, and says the result in EC2's words (clouds.md 2.1, 4 and 5). Any answer
that was lost is lost by cutting the connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from fleet.clock import Chance
from fleet.sim.vendor import Denied, Trouble
from fleet.sim.wire import ec2calls, ec2catalog
from fleet.sim.wire.asgi import (
    Answer,
    Dropped,
    Receive,
    Scope,
    Send,
    headers_of,
    read_body,
    send_answer,
)
from fleet.sim.wire.ec2calls import Call, Refusal
from fleet.sim.wire.shapes import Shapes, Unknown, error_xml
from fleet.sim.world import World

_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>\w{3,128})/\d{8}/(?P<region>[a-z0-9-]+)/ec2/"
    r"aws4_request, ?SignedHeaders=[a-z0-9;-]+, ?Signature=[0-9a-f]{64}$"
)

CALLS: Final[Mapping[str, Callable[[Call], Mapping[str, Any]]]] = {
    "RunInstances": ec2calls.run_instances,
    "TerminateInstances": ec2calls.terminate_instances,
    "DescribeInstances": ec2calls.describe_instances,
    "DescribeInstanceStatus": ec2catalog.describe_instance_status,
    "DescribeInstanceTypes": ec2catalog.describe_instance_types,
    "DescribeImages": ec2catalog.describe_images,
    "DescribeRegions": ec2catalog.describe_regions,
    "DescribeAvailabilityZones": ec2catalog.describe_availability_zones,
}

_STATUS: Final[Mapping[Trouble, int]] = {
    Trouble.CAPACITY: 500,
    Trouble.THROTTLED: 503,
    Trouble.UNAVAILABLE: 503,
    Trouble.AUTH: 400,
}


class Ec2App:
    """An ASGI app that answers as EC2 in every region of one simulated cloud."""

    def __init__(self, world: World, chance: Chance, name: str = "aws") -> None:
        """Loads botocore's EC2 model; raises KeyError when the world has no cloud ``name``."""
        self._world, self._cloud, self._chance = world, world.clouds[name], chance
        self._shapes = Shapes("ec2")
        #: Requests by action, and errors by code: for tests and the demo.
        self.requests: dict[str, int] = {}
        self.errors: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises Dropped to cut the connection."""
        body = await read_body(receive)
        self._world.advance()
        headers = headers_of(scope)
        request_id = self._chance.uuid()
        try:
            region = self._authenticate(headers)
            if self._cloud.cut(region):
                raise Dropped
            half_s = self._cloud.latency_s() / 2
            await asyncio.sleep(half_s)
            self._world.advance()
            answer = self._answer(region, body, request_id)
            # A client that dies during the way back has launched and does not know it.
            await asyncio.sleep(half_s)
        except Refusal as refusal:
            answer = self._error(refusal.status, refusal.code, refusal.message, request_id)
        except Denied as denied:
            status = _STATUS.get(denied.trouble, 400)
            answer = self._error(status, denied.code, denied.message, request_id)
        await send_answer(send, answer)

    def _authenticate(self, headers: Mapping[str, str]) -> str:
        """The region of the credential scope; the signature's form is checked, not its value."""
        text = headers.get("authorization", "")
        if not text:
            raise Refusal("AuthFailure", "AWS was not able to find credentials", 401)
        found = _AUTHORIZATION.match(text)
        if found is None or "x-amz-date" not in headers:
            message = "AWS was not able to validate the provided access credentials"
            raise Refusal("AuthFailure", message, 401)
        region = found["region"]
        if region not in self._cloud.spec.regions:
            raise Refusal("AuthFailure", "Credential should be scoped to a valid region", 401)
        return region

    def _answer(self, region: str, body: bytes, request_id: str) -> Answer:
        params = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        action = params.get("Action", "")
        self.requests[action] = self.requests.get(action, 0) + 1
        work = CALLS.get(action)
        if work is None or not self._shapes.knows(action):
            raise Refusal("InvalidAction", f"The action {action} is not valid for this endpoint.")
        try:
            inputs = self._shapes.decode(action, params)
        except Unknown as unknown:
            raise Refusal(
                "UnknownParameter", f"The parameter {unknown} is not recognized"
            ) from None
        except ValueError as error:
            raise Refusal("InvalidParameterValue", str(error)) from None
        result = work(Call(self._world, self._cloud, self._shapes, region, inputs))
        xml = self._shapes.encode(action, result, request_id)
        return Answer(200, xml, {"content-type": "text/xml;charset=UTF-8"})

    def _error(self, status: int, code: str, message: str, request_id: str) -> Answer:
        self.errors[code] = self.errors.get(code, 0) + 1
        xml = error_xml(code, message, request_id)
        return Answer(status, xml, {"content-type": "text/xml;charset=UTF-8"})

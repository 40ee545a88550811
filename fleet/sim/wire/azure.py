"""Azure Resource Manager over a simulated cloud, so that the real azure-mgmt-compute works on it.

Invariant: this skin decides nothing about machines; it checks a request's form, lets the cloud
admit it, asks the cloud, and says the result in Azure's words (clouds.md 2.3, 4 and 5). Any answer
that was lost is lost by cutting the connection. Every path begins with ``/subscriptions``.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from fleet.clock import Chance
from fleet.model import Market
from fleet.sim.vendor import Denied, Trouble
from fleet.sim.wire.arm import calls, catalog, shapes
from fleet.sim.wire.arm.calls import Call, Refusal, region_of
from fleet.sim.wire.arm.estate import Estate
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
from fleet.sim.world import World

_SUBSCRIPTION: Final = "/subscriptions/{subscription}"
_COMPUTE: Final = "/providers/microsoft.compute"
_GROUP: Final = _SUBSCRIPTION + "/resourcegroups/{group}"
_VM: Final = _GROUP + _COMPUTE + "/virtualmachines/{name}"
_LOCATION: Final = _SUBSCRIPTION + _COMPUTE + "/locations/{location}"
_IMAGE: Final = _GROUP + _COMPUTE + "/galleries/{gallery}/images/{image}/versions/{version}"

Work = Callable[[Call], Answer]
ROUTES: Final[tuple[tuple[str, str, Work], ...]] = (
    ("PUT", _VM, calls.put_vm),
    ("GET", _VM, calls.get_vm),
    ("DELETE", _VM, calls.delete_vm),
    ("GET", _VM + "/instanceview", calls.get_instance_view),
    ("GET", _GROUP + _COMPUTE + "/virtualmachines", calls.list_group),
    ("GET", _SUBSCRIPTION + _COMPUTE + "/virtualmachines", calls.list_all),
    ("GET", _LOCATION + "/operations/{operation}", calls.get_operation),
    ("GET", _LOCATION + "/usages", catalog.list_usages),
    ("GET", _SUBSCRIPTION + _COMPUTE + "/skus", catalog.list_skus),
    ("GET", _IMAGE, catalog.get_image_version),
    ("GET", _GROUP + "/resources", catalog.list_resources),
    ("GET", _GROUP, catalog.get_group),
    ("GET", _SUBSCRIPTION + "/locations", catalog.list_locations),
    ("GET", _SUBSCRIPTION, catalog.get_subscription),
)
_PATTERNS: Final = tuple(
    (method, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path) + "/?$", re.IGNORECASE), work)
    for method, path, work in ROUTES
)
_BEARER: Final = re.compile(r"Bearer [A-Za-z0-9._~+/-]{8,}=*$")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", re.IGNORECASE)
_VERSION: Final = re.compile(r"\d{4}-\d\d-\d\d(-preview)?$")
#: Seconds after which a throttled caller may come back.
RETRY_S: Final = "7"


class AzureApp:
    """An ASGI app that answers as Azure Resource Manager for one simulated cloud."""

    def __init__(
        self, world: World, chance: Chance, name: str = "azure", page_size: int = 200
    ) -> None:
        """Loads the SDK's types (1 s); raises KeyError when the world has no cloud ``name``."""
        self._world, self._cloud, self._chance = world, world.clouds[name], chance
        self._page_size = page_size
        self.estate = Estate(world)
        shapes.problem({})
        #: Requests by handler's name, and errors by code: for tests and the demo.
        self.requests: dict[str, int] = {}
        self.errors: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises Dropped to cut the connection."""
        raw = await read_body(receive)
        self._world.advance()
        headers = headers_of(scope)
        region = ""
        try:
            work, call = self._parse(scope, headers, raw)
            region = region_of(call.body) or call.names.get("location", "")
            if self._cloud.cut(region):
                raise Dropped
            half_s = self._cloud.latency_s() / 2
            await asyncio.sleep(half_s)
            self._world.advance()
            self.requests[work.__name__] = self.requests.get(work.__name__, 0) + 1
            answer = work(call)
            # A client that dies during the way back has launched and does not know it.
            await asyncio.sleep(half_s)
        except Refusal as refusal:
            answer = self._error(refusal.status, refusal.code, refusal.message, refusal.target)
        except Denied as denied:
            answer = self._denied(denied, scope["method"], raw)
        head = {
            "content-type": "application/json; charset=utf-8",
            "x-ms-request-id": self._chance.uuid(),
            "x-ms-correlation-request-id": headers.get("x-ms-client-request-id", ""),
            **_left(scope["method"], answer.status),
            **answer.headers,
        }
        await send_answer(send, Answer(answer.status, answer.body, head))

    def _parse(self, scope: Scope, headers: Mapping[str, str], raw: bytes) -> tuple[Work, Call]:
        """The handler of a request and its call; raises Refusal for what the form decides."""
        _authenticate(headers)
        work, names = _route(scope["method"], scope["path"])
        query = dict(parse_qsl(scope.get("query_string", b"").decode(), keep_blank_values=True))
        if not _UUID.match(names["subscription"]):
            message = f"The provided subscription identifier '{names['subscription']}' is malformed"
            raise Refusal("InvalidSubscriptionId", message)
        if not _VERSION.match(query.get("api-version", "")):
            message = (
                "The api-version query parameter (?api-version=) is required for all requests."
            )
            raise Refusal("MissingApiVersionParameter", message)
        try:
            body = json.loads(raw) if raw else None
        except ValueError as error:
            message = f"The request content was invalid: {error}"
            raise Refusal("InvalidRequestContent", message) from None
        host = headers.get("host", "127.0.0.1")
        return work, Call(
            self._world,
            self._cloud,
            self.estate,
            self._chance,
            f"{scope.get('scheme', 'http')}://{host}",
            scope["path"],
            names,
            query,
            headers,
            body,
            self._page_size,
        )

    def _denied(self, denied: Denied, method: str, raw: bytes) -> Answer:
        """A refusal of the simulated cloud in Azure's own words (clouds.md 4)."""
        trouble, message = denied.trouble, denied.message
        if trouble is Trouble.THROTTLED:
            return self._throttled(method)
        if trouble is Trouble.AUTH:
            answer = self._error(401, "ExpiredAuthenticationToken", "The access token has expired.")
            challenge = 'Bearer error="invalid_token", error_description="The token has expired"'
            return Answer(401, answer.body, {"www-authenticate": challenge})
        if trouble is Trouble.CAPACITY:
            code, message = _capacity(json.loads(raw))
            return self._error(409, code, message)
        if trouble is Trouble.QUOTA:
            message = (
                "Operation could not be completed as it results in exceeding approved Cores quota. "
                "Additional details - Deployment Model: Resource Manager, Current Limit: 0."
            )
            return self._error(409, "OperationNotAllowed", message)
        status, code, target = {
            Trouble.IMAGE: (404, "GalleryImageNotFound", "imageReference"),
            Trouble.INVALID: (400, "InvalidParameter", ""),
            Trouble.TOO_LONG: (400, "InvalidParameter", "customData"),
            Trouble.UNAVAILABLE: (503, "ServiceUnavailable", ""),
        }.get(trouble, (409, denied.code, ""))
        return self._error(status, code, message, target)

    def _throttled(self, method: str) -> Answer:
        """Compute's refusal of a write, Resource Manager's of a read: both are 429."""
        if method == "GET":
            message = f"Number of requests exceeded. Please try again after '{RETRY_S}' seconds."
            answer = self._error(429, "SubscriptionRequestsThrottled", message)
        else:
            detail = {
                "code": "TooManyRequests",
                "target": "PutVMSubscriptionMaximum",
                "message": json.dumps({"operationGroup": "PutVM", "retryAfter": RETRY_S}),
            }
            message = "The server rejected the request because too many requests have been received"
            answer = self._error(429, "OperationNotAllowed", message, details=[detail])
        left = "Microsoft.Compute/PutVMSubscriptionMaximum;0"
        head = {"retry-after": RETRY_S, "x-ms-ratelimit-remaining-resource": left}
        return Answer(429, answer.body, head)

    def _error(
        self, status: int, code: str, message: str, target: str = "", details: Any = None
    ) -> Answer:
        self.errors[code] = self.errors.get(code, 0) + 1
        error: dict[str, Any] = {"code": code, "message": message}
        if target:
            error["target"] = target
        if details:
            error["details"] = details
        return Answer(status, json.dumps({"error": error}).encode())


def _authenticate(headers: Mapping[str, str]) -> None:
    """The token's form is checked, not its value."""
    text = headers.get("authorization", "")
    if not text:
        message = "Authentication failed. The 'Authorization' header is missing."
        raise Refusal("AuthenticationFailed", message, 401)
    if not _BEARER.match(text):
        raise Refusal("InvalidAuthenticationToken", "The access token is invalid.", 401)


def _route(method: str, path: str) -> tuple[Work, dict[str, str]]:
    known = False
    for verb, pattern, work in _PATTERNS:
        found = pattern.match(path)
        if found and verb == method:
            return work, found.groupdict()
        known = known or bool(found)
    if known:
        raise Refusal("MethodNotAllowed", f"{method} is not supported here.", 405)
    raise Refusal("InvalidResourceType", f"No resource type is found at '{path}'.", 404)


def _capacity(body: Any) -> tuple[str, str]:
    """Which of Azure's capacity codes a refused PUT gets, by market and zone."""
    size = body["properties"]["hardwareProfile"]["vmSize"]
    if body["properties"].get("priority") == Market.SPOT.capitalize():
        return "SkuNotAvailable", f"The requested VM size '{size}' is currently not available."
    if body.get("zones"):
        text = "We do not have sufficient capacity for the requested VM size in this zone."
        return "ZonalAllocationFailed", f"Allocation failed. {text}"
    return "AllocationFailed", "Allocation failed. We do not have sufficient capacity."


def _left(method: str, status: int) -> dict[str, str]:
    """What Resource Manager says of its own buckets."""
    kind = {"GET": "reads", "DELETE": "deletes"}.get(method, "writes")
    count = "0" if status == 429 else "199"
    return {f"x-ms-ratelimit-remaining-subscription-{kind}": count}

"""Compute Engine over a simulated cloud: REST and JSON, so that the real SDK works against it.

Invariant: this skin decides nothing about instances; it checks a request's form, lets the cloud
admit it, asks the cloud, and says the result in Google's words (clouds.md 2.2, 4 and 5). Requests
are read and answers written with the SDK's own types. Any answer that was lost is lost by cutting
the connection. All paths begin with ``/compute/v1/``; any project is taken.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

from fleet.clock import Chance
from fleet.sim.vendor import Denied, Trouble
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
from fleet.sim.wire.gce import catalog, instances, launches
from fleet.sim.wire.gce.engine import Call, Engine, Refusal
from fleet.sim.world import World

PREFIX: Final = "/compute/v1/"
#: How long ``zoneOperations.wait`` waits at most, and between two looks.
WAIT_S, LOOK_S = 120.0, 0.5

_BEARER: Final = re.compile(r"Bearer [A-Za-z0-9._~+/-]+=*")
_P: Final = r"projects/(?P<project>[a-z0-9][a-z0-9:.-]{0,62})"
_Z: Final = rf"{_P}/zones/(?P<zone>[a-z0-9-]+)"
_N: Final = r"(?P<name>[\w.-]+)"
Work = Callable[[Engine, Call], str]

#: Method and path after the prefix; its name in ``GcpApp.requests``; what it does.
ROUTES: Final[tuple[tuple[str, re.Pattern[str], str, Work], ...]] = tuple(
    (method, re.compile(path), name, work)
    for method, path, name, work in (
        ("POST", rf"{_Z}/instances", "instances.insert", launches.insert),
        ("POST", rf"{_Z}/instances/bulkInsert", "instances.bulkInsert", launches.bulk_insert),
        ("GET", rf"{_Z}/instances", "instances.list", instances.list_zone),
        ("GET", rf"{_Z}/instances/{_N}", "instances.get", instances.get),
        ("DELETE", rf"{_Z}/instances/{_N}", "instances.delete", instances.delete),
        ("GET", rf"{_P}/aggregated/instances", "instances.aggregatedList", instances.aggregated),
        ("GET", rf"{_Z}/operations", "zoneOperations.list", catalog.list_operations),
        ("GET", rf"{_Z}/operations/{_N}", "zoneOperations.get", catalog.get_operation),
        ("POST", rf"{_Z}/operations/{_N}/wait", "zoneOperations.wait", catalog.get_operation),
        ("GET", rf"{_P}/zones", "zones.list", catalog.zones),
        ("GET", rf"{_P}/regions", "regions.list", catalog.regions),
        ("GET", rf"{_Z}/machineTypes/{_N}", "machineTypes.get", catalog.machine_type),
        ("GET", rf"{_P}/global/images/{_N}", "images.get", catalog.image),
        (
            "GET",
            rf"{_P}/global/images/family/{_N}",
            "images.getFromFamily",
            catalog.image_of_family,
        ),
    )
)

#: The world's troubles that any call may meet: status and reason.
_ANSWERS: Final[Mapping[Trouble, tuple[int, str]]] = {
    Trouble.THROTTLED: (403, "rateLimitExceeded"),
    Trouble.UNAVAILABLE: (503, "backendError"),
    Trouble.AUTH: (401, "authError"),
    Trouble.MISMATCH: (409, "alreadyExists"),
}


class GcpApp:
    """An ASGI app that answers as Compute Engine in every zone of one simulated cloud."""

    def __init__(
        self, world: World, chance: Chance, name: str = "gcp", *, refuse_s: float = 2.0
    ) -> None:
        """Imports the SDK (seconds); raises KeyError when the world has no cloud ``name``.

        ``refuse_s`` is how long an operation runs before it fails for want of capacity.
        """
        self._world, self._cloud = world, world.clouds[name]
        self._engine = Engine(world, chance, name, refuse_s)
        #: Requests by method of the API, and errors by reason: for tests and the demo.
        self.requests: dict[str, int] = {}
        self.errors: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises Dropped to cut the connection."""
        body = await read_body(receive)
        self._world.advance()
        try:
            if self._cloud.cut():
                raise Dropped
            half_s = self._cloud.latency_s() / 2
            await asyncio.sleep(half_s)
            self._world.advance()
            if not _BEARER.fullmatch(headers_of(scope).get("authorization", "")):
                raise Refusal(401, "authError", "Request is missing a valid access token.")
            text = await self._answer(scope, body)
            # A client that dies during the way back has launched and does not know it.
            await asyncio.sleep(half_s)
            answer = Answer(200, text.encode(), {"content-type": "application/json"})
        except Refusal as refusal:
            answer = self._error(refusal)
        except Denied as denied:
            status, reason = _ANSWERS.get(denied.trouble, (400, "invalid"))
            answer = self._error(Refusal(status, reason, denied.message))
        await send_answer(send, answer)

    async def _answer(self, scope: Scope, body: bytes) -> str:
        path = unquote(scope["path"]).removeprefix(PREFIX)
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        for method, pattern, name, work in ROUTES:
            found = pattern.fullmatch(path) if method == scope["method"] else None
            if found is None:
                continue
            self.requests[name] = self.requests.get(name, 0) + 1
            parts = found.groupdict()
            call = Call(parts["project"], parts.get("zone", ""), parts.get("name", ""), query, body)
            if name == "zoneOperations.wait":
                await self._wait(call)
            return work(self._engine, call)
        raise Refusal(404, "notFound", f"Not Found: {scope['method']} {path}")

    async def _wait(self, call: Call) -> None:
        for _ in range(int(WAIT_S / LOOK_S)):
            self._world.advance()
            if catalog.operation(self._engine, call).state(self._world.now())[0]:
                return
            await asyncio.sleep(LOOK_S)

    def _error(self, refusal: Refusal) -> Answer:
        self.errors[refusal.reason] = self.errors.get(refusal.reason, 0) + 1
        return Answer(
            refusal.status, refusal.body(), {"content-type": "application/json; charset=UTF-8"}
        )

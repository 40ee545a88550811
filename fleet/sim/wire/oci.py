"""Oracle Cloud over a simulated cloud: REST and JSON, so that the real SDK works against it.

Invariant: this skin decides nothing about instances; it checks a request's form and signature
header, lets the cloud admit it, asks the cloud, and says the result in Oracle's words (clouds.md
2.4, 4 and 5). Requests are read and answers written with the SDK's own models. Any answer that was
lost is lost by cutting the connection.

Oracle's paths name no region, its hosts do. On one port a region is the beginning of the path:
``/oci/REGION/20160918/...``, an endpoint ``http://127.0.0.1:4580/oci/REGION`` for the SDK. Plain
``/20160918/...`` is all regions together.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
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
from fleet.sim.wire.oracle import catalog, instances, work
from fleet.sim.wire.oracle.engine import PAGE_MAX, Call, Engine, Refusal, unseen
from fleet.sim.world import World

#: Where a Dispatcher sends requests from: all regions, and one region.
PREFIX: Final = "/20160918/"
REGION_PREFIX: Final = "/oci/"

_PATH: Final = re.compile(r"(?:/oci/(?P<region>[a-z0-9-]+))?/20160918/(?P<rest>.*)")
_N: Final = r"(?P<ident>[^/]+)"
Work = Callable[[Engine, Call], Answer]

#: Method and path after the version; its name in ``OciApp.requests``; what it does.
ROUTES: Final[tuple[tuple[str, re.Pattern[str], str, Work], ...]] = tuple(
    (method, re.compile(path), name, work_)
    for method, path, name, work_ in (
        ("POST", "instances/?", "LaunchInstance", instances.launch),
        ("GET", "instances/?", "ListInstances", instances.list_),
        ("GET", f"instances/{_N}", "GetInstance", instances.get),
        ("DELETE", f"instances/{_N}", "TerminateInstance", instances.terminate),
        ("GET", "workRequests/?", "ListWorkRequests", work.list_),
        ("GET", f"workRequests/{_N}", "GetWorkRequest", work.get),
        ("GET", f"workRequests/{_N}/errors", "ListWorkRequestErrors", work.errors),
        ("GET", "images/?", "ListImages", catalog.images),
        ("GET", f"images/{_N}", "GetImage", catalog.image),
        ("GET", "availabilityDomains/?", "ListAvailabilityDomains", catalog.domains),
        ("GET", "shapes/?", "ListShapes", catalog.shapes),
    )
)

#: The world's troubles that any call may meet.
_ANSWERS: Final[Mapping[Trouble, tuple[int, str, str]]] = {
    Trouble.THROTTLED: (429, "TooManyRequests", "Too many requests for the user"),
    Trouble.UNAVAILABLE: (503, "ServiceUnavailable", "The service is currently unavailable."),
    Trouble.AUTH: (
        401,
        "NotAuthenticated",
        "The required information to complete authentication was not provided or was incorrect.",
    ),
    Trouble.MISMATCH: (409, "InvalidatedRetryToken", "The retry token was used before."),
}

_SIGNATURE: Final = re.compile(r'(\w+)="([^"]*)"')
_KEY_ID: Final = re.compile(
    r"ocid1\.tenancy\.[^/]+/ocid1\.user\.[^/]+/([0-9a-f]{2}:){15}[0-9a-f]{2}|ST\$[\w.=-]+"
)
_SIGNED: Final = frozenset({"date", "(request-target)", "host"})
_SIGNED_BODY: Final = _SIGNED | {"content-length", "content-type", "x-content-sha256"}


class OciApp:
    """An ASGI app that answers as Oracle Cloud in every region of one simulated cloud."""

    def __init__(
        self, world: World, chance: Chance, name: str = "oci", *, page_max: int = PAGE_MAX
    ) -> None:
        """Imports the SDK (1 s); raises KeyError when the world has no cloud ``name``.

        ``page_max`` is how many items a page holds, whatever limit is asked for.
        """
        self._world, self._cloud, self._chance = world, world.clouds[name], chance
        self._engine = Engine(world, chance, name, page_max)
        #: Requests by name of the operation, and errors by code: for tests and the demo.
        self.requests: dict[str, int] = {}
        self.errors: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises Dropped to cut the connection."""
        body = await read_body(receive)
        self._world.advance()
        headers = headers_of(scope)
        try:
            name, work_, call = self._parse(scope, headers, body)
            if self._cloud.cut(call.region):
                raise Dropped
            half_s = self._cloud.latency_s() / 2
            await asyncio.sleep(half_s)
            self._world.advance()
            self.requests[name] = self.requests.get(name, 0) + 1
            answer = work_(self._engine, call)
            # A client that dies during the way back has launched and does not know it.
            await asyncio.sleep(half_s)
        except Refusal as refusal:
            answer = self._error(refusal)
        except Denied as denied:
            usual = (400, "InvalidParameter", denied.message)
            answer = self._error(Refusal(*_ANSWERS.get(denied.trouble, usual)))
        asked = headers.get("opc-request-id", "")[:32]
        served = self._chance.uuid().replace("-", "").upper()
        head = {"opc-request-id": f"{asked}/{served}" if asked else served, **answer.headers}
        await send_answer(send, Answer(answer.status, answer.body, head))

    def _parse(
        self, scope: Scope, headers: Mapping[str, str], body: bytes
    ) -> tuple[str, Work, Call]:
        """The route of a request; raises Refusal for what its form decides."""
        found = _PATH.fullmatch(unquote(scope["path"]))
        region = (found.group("region") or "") if found else ""
        if found is None or (region and region not in self._cloud.spec.regions):
            raise unseen()
        _authenticate(headers, body if scope["method"] in ("POST", "PUT") else None)
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        known = False
        for method, pattern, name, work_ in ROUTES:
            hit = pattern.fullmatch(found.group("rest"))
            if hit is not None and method == scope["method"]:
                ident = hit.groupdict().get("ident") or ""
                return name, work_, Call(region, ident, query, headers, body)
            known = known or hit is not None
        if known:
            raise Refusal(405, "MethodNotAllowed", f"{scope['method']} is not supported here.")
        raise Refusal(404, "NotFound", "There is no operation at this path.")

    def _error(self, refusal: Refusal) -> Answer:
        self.errors[refusal.code] = self.errors.get(refusal.code, 0) + 1
        return Answer(refusal.status, refusal.body(), {"content-type": "application/json"})


def _authenticate(headers: Mapping[str, str], body: bytes | None) -> None:
    """The signature's form is checked and what it signs, not its value: no key is known here."""
    text = headers.get("authorization", "")
    fields = dict(_SIGNATURE.findall(text))
    signed = frozenset(fields.get("headers", "").lower().split())
    wanted = _SIGNED if body is None else _SIGNED_BODY
    right = (
        text.startswith("Signature ")
        and fields.get("algorithm") == "rsa-sha256"
        and _KEY_ID.fullmatch(fields.get("keyId", "")) is not None
        and _is_base64(fields.get("signature", ""))
        and wanted <= {("date" if h == "x-date" else h) for h in signed}
        and _is_date(headers.get("x-date") or headers.get("date", ""))
    )
    if right and body is not None:
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        right = headers.get("x-content-sha256") == digest
    if not right:
        raise Refusal(*_ANSWERS[Trouble.AUTH])


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except ValueError:
        return False


def _is_date(text: str) -> bool:
    try:
        return parsedate_to_datetime(text).year > 0
    except ValueError:
        return False

"""The applications behind the listeners: agents over TCP, people over the Unix socket, metrics.

Invariant: /healthz and /readyz are the only routes on TCP that answer without a token; a body is
refused by its announced length, or at the byte that is one too many, never after reading it all;
a request that names another host is refused (DNS rebinding, CVE-2026-27482).
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any, Final, Protocol

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Answer = tuple[int, Mapping[str, str], bytes]

JSON_TYPE: Final = {"content-type": "application/json"}
#: The operator API's largest body (a set of policy files).
OPERATOR_BYTES: Final = 16 * 1024 * 1024
_CLOSE: Final = {"connection": "close"}


class Door(Protocol):
    """The agent routes (fleet.api.agent.AgentDoor)."""

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str = ""
    ) -> Answer:
        """Answer one request."""
        ...


class Health(Protocol):
    """Whether this process works."""

    async def ready(self) -> str:
        """Why requests should go elsewhere, "" when all is well."""
        ...


class TooLong(Exception):
    """The body has more bytes than allowed."""


class ClientGone(Exception):
    """The client closed before its request was complete."""


def headers_of(scope: Scope) -> dict[str, str]:
    """The request's headers, names in lower case (uvicorn lowers them)."""
    return {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}


async def read_body(headers: Mapping[str, str], receive: Receive, most: int) -> bytes:
    """The body of at most ``most`` bytes; raises TooLong before reading on, or ClientGone."""
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > most:
        raise TooLong
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise TooLong
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def reply(send: Send, answer: Answer, extra: Mapping[str, str] | None = None) -> None:
    """Send one whole answer."""
    status, headers, body = answer
    all_headers = {**headers, **(extra or {}), "content-length": str(len(body))}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in all_headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})


def problem(status: int, code: str, detail: str) -> Answer:
    """A problem document (RFC 9457)."""
    body = {"type": "about:blank", "status": status, "code": code, "detail": detail}
    return status, {"content-type": "application/problem+json"}, json.dumps(body).encode()


def host_allowed(host: str, names: Collection[str]) -> bool:
    """True for a Host header that names this listener.

    Addresses are always allowed: rebinding needs a name that the attacker controls.
    """
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    if name in names or name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _health(path: str, health: Health) -> Answer | None:
    if path == "/healthz":
        return 200, JSON_TYPE, b'{"ok":true}'
    if path == "/readyz":
        why = await health.ready()
        body = json.dumps({"ready": not why, "why": why}).encode()
        return (503 if why else 200), JSON_TYPE, body
    return None


class AgentApp:
    """The agents' listener: a thin raw route over the door, and health."""

    def __init__(
        self, door: Door, health: Health, *, names: Collection[str], body_bytes: Callable[[], int],
        refused: Callable[[str], None],
    ) -> None:  # fmt: skip
        """``names`` are the host names by which agents may call this listener."""
        self._door, self._health = door, health
        self._names = frozenset(n.lower() for n in names)
        self._body_bytes, self._refused = body_bytes, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = headers_of(scope)
        hosts = [v for k, v in scope["headers"] if k.lower() == b"host"]
        if len(hosts) != 1 or not host_allowed(headers["host"], self._names):
            self._refused("wrong_host")
            await reply(send, problem(421, "wrong_host", "this listener has another name"), _CLOSE)
            return
        path, method = scope["path"], scope["method"]
        if not path.startswith("/v1/agent/"):
            found = await _health(path, self._health) if method in ("GET", "HEAD") else None
            await reply(send, found or problem(404, "not_found", "no such route"))
            return
        try:
            body = await read_body(headers, receive, self._body_bytes())
        except TooLong:
            self._refused("too_long")
            await reply(send, problem(413, "too_long", "the body is too long"), _CLOSE)
            return
        except ClientGone:
            return
        client = scope.get("client")
        peer = client[0] if client else ""
        await reply(send, await self._door.handle(method, path, headers, body, peer))


class OperatorApp:
    """The operators' socket: health, metrics, and the operator API below a body cap."""

    def __init__(self, api: App, health: Health, metrics: Callable[[], Awaitable[Answer]]) -> None:
        self._api, self._health, self._metrics = api, health, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        if scope["method"] in ("GET", "HEAD"):
            answer = await _health(path, self._health)
            if path == "/metrics":
                answer = await self._metrics()
            if answer is not None:
                await reply(send, answer)
                return
        length = headers_of(scope).get("content-length", "0")
        if not length.isdigit() or int(length) > OPERATOR_BYTES:
            await reply(send, problem(413, "too_long", "the body is too long"), _CLOSE)
            return
        await self._api(scope, _capped(receive, OPERATOR_BYTES), send)


class MetricsApp:
    """The optional loopback listener: health and metrics only."""

    def __init__(self, health: Health, metrics: Callable[[], Awaitable[Answer]]) -> None:
        self._health, self._metrics = health, metrics

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one request."""
        host = headers_of(scope).get("host", "")
        if not host_allowed(host, ()):
            await reply(send, problem(421, "wrong_host", "use a loopback address"), _CLOSE)
        elif scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD"):
            await reply(send, await self._metrics())
        else:
            found = await _health(scope["path"], self._health)
            await reply(send, found or problem(404, "not_found", "no such route"))


def _capped(receive: Receive, most: int) -> Receive:
    """``receive`` that says "disconnected" at the byte that is one too many."""
    size = 0

    async def bounded() -> MutableMapping[str, Any]:
        nonlocal size
        message = await receive()
        if message["type"] == "http.request":
            size += len(message.get("body", b""))
            if size > most:
                return {"type": "http.disconnect"}
        return message

    return bounded

"""The small part of ASGI that the wire skins use.

Invariant: an app reads its whole bounded body, sends one answer, or raises ``Dropped`` and sends
nothing: the server then cuts the connection, as a network does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 4 * 1024 * 1024


class Dropped(Exception):
    """No answer is to be sent; the connection is cut."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


async def read_body(receive: Receive) -> bytes:
    """The request's body; raises Dropped when it is too long or the client went away."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Dropped
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise Dropped
        if not message.get("more_body"):
            return b"".join(parts)


async def send_answer(send: Send, answer: Answer) -> None:
    """Send one whole answer."""
    headers = {"content-length": str(len(answer.body)), **answer.headers}
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": answer.body})


def headers_of(scope: Scope) -> dict[str, str]:
    """The request's headers with lower-case names."""
    return {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}

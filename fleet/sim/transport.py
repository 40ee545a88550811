"""How a simulated agent reaches fleetd: straight into the door, or over HTTP.

Invariant: a transport raises ConnectionError when no answer came, and nothing else; an answer of
any status is an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import httpx

Answer = tuple[int, Mapping[str, str], bytes]


class Transport(Protocol):
    """The way from an agent to fleetd."""

    async def call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str = ""
    ) -> Answer:
        """(status, headers with lower-case names, body); raises ConnectionError."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


class Door(Protocol):
    """The agent routes of fleetd without a socket."""

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Answer one request of ``peer`` (an address)."""
        ...


class DirectTransport:
    """Calls the door in this process; what the virtual loop needs."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str = ""
    ) -> Answer:
        """Hand the request to the door."""
        return await self._door.handle(method, path, headers, body, peer)

    async def aclose(self) -> None:
        """Nothing is held."""


class HttpTransport:
    """Real HTTP to a real fleetd. ``timeout_s`` is real time, whatever the loop's speed is."""

    def __init__(self, url: str, *, timeout_s: float = 10.0, connections: int = 64) -> None:
        """``url`` is fleetd's address, such as ``http://127.0.0.1:8470``."""
        import httpx

        self._failed = (httpx.HTTPError, OSError)
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self._client: httpx.AsyncClient = httpx.AsyncClient(
            base_url=url, timeout=timeout_s, limits=limits, trust_env=False
        )

    async def call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str = ""
    ) -> Answer:
        """Send the request; ``peer`` is whatever address the connection has."""
        try:
            answer = await self._client.request(method, path, headers=dict(headers), content=body)
        except self._failed as error:
            raise ConnectionError(str(error)) from error
        return answer.status_code, answer.headers, answer.content

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

"""The wire skins on a loopback port, inside the running loop.

Invariant: no thread, no signal handler and no periodic tick: only uvicorn's protocol on a plain
asyncio server, so it runs at any speed of the loop's clock. A skin that raises ``Dropped`` has its
connection cut without one byte of answer.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from fleet.sim.wire.asgi import Answer, App, Dropped, Receive, Scope, Send, send_answer

#: Connections stay open for a day of loop time: a scaled clock must not close them under a client.
KEEP_ALIVE_S = 86_400
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Dispatcher:
    """Several skins on one port, told apart by the beginning of the path.

    EC2 posts to ``/``; the others have their own roots (``/compute/``, ``/subscriptions/``,
    ``/20160918/``). The longest prefix wins.
    """

    def __init__(self) -> None:
        self._apps: list[tuple[str, App]] = []

    def add(self, prefix: str, app: App) -> None:
        """Route paths that begin with ``prefix`` to ``app``."""
        self._apps.append((prefix, app))
        self._apps.sort(key=lambda route: -len(route[0]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request to its skin, or answer 404."""
        path = scope["path"]
        for prefix, app in self._apps:
            if path.startswith(prefix):
                await app(scope, receive, send)
                return
        await send_answer(send, Answer(404, b"no cloud answers here\n"))


class WireServer:
    """One app on one loopback port, from ``start`` to ``aclose``."""

    def __init__(self, app: App, host: str = "127.0.0.1", port: int = 0) -> None:
        """``port`` 0 takes a free one. Raises ValueError for an address beyond this machine."""
        if host not in _LOOPBACK:
            raise ValueError(f"wire skins serve this machine only, not {host}")
        self._app, self._host, self.port = app, host, port
        self._server: asyncio.Server | None = None
        self._state: Any = None
        self._transports: dict[Any, asyncio.Transport] = {}

    @property
    def url(self) -> str:
        """Where the skins are."""
        return f"http://{self._host}:{self.port}"

    async def start(self) -> None:
        """Listen; raises OSError when the port is taken."""
        from uvicorn.config import Config
        from uvicorn.server import ServerState

        config = Config(
            self._serve_one,
            http="h11",
            ws="none",
            interface="asgi3",
            proxy_headers=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        self._state = ServerState()
        transports, loop = self._transports, asyncio.get_running_loop()
        base: Any = config.http_protocol_class

        class Protocol(base):  # type: ignore[misc]  # uvicorn picks the class at run time
            """uvicorn's HTTP protocol that lets itself be found by its peer."""

            def connection_made(self, transport: asyncio.Transport) -> None:
                super().connection_made(transport)
                transports[self.client] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                transports.pop(self.client, None)
                super().connection_lost(exc)

        self._server = await loop.create_server(
            lambda: Protocol(config, self._state, {}, loop), self._host, self.port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Stop listening and cut what is still connected."""
        if self._server is None:
            return
        self._server.close()
        for transport in list(self._transports.values()):
            transport.abort()
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _serve_one(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Dropped:
            transport = self._transports.get(scope["client"])
            if transport is not None:
                transport.abort()
            while (await receive())["type"] != "http.disconnect":
                pass

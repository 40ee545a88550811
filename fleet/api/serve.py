"""The daemon's listeners: plain asyncio servers in its own loop with uvicorn's protocol.

uvicorn's ``Server`` is left out on purpose: it takes over signals and wakes the process ten times
a second; what is needed of it is a socket, the protocol class and an orderly end.

Invariant: an address that is in use is said so before anything else starts; a Unix socket is
removed only if nobody answers on it; at a stop, new connections are refused first, then streams
are closed, and nothing is waited for longer than ``close_s``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Final

import structlog
from uvicorn.config import Config
from uvicorn.server import ServerState

from fleet.api.asgi import App, Receive, Scope, Send
from fleet.api.protocol import BoundedProtocol, Doorman
from fleet.config import HttpLimits
from fleet.errors import Conflict, InputError

log = structlog.get_logger("fleetd")

BACKLOG: Final = 512
#: Answers that are nearly done may end before their connection is closed.
QUICK_S: Final = 0.2


class Listener:
    """One application on one bound socket."""

    def __init__(
        self, name: str, app: App, sock: socket.socket, limits: HttpLimits, *,
        refused: Callable[[str], None], per_address: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        """``refused`` hears the cause of each connection that was cut short."""
        self.name, self._app, self._sock, self._limits = name, app, sock, limits
        self._doorman = Doorman(limits, per_address, refused)
        self._state = ServerState()
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._stopping = False
        self._path = str(sock.getsockname()) if sock.family == socket.AF_UNIX else ""
        self._stat = Path(self._path).stat() if self._path else None

    @property
    def port(self) -> int:
        """The bound TCP port, 0 for a Unix socket."""
        return 0 if self._stat is not None else int(self._sock.getsockname()[1])

    async def start(self) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        config = Config(
            self._serve, http=BoundedProtocol, ws="none", interface="asgi3", lifespan="off",
            proxy_headers=False, server_header=False, date_header=False, access_log=False,
            log_config=None, timeout_keep_alive=86_400,  # ours is shorter
        )  # fmt: skip
        config.load()

        def make() -> BoundedProtocol:
            return BoundedProtocol(config, self._state, self._doorman, loop)

        if self._stat is not None:
            self._server = await loop.create_unix_server(make, sock=self._sock, backlog=BACKLOG)
        else:
            self._server = await loop.create_server(
                make, sock=self._sock, ssl=self._tls, backlog=BACKLOG,
                ssl_handshake_timeout=self._limits.header_s if self._tls else None,
            )  # fmt: skip

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._stopping:  # at a stop it is us who cancelled: nothing to report
                raise

    def tick(self, now: float) -> None:
        """Set the Date header; called once a second with the wall time."""
        self._state.default_headers = [(b"date", formatdate(now, usegmt=True).encode())]

    async def hush(self) -> None:
        """Accept nothing more; close what is idle, every stream and every long poll.

        Quick answers may end, and what changes something has until ``aclose``.
        """
        if self._server is None:
            return
        self._stopping = True
        self._server.close()
        for connection in self._connections():
            connection.shutdown()
        await self._wait(QUICK_S)
        for connection in self._connections():
            if connection.streaming or connection.waiting:
                connection.hang_up()

    async def aclose(self) -> None:
        """``hush``, then wait ``close_s`` for requests and cut what is left."""
        await self.hush()
        await self._wait(self._limits.close_s - QUICK_S)
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        for connection in self._connections():
            connection.transport.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=QUICK_S)
        self._forget_socket()

    def _connections(self) -> list[BoundedProtocol]:
        return [c for c in list(self._state.connections) if isinstance(c, BoundedProtocol)]

    async def _wait(self, seconds: float) -> None:
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=max(0.0, seconds))

    def _forget_socket(self) -> None:
        """Remove the socket's file unless somebody else has put theirs there."""
        if self._stat is None:
            return
        with suppress(OSError):
            now = Path(self._path).stat()
            if (now.st_dev, now.st_ino) == (self._stat.st_dev, self._stat.st_ino):
                Path(self._path).unlink()


def bind_tcp(host: str, port: int, what: str) -> socket.socket:
    """A bound TCP socket; Conflict when the port is taken, InputError when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"{what} {host}:{port} is taken by another process", code="port_taken",
                fix=f"find it with: ss -ltnp 'sport = :{port}'   or set another port",
            ) from None  # fmt: skip
        why = error.strerror or str(error)
        raise InputError(f"cannot listen on {what} {host}:{port}: {why.lower()}") from None
    sock.setblocking(False)
    return sock


def bind_unix(path: Path, mode: int = 0o660) -> socket.socket:
    """A bound Unix socket with permissions ``mode``; a dead daemon's file is replaced.

    Raises Conflict when somebody answers there or the path is another kind of file, InputError
    when the path cannot be used.
    """
    name = str(path)
    if len(os.fsencode(name)) > 107:
        raise InputError(f"socket {name}: a Unix socket's path has at most 107 bytes; "
                         "set a shorter one with: socket: PATH")  # fmt: skip
    _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        sock.bind(name)
        path.chmod(mode)
    except OSError as error:
        sock.close()
        why = (error.strerror or str(error)).lower()
        raise InputError(f"cannot listen on socket {name}: {why}") from None
    finally:
        os.umask(before)
    sock.setblocking(False)
    return sock


def _clear(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"socket {path}: {(error.strerror or '').lower()}") from None
    if not stat.S_ISSOCK(kind):
        raise Conflict(f"{path} is in the way of the socket and is no socket", code="socket_path",
                       fix="set another path with: socket: PATH")  # fmt: skip
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.settimeout(1.0)
    try:
        probe.connect(str(path))
    except OSError as error:
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    finally:
        probe.close()
    raise Conflict(f"another process answers on {path}", code="socket_in_use",
                   fix="stop it, or set another path with: socket: PATH")  # fmt: skip


def tls_context(cert: str, key: str) -> ssl.SSLContext | None:
    """The TLS context of the agents' listener, None without a certificate.

    Raises InputError when the files do not fit.
    """
    if not cert and not key:
        return None
    if not (cert and key):
        raise InputError("agents.tls_cert and agents.tls_key are set together or not at all")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_chain(context, cert, key)
    return context


def load_chain(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Read the certificate (again) into ``context``; InputError names the file and why."""
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"agents.tls_cert {cert}: {error}") from None

"""One HTTP connection that cannot be held open or filled up by its client.

Invariant: every connection has a deadline for whatever it is waiting for, from the accept on:
headers, body, the next request, or the client reading its answer; header bytes and header count
are bounded before an application sees them. uvicorn has none of these (trust.md D7, 3.2).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from fleet.config import HttpLimits

#: How the operator routes are told who is behind a Unix socket (fleet.api.peer).
UID: Final = "uid:"


class Phase(Enum):
    """What a connection waits for."""

    HEAD = auto()
    BODY = auto()
    APP = auto()
    IDLE = auto()


class Doorman:
    """What the connections of one listener share: limits, and how many each address has open."""

    def __init__(
        self, limits: HttpLimits, per_address: int | None, refused: Callable[[str], None]
    ) -> None:
        """``per_address`` None does not count; ``refused`` hears the cause of each refusal."""
        self.limits, self.per_address, self.refused = limits, per_address, refused
        self._open: dict[str, int] = {}

    def enter(self, address: str) -> bool:
        """Count one connection of ``address``; False when it has too many already."""
        n = self._open.get(address, 0) + 1
        self._open[address] = n
        return self.per_address is None or n <= self.per_address

    def leave(self, address: str) -> None:
        """One connection of ``address`` ended."""
        n = self._open.get(address, 0) - 1
        if n > 0:
            self._open[address] = n
        else:
            self._open.pop(address, None)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol with receive deadlines, caps and the Unix peer's uid."""

    def __init__(
        self, config: Config, state: ServerState, doorman: Doorman,
        loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        super().__init__(config, state, {}, loop)
        self._doorman, self._limits = doorman, doorman.limits
        self._phase = Phase.HEAD
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._bytes = self._count = 0
        self._refused = False
        self._address = ""
        self._task: asyncio.Task[None] | None = None

    # -- the connection --------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Arm the first deadline; an address with too many connections is told so."""
        super().connection_made(transport)
        _no_delay(transport)
        uid = _peer_uid(transport)
        if uid is not None:
            self.client = (f"{UID}{uid}", 0)
        self._address = self.client[0] if self.client else ""
        self._arm(self._limits.header_s)
        if not self._doorman.enter(self._address):
            self.refuse(503, "too_many_connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers and the count."""
        self._disarm()
        self.resume_writing()
        self._doorman.leave(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; bytes that complete no headers count against their limit."""
        if self._refused:
            return
        if self._phase is Phase.IDLE:
            self._begin()
        super().data_received(data)
        if self._phase is Phase.HEAD and not self._refused:
            # One unfinished header never reaches on_header: the parser hoards it.
            self._bytes += len(data)
            self._check_head()

    def pause_writing(self) -> None:
        """The client does not read: it has ``write_s`` to go on."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_s, self._not_read)

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.flow is not None:
            super().resume_writing()

    # -- the parser ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins, possibly while an earlier one is being answered."""
        if self._phase is not Phase.HEAD:
            self._begin()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header, unless there were too many."""
        self._count += 1
        self._bytes += len(name) + len(value) + 4
        if self._check_head():
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Refuse framing that two readers could read differently, else start the application."""
        if self._refused:
            return
        self._bytes += len(self.url)
        names = [name for name, _ in self.headers]
        if not self._check_head():
            return
        if b"transfer-encoding" in names and b"content-length" in names:
            self.refuse(400, "ambiguous_framing")
            return
        self._phase = Phase.BODY
        self._arm(self._limits.body_s)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand on a piece of the body."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here: from now on the application has the time it needs."""
        if self._refused:
            return
        self._disarm()
        self._phase = Phase.APP
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._idle()  # answered before its body ended; uvicorn would wait without a timer

    def on_response_complete(self) -> None:
        """The answer is written: wait for the next request."""
        super().on_response_complete()
        if self._phase is Phase.APP and not self.pipeline:
            self._idle()

    # -- ours ------------------------------------------------------------------------------------

    def refuse(self, status: int, why: str) -> None:
        """Answer without an application and close."""
        if self._refused:
            return
        self._refused = True
        self._disarm()
        self._doorman.refused(why)
        if self.transport.is_closing():
            return
        if self.streaming:
            self.transport.abort()  # another answer is on its way: nothing may be mixed into it
            return
        self._tell_gone()
        body = why.encode()
        phrase = HTTPStatus(status).phrase
        self.transport.write(
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            + body
        )
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """The parser refused the bytes."""
        self.refuse(400, "malformed_request")

    @property
    def streaming(self) -> bool:
        """True while an answer has begun and not ended."""
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's own annotation leaves out None
        return cycle is not None and cycle.response_started and not cycle.response_complete

    @property
    def waiting(self) -> bool:
        """True while a read that changes nothing waits for its answer (a long poll)."""
        cycle: RequestResponseCycle | None = self.cycle
        open_ = cycle is not None and not cycle.response_complete
        return open_ and self.scope["method"] in ("GET", "HEAD")

    def hang_up(self) -> None:
        """Tell the application that its client is gone, so that streams and long polls end."""
        if self._tell_gone():
            self.transport.close()
            if self._task is not None:
                self._task.cancel()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """As uvicorn does, but the task can be found by its connection."""
        self._task = self.loop.create_task(cycle.run_asgi(app))
        self._task.add_done_callback(self.tasks.discard)
        self.tasks.add(self._task)

    def _tell_gone(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return True

    def _begin(self) -> None:
        self._phase, self._bytes, self._count = Phase.HEAD, 0, 0
        self._arm(self._limits.header_s)

    def _idle(self) -> None:
        self._phase = Phase.IDLE
        self._arm(self._limits.idle_s)

    def _check_head(self) -> bool:
        if self._refused:
            return False
        if self._bytes > self._limits.header_bytes or self._count > self._limits.headers:
            self.refuse(431, "headers_too_large")
            return False
        return True

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._phase is Phase.IDLE:
            self.transport.close()
        elif self._phase is Phase.HEAD:
            self.refuse(408, "slow_headers")
        else:
            self._doorman.refused("slow_body")
            self._refused = True
            self._tell_gone()
            self.transport.abort()

    def _not_read(self) -> None:
        self._doorman.refused("slow_reader")
        self.transport.abort()


def _no_delay(transport: Any) -> None:
    """Send head and body of an answer at once. asyncio does so only for sockets whose protocol
    number is set, which accepted ones of a bound socket lack; 40 ms an answer otherwise.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _peer_uid(transport: Any) -> int | None:
    """The uid behind a Unix socket (SO_PEERCRED: pid, uid, gid), None for TCP."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])

"""The way to the daemon: HTTP/1.0 over its Unix socket, one request per connection.

Invariant: imports nothing beyond the standard library's socket and json (start-up time is felt,
and ``http.client`` alone is a fifth of it); an answer is either a success or a ``Fail``.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from time import sleep
from typing import Any, Final

from fleet.cli.fail import DENIED, UNREACHABLE, Fail, of_problem

#: Where a daemon listens by the sample configuration, and without a ``socket`` setting.
DEFAULT_SOCKETS: Final = ("/run/fleetd/fleetd.sock", "/var/lib/fleetd/fleetd.sock")
TIMEOUT_S: Final = 90.0
RETRY_S: Final = (0.2, 0.5, 1.0)
ANSWER_MAX: Final = 256 * 1024 * 1024

Params = Sequence[tuple[str, str]]


def socket_path(given: str = "") -> str:
    """Which socket: the flag, FLEETD_SOCKET, or the packaged place."""
    named = given or os.environ.get("FLEETD_SOCKET", "")
    there = [path for path in DEFAULT_SOCKETS if os.path.exists(path)]  # noqa: PTH110 — start-up
    return named or (there or DEFAULT_SOCKETS)[0]


class Client:
    """Requests to one daemon in one person's name."""

    def __init__(self, path: str, actor: str = "") -> None:
        self.path = path
        self.actor = actor or person()
        self.etag = ""

    def get(self, route: str, params: Params = ()) -> dict[str, Any]:
        """A read; tried again when the daemon is busy. Raises Fail."""
        target = route + ("?" + "&".join(f"{k}={quote(v)}" for k, v in params) if params else "")
        for wait_s in RETRY_S:
            try:
                return self._call("GET", target)
            except Fail as fail:
                if fail.code != UNREACHABLE or fail.problem is None:
                    raise
            sleep(wait_s)
        return self._call("GET", target)

    def post(self, route: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
             ) -> dict[str, Any]:  # fmt: skip
        """A change, sent once. Raises Fail."""
        return self._call("POST", route, json.dumps(body).encode(), headers or {})

    def _call(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        head = {
            "host": "fleetd", "accept": "application/json", "x-fleetd-actor": self.actor,
            "connection": "close", "content-length": str(len(body)), **(headers or {}),
        }  # fmt: skip
        if body:
            head["content-type"] = "application/json"
        text = "".join(f"{k}: {v}\r\n" for k, v in head.items())
        raw = self._exchange(f"{method} {target} HTTP/1.0\r\n{text}\r\n".encode() + body)
        status, payload = _parse(raw)
        if 200 <= status < 300:
            return payload
        payload.setdefault("status", status)
        raise of_problem(payload)

    def _exchange(self, request: bytes) -> bytes:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(TIMEOUT_S)
                sock.connect(self.path)
                sock.sendall(request)
                return _read(sock)
        except PermissionError:
            raise Fail(
                DENIED, f"not allowed to use {self.path}", why="the socket's mode forbids it",
                fix=f"ls -l {self.path}      and join the group that owns it", name="forbidden",
            ) from None  # fmt: skip
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            raise Fail(
                UNREACHABLE, f"fleetd is not reachable at {self.path}", why=why.lower(),
                fix="systemctl status fleetd      or name its socket: --socket PATH",
                name="unreachable",
            ) from None  # fmt: skip


def _read(sock: socket.socket) -> bytes:
    parts, size = [], 0
    while chunk := sock.recv(1 << 18):
        parts.append(chunk)
        size += len(chunk)
        if size > ANSWER_MAX:
            raise OSError("the answer is too long")
    return b"".join(parts)


def _parse(raw: bytes) -> tuple[int, dict[str, Any]]:
    head, found, body = raw.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    try:
        status = int(words[1])
        if not found or not words[0].startswith(b"HTTP/1."):
            raise ValueError
        payload = json.loads(body)
        if not isinstance(payload, dict):
            raise ValueError
    except (ValueError, IndexError, RecursionError):
        raise Fail(UNREACHABLE, "what answers at the socket is not fleetd's API",
                   why=f"{len(raw)} bytes that are no answer",
                   name="bad_answer") from None  # fmt: skip
    return status, payload


def quote(text: str) -> str:
    """``text`` as part of a URL: everything but unreserved characters as %XX."""
    safe = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
    data = text.encode("utf-8", "surrogatepass")
    return "".join(chr(b) if b in safe else f"%{b:02X}" for b in data)


def person() -> str:
    """``user:NAME`` of who runs the command; behind sudo the person, not root."""
    name = os.environ.get("SUDO_USER") or ""
    if not name:
        import pwd

        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = f"uid-{os.getuid()}"
    kept = "".join(c for c in name if c.isascii() and (c.isalnum() or c in "._@+-"))
    return f"user:{kept[:64] or 'unknown'}"

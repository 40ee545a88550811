"""Who speaks: the user behind a Unix socket, or the name that fleetctl gives.

Invariant: where the kernel tells the peer's uid, a plain user cannot act under another's name;
root may (it could anyway), which is how ``sudo`` keeps the person's name in the history.
"""

from __future__ import annotations

import pwd
import re
import socket
import struct
from typing import Any, Final

from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from fleet.api.problems import Refusal

HEADER: Final = "x-fleetd-actor"
_ACTOR: Final = re.compile(r"user:[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_UID: Final = "uid:"


class PeerProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol that also tells the application the peer's uid."""

    def connection_made(self, transport: Any) -> None:
        """Ask the kernel once per connection (SO_PEERCRED: pid, uid, gid)."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is None or sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
            return
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.client = (f"{_UID}{struct.unpack('3i', raw)[1]}", 0)


def actor_of(request: Request) -> str:
    """``user:NAME`` of who asks. Raises Refusal 422 for a malformed header."""
    said = request.headers.get(HEADER, "")
    if said and not _ACTOR.fullmatch(said):
        raise Refusal(422, "bad_actor", "the actor's name cannot be used",
                      fix=f"{HEADER}: user:NAME with letters, digits and . _ @ + -")  # fmt: skip
    peer = request.client.host if request.client else ""
    if not peer.startswith(_UID):
        return said or "user:unknown"
    uid = int(peer.removeprefix(_UID))
    if uid == 0 and said:
        return said
    try:
        return f"user:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user:uid-{uid}"

"""Who speaks: the user behind a Unix socket, or the name that fleetctl gives.

Invariant: where the kernel tells the peer's uid, a plain user cannot act under another's name;
root may (it could anyway), which is how ``sudo`` keeps the person's name in the history.
"""

from __future__ import annotations

import pwd
import re
from typing import Final

from starlette.requests import Request

from fleet.api.problems import Refusal
from fleet.api.protocol import UID

HEADER: Final = "x-fleetd-actor"
_ACTOR: Final = re.compile(r"user:[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


def actor_of(request: Request) -> str:
    """``user:NAME`` of who asks. Raises Refusal 422 for a malformed header."""
    said = request.headers.get(HEADER, "")
    if said and not _ACTOR.fullmatch(said):
        raise Refusal(422, "bad_actor", "the actor's name cannot be used",
                      fix=f"{HEADER}: user:NAME with letters, digits and . _ @ + -")  # fmt: skip
    peer = request.client.host if request.client else ""
    if not peer.startswith(UID):
        return said or "user:unknown"
    uid = int(peer.removeprefix(UID))
    if uid == 0 and said:
        return said
    try:
        return f"user:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user:uid-{uid}"

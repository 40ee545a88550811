"""What every command has: the client, how the terminal wants it, and the kinds by their names.

Invariant: made once per run from the options that may stand anywhere on the line.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.cli.client import Client, socket_path
from fleet.cli.fail import USAGE, Fail
from fleet.cli.render import Look, look

#: Kinds of the API with the names people type.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pools": ("pool", "po"), "nodes": ("node", "no"), "launches": ("launch", "la"),
    "offers": ("offer", "of"), "providers": ("provider", "pr", "clouds", "cloud"),
    "slots": ("slot", "sl"), "events": ("event", "ev"), "faults": ("fault", "fa"),
    "policies": ("policy", "pol"), "batches": ("batch",), "guards": ("guard",),
    "tasks": ("task",), "plan": ("plans",),
}  # fmt: skip


@dataclass
class Session:
    """One run of fleetctl."""

    socket: str = ""
    no_color: bool = False
    ascii: bool = False
    form: str = ""
    _client: Client | None = field(default=None, repr=False)

    @property
    def client(self) -> Client:
        """The way to the daemon."""
        if self._client is None:
            self._client = Client(socket_path(self.socket))
        return self._client

    def look(self, stream: Any = None) -> Look:
        """How ``stream`` (stdout) wants it."""
        return look(stream, no_color=self.no_color, ascii_=self.ascii)


def kind_of(word: str) -> str:
    """The kind that ``word`` names; exit 2 with the nearest for one that does not exist."""
    low = word.lower()
    for kind, names in KINDS.items():
        if low == kind or low in names:
            return kind
    every = [n for kind, names in KINDS.items() for n in (kind, *names)]
    near = difflib.get_close_matches(low, every, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?   " if near else ""
    raise Fail(USAGE, f"unknown kind {word!r}", fix=f"{hint}kinds: {', '.join(KINDS)}",
               name="unknown_kind")  # fmt: skip


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """Kind and names of ``nodes n-1 n-2`` or ``node/n-1 node/n-2``."""
    first, slash, name = words[0].partition("/")
    kind = kind_of(first)
    names = [name] if slash and name else []
    return kind, names + [bare_name(w, kind) for w in words[1:]]


def bare_name(word: str, kind: str) -> str:
    """``n-1`` of ``node/n-1``; a name that has slashes of its own stays whole."""
    head, slash, name = word.partition("/")
    if slash and (head == kind or head in KINDS[kind]):
        return name
    return word

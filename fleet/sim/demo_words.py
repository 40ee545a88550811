"""The history of a demo in words: like events of one moment are one line.

Invariant: a line says what the store's events say, with their own reason; routine is kept apart
from what an act is about by its weight, nothing is invented.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select
from sqlmodel import Session, col

from fleet.store.tables import EventRow, NodeRow
from policies import faults

#: Lines of history kept for the screen.
KEPT: Final = 200


@dataclass(frozen=True, slots=True)
class Line:
    """Like events of one moment in one line. ``mark`` is the glyph's name, ``weight`` 2 for what
    the act is about, 1 for what belongs to it, 0 for routine.
    """

    at: float
    mark: str
    who: str
    text: str
    reason: str
    act: int
    weight: int
    n: int = 1


_CODE: Final = re.compile(r"^([A-Za-z][A-Za-z0-9_.]{5,60}): ")
_REFUSED: Final = frozenset(
    {"insufficient_capacity", "quota_exceeded", "throttled", "invalid_request", "image_not_found",
     "unauthorized"}
)  # fmt: skip
_LOSSES: Final = frozenset(
    {"preempted", "externally_terminated", "died_after_accept", "never_listed", "launch_timeout",
     "gate_failed", "gate_timeout"}
)  # fmt: skip


_WHY: Final = {"insufficient_capacity": "no capacity", "quota_exceeded": "quota",
               "image_not_found": "no such image"}  # fmt: skip


def _why(reason: str, message: str) -> str:
    """Why a cloud said no: our word and its own code."""
    found = _CODE.match(message)
    ours = _WHY.get(reason, reason)
    return f"{ours} ({found.group(1)})" if found else f"{ours}: {message}"


def _fault(message: str) -> str:
    """A fault's code, GPU and meaning, from ``xid_79: GPU 3 …``."""
    code, _, rest = message.partition(": ")
    known = faults.catalog().get(code)
    gpu = " ".join(rest.split()[:2]) if rest.startswith("GPU ") else ""
    name = known.mnemonic.lower().replace("_", " ") if known else rest
    name = name.removeprefix("robust channel gpu ")
    return f"{code}, {gpu or 'a GPU'} {name}" if known else message


def _nodes(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{len(ids)} nodes"


def _launches(n: int, market: str = "") -> str:
    return f"{n} {market}launch{'' if n == 1 else 'es'}"


def _node_words(row: Any, ids: Sequence[str]) -> tuple[str, str, int] | None:
    """(mark, text, weight) of like node events, None for what is not worth a line."""
    src, dst, reason, n = row.src, row.dst, row.reason, len(ids)
    market = "spot " if row.market == "spot" else ""
    if dst == "REQUESTED":
        return "REQUESTED", f"{_launches(n, market)} of {row.instance_type} asked for", 0
    if reason == "launch_accepted":
        return "LAUNCHING", f"{_launches(n, market)} accepted", 1
    if dst == "TERMINATED":
        return None if reason in _REFUSED else ("TERMINATED", f"{_nodes(ids)} gone", 0)
    if reason in _REFUSED:
        return "no", f"{_launches(n, market)} refused: {_why(reason, row.message)}", 2
    if reason == "boot_timeout":
        return "no", f"{_nodes(ids)} never booted: {row.message}", 2
    if reason == "fatal_fault":
        return "SUSPECT", f"{_nodes(ids)} leaves service: {_fault(row.message)}", 2
    if reason == "spot_notice":
        they = f"{ids[0]} leaves" if n == 1 else f"{n} nodes leave"
        return "DRAINING", f"{they} service: the cloud takes the spot capacity back", 2
    if reason in _LOSSES:
        return "no", f"{_nodes(ids)} lost: {row.message}", 1
    if dst == "READY":
        how = "gate passed" if src == "CHECKING" else row.message
        return "READY", f"{_nodes(ids)} ready: {how}", 0
    words = {
        "BOOTING": ("BOOTING", f"{_nodes(ids)} running, booting"),
        "CHECKING": ("CHECKING", f"{_nodes(ids)} reported, at the gate"),
        "SUSPECT": ("SUSPECT", f"{_nodes(ids)} suspect: {row.message}"),
        "QUARANTINED": ("QUARANTINED", f"{_nodes(ids)} kept as evidence"),
        "DRAINING": ("DRAINING", f"{_nodes(ids)} draining"),
        "TERMINATING": ("TERMINATING", f"{_nodes(ids)} being ended"),
    }.get(dst)
    return (*words, 0) if words else None


def _slot_words(row: Any, ids: Sequence[str]) -> tuple[str, str, int]:
    if row.reason == "assigned":
        text = row.message if len(ids) == 1 else f"{len(ids)} slots put into service"
        return "READY", text, 0
    if row.reason == "moved":
        return "spare", f"{row.message}, a spare is in service", 2
    return "no", row.message, 1


def _rest_words(row: Any) -> tuple[str, str, int]:
    if row.kind == "boot":
        where = row.object_id.split("/")
        text = row.message.partition(": ")[2] or row.message
        return "rest", f"launches to {' '.join(where[1:3])} rest: {text}", 2
    reason, _, message = row.message.partition(": ")
    what = row.object_id.split("/")
    which = f"{what[2]} {'spot ' if what[-1] == 'spot' else ''}" if len(what) > 2 else ""
    return "rest", f"{which}rests: {_why(reason, message)}", 1


class Feed:
    """Follows the store's events and says them in lines, like ones together."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._last_id = 0
        self.lines: deque[Line] = deque(maxlen=KEPT)
        self.told: list[Line] = []
        #: How often each reason came, by (act, reason).
        self.seen: Counter[tuple[int, str]] = Counter()

    def read(self, tx: Session, began: Sequence[float]) -> list[Line]:
        """New lines since the last call, oldest first. ``began``: when each act did."""
        node = NodeRow
        query = (
            select(
                col(EventRow.id), col(EventRow.at), col(EventRow.kind), col(EventRow.object_id),
                col(EventRow.src), col(EventRow.dst), col(EventRow.reason), col(EventRow.message),
                col(node.provider), col(node.zone), col(node.market), col(node.instance_type),
            )
            .outerjoin(node, col(node.id) == col(EventRow.object_id))
            .where(col(EventRow.id) > self._last_id)
            .order_by(col(EventRow.id))
            .limit(1000)
        )  # fmt: skip
        groups: dict[tuple[Any, ...], list[Any]] = {}
        for row in tx.execute(query):
            self._last_id = row.id
            act = bisect_right(began, row.at)
            self.seen[act, row.reason] += 1
            if row.reason == "blind" and "was never" in row.message:
                continue  # before the first lists there is nothing to be blind for
            alone = row.id if row.reason in ("moved", "fatal_fault") else 0
            if row.kind not in ("node", "slot"):
                alone = row.object_id
            move = (row.src, row.dst) if row.kind == "node" else ()
            key = (act, row.kind, row.reason, alone, move, row.provider, row.zone, row.market)
            groups.setdefault(key, []).append(row)
        fresh = [line for key, rows in groups.items() if (line := self._line(rows, key[0]))]
        self.lines.extend(fresh)
        self.told += [line for line in fresh if line.weight]
        return fresh

    def _line(self, rows: list[Any], act: int) -> Line | None:
        row, ids = rows[0], [r.object_id for r in rows]
        words: tuple[str, str, int] | None = None
        who = row.provider or ""
        if row.kind == "node":
            words = _node_words(row, ids)
        elif row.kind == "slot":
            words, who = _slot_words(row, ids), "pool"
        elif row.reason in ("offer_cooling", "provider_held", "pool_held"):
            parts = row.object_id.split("/")
            words, who = _rest_words(row), parts[1 if row.kind == "boot" else 0]
        elif row.reason == "policy_applied":
            words, who = ("READY", f"{row.kind} {row.object_id} applied", 0), "you"
        elif row.reason:
            words, who = ("SUSPECT", f"{row.object_id}: {row.message}", 1), row.kind
        if words is None:
            return None
        mark, text, weight = words
        return Line(row.at, mark, who, text, row.reason, act, weight, len(rows))

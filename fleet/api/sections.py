"""The lines of a describe page.

Invariant: an empty section is left out; a line is one line (what people and machines wrote may
hold newlines).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.api import say


@dataclass(frozen=True, slots=True)
class Section:
    """A label and its lines."""

    label: str
    lines: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """This section as JSON."""
        return {"label": self.label, "lines": list(self.lines)}


def section(label: str, lines: Iterable[str]) -> Section:
    """A section of the lines that say something."""
    return Section(label, tuple(" ⏎ ".join(t.splitlines()) for t in lines if t.strip()))


def event_lines(events: Sequence[Mapping[str, Any]], now: float, own: str = "") -> list[str]:
    """Events, oldest first, one line each, aligned; ``own`` is the page's object, not repeated.

    ``12:31:07  READY → DRAINING  fatal_fault  lifecycle  xid_79 …``.
    """
    return aligned(
        [
            say.clock(say.from_rfc3339(e["at"]), now),
            "" if e["object"] == own else e["object"],
            f"{e['src'] or '·'} → {e['dst']}" if e["dst"] else "",
            e["reason"], e["actor"], e["message"],
        ]
        for e in events
    )  # fmt: skip


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows as lines, columns two spaces apart; a column that is empty in every row is left out."""
    table = [[str(cell) for cell in row] for row in rows]
    if not table:
        return []
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(room) for cell, room in zip(row, widths, strict=True) if room).rstrip()
        for row in table
    ]

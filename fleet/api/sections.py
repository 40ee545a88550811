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


def event_lines(events: Sequence[Mapping[str, Any]], now: float) -> list[str]:
    """Events, oldest first, one line each."""
    return [event_line(e, now) for e in events]


def event_line(event: Mapping[str, Any], now: float) -> str:
    """``12:31:07  READY → DRAINING  fatal_fault  lifecycle: xid_79 …``."""
    at = say.clock(say.from_rfc3339(event["at"]), now)
    change = f"{event['src'] or '·'} → {event['dst']}  " if event["dst"] else ""
    who = event["object"] if event["kind"] != "node" else ""
    text = f": {event['message']}" if event["message"] else ""
    return f"{at}  {who + '  ' if who else ''}{change}{event['reason']}  {event['actor']}{text}"

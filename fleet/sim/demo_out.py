"""How the demo writes a line, whatever its terminal can show.

Invariant: imports nothing heavy, so that a Ctrl-C is heard from the first moment on.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final, TextIO

BYE: Final = "interrupted; the simulated clouds are gone, nothing goes on"
#: What a terminal without UTF-8 shows instead.
ASCII: Final = str.maketrans({
    "●": "#", "◆": "S", "◌": "l", "○": "o", "◐": "g", "▲": "!", "▼": "v", "■": "Q", "×": "x",
    "✗": "!", "◷": "~", "·": ".", "—": "-", "–": "-", "→": ">", "…": "~", "─": "-", "█": "#",
    "░": ".",
})  # fmt: skip


def put(text: str, stream: TextIO | None = None) -> None:
    """Write one line at once, in the signs that ``stream`` (stdout) knows."""
    out = stream or sys.stdout
    if not (getattr(out, "encoding", "") or "").lower().startswith("utf"):
        text = text.translate(ASCII).encode("ascii", "replace").decode()
    with suppress(*([OSError] if out is sys.stderr else [])):  # nobody may be there to hear it
        out.write(f"{text}\n")
        out.flush()

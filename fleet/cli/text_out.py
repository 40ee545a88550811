"""Text into sinks: one function per sink, none of which lets text become something else.

Invariant: what ``terminal`` returns moves no cursor, sets no colour or title and reorders nothing;
what ``csv_text`` returns is no formula; what ``json_text`` returns is JSON that a terminal shows
as it is.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any, Final

#: Controls that reorder what a person reads (CVE-2021-25743 and its kin).
_BIDI: Final = frozenset(
    {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
)  # fmt: skip
#: Line separators and the byte order mark: invisible, and not what they look like.
_ODD: Final = frozenset({0x2028, 0x2029, 0xFEFF})
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def _bad(code: int) -> bool:
    return (
        code < 0x20 or 0x7F <= code <= 0x9F or code in _BIDI or code in _ODD
        or 0xD800 <= code <= 0xDFFF
    )  # fmt: skip


def _visible(code: int) -> str:
    if code == 0x0A:
        return "\\n"
    if code == 0x09:
        return "\\t"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def terminal(text: str) -> str:
    """``text`` on one line of a terminal: C0, DEL, C1 and bidi controls as visible escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(ord(c)) if _bad(ord(c)) else c for c in text)


def csv_text(text: str) -> str:
    """``text`` for a text column of CSV: what a spreadsheet would run gets a quote in front.

    Numbers never come here, so negative ones stay numbers. Excel may drop the quote on re-save.
    """
    safe = terminal(text)
    return f"'{safe}" if text.startswith(_FORMULA) else safe


def json_text(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON in readable Unicode, with every control escaped as JSON does it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    if text.isascii():
        return text.replace("\x7f", "\\u007f")
    return "".join(
        f"\\u{ord(c):04x}" if _bad(ord(c)) and c != "\n" else c for c in text
    )  # fmt: skip


def width(text: str) -> int:
    """How many columns ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    columns = 0
    for char in text:
        if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me"):
            continue
        columns += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return columns


def cut(text: str, columns: int) -> str:
    """``text`` in at most ``columns`` columns, with … where something is left out."""
    if width(text) <= columns:
        return text
    kept = ""
    for char in text:
        if width(kept + char) >= columns:
            break
        kept += char
    return kept + "…"


_ASCII: Final = {
    "●": "#", "▲": "^", "✗": "X", "■": "=", "…": "~", "◐": "o", "→": "->", "·": ".", "×": "x",
    "│": "|", "–": "-", "⏎": "/", "≥": ">=", "≤": "<=",
}  # fmt: skip


def ascii_only(text: str) -> str:
    """``text`` with our shapes in ASCII (``--ascii``); other letters become ``?``."""
    if text.isascii():
        return text
    return "".join(_ASCII.get(c, c if c.isascii() else "?") for c in text)

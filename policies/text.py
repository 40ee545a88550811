"""Text at the edge: what may enter, and how a person is told what they may have meant.

Invariant: a string that passed ``text_in`` can be stored, logged as one JSON value and encoded as
UTF-8; ``nearest`` never looks at more than a bounded number of candidates.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from fleet.errors import InputError, Problem

#: Characters of text a person may see quoted back in an error.
SHOWN: Final = 60
#: Candidates looked at by ``nearest``; difflib is quadratic in the length of each.
MAX_CANDIDATES: Final = 2000

_BIDI: Final = frozenset({0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)})
#: How far behind the best suggestion another may be.
CLOSE: Final = 0.1

_LINE_SPACE: Final = frozenset("\t\n")


def bad_character(value: str) -> str:
    """The name of the first character that may not enter, or "".

    Refused: NUL and other C0 controls but tab and newline, DEL, C1 controls, lone surrogates, and
    the bidirectional controls that reorder what a person reads (trust.md 3.1 and 3.3).
    """
    for char in value:
        code = ord(char)
        if code < 0x20 and char not in _LINE_SPACE:
            return "NUL" if code == 0 else f"control character U+{code:04X}"
        if 0x7F <= code <= 0x9F:
            return f"control character U+{code:04X}"
        if 0xD800 <= code <= 0xDFFF:
            return f"lone surrogate U+{code:04X}"
        if code in _BIDI:
            return f"bidirectional control U+{code:04X}"
    return ""


def text_in(value: str, limit: int, *, where: str = "input") -> str:
    """``value`` unchanged, if it may enter: at most ``limit`` characters and no bad character.

    ``where`` is put in front of the error. Raises ``InputError``.
    """
    if len(value) > limit:
        what = f"text of {len(value)} characters, at most {limit} allowed"
        raise InputError([Problem(where, what, "shorten it")])
    bad = bad_character(value)
    if bad:
        raise InputError([Problem(where, f"{bad} in text", "remove it")])
    return value


def quoted(value: object) -> str:
    """``value`` in double quotes, shortened, with anything unprintable escaped: for messages."""
    text = value if isinstance(value, str) else str(value)
    if len(text) > SHOWN:
        text = text[: SHOWN - 1] + "…"
    safe = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return f'"{safe}"'


def nearest(word: str, options: Iterable[str], n: int = 3) -> tuple[str, ...]:
    """Up to ``n`` of ``options`` that ``word`` may stand for, likeliest first.

    The same letters in another case win, then names of which one begins with the other, then
    likeness by difflib (cut-off 0.6, difflib's own default). Names far behind the best are
    left out.
    """
    folded = word.casefold()[:SHOWN]
    scored: list[tuple[float, str]] = []
    for option in list(options)[:MAX_CANDIDATES]:
        other = option.casefold()
        ratio = difflib.SequenceMatcher(None, folded, other).ratio()
        if other == folded:
            ratio = 3.0
        elif len(folded) >= 2 and (other.startswith(folded) or folded.startswith(other)):
            ratio += 1.0
        if ratio >= 0.6:
            scored.append((-ratio, option))
    scored.sort()
    return tuple(option for score, option in scored[:n] if score <= scored[0][0] + CLOSE)


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """``did you mean "x"?`` or, with nothing near, the (short) list of what is allowed."""
    names = sorted(options)
    near = nearest(word, names)
    if near:
        return f"did you mean {' or '.join(quoted(name) for name in near)}?"
    if not names:
        return ""
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"one of: {shown}"

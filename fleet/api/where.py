"""The filter language: ``boot_s>600 and provider=oci`` on listed columns, parsed by hand.

Invariant: no eval, no regular expression from outside, bounded length and depth; an unknown
column is an error with the nearest name, never an empty list (kubernetes/org#6295).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from fleet.api.problems import Refusal, unknown
from fleet.api.say import span_s
from policies.text import nearest

MAX_LENGTH: Final = 1000
MAX_DEPTH: Final = 16
Item = Mapping[str, Any]
Test = Callable[[Item], bool]

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<op>>=|<=|!=|==|=|>|<|~)|(?P<paren>[()])|"(?P<dq>[^"]*)"|'(?P<sq>[^']*)'"""
    r"""|(?P<word>[^\s()=!<>~"']+))"""
)


def parse(text: str, types: Mapping[str, str]) -> Test:
    """A test of items from ``text``; ``types`` maps each column to text, number, time or bool.

    Raises Refusal: 422 ``bad_filter`` for grammar, 404 ``unknown_column`` for a name.
    """
    if len(text) > MAX_LENGTH:
        raise _bad(f"{len(text)} characters, at most {MAX_LENGTH} are read")
    parser = _Parser(_tokens(text), types)
    test = parser.either(0)
    if parser.peek():
        raise _bad(f"{parser.peek()!r} is left over")
    return test


def _bad(why: str) -> Refusal:
    return Refusal(422, "bad_filter", "the filter cannot be read", why=why,
                   fix="write for example: --where 'boot_s>600 and provider=oci'")  # fmt: skip


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise _bad(f"cannot read from character {at + 1}: {text[at : at + 20]!r}")
        kind = str(match.lastgroup)
        found.append(("text" if kind in ("dq", "sq") else kind, match.group(kind)))
        at = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]], types: Mapping[str, str]) -> None:
        self._tokens, self._types, self._at = tokens, types, 0

    def peek(self) -> str:
        """The next token's text, "" at the end."""
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise _bad("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _word(self, word: str) -> bool:
        if self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind == "word" and text.lower() == word:
                self._at += 1
                return True
        return False

    def either(self, depth: int) -> Test:
        """``a or b or c``."""
        tests = [self.both(depth)]
        while self._word("or"):
            tests.append(self.both(depth))
        return tests[0] if len(tests) == 1 else lambda item: any(t(item) for t in tests)

    def both(self, depth: int) -> Test:
        """``a and b and c``."""
        tests = [self.term(depth)]
        while self._word("and"):
            tests.append(self.term(depth))
        return tests[0] if len(tests) == 1 else lambda item: all(t(item) for t in tests)

    def term(self, depth: int) -> Test:
        """A comparison, ``not`` of one, or a parenthesis."""
        if depth > MAX_DEPTH:
            raise _bad(f"more than {MAX_DEPTH} levels")
        if self._word("not"):
            inner = self.term(depth + 1)
            return lambda item: not inner(item)
        if self.peek() == "(" and self._tokens[self._at][0] == "paren":
            self._at += 1
            inner = self.either(depth + 1)
            if self._next() != ("paren", ")"):
                raise _bad("a ) is missing")
            return inner
        return self._comparison()

    def _comparison(self) -> Test:
        kind, key = self._next()
        key = key.lower().replace("-", "_")
        if kind != "word":
            raise _bad(f"a column's name must stand before {key!r}")
        if key not in self._types:
            near = nearest(key, self._types)
            raise unknown("column", key, near, fix=f"columns: {', '.join(sorted(self._types))}")
        kind, op = self._next()
        if kind != "op":
            raise _bad(f"one of = != < <= > >= ~ must follow {key}")
        kind, value = self._next()
        if kind not in ("word", "text"):
            raise _bad(f"a value must follow {key}{op}")
        return _compare(key, op, value, self._types[key], quoted=kind == "text")


def _compare(key: str, op: str, text: str, type_: str, *, quoted: bool) -> Test:
    if op == "~":
        low = text.lower()
        return lambda item: low in str(item.get(key) or "").lower()
    if not quoted and text.lower() in ("null", "none", "-") and op in ("=", "==", "!="):
        want = op != "!="
        return lambda item: (item.get(key) in (None, "")) is want
    wanted: Any = text
    if type_ == "number":
        wanted = _number(key, text)
    elif type_ == "bool":
        wanted = text.lower() in ("true", "yes", "1")
    compare = _OPS[op]

    def test(item: Item) -> bool:
        value = item.get(key)
        if value is None:
            return op == "!="
        return bool(compare(value, wanted))

    return test


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    seconds = span_s(text)
    if seconds is None:
        raise _bad(f"{key} is a number, {text!r} is none")
    return seconds


_OPS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

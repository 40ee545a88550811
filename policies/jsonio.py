"""Reads JSON that strangers wrote, strictly and with positions.

Invariant: RFC 8259 and nothing more (no NaN, no comments, no duplicate keys), the same limits as
YAML, and nothing but ``InputError`` is raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from json import JSONDecodeError
from json import decoder as json_decoder
from typing import Any, Final

from fleet.errors import InputError
from policies.document import DOCUMENT, Collector, Doc, Limits, Mark, Steps, decode

#: The C scanner of the standard library; typeshed leaves it out.
_scan_string: Final[Callable[[str, int, bool], tuple[str, int]]] = json_decoder.scanstring  # type: ignore[attr-defined]
_BLANK: Final = re.compile(r"[ \t\n\r]*")
_WORD: Final = re.compile(r"[-+.0-9A-Za-z_]+")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def load_json(data: bytes | str, file: str, limits: Limits = DOCUMENT) -> list[Doc]:
    """The one document of a JSON text, or the members of a top-level list as documents.

    Raises ``InputError`` with every problem found.
    """
    text = decode(data, file, limits)
    scan = _Scan(text, Collector(file, limits))
    value = scan.whole()
    if scan.collect.problems:
        raise InputError(scan.collect.problems)
    if not isinstance(value, list):
        return [Doc(file, value, (1, 1), scan.values, scan.keys)]
    if len(value) > limits.documents:
        scan.collect.stop((1, 1), f"more than {limits.documents} documents", "use several files")
    values, keys = _by_first(scan.values), _by_first(scan.keys)
    return [
        Doc(file, item, scan.values[(i,)], values.get(i, {}), keys.get(i, {}))
        for i, item in enumerate(value)
    ]


def _by_first(marks: dict[Steps, Mark]) -> dict[str | int, dict[Steps, Mark]]:
    """Marks of a top-level list by entry, each under its path within the entry."""
    found: dict[str | int, dict[Steps, Mark]] = {}
    for path, mark in marks.items():
        if path:
            found.setdefault(path[0], {})[path[1:]] = mark
    return found


class _Scan:
    """A recursive reader; the recursion ends at ``limits.depth``."""

    def __init__(self, text: str, collect: Collector) -> None:
        self.text = text
        self.collect = collect
        self.at = 0
        self.line = 1
        self.counted = 0
        self.values: dict[Steps, Mark] = {}
        self.keys: dict[Steps, Mark] = {}

    def whole(self) -> Any:
        """The value of the whole text."""
        self._blank()
        value = self._value((), 1)
        self._blank()
        if self.at < len(self.text):
            self.collect.stop(self._mark(), "text after the end of the document", "remove it")
        return value

    def _value(self, path: Steps, depth: int) -> Any:
        mark = self._mark()
        self.collect.node(mark, depth)
        self.values[path] = mark
        char = self.text[self.at : self.at + 1]
        if char == "{":
            return self._object(path, depth)
        if char == "[":
            return self._array(path, depth)
        if char == '"':
            return self._string()
        word = _WORD.match(self.text, self.at)
        if word and (word[0] in {"true", "false", "null"} or _NUMBER.fullmatch(word[0])):
            self.at = word.end()
            return self.collect.plain(word[0], mark)
        return self._expected("a value", word[0] if word else char)

    def _object(self, path: Steps, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        seen: dict[str, Mark] = {}
        self.at += 1
        self._blank()
        if self._take("}"):
            return items
        while True:
            mark = self._mark()
            if self.text[self.at : self.at + 1] != '"':
                self._expected("a key in double quotes", self.text[self.at : self.at + 1])
            key = self._string()
            self.collect.key(seen, key, mark)
            self._blank()
            if not self._take(":"):
                self._expected('":"', self.text[self.at : self.at + 1])
            self._blank()
            at = (*path, key)
            self.keys.setdefault(at, mark)
            items[key] = self._value(at, depth + 1)
            if self._ends("}"):
                return items

    def _array(self, path: Steps, depth: int) -> list[Any]:
        items: list[Any] = []
        self.at += 1
        self._blank()
        if self._take("]"):
            return items
        while True:
            items.append(self._value((*path, len(items)), depth + 1))
            if self._ends("]"):
                return items

    def _ends(self, close: str) -> bool:
        """After a member: True at ``close``, False after a comma."""
        self._blank()
        if self._take(close):
            return True
        if not self._take(","):
            self._expected(f'"," or "{close}"', self.text[self.at : self.at + 1])
        self._blank()
        return False

    def _string(self) -> str:
        mark = self._mark()
        try:
            value, self.at = _scan_string(self.text, self.at + 1, True)
        except JSONDecodeError as error:
            self.collect.stop(mark, f"not JSON: {error.msg}", "check the quotes")
        return self.collect.text(value, mark)

    def _expected(self, wanted: str, got: str) -> Any:
        shown = f'"{got[:20]}"' if got else "the end"
        self.collect.stop(self._mark(), f"not JSON: {wanted} expected, not {shown}")

    def _take(self, char: str) -> bool:
        if self.text.startswith(char, self.at):
            self.at += 1
            return True
        return False

    def _blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        assert match is not None, "the pattern matches the empty text"
        self.at = match.end()

    def _mark(self) -> Mark:
        # Only ever asked going forward: counting from the last place keeps this linear.
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = max(self.counted, self.at)
        return (self.line, self.at - self.text.rfind("\n", 0, self.at))

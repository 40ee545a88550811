"""One parsed document whose every value knows its line: the common ground of YAML and JSON input.

Invariant: values are None, bool, int, float, str, list and dict[str, …] only, bounded in bytes,
nodes, depth and size of numbers, without NUL, control characters or lone surrogates, and every
path in ``values`` leads to one of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from fleet.errors import InputError, Problem
from policies.text import bad_character, quoted

Steps = tuple[str | int, ...]
#: Line and column, both from 1.
Mark = tuple[int, int]

#: SQLite and PostgreSQL integers end here; a longer one overflows far from its cause.
MAX_INT: Final = 2**63 - 1
_MAX_DIGITS: Final = 19
#: Errors collected for one text before parsing gives up.
MAX_PROBLEMS: Final = 100

_INT: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NON_FINITE: Final = frozenset({".nan", ".inf", "+.inf", "-.inf"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What one text may be at most."""

    size: int = 1 << 20
    nodes: int = 20_000
    depth: int = 32
    documents: int = 500
    scalar: int = 16_384


#: Any document.
DOCUMENT: Final = Limits()
#: Policies, which people write by hand.
POLICY: Final = Limits(size=256 << 10)


@dataclass(frozen=True, slots=True)
class PolicyProblem(Problem):
    """A problem with its parts apart, for programs: file, line, column and JSON pointer."""

    file: str = ""
    line: int = 0
    column: int = 0
    pointer: str = ""


@dataclass(frozen=True, slots=True)
class Doc:
    """One document: its value, its file, and where each value and each key stands."""

    file: str
    value: Any
    start: Mark = (1, 1)
    values: Mapping[Steps, Mark] = field(default_factory=dict)
    keys: Mapping[Steps, Mark] = field(default_factory=dict)

    def at(self, path: Steps) -> Mark:
        """Line and column of ``path``: a scalar's own place, a list's or mapping's key; for a
        path that does not exist, the nearest parent's.
        """
        while path:
            if path in self.keys and path in self.values:
                key, value = self.keys[path], self.values[path]
                return key if isinstance(self.get(path), dict | list) else value
            if path in self.values:
                return self.values[path]
            path = path[:-1]
        return self.start

    def get(self, path: Steps) -> Any:
        """The value at ``path``, or None."""
        value = self.value
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def where(self, path: Steps) -> str:
        """``file:line`` of ``path``."""
        return f"{self.file}:{self.at(path)[0]}"

    def problem(
        self, path: Steps, what: str, fix: str = "", *, mark: Mark | None = None
    ) -> PolicyProblem:
        """A problem at ``path``; the text ends with the JSON pointer unless ``path`` is empty."""
        line, column = mark or self.at(path)
        place = pointer(path)
        said = f"{what} at {place}" if place else what
        return PolicyProblem(f"{self.file}:{line}", said, fix, self.file, line, column, place)


def pointer(path: Steps) -> str:
    """``path`` as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def decode(data: bytes | str, file: str, limits: Limits) -> str:
    """``data`` as text, within ``limits.size`` bytes and free of bad characters.

    Raises ``InputError`` that names ``file`` and the line.
    """
    size = len(data) if isinstance(data, bytes) else len(data.encode("utf-8", "surrogatepass"))
    if size > limits.size:
        what = f"{size} bytes, at most {limits.size} are read"
        raise InputError([PolicyProblem(file, what, "split it into several files", file)])
    if isinstance(data, bytes):
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise refused(file, line, "not UTF-8 text", "save the file as UTF-8") from None
    else:
        text = data.removeprefix("\ufeff")
    text = text.replace("\r\n", "\n")
    for number, line_text in enumerate(text.split("\n"), 1):
        if not line_text.isprintable():
            bad = bad_character(line_text)
            if bad:
                raise refused(file, number, f"{bad} in text", "remove it")
    return text


def refused(file: str, line: int, what: str, fix: str = "", column: int = 1) -> InputError:
    """An ``InputError`` with one problem at ``file:line``."""
    return InputError([PolicyProblem(f"{file}:{line}", what, fix, file, line, column)])


@dataclass(slots=True)
class Collector:
    """Counts nodes and collects problems while a text is parsed."""

    file: str
    limits: Limits
    problems: list[Problem] = field(default_factory=list)
    nodes: int = 0

    def say(self, mark: Mark, what: str, fix: str = "") -> None:
        """Note a problem and go on; gives up by raising after ``MAX_PROBLEMS``."""
        line, column = mark
        self.problems.append(
            PolicyProblem(f"{self.file}:{line}", what, fix, self.file, line, column)
        )
        if len(self.problems) >= MAX_PROBLEMS:
            raise InputError(self.problems)

    def node(self, mark: Mark, depth: int) -> None:
        """Count a value at ``depth``; raises ``InputError`` beyond the limits."""
        self.nodes += 1
        if self.nodes > self.limits.nodes:
            self.stop(mark, f"more than {self.limits.nodes} values", "split it into several files")
        if depth > self.limits.depth:
            self.stop(mark, f"nested deeper than {self.limits.depth} levels", "flatten it")

    def stop(self, mark: Mark, what: str, fix: str = "") -> NoReturn:
        """Note a problem and give up."""
        self.say(mark, what, fix)
        raise InputError(self.problems)

    def text(self, value: str, mark: Mark) -> str:
        """``value``, with a problem noted if it is too long or has a bad character."""
        if len(value) > self.limits.scalar:
            limit = self.limits.scalar
            self.say(mark, f"text of {len(value)} characters, at most {limit} allowed", "shorten")
            return ""
        if not value.isprintable() and (bad := bad_character(value)):
            self.say(mark, f"{bad} in text", "remove it")
            return ""
        return value

    def plain(self, text: str, mark: Mark) -> Any:
        """A plain (unquoted) scalar: null, true, false, a JSON number, or else text.

        YAML 1.1's other readings (``no``, ``1:30``, ``014``, ``0x1f``, dates) stay text.
        """
        if text in {"", "null", "~"}:
            return None
        if text in {"true", "false"}:
            return text == "true"
        if text.lower() in _NON_FINITE:
            self.say(mark, f"{quoted(text)} is not a finite number", "write a number")
            return None
        if _INT.fullmatch(text):
            if len(text.lstrip("-")) > _MAX_DIGITS or abs(int(text)) > MAX_INT:
                self.say(mark, f"number {quoted(text)} is out of range", f"at most {MAX_INT}")
                return None
            return int(text)
        if len(text) <= 400 and _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                self.say(mark, f"{quoted(text)} is not a finite number", "write a smaller number")
                return None
            return number
        return self.text(text, mark)

    def key(self, seen: dict[str, Mark], key: str, mark: Mark) -> None:
        """Note ``key`` in ``seen``; a second one is a problem that names both lines."""
        if key in seen:
            what = f"key {quoted(key)} is written twice, first on line {seen[key][0]}"
            self.say(mark, what, "remove one of them")
        else:
            seen[key] = mark

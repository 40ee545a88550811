"""The ``filter`` parameter of Compute Engine's lists.

Invariant: what is not understood is refused, never taken for "everything". Equality with ``*``,
presence (``:*``), ordering of numbers and times, AND, OR and parentheses are known, and one
``eq`` or ``ne`` with a regular expression. As at Google, ``:`` finds no part of a link.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final

#: A resource as filters see it: the text of a field, or None where it has none.
Fields = Callable[[str], str | None]
Test = Callable[[Fields], bool]

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<paren>[()])|(?P<word>AND|OR)\b"
    r"|(?P<field>[A-Za-z][\w.-]*)\s*(?P<op>!=|>=|<=|=|>|<|:|\beq\b|\bne\b)\s*"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s()]+))"
)


class BadFilterError(ValueError):
    """A filter that cannot be read."""


def parse(text: str) -> Test:
    """The test that ``text`` means; raises BadFilterError."""
    if not text.strip():
        return lambda _: True
    tokens: list[re.Match[str]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise BadFilterError(f"Invalid list filter expression: {text[at:]!r}")
        tokens.append(found)
        at = found.end()
    test, rest = _all_of(tokens)
    if rest:
        raise BadFilterError(f"Invalid list filter expression: {rest[0].group()!r}")
    return test


def _all_of(tokens: list[re.Match[str]]) -> tuple[Test, list[re.Match[str]]]:
    """AND, written or not; OR binds more tightly (AIP-160)."""
    tests: list[Test] = []
    while tokens and tokens[0]["paren"] != ")":
        if tokens[0]["word"] == "AND":
            tokens = tokens[1:]
        test, tokens = _any_of(tokens)
        tests.append(test)
    return (lambda f: all(t(f) for t in tests)) if len(tests) != 1 else tests[0], tokens


def _any_of(tokens: list[re.Match[str]]) -> tuple[Test, list[re.Match[str]]]:
    test, tokens = _term(tokens)
    tests = [test]
    while tokens and tokens[0]["word"] == "OR":
        test, tokens = _term(tokens[1:])
        tests.append(test)
    return (lambda f: any(t(f) for t in tests)) if len(tests) > 1 else tests[0], tokens


def _term(tokens: list[re.Match[str]]) -> tuple[Test, list[re.Match[str]]]:
    if not tokens or tokens[0]["word"] or tokens[0]["paren"] == ")":
        raise BadFilterError("Invalid list filter expression: a term is missing")
    first, rest = tokens[0], tokens[1:]
    if first["field"]:
        return _compare(first["field"], first["op"], first["value"].strip("\"'")), rest
    test, rest = _all_of(rest)
    if not rest:
        raise BadFilterError("Invalid list filter expression: ')' is missing")
    return test, rest[1:]


def _compare(field: str, op: str, value: str) -> Test:
    if op == ":" and value == "*":
        return lambda f: f(field) is not None
    if op in ("eq", "ne"):
        try:
            pattern = re.compile(value)
        except re.error as e:
            raise BadFilterError(f"Invalid regular expression: {value!r}") from e
        return lambda f: bool(pattern.fullmatch(f(field) or "")) is (op == "eq")
    if op in (">", ">=", "<", "<="):
        return lambda f: _ordered(f(field), op, value)
    if "*" in value:
        return lambda f: fnmatchcase(f(field) or "", value) is (op != "!=")
    return lambda f: (f(field) == value) is (op != "!=")


def _ordered(have: str | None, op: str, value: str) -> bool:
    if have is None:
        return False
    try:
        sign = float(have) - float(value)
    except ValueError:
        sign = (have > value) - (have < value)
    return {">": sign > 0, ">=": sign >= 0, "<": sign < 0, "<=": sign <= 0}[op]

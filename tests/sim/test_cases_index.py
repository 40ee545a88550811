"""Every public case of the engine's areas is named by a test; cases.md says by which."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).resolve().parents[1]
IDS: Final = TESTS / "data" / "public_cases_ids.csv"
TABLE: Final = Path(__file__).with_name("cases.md")
#: The areas in which each kind of failure must have its test (issue 2).
AREAS: Final = (
    "eventual-consistency", "double-launch", "orphan-leak", "stuck-state", "remediation-storm",
    "capacity-storm", "pagination", "credentials", "time",
)  # fmt: skip
_ID: Final = re.compile(r"PC-\d{3}")


@cache
def cases() -> dict[str, str]:
    """Case id → area."""
    with IDS.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row["area"] for row in csv.DictReader(file)}


def docstrings() -> Iterator[tuple[str, str]]:
    """(test, docstring) of every test function below tests/."""
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
                node.name.startswith("test_")
            ):
                yield f"{path.relative_to(TESTS)}::{node.name}", ast.get_docstring(node) or ""


@cache
def named() -> dict[str, list[str]]:
    """Case id → the tests whose docstrings name it."""
    found: dict[str, list[str]] = {}
    for test, text in docstrings():
        for hit in sorted(set(_ID.findall(text))):
            if hit in cases():
                found.setdefault(hit, []).append(test)
    return found


def table() -> str:
    """cases.md: written by ``python tests/sim/test_cases_index.py``."""
    lines = [
        "# Public cases and their tests", "",
        "Written by `python tests/sim/test_cases_index.py` from the docstrings of the tests; the",
        "cases themselves are in `public-cases.csv` of the field study.", "",
        "| Case | Area | Tests |", "|---|---|---|",
    ]  # fmt: skip
    for case, area in cases().items():
        tests = named().get(case, [])
        if tests:
            lines.append(f"| {case} | {area} | {'<br>'.join(f'`{t}`' for t in tests)} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("area", AREAS)
def test_each_case_of_an_area_has_a_test(area: str) -> None:
    missing = [case for case, of in cases().items() if of == area and case not in named()]
    assert not missing, f"no test names {missing}"


def test_the_table_is_current() -> None:
    """Only ids are compared: a test may be renamed without writing the table again."""
    have = set(re.findall(r"^\| (PC-\d{3}) ", TABLE.read_text(encoding="utf-8"), re.MULTILINE))
    assert set(named()) <= have, "write it again: python tests/sim/test_cases_index.py"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")

"""Pages point at what exists: links, files, commands and their options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from fleet.cli import fleetctl, fleetd

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NAMES: Final = [p.relative_to(ROOT).as_posix() for p in PAGES]
TOPS: Final = ("config", "fleet", "images", "policies", "providers", "scripts", "tests")
LINK: Final = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE: Final = re.compile(r"^ *```.*?^ *```\s*?$", re.MULTILINE | re.DOTALL)
DOCS_PATH: Final = re.compile(r"(?<![\w./-])docs/[\w./-]*\w")
CODE_PATH: Final = re.compile(rf"`((?:{'|'.join(TOPS)})/[\w./-]*)`")
COMMAND: Final = re.compile(r"^ *(?:sudo -u \w+ )?((?:fleetctl|fleetd)(?: .*)?)$", re.MULTILINE)
INLINE: Final = re.compile(r"`((?:fleetctl|fleetd) [^`\n]+)`")
#: Usage lines and prose beside commands are not options.
OPTION: Final = re.compile(r"--?[a-z][a-z-]*")


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@cache
def anchors(path: Path) -> frozenset[str]:
    """The headings of a page as GitHub names them."""
    plain = FENCE.sub("", path.read_text("utf-8"))
    heads = re.findall(r"^#+ +(.+?) *$", plain, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads)


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    wrong = []
    for target in LINK.findall(FENCE.sub("", text(name))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / name).parent / file if file else ROOT / name
        if not path.exists() or (anchor and anchor not in anchors(path.resolve())):
            wrong.append(target)
    assert wrong == []


def sources() -> Iterator[Path]:
    for top in (*TOPS, "docs"):
        for path in (ROOT / top).rglob("*"):
            if path.suffix in {".py", ".md", ".yaml", ".service", ".toml"}:
                yield path
    yield from (p for p in (*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"))


def test_named_pages_exist() -> None:
    """Hints in the code too: an error that points nowhere helps nobody."""
    wrong = [
        f"{path.relative_to(ROOT)}: {found}"
        for path in sources()
        if path != Path(__file__).resolve()
        for found in DOCS_PATH.findall(path.read_text("utf-8"))
        if not (ROOT / found).exists()
    ]
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_named_files_exist(name: str) -> None:
    assert [p for p in CODE_PATH.findall(text(name)) if not (ROOT / p).exists()] == []


def find(words: list[str]) -> tuple[Any, list[str], list[Any]]:
    """The command that words name, what is left of them, and the groups on the way."""
    app = fleetctl.app if words[0] == "fleetctl" else fleetd.app
    command: Any = typer.main.get_command(app)
    groups, rest = [command], words[1:]
    while rest and hasattr(command, "commands"):
        if rest[0] not in command.commands:
            break
        command, rest = command.commands[rest[0]], rest[1:]
        groups.append(command)
    return command, rest, groups


def mistake(line: str) -> str:
    """What is wrong with a command line of a page, "" if nothing is."""
    try:
        words = shlex.split(line.split(" | ", maxsplit=1)[0], comments=True)
    except ValueError:  # an apostrophe in the prose beside it
        words = line.split()
    command, rest, groups = find(words)
    if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        return f"{line!r}: no command {rest[0]!r}"
    known = {"--help", "-h"}
    for group in groups:
        known |= {o for p in group.params for o in (*p.opts, *p.secondary_opts)}
    wrong = [
        w for w in rest
        if w.startswith("-") and OPTION.fullmatch(w.split("=")[0]) and w.split("=")[0] not in known
    ]  # fmt: skip
    return f"{line!r}: no option {', '.join(wrong)}" if wrong else ""


def commands(page: str) -> Iterator[str]:
    for block in FENCE.findall(page):
        yield from COMMAND.findall(block)
    yield from INLINE.findall(FENCE.sub("", page))


@pytest.mark.parametrize("name", NAMES)
def test_named_commands_exist(name: str) -> None:
    assert [m for line in commands(text(name)) if (m := mistake(line))] == []


@pytest.mark.parametrize("line", ["fleetctl gett nodes", "fleetd db dump", "fleetctl get --wach"])
def test_a_wrong_command_is_found(line: str) -> None:
    assert mistake(line)

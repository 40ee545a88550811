"""``apply`` and ``diff``: policy files to the server, all or nothing.

Invariant: files are read here and judged there; what is confirmed is what is applied (the plan's
ETag goes with the request), and nothing is applied when one file is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from fleet.cli import ask, render
from fleet.cli.fail import DIFFERS, USAGE, Fail, tell
from fleet.cli.session import Session
from fleet.cli.text_out import json_text, terminal

SUFFIXES: Final = (".yaml", ".yml", ".json")
FILE_MAX: Final = 8 * 1024 * 1024
_MARK: Final = {"create": "+", "update": "~", "delete": "-"}


def read(paths: Sequence[str]) -> list[dict[str, str]]:
    """The files (or folders, or ``-``) as name and text. Exit 2 for one that cannot be read."""
    if not paths:
        raise Fail(USAGE, "name the files", fix="fleetctl apply -f FILE", name="usage")
    return [{"name": name, "text": text} for name, text in _read(paths)]


def _read(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        if path == "-":
            yield "stdin", sys.stdin.read(FILE_MAX)
            continue
        found = [Path(path)]
        if found[0].is_dir():
            found = sorted(p for p in found[0].iterdir() if p.suffix in SUFFIXES and p.is_file())
            if not found:
                raise Fail(USAGE, f"{path}: no policy file in this folder",
                           fix="name a folder with .yaml files", name="unreadable")  # fmt: skip
        for file in found:
            yield str(file), _text(file)


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
        if len(data) > FILE_MAX:
            raise Fail(USAGE, f"{file}: {len(data):,} bytes, at most {FILE_MAX:,} are read",
                       name="unreadable")  # fmt: skip
        return data.decode("utf-8")
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise Fail(USAGE, f"{file}: {why}", fix="check the path", name="unreadable") from None
    except UnicodeDecodeError as error:
        raise Fail(USAGE, f"{file}: byte {error.start} is not UTF-8", fix="save it as UTF-8",
                   name="unreadable") from None  # fmt: skip


def change_lines(changes: Sequence[dict[str, Any]]) -> list[str]:
    """The plan: per object what changes, from what to what, and what fleetd will do."""
    found: list[str] = []
    last = ""
    for c in changes:
        mark = _MARK.get(c["action"], "?")
        if c["object"] != last:
            whole = f"   {c['effect']}" if c["effect"] and not c["pointer"] else ""
            found.append(terminal(f"{mark} {c['object']}  {c['action']}{whole}"))
            last = c["object"]
        if c["pointer"]:
            effect = f"   ⇒ {c['effect']}" if c["effect"] else ""
            field = c["pointer"].removeprefix("/spec/").replace("/", ".")
            found.append(terminal(f"    {field}: {_short(c['old'])} → {_short(c['new'])}{effect}"))
    return found


def _short(value: Any) -> str:
    if value is None:
        return "(none)"
    text = json_text(value)
    return text if len(text) <= 70 else f"{text[:69]}…"


def diff(session: Session, paths: Sequence[str], *, exit_code: bool, form: str) -> None:
    """Print what applying would change; exit 9 for a difference with ``--exit-code``."""
    result = session.client.post("/v1/diff", {"files": read(paths)})
    _print(result, form)
    if exit_code and result["changes"]:
        raise Fail(DIFFERS, "")


def apply(session: Session, paths: Sequence[str], *, dry_run: bool, exit_code: bool, yes: bool,
          if_version: str, form: str) -> None:  # fmt: skip
    """Validate all, show the plan, apply all or nothing."""
    files = read(paths)
    tag = {"if-match": if_version} if if_version else {}
    plan = session.client.post("/v1/diff", {"files": files}, tag)
    changes = plan["changes"]
    if dry_run or not changes:
        _print(plan, form)
        if exit_code and changes:
            raise Fail(DIFFERS, "")
        return
    if not yes and not ask.interactive():
        raise Fail(USAGE, "apply needs --yes when there is no terminal",
                   why=f"{len(changes)} changes would be made",
                   fix="fleetctl apply -f FILE --yes      or look first: --dry-run",
                   name="usage")  # fmt: skip
    ask.confirm(change_lines(changes), "yes", "apply this", yes=yes)
    result = session.client.post("/v1/apply", {"files": files}, {"if-match": plan["etag"]})
    if form == "table":
        render.out(
            terminal(f"{a['kind'].lower()}/{a['name']} applied, version {a['version']}")
            for a in result["applied"]
        )
    else:
        _print(result, form)
    if result["frozen"]:
        tell([f"FROZEN: {terminal(result['frozen'])}"])


def _print(result: dict[str, Any], form: str) -> None:
    if form == "json":
        render.out([json_text(result, indent=2)])
    elif form == "yaml":
        render.out(render.yaml_lines(result))
    elif form == "jsonl":
        render.out(json_text(c) for c in result["changes"])
    elif form == "name":
        render.out(dict.fromkeys(terminal(c["object"]) for c in result["changes"]))
    elif result["changes"]:
        render.out(change_lines(result["changes"]))
    else:
        n = len(result["objects"])
        tell([f"nothing to change in {n} object{'s' * (n != 1)}"])

"""One answer, several skins: table, wide, json, yaml, name, csv, jsonl.

Invariant: stdout gets the payload and nothing else; its bytes do not depend on a terminal being
there, but for colour and the width of the last column of a table.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet.cli.fail import NOT_FOUND, USAGE, Fail
from fleet.cli.text_out import ascii_only, csv_text, cut, json_text, terminal, width

FORMATS: Final = ("table", "wide", "json", "yaml", "name", "csv", "jsonl")
_COLOURS: Final = {"●": "32", "▲": "33", "✗": "31", "■": "31", "◐": "33"}
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./@+-]*")
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """How the terminal wants it."""

    colour: bool = False
    ascii: bool = False
    columns: int | None = None


def look(stream: Any = None, *, no_color: bool = False, ascii_: bool = False) -> Look:
    """What a stream can show: colour and width only on a terminal, never with NO_COLOR."""
    stream = stream or sys.stdout
    tty = bool(getattr(stream, "isatty", lambda: False)())
    dumb = os.environ.get("TERM") == "dumb"
    columns = None
    if tty:
        try:
            columns = os.get_terminal_size(stream.fileno()).columns or None
        except (OSError, ValueError):
            columns = None
    colour = tty and not (no_color or dumb or os.environ.get("NO_COLOR"))
    encoding = (getattr(stream, "encoding", "") or "").lower().replace("-", "")
    return Look(colour, ascii_ or not encoding.startswith("utf"), columns)


def check_format(name: str) -> str:
    """A known output format, or exit 2 with the list."""
    if name in FORMATS:
        return name
    raise Fail(USAGE, f"unknown output format {name!r}", fix=f"-o {'|'.join(FORMATS)}",
               name="usage")  # fmt: skip


def chosen(answer: Answer, *, wide: bool, names: Sequence[str]) -> list[int]:
    """Which columns to show: by name or key, else by priority. Unknown names are exit 3."""
    columns = answer["columns"]
    if not names:
        return [i for i, c in enumerate(columns) if c["priority"] <= (1 if wide else 0)]
    found = []
    for name in names:
        low = name.lower()
        hit = [i for i, c in enumerate(columns) if low in (c["name"].lower(), c["key"])]
        if not hit:
            have = ", ".join(c["key"] for c in columns)
            raise Fail(NOT_FOUND, f"no column named {name!r}", fix=f"columns: {have}",
                       name="unknown_column")  # fmt: skip
        found.append(hit[0])
    return found


def table(answer: Answer, *, wide: bool = False, names: Sequence[str] = (), headers: bool = True,
          how: Look = Look(), widths: list[int] | None = None) -> list[str]:  # fmt: skip
    """Aligned lines; the last column is cut at the terminal's edge unless wide.

    ``widths`` are columns' least widths, and take in those that were used.
    """
    picked = chosen(answer, wide=wide, names=names)
    columns = [answer["columns"][i] for i in picked]
    rows = [[terminal(str(item["cells"][i])) for i in picked] for item in answer["items"]]
    if headers:
        rows.insert(0, [terminal(c["name"]) for c in columns])
    if how.ascii:
        rows = [[ascii_only(cell) for cell in row] for row in rows]
    right = [c["align"] == "right" for c in columns]
    edge = None if wide else how.columns
    found = align(rows, right, edge, widths)
    return [paint(t, how) for t in found]


def align(rows: Sequence[Sequence[str]], right: Sequence[bool], edge: int | None = None,
          widths: list[int] | None = None) -> list[str]:  # fmt: skip
    """Rows as lines with two spaces between columns, at least ``widths`` wide."""
    if not rows:
        return []
    last = len(rows[0]) - 1
    least = [*(widths or ()), *[0] * (last + 1)]
    room = [max(least[i], *(width(row[i]) for row in rows)) for i in range(last + 1)]
    if widths is not None:
        widths[:] = room
    found = []
    for row in rows:
        parts = []
        for i, cell in enumerate(row):
            gap = " " * (room[i] - width(cell))
            if right[i]:
                parts.append(gap + cell)
            else:
                parts.append(cell if i == last else cell + gap)
        line = "  ".join(parts).rstrip()
        found.append(cut(line, edge) if edge and edge > 20 else line)
    return found


def paint(line: str, how: Look) -> str:
    """Colour for our shapes, after everything else was made harmless."""
    if not how.colour:
        return line
    for glyph, colour in _COLOURS.items():
        if glyph in line:
            line = line.replace(glyph, f"\x1b[{colour}m{glyph}\x1b[0m")
    return line


def bare(answer: Answer) -> dict[str, Any]:
    """The answer for programs: without the columns and cells, which say the same again."""
    items = [{k: v for k, v in i.items() if k != "cells"} for i in answer["items"]]
    return {**{k: v for k, v in answer.items() if k != "columns"}, "items": items}


def payload(answer: Answer, form: str, *, names: Sequence[str] = (), headers: bool = True,
            how: Look = Look()) -> Iterable[str]:  # fmt: skip
    """The lines of stdout for a list answer in one of ``FORMATS``."""
    if form in ("table", "wide"):
        if not answer["items"]:
            return []
        return table(answer, wide=form == "wide", names=names, headers=headers, how=how)
    if form == "json":
        return [json_text(bare(answer), indent=2)]
    if form == "yaml":
        return yaml_lines(bare(answer))
    if form == "jsonl":
        return [json_text(item) for item in bare(answer)["items"]]
    if form == "name":
        one = str(answer["kind"]).removesuffix("List").lower()
        return [terminal(f"{one}/{item['name']}") for item in answer["items"]]
    return csv_lines(answer, names=names, headers=headers)


def csv_lines(answer: Answer, *, names: Sequence[str] = (), headers: bool = True) -> list[str]:
    """RFC 4180 lines of raw fields, headed by their keys; text columns are guarded."""
    columns = [answer["columns"][i] for i in chosen(answer, wide=True, names=names)]
    keys = list(dict.fromkeys(c["key"] for c in columns))
    rows = [keys] if headers else []
    rows += [[_csv(item.get(key)) for key in keys] for item in answer["items"]]
    return [",".join(_quote(cell) for cell in row) for row in rows]


def _csv(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return csv_text(value if isinstance(value, str) else json_text(value))


def _quote(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if any(c in cell for c in ',"\r\n') else cell


def yaml_lines(value: Any, depth: int = 0) -> list[str]:
    """``value`` as YAML: block style, strings quoted as JSON unless plainly harmless."""
    pad = "  " * depth
    if isinstance(value, Mapping) and value:
        found = []
        for key, inner in value.items():
            found += _yaml_entry(f"{pad}{_scalar(str(key))}:", inner, depth + 1)
        return found
    if isinstance(value, list | tuple) and value:
        found = []
        for inner in value:
            nested = yaml_lines(inner, depth + 1)
            found.append(f"{pad}- {nested[0].lstrip()}")
            found += nested[1:]
        return found
    return [pad + _scalar(value)]


def _yaml_entry(head: str, inner: Any, depth: int) -> list[str]:
    if isinstance(inner, Mapping | list | tuple) and inner:
        return [head, *yaml_lines(inner, depth)]
    return [f"{head} {_scalar(inner)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if isinstance(value, Mapping | list | tuple):
        return "{}" if isinstance(value, Mapping) else "[]"
    return json_text(value)


def page(answer: Answer, how: Look = Look()) -> list[str]:
    """A describe answer as lines: the headline, then labelled sections."""
    found = [terminal(str(answer["head"])), ""]
    labels = [s["label"] for s in answer["sections"] if s["lines"]]
    room = max((len(label) for label in labels), default=0)
    for section in answer["sections"]:
        for i, text in enumerate(section["lines"]):
            label = section["label"] if i == 0 else ""
            found.append(f"  {terminal(label).ljust(room)}  {terminal(text)}".rstrip())
    if how.ascii:
        found = [ascii_only(t) for t in found]
    return [paint(t, how) for t in found]


def out(texts: Iterable[str]) -> None:
    """Write the payload to stdout at once."""
    data = "".join(f"{t}\n" for t in texts)
    if data:
        sys.stdout.write(data)
        sys.stdout.flush()

"""The generated part of ``docs/policies.md``: every field with type, default and meaning.

Invariant: read from the JSON Schema and the tables of checks and faults, so that page, schema and
models cannot drift apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from policies.checks import CHECKS
from policies.faults import FIRST_SXID, catalog
from policies.schema import KINDS

TARGET: Final = Path("docs") / "policies.md"
BEGIN: Final = "<!-- generated from here on: python -m policies.jsonschema -->"

#: A branch this long is a list of names; the page shows it once, elsewhere.
_LONG: Final = 200


def write(whole: Mapping[str, Any]) -> None:
    """Replace what follows ``BEGIN`` in the page by fresh output from the schema ``whole``."""
    page = TARGET.read_text(encoding="utf-8")
    head, mark, _ = page.partition(BEGIN)
    if not mark:
        raise SystemExit(f"{TARGET} lacks the line {BEGIN}")
    TARGET.write_text(f"{head}{BEGIN}\n\n{text(whole)}", encoding="utf-8")


def text(whole: Mapping[str, Any]) -> str:
    """The generated part, from the JSON Schema ``whole``."""
    parts = [_kind(name, whole) for name in KINDS]
    return "\n".join([*parts, _checks(), _faults()])


def _kind(name: str, whole: Mapping[str, Any]) -> str:
    spec = whole["$defs"][name]
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{path}` | {kind} | {default} | {meaning} |"
        for path, kind, default, meaning in _fields(spec, whole["$defs"], "")
    ]
    return f"## {name}\n\n{spec['description']}\n\n" + "\n".join(rows) + "\n"


Row = tuple[str, str, str, str]


def _fields(spec: Mapping[str, Any], defs: Mapping[str, Any], prefix: str) -> Iterator[Row]:
    required = spec.get("required", ())
    for name, field in spec.get("properties", {}).items():
        path = f"{prefix}{name}"
        if "default" in field:
            default = _default(field["default"])
        else:
            default = "required" if name in required else ""
        yield path, _type(field, defs), default, _cell(_meaning(field, defs))
        for suffix, inner in _inside(field, defs):
            yield from _fields(inner, defs, f"{path}{suffix}.")


def _meaning(field: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """A field's own description, else (pydantic drops equal ones) that of what it refers to."""
    inner = defs[field["$ref"].rpartition("/")[2]] if "$ref" in field else {}
    return str(field.get("description") or inner.get("description", ""))


def _inside(field: Mapping[str, Any], defs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Objects within a field: its own, those of a list's entries, those under free keys."""
    if "$ref" in field:
        inner = defs[field["$ref"].rpartition("/")[2]]
        if inner.get("type") == "object":
            yield "", inner
    for branch in (*field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ())):
        yield from _inside(branch, defs)
    if isinstance(items := field.get("items"), dict):
        for suffix, inner in _inside(items, defs):
            yield f"[]{suffix}", inner
    if isinstance(values := field.get("additionalProperties"), dict):
        for suffix, inner in _inside(values, defs):
            yield f".NAME{suffix}", inner


def _type(field: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return _type(defs[field["$ref"].rpartition("/")[2]], defs)
    for word in ("anyOf", "oneOf", "allOf"):
        if word in field:
            return " or ".join(dict.fromkeys(_type(branch, defs) for branch in field[word]))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), defs)}"
    return _NAMES.get(field.get("type", ""), "any") + _range(field)


_NAMES: Final = {
    "object": "mapping",
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "null": "null",
}


def _range(field: Mapping[str, Any]) -> str:
    words = (
        ("exclusiveMinimum", "> "),
        ("minimum", "≥ "),
        ("exclusiveMaximum", "< "),
        ("maximum", "≤ "),
    )
    parts = [f"{sign}{field[word]:.15g}" for word, sign in words if word in field]
    return f" {', '.join(parts)}" if parts else ""


def _default(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict) and value:
        return "see its fields"
    if len(shown) > _LONG:
        return "see the table of checks"
    return f"`{_cell(shown)}`"


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


def _checks() -> str:
    rows = [
        "| check | stage | level | unit | bounds | gate | looks at | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for check in CHECKS.values():
        least = f"≥ {check.least:.15g}" if check.least is not None else ""
        most = f"≤ {check.most:.15g}" if check.most is not None else ""
        gate = "yes" if check.gate else ""
        rows.append(
            f"| `{check.name}` | {check.stage} | {check.level} | {check.unit} | {least}{most} "
            f"| {gate} | {_cell(check.description)} | {_cell(check.source)} |"
        )
    head = (
        f"## Checks ({len(CHECKS)})\n\n"
        "Level and bounds are defaults; a HealthPolicy may change them. Where no bound is given "
        "the agent judges by vendor limits or by the reference numbers of the model. `gate`: the "
        "gate waits for it by default.\n"
    )
    return head + "\n" + "\n".join(rows) + "\n"


def _faults() -> str:
    rows = ["| fault class | severity | meaning | action | source |", "|---|---|---|---|---|"]
    numbered = {"xid": 0, "sxid": 0}
    for fault in catalog().values():
        family = fault.code.partition("_")[0]
        if family in numbered and fault.category:
            numbered[family] += 1
            continue
        rows.append(
            f"| `{fault.code}` | {fault.severity} | {_cell(fault.description)} "
            f"| {_cell(fault.action)} | {_cell(fault.source)} |"
        )
    head = (
        "## Fault classes\n\n"
        f"Besides these: {numbered['xid']} XIDs (`xid_79`) and {numbered['sxid']} NVSwitch SXIDs "
        f"(`sxid_20034`, numbers from {FIRST_SXID}) of `policies/data/xid_catalog.csv`. A code "
        "that nobody knows is a warning.\n"
    )
    return head + "\n" + "\n".join(rows) + "\n"

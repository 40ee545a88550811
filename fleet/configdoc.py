"""docs/config.md, generated from the settings classes so that it cannot lag behind them."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any, Final, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fleet.config import Settings
from providers import registry

HEAD: Final = """# Configuration

`fleetd run -c /etc/fleetd/fleetd.yaml`. The file is accepted whole or refused whole
(`fleetd check-config`), and every field can be set by the environment: `FLEETD_` and the field's
path with `__` between its parts (`FLEETD_AGENTS__PORT=7070`). Secrets are names of files, never
values. `mode`, `timing` and `limits` are taken over on SIGHUP; everything else needs a restart.

Generated from `fleet/config.py`; a test keeps this page current.
"""


def reference() -> str:
    """docs/config.md."""
    parts = [HEAD, *_section("fleetd.yaml", Settings)]
    for kind in registry.kinds():
        title = f"providers: kind {kind}"
        parts += _section(title, registry.cloud(kind).Settings)
    return "\n".join(parts)


def _section(title: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for path, field, comment in _fields(model):
        text = (field.description or comment).replace("|", "\\|").rstrip(".")
        yield f"| `{path}` | {_type(field)} | {_default(field)} | {text} |"
    yield ""


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo, str]]:
    comments = _comments(model)
    for name, field in model.model_fields.items():
        inner = _model(field.annotation)
        if inner is not None:
            yield from _fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, field, comments.get(name, "")


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """The ``#:`` comment above each field, where the class has those instead of descriptions."""
    found: dict[str, str] = {}
    words: list[str] = []
    for line in inspect.getsource(model).splitlines():
        text = line.strip()
        if text.startswith("#:"):
            words.append(text.removeprefix("#:").strip())
        else:
            name, colon, _ = text.partition(":")
            if words and colon and name.isidentifier():
                found[name] = " ".join(words)
            words = []
    return found


def _model(annotation: Any) -> type[BaseModel] | None:
    """The section behind an annotation, also behind ``Section | None``."""
    options = typing.get_args(annotation) if _union(annotation) else (annotation,)
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def _union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _type(field: FieldInfo) -> str:
    annotation = field.annotation
    if typing.get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(annotation))
    bounds = [_bound(m) for m in field.metadata]
    name = _name(annotation)
    return " ".join([name, *(b for b in bounds if b)])


def _name(annotation: Any) -> str:
    if _union(annotation):
        options = [a for a in typing.get_args(annotation) if a is not type(None)]
        return " or ".join(_name(o) for o in options)
    origin = typing.get_origin(annotation)
    if origin in (list, dict):
        inner = [_name(a) for a in typing.get_args(annotation)]
        return f"list of {inner[0]}" if origin is list else f"map of {inner[0]} to {inner[1]}"
    if origin is Literal:
        return " or ".join(str(a) for a in typing.get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "{" + ", ".join(annotation.model_fields) + "}"
    words = {"str": "text", "int": "integer", "float": "number", "bool": "true or false",
             "Path": "path", "dict": "map", "Any": "anything"}  # fmt: skip
    return words.get(getattr(annotation, "__name__", str(annotation)), str(annotation))


def _bound(meta: Any) -> str:
    for sign, name in ((">", "gt"), ("≥", "ge"), ("<", "lt"), ("≤", "le")):
        value = getattr(meta, name, None)
        if value is not None:
            return f"{sign} {value:.10g}"
    return ""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, dict | BaseModel):
        return "built in"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"

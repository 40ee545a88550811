"""Turns pydantic's errors into sentences a person can act on.

Invariant: every error type that our models can raise has a sentence of its own and a fix; the
place is the nearest value or key that exists in the text.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from policies.document import Doc, PolicyProblem, Steps
from policies.text import did_you_mean, quoted

#: Problems shown per document; the rest is said as a number.
MAX_SHOWN: Final = 50


def problems_of(doc: Doc, model: type[BaseModel], error: ValidationError) -> list[PolicyProblem]:
    """``error`` of validating ``doc`` against ``model`` as problems with place and fix."""
    details = [d for d in error.errors(include_url=False) if not _echo(d)]
    found = [_problem(doc, model, detail) for detail in details]
    if len(found) > MAX_SHOWN:
        rest = len(found) - MAX_SHOWN
        found = [
            *found[:MAX_SHOWN],
            doc.problem((), f"and {rest} more problems", "mend these first"),
        ]
    return found


def _problem(doc: Doc, model: type[BaseModel], detail: ErrorDetails) -> PolicyProblem:
    loc = tuple(step for step in detail["loc"] if not _is_tag(step))
    is_key = bool(loc) and loc[-1] == "[key]"
    path: Steps = loc[:-1] if is_key else loc
    kind, value = detail["type"], detail["input"]
    ctx: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "missing":
        what = f"field {path[-1]} is missing"
        return doc.problem(path[:-1], what, f"add {path[-1]}: …")
    if kind == "extra_forbidden":
        what = f"unknown field {quoted(path[-1])}"
        fix = did_you_mean(str(path[-1]), fields_at(model, path[:-1]))
        return doc.problem(path, what, fix, mark=doc.keys.get(path))
    if kind == "refused":
        path = (*path, *ctx["at"])
        mark = doc.keys.get(path) if is_key else None
        return doc.problem(path, str(ctx["what"]), str(ctx["fix"]), mark=mark)
    say = _SENTENCES.get(kind)
    what, fix = say(value, ctx) if say else (detail["msg"], "")
    return doc.problem(path, what, fix)


def _echo(detail: ErrorDetails) -> bool:
    """True for "too short" that only counts the good entries of a list with bad ones."""
    value = detail["input"]
    if detail["type"] != "too_short" or not isinstance(value, list | dict):
        return False
    return len(value) >= int(detail["ctx"]["min_length"])


def _is_tag(step: str | int) -> bool:
    return isinstance(step, str) and step.startswith("<") and step.endswith(">")


def fields_at(model: type[BaseModel], path: Steps) -> frozenset[str]:
    """Names of the fields allowed at ``path`` of ``model``; none where free keys are."""
    here: list[Any] = [model]
    for step in path:
        inner: list[Any] = []
        for kind in here:
            inner += _step(kind, step)
        here = inner
    return frozenset(name for kind in here if _is_model(kind) for name in kind.model_fields)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _step(kind: Any, step: str | int) -> list[Any]:
    if _is_model(kind):
        field = kind.model_fields.get(step)
        return _open(field.annotation) if field else []
    args = get_args(kind)
    if get_origin(kind) is tuple and isinstance(step, int):
        return _open(args[0])
    if get_origin(kind) is dict and isinstance(step, str):
        return _open(args[1])
    return []


def _open(annotation: Any) -> list[Any]:
    """The members of a union, without ``Annotated``."""
    if hasattr(annotation, "__metadata__"):
        return _open(annotation.__origin__)
    if get_origin(annotation) in {Union, types.UnionType}:
        return [inner for arg in get_args(annotation) for inner in _open(arg)]
    return [annotation]


Said = tuple[str, str]


def _not_a(noun: str, fix: str) -> Callable[[Any, Mapping[str, Any]], Said]:
    def say(value: Any, _: Mapping[str, Any]) -> Said:
        return f"{_shown(value)} is not {noun}", fix

    return say


def _not_whole(value: Any, _: Mapping[str, Any]) -> Said:
    if isinstance(value, str) and value.strip().lstrip("-").isdigit():
        return f"{_shown(value)} is text, not a whole number", "write it in decimals without quotes"
    return f"{_shown(value)} is not a whole number", "write a whole number"


def _not_number(value: Any, _: Mapping[str, Any]) -> Said:
    if isinstance(value, str) and value[-1:].isalpha() and value[:1].isdigit():
        return f"{_shown(value)} is not a number", "leave the unit out; the field's name has it"
    return f"{_shown(value)} is not a number", "write a number without quotes"


def _not_text(value: Any, _: Mapping[str, Any]) -> Said:
    return f"{_shown(value)} is not text", "put it in double quotes"


def _bound(words: str, key: str) -> Callable[[Any, Mapping[str, Any]], Said]:
    def say(value: Any, ctx: Mapping[str, Any]) -> Said:
        return f"{_shown(value)} is out of range", f"write {words} {ctx[key]:g}"

    return say


def _literal(value: Any, ctx: Mapping[str, Any]) -> Said:
    allowed = str(ctx["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
    return f"{_shown(value)} is not allowed here", did_you_mean(str(value), allowed)


def _few(_: Any, ctx: Mapping[str, Any]) -> Said:
    return f"{ctx['actual_length']} entries", f"write at least {ctx['min_length']}"


def _many(value: Any, ctx: Mapping[str, Any]) -> Said:
    said = f"{len(value)} entries" if isinstance(value, list | dict) else "too many entries"
    return said, f"write at most {ctx['max_length']}"


def _long(value: Any, ctx: Mapping[str, Any]) -> Said:
    return f"text of {len(value)} characters", f"write at most {ctx['max_length']}"


def _shown(value: Any) -> str:
    if value is None:
        return "an empty value"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.15g}"
    return quoted(value)


_MAPPING: Final = _not_a("a mapping", "write its fields indented below it")
_LIST: Final = _not_a("a list", "begin each entry with a dash")

_SENTENCES: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], Said]]] = {
    "int_type": _not_whole,
    "int_from_float": _not_whole,
    "float_type": _not_number,
    "finite_number": _not_a("a finite number", "write a number"),
    "string_type": _not_text,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dict_type": _MAPPING,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("less than", "lt"),
    "less_than_equal": _bound("at most", "le"),
    "literal_error": _literal,
    "enum": _literal,
    "too_short": _few,
    "too_long": _many,
    "string_too_long": _long,
}

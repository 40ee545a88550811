"""Bodies of Azure's Compute API checked by the SDK's own types.

Invariant: what a body may hold comes from the typed dictionaries that the client's package ships,
so the skin cannot drift from it; a member they do not have is an error, as at Azure. The SDK is
loaded by the first check, never by importing this module.
"""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Any, Required, Union, get_args, get_origin


def problem(body: object, type_name: str = "VirtualMachine") -> str:
    """What is wrong with a request's body, with its place; ``""`` when nothing is."""
    return _object_problem(body, _types()[type_name], "")


@cache
def _types() -> dict[str, Any]:
    """The typed dictionaries and the enums that they name (1 s, once per process)."""
    from azure.mgmt.compute import models, types

    return {**vars(models), **vars(types)}


@cache
def _members(shape: Any) -> dict[str, tuple[Any, bool]]:
    """Member name to its type and whether a body must have it."""
    found: dict[str, tuple[Any, bool]] = {}
    for base in (*shape.__mro__[::-1], shape):
        for name, hint in getattr(base, "__annotations__", {}).items():
            kind = _resolved(hint)
            required = get_origin(kind) is Required
            found[name] = (_resolved(get_args(kind)[0]) if required else kind, required)
    return found


def _resolved(hint: Any) -> Any:
    name = hint if isinstance(hint, str) else getattr(hint, "__forward_arg__", None)
    return _types().get(name, Any) if name else hint


def _problem(value: object, hint: Any, where: str) -> str:
    hint = _resolved(hint)
    kind, place = get_origin(hint), where or "the body"
    if hint is Any or value is None:
        return ""
    if kind in (Union, UnionType):
        # a string or an enum of strings
        plain = [a for a in get_args(hint) if isinstance(a, type)]
        fits = any(isinstance(value, a) for a in plain)
        return "" if fits or not plain else f"{place} has a value of the wrong kind"
    if kind is list:
        if not isinstance(value, list):
            return f"{place} must be a list"
        items = (_problem(v, get_args(hint)[0], f"{where}[{n}]") for n, v in enumerate(value))
        return next((p for p in items if p), "")
    if kind is dict:
        if not isinstance(value, dict):
            return f"{place} must be an object"
        named = (_problem(v, get_args(hint)[1], f"{where}.{k}") for k, v in value.items())
        return next((p for p in named if p), "")
    if isinstance(hint, type) and issubclass(hint, dict):
        return _object_problem(value, hint, where)
    if hint is float:
        hint = (int, float)
    wrong = isinstance(hint, type | tuple) and not isinstance(value, hint)
    wrong = wrong or (isinstance(value, bool) and hint is not bool)
    return f"{place} has a value of the wrong kind" if wrong else ""


def _object_problem(value: object, shape: Any, where: str) -> str:
    if not isinstance(value, dict):
        return f"{where or 'the body'} must be an object"
    members = _members(shape)
    for name, (_, required) in members.items():
        if required and value.get(name) is None:
            return f"Required parameter '{_below(where, name)}' is missing (null)."
    for name, inner in value.items():
        if name not in members:
            return f"Could not find member '{name}' on object of type '{shape.__name__}'"
        if found := _problem(inner, members[name][0], _below(where, name)):
            return found
    return ""


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name

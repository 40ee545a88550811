"""Typer without pydantic at start-up: plain conversion of plain parameters.

Invariant: a parameter of str, int, float, bool or a list of one of them is converted here; any
other type, and a Typer whose internals moved, falls back to Typer's own way, only slower (pydantic
is 190 ms of import on the machine where this was measured; the whole budget is 150 ms).
"""

from __future__ import annotations

from typing import Any, Final, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

_PLAIN: Final = (str, int, float, bool)
_NAMES: Final = {int: "a whole number", float: "a number"}


class _Plain:
    """Converts values of one plain type; stands where Typer would build a pydantic adapter."""

    def __init__(self, type_: type, *, many: bool) -> None:
        self._type, self._many = type_, many

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value in its type. Raises BadParameter."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._many:
            return [self._one(v, param, ctx) for v in value]
        return self._one(value, param, ctx)

    def _one(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, self._type):
            return value
        try:
            return self._type(value)
        except (TypeError, ValueError):
            text = f"{value!r} is not {_NAMES.get(self._type, self._type.__name__)}"
            raise typer.BadParameter(text, ctx=ctx, param=param) from None


class QuickCommand(TyperCommand):
    """A command whose plain parameters need no pydantic."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        quicken(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        """Typer's own ``--help``, as quick."""
        return _quick_help(super().get_help_option(ctx))


class QuickGroup(TyperGroup):
    """The same for the command that holds the others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        quicken(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        """Typer's own ``--help``, as quick."""
        return _quick_help(super().get_help_option(ctx))


def _quick_help(option: Any) -> Any:
    if option is not None:
        quicken([option])
    return option


def quicken(params: list[Any]) -> None:
    """Give plain parameters their conversion before Typer looks for one."""
    for param in params:
        descriptor = getattr(param, "type_descriptor", None)
        if getattr(param, "_runtime_param", ...) is not None or descriptor is None:
            continue
        info = descriptor.parameter_info
        if getattr(info, "parser", None) or getattr(info, "min", None) is not None:
            continue
        kind, many = descriptor.annotation, get_origin(descriptor.annotation) is list
        kind = get_args(kind)[0] if many else kind
        if kind in _PLAIN:
            param._runtime_param = _Plain(kind, many=many)  # noqa: SLF001 — see the invariant

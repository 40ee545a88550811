"""Which clouds there are: the file name is the key.

Invariant: ``providers/<kind>.py`` with a class ``Settings`` and a function ``open`` is the cloud
``kind``; nothing lists them elsewhere, and no cloud's module (let alone its SDK) is imported before
that kind is asked for. ``SDK`` in such a file names the module its extra ``fleetd[<kind>]`` brings.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

from pydantic import BaseModel, ValidationError

import providers
from fleet.clock import Chance, Clock
from fleet.errors import InputError, NotFound, Problem, ProviderError
from providers.base import Provider
from providers.wrap import Recorder


class Cloud(Protocol):
    """What a ``providers/<kind>.py`` holds."""

    SDK: str
    Settings: type[BaseModel]

    def open(
        self, settings: Any, *, clock: Clock, chance: Chance, recorder: Recorder | None = None
    ) -> Provider:
        """The provider, paced, retried and recorded; makes no call yet."""
        ...


@cache
def kinds() -> tuple[str, ...]:
    """Every kind of cloud, by looking at the package's files; imports none of them."""
    files = [file for folder in providers.__path__ for file in Path(folder).glob("*.py")]
    return tuple(sorted(p.stem for p in files if "\nclass Settings(" in p.read_text("utf-8")))


def cloud(kind: str) -> Cloud:
    """The module of a kind; raises NotFound with the nearest kinds that exist."""
    if kind not in kinds():
        near = difflib.get_close_matches(kind, kinds(), n=3, cutoff=0.5) or kinds()
        raise NotFound("provider kind", kind, tuple(near))
    return cast(Cloud, importlib.import_module(f"providers.{kind}"))


def parse(raw: Mapping[str, Any], where: str = "providers") -> BaseModel:
    """Settings of one configured provider from plain data; ``kind`` says which cloud.

    Raises InputError naming every field that is wrong, below ``where``.
    """
    kind = raw.get("kind")
    if not isinstance(kind, str):
        raise InputError([Problem(f"{where}.kind", "missing", f"one of {', '.join(kinds())}")])
    try:
        settings = cloud(kind).Settings
    except NotFound as e:
        raise InputError([Problem(f"{where}.kind", str(e))]) from e
    try:
        return settings.model_validate(dict(raw))
    except ValidationError as e:
        raise InputError(
            [
                Problem(".".join([where, *(str(x) for x in p["loc"])]), p["msg"])
                for p in e.errors(include_url=False)
            ]
        ) from e


def open_provider(
    settings: BaseModel, *, clock: Clock, chance: Chance, recorder: Recorder | None = None
) -> Provider:
    """The provider for ``settings`` (as ``parse`` made them), wrapped and ready.

    Raises InputError with the command that mends it when the cloud's SDK is not installed.
    """
    kind = str(getattr(settings, "kind", ""))
    module = cloud(kind)
    if not _installed(module.SDK):
        name = getattr(settings, "name", kind)
        what = f"a provider of kind {kind} needs the Python module {module.SDK}"
        raise InputError([Problem(f"providers.{name}", what, f"pip install 'fleetd[{kind}]'")])
    return module.open(settings, clock=clock, chance=chance, recorder=recorder)


def died_as(kind: str, code: str) -> type[ProviderError] | None:
    """The refusal that the death of an accepted instance amounts to, by the cloud's own code.

    None for codes that are no such death (a user's shutdown, a spot reclaim) or are unknown.
    """
    died: Mapping[str, type[ProviderError]] = getattr(cloud(kind), "DIED", {})
    return died.get(code)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False

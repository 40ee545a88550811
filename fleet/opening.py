"""What a process opens before it serves: settings, data directory, store, marker, key, clouds.

Invariant: one process per data directory; a cell's database is never begun anew beside its marker
file (an empty store makes every machine an orphan, opencode#36728); a store of another cell is
refused.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import BaseModel
from sqlmodel import Session

from fleet.clock import Chance, Clock, SystemChance
from fleet.config import Settings, parse
from fleet.errors import Conflict, InputError, NotFound, Problem
from fleet.store import control, schema
from fleet.store.door import Store
from fleet.tokens import KEY_BYTES, load_key
from policies import yamlio
from providers import registry
from providers.base import Provider
from providers.wrap import Recorder

log = structlog.get_logger("fleetd")

MARKER: Final = "cell-id"
KEY: Final = "cell.key"
CELL_ID: Final = "cell_id"


def configuration(path: Path) -> Settings:
    """The settings in ``path`` with every provider's own settings judged as well.

    Raises InputError with every problem of the whole file, each with its file and line.
    """
    document = yamlio.load_file(path)
    value = document.value or {}
    problems: list[Problem] = []
    settings: Settings | None = None
    try:
        settings = parse(value, where=document.where)
    except InputError as error:
        problems += error.problems
    entries = value.get("providers") if isinstance(value, dict) else None
    for i, entry in enumerate(entries if isinstance(entries, list) else []):
        if isinstance(entry, dict):
            problems += _mistakes(entry, i, document.where)
    if problems or settings is None:
        raise InputError(problems)
    return settings


def _mistakes(entry: dict[str, Any], i: int, where: Callable[[Any], str]) -> list[Problem]:
    try:
        registry.parse(entry, f"providers.{i}")
    except NotFound as error:
        return [Problem(f"{where(('providers', i, 'kind'))}: providers.{i}.kind", str(error))]
    except InputError as error:
        return [
            Problem(f"{where(_steps(p.where))}: {p.where}", p.what, p.fix) for p in error.problems
        ]
    return []


def _steps(field: str) -> tuple[str | int, ...]:
    return tuple(int(s) if s.isdigit() else s for s in field.split("."))


def data_dir(settings: Settings) -> Path:
    """The data directory, made if it is not there; InputError when it cannot be used."""
    path = settings.data_dir
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / ".write-test"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        if error.errno == errno.ENOSPC:  # the daemon can still drain and record (trust.md D5)
            return path
        why = (error.strerror or str(error)).lower()
        fix = "create it for fleetd's user"
        raise InputError([Problem(f"data_dir {path}", why, fix)]) from None
    return path


def store(settings: Settings) -> Store:
    """The locked store with a schema that fits; on a first start it is made.

    Raises Conflict (locked, empty beside a marker, another revision or cell) or InputError.
    """
    marker = data_dir(settings) / MARKER
    opened = Store(settings.store_url)
    try:
        opened.lock()
        if not schema.revision(opened) and not marker.exists():
            schema.upgrade(opened)
            log.info("new database", url=_shown(opened))
        schema.check(opened, marker=marker)
        mark(opened, marker)
    except BaseException:
        opened.close()
        raise
    if not opened.keep_ballast():
        log.warning("no space for the ballast file: a full disk will stop drains from being kept")
    return opened


def upgrade(settings: Settings, *, adopt: bool) -> tuple[str, str]:
    """Bring the database to this program's revision; (from, to).

    ``adopt`` begins a new database although the cell has had one: what the clouds list is then
    adopted and everything is frozen until a person has looked. Raises Conflict.
    """
    marker = data_dir(settings) / MARKER
    opened = Store(settings.store_url)
    try:
        opened.lock()
        if not schema.revision(opened) and marker.exists() and not adopt:
            schema.check(opened, marker=marker)
        found = schema.upgrade(opened)
        mark(opened, marker)
    finally:
        opened.close()
    return found


def mark(opened: Store, marker: Path) -> None:
    """Tie database and directory together by the cell's id; Conflict if they are of two cells."""
    there = ""
    if marker.exists():
        there = marker.read_text("ascii", "replace").strip()

    def fn(tx: Session) -> str:
        known = control.get_meta(tx, CELL_ID)
        if not known:
            known = there or SystemChance().ident("cell", 8)
            control.set_meta(tx, CELL_ID, known)
        return known

    known = opened.call(fn)
    if not there:
        marker.write_text(known + "\n", "ascii")
    elif there != known:
        raise Conflict(
            f"{marker} names cell {there[:32]!r} but the database is of cell {known!r}",
            code="other_cell", fix="point store.url or data_dir at the right one",
        )  # fmt: skip


def cell_key(settings: Settings, chance: Chance) -> bytes:
    """The cell's key, made at the first start."""
    fresh = chance.token(2 * KEY_BYTES).encode()[:KEY_BYTES]
    path = settings.data_dir / KEY
    try:
        return load_key(path, fresh)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError([Problem(str(path), why, "make it readable for fleetd only")]) from None


def parsed(settings: Settings, where: str = "providers") -> list[BaseModel]:
    """The settings of each configured provider; InputError with the mistakes of all."""
    found: list[BaseModel] = []
    problems: list[Problem] = []
    for i, entry in enumerate(settings.providers):
        try:
            found.append(registry.parse(entry, f"{where}.{i}"))
        except InputError as error:
            problems += error.problems
        except NotFound as error:
            problems.append(Problem(f"{where}.{i}.kind", str(error)))
    if problems:
        raise InputError(problems)
    return found


def providers(
    settings: Settings, clock: Clock, chance: Chance, recorder: Recorder | None
) -> dict[str, Provider]:
    """Every configured provider, wrapped, by name; makes no call yet."""
    opened: dict[str, Provider] = {}
    for entry in parsed(settings):
        provider = registry.open_provider(entry, clock=clock, chance=chance, recorder=recorder)
        name = str(getattr(entry, "name", getattr(entry, "kind", "")))
        opened[name] = provider
        begin = getattr(recorder, "open", None)
        if begin is not None:
            begin(name)
    return opened


def _shown(opened: Store) -> str:
    return opened.path or opened.url.split("@")[-1]

"""``fleetd db backup``: a copy of the running database that is known to restore.

Invariant: the file appears under its name only after the copy passed the integrity check, holds
every row that was committed before the copy began, and was opened and read by this program as a
start would (litestream#752: a backup that looked fine and could not be restored).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from fleet import opening
from fleet.config import Settings
from fleet.errors import Conflict, InputError, StoreError
from fleet.store import control, schema
from fleet.store.door import Store
from fleet.store.view import View

COUNTED: Final = ("nodes", "events", "launches", "batches", "joins", "policies", "slots")


def main(config: Path, target: Path) -> int:
    """Write the backup and say what is in it."""
    settings = opening.configuration(config)
    counts = backup(settings, target)
    size = target.stat().st_size
    rows = ", ".join(f"{n} {name}" for name, n in counts.items())
    print(f"{target}: {size} bytes, {rows}; integrity ok, restore rehearsed")
    return 0


def backup(settings: Settings, target: Path) -> dict[str, int]:
    """Copy the database of ``settings`` to ``target``; rows per table in the copy.

    Raises InputError (no SQLite, target exists or cannot be written) or StoreError (the copy is
    not good; nothing is left behind).
    """
    url = settings.store_url
    if not url.startswith("sqlite:///"):
        raise InputError("this cell is on PostgreSQL: use pg_dump --format=custom")
    source = Path(url.removeprefix("sqlite:///"))
    if not source.is_file():
        raise InputError(f"there is no database at {source}")
    if target.exists():
        raise Conflict(f"{target} exists", code="target_exists", fix="name a new file")
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        least = _copy(source, part)
        counts = _verify(part, least)
        _rehearse(part)
        _settle(part, target)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"cannot write {target}: {why}") from None
    except sqlite3.Error as error:
        raise StoreError(f"the backup failed: {error}") from None
    finally:
        part.unlink(missing_ok=True)
    return counts


def _copy(source: Path, part: Path) -> dict[str, int]:
    """VACUUM INTO: one consistent moment, while the daemon goes on writing."""
    connection = sqlite3.connect(source, timeout=60.0, isolation_level=None)
    try:
        least = _counts(connection, ("events", "launches", "batches"))
        connection.execute("VACUUM INTO ?", (str(part),))
        part.chmod(0o600)
    finally:
        connection.close()
    return least


def _verify(part: Path, least: dict[str, int]) -> dict[str, int]:
    connection = sqlite3.connect(f"file:{part}?mode=ro", uri=True)
    try:
        verdict = [row[0] for row in connection.execute("PRAGMA integrity_check").fetchall()]
        if verdict != ["ok"]:
            raise StoreError(f"the copy is damaged: {verdict[0]}")
        counts = _counts(connection, COUNTED)
    finally:
        connection.close()
    for name, n in least.items():
        if name != "events" and counts[name] < n:  # old events may be pruned meanwhile
            raise StoreError(f"the copy has {counts[name]} {name}, {n} were there before")
    return counts


def _counts(connection: sqlite3.Connection, names: tuple[str, ...]) -> dict[str, int]:
    return {
        name: int(connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0])  # noqa: S608
        for name in names
    }


def _rehearse(part: Path) -> None:
    """Open a copy of the copy as a start of fleetd does."""
    with tempfile.TemporaryDirectory(dir=part.parent, prefix=".rehearsal-") as folder:
        trial = Path(folder) / "fleetd.db"
        shutil.copyfile(part, trial)
        store = Store(f"sqlite:///{trial}", ballast=False)
        try:
            schema.check(store, marker=None)
            store.call(View().refresh)
            store.call(control.counts)
        finally:
            store.close()


def _settle(part: Path, target: Path) -> None:
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.link(part, target)  # fails rather than overwrite what appeared meanwhile
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

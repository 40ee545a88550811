"""Migrations lead to the tables, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text
from storekit import node, put, seen

from fleet.errors import Conflict
from fleet.store import schema
from fleet.store.door import Store
from fleet.store.tables import Base


def test_upgrade_from_empty_equals_the_tables(empty: Store) -> None:
    assert schema.revision(empty) == ""
    assert schema.upgrade(empty) == ("", schema.head())
    with empty.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_checks_and_unique_constraints_are_in_the_migrations(empty: Store) -> None:
    """compare_metadata does not look at CHECKs."""
    schema.upgrade(empty)
    found = inspect(empty.engine)
    for table in Base.metadata.tables.values():
        want = {c.name for c in table.constraints if type(c).__name__ == "CheckConstraint"}
        have = {c["name"] for c in found.get_check_constraints(table.name)}
        assert want <= have, table.name
        unique = {c.name for c in table.constraints if type(c).__name__ == "UniqueConstraint"}
        assert unique == {c["name"] for c in found.get_unique_constraints(table.name)}


def test_a_fresh_schema_has_its_counters_and_upgrade_repeats(empty: Store) -> None:
    schema.upgrade(empty)
    assert seen(empty).meta == dict(schema.FIRST_META)
    put(empty, node(1))
    assert schema.upgrade(empty) == (schema.head(), schema.head())
    assert list(seen(empty).nodes) == ["n-1"], "and keeps what is there"
    assert seen(empty).seq == 1


def test_check_takes_the_current_schema(store: Store, tmp_path: Path) -> None:
    schema.check(store, marker=None)
    marker = tmp_path / "cell-id"
    marker.write_text("x")
    schema.check(store, marker=marker)


def refused(store: Store, marker: Path | None = None) -> Conflict:
    with pytest.raises(Conflict) as found:
        schema.check(store, marker=marker)
    assert found.value.fix
    return found.value


def test_an_empty_database_wants_an_upgrade(empty: Store, tmp_path: Path) -> None:
    assert refused(empty).code == "no_schema"
    assert refused(empty, tmp_path / "none").code == "no_schema"


def test_an_empty_database_of_a_known_cell_is_a_lost_one(empty: Store, tmp_path: Path) -> None:
    """PC-006, PC-121: never start empty over a cell that has instances."""
    marker = tmp_path / "cell-id"
    marker.write_text("x")
    assert refused(empty, marker).code == "empty_store"


@pytest.mark.parametrize(("at", "fix"), [("9999", "newer fleetd")])
def test_a_newer_schema_is_refused(store: Store, at: str, fix: str) -> None:
    store.call(lambda tx: tx.execute(text(f"UPDATE alembic_version SET version_num = '{at}'")))
    conflict = refused(store)
    assert conflict.code == "schema_mismatch"
    assert fix in conflict.fix


def test_an_older_schema_is_refused_with_the_way_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "head", lambda: "9999")
    conflict = refused(store)
    assert conflict.code == "schema_mismatch"
    assert "db upgrade" in conflict.fix

"""The door: whole transactions, mapped errors, one process, a full disk."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlmodel import Session
from storekit import fresh, node, put, seen

from fleet.clock import VirtualLoop
from fleet.errors import Conflict, InputError, StoreBroken, StoreError, StoreFull
from fleet.model import Actor
from fleet.store import control, door, schema, write
from fleet.store.door import BALLAST_BYTES, UNSAFE_FS, Store, refuse_unsafe_fs
from fleet.store.tables import MetaRow


def one(store: Store, sql: str) -> object:
    return store.call(lambda tx: tx.execute(text(sql)).scalar_one())


def test_a_transaction_is_whole(store: Store) -> None:
    def fn(tx: Session) -> None:
        control.set_meta(tx, "a", "1")
        control.set_meta(tx, "b", "2")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.call(fn)
    assert store.call(lambda tx: (control.get_meta(tx, "a"), control.get_meta(tx, "b"))) == ("", "")


def test_run_gives_the_result_and_the_error(store: Store) -> None:
    async def main() -> str:
        await store.run(lambda tx: control.set_meta(tx, "a", "1"))
        with pytest.raises(KeyError):
            await store.run(lambda tx: tx.info["x"])
        return await store.run(lambda tx: control.get_meta(tx, "a"))

    assert asyncio.run(main()) == "1"


def test_many_runs_at_once_each_count(store: Store) -> None:
    """PC-038, PC-203: a thousand state changes in one go lose nothing and raise nothing."""

    async def main() -> None:
        await asyncio.gather(*(store.run(lambda tx: control.bump(tx, "rests")) for _ in range(300)))

    asyncio.run(main())
    assert store.call(lambda tx: control.get_meta(tx, "rests")) == "300"


def test_sqlite_works_on_virtual_time() -> None:
    """Inline: no thread that a virtual loop would not wait for."""
    store = fresh()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(store.run(lambda tx: control.set_meta(tx, "a", "1")))
    store.close()


def test_the_results_outlive_their_transaction(store: Store) -> None:
    store.call(lambda tx: control.set_meta(tx, "a", "1"))
    row = store.call(lambda tx: tx.get(MetaRow, "a"))
    assert row is not None
    assert row.value == "1"


def test_driver_errors_leave_as_ours(store: Store) -> None:
    with pytest.raises(StoreError):
        store.call(lambda tx: tx.execute(text("SELECT * FROM nowhere")))
    with pytest.raises(StoreError):
        store.call(lambda tx: tx.execute(text("INSERT INTO meta (name, value) VALUES ('seq', '')")))
    assert store.call(lambda tx: control.get_meta(tx, "seq")) == "0", "and the door still opens"


# -- SQLite's settings ---------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db"


@pytest.fixture
def on_file(path: Path) -> Store:
    store: Store = fresh(f"sqlite:///{path}")
    return store


def test_durable_settings(on_file: Store) -> None:
    """trust.md D4: an acknowledged token survives a power cut."""
    on_file.close()
    store = Store(on_file.url)
    assert one(store, "PRAGMA synchronous") == 2
    assert one(store, "PRAGMA journal_mode") == "wal"
    assert one(store, "PRAGMA foreign_keys") == 1
    assert one(store, "PRAGMA busy_timeout") == 60_000
    store.close()


def test_what_is_committed_is_there_after_reopening(on_file: Store, path: Path) -> None:
    put(on_file, node(1))
    on_file.close()
    again = Store(f"sqlite:///{path}")
    assert list(seen(again).nodes) == ["n-1"]
    again.close()


def test_writers_of_two_connections_take_turns(on_file: Store) -> None:
    """BEGIN IMMEDIATE: no transaction fails half-way for a lock."""
    other = Store(on_file.url)
    for _ in range(20):
        on_file.call(lambda tx: control.bump(tx, "rests"))
        other.call(lambda tx: control.bump(tx, "rests"))
    assert on_file.call(lambda tx: control.get_meta(tx, "rests")) == "40"
    other.close()
    on_file.close()


def test_a_lock_that_is_not_given_up_is_a_store_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "BUSY_S", 0.01)
    store = fresh(f"sqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.call(lambda tx: control.bump(tx, "rests"))
    other.execute("ROLLBACK")
    store.call(lambda tx: control.bump(tx, "rests"))
    other.close()
    store.close()


# -- full and broken -----------------------------------------------------------------------------


def test_a_full_disk_is_store_full_and_nothing_is_half_written(on_file: Store) -> None:
    """trust.md D5: reads go on, small writes go on once there is space again."""
    put(on_file, node(1))
    pages = int(str(one(on_file, "PRAGMA page_count")))
    one(on_file, f"PRAGMA max_page_count = {pages + 2}")
    before = seen(on_file)

    def fn(tx: Session) -> None:
        write.create(tx, [node(f"x{i}", message="m" * 400) for i in range(500)], actor=Actor.PLAN)

    with pytest.raises(StoreFull):
        on_file.call(fn)
    assert seen(on_file).nodes == before.nodes
    assert seen(on_file).seq == before.seq
    one(on_file, f"PRAGMA max_page_count = {pages + 10_000}")
    on_file.call(fn)
    assert len(seen(on_file).nodes) == 501
    assert one(on_file, "PRAGMA integrity_check") == "ok"
    on_file.close()


def test_ballast(on_file: Store, path: Path) -> None:
    ballast = Path(f"{path}.ballast")
    assert not on_file.drop_ballast()
    assert on_file.keep_ballast()
    assert ballast.stat().st_size == BALLAST_BYTES
    content = ballast.read_bytes()
    assert on_file.keep_ballast()
    assert ballast.read_bytes() == content, "made once"
    assert on_file.drop_ballast()
    assert not ballast.exists()
    ballast.write_bytes(b"short")
    assert on_file.keep_ballast()
    assert ballast.stat().st_size == BALLAST_BYTES
    on_file.close()


def test_no_space_for_the_ballast(
    on_file: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:1000])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert not on_file.keep_ballast()
    assert not Path(f"{path}.ballast").exists(), "half a ballast would pass for one"
    on_file.close()


def test_memory_needs_no_ballast_and_no_lock() -> None:
    store = fresh()
    assert store.keep_ballast()
    assert not store.drop_ballast()
    store.lock()
    store.close()


def test_garbage_is_store_broken(path: Path) -> None:
    path.write_bytes(b"this is not a database at all" * 200)
    store = Store(f"sqlite:///{path}")
    with pytest.raises(StoreBroken):
        store.call(lambda tx: tx.execute(text("SELECT 1")))
    with pytest.raises(StoreBroken):
        schema.revision(store)
    store.close()


def test_a_damaged_page_is_store_broken(on_file: Store, path: Path) -> None:
    put(on_file, *(node(i) for i in range(300)))
    on_file.close()
    Path(f"{path}-wal").unlink(missing_ok=True)
    data = bytearray(path.read_bytes())
    data[4096 : len(data)] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    store = Store(f"sqlite:///{path}")
    with pytest.raises(StoreBroken):
        seen(store)
    store.close()


# -- one process ---------------------------------------------------------------------------------


def test_the_lock_is_held_by_one(on_file: Store) -> None:
    """PC-040."""
    other = Store(on_file.url)
    on_file.lock()
    with pytest.raises(Conflict) as refused:
        other.lock()
    assert refused.value.code == "store_locked"
    assert refused.value.fix
    on_file.close()
    other.lock()
    other.close()


def test_another_process_is_refused_and_death_frees_the_lock(on_file: Store, path: Path) -> None:
    code = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1] + '.lock', os.O_RDWR | os.O_CREAT)\n"
        "try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: sys.exit(7)\n"
        "os._exit(0)\n"
    )

    def other() -> int:
        return subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode

    assert other() == 0
    on_file.lock()
    assert other() == 7
    on_file.close()
    assert other() == 0


# -- where ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("magic", "kind"), sorted(UNSAFE_FS.items()))
def test_network_file_systems_are_refused(
    magic: int, kind: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_fs_magic", lambda folder: magic)
    with pytest.raises(InputError, match=kind):
        refuse_unsafe_fs(str(path))
    with pytest.raises(InputError, match="PostgreSQL"):
        Store(f"sqlite:///{path}")
    assert not path.exists()


@pytest.mark.parametrize("magic", [0, 0xEF53, 0x58465342, 0x9123683E, 0x794C7630, 0x01021994])
def test_local_file_systems_are_taken(
    magic: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_fs_magic", lambda folder: magic)
    refuse_unsafe_fs(str(path))


def test_the_magic_of_proc_is_known() -> None:
    assert door._fs_magic("/proc") == 0x9FA0
    assert door._fs_magic("/no/such/folder") == 0

"""The only door to the database.

Invariant: every piece of work runs in one transaction that is committed or rolled back whole;
driver errors leave here as our error tree; nothing awaits inside a transaction. On SQLite work
runs inline (a thread would break virtual time and measured twice slower), on PostgreSQL in one
writer thread. Control writes are flushed to disk at commit (``synchronous=FULL``, trust.md D4):
an acknowledged launch token survives a power cut.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, event
from sqlalchemy import create_engine as sa_create_engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import StaticPool
from sqlmodel import Session

from fleet.errors import Conflict, InputError, StoreBroken, StoreError, StoreFull

T = TypeVar("T")

BALLAST_BYTES: Final = 4 * 1024 * 1024
BUSY_S: Final = 60.0
#: statfs magic numbers on which SQLite's locks or shared memory are not safe (trust.md 2.4).
UNSAFE_FS: Final = {
    0x6969: "nfs", 0xFE534D42: "smb2", 0xFF534D42: "cifs", 0x517B: "smb",
    0x01021997: "9p", 0x6A656A63: "virtiofs", 0x65735546: "fuse",
}  # fmt: skip


class Store:
    """Durable state behind ``run``; ``call`` is the same for code without a loop."""

    def __init__(self, url: str, *, ballast: bool = True) -> None:
        self.url = url
        self.sqlite = url.startswith("sqlite")
        self.path = _sqlite_path(url)
        self._lock_fd: int | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._ballast = ballast and self.path is not None
        self.engine = _engine(url, self.path)
        if not self.sqlite:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="store")

    # -- work ------------------------------------------------------------------------------------

    async def run(self, fn: Callable[[Session], T]) -> T:
        """Run ``fn`` in one transaction and commit it.

        Raises what ``fn`` raises (rolled back), StoreFull, StoreBroken or StoreError.
        """
        if self._pool is None:
            return self.call(fn)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.call, fn)

    def call(self, fn: Callable[[Session], T]) -> T:
        """``run`` for code without an event loop (commands, tests)."""
        with mapped(), Session(self.engine, expire_on_commit=False) as tx:
            result = fn(tx)
            tx.commit()
            return result

    # -- one process, one file -------------------------------------------------------------------

    def lock(self) -> None:
        """Claim the SQLite file for this process; Conflict if another daemon has it."""
        if self.path is None:
            return
        fd = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise Conflict(
                f"another fleetd holds {self.path}",
                code="store_locked",
                fix="stop it first, or give this one its own data_dir",
            ) from None
        self._lock_fd = fd

    def keep_ballast(self) -> bool:
        """Make sure the ballast file exists; False when there is no space for it."""
        if not self._ballast or self.path is None:
            return True
        ballast = Path(f"{self.path}.ballast")
        try:
            if not ballast.exists() or ballast.stat().st_size < BALLAST_BYTES:
                ballast.write_bytes(b"\xa5" * BALLAST_BYTES)
        except OSError:
            ballast.unlink(missing_ok=True)
            return False
        return True

    def drop_ballast(self) -> bool:
        """Give the ballast's space to the database, so that drains can be recorded on a full
        disk (trust.md D5). True if there was one.
        """
        ballast = Path(f"{self.path}.ballast")
        if self.path is None or not ballast.exists():
            return False
        ballast.unlink()
        return True

    def close(self) -> None:
        """Let go of connections, thread and lock."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self.engine.dispose()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _sqlite_path(url: str) -> str | None:
    if not url.startswith("sqlite:///") or url == "sqlite:///:memory:":
        return None
    return url.removeprefix("sqlite:///")


def _engine(url: str, path: str | None) -> Engine:
    if not url.startswith("sqlite"):
        args = {
            "connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 3,
            "keepalives_count": 3, "tcp_user_timeout": 15000, "prepare_threshold": None,
            "options": "-c idle_in_transaction_session_timeout=1000 -c lock_timeout=5000",
        }  # fmt: skip
        return sa_create_engine(url, connect_args=args, pool_pre_ping=True)
    if path is not None:
        refuse_unsafe_fs(path)
    # One connection for the one process: SQLite has one writer anyway.
    engine = sa_create_engine(
        url,
        connect_args={"timeout": BUSY_S, "check_same_thread": False},
        poolclass=StaticPool,
    )
    event.listen(engine, "connect", _pragmas)
    event.listen(engine, "begin", _begin)
    return engine


def _pragmas(connection: Any, _record: object) -> None:
    if not isinstance(connection, sqlite3.Connection):
        return
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={int(BUSY_S * 1000)}",
        "wal_autocheckpoint=1000",
        "cache_size=-32768",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _begin(connection: Any) -> None:
    # IMMEDIATE: a transaction that will write fails to start rather than half-way (SQLITE_BUSY).
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def mapped() -> Iterator[None]:
    """Whatever the driver raises inside leaves as our error tree."""
    try:
        yield
    except DBAPIError as error:
        raise _translate(error) from error
    except sqlite3.Error as error:
        raise _translate(error) from error


def _translate(error: Exception) -> StoreError:
    text = str(getattr(error, "orig", None) or error)
    if "database or disk is full" in text or "No space left" in text:
        return StoreFull("the disk of the database is full; nothing was half-written")
    if "disk I/O error" in text or "malformed" in text or "not a database" in text:
        return StoreBroken(f"the database cannot be trusted: {text}")
    if isinstance(error, OperationalError) and "locked" in text:
        return StoreError(f"the database stayed locked for {BUSY_S:.0f} s: {text}")
    return StoreError(text)


def refuse_unsafe_fs(path: str) -> None:
    """Refuse SQLite on network and bridge file systems; InputError names the way out."""
    folder = str(Path(path).resolve().parent)
    kind = UNSAFE_FS.get(_fs_magic(folder))
    if kind is not None:
        raise InputError(
            f"{path} is on a {kind} file system, where SQLite loses data; "
            "use a local disk, or PostgreSQL (store.url: postgresql+psycopg://…)"
        )


def _fs_magic(folder: str) -> int:
    """f_type of statfs(2), which Python's os.statvfs does not tell; 0 where unknown."""
    import ctypes

    buffer = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(folder.encode(), ctypes.byref(buffer)) != 0:
        return 0
    return int(buffer[0]) & 0xFFFFFFFF

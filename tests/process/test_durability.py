"""D4: what was acknowledged survives ``kill -9``; the flush at commit is really switched on."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from pathlib import Path

import pytest
from fleetds import wait_for
from sqlalchemy import text
from zygote import Zygote

from fleet.store import schema
from fleet.store.door import Store

ROUNDS = 200 if os.environ.get("FLEETD_SOAK") else 20

WRITER = """
import sys
from fleet.store import control
from fleet.store.door import Store
store = Store(f"sqlite:///{sys.argv[1]}")
n = int(sys.argv[2])
while True:
    store.call(lambda tx: control.set_meta(tx, f"k{n}", str(n)))
    print(n, flush=True)
    n += 1
"""


def test_commits_are_flushed(folder: Path) -> None:
    store = Store(f"sqlite:///{folder}/fleetd.db")
    read = store.call(
        lambda tx: [tx.execute(text(f"PRAGMA {p}")).scalar_one() for p in
                    ("journal_mode", "synchronous", "foreign_keys")]
    )  # fmt: skip
    store.close()
    assert read == ["wal", 2, 1]  # 2 is FULL


@pytest.mark.timeout(600)
def test_acknowledged_commits_survive_kill_9(folder: Path, zygote: Zygote) -> None:
    path, script = folder / "fleetd.db", folder / "writer.py"
    script.write_text(WRITER)
    store = Store(f"sqlite:///{path}", ballast=False)
    schema.upgrade(store)
    store.close()
    rng = random.Random(9)
    acknowledged = 0
    for k in range(ROUNDS):
        out = folder / f"out-{k}"
        writer = zygote.spawn(str(path), str(10**6 * (k + 1)), log=out, script=str(script))
        wait_for(lambda out=out: out.exists() and out.stat().st_size, 10, "a first commit", 0.002)
        time.sleep(rng.uniform(0.0, 0.05))
        writer.kill()
        writer.wait(10)
        said = set(out.read_text().split("\n")[:-1])
        with sqlite3.connect(path) as after:
            assert after.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            kept = {row[0] for row in after.execute("SELECT value FROM meta").fetchall()}
        assert said <= kept
        acknowledged += len(said)
    assert acknowledged >= ROUNDS

"""D5: on a full disk launches stop, drains are still recorded, and space ends it all."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fleetds import FAST, IMAGE, PATIENT, Emulator, Fleetd, aws, pool, wait_for
from zygote import Zygote

from fleet.errors import StoreFull
from fleet.model import Reason
from fleet.sim.faults import Injection, Kind
from fleet.sim.trial import Trial, virtual
from fleet.store.door import Store


@pytest.fixture
def small(folder: Path) -> Iterator[Path]:
    """A disk of 10 MiB; needs the right to mount."""
    path = folder / "data"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m,mode=700", "fleetd-test", path],
                          capture_output=True, check=False)  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"no mount here: {done.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=False)


def fill(path: Path) -> Path:
    """Use up what is left."""
    filler = path / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


def states(fleetd: Fleetd) -> list[str]:
    """States of the live nodes."""
    return sorted(str(n["state"]) for n in fleetd.get("/v1/nodes").json()["items"])


def act(fleetd: Fleetd, verb: str, node: str) -> httpx.Response:
    """An operator's action on one node."""
    with fleetd.client() as client:
        body = {"nodes": [node], "reason": "test"}
        answer: httpx.Response = client.post(f"/v1/actions/{verb}", json=body)
    return answer


def test_a_full_disk(folder: Path, small: Path, zygote: Zygote) -> None:
    emulator = Emulator(folder, zygote)
    fleetd = Fleetd(folder, zygote, http=PATIENT, providers=[aws(emulator.url)],
                    timing={"flush_s": 60})  # fmt: skip
    try:
        fleetd.start(env=FAST)
        fleetd.apply(IMAGE, pool(2, 1))
        wait_for(lambda: states(fleetd) == ["READY"] * 3, 30, "three nodes")
        ballast = small / "fleetd.db.ballast"
        assert ballast.stat().st_size == 4 << 20
        node = fleetd.get("/v1/nodes").json()["items"][0]["name"]
        filler = fill(small)

        verbs = itertools.cycle(("cordon", "uncordon"))
        wait_for(lambda: act(fleetd, next(verbs), node).status_code == 507 or not ballast.exists(),
                 20, "the disk is full for SQLite")  # fmt: skip
        wait_for(lambda: not ballast.exists(), 5, "the ballast is given")
        assert any("disk full" in line["event"] for line in fleetd.lines())
        assert "fleetd_store_full 1.0" in fleetd.get("/metrics").text
        assert fleetd.get("/v1/system").json()["disk_full"] is True

        drained = act(fleetd, "drain", node)
        assert drained.status_code == 200, drained.text
        wait_for(lambda: "READY" in states(fleetd) and len(states(fleetd)) == 2, 30, "drained")
        reasons = {e["reason"] for e in fleetd.get("/v1/events", node=node).json()["items"]}
        assert "operator_drain" in reasons
        assert states(fleetd) == ["READY"] * 2  # nothing was launched in its place

        filler.unlink()
        wait_for(lambda: states(fleetd) == ["READY"] * 3, 30, "launches go on")
        assert ballast.exists()
        assert "fleetd_store_full 0.0" in fleetd.get("/metrics").text
        assert fleetd.end()[0] == 0
    finally:
        fleetd.close()
        emulator.close()


def test_a_full_database_without_a_mount(folder: Path) -> None:
    """The same rules where nothing may be mounted: SQLite itself is told to stop growing."""

    def there() -> bool:
        return (folder / "fleetd.db.ballast").exists()

    async def main() -> None:
        store = Store(f"sqlite:///{folder}/fleetd.db")
        trial = Trial(5, store=store)
        await trial.start()
        store.keep_ballast()
        assert await trial.until(lambda: trial.serving() == 8 and trial.ready() == 10,
                                 timeout_s=3600)  # fmt: skip
        cell = trial.up.cell

        def limit(pages: int) -> int:
            return store.call(
                lambda tx: int(
                    tx.connection().exec_driver_sql(f"PRAGMA max_page_count={pages}").scalar_one()
                )
            )

        full_at = limit(1)  # SQLite answers with what there is
        assert there()
        node = trial.up.cell.view.pool_nodes("train")[0]
        for _ in range(1000):
            try:
                await cell.commit(cell.note("node", node.id, Reason.CORDONED, "x" * 900,
                                            actor="test"))  # fmt: skip
            except StoreFull:
                break
        assert cell.full
        assert "disk" in cell.guards
        assert not there()
        limit(full_at + 1000)  # what the ballast gave
        held = store.keep_ballast
        store.keep_ballast = lambda: False  # type: ignore[method-assign]

        trial.world.inject(Injection(Kind.HOST_DEATH))
        assert await trial.until(lambda: trial.ready() == 9, timeout_s=3600)
        assert trial.serving() == 8  # the spare serves
        await trial.clock.sleep(1800)
        assert len(cell.view.pool_nodes("train")) == 9  # nothing is launched
        assert cell.full

        store.keep_ballast = held  # type: ignore[method-assign]
        assert await trial.until(lambda: trial.ready() == 10, timeout_s=3600)
        assert not cell.full
        await trial.close()

    virtual(main)

"""Who is late, what ends the process, and what Prometheus sees of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet import process, sdnotify
from fleet.api import metrics
from fleet.config import AgentListen, Settings
from fleet.errors import StoreBroken, StoreError
from fleet.sim.trial import Trial, virtual
from fleet.store.door import Store
from fleet.watchman import Watchman


def started(work: Any) -> Any:
    """Run ``work(trial)`` beside a trial in virtual time."""

    async def main() -> Any:
        trial = Trial(4)
        await trial.start()
        try:
            return await work(trial)
        finally:
            await trial.close()

    return virtual(main)


def test_a_hung_pass_stops_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    """hermes-agent#83106, OmniRoute#10661: the port was open and the loop turned."""
    told: list[dict[str, str]] = []
    monkeypatch.setattr(sdnotify, "notify", lambda **fields: told.append(fields))
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)

    async def work(trial: Trial) -> None:
        watchman = Watchman(trial.up, metrics.Meter())

        async def beats(n: int) -> int:
            told.clear()
            for _ in range(n):
                await trial.clock.sleep(1.0)
                watchman.beat(1.0, 0.0)
            return sum(1 for fields in told if "WATCHDOG" in fields)

        assert await beats(60) == 3
        assert await watchman.ready() == ""
        plan = trial.up.plan
        hang = asyncio.Event()
        monkeypatch.setattr(plan, "run", hang.wait)
        await beats(60)
        assert await beats(60) == 0
        assert "plan" in watchman.late()
        assert any("plan" in fields.get("STATUS", "") for fields in told)
        assert await watchman.ready() == "a task is late"
        hang.set()

        async def fails() -> None:
            raise ValueError("every time")

        monkeypatch.setattr(plan, "run", fails)
        await beats(60)
        assert await beats(60) == 3  # it is retried: no reason to restart everything

    started(work)


def test_readiness_reads_the_store() -> None:
    """engram#1292: /health said ok while the data was gone."""

    async def work(trial: Trial) -> None:
        watchman = Watchman(trial.up, metrics.Meter())
        assert (await watchman.ready()).startswith("starting")
        await trial.clock.sleep(30)
        assert await watchman.ready() == ""

        def gone(_fn: Any) -> Any:
            raise StoreError("gone")

        await trial.clock.sleep(2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trial.store, "call", gone)
            assert await watchman.ready() == "the store does not answer"
        await trial.clock.sleep(2)
        trial.store.call(lambda tx: tx.connection().exec_driver_sql("DELETE FROM meta"))
        assert "sentinel" in await watchman.ready()

    started(work)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreBroken("disk I/O error"), process.IO_ERROR),
        (OSError(5, "Input/output error"), process.IO_ERROR),
        (ValueError("bug"), process.SOFTWARE),
        (None, process.SOFTWARE),
    ],
)
def test_a_task_that_ends_is_the_end(
    folder: Path, error: BaseException | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def doomed(self: Any) -> None:
        await asyncio.sleep(0.1)
        if error is not None:
            raise error

    monkeypatch.setattr("fleet.tasks.Driver.run_forever", doomed)
    settings = Settings(data_dir=folder, agents=AgentListen(port=0))
    store = Store(settings.store_url, ballast=False)
    from fleet.store import schema

    schema.upgrade(store)
    assert process.run(settings, store) == code


def test_every_metric_is_exposed_and_hostile_names_add_no_series() -> None:
    """Series budget (operator.md 3.6): strangers cannot grow it."""

    async def work(trial: Trial) -> None:
        meter = metrics.Meter()
        for name in trial.up.cell.providers:
            meter.calls.open(name)
        exposition = metrics.Exposition(trial.up, meter)
        await trial.clock.sleep(1200)
        meter.beat(trial.up, 10.0, 0.02)
        status, headers, body = await exposition.answer()
        assert (status, headers["content-type"]) == (200, metrics.CONTENT_TYPE)
        families = {f.name: f for f in text_string_to_metric_families(body.decode())}
        for spec in metrics.METRICS.values():
            family = families[f"fleetd_{spec.name.removesuffix('_total')}"]
            assert family.type == spec.kind, spec.name
            for sample in family.samples:
                assert sample.labels.keys() - {"le"} == set(spec.labels), spec.name
        assert "fleetd_process_resident_memory_bytes" in families

        def series(text: bytes) -> int:
            return sum(1 for line in text.splitlines() if not line.startswith(b"#"))

        before = series(body)
        assert before < 5000
        for n in range(10_000):
            trial.up.cell.count_refused(f"join_refused: evil {n}\n{{}}")
            meter.calls.call("aws", "create", "us-east-1", f"Code{n}", 1.0)
            await trial.up.agent_door.handle(
                "POST", "/v1/agent/report", {"authorization": f"Bearer {n}"}, b"{}", f"peer{n}"
            )
        after = series((await exposition.answer())[2])
        assert after - before <= metrics.MOST_CODES

    started(work)


def test_counters_from_history_survive_a_restart_and_the_hour() -> None:
    async def work(trial: Trial) -> None:
        async def launches() -> float:
            exposition = metrics.Exposition(trial.up, metrics.Meter())
            total = 0.0
            for turn in range(2):
                body = (await exposition.answer())[2].decode()
                values = [
                    s.value
                    for f in text_string_to_metric_families(body)
                    if f.name == "fleetd_launches"
                    for s in f.samples
                ]
                assert turn == 0 or sum(values) == total
                total = sum(values)
            return total

        await trial.clock.sleep(1200)
        first = await launches()
        assert first == 10
        exposition = metrics.Exposition(trial.up, metrics.Meter())
        await exposition.answer()
        await trial.clock.sleep(3 * 3600)
        await exposition.answer()
        await trial.stop()
        await trial.start()
        await trial.clock.sleep(60)
        assert await launches() >= first

    started(work)

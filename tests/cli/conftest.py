"""fleetctl against a real daemon's API on a real Unix socket, in time that runs faster."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from fleet.api.operator import operator_app
from fleet.api.serve import Listener, bind_unix
from fleet.cli import fleetctl
from fleet.clock import LoopClock, ScaledLoop
from fleet.config import HttpLimits
from fleet.sim.spec import four_clouds
from fleet.sim.trial import Trial, image, pool

SPEED = 60.0


@pytest.fixture(autouse=True, scope="session")
def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@dataclass
class Run:
    """What one command did."""

    code: int
    out: str
    err: str


class Live:
    """A daemon in a thread; commands run in this one."""

    def __init__(self, path: Path) -> None:
        self.socket = path
        self.trial: Trial | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: ScaledLoop(SPEED)) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        base = time.time()
        clock = LoopClock(lambda: base + self.loop.time())
        world = four_clouds(seed=5)
        trial = Trial(5, world, clock=clock,
                      policies=(image(world), pool(world, nodes=3, spares=2)))  # fmt: skip
        await trial.start()
        await trial.until(lambda: trial.serving() == 3 and trial.ready() == 5, timeout_s=3600)
        limits = HttpLimits(header_s=600.0, body_s=600.0, write_s=600.0, idle_s=600.0)
        listener = Listener("operators", operator_app(trial.up), bind_unix(self.socket), limits,
                            refused=lambda _: None)  # fmt: skip
        await listener.start()
        self.trial = trial
        self._ready.set()
        await self.stop.wait()
        await listener.aclose()
        await trial.close()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self._thread.join(30)

    def nodes(self, *args: str) -> list[str]:
        return [
            line.removeprefix("node/")
            for line in ctl(self.socket, "get", "nodes", "-o", "name", *args).out.split()
        ]


def ctl(socket: Path | str, *args: str) -> Run:
    """Run one command in this process, stdout and stderr as a pipe would be."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in "oe")
    saved = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        code = fleetctl.run(["--socket", str(socket), *args])
    finally:
        sys.stdout, sys.stderr = saved
    texts: list[str] = []
    for stream in (out, err):
        buffer: Any = stream.buffer
        texts.append(buffer.getvalue().decode("utf-8"))
    return Run(code, texts[0], texts[1])


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    daemon = Live(tmp_path_factory.mktemp("sock") / "f.sock")
    yield daemon
    daemon.close()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEETD_SOCKET", "NO_COLOR", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("fleet.cli.client.RETRY_S", (0.01,))
    monkeypatch.setattr("fleet.cli.wait.STEP_S", 0.05)
    monkeypatch.setattr("fleet.cli.live.LEAST_S", 0.05)
    assert os.name == "posix"


@pytest.fixture
def run(live: Live) -> Any:
    """Commands on the live daemon's socket."""
    return lambda *args, **kw: ctl(kw.get("socket", live.socket), *args)


@pytest.fixture
def words(live: Live, run: Any, tmp_path: Path) -> dict[str, str]:
    """Files and names that the table of exit codes speaks of."""
    page = json.loads(run("describe", "policy/pool/train", "-o", "json").out)
    document = page["item"]["document"]
    found = {"none": str(tmp_path / "none.yaml"), "node": live.nodes("--limit", "1")[0]}
    for name, nodes in (("same", 3), ("new", 7), ("bad", -7)):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**document, "spec": {**document["spec"], "nodes": nodes}}))
        found[name] = str(path)
    return found

"""Real fleetd processes on loopback and Unix sockets, in folders of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml
from zygote import Child, Zygote

ROOT = Path(__file__).parents[2]
FLEETD = [sys.executable, "-m", "fleet.cli.fleetd"]

IMAGE = {
    "apiVersion": "fleetd/v1",
    "kind": "Image",
    "metadata": {"name": "gpu-base"},
    "spec": {
        "versions": [
            {
                "version": "v1",
                "artifacts": [
                    {"provider": "aws", "region": "us-east-1", "id": "ami-0123456789abcdef0"}
                ],
            }
        ]
    },
}


def pool(nodes: int, spares: int = 0, **spec: Any) -> dict[str, Any]:
    """A pool of one offer at the emulated AWS."""
    offer = {"provider": "aws", "region": "us-east-1", "zone": "us-east-1a",
             "type": "p5.48xlarge", "market": "on_demand"}  # fmt: skip
    return {
        "apiVersion": "fleetd/v1",
        "kind": "Pool",
        "metadata": {"name": "train"},
        "spec": {"gpu": "H100", "gpus_per_node": 8, "nodes": nodes, "spares": spares,
                 "image": "gpu-base@v1", "offers": [offer], **spec},
    }  # fmt: skip


def aws(url: str, **over: Any) -> dict[str, Any]:
    """A provider entry for an EC2 emulator."""
    return {"kind": "aws", "endpoint_url": url, "emulator_credentials": True,
            "regions": {"us-east-1": {}}, **over}  # fmt: skip


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def wait_for(done: Callable[[], Any], timeout_s: float, what: str, step_s: float = 0.02) -> Any:
    """The first true value of ``done()``."""
    end = time.monotonic() + timeout_s
    while True:
        value = done()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(step_s)


class Fleetd:
    """One data directory and the processes started on it, one after the other."""

    def __init__(self, folder: Path, zygote: Zygote | None = None, **config: Any) -> None:
        """With a ``zygote``, processes begin as its forks: quick, since the imports are done."""
        self.folder, self.zygote = folder, zygote
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self.config = folder / "fleetd.yaml"
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | Child | None = None
        self.settings: dict[str, Any] = {
            "cell": "test", "data_dir": str(self.data), "agents": {"port": 0}, **config,
        }  # fmt: skip
        self.write()

    def write(self, **changes: Any) -> None:
        """Write the configuration file."""
        self.settings |= changes
        self.config.write_text(yaml.safe_dump(self.settings))

    @property
    def socket(self) -> Path:
        """The operator socket."""
        return self.data / "fleetd.sock"

    def start(self, *, wait: bool = True, env: Mapping[str, str] | None = None) -> None:
        """Start ``fleetd run``; with ``wait``, until it answers."""
        self.process = self._spawn(self.log, env or {}, "run", "-c", str(self.config))
        if wait:
            self.wait_ready()

    def _spawn(
        self, log: Path, env: Mapping[str, str], *args: str
    ) -> subprocess.Popen[bytes] | Child:
        if self.zygote is not None:
            return self.zygote.spawn(*args, log=log, env=env)
        with log.open("ab") as out:
            return subprocess.Popen([*FLEETD, *args], stderr=out, stdout=out, cwd=ROOT,
                                    env={**os.environ, **env})  # fmt: skip

    def once(self, command: str, *args: str, timeout_s: float = 30.0) -> tuple[int, str]:
        """A command that ends by itself: its exit code and all it said."""
        log = self.folder / "once"
        log.unlink(missing_ok=True)
        process = self._spawn(log, {}, *command.split(), "-c", str(self.config), *args)
        return process.wait(timeout_s), log.read_text()

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Until /readyz says so."""
        wait_for(self._ready, timeout_s, f"fleetd ready; log:\n{self.text()}")

    def _ready(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"fleetd ended with {self.process.returncode}:\n{self.text()}")
        try:
            return self.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def client(self) -> httpx.Client:
        """A client on the operator socket."""
        transport = httpx.HTTPTransport(uds=str(self.socket), verify=False)  # no CAs to load
        return httpx.Client(transport=transport, base_url="http://fleetd", timeout=10)

    def get(self, path: str, **params: Any) -> httpx.Response:
        """One GET on the operator socket."""
        with self.client() as client:
            return client.get(path, params=params)

    def apply(self, *objects: Any) -> None:
        """Apply policies."""
        text = yaml.safe_dump_all(objects)
        with self.client() as client:
            answer = client.post("/v1/apply", json={"files": [{"name": "t.yaml", "text": text}]})
        assert answer.status_code == 200, answer.text

    def lines(self) -> list[dict[str, Any]]:
        """The log so far."""
        found = []
        for line in self.text().splitlines():
            if line.startswith("{"):
                found.append(json.loads(line))
        return found

    def text(self) -> str:
        """Everything on stderr so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def said(self, event: str) -> list[dict[str, Any]]:
        """Log lines of one event."""
        return [line for line in self.lines() if line.get("event") == event]

    def agents_port(self) -> int:
        """The bound port of the newest process."""
        return int(self.said("serving")[-1]["agents"].rsplit(":", 1)[1])

    def end(self, number: int = signal.SIGTERM, timeout_s: float = 15.0) -> tuple[int, float]:
        """Signal the process; its exit code and how long it took."""
        assert self.process is not None
        start = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(timeout_s)
        return code, time.monotonic() - start

    def close(self) -> None:
        """Leave nothing running."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


#: Seconds of the daemon's and the world's clock per second of ours, where a test says so.
SPEED = 60
FAST = {"FLEETD_CLOCK_SPEED": str(SPEED), "FLEETD_CLOCK_SINCE": str(time.time())}
#: Receive deadlines are seconds of the daemon's clock, too.
PATIENT = {"header_s": 600, "body_s": 600, "write_s": 600, "idle_s": 6000}


class Emulator:
    """``fleetd emulate`` beside the tests: clouds and their nodes, on fast time."""

    def __init__(self, folder: Path, zygote: Zygote, *args: str, speed: float = SPEED) -> None:
        ready = folder / "emulator.json"
        self.process = zygote.spawn(
            "emulate", "--port", "0", "--speed", str(speed), "--ready-file", str(ready), *args,
            log=folder / "emulator.log",
        )  # fmt: skip
        wait_for(ready.exists, 30, "the emulator")
        self.ready = json.loads(ready.read_text())
        self.url = str(self.ready["endpoint"])

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait(10)

"""Starts real ``fleetd`` processes without paying for their imports each time.

Run as a program it imports what fleetd imports, then forks on request: each line on stdin is
``{"argv", "env", "log"}``, each line on stdout a pid that began or ``[pid, code]`` that ended.
What runs in the child is the console script from its first line on; only the imports are older.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Child:
    """A process of the zygote, with the part of Popen's face that tests use."""

    def __init__(self, pid: int, codes: dict[int, int]) -> None:
        self.pid, self._codes = pid, codes

    @property
    def returncode(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self._codes.get(self.pid)

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Its code, once it ended."""
        end = time.monotonic() + (timeout or 60.0)
        while self.returncode is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("fleetd", timeout or 60.0)
            time.sleep(0.005)
        return self.returncode


class Zygote:
    """The tests' end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, bufsize=1,
        )  # fmt: skip
        self._codes: dict[int, int] = {}
        self._pids: list[int] = []
        self._came = threading.Condition()
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._came:
                if isinstance(said, list):
                    self._codes[said[0]] = said[1]
                else:
                    self._pids.append(said)
                self._came.notify_all()

    def spawn(
        self, *argv: str, log: Path, env: Mapping[str, str] | None = None, script: str = "fleetd"
    ) -> Child:
        """Start ``fleetd argv…``, or a Python ``script``, with its output appended to ``log``."""
        ask = {"argv": [script, *argv], "env": dict(env or {}), "log": str(log)}
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(ask) + "\n")
            with self._came:
                assert self._came.wait_for(lambda: bool(self._pids), 60)
                return Child(self._pids.pop(), self._codes)

    def close(self) -> None:
        """End it and what it began."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


MODULES = (
    "alembic.command", "boto3", "fleet.api.operator", "fleet.cli.backup", "fleet.cli.check",
    "fleet.cli.emulate", "fleet.cli.fleetd", "fleet.process", "providers.aws", "uvloop",
)  # fmt: skip


def _serve() -> None:
    for module in MODULES:
        importlib.import_module(module)
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    signal.set_wakeup_fd(wake_w)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([0, wake_r], [], [])
        if wake_r in ready:
            os.read(wake_r, 4096)
            _reap(children)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                children.add(_fork(json.loads(line), (wake_r, wake_w)))
                _reap(children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _reap(children: set[int]) -> None:
    for pid in list(children):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            children.discard(pid)
            print(json.dumps([pid, os.waitstatus_to_exitcode(status)]), flush=True)


def _fork(ask: dict[str, Any], wakes: tuple[int, int]) -> int:
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in wakes:
        os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(ask["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(ask["env"])
    sys.argv = ask["argv"]
    code = 70
    try:
        if sys.argv[0].endswith(".py"):
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            importlib.import_module("fleet.cli.fleetd").main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 — the child must never return into the zygote
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()

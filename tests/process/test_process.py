"""D10: starts whole or not at all, stops in ten seconds, reloads whole or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fleetds import IMAGE, Emulator, Fleetd, aws, free_port, pool, wait_for
from zygote import Zygote

# -- start -----------------------------------------------------------------------------------------


def test_a_start_serves_and_a_stop_touches_nothing(fleetd: Fleetd) -> None:
    fleetd.zygote = None
    fleetd.write(metrics={"port": 0})
    fleetd.start()
    port = fleetd.agents_port()
    assert fleetd.socket.stat().st_mode & 0o777 == 0o660
    assert (fleetd.data / "fleetd.db").stat().st_mode & 0o077 == 0
    assert (fleetd.data / "cell.key").stat().st_mode & 0o077 == 0
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", verify=False) as agents:
        assert agents.get("/healthz").status_code == 200
        assert agents.get("/readyz").json() == {"ready": True, "why": ""}
        for path in ("/metrics", "/v1/nodes", "/v1", "/docs", "/openapi.json"):
            assert agents.get(path).status_code == 404
        assert agents.get("/v1/agent/report").status_code == 405
        assert agents.post("/v1/agent/report", json={}).status_code == 401
        assert agents.post("/v1/agent/register", json={}).status_code == 422
    text = fleetd.get("/metrics").text
    scraped = httpx.get(
        f"http://127.0.0.1:{fleetd.said('serving')[-1]['ports']['metrics']}/metrics"
    )
    assert len(scraped.text.splitlines()) == len(text.splitlines())
    assert 'fleetd_agent_requests_refused_total{cause="unauthorized"} 1.0' in text
    assert 'fleetd_agent_requests_refused_total{cause="malformed"} 1.0' in text
    assert 'fleetd_task_period_seconds{task="observe"}' in text
    code, took_s = fleetd.end()
    assert (code, took_s < 5) == (0, True)
    assert not fleetd.socket.exists()
    assert [line["event"] for line in fleetd.lines()[-2:]] == ["stopping", "stopped"]


@pytest.mark.parametrize("after_s", [0.0, 0.7, 1.4])
def test_a_signal_while_starting(fleetd: Fleetd, after_s: float) -> None:
    """A real start with its imports. A process that Python has not given handlers yet dies of the
    signal itself: that is a stop, too. No half state: the next start serves."""
    fleetd.zygote = None
    fleetd.start(wait=False)
    time.sleep(after_s)
    code, took_s = fleetd.end()
    assert code in (0, -signal.SIGTERM)
    assert took_s < 5
    if after_s == 1.4:
        fleetd.start()
        assert fleetd.end()[0] == 0


def test_a_second_daemon_on_the_same_data_is_refused(fleetd: Fleetd) -> None:
    fleetd.start()
    start = time.monotonic()
    code, text = fleetd.once("run")
    took_s = time.monotonic() - start
    assert code == 75
    assert text.startswith("error: another fleetd holds ")
    assert "  try   " in text and "store_locked" in text
    assert took_s < 2
    assert fleetd.get("/readyz").status_code == 200


def test_a_taken_port(fleetd: Fleetd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fleetd.write(agents={"port": port})
        code, text = fleetd.once("run")
    assert code == 69
    assert f"127.0.0.1:{port} is taken" in text and "port_taken" in text


def test_a_socket_that_somebody_answers_on(fleetd: Fleetd, folder: Path) -> None:
    path = folder / "s"
    fleetd.write(socket=str(path))
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        code, text = fleetd.once("run")
        assert (code, "socket_in_use" in text) == (69, True)
    assert path.exists()
    fleetd.write()  # nobody answers now: the file is a dead daemon's
    fleetd.start(wait=False)
    wait_for(lambda: fleetd.said("serving"), 30, "serving")
    assert fleetd.end()[0] == 0


def test_a_file_in_the_socket_s_place(fleetd: Fleetd, folder: Path) -> None:
    (folder / "s").write_text("precious")
    fleetd.write(socket=str(folder / "s"))
    code, text = fleetd.once("run")
    assert (code, "socket_path" in text) == (69, True)
    assert (folder / "s").read_text() == "precious"


CONFIGS = {
    "unknown key": ("cell: a\nbogus: 1\n", ":2: bogus"),
    "wrong type": ("cell: a\nagents:\n  port: high\n", ":3: agents.port"),
    "not YAML": ("cell: [\n", ":2"),
    "a list": ("- a\n", "must be a mapping"),
    "duplicate key": ("cell: a\ncell: b\n", ":2"),
    "alias": ("cell: &a x\nmode: *a\n", "alias"),
    "unknown provider": ("providers:\n- kind: awz\n", "did you mean aws"),
    "provider field": ("providers:\n- kind: aws\n  regions: {us-east-1: {subnet: x}}\n", ":3"),
    "provider twice": (
        "providers:\n- &a {kind: aws}\n".replace("&a ", "") + "- {kind: aws}\n", "providers"
    ),
    "NaN": ("timing: {plan_s: .nan}\n", ":1"),
    "binary": ("cell: \x00\n", ":1"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_a_bad_configuration_is_refused_with_its_place(fleetd: Fleetd, case: str) -> None:
    text, want = CONFIGS[case]
    fleetd.config.write_text(text)
    code, said = fleetd.once("check-config")
    assert code == 78
    assert want in said
    assert "Traceback" not in said
    assert not fleetd.data.exists()


@pytest.mark.parametrize("command", ["run", "db upgrade", "check-config"])
def test_an_unreadable_configuration(fleetd: Fleetd, command: str) -> None:
    fleetd.config.unlink()
    code, said = fleetd.once(command)
    assert (code, "no such file" in said, "Traceback" in said) == (78, True, False)


def test_a_data_directory_that_is_a_file(fleetd: Fleetd) -> None:
    fleetd.data.write_text("")
    code, said = fleetd.once("run")
    assert (code, "data_dir" in said, "Traceback" in said) == (78, True, False)


def test_check_config_online_names_what_refuses(fleetd: Fleetd) -> None:
    fleetd.write(providers=[aws(f"http://127.0.0.1:{free_port()}",
                                limits={"attempts": 1}, name="east")])  # fmt: skip
    code, said = fleetd.once("check-config", "--online")
    assert code == 1
    assert "\nerror: east refuses to list instances\n  why   " in said


def test_check_config_online_with_a_cloud_that_answers(
    fleetd: Fleetd, folder: Path, zygote: Zygote
) -> None:
    emulator = Emulator(folder, zygote)
    fleetd.write(providers=[aws(emulator.url, name="east")])
    code, said = fleetd.once("check-config", "--online")
    emulator.close()
    assert code == 0
    assert "east: 0 instances of cell test, " in said
    assert not fleetd.data.exists()


def test_simulate_prints_a_summary(fleetd: Fleetd, folder: Path, zygote: Zygote) -> None:
    log = folder / "simulated"
    args = ("simulate", "--seed", "3", "--hours", "0.5", "--nodes", "8")
    assert zygote.spawn(*args, log=log).wait(60) == 0
    assert "in service 8 of 8" in log.read_text()
    assert "aws" in log.read_text()


# -- the database ----------------------------------------------------------------------------------


def test_an_empty_database_beside_a_marker_is_refused(fleetd: Fleetd) -> None:
    """opencode#36728: to an orchestrator an empty store means that everything is an orphan."""
    fleetd.start()
    assert fleetd.end()[0] == 0
    for file in fleetd.data.glob("fleetd.db*"):
        file.unlink()
    code, said = fleetd.once("run")
    assert (code, "empty_store" in said, "--adopt" in said) == (78, True, True)
    code, said = fleetd.once("db upgrade")
    assert (code, "empty_store" in said) == (78, True)
    assert fleetd.once("db upgrade", "--adopt")[0] == 0
    fleetd.start()
    assert fleetd.end()[0] == 0


def test_a_database_of_another_cell_is_refused(fleetd: Fleetd, folder: Path) -> None:
    other = Fleetd(folder / "other", fleetd.zygote)
    for cell in (fleetd, other):
        cell.start()
        assert cell.end()[0] == 0
    shutil.copy(other.data / "fleetd.db", fleetd.data / "fleetd.db")
    code, said = fleetd.once("run")
    assert (code, "other_cell" in said) == (78, True)


def test_a_damaged_database_ends_with_74(fleetd: Fleetd) -> None:
    fleetd.start()
    assert fleetd.end()[0] == 0
    (fleetd.data / "fleetd.db").write_bytes(b"not a database at all" * 1000)
    for file in fleetd.data.glob("fleetd.db-*"):
        file.unlink()
    code, said = fleetd.once("run")
    assert (code, "store_broken" in said, "Traceback" in said) == (74, True, False)


def test_a_backup_of_a_running_daemon_restores(fleetd: Fleetd, folder: Path) -> None:
    """litestream#752: a backup is good when it was restored, not when it was written."""
    fleetd.write(providers=[aws(f"http://127.0.0.1:{free_port()}")])
    fleetd.start(wait=False)
    wait_for(lambda: fleetd.said("serving"), 30, "serving")
    fleetd.apply(IMAGE, pool(1))
    target = folder / "backup.db"
    code, said = fleetd.once("db backup", str(target))
    assert code == 0, said
    assert "integrity ok, restore rehearsed" in said and "2 policies" in said
    assert [p.name for p in folder.iterdir() if "backup" in p.name or "rehears" in p.name] == [
        "backup.db"
    ]
    code, said = fleetd.once("db backup", str(target))
    assert (code, "target_exists" in said) == (1, True)
    fleetd.end(signal.SIGKILL)
    for file in fleetd.data.glob("fleetd.db*"):
        file.unlink()
    shutil.copy(target, fleetd.data / "fleetd.db")
    fleetd.start(wait=False)
    wait_for(lambda: len(fleetd.said("serving")) == 2, 30, "serving")
    assert [p["raw"]["name"] if "raw" in p else p["name"]
            for p in fleetd.get("/v1/pools").json()["items"]] == ["train"]  # fmt: skip


# -- stop ------------------------------------------------------------------------------------------


class Silent:
    """A cloud that accepts connections and never answers."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.held: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self.held.append(self._server.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        """Let go."""
        self._server.close()
        for sock in self.held:
            sock.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    cloud = Silent()
    yield cloud
    cloud.close()


def test_a_stop_with_a_hung_cloud_call_and_open_requests(fleetd: Fleetd, silent: Silent) -> None:
    """Threads of an SDK cannot be cancelled; they must not keep the process (trust.md 2.5)."""
    fleetd.write(providers=[aws(silent.url)])
    fleetd.start(wait=False)
    wait_for(lambda: silent.held, 30, "the list call hangs")
    wait_for(lambda: fleetd.said("serving"), 30, "serving")
    version = fleetd.get("/v1/nodes").json()["version"]
    ends: list[str] = []

    def long_poll() -> None:
        try:
            fleetd.client().get("/v1/nodes", params={"wait": 60, "version": version}, timeout=30)
            ends.append("answered")
        except httpx.HTTPError as error:
            ends.append(type(error).__name__)

    thread = threading.Thread(target=long_poll)
    thread.start()
    slow = socket.create_connection(("127.0.0.1", fleetd.agents_port()))
    slow.sendall(b"POST /v1/agent/report HTTP/1.1\r\nHost: x\r\n")
    time.sleep(0.3)
    code, took_s = fleetd.end()
    thread.join(5)
    slow.close()
    assert code == 0
    assert took_s < 10
    assert ends and not thread.is_alive()


def test_a_second_signal_ends_at_once(fleetd: Fleetd, silent: Silent) -> None:
    fleetd.write(providers=[aws(silent.url)])
    fleetd.start(wait=False)
    wait_for(lambda: silent.held, 30, "the list call hangs")
    assert fleetd.process is not None
    fleetd.process.send_signal(signal.SIGTERM)
    wait_for(lambda: fleetd.said("stopping"), 5, "stopping")
    code, took_s = fleetd.end(signal.SIGINT)
    assert code == 128 + signal.SIGINT
    assert took_s < 1


# -- reload and systemd ----------------------------------------------------------------------------


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.path = str(folder / "n")
        self._sock.bind(self.path)
        self._sock.settimeout(0.05)
        self.messages: list[dict[str, str]] = []

    def read(self) -> list[dict[str, str]]:
        """Every message so far."""
        while True:
            try:
                text = self._sock.recv(65536).decode()
            except TimeoutError:
                return self.messages
            self.messages.append(dict(line.split("=", 1) for line in text.splitlines()))

    def first(self, name: str, value: str = "") -> int:
        """Index of the first message with ``name`` (and ``value`` in it), -1 if there is none."""
        for i, message in enumerate(self.read()):
            if name in message and value in message[name]:
                return i
        return -1


@pytest.fixture
def systemd(folder: Path) -> Systemd:
    return Systemd(folder)


def test_systemd_hears_everything(fleetd: Fleetd, systemd: Systemd) -> None:
    env = {"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "3000000"}
    fleetd.start(env=env)
    wait_for(lambda: systemd.first("WATCHDOG") >= 0, 5, "a watchdog beat")
    assert 0 <= systemd.first("READY") < systemd.first("WATCHDOG")
    assert systemd.first("STATUS", "0 of 0 slots served") >= 0

    systemd.messages.clear()
    fleetd.write(timing={"plan_s": 3.5}, mode="observe")
    assert fleetd.process is not None
    fleetd.process.send_signal(signal.SIGHUP)
    wait_for(lambda: systemd.first("READY") >= 0, 5, "reloaded")
    assert 0 <= systemd.first("RELOADING") < systemd.first("READY")
    assert int(systemd.messages[systemd.first("RELOADING")]["MONOTONIC_USEC"]) > 0
    assert systemd.first("STATUS", "reloaded: mode, timing.plan_s") >= 0
    assert fleetd.get("/v1/system").json()["mode"] == "observe"
    assert 'fleetd_task_period_seconds{task="plan"} 3.5' in fleetd.get("/metrics").text

    for text, why in (("bogus: 1\n", "bogus"), ("cell: other\n", "cell: cannot change")):
        systemd.messages.clear()
        fleetd.config.write_text(text)
        fleetd.process.send_signal(signal.SIGHUP)
        wait_for(lambda: systemd.first("READY") >= 0, 5, "refused")
        assert systemd.first("STATUS", "the old configuration stays") >= 0
        assert why in systemd.messages[systemd.first("STATUS", "stays")]["STATUS"]
        assert fleetd.get("/v1/system").json()["mode"] == "observe"

    systemd.messages.clear()
    assert fleetd.end()[0] == 0
    assert systemd.first("STOPPING") >= 0


def test_a_crash_leaves_a_socket_that_the_next_start_replaces(fleetd: Fleetd) -> None:
    fleetd.start()
    assert fleetd.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert fleetd.socket.exists()
    fleetd.start()
    assert fleetd.end(signal.SIGINT)[0] == 0


def test_rest_is_cheap(fleetd: Fleetd) -> None:
    """An idle daemon wakes a few times a second at most and stays small."""
    fleetd.start()
    assert fleetd.process is not None
    stat = Path(f"/proc/{fleetd.process.pid}/stat")
    time.sleep(1.0)

    def ticks() -> int:
        fields = stat.read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(3.0)
    cpu_share = (ticks() - before) / os.sysconf("SC_CLK_TCK") / 3.0
    status = Path(f"/proc/{fleetd.process.pid}/status").read_text()
    rss_mib = int(next(x for x in status.splitlines() if "VmRSS" in x).split()[1]) / 1024
    print(f"at rest: {cpu_share:.2%} of a core, {rss_mib:.0f} MiB")
    assert cpu_share < 0.05
    assert rss_mib < 200

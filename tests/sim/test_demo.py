"""``fleetd demo``: the acts really happen, and nothing is left behind however it ends."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select as sql

from fleet.clock import VirtualLoop
from fleet.sim import demo_real, demo_summary
from fleet.sim.demo_eye import CloudRow, Dot, Eye, Picture
from fleet.sim.demo_out import ASCII, BYE
from fleet.sim.demo_real import REAL
from fleet.sim.demo_screen import MARKS, Talk, draw
from fleet.sim.demo_script import FAULT, Script
from fleet.sim.demo_stage import EPOCH, NODES, POOL, SPARES, Stage
from fleet.sim.demo_words import Line
from fleet.store.tables import Base, EventRow, LaunchRow, NodeRow, SlotRow

ROOT = Path(__file__).parents[2]
RUN = "import sys; from fleet.sim.demo import main; sys.exit(main({}))"


@dataclass
class Played:
    """What is left of a performance on the virtual loop."""

    script: Script
    picture: Picture
    events: list[Any]
    launches: list[Any]
    clouds: dict[str, str]
    slots: list[Any]
    told: list[str]
    table: list[str]
    errors: list[str]


def play(seed: int = 7) -> Played:
    """All acts on FakeClouds, on virtual time."""

    async def work() -> Played:
        stage = Stage(seed, 30.0, real=False)
        await stage.start()
        eye = Eye(stage.daemon.cell, stage.clouds, POOL, NODES, SPARES, EPOCH)
        script = Script(stage)
        acting = asyncio.ensure_future(script.run())
        while not acting.done():
            await eye.follow(script.began)
            await asyncio.sleep(5.0)
        acting.result()
        await eye.follow(script.began)

        def rows(table: type[Base]) -> list[Any]:
            return list(stage.store.call(lambda tx: tx.execute(sql(table)).scalars().all()))

        titles = [act.title for act in script.acts]
        played = Played(
            script, eye.picture(), rows(EventRow), rows(LaunchRow),
            {n.id: n.provider for n in rows(NodeRow)}, rows(SlotRow),
            demo_summary.seen(eye.feed, titles, script.began),
            demo_summary.table(eye.picture()), stage.watch.errors,
        )  # fmt: skip
        await stage.aclose()
        return played

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())


@pytest.fixture(scope="module")
def played() -> Played:
    return play()


def during(played: Played, act: int, reason: str, kind: str = "") -> list[Any]:
    """Events of ``reason`` while an act played."""
    began = [*played.script.began, float("inf")]
    return [
        e for e in played.events
        if e.reason == reason and (not kind or e.kind == kind)
        and began[act - 1] <= e.at < began[act]
    ]  # fmt: skip


def test_all_acts_are_played_and_end_well(played: Played) -> None:
    assert played.script.missed == []
    assert played.errors == []
    assert played.script.ended
    assert (played.picture.serving, played.picture.spares) == (NODES, SPARES)
    assert played.script.least == NODES
    assert len(played.slots) == NODES
    assert all(s.node_id for s in played.slots)


def test_the_pool_is_full_before_the_first_fault(played: Played) -> None:
    ready = during(played, 1, "gate_passed")
    assert len(ready) == NODES + SPARES
    assert {played.clouds[e.object_id] for e in ready} == {"aws", "gcp", "azure", "oci"}
    assert len(during(played, 1, "assigned")) == NODES
    assert not during(played, 1, "fatal_fault")


def test_the_slot_of_the_lost_gpu_moves_to_a_spare_at_once(played: Played) -> None:
    (fault,) = during(played, 2, "fatal_fault")
    (move,) = during(played, 2, "moved")
    assert fault.message.startswith(FAULT)
    assert move.src == fault.object_id
    assert move.dst in played.clouds
    assert move.at == fault.at  # one transaction


def test_the_storm_sends_launches_elsewhere(played: Played) -> None:
    refused = [e for e in during(played, 3, "insufficient_capacity") if e.dst == "TERMINATING"]
    assert {played.clouds[e.object_id] for e in refused} == {"aws"}
    assert len(during(played, 3, "spot_notice")) == len(during(played, 3, "moved")) == 3
    accepted = [played.clouds[e.object_id] for e in during(played, 3, "launch_accepted")]
    assert accepted.count("aws") == 0
    assert len(accepted) == 3


def test_the_cloud_that_never_boots_rests(played: Played) -> None:
    lost = during(played, 4, "boot_timeout")
    assert {played.clouds[e.object_id] for e in lost} == {"gcp"}
    assert len(lost) >= 3
    (rest,) = during(played, 4, "offer_cooling", kind="boot")
    assert rest.object_id.startswith(f"{POOL}/gcp/")
    after = [e for e in during(played, 4, "launch_accepted") if e.at > rest.at]
    assert after
    assert "gcp" not in {played.clouds[e.object_id] for e in after}


def test_no_slot_was_ever_empty(played: Played) -> None:
    assert not [e for e in played.events if e.reason == "released"]


def test_the_summary_adds_up(played: Played) -> None:
    by_cloud: dict[str, int] = {}
    for launch in played.launches:
        assert launch.outcome, launch
        by_cloud[launch.provider] = by_cloud.get(launch.provider, 0) + 1
    rows = {c.name: c for c in played.picture.clouds}
    assert {name: sum(c.outcomes.values()) for name, c in rows.items()} == by_cloud
    for c in rows.values():
        assert c.good <= c.judged <= c.accepted <= c.asked
        assert c.outcomes.get("ready", 0) == c.good
    head, *lines, last = played.table
    total = len(played.launches)
    assert head.split()[1] == "LAUNCHES"
    assert sum(int(line.split()[1]) for line in lines) == int(last.split()[1]) == total
    assert max(map(len, played.table)) <= 100


def test_what_you_saw_names_each_act_and_its_evidence(played: Played) -> None:
    text = "\n".join(played.told)
    for act in played.script.acts:
        assert act.title in text
    for word in ("fatal_fault", "moved", "spot_notice", "insufficient_capacity", "boot_timeout",
                 "never became READY"):  # fmt: skip
        assert word in text


def test_one_seed_is_one_story(played: Played) -> None:
    again = play()
    assert [(e.at, e.object_id, e.reason) for e in again.events] == [
        (e.at, e.object_id, e.reason) for e in played.events
    ]


def test_another_seed_tells_the_same_story() -> None:
    other = play(1)
    assert other.script.missed == []
    assert other.script.least == NODES


# -- the view --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [(120, 40), (100, 30), (80, 24), (64, 18), (40, 10), (30, 4), (300, 100)]
)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_view_fits_any_terminal(size: tuple[int, int], ascii_only: bool) -> None:
    width, height = size
    dots = tuple(Dot(mark, spot=False) for mark in MARKS) * 5
    cloud = CloudRow("azure", "cooling", "insufficient_capacity: 2 offers rest, probe in 3 min",
                     50, 45, 5, 99, 98, 98, 90, 194.0, 227.0, 3, 12345.6, {"ready": 90},
                     dots, "3 silent for 3m57s of 5m00s")  # fmt: skip
    line = Line(EPOCH, "no", "azure", "3 launches refused: no capacity (ZonalAllocationFailed)",
                "insufficient_capacity", 3, 2)  # fmt: skip
    picture = Picture(EPOCH, 32, 4, 30, 2, dict.fromkeys(MARKS, 3), (cloud,) * 4, (line,) * 200)
    talk = Talk(3, 5, "Capacity storm at AWS", "Words of a narrator. " * 20, 30.0, 61.0)
    lines = draw(picture, talk, width, height, ascii_only=ascii_only)
    assert len(lines) <= height
    assert all(text.cell_len <= max(40, width) for text in lines)
    text = "\n".join(line.plain for line in lines)
    assert not ascii_only or text.isascii()
    assert "30/32" in text or height < 5


def test_each_state_has_its_own_glyph_and_sign() -> None:
    assert len({mark[0] for mark in MARKS.values()}) == len(MARKS)
    assert len({mark[1] for mark in MARKS.values()}) == len(MARKS)
    assert all(ord(mark[0]) in ASCII for mark in MARKS.values())


# -- the real thing --------------------------------------------------------------------------------


@contextmanager
def started(args: str, **popen: Any) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN.format(args)], env=env | popen.pop("env", {}), cwd=ROOT, **popen
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def read_until(fd: int, seen: bytes, done: bytes, limit_s: float) -> bytes:
    """What comes out of a terminal until ``done`` is in it; fails after ``limit_s``."""
    end = time.monotonic() + limit_s
    while done not in seen:
        ready, _, _ = select.select([fd], [], [], max(0.0, end - time.monotonic()))
        assert ready, seen[-2000:]
        try:
            part = os.read(fd, 65536)
        except OSError:
            part = b""
        if not part:
            break
        seen += part
    return seen


def test_ctrl_c_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    """Real SDKs, real HTTP, a real terminal, and a Ctrl-C once nodes boot."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(slave)
    pipe = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True}
    with started("speed=60", env={"TMPDIR": str(tmp_path)}, **pipe) as process:
        seen = read_until(master, b"", b"booting", 60.0)
        assert list(tmp_path.iterdir())  # the store is a file while it plays
        process.send_signal(signal.SIGINT)
        seen = read_until(master, seen, b"interrupted", 20.0)
        assert process.wait(10.0) == 130
    assert termios.tcgetattr(slave) == before
    os.close(slave)
    os.close(master)
    assert b"\x1b[?1049h" in seen  # alternate screen on …
    after = seen[seen.rindex(b"\x1b[?1049l") :]  # … and off
    assert b"\x1b[?25h" in seen[seen.rindex(b"\x1b[?25l") :]  # the cursor is back
    assert after.count(b"interrupted; the simulated clouds are gone") == 1
    assert b"Traceback" not in seen
    assert not list(tmp_path.iterdir())


def test_a_closed_terminal_leaves_nothing_behind(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    pipe = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True}
    with started("speed=60", env={"TMPDIR": str(tmp_path)}, **pipe) as process:
        os.close(slave)
        read_until(master, b"", b"nodes by cloud", 60.0)
        os.close(master)
        process.send_signal(signal.SIGHUP)
        assert process.wait(20.0) == 130
    assert not list(tmp_path.iterdir())


def test_ctrl_c_while_the_sdks_are_loaded(tmp_path: Path) -> None:
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started("plain=True", env={"TMPDIR": str(tmp_path)}, **pipe) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"", b"loading the 4 SDKs", 30.0)
        time.sleep(0.5)  # in the midst of an import
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"ready after" not in out
    assert err.decode().strip() == BYE
    assert not list(tmp_path.iterdir())


def test_plain_output_is_lines_and_ends_by_itself(tmp_path: Path) -> None:
    """``--plain`` with all four SDKs for some seconds: no control codes, a summary, exit 0."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = {"TMPDIR": str(tmp_path)}
    with started("plain=True, speed=60, seconds=6", env=env, **pipe) as process:
        out, err = process.communicate(timeout=60)
    text = out.decode()
    assert process.returncode == 0, err
    assert err == b""
    assert "\x1b" not in text
    assert "\r" not in text
    for real in REAL.values():
        assert real.sdk in text
    assert "not installed" not in text
    assert "== 1/5 Boots and gates" in text
    for cloud in REAL:
        assert re.search(rf"{cloud} +\d+ (spot )?launches accepted", text), text
        assert re.search(rf"{cloud} .* running, booting", text), text
    assert re.search(r"gcp .* ready: gate passed", text), text  # its agents go by the VM's name
    assert "launches by cloud" in text
    assert not list(tmp_path.iterdir())


def test_a_cloud_without_its_sdk_is_played_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        demo_real, "find_spec", lambda name: None if name.startswith("oci") else object()
    )
    assert set(demo_real.installed()) == {"aws", "gcp", "azure"}

"""Commands against a live daemon: what is printed where, and every exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.cli import client
from fleet.cli.session import KINDS

Live = Any


# -- skins -------------------------------------------------------------------------------------


def test_get_without_a_kind_lists_kinds(run: Any) -> None:
    done = run("get")
    assert done.code == 0
    assert done.out.splitlines()[0].split() == ["KIND", "COUNT", "ALSO"]
    assert len(done.out.splitlines()) == 1 + len(KINDS)


def test_table_is_stdout_and_talk_is_stderr(run: Any) -> None:
    done = run("get", "nodes")
    lines = done.out.splitlines()
    assert lines[0].split()[:4] == ["NAME", "POOL", "STATE", "HEALTH"]
    assert len(lines) == 6
    assert done.err.startswith("5 nodes as of ")
    assert "INSTANCE" in run("get", "nodes", "-o", "wide").out
    assert not run("get", "nodes", "--no-headers").out.startswith("NAME")


def test_formats_say_the_same(run: Any) -> None:
    names = [n.removeprefix("node/") for n in run("get", "nodes", "-o", "name").out.split()]
    as_json = json.loads(run("get", "nodes", "-o", "json").out)
    assert [i["name"] for i in as_json["items"]] == names
    assert "cells" not in as_json["items"][0]
    as_yaml = yaml.safe_load(run("get", "nodes", "-o", "yaml").out)
    assert [i["name"] for i in as_yaml["items"]] == names
    assert as_yaml["items"][0].keys() == as_json["items"][0].keys()
    assert as_yaml["items"][0]["instance_id"] == as_json["items"][0]["instance_id"]
    rows = list(csv.DictReader(io.StringIO(run("get", "nodes", "-o", "csv").out)))
    assert [r["name"] for r in rows] == names
    assert float(rows[0]["price_usd_hour"]) == 55.04
    lines = run("get", "nodes", "-o", "jsonl").out.splitlines()
    assert [json.loads(t)["name"] for t in lines] == names
    table = run("get", "nodes").out.splitlines()[1:]
    assert [t.split()[0] for t in table] == names


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "events"])
@pytest.mark.parametrize("form", ["table", "wide", "yaml", "csv"])
def test_every_kind_in_every_form(run: Any, kind: str, form: str) -> None:
    done = run("get", kind, "-o", form)
    assert done.code == 0, done.err
    if form == "yaml":
        assert yaml.safe_load(done.out)["apiVersion"] == "fleetd/v1"


def test_columns_sort_and_filters(run: Any) -> None:
    done = run("get", "nodes", "--columns", "name,boot_s,ASSIGNED-TO", "--sort-by", "-boot_s")
    assert done.out.splitlines()[0].split() == ["NAME", "BOOT", "ASSIGNED-TO"]
    assert run("get", "nodes", "-l", "provider=aws", "--limit", "2").out.count("\n") == 3
    assert "2 of 5 nodes" in run("get", "nodes", "--limit", "2").err
    assert "shown 2 of 5" in run("get", "nodes", "--limit", "2", "-o", "jsonl").err
    assert run("get", "nodes", "--where", "gpus=9").out == ""
    assert run("get", "nodes", "--where", "gpus=9", "--fail-empty").code == 3


def test_all_pages(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.cli.listing.PAGE", 7)
    ids = [json.loads(t)["id"] for t in run("events", "--all", "-o", "jsonl").out.splitlines()]
    assert ids == list(range(1, len(ids) + 1))
    assert len(ids) > 20


def test_describe(run: Any, live: Live) -> None:
    name = live.nodes("--limit", "1")[0]
    page = run("describe", "node", name)
    assert page.out.startswith(f"{name}   READY since")
    assert "\n  LIFE " in page.out
    facts = json.loads(run("describe", f"node/{name}", "-o", "json").out)
    assert facts["item"]["name"] == name
    for target in ("pool/train", "provider/aws", "policy/pool/train", "policies/gpu-base"):
        assert run("describe", target).code == 0, target


def test_events_and_plan(run: Any, live: Live) -> None:
    assert run("events", "--limit", "3").out.count("\n") == 4
    name = live.nodes("--limit", "1")[0]
    done = run("events", "--node", name, "--since", "1000d", "-o", "json")
    assert all(i["object"] == name for i in json.loads(done.out)["items"])
    assert "not needed" in run("plan", "train").out


def test_bytes_do_not_depend_on_a_terminal(live: Live) -> None:
    """cli/cli#9255: a field was empty only when piped."""
    args = [sys.executable, "-m", "fleet.cli.fleetctl", "--socket", str(live.socket), "get",
            "policies", "-o", "json"]  # fmt: skip
    env = {**os.environ, "TERM": "xterm-256color"}
    piped = subprocess.run(args, capture_output=True, check=True, env=env).stdout
    controller, terminal = pty.openpty()
    process = subprocess.Popen(args, stdout=terminal, stderr=subprocess.DEVNULL, env=env)
    os.close(terminal)
    seen = b""
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(controller)
    assert process.wait() == 0
    pinned = [_stable(t) for t in (piped, seen.replace(b"\r\n", b"\n"))]
    assert pinned[0] == pinned[1]


def _stable(text: bytes) -> bytes:
    """Without what moves with time."""
    value = json.loads(text)
    for key in ("as_of", "observed", "version"):
        value.pop(key)
    for item in value["items"]:
        item.pop("age_s")
    return json.dumps([value, len(text.splitlines()), sorted(set(text))]).encode()


# -- changes -----------------------------------------------------------------------------------


def test_drain_and_wait_and_what_is_left(run: Any, live: Live) -> None:
    spare = live.nodes("--where", "slot=null", "--state", "READY")[0]
    done = run("drain", f"node/{spare}", "--reason", "noisy fan", "--yes")
    assert done.code == 0, done.err
    assert f"fleetctl wait node/{spare} --for gone" in done.err
    assert run("wait", f"node/{spare}", "--for", "state=READY", "--timeout", "20s").code == 5
    assert run("wait", f"node/{spare}", "--for", "gone", "--timeout", "60s").code == 0
    page = run("describe", "node", spare)
    assert "noisy fan" in page.out
    assert run("drain", spare, "--reason", "x", "--yes").code == 4
    assert run("wait", "pool/train", "--for", "state=ok", "--timeout", "60s").code == 0


def test_cordon_round_trip(run: Any, live: Live) -> None:
    name = live.nodes("--state", "READY", "--limit", "1")[0]
    assert run("cordon", name, "-m", "look").code == 0
    assert "cordoned by user:" in run("get", "nodes", name).out
    assert run("cordon", name, "-m", "look").code == 4
    assert run("uncordon", name, "-m", "seen").code == 0


def test_freeze_round_trip(run: Any, live: Live) -> None:
    name = live.nodes("--state", "READY", "--limit", "1")[0]
    assert run("freeze", "--reason", "look").out.startswith("frozen: user:")
    try:
        assert run("drain", name, "--reason", "x", "--yes").code == 4
        assert "FROZEN: user:" in run("get", "nodes").err
    finally:
        assert run("unfreeze", "--reason", "seen").code == 0


def test_apply_changes_and_then_nothing(run: Any, words: dict[str, str]) -> None:
    text = Path(words["same"]).read_text()
    Path(words["new"]).write_text(text.replace("surge: 25%", "surge: 30%"))
    done = run("apply", "-f", words["new"], "--yes")
    assert done.code == 0, done.err
    assert "pool/train applied, version " in done.out
    assert 'surge: "25%" → "30%"' in done.err
    again = run("apply", "-f", words["new"], "--yes")
    assert (again.code, again.out) == (0, "")
    assert run("apply", "-f", words["same"], "--yes").code == 0


# -- asking ------------------------------------------------------------------------------------


class Person:
    """A terminal with a person who types these lines."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return f"{self._lines.pop(0)}\n" if self._lines else ""


def test_asking_in_proportion(
    run: Any, live: Live, monkeypatch: pytest.MonkeyPatch, words: dict[str, str]
) -> None:
    monkeypatch.setattr("fleet.cli.ask.interactive", lambda: True)
    name = words["node"]

    def typed(*lines: str) -> None:
        monkeypatch.setattr("sys.stdin", Person(*lines))

    typed()
    assert run("drain", name).code == 130
    typed("look")
    assert run("cordon", name).code == 0
    typed("seen")
    assert run("uncordon", name).code == 0
    typed("traain")
    done = run("delete", "pool", "train", "--reason", "x")
    assert done.code == 130
    assert "nothing was done" in done.err
    typed("no")
    assert run("apply", "-f", words["new"]).code == 130
    assert json.loads(run("get", "pools", "-o", "json").out)["items"][0]["nodes_wanted"] == 3


# -- watching ----------------------------------------------------------------------------------


def test_watch_piped_prints_changes_and_ends(run: Any, live: Live) -> None:
    spare = live.nodes("--where", "slot=null", "--state", "READY")[0]
    assert run("drain", spare, "--reason", "x", "--yes").code == 0
    done = run("get", "nodes", spare, "--watch")
    assert done.code == 0, done.err
    assert "TERMINATED" in done.out.splitlines()[-1]
    assert "→" in done.out
    assert run("wait", "pool/train", "--for", "state=ok", "--timeout", "60s").code == 0


def test_follow_goes_on_until_stopped(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    real = client.Client.get

    def get(self: client.Client, route: str, params: Any = ()) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        short = [(k, "0.1" if k == "wait" else v) for k, v in params]
        return real(self, route, short)

    monkeypatch.setattr(client.Client, "get", get)
    done = run("events", "--follow", "--limit", "2")
    assert done.code == 130
    assert done.out.count("\n") >= 3

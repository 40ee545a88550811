"""Every command × {ok, not found, refused, unreachable, Ctrl-C} has its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.cli import client, fleetctl
from fleet.cli.fail import CODES

OK = 0
TABLE: list[tuple[list[str], int]] = [
    (["get"], 0),
    (["get", "nodes"], 0),
    (["get", "nodes", "n-none"], 3),
    (["get", "nodes", "--pool", "trian"], 3),
    (["get", "nodes", "--columns", "nme"], 3),
    (["get", "nodes", "--sort-by", "nme"], 3),
    (["get", "foo"], 2),
    (["get", "nodes", "--limit", "many"], 2),
    (["get", "nodes", "--limit", "-1"], 2),
    (["get", "nodes", "-o", "xml"], 2),
    (["get", "nodes", "-l", "nonsense"], 2),
    (["get", "nodes", "--where", "boot_s>"], 2),
    (["get", "nodes", "--wat"], 2),
    (["nonsense"], 2),
    (["describe", "pool", "train"], 0),
    (["describe", "pool", "trian"], 3),
    (["describe", "pool"], 2),
    (["describe", "pool", "train", "-o", "csv"], 2),
    (["events"], 0),
    (["events", "--since", "noon"], 2),
    (["events", "--reason", "becuase"], 3),
    (["plan"], 0),
    (["plan", "trian"], 3),
    (["apply", "-f", "{none}"], 2),
    (["apply", "-f", "{bad}", "--yes"], 2),
    (["apply", "-f", "{same}"], 0),
    (["apply", "-f", "{new}"], 2),
    (["apply", "-f", "{new}", "--dry-run"], 0),
    (["apply", "-f", "{new}", "--dry-run", "--exit-code"], 9),
    (["apply", "-f", "{new}", "--yes", "--if-version", '"policies-0"'], 4),
    (["apply"], 2),
    (["diff", "-f", "{same}", "--exit-code"], 0),
    (["diff", "-f", "{new}", "--exit-code"], 9),
    (["diff", "-f", "{bad}"], 2),
    (["delete", "pool", "trian", "--reason", "x", "--yes"], 3),
    (["delete", "pool", "train"], 2),
    (["delete", "node", "x"], 2),
    (["cordon", "n-none", "--reason", "x"], 3),
    (["cordon", "n-none"], 2),
    (["cordon", "--reason", "x"], 2),
    (["uncordon", "{node}", "--reason", "x"], 4),
    (["drain", "{node}"], 2),
    (["drain", "{node}", "--plan"], 0),
    (["drain", "n-none", "--reason", "x", "--yes"], 3),
    (["drain", "--pool", "train", "--reason", "x", "--yes"], 4),
    (["replace", "--pool", "train", "--max", "1", "--plan"], 0),
    (["replace", "n-none", "--reason", "x", "--yes"], 3),
    (["clear", "{node}", "--reason", "x"], 4),
    (["clear", "n-none", "--reason", "x"], 3),
    (["freeze"], 2),
    (["unfreeze", "--reason", "x"], 4),
    (["wait", "pool/train", "--for", "state=ok", "--timeout", "5s"], 0),
    (["wait", "node/n-none", "--for", "gone", "--timeout", "5s"], 0),
    (["wait", "pool/train", "--for", "budget-free", "--timeout", "5s"], 0),
    (["wait", "node/n-none", "--for", "state=READY", "--timeout", "0.2s"], 6),
    (["wait", "pool/train", "--for", "nodes_wanted>99", "--timeout", "0.2s"], 6),
    (["wait", "pool/train", "--for", "stat=ok", "--timeout", "1s"], 3),
    (["wait", "pool", "--for", "gone"], 2),
    (["wait", "pool/train", "--for", "gone", "--timeout", "soon"], 2),
    (["help"], 0),
    (["help", "exit-codes"], 0),
    (["help", "drain"], 0),
    (["help", "nonsense"], 2),
    (["--help"], 0),
    (["get", "--help"], 0),
    (["version"], 0),
    (["version", "-o", "json"], 0),
    (["completion", "bash"], 0),
    (["completion", "zsh"], 0),
    (["completion", "fish"], 0),
    (["completion", "csh"], 2),
]
LOCAL = ("help", "--help", "version", "completion", "nonsense")


@pytest.mark.parametrize("args, code", TABLE, ids=[" ".join(a) for a, _ in TABLE])
def test_exit_codes(run: Any, words: dict[str, str], args: list[str], code: int) -> None:
    done = run(*(a.format(**words) if a.startswith("{") else a for a in args))
    assert done.code == code, done.err
    if code not in (0, 9):
        assert done.out == "" or args[0] == "wait", "a failure leaves stdout empty"
        lines = [t for t in done.err.splitlines() if t]
        assert any(t.startswith("error: ") for t in lines)
        assert lines[-1].startswith("  code  ")
        assert lines[-1].endswith(f"(exit {code})")
        assert "Traceback" not in done.err


def test_the_table_has_every_command() -> None:
    import typer

    root: Any = typer.main.get_command(fleetctl.app)
    assert set(root.commands) <= {a[0] for a, _ in TABLE}


REMOTE = sorted({tuple(a) for a, code in TABLE if code in (0, 9) and a[0] not in LOCAL
                 and "--help" not in a})  # fmt: skip


@pytest.mark.parametrize("args", REMOTE, ids=" ".join)
def test_unreachable_is_7_and_says_nothing_on_stdout(
    run: Any, words: dict[str, str], args: tuple[str, ...], tmp_path: Path
) -> None:
    """kubernetes#35092: "no resources" when the server was unreachable."""
    filled = [a.format(**words) if a.startswith("{") else a for a in args]
    done = run(*filled, socket=tmp_path / "none.sock")
    assert (done.code, done.out) == (7, "")
    assert "not reachable" in done.err


@pytest.mark.parametrize("args", REMOTE, ids=" ".join)
def test_ctrl_c_is_130_and_says_what_goes_on(
    run: Any, words: dict[str, str], args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(client.Client, "_exchange", interrupted)
    done = run(*(a.format(**words) if a.startswith("{") else a for a in args))
    assert done.code == 130
    assert "goes on" in done.err


@pytest.mark.parametrize(
    "status, code",
    [(400, 2), (401, 8), (403, 8), (404, 3), (409, 4), (412, 4), (422, 2), (418, 1), (500, 7),
     (503, 7), (507, 7)],
)  # fmt: skip
def test_every_status_has_a_code(
    run: Any, monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    body = json.dumps({"status": status, "code": "x", "detail": "no"}).encode()
    raw = b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
    monkeypatch.setattr(client.Client, "_exchange", lambda *_: raw)
    assert run("get", "nodes").code == code


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n[]",
        b"220 smtp ready\r\n\r\n{}", b"HTTP/1.1 abc\r\n\r\n{}",
    ],
)  # fmt: skip
def test_something_else_at_the_socket(
    run: Any, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    monkeypatch.setattr(client.Client, "_exchange", lambda *_: raw)
    done = run("get", "nodes")
    assert (done.code, done.out) == (7, "")


def test_codes_are_documented() -> None:
    assert set(CODES) == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 130}


def test_errors_as_json(run: Any) -> None:
    done = run("get", "nodes", "--pool", "trian", "-o", "json")
    problem = json.loads(done.err)
    assert problem["code"] == "unknown_pool"
    assert problem["exit_code"] == done.code == 3
    assert json.loads(run("get", "foo", "-o", "json").err)["code"] == "unknown_kind"


def test_policy_errors_name_file_and_line(run: Any, words: dict[str, str]) -> None:
    done = run("apply", "-f", words["bad"], "--yes")
    assert done.err.startswith(f"error: {words['bad']}:")
    assert "  try   write at least 0" in done.err
    assert "invalid_policy at /spec/nodes" in done.err

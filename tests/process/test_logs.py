"""D8 at the log's sink: one event is one line, and secrets do not get there."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from fleet import logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Other tests log as they did."""
    config, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**config)
    root.handlers[:] = handlers
    root.setLevel(level)


def said(form: str, **values: object) -> str:
    stream = io.StringIO()
    logs.configure(form, stream)
    structlog.get_logger("fleetd").warning("something", **values)
    return stream.getvalue()


HOSTILE = "a\nb\r\x1b[31mred\x9b1m\u202eevil\x00\u2028x"


@pytest.mark.parametrize("form", ["json", "console"])
def test_hostile_text_is_one_plain_line(form: str) -> None:
    """CVE-2020-7694, CVE-2021-25743."""
    text = said(form, name=HOSTILE)
    assert text.count("\n") == 1
    assert all(c.isprintable() or c == "\n" for c in text)
    if form == "json":
        assert json.loads(text)["name"] == HOSTILE


SECRET = "canary0123456789abcdefXYZ"


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize(
    "values",
    [
        {"boot_token": SECRET}, {"headers": {"Authorization": SECRET}}, {"password": SECRET},
        {"why": f"sent Authorization: Bearer {SECRET}"}, {"tls_key": SECRET},
        {"error": f"url?X-Amz-Signature={SECRET}&x"}, {"user_data": SECRET},
        {"error": f'{{"node_token": "{SECRET}"}}'}, {"list": [{"secret": SECRET}]},
        {"who": "AKIACANARY0123456789"},
    ],
)  # fmt: skip
def test_secrets_are_hidden(form: str, values: dict[str, object]) -> None:
    text = said(form, **values)
    assert "canary" not in text.lower()
    assert "[hidden]" in text


def test_a_batch_is_named_by_its_token() -> None:
    assert "b-0011" in said("json", token="b-0011")


def test_a_traceback_stays_on_its_line() -> None:
    stream = io.StringIO()
    logs.configure("json", stream)
    try:
        raise ValueError(f"Bearer {SECRET}")
    except ValueError:
        structlog.get_logger("fleetd").exception("failed")
    line = json.loads(stream.getvalue())
    assert "Traceback" in line["exception"]
    assert SECRET not in line["exception"]


def test_libraries_speak_the_same_way() -> None:
    stream = io.StringIO()
    logs.configure("json", stream)
    logging.getLogger("somelib").warning("odd %s", "thing\n")
    logging.getLogger("somelib").info("chatter")
    assert json.loads(stream.getvalue())["logger"] == "somelib"


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(28, "No space left on device")

    logs.configure("json", Full())
    structlog.get_logger("fleetd").error("lost")


def test_journald_gets_a_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "under_journald", lambda _stream: True)
    text = said("json", n=1)
    assert text.startswith("<4>{")

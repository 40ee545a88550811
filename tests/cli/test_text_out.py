"""Hostile text through every sink: it stays text."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import unicodedata
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.cli import client, fleetctl
from fleet.cli.text_out import ascii_only, csv_text, cut, json_text, terminal, width

BIDI = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
HOSTILE = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(max_codepoint=0x9F), max_size=30),
    st.sampled_from([
        "\x1b[31mred", "\x1b]52;c;aGk=\x07", "\x1b]8;;http://x\x07y", "a\rb", "a\nb", "\x9b2J",
        "\u202egnp.exe", "[red]x[/b]", "=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\x7f", "\x00",
        "\ud800", 'a,b"c', "null", "yes", "- x", "#x", ": ", "\u2028x", "\ufeff", "<b>", "%s{0}",
    ]),
)  # fmt: skip


def harmless(text: str) -> bool:
    for char in text:
        code = ord(char)
        if (code < 0x20 and char != "\n") or 0x7F <= code <= 0x9F or code in BIDI:
            return False
        if 0xD800 <= code <= 0xDFFF or code in (0x2028, 0x2029, 0xFEFF):
            return False
    return True


@given(HOSTILE)
def test_terminal(text: str) -> None:
    shown = terminal(text)
    assert harmless(shown)
    assert "\n" not in shown
    if harmless(text) and "\n" not in text:
        assert shown == text


@given(HOSTILE)
def test_csv_text_is_no_formula(text: str) -> None:
    shown = csv_text(text)
    assert harmless(shown)
    assert not shown.startswith(("=", "+", "-", "@"))


@given(st.recursive(HOSTILE | st.floats(allow_nan=False, allow_infinity=False) | st.none(),
                    lambda s: st.lists(s, max_size=3) | st.dictionaries(HOSTILE, s, max_size=3),
                    max_leaves=6), st.sampled_from([None, 2]))  # fmt: skip
def test_json_is_the_same_value_and_harmless(value: Any, indent: int | None) -> None:
    text = json_text(value, indent=indent)
    assert harmless(text)
    assert json.loads(text) == value


@given(HOSTILE)
def test_ascii_only(text: str) -> None:
    assert ascii_only(terminal(text)).isascii()


@given(st.text(max_size=40), st.integers(1, 30))
def test_cut(text: str, columns: int) -> None:
    text = terminal(text)
    shown = cut(text, columns)
    assert width(shown) <= max(columns, 1)
    assert shown == text or shown.endswith("…")


def test_width() -> None:
    assert width("漢字") == 4
    assert width("e\u0301") == 1
    assert unicodedata.normalize("NFC", "e\u0301") == "é"


@pytest.mark.parametrize("value", [-1, -1.5, 0, 1e300])
def test_negative_numbers_stay_numbers_in_csv(value: float) -> None:
    out = _run(_list("x", value), "get", "nodes", "-o", "csv")
    assert float(out.splitlines()[1].split(",")[1]) == value


# -- whole commands ----------------------------------------------------------------------------

FORMS = ["table", "wide", "json", "yaml", "name", "csv", "jsonl"]


def _list(text: str, number: float = 1.0) -> dict[str, Any]:
    return {
        "apiVersion": "fleetd/v1", "kind": "NodeList", "as_of": text + "0" * 20, "count": 1,
        "observed": {text: 99.0, text + "x": None}, "total": 2, "next_page_token": "",
        "version": "1", "frozen": text,
        "columns": [
            {"name": "NAME", "key": "name", "priority": 0, "type": "text", "align": "left"},
            {"name": "N", "key": "n", "priority": 0, "type": "number", "align": "right"},
            {"name": "REASON", "key": "reason", "priority": 0, "type": "text", "align": "left"},
        ],
        "items": [{"name": text, "n": number, "reason": text, "cells": [text, "1", text]}],
    }  # fmt: skip


def _page(text: str) -> dict[str, Any]:
    return {"apiVersion": "v", "kind": "Node", "name": text, "head": text, "as_of": text,
            "item": {text: text, "deep": [{"x": text}]},
            "sections": [{"label": text, "lines": [text, text]}]}  # fmt: skip


def _run(answer: dict[str, Any], *args: str, status: int = 200) -> str:
    raw = b"HTTP/1.1 %d x\r\n\r\n" % status + json.dumps(answer).encode()
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in "oe")
    saved = sys.stdout, sys.stderr, client.Client._exchange
    sys.stdout, sys.stderr = out, err
    client.Client._exchange = lambda *_: raw  # type: ignore[method-assign]
    try:
        fleetctl.run(list(args))
    finally:
        sys.stdout, sys.stderr, client.Client._exchange = saved  # type: ignore[method-assign]
    texts: list[str] = []
    for stream in (out, err):
        buffer: Any = stream.buffer
        texts.append(buffer.getvalue().decode("utf-8"))
    assert "bug" not in texts[1], texts[1]
    assert all(harmless(t) for t in texts), texts
    return texts[0]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(HOSTILE, st.sampled_from(FORMS))
def test_lists(text: str, form: str) -> None:
    out = _run(_list(text), "get", "nodes", "-o", form)
    if form in ("table", "wide"):
        assert out.count("\n") == 2, "one item, one line"
    if form == "json":
        assert json.loads(out)["items"][0]["name"] == text
    if form == "jsonl":
        assert json.loads(out)["name"] == text
    if form == "yaml":
        assert yaml.safe_load(out)["items"][0]["reason"] == text
    if form == "csv":
        rows = list(csv.reader(io.StringIO(out)))
        assert len(rows) == 2
        assert rows[1][1] == "1.0"


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(HOSTILE, st.sampled_from(["table", "json", "yaml", "name"]))
def test_pages(text: str, form: str) -> None:
    out = _run(_page(text), "describe", "node", "x", "-o", form)
    if form == "yaml":
        assert yaml.safe_load(out)["item"]["deep"][0]["x"] == text


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(HOSTILE, st.sampled_from(["table", "json"]))
def test_problems(text: str, form: str) -> None:
    problem = {"status": 409, "code": text, "detail": text, "why": text, "fix": text,
               "request_id": text,
               "errors": [{"where": text, "what": text, "fix": text}]}  # fmt: skip
    _run(problem, "get", "nodes", "-o", form, status=409)
    _run({**problem, "code": "invalid_policy"}, "get", "nodes", "-o", form, status=422)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(HOSTILE)
def test_actions_and_plans(text: str) -> None:
    result = {"action": "drain", "plan": True, "notes": [text], "count": 1, "frozen": text,
              "nodes": [{"name": text, "state": text, "effect": text, "changes": True}],
              "changes": [{"action": text, "object": text, "pointer": text, "old": text,
                           "new": text, "effect": text}], "objects": [text], "etag": text,
              "was": text, "adopted": 0}  # fmt: skip
    _run(result, "drain", "x", "--plan")
    _run(result, "freeze", "--reason", "x")
    _run(result, "unfreeze", "--reason", "x")


def test_forbidden_set_is_the_documented_one() -> None:
    shown = terminal("".join(chr(i) for i in range(0x20)) + "\x7f\x80\x9f\u202e")
    assert re.fullmatch(r"(\\x[0-9a-f]{2}|\\n|\\t|\\u[0-9a-f]{4})+", shown)

"""``--watch`` and ``--follow``: redraw on a terminal, one line per change when piped.

Invariant: nothing is drawn from memory that the server did not just say; a terminal is left as it
was found; Ctrl-C ends the watching and nothing else.
"""

from __future__ import annotations

import sys
from time import monotonic, sleep  # noqa: TID251 — a person watches in real time
from typing import Any, Final

from fleet.cli import render
from fleet.cli.fail import Fail, tell
from fleet.cli.listing import Ask, fetch, summary
from fleet.cli.session import Session
from fleet.cli.text_out import json_text, terminal

WAIT_S: Final = 2.0
LEAST_S: Final = 0.3
_HOME, _END, _HIDE, _SHOW = "\x1b[H", "\x1b[J", "\x1b[?25l", "\x1b[?25h"
#: Kinds whose objects end: watching named ones ends with them.
_ENDS: Final = {"nodes": ("TERMINATED",), "launches": ()}


def watch(session: Session, ask: Ask) -> None:
    """Show a list until it ends by itself (all named nodes gone) or the person stops."""
    tty = sys.stdout.isatty() and ask.form in ("table", "wide")
    before: dict[str, Any] = {}
    version = ""
    try:
        if tty:
            sys.stdout.write(_HIDE + _HOME + _END)
        while True:
            start = monotonic()
            answer = _next(session, ask, version)
            version = answer["version"]
            if tty:
                _draw(session, ask, answer)
            else:
                before = _changes(ask, answer, before)
            if _over(ask, answer):
                return
            sleep(max(0.0, LEAST_S - (monotonic() - start)))
    finally:
        if tty:
            sys.stdout.write(_SHOW)
            sys.stdout.flush()


def _next(session: Session, ask: Ask, version: str) -> dict[str, Any]:
    """The next answer: at once when something changed, else after WAIT_S (ages move)."""
    extra = {"wait": f"{WAIT_S:g}", "version": version} if version else {}
    kept = dict(ask.filters)
    ask.filters = {**kept, **extra}
    try:
        return fetch(session, ask)
    finally:
        ask.filters = kept


def _draw(session: Session, ask: Ask, answer: dict[str, Any]) -> None:
    how = session.look()
    lines = render.table(answer, wide=ask.form == "wide", names=ask.columns, headers=ask.headers,
                         how=how)  # fmt: skip
    room = _rows() - 2
    if len(lines) > room > 2:
        left = len(lines) - room + 1
        lines = [*lines[: room - 1], f"… {left:,} more"]
    sys.stdout.write(_HOME + "".join(f"{t}\x1b[K\n" for t in lines) + _END)
    sys.stdout.flush()
    summary(ask, answer)


def _rows() -> int:
    import os

    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines
    except (OSError, ValueError):
        return 40


def _changes(ask: Ask, answer: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Print what differs since ``before``: a line, or one JSON object with -o json."""
    now: dict[str, Any] = {}
    texts: list[str] = []
    at = str(answer["as_of"])[11:19]
    for item in answer["items"]:
        name = str(item["name"])
        state = str(item.get("state") or item.get("status") or item.get("outcome") or "")
        now[name] = (state, item.get("reason", ""), item.get("slot", item.get("node", "")))
        if before.get(name) == now[name]:
            continue
        if ask.form in ("json", "jsonl"):
            texts.append(json_text({k: v for k, v in item.items() if k != "cells"}))
            continue
        was = f"{before[name][0]} → " if name in before and before[name][0] != state else ""
        why = item.get("reason_text") or item.get("message") or item.get("reason") or ""
        texts.append(terminal(f"{at}  {name}  {was}{state}  {why}".rstrip()))
    for name in before.keys() - now.keys():
        if ask.form in ("json", "jsonl"):
            texts.append(json_text({"name": name, "gone": True, "at": answer["as_of"]}))
        else:
            texts.append(terminal(f"{at}  {name}  gone"))
    render.out(texts)
    return now


def _over(ask: Ask, answer: dict[str, Any]) -> bool:
    ends = _ENDS.get(ask.kind, ())
    return bool(ask.names and ends) and all(i.get("state") in ends for i in answer["items"])


def follow(session: Session, ask: Ask) -> None:
    """Events as they come, after those that are there: a stable cursor, nothing twice."""
    answer = fetch(session, ask)
    least = _print_events(session, ask, answer, headers=ask.headers)
    last = max((int(i["id"]) for i in answer["items"]), default=0)
    version = answer["version"]
    fails = 0
    while True:
        filters = {**ask.filters, "after": str(last), "wait": "20", "version": version}
        step = Ask("events", filters=filters, labels=ask.labels, where=ask.where, limit=1000)
        try:
            answer = session.client.get("/v1/events", step.params())
            fails = 0
        except Fail as fail:  # a restart of the daemon does not end the following
            fails += 1
            if fails == 1:
                tell([f"waiting for fleetd: {fail.what}"])
            if fails > 60:
                raise
            sleep(1.0)
            continue
        version = answer["version"]
        if answer["items"]:
            last = max(int(i["id"]) for i in answer["items"])
            least = _print_events(session, ask, answer, headers=False, least=least)
        else:
            sleep(LEAST_S)


def _print_events(session: Session, ask: Ask, answer: dict[str, Any], *, headers: bool,
                  least: list[int] | None = None) -> list[int]:  # fmt: skip
    """Print events under the columns of those before; the columns' widths now."""
    if ask.form not in ("table", "wide"):
        form = "jsonl" if ask.form == "json" else ask.form
        render.out(render.payload(answer, form, names=ask.columns, headers=headers))
        return []
    widths = list(least or [])
    render.out(
        render.table(answer, wide=ask.form == "wide", names=ask.columns, headers=headers,
                     how=session.look(), widths=widths)
    )  # fmt: skip
    return widths

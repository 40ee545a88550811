"""``wait``: until an object is as wanted, also one that does not exist yet.

Invariant: gone counts as gone however long ago; a state that cannot come any more ends the wait
at once with exit 5; ``--timeout`` bounds every case with exit 6.
"""

from __future__ import annotations

from time import monotonic, sleep  # noqa: TID251 — a person waits in real time
from typing import Any, Final

from fleet.cli import render
from fleet.cli.client import quote
from fleet.cli.fail import BAD, UNDECIDED, USAGE, Fail, tell
from fleet.cli.session import KINDS, Session, split
from fleet.cli.text_out import json_text, terminal

STEP_S: Final = 1.0
_NEVER: Final = ("TERMINATED", "TERMINATING", "QUARANTINED", "DRAINING")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``10m``, ``2h``; exit 2 otherwise."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    try:
        value = float(number) * _UNITS[unit]
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise Fail(USAGE, f"{text!r} is no time", fix="--timeout 90s, 10m or 2h", name="usage")
    return value


def wait(session: Session, target: str, until: str, timeout: str, *, form: str) -> None:
    """Return when ``target`` (KIND/NAME) is ``until``; Fail 5 or 6 otherwise."""
    kind, names = split([target])
    if len(names) != 1:
        raise Fail(USAGE, f"{target!r} is not KIND/NAME",
                   fix="fleetctl wait node/NAME --for state=READY", name="usage")  # fmt: skip
    end = monotonic() + seconds(timeout)
    said = ""
    while True:
        done, now = look(session, kind, names[0], until)
        if done:
            tell([f"{target}: {now}"]) if form == "table" else render.out(
                [json_text({"target": target, "for": until, "now": now})]
            )
            return
        if now != said:
            said = now
            tell([f"{terminal(target)}: {terminal(now)}, waiting for {terminal(until)}"])
        left = end - monotonic()
        if left <= 0:
            raise Fail(UNDECIDED, f"{target} is not {until} after {timeout}", why=f"it is {now}",
                       fix=f"fleetctl describe {target.replace('/', ' ', 1)}",
                       name="timeout")  # fmt: skip
        sleep(min(STEP_S, left))


def look(session: Session, kind: str, name: str, until: str) -> tuple[bool, str]:
    """(as wanted, how it is now) of one object. Raises Fail 5 when it can never be."""
    if until == "budget-free":
        if kind != "pools":
            raise Fail(USAGE, "only pools have a budget", fix="fleetctl wait pool/NAME --for "
                       "budget-free", name="usage")  # fmt: skip
        free = session.client.get(f"/v1/pools/{quote(name)}/budget")["free"]
        return free > 0, f"{free} may be disrupted"
    item = _item(session, kind, name)
    gone = until in ("gone", "delete", "deleted", "empty")
    state = str((item or {}).get("state") or (item or {}).get("status") or "")
    if gone:
        return item is None or state == "TERMINATED", state or "gone"
    if item is None:
        return False, "not there yet"
    if _matches(session, kind, name, until):
        return True, state or until
    wanted = until.partition("=")[2].upper() if until.startswith("state=") else ""
    if kind == "nodes" and wanted == "READY" and state in _NEVER:
        why = str(item.get("reason_text") or "")
        raise Fail(BAD, f"{KINDS[kind][0]} {name} will not be READY: it is {state}", why=why,
                   fix=f"fleetctl describe node {name}", name="cannot_come")  # fmt: skip
    return False, state


def _item(session: Session, kind: str, name: str) -> dict[str, Any] | None:
    try:
        answer = session.client.get(f"/v1/{kind}", [("name", name)])
    except Fail as fail:
        if fail.name.startswith("unknown_") and fail.name == f"unknown_{KINDS[kind][0]}":
            return None
        raise
    item: dict[str, Any] = answer["items"][0]
    return item


def _matches(session: Session, kind: str, name: str, until: str) -> bool:
    """Does the object fit the condition, said as a filter (``state=READY``, ``boot_s<600``)?"""
    key, mark, value = until.partition("=")
    condition = f'{key}="{value}"' if mark and key.isidentifier() else until
    try:
        session.client.get(f"/v1/{kind}", [("name", name), ("where", condition)])
    except Fail as fail:
        if fail.name == f"unknown_{KINDS[kind][0]}":
            return False
        raise
    return True

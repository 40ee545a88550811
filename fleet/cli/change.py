"""Verbs that change nodes and the cell: cordon, uncordon, drain, replace, clear, freeze, delete.

Invariant: the plan that is confirmed is the server's; the request names the very nodes that were
shown, and carries a key so that sending it twice does it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet.cli import ask, render
from fleet.cli.client import quote
from fleet.cli.fail import CONFLICT, Fail, tell
from fleet.cli.session import Session, bare_name
from fleet.cli.text_out import json_text, terminal

DESTRUCTIVE = frozenset({"drain", "replace"})


def on_nodes(session: Session, verb: str, names: Sequence[str], *, filters: dict[str, Any],
             reason: str, yes: bool, most: int, plan_only: bool, form: str) -> None:  # fmt: skip
    """Carry out one verb on named or matching nodes."""
    destructive = verb in DESTRUCTIVE
    if plan_only:
        reason = reason or "plan only"
    else:
        reason = ask.reason(reason, verb, destructive=destructive, yes=yes)
    body: dict[str, Any] = {"reason": reason, "plan": True,
                            **{k: v for k, v in filters.items() if v}}  # fmt: skip
    if names:
        body["nodes"] = [bare_name(n, "nodes") for n in names]
    if most:
        body["max"] = most
    plan = session.client.post(f"/v1/actions/{verb}", body)
    todo = [n for n in plan["nodes"] if n["changes"]]
    if plan_only:
        _show(plan, form)
        return
    if not todo:
        only = plan["nodes"][0]
        raise Fail(CONFLICT, f"nothing to {verb}", name="nothing_to_do",
                   why=f"{only['name']} {only['effect']}")  # fmt: skip
    if destructive and len(todo) > 1:
        lines = [*plan_lines(plan), *_notes(plan)]
        ask.confirm(lines, str(len(todo)), f"{verb} {len(todo)} nodes", yes=yes)
    body = {"reason": reason, "plan": False, "nodes": [n["name"] for n in todo]}
    from fleet.clock import SystemChance

    key = {"idempotency-key": SystemChance().token(16)}
    done = session.client.post(f"/v1/actions/{verb}", body, key)
    _show(done, form)


def _show(result: dict[str, Any], form: str) -> None:
    if form == "json":
        render.out([json_text(result, indent=2)])
    elif form == "jsonl":
        render.out(json_text(n) for n in result["nodes"])
    elif form == "yaml":
        render.out(render.yaml_lines(result))
    elif form == "name":
        render.out(f"node/{terminal(n['name'])}" for n in result["nodes"] if n["changes"])
    else:
        render.out(plan_lines(result))
    tell(_notes(result))
    if not result["plan"] and result["action"] in DESTRUCTIVE and form in ("table", "wide"):
        name = result["nodes"][0]["name"]
        tell([f"asked, not yet done: fleetctl wait node/{terminal(name)} --for gone"])


def plan_lines(result: dict[str, Any]) -> list[str]:
    """``n-1  READY  what happens`` for each node."""
    verb = result["action"] if result["plan"] else _PAST.get(result["action"], result["action"])
    rows = [
        [terminal(n["name"]), terminal(n["state"]), verb if n["changes"] else "-",
         terminal(n["effect"])]
        for n in result["nodes"]
    ]  # fmt: skip
    return render.align(rows, [False] * 4, None)


_PAST = {"cordon": "cordoned", "uncordon": "uncordoned", "drain": "drain asked",
         "replace": "replace asked", "clear": "cleared"}  # fmt: skip


def _notes(result: dict[str, Any]) -> list[str]:
    return [f"note: {terminal(n)}" for n in result.get("notes", [])]


def cord(session: Session, verb: str, reason: str, form: str) -> None:
    """Pull the stop cord, or let go of it."""
    reason = ask.reason(reason, verb, destructive=False, yes=True)
    result = session.client.post(f"/v1/{verb}", {"reason": reason})
    if form == "json":
        render.out([json_text(result, indent=2)])
    elif verb == "freeze":
        render.out([f"frozen: {terminal(result['frozen'])}"])
        tell(["nothing is launched, moved, drained or ended until: fleetctl unfreeze"])
    else:
        more = f"; {result['adopted']} adopted nodes have their boot deadline from now" if (
            result["adopted"]) else ""  # fmt: skip
        render.out([f"unfrozen; it was: {terminal(result['was'])}{more}"])


def delete_pool(session: Session, name: str, reason: str, *, yes: bool, form: str) -> None:
    """Delete a pool, after its name was typed."""
    reason = ask.reason(reason, "delete pool", destructive=True, yes=yes)
    route = f"/v1/pools/{quote(name)}/delete"
    plan = session.client.post(route, {"reason": reason, "plan": True})
    ask.confirm([f"pool {terminal(name)}: {terminal(plan['effect'])}"], name, "delete the pool",
                yes=yes)  # fmt: skip
    result = session.client.post(route, {"reason": reason})
    if form == "json":
        render.out([json_text(result, indent=2)])
        return
    render.out([f"pool/{terminal(name)} deleted: {terminal(result['effect'])}"])
    if result["held_back"]:
        tell([f"note: held back: {terminal(result['held_back'])}"])

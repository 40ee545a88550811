"""What people may do to nodes and to the cell: cordon, drain, replace, clear, freeze.

Invariant: a node is changed by a wish, a cordon or a cancelled intent, guarded by its version,
with an event that names actor and reason, all in one transaction; the loops carry it out. Budget
and freeze are checked here whatever the client said; a request is done whole or refused whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlmodel import Session

from fleet.api import say
from fleet.api.ctx import Ctx
from fleet.api.lists import KINDS, Query, check
from fleet.api.problems import Refusal, unknown
from fleet.api.where import parse
from fleet.cell import finish
from fleet.lifecycle import deadline
from fleet.model import Node, Outcome, Reason, State
from fleet.store import apply, control, write
from fleet.store.tables import NodeRow
from policies.budget import allowed_at, share_count
from policies.text import nearest

SERVING: Final = frozenset({State.READY, State.SUSPECT})
LEAVING: Final = frozenset({State.DRAINING, State.TERMINATING, State.TERMINATED})
VERBS: Final = ("cordon", "uncordon", "drain", "replace", "clear")
_WAKE: Final = ("lifecycle", "plan", "assign", "reap", "launch")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: which nodes, why, by whom; ``plan`` asks only what would happen."""

    verb: str
    reason: str
    actor: str
    nodes: tuple[str, ...] = ()
    where: str = ""
    pool: str = ""
    provider: str = ""
    state: str = ""
    most: int | None = None
    plan: bool = False


async def on_nodes(ctx: Ctx, ask: Ask) -> dict[str, Any]:
    """Carry out (or only plan) one verb on nodes; what was or would be done, node by node."""
    nodes = await _choose(ctx, ask)
    if not nodes:
        raise Refusal(404, "nothing_matches", "no node matches",
                      fix="fleetctl get nodes --where '…' shows what does")  # fmt: skip
    steps = [(n, *_effect(ctx, ask, n)) for n in nodes]
    todo = [n for n, does, _ in steps if does]
    if ask.verb in ("drain", "replace"):
        _may_disrupt(ctx, ask, todo)
    notes = _notes(ctx, ask, todo)
    if not ask.plan and todo:
        await ctx.cell.commit(lambda tx: _write(tx, ctx, ask, todo))
        _after(ctx, ask, todo)
    return {
        "apiVersion": "fleetd/v1", "kind": "ActionResult", "action": ask.verb, "plan": ask.plan,
        "reason": ask.reason, "actor": ask.actor, "count": len(todo), "notes": notes,
        "nodes": [
            {"name": n.id, "pool": n.pool, "state": str(n.state), "slot": n.slot,
             "provider": n.offer.provider, "changes": does, "effect": effect}
            for n, does, effect in steps
        ],
    }  # fmt: skip


async def _choose(ctx: Ctx, ask: Ask) -> list[Node]:
    live = ctx.view.nodes
    if ask.nodes:
        for name in ask.nodes:
            if name not in live:
                ended = await ctx.cell.store.run(partial(_ended, name=name))
                if ended is not None:
                    raise Refusal(409, "node_ended", f"node {name} has ended",
                                  why=f"{ended.reason}: {ended.message}")  # fmt: skip
                near = nearest(name, live)
                raise unknown("node", name, near, fix="fleetctl get nodes")
        return [live[name] for name in dict.fromkeys(ask.nodes)]
    if not (ask.where.strip() or ask.pool or ask.provider or ask.state):
        raise Refusal(422, "no_nodes", "name nodes or a filter",
                      fix=f"fleetctl {ask.verb} NODE… or --where '…'")  # fmt: skip
    kind, query = KINDS["nodes"], Query(pool=ask.pool, provider=ask.provider)
    check(ctx, query)
    test = parse(ask.where, kind.types) if ask.where.strip() else None
    states = {s.upper() for s in ask.state.split(",") if s}
    items = await kind.gather(ctx, query)
    found = [
        i["name"] for i in items
        if (test is None or test(i)) and (not states or i["state"] in states)
    ]  # fmt: skip
    nodes = sorted((live[n] for n in found if n in live), key=lambda n: (bool(n.slot), n.id))
    if ask.verb in ("drain", "replace"):
        may = SERVING if ask.verb == "replace" else frozenset(State) - LEAVING
        nodes = [n for n in nodes if n.state in may and not n.wish]
    return nodes[: ask.most] if ask.most is not None else nodes


def _ended(tx: Session, name: str) -> NodeRow | None:
    return tx.get(NodeRow, name)


def _effect(ctx: Ctx, ask: Ask, node: Node) -> tuple[bool, str]:
    """(changes something, what would happen) for one node."""
    verb = ask.verb
    if verb == "cordon":
        if node.cordoned:
            return False, f"is cordoned already by {node.cordoned_by}"
        return True, "serves on, takes no new slot" if node.slot else "takes no slot"
    if verb == "uncordon":
        waits = node.wish == "replace" and node.state in SERVING
        if not node.cordoned and not waits:
            return False, "is not cordoned"
        return True, "may serve again" + (", its replacement is called off" if waits else "")
    if verb == "clear":
        pulse = ctx.cell.watch.pulses.get(node.id)
        sick = bool(node.fault) or (pulse is not None and (pulse.fatal or pulse.warning))
        return (True, "its faults are forgotten until they are seen again") if sick else (
            False, "has no open fault")  # fmt: skip
    return _leave_effect(ctx, ask, node)


def _leave_effect(ctx: Ctx, ask: Ask, node: Node) -> tuple[bool, str]:
    if node.state in LEAVING:
        return False, f"is {node.state} already"
    if node.state is State.QUARANTINED:
        return True, "leaves quarantine and is terminated"
    if node.state not in SERVING:
        return True, f"its launch is cancelled ({node.state})"
    if node.wish == ask.verb:
        return False, f"{node.wish} was asked already by {node.wish_by}"
    if not node.slot:
        return True, "spare: drained and terminated, the pool refills"
    spare = ctx.cell.spares(node.pool)
    if ask.verb == "replace":
        now = "at once, a spare is ready" if spare else "when a spare is READY"
        return True, f"{node.slot} moves to a spare {now}, then it is drained"
    if spare:
        return True, f"{node.slot} moves to a spare, then it is drained"
    return True, f"{node.slot} is EMPTY until a replacement is READY: no spare is ready"


def _may_disrupt(ctx: Ctx, ask: Ask, nodes: Sequence[Node]) -> None:
    """Freeze, observe mode, pauses and each pool's disruption budget, or a Refusal."""
    if ctx.view.frozen:
        raise Refusal(409, "frozen", f"cannot {ask.verb} while the cell is frozen",
                      why=ctx.view.frozen, fix='fleetctl unfreeze --reason "…"')  # fmt: skip
    why = ctx.cell.may_destroy()
    if why:
        code = "observe_mode" if ctx.cell.observe_only else "paused"
        raise Refusal(409, code, f"cannot {ask.verb} now", why=why)
    by_pool: dict[str, list[Node]] = {}
    for node in nodes:
        if node.state is State.READY:
            by_pool.setdefault(node.pool, []).append(node)
    for pool, asked in by_pool.items():
        _budget(ctx, ask, pool, asked)


def _budget(ctx: Ctx, ask: Ask, pool: str, asked: Sequence[Node]) -> None:
    rules = ctx.cell.rules(pool)
    if rules is None:
        return
    spec = rules.pool.spec
    limit = share_count(spec.disruption.budget, spec.nodes, floor=1)
    going = [
        n for n in ctx.view.pool_nodes(pool)
        if (n.wish in ("drain", "replace") and n.state in SERVING)
        or (n.state is State.DRAINING and n.reason in (Reason.OPERATOR_DRAIN,
                                                       Reason.OPERATOR_REPLACE))
    ]  # fmt: skip
    ids = {n.id for n in asked}
    others = [n for n in going if n.id not in ids]
    if len(asked) + len(others) <= limit:
        return
    free = max(0, limit - len(others))
    noun = "node" if len(asked) == 1 else "nodes"
    share = spec.disruption.budget
    of = f"{share} of {spec.nodes}" if isinstance(share, str) else "a count"
    already = f"; {len(others)} on their way already" if others else ""
    fix = f"fleetctl wait pool/{pool} --for budget-free"
    if free:
        fix = f"fleetctl {ask.verb} --where 'pool={pool}' --max {free} --reason \"…\"   or {fix}"
    raise Refusal(
        409, "budget_exceeded", f"cannot {ask.verb} {len(asked)} {noun} of pool {pool}",
        why=f"disruption budget allows {limit} at once ({of.replace('%', ' %')}){already}",
        fix=fix, more={"limit": limit, "going": len(others), "free": free, "pool": pool},
    )  # fmt: skip


def budget_free(ctx: Ctx, pool: str) -> int:
    """How many more healthy nodes of ``pool`` may be disrupted by people now."""
    rules = ctx.cell.rules(pool)
    if rules is None:
        return 0
    spec = rules.pool.spec
    limit = share_count(spec.disruption.budget, spec.nodes, floor=1)
    going = sum(
        (n.wish in ("drain", "replace") and n.state in SERVING)
        or (n.state is State.DRAINING and n.reason in (Reason.OPERATOR_DRAIN,
                                                       Reason.OPERATOR_REPLACE))
        for n in ctx.view.pool_nodes(pool)
    )  # fmt: skip
    return max(0, limit - going)


def _notes(ctx: Ctx, ask: Ask, nodes: Sequence[Node]) -> list[str]:
    """What a person should know before: slots without a spare, closed windows."""
    notes: list[str] = []
    if ask.verb not in ("drain", "replace"):
        return notes
    for pool in sorted({n.pool for n in nodes}):
        slots = sum(n.pool == pool and bool(n.slot) for n in nodes)
        leaving = {n.id for n in nodes}
        spares = sum(s.id not in leaving for s in ctx.cell.spares(pool))
        if ask.verb == "drain" and slots > spares:
            notes.append(f"pool {pool}: {slots - spares} of {slots} slots will be EMPTY, "
                         f"{spares} spares are ready")  # fmt: skip
        rules = ctx.cell.rules(pool)
        if rules and not allowed_at(rules.pool.spec.disruption.windows, ctx.now):
            notes.append(f"pool {pool}: outside its disruption windows; a person may")
    return notes


# -- writing -------------------------------------------------------------------------------------


def _write(tx: Session, ctx: Ctx, ask: Ask, nodes: Sequence[Node]) -> None:
    for node in nodes:
        _WRITERS[ask.verb](tx, ctx, ask, node)


def _event(tx: Session, ctx: Ctx, ask: Ask, node: Node, reason: Reason) -> None:
    write.event(tx, kind="node", object_id=node.id, pool=node.pool, reason=reason,
                actor=ask.actor, at=ctx.now, message=ask.reason,
                evidence={"action": ask.verb})  # fmt: skip


def _cordon(tx: Session, ctx: Ctx, ask: Ask, node: Node) -> None:
    write.update_node(tx, node, cordoned_by=ask.actor, cordon_reason=ask.reason)
    _event(tx, ctx, ask, node, Reason.CORDONED)


def _uncordon(tx: Session, ctx: Ctx, ask: Ask, node: Node) -> None:
    changes: dict[str, Any] = {"cordoned_by": "", "cordon_reason": ""}
    if node.wish == "replace" and node.state in SERVING:
        changes |= {"wish": "", "wish_by": "", "wish_reason": ""}
    write.update_node(tx, node, **changes)
    _event(tx, ctx, ask, node, Reason.UNCORDONED)


def _leave(tx: Session, ctx: Ctx, ask: Ask, node: Node) -> None:
    drain = ask.verb == "drain"
    why = Reason.OPERATOR_DRAIN if drain else Reason.OPERATOR_REPLACE
    _event(tx, ctx, ask, node, why)
    if node.state is State.REQUESTED:  # nothing was sent: it ends here
        write.close_launch(tx, node, Outcome.CANCELLED, now=ctx.now, reason=why,
                           message=ask.reason)  # fmt: skip
        finish(tx, node, now=ctx.now, actor=ask.actor, reason=Reason.CANCELLED,
               message=ask.reason)  # fmt: skip
        return
    write.update_node(tx, node, wish=ask.verb, wish_by=ask.actor, wish_reason=ask.reason)


def _clear(tx: Session, ctx: Ctx, ask: Ask, node: Node) -> None:
    control.clear_faults(tx, node.id, ctx.now)
    write.update_node(tx, node, fault="")
    _event(tx, ctx, ask, node, Reason.RECOVERED)


_WRITERS: Final[dict[str, Callable[[Session, Ctx, Ask, Node], None]]] = {
    "cordon": _cordon, "uncordon": _uncordon, "drain": _leave, "replace": _leave, "clear": _clear,
}  # fmt: skip


def _after(ctx: Ctx, ask: Ask, nodes: Sequence[Node]) -> None:
    if ask.verb == "clear":
        for node in nodes:
            pulse = ctx.cell.watch.pulses.get(node.id)
            if pulse is not None:
                pulse.cured()
                pulse.warning = pulse.warning_since = None
    ctx.cell.watch.dirty |= {n.id for n in nodes}
    ctx.cell.wake(*_WAKE)


# -- the cell ------------------------------------------------------------------------------------


async def freeze(ctx: Ctx, actor: str, reason: str) -> dict[str, Any]:
    """Pull the stop cord."""
    text = f"{actor}: {reason}"
    before = ctx.view.frozen
    await ctx.cell.commit(lambda tx: control.freeze(tx, text, actor=actor, now=ctx.now))
    return {"action": "freeze", "frozen": text, "was": before, "at": say.rfc3339(ctx.now)}


async def unfreeze(ctx: Ctx, actor: str, reason: str) -> dict[str, Any]:
    """Let the loops act again; adopted nodes begin their boot deadline now."""
    before = ctx.view.frozen
    if not before:
        raise Refusal(409, "not_frozen", "the cell is not frozen")
    adopted = [n for n in ctx.view.all() if n.state is State.BOOTING and n.reason is Reason.ADOPTED]

    def fn(tx: Session) -> None:
        control.unfreeze(tx, reason, actor=actor, now=ctx.now)
        for node in adopted:
            rules = ctx.cell.rules(node.pool)
            limits = rules.rules(node.offer.instance_type) if rules else None
            until = deadline(State.BOOTING, ctx.now, limits) if limits else None
            write.update_node(tx, node, running_at=ctx.now, deadline_at=until)

    await ctx.cell.commit(fn)
    ctx.cell.wake(*_WAKE)
    return {"action": "unfreeze", "frozen": "", "was": before, "adopted": len(adopted),
            "at": say.rfc3339(ctx.now)}  # fmt: skip


async def delete_pool(ctx: Ctx, name: str, actor: str, reason: str, *, plan: bool
                      ) -> dict[str, Any]:  # fmt: skip
    """Delete a pool: its slots are emptied and all its nodes leave."""
    pool = ctx.view.pools.get(name)
    if pool is None:
        if name in ctx.view.deleted_pools and ctx.view.pool_nodes(name):
            raise Refusal(409, "deleting", f"pool {name} is being deleted already")
        raise unknown("pool", name, nearest(name, ctx.view.pools), fix="fleetctl get pools")
    nodes = ctx.view.pool_nodes(name)
    serving = sum(bool(n.slot) for n in nodes)
    if not plan:

        def fn(tx: Session) -> None:
            apply.delete_policy(tx, "Pool", name, actor=actor, now=ctx.now)
            write.event(tx, kind="pool", object_id=name, pool=name, reason=Reason.POOL_DELETED,
                        actor=actor, at=ctx.now, message=reason)  # fmt: skip

        await ctx.cell.commit(fn)
        ctx.cell.wake(*_WAKE)
    held = ctx.cell.may_destroy()
    return {"action": "delete", "plan": plan, "pool": name, "nodes": len(nodes),
            "serving": serving, "held_back": held,
            "effect": f"drain and terminate {len(nodes)} nodes ({serving} in service)"}  # fmt: skip

"""The page of one node: WHY, DONE, NEXT, REFILL, BLAME, DO, LIFE, CHECKS, GPUS, MONEY, WHO,
EVENTS.

Invariant: blame names its counts; what happens next is what ``advance`` would do by its own
deadlines, in the words of the lifecycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlmodel import Session

from fleet.api import rows_fleet, rows_history, say
from fleet.api.ctx import Ctx
from fleet.api.problems import unknown
from fleet.api.sections import Section, aligned, event_lines, section
from fleet.model import IN_FLIGHT, CheckResult, CheckStatus, HealthReport, Node, Reason, State
from fleet.store import queries
from fleet.store.tables import EventRow, FaultRow, LaunchRow, NodeRow
from fleet.store.write import to_node
from policies.text import nearest

_SERVED: Final = (State.READY, State.SUSPECT)
_GLYPH: Final = {
    CheckStatus.PASS: "●", CheckStatus.WARN: "▲", CheckStatus.FAIL: "✗", CheckStatus.SKIP: "·",
    CheckStatus.ERROR: "?",
}  # fmt: skip
_WORSE: Final = (CheckStatus.FAIL, CheckStatus.ERROR, CheckStatus.WARN, CheckStatus.SKIP)


class _Facts:
    """What the store knows of one node."""

    def __init__(self, tx: Session, node: Node, now: float) -> None:
        self.events: list[EventRow] = queries.events(tx, object_id=node.id, limit=200)
        self.launch = tx.get(LaunchRow, node.id)
        self.faults: list[FaultRow] = queries.faults(tx, node_id=node.id)
        slot = node.slot or node.last_slot
        since = now - 7 * 86400
        self.moves = queries.events(tx, kind="slot", object_id=slot, limit=20) if slot else []
        week = queries.faults(tx, since=since, limit=10_000)
        self.ill = {f.node_id for f in week if f.severity == "fatal"}


async def describe_node(ctx: Ctx, name: str, _window_s: float
                        ) -> tuple[dict[str, Any], str, list[Section]]:  # fmt: skip
    """The item, headline and sections of a live or ended node. Raises Refusal 404."""
    node = ctx.view.nodes.get(name)
    if node is None:
        row = await ctx.cell.store.run(lambda tx: tx.get(NodeRow, name))
        if row is None:
            near = nearest(name, ctx.view.nodes)
            raise unknown("node", name, near, fix="fleetctl get nodes --all")
        node = to_node(row.model_dump())
    facts = await ctx.cell.store.run(lambda tx: _Facts(tx, node, ctx.now))
    item = rows_fleet.node_item(ctx, node)
    pulse = ctx.cell.watch.pulses.get(node.id)
    report = (pulse.last_report or pulse.gate_report) if pulse else None
    item["life"] = _life(node, facts.events, ctx.now)
    item["checks"] = _checks(report)
    item["faults"] = [
        {k: v for k, v in f.items() if k[0] != "_"} for f in rows_history.fault_items(facts.faults)
    ]
    item["events"] = [rows_history.event_item(r) for r in facts.events[-10:]]
    item["cost_usd"] = _cost(ctx, node)
    sections = [
        section("WHY", _why(ctx, node, facts)), section("DONE", _done(ctx, node, facts)),
        section("NEXT", _next(ctx, node)), section("REFILL", _refill(ctx, node)),
        section("BLAME", _blame(ctx, node, facts)), section("DO", _do(node)),
        section("LIFE", [_life_line(item["life"])]),
        section("CHECKS", _check_lines(ctx, node, report)), section("GPUS", _gpus(report)),
        section("MONEY", [_money(item)]), section("WHO", _who(node, facts)),
        section("EVENTS", event_lines(item["events"], ctx.now, node.id)),
    ]  # fmt: skip
    return item, _head(ctx, node), sections


def _head(ctx: Ctx, node: Node) -> str:
    o = node.offer
    spent = say.dur(ctx.now - node.state_since)
    limit = ""
    if node.deadline_at is not None and node.state is not State.TERMINATED:
        limit = f" of {say.dur(node.deadline_at - node.state_since)}"
    since = say.clock(node.state_since, ctx.now)
    place = say.where(o.provider, o.region, node.zone or o.zone)
    market = str(o.market).replace("_", " ")
    return (f"{node.id}   {node.state} since {since} ({spent}{limit})   pool {node.pool} · {place}"
            f" · {node.instance_id or 'no instance yet'} · {o.instance_type} {market}")  # fmt: skip


def _why(ctx: Ctx, node: Node, facts: _Facts) -> list[str]:
    lines = [rows_fleet.reason(ctx, node)]
    turn = next((e for e in reversed(facts.events) if e.dst in ("DRAINING", "QUARANTINED")), None)
    seen = [f for f in facts.faults if f.cleared_at is None or turn is not None]
    for fault in seen[:5]:
        gpu = f" on GPU {fault.gpu}" if fault.gpu >= 0 else ""
        at = say.clock(fault.first_at, ctx.now)
        known = ctx.cell.rules(node.pool)
        rule = f"health policy {known.health.metadata.name}" if known else "health policy"
        lines.append(f"{fault.code}{gpu}: {fault.severity} by {rule}, seen {at}, {fault.n} times, "
                     f"boot {fault.boot_id[:8]}")  # fmt: skip
        if fault.message:
            lines.append(f"  {fault.message}")
    if node.cordoned:
        lines.append(f"cordoned by {node.cordoned_by}: {node.cordon_reason}")
    return lines


def _done(ctx: Ctx, node: Node, facts: _Facts) -> list[str]:
    """What was done for the consumer: where its slot went."""
    lines = []
    for move in facts.moves:
        if move.src == node.id and move.reason in ("moved", "released"):
            to = f"moved to {move.dst}" if move.dst else "EMPTY: no spare was ready"
            lines.append(f"{say.clock(move.at, ctx.now)}  {move.object_id} {to}")
    return lines[-3:]


def _next(ctx: Ctx, node: Node) -> list[str]:
    at = "" if node.deadline_at is None else f"at {say.clock(node.deadline_at, ctx.now)}"
    known = ctx.cell.rules(node.pool)
    kept = sum(n.state is State.QUARANTINED for n in ctx.view.pool_nodes(node.pool))
    places = known.quarantine if known else 0
    sick = node.reason in (Reason.FATAL_FAULT, Reason.WARNING_PERSISTS)
    after = "TERMINATING"
    if sick and kept < places:
        after = f"QUARANTINED ({kept} of {places} places used), then TERMINATING"
    held = ctx.cell.may_destroy()
    lines = {
        State.REQUESTED: [f"sent by the launch loop, or dropped {at}"],
        State.LAUNCHING: [f"BOOTING when the cloud says running, or TERMINATING {at}"],
        State.BOOTING: [f"CHECKING with the first report, or TERMINATING {at} (boot_timeout)"],
        State.CHECKING: [f"READY when the gate passes, or TERMINATING {at}"],
        State.SUSPECT: [f"READY after good reports, or DRAINING {at} if the budget allows"],
        State.DRAINING: [f"the consumer says drained, or {at} → {after}"],
        State.QUARANTINED: [f"TERMINATING {at}"],
        State.TERMINATING: [f"TERMINATED when the cloud says gone; alarm {at}"],
    }.get(node.state, [])
    if node.wish and node.state in _SERVED:
        lines = [f"DRAINING: {node.wish} asked by {node.wish_by}"]
    if held and lines:
        lines.append(f"held back: {held}")
    return lines


def _refill(ctx: Ctx, node: Node) -> list[str]:
    if node.state in (State.READY, State.TERMINATED) and not node.wish:
        return []
    coming = [
        n for n in ctx.view.pool_nodes(node.pool)
        if n.state in IN_FLIGHT and n.created_at >= node.state_since - 1
        and n.id != node.id
    ]  # fmt: skip
    lines = aligned(
        [n.token[:10], say.where(n.offer.provider, n.offer.region, n.offer.zone), n.id,
         f"{n.state} for {say.dur(ctx.now - n.state_since)}"]
        for n in coming[:3]
    )  # fmt: skip
    last = ctx.daemon.plan.last.get(node.pool)
    if last is not None and last.plan.blocked:
        lines.append(last.plan.blocked)
        lines += [f"{offer}: {why}" for offer, why in last.plan.tried[:3]]
    return lines


def _blame(ctx: Ctx, node: Node, facts: _Facts) -> list[str]:
    """Does it follow the host, the image or the place? Counts of like nodes, not a verdict."""
    if not facts.faults:
        return []
    live = [n for n in ctx.view.nodes.values() if n.state not in IN_FLIGHT]
    place = [n for n in live if n.offer.provider == node.offer.provider
             and (n.zone or n.offer.zone) == (node.zone or node.offer.zone)]  # fmt: skip
    image = [n for n in live if n.image == node.image]

    def ill(nodes: Sequence[Node]) -> int:
        return sum(n.id in facts.ill for n in nodes)

    zone = f"{ill(place)} of {len(place)} in its zone"
    return [f"fatal faults in 7 d: {zone}, {ill(image)} of {len(image)} with {node.image}"]


def _do(node: Node) -> list[str]:
    do = [f"fleetctl events --node {node.id}"]
    if node.state in _SERVED:
        verb = "uncordon" if node.cordoned else "cordon"
        do.append(f'fleetctl {verb} {node.id} --reason "…"')
        if not node.wish:
            do.append(f'fleetctl replace {node.id} --reason "…"')
        if node.fault or node.state is State.SUSPECT:
            do.append(f'fleetctl clear {node.id} --reason "…"')
    elif node.state in IN_FLIGHT or node.state is State.QUARANTINED:
        do.append(f'fleetctl drain {node.id} --reason "…"')
    return do


def _life(node: Node, events: Sequence[EventRow], now: float) -> list[dict[str, Any]]:
    """States in order with how long each lasted."""
    turns = [e for e in events if e.kind == "node" and e.dst]
    life = []
    for i, e in enumerate(turns):
        end = turns[i + 1].at if i + 1 < len(turns) else now
        last = i + 1 == len(turns)
        life.append({
            "state": e.dst, "at": say.rfc3339(e.at), "for_s": round(end - e.at, 3),
            "reason": e.reason, "now": last and node.state is not State.TERMINATED,
        })  # fmt: skip
    return life


def _life_line(life: Sequence[dict[str, Any]]) -> str:
    parts = []
    for step in life:
        ends = step["state"] == "TERMINATED"
        more = f" {say.dur(step['for_s'])}{'…' if step['now'] else ''}"
        parts.append(step["state"] + ("" if ends else more))
    return " │ ".join(parts)


def _checks(report: HealthReport | None) -> list[dict[str, Any]]:
    if report is None:
        return []
    return [
        {"name": c.name, "status": str(c.status), "value": c.value, "unit": c.unit,
         "message": c.message, "gpu": c.gpu}
        for c in report.checks
    ]  # fmt: skip


def _check_lines(ctx: Ctx, node: Node, report: HealthReport | None) -> list[str]:
    if report is None:
        return []
    counts: dict[str, int] = {}
    for c in report.checks:
        counts[str(c.status)] = counts.get(str(c.status), 0) + 1
    age = ctx.silent_s(node)
    head = " · ".join(f"{n} {s}" for s, n in counts.items())
    lines = [f"{head}   (last report {say.age(age)} ago)"]
    bad = [c for c in report.checks if c.status in _WORSE]
    lines += [_check(c) for c in bad]
    good = [_check(c) for c in report.checks if c.status is CheckStatus.PASS]
    rows = [good[i : i + 3] for i in range(0, len(good), 3)]
    return lines + aligned([*row, *[""] * (3 - len(row))] for row in rows)


def _check(c: CheckResult) -> str:
    value = "" if c.value is None else f" {c.value:g}{' ' + c.unit if c.unit else ''}"
    gpu = "" if c.gpu is None else f" GPU {c.gpu}"
    text = f" {c.message}" if c.message and c.status is not CheckStatus.PASS else ""
    return f"{_GLYPH[c.status]} {c.name}{gpu}{value}{text}"


def _gpus(report: HealthReport | None) -> list[str]:
    if report is None or not report.gpus:
        return []
    lines = [f"{report.gpus} × {report.gpu}, driver {report.driver or '?'}"]
    by_gpu: dict[int, list[str]] = {}
    for c in report.checks:
        if c.gpu is not None:
            by_gpu.setdefault(c.gpu, []).append(_check(c))
    lines += [f"GPU {i}  {'  '.join(texts)}" for i, texts in sorted(by_gpu.items())]
    return lines


def _cost(ctx: Ctx, node: Node) -> float | None:
    """List price × time since the cloud said running; what never ran cost nothing."""
    price = ctx.price(node.offer)
    if price is None or node.running_at is None:
        return None if price is None else 0.0
    end = node.state_since if node.state is State.TERMINATED else ctx.now
    return round(price * max(0.0, end - node.running_at) / 3600.0, 2)


def _money(item: dict[str, Any]) -> str:
    if item["price_usd_hour"] is None:
        return "no price known for this offer"
    return (f"${say.usd(item['price_usd_hour'])}/h list price · ${say.usd(item['cost_usd'])} since "
            "it ran")  # fmt: skip


def _who(node: Node, facts: _Facts) -> list[str]:
    first = facts.events[0] if facts.events else None
    lines = []
    if first is not None:
        lines.append(f"created by {first.actor} ({first.message or first.reason}), "
                     f"image {node.image}, launch {node.token}")  # fmt: skip
    people = [e for e in facts.events if e.actor.startswith("user:")]
    lines += [f"{e.actor}: {e.reason}: {e.message}" for e in people[-3:]]
    return lines

"""Items of how the daemon does: tasks, guards, open batches, and the last plan offer by offer.

Invariant: reads only what is in memory; nothing here waits for a store or a cloud.
"""

from __future__ import annotations

from typing import Any

from fleet.api import say
from fleet.api.ctx import Ctx


def task_items(ctx: Ctx) -> list[dict[str, Any]]:
    """Every loop with its lateness."""
    now = ctx.cell.clock.monotonic()
    items = []
    for name, driver in ctx.cell.drivers.items():
        s = driver.status
        late = s.late_s(now)
        state = "failing" if s.failures_in_row else "late" if late > 10 * s.period_s else "ok"
        ok_s = None if s.last_ok_at is None else round(now - s.last_ok_at, 1)
        idle = f"no good pass for {say.dur(late + s.period_s)}" if late > 60 else ""
        why = s.last_error or idle
        items.append({
            "name": name, "state": state,
            "state_text": {"ok": "● ok", "late": "▲ late", "failing": "✗ failing"}[state],
            "period_s": s.period_s, "last_ok_s": ok_s, "late_s": round(late, 1),
            "passes": s.passes, "failures": s.failures, "failures_in_row": s.failures_in_row,
            "last_pass_s": round(s.last_pass_s, 4), "reason": "task_error" if s.last_error else "",
            "reason_text": why, "_rank": {"failing": 0, "late": 1}.get(state, 5),
        })  # fmt: skip
    return items


def guard_items(ctx: Ctx) -> list[dict[str, Any]]:
    """What holds automation back now: guards, freeze, observe mode, a clock jump."""
    found = dict(ctx.cell.guards)
    if ctx.view.frozen:
        found["freeze"] = ctx.view.frozen
    if ctx.cell.observe_only:
        found["observe"] = "observe mode: decides and logs, does nothing"
    if ctx.cell.pause.active(ctx.cell.clock.monotonic()):
        found["clock"] = ctx.cell.pause.why
    items = []
    for key, why in sorted(found.items()):
        name, _, scope = key.partition(":")
        items.append({"name": key, "guard": name, "scope": scope, "reason": name,
                      "reason_text": why, "_rank": 0})  # fmt: skip
    return items


def batch_items(ctx: Ctx) -> list[dict[str, Any]]:
    """Create calls that are not settled yet."""
    items = []
    for token, b in ctx.view.batches.items():
        state = "waiting" if b.sent_at is None else "sent"
        items.append({
            "name": token, "pool": b.pool, "provider": b.provider, "region": b.region,
            "offer": b.offer_key, "n": b.n, "created_at": say.rfc3339(b.created_at),
            "age_s": round(ctx.now - b.created_at, 1), "sent_at": say.rfc3339(b.sent_at),
            "attempts": b.attempts, "state": state, "reason": "create_ambiguous" if b.last_error
            else "", "reason_text": b.last_error, "_rank": 0 if b.last_error else 1,
        })  # fmt: skip
    return items


def plan_items(ctx: Ctx) -> list[dict[str, Any]]:
    """The last plan of each pool: why each offer was or was not used."""
    items: list[dict[str, Any]] = []
    for name, pool in sorted(ctx.view.pools.items()):
        last = ctx.daemon.plan.last.get(name)
        plan = last.plan if last else None
        takes = {i.offer.key: i.count for i in plan.intents} if plan else {}
        why = dict(plan.tried) if plan else {}
        nodes: dict[str, int] = {}
        for node in ctx.view.pool_nodes(name):
            nodes[node.offer.key] = nodes.get(node.offer.key, 0) + 1
        for rank, offer in enumerate(pool.spec.offer_list(), 1):
            text = why.get(offer.key) or _unused(plan is not None, takes.get(offer.key, 0), plan)
            if offer.provider not in ctx.cell.providers:
                text = f"provider {offer.provider} is not configured"
            items.append({
                "name": offer.key, "pool": name, "rank": rank, "provider": offer.provider,
                "region": offer.region, "zone": offer.zone, "market": str(offer.market),
                "instance_type": offer.instance_type, "nodes": nodes.get(offer.key, 0),
                "launches": takes.get(offer.key, 0), "price_usd_hour": ctx.price(offer),
                "reason": "refused" if offer.key in why else "", "reason_text": text,
                "planned_at": say.rfc3339(last.at) if last else None,
                "short": plan.short if plan else None, "_rank": rank, "_pool": name,
            })  # fmt: skip
    return items


def _unused(planned: bool, launches: int, plan: Any) -> str:
    if not planned:
        return "no plan yet: waiting for the first list of each provider"
    if launches:
        return f"{launches} launches asked for"
    if plan.blocked and not plan.tried:
        return str(plan.blocked)
    return "not needed: an earlier offer had room" if plan.short else "not needed: nothing is short"

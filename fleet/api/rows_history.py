"""Items of what is recorded: launches, events, faults, policies, and providers over a window.

Invariant: read only and bounded; a share is never given without its n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import select
from sqlmodel import Session, col

from fleet.api import say
from fleet.api.ctx import BILLED, Ctx
from fleet.model import IN_FLIGHT, State
from fleet.plan import FOREVER, Rest
from fleet.store import queries
from fleet.store.tables import EventRow, FaultRow, LaunchRow, PolicyRow

MOST: Final = 10_000


def launch_rows(tx: Session, since: float, *, pool: str = "", provider: str = "",
                token: str = "") -> list[LaunchRow]:  # fmt: skip
    """Launches requested since a time (or of a token's beginning), newest first, bounded."""
    query = select(LaunchRow)
    if token:
        query = query.where(col(LaunchRow.token).startswith(token, autoescape=True))
    else:
        query = query.where(col(LaunchRow.requested_at) >= since)
    if pool:
        query = query.where(col(LaunchRow.pool) == pool)
    if provider:
        query = query.where(col(LaunchRow.provider) == provider)
    rows = tx.execute(query.order_by(col(LaunchRow.requested_at).desc()).limit(MOST))
    return list(rows.scalars())


def launch_items(ctx: Ctx, rows: Sequence[LaunchRow]) -> list[dict[str, Any]]:
    """One item per create call (batch), newest first."""
    groups: dict[str, list[LaunchRow]] = {}
    for row in rows:
        groups.setdefault(row.token, []).append(row)
    return [launch_item(ctx, token, group) for token, group in groups.items()]


def launch_item(ctx: Ctx, token: str, rows: Sequence[LaunchRow]) -> dict[str, Any]:
    """A batch: its outcomes counted; its phases are those of its slowest member, so they sum."""
    first = min(rows, key=lambda r: r.requested_at)
    counts: dict[str, int] = {}
    for row in rows:
        key = row.outcome or _open_state(ctx, row)
        counts[key] = counts.get(key, 0) + 1
    only = next(iter(counts)) if len(counts) == 1 else ""
    still = any(r.outcome is None for r in rows)
    text = _outcome_text(counts, sum(r.outcome is None for r in rows))
    bad = next((r for r in rows if r.outcome not in (None, "ready")), None)
    slow = max(rows, key=lambda r: (r.ended_at or ctx.now) - r.requested_at)
    why = bad or next((r for r in rows if r.outcome is None), first)
    message = _why(ctx, bad) if bad else ""
    return {
        "name": token, "token": token, "pool": first.pool, "provider": first.provider,
        "region": first.region, "zone": first.zone, "instance_type": first.instance_type,
        "market": first.market, "offer": f"{first.provider}/{first.region}/{first.zone}/"
        f"{first.instance_type}/{first.market}", "n": len(rows), "outcome": only or "mixed",
        "outcomes": counts, "outcome_text": text, **_phases(slow, ctx.now),
        "requested_at": say.rfc3339(first.requested_at),
        "ended_at": None if still else say.rfc3339(max(r.ended_at or 0.0 for r in rows)),
        "image": first.image, "image_id": first.image_id, "reason": why.reason if bad else "",
        "reason_text": message, "code": why.code, "request_id": why.request_id,
        "price_usd_hour": first.price_usd_hour, "nodes": sorted(r.id for r in rows),
        "ready": counts.get("ready", 0), "accepted": sum(r.accepted_at is not None for r in rows),
        "_rank": -first.requested_at, "_pool": first.pool,
    }  # fmt: skip


def _outcome_text(counts: dict[str, int], still: int) -> str:
    """``ready 3, gate_failed 1``; what is not decided yet has … in front."""
    parts = []
    for key, n in sorted(counts.items(), key=lambda p: (-p[1], p[0])):
        shape = "… " if key.isupper() or key == "open" else ""
        parts.append(f"{shape}{key}" + (f" {n}" if len(counts) > 1 else ""))
    return ", ".join(parts) if parts else f"… {still}"


def _open_state(ctx: Ctx, row: LaunchRow) -> str:
    node = ctx.view.nodes.get(row.id)
    return str(node.state) if node else "open"


def _why(ctx: Ctx, row: LaunchRow) -> str:
    code = f"{row.code}: " if row.code and row.code not in row.message else ""
    text = f"{code}{row.message}".strip() or row.reason
    rest = ctx.view.rests.get(
        f"offer:{row.provider}/{row.region}/{row.zone}/{row.instance_type}/{row.market}"
    )
    if row.outcome == "insufficient_capacity" and rest is not None and rest.until > ctx.now:
        text += f"; offer rests {say.dur(rest.until - ctx.now)} more"
    return text


def _phases(row: LaunchRow, now: float) -> dict[str, float | None]:
    """Seconds of request → running → first report → gate; they sum to the total."""

    def span(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else round(b - a, 3)

    end = row.ended_at
    return {
        "request_s": span(row.requested_at, row.running_at),
        "boot_s": span(row.running_at, row.first_report_at),
        "gate_s": span(row.first_report_at, row.gate_at),
        "total_s": round((end or now) - row.requested_at, 3),
    }


def event_item(row: EventRow) -> dict[str, Any]:
    """One row of history as an item."""
    return {
        "name": str(row.id), "id": row.id, "at": say.rfc3339(row.at), "kind": row.kind,
        "object": row.object_id, "pool": row.pool, "src": row.src, "dst": row.dst,
        "reason": row.reason, "actor": row.actor, "message": row.message, "n": row.n,
        "evidence": row.evidence, "_rank": row.id or 0,
    }  # fmt: skip


def fault_items(rows: Sequence[FaultRow]) -> list[dict[str, Any]]:
    """Fault sightings, open ones first."""
    return [
        {
            "name": str(r.id), "node": r.node_id, "code": r.code,
            "gpu": None if r.gpu < 0 else r.gpu, "severity": r.severity, "message": r.message,
            "first_at": say.rfc3339(r.first_at), "last_at": say.rfc3339(r.last_at), "n": r.n,
            "state": "open" if r.cleared_at is None else "cleared", "pool": r.pool,
            "cleared_at": say.rfc3339(r.cleared_at), "provider": r.provider, "region": r.region,
            "boot_id": r.boot_id, "reason": r.code, "_rank": -r.first_at
            if r.cleared_at is None else 1e12 - r.first_at,
        }
        for r in rows
    ]  # fmt: skip


def policy_rows(tx: Session) -> list[dict[str, Any]]:
    """Applied policies without their text."""
    rows = tx.execute(select(PolicyRow)).scalars()
    return [
        {"kind": r.kind, "name": r.name, "version": r.version, "source": r.source,
         "applied_at": r.applied_at, "applied_by": r.applied_by, "spec": r.spec,
         "deleted": r.deleted_at is not None}
        for r in rows
    ]  # fmt: skip


def policy_item(ctx: Ctx, row: dict[str, Any]) -> dict[str, Any]:
    """An applied policy as an item, its whole document with defaults filled in."""
    return {
        "name": row["name"], "kind": row["kind"], "version": row["version"],
        "applied_at": say.rfc3339(row["applied_at"]), "applied_by": row["applied_by"],
        "age_s": round(ctx.now - row["applied_at"], 1), "source": row["source"],
        "document": row["spec"], "reason": "", "_rank": row["kind"],
        "pool": row["name"] if row["kind"] == "Pool" else "",
    }  # fmt: skip


# -- providers ---------------------------------------------------------------------------------


def provider_facts(tx: Session, since: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Launch statistics and health totals per provider since a time."""
    launches = {row["provider"]: row for row in queries.launch_stats(tx, since)}
    health: dict[str, Any] = {}
    for row in queries.error_rates(tx, since):
        total = health.setdefault(row["provider"], {"hours": []})
        for key in ("gpu_hours", "node_hours", "fatal", "warning", "application"):
            total[key] = total.get(key, 0) + row[key]
        total["hours"].append(
            {"hour": say.rfc3339(row["hour"]), "gpu_hours": round(row["gpu_hours"], 3),
             "critical": row["fatal"], "critical_per_gpu_hour": row["fatal_per_gpu_hour"]}
        )  # fmt: skip
    return launches, health


def provider_item(ctx: Ctx, name: str, launches: dict[str, Any], health: dict[str, Any]
                  ) -> dict[str, Any]:  # fmt: skip
    """One provider over the window: what it has, what it promised, what it kept."""
    nodes = [n for n in ctx.view.nodes.values() if n.offer.provider == name]
    billed = [ctx.price(n.offer) for n in nodes if n.state in BILLED]
    seen = ctx.cell.watch.sightings.get(name)
    age = seen.age_s(ctx.now) if seen else None
    status, text, code, why = _status(ctx, name)
    judged, ready = launches.get("judged", 0), launches.get("ready", 0)
    # What is on its way was accepted too; the rollup counts a launch when it ends.
    going = sum(n.state in IN_FLIGHT and n.accepted_at is not None for n in nodes)
    asked, accepted = launches.get("asked", 0) + going, launches.get("accepted", 0) + going
    gpu_h, node_h = health.get("gpu_hours", 0.0), health.get("node_hours", 0.0)
    fatal = health.get("fatal", 0)
    return {
        "name": name, "status": status, "status_text": text, "reason": code, "reason_text": why,
        "kind": ctx.kinds.get(name, name), "provider": name,
        "nodes": len(nodes), "ready": sum(n.state is State.READY for n in nodes),
        "in_flight": sum(n.state in IN_FLIGHT for n in nodes),
        "launches": launches.get("launches", 0), "outcomes": launches.get("outcomes", {}),
        "asked": asked, "accepted": accepted, "accept_share": say.share(accepted, asked),
        "judged": judged, "became_ready": ready, "ready_share": say.share(ready, judged),
        "ready_share_95": list(say.wilson(ready, judged) or ()) or None,
        "boot_p50_s": launches.get("boot_p50_s"), "boot_p95_s": launches.get("boot_p95_s"),
        "gpu_hours": round(gpu_h, 3), "node_hours": round(node_h, 3), "fatal": fatal,
        "warning": health.get("warning", 0), "application": health.get("application", 0),
        "critical_per_gpu_hour": say.share(fatal, gpu_h),
        "faults_per_1k_node_hours": 1000 * fatal / node_h if node_h else None,
        "hours": health.get("hours", []), "list_age_s": None if age is None else round(age, 1),
        "list_error": seen.error if seen else "",
        "spend_usd_hour": round(sum(p for p in billed if p is not None), 2),
        "unpriced_nodes": sum(p is None for p in billed),
        "_rank": {"held": 0, "blind": 1, "failing": 2, "cooling": 3}.get(status, 5),
    }  # fmt: skip


def _status(ctx: Ctx, name: str) -> tuple[str, str, str, str]:
    seen = ctx.cell.watch.sightings.get(name)
    held = ctx.resting(f"provider:{name}")
    if held or (seen is not None and seen.held):
        message = held[0].message if held else seen.held if seen else ""
        since = ""
        if seen is not None and seen.failing_since is not None:
            since = f" since {say.clock(seen.failing_since, ctx.now)}"
        code = str(held[0].reason) if held else "unauthorized"
        return "held", "■ held", code, f"{code}{since}: {message}"
    if f"blind:{name}" in ctx.cell.guards:
        return "blind", "? blind", "blind", ctx.cell.guards[f"blind:{name}"]
    if seen is not None and seen.error:
        return "failing", "▲ failing", "list_failed", f"list: {seen.error}"
    return _cooling(ctx, name)


def _cooling(ctx: Ctx, name: str) -> tuple[str, str, str, str]:
    """Which of the provider's offers rest, why, and when the next is tried."""
    offers = {
        o.key for p in ctx.view.pools.values() for o in p.spec.offer_list() if o.provider == name
    }
    rests: list[Rest] = []
    for kind in ("offer", "family", "artifact"):
        rests += ctx.resting(f"{kind}:{name}/")
    rests += [r for r in ctx.resting("boot:") if f"/{name}/" in r.scope]
    if not rests:
        return "ok", "● ok", "", ""
    reasons: dict[str, int] = {}
    for rest in rests:
        reasons[str(rest.reason)] = reasons.get(str(rest.reason), 0) + 1
    parts = []
    for reason, n in sorted(reasons.items(), key=lambda p: -p[1]):
        parts.append(f"{reason} in {n} of {max(n, len(offers))} offers")
    soon = min(r.until for r in rests)
    probe = f", next probe {say.clock(soon, ctx.now)}" if soon < FOREVER else ""
    return "cooling", "▲ cooling", next(iter(reasons)), "; ".join(parts) + probe

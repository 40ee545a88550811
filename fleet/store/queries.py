"""Questions to the store: what people and the learning loops read.

Invariant: read only; every list is bounded; a ratio is never returned without its n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlmodel import Session

from fleet.store import rollup
from fleet.store.tables import EventRow, FaultRow, HealthHour, LaunchHour, LaunchRow, NodeRow

MOST = 10_000


def percentile(values: Sequence[float], q: float) -> float | None:
    """The ``q`` quantile by nearest rank, None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(q * len(ordered)) - 1))]


def phase_p99(
    tx: Session, since: float, *, least: int = 20
) -> dict[str, tuple[float | None, float | None]]:
    """Per offer key: p99 of accepted→running and running→first report, from at least ``least``
    launches that became READY since ``since``."""
    rows = tx.execute(
        select(
            LaunchRow.provider, LaunchRow.region, LaunchRow.zone, LaunchRow.instance_type,
            LaunchRow.market, LaunchRow.accepted_at, LaunchRow.running_at,
            LaunchRow.first_report_at,
        )  # type: ignore[call-overload]
        .where(LaunchRow.outcome == "ready", LaunchRow.ended_at >= since)
        .order_by(LaunchRow.ended_at.desc())
        .limit(MOST)
    )  # fmt: skip
    found: dict[str, tuple[list[float], list[float]]] = {}
    for provider, region, zone, kind, market, accepted, running, reported in rows:
        if accepted is None or running is None or reported is None:
            continue
        launch, boot = found.setdefault(f"{provider}/{region}/{zone}/{kind}/{market}", ([], []))
        launch.append(running - accepted)
        boot.append(reported - running)
    return {
        key: (percentile(launch, 0.99), percentile(boot, 0.99))
        for key, (launch, boot) in found.items()
        if len(launch) >= least
    }


def pool_rates(tx: Session, since: float) -> dict[str, tuple[float | None, float | None]]:
    """Per pool: failures per node-hour and refill p95 (request to READY, s) since ``since``.

    A pool with fewer than 100 node-hours or 10 READY launches keeps None for that figure.
    """
    failures = dict(
        tx.execute(
            select(EventRow.pool, func.count())
            .where(
                EventRow.at >= since, EventRow.kind == "node", EventRow.src.in_(("READY", "SUSPECT")),  # type: ignore[attr-defined,arg-type]
                EventRow.dst.in_(("DRAINING", "TERMINATING")),  # type: ignore[attr-defined]
                EventRow.reason.in_(  # type: ignore[attr-defined]
                    ("fatal_fault", "warning_persists", "agent_silent", "spot_notice",
                     "maintenance_notice", "preempted", "externally_terminated")
                ),
            )
            .group_by(EventRow.pool)
        ).all()  # type: ignore[arg-type]
    )  # fmt: skip
    hours: dict[str, float] = {}
    newest = tx.execute(select(func.max(EventRow.at))).scalar_one() or since
    for pool, ready_at, ended, state in tx.execute(
        select(NodeRow.pool, NodeRow.ready_at, NodeRow.state_since, NodeRow.state)  # type: ignore[call-overload]
        .where(NodeRow.ready_at.is_not(None))
    ):  # fmt: skip
        end = ended if state in ("TERMINATED", "TERMINATING") else newest
        hours[pool] = hours.get(pool, 0.0) + max(0.0, end - max(ready_at, since)) / 3600.0
    refills: dict[str, list[float]] = {}
    for pool, requested, ended in tx.execute(
        select(LaunchRow.pool, LaunchRow.requested_at, LaunchRow.ended_at)  # type: ignore[call-overload]
        .where(LaunchRow.outcome == "ready", LaunchRow.ended_at >= since)
        .limit(MOST)
    ):  # fmt: skip
        refills.setdefault(pool, []).append(ended - requested)
    return {
        pool: (
            failures.get(pool, 0) / hours[pool] if hours.get(pool, 0.0) >= 100.0 else None,
            percentile(refills.get(pool, []), 0.95) if len(refills.get(pool, [])) >= 10 else None,
        )
        for pool in hours.keys() | refills.keys()
    }


def launch_stats(tx: Session, since: float, *, by_region: bool = False) -> list[dict[str, Any]]:
    """Per provider (and region): outcomes, accepted, ready, boot quantiles since ``since``,
    from the hourly rollup (so the window begins at a full hour)."""
    hour = int(since // rollup.HOUR_S)
    groups: dict[tuple[str, str], list[LaunchHour]] = {}
    for row in tx.execute(select(LaunchHour).where(LaunchHour.hour >= hour)).scalars():  # type: ignore[arg-type]
        key = (row.provider, row.region if by_region else "")
        groups.setdefault(key, []).append(row)
    return [_stats(provider, region, rows) for (provider, region), rows in sorted(groups.items())]


def _stats(provider: str, region: str, rows: Sequence[LaunchHour]) -> dict[str, Any]:
    outcomes: dict[str, int] = {}
    for row in rows:
        outcomes[row.outcome] = outcomes.get(row.outcome, 0) + row.n
    judged = [r for r in rows if r.accepted and r.outcome not in ("preempted", "cancelled")]
    accepted = sum(r.n for r in judged)
    ready = sum(r.n for r in judged if r.outcome == "ready")
    asked = sum(r.n for r in rows if r.outcome != "cancelled")
    hist = rollup.merge(r.boot_hist for r in rows)
    return {
        "provider": provider, "region": region, "launches": sum(outcomes.values()),
        "outcomes": dict(sorted(outcomes.items())), "asked": asked,
        "accepted": sum(r.n for r in rows if r.accepted), "judged": accepted, "ready": ready,
        "boot_p50_s": rollup.quantile(hist, 0.5), "boot_p95_s": rollup.quantile(hist, 0.95),
        "boot_hist": rollup.encode(hist),
    }  # fmt: skip


def error_rates(tx: Session, since: float) -> list[dict[str, Any]]:
    """Per hour and provider: fatal fault events per GPU-hour, with both halves."""
    hour = int(since // rollup.HOUR_S)
    rows = tx.execute(
        select(
            HealthHour.hour, HealthHour.provider, func.sum(HealthHour.gpu_s),
            func.sum(HealthHour.fatal), func.sum(HealthHour.warning),
            func.sum(HealthHour.application), func.sum(HealthHour.node_s),
        )  # type: ignore[call-overload]
        .where(HealthHour.hour >= hour)
        .group_by(HealthHour.hour, HealthHour.provider)
        .order_by(HealthHour.hour, HealthHour.provider)
    )  # fmt: skip
    return [
        {
            "hour": h * rollup.HOUR_S, "provider": p, "gpu_hours": gpu_s / 3600.0,
            "node_hours": node_s / 3600.0, "fatal": int(fatal), "warning": int(warning),
            "application": int(app),
            "fatal_per_gpu_hour": fatal / (gpu_s / 3600.0) if gpu_s > 0 else None,
        }
        for h, p, gpu_s, fatal, warning, app, node_s in rows
    ]  # fmt: skip


def events(
    tx: Session, *, kind: str = "", object_id: str = "", pool: str = "", reason: str = "",
    since: float = 0.0, until: float | None = None, after_id: int = 0, limit: int = 200,
    newest: bool = True,
) -> list[EventRow]:  # fmt: skip
    """Events oldest first; with ``newest`` the last ``limit`` of them, else the first."""
    query = select(EventRow).where(EventRow.at >= since, EventRow.id > after_id)  # type: ignore[arg-type,operator]
    for column, value in (
        (EventRow.kind, kind), (EventRow.object_id, object_id), (EventRow.pool, pool),
        (EventRow.reason, reason),
    ):  # fmt: skip
        if value:
            query = query.where(column == value)  # type: ignore[arg-type]
    if until is not None:
        query = query.where(EventRow.at <= until)  # type: ignore[arg-type]
    order = EventRow.id.desc() if newest else EventRow.id  # type: ignore[union-attr]
    rows = list(tx.execute(query.order_by(order).limit(min(limit, MOST))).scalars())  # type: ignore[arg-type]
    return rows[::-1] if newest else rows


def launches(
    tx: Session, *, pool: str = "", provider: str = "", outcome: str = "", limit: int = 100
) -> list[LaunchRow]:
    """Newest launches first."""
    query = select(LaunchRow)
    for column, value in (
        (LaunchRow.pool, pool), (LaunchRow.provider, provider), (LaunchRow.outcome, outcome),
    ):  # fmt: skip
        if value:
            query = query.where(column == value)  # type: ignore[arg-type]
    rows = tx.execute(query.order_by(LaunchRow.requested_at.desc()).limit(min(limit, MOST)))  # type: ignore[attr-defined]
    return list(rows.scalars())


def ended_nodes(tx: Session, since: float, limit: int = 500) -> list[NodeRow]:
    """Nodes that ended since a time, newest first."""
    rows = tx.execute(
        select(NodeRow)
        .where(NodeRow.state == "TERMINATED", NodeRow.state_since >= since)  # type: ignore[arg-type]
        .order_by(NodeRow.state_since.desc())  # type: ignore[attr-defined]
        .limit(limit)
    )
    return list(rows.scalars())


def faults(tx: Session, *, node_id: str = "", since: float = 0.0, limit: int = 200
           ) -> list[FaultRow]:  # fmt: skip
    """Fault sightings, newest first."""
    query = select(FaultRow).where(FaultRow.last_at >= since)  # type: ignore[arg-type]
    if node_id:
        query = query.where(FaultRow.node_id == node_id)  # type: ignore[arg-type]
    rows = tx.execute(query.order_by(FaultRow.last_at.desc()).limit(min(limit, MOST)))  # type: ignore[attr-defined]
    return list(rows.scalars())

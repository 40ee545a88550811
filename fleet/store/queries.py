"""Questions to the store: what people and the learning loops read.

Invariant: read only; every list is bounded; a ratio is never returned without its n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlmodel import Session, col

from fleet.store import rollup
from fleet.store.tables import (
    Base,
    EventRow,
    FaultRow,
    HealthHour,
    LaunchRow,
    NodeRow,
)

MOST = 10_000


def percentile(values: Sequence[float], q: float) -> float | None:
    """The ``q`` quantile by nearest rank, None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    rank = math.ceil(q * len(ordered) - 1e-9)  # rounding half to even would be one too low
    return ordered[min(len(ordered), max(1, rank)) - 1]


def phase_p99(
    tx: Session, since: float, *, least: int = 20
) -> dict[str, tuple[float | None, float | None]]:
    """Per offer key: p99 of accepted→running and running→first report, from at least ``least``
    launches that became READY since ``since``.
    """
    rows = tx.execute(
        select(
            col(LaunchRow.provider), col(LaunchRow.region), col(LaunchRow.zone),
            col(LaunchRow.instance_type),
            col(LaunchRow.market), col(LaunchRow.accepted_at), col(LaunchRow.running_at),
            col(LaunchRow.first_report_at),
        )
        .where(col(LaunchRow.outcome) == "ready", col(LaunchRow.ended_at) >= since)
        .order_by(col(LaunchRow.ended_at).desc())
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
            select(col(EventRow.pool), func.count())
            .where(
                col(EventRow.at) >= since, col(EventRow.kind) == "node",
                col(EventRow.src).in_(("READY", "SUSPECT")),
                col(EventRow.dst).in_(("DRAINING", "TERMINATING")),
                col(EventRow.reason).in_(
                    ("fatal_fault", "warning_persists", "agent_silent", "spot_notice",
                     "maintenance_notice", "preempted", "externally_terminated")
                ),
            )
            .group_by(col(EventRow.pool))
        ).all()
    )  # fmt: skip
    hours: dict[str, float] = {}
    newest = tx.execute(select(func.max(col(EventRow.at)))).scalar_one() or since
    for pool, ready_at, ended, state in tx.execute(
        select(
            col(NodeRow.pool), col(NodeRow.ready_at), col(NodeRow.state_since), col(NodeRow.state)
        )
        .where(col(NodeRow.ready_at).is_not(None))
    ):  # fmt: skip
        end = ended if state in ("TERMINATED", "TERMINATING") else newest
        hours[pool] = hours.get(pool, 0.0) + max(0.0, end - max(ready_at, since)) / 3600.0
    refills: dict[str, list[float]] = {}
    for pool, requested, ended in tx.execute(
        select(col(LaunchRow.pool), col(LaunchRow.requested_at), col(LaunchRow.ended_at))
        .where(col(LaunchRow.outcome) == "ready", col(LaunchRow.ended_at) >= since)
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
    """Per provider (and region): outcomes, accepted, ready, boot quantiles since ``since``.

    From the rollups: hours up to the first midnight, days from there, so the window begins at a
    full hour and months cost as little as a week.
    """
    hour = int(since // rollup.HOUR_S)
    day = -(-hour // rollup.DAY_H)
    hours, days = Base.metadata.tables["launch_hours"], Base.metadata.tables["launch_days"]
    groups: dict[tuple[str, str], list[Any]] = {}
    for query in (
        select(hours).where(hours.c.hour >= hour, hours.c.hour < day * rollup.DAY_H),
        select(days).where(days.c.day >= day),
    ):
        for row in tx.connection().execute(query):
            groups.setdefault((row.provider, row.region if by_region else ""), []).append(row)
    return [_stats(provider, region, rows) for (provider, region), rows in sorted(groups.items())]


def _stats(provider: str, region: str, rows: Sequence[Any]) -> dict[str, Any]:
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
            col(HealthHour.hour), col(HealthHour.provider), func.sum(col(HealthHour.gpu_s)),
            func.sum(col(HealthHour.fatal)), func.sum(col(HealthHour.warning)),
            func.sum(col(HealthHour.application)), func.sum(col(HealthHour.node_s)),
        )
        .where(col(HealthHour.hour) >= hour)
        .group_by(col(HealthHour.hour), col(HealthHour.provider))
        .order_by(col(HealthHour.hour), col(HealthHour.provider))
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
    query = select(EventRow).where(col(EventRow.at) >= since, col(EventRow.id) > after_id)
    for column, value in (
        (col(EventRow.kind), kind), (col(EventRow.object_id), object_id),
        (col(EventRow.pool), pool),
        (col(EventRow.reason), reason),
    ):  # fmt: skip
        if value:
            query = query.where(column == value)
    if until is not None:
        query = query.where(col(EventRow.at) <= until)
    order = col(EventRow.id).desc() if newest else col(EventRow.id)
    rows = list(tx.execute(query.order_by(order).limit(min(limit, MOST))).scalars())
    return rows[::-1] if newest else rows


def launches(
    tx: Session, *, pool: str = "", provider: str = "", outcome: str = "", limit: int = 100
) -> list[LaunchRow]:
    """Newest launches first."""
    query = select(LaunchRow)
    for column, value in (
        (col(LaunchRow.pool), pool), (col(LaunchRow.provider), provider),
        (col(LaunchRow.outcome), outcome),
    ):  # fmt: skip
        if value:
            query = query.where(column == value)
    rows = tx.execute(query.order_by(col(LaunchRow.requested_at).desc()).limit(min(limit, MOST)))
    return list(rows.scalars())


def ended_nodes(tx: Session, since: float, limit: int = 500) -> list[NodeRow]:
    """Nodes that ended since a time, newest first."""
    rows = tx.execute(
        select(NodeRow)
        .where(col(NodeRow.state) == "TERMINATED", col(NodeRow.state_since) >= since)
        .order_by(col(NodeRow.state_since).desc())
        .limit(limit)
    )
    return list(rows.scalars())


def faults(tx: Session, *, node_id: str = "", since: float = 0.0, limit: int = 200
           ) -> list[FaultRow]:  # fmt: skip
    """Fault sightings, newest first."""
    query = select(FaultRow).where(col(FaultRow.last_at) >= since)
    if node_id:
        query = query.where(col(FaultRow.node_id) == node_id)
    rows = tx.execute(query.order_by(col(FaultRow.last_at).desc()).limit(min(limit, MOST)))
    return list(rows.scalars())

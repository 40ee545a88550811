"""Writers of everything that is not a node: batches, rests, joins, faults, seen, freeze, meta.

Invariant: each kind that the view follows has a counter in ``meta`` that its writers bump in the
same transaction, so that a reader knows when to read it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import delete, func, insert, select, text, update
from sqlmodel import Session, col

from fleet.model import Fault, Node, Reason, Severity
from fleet.plan import Rest
from fleet.store import rollup
from fleet.store.tables import (
    BatchRow,
    EventRow,
    FaultRow,
    JoinRow,
    LaunchRow,
    MetaRow,
    RestRow,
    SlotRow,
)  # fmt: skip
from fleet.store.write import event, hits, next_seq


def bump(tx: Session, name: str) -> None:
    """Tell readers that the rows behind ``name`` changed."""
    tx.execute(
        text("UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) WHERE name = :name"),
        {"name": name},
    )


def set_meta(tx: Session, name: str, value: str) -> None:
    """Write one small fact about the cell."""
    tx.merge(MetaRow(name=name, value=value))
    tx.flush()


def get_meta(tx: Session, name: str) -> str:
    """Read one small fact about the cell, "" if there is none."""
    row = tx.get(MetaRow, name)
    return row.value if row else ""


def freeze(tx: Session, why: str, *, actor: str, now: float) -> None:
    """Pull the stop cord: nothing is launched, moved, drained, ended or swept until unfrozen."""
    set_meta(tx, "frozen", why)
    event(tx, kind="cell", object_id="cell", reason=Reason.FROZEN, actor=actor, at=now,
          message=why)  # fmt: skip


def unfreeze(tx: Session, why: str, *, actor: str, now: float) -> None:
    """Let the loops act again."""
    set_meta(tx, "frozen", "")
    set_meta(tx, "unfrozen_at", repr(now))
    event(tx, kind="cell", object_id="cell", reason=Reason.UNFROZEN, actor=actor, at=now,
          message=why)  # fmt: skip


def add_batch(tx: Session, **columns: Any) -> None:
    """Commit the intent of one create call."""
    tx.execute(insert(BatchRow).values(boot_uses=0, attempts=0, next_at=0.0, last_error="",
                                       **columns))  # fmt: skip
    bump(tx, "batches")


SETTLED = "settled"


def update_batch(tx: Session, token: str, **columns: Any) -> None:
    """Write the progress of a create call. A settled one is never sent again: its user data, which
    holds the boot token in clear, is let go (an adopted batch never had any).
    """
    if columns.get("settled_at") is not None:
        columns.setdefault("user_data", SETTLED)
    tx.execute(update(BatchRow).where(col(BatchRow.token) == token).values(**columns))
    bump(tx, "batches")


def put_rest(tx: Session, rest: Rest, *, actor: str, now: float) -> None:
    """Remember that something rests, with an event when it begins to."""
    before = tx.get(RestRow, rest.scope)
    begins = before is None or before.until <= now < rest.until
    tx.merge(
        RestRow(
            scope=rest.scope, until=rest.until, level=rest.level, allow=rest.allow,
            reason=str(rest.reason), message=rest.message, at=now,
        )
    )  # fmt: skip
    tx.flush()
    bump(tx, "rests")
    if begins and now < rest.until:
        event(tx, kind=rest.scope.split(":", 1)[0], object_id=rest.scope.split(":", 1)[1],
              reason=_REST_EVENT.get(rest.scope.split(":", 1)[0], Reason.OFFER_COOLING),
              actor=actor, at=now, message=f"{rest.reason}: {rest.message}")  # fmt: skip


_REST_EVENT = {"provider": Reason.PROVIDER_HELD, "pool": Reason.POOL_HELD}


def clear_rest(tx: Session, scope: str, *, actor: str, now: float) -> None:
    """Forget a rest; releasing a provider or a pool is an event."""
    hit = tx.execute(delete(RestRow).where(col(RestRow.scope) == scope))
    if not hits(hit):
        return
    bump(tx, "rests")
    kind, _, name = scope.partition(":")
    reason = {"provider": Reason.PROVIDER_RELEASED, "pool": Reason.POOL_RELEASED}.get(kind)
    if reason is not None:
        event(tx, kind=kind, object_id=name, reason=reason, actor=actor, at=now)


def add_fault(
    tx: Session, node: Node, boot_id: str, fault: Fault, severity: Severity, now: float
) -> bool:
    """Note a sighting of a fault class; True if it is new on this node in this boot.

    Only new ones count in the hourly error rate: one fault printed 800,000 times is one fault.
    """
    gpu = -1 if fault.gpu is None else fault.gpu
    hit = tx.execute(
        update(FaultRow)
        .where(
            col(FaultRow.node_id) == node.id, col(FaultRow.boot_id) == boot_id,
            col(FaultRow.code) == fault.code, col(FaultRow.gpu) == gpu,
        )
        .values(n=col(FaultRow.n) + 1, last_at=now, cleared_at=None)  # it is back: open again
    )  # fmt: skip
    if hits(hit):
        return False
    o = node.offer
    tx.execute(
        insert(FaultRow).values(
            node_id=node.id, provider=o.provider, region=o.region, pool=node.pool,
            boot_id=boot_id, code=fault.code, gpu=gpu, severity=str(severity),
            message=fault.message[:500], first_at=now, last_at=now, n=1,
        )
    )  # fmt: skip
    rollup.count_health(
        tx, at=now, provider=o.provider, region=o.region,
        fatal=severity is Severity.FATAL, warning=severity is Severity.WARNING,
        application=severity is Severity.APPLICATION,
    )  # fmt: skip
    return True


def open_faults(tx: Session) -> list[FaultRow]:
    """Uncleared faults of nodes that have not ended, oldest first."""
    return list(
        tx.execute(
            select(FaultRow)
            .where(col(FaultRow.cleared_at).is_(None))
            .order_by(col(FaultRow.first_at))
        ).scalars()
    )


def clear_faults(tx: Session, node_id: str, now: float) -> int:
    """Mark a node's faults as no longer true; how many there were."""
    hit = tx.execute(
        update(FaultRow)
        .where(col(FaultRow.node_id) == node_id, col(FaultRow.cleared_at).is_(None))
        .values(cleared_at=now)
    )
    return hits(hit)


def revoke_joins(tx: Session, node_id: str, now: float) -> None:
    """A node's end is the end of its token."""
    tx.execute(
        update(JoinRow)
        .where(col(JoinRow.node_id) == node_id, col(JoinRow.revoked_at).is_(None))
        .values(revoked_at=now)
    )


def save_seen(tx: Session, rows: Iterable[dict[str, Any]]) -> None:
    """Flush a batch of last-report times."""
    values = list(rows)
    if values:
        tx.execute(
            text(
                "INSERT INTO seen (node_id, last_report_at, last_seq, boot_id) "
                "VALUES (:node_id, :last_report_at, :last_seq, :boot_id) "
                "ON CONFLICT (node_id) DO UPDATE SET last_report_at = excluded.last_report_at, "
                "last_seq = excluded.last_seq, boot_id = excluded.boot_id"
            ),
            values,
        )


def last_seen(tx: Session) -> dict[str, tuple[str, int]]:
    """Boot and sequence number of the last flushed report by node, so that a restart does not
    take an old report for a new one.
    """
    rows = tx.execute(text("SELECT node_id, boot_id, last_seq FROM seen"))
    return {node_id: (boot_id, seq) for node_id, boot_id, seq in rows}


def remove_slots(tx: Session, slots: Iterable[str], now: float) -> None:
    """Empty and retire slots; the rows stay (without a pool) so that readers can follow."""
    seq = next_seq(tx)
    for slot in slots:
        tx.execute(
            update(SlotRow)
            .where(col(SlotRow.slot) == slot)
            .values(node_id=None, pool="", since=now, seq=seq)
        )


def recent_outcomes(tx: Session, *, pool: str, image_id: str, provider: str, region: str,
                    instance_type: str, most: int) -> list[bool]:  # fmt: skip
    """READY or not of the newest accepted launches of one (pool, image, type), newest last."""
    rows = tx.execute(
        select(col(LaunchRow.outcome))
        .where(
            col(LaunchRow.pool) == pool, col(LaunchRow.image_id) == image_id,
            col(LaunchRow.provider) == provider, col(LaunchRow.region) == region,
            col(LaunchRow.instance_type) == instance_type,
            col(LaunchRow.accepted_at).is_not(None),
            col(LaunchRow.outcome).in_(("ready", "boot_timeout", "gate_failed", "lost")),
        )
        .order_by(col(LaunchRow.ended_at).desc())
        .limit(most)
    )  # fmt: skip
    return [outcome == "ready" for (outcome,) in rows][::-1]


def health_removals(tx: Session, since: float) -> list[tuple[str, float, tuple[str, str, str]]]:
    """(node id, when, (pool, provider, zone)) of nodes taken out for health since a time."""
    rows = tx.execute(
        select(
            col(EventRow.object_id), col(EventRow.at), col(LaunchRow.pool),
            col(LaunchRow.provider), col(LaunchRow.zone),
        )
        .join(LaunchRow, col(LaunchRow.id) == col(EventRow.object_id))
        .where(
            col(EventRow.at) >= since, col(EventRow.kind) == "node",
            col(EventRow.dst) == "DRAINING",
            col(EventRow.reason).in_(("fatal_fault", "warning_persists", "agent_silent")),
        )
    )  # fmt: skip
    return [(node_id, at, (pool, provider, zone)) for node_id, at, pool, provider, zone in rows]


def counts(tx: Session) -> dict[str, int]:
    """Row counts of the main tables, for backups and ``/system``."""
    tables = {"nodes": LaunchRow, "events": EventRow, "joins": JoinRow, "batches": BatchRow}
    return {
        name: int(tx.execute(select(func.count()).select_from(t)).scalar_one())
        for name, t in tables.items()
    }

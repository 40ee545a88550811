"""The only writers of node state, launches, slots and events.

Invariant: ``transition`` is the one function that assigns a node's state; it checks ``NEXT``, is
guarded by the row's version, and writes the event in the same transaction. Every change of a node
or a slot takes the next number of one sequence, so that readers can follow by ``seq``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

import structlog
from sqlalchemy import insert, text, update
from sqlmodel import Session, col

from fleet.errors import Stale
from fleet.lifecycle import NEXT
from fleet.model import JSON, Actor, Market, Node, Offer, Outcome, Reason, State
from fleet.store import rollup
from fleet.store.tables import Base, LaunchRow, NodeRow, OutboxRow, SlotRow

log = structlog.get_logger("fleetd")

_OFFER: Final = tuple(f.name for f in fields(Offer))
_PLAIN: Final = tuple(
    f.name for f in fields(Node) if f.name not in ("offer", "slot", "zone", "state", "reason")
)


# Hot statements in Core: the ORM's own path costs three times as much per row.
_TABLES: Final = Base.metadata.tables
_NODES, _EVENTS = _TABLES["nodes"], _TABLES["events"]
_INSERT_EVENT: Final = insert(_EVENTS)
_NEXT_SEQ: Final = text(
    "UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) "
    "WHERE name = 'seq' RETURNING value"
)

_BUMP_OUTBOX: Final = text(
    "UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) WHERE name = 'outbox'"
)


def hits(result: Any) -> int:
    """How many rows an UPDATE or DELETE met."""
    return int(result.rowcount)


def next_seq(tx: Session) -> int:
    """The next number of the change sequence; locks it until commit."""
    return int(tx.connection().execute(_NEXT_SEQ).scalar_one())


def to_row(node: Node) -> dict[str, Any]:
    """A node as column values."""
    row = {name: getattr(node, name) for name in _PLAIN}
    offer = {name: getattr(node.offer, name) for name in _OFFER}
    return {
        **row, **offer, "market": str(node.offer.market), "placed_zone": node.zone,
        "state": str(node.state), "reason": str(node.reason),
    }  # fmt: skip


def to_node(row: Mapping[str, Any], slot: str = "") -> Node:
    """A node from column values."""
    offer = Offer(
        row["provider"], row["region"], row["zone"], row["instance_type"],
        Market(row["market"]), row["gpu"], row["gpus"], row["price_usd_hour"],
    )  # fmt: skip
    plain = {name: row[name] for name in _PLAIN}
    return Node(
        **plain, offer=offer, slot=slot, zone=row["placed_zone"],
        state=State(row["state"]), reason=Reason(row["reason"]),
    )  # fmt: skip


def create(tx: Session, nodes: list[Node], *, actor: str) -> None:
    """Insert new nodes in REQUESTED (or adopted in a later state) with their launches and
    events.
    """
    seq = next_seq(tx)
    rows = [to_row(replace(n, seq=seq)) for n in nodes]
    tx.execute(insert(NodeRow), rows)
    tx.execute(insert(LaunchRow), [_launch(n) for n in nodes])
    for n in nodes:
        event(tx, kind="node", object_id=n.id, pool=n.pool, dst=str(n.state), reason=n.reason,
              actor=actor, at=n.created_at, message=n.message)  # fmt: skip


def _launch(n: Node) -> dict[str, Any]:
    o = n.offer
    return {
        "id": n.id, "token": n.token, "pool": n.pool, "provider": o.provider, "region": o.region,
        "zone": o.zone, "instance_type": o.instance_type, "market": str(o.market), "gpus": o.gpus,
        "price_usd_hour": o.price_usd_hour, "image": n.image, "image_id": n.image_id,
        "requested_at": n.requested_at or n.created_at, "instance_id": n.instance_id,
        "accepted_at": n.accepted_at,
    }  # fmt: skip


def transition(
    tx: Session, node: Node, to: State, reason: Reason, *, now: float, actor: str,
    message: str = "", evidence: JSON | None = None, deadline_at: float | None = None,
    **changes: Any,
) -> Node:  # fmt: skip
    """Move ``node`` to ``to``: the row (guarded by version), the event and the log line.

    ``changes`` are other columns that change with it. Returns the node as written; raises Stale
    if somebody else moved it since it was read, and AssertionError on a move outside NEXT.
    """
    assert to in NEXT[node.state], (node.id, node.state, to)
    moved = update_node(
        tx, node, state=to, state_since=now, reason=reason, message=message[:500],
        deadline_at=deadline_at, **changes,
    )  # fmt: skip
    event(
        tx, kind="node", object_id=node.id, pool=node.pool, src=str(node.state), dst=str(to),
        reason=reason, actor=actor, at=now, message=message, evidence=evidence,
    )  # fmt: skip
    log.info(
        "node", node=node.id, pool=node.pool, src=str(node.state), dst=str(to),
        reason=str(reason), message=message, actor=actor, provider=node.offer.provider,
    )  # fmt: skip
    return moved


def update_node(tx: Session, node: Node, **changes: Any) -> Node:
    """Write other columns of ``node``, guarded by its version; raises Stale."""
    seq = next_seq(tx)
    after = replace(node, version=node.version + 1, seq=seq, **changes)
    columns = {_COLUMN.get(name, name): value for name, value in changes.items()}
    hit = tx.connection().execute(
        update(_NODES)
        .where(_NODES.c.id == node.id, _NODES.c.version == node.version)
        .values(version=after.version, seq=seq, **{k: _plain(v) for k, v in columns.items()})
    )
    if hits(hit) != 1:
        raise Stale(node.id)
    return after


_COLUMN: Final = {"zone": "placed_zone"}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, State | Reason | Market) else value


def launch_phase(tx: Session, node_id: str, **columns: Any) -> None:
    """Write phase timestamps, request id or vendor code on a launch."""
    if columns:
        tx.execute(update(LaunchRow).where(col(LaunchRow.id) == node_id).values(**columns))


def close_launch(
    tx: Session, node: Node, outcome: Outcome, *, now: float, reason: Reason, code: str = "",
    message: str = "", request_id: str = "",
) -> bool:  # fmt: skip
    """Record the one outcome of a launch and count it in the hourly rollup, in this transaction.

    False (and nothing counted) if the launch has an outcome already.
    """
    values: dict[str, Any] = {
        "outcome": str(outcome), "ended_at": now, "reason": str(reason),
        "message": message[:500], "running_at": node.running_at,
        "first_report_at": node.first_report_at, "accepted_at": node.accepted_at,
        "instance_id": node.instance_id,
    }  # fmt: skip
    if code:
        values["code"] = code
    if request_id:
        values["request_id"] = request_id
    if node.first_report_at is not None:
        values["gate_at"] = now
    hit = tx.execute(
        update(LaunchRow)
        .where(col(LaunchRow.id) == node.id, col(LaunchRow.outcome).is_(None))
        .values(**values)
    )
    if hits(hit) != 1:
        return False
    requested = node.requested_at or node.created_at
    boot_s = now - requested if outcome is Outcome.READY else None
    rollup.count_launch(
        tx, at=now, provider=node.offer.provider, region=node.offer.region,
        market=str(node.offer.market), outcome=outcome,
        accepted=node.accepted_at is not None, boot_s=boot_s,
    )  # fmt: skip
    return True


def event(
    tx: Session, *, kind: str, object_id: str, reason: Reason, actor: str, at: float,
    pool: str = "", src: str = "", dst: str = "", message: str = "",
    evidence: JSON | None = None,
) -> None:  # fmt: skip
    """Append one row of history."""
    tx.connection().execute(
        _INSERT_EVENT,
        {
            "at": at, "kind": kind, "object_id": object_id, "pool": pool, "src": src, "dst": dst,
            "reason": str(reason), "actor": str(actor), "message": message[:1000],
            "evidence": dict(evidence or {}), "n": 1,
        },
    )  # fmt: skip


def set_slot(tx: Session, slot: str, node_id: str | None, *, now: float, moved: bool) -> None:
    """Give ``slot`` to ``node_id`` or empty it. A unique index keeps one slot per node."""
    values: dict[str, Any] = {"node_id": node_id, "since": now, "seq": next_seq(tx)}
    if moved:
        values["moves"] = col(SlotRow.moves) + 1
    hit = tx.execute(update(SlotRow).where(col(SlotRow.slot) == slot).values(**values))
    if hits(hit) != 1:
        raise Stale(slot)


def add_slots(tx: Session, pool: str, slots: list[str], *, now: float) -> None:
    """Create empty slots of a pool. A slot that was removed before kept its row (so that readers
    can follow) and is taken into use again; one of another pool is a StoreError.
    """
    seq = next_seq(tx)
    new = []
    for slot in slots:
        values = {"pool": pool, "node_id": None, "since": now, "seq": seq, "moves": 0}
        again = tx.execute(
            update(SlotRow).where(col(SlotRow.slot) == slot, col(SlotRow.pool) == "").values(values)
        )
        if hits(again) == 0:
            new.append({"slot": slot, **values})
    if new:
        tx.execute(insert(SlotRow), new)


def post(tx: Session, *, pool: str, urls: list[str], topic: str, body: JSON, now: float) -> None:
    """Put one webhook per URL into the outbox, committed with the change it tells of."""
    if urls:
        tx.connection().execute(_BUMP_OUTBOX)
    for url in urls:
        tx.execute(
            insert(OutboxRow).values(
                pool=pool, url=url, topic=topic, body=dict(body), created_at=now,
                next_at=now, attempts=0, dead=False, last_error="",
            )
        )  # fmt: skip


def move_slot(
    tx: Session, node: Node, spare: Node | None, *, now: float, actor: Actor, reason: Reason,
    urls: list[str],
) -> None:  # fmt: skip
    """Take ``node``'s slot away and give it to ``spare`` (or leave it empty), telling the
    consumer through the outbox. Part of the caller's transaction: service is restored by it.
    """
    if not node.slot:
        return
    set_slot(tx, node.slot, spare.id if spare else None, now=now, moved=True)
    body = {
        "slot": node.slot, "pool": node.pool, "from": node.id, "to": spare.id if spare else None,
        "instance": spare.instance_id if spare else None, "reason": str(reason), "at": now,
    }  # fmt: skip
    post(tx, pool=node.pool, urls=urls, topic="slot.moved", body=body, now=now)
    what = Reason.MOVED if spare else Reason.RELEASED
    text_ = f"{node.slot}: {node.id} → {spare.id if spare else 'nobody, no spare is ready'}"
    event(tx, kind="slot", object_id=node.slot, pool=node.pool, src=node.id,
          dst=spare.id if spare else "", reason=what, actor=actor, at=now,
          message=text_)  # fmt: skip

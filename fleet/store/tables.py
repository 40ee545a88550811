"""The tables. Enums are repeated as CHECK constraints, so that no writer can invent a state.

Invariant: a node row is written only by ``fleet.store.write`` (guarded by ``version``); history
tables (events, launches) are appended to and closed once; secrets are stored as SHA-256 only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, CheckConstraint, Column, Index, MetaData, UniqueConstraint
from sqlmodel import Field, SQLModel

from fleet.model import Market, Outcome, State

NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(SQLModel):
    """Common metadata with named constraints, so that migrations can alter them on SQLite."""

    metadata = MetaData(naming_convention=NAMING)


def one_of(column: str, values: type[StrEnum], *, nullable: bool = False) -> CheckConstraint:
    """A CHECK that ``column`` holds a member of ``values``."""
    words = ", ".join(f"'{v.value}'" for v in values)
    rule = f"{column} IN ({words})"
    return CheckConstraint(f"{column} IS NULL OR {rule}" if nullable else rule, name=column)


class NodeRow(Base, table=True):
    """One machine, from intent to its end."""

    __tablename__ = "nodes"
    __table_args__ = (
        one_of("state", State),
        one_of("market", Market),
        Index("ix_nodes_seq", "seq"),
        Index("ix_nodes_state", "state"),
        Index("ix_nodes_token", "token"),
        Index("ix_nodes_instance", "provider", "instance_id"),
    )

    id: str = Field(primary_key=True)
    pool: str
    state: str
    state_since: float
    version: int = 1
    seq: int
    token: str
    provider: str
    region: str
    zone: str
    instance_type: str
    market: str
    gpu: str
    gpus: int
    price_usd_hour: float | None = None
    placed_zone: str = ""
    image: str
    image_id: str
    created_at: float
    reason: str
    message: str = ""
    instance_id: str = ""
    requested_at: float | None = None
    accepted_at: float | None = None
    running_at: float | None = None
    first_report_at: float | None = None
    ready_at: float | None = None
    boot_id: str = ""
    deadline_at: float | None = None
    cordoned_by: str = ""
    cordon_reason: str = ""
    wish: str = ""
    wish_by: str = ""
    wish_reason: str = ""
    drained_at: float | None = None
    last_slot: str = ""
    fault: str = ""


class BatchRow(Base, table=True):
    """One create call for n like launches: its token is committed before the cloud is called."""

    __tablename__ = "batches"

    token: str = Field(primary_key=True)
    pool: str
    provider: str
    region: str
    offer_key: str
    image_id: str
    n: int
    user_data: str
    boot_hash: str = Field(index=True)
    boot_uses: int = 0
    boot_expires_at: float
    created_at: float
    sent_at: float | None = None
    attempts: int = 0
    next_at: float = 0.0
    settled_at: float | None = None
    last_error: str = ""


class LaunchRow(Base, table=True):
    """One attempt to get one instance, with phase timestamps and exactly one outcome."""

    __tablename__ = "launches"
    __table_args__ = (
        one_of("outcome", Outcome, nullable=True),
        Index("ix_launches_requested", "requested_at"),
        Index("ix_launches_open", "ended_at"),
        Index("ix_launches_token", "token"),
    )

    id: str = Field(primary_key=True)
    token: str
    pool: str
    provider: str
    region: str
    zone: str
    instance_type: str
    market: str
    gpus: int = 0
    price_usd_hour: float | None = None
    image: str
    image_id: str
    requested_at: float
    accepted_at: float | None = None
    running_at: float | None = None
    first_report_at: float | None = None
    gate_at: float | None = None
    ended_at: float | None = None
    outcome: str | None = None
    reason: str = ""
    code: str = ""
    message: str = ""
    request_id: str = ""
    instance_id: str = ""


class LaunchHour(Base, table=True):
    """Hourly rollup of closed launches: counts and a log-bucket histogram of boot seconds.

    Written in the transaction that closes the launch; recomputed by the audit.
    """

    __tablename__ = "launch_hours"

    hour: int = Field(primary_key=True)
    provider: str = Field(primary_key=True)
    region: str = Field(primary_key=True)
    market: str = Field(primary_key=True)
    outcome: str = Field(primary_key=True)
    accepted: bool = Field(primary_key=True)
    n: int = 0
    boot_s_sum: float = 0.0
    boot_hist: str = ""


class LaunchDay(Base, table=True):
    """The same per day: what a window of months is read from."""

    __tablename__ = "launch_days"

    day: int = Field(primary_key=True)
    provider: str = Field(primary_key=True)
    region: str = Field(primary_key=True)
    market: str = Field(primary_key=True)
    outcome: str = Field(primary_key=True)
    accepted: bool = Field(primary_key=True)
    n: int = 0
    boot_s_sum: float = 0.0
    boot_hist: str = ""


class HealthHour(Base, table=True):
    """Hourly GPU time and fault events per provider and region: the error rate's two halves."""

    __tablename__ = "health_hours"

    hour: int = Field(primary_key=True)
    provider: str = Field(primary_key=True)
    region: str = Field(primary_key=True)
    gpu_s: float = 0.0
    node_s: float = 0.0
    fatal: int = 0
    warning: int = 0
    application: int = 0


class EventRow(Base, table=True):
    """One row of the append-only history."""

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_object", "kind", "object_id"),
        Index("ix_events_at", "at"),
    )

    id: int | None = Field(default=None, primary_key=True)
    at: float
    kind: str
    object_id: str
    pool: str = ""
    src: str = ""
    dst: str = ""
    reason: str
    actor: str
    message: str = ""
    n: int = 1
    evidence: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class SlotRow(Base, table=True):
    """A consumer's slot of a pool and the node that serves it now (empty: not in service)."""

    __tablename__ = "slots"
    __table_args__ = (UniqueConstraint("node_id", name="node_id"),)

    slot: str = Field(primary_key=True)
    pool: str = Field(index=True)
    node_id: str | None = None
    since: float = 0.0
    seq: int = Field(default=0, index=True)
    moves: int = 0


class JoinRow(Base, table=True):
    """An instance that joined: bound to one node and one key, first wins."""

    __tablename__ = "joins"

    provider: str = Field(primary_key=True)
    instance_id: str = Field(primary_key=True)
    node_id: str = Field(index=True)
    token: str
    key_hash: str
    node_token_hash: str = Field(index=True)
    at: float
    revoked_at: float | None = None


class FaultRow(Base, table=True):
    """A fault class on a node in one boot; repeated sightings raise ``n`` and ``last_at``."""

    __tablename__ = "faults"
    __table_args__ = (
        UniqueConstraint("node_id", "boot_id", "code", "gpu", name="sighting"),
        Index("ix_faults_at", "first_at"),
    )

    id: int | None = Field(default=None, primary_key=True)
    node_id: str = Field(index=True)
    provider: str
    region: str
    pool: str
    boot_id: str
    code: str
    gpu: int = -1
    severity: str
    message: str = ""
    first_at: float
    last_at: float
    n: int = 1
    cleared_at: float | None = None


class RestRow(Base, table=True):
    """What rests, until when, how often it failed in a row and how many may be tried after."""

    __tablename__ = "rests"

    scope: str = Field(primary_key=True)
    until: float
    level: int = 1
    allow: int = 1
    reason: str
    message: str = ""
    at: float = 0.0


class PolicyRow(Base, table=True):
    """An applied policy object; ``version`` is its ETag."""

    __tablename__ = "policies"

    kind: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    version: int = 1
    spec: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    source: str = ""
    applied_at: float = 0.0
    applied_by: str = ""
    deleted_at: float | None = None


class OutboxRow(Base, table=True):
    """A webhook that must be delivered: committed with the change it tells of."""

    __tablename__ = "outbox"
    __table_args__ = (Index("ix_outbox_due", "done_at", "next_at"),)

    id: int | None = Field(default=None, primary_key=True)
    pool: str
    url: str
    topic: str
    body: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    created_at: float
    attempts: int = 0
    next_at: float
    done_at: float | None = None
    dead: bool = False
    last_error: str = ""


class SeenRow(Base, table=True):
    """Last report per node, flushed in batches; the live value is in memory."""

    __tablename__ = "seen"

    node_id: str = Field(primary_key=True)
    last_report_at: float
    last_seq: int = 0
    boot_id: str = ""


class MetaRow(Base, table=True):
    """Small facts about the cell: change sequence, freeze, schema, cell id, policy version."""

    __tablename__ = "meta"

    name: str = Field(primary_key=True)
    value: str

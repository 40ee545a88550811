"""Stores and rows for the suites of this folder: made once, copied for each test."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from functools import cache
from typing import Any

from sqlmodel import Session, SQLModel, select

from fleet.model import Actor, Market, Node, Offer, Reason, State
from fleet.store import schema, write
from fleet.store.door import Store
from fleet.store.view import View

T0 = 1_800_000_000.0
ME = Actor.LIFECYCLE
OFFER = Offer("aws", "us-east-1", "us-east-1a", "p5.48xlarge", Market.ON_DEMAND, "H100", 8, 55.0)


@cache
def template() -> sqlite3.Connection:
    """A migrated SQLite database in memory; copying it is a millisecond."""
    store = Store("sqlite:///:memory:")
    schema.upgrade(store)
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    raw = store.engine.raw_connection()
    raw.driver_connection.backup(copy)  # type: ignore[union-attr]
    raw.close()
    store.close()
    return copy


def fresh(url: str = "sqlite:///:memory:") -> Store:
    """A migrated SQLite store of one's own."""
    store = Store(url)
    raw = store.engine.raw_connection()
    template().backup(raw.driver_connection)  # type: ignore[arg-type]
    raw.close()
    return store


def node(i: int | str, state: State = State.REQUESTED, **changes: Any) -> Node:
    """A node in ``state`` that has been asked for at T0."""
    base = Node(
        id=f"n-{i}", pool="train", state=state, state_since=T0, version=1, seq=0, token=f"b-{i}",
        offer=OFFER, image="ubuntu@v1", image_id="ami-1", created_at=T0, requested_at=T0,
        reason=Reason.PLAN_SHORT,
    )  # fmt: skip
    return replace(base, **changes)


def put(store: Store, *nodes: Node) -> list[Node]:
    """Create ``nodes``; they come back as the store has them."""
    store.call(lambda tx: write.create(tx, list(nodes), actor=ME))
    view = seen(store)
    return [view.nodes[n.id] for n in nodes]


def seen(store: Store) -> View:
    """A view loaded from nothing."""
    view = View()
    store.call(view.refresh)
    return view


def rows(store: Store, table: type[SQLModel]) -> list[Any]:
    """Every row of a table."""

    def fn(tx: Session) -> list[Any]:
        return list(tx.exec(select(table)).all())

    return store.call(fn)

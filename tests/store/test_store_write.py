"""The only writers of nodes, launches, slots and events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlmodel import Session
from storekit import ME, OFFER, T0, node, put, rows, seen

from fleet.errors import Stale, StoreError
from fleet.lifecycle import NEXT
from fleet.model import Market, Node, Outcome, Reason, State
from fleet.store import write
from fleet.store.door import Store
from fleet.store.tables import EventRow, LaunchRow, NodeRow, OutboxRow, SlotRow

S = State


def move(store: Store, n: Node, to: State, **kw: Any) -> Node:
    return store.call(
        lambda tx: write.transition(tx, n, to, Reason.LAUNCH_SENT, now=T0 + 1, actor=ME, **kw)
    )


def test_a_node_comes_back_as_it_was_written(store: Store) -> None:
    whole = node(
        1, S.READY, message="m", instance_id="i-1", zone="us-east-1b", accepted_at=T0 + 1,
        running_at=T0 + 2, first_report_at=T0 + 3.25, ready_at=T0 + 4, boot_id="boot",
        deadline_at=T0 + 900, cordoned_by="user:ann", cordon_reason="why", wish="drain",
        wish_by="user:ann", wish_reason="rack", drained_at=T0 + 5, last_slot="s", fault="xid_79",
        offer=replace(OFFER, market=Market.SPOT, price_usd_hour=None),
    )  # fmt: skip
    (got,) = put(store, whole)
    assert got == replace(whole, seq=got.seq)
    assert got.seq > 0


def test_create_writes_node_launch_and_event_together(store: Store) -> None:
    put(store, node(1), node(2))
    assert [r.id for r in rows(store, NodeRow)] == ["n-1", "n-2"]
    assert [(r.id, r.token, r.outcome) for r in rows(store, LaunchRow)] == [
        ("n-1", "b-1", None), ("n-2", "b-2", None),
    ]  # fmt: skip
    assert [(e.object_id, e.dst) for e in rows(store, EventRow)] == [
        ("n-1", "REQUESTED"), ("n-2", "REQUESTED"),
    ]  # fmt: skip


def test_transition_writes_row_and_event(store: Store) -> None:
    (n,) = put(store, node(1))
    after = move(store, n, S.LAUNCHING, message="x" * 900, evidence={"code": "é"},
                 deadline_at=T0 + 300, requested_at=T0 + 1)  # fmt: skip
    assert seen(store).nodes["n-1"] == after
    assert (after.version, after.state_since, after.deadline_at) == (2, T0 + 1, T0 + 300)
    assert len(after.message) == 500
    assert after.seq > n.seq
    event = rows(store, EventRow)[-1]
    assert (event.src, event.dst, event.reason) == ("REQUESTED", "LAUNCHING", "launch_sent")
    assert (event.actor, event.evidence) == ("lifecycle", {"code": "é"})


def test_a_stale_transition_changes_nothing(store: Store) -> None:
    """PC-010, PC-013: the decision was made on an older row."""
    (n,) = put(store, node(1))
    moved = move(store, n, S.LAUNCHING)
    events = len(rows(store, EventRow))
    with pytest.raises(Stale, match="n-1"):
        move(store, n, S.TERMINATED)
    assert seen(store).nodes["n-1"] == moved
    assert len(rows(store, EventRow)) == events


def test_a_stale_step_takes_its_whole_transaction_back(store: Store) -> None:
    one, two = put(store, node(1), node(2))
    move(store, two, S.LAUNCHING)
    before = seen(store)

    def fn(tx: Session) -> None:
        write.transition(tx, one, S.LAUNCHING, Reason.LAUNCH_SENT, now=T0, actor=ME)
        write.transition(tx, two, S.LAUNCHING, Reason.LAUNCH_SENT, now=T0, actor=ME)

    with pytest.raises(Stale):
        store.call(fn)
    assert seen(store).nodes == before.nodes
    assert seen(store).seq == before.seq


@pytest.mark.parametrize("state", State)
def test_only_moves_of_next_are_written(state: State) -> None:
    from storekit import fresh  # one engine is enough: the assertion is before the database

    store = fresh()
    for to in State:
        (n,) = put(store, node(f"{state}-{to}", S.READY))
        n = replace(n, state=state)
        if to in NEXT[state]:
            assert move(store, n, to).state is to
        else:
            with pytest.raises(AssertionError):
                move(store, n, to)
    store.close()


def test_an_error_after_the_move_takes_the_event_back_too(store: Store) -> None:
    (n,) = put(store, node(1))

    def fn(tx: Session) -> None:
        write.transition(tx, n, S.LAUNCHING, Reason.LAUNCH_SENT, now=T0, actor=ME)
        raise RuntimeError("crash before commit")

    with pytest.raises(RuntimeError):
        store.call(fn)
    assert seen(store).nodes["n-1"] == n
    assert len(rows(store, EventRow)) == 1


BAD = [
    "UPDATE nodes SET state = 'ready'", "UPDATE nodes SET state = ''",
    "UPDATE nodes SET market = 'barter'", "UPDATE launches SET outcome = 'fine'",
    "UPDATE nodes SET state = NULL",
]  # fmt: skip


@pytest.mark.parametrize("statement", BAD)
def test_the_database_refuses_words_that_are_in_no_enum(store: Store, statement: str) -> None:
    put(store, node(1))
    before = (seen(store).nodes, [r.outcome for r in rows(store, LaunchRow)])
    with pytest.raises(StoreError):
        store.call(lambda tx: tx.execute(text(statement)))
    assert (seen(store).nodes, [r.outcome for r in rows(store, LaunchRow)]) == before


def test_the_database_takes_every_word_of_the_enums(store: Store) -> None:
    put(store, node(1))
    for state in State:
        store.call(lambda tx, s=state: tx.execute(text(f"UPDATE nodes SET state = '{s}'")))
    for outcome in Outcome:
        store.call(lambda tx, o=outcome: tx.execute(text(f"UPDATE launches SET outcome = '{o}'")))
    for market in Market:
        store.call(lambda tx, m=market: tx.execute(text(f"UPDATE nodes SET market = '{m}'")))


def test_a_node_id_is_used_once(store: Store) -> None:
    """PC-011, PC-108."""
    put(store, node(1))
    with pytest.raises(StoreError):
        put(store, node(1))
    with pytest.raises(StoreError):
        put(store, node(2), node(1))
    assert list(seen(store).nodes) == ["n-1"]


def test_every_change_takes_the_next_number(store: Store) -> None:
    seqs = [put(store, node(i))[0].seq for i in range(3)]
    (n,) = put(store, node(9))
    for i in range(3):
        n = store.call(lambda tx, n=n, i=i: write.update_node(tx, n, message=str(i)))
        seqs.append(n.seq)
    assert seqs == sorted(set(seqs))


# -- slots ---------------------------------------------------------------------------------------


def with_slots(store: Store, *slots: str) -> None:
    store.call(lambda tx: write.add_slots(tx, "train", list(slots), now=T0))


def test_one_slot_per_node(store: Store) -> None:
    put(store, node(1, S.READY))
    with_slots(store, "a", "b")
    store.call(lambda tx: write.set_slot(tx, "a", "n-1", now=T0, moved=False))
    with pytest.raises(StoreError):
        store.call(lambda tx: write.set_slot(tx, "b", "n-1", now=T0, moved=False))
    assert {r.slot: r.node_id for r in rows(store, SlotRow)} == {"a": "n-1", "b": None}


def test_many_slots_may_be_empty(store: Store) -> None:
    with_slots(store, *"abcdef")
    assert [r.node_id for r in rows(store, SlotRow)] == [None] * 6


def lose(store: Store, n: Node, spare: Node | None, then: Callable[[], None] | None = None) -> None:
    def fn(tx: Session) -> None:
        write.transition(tx, n, S.DRAINING, Reason.FATAL_FAULT, now=T0 + 9, actor=ME)
        write.move_slot(tx, n, spare, now=T0 + 9, actor=ME, reason=Reason.FATAL_FAULT,
                        urls=["https://a/", "https://b/"])  # fmt: skip
        if then:
            then()

    store.call(fn)


def test_service_moves_to_the_spare_in_one_transaction(store: Store) -> None:
    put(store, node(1, S.READY, instance_id="i-1"), node(2, S.READY, instance_id="i-2"))
    with_slots(store, "a")
    store.call(lambda tx: write.set_slot(tx, "a", "n-1", now=T0, moved=False))
    view = seen(store)
    assert view.nodes["n-1"].slot == "a"

    def crash() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        lose(store, view.nodes["n-1"], view.nodes["n-2"], crash)
    assert rows(store, OutboxRow) == []
    assert seen(store).slot_of == {"n-1": "a"}

    lose(store, view.nodes["n-1"], view.nodes["n-2"])
    after = seen(store)
    assert after.slot_of == {"n-2": "a"}
    assert after.nodes["n-1"].state is S.DRAINING
    assert after.slots["a"].moves == 1
    told = rows(store, OutboxRow)
    assert [o.url for o in told] == ["https://a/", "https://b/"]
    body = {"slot": "a", "from": "n-1", "to": "n-2", "instance": "i-2", "reason": "fatal_fault"}
    assert body.items() <= told[0].body.items()
    assert not told[0].dead
    assert rows(store, EventRow)[-1].reason == "moved"


def test_without_a_spare_the_slot_is_empty_and_the_consumer_told(store: Store) -> None:
    put(store, node(1, S.READY))
    with_slots(store, "a")
    store.call(lambda tx: write.set_slot(tx, "a", "n-1", now=T0, moved=False))
    lose(store, seen(store).nodes["n-1"], None)
    assert seen(store).slots["a"].node_id is None
    assert rows(store, OutboxRow)[0].body["to"] is None
    assert rows(store, EventRow)[-1].reason == "released"


def test_a_node_without_a_slot_moves_nothing(store: Store) -> None:
    (n,) = put(store, node(1, S.READY))
    lose(store, n, None)
    assert rows(store, OutboxRow) == []

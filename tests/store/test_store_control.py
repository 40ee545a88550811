"""Writers of rests, faults, joins, the stop cord and small facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from storekit import ME, T0, node, put, rows, seen

from fleet.model import Fault, Node, Outcome, Reason, Severity, State
from fleet.plan import Rest
from fleet.store import control, write
from fleet.store.door import Store
from fleet.store.tables import EventRow, FaultRow, HealthHour, JoinRow, SeenRow

XID = Fault("xid_79", 3, "fell off the bus", T0)


def rest(
    store: Store, until: float, now: float, scope: str = "offer:aws/x", allow: int = 1
) -> None:
    made = Rest(scope, until, 1, allow, Reason.INSUFFICIENT_CAPACITY, "ICE")
    store.call(lambda tx: control.put_rest(tx, made, actor="launch", now=now))


def reasons(store: Store) -> list[str]:
    return [e.reason for e in rows(store, EventRow)]


def test_a_rest_is_one_event_when_it_begins(store: Store) -> None:
    """PC-025: a hundred refusals are one line of history."""
    for i in range(100):
        rest(store, T0 + 180, T0 + i)
    assert reasons(store) == ["offer_cooling"]
    rest(store, T0 + 180, T0 + 200, allow=2)  # softer after a success: no event
    assert reasons(store) == ["offer_cooling"]
    rest(store, T0 + 900, T0 + 300)
    assert reasons(store) == ["offer_cooling", "offer_cooling"]
    assert seen(store).rests["offer:aws/x"].until == T0 + 900


def test_held_providers_and_pools_have_their_own_words(store: Store) -> None:
    for scope in ("provider:aws", "pool:train", "offer:x"):
        rest(store, T0 + 60, T0, scope)
        store.call(lambda tx, s=scope: control.clear_rest(tx, s, actor=ME, now=T0))
        store.call(lambda tx, s=scope: control.clear_rest(tx, s, actor=ME, now=T0))
    assert reasons(store) == [
        "provider_held", "provider_released", "pool_held", "pool_released", "offer_cooling",
    ]  # fmt: skip
    assert seen(store).rests == {}


def fault(store: Store, n: Node, f: Fault = XID, boot: str = "b1", at: float = T0,
          severity: Severity = Severity.FATAL) -> bool:  # fmt: skip
    return store.call(lambda tx: control.add_fault(tx, n, boot, f, severity, at))


def test_one_fault_printed_many_times_is_one_fault(store: Store) -> None:
    (n,) = put(store, node(1, State.READY))
    assert [fault(store, n, at=T0 + i) for i in range(50)] == [True] + [False] * 49
    (row,) = rows(store, FaultRow)
    assert (row.n, row.first_at, row.last_at, row.gpu) == (50, T0, T0 + 49, 3)
    assert rows(store, HealthHour)[0].fatal == 1


def test_another_boot_gpu_code_or_node_is_another_fault(store: Store) -> None:
    one, two = put(store, node(1, State.READY), node(2, State.READY))
    assert fault(store, one)
    assert fault(store, one, boot="b2")
    assert fault(store, one, replace(XID, gpu=4))
    assert fault(store, one, replace(XID, gpu=None))
    assert not fault(store, one, replace(XID, gpu=None))
    assert fault(store, one, replace(XID, code="xid_31"), severity=Severity.APPLICATION)
    assert fault(store, two, severity=Severity.WARNING)
    (hour,) = rows(store, HealthHour)
    assert (hour.fatal, hour.warning, hour.application) == (4, 1, 1)


def test_cleared_faults_are_no_longer_open(store: Store) -> None:
    one, two = put(store, node(1, State.READY), node(2, State.READY))
    fault(store, one, at=T0 + 5)
    fault(store, two, at=T0)
    assert [f.node_id for f in store.call(control.open_faults)] == ["n-2", "n-1"]
    assert store.call(lambda tx: control.clear_faults(tx, "n-1", T0 + 9)) == 1
    assert store.call(lambda tx: control.clear_faults(tx, "n-1", T0 + 10)) == 0
    assert [f.node_id for f in store.call(control.open_faults)] == ["n-2"]


def test_a_fault_that_comes_back_in_the_same_boot_is_open_again(store: Store) -> None:
    """PC-156: a new fault right after recovery is not lost in the old one's row."""
    (n,) = put(store, node(1, State.READY))
    fault(store, n)
    store.call(lambda tx: control.clear_faults(tx, "n-1", T0 + 9))
    fault(store, n, at=T0 + 20)
    assert [f.code for f in store.call(control.open_faults)] == ["xid_79"]


def test_freeze_and_unfreeze(store: Store) -> None:
    store.call(lambda tx: control.freeze(tx, "fire drill", actor="user:ann", now=T0))
    assert seen(store).frozen == "fire drill"
    store.call(lambda tx: control.unfreeze(tx, "over", actor="user:ann", now=T0 + 5))
    assert seen(store).frozen == ""
    assert seen(store).meta["unfrozen_at"] == repr(T0 + 5)
    assert reasons(store) == ["frozen", "unfrozen"]


def test_meta(store: Store) -> None:
    assert store.call(lambda tx: control.get_meta(tx, "x")) == ""
    for value in ("1", "2"):
        store.call(lambda tx, v=value: control.set_meta(tx, "x", v))
    assert store.call(lambda tx: control.get_meta(tx, "x")) == "2"


def test_a_nodes_end_revokes_its_token_once(store: Store) -> None:
    row: dict[str, Any] = {
        "provider": "aws",
        "node_id": "n-1",
        "token": "b",
        "key_hash": "k",
        "at": T0,
    }
    other = {**row, "node_id": "n-2"}
    store.call(lambda tx: tx.add(JoinRow(instance_id="i-1", node_token_hash="h1", **row)))
    store.call(lambda tx: tx.add(JoinRow(instance_id="i-2", node_token_hash="h2", **other)))
    for at in (T0 + 1, T0 + 2):
        store.call(lambda tx, t=at: control.revoke_joins(tx, "n-1", t))
    assert {j.node_id: j.revoked_at for j in rows(store, JoinRow)} == {"n-1": T0 + 1, "n-2": None}


def test_seen_is_written_in_batches_and_over_again(store: Store) -> None:
    def save(*ids: int, at: float = T0) -> None:
        batch: list[dict[str, Any]] = [
            {"node_id": f"n-{i}", "last_report_at": at, "last_seq": i, "boot_id": "b"} for i in ids
        ]
        store.call(lambda tx: control.save_seen(tx, batch))

    save()  # nothing to say
    save(1, 2)
    save(2, 3, at=T0 + 9)
    assert {s.node_id: s.last_report_at for s in rows(store, SeenRow)} == {
        "n-1": T0, "n-2": T0 + 9, "n-3": T0 + 9,
    }  # fmt: skip


def close(store: Store, i: int, outcome: Outcome, at: float, **changes: Any) -> None:
    (n,) = put(store, node(i, accepted_at=T0, **changes))
    store.call(lambda tx: write.close_launch(tx, n, outcome, now=at, reason=Reason.GATE_PASSED))


def recent(store: Store, most: int = 20, **where: Any) -> list[bool]:
    key = {"pool": "train", "image_id": "ami-1", "provider": "aws", "region": "us-east-1",
           "instance_type": "p5.48xlarge", **where}  # fmt: skip
    return store.call(lambda tx: control.recent_outcomes(tx, most=most, **key))


def test_recent_outcomes_of_one_pool_image_and_type_newest_last(store: Store) -> None:
    """The boot breaker's input: PC-036 capacity, quota and preemption say nothing of an image."""
    outcomes = [Outcome.READY, Outcome.INSUFFICIENT_CAPACITY, Outcome.GATE_FAILED,
                Outcome.PREEMPTED, Outcome.BOOT_TIMEOUT, Outcome.QUOTA_EXCEEDED, Outcome.LOST,
                Outcome.CANCELLED,
                Outcome.READY]  # fmt: skip
    for i, outcome in enumerate(outcomes):
        close(store, i, outcome, T0 + i)
    put(store, node(99))
    close(store, 50, Outcome.LOST, T0 + 50, pool="serve")
    close(store, 51, Outcome.LOST, T0 + 51, image_id="ami-2")
    assert recent(store) == [True, False, False, False, True]
    assert recent(store, most=2) == [False, True]
    assert recent(store, pool="serve") == [False]
    assert recent(store, region="eu-west-1") == []


def test_health_removals_are_remembered_with_their_place(store: Store) -> None:
    for i, (reason, at) in enumerate([
        (Reason.FATAL_FAULT, T0), (Reason.AGENT_SILENT, T0 + 10), (Reason.SURPLUS, T0 + 11),
        (Reason.WARNING_PERSISTS, T0 - 5000),
    ]):  # fmt: skip
        (n,) = put(store, node(i, State.READY))
        store.call(
            lambda tx, n=n, r=reason, t=at: write.transition(
                tx, n, State.DRAINING, r, now=t, actor=ME
            )
        )
    found = store.call(lambda tx: control.health_removals(tx, T0 - 100))
    place = ("train", "aws", "us-east-1a")
    assert sorted(found) == [("n-0", T0, place), ("n-1", T0 + 10, place)]


def test_counts(store: Store) -> None:
    put(store, node(1), node(2))
    counted = store.call(control.counts)
    assert (counted["nodes"], counted["events"], counted["joins"]) == (2, 2, 0)

"""Applying policies: all of a set or none, versions that mean something."""

from __future__ import annotations

from typing import Any

import pytest
from sqlmodel import Session
from storekit import T0, rows, seen

from fleet.errors import Conflict, NotFound
from fleet.model import Reason
from fleet.plan import FOREVER, Rest
from fleet.store import apply, control
from fleet.store.door import Store
from fleet.store.tables import EventRow, PolicyRow
from policies.schema import HealthPolicy, Image, Policy, Pool


def pool(name: str = "train", **spec: Any) -> Pool:
    offer = {"provider": "aws", "region": "us-east-1", "zone": "us-east-1a", "type": "p5.48xlarge"}
    base = {"gpu": "H100", "gpus_per_node": 8, "nodes": 4, "image": "ubuntu@v1", "offers": [offer]}
    return Pool.model_validate(
        {"apiVersion": "fleetd/v1", "kind": "Pool", "metadata": {"name": name},
         "spec": {**base, **spec}}
    )  # fmt: skip


def health(silent_s: int = 90) -> HealthPolicy:
    return HealthPolicy.model_validate(
        {"apiVersion": "fleetd/v1", "kind": "HealthPolicy", "metadata": {"name": "default"},
         "spec": {"report": {"silent_s": silent_s}}}
    )  # fmt: skip


IMAGE = Image.model_validate({
    "apiVersion": "fleetd/v1", "kind": "Image", "metadata": {"name": "ubuntu"},
    "spec": {"versions": [{"version": "v1", "artifacts": [
        {"provider": "aws", "region": "us-east-1", "id": "ami-0123456789abcdef0"}]}]},
})  # fmt: skip


def put(store: Store, *policies: Policy, **kw: Any) -> list[tuple[str, str, int]]:
    return store.call(
        lambda tx: apply.apply(tx, policies, actor="user:ann", now=T0, source="fleet.yaml", **kw)
    )


def test_what_is_applied_is_in_force_as_it_was_written(store: Store) -> None:
    put(store, pool(), IMAGE, health())
    found = {(p.kind, p.metadata.name): p for p in store.call(apply.applied)}
    assert found == {("Pool", "train"): pool(), ("Image", "ubuntu"): IMAGE,
                     ("HealthPolicy", "default"): health()}  # fmt: skip
    view = seen(store)
    assert (view.pools, view.images, view.health) == (
        {"train": pool()}, {"ubuntu": IMAGE}, {"default": health()},
    )  # fmt: skip


def test_only_what_differs_gets_a_new_version_and_an_event(store: Store) -> None:
    assert put(store, pool(), health()) == [("Pool", "train", 1), ("HealthPolicy", "default", 1)]
    assert put(store, pool(), health()) == []
    assert put(store, pool(nodes=5), health()) == [("Pool", "train", 2)]
    events = [e for e in rows(store, EventRow) if e.reason == "policy_applied"]
    assert [(e.kind, e.object_id, e.actor) for e in events] == [
        ("pool", "train", "user:ann"), ("healthpolicy", "default", "user:ann"),
        ("pool", "train", "user:ann"),
    ]  # fmt: skip
    assert "version 2 from fleet.yaml" in events[-1].message


def test_the_counter_moves_only_when_something_changed(store: Store) -> None:
    def counter() -> str:
        return store.call(lambda tx: control.get_meta(tx, "policies"))

    put(store, pool())
    before = counter()
    put(store, pool())
    assert counter() == before
    put(store, pool(nodes=9))
    assert counter() != before


def test_an_unexpected_version_is_a_conflict_and_nothing_is_written(store: Store) -> None:
    """PC-014, PC-010: whole or nothing, whichever object of the set has moved."""
    put(store, pool(), health())
    put(store, health(80))
    with pytest.raises(Conflict) as refused:
        put(store, pool(nodes=9), health(70),
            expected={("Pool", "train"): 1, ("HealthPolicy", "default"): 1})  # fmt: skip
    assert refused.value.code == "version_conflict"
    assert "at version 2, you looked at 1" in str(refused.value)
    assert seen(store).pools["train"].spec.nodes == 4
    assert put(store, pool(nodes=9), expected={("Pool", "train"): 1}) == [("Pool", "train", 2)]


def test_an_object_that_should_not_exist_yet_is_expected_at_zero(store: Store) -> None:
    put(store, pool("a"), expected={("Pool", "a"): 0})
    with pytest.raises(Conflict):
        put(store, pool("a", nodes=7), expected={("Pool", "a"): 0})


def test_an_error_half_way_leaves_nothing(store: Store) -> None:
    def broken() -> Any:
        yield pool("a")
        yield pool("b")
        raise RuntimeError("the file ends here")

    with pytest.raises(RuntimeError):
        store.call(lambda tx: apply.apply(tx, broken(), actor="user:ann", now=T0))
    assert rows(store, PolicyRow) == []
    assert rows(store, EventRow) == []
    assert store.call(lambda tx: control.get_meta(tx, "policies")) == "0"


def test_a_deleted_pool_is_out_of_force_but_remembered(store: Store) -> None:
    """PC-139: its row stays until its nodes are gone."""
    put(store, pool())
    store.call(lambda tx: apply.delete_policy(tx, "Pool", "train", actor="user:ann", now=T0))
    view = seen(store)
    assert (view.pools, view.deleted_pools) == ({}, {"train"})
    assert list(store.call(apply.applied)) == []
    assert store.call(apply.versions) == {}
    assert rows(store, EventRow)[-1].reason == Reason.POOL_DELETED
    with pytest.raises(NotFound):
        store.call(lambda tx: apply.delete_policy(tx, "Pool", "train", actor="a", now=T0))
    store.call(lambda tx: apply.forget_deleted(tx, "train"))
    assert seen(store).deleted_pools == set()


def test_a_deleted_pool_can_come_back_and_its_version_goes_on(store: Store) -> None:
    put(store, pool())
    store.call(lambda tx: apply.delete_policy(tx, "Pool", "train", actor="user:ann", now=T0))
    assert put(store, pool()) == [("Pool", "train", 3)]
    view = seen(store)
    assert (list(view.pools), view.deleted_pools) == (["train"], set())


def test_deleting_what_is_not_there(store: Store) -> None:
    with pytest.raises(NotFound, match="nope"):
        store.call(lambda tx: apply.delete_policy(tx, "Pool", "nope", actor="a", now=T0))


def test_a_changed_pool_is_no_longer_held_for_the_old_one(store: Store) -> None:
    """InvalidRequest holds a pool until its policy changes."""
    put(store, pool())
    held = Rest("pool:train", FOREVER, 1, 1, Reason.INVALID_REQUEST, "bad tag")

    def hold(tx: Session) -> None:
        control.put_rest(tx, held, actor="launch", now=T0)

    store.call(hold)
    put(store, pool())
    assert seen(store).rests == {"pool:train": held}, "the same policy again changes nothing"
    put(store, pool(nodes=5))
    assert seen(store).rests == {}
    assert "pool_released" in [e.reason for e in rows(store, EventRow)]

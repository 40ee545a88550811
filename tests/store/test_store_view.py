"""The read model follows other writers: a followed view equals a freshly loaded one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from storekit import ME, OFFER, T0, fresh, node, put, seen

from fleet.lifecycle import NEXT
from fleet.model import Node, Reason, State
from fleet.plan import Rest
from fleet.store import apply, control, write
from fleet.store.door import Store
from fleet.store.view import View
from policies.schema import HealthPolicy

S = State
SLOTS = ("a", "b", "c")
SCOPES = ("offer:x", "pool:train", "provider:aws")


def shown(view: View) -> dict[str, Any]:
    """All that a view tells, without the order in which it learned it."""
    return {
        "nodes": view.nodes, "slots": view.slots, "slot_of": view.slot_of,
        "by_pool": {k: v for k, v in view.by_pool.items() if v}, "by_token": view.by_token,
        "by_instance": view.by_instance, "rests": view.rests, "meta": view.meta, "seq": view.seq,
        "batches": {t: b.model_dump() for t, b in view.batches.items()},
        "policies": (view.pools, view.images, view.health, view.deleted_pools),
    }  # fmt: skip


class Following(RuleBasedStateMachine):
    """Random writers, and two readers of whom one looks always and one now and then."""

    @initialize()
    def start(self) -> None:
        self.store = fresh()
        self.eager, self.lazy = View(), View()
        self.n = 0
        self.store.call(lambda tx: write.add_slots(tx, "train", list(SLOTS), now=T0))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.call(self.lazy.refresh)
            assert shown(self.lazy) == shown(seen(self.store))
            self.store.close()

    @invariant()
    def eager_is_current(self) -> None:
        if not hasattr(self, "store"):
            return
        before = dict(self.eager.nodes)
        self.eager.changed.clear()
        self.store.call(self.eager.refresh)
        assert shown(self.eager) == shown(seen(self.store))
        differing = {
            i for i in before.keys() | self.eager.nodes.keys()
            if before.get(i) != self.eager.nodes.get(i)
        }  # fmt: skip
        assert differing <= self.eager.changed, "who follows `changed` misses nothing"
        for n in self.eager.nodes.values():
            assert n.slot == self.eager.slot_of.get(n.id, "")

    def live(self) -> list[Node]:
        return sorted(seen(self.store).nodes.values(), key=lambda n: n.id)

    def pick(self, data: st.DataObject) -> Node:
        return data.draw(st.sampled_from(self.live()))

    @rule()
    def lazy_looks(self) -> None:
        self.store.call(self.lazy.refresh)

    @rule(count=st.integers(1, 3), pool=st.sampled_from(("train", "serve")),
          state=st.sampled_from((S.REQUESTED, S.READY)))  # fmt: skip
    def create(self, count: int, pool: str, state: State) -> None:
        self.n += 1
        put(self.store, *(node(f"{self.n}-{i}", state, pool=pool, token=f"b-{self.n}")
                          for i in range(count)))  # fmt: skip

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        n = self.pick(data)
        to = data.draw(st.sampled_from(sorted(NEXT[n.state])))
        self.store.call(
            lambda tx: write.transition(tx, n, to, Reason.SURPLUS, now=T0 + self.n, actor=ME)
        )

    @precondition(lambda self: self.live())
    @rule(data=st.data(), instance=st.sampled_from(("", "i-1", "i-2", "i-3")))
    def bind(self, data: st.DataObject, instance: str) -> None:
        """Also from one node to another within one transaction."""
        n = self.pick(data)
        live = self.live()

        def fn(tx: Any) -> None:
            for other in live:
                if instance and other.id != n.id and other.instance_id == instance:
                    write.update_node(tx, other, instance_id="")
            write.update_node(tx, n, instance_id=instance, zone="z")

        self.store.call(fn)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), slot=st.sampled_from(SLOTS))
    def serve(self, data: st.DataObject, slot: str) -> None:
        n = self.pick(data)
        view = seen(self.store)
        if n.slot or slot not in view.slots:
            return
        self.store.call(lambda tx: write.set_slot(tx, slot, n.id, now=T0 + self.n, moved=True))

    @rule(slot=st.sampled_from(SLOTS))
    def release(self, slot: str) -> None:
        if slot in seen(self.store).slots:
            self.store.call(lambda tx: write.set_slot(tx, slot, None, now=T0, moved=False))

    @rule()
    def swap(self) -> None:
        """Two slots change places in one transaction."""
        view = seen(self.store)
        used = [s for s in SLOTS if s in view.slots and view.slots[s].node_id]
        if len(used) < 2:
            return
        one, two = used[0], used[1]
        a, b = view.slots[one].node_id, view.slots[two].node_id

        def fn(tx: Any) -> None:
            write.set_slot(tx, one, None, now=T0, moved=True)
            write.set_slot(tx, two, a, now=T0, moved=True)
            write.set_slot(tx, one, b, now=T0, moved=True)

        self.store.call(fn)

    @rule(slots=st.sets(st.sampled_from(SLOTS), min_size=1))
    def fit_slots(self, slots: set[str]) -> None:
        """A pool shrinks, and grows again with the same names."""
        have = set(seen(self.store).slots)
        self.store.call(lambda tx: control.remove_slots(tx, sorted(slots & have), T0))
        missing = sorted(slots - have)
        if missing:
            self.store.call(lambda tx: write.add_slots(tx, "train", missing, now=T0))

    @rule(scope=st.sampled_from(SCOPES), until=st.floats(-10, 10), allow=st.integers(1, 9))
    def rest(self, scope: str, until: float, allow: int) -> None:
        rest = Rest(scope, T0 + until, 1, allow, Reason.INSUFFICIENT_CAPACITY, "m")
        self.store.call(lambda tx: control.put_rest(tx, rest, actor=ME, now=T0))

    @rule(scope=st.sampled_from(SCOPES))
    def unrest(self, scope: str) -> None:
        self.store.call(lambda tx: control.clear_rest(tx, scope, actor=ME, now=T0))

    @rule()
    def batch(self) -> None:
        self.n += 1
        self.store.call(
            lambda tx: control.add_batch(
                tx, token=f"t-{self.n}", pool="train", provider="aws", region="east",
                offer_key=OFFER.key, image_id="ami", n=1, user_data="", boot_hash="h",
                boot_expires_at=T0, created_at=T0,
            )
        )  # fmt: skip

    @rule(data=st.data(), settle=st.booleans())
    def progress(self, data: st.DataObject, settle: bool) -> None:
        tokens = sorted(seen(self.store).batches)
        if tokens:
            token = data.draw(st.sampled_from(tokens))
            values = {"settled_at": T0} if settle else {"last_error": f"e{self.n}"}
            self.store.call(lambda tx: control.update_batch(tx, token, **values))

    @rule(name=st.sampled_from(("h1", "h2")), silent=st.integers(30, 90))
    def policy(self, name: str, silent: int) -> None:
        made = HealthPolicy.model_validate(
            {"apiVersion": "fleetd/v1", "kind": "HealthPolicy", "metadata": {"name": name},
             "spec": {"report": {"silent_s": silent}}}
        )  # fmt: skip
        self.store.call(lambda tx: apply.apply(tx, [made], actor="user:a", now=T0))

    @rule(name=st.sampled_from(("h1", "h2")))
    def unpolicy(self, name: str) -> None:
        if name in seen(self.store).health:
            self.store.call(
                lambda tx: apply.delete_policy(tx, "HealthPolicy", name, actor="user:a", now=T0)
            )

    @rule(why=st.sampled_from(("", "fire drill")))
    def freeze(self, why: str) -> None:
        if why:
            self.store.call(lambda tx: control.freeze(tx, why, actor="user:a", now=T0))
        else:
            self.store.call(lambda tx: control.unfreeze(tx, "over", actor="user:a", now=T0))


Following.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestFollowing = Following.TestCase


def test_two_views_and_a_third_writer(store: Store) -> None:
    """On every engine: what one commits the others see at their next look, and not before."""
    first, second = View(), View()
    store.call(first.refresh)
    (n,) = put(store, node(1))
    assert first.nodes == {}
    store.call(second.refresh)
    moved = store.call(
        lambda tx: write.transition(tx, n, S.LAUNCHING, Reason.LAUNCH_SENT, now=T0, actor=ME)
    )
    assert second.nodes["n-1"] == n
    store.call(first.refresh)
    store.call(second.refresh)
    assert first.nodes == second.nodes == {"n-1": moved}
    assert shown(first) == shown(second) == shown(seen(store))


def test_a_taken_back_transaction_is_never_seen(store: Store) -> None:
    (n,) = put(store, node(1))
    view = seen(store)

    def fn(tx: Any) -> None:
        write.update_node(tx, n, message="draft")
        raise KeyError

    try:
        store.call(fn)
    except KeyError:
        store.call(view.refresh)
    assert view.nodes["n-1"].message == ""


def test_reading(store: Store) -> None:
    put(store, node(2, instance_id="i-2"), node(1), node(3, pool="serve", token="b-1"))
    view = seen(store)
    assert [n.id for n in view.pool_nodes("train")] == ["n-1", "n-2"]
    assert [n.id for n in view.token_nodes("b-1")] == ["n-1", "n-3"]
    found = view.node_of("aws", "i-2")
    assert found is not None
    assert found.id == "n-2"
    assert view.node_of("gcp", "i-2") is None
    assert view.node_of("aws", "") is None
    assert view.pool_nodes("nope") == []
    assert len(list(view.all())) == 3


def test_ended_nodes_leave_the_view(store: Store) -> None:
    (n,) = put(store, node(1, S.TERMINATING, instance_id="i-1"))
    view = seen(store)
    store.call(
        lambda tx: write.transition(tx, n, S.TERMINATED, Reason.CONFIRMED_GONE, now=T0, actor=ME)
    )
    store.call(view.refresh)
    assert (view.nodes, view.by_token, view.by_instance) == ({}, {}, {})
    assert "n-1" in view.changed
    assert seen(store).nodes == {}


def test_an_instance_that_changes_nodes_keeps_its_entry(store: Store) -> None:
    """Both nodes change in one refresh, the new owner's row may be read first."""
    one, two = put(store, node(1, instance_id="i-9"), node(2))
    view = seen(store)

    def fn(tx: Any) -> None:
        write.update_node(tx, two, instance_id="i-9")
        write.update_node(tx, one, instance_id="")

    store.call(fn)
    store.call(view.refresh)
    found = view.node_of("aws", "i-9")
    assert found == replace(two, instance_id="i-9", version=2, seq=two.seq + 1)

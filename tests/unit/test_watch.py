"""What lists say of a node: a miss counts only when the cloud had time to show the machine."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.lifecycle import Listed
from fleet.model import Instance, InstanceRef, Node, Offer, Phase, Reason, State
from fleet.watch import MISSES, MISSES_UNHEARD, Pulse, Sightings, Watch

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

T0 = 1_800_000_000.0
VISIBLE_S = 120.0


def inst(i: str, token: str = "b-1") -> Instance:
    return Instance(InstanceRef("aws", "east", "easta", i), Phase.RUNNING, token)


def node(instance_id: str = "i-1", **changes: Any) -> Node:
    kw: dict[str, Any] = {
        "id": "n-1", "pool": "p", "state": State.READY, "state_since": T0, "version": 1, "seq": 1,
        "token": "b-1", "offer": Offer("aws", "east", "easta", "p5.48xlarge"), "image": "u@1",
        "image_id": "ami", "created_at": T0, "reason": Reason.PLAN_SHORT,
        "instance_id": instance_id, "accepted_at": T0, "first_report_at": T0 + 60,
    }  # fmt: skip
    return Node(**{**kw, **changes})


def seen(**kw: Any) -> Sightings:
    return Sightings("aws", VISIBLE_S, **kw)


def lists(s: Sightings, *starts: float, found: tuple[str, ...] = ()) -> None:
    for at in starts:
        s.took([inst(i) for i in found], {"i-1": T0}, started_at=T0 + at, now=T0 + at + 5)


def test_before_the_first_list_nothing_is_known() -> None:
    assert seen().listed(node()) is Listed.UNKNOWN
    assert seen().age_s(T0) is None


def test_present() -> None:
    s = seen()
    lists(s, 10, found=("i-1",))
    assert s.listed(node()) is Listed.PRESENT
    assert s.age_s(T0 + 45) == 30


def test_lists_within_the_visibility_window_miss_nothing() -> None:
    """PC-001, PC-193, PC-106."""
    s = seen()
    lists(s, *range(0, 120, 10))
    assert s.listed(node()) is Listed.UNKNOWN
    assert s.misses["i-1"] == 0


def test_it_takes_two_complete_lists_after_the_window() -> None:
    """PC-191: page slippage misses once."""
    s = seen()
    lists(s, 120)
    assert s.listed(node()) is Listed.UNKNOWN
    lists(s, 150)
    assert s.listed(node()) is Listed.MISSING
    assert MISSES == 2


def test_a_machine_whose_agent_never_spoke_needs_more_lists() -> None:
    s = seen()
    unheard = node(first_report_at=None, state=State.BOOTING)
    for i in range(MISSES_UNHEARD):
        assert s.listed(unheard) is Listed.UNKNOWN
        lists(s, 120 + 30 * i)
    assert s.listed(unheard) is Listed.MISSING
    ending = node(first_report_at=None, state=State.TERMINATING)
    s.misses["i-1"] = MISSES
    assert s.listed(ending) is Listed.MISSING


def test_seen_again_starts_the_count_afresh() -> None:
    s = seen()
    lists(s, 120)
    lists(s, 150, found=("i-1",))
    lists(s, 180)
    assert s.listed(node()) is Listed.UNKNOWN


def test_a_failed_list_is_no_list() -> None:
    """PC-030, PC-078, PC-191: an error is not emptiness; what was seen stays, older."""
    s = seen()
    lists(s, 120, found=("i-1",))
    for i in range(10):
        s.failed("AuthFailure: expired" + "x" * 900, T0 + 200 + i)
    assert s.listed(node()) is Listed.PRESENT
    assert s.misses == {}
    assert s.failing_since == T0 + 200
    assert len(s.error) == 500
    assert s.age_s(T0 + 225) == 100
    lists(s, 300, found=("i-1",))
    assert s.error == ""
    after: float | None = s.failing_since
    assert after is None


def test_an_unbound_node_is_unknown() -> None:
    s = seen()
    lists(s, 500, 600, 700)
    assert s.listed(node("")) is Listed.UNKNOWN


def test_several_instances_of_one_token_are_all_kept() -> None:
    """PC-128: duplicates are seen."""
    s = seen()
    s.took([inst("i-1"), inst("i-2"), inst("i-3", "")], {}, started_at=T0, now=T0)
    assert [i.ref.instance_id for i in s.by_token["b-1"]] == ["i-1", "i-2"]
    assert "" not in s.by_token


def test_first_seen_is_kept_while_listed_and_forgotten_after() -> None:
    """PC-171: age for the sweep."""
    s = seen()
    lists(s, 0, 30, found=("i-9",))
    assert s.first_seen == {"i-9": T0 + 5}
    lists(s, 60)
    lists(s, 90, found=("i-9",))
    assert s.first_seen == {"i-9": T0 + 95}


@settings(max_examples=200)
@given(history=st.lists(st.tuples(st.floats(0, 60), st.booleans()), max_size=30))
def test_missing_means_enough_late_lists_in_a_row_without_it(
    history: list[tuple[float, bool]],
) -> None:
    s, at, row = seen(), 0.0, 0
    for wait, shown in history:
        at += wait
        s.took([inst("i-1")] if shown else [], {"i-1": T0}, started_at=T0 + at, now=T0 + at)
        row = 0 if shown else row + (at >= VISIBLE_S)
        want = Listed.PRESENT if shown else Listed.MISSING if row >= MISSES else Listed.UNKNOWN
        assert s.listed(node()) is want


def test_what_is_no_longer_bound_is_not_counted() -> None:
    s = seen()
    lists(s, 200)
    s.took([], {}, started_at=T0 + 300, now=T0 + 300)
    assert s.misses == {}


def test_watch() -> None:
    w = Watch({"aws": seen()})
    lists(w.sightings["aws"], 10, found=("i-1",))
    assert w.instance(node()) == inst("i-1")
    assert w.instance(node("i-2")) is None
    assert w.instance(node("")) is None
    assert w.instance(node(offer=Offer("gcp", "east", "easta", "a3"))) is None
    pulse = w.pulse("n-1")
    assert pulse == Pulse()
    assert w.pulse("n-1") is pulse
    w.dirty.add("n-1")
    w.forget("n-1")
    w.forget("n-1")
    assert (w.pulses, w.dirty) == ({}, set())

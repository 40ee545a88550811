"""Guards: small pools can be repaired, large outages are not made larger."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.guards import (
    BLIND_MIN_NODES,
    JUMP_PAUSE_S,
    Grace,
    Pause,
    RepairPolicy,
    Ward,
    blind,
    budget_limit,
    may_repair,
    sweep_limit,
    sweep_refused,
    tripped_names,
)

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

T0 = 1_800_000_000.0
P = RepairPolicy()

policies_st = st.builds(
    lambda share, floor, more: RepairPolicy(share, floor, floor + more),
    st.floats(0, 1), st.integers(1, 20), st.integers(0, 50),
)  # fmt: skip
wards_st = st.builds(
    lambda total, u, r, p, last: Ward(
        total, min(u, total), min(r, total), p, None if last is None else T0 - last
    ),
    st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 40), st.integers(0, 40),
    st.none() | st.floats(0, 10_000),
)  # fmt: skip


@pytest.mark.parametrize(("total", "limit"), [
    (0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2), (10, 2), (11, 3), (30, 6), (50, 10),
    (288, 10), (2500, 10),
])  # fmt: skip
def test_budget_limit(total: int, limit: int) -> None:
    """PC-070, PC-071 (always one, rounded up), PC-159 (percent and absolute)."""
    assert budget_limit(total, P) == limit


@given(policy=policies_st, total=st.integers(0, 30_000))
def test_the_limit_is_between_floor_and_absolute_and_grows_with_the_pool(
    policy: RepairPolicy, total: int
) -> None:
    limit = budget_limit(total, policy)
    assert policy.floor <= limit <= policy.absolute
    assert limit <= budget_limit(total + 1, policy)


#: (nodes, ill and serving, removed in the window, under repair) → may one more go?, page?
TABLE = [
    (1, 1, 0, 0, True, False),
    (2, 1, 0, 0, True, False),
    (2, 2, 0, 0, True, False),  # both ill: one at a time (Karpenter #2134, cozystack #3513)
    (2, 1, 1, 1, False, False),
    (2, 1, 1, 0, True, False),  # the first is replaced: now the second
    (3, 3, 0, 0, True, False),
    (3, 2, 1, 1, False, False),
    (4, 2, 0, 0, True, False),
    (5, 2, 0, 0, True, False),
    (5, 1, 1, 1, False, False),
    (6, 2, 0, 0, True, False),
    (6, 1, 1, 1, True, False),
    (6, 3, 0, 1, False, True),
    (30, 6, 0, 0, True, False),
    (30, 1, 5, 5, True, False),
    (30, 0, 6, 6, False, False),  # within the rule, simply busy: no page
    (30, 2, 5, 5, False, True),
    (30, 29, 1, 1, False, True),
    (288, 10, 0, 0, True, False),
    (288, 11, 0, 1, False, True),  # 4 %: the absolute bound speaks
    (2500, 10, 0, 3, True, False),
    (2500, 5, 6, 6, False, True),
    (2500, 2500, 0, 1, False, True),
]


@pytest.mark.parametrize(("total", "ill", "removed", "repairing", "ok", "page"), TABLE)
def test_may_repair(
    total: int, ill: int, removed: int, repairing: int, ok: bool, page: bool
) -> None:
    ward = Ward(total, ill, removed, repairing, T0 - 60 if removed else None)
    permit = may_repair(ward, T0, P)
    assert (permit.ok, permit.tripped) == (ok, page)
    assert permit.ok or permit.why


@pytest.mark.parametrize("total", [1, 2, 3, 4, 5])
def test_a_small_pool_that_is_all_ill_is_repaired_one_at_a_time(total: int) -> None:
    """Acceptance test 8 of field.md: never two out at once, and all are repaired in the end."""
    ill, removed, out = total, 0, 0
    for _ in range(total):
        assert may_repair(Ward(total, ill, removed, out, T0), T0, P).ok
        ill, removed, out = ill - 1, removed + 1, out + 1
        assert not ill or not may_repair(Ward(total, ill, removed, out, T0), T0, P).ok
        out -= 1  # its replacement is READY
    assert ill == 0


@settings(max_examples=400)
@given(ward=wards_st, policy=policies_st)
def test_a_guard_only_takes_away(ward: Ward, policy: RepairPolicy) -> None:
    """More ill, more removed or more under repair never opens what was shut."""
    if may_repair(ward, T0, policy).ok:
        return
    for worse in (
        Ward(ward.total, ward.unhealthy + 1, ward.removed, ward.repairing, ward.last_repair_at),
        Ward(ward.total, ward.unhealthy, ward.removed + 1, ward.repairing, ward.last_repair_at),
        Ward(ward.total, ward.unhealthy, ward.removed, ward.repairing + 1, ward.last_repair_at),
    ):
        permit = may_repair(worse, T0, policy)
        probe = permit.tripped and permit.ok  # half open allows what a busy budget does not
        assert not permit.ok or (probe and worse.repairing == 0)


@settings(max_examples=300)
@given(ward=wards_st, policy=policies_st)
def test_never_more_than_the_limit_under_repair(ward: Ward, policy: RepairPolicy) -> None:
    limit = budget_limit(ward.total, policy)
    if may_repair(ward, T0, policy).ok:
        assert ward.repairing < limit


def test_half_open_lets_one_probe_through_each_half_hour() -> None:
    """A sensor broken everywhere costs a node per half hour and not the fleet (PC-163)."""
    ill, last, probes = 30, None, 0
    removed_at: list[float] = []
    for second in range(0, 7200, 15):
        now = T0 + second
        removed = sum(now - at <= P.window_s for at in removed_at)
        permit = may_repair(Ward(30, ill, removed, 0, last), now, P)
        assert permit.tripped
        if permit.ok:
            probes, last = probes + 1, now
            removed_at.append(now)
    assert probes == 4
    assert may_repair(Ward(30, ill, 0, 1, T0 - 9999), T0, P).ok is False, "one at a time"


@settings(max_examples=200)
@given(total=st.integers(6, 3000), now=st.floats(0, 1e5))
def test_everything_ill_at_once_trips(total: int, now: float) -> None:
    permit = may_repair(Ward(total, total, 0, 1, T0), T0 + now, P)
    assert (permit.ok, permit.tripped) == (False, True)


# -- blindness -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("silent", "watched", "age", "is_blind"), [
    (0, 0, 10, False), (1, 1, 10, False), (2, 2, 10, False), (3, 3, 10, True), (2, 4, 10, False),
    (3, 6, 10, False), (4, 6, 10, True), (50, 100, 10, False), (51, 100, 10, True),
    (0, 100, None, True), (0, 100, 120, False), (0, 100, 121, True),
])  # fmt: skip
def test_blind(silent: int, watched: int, age: float | None, is_blind: bool) -> None:
    """PC-141, dstack #1551, #2041: the path between, and not the nodes."""
    assert bool(blind(silent, watched, list_age_s=age, list_limit_s=120)) == is_blind


@given(silent=st.integers(0, 500), more=st.integers(0, 500), age=st.floats(0, 1000))
def test_more_silence_never_makes_seeing(silent: int, more: int, age: float) -> None:
    watched = silent + more
    if blind(silent, watched, list_age_s=age, list_limit_s=120):
        assert blind(min(watched, silent + 1), watched, list_age_s=age, list_limit_s=120)
    assert silent >= BLIND_MIN_NODES or not blind(silent, watched, list_age_s=0, list_limit_s=1)


# -- grace and clock jumps -----------------------------------------------------------------------


def test_grace_needs_a_full_list_of_that_provider_and_two_report_intervals() -> None:
    """PC-178, PC-121, BOSH #2527."""
    grace = Grace(T0, 15.0)
    assert not grace.over("aws", T0 + 9999)
    grace.first_list_at["aws"] = T0 + 2
    assert not grace.over("aws", T0 + 29.9)
    assert grace.over("aws", T0 + 30)
    assert not grace.over("gcp", T0 + 30)


@given(steps=st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1000)), min_size=1))
def test_a_pause_lasts_from_the_newest_jump(steps: list[tuple[float, float]]) -> None:
    """PC-208."""
    pause = Pause()
    assert not pause.active(0.0)
    for step, at in steps:
        pause.jumped(step, at)
    newest = max(at for _, at in steps)
    assert pause.active(newest)
    assert pause.active(newest + JUMP_PAUSE_S - 0.01)
    assert not pause.active(newest + JUMP_PAUSE_S)
    assert f"{steps[-1][0]:+.0f} s" in pause.why


# -- sweep ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("instances", "limit"), [(0, 5), (100, 5), (101, 6), (2000, 100)])
def test_sweep_limit(instances: int, limit: int) -> None:
    assert sweep_limit(instances) == limit


@pytest.mark.parametrize(("orphans", "instances", "known", "refused"), [
    (0, 0, 0, False), (0, 100, 0, False),
    (1, 1, 0, True), (500, 500, 0, True),  # an empty store is a lost store
    (1, 1, 1, False), (5, 5, 3, False), (6, 10, 4, True), (6, 12, 6, False), (60, 100, 40, True),
])  # fmt: skip
def test_sweep_refused(orphans: int, instances: int, known: int, refused: bool) -> None:
    """PC-121, MCM PR 722."""
    assert bool(sweep_refused(orphans, instances, known, confirmed=False)) == refused
    assert not sweep_refused(orphans, instances, known, confirmed=True)


@given(instances=st.integers(0, 5000), orphans=st.integers(0, 5000))
def test_an_empty_store_never_sweeps(instances: int, orphans: int) -> None:
    why = sweep_refused(orphans, instances, 0, confirmed=False)
    assert bool(why) == (orphans > 0)


def test_tripped_names() -> None:
    assert tripped_names({"b": "why", "a": "why", "c": ""}) == ("a", "b")

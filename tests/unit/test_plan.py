"""What to launch and let go: ceilings, rests and breakers as tables and properties."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import (
    Ambiguous,
    Cooldown,
    Gone,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fleet.model import IN_FLIGHT, LIVE, Market, Node, Offer, Reason, State
from fleet.plan import (
    BOOT_LAST,
    BOOT_REST_S,
    FOREVER,
    JITTER,
    REST_S,
    TRUSTED,
    Plan,
    PoolView,
    Rest,
    after_success,
    boot_rest,
    boot_scope,
    fill_slots,
    is_spare,
    plan,
    rest_after,
    room,
    scopes,
)

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

T0 = 1_800_000_000.0
S = State
GRID = tuple(
    Offer(provider, region, f"{region}{zone}", kind, market, "H100", 8, 50.0)
    for provider in ("aws", "gcp")
    for region in ("east", "west")
    for zone in "ab"
    for kind in ("p5.48xlarge", "p5.4xlarge", "p4d.24xlarge")
    for market in (Market.ON_DEMAND, Market.SPOT)
)
IMAGE_IDS = {(p, r): f"img-{p}-{r}" for p in ("aws", "gcp") for r in ("east", "west")}
ONE = GRID[0]

ERRORS: tuple[ProviderError, ...] = (
    InsufficientCapacity("no capacity", code="ICE"),
    QuotaExceeded("quota", code="VcpuLimitExceeded"),
    InvalidRequest("bad"),
    ImageNotFound("no such image"),
    Unauthorized("expired"),
)


def node(i: int, state: State = S.READY, offer: Offer = ONE, **changes: Any) -> Node:
    base = Node(
        id=f"n-{i:04d}", pool="train", state=state, state_since=T0, version=1, seq=1, token="b",
        offer=offer, image="ubuntu@1", image_id=IMAGE_IDS[(offer.provider, offer.region)],
        created_at=T0 + i, reason=Reason.PLAN_SHORT,
    )  # fmt: skip
    return replace(base, **changes)


def view(**changes: Any) -> PoolView:
    base = PoolView(
        name="train", wanted=4, spares=1, surge=1, quarantine=1, image="ubuntu@1", offers=(ONE,),
        image_ids=IMAGE_IDS, nodes=(), rests={},
    )  # fmt: skip
    return replace(base, **changes)


def rest_of(
    error: ProviderError, offer: Offer = ONE, *, rests: Mapping[str, Rest] | None = None,
    now: float = T0, luck: float = 0.5,
) -> Rest | None:  # fmt: skip
    image_id = IMAGE_IDS[(offer.provider, offer.region)]
    return rest_after(
        error, offer, pool="train", image_id=image_id, rests=rests or {}, now=now, luck=luck
    )


def launched(planned: Plan) -> int:
    return sum(i.count for i in planned.intents)


nodes_st = st.lists(
    st.builds(
        lambda state, offer, wish, cordoned, slot: node(
            0, state, offer, wish=wish, cordoned_by="user:a" if cordoned else "", slot=slot
        ),
        st.sampled_from(State), st.sampled_from(GRID),
        st.sampled_from(("", "", "drain", "replace")),
        st.booleans(), st.sampled_from(("", "train-00")),
    ),
    max_size=25,
).map(lambda found: [replace(n, id=f"n-{i}") for i, n in enumerate(found)])  # fmt: skip
rests_st = st.dictionaries(
    st.sampled_from([
        s for o in GRID
        for s in scopes(o, pool="train", image_id=IMAGE_IDS[(o.provider, o.region)]).values()
    ]),
    st.builds(lambda until, allow: (T0 + until, allow), st.floats(-5000, 5000), st.integers(1, 32)),
    max_size=12,
).map(
    lambda d: {k: Rest(k, u, 1, a, Reason.INSUFFICIENT_CAPACITY) for k, (u, a) in d.items()}
)  # fmt: skip
views_st = st.builds(
    view,
    wanted=st.integers(0, 30), spares=st.integers(0, 5), surge=st.integers(0, 5),
    quarantine=st.integers(0, 3), nodes=nodes_st, rests=rests_st,
    offers=st.lists(st.sampled_from(GRID), max_size=8, unique=True),
    instances=st.integers(0, 40), batch_max=st.integers(1, 100), deleted=st.booleans(),
)  # fmt: skip


# -- the ceiling ---------------------------------------------------------------------------------


@settings(max_examples=500)
@given(v=views_st)
def test_never_more_than_wanted_spares_surge_and_quarantine(v: PoolView) -> None:
    """PC-126, PC-127, PC-129: what terminates and what the cloud lists count too."""
    planned = plan(v, T0)
    exists = max(sum(n.state in LIVE for n in v.nodes), v.instances)
    assert all(i.count > 0 for i in planned.intents)
    if planned.intents:
        assert not v.deleted
        assert exists + launched(planned) <= v.wanted + v.spares + v.surge + v.quarantine
        assert launched(planned) <= planned.short


@settings(max_examples=300)
@given(v=views_st)
def test_a_plan_launches_or_retires_but_not_both(v: PoolView) -> None:
    """PC-130: one snapshot, one direction."""
    planned = plan(v, T0)
    assert not (planned.intents and planned.retire)


@settings(max_examples=300)
@given(v=views_st)
def test_no_intent_passes_the_room_of_its_offer(v: PoolView) -> None:
    planned = plan(v, T0)
    per_scope: dict[str, int] = {}
    for n in v.nodes:
        if n.state in IN_FLIGHT:
            for s in scopes(n.offer, pool=v.name, image_id=n.image_id).values():
                per_scope[s] = per_scope.get(s, 0) + 1
    for i in planned.intents:
        assert i.count <= v.batch_max
        assert i.image_id == IMAGE_IDS[(i.offer.provider, i.offer.region)]
        for s in scopes(i.offer, pool=v.name, image_id=i.image_id).values():
            rest = v.rests.get(s)
            if rest is not None:
                assert rest.until <= T0, "nothing is sent to what rests"
                per_scope[s] = per_scope.get(s, 0) + i.count
                assert per_scope[s] <= rest.allow


@pytest.mark.parametrize("state", [S.TERMINATING, S.QUARANTINED, S.DRAINING])
def test_machines_that_still_exist_hold_back_their_replacements(state: State) -> None:
    """PC-129: the old deletion hangs, so only the surge may be launched."""
    nodes = [node(i, state) for i in range(6)]
    planned = plan(view(nodes=nodes), T0)
    assert planned.short == 5
    assert launched(planned) == 1
    stuck = plan(view(nodes=[node(i, state) for i in range(7)]), T0)
    assert launched(stuck) == 0
    assert "7 exist" in stuck.blocked


def test_tagged_machines_without_a_record_count() -> None:
    """PC-126, PC-128: the guard counts max(records, tagged machines)."""
    assert launched(plan(view(instances=6), T0)) == 1
    assert launched(plan(view(instances=7), T0)) == 0


@pytest.mark.parametrize("state", sorted(IN_FLIGHT))
def test_what_is_on_its_way_is_capacity(state: State) -> None:
    """PC-132, PC-010."""
    assert plan(view(nodes=[node(i, state) for i in range(5)]), T0) == Plan()


@pytest.mark.parametrize("change", [
    {"wish": "drain"}, {"wish": "replace"}, {"cordoned_by": "user:ann"},
])  # fmt: skip
def test_a_node_that_leaves_or_may_not_be_used_is_replaced(change: dict[str, Any]) -> None:
    nodes = [node(i) for i in range(4)] + [node(4, **change)]
    assert launched(plan(view(nodes=nodes), T0)) == 1


def test_a_cordoned_node_that_serves_is_not_replaced() -> None:
    nodes = [node(i) for i in range(4)] + [node(4, cordoned_by="user:ann", slot="train-04")]
    assert plan(view(nodes=nodes), T0) == Plan()


def test_suspect_nodes_count_until_they_are_judged() -> None:
    assert plan(view(nodes=[node(i, S.SUSPECT) for i in range(5)]), T0) == Plan()


# -- what rests ----------------------------------------------------------------------------------


def _same(error: ProviderError, a: Offer, b: Offer) -> bool:
    """What each cooldown covers, said independently of ``scopes``."""
    place = (a.provider, a.region) == (b.provider, b.region)
    fam = a.instance_type.split(".")[0] == b.instance_type.split(".")[0]
    return {
        Cooldown.OFFER: a == b,
        Cooldown.REGION_FAMILY: place and fam and a.market == b.market,
        Cooldown.ARTIFACT: place,
        Cooldown.POOL: True,
        Cooldown.PROVIDER: a.provider == b.provider,
    }[error.cooldown]


@settings(max_examples=200)
@given(offer=st.sampled_from(GRID), error=st.sampled_from(ERRORS), luck=st.floats(0, 0.999))
def test_an_error_makes_exactly_its_scope_unselectable(
    offer: Offer, error: ProviderError, luck: float
) -> None:
    """PC-081 and each cooldown's scope: no other offer is touched."""
    rest = rest_of(error, offer, luck=luck)
    assert rest is not None
    rested = view(rests={rest.scope: rest}, wanted=1000)
    for other in GRID:
        free, why = room(other, rested, {}, T0 + 1)
        assert (free == 0) == _same(error, offer, other), (offer, other, why)
    taken = plan(replace(rested, offers=GRID, batch_max=1), T0 + 1).intents
    assert {i.offer for i in taken} == {o for o in GRID if not _same(error, offer, o)}


@given(offer=st.sampled_from(GRID))
def test_the_boot_breaker_rests_one_image_on_one_type_of_one_region(offer: Offer) -> None:
    image_id = IMAGE_IDS[(offer.provider, offer.region)]
    rest = boot_rest(
        offer, [False] * 3, pool="train", image_id=image_id, rests={}, now=T0, luck=0.5
    )
    assert rest is not None
    for other in GRID:
        same = (
            (offer.provider, offer.region, offer.instance_type)
            == (other.provider, other.region, other.instance_type)
        )  # fmt: skip
        free, _ = room(other, view(rests={rest.scope: rest}), {}, T0 + 1)
        assert (free == 0) == same
    newer = replace(view(rests={rest.scope: rest}), image_ids=dict.fromkeys(IMAGE_IDS, "img-new"))
    assert room(offer, newer, {}, T0 + 1)[0] > 0, "another image has its own record"
    elsewhere = replace(view(rests={rest.scope: rest}), name="serve")
    assert room(offer, elsewhere, {}, T0 + 1)[0] > 0, "another pool has its own record"


@pytest.mark.parametrize("error", [Ambiguous(), Gone()])
def test_the_unknown_rests_nothing(error: ProviderError) -> None:
    assert rest_of(error) is None


@pytest.mark.parametrize("error", [Throttled(), Unavailable()])
def test_a_launch_whose_tries_are_used_up_rests_its_offer(error: ProviderError) -> None:
    """PC-025, PC-192: only asked once the call was sent four times."""
    rest = rest_of(error)
    assert rest is not None
    assert rest.scope.startswith("offer:")


def test_scopes_have_one_spelling_each() -> None:
    """PC-081: no two offers share an offer scope, and kinds never collide."""
    found = [scopes(o, pool="train", image_id="x")[Cooldown.OFFER] for o in GRID]
    assert len(set(found)) == len(GRID)
    kinds = {s.split(":")[0] for s in scopes(ONE, pool="train", image_id="x").values()}
    assert kinds == {"offer", "family", "artifact", "pool", "provider", "boot"}


def test_rests_double_from_3_to_60_minutes() -> None:
    rests: dict[str, Rest] = {}
    now, lengths = T0, []
    for _ in range(8):
        rest = rest_of(InsufficientCapacity(), rests=rests, now=now)
        assert rest is not None
        lengths.append((rest.until - now) / 60)
        rests, now = {rest.scope: rest}, rest.until
    assert lengths == pytest.approx([3, 6, 12, 24, 48, 60, 60, 60])


@settings(max_examples=200)
@given(error=st.sampled_from(ERRORS), luck=st.floats(0, 1, exclude_max=True),
       level=st.integers(0, 100))  # fmt: skip
def test_jitter_is_twenty_percent_each_way(error: ProviderError, luck: float, level: int) -> None:
    first, most = REST_S[error.cooldown]
    probe = rest_of(error)
    assert probe is not None
    before = {probe.scope: Rest(probe.scope, T0 - 1, level, 4, Reason.THROTTLED)} if level else {}
    rest = rest_of(error, rests=before, luck=luck)
    assert rest is not None
    assert rest.allow == 1
    if first >= FOREVER:
        assert rest.until == FOREVER
        return
    length = min(most, first * 2**level)
    low, high = length * (1 - JITTER), length * (1 + JITTER)
    assert low - 1e-3 <= rest.until - T0 <= high + 1e-3


def test_answers_that_arrive_while_it_rests_do_not_lengthen_the_rest() -> None:
    """PC-050, PC-076: a batch of a hundred refusals is one refusal."""
    rests: dict[str, Rest] = {}
    first = rest_of(InsufficientCapacity())
    assert first is not None
    rests[first.scope] = first
    for i in range(99):
        again = rest_of(InsufficientCapacity(), rests=rests, now=T0 + i)
        assert again is not None
        rests[again.scope] = again
    assert (rests[first.scope].level, rests[first.scope].until) == (1, first.until)


def test_quota_rests_an_hour_and_not_for_ever() -> None:
    """PC-016, PC-018, PC-198."""
    rest = rest_of(QuotaExceeded())
    assert rest is not None
    assert rest.until - T0 == pytest.approx(3600)


@settings(max_examples=300)
@given(v=views_st, offer=st.sampled_from(GRID), error=st.sampled_from(ERRORS),
       luck=st.floats(0, 0.999), in_flight=st.integers(0, 40))  # fmt: skip
def test_a_failure_never_gives_more_room(
    v: PoolView, offer: Offer, error: ProviderError, luck: float, in_flight: int
) -> None:
    rest = rest_of(error, offer, rests=v.rests, luck=luck)
    assert rest is not None
    after = replace(v, rests={**v.rests, rest.scope: rest})
    for other in GRID:
        busy = dict.fromkeys(
            scopes(
                other, pool="train", image_id=IMAGE_IDS[(other.provider, other.region)]
            ).values(),
            in_flight,
        )  # fmt: skip
        assert room(other, after, busy, T0)[0] <= room(other, v, busy, T0)[0]
        assert room(other, after, busy, T0 + 4000)[0] <= room(other, v, busy, T0 + 4000)[0]


# -- probing -------------------------------------------------------------------------------------


def test_one_probe_after_a_rest_and_twice_as_many_after_each_success() -> None:
    rest: Rest | None = rest_of(InsufficientCapacity())
    assert rest is not None
    scope, now, allowed = rest.scope, rest.until, []
    for _ in range(10):
        v = view(rests={} if rest is None else {scope: rest}, batch_max=100)
        allowed.append(room(ONE, v, {}, now)[0])
        rest = None if rest is None else after_success(rest, now)
    assert allowed == [1, 2, 4, 8, 16, 32, 100, 100, 100, 100]


def test_probes_in_flight_use_the_allowance() -> None:
    rest = rest_of(InsufficientCapacity())
    assert rest is not None
    v = view(rests={rest.scope: rest}, nodes=[node(0, S.BOOTING)])
    assert launched(plan(v, rest.until)) == 0
    done = replace(v, nodes=[node(0, S.READY)])
    assert launched(plan(done, rest.until)) == 1


def test_a_success_from_before_the_rest_changes_nothing() -> None:
    rest = rest_of(InsufficientCapacity())
    assert rest is not None
    assert after_success(rest, rest.until - 1) is rest


@given(allow=st.integers(1, 200), level=st.integers(1, 50))
def test_success_only_ever_widens(allow: int, level: int) -> None:
    rest = Rest("offer:x", T0, level, allow, Reason.INSUFFICIENT_CAPACITY)
    after = after_success(rest, T0)
    if after is None:
        assert allow * 2 >= TRUSTED
    else:
        assert (after.allow, after.level) == (allow * 2, max(1, level - 1))


def test_the_plan_says_when_it_tries_again_and_what_it_tried() -> None:
    """PC-055, PC-017."""
    rest = rest_of(InsufficientCapacity("no capacity", code="ICE"))
    assert rest is not None
    planned = plan(view(rests={rest.scope: rest}), T0 + 1)
    assert planned.intents == ()
    assert planned.next_at == rest.until
    assert planned.tried == ((ONE.key, "insufficient_capacity: ICE: no capacity"),)
    assert planned.blocked == "5 of 5 find no offer"


def test_a_missing_artifact_is_a_reason_and_not_an_error() -> None:
    """PC-069: nothing is launched where the image is not."""
    planned = plan(view(image_ids={}), T0)
    assert planned.intents == ()
    assert "no artifact" in planned.tried[0][1]


class DryCloud:
    """plan + rest_after in a loop against offers that refuse everything until ``wet_at``."""

    def __init__(self, wanted: int, offers: tuple[Offer, ...], seed: int) -> None:
        self.rng = random.Random(seed)
        self.wanted, self.offers = wanted, offers
        self.rests: dict[str, Rest] = {}
        self.ready: list[Node] = []
        self.calls = self.launches = 0

    def step(self, now: float, *, wet: bool) -> None:
        v = view(wanted=self.wanted, spares=0, offers=self.offers, nodes=self.ready,
                 rests=self.rests)  # fmt: skip
        for intent in plan(v, now).intents:
            self.calls += 1
            self.launches += intent.count
            for _ in range(intent.count):
                self._answer(intent.offer, now, wet=wet)

    def _answer(self, offer: Offer, now: float, *, wet: bool) -> None:
        if wet:
            self.ready.append(node(len(self.ready), S.READY, offer))
            for scope in scopes(offer, pool="train", image_id=self.ready[-1].image_id).values():
                if scope in self.rests:
                    softer = after_success(self.rests.pop(scope), now)
                    if softer is not None:
                        self.rests[scope] = softer
            return
        rest = rest_of(InsufficientCapacity(), offer, rests=self.rests, now=now,
                       luck=self.rng.random())  # fmt: skip
        assert rest is not None
        self.rests[rest.scope] = rest


@pytest.mark.parametrize("seed", range(5))
def test_500_wanted_and_everything_dry_for_an_hour(seed: int) -> None:
    """PC-050, Karpenter #3198, #8909: calls are bounded by the probes, and capacity that comes
    back is used within minutes."""
    offers = GRID[:6]
    cloud = DryCloud(500, offers, seed)
    now = T0
    while now < T0 + 3600:
        cloud.step(now, wet=False)
        now += 5
    # One batch each, then a probe after 3, 6, 12, 24 minutes (±20 %): 5 more at the very most.
    assert cloud.calls <= len(offers) * 6
    assert cloud.launches <= (100 + 5) * len(offers), "one batch and then single probes"
    spent = cloud.calls
    while now < T0 + 3600 + 4500 and len(cloud.ready) < 500:
        cloud.step(now, wet=True)
        now += 5
    assert len(cloud.ready) == 500
    assert cloud.calls - spent < 100


def test_a_dry_pool_does_not_touch_another() -> None:
    """PC-053: the pools share no scope but the offer's own."""
    rest = rest_of(InvalidRequest("bad tag"))
    assert rest is not None
    other = view(name="serve", rests={rest.scope: rest})
    assert launched(plan(other, T0 + 1)) == 5
    assert launched(plan(view(rests={rest.scope: rest}), T0 + 1)) == 0


# -- boot breaker --------------------------------------------------------------------------------

Y, N = True, False


@pytest.mark.parametrize(("outcomes", "trips"), [
    ([], False), ([N], False), ([N, N], False), ([N, N, N], True), ([Y, N, N, N], True),
    ([N, N, Y], False), ([N, N, N, Y], False),
    ([N, Y, N, N, Y, N], False),  # four bad: fewer than five
    ([N, Y, N, N, Y, N, N], True),  # five of seven, the last one bad
    ([N, Y, N, N, Y, N, N, Y], False),  # just worked
    ([Y] * 10 + [N, Y, N, Y, N, Y, N, N], False),  # 5 of 18: not more than half
    ([N] * 40 + [Y, Y, N] * 6 + [Y, Y], False),  # only the last 20 count
    ([Y] * 40 + [N, N, N], True),  # however good it was before
])  # fmt: skip
def test_boot_breaker(outcomes: list[bool], trips: bool) -> None:
    """PC-168, PC-170, PC-173: stops the loop, with a way back."""
    rest = boot_rest(ONE, outcomes, pool="train", image_id="i", rests={}, now=T0, luck=0.5)
    assert (rest is not None) == trips
    if rest is not None:
        assert rest.until - T0 == pytest.approx(BOOT_REST_S[0])
        assert rest.scope == boot_scope(ONE, pool="train", image_id="i")


@settings(max_examples=300)
@given(outcomes=st.lists(st.booleans(), max_size=40), more=st.integers(1, 5))
def test_one_more_boot_failure_never_closes_the_breaker(outcomes: list[bool], more: int) -> None:
    def trips(seen: list[bool]) -> bool:
        return boot_rest(ONE, seen, pool="p", image_id="i", rests={}, now=T0, luck=0.5) is not None

    if trips(outcomes):
        assert trips(outcomes + [False] * more)
    assert trips(outcomes + [False] * 3)
    assert not trips([*outcomes, True])
    assert trips(outcomes) == trips(outcomes[-BOOT_LAST:])


# -- letting go ----------------------------------------------------------------------------------


def test_retire_order_cheapest_to_lose_first() -> None:
    nodes = [
        node(0, S.READY, slot="train-00"), node(1, S.READY), node(2, S.READY),
        node(3, S.READY, cordoned_by=""), node(4, S.CHECKING), node(5, S.BOOTING),
        node(6, S.LAUNCHING), node(7, S.REQUESTED),
    ]  # fmt: skip
    v = view(wanted=0, spares=0, nodes=nodes)
    order = [i for i, _ in plan(v, T0).retire]
    assert order == ["n-0007", "n-0006", "n-0005", "n-0004", "n-0003", "n-0002", "n-0001"]
    fewer = plan(replace(v, wanted=5), T0).retire
    assert [i for i, _ in fewer] == order[:3]


@settings(max_examples=300)
@given(v=views_st)
def test_retire_never_takes_a_serving_node_nor_more_than_the_surplus(v: PoolView) -> None:
    """PC-176: nodes that already leave are not counted twice."""
    planned = plan(v, T0)
    by_id = {n.id: n for n in v.nodes}
    gone = [by_id[i] for i, _ in planned.retire]
    assert len({n.id for n in gone}) == len(gone)
    assert all(not n.slot and not n.wish and n.state in LIVE for n in gone)
    reason = Reason.POOL_DELETED if v.deleted else Reason.SURPLUS
    assert {r for _, r in planned.retire} <= {reason}
    if not v.deleted and gone:
        staying = [
            n for n in v.nodes
            if n.state in (*IN_FLIGHT, S.READY, S.SUSPECT) and not n.wish
            and not (n.state in (S.READY, S.SUSPECT) and n.cordoned and not n.slot)
        ]  # fmt: skip
        assert len(staying) - len(gone) >= v.wanted + v.spares


# -- slots ---------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(nodes=nodes_st, n_slots=st.integers(0, 30), data=st.data())
def test_fill_slots_gives_each_spare_once(
    nodes: list[Node], n_slots: int, data: st.DataObject
) -> None:
    empty = [f"train-{i:02d}" for i in range(n_slots)]
    ids = st.sampled_from([n.id for n in nodes]) if nodes else st.nothing()
    warned = data.draw(st.frozensets(ids))
    pairs = fill_slots(data.draw(st.permutations(empty)), nodes, warned)
    spares = {n.id for n in nodes if is_spare(n)}
    assert len(pairs) == min(len(empty), len(spares))
    assert {i for _, i in pairs} <= spares
    assert len({i for _, i in pairs}) == len(pairs)
    assert [s for s, _ in pairs] == sorted(empty)[: len(pairs)]
    used = {i for _, i in pairs}
    if spares - used:
        assert not (used & warned) or spares - used <= warned, "no warned one before a clean one"


def test_the_best_spare_serves_first() -> None:
    spot = GRID[1]
    nodes = [
        node(0, ready_at=T0 + 5), node(1, ready_at=T0), node(2, ready_at=T0 - 50, offer=spot),
        node(3, ready_at=T0 - 99),
    ]  # fmt: skip
    pairs = fill_slots(["a", "b", "c", "d"], nodes, frozenset({"n-0003"}))
    assert [i for _, i in pairs] == ["n-0001", "n-0000", "n-0002", "n-0003"]

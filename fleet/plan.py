"""What to launch and what to let go, for one pool, from one snapshot.

Invariant: pure; counts what exists and what is on its way (also what is still terminating) against
a ceiling, so that wanted + spares + surge is never exceeded; and an offer that rests gets nothing.
Pools are planned apart: one dry pool never delays another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet.errors import Cooldown, ProviderError
from fleet.model import CAPACITY, IN_FLIGHT, LIVE, Node, Offer, Reason, State

FOREVER: Final = 1e18
#: First rest and longest rest by what rests, seconds (field.md section 2).
REST_S: Final[dict[Cooldown, tuple[float, float]]] = {
    Cooldown.OFFER: (180.0, 3600.0),
    Cooldown.REGION_FAMILY: (3600.0, 3600.0),
    Cooldown.ARTIFACT: (300.0, 3600.0),
    Cooldown.POOL: (FOREVER, FOREVER),
    Cooldown.PROVIDER: (60.0, 900.0),
}
BOOT_REST_S: Final = (600.0, 3600.0)
JITTER: Final = 0.2
#: Successes double what a rested offer may try at once; past this it is trusted again.
TRUSTED: Final = 64
#: Boot breaker per (pool, image, offer type): 3 in a row, or 5 with more than half of the last 20.
BOOT_ROW: Final = 3
BOOT_MIN: Final = 5
BOOT_LAST: Final = 20


@dataclass(frozen=True, slots=True)
class Rest:
    """Memory of one failure scope: nothing before ``until``, then at most ``allow`` at once."""

    scope: str
    until: float
    level: int
    allow: int
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Intent:
    """One batch to commit: ``count`` launches of ``offer`` with the artifact ``image_id``."""

    offer: Offer
    image_id: str
    count: int


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool and everything the plan needs of the world, from a single snapshot."""

    name: str
    wanted: int
    spares: int
    surge: int
    quarantine: int
    image: str
    offers: Sequence[Offer]
    image_ids: Mapping[tuple[str, str], str]
    nodes: Sequence[Node]
    rests: Mapping[str, Rest]
    instances: int = 0
    batch_max: int = 100
    deleted: bool = False
    #: Launches in flight of other pools by scope: what rests is probed once, not once a pool.
    elsewhere: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one pass decided for one pool, with the reasons for people."""

    intents: tuple[Intent, ...] = ()
    retire: tuple[tuple[str, Reason], ...] = ()
    short: int = 0
    blocked: str = ""
    next_at: float | None = None
    tried: tuple[tuple[str, str], ...] = ()


def family(offer: Offer) -> str:
    """The quota family of an instance type: ``p5`` of ``p5.48xlarge``, else the type itself."""
    return offer.instance_type.split(".", 1)[0]


def scopes(offer: Offer, *, pool: str, image_id: str) -> dict[Cooldown, str]:
    """Every scope whose rest keeps this offer from being launched (one function, PC-081)."""
    where = f"{offer.provider}/{offer.region}"
    return {
        Cooldown.OFFER: f"offer:{offer.key}",
        Cooldown.REGION_FAMILY: f"family:{where}/{family(offer)}/{offer.market}",
        Cooldown.ARTIFACT: f"artifact:{where}/{image_id}",
        Cooldown.POOL: f"pool:{pool}",
        Cooldown.PROVIDER: f"provider:{offer.provider}",
        Cooldown.NOTHING: boot_scope(offer, pool=pool, image_id=image_id),
    }


def boot_scope(offer: Offer, *, pool: str, image_id: str) -> str:
    """The boot breaker's scope: a pool's image on one type of one provider's region."""
    where = f"{offer.provider}/{offer.region}/{offer.instance_type}"
    return f"boot:{pool}/{where}/{image_id}"


def rest_after(
    error: ProviderError, offer: Offer, *, pool: str, image_id: str, rests: Mapping[str, Rest],
    now: float, luck: float,
) -> Rest | None:  # fmt: skip
    """The rest that ``error`` earns, doubling while failures follow each other.

    ``luck`` in [0, 1) spreads the end by ±20 % so that a fleet of cells does not probe together.
    """
    what = error.cooldown
    if what is Cooldown.NOTHING:
        return None
    scope = scopes(offer, pool=pool, image_id=image_id)[what]
    first, most = REST_S[what]
    return _rest(scope, first, most, error.reason, str(error), rests.get(scope), now, luck)


def _rest(
    scope: str, first: float, most: float, reason: Reason, message: str, before: Rest | None,
    now: float, luck: float,
) -> Rest:  # fmt: skip
    if before is not None and now < before.until < FOREVER:
        level = before.level  # answers to calls sent before the rest began teach nothing new
        return Rest(scope, before.until, level, 1, reason, message[:500])
    recent = before is not None and now < before.until + most  # an old failure is forgotten
    level = before.level + 1 if before is not None and recent else 1
    if first >= FOREVER:
        return Rest(scope, FOREVER, level, 1, reason, message[:500])
    length = min(most, first * 2 ** min(level - 1, 30))
    spread = 1.0 + JITTER * (2.0 * luck - 1.0)
    return Rest(scope, now + length * spread, level, 1, reason, message[:500])


def boot_rest(
    offer: Offer, outcomes: Sequence[bool], *, pool: str, image_id: str,
    rests: Mapping[str, Rest], now: float, luck: float,
) -> Rest | None:  # fmt: skip
    """The boot breaker: ``outcomes`` (newest last, True = READY) of accepted launches of one
    (pool, image, type). Trips on 3 failures in a row, or 5 with more than half of the last 20.
    """
    last = outcomes[-BOOT_LAST:]
    bad = sum(not ok for ok in last)
    in_row = len(last) >= BOOT_ROW and not any(last[-BOOT_ROW:])
    if not in_row and not (bad >= BOOT_MIN and bad > len(last) / 2 and not last[-1]):
        return None
    scope = boot_scope(offer, pool=pool, image_id=image_id)
    text = f"{bad} of the last {len(last)} accepted launches never became READY"
    return _rest(scope, *BOOT_REST_S, Reason.BOOT_TIMEOUT, text, rests.get(scope), now, luck)


def after_success(rest: Rest, now: float) -> Rest | None:
    """A success on a rested scope: twice as many may be tried at once, or it is forgotten."""
    if now < rest.until:
        return rest
    allow = rest.allow * 2
    if allow >= TRUSTED:
        return None
    return Rest(rest.scope, rest.until, max(1, rest.level - 1), allow, rest.reason, rest.message)


def room(offer: Offer, view: PoolView, in_flight: Mapping[str, int], now: float) -> tuple[int, str]:
    """How many launches of ``offer`` may start now, and why not more."""
    image_id = view.image_ids.get((offer.provider, offer.region), "")
    if not image_id:
        return 0, f"{view.image} has no artifact in {offer.provider} {offer.region} yet"
    most, why = view.batch_max, ""
    for scope in scopes(offer, pool=view.name, image_id=image_id).values():
        rest = view.rests.get(scope)
        if rest is None:
            continue
        if now < rest.until:
            return 0, f"{rest.reason}: {rest.message}"
        free = max(0, rest.allow - in_flight.get(scope, 0))
        if free < most:
            most, why = free, f"probing after {rest.reason}"
    return most, why


def plan(view: PoolView, now: float) -> Plan:
    """The difference between what the pool wants and what it has, as intents and retirements."""
    live = [n for n in view.nodes if n.state in LIVE]
    staying = [n for n in live if _counts(n)]
    want = 0 if view.deleted else view.wanted + view.spares
    short = want - len(staying)
    if short < 0 or view.deleted:
        return Plan(retire=_retire(view, staying, -short), short=0)
    if short == 0:
        return Plan()
    exists = max(len(live), view.instances)
    ceiling = want + view.surge + view.quarantine
    count = min(short, ceiling - exists)
    if count <= 0:
        why = f"{exists} exist or are ending, at most {ceiling} may (wanted + spares + surge)"
        return Plan(short=short, blocked=why)
    return _fill(view, count, short, now)


def _fill(view: PoolView, count: int, short: int, now: float) -> Plan:
    in_flight = _in_flight(view)
    intents: list[Intent] = []
    tried: list[tuple[str, str]] = []
    wakes: list[float] = []
    left = count
    for offer in view.offers:
        if left <= 0:
            break
        free, why = room(offer, view, in_flight, now)
        if why:
            tried.append((offer.key, why))
        wakes += _ends(offer, view, now)
        take = min(left, free)
        if take <= 0:
            continue
        image_id = view.image_ids[(offer.provider, offer.region)]
        intents.append(Intent(offer, image_id, take))
        for scope in scopes(offer, pool=view.name, image_id=image_id).values():
            in_flight[scope] = in_flight.get(scope, 0) + take
        left -= take
    blocked = f"{left} of {short} find no offer" if left else ""
    next_at = min(wakes) if left and wakes else None
    return Plan(tuple(intents), (), short, blocked, next_at, tuple(tried))


def _counts(node: Node) -> bool:
    """Does this node count towards what the pool wants? A node that is to leave does not, nor
    does a spare that nobody may use.
    """
    if node.wish:
        return False
    if node.state in (State.READY, State.SUSPECT) and node.cordoned and not node.slot:
        return False
    return node.state in CAPACITY or node.state is State.SUSPECT


def _in_flight(view: PoolView) -> dict[str, int]:
    counts = dict(view.elsewhere)
    for scope, n in in_flight(view.nodes).items():
        counts[scope] = counts.get(scope, 0) + n
    return counts


def in_flight(nodes: Iterable[Node]) -> dict[str, int]:
    """Launches on their way by every scope that could rest."""
    counts: dict[str, int] = {}
    for node in nodes:
        if node.state in IN_FLIGHT:
            for scope in scopes(node.offer, pool=node.pool, image_id=node.image_id).values():
                counts[scope] = counts.get(scope, 0) + 1
    return counts


def _ends(offer: Offer, view: PoolView, now: float) -> list[float]:
    image_id = view.image_ids.get((offer.provider, offer.region), "")
    every = scopes(offer, pool=view.name, image_id=image_id).values()
    ends = [r.until for s in every if (r := view.rests.get(s)) is not None and now < r.until]
    return [max(ends)] if ends and max(ends) < FOREVER else []


def _retire(view: PoolView, staying: list[Node], surplus: int) -> tuple[tuple[str, Reason], ...]:
    """Cheapest to lose first: what is not sent yet, what still boots, then the newest spares.
    A node that serves a slot is never retired here: the assign loop empties slots first.
    """
    reason = Reason.POOL_DELETED if view.deleted else Reason.SURPLUS
    order = {State.REQUESTED: 0, State.LAUNCHING: 1, State.BOOTING: 2, State.CHECKING: 3}
    free = [n for n in staying if not n.slot]
    free.sort(key=lambda n: (order.get(n.state, 4), n.cordoned is False, -n.created_at))
    take = len(free) if view.deleted else surplus
    return tuple((n.id, reason) for n in free[:take])


def fill_slots(
    empty: Sequence[str], nodes: Sequence[Node], warned: frozenset[str]
) -> list[tuple[str, str]]:
    """Which spare serves which empty slot: (slot, node id) pairs, best spare first.

    Best: no open warning, not interruptible, longest READY (it has proved most).
    """
    spares = [n for n in nodes if is_spare(n)]
    spares.sort(key=lambda n: (n.id in warned, n.offer.market != "on_demand", n.ready_at or 0.0))
    return [(slot, node.id) for slot, node in zip(sorted(empty), spares, strict=False)]


def is_spare(node: Node) -> bool:
    """READY, not serving, not cordoned and not about to leave: can serve at once."""
    return node.state is State.READY and not node.slot and not node.cordoned and not node.wish

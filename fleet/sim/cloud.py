"""One simulated cloud account: what it accepts, what becomes of it, and what it shows.

Invariant: at most ``count`` machines are ever made for one idempotency key, whatever is repeated
or times out; and what ``shown`` holds is what a list may say now, never more than what is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fleet.model import Instance, Market, Phase
from fleet.sim.capacity import Bucket, exponential
from fleet.sim.faults import Kind
from fleet.sim.machine import Machine
from fleet.sim.order import Fate, Order, fingerprint, ident
from fleet.sim.spec import CloudSpec, OfferSpec
from fleet.sim.vendor import (
    CODES,
    MESSAGES,
    TOKEN_SCOPE,
    USER_DATA_MAX,
    Denied,
    Trouble,
)

if TYPE_CHECKING:
    from fleet.sim.world import World


class Cloud:
    """The account that all skins of one provider share."""

    def __init__(self, world: World, spec: CloudSpec) -> None:
        self.spec, self.name, self.kind = spec, spec.name, spec.kind
        self.machines: dict[str, Machine] = {}
        self.shown: dict[str, Instance] = {}
        self._world = world
        self._offers = {o.key: o for o in spec.offers}
        self._keys: dict[str, tuple[str, tuple[Machine, ...]]] = {}
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._held: dict[tuple[str, str, str, Market], int] = {}
        self._used: dict[tuple[str, str], int] = {}
        self._squeezed: set[tuple[str, str, str, Market]] = set()

    # -- admission ------------------------------------------------------------------------------

    def deny(self, trouble: Trouble, message: str = "") -> Denied:
        """This cloud's own words for ``trouble``, to raise."""
        return Denied(trouble, CODES[self.kind][trouble], message or MESSAGES[trouble])

    def admit(self, action: str, region: str, items: int = 0) -> None:
        """Let a call in, or raise Denied for credentials, outage or rate.

        ``action`` is launch, terminate, list, list_all or read; ``items`` counts instances.
        """
        world = self._world
        if world.hits(Kind.CREDENTIALS, self.name, region):
            raise self.deny(Trouble.AUTH)
        if world.hits(Kind.UNAVAILABLE, self.name, region):
            raise self.deny(Trouble.UNAVAILABLE)
        if world.hits(Kind.THROTTLE, self.name, region):
            raise self.deny(Trouble.THROTTLED)
        for bucket, tokens in ((action, 1), (f"{action}_items", items)):
            if tokens and not self._take(bucket, region, tokens):
                raise self.deny(Trouble.THROTTLED)

    def _take(self, name: str, region: str, tokens: int) -> bool:
        spec = self.spec.buckets.get(name)
        if spec is None:
            return True
        bucket = self._buckets.get((name, region))
        if bucket is None:
            bucket = self._buckets[name, region] = Bucket(spec)
        return bucket.take(tokens, self._world.t)

    def cut(self, region: str = "") -> bool:
        """True while the API cannot be reached."""
        return self._world.hits(Kind.API_CUT, self.name, region)

    def fate(self, region: str) -> tuple[Fate, float]:
        """What happens to the answer of a create call, and after how many seconds if LATE."""
        world = self._world
        if world.hits(Kind.CREATE_LOST, self.name, region):
            return Fate.LOST, 0.0
        if world.hits(Kind.CREATE_UNHEARD, self.name, region):
            return Fate.UNHEARD, 0.0
        late = world.hit(Kind.CREATE_LATE, self.name, region)
        return (Fate.LATE, late.value) if late else (Fate.HEARD, 0.0)

    def latency_s(self) -> float:
        """How long one call takes now."""
        slow = self._world.hit(Kind.SLOW_API, self.name)
        return self.spec.latency_s.draw(self._world.chance) * (slow.value if slow else 1.0)

    # -- launch ---------------------------------------------------------------------------------

    def offer(self, key: tuple[str, str, str, Market]) -> OfferSpec | None:
        """The offer sold under (region, zone, type, market)."""
        return self._offers.get(key)

    def free(self, offer: OfferSpec) -> int:
        """How many more instances of ``offer`` could be had now."""
        return max(0, self.level(offer) - self._held.get(offer.key, 0))

    def level(self, offer: OfferSpec) -> int:
        """How many instances of ``offer`` could be held now, storms included."""
        world = self._world
        level = offer.capacity.level(world.t)
        storm = world.plan.active(
            Kind.CAPACITY_STORM,
            world.t,
            self.name,
            offer.region,
            offer.zone,
            offer.instance_type,
            offer.market,
        )
        return level if storm is None else min(level, int(storm.value))

    def launch(self, order: Order) -> list[Machine]:
        """Make up to ``order.count`` machines; a repeat of a key returns the first result.

        Raises Denied when fewer than ``order.least`` can be had, when the request is wrong, or
        when the key came with another body before.
        """
        self._world.advance()
        scope, print_ = self._scope(order), fingerprint(order)
        if order.key:
            before = self._keys.get(scope)
            if before is not None:
                if before[0] != print_:
                    raise self.deny(Trouble.MISMATCH)
                return list(before[1])
        offer = self._check(order)
        count = self._obtainable(offer, order)
        made = [self._make(offer, order, n) for n in range(count)]
        if order.key:
            self._keys[scope] = (print_, tuple(made))
        return made

    def _scope(self, order: Order) -> str:
        scope = TOKEN_SCOPE[self.kind]
        place = {"zone": f"{order.region}/{order.zone}", "region": order.region}.get(scope, "")
        return f"{place}/{order.key}"

    def _check(self, order: Order) -> OfferSpec:
        offer = self._sold(order)
        if offer is None:
            what = f"{order.instance_type} ({order.market}) is not sold in {order.zone}"
            raise self.deny(Trouble.INVALID, what)
        limit = USER_DATA_MAX[self.kind]
        if len(order.user_data.encode()) > limit:
            raise self.deny(Trouble.TOO_LONG, f"User data is limited to {limit} bytes")
        known = self.spec.images is None or order.image_id in self.spec.images
        missing = self._world.hit(
            Kind.IMAGE_MISSING, self.name, order.region, "", "", "", order.image_id
        )
        if not known or missing:
            raise self.deny(Trouble.IMAGE, f"The image id '{order.image_id}' does not exist")
        return offer

    def _sold(self, order: Order) -> OfferSpec | None:
        """The offer of an order; an order without zone gets the zone with most capacity."""
        if order.zone:
            return self._offers.get((order.region, order.zone, order.instance_type, order.market))
        anywhere = [
            o
            for o in self.spec.offers
            if (o.region, o.instance_type, o.market)
            == (order.region, order.instance_type, order.market)
        ]
        return max(anywhere, key=self.free, default=None)

    def _obtainable(self, offer: OfferSpec, order: Order) -> int:
        """How many of ``order`` can be made now; raises Denied when they are too few."""
        quota = self.spec.quota.get((offer.region, offer.family or offer.instance_type))
        cut = self._world.hit(Kind.QUOTA_CUT, self.name, offer.region)
        if cut is not None:
            quota = int(cut.value) if quota is None else min(quota, int(cut.value))
        if quota is not None:
            left = quota - self._used.get((offer.region, offer.family or offer.instance_type), 0)
            if left < order.least:
                raise self.deny(Trouble.QUOTA)
        else:
            left = order.count
        free = self.free(offer)
        if free < order.least or self._world.mishap(self.spec.p_refuse):
            text = f"We currently do not have sufficient {offer.instance_type} capacity"
            message = f"{text} in {offer.zone}. Out of host capacity."
            raise self.deny(Trouble.CAPACITY, message)
        return min(order.count, left, free)

    def _make(self, offer: OfferSpec, order: Order, index: int) -> Machine:
        world = self._world
        seq = world.next_seq()
        machine = Machine(
            id=ident(self.kind, seq, world.chance.random(), offer),
            seq=seq,
            provider=self.name,
            kind=self.kind,
            offer=offer,
            key=order.key,
            image_id=order.image_id,
            user_data=order.user_data,
            tags=dict(order.tags),
            created_at=world.now(),
            peer=f"10.{seq >> 16 & 255}.{seq >> 8 & 255}.{seq & 255}",
            index=index,
            lag_s=world.chance.uniform(0.0, self.spec.lag_s),
        )
        machine.history.append((machine.created_at, Phase.PENDING))
        self.machines[machine.id] = machine
        family = (offer.region, offer.family or offer.instance_type)
        self._held[offer.key] = self._held.get(offer.key, 0) + 1
        self._used[family] = self._used.get(family, 0) + 1
        world.created(machine)
        self._show_later(machine)
        self._live(machine)
        return machine

    def _live(self, machine: Machine) -> None:
        """Arm what becomes of a new machine."""
        world, spec, offer = self._world, self.spec, machine.offer
        where = (self.name, offer.region, offer.zone, offer.instance_type, offer.market)
        pending_s = spec.pending_s.draw(world.chance)
        if world.mishap(spec.p_die) or world.hits(Kind.DIE_AFTER_ACCEPT, *where):
            dry = world.chance.random() < 0.5
            trouble = Trouble.DIED_CAPACITY if dry else Trouble.DIED_INTERNAL
            delay_s = pending_s * world.chance.uniform(0.2, 1.0)
            world.after(delay_s, lambda: self._die(machine, trouble))
            return
        stuck = world.hit(Kind.STUCK_PENDING, *where)
        if stuck is not None:
            pending_s += max(0.0, world.plan.closes_s(stuck) - world.t)
        world.after(pending_s, lambda: self._run(machine))
        if offer.market is Market.SPOT:
            if spec.reclaims_per_hour > 0:
                gap_s = exponential(3600.0 / spec.reclaims_per_hour, world.chance)
                world.after(pending_s + gap_s, lambda: self.reclaim(machine))
            if offer.capacity.step_s and offer.key not in self._squeezed:
                self._squeezed.add(offer.key)
                self._squeeze_later(offer)

    def _run(self, machine: Machine) -> None:
        if machine.phase is not Phase.PENDING:
            return
        machine.running_at = self._world.now()
        self._move(machine, Phase.RUNNING)
        self._world.booting(machine, self.spec)

    def _die(self, machine: Machine, trouble: Trouble) -> None:
        """End a machine during its launch. Azure leaves a failed VM that must be deleted."""
        if machine.phase is not Phase.PENDING:
            return
        machine.code, machine.message = CODES[self.kind][trouble], MESSAGES[trouble]
        machine.died = True
        self._move(machine, Phase.FAILED if self.kind == "azure" else Phase.TERMINATED)

    # -- end ------------------------------------------------------------------------------------

    def terminate(self, ids: Iterable[str], *, external: bool = False) -> list[Machine]:
        """Ask for the end of machines; unknown ids are skipped. Returns those found."""
        self._world.advance()
        found = [self.machines[i] for i in ids if i in self.machines]
        for machine in found:
            if machine.phase in (Phase.STOPPING, Phase.TERMINATED):
                continue
            if not machine.code or external:
                machine.code = CODES[self.kind][Trouble.USER]
                machine.message = "ended by somebody else" if external else MESSAGES[Trouble.USER]
            self._stop(machine)
        return found

    def _stop(self, machine: Machine) -> None:
        world, offer = self._world, machine.offer
        self._move(machine, Phase.STOPPING)
        where = (self.name, offer.region, offer.zone, offer.instance_type, offer.market)
        slow = world.hit(Kind.SLOW_TERMINATE, *where)
        delay_s = self.spec.terminate_s.draw(world.chance) * (slow.value if slow else 1.0)
        stuck = world.hit(Kind.STUCK_TERMINATE, *where)
        if stuck is not None:
            delay_s += max(0.0, world.plan.closes_s(stuck) - world.t)
        world.after(delay_s, lambda: self._move(machine, Phase.TERMINATED))

    def reclaim(self, machine: Machine) -> None:
        """Announce that a spot machine is taken back, and take it after the notice time."""
        if machine.phase not in (Phase.PENDING, Phase.RUNNING) or machine.reclaim_at is not None:
            return
        world = self._world
        machine.reclaim_at = world.now() + self.spec.notice_s
        world.noticed(machine)
        world.after(self.spec.notice_s, lambda: self._take_back(machine))

    def _take_back(self, machine: Machine) -> None:
        if machine.phase in (Phase.STOPPING, Phase.TERMINATED):
            return
        machine.preempted = True
        machine.code = CODES[self.kind][Trouble.RECLAIMED]
        machine.message = MESSAGES[Trouble.RECLAIMED]
        self._move(machine, Phase.TERMINATED)

    def kill(self, machine: Machine) -> None:
        """The host dies: the machine is gone at once, without notice."""
        if machine.exists:
            machine.code = CODES[self.kind][Trouble.DIED_INTERNAL]
            machine.message = "The host failed."
            self._move(machine, Phase.TERMINATED)

    def _squeeze_later(self, offer: OfferSpec) -> None:
        step_s = offer.capacity.step_s
        wait_s = step_s - self._world.t % step_s + 1e-3
        self._world.after(wait_s, lambda: self._squeeze(offer))

    def _squeeze(self, offer: OfferSpec) -> None:
        """Take back spot machines, newest first, until the moved level holds the rest."""
        held = [m for m in self.machines.values() if m.offer is offer and m.exists]
        if not held:
            self._squeezed.discard(offer.key)
            return
        staying = [m for m in held if m.reclaim_at is None]
        for machine in staying[max(0, offer.capacity.level(self._world.t)) :]:
            self.reclaim(machine)
        self._squeeze_later(offer)

    # -- what lists show ------------------------------------------------------------------------

    def _move(self, machine: Machine, phase: Phase) -> None:
        """The only place that changes a machine's phase."""
        if machine.phase is phase or machine.phase is Phase.TERMINATED:
            return
        was_up = machine.up
        machine.phase = phase
        machine.history.append((self._world.now(), phase))
        if phase is Phase.TERMINATED:
            machine.ended_at = self._world.now()
            offer = machine.offer
            self._held[offer.key] -= 1
            self._used[offer.region, offer.family or offer.instance_type] -= 1
        if was_up:
            self._world.ended(machine)
        self._show_later(machine)
        if phase is Phase.TERMINATED:
            self._world.gone(machine)

    def _show_later(self, machine: Machine) -> None:
        world, snapshot, age = self._world, machine.snapshot(), len(machine.history)
        extra = world.hit(Kind.LIST_LAG, self.name, machine.offer.region)
        delay_s = machine.lag_s + (extra.value if extra else 0.0)
        linger_s = self.spec.linger_dead_s if machine.died else self.spec.linger_s
        if snapshot.phase is not Phase.TERMINATED:
            world.after(delay_s, lambda: self._show(machine, snapshot, age))
        elif linger_s > 0:
            world.after(delay_s, lambda: self._show(machine, snapshot, age))
            world.after(delay_s + linger_s, lambda: self._forget(machine))
        else:
            world.after(delay_s, lambda: self._forget(machine))

    def _show(self, machine: Machine, snapshot: Instance, age: int) -> None:
        # A lag that shrinks may reorder two changes; a list never goes back to an older phase.
        if age > machine.shown_age and machine.id in self.machines:
            machine.shown_age = age
            self.shown[machine.id] = snapshot

    def _forget(self, machine: Machine) -> None:
        self.shown.pop(machine.id, None)
        self.machines.pop(machine.id, None)

    def listing(self, cell: str = "") -> list[Instance]:
        """What a list says now, of one cell's instances or of all; LIST_SLIP omits some."""
        self._world.advance()
        world = self._world
        slip = world.plan.active(Kind.LIST_SLIP, world.t, self.name)
        return [
            i
            for i in self.shown.values()
            if (not cell or i.cell == cell) and not (slip and world.lucky(slip.rate))
        ]

    def truncates(self, region: str = "") -> bool:
        """True when this list call will break off with an error."""
        return self._world.hits(Kind.LIST_TRUNCATED, self.name, region)

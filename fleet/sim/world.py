"""Four clouds in one model that a seed and a clock drive.

Invariant: everything that happens is an event with a due time; events run in due order, see their
own due time as ``now()``, and draw from one seeded ``Chance``, so the same seed and the same calls
give the same world whether it is pulled (each public call runs what is due) or pushed (``start``
arms a timer on the running loop so that hooks fire by themselves).

A world belongs to one event loop: call it from there only.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from fleet.clock import Chance
from fleet.model import Phase
from fleet.sim.capacity import exponential
from fleet.sim.cloud import Cloud
from fleet.sim.faults import GPU_CODES, STRIKES, FaultPlan, Injection, Kind
from fleet.sim.machine import Machine
from fleet.sim.spec import CloudSpec, WorldSpec

#: Gate checks that a machine with a hidden defect may fail.
DEFECTS = ("gpu_count", "pcie_width", "ecc_uncorrectable", "nvlink_state", "memory_pattern")
#: Shortest timer (s): guards against a clock that rounds a due time just out of reach.
_TICK_S = 1e-3
_ROUNDING_S = 1e-6


class World:
    """The clouds, what is due in them, and everything that really exists."""

    def __init__(
        self,
        now: Callable[[], float],
        chance: Chance,
        spec: WorldSpec,
        plan: FaultPlan | None = None,
    ) -> None:
        """``now`` gives seconds since the epoch and must not jump back.

        The plan's times count from the moment of this call.
        """
        self.spec, self.chance = spec, chance
        self.plan = plan or FaultPlan()
        self.on_boot: list[Callable[[Machine], None]] = []
        self.on_end: list[Callable[[Machine], None]] = []
        self.on_strike: list[Callable[[Machine, Injection], None]] = []
        self.on_notice: list[Callable[[Machine], None]] = []
        self._now = now
        self._epoch = now()
        self._event_at: float | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_seq = 0
        self._machine_seq = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ever: Counter[str] = Counter()
        self._existing: dict[str, Machine] = {}
        self._spent_usd = dict.fromkeys((c.name for c in spec.clouds), 0.0)
        self.clouds = {c.name: Cloud(self, c) for c in spec.clouds}
        for strike in self.plan.strikes:
            self._arm_strike(strike)

    # -- time -----------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the epoch: the event's own time inside an event."""
        return self._now() if self._event_at is None else self._event_at

    @property
    def t(self) -> float:
        """Seconds since the world began."""
        return self.now() - self._epoch

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do ``act`` once, ``delay_s`` from now."""
        self._event_seq += 1
        due = self.now() + max(0.0, delay_s)
        heapq.heappush(self._events, (due, self._event_seq, act))
        if self._loop is not None and self._events[0][1] == self._event_seq:
            self._arm()

    def advance(self) -> None:
        """Do everything that is due."""
        if self._event_at is not None:
            return
        now, events = self._now() + _ROUNDING_S, self._events
        if not events or events[0][0] > now:
            return
        try:
            while events and events[0][0] <= now:
                self._event_at, _, act = heapq.heappop(events)
                act()
        finally:
            self._event_at = None
            self._arm()

    def start(self) -> None:
        """Let events happen by themselves on the running loop, until ``stop``."""
        self._loop = asyncio.get_running_loop()
        self._arm()

    def stop(self) -> None:
        """Let go of the loop; the world stands still until it is called or started again."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None

    def _arm(self) -> None:
        if self._loop is None or self._event_at is not None:
            return  # ``advance`` arms once, after its last event
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._events:
            wait_s = max(_TICK_S, self._events[0][0] - self._now())
            self._timer = self._loop.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.advance()
        if self._timer is None:
            self._arm()

    # -- chance and faults ----------------------------------------------------------------------

    def lucky(self, rate: float) -> bool:
        """True with probability ``rate``; certain rates draw no number."""
        return rate >= 1.0 or (rate > 0.0 and self.chance.random() < rate)

    def mishap(self, rate: float) -> bool:
        """``lucky`` for the background rates of a CloudSpec: never once all faults stopped."""
        return rate > 0.0 and self.plan.raging(self.t) and self.lucky(rate)

    def hit(self, kind: Kind, provider: str, *where: str) -> Injection | None:
        """The open window of ``kind`` if this call or machine falls to its ``rate``."""
        window = self.plan.active(kind, self.t, provider, *where)
        return window if window is not None and self.lucky(window.rate) else None

    def hits(self, kind: Kind, provider: str, *where: str) -> bool:
        """``hit`` as a truth value."""
        return self.hit(kind, provider, *where) is not None

    def inject(self, injection: Injection) -> None:
        """Add a fault to the running world; its ``at_s`` counts from now."""
        placed = replace(injection, at_s=self.t + injection.at_s)
        self.plan.add(placed)
        if placed.kind in STRIKES:
            self._arm_strike(placed)

    def agents_cut(self, machine: Machine) -> bool:
        """True while the network between this machine's agent and fleetd is cut."""
        if not self.plan.has(Kind.AGENT_CUT):
            return False
        o = machine.offer
        return self.hits(Kind.AGENT_CUT, machine.provider, o.region, o.zone, o.instance_type)

    def _arm_strike(self, strike: Injection) -> None:
        self.after(strike.at_s - self.t, lambda: self._strike(strike))

    def _strike(self, strike: Injection) -> None:
        if not self.plan.raging(self.t):
            return
        targets = [m for m in self.existing() if m.up and self._struck(m, strike)]
        count = strike.count if strike.rate >= 1.0 else round(strike.rate * len(targets))
        for _ in range(min(count, len(targets))):
            self.strike(targets.pop(int(self.chance.random() * len(targets))), strike)

    def _struck(self, machine: Machine, strike: Injection) -> bool:
        o = machine.offer
        return strike.matches(
            machine.provider, o.region, o.zone, o.instance_type, o.market, machine.image_id
        ) and (strike.kind is not Kind.SPOT_RECLAIM or o.market == "spot")

    def strike(self, machine: Machine, strike: Injection) -> None:
        """Let one fault hit one machine now."""
        cloud = self.clouds[machine.provider]
        if strike.kind is Kind.SPOT_RECLAIM:
            cloud.reclaim(machine)
        elif strike.kind is Kind.EXTERNAL_TERMINATE:
            cloud.terminate([machine.id], external=True)
        elif strike.kind is Kind.HOST_DEATH:
            cloud.kill(machine)
        else:
            for hook in self.on_strike:
                hook(machine, strike)

    # -- what clouds tell the world -------------------------------------------------------------

    def next_seq(self) -> int:
        """The number of the next machine."""
        self._machine_seq += 1
        return self._machine_seq

    def created(self, machine: Machine) -> None:
        """A cloud made a machine."""
        self._ever[machine.token] += 1
        self._existing[machine.id] = machine

    def gone(self, machine: Machine) -> None:
        """A cloud let go of a machine."""
        self._existing.pop(machine.id, None)
        self._spent_usd[machine.provider] += self._cost_usd(machine)

    def noticed(self, machine: Machine) -> None:
        """A cloud announced that it will take a machine back."""
        if machine.up:
            for hook in self.on_notice:
                hook(machine)

    def ended(self, machine: Machine) -> None:
        """A machine's operating system stopped."""
        for hook in self.on_end:
            hook(machine)

    def booting(self, machine: Machine, spec: CloudSpec) -> None:
        """A cloud says running: decide whether and when the agent comes up."""
        o = machine.offer
        where = (machine.provider, o.region, o.zone, o.instance_type, o.market, machine.image_id)
        defect = self.hit(Kind.IMAGE_DEFECT, *where)
        if self.mishap(spec.p_gate_fail):
            machine.failing += (DEFECTS[int(self.chance.random() * len(DEFECTS))],)
        if defect is not None and defect.code:
            machine.failing += (defect.code,)
        dead = defect is not None and not defect.code
        if dead or self.mishap(spec.p_never_boot) or self.hits(Kind.NEVER_BOOT, *where):
            return
        slow = self.hit(Kind.SLOW_BOOT, *where)
        boot_s = spec.boot_s.draw(self.chance) * (slow.value if slow else 1.0)
        self.after(boot_s, lambda: self._up(machine, spec))

    def _up(self, machine: Machine, spec: CloudSpec) -> None:
        if machine.phase is not Phase.RUNNING:
            return
        machine.up_at = self.now()
        for hook in self.on_boot:
            hook(machine)
        if machine.reclaim_at is not None:
            self.noticed(machine)
        self._fault_later(machine, spec)

    def _fault_later(self, machine: Machine, spec: CloudSpec) -> None:
        """Arm the next fatal GPU fault of a machine, a Poisson process per GPU-hour."""
        per_hour = spec.fatal_per_gpu_hour * machine.offer.gpus
        if per_hour <= 0:
            return
        wait_s = exponential(3600.0 / per_hour, self.chance)

        def fault() -> None:
            if machine.up and self.plan.raging(self.t):
                code = GPU_CODES[int(self.chance.random() * 4)]
                self.strike(machine, Injection(Kind.GPU_FAULT, code=code))
                self._fault_later(machine, spec)

        self.after(wait_s, fault)

    # -- inspection, for invariants and reports -------------------------------------------------

    def existing(
        self, provider: str = "", cell: str = "", pool: str = "", token: str = ""
    ) -> Iterator[Machine]:
        """Machines that really exist now (not yet terminated), whatever lists say."""
        self.advance()
        for m in list(self._existing.values()):
            if (
                (not provider or m.provider == provider)
                and (not cell or m.cell == cell)
                and (not pool or m.pool == pool)
                and (not token or m.token == token)
            ):
                yield m

    def find(self, instance_id: str) -> Machine | None:
        """A machine by its id, ended ones while they are still listed."""
        self.advance()
        for cloud in self.clouds.values():
            machine = cloud.machines.get(instance_id)
            if machine is not None:
                return machine
        return None

    @property
    def ever_by_token(self) -> Counter[str]:
        """How many machines were ever made under each token."""
        self.advance()
        return self._ever

    @property
    def ever(self) -> int:
        """How many machines were ever made."""
        self.advance()
        return self._machine_seq

    def existing_by_token(self) -> Counter[str]:
        """How many machines exist under each token."""
        return Counter(m.token for m in self.existing())

    def existing_by_pool(self) -> Counter[str]:
        """How many machines exist in each pool."""
        return Counter(m.pool for m in self.existing())

    def _cost_usd(self, machine: Machine) -> float:
        until = self.now() if machine.ended_at is None else machine.ended_at
        return (until - machine.created_at) / 3600.0 * machine.offer.price_usd_hour

    def cost_usd(self) -> dict[str, float]:
        """What each cloud has billed so far, at list price from creation to termination."""
        totals = dict(self._spent_usd)
        for machine in self.existing():
            totals[machine.provider] += self._cost_usd(machine)
        return totals

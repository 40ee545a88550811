"""Plan: per pool, from one snapshot, what to launch and what to let go; intents are committed.

Invariant: one plan per pool and pass; a pool that fails or is dry never holds up another; nothing
is sent from here, a REQUESTED row with its token is the only product.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from sqlmodel import Session

from fleet import plan as pure
from fleet.cell import Cell, finish
from fleet.errors import Stale, StoreError
from fleet.lifecycle import deadline
from fleet.model import Actor, Node, Outcome, Reason, State
from fleet.rules import PoolRules, image_ids
from fleet.store import apply, control, write
from fleet.tokens import boot_token, digest
from fleet.userdata import BootData, render

log = structlog.get_logger("fleetd")

ME = Actor.PLAN
#: The boot token outlives the longest boot deadline by this much.
BOOT_TOKEN_S = 4 * 3600.0


@dataclass
class Rates:
    """Measured inputs of the spare count per pool: failures per node-hour, refill p95 (s)."""

    failures_per_node_hour: float | None = None
    refill_s: float | None = None


@dataclass
class Planned:
    """The last plan of a pool, kept for ``describe`` and ``fleetctl plan``."""

    plan: pure.Plan
    spares_wanted: int
    at: float


class Plan:
    """The loop that keeps pools at their size."""

    name = "plan"

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.period_s = cell.settings.timing.plan_s
        self.last: dict[str, Planned] = {}
        self.rates: dict[str, Rates] = {}
        self._settled: object = None
        self._spares: dict[str, int] = {}

    async def run(self) -> None:
        """Plan every pool; one that fails is logged and tried again next pass."""
        cell = self._cell
        state = (cell.view.seq, cell.view.meta.get("policies"), self.rates)
        if not self._started() or state == self._settled:
            return
        calm = True
        for name in sorted(cell.view.pools.keys() | cell.view.deleted_pools):
            try:
                calm &= await self._pool(name)
            except (Stale, StoreError):
                raise
            except Exception:
                calm = False
                log.exception("pool skipped", pool=name)
        self._settled = state if calm else None

    def _started(self) -> bool:
        """Nothing is planned before every provider was listed once or has failed to answer:
        launching beside instances we have not looked for yet makes doubles (PC-127).
        """
        cell = self._cell
        return all(
            s.listed_at is not None or s.failing_since is not None
            for s in cell.watch.sightings.values()
        )

    async def _pool(self, name: str) -> bool:
        """Plan one pool; True if it has and lacks nothing, so that only a change needs a look."""
        cell = self._cell
        now = cell.clock.now()
        rules = cell.rules(name)
        nodes = cell.view.pool_nodes(name)
        if rules is None:
            if name in cell.view.deleted_pools and nodes:
                await self._end_pool(name, nodes)
            elif name in cell.view.deleted_pools and not cell.observe_only:
                await cell.commit(lambda tx: apply.forget_deleted(tx, name))
            return not nodes
        view = self._view(name, rules, nodes)
        planned = pure.plan(view, now)
        self.last[name] = Planned(planned, view.spares, now)
        why = cell.may_act()
        if why or not (planned.intents or planned.retire):
            if planned.intents and cell.observe_only:
                log.info("would launch", pool=name, n=sum(i.count for i in planned.intents))
            return not (planned.short or planned.retire)
        if planned.intents and not cell.full:
            await self._commit(rules, planned, now)
            cell.wake("launch")
        if planned.retire and not cell.may_destroy():
            await self._retire(planned, now)
            cell.wake("lifecycle")
        return False

    def _view(self, name: str, rules: PoolRules, nodes: list[Node]) -> pure.PoolView:
        cell = self._cell
        spec = rules.pool.spec
        rates = self.rates.get(name, Rates())
        offers = [o for o in spec.offer_list() if o.provider in cell.providers]
        ids = image_ids(
            cell.view.images.get(spec.image_family), spec.image_version,
            {(o.provider, o.region) for o in offers},
        )  # fmt: skip
        tagged = sum(s.by_pool.get(name, 0) for s in cell.watch.sightings.values())
        others = cell.view.rests and [n for n in cell.view.nodes.values() if n.pool != name]
        unbound = sum(1 for n in nodes if not n.instance_id)
        return pure.PoolView(
            name=name, wanted=spec.nodes, spares=self._spare_count(name, rules, rates),
            surge=rules.surge, quarantine=rules.quarantine, image=spec.image,
            offers=offers,
            image_ids=ids, nodes=nodes, rests=cell.view.rests,
            instances=max(len(nodes), tagged + unbound), batch_max=cell.settings.limits.batch,
            elsewhere=pure.in_flight(others or ()),
        )  # fmt: skip

    def _spare_count(self, name: str, rules: PoolRules, rates: Rates) -> int:
        """The spares wanted; a learned count rises at once and falls by one only when the new
        count has been lower by two, so that noise does not churn the fleet.
        """
        wanted = rules.spares(rates.failures_per_node_hour, rates.refill_s)
        before = self._spares.get(name)
        if isinstance(rules.pool.spec.spares, int) or before is None or wanted > before:
            self._spares[name] = wanted
        elif wanted <= before - 2:
            self._spares[name] = before - 1
        return self._spares[name]

    async def _commit(self, rules: PoolRules, planned: pure.Plan, now: float) -> None:
        """Commit one batch with its token and nodes per intent, before anything is sent."""
        cell = self._cell
        serving = sum(1 for n in cell.view.pool_nodes(rules.name) if n.slot)
        reason = Reason.PLAN_SHORT
        if serving >= rules.pool.spec.nodes:
            reason = Reason.SPARES_SHORT

        def fn(tx: Session) -> None:
            for intent in planned.intents:
                self._batch(tx, rules, intent, reason, planned.short, now)

        await cell.commit(fn)

    def _batch(
        self, tx: Session, rules: PoolRules, intent: pure.Intent, reason: Reason, short: int,
        now: float,
    ) -> None:  # fmt: skip
        cell = self._cell
        spec, offer = rules.pool.spec, intent.offer
        token = cell.chance.ident("b", 12)
        secret = boot_token(cell.key, token)
        limits = rules.rules(offer.instance_type)
        user_data = render(BootData(cell.agent_url, secret, offer.provider, rules.name, spec.image))
        control.add_batch(
            tx, token=token, pool=rules.name, provider=offer.provider, region=offer.region,
            offer_key=offer.key, image_id=intent.image_id, n=intent.count, user_data=user_data,
            boot_hash=digest(secret), created_at=now,
            boot_expires_at=now + limits.launch_s + limits.boot_s + BOOT_TOKEN_S,
        )  # fmt: skip
        until = deadline(State.REQUESTED, now, limits)
        nodes = [
            Node(
                id=cell.chance.ident("n"), pool=rules.name, state=State.REQUESTED,
                state_since=now, version=1, seq=0, token=token, offer=offer, image=spec.image,
                image_id=intent.image_id, created_at=now, reason=reason,
                message=f"pool {rules.name} short by {short}", deadline_at=until,
                requested_at=now,
            )
            for _ in range(intent.count)
        ]  # fmt: skip
        write.create(tx, nodes, actor=ME)

    async def _retire(self, planned: pure.Plan, now: float) -> None:
        """Let surplus nodes go: an unsent one ends here, the others get a wish."""
        cell = self._cell
        chosen = [(cell.view.nodes[i], why) for i, why in planned.retire if i in cell.view.nodes]

        def fn(tx: Session) -> None:
            for node, why in chosen:
                if node.state is State.REQUESTED:
                    write.close_launch(tx, node, Outcome.CANCELLED, now=now, reason=why)
                    finish(tx, node, now=now, actor=ME, reason=why)
                else:
                    write.update_node(tx, node, wish=str(why), wish_by=str(ME),
                                      wish_reason="more than the pool wants")  # fmt: skip

        await cell.commit(fn)

    async def _end_pool(self, name: str, nodes: list[Node]) -> None:
        """A deleted pool's slots are emptied and its nodes leave; its record stays until then."""
        cell = self._cell
        if cell.may_destroy():
            return
        now = cell.clock.now()
        slots = [s.slot for s in cell.view.slots.values() if s.pool == name]
        if slots:
            await cell.commit(lambda tx: control.remove_slots(tx, slots, now))
            nodes = cell.view.pool_nodes(name)
        asked = [n for n in nodes if n.wish != str(Reason.POOL_DELETED)]
        retire = tuple((n.id, Reason.POOL_DELETED) for n in asked)
        await self._retire(pure.Plan(retire=retire), now)

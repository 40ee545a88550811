"""Observe: one list per provider and interval; binds what is ours, adopts what we forgot.

Invariant: list calls are O(regions), never O(nodes), and a pass never waits for one; only a
complete list counts; an instance is bound to at most one node and a batch of n to at most n. What
carries our tag but is in no record is adopted and everything freezes until a person has looked:
fleetd never concludes from its own forgetting that a machine is not wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import structlog
from sqlmodel import Session

from fleet.cell import Cell
from fleet.errors import Cooldown, ProviderError, Unauthorized
from fleet.model import (
    IN_FLIGHT,
    Actor,
    Instance,
    Market,
    Node,
    Offer,
    Phase,
    Reason,
    State,
)  # fmt: skip
from fleet.plan import REST_S, Rest
from fleet.store import control, write
from fleet.store.tables import BatchRow, LaunchRow
from fleet.tokens import boot_token, digest
from fleet.watch import Sightings
from providers.base import EmitsNotices, Provider

log = structlog.get_logger("fleetd")

ME = Actor.OBSERVE
#: Maintenance is heeded this long before it begins: two drain deadlines and a spare's move.
HEED_S: Final = 1800.0


class Observe:
    """The only reader of the clouds."""

    name = "observe"

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.period_s = min(cell.settings.timing.list_busy_s, cell.settings.timing.list_s)
        self._due: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._intervals: dict[str, tuple[int, float]] = {}
        self._adopted: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Start a list for each provider that is due; results are taken in as they come."""
        cell = self._cell
        now = cell.clock.monotonic()
        for name, provider in cell.providers.items():
            if now < self._due.get(name, 0.0) and not self._hurried(name, now):
                continue
            work = partial(self._list, name, provider)
            if cell.effects.start(f"list:{name}", f"list:{name}", work):
                self._asked[name] = now
                self._due[name] = now + self._interval(name)

    def _interval(self, name: str) -> float:
        """Shorter while something is in flight; worked out again only when a node changed."""
        timing, view = self._cell.settings.timing, self._cell.view
        seq, interval = self._intervals.get(name, (-1, 0.0))
        if seq == view.seq:
            return interval
        busy = any(n.state in _MOVING for n in view.provider_nodes(name))
        interval = timing.list_busy_s if busy else timing.list_s
        self._intervals[name] = (view.seq, interval)
        return interval

    def _hurried(self, name: str, now: float) -> bool:
        """A wake (an agent waits to be listed) shortens the wait to a third of the busy period."""
        least = self._cell.settings.timing.list_busy_s / 3
        return now - self._asked.get(name, 0.0) >= least and self._interval(name) <= (
            self._cell.settings.timing.list_busy_s
        )

    async def _list(self, name: str, provider: Provider) -> None:
        cell = self._cell
        seen = cell.watch.sightings[name]
        began = cell.clock.monotonic()  # the wall clock may step while the list is on its way
        try:
            found = [i async for i in provider.list(cell.owner)]
        except ProviderError as error:
            seen.failed(str(error), cell.clock.now())
            log.warning("list failed", provider=name, error=str(error))
            if isinstance(error, Unauthorized):
                await self._hold(name, error)
            return
        started_at = cell.clock.now() - (cell.clock.monotonic() - began)
        await self._take(seen, found, started_at)
        await self._heed(name, provider)

    async def _heed(self, name: str, provider: Provider) -> None:
        """Notices that the cloud's own API has become facts, beside what the agents find in their
        instance's metadata; whichever comes first moves the node (PC-035).

        Maintenance far ahead is only noted: a node does not leave service days before it must.
        """
        cell = self._cell
        source = getattr(provider, "inner", provider)
        if not isinstance(source, EmitsNotices):
            return
        try:
            notices = await source.notices()
        except ProviderError as error:
            log.warning("notices failed", provider=name, error=str(error))
            return
        now = cell.clock.now()
        for notice in notices:
            node = cell.view.node_of(name, notice.ref.instance_id)
            spot = notice.kind == "spot"
            if node is None or (not spot and notice.at - now > HEED_S):
                continue
            pulse = cell.watch.pulse(node.id)
            if not pulse.notice:
                pulse.notice = notice.message or f"{notice.kind} notice of {name}"
                pulse.notice_reason = Reason.SPOT_NOTICE if spot else Reason.MAINTENANCE_NOTICE
                cell.watch.dirty.add(node.id)
                cell.wake("lifecycle")

    async def _hold(self, name: str, error: Unauthorized) -> None:
        """Credentials do not work: launches pause, nothing is judged gone, lists go on trying."""
        scope, now = f"provider:{name}", self._cell.clock.now()
        first, _ = REST_S[Cooldown.PROVIDER]
        length = max(first, 2 * self._cell.settings.timing.list_s)
        rest = Rest(scope, now + length, 1, 1, Reason.UNAUTHORIZED, str(error)[:500])
        self._cell.watch.sightings[name].held = str(error)
        await self._cell.commit(lambda tx: control.put_rest(tx, rest, actor=ME, now=now))

    async def _take(self, seen: Sightings, found: list[Instance], started_at: float) -> None:
        cell = self._cell
        now = cell.clock.now()
        bound = {
            n.instance_id: n.accepted_at or n.created_at
            for n in cell.view.provider_nodes(seen.provider)
            if n.instance_id
        }
        before = {i: s.phase for i, s in seen.instances.items()}
        seen.took(found, bound, started_at=started_at, now=now)
        cell.grace.first_list_at.setdefault(seen.provider, now)
        if seen.held:
            seen.held = ""
            scope = f"provider:{seen.provider}"
            await cell.commit(lambda tx: control.clear_rest(tx, scope, actor=ME, now=now))
        await self._bind(seen, now)
        self._mark_dirty(seen, before)
        cell.wake("lifecycle", "reap")

    def _mark_dirty(self, seen: Sightings, before: Mapping[str, Phase]) -> None:
        """Nodes whose instance changed or is missing are due."""
        cell = self._cell
        for node in cell.view.provider_nodes(seen.provider):
            if not node.instance_id:
                continue
            now_seen = seen.instances.get(node.instance_id)
            was = before.get(node.instance_id)
            if now_seen is None or now_seen.phase != was or node.state in IN_FLIGHT:
                cell.watch.dirty.add(node.id)

    # -- binding ---------------------------------------------------------------------------------

    async def _bind(self, seen: Sightings, now: float) -> None:
        """Give listed instances to their batch's unbound nodes; adopt those nobody recorded."""
        cell = self._cell
        strangers: list[Instance] = []
        for token, instances in seen.by_token.items():
            bound = cell.view.by_instance
            loose = [i for i in instances if (seen.provider, i.ref.instance_id) not in bound]
            if not loose:
                continue
            loose.sort(key=lambda i: (i.created_at, i.ref.instance_id))
            open_nodes = [
                n for n in cell.view.token_nodes(token)
                if not n.instance_id and n.state in (State.LAUNCHING, State.TERMINATING)
            ]  # fmt: skip
            if open_nodes:
                pairs = list(zip(open_nodes, loose, strict=False))
                await cell.commit(partial(self._bind_pairs, pairs=pairs, now=now))
            elif token not in cell.view.batches and not await self._known(token):
                strangers += [i for i in loose if i.exists]
        strangers += [i for i in seen.instances.values() if not i.token and i.exists]
        if strangers:
            await self._adopt(seen, strangers, now)

    def _bind_pairs(self, tx: Session, pairs: list[tuple[Node, Instance]], now: float) -> None:
        for node, instance in pairs:
            write.update_node(
                tx, node, instance_id=instance.ref.instance_id, zone=instance.ref.zone,
                accepted_at=node.accepted_at or now,
                deadline_at=self._cell.deadline(node, node.state, node.accepted_at or now),
            )  # fmt: skip
            write.launch_phase(tx, node.id, accepted_at=node.accepted_at or now,
                               instance_id=instance.ref.instance_id)  # fmt: skip
            write.event(
                tx, kind="node", object_id=node.id, pool=node.pool, actor=ME, at=now,
                reason=Reason.LAUNCH_ACCEPTED, message=f"listed as {instance.ref.instance_id}",
            )  # fmt: skip

    async def _known(self, token: str) -> bool:
        """True for a batch that we made; an adopted one (no user data) is as large as what the
        lists have shown of it so far, and may show more.
        """

        def fn(tx: Session) -> bool:
            batch = tx.get(BatchRow, token)
            return batch is not None and bool(batch.user_data)

        return await self._cell.store.run(fn)

    # -- adoption --------------------------------------------------------------------------------

    async def _adopt(self, seen: Sightings, strangers: list[Instance], now: float) -> None:
        """Record instances that carry our tag and are in no record, and freeze.

        They come from an empty or restored database (PC-006, opencode#36728) or a twin cell;
        which of the two only a person can tell.
        """
        cell = self._cell
        fresh = [i for i in strangers if (seen.provider, i.ref.instance_id) not in self._adopted]
        if not fresh:
            return

        def fn(tx: Session) -> None:
            nodes = []
            for instance in fresh:
                if tx.get(LaunchRow, _adopted_id(instance)) is None:
                    nodes.append(_adopted_node(instance, now))
            if not nodes:
                return
            tokens: dict[str, list[Node]] = {}
            for node in nodes:
                tokens.setdefault(node.token, []).append(node)
            for token, group in tokens.items():
                batch = tx.get(BatchRow, token)
                if batch is not None:
                    control.update_batch(tx, token, n=batch.n + len(group))
                else:
                    control.add_batch(
                        tx, token=token, pool=group[0].pool, provider=seen.provider,
                        region=group[0].offer.region, offer_key=group[0].offer.key,
                        image_id=group[0].image_id, n=len(group), user_data="",
                        boot_hash=digest(boot_token(cell.key, token)),
                        boot_expires_at=now + 30 * 86400.0, created_at=now, sent_at=now,
                        settled_at=now,
                    )  # fmt: skip
            write.create(tx, nodes, actor=ME)
            why = f"adopted {len(nodes)} instances of {seen.provider} that no record knows"
            if not control.get_meta(tx, "frozen"):
                control.freeze(tx, f"{why}: look at them, then fleetctl unfreeze", actor=ME,
                               now=now)  # fmt: skip

        await cell.commit(fn)
        self._adopted |= {(seen.provider, i.ref.instance_id) for i in fresh}
        log.warning("adopted", provider=seen.provider, n=len(fresh))


_MOVING: Final = IN_FLIGHT | {State.TERMINATING}


def _adopted_id(instance: Instance) -> str:
    return f"n-{instance.ref.provider}-{instance.ref.instance_id}"[:120]


def _adopted_node(instance: Instance, now: float) -> Node:
    ref = instance.ref
    offer = Offer(ref.provider, ref.region, ref.zone, instance.instance_type,
                  Market(instance.market))  # fmt: skip
    return Node(
        id=_adopted_id(instance), pool=instance.pool or "unknown", state=State.BOOTING,
        state_since=now, version=1, seq=0, token=instance.token or f"adopted-{ref.instance_id}",
        offer=offer, image="", image_id=instance.image_id, created_at=now, reason=Reason.ADOPTED,
        message="carries our tag but was in no record", instance_id=ref.instance_id,
        zone=ref.zone, requested_at=instance.created_at or now,
        accepted_at=instance.created_at or now, running_at=now,
    )  # fmt: skip

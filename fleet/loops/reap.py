"""Reap: ends what is to end, until the cloud says it is gone, and sweeps what is surplus.

An instance is *surplus* if and only if it carries the token of a batch that this store knows, no
live node is bound to it, and its batch has no launch left that it could be bound to. Anything
else without a record is adopted by observe, never swept.

Invariant: a record is never closed on an error answer, nor before a delete was accepted and
complete lists that began after it agree; a sweep is bounded, needs two passes, and stops for
freeze, observe mode, grace, a clock jump and a store that knows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from sqlmodel import Session

from fleet import guards
from fleet.cell import Cell, finish
from fleet.errors import ProviderError, Unauthorized
from fleet.lifecycle import Listed
from fleet.model import Actor, Instance, InstanceRef, Node, Phase, Reason, State
from fleet.store import write
from fleet.store.tables import BatchRow
from fleet.watch import Sightings

log = structlog.get_logger("fleetd")

ME = Actor.REAP
CHUNK: Final = 100
SWEEP_PASSES: Final = 2


@dataclass
class Asked:
    """Deletes asked for one instance: when accepted, how often, when next."""

    tries: int = 0
    next_at: float = 0.0
    accepted_at: float | None = None
    error: str = ""
    alarmed: bool = False


class Reap:
    """The only caller of ``delete``."""

    name = "reap"

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.period_s = cell.settings.timing.reap_s
        self._asked: dict[tuple[str, str], Asked] = {}
        self._suspects: dict[tuple[str, str], int] = {}
        self._swept: dict[str, float | None] = {}
        cell.on_step.append(self._step)

    def _step(self, step_s: float) -> None:
        """Step with the wall clock."""
        self._swept = {n: None if at is None else at + step_s for n, at in self._swept.items()}
        for asked in self._asked.values():
            asked.next_at += step_s
            if asked.accepted_at is not None:
                asked.accepted_at += step_s

    async def run(self) -> None:
        """Close what is gone, ask again for what is not, sweep what is surplus."""
        cell = self._cell
        now = cell.clock.now()
        ending = [cell.view.nodes[i] for i in sorted(cell.view.ending)]
        still = []
        for node in ending:
            closed = await self._close(node, now)
            if not closed:
                still.append(node)
        await self._alarm(still, now)
        refs = [n.ref for n in still]
        await self._delete([r for r in refs if r is not None], now)
        await self._sweep(now)
        self._tidy(ending)

    # -- closing ---------------------------------------------------------------------------------

    async def _close(self, node: Node, now: float) -> bool:
        cell = self._cell
        if cell.observe_only:
            return False
        seen = cell.watch.sightings.get(node.offer.provider)
        if seen is None:
            return False
        gone = self._gone(node, seen, now) if node.instance_id else await self._nothing(node, seen)
        if not gone:
            return False
        await cell.commit(
            lambda tx: finish(
                tx, node, now=now, actor=ME, reason=Reason.CONFIRMED_GONE, message=node.message
            )
        )
        self._asked.pop((node.offer.provider, node.instance_id), None)
        cell.wake("plan")
        return True

    def _gone(self, node: Node, seen: Sightings, now: float) -> bool:
        """The cloud's own word, or complete lists without it after an accepted delete."""
        instance = seen.instances.get(node.instance_id)
        if instance is not None:
            return instance.phase is Phase.TERMINATED
        # Also what the lists call gone is asked to go once more: the ask costs nothing, and a
        # list that was wrong would otherwise leave a machine that nobody owns.
        asked = self._asked.get((node.offer.provider, node.instance_id))
        if asked is None or asked.accepted_at is None or seen.started_at is None:
            return False
        return seen.started_at > asked.accepted_at and seen.listed(node) is Listed.MISSING

    async def _nothing(self, node: Node, seen: Sightings) -> bool:
        """No instance was ever bound: closed when the batch is settled and a list that began a
        visibility window after its *last* call shows no loose instance of it.
        """
        cell = self._cell
        if node.token in cell.view.batches or f"create:{node.token}" in cell.effects:
            return False  # still open: the launch loop settles it first (PC-007)
        loose = [
            i for i in seen.by_token.get(node.token, ())
            if i.exists and self._cell.view.node_of(seen.provider, i.ref.instance_id) is None
        ]  # fmt: skip
        if loose or seen.started_at is None:
            return False
        batch = await cell.store.run(lambda tx: tx.get(BatchRow, node.token))
        sent_at = (batch.sent_at if batch else None) or 0.0  # of the last repeat
        since = max(node.requested_at or node.created_at, sent_at)
        return seen.started_at >= since + seen.visibility_s

    # -- deleting --------------------------------------------------------------------------------

    async def _delete(self, refs: Sequence[InstanceRef], now: float) -> None:
        """Ask for deletes that are due, grouped per provider and region."""
        cell = self._cell
        if cell.may_destroy():
            return
        groups: dict[tuple[str, str], list[InstanceRef]] = {}
        for ref in refs:
            asked = self._asked.setdefault((ref.provider, ref.instance_id), Asked())
            if now >= asked.next_at:
                groups.setdefault((ref.provider, ref.region), []).append(ref)
        for (provider, region), group in groups.items():
            if provider not in cell.providers:
                continue
            for i in range(0, len(group), CHUNK):
                part = group[i : i + CHUNK]
                key = f"delete:{provider}:{region}:{part[0].instance_id}"
                cell.effects.start(key, f"delete:{provider}", partial(self._ask, part))

    async def _ask(self, refs: Sequence[InstanceRef]) -> None:
        cell = self._cell
        timing = cell.settings.timing
        error: ProviderError | None = None
        for ref in refs:
            asked = self._asked.setdefault((ref.provider, ref.instance_id), Asked())
            asked.tries += 1
            wait = min(timing.retry_delete_max_s, timing.retry_delete_s * 2 ** (asked.tries - 1))
            asked.next_at = cell.clock.now() + wait
        try:
            await cell.providers[refs[0].provider].delete(refs)
        except ProviderError as failure:
            error = failure
            log.warning("delete failed", provider=refs[0].provider, n=len(refs),
                        error=str(failure))  # fmt: skip
        now = cell.clock.now()
        for ref in refs:
            asked = self._asked.setdefault((ref.provider, ref.instance_id), Asked())
            if error is None:
                asked.accepted_at = asked.accepted_at or now
                asked.error = ""
            else:
                asked.error = str(error)[:300]
                if isinstance(error, Unauthorized):
                    asked.next_at = now + timing.retry_delete_s  # comes back with the credentials
        cell.wake("observe")

    async def _alarm(self, nodes: Sequence[Node], now: float) -> None:
        """A delete that the cloud has not confirmed in time is paid for and unwanted: say so."""
        cell = self._cell
        late: list[tuple[Node, str]] = []
        for node in nodes:
            asked = self._asked.get((node.offer.provider, node.instance_id))
            limit_s = cell.limits(node).terminate_alarm_s
            if asked is None or asked.alarmed or now - node.state_since < limit_s:
                continue
            asked.alarmed = True
            why = asked.error or "the cloud accepted the delete but still lists it"
            late.append((node, f"{asked.tries} deletes in {now - node.state_since:.0f} s: {why}"))
        if not late:
            return

        def fn(tx: Session) -> None:
            for node, why in late:
                write.event(tx, kind="node", object_id=node.id, pool=node.pool, actor=ME, at=now,
                            reason=Reason.TERMINATE_STUCK, message=why)  # fmt: skip

        await cell.commit(fn)

    # -- sweeping --------------------------------------------------------------------------------

    async def _sweep(self, now: float) -> None:
        """One look per new list: two passes are two lists, not the same list twice."""
        cell = self._cell
        fresh = [
            s for s in cell.watch.sightings.values()
            if s.started_at != self._swept.get(s.provider) and cell.grace.over(s.provider, now)
        ]  # fmt: skip
        if not fresh:
            return
        found: list[Instance] = []
        for seen in fresh:
            self._swept[seen.provider] = seen.started_at
            found += await self._surplus(seen, now)
        total = sum(len(s.instances) for s in cell.watch.sightings.values())
        names = {s.provider for s in fresh}
        keys = {(i.ref.provider, i.ref.instance_id) for i in found}
        others = {k: n for k, n in self._suspects.items() if k[0] not in names}
        self._suspects = others | {k: self._suspects.get(k, 0) + 1 for k in keys}
        sure = [
            i for i in found
            if self._suspects[(i.ref.provider, i.ref.instance_id)] >= SWEEP_PASSES
        ]  # fmt: skip
        known = len(cell.view.nodes) + len(cell.view.batches)
        unfrozen_at = float(cell.view.meta.get("unfrozen_at") or 0.0)
        confirmed = now - unfrozen_at < guards.CONFIRMED_S
        why = guards.sweep_refused(len(sure), total, known, confirmed=confirmed)
        await cell.guard("sweep", why, reason=Reason.ORPHAN, kind="cell", object_id="sweep",
                         actor=ME)  # fmt: skip
        if not sure or why or cell.may_destroy():
            return
        sure.sort(key=lambda i: (i.created_at, i.ref.instance_id))
        chosen = sure[: guards.sweep_limit(total)]
        await self._note_swept(chosen, now)
        await self._delete([i.ref for i in chosen], now)

    async def _surplus(self, seen: Sightings, now: float) -> list[Instance]:
        """Instances that are surplus by the definition above and old enough to be sure."""
        cell = self._cell
        surplus: list[Instance] = []
        age_s = cell.settings.timing.orphan_age_s
        for token, instances in seen.by_token.items():
            if token in cell.view.batches:
                continue  # a launch may still claim it
            bound = cell.view.by_instance
            loose = [
                i for i in instances
                if (seen.provider, i.ref.instance_id) not in bound and i.phase in _SURPLUS
            ]  # fmt: skip
            old = [
                i for i in loose if now - seen.first_seen.get(i.ref.instance_id, now) >= age_s
            ]  # fmt: skip
            if not old:
                continue
            claim = any(
                not n.instance_id and n.state is State.LAUNCHING
                for n in cell.view.token_nodes(token)
            )
            if not claim and await cell.store.run(partial(_known, token=token)):
                surplus += old
        return surplus

    async def _note_swept(self, chosen: Sequence[Instance], now: float) -> None:
        fresh = [
            i for i in chosen
            if (i.ref.provider, i.ref.instance_id) not in self._asked
        ]  # fmt: skip

        def fn(tx: Session) -> None:
            for i in fresh:
                write.event(
                    tx, kind="instance", object_id=i.ref.instance_id, pool=i.pool, at=now,
                    actor=ME, reason=Reason.DUPLICATE,
                    message=f"surplus under token {i.token}: no launch is left for it",
                )  # fmt: skip

        if fresh:
            await self._cell.commit(fn)

    def _tidy(self, ending: Sequence[Node]) -> None:
        """Forget deletes of instances that no list and no node mentions any more."""
        if not self._asked:
            return
        cell = self._cell
        alive = {(n.offer.provider, n.instance_id) for n in ending}
        for seen in cell.watch.sightings.values():
            alive |= {(seen.provider, i) for i in seen.instances}
        self._asked = {k: a for k, a in self._asked.items() if k in alive}


_SURPLUS: Final = (Phase.PENDING, Phase.RUNNING, Phase.STOPPED, Phase.FAILED)


def _known(tx: Session, token: str) -> bool:
    """True for a batch that we made: of an adopted one (no user data) nothing is surplus."""
    batch = tx.get(BatchRow, token)
    return batch is not None and bool(batch.user_data)

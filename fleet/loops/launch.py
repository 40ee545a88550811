"""Launch: sends committed batches and records what came of them.

Invariant: a batch's token is committed as sent before the cloud is called; a call whose fate is
unknown is settled by the lists first and repeated with the same token only when complete lists
show nothing of it; a refused launch leaves nothing behind and is closed with its outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog
from sqlmodel import Session

from fleet.cell import Cell, finish
from fleet.errors import Ambiguous, Busy, ProviderError, Refused
from fleet.model import Actor, LaunchSpec, Node, Outcome, Reason, State
from fleet.plan import Rest, rest_after
from fleet.store import control, write
from fleet.store.tables import BatchRow
from fleet.watch import Sightings
from providers.base import TAG_CELL, TAG_IMAGE, TAG_POOL, TAG_TOKEN, CreateResult

log = structlog.get_logger("fleetd")

ME = Actor.LAUNCH
#: How often one token may be sent before what did not appear is closed.
ATTEMPTS: Final = 4
BUSY_S: Final = (10.0, 120.0)


class Launch:
    """The only caller of ``create``."""

    name = "launch"

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.period_s = cell.settings.timing.launch_s

    async def run(self) -> None:
        """Start what may be sent; settle what is unknown; drop what waited too long."""
        cell = self._cell
        now = cell.clock.now()
        for token, batch in list(cell.view.batches.items()):
            if f"create:{token}" in cell.effects:
                continue
            nodes = cell.view.token_nodes(token)
            waiting = [n for n in nodes if n.state is State.REQUESTED]
            unbound = [n for n in nodes if n.state is State.LAUNCHING and not n.instance_id]
            if batch.sent_at is None:
                await self._fresh(batch, waiting, now)
            elif unbound:
                await self._unknown(batch, unbound, now)
            else:
                await self._settle(batch, now)

    async def _fresh(self, batch: BatchRow, waiting: list[Node], now: float) -> None:
        cell = self._cell
        if not waiting:
            await self._settle(batch, now)
            return
        late = [n for n in waiting if n.deadline_at is not None and now >= n.deadline_at]
        if late:
            await self._cancel(late, now)
            return
        why = cell.may_act() or self._held(batch.provider, now)
        if not why and cell.effects.free(batch.provider) > 0:
            await self._send(batch, waiting, now)

    def _held(self, provider: str, now: float) -> str:
        if provider not in self._cell.providers:
            return f"provider {provider} is not configured"
        if self._cell.full:
            return "the disk is full"
        rest = self._cell.view.rests.get(f"provider:{provider}")
        return rest.message if rest is not None and now < rest.until else ""

    async def _cancel(self, late: list[Node], now: float) -> None:
        def fn(tx: Session) -> None:
            for node in late:
                text = f"not sent within {now - node.state_since:.0f} s"
                write.close_launch(tx, node, Outcome.CANCELLED, now=now, reason=Reason.CANCELLED,
                                   message=text)  # fmt: skip
                finish(tx, node, now=now, actor=ME, reason=Reason.CANCELLED, message=text)

        await self._cell.commit(fn)

    async def _send(self, batch: BatchRow, nodes: list[Node], now: float) -> None:
        """Commit "sent", then call. The other order would lose an instance to a crash."""
        cell = self._cell
        spec = self._spec(batch, nodes)

        def fn(tx: Session) -> None:
            control.update_batch(tx, batch.token, sent_at=now, attempts=batch.attempts + 1)
            for node in nodes:
                if node.state is State.REQUESTED:
                    until = cell.deadline(node, State.LAUNCHING, now)
                    write.transition(tx, node, State.LAUNCHING, Reason.LAUNCH_SENT, now=now,
                                     actor=ME, deadline_at=until, requested_at=now)  # fmt: skip
                    write.launch_phase(tx, node.id, requested_at=now)

        await cell.commit(fn)
        cell.effects.start(
            f"create:{batch.token}", batch.provider, lambda: self._call(spec, batch.token)
        )

    def _spec(self, batch: BatchRow, nodes: list[Node]) -> LaunchSpec:
        """The call, rebuilt byte for byte from what was committed."""
        cell, first = self._cell, nodes[0]
        tags = {
            TAG_CELL: cell.settings.cell, TAG_POOL: batch.pool, TAG_TOKEN: batch.token,
            TAG_IMAGE: first.image.replace("@", "-").lower(),
        }  # fmt: skip
        return LaunchSpec(
            batch.token, first.offer, batch.n, batch.image_id, batch.user_data, tags, batch.pool,
            cell.settings.cell,
        )  # fmt: skip

    async def _call(self, spec: LaunchSpec, token: str) -> None:
        cell = self._cell
        try:
            results = await cell.providers[spec.offer.provider].create(spec)
        except ProviderError as error:
            await self._failed(token, error)
            return
        await self._took(token, results)

    # -- results ---------------------------------------------------------------------------------

    async def _took(self, token: str, results: Sequence[CreateResult]) -> None:
        """Bind accepted instances in order; close the launches that were refused one by one."""
        cell = self._cell
        now = cell.clock.now()
        nodes = cell.view.token_nodes(token)
        bound = {n.instance_id for n in nodes if n.instance_id}
        free = [n for n in nodes if not n.instance_id and n.state is State.LAUNCHING]
        # Given up meanwhile, but the call made it: whoever ends the node must know its instance.
        ending = [n for n in nodes if not n.instance_id and n.state is State.TERMINATING]
        refs = [r.ref for r in results if r.ref and r.ref.instance_id not in bound]
        errors = [r.error for r in results if r.error is not None]
        pairs = list(zip([*free, *ending], refs, strict=False))
        unsure = [e for e in errors if isinstance(e, Ambiguous)]
        # A Busy beside accepted ones made nothing: it ends as throttled and `plan` asks again.
        refused = [e for e in errors if not isinstance(e, Ambiguous)]
        losers = list(zip(free[len(pairs) :], refused, strict=False))

        def fn(tx: Session) -> None:
            for node, ref in pairs:
                write.update_node(
                    tx, node, instance_id=ref.instance_id, zone=ref.zone, accepted_at=now,
                    deadline_at=cell.deadline(node, node.state, now),
                )  # fmt: skip
                write.launch_phase(tx, node.id, accepted_at=now, instance_id=ref.instance_id)
                write.event(tx, kind="node", object_id=node.id, pool=node.pool, at=now, actor=ME,
                            reason=Reason.LAUNCH_ACCEPTED, message=ref.instance_id)  # fmt: skip
            for node, error in losers:
                self._refuse(tx, node, error, now)
            if unsure:
                control.update_batch(tx, token, last_error=str(unsure[0])[:500])
            elif len(pairs) + len(losers) >= len(free):
                control.update_batch(tx, token, settled_at=now)

        await cell.commit(fn)
        cell.wake("observe", "plan", "lifecycle")

    async def _failed(self, token: str, error: ProviderError) -> None:
        """The whole call failed: refused, later, or unknown."""
        cell = self._cell
        now = cell.clock.now()
        batch = cell.view.batches.get(token)
        free = [
            n for n in cell.view.token_nodes(token)
            if n.state is State.LAUNCHING and not n.instance_id
        ]  # fmt: skip
        if batch is None or not free:
            return
        log.warning("create failed", token=token, error=str(error), kind=type(error).__name__)
        if isinstance(error, Refused):
            await cell.commit(lambda tx: self._refuse_all(tx, batch, free, error, now))
            cell.wake("plan")
            return
        busy = isinstance(error, Busy)
        if busy and batch.attempts >= ATTEMPTS:
            await cell.commit(lambda tx: self._refuse_all(tx, batch, free, error, now))
            cell.wake("plan")
            return
        first, most = BUSY_S
        wait = error.retry_after_s or min(most, first * 2 ** (batch.attempts - 1))
        next_at = now + wait * (1.0 + cell.chance.random()) if busy else 0.0
        why = f"{'busy' if busy else 'unknown'}: {error}"[:500]
        await cell.commit(
            lambda tx: control.update_batch(tx, token, last_error=why, next_at=next_at)
        )
        cell.wake("observe")

    def _refuse_all(
        self, tx: Session, batch: BatchRow, nodes: list[Node], error: ProviderError, now: float
    ) -> None:
        for node in nodes:
            self._refuse(tx, node, error, now)
        control.update_batch(tx, batch.token, settled_at=now, last_error=str(error)[:500])

    def _refuse(self, tx: Session, node: Node, error: ProviderError, now: float) -> None:
        """Close one refused launch: nothing exists, so its record ends in this transaction."""
        cell = self._cell
        outcome = error.outcome or Outcome.LOST
        write.close_launch(
            tx, node, outcome, now=now, reason=error.reason, code=error.code,
            message=error.message, request_id=error.request_id,
        )  # fmt: skip
        ending = write.transition(
            tx, node, State.TERMINATING, error.reason, now=now, actor=ME, message=str(error),
            evidence={"code": error.code, "request_id": error.request_id},
        )  # fmt: skip
        finish(tx, ending, now=now, actor=ME, reason=error.reason, message=str(error))
        rest: Rest | None = rest_after(
            error, node.offer, pool=node.pool, image_id=node.image_id, rests=cell.view.rests,
            now=now, luck=cell.chance.random(),
        )  # fmt: skip
        if rest is not None:
            control.put_rest(tx, rest, actor=ME, now=now)

    # -- the unknown -----------------------------------------------------------------------------

    async def _unknown(self, batch: BatchRow, unbound: list[Node], now: float) -> None:
        """A sent batch with launches that no instance is bound to: look first, then repeat.

        Busy promised that nothing was made, so the same token is sent again when its wait is
        over. Otherwise only complete lists that started a visibility window after the call tell.
        """
        cell = self._cell
        seen = cell.watch.sightings.get(batch.provider)
        if seen is None or batch.sent_at is None:
            return
        busy = batch.last_error.startswith("busy")
        if busy:
            if now >= batch.next_at and not (cell.may_act() or self._held(batch.provider, now)):
                await self._send(batch, unbound, now)
            return
        if not self._looked(seen, batch, now):
            return
        if batch.attempts < ATTEMPTS and not seen.by_token.get(batch.token):
            if not (cell.may_act() or self._held(batch.provider, now)):
                await self._send(batch, unbound, now)
            return
        await cell.commit(lambda tx: self._lose(tx, batch, unbound, now))
        cell.wake("plan", "reap")

    def _looked(self, seen: Sightings, batch: BatchRow, now: float) -> bool:
        """True when a complete list began after the window in which the call could still show."""
        if seen.started_at is None or batch.sent_at is None:
            return False
        return seen.started_at >= batch.sent_at + seen.visibility_s and now >= batch.next_at

    def _lose(self, tx: Session, batch: BatchRow, nodes: list[Node], now: float) -> None:
        for node in nodes:
            text = f"no list shows it {now - (batch.sent_at or now):.0f} s after the call"
            write.close_launch(tx, node, Outcome.LOST, now=now, reason=Reason.NEVER_LISTED,
                               message=batch.last_error or text)  # fmt: skip
            write.transition(tx, node, State.TERMINATING, Reason.NEVER_LISTED, now=now, actor=ME,
                             message=text)  # fmt: skip
        control.update_batch(tx, batch.token, settled_at=now)

    async def _settle(self, batch: BatchRow, now: float) -> None:
        """Every launch of the batch is bound or closed: it needs no more attention."""
        await self._cell.commit(lambda tx: control.update_batch(tx, batch.token, settled_at=now))

"""Lifecycle: carries out what ``advance`` decides, node by node, and restores service.

Invariant: the woken pass looks at nodes about which something is new and the timed pass at all,
with the same code; a node that serves leaves service and its slot moves to a spare in the same
transaction; a step that takes a serving node away by our own judgement asks the Budget, inside
the transaction's view, one node at a time; one bad node never stops a pass.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import structlog
from sqlmodel import Session

from fleet import gate, guards
from fleet.cell import Cell
from fleet.errors import InsufficientCapacity, QuotaExceeded, Stale, StoreError
from fleet.lifecycle import Allowed, Facts, Listed, Rules, Step, advance, deadline, due
from fleet.loops.repairs import HEALTH, Repairs
from fleet.model import Actor, Node, Outcome, Reason, State
from fleet.plan import BOOT_LAST, after_success, boot_rest, rest_after, scopes
from fleet.rules import PoolRules
from fleet.store import control, write
from fleet.watch import Pulse, Sightings

log = structlog.get_logger("fleetd")

ME = Actor.LIFECYCLE
CHUNK: Final = 200
#: Every node is looked at this often even if nothing is due: a missed wake costs minutes at most.
FULL_S: Final = 900.0
_SERVING: Final = (State.READY, State.SUSPECT)


@dataclass(frozen=True, slots=True)
class Move:
    """A decided step of one node with what it was decided from."""

    node: Node
    step: Step
    facts: Facts
    rules: Rules
    known: PoolRules | None


class Lifecycle:
    """The one loop that moves nodes between states on evidence."""

    name = "lifecycle"

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.period_s = cell.settings.timing.lifecycle_s
        self._full_at: float | None = None
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._repairs = Repairs(cell)
        self._blind_until: dict[str, float] = {}
        self._blind_since: dict[str, float] = {}
        self._hearing: set[str] = set()
        cell.on_step.append(self._step)

    async def load(self) -> None:
        """Read what the Budget must remember across a restart."""
        await self._repairs.load()

    async def run(self) -> None:
        """One pass over the nodes that are due."""
        due = self._take_due()
        self._repairs.tidy(self._cell.clock.now())
        await self._blindness(due)
        for i in range(0, len(due), CHUNK):
            await self._chunk(due[i : i + CHUNK])
            await asyncio.sleep(0)

    def _step(self, step_s: float) -> None:
        """Step with the wall clock, then look at every node anew."""
        self._blind_until = {name: at + step_s for name, at in self._blind_until.items()}
        self._full_at = None

    def _take_due(self) -> list[str]:
        """Nodes about which something is new, whose time has come, or (now and then) all."""
        cell = self._cell
        mono, now = cell.clock.monotonic(), cell.clock.now()
        dirty = cell.watch.dirty
        if self._full_at is None or mono - self._full_at >= FULL_S:
            self._full_at = mono
            self._due, self._heap = {}, []
            dirty |= cell.view.nodes.keys()
        while self._heap and self._heap[0][0] <= now:
            at, node_id = heapq.heappop(self._heap)
            if self._due.get(node_id) == at:
                dirty.add(node_id)
        due = sorted(dirty)
        dirty.clear()
        return due

    def _again(self, node: Node, facts: Facts, rules: Rules, now: float) -> None:
        """Look at the node again when time alone could move it, and soon if a guard or a wish
        keeps it waiting.
        """
        at = due(node, facts, rules)
        if (at is not None and at <= now) or node.wish:
            at = now + self.period_s
        if at is None:
            self._due.pop(node.id, None)
        elif self._due.get(node.id) != at:
            self._due[node.id] = at
            heapq.heappush(self._heap, (at, node.id))

    async def _chunk(self, ids: Iterable[str]) -> None:
        """Decide for some nodes and commit the steps; a stale one is dropped and tried later."""
        cell = self._cell
        now = cell.clock.now()
        together: list[Move] = []
        moved = False
        for node_id in ids:
            node = cell.view.nodes.get(node_id)
            if node is None:
                continue
            try:
                move = self._decide(node, now)
                if move is None:
                    continue
                if not (move.step.budget or move.node.slot or move.step.to in _LEAVING):
                    together.append(move)  # touches nothing another node's decision looks at
                elif not move.step.budget or await self._repairs.allowed(node, move.known, now):
                    moved |= await self._commit([move], now)
            except StoreError as error:
                cell.watch.dirty.add(node_id)
                if not isinstance(error, Stale):
                    raise
            except Exception:
                # One inconsistent row must not halt the others (PC-150, karpenter#1166).
                log.exception("node skipped", node=node_id)
        moved |= await self._commit_together(together, now)
        if moved:
            cell.wake("assign", "plan", "reap", "deliver")

    async def _commit_together(self, moves: list[Move], now: float) -> bool:
        """One transaction for all; if one of them is stale or wrong, each by itself."""
        if not moves:
            return False
        try:
            return await self._commit(moves, now)
        except Stale:
            pass
        except StoreError:
            self._cell.watch.dirty |= {m.node.id for m in moves}
            raise
        except Exception:
            log.exception("moves skipped", nodes=[m.node.id for m in moves])
        moved = False
        for move in moves:
            try:
                moved |= await self._commit([move], now)
            except Stale:
                self._cell.watch.dirty.add(move.node.id)
            except StoreError:
                self._cell.watch.dirty |= {m.node.id for m in moves}
                raise
            except Exception:
                log.exception("node skipped", node=move.node.id)
        return moved

    def _decide(self, node: Node, now: float) -> Move | None:
        """The node's next move, unless a guard holds it back."""
        cell = self._cell
        known = cell.rules(node.pool)
        rules = cell.limits(node)
        facts = self._facts(node, known, now)
        step = advance(node, facts, now, rules, self._allowed(node, now))
        self._again(node, facts, rules, now)
        if step is None:
            return None
        why = self._held(node, step, known, now) if step.to in _LEAVING else ""
        if why or cell.observe_only:
            log.info("held back", node=node.id, to=str(step.to), reason=str(step.reason),
                     why=why or "observe mode")  # fmt: skip
            return None
        return Move(node, step, facts, rules, known)

    def _held(self, node: Node, step: Step, known: PoolRules | None, now: float) -> str:
        """Why a node must not leave now, or ""."""
        cell = self._cell
        if why := cell.may_destroy():
            return why
        if node.wish or step.reason in _ENDED or node.pool in cell.view.deleted_pools:
            return ""
        if known is None:  # adopted by its tags: there is no policy yet to judge it by (PC-006)
            return f"pool {node.pool} is not applied"
        pulse = cell.watch.pulses.get(node.id) or _NO_PULSE
        if step.reason is Reason.BOOT_TIMEOUT and self._alive(pulse, known, now):
            return "its agent is at the door"
        return ""

    # -- facts -----------------------------------------------------------------------------------

    def _facts(self, node: Node, known: PoolRules | None, now: float) -> Facts:
        cell = self._cell
        pulse = cell.watch.pulses.get(node.id) or _NO_PULSE
        seen = cell.watch.sightings.get(node.offer.provider)
        listed = seen.listed(node) if seen else Listed.UNKNOWN
        blind = node.first_report_at is not None and f"blind:{node.offer.provider}" in cell.guards
        if listed is Listed.MISSING and (blind or self._alive(pulse, known, now)):
            # Its agent still speaks, or none of this cloud can be heard: a list alone may be short.
            listed = Listed.UNKNOWN
        return Facts(
            instance=cell.watch.instance(node),
            listed=listed,
            lists_fresh=self._fresh(seen, now),
            last_report_at=self._heard(node, pulse),
            good_reports=pulse.good,
            gate=self._gate(node, pulse, known),
            fatal=pulse.stands(now),
            warning=pulse.warning,
            warning_since=pulse.warning_since,
            notice=pulse.notice,
            notice_reason=pulse.notice_reason,
            drained=pulse.drained or node.drained_at is not None,
            assigned=bool(node.slot),
            rebooted=pulse.rebooted,
            replacement_ready=self._replacement_ready(node),
            quarantine_free=self._quarantine_free(node, known),
        )

    def _fresh(self, seen: Sightings | None, now: float) -> bool:
        age = seen.age_s(now) if seen else None
        return age is not None and age <= self._cell.settings.timing.list_limit_s

    def _alive(self, pulse: Pulse, known: PoolRules | None, now: float) -> bool:
        silent_s = known.health.spec.report.silent_s if known else 90.0
        return pulse.last_at is not None and now - pulse.last_at < silent_s

    def _heard(self, node: Node, pulse: Pulse) -> float:
        """From when on a node's silence counts: its last report, but no time in which its
        provider was blind. The last agent to come back would else pay for all of the cut.
        """
        last = pulse.last_at if pulse.last_at is not None else self._since(node)
        return max(last, self._blind_until.get(node.offer.provider, last))

    def _since(self, node: Node) -> float:
        """Since when a node that this process has not heard is silent: since the process began,
        except that a SUSPECT node keeps its earlier silence once we have listened long enough
        ourselves, so that restarts cannot keep a dead node for ever.
        """
        started_at = self._cell.grace.started_at
        known = self._cell.rules(node.pool)
        silent_s = known.health.spec.report.silent_s if known else 90.0
        if node.state is State.SUSPECT and self._cell.clock.now() - started_at >= silent_s:
            return node.state_since - silent_s
        return max(started_at, node.state_since)

    def _gate(self, node: Node, pulse: Pulse, known: PoolRules | None) -> Any:
        if known is None or pulse.gate_report is None:
            return None
        if node.state is not State.CHECKING and not pulse.rebooted:
            return None
        return gate.judge(pulse.gate_report, known.gate)

    def _replacement_ready(self, node: Node) -> bool:
        return node.wish == "replace" and (not node.slot or bool(self._cell.spares(node.pool)))

    def _quarantine_free(self, node: Node, known: PoolRules | None) -> bool:
        if known is None or known.quarantine <= 0 or node.state not in _KEEPS:
            return False
        kept = sum(n.state is State.QUARANTINED for n in self._cell.view.pool_nodes(node.pool))
        return kept < known.quarantine

    def _allowed(self, node: Node, now: float) -> Allowed:
        cell = self._cell
        provider = node.offer.provider
        if not cell.grace.over(provider, now) or cell.pause.active(cell.clock.monotonic()):
            return Allowed(judge=False, silence=node.state not in _SERVING)
        heard = f"blind:{provider}" not in cell.guards or self._worn(provider, now)
        return Allowed(judge=True, silence=heard)

    def _worn(self, provider: str, now: float) -> bool:
        """True when a cloud whose lists are fresh has been blind for so long, while the agents of
        another are heard, that its own are dead rather than unheard; from then on the Budget
        alone bounds what is replaced.
        """
        since = self._blind_since.get(provider)
        long = since is not None and self._cell.clock.monotonic() - since >= guards.BLIND_MAX_S
        elsewhere = bool(self._hearing - {provider})
        return long and elsewhere and self._fresh(self._cell.watch.sightings.get(provider), now)

    # -- guards ----------------------------------------------------------------------------------

    async def _blindness(self, due: list[str]) -> None:
        """Set or clear Blindness per provider from how many agents are silent now; counted when
        a node that is due is silent, when a provider is blind, or when its lists are old.
        """
        cell = self._cell
        now = cell.clock.now()
        limit_s = cell.settings.timing.list_limit_s
        ages = [s.age_s(now) for s in cell.watch.sightings.values()]
        old = any(age is None or age > limit_s for age in ages)
        blind = any(name.startswith("blind:") for name in cell.guards)
        if not (old or blind or any(self._silent(i, now) for i in due)):
            return
        watched: dict[str, int] = {}
        silent: dict[str, int] = {}
        for node in cell.view.nodes.values():
            if node.state not in _SERVING:
                continue
            provider = node.offer.provider
            watched[provider] = watched.get(provider, 0) + 1
            if self._silent(node.id, now):
                silent[provider] = silent.get(provider, 0) + 1
        for provider, seen in cell.watch.sightings.items():
            if seen.listed_at is None and seen.failing_since is None:
                continue  # not asked yet: that is the start-up grace's business
            why = guards.blind(
                silent.get(provider, 0), watched.get(provider, 0), list_age_s=seen.age_s(now),
                list_limit_s=limit_s,
            )  # fmt: skip
            mono = cell.clock.monotonic()
            if why:
                self._blind_since.setdefault(provider, mono)
                if not self._worn(provider, now):
                    self._blind_until[provider] = now
            else:
                self._blind_since.pop(provider, None)
            if not why and watched.get(provider):
                self._hearing.add(provider)
            else:
                self._hearing.discard(provider)
            await cell.guard(f"blind:{provider}", why, reason=Reason.BLIND, kind="provider",
                             object_id=provider, actor=ME)  # fmt: skip

    def _silent(self, node_id: str, now: float) -> bool:
        """True when a serving node has been silent for most of what makes it SUSPECT."""
        node = self._cell.view.nodes.get(node_id)
        if node is None or node.state not in _SERVING:
            return False
        pulse = self._cell.watch.pulses.get(node_id) or _NO_PULSE
        last = pulse.last_at if pulse.last_at is not None else self._since(node)
        known = self._cell.rules(node.pool)
        limit = known.health.spec.report.silent_s if known else 90.0
        return now - last >= limit * 0.75

    # -- commit ----------------------------------------------------------------------------------

    async def _commit(self, moves: list[Move], now: float) -> bool:
        """Carry out moves in one transaction; a serving node's slot moves to a spare in it."""
        spares = [self._spare(m.node, m.step) for m in moves]

        def fn(tx: Session) -> None:
            for move, spare in zip(moves, spares, strict=True):
                self._write(tx, move, spare, now)

        await self._cell.commit(fn)
        for move in moves:
            self._moved(move.node, move.step, now)
        return True

    def _write(self, tx: Session, move: Move, spare: Node | None, now: float) -> None:
        node, step, known = move.node, move.step, move.known
        after = write.transition(
            tx, node, step.to, step.reason, now=now, actor=ME, message=step.message,
            evidence=step.evidence, deadline_at=deadline(step.to, now, move.rules),
            **self._changes(node, step, move.facts, now),
        )  # fmt: skip
        if node.slot and step.to in _LEAVING:
            urls = list(known.urls) if known else []
            write.move_slot(tx, node, spare, now=now, actor=ME, reason=step.reason, urls=urls)
        if step.outcome is not None:
            self._close(tx, after, step, move.facts, now)

    def _moved(self, node: Node, step: Step, now: float) -> None:
        """What memory keeps of a committed move."""
        cell = self._cell
        if step.reason in HEALTH and step.to is State.DRAINING:
            self._repairs.noted(node, now)
        pulse = cell.watch.pulses.get(node.id)
        if pulse is not None and step.reason is Reason.RECOVERED:
            pulse.rebooted = False
        if pulse is not None and step.to is State.SUSPECT:
            pulse.good = 0

    def _spare(self, node: Node, step: Step) -> Node | None:
        """The spare that takes over a leaving node's slot."""
        if not node.slot or step.to not in _LEAVING:
            return None
        spares = self._cell.spares(node.pool)
        return spares[0] if spares else None

    def _changes(self, node: Node, step: Step, facts: Facts, now: float) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if step.to is State.BOOTING:
            changes["running_at"] = node.running_at or now
        if step.to is State.READY and node.ready_at is None:
            changes["ready_at"] = now
        if step.to is State.CHECKING and facts.instance is not None and node.running_at is None:
            changes["running_at"] = now
        if facts.instance is not None and not node.zone:
            changes["zone"] = facts.instance.ref.zone
        return changes

    def _close(self, tx: Session, node: Node, step: Step, facts: Facts, now: float) -> None:
        """The launch's one outcome, its rollup, and what the boot breaker learns."""
        assert step.outcome is not None
        code = facts.instance.code if facts.instance else ""
        first = write.close_launch(tx, node, step.outcome, now=now, reason=step.reason, code=code,
                                   message=step.message)  # fmt: skip
        if not first or step.outcome in (Outcome.PREEMPTED, Outcome.CANCELLED):
            return
        rests = self._cell.view.rests
        where = scopes(node.offer, pool=node.pool, image_id=node.image_id)
        if step.outcome is Outcome.READY:
            for scope in where.values():
                if scope in rests:
                    softer = after_success(rests[scope], now)
                    if softer is None:
                        control.clear_rest(tx, scope, actor=ME, now=now)
                    elif softer != rests[scope]:
                        control.put_rest(tx, softer, actor=ME, now=now)
            return
        o = node.offer
        died = _DIED.get(step.outcome)
        if died is not None:  # refused after it was accepted: the same memory as before acceptance
            rest = rest_after(died(step.message), o, pool=node.pool, image_id=node.image_id,
                              rests=rests, now=now, luck=self._cell.chance.random())  # fmt: skip
            if rest is not None:
                control.put_rest(tx, rest, actor=ME, now=now)
            return
        outcomes = control.recent_outcomes(
            tx, pool=node.pool, image_id=node.image_id, provider=o.provider, region=o.region,
            instance_type=o.instance_type, most=BOOT_LAST,
        )  # fmt: skip
        rest = boot_rest(o, outcomes, pool=node.pool, image_id=node.image_id, rests=rests,
                         now=now, luck=self._cell.chance.random())  # fmt: skip
        if rest is not None:
            control.put_rest(tx, rest, actor=ME, now=now)


_DIED: Final = {
    Outcome.INSUFFICIENT_CAPACITY: InsufficientCapacity,
    Outcome.QUOTA_EXCEEDED: QuotaExceeded,
}
_NO_PULSE: Final = Pulse()
#: What the cloud says has ended: nothing is judged, only noted.
_ENDED: Final = (Reason.EXTERNALLY_TERMINATED, Reason.DIED_AFTER_ACCEPT, Reason.PREEMPTED)
_KEEPS: Final = (State.CHECKING, State.DRAINING)
_LEAVING: Final = (State.DRAINING, State.QUARANTINED, State.TERMINATING)

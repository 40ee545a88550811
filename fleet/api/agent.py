"""The door for agents: register and report, as one plain function over bytes.

Invariant: a request that is refused changes nothing but a counter; one node's token reaches that
node's rows only; what was acknowledged and changes a decision was committed before the answer.
The ASGI route, the simulator's direct transport and tests all come through ``handle``.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import insert, select, update
from sqlmodel import Session, col

from fleet import gate
from fleet.api.wire import REGISTER, REPORT, Register, Report
from fleet.cell import Cell
from fleet.errors import StoreError
from fleet.model import (
    Actor,
    CheckStatus,
    Fault,
    HealthReport,
    Instance,
    Node,
    Reason,
    Severity,
    State,
)  # fmt: skip
from fleet.store import control, write
from fleet.store.tables import BatchRow, JoinRow
from fleet.tokens import digest
from fleet.watch import Pulse

Answer = tuple[int, Mapping[str, str], bytes]

JSON_TYPE: Final = {"content-type": "application/json"}
REGISTER_BYTES: Final = 16 * 1024
#: Joining may be retried this often per boot token and report; more is 429 (trust.md 1.4).
RATE_WINDOW_S: Final = 10.0
RATE_REPORTS: Final = 40
RATE_JOINS: Final = 200
_SERVING: Final = (State.READY, State.SUSPECT)
_BOOTING: Final = (State.LAUNCHING, State.BOOTING)


class AgentDoor:
    """Agent requests of one cell."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._nodes: dict[str, str] = {}
        self._rate: dict[str, tuple[float, int]] = {}

    async def load(self) -> None:
        """Read which node tokens are good; called once before the listener opens."""

        def fn(tx: Session) -> dict[str, str]:
            rows = tx.execute(
                select(col(JoinRow.node_token_hash), col(JoinRow.node_id)).where(
                    col(JoinRow.revoked_at).is_(None)
                )
            )
            return {row[0]: row[1] for row in rows}

        self._nodes = await self._cell.store.run(fn)

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str = ""
    ) -> Answer:
        """Answer one request; never raises for anything a client can send."""
        work: Callable[[Mapping[str, str], bytes, str], Awaitable[Answer]]
        if path == "/v1/agent/report":
            work = self._report
        elif path == "/v1/agent/register":
            work = self._register
        else:
            return problem(404, "not_found", "no such route")
        if method != "POST":
            return problem(405, "method_not_allowed", "use POST")
        try:
            return await work(headers, body, peer)
        except StoreError as error:
            # Not acknowledged: the agent keeps the report and sends it again.
            return problem(503, "store_unavailable", str(error), {"retry-after": "5"})

    # -- report ----------------------------------------------------------------------------------

    async def _report(self, headers: Mapping[str, str], body: bytes, _peer: str) -> Answer:
        cell = self._cell
        token = headers.get("authorization", "")
        hashed = digest(token[7:]) if token.startswith("Bearer ") else ""
        node_id = self._nodes.get(hashed)
        if node_id is None:
            return self._refuse(401, "unauthorized", "unknown or revoked node token")
        node = cell.view.nodes.get(node_id)
        if node is None:
            self._nodes.pop(hashed, None)
            return self._refuse(410, "node_ended", "this node has ended")
        if len(body) > cell.settings.limits.body_bytes:
            return self._refuse(413, "too_long", "the report is too long")
        now = cell.clock.now()
        if self._too_many(node_id, RATE_REPORTS):
            return self._refuse(429, "too_many", "slow down", {"retry-after": "10"})
        try:
            report = REPORT.validate_json(body)
        except (ValidationError, ValueError, RecursionError) as error:
            return self._refuse(422, "malformed", _first(error))
        pulse = cell.watch.pulse(node_id)
        if report.boot_id == pulse.boot_id and report.seq <= pulse.seq:
            return self._refuse(409, "replayed", f"seq {report.seq} was seen before")
        await self._take(node, pulse, report, now)
        return self._next(cell.view.nodes.get(node_id, node), pulse)

    async def _take(self, node: Node, pulse: Pulse, report: Report, now: float) -> None:
        """Note a good report; commit and wake only if it changes a decision."""
        cell = self._cell
        plain = not (
            report.checks or report.faults or report.notice or report.drained
            or report.kind == "gate"
        )  # fmt: skip
        if plain and report.boot_id == pulse.boot_id and node.first_report_at is not None:
            pulse.seq, pulse.last_at = report.seq, now
            pulse.reports += 1
            pulse.good += 1
            if node.state is State.SUSPECT:
                cell.watch.dirty.add(node.id)
                cell.wake("lifecycle")
            return
        health = report.health()
        faults = found_faults(health, gate=report.kind == "gate")
        await self._commit(node, report, faults, now)
        calm = node.state is State.READY and not (faults or report.notice or report.drained)
        calm = calm and pulse.warning is None and report.boot_id == pulse.boot_id
        self._absorb(node, pulse, report, health, faults, now)
        if calm and not pulse.rebooted:
            return
        cell.watch.dirty.add(node.id)
        cell.wake("lifecycle")

    async def _commit(self, node: Node, report: Report, faults: list[Fault], now: float) -> None:
        cell = self._cell
        rules = cell.rules(node.pool)
        first = node.first_report_at is None and node.state in _BOOTING
        new_boot = report.boot_id != node.boot_id
        drained = report.drained and node.drained_at is None
        cured = self._cured(node, report, faults)
        if not (first or new_boot or faults or drained or cured):
            return

        def fn(tx: Session) -> None:
            changes: dict[str, Any] = {}
            if first:
                changes["first_report_at"] = now
            if new_boot:
                changes["boot_id"] = report.boot_id
            if drained:
                changes["drained_at"] = now
            if (new_boot and node.boot_id) or cured:
                control.clear_faults(tx, node.id, now)
            if cured:
                changes["fault"] = ""
            worst = ""
            for fault in faults:
                severity = rules.severity(fault) if rules else Severity.WARNING
                control.add_fault(tx, node, report.boot_id, fault, severity, now)
                if severity is Severity.FATAL:
                    worst = worst or fault.code
            if worst and worst != node.fault:
                changes["fault"] = worst
            if changes:
                write.update_node(tx, node, **changes)

        await cell.commit(fn)

    def _cured(self, node: Node, report: Report, faults: list[Fault]) -> bool:
        """A gate that passes takes back a fatal fault that was only told before."""
        rules, pulse = self._cell.rules(node.pool), self._cell.watch.pulse(node.id)
        if report.kind != "gate" or pulse.fatal is None or rules is None or faults:
            return False
        verdict = gate.judge(report.health(), rules.gate)
        return verdict is not None and verdict.ok

    def _absorb(
        self, node: Node, pulse: Pulse, report: Report, health: HealthReport,
        faults: list[Fault], now: float,
    ) -> None:  # fmt: skip
        if report.boot_id != pulse.boot_id:
            if pulse.boot_id and node.state in _SERVING:
                pulse.rebooted = True  # READY again only after its gate passed again (PC-181)
            pulse.boot_id, pulse.gate_report = report.boot_id, None
            pulse.cured()
            pulse.warning = pulse.warning_since = None
        pulse.seq, pulse.last_at = report.seq, now
        pulse.reports += 1
        if self._cured(node, report, faults):
            pulse.cured()
        if report.kind == "gate":
            pulse.gate_report = health
        if report.checks or report.kind == "gate":
            pulse.last_report = health
        if health.notice:
            spot = health.notice == "spot"
            pulse.notice_reason = Reason.SPOT_NOTICE if spot else Reason.MAINTENANCE_NOTICE
            pulse.notice = (
                report.notice.message or f"{health.notice} notice" if report.notice else ""
            )
        pulse.drained = pulse.drained or report.drained
        self._weigh(node, pulse, report, faults, now)

    def _weigh(
        self, node: Node, pulse: Pulse, report: Report, faults: list[Fault], now: float
    ) -> None:
        rules = self._cell.rules(node.pool)
        warned, fatal = False, None
        for fault in faults:
            severity = rules.severity(fault) if rules else Severity.WARNING
            if severity is Severity.FATAL:
                fatal = fatal or fault
            elif severity is Severity.WARNING:
                warned = True
                pulse.warning = fault
                pulse.warning_since = pulse.warning_since or now
        if fatal is None and report.kind == "gate":
            fatal = pulse.fatal  # not cured by this gate: it stands
        if fatal is not None:
            pulse.condemned(fatal, now)
        if warned or pulse.fatal is not None:
            pulse.good = 0
        else:
            pulse.good += 1
            if report.checks:  # a full look without the warning: it is gone
                pulse.warning, pulse.warning_since = None, None

    def _next(self, node: Node, pulse: Pulse) -> Answer:
        commands: list[dict[str, str]] = []
        if node.state is State.DRAINING and node.drained_at is None:
            commands.append({"id": f"drain-{node.id}", "kind": "drain"})
        gate_due = node.state is State.CHECKING or pulse.rebooted
        if gate_due and pulse.gate_report is None:
            commands.append({"id": f"gate-{node.id}-{pulse.boot_id}", "kind": "gate"})
        elif pulse.fatal is not None and pulse.stands(self._cell.clock.now()) is None:
            again = f"gate-{node.id}-{pulse.boot_id}-{pulse.fatal_n}"
            commands.append({"id": again, "kind": "gate"})
        rules = self._cell.rules(node.pool)
        next_s = rules.health.spec.report.interval_s if rules else 15.0
        if not commands and next_s in _PLAIN and node.state is State.READY:
            return _PLAIN[next_s]
        answer = (
            200, JSON_TYPE,
            json.dumps({"next_s": next_s, "commands": commands, "state": node.state}).encode(),
        )  # fmt: skip
        if not commands and node.state is State.READY and len(_PLAIN) < 64:
            _PLAIN[next_s] = answer
        return answer

    # -- register --------------------------------------------------------------------------------

    async def _register(self, _headers: Mapping[str, str], body: bytes, peer: str) -> Answer:
        cell = self._cell
        if len(body) > REGISTER_BYTES:
            return self._refuse(413, "too_long", "the request is too long")
        now = cell.clock.now()
        if self._too_many(f"join:{peer}", RATE_JOINS):
            return self._refuse(429, "too_many", "slow down", {"retry-after": "10"})
        try:
            join = REGISTER.validate_json(body)
        except (ValidationError, ValueError, RecursionError) as error:
            return self._refuse(422, "malformed", _first(error))
        before = await cell.store.run(lambda tx: tx.get(JoinRow, (join.provider, join.instance_id)))
        if before is not None:
            return await self._rejoin(join, before, now)
        batch, why = await self._batch(join, now)
        if why or batch is None:
            return self._refuse(401, "join_refused", "the join was refused", detail=why)
        seen = cell.watch.sightings.get(join.provider)
        instance = seen.instances.get(join.instance_id) if seen else None
        if instance is None or not instance.exists or instance.token != batch.token:
            if instance is not None:
                return self._refuse(401, "join_refused", "the join was refused",
                                    detail="instance is listed under another batch")  # fmt: skip
            cell.wake("observe")
            return problem(425, "not_listed", "the cloud does not list it yet",
                           {"retry-after": "5"})  # fmt: skip
        return await self._join(join, batch, instance, now)

    async def _batch(self, join: Register, now: float) -> tuple[BatchRow | None, str]:
        """The batch whose boot token this is, or why it is refused."""
        hashed = digest(join.boot_token)
        batch = await self._cell.store.run(
            lambda tx: tx.execute(
                select(BatchRow).where(col(BatchRow.boot_hash) == hashed)
            ).scalar_one_or_none()
        )
        if batch is None or not hmac.compare_digest(batch.boot_hash, hashed):
            return None, "unknown boot token"
        if now > batch.boot_expires_at:
            return None, "boot token expired"
        if batch.boot_uses >= batch.n:
            return None, f"boot token used {batch.boot_uses} of {batch.n} times"
        if batch.provider != join.provider:
            return None, "boot token of another provider"
        return batch, ""

    async def _join(
        self, join: Register, batch: BatchRow, instance: Instance, now: float
    ) -> Answer:
        cell = self._cell
        node = cell.view.node_of(join.provider, join.instance_id)
        if node is None:
            cell.wake("observe")
            return problem(425, "not_bound", "the instance is not bound yet", {"retry-after": "2"})
        if node.state not in (*_BOOTING, State.CHECKING):
            return self._refuse(401, "join_refused", "the join was refused",
                                detail=f"node {node.id} is {node.state}")  # fmt: skip
        if cell.rules(node.pool) is None:
            return self._no_pool(node, now)
        token = cell.chance.token()

        def fn(tx: Session) -> bool:
            hit = tx.execute(
                update(BatchRow)
                .where(
                    col(BatchRow.token) == batch.token, col(BatchRow.boot_uses) < col(BatchRow.n)
                )
                .values(boot_uses=col(BatchRow.boot_uses) + 1)
            )
            if write.hits(hit) != 1:
                return False
            tx.execute(
                insert(JoinRow).values(
                    provider=join.provider, instance_id=join.instance_id, node_id=node.id,
                    token=batch.token, key_hash=digest(join.key), node_token_hash=digest(token),
                    at=now,
                )
            )  # fmt: skip
            return True

        if not await cell.commit(fn):
            return self._refuse(401, "join_refused", "the join was refused", detail="token used up")
        self._nodes[digest(token)] = node.id
        cell.watch.pulse(node.id).last_at = now
        return self._welcome(201, node, token)

    async def _rejoin(self, join: Register, before: JoinRow, now: float) -> Answer:
        cell = self._cell
        node = cell.view.nodes.get(before.node_id)
        if node is None or before.revoked_at is not None:
            return self._refuse(410, "node_ended", "this node has ended")
        if not hmac.compare_digest(before.key_hash, digest(join.key)):
            text = f"{join.instance_id} tried to join again with another key"
            await cell.commit(cell.note("node", node.id, Reason.REPORT_REFUSED, text,
                                        actor=Actor.AGENT, pool=node.pool))  # fmt: skip
            return self._refuse(409, "join_conflict", "this instance has joined with another key")
        token = cell.chance.token()

        def fn(tx: Session) -> None:
            tx.execute(
                update(JoinRow)
                .where(
                    col(JoinRow.provider) == join.provider,
                    col(JoinRow.instance_id) == join.instance_id,
                )
                .values(node_token_hash=digest(token), at=now)
            )

        await cell.store.run(fn)
        self._nodes = {h: n for h, n in self._nodes.items() if n != node.id}
        self._nodes[digest(token)] = node.id
        return self._welcome(200, node, token)

    def _no_pool(self, node: Node, now: float) -> Answer:
        """An adopted machine whose pool nobody has applied yet: what its gate must show is not
        known, so it waits at the door; that it knocks says that it lives.
        """
        self._cell.watch.pulse(node.id).last_at = now
        text = f"pool {node.pool} is not applied here"
        return problem(425, "no_pool", text, {"retry-after": "15"})

    def _welcome(self, status: int, node: Node, token: str) -> Answer:
        rules = self._cell.rules(node.pool)
        body = {
            "node": node.id,
            "node_token": token,
            "report_interval_s": rules.health.spec.report.interval_s if rules else 15.0,
            "required_checks": sorted(rules.gate.required) if rules else [],
        }
        return status, JSON_TYPE, json.dumps(body).encode()

    # -- small -----------------------------------------------------------------------------------

    def _too_many(self, key: str, most: int) -> bool:
        now = self._cell.clock.monotonic()
        start, n = self._rate.get(key, (now, 0))
        if now - start >= RATE_WINDOW_S:
            start, n = now, 0
        if len(self._rate) > 100_000:
            self._rate.clear()
        self._rate[key] = (start, n + 1)
        return n >= most

    def _refuse(self, status: int, code: str, text: str, headers: Mapping[str, str] | None = None,
                *, detail: str = "") -> Answer:  # fmt: skip
        self._cell.count_refused(f"{code}: {detail}" if detail and len(detail) < 40 else code)
        return problem(status, code, text, headers)


_PLAIN: dict[float, Answer] = {}


def found_faults(report: HealthReport, *, gate: bool) -> list[Fault]:
    """The faults in a report: those named, and failed checks outside the gate by their name."""
    faults = list(report.faults)
    if not gate:
        faults += [
            Fault(c.name, c.gpu, c.message, 0.0)
            for c in report.checks
            if c.status is CheckStatus.FAIL
        ]
    return faults


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None
) -> Answer:
    """A problem document (RFC 9457)."""
    body = json.dumps({"type": "about:blank", "status": status, "code": code, "detail": detail})
    return status, {"content-type": "application/problem+json", **(headers or {})}, body.encode()


def _first(error: Exception) -> str:
    """Where and what, never the input's own text (it may carry anything)."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}"[:300]
    return type(error).__name__

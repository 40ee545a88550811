"""The life of a node: the table of allowed moves and the one pure function that picks the next.

Invariant: ``advance`` decides from timestamps and observations only, never from another
component's phase name; every state it can leave a node in has a deadline in ``deadline`` or is
READY or TERMINATED; and nothing it returns is outside ``NEXT``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fleet.model import (
    JSON,
    NO_EVIDENCE,
    Fault,
    Instance,
    Node,
    Outcome,
    Phase,
    Reason,
    State,
    Verdict,
)

S = State

NEXT: Final[dict[State, frozenset[State]]] = {
    S.REQUESTED: frozenset({S.LAUNCHING, S.TERMINATED}),
    S.LAUNCHING: frozenset({S.BOOTING, S.TERMINATING}),
    S.BOOTING: frozenset({S.CHECKING, S.TERMINATING}),
    S.CHECKING: frozenset({S.READY, S.QUARANTINED, S.TERMINATING}),
    S.READY: frozenset({S.SUSPECT, S.DRAINING, S.TERMINATING}),
    S.SUSPECT: frozenset({S.READY, S.DRAINING, S.TERMINATING}),
    S.DRAINING: frozenset({S.QUARANTINED, S.TERMINATING}),
    S.QUARANTINED: frozenset({S.TERMINATING}),
    S.TERMINATING: frozenset({S.TERMINATED}),
    S.TERMINATED: frozenset(),
}


class Listed(StrEnum):
    """What the cloud's complete lists say of a node's instance.

    ``MISSING`` is only said after the visibility window, several complete lists without the
    instance, and never from an empty or truncated answer alone.
    """

    UNKNOWN = "unknown"
    PRESENT = "present"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Rules:
    """Deadlines and thresholds for one node, in seconds; defaults are field.md section 2."""

    request_s: float = 900.0
    launch_s: float = 300.0
    boot_s: float = 900.0
    gate_s: float = 300.0
    silent_s: float = 90.0
    replace_silent_s: float = 600.0
    warning_persist_s: float = 600.0
    drain_s: float = 600.0
    quarantine_s: float = 7200.0
    terminate_alarm_s: float = 900.0
    good_reports: int = 2
    repair: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything observed of one node; unknown is None or UNKNOWN, never a guess."""

    instance: Instance | None = None
    listed: Listed = Listed.UNKNOWN
    last_report_at: float | None = None
    good_reports: int = 0
    gate: Verdict | None = None
    fatal: Fault | None = None
    warning: Fault | None = None
    warning_since: float | None = None
    notice: str = ""
    notice_reason: Reason = Reason.SPOT_NOTICE
    drained: bool = False
    assigned: bool = False
    rebooted: bool = False
    replacement_ready: bool = False
    quarantine_free: bool = False
    #: The cloud has answered lately: what it does not show as running is not running.
    lists_fresh: bool = True


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the guards permit for this node in this pass."""

    judge: bool = True
    #: Silence may be judged: agents of this provider are not silent together (Blindness).
    silence: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A decided move. ``budget`` says that it takes a serving node away by our own judgement."""

    to: State
    reason: Reason
    message: str = ""
    outcome: Outcome | None = None
    budget: bool = False
    evidence: JSON = field(default_factory=lambda: NO_EVIDENCE)


_STATE_DEADLINE: Final[dict[State, str]] = {
    S.REQUESTED: "request_s",
    S.LAUNCHING: "launch_s",
    S.BOOTING: "boot_s",
    S.CHECKING: "gate_s",
    S.SUSPECT: "replace_silent_s",
    S.DRAINING: "drain_s",
    S.QUARANTINED: "quarantine_s",
    S.TERMINATING: "terminate_alarm_s",
}


def deadline(state: State, since: float, rules: Rules) -> float | None:
    """When ``state``, entered at ``since``, must have been left; None for READY and TERMINATED.

    TERMINATING's deadline raises an alarm and never closes the record: only the cloud's word does.
    """
    name = _STATE_DEADLINE.get(state)
    return None if name is None else since + float(getattr(rules, name))


def advance(
    node: Node, facts: Facts, now: float, rules: Rules, allowed: Allowed = Allowed()
) -> Step | None:
    """The next step for ``node``, or None to stay.

    Pure. ``facts`` may be stale or unknown; every conclusion that destroys something needs
    positive evidence, and REQUESTED/TERMINATING nodes are moved by the launch and reap loops.
    """
    gone = _gone(node, facts) if node.state not in _NOT_LISTED else None
    if gone is not None:
        return gone
    handler = _HANDLERS.get(node.state)
    return handler(node, facts, now, rules, allowed) if handler else None


def due(node: Node, facts: Facts, rules: Rules) -> float | None:
    """The earliest time at which ``advance`` could act on ``node`` if nothing new were learned,
    None if time alone never does. May lie in the past while a guard holds a step back.
    """
    if node.state is S.LAUNCHING:
        return (node.accepted_at or node.requested_at or node.state_since) + rules.launch_s
    if node.state is S.BOOTING:
        return (node.running_at or node.state_since) + rules.boot_s
    if node.state in (S.READY, S.SUSPECT):
        last = node.state_since if facts.last_report_at is None else facts.last_report_at
        ready = node.state is S.READY
        silent = last + (rules.silent_s if ready else rules.replace_silent_s)
        if facts.warning is None or facts.warning_since is None:
            return silent if ready else min(silent, node.state_since + rules.replace_silent_s)
        since = facts.warning_since + rules.warning_persist_s
        return min(silent, since if ready else node.state_since + rules.replace_silent_s)
    return deadline(node.state, node.state_since, rules)


_NOT_LISTED: Final = frozenset({S.REQUESTED, S.TERMINATING, S.TERMINATED})


def _gone(node: Node, facts: Facts) -> Step | None:
    """The instance ended outside our will: the state decides what that says of the launch."""
    inst = facts.instance
    ended = inst is not None and inst.phase in (
        Phase.TERMINATED,
        Phase.FAILED,
        Phase.STOPPED,
    )
    if not ended and facts.listed is not Listed.MISSING:
        return None
    code = inst.code if inst else ""
    text = (inst.message if inst else "") or "no complete list shows the instance any more"
    message = f"{code}: {text}" if code else text
    evidence = {"code": code, "phase": inst.phase if inst else "missing"}
    early = node.state in (S.LAUNCHING, S.BOOTING, S.CHECKING)
    if inst is not None and inst.preempted:
        outcome = Outcome.PREEMPTED if early else None
        return Step(S.TERMINATING, Reason.PREEMPTED, message, outcome, evidence=evidence)
    if early:
        outcome = (inst.died if inst else None) or Outcome.LOST
        return Step(S.TERMINATING, Reason.DIED_AFTER_ACCEPT, message, outcome, evidence=evidence)
    return Step(S.TERMINATING, Reason.EXTERNALLY_TERMINATED, message, evidence=evidence)


def _launching(node: Node, facts: Facts, now: float, rules: Rules, _: Allowed) -> Step | None:
    if node.wish:
        return _cancel(node)
    if facts.instance is not None and facts.instance.phase is Phase.RUNNING:
        return Step(S.BOOTING, Reason.INSTANCE_RUNNING)
    since = node.accepted_at or node.requested_at or node.state_since
    if now >= since + rules.launch_s and facts.lists_fresh:
        if taken := _taken(facts):
            return taken
        if node.instance_id:
            return Step(
                S.TERMINATING,
                Reason.LAUNCH_TIMEOUT,
                f"not running {_s(now - since)} after the cloud accepted it",
                Outcome.BOOT_TIMEOUT,
            )
        return Step(
            S.TERMINATING,
            Reason.NEVER_LISTED,
            f"the create call was never confirmed in {_s(now - since)}",
            Outcome.LOST,
        )
    return None


def _booting(node: Node, facts: Facts, now: float, rules: Rules, allowed: Allowed) -> Step | None:
    if node.wish:
        return _cancel(node)
    if node.first_report_at is not None:
        return Step(S.CHECKING, Reason.FIRST_REPORT)
    # The timer starts when the cloud says running: a wait in its queue is not boot (PC-112, 114).
    since = node.running_at or node.state_since
    if now >= since + rules.boot_s and allowed.silence:
        if taken := _taken(facts):
            return taken
        text = f"no report {_s(now - since)} after the cloud said running"
        return Step(S.TERMINATING, Reason.BOOT_TIMEOUT, text, Outcome.BOOT_TIMEOUT)
    return None


def _checking(node: Node, facts: Facts, now: float, rules: Rules, _: Allowed) -> Step | None:
    if node.wish:
        return _cancel(node)
    if taken := _taken(facts):
        return taken
    if facts.fatal is not None:
        text = _fault_text(facts.fatal)
        to = S.QUARANTINED if facts.quarantine_free else S.TERMINATING
        return Step(
            to, Reason.GATE_FAILED, text, Outcome.GATE_FAILED, evidence={"fault": facts.fatal.code}
        )
    verdict = facts.gate
    if verdict is not None and verdict.ok:
        return Step(S.READY, Reason.GATE_PASSED, verdict.summary, Outcome.READY)
    if verdict is not None:
        to = S.QUARANTINED if facts.quarantine_free else S.TERMINATING
        evidence = {"rule": verdict.rule, "source": verdict.source, **verdict.evidence}
        return Step(
            to,
            Reason.GATE_FAILED,
            verdict.summary,
            Outcome.GATE_FAILED,
            evidence=evidence,
        )
    if now >= node.state_since + rules.gate_s:
        text = f"the gate came to no verdict in {_s(now - node.state_since)}"
        return Step(S.TERMINATING, Reason.GATE_TIMEOUT, text, Outcome.GATE_FAILED)
    return None


def _taken(facts: Facts) -> Step | None:
    """The cloud takes the machine back, or has said that it will: whatever fails now says nothing
    of image and machine (PC-036).
    """
    if facts.notice:
        return Step(S.TERMINATING, facts.notice_reason, facts.notice, Outcome.PREEMPTED)
    if facts.instance is not None and facts.instance.preempted:
        text = facts.instance.message or "the cloud is taking it back"
        return Step(S.TERMINATING, Reason.PREEMPTED, text, Outcome.PREEMPTED)
    return None


def _ready(node: Node, facts: Facts, now: float, rules: Rules, allowed: Allowed) -> Step | None:
    leave = _leave(node, facts, rules, allowed)
    if leave is not None:
        return leave
    if not allowed.judge:
        return None
    silent = _silent_s(facts, now)
    if silent >= rules.silent_s and allowed.silence:
        text = f"silent {_s(silent)} of {_s(rules.replace_silent_s)}"
        return Step(S.SUSPECT, Reason.AGENT_SILENT, text)
    if facts.rebooted:
        return Step(S.SUSPECT, Reason.REBOOTED, "rebooted: serves again after its gate")
    if facts.warning is not None and _persists(facts, now, rules):
        return Step(S.SUSPECT, Reason.WARNING_PERSISTS, _fault_text(facts.warning))
    return None


def _suspect(node: Node, facts: Facts, now: float, rules: Rules, allowed: Allowed) -> Step | None:
    leave = _leave(node, facts, rules, allowed)
    if leave is not None:
        return leave
    if not allowed.judge:
        return None
    silent = _silent_s(facts, now)
    fresh = silent < rules.silent_s
    warned = facts.warning is not None
    if facts.rebooted:
        return _regate(node, facts, now, rules, allowed)
    if fresh and not warned and facts.good_reports >= rules.good_reports:
        return Step(S.READY, Reason.RECOVERED, f"{facts.good_reports} good reports")
    if not rules.repair:
        return None
    late = now >= node.state_since + rules.replace_silent_s
    # A node that speaks now and then never reaches the long silence: the state's own deadline
    # counts too, whatever reasons took turns (Karpenter #2833).
    if allowed.silence and (silent >= rules.replace_silent_s or (late and not fresh)):
        return Step(S.DRAINING, Reason.AGENT_SILENT, f"silent {_s(silent)}", budget=True)
    if fresh and warned and late:
        text = _fault_text(facts.warning)
        return Step(S.DRAINING, Reason.WARNING_PERSISTS, text, budget=True)
    return None


def _regate(node: Node, facts: Facts, now: float, rules: Rules, allowed: Allowed) -> Step | None:
    """A machine that rebooted proves itself again before it counts as healthy (PC-181)."""
    verdict = facts.gate
    if verdict is not None and verdict.ok:
        return Step(S.READY, Reason.RECOVERED, verdict.summary)
    if not rules.repair:
        return None
    if verdict is not None:
        return Step(S.DRAINING, Reason.WARNING_PERSISTS, verdict.summary, budget=True)
    if now >= node.state_since + rules.replace_silent_s and allowed.silence:
        return Step(S.DRAINING, Reason.AGENT_SILENT, "no gate after a reboot", budget=True)
    return None


def _leave(node: Node, facts: Facts, rules: Rules, allowed: Allowed) -> Step | None:
    """What makes a serving node leave at once, from strongest to weakest evidence."""
    if facts.notice:
        return Step(S.DRAINING, facts.notice_reason, facts.notice)
    if facts.fatal is not None and allowed.judge and rules.repair:
        f = facts.fatal
        evidence = {
            "fault": f.code,
            "gpu": f.gpu,
            "message": f.message,
            "seen_at": f.at,
        }
        return Step(
            S.DRAINING,
            Reason.FATAL_FAULT,
            _fault_text(f),
            budget=True,
            evidence=evidence,
        )
    if node.wish == "drain":
        return Step(S.DRAINING, Reason.OPERATOR_DRAIN, f"{node.wish_by}: {node.wish_reason}")
    if node.wish == "replace" and facts.replacement_ready:
        return Step(S.DRAINING, Reason.OPERATOR_REPLACE, f"{node.wish_by}: {node.wish_reason}")
    if node.wish in _WISHES:
        return Step(S.DRAINING, _WISHES[node.wish], node.wish_reason)
    return None


#: Wishes written by loops, beside a person's ``drain`` and ``replace``.
_WISHES: Final = {
    "surplus": Reason.SURPLUS,
    "pool_deleted": Reason.POOL_DELETED,
}


def _draining(node: Node, facts: Facts, now: float, rules: Rules, _: Allowed) -> Step | None:
    done = facts.drained or not node.last_slot  # a node that never served has nothing to drain
    late = now >= node.state_since + rules.drain_s
    if not done and not late:
        return None
    sick = node.reason in (Reason.FATAL_FAULT, Reason.WARNING_PERSISTS)
    if sick and facts.quarantine_free:
        return Step(S.QUARANTINED, Reason.QUARANTINE, node.message)
    reason = Reason.DRAIN_DONE if done else Reason.DRAIN_TIMEOUT
    return Step(S.TERMINATING, reason, node.message)


def _quarantined(node: Node, _facts: Facts, now: float, rules: Rules, _: Allowed) -> Step | None:
    if node.wish or now >= node.state_since + rules.quarantine_s:
        return Step(S.TERMINATING, Reason.QUARANTINE_OVER, node.message)
    return None


def _cancel(node: Node) -> Step:
    reason = _WISHES.get(node.wish, Reason.CANCELLED)
    return Step(S.TERMINATING, reason, node.wish_reason, Outcome.CANCELLED)


def _silent_s(facts: Facts, now: float) -> float:
    """Seconds without a report; a node that we have not heard of since start counts from then."""
    last = facts.last_report_at
    return 0.0 if last is None else now - last


def _persists(facts: Facts, now: float, rules: Rules) -> bool:
    return facts.warning_since is not None and now >= facts.warning_since + rules.warning_persist_s


def _fault_text(fault: Fault | None) -> str:
    if fault is None:
        return ""
    where = f" GPU {fault.gpu}" if fault.gpu is not None else ""
    return f"{fault.code}:{where} {fault.message}".strip()


def _s(seconds: float) -> str:
    return f"{seconds:.0f} s"


_HANDLERS: Final = {
    S.LAUNCHING: _launching,
    S.BOOTING: _booting,
    S.CHECKING: _checking,
    S.READY: _ready,
    S.SUSPECT: _suspect,
    S.DRAINING: _draining,
    S.QUARANTINED: _quarantined,
}

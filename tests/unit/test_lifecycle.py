"""The life of a node, as a table and as properties over every state and many facts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.lifecycle import NEXT, Allowed, Facts, Listed, Rules, advance, deadline
from fleet.model import (
    LIVE,
    Fault,
    Instance,
    InstanceRef,
    Market,
    Node,
    Offer,
    Outcome,
    Phase,
    Reason,
    State,
    Verdict,
)
from policies.schema.pool import Deadlines

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

S = State
T0 = 1_800_000_000.0
OFFER = Offer("aws", "us-east-1", "us-east-1a", "p5.48xlarge", Market.ON_DEMAND, "H100", 8, 55.0)
R = Rules()

#: design.md section 2, transcribed: the chain, the way back, and what its sentences add.
DIAGRAM = (
    "REQUESTED → LAUNCHING → BOOTING → CHECKING → READY",
    "READY → SUSPECT → READY",
    "SUSPECT → DRAINING → QUARANTINED → TERMINATING → TERMINATED",
    "READY → DRAINING",  # fatal evidence skips SUSPECT
    "CHECKING → QUARANTINED",  # a machine that failed its gate is kept as evidence too
    "REQUESTED → TERMINATED",  # nothing exists yet
)

#: States that the lifecycle loop must lead out of by time alone.
OWNED = (S.LAUNCHING, S.BOOTING, S.CHECKING, S.SUSPECT, S.DRAINING, S.QUARANTINED)


def node(state: State, **changes: Any) -> Node:
    """A node that entered ``state`` at T0 and has been everywhere it should have been."""
    base = Node(
        id="n-1", pool="train", state=state, state_since=T0, version=1, seq=1, token="b-1",
        offer=OFFER, image="ubuntu@1", image_id="ami-1", created_at=T0 - 10,
        reason=Reason.PLAN_SHORT, requested_at=T0 - 5, instance_id="i-1", last_slot="train-00",
    )  # fmt: skip
    if state is S.LAUNCHING:
        base = replace(base, requested_at=T0, accepted_at=T0)
    elif state is S.BOOTING:
        base = replace(base, running_at=T0)
    elif state not in (S.REQUESTED, S.LAUNCHING):
        base = replace(base, running_at=T0 - 4, first_report_at=T0 - 2)
    return replace(base, **changes)


def instance(phase: Phase, *, preempted: bool = False, died: Outcome | None = None) -> Instance:
    return Instance(
        InstanceRef("aws", "us-east-1", "us-east-1a", "i-1"), phase, "b-1",
        preempted=preempted, died=died,
    )  # fmt: skip


GOOD = Verdict(True, "passed 30/30 checks", "gate", "policy")
BAD = Verdict(False, "ecc FAIL", "gate", "policy", {"failed": ["ecc"]})
XID79 = Fault("xid_79", 3, "fell off the bus", T0)
ROWREMAP = Fault("row_remap_pending", 1, "", T0)

INSTANCES = (
    None, *(instance(p) for p in Phase),
    *(instance(p, preempted=True) for p in Phase),
    instance(Phase.FAILED, died=Outcome.INSUFFICIENT_CAPACITY),
)  # fmt: skip
WISHES = ("", "drain", "replace", "surplus", "pool_deleted")

facts_st = st.builds(
    Facts,
    instance=st.sampled_from(INSTANCES),
    listed=st.sampled_from(Listed),
    last_report_at=st.none() | st.floats(-2000.0, 0.0).map(lambda d: T0 + d),
    good_reports=st.integers(0, 3),
    gate=st.sampled_from((None, GOOD, BAD)),
    fatal=st.sampled_from((None, XID79)),
    warning=st.sampled_from((None, ROWREMAP)),
    warning_since=st.none() | st.floats(-2000.0, 0.0).map(lambda d: T0 + d),
    notice=st.sampled_from(("", "spot interruption in 2 min")),
    notice_reason=st.sampled_from((Reason.SPOT_NOTICE, Reason.MAINTENANCE_NOTICE)),
    drained=st.booleans(),
    assigned=st.booleans(),
    rebooted=st.booleans(),
    replacement_ready=st.booleans(),
    quarantine_free=st.booleans(),
)
seconds_st = st.floats(1.0, 100_000.0)
rules_st = st.builds(
    lambda silent_s, more_s, **kw: Rules(
        silent_s=silent_s, replace_silent_s=silent_s + more_s, **kw
    ),
    silent_s=st.floats(1.0, 1000.0), more_s=seconds_st, request_s=seconds_st, launch_s=seconds_st,
    boot_s=seconds_st, gate_s=seconds_st, warning_persist_s=seconds_st, drain_s=seconds_st,
    quarantine_s=seconds_st, terminate_alarm_s=seconds_st, good_reports=st.integers(1, 3),
)  # fmt: skip


# -- the table -----------------------------------------------------------------------------------


def test_next_is_the_diagram_of_the_design() -> None:
    moves: dict[State, set[State]] = {s: set() for s in State}
    for line in DIAGRAM:
        names = [S(word) for word in line.split(" → ")]
        for src, dst in pairwise(names):
            moves[src].add(dst)
    for s in LIVE - {S.REQUESTED, S.TERMINATING}:
        moves[s].add(S.TERMINATING)
    assert {s: set(to) for s, to in NEXT.items()} == moves


def test_every_state_can_end_and_nothing_comes_back_from_the_end() -> None:
    for start in LIVE:
        seen, todo = set(), [start]
        while todo:
            s = todo.pop()
            if s not in seen:
                seen.add(s)
                todo += NEXT[s]
        assert S.TERMINATED in seen
    assert not NEXT[S.TERMINATED]
    assert not NEXT[S.TERMINATING] - {S.TERMINATED}, "a deletion is never taken back"


@pytest.mark.parametrize("state", State)
def test_every_state_but_ready_and_terminated_has_a_deadline(state: State) -> None:
    until = deadline(state, T0, R)
    assert (until is None) == (state in (S.READY, S.TERMINATED))
    assert until is None or until > T0


@given(state=st.sampled_from(State), since=st.floats(0, 2e9), rules=rules_st)
def test_deadlines_are_after_the_state_was_entered(
    state: State, since: float, rules: Rules
) -> None:
    until = deadline(state, since, rules)
    assert until is None or until > since


# -- every state with every fact -----------------------------------------------------------------


def test_every_state_and_combination_of_facts_stays_within_next() -> None:
    """PC-151: every (state, event) is defined."""
    insts = (None, instance(Phase.RUNNING), instance(Phase.STOPPED),
             instance(Phase.TERMINATED, preempted=True))  # fmt: skip
    reports = (None, T0 + 999, T0 + 850, T0 - 1000)
    faults = ((None, None), (XID79, None), (None, ROWREMAP))
    n = 0
    for state, wish in product(State, WISHES):
        subject = node(state, wish=wish)
        for inst, listed, last, gate, (fatal, warning), notice, rebooted in product(
            insts,
            Listed,
            reports,
            (None, GOOD, BAD),
            faults,
            ("", "soon"),
            (False, True),
        ):
            facts = Facts(
                inst, listed, last, 2, gate, fatal, warning, T0, notice, rebooted=rebooted,
                replacement_ready=True,
            )  # fmt: skip
            step = advance(subject, facts, T0 + 1000, R)
            n += 1
            assert step is None or step.to in NEXT[state], (state, facts)
    assert n > 40_000


@settings(max_examples=400)
@given(state=st.sampled_from(State), facts=facts_st, rules=rules_st, wish=st.sampled_from(WISHES),
       ahead=st.floats(0, 200_000), judge=st.booleans(), silence=st.booleans())  # fmt: skip
def test_a_step_is_within_next_and_closes_a_launch_at_most_once(
    state: State,
    facts: Facts,
    rules: Rules,
    wish: str,
    ahead: float,
    judge: bool,
    silence: bool,
) -> None:
    step = advance(node(state, wish=wish), facts, T0 + ahead, rules, Allowed(judge, silence))
    if step is None:
        return
    assert step.to in NEXT[state]
    early = state in (S.LAUNCHING, S.BOOTING, S.CHECKING)
    ends_launch = early and step.to in (S.READY, S.QUARANTINED, S.TERMINATING)
    assert (step.outcome is not None) == ends_launch, "exactly one outcome per launch"
    assert (step.outcome is Outcome.READY) == (state is S.CHECKING and step.to is S.READY)
    assert not step.budget or state in (S.READY, S.SUSPECT)


@settings(max_examples=200)
@given(facts=facts_st, wish=st.sampled_from(WISHES), ahead=st.floats(0, 1e6))
@pytest.mark.parametrize("state", [S.REQUESTED, S.TERMINATING, S.TERMINATED])
def test_what_other_loops_own_is_left_alone(
    state: State, facts: Facts, wish: str, ahead: float
) -> None:
    assert advance(node(state, wish=wish), facts, T0 + ahead, R) is None


@settings(max_examples=400)
@given(
    state=st.sampled_from(OWNED),
    facts=facts_st,
    rules=rules_st,
    wish=st.sampled_from(WISHES),
)
def test_time_alone_leads_out_of_every_transient_state_by_its_deadline(
    state: State, facts: Facts, rules: Rules, wish: str
) -> None:
    """With the facts frozen as they were when the state was entered."""
    facts = replace(facts, last_report_at=facts.last_report_at or T0)
    until = deadline(state, T0, rules)
    assert until is not None
    assert advance(node(state, wish=wish), facts, until + 0.001, rules) is not None


@settings(max_examples=200)
@given(data=st.data(), rules=rules_st)
def test_suspect_ends_whatever_the_node_does(data: st.DataObject, rules: Rules) -> None:
    """Karpenter #2833: alternating reasons, each too short for its own timer, still end in time:
    at the latest when one more silence after the deadline is over."""
    subject = node(S.SUSPECT)
    until = deadline(S.SUSPECT, T0, rules)
    assert until is not None
    now = last = T0
    good = 0
    while now < until + rules.silent_s + 1:
        now += data.draw(st.floats(rules.replace_silent_s / 40, rules.replace_silent_s / 3))
        warned = data.draw(st.booleans())
        if data.draw(st.booleans()):
            last, good = now, 0 if warned else good + 1
        facts = Facts(
            listed=Listed.PRESENT, last_report_at=last, good_reports=good,
            warning=ROWREMAP if warned else None, warning_since=now if warned else None,
        )  # fmt: skip
        if advance(subject, facts, now, rules) is not None:
            return
    # Nothing new arrives after this: by then it must be decided.
    facts = Facts(last_report_at=last, good_reports=good)
    assert advance(subject, facts, max(now, last + rules.silent_s + 0.001), rules) is not None


def test_alternating_silence_and_warning_is_replaced_in_time() -> None:
    """The same as a story: a warning at even minutes, silence of 95 s at odd ones."""
    subject = node(S.SUSPECT, reason=Reason.AGENT_SILENT)
    left_at = None
    for i in range(1, 40):
        now = T0 + 60.0 * i
        warn = i % 2 == 0
        facts = Facts(
            last_report_at=now - 1 if warn else now - 95, good_reports=0,
            warning=ROWREMAP if warn else None, warning_since=now - 1 if warn else None,
        )  # fmt: skip
        step = advance(subject, facts, now, R)
        if step is not None:
            assert step.to is S.DRAINING
            assert step.budget
            left_at = now
            break
    assert left_at is not None
    assert left_at <= T0 + R.replace_silent_s + 60


def test_one_good_report_between_silences_does_not_keep_a_node_suspect_for_ever() -> None:
    subject = node(S.SUSPECT, reason=Reason.AGENT_SILENT)
    late = T0 + 3 * R.replace_silent_s
    facts = Facts(last_report_at=late - 500, good_reports=1)
    step = advance(subject, facts, late, R)
    assert step is not None
    assert (step.to, step.reason) == (S.DRAINING, Reason.AGENT_SILENT)


# -- silence and the unknown ---------------------------------------------------------------------


@settings(max_examples=300)
@given(
    facts=facts_st,
    rules=rules_st,
    ahead=st.floats(0, 200_000),
    state=st.sampled_from(State),
)
def test_silence_that_may_not_be_judged_never_drains(
    facts: Facts, rules: Rules, ahead: float, state: State
) -> None:
    step = advance(node(state), facts, T0 + ahead, rules, Allowed(silence=False))
    assert step is None or step.reason is not Reason.AGENT_SILENT


@settings(max_examples=300)
@given(facts=facts_st, rules=rules_st, ahead=st.floats(0, 200_000))
@pytest.mark.parametrize("state", [S.READY, S.SUSPECT])
def test_without_judgement_only_words_of_cloud_and_people_move_a_serving_node(
    state: State, facts: Facts, rules: Rules, ahead: float
) -> None:
    """PC-178, PC-121, PC-141: start-up grace and a cut-off daemon judge nobody."""
    step = advance(node(state), facts, T0 + ahead, rules, Allowed(judge=False, silence=False))
    if step is None:
        return
    told = facts.notice or facts.listed is Listed.MISSING
    ended = facts.instance is not None and facts.instance.phase in (
        Phase.TERMINATED, Phase.FAILED, Phase.STOPPED,
    )  # fmt: skip
    assert told or ended
    assert not step.budget


@settings(max_examples=200)
@given(rules=rules_st, ahead=st.floats(0, 1e6), state=st.sampled_from((S.READY, S.SUSPECT)),
       phase=st.sampled_from((None, Phase.PENDING, Phase.RUNNING, Phase.STOPPING)),
       listed=st.sampled_from((Listed.UNKNOWN, Listed.PRESENT)))  # fmt: skip
def test_unknown_never_destroys_a_serving_node(
    rules: Rules, ahead: float, state: State, phase: Phase | None, listed: Listed
) -> None:
    """PC-106, PC-162: no report known, no instance seen, no list: nothing is concluded."""
    inst = instance(phase) if phase else None
    assert advance(node(state), Facts(inst, listed), T0 + ahead, rules) is None


@settings(max_examples=200)
@given(rules=rules_st, state=st.sampled_from(OWNED), part=st.floats(0, 0.999))
def test_unknown_never_destroys_before_the_deadline(
    rules: Rules, state: State, part: float
) -> None:
    until = deadline(state, T0, rules)
    assert until is not None
    subject = node(state)
    step = advance(subject, Facts(), T0 + (until - T0) * part, rules)
    assert step is None


def test_a_cloud_that_says_stopping_is_waited_for() -> None:
    facts = Facts(instance(Phase.STOPPING), Listed.PRESENT, T0)
    assert advance(node(S.READY), facts, T0 + 10, R) is None


# -- launch and boot -----------------------------------------------------------------------------


def test_launching_becomes_booting_when_the_cloud_says_running() -> None:
    step = advance(node(S.LAUNCHING), Facts(instance(Phase.RUNNING)), T0 + 1, R)
    assert step is not None
    assert (step.to, step.reason, step.outcome) == (
        S.BOOTING,
        Reason.INSTANCE_RUNNING,
        None,
    )


@pytest.mark.parametrize(("instance_id", "reason", "outcome"), [
    ("i-1", Reason.LAUNCH_TIMEOUT, Outcome.BOOT_TIMEOUT),
    ("", Reason.NEVER_LISTED, Outcome.LOST),
])  # fmt: skip
def test_launch_timeout_says_whether_the_cloud_ever_accepted(
    instance_id: str, reason: Reason, outcome: Outcome
) -> None:
    step = advance(node(S.LAUNCHING, instance_id=instance_id), Facts(), T0 + R.launch_s, R)
    assert step is not None
    assert (step.to, step.reason, step.outcome) == (S.TERMINATING, reason, outcome)


def test_launch_timer_starts_when_the_cloud_accepts() -> None:
    """PC-114: time spent in our own or the cloud's queue before that does not count."""
    late = node(S.LAUNCHING, requested_at=T0 - 800, accepted_at=T0 + 200)
    assert advance(late, Facts(), T0 + 200 + R.launch_s - 1, R) is None
    assert advance(late, Facts(), T0 + 200 + R.launch_s, R) is not None


@settings(max_examples=100)
@given(queued=st.floats(0, 100_000))
def test_boot_timer_starts_at_running(queued: float) -> None:
    """PC-112, PC-114."""
    running_at = T0 + queued
    subject = node(S.BOOTING, running_at=running_at)
    assert advance(subject, Facts(), running_at + R.boot_s - 1, R) is None
    step = advance(subject, Facts(), running_at + R.boot_s + 1, R)
    assert step is not None
    assert (step.reason, step.outcome) == (Reason.BOOT_TIMEOUT, Outcome.BOOT_TIMEOUT)


@settings(max_examples=100)
@given(p99=st.floats(1, 20_000), metal=st.booleans())
def test_a_boot_at_p99_is_not_killed(p99: float, metal: bool) -> None:
    """PC-149, PC-202, PC-082: the deadline follows the offer's own history."""
    kind = "bm.gpu.h100.8" if metal else "p5.48xlarge"
    rules = replace(R, boot_s=Deadlines().boot_limit_s(kind, p99),
                    launch_s=Deadlines().launch_limit_s(kind, p99))  # fmt: skip
    assert advance(node(S.BOOTING), Facts(), T0 + p99, rules) is None
    assert advance(node(S.LAUNCHING), Facts(), T0 + p99, rules) is None


def test_first_report_starts_checking_even_after_the_boot_deadline() -> None:
    """PC-131: a late joiner is not ignored; the evidence that it lives wins."""
    subject = node(S.BOOTING, first_report_at=T0 + R.boot_s + 5)
    step = advance(subject, Facts(), T0 + R.boot_s + 10, R)
    assert step is not None
    assert step.to is S.CHECKING


GONE_EARLY = [
    (Phase.TERMINATED, False, None, Outcome.LOST),
    (Phase.FAILED, False, None, Outcome.LOST),
    (Phase.FAILED, False, Outcome.INSUFFICIENT_CAPACITY, Outcome.INSUFFICIENT_CAPACITY),
    (Phase.TERMINATED, False, Outcome.QUOTA_EXCEEDED, Outcome.QUOTA_EXCEEDED),
    (Phase.TERMINATED, True, None, Outcome.PREEMPTED),
    (Phase.STOPPED, True, None, Outcome.PREEMPTED),
]


@pytest.mark.parametrize("state", [S.LAUNCHING, S.BOOTING, S.CHECKING])
@pytest.mark.parametrize(("phase", "preempted", "died", "outcome"), GONE_EARLY)
def test_what_a_death_before_ready_says_of_the_launch(
    state: State, phase: Phase, preempted: bool, died: Outcome | None, outcome: Outcome
) -> None:
    """PC-036, PC-137, PC-199: capacity and preemption blame no image."""
    facts = Facts(instance(phase, preempted=preempted, died=died), Listed.PRESENT)
    step = advance(node(state), facts, T0 + 1, R)
    assert step is not None
    assert (step.to, step.outcome) == (S.TERMINATING, outcome)


@pytest.mark.parametrize("state", [S.LAUNCHING, S.BOOTING, S.CHECKING])
def test_preemption_seen_before_the_machine_is_gone_is_not_the_images_fault(
    state: State,
) -> None:
    """PC-036: the cloud already says preempted while the instance is still stopping, and at the
    same time the deadline passes or a check fails."""
    facts = Facts(instance(Phase.STOPPING, preempted=True), Listed.PRESENT, gate=BAD)
    step = advance(node(state), facts, T0 + 10_000, R)
    assert step is not None
    assert (step.to, step.outcome) == (S.TERMINATING, Outcome.PREEMPTED)


@pytest.mark.parametrize("state", [S.LAUNCHING, S.BOOTING, S.CHECKING])
def test_a_spot_notice_during_boot_is_a_preemption(state: State) -> None:
    """PC-036."""
    facts = Facts(instance(Phase.PENDING), Listed.PRESENT, gate=BAD, notice="spot: 2 minutes")
    step = advance(node(state), facts, T0 + 10_000, R)
    assert step is not None
    assert (step.to, step.outcome) == (S.TERMINATING, Outcome.PREEMPTED)


@pytest.mark.parametrize("state", [S.READY, S.SUSPECT, S.DRAINING, S.QUARANTINED])
@pytest.mark.parametrize(("facts", "reason"), [
    (Facts(instance(Phase.TERMINATED)), Reason.EXTERNALLY_TERMINATED),
    (Facts(listed=Listed.MISSING), Reason.EXTERNALLY_TERMINATED),
    (Facts(instance(Phase.STOPPED, preempted=True)), Reason.PREEMPTED),
])  # fmt: skip
def test_a_machine_that_ended_outside_our_will(state: State, facts: Facts, reason: Reason) -> None:
    """PC-023: detected and named; the launch's outcome (READY) stands."""
    step = advance(node(state), facts, T0 + 1, R)
    assert step is not None
    assert (step.to, step.reason, step.outcome, step.budget) == (
        S.TERMINATING,
        reason,
        None,
        False,
    )


# -- gate ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gate", "free", "to", "outcome"), [
    (GOOD, False, S.READY, Outcome.READY),
    (BAD, False, S.TERMINATING, Outcome.GATE_FAILED),
    (BAD, True, S.QUARANTINED, Outcome.GATE_FAILED),
])  # fmt: skip
def test_the_gates_verdict_decides(gate: Verdict, free: bool, to: State, outcome: Outcome) -> None:
    step = advance(node(S.CHECKING), Facts(gate=gate, quarantine_free=free), T0 + 1, R)
    assert step is not None
    assert (step.to, step.outcome) == (to, outcome)


def test_an_unknown_gate_waits_until_its_deadline() -> None:
    assert advance(node(S.CHECKING), Facts(), T0 + R.gate_s - 1, R) is None
    step = advance(node(S.CHECKING), Facts(), T0 + R.gate_s, R)
    assert step is not None
    assert (step.to, step.reason) == (S.TERMINATING, Reason.GATE_TIMEOUT)


def test_a_failed_gate_names_rule_source_and_evidence() -> None:
    step = advance(node(S.CHECKING), Facts(gate=BAD), T0 + 1, R)
    assert step is not None
    assert step.evidence == {"rule": "gate", "source": "policy", "failed": ["ecc"]}


# -- health of serving nodes ---------------------------------------------------------------------


@pytest.mark.parametrize(("silent", "to"), [(89, None), (90, S.SUSPECT), (5000, S.SUSPECT)])
def test_ready_and_silent(silent: float, to: State | None) -> None:
    """PC-009; one step at a time, also after a long blackout."""
    step = advance(node(S.READY), Facts(last_report_at=T0 - silent), T0, R)
    assert (step.to if step else None) is to


def test_a_silent_suspect_is_replaced_after_the_limit_and_not_before() -> None:
    """PC-134: within the configured time."""
    subject = node(S.SUSPECT)
    facts = Facts(last_report_at=T0 - R.silent_s)
    assert advance(subject, facts, T0 - R.silent_s + R.replace_silent_s - 1, R) is None
    step = advance(subject, facts, T0 - R.silent_s + R.replace_silent_s, R)
    assert step is not None
    assert (step.to, step.reason, step.budget) == (
        S.DRAINING,
        Reason.AGENT_SILENT,
        True,
    )


def test_a_suspect_that_speaks_again_returns() -> None:
    """PC-142, PC-186: after k good reports; fewer are not enough."""
    facts = Facts(last_report_at=T0 + 50, good_reports=R.good_reports)
    step = advance(node(S.SUSPECT), facts, T0 + 51, R)
    assert step is not None
    assert (step.to, step.reason) == (S.READY, Reason.RECOVERED)
    few = replace(facts, good_reports=R.good_reports - 1)
    assert advance(node(S.SUSPECT), few, T0 + 51, R) is None


def test_a_warning_must_persist() -> None:
    """PC-147: warnings do not replace, and do not even suspect at once."""
    facts = Facts(last_report_at=T0 + R.warning_persist_s - 1, warning=ROWREMAP, warning_since=T0)
    assert advance(node(S.READY), facts, T0 + R.warning_persist_s - 1, R) is None
    step = advance(node(S.READY), facts, T0 + R.warning_persist_s, R)
    assert step is not None
    assert (step.to, step.reason, step.budget) == (
        S.SUSPECT,
        Reason.WARNING_PERSISTS,
        False,
    )


@pytest.mark.parametrize("state", [S.READY, S.SUSPECT])
def test_fatal_evidence_drains_at_once_within_the_budget(state: State) -> None:
    step = advance(node(state), Facts(last_report_at=T0, fatal=XID79), T0 + 1, R)
    assert step is not None
    assert (step.to, step.reason, step.budget) == (S.DRAINING, Reason.FATAL_FAULT, True)
    assert step.evidence["fault"] == "xid_79"
    assert "GPU 3" in step.message


@settings(max_examples=200)
@given(
    facts=facts_st,
    ahead=st.floats(0, 100_000),
    state=st.sampled_from((S.READY, S.SUSPECT)),
)
def test_repair_none_takes_no_node_away_for_its_health(
    facts: Facts, ahead: float, state: State
) -> None:
    """PC-143: judge and report only."""
    step = advance(node(state), facts, T0 + ahead, replace(R, repair=False))
    assert step is None or not step.budget


def test_a_reboot_makes_suspect_and_only_a_passed_gate_makes_ready() -> None:
    """PC-181: healthy means proven again."""
    up = Facts(last_report_at=T0 + 20, good_reports=9, rebooted=True)
    step = advance(node(S.READY), up, T0 + 20, R)
    assert step is not None
    assert (step.to, step.reason) == (S.SUSPECT, Reason.REBOOTED)
    suspect = node(S.SUSPECT, reason=Reason.REBOOTED)
    assert advance(suspect, up, T0 + 21, R) is None, "good reports alone do not do"
    step = advance(suspect, replace(up, gate=GOOD), T0 + 21, R)
    assert step is not None
    assert (step.to, step.reason) == (S.READY, Reason.RECOVERED)
    step = advance(suspect, replace(up, gate=BAD), T0 + 21, R)
    assert step is not None
    assert (step.to, step.budget) == (S.DRAINING, True)
    step = advance(suspect, up, T0 + R.replace_silent_s, R)
    assert step is not None
    assert (step.to, step.budget) == (S.DRAINING, True)


# -- operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.LAUNCHING, S.BOOTING, S.CHECKING])
@pytest.mark.parametrize(("wish", "reason"), [
    ("drain", Reason.CANCELLED), ("replace", Reason.CANCELLED),
    ("surplus", Reason.SURPLUS), ("pool_deleted", Reason.POOL_DELETED),
])  # fmt: skip
def test_a_wish_cancels_what_does_not_serve_yet(state: State, wish: str, reason: Reason) -> None:
    """PC-140: honoured at each step."""
    step = advance(node(state, wish=wish, wish_reason="because"), Facts(), T0 + 1, R)
    assert step is not None
    assert (step.to, step.reason, step.outcome) == (
        S.TERMINATING,
        reason,
        Outcome.CANCELLED,
    )


@pytest.mark.parametrize("state", [S.READY, S.SUSPECT])
@pytest.mark.parametrize(("wish", "reason"), [
    ("drain", Reason.OPERATOR_DRAIN), ("surplus", Reason.SURPLUS),
    ("pool_deleted", Reason.POOL_DELETED),
])  # fmt: skip
def test_a_wish_drains_what_serves_also_while_nothing_may_be_judged(
    state: State, wish: str, reason: Reason
) -> None:
    subject = node(state, wish=wish, wish_by="user:ann", wish_reason="rack move")
    step = advance(subject, Facts(last_report_at=T0), T0, R, Allowed(False, False))
    assert step is not None
    assert (step.to, step.reason, step.budget) == (S.DRAINING, reason, False)
    assert "rack move" in step.message


def test_replace_waits_for_its_replacement() -> None:
    """PC-063: the old node leaves only when the new one is READY."""
    subject = node(S.READY, wish="replace")
    facts = Facts(last_report_at=T0)
    assert advance(subject, facts, T0 + 1, R) is None
    step = advance(subject, replace(facts, replacement_ready=True), T0 + 1, R)
    assert step is not None
    assert (step.to, step.reason) == (S.DRAINING, Reason.OPERATOR_REPLACE)


def test_a_wish_ends_quarantine_early() -> None:
    step = advance(node(S.QUARANTINED, wish="drain"), Facts(), T0 + 1, R)
    assert step is not None
    assert (step.to, step.reason) == (S.TERMINATING, Reason.QUARANTINE_OVER)


# -- leaving -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drained", "last_slot", "ahead", "reason"), [
    (False, "train-00", 1, None),
    (True, "train-00", 1, Reason.DRAIN_DONE),
    (False, "", 1, Reason.DRAIN_DONE),
    (False, "train-00", 600, Reason.DRAIN_TIMEOUT),
    (True, "train-00", 600, Reason.DRAIN_DONE),
])  # fmt: skip
def test_draining_ends_when_drained_when_it_never_served_or_when_time_is_up(
    drained: bool, last_slot: str, ahead: float, reason: Reason | None
) -> None:
    subject = node(S.DRAINING, last_slot=last_slot, reason=Reason.SURPLUS)
    step = advance(subject, Facts(drained=drained), T0 + ahead, R)
    assert (step.reason if step else None) is reason
    assert step is None or step.to is S.TERMINATING


@pytest.mark.parametrize(("reason", "free", "to"), [
    (Reason.FATAL_FAULT, True, S.QUARANTINED), (Reason.FATAL_FAULT, False, S.TERMINATING),
    (Reason.WARNING_PERSISTS, True, S.QUARANTINED), (Reason.SURPLUS, True, S.TERMINATING),
    (Reason.OPERATOR_DRAIN, True, S.TERMINATING), (Reason.SPOT_NOTICE, True, S.TERMINATING),
])  # fmt: skip
def test_only_sick_nodes_are_kept_as_evidence(reason: Reason, free: bool, to: State) -> None:
    subject = node(S.DRAINING, reason=reason)
    step = advance(subject, Facts(drained=True, quarantine_free=free), T0 + 1, R)
    assert step is not None
    assert step.to is to


@pytest.mark.parametrize("state", [S.READY, S.SUSPECT])
@pytest.mark.parametrize("reason", [Reason.SPOT_NOTICE, Reason.MAINTENANCE_NOTICE])
def test_a_notice_drains_without_asking_the_budget(state: State, reason: Reason) -> None:
    facts = Facts(last_report_at=T0, notice="2 minutes", notice_reason=reason, fatal=XID79)
    step = advance(node(state), facts, T0 + 1, R)
    assert step is not None
    assert (step.to, step.reason, step.budget) == (S.DRAINING, reason, False)

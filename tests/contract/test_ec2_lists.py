"""The EC2 adapter's listing and deleting: pages, phases, deaths, unknown ids.

PC-136, PC-144, PC-166, PC-188, PC-190: pagination, eventual consistency, orphan-leak.
"""

from __future__ import annotations

import pytest
from canned_ec2 import (
    Answer,
    Canned,
    Request,
    Script,
    caught,
    described,
    everything,
    item,
    refs,
    refusal,
    run,
    terminated,
)

from fleet.errors import (
    Gone,
    InvalidRequest,
    Unauthorized,
    Unavailable,
)
from fleet.model import Market, Phase
from providers.base import TAG_CELL
from providers.ec2 import CODES, DIED, PREEMPTED, Region


def test_listing_follows_every_token_and_never_trusts_the_page_size() -> None:
    """PC-136, PC-190: 2,500 instances; pages of any length, an empty one in the middle too."""
    pages = [range(250), range(250, 251), range(0), range(251, 2500)]

    def script(sent: Request) -> Answer:
        n = int(sent.get("NextToken", "0"))
        following = str(n + 1) if n + 1 < len(pages) else ""
        return described([item(i) for i in pages[n]], following)

    p = Canned(script)
    found = run(everything(p))
    assert len({i.ref for i in found}) == 2500
    first = p.sent[0]
    assert (first["Filter.1.Name"], first["Filter.1.Value.1"]) == (f"tag:{TAG_CELL}", "prod")
    assert first["MaxResults"] == "250"
    assert not [k for k in first if k.startswith("InstanceId")]


def test_a_failing_page_or_region_fails_the_list() -> None:
    """PC-188: never a short answer."""

    def second_page(sent: Request) -> Answer:
        return refusal("Unavailable") if "NextToken" in sent else described([item(1)], "more")

    assert type(run(caught(everything(Canned(second_page))))) is Unavailable
    answers = iter([described([item(1)]), refusal("AuthFailure")])
    two = {"us-east-1": Region(), "us-west-2": Region()}
    p = Canned(lambda _: next(answers), regions=two)
    assert type(run(caught(everything(p)))) is Unauthorized


def test_a_listing_that_never_ends_is_an_error() -> None:
    """The same token again means a server in a circle."""
    error = run(caught(everything(Canned(lambda _: described([item(1)], "again")))))
    assert error.code == "EndlessListing"


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("pending", Phase.PENDING),
        ("running", Phase.RUNNING),
        ("shutting-down", Phase.STOPPING),
        ("stopping", Phase.STOPPING),
        ("stopped", Phase.STOPPED),
        ("terminated", Phase.TERMINATED),
        ("something-new", Phase.PENDING),
    ],
)
def test_phases(state: str, phase: Phase) -> None:
    """Terminated ones that EC2 still shows are listed too."""
    (found,) = run(everything(Canned(lambda _: described([item(1, state)]))))
    assert found.phase is phase


@pytest.mark.parametrize("code", [*DIED, *sorted(PREEMPTED)])
def test_died_after_accept_says_why(code: str) -> None:
    """StateReason's code and text; preemption is told apart from death."""
    more = (
        "<instanceLifecycle>spot</instanceLifecycle><stateReason>"
        f"<code>{code}</code><message>{code}: the reason</message></stateReason>"
    )
    (found,) = run(everything(Canned(lambda _: described([item(1, "terminated", more)]))))
    assert (found.code, found.message) == (code, f"{code}: the reason")
    assert (found.preempted, found.market) == (code in PREEMPTED, Market.SPOT)


def test_an_incomplete_description_is_pending() -> None:
    """PC-166: no state, no tags, no time yet."""
    bare = "<item><instanceId>i-1</instanceId></item>"
    (found,) = run(everything(Canned(lambda _: described([bare]))))
    assert (found.phase, found.created_at, found.token) == (Phase.PENDING, 0.0, "")


def only(*known: int, code: str = "InvalidInstanceID.NotFound", named: bool = True) -> Script:
    """EC2 that fails a whole TerminateInstances for one unknown (or protected) id."""
    ok = {r.instance_id for r in refs(*known)}

    def script(sent: Request) -> Answer:
        bad = [v for k, v in sent.items() if k.startswith("InstanceId") and v not in ok]
        if not bad:
            return terminated()
        words = f"The instance IDs '{', '.join(bad)}' do not exist" if named else "no such thing"
        return refusal(code, words)

    return script


def deleted(p: Canned) -> set[str]:
    """Ids of the calls that the script accepted."""
    return {
        v
        for sent in p.sent
        if p.script(sent) == terminated()
        for k, v in sent.items()
        if k.startswith("InstanceId")
    }


@pytest.mark.parametrize("named", [True, False])
def test_unknown_ids_are_left_out(named: bool) -> None:
    """By the names in the message, else by halves; gone already is success."""
    p = Canned(only(1, 2, 5, 8, named=named))
    run(p.delete(refs(*range(1, 9))))
    assert deleted(p) == {r.instance_id for r in refs(1, 2, 5, 8)}
    assert len(p.sent) <= (2 if named else 15)
    run(Canned(only(named=named)).delete(refs(1, 2)))


def test_a_protected_instance_does_not_save_the_others_and_is_told() -> None:
    """OperationNotPermitted comes out, after all others were asked."""
    p = Canned(only(1, 2, 3, code="OperationNotPermitted", named=False))
    error = run(caught(p.delete(refs(1, 2, 3, 4))))
    assert (type(error), error.code) == (InvalidRequest, "OperationNotPermitted")
    assert deleted(p) == {r.instance_id for r in refs(1, 2, 3)}


def test_deletes_go_in_chunks_by_region() -> None:
    """At most a hundred ids a call; a chunk that fails does not stop the next."""
    answers = iter([refusal("InternalError", status=500)] + [terminated()] * 3)
    two = {"us-east-1": Region(), "us-west-2": Region()}
    p = Canned(lambda _: next(answers), regions=two)
    wanted = refs(*range(250)) + refs(1, 2, region="us-west-2") + refs(1)
    assert type(run(caught(p.delete(wanted)))) is Unavailable
    sizes = [sum(k.startswith("InstanceId") for k in sent) for sent in p.sent]
    assert sizes == [100, 100, 50, 2]
    assert CODES["InvalidInstanceID.NotFound"] is Gone

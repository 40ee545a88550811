"""Actions: wishes with actor and reason, Budget and freeze held by the server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.model import Reason, State
from fleet.store import write

Bench = Any


def act(bench: Bench, verb: str, **body: Any) -> dict[str, Any]:
    response = bench.post(f"/v1/actions/{verb}", {"reason": "because", **body})
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def last_event(bench: Bench, object_id: str) -> dict[str, Any]:
    event: dict[str, Any] = bench.get("/v1/events", node=object_id)["items"][-1]
    return event


def test_cordon_is_told_with_who_and_why_and_keeps_service(bench: Bench) -> None:
    """kubernetes#55527: nobody knew who cordoned the node and why."""
    spare = bench.spares()[0]
    act(bench, "cordon", nodes=[spare])
    node = bench.node(spare)
    assert (node.cordoned_by, node.cordon_reason) == ("user:mira", "because")
    event = last_event(bench, spare)
    assert (event["reason"], event["actor"], event["message"]) == (
        "cordoned", "user:mira", "because",
    )  # fmt: skip
    item = bench.get("/v1/nodes", name=spare)["items"][0]
    assert item["reason_text"] == "cordoned by user:mira: because"
    assert item["actor"] == "user:mira"
    again = act(bench, "cordon", nodes=[spare])
    assert again["count"] == 0
    act(bench, "uncordon", nodes=[spare])
    assert not bench.node(spare).cordoned


def test_drain_moves_the_slot_and_ends_the_node(bench: Bench) -> None:
    name = bench.serving()[0]
    slot = bench.node(name).slot
    result = act(bench, "drain", nodes=[name])
    assert result["nodes"][0]["effect"].startswith(f"{slot} moves to a spare")
    bench.sleep(10)
    view = bench.trial.up.cell.view
    assert view.slots[slot].node_id not in (None, name)
    assert bench.until(lambda: name not in view.nodes)
    assert bench.until(lambda: bench.trial.ready() == 4)
    reasons = [e["reason"] for e in bench.get("/v1/events", node=name)["items"]]
    assert "operator_drain" in reasons


def test_replace_waits_for_a_spare_and_can_be_called_off(bench: Bench) -> None:
    act(bench, "cordon", nodes=bench.spares())
    name = bench.serving()[0]
    result = act(bench, "replace", nodes=[name])
    assert "when a spare is READY" in result["nodes"][0]["effect"]
    bench.sleep(8)
    assert bench.node(name).state is State.READY
    assert bench.node(name).wish == "replace"
    text = bench.get("/v1/nodes", name=name)["items"][0]["reason_text"]
    assert "waits for a spare" in text
    act(bench, "uncordon", nodes=[name])
    assert bench.node(name).wish == ""


def test_plan_changes_nothing(bench: Bench) -> None:
    version = bench.get("/v1/nodes")["version"]
    result = act(bench, "drain", nodes=[bench.serving()[0]], plan=True)
    assert result["plan"] is True
    assert result["count"] == 1
    assert bench.get("/v1/nodes")["version"] == version


def test_budget_is_checked_by_the_server(bench: Bench) -> None:
    response = bench.post("/v1/actions/drain", {"reason": "x", "where": "pool=train"})
    body = bench.problem(response, 409, "budget_exceeded")
    assert body["limit"] == 1
    assert "allows 1 at once (10 % of 3)" in body["why"]
    assert "--max 1" in body["fix"]
    assert not any(n.wish for n in bench.trial.up.cell.view.all()), "refused whole"
    assert bench.get("/v1/pools/train/budget")["free"] == 1
    act(bench, "drain", nodes=[bench.serving()[0]])
    assert bench.get("/v1/pools/train/budget")["free"] == 0
    response = bench.post("/v1/actions/drain", {"reason": "x", "nodes": [bench.serving()[-1]]})
    bench.problem(response, 409, "budget_exceeded")
    assert act(bench, "drain", where="pool=train and slot=null", max=1, plan=True)["count"] <= 1


def test_freeze_refuses_and_unfreeze_lets_go(bench: Bench) -> None:
    name = bench.serving()[0]
    assert bench.post("/v1/freeze", {"reason": "look"}).json()["frozen"] == "user:mira: look"
    body = bench.problem(
        bench.post("/v1/actions/drain", {"reason": "x", "nodes": [name]}), 409, "frozen"
    )
    assert body["why"] == "user:mira: look"
    act(bench, "cordon", nodes=[name])
    assert bench.get("/v1/guards")["items"][0]["name"] == "freeze"
    assert bench.get("/v1/nodes")["frozen"] == "user:mira: look"
    assert bench.post("/v1/unfreeze", {"reason": "seen"}).status_code == 200
    bench.problem(bench.post("/v1/unfreeze", {"reason": "seen"}), 409, "not_frozen")
    reasons = [e["reason"] for e in bench.get("/v1/events", node="cell")["items"]]
    assert reasons == ["frozen", "unfrozen"]


def test_unfreeze_starts_the_boot_deadline_of_adopted_nodes(bench: Bench) -> None:
    cell = bench.trial.up.cell
    model = bench.node(bench.spares()[0])
    now = bench.trial.clock.now()
    adopted = replace(
        model, id="n-adopted", state=State.BOOTING, reason=Reason.ADOPTED, instance_id="",
        running_at=now - 5000, state_since=now - 5000, ready_at=None, first_report_at=None,
        boot_id="", slot="", version=1,
    )  # fmt: skip
    bench.post("/v1/freeze", {"reason": "adopted"})
    bench.run(cell.commit(lambda tx: write.create(tx, [adopted], actor="observe")))
    bench.sleep(10)
    result = bench.post("/v1/unfreeze", {"reason": "seen"}).json()
    assert result["adopted"] == 1
    node = bench.node("n-adopted")
    assert node.running_at == pytest.approx(bench.trial.clock.now(), abs=1)
    assert node.deadline_at is not None
    assert node.deadline_at > bench.trial.clock.now() + 60


def test_a_launch_that_was_not_sent_is_cancelled_at_once(bench: Bench) -> None:
    cell = bench.trial.up.cell
    model = bench.node(bench.spares()[0])
    now = bench.trial.clock.now()
    fresh = replace(
        model, id="n-fresh", state=State.REQUESTED, reason=Reason.PLAN_SHORT, instance_id="",
        state_since=now, created_at=now, requested_at=now, accepted_at=None, running_at=None,
        ready_at=None, first_report_at=None, boot_id="", slot="", version=1, token="b-none",
    )  # fmt: skip
    bench.run(cell.commit(lambda tx: write.create(tx, [fresh], actor="plan")))
    act(bench, "drain", nodes=["n-fresh"])
    assert "n-fresh" not in cell.view.nodes
    launch = bench.get("/v1/launches/b-none")["item"]
    assert launch["outcome"] == "cancelled"


def test_clear_forgets_faults(bench: Bench) -> None:
    name = bench.serving()[0]
    cell = bench.trial.up.cell
    result = act(bench, "clear", nodes=[name])
    assert result["count"] == 0
    bench.run(cell.commit(lambda tx: write.update_node(tx, bench.node(name), fault="xid_63")))
    assert act(bench, "clear", nodes=[name])["count"] == 1
    assert bench.node(name).fault == ""
    assert last_event(bench, name)["actor"] == "user:mira"


@pytest.mark.parametrize(
    "body, status, code",
    [
        ({"reason": "x"}, 422, "no_nodes"),
        ({"nodes": ["n-1"]}, 422, "invalid_request"),
        ({"reason": "  ", "nodes": ["n-1"]}, 422, "reason_missing"),
        ({"reason": "x", "nodes": ["n-1"]}, 404, "unknown_node"),
        ({"reason": "x", "nodes": "n-1"}, 422, "invalid_request"),
        ({"reason": "x", "nodes": ["n-1"], "force": True}, 422, "invalid_request"),
        ({"reason": "x", "where": "gpus=9"}, 404, "nothing_matches"),
        ({"reason": "x", "where": "gpu"}, 422, "bad_filter"),
        ({"reason": "x\u001b[2J", "nodes": ["n-1"]}, 422, "invalid_input"),
        ({"reason": "x" * 501, "nodes": ["n-1"]}, 422, "invalid_request"),
    ],
)
def test_refused_bodies(calm: Bench, body: dict[str, Any], status: int, code: str) -> None:
    calm.problem(calm.post("/v1/actions/drain", body), status, code)


def test_unknown_action_and_actor(calm: Bench) -> None:
    calm.problem(calm.post("/v1/actions/reboot", {"reason": "x"}), 404, "unknown_action")
    response = calm.post("/v1/freeze", {"reason": "x"}, headers={"x-fleetd-actor": "root"})
    calm.problem(response, 422, "bad_actor")
    assert calm.get("/v1/nodes")["frozen"] == ""


def test_idempotency_key(bench: Bench) -> None:
    body = {"reason": "x", "nodes": [bench.serving()[0]]}
    key = {"idempotency-key": "k1"}
    first = bench.post("/v1/actions/drain", body, headers=key)
    assert first.status_code == 200
    again = bench.post("/v1/actions/drain", body, headers=key)
    assert again.status_code == 200, "the repeat is the first answer, not a budget error"
    assert again.json()["repeated"] is True
    other = {"reason": "y", "nodes": [bench.serving()[-1]]}
    bench.problem(
        bench.post("/v1/actions/drain", other, headers=key), 422, "idempotency_key_reused"
    )


def test_ended_nodes_cannot_be_acted_on(bench: Bench) -> None:
    name = bench.spares()[0]
    act(bench, "drain", nodes=[name])
    assert bench.until(lambda: name not in bench.trial.up.cell.view.nodes)
    bench.problem(
        bench.post("/v1/actions/drain", {"reason": "x", "nodes": [name]}), 409, "node_ended"
    )


def test_delete_pool(bench: Bench) -> None:
    plan = bench.post("/v1/pools/train/delete", {"reason": "over", "plan": True}).json()
    assert plan["nodes"] == 4
    assert plan["serving"] == 3
    assert "train" in bench.trial.up.cell.view.pools
    bench.problem(bench.post("/v1/pools/trian/delete", {"reason": "x"}), 404, "unknown_pool")
    assert bench.post("/v1/pools/train/delete", {"reason": "over"}).status_code == 200
    assert bench.get("/v1/pools")["items"][0]["state"] == "deleting"
    bench.problem(bench.post("/v1/pools/train/delete", {"reason": "over"}), 409, "deleting")
    assert bench.until(lambda: not bench.trial.up.cell.view.nodes)
    assert bench.get("/v1/pools")["total"] == 0


def test_a_body_that_is_too_long_is_refused_unread(calm: Bench) -> None:
    response = calm.call(
        "POST", "/v1/freeze", content=b"{}", headers={"content-length": str(1 << 30)}
    )
    calm.problem(response, 413, "too_long")

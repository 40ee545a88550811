"""What agents may send that they should not: 4xx, counted, and nothing changes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

# the whole daemon on the virtual loop is arranged as in tests/sim
sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from scene import HOUR_S, Scene, world

from fleet.model import Node, State
from fleet.sim.faults import Injection, Kind
from fleet.sim.trial import virtual
from fleet.store.tables import Base
from fleet.userdata import parse

REGISTER, REPORT = "/v1/agent/register", "/v1/agent/report"
KEY = "ab" * 32
TABLES = ("nodes", "batches", "joins", "launches", "slots", "faults", "rests", "outbox", "seen")


class Door:
    """Hand-made requests at the door of a settled scene; no time passes unless asked for."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    async def call(
        self, path: str, body: Any, token: str = "", peer: str = "192.0.2.9", method: str = "POST"
    ) -> tuple[int, dict[str, Any]]:
        """Status and decoded answer."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, answer = await self.scene.up.agent_door.handle(method, path, headers, raw, peer)
        return status, json.loads(answer)

    def node(self, number: int = 0) -> Node:
        """A READY node."""
        return self.scene.nodes_in(State.READY)[number]

    def token(self, node: Node) -> str:
        """The node token that its agent holds."""
        assert self.scene.nodes is not None
        agent = self.scene.nodes.get(node.instance_id)
        assert agent is not None
        return agent._headers["authorization"].removeprefix("Bearer ")

    def report(self, node: Node, **changes: Any) -> dict[str, Any]:
        """A good next report of a node."""
        pulse = self.scene.up.cell.watch.pulses[node.id]
        return {"boot_id": pulse.boot_id, "seq": pulse.seq + 1, "kind": "status", **changes}

    def join(self, node: Node, **changes: Any) -> dict[str, Any]:
        """A registration in the name of a node's machine."""
        boot = parse(self.scene.machine(node).user_data)
        return {
            "boot_token": boot.boot_token, "provider": boot.provider,
            "instance_id": node.instance_id, "boot_id": "boot-x", "key": KEY, **changes,
        }  # fmt: skip

    def state(self) -> Any:
        """Everything durable and everything remembered of nodes."""

        def rows(tx: Any) -> list[Any]:
            tables = Base.metadata.tables
            return [tuple(tx.execute(select(tables[t])).all()) for t in TABLES]

        pulses = {i: astuple(p) for i, p in self.scene.up.cell.watch.pulses.items()}
        return self.scene.store.call(rows), pulses, self.scene.up.cell.view.nodes.copy()

    async def refused(self, status: int, *args: Any, **kw: Any) -> dict[str, Any]:
        """The request gets ``status``, is counted, and nothing has changed."""
        before, counted = self.state(), sum(self.scene.up.cell.refused.values())
        got, answer = await self.call(*args, **kw)
        assert got == status, (got, answer)
        assert self.state() == before
        if status != 425:  # "not yet" is no refusal
            assert sum(self.scene.up.cell.refused.values()) == counted + 1
        assert answer["status"] == status
        return answer


def at_the_door(work: Callable[[Door], Awaitable[None]], **shape: Any) -> None:
    """Run ``work`` beside a settled pool of three nodes."""

    async def run() -> None:
        scene = Scene(world("aws"), **shape)
        await scene.start()
        assert await scene.settle()
        await work(Door(scene))
        await scene.close()

    virtual(run)


BAD_REPORTS: list[tuple[str, Any]] = [
    ("empty", b""),
    ("not json", b"hello"),
    ("not utf-8", b'{"boot_id": "\xff\xfe", "seq": 1}'),
    ("a list", []),
    ("null", None),
    ("deep", b"[" * 100_000),
    ("nan", b'{"boot_id": "b", "seq": 1, "sent_at": NaN}'),
    ("huge number", b'{"boot_id": "b", "seq": 1e400}'),
    ("negative seq", {"seq": -1}),
    ("zero seq", {"seq": 0}),
    ("seq beyond 2^53", {"seq": 2**60}),
    ("seq as text", {"seq": "7"}),
    ("seq as bool", {"seq": True}),
    ("no boot id", {"boot_id": ""}),
    ("boot id with spaces", {"boot_id": "a b\n"}),
    ("unknown field", {"admin": True}),
    ("unknown kind", {"kind": "root"}),
    ("a state of its own", {"state": "READY"}),
    ("another node", {"node_id": "n-00000000"}),
    ("bad check name", {"checks": [{"name": "../../etc", "status": "pass"}]}),
    ("bad check status", {"checks": [{"name": "gpu_count", "status": "great"}]}),
    ("value infinite", {"checks": [{"name": "gpu_count", "status": "pass", "value": 1e300}]}),
    ("control characters", {"faults": [{"code": "xid_79", "message": "\x1b[2J\x00"}]}),
    ("too many faults", {"faults": [{"code": f"xid_{n}"} for n in range(1, 400)]}),
    ("too many checks", {"checks": [{"name": "a", "status": "pass"}] * 3000}),
    ("gpu 999", {"faults": [{"code": "xid_79", "gpu": 999}]}),
    ("unknown notice", {"notice": {"kind": "party", "at": 1.0}}),
    ("drained as text", {"drained": "yes"}),
]


@pytest.mark.parametrize("bad", [b for _, b in BAD_REPORTS], ids=[name for name, _ in BAD_REPORTS])
def test_a_malformed_report(bad: Any) -> None:
    """PC-179: strict schema: 422 names the place and never repeats the input."""

    async def work(door: Door) -> None:
        node = door.node()
        body = door.report(node, **bad) if isinstance(bad, dict) else bad
        answer = await door.refused(422, REPORT, body, door.token(node))
        assert "etc" not in answer["detail"]
        assert "\x1b" not in answer["detail"]
        assert (await door.call(REPORT, door.report(node), door.token(node)))[0] == 200

    at_the_door(work, nodes=1, spares=0)


def test_an_oversized_body() -> None:
    async def work(door: Door) -> None:
        node = door.node()
        big = door.report(node, faults=[{"code": "xid_79", "message": "x" * 400}] * 1000)
        await door.refused(413, REPORT, big, door.token(node))
        await door.refused(413, REGISTER, door.join(node, agent_version="x" * 20_000))
        await door.refused(422, REGISTER, door.join(node, agent_version="x" * 2_000))

    at_the_door(work)


def test_a_replayed_report() -> None:
    """A report that was taken is not taken again, also not with a fault in it."""

    async def work(door: Door) -> None:
        node = door.node()
        body = door.report(node)
        assert (await door.call(REPORT, body, door.token(node)))[0] == 200
        await door.refused(409, REPORT, body, door.token(node))
        await door.refused(409, REPORT, {**body, "faults": [{"code": "xid_79"}]}, door.token(node))
        await door.refused(409, REPORT, {**body, "seq": 1}, door.token(node))

    at_the_door(work)


def test_unknown_and_revoked_tokens() -> None:
    async def work(door: Door) -> None:
        node = door.node()
        fatal = door.report(node, faults=[{"code": "xid_79"}])
        for token in ("", "x" * 64, door.token(node)[:-1], door.token(node) + "0"):
            await door.refused(401, REPORT, fatal, token)

    at_the_door(work)


def test_a_terminated_node() -> None:
    """410 for the report, 410 for the registration, 401 once the token is forgotten."""

    async def work(door: Door) -> None:
        scene, node = door.scene, door.node()
        token, join = door.token(node), door.join(node)
        body = door.report(node, faults=[{"code": "xid_79"}])
        scene.hurt(node)
        assert await scene.until(lambda: node.id not in scene.up.cell.view.nodes, timeout_s=HOUR_S)
        await door.refused(410, REPORT, body, token)
        await door.refused(401, REPORT, body, token)
        await door.refused(410, REGISTER, join)
        await scene.crash()
        await scene.start()
        await door.refused(401, REPORT, body, token)
        await door.refused(410, REGISTER, join)

    at_the_door(work, quarantine={"max": 0})


def test_a_stolen_token_reaches_its_own_node_only() -> None:
    """A's token with B's data: whatever the body says, it is A's report; nothing of B changes."""

    async def work(door: Door) -> None:
        a, b = door.node(0), door.node(1)
        cell = door.scene.up.cell
        before = astuple(cell.watch.pulses[b.id]), cell.view.nodes[b.id]
        body = door.report(b, seq=5000, faults=[{"code": "xid_79"}])
        status, _ = await door.call(REPORT, body, door.token(a))
        assert status == 200
        assert (astuple(cell.watch.pulses[b.id]), cell.view.nodes[b.id]) == before
        assert cell.watch.pulses[b.id].fatal is None

    at_the_door(work)


def test_another_key_in_the_name_of_a_node() -> None:
    """409, an event on the node, and its own agent goes on."""

    async def work(door: Door) -> None:
        node = door.node()
        before = len(door.scene.events("report_refused"))
        await door.refused(409, REGISTER, door.join(node))
        told = door.scene.events("report_refused")[before:]
        assert [e.object_id for e in told] == [node.id]
        assert KEY not in told[0].message
        assert (await door.call(REPORT, door.report(node), door.token(node)))[0] == 200

    at_the_door(work)


BAD_JOINS: list[dict[str, Any]] = [
    {"boot_token": "short"}, {"boot_token": "x" * 300}, {"key": "AB" * 32}, {"key": "ab"},
    {"instance_id": ""}, {"instance_id": "i-\x00"}, {"provider": "a ws"}, {"extra": 1},
    {"boot_id": 7}, {"boot_token": None},
]  # fmt: skip


def test_malformed_registrations() -> None:
    async def work(door: Door) -> None:
        node = door.node()
        for bad in BAD_JOINS:
            await door.refused(422, REGISTER, door.join(node, **bad))
        await door.refused(422, REGISTER, b"{")

    at_the_door(work)


def test_registrations_that_the_cloud_does_not_vouch_for() -> None:
    """Unlisted: 425 and later; a foreign instance, an unknown or another cloud's token: 401."""

    async def work(door: Door) -> None:
        scene = door.scene
        node = door.node()
        # A batch with a use left: one more node is wanted and its agent has not come yet.
        await scene.resize(3, 1)
        assert await scene.until(lambda: bool(scene.nodes_in(State.BOOTING)), timeout_s=300.0)
        young = scene.nodes_in(State.BOOTING)[0]
        await door.refused(425, REGISTER, door.join(young, instance_id="i-nobody-lists"))
        # "Used up" shows first where a batch has no use left: the new instance is no excuse.
        await door.refused(401, REGISTER, door.join(node, instance_id="i-one-too-many"))
        await door.refused(401, REGISTER, door.join(young, boot_token="f" * 64))
        await door.refused(401, REGISTER, door.join(young, provider="gcp"))

    at_the_door(work)


def test_an_instance_of_another_batch() -> None:
    """PC-086: a boot token lets in what the cloud lists under its own batch and nothing else."""

    async def work(door: Door) -> None:
        scene = door.scene
        await scene.resize(4, 1)
        assert await scene.until(
            lambda: len(scene.nodes_in(State.BOOTING)) == 2, timeout_s=300.0, step_s=1.0
        )
        young = scene.nodes_in(State.BOOTING)[0]
        boot = parse(scene.machine(door.node()).user_data).boot_token
        await door.refused(401, REGISTER, door.join(young, boot_token=boot))

    at_the_door(work)


def test_more_registrations_than_the_batch_has() -> None:
    """Three nodes asked for: the fourth registration is refused, under load as well."""

    async def work(door: Door) -> None:
        scene = door.scene
        await scene.resize(5, 1)
        assert await scene.until(
            lambda: len(scene.nodes_in(State.BOOTING)) == 3, timeout_s=300.0, step_s=1.0
        )
        young = scene.nodes_in(State.BOOTING)
        joins = [door.join(n, key=f"{i:064x}") for i, n in enumerate(young * 3)]
        answers = await asyncio.gather(*(door.call(REGISTER, j) for j in joins))
        statuses = [s for s, _ in answers]
        assert statuses[:3] == [201, 201, 201]
        assert statuses[3:] == [409] * 6
        tables = Base.metadata.tables
        rows = scene.store.call(
            lambda tx: tx.execute(
                select(tables["batches"].c.boot_uses, tables["batches"].c.n).where(
                    tables["batches"].c.token == young[0].token
                )
            ).one()
        )
        assert tuple(rows) == (3, 3)

    at_the_door(work)


def test_an_expired_boot_token() -> None:
    """It ends with the boot deadline and four hours: the late machine does not join."""

    async def work(door: Door) -> None:
        scene = door.scene
        scene.world.inject(Injection(Kind.NEVER_BOOT, 0.0, 600.0))
        await scene.resize(3, 1)
        assert await scene.until(lambda: bool(scene.nodes_in(State.BOOTING)), timeout_s=300.0)
        late = scene.nodes_in(State.BOOTING)[0]
        join = door.join(late)
        await scene.freeze()
        await scene.run(6 * HOUR_S, step_s=60.0, check=False)
        assert late.id in {n.id for n in scene.nodes_in(State.BOOTING)}
        await door.refused(401, REGISTER, join)

    at_the_door(work)


def test_a_machine_that_comes_after_its_node_was_given_up() -> None:
    """PC-131: its node is TERMINATING: the late joiner is refused and its machine ended."""

    async def work(door: Door) -> None:
        scene = door.scene
        scene.world.inject(Injection(Kind.NEVER_BOOT, 0.0, 60.0))
        scene.world.inject(Injection(Kind.STUCK_TERMINATE, 0.0, 2 * HOUR_S))
        await scene.resize(3, 1)
        assert await scene.until(lambda: bool(scene.nodes_in(State.BOOTING)), timeout_s=300.0)
        late = scene.nodes_in(State.BOOTING)[0]
        join = door.join(late)
        gone = lambda: late.id in {n.id for n in scene.nodes_in(State.TERMINATING)}  # noqa: E731
        assert await scene.until(gone, timeout_s=HOUR_S)
        await door.refused(401, REGISTER, join)
        assert await scene.until(lambda: not gone(), timeout_s=3 * HOUR_S)
        assert late.instance_id not in {m.id for m in scene.existing()}

    at_the_door(work)


def test_too_many_requests() -> None:
    """429 per token and per address, and free again after the window."""

    async def work(door: Door) -> None:
        scene, node = door.scene, door.node()
        statuses = [
            (await door.call(REPORT, door.report(node), door.token(node)))[0] for _ in range(60)
        ]
        assert statuses.count(429) >= 15
        assert statuses[:30] == [200] * 30
        bad = door.join(node, boot_token="f" * 64, instance_id="i-x")
        joins = [(await door.call(REGISTER, bad))[0] for _ in range(250)]
        assert joins.count(401) == 200
        assert joins.count(429) == 50
        other = await door.call(REGISTER, bad, peer="192.0.2.10")
        assert other[0] == 401
        await scene.run(11.0)
        assert (await door.call(REPORT, door.report(node), door.token(node)))[0] == 200

    at_the_door(work)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", REPORT, 405), ("PUT", REGISTER, 405), ("POST", "/v1/agent/other", 404),
     ("POST", "/v1/agent/report/../register", 404)],
)  # fmt: skip
def test_other_routes(method: str, path: str, status: int) -> None:
    async def work(door: Door) -> None:
        before = door.state()
        got, answer = await door.call(path, {}, method=method)
        assert got == status == answer["status"]
        assert door.state() == before

    at_the_door(work, nodes=1, spares=0)


def test_refusals_are_counted_by_cause() -> None:
    async def work(door: Door) -> None:
        node = door.node()
        refused = door.scene.up.cell.refused
        refused.clear()
        body = door.report(node)
        await door.call(REPORT, body, "x" * 40)
        await door.call(REPORT, b"{", door.token(node))
        await door.call(REPORT, body, door.token(node))
        await door.call(REPORT, body, door.token(node))
        await door.call(REGISTER, door.join(node))
        assert refused == {"unauthorized": 1, "malformed": 1, "replayed": 1, "join_conflict": 1}

    at_the_door(work)

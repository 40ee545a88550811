"""Simulated nodes speak docs/agent-protocol.md, fall ill on demand and give up on nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from fleet.api.wire import REGISTER, REPORT
from fleet.clock import SeededChance, VirtualClock
from fleet.gate import GatePolicy, judge
from fleet.model import Market
from fleet.sim.fakecloud import FakeCloud
from fleet.sim.faults import FaultPlan, Injection, Kind
from fleet.sim.nodes import Nodes
from fleet.sim.readings import gate_checks
from fleet.sim.spec import CloudSpec, WorldSpec
from fleet.sim.transport import DirectTransport
from fleet.sim.world import World
from fleet.userdata import BootData, render
from policies.checks import CHECKS, GATE_REQUIRED

from .simkit import launch, offer_of, one_cloud, virtually

USER_DATA = render(BootData("http://fleetd", "b" * 32, "aws", "p"))


class Desk:
    """A door that accepts everything, checks the schema, and can be told to answer otherwise."""

    def __init__(self) -> None:
        self.registers: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.commands: list[dict[str, str]] = []
        self.next_s = 60.0
        #: Answers to give first, before accepting: (status, headers), or None for no answer.
        self.before: list[tuple[int, dict[str, str]] | None] = []
        self.now: Callable[[], float] = lambda: 0.0

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        assert method == "POST"
        assert peer.startswith("10.")
        if self.before:
            answer = self.before.pop(0)
            if answer is None:
                raise ConnectionError("no route")
            return answer[0], answer[1], b"{}"
        if path == "/v1/agent/register":
            REGISTER.validate_json(body)
            self.registers.append(json.loads(body))
            said = {
                "node": f"n-{len(self.registers)}",
                "node_token": "tok",
                "report_interval_s": self.next_s,
                "required_checks": list(GATE_REQUIRED),
            }
            return 201, {}, json.dumps(said).encode()
        assert headers["authorization"] == "Bearer tok"
        REPORT.validate_json(body)
        self.reports.append(json.loads(body))
        self.times.append(self.now())
        said = {"next_s": self.next_s, "commands": self.commands, "state": "READY"}
        return 200, {}, json.dumps(said).encode()


Story = Callable[[World, Nodes, Desk, VirtualClock], Coroutine[Any, Any, Any]]


def play(
    story: Story,
    *faults: Injection,
    spec: CloudSpec | None = None,
    user_data: str = USER_DATA,
    desk: Desk | None = None,
) -> Any:
    async def main(clock: VirtualClock) -> Any:
        own = spec or one_cloud()
        world = World(clock.now, SeededChance(1), WorldSpec((own,)), FaultPlan(faults))
        door = desk or Desk()
        door.now = lambda: world.t
        nodes = Nodes(world, DirectTransport(door), SeededChance(2))
        world.start()
        order = launch(offer_of("aws", market=Market.SPOT), user_data=user_data)
        await FakeCloud(world, "aws").create(order)
        await clock.sleep(119)
        try:
            return await story(world, nodes, door, clock)
        finally:
            await nodes.aclose()
            world.stop()
            assert nodes.failures == []

    return virtually(main)


def test_a_node_joins_proves_itself_and_reports() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        assert not desk.registers
        await clock.sleep(400)
        assert desk.registers[0]["boot_token"] == "b" * 32
        first, *rest = desk.reports
        assert first["kind"] == "gate"
        assert {r["kind"] for r in rest} == {"status"}
        assert [r["seq"] for r in desk.reports] == list(range(1, len(desk.reports) + 1))
        assert desk.times[2] - desk.times[1] == pytest.approx(60)
        verdict = judge(REPORT.validate_python(first).health(), POLICY)
        assert verdict is not None
        assert verdict.ok
        assert nodes.reports == len(desk.reports)
        assert len(nodes) == 1

    play(story)


POLICY = GatePolicy("H100", 8, frozenset(GATE_REQUIRED), driver_min="570")


@pytest.mark.parametrize("check", ["gpu_count", "pcie_width", "memory_pattern"])
def test_a_defect_fails_the_gate(check: str) -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(30)
        verdict = judge(REPORT.validate_python(desk.reports[0]).health(), POLICY)
        assert verdict is not None
        assert not verdict.ok
        assert check in verdict.summary

    play(story, Injection(Kind.IMAGE_DEFECT, 0, 999, code=check))


@pytest.mark.parametrize("check", sorted(CHECKS))
def test_every_check_has_a_healthy_value_within_its_bounds(check: str) -> None:
    (result, *_) = gate_checks([check], [], 8, SeededChance(1))
    bounds = CHECKS[check]
    assert result["status"] == "pass"
    assert result["unit"] == bounds.unit
    if result["value"] is not None:
        assert bounds.least is None or result["value"] >= bounds.least
        assert bounds.most is None or result["value"] <= bounds.most


def test_somebody_elses_instance_stays_silent() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(400)
        assert not desk.registers

    play(story, user_data="#!/bin/sh\n")


def test_joining_is_tried_until_it_works() -> None:
    desk = Desk()
    desk.before = [(425, {"retry-after": "30"}), (503, {}), None, (401, {}), (429, {})]

    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(29)
        assert len(desk.before) == 4  # Retry-After is honoured
        await clock.sleep(400)
        assert len(desk.registers) == 1
        assert nodes.refused == 1

    play(story, desk=desk)


def test_lost_and_refused_reports_are_sent_again_with_a_new_number() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(100)
        desk.before = [None, (500, {}), (409, {}), (422, {})]
        await clock.sleep(200)
        assert not desk.before
        seqs = [r["seq"] for r in desk.reports]
        assert seqs == sorted(set(seqs))
        assert max(seqs) > len(seqs)

    play(story)


def test_a_revoked_token_makes_it_join_again_with_the_same_key() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(100)
        desk.before = [(401, {})]
        await clock.sleep(100)
        one, two = desk.registers
        assert one["key"] == two["key"]
        assert one["boot_id"] == two["boot_id"]

    play(story)


@pytest.mark.parametrize("status", [410])
def test_a_node_that_has_ended_is_quiet(status: int) -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(100)
        desk.before = [(status, {})]
        count = len(desk.reports)
        await clock.sleep(1000)
        assert len(desk.reports) == count

    play(story)


def test_a_gpu_fault_is_told_at_once_and_until_it_is_gone() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(100)
        struck_at = world.t
        world.inject(Injection(Kind.GPU_FAULT, code="xid_79"))
        await clock.sleep(1)
        assert desk.times[-1] - struck_at < 0.1
        assert desk.reports[-1]["faults"][0]["code"] == "xid_79"
        await clock.sleep(61)
        assert desk.reports[-1]["faults"]
        world.inject(Injection(Kind.NODE_REBOOT, duration_s=50))
        await clock.sleep(200)
        assert "faults" not in desk.reports[-1]

    play(story)


def test_an_application_fault_is_told_once() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(100)
        desk.before = [None, (503, {})]
        world.inject(Injection(Kind.GPU_FAULT, code="xid_31"))
        await clock.sleep(300)
        assert sum(bool(r.get("faults")) for r in desk.reports) == 1

    play(story)


def test_a_fault_during_a_call_is_not_forgotten() -> None:
    desk = Desk()
    plain = desk.handle

    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        async def slow(*args: Any) -> Any:
            await clock.sleep(5)
            return await plain(*args)

        await clock.sleep(30)
        desk.handle = slow  # type: ignore[method-assign,assignment]
        (node,) = nodes
        await clock.sleep(120)
        while len(desk.reports) % 2:
            await clock.sleep(1)
        await clock.sleep(58)
        node.strike(Injection(Kind.GPU_FAULT, code="xid_79"))
        await clock.sleep(12)
        assert desk.reports[-1]["faults"][0]["code"] == "xid_79"

    play(story, desk=desk)


def test_silence_ends_when_it_should() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(100)
        world.inject(Injection(Kind.NODE_SILENT, duration_s=600))
        await clock.sleep(1)
        count = len(desk.reports)
        await clock.sleep(590)
        assert len(desk.reports) == count
        await clock.sleep(30)
        assert len(desk.reports) > count
        world.inject(Injection(Kind.NODE_SILENT))
        await clock.sleep(1)
        count = len(desk.reports)
        await clock.sleep(1e6)
        assert len(desk.reports) == count

    play(story)


def test_a_reboot_is_a_new_boot_that_proves_itself_again() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(100)
        world.inject(Injection(Kind.NODE_REBOOT, duration_s=40))
        await clock.sleep(100)
        one, two = desk.registers
        assert one["boot_id"] != two["boot_id"]
        assert one["key"] == two["key"]
        again = [r for r in desk.reports if r["boot_id"] == two["boot_id"]]
        assert (again[0]["kind"], again[0]["seq"]) == ("gate", 1)

    play(story)


def test_a_spot_notice_is_told_and_then_the_machine_is_gone() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(100)
        world.inject(Injection(Kind.SPOT_RECLAIM))
        await clock.sleep(1)
        assert desk.reports[-1]["notice"]["kind"] == "spot"
        await clock.sleep(121)
        count = len(desk.reports)
        await clock.sleep(600)
        assert len(desk.reports) == count
        assert len(nodes) == 0

    play(story)


def test_drain_and_gate_commands_are_obeyed() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(100)
        desk.commands = [{"id": "1", "kind": "drain"}]
        await clock.sleep(200)
        assert desk.reports[-1]["drained"] is True
        kinds = Counter(r["kind"] for r in desk.reports)
        desk.commands = [{"id": "2", "kind": "gate"}]
        await clock.sleep(61)
        desk.commands = []
        await clock.sleep(61)
        assert Counter(r["kind"] for r in desk.reports)["gate"] > kinds["gate"]

    play(story)


def test_a_cut_network_is_silence_for_fleetd() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        await clock.sleep(100)
        world.inject(Injection(Kind.AGENT_CUT, duration_s=300, provider="aws"))
        count = len(desk.reports)
        await clock.sleep(295)
        assert len(desk.reports) == count
        await clock.sleep(120)
        assert len(desk.reports) > count

    play(story)


def test_background_faults_come_at_their_rate() -> None:
    async def story(world: World, nodes: Nodes, desk: Desk, clock: VirtualClock) -> None:
        struck: list[str] = []
        world.on_strike.append(lambda m, s: struck.append(s.code))
        await clock.sleep(100 * 3600)
        assert 60 < len(struck) < 140
        assert set(struck) <= {"xid_79", "xid_48", "xid_119", "xid_95"}

    desk = Desk()
    desk.next_s = 3600.0
    play(story, spec=one_cloud(fatal_per_gpu_hour=1 / 8), desk=desk)

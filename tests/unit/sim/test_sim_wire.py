"""The skins' server and protocol parts without a client SDK, and agents over real HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from fleet.clock import LoopClock, ScaledLoop, SeededChance
from fleet.sim.fakecloud import FakeCloud
from fleet.sim.nodes import Nodes
from fleet.sim.spec import WorldSpec
from fleet.sim.transport import HttpTransport
from fleet.sim.wire.asgi import (
    MAX_BODY,
    Answer,
    Dropped,
    Receive,
    Scope,
    Send,
    read_body,
    send_answer,
)
from fleet.sim.wire.ec2calls import zone_id
from fleet.sim.wire.serve import Dispatcher, WireServer
from fleet.sim.wire.shapes import Raw, Shapes, Unknown, error_xml
from fleet.sim.world import World
from fleet.userdata import BootData, render

from .simkit import launch, offer_of, one_cloud


def app_saying(text: str) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        if body == b"drop":
            raise Dropped
        await send_answer(send, Answer(200, text.encode() + body))

    return app


def client_of(server: WireServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, trust_env=False)


def test_skins_share_a_port_by_prefix() -> None:
    async def main() -> None:
        dispatcher = Dispatcher()
        dispatcher.add("/compute/", app_saying("gcp"))
        dispatcher.add("/compute/v2/", app_saying("gcp2"))
        async with WireServer(dispatcher) as server, client_of(server) as client:
            assert (await client.post("/compute/v1/x", content=b"!")).text == "gcp!"
            assert (await client.get("/compute/v2/x")).text == "gcp2"
            assert (await client.get("/else")).status_code == 404

    asyncio.run(main())


def test_a_dropped_answer_sends_nothing_and_the_server_lives_on() -> None:
    async def main() -> None:
        async with WireServer(app_saying("")) as server, client_of(server) as client:
            for body in (b"drop", b"x" * (MAX_BODY + 1)):
                with pytest.raises(httpx.HTTPError):
                    await client.post("/", content=body)
            assert (await client.post("/", content=b"still")).text == "still"

    asyncio.run(main())


def test_only_this_machine_is_served_and_a_taken_port_is_an_error() -> None:
    with pytest.raises(ValueError, match="this machine only"):
        WireServer(app_saying(""), "0.0.0.0")

    async def main() -> None:
        async with WireServer(app_saying("")) as server:
            with pytest.raises(OSError, match="in use"):
                await WireServer(app_saying(""), port=server.port).start()

    asyncio.run(main())


def test_shapes_read_and_write_by_the_service_model() -> None:
    shapes = Shapes("ec2")
    read = shapes.decode(
        "DescribeInstances",
        {
            "Action": "DescribeInstances",
            "Filter.1.Name": "tag:a",
            "Filter.1.Value.1": "x",
            "Filter.1.Value.2": "y",
            "InstanceId.1": "i-1",
            "MaxResults": "5",
        },
    )
    assert read == {
        "Filters": [{"Name": "tag:a", "Values": ["x", "y"]}],
        "InstanceIds": ["i-1"],
        "MaxResults": 5,
    }
    with pytest.raises(Unknown, match="Colour"):
        shapes.decode("DescribeInstances", {"Colour": "red"})
    with pytest.raises(ValueError, match="many"):
        shapes.decode("DescribeInstances", {"MaxResults": "many"})
    xml = shapes.encode("DescribeInstances", {"NextToken": "<&>", "Reservations": []}, "r").decode()
    assert "<nextToken>&lt;&amp;&gt;</nextToken><reservationSet></reservationSet>" in xml
    with pytest.raises(KeyError):
        shapes.encode("DescribeInstances", {"Colour": "red"}, "r")
    assert shapes.raw("InstanceState", {"Code": 16, "Name": "running"}) == Raw(
        "<code>16</code><name>running</name>"
    )
    assert b"<Code>A&amp;B</Code>" in error_xml("A&B", "m", "r")


@pytest.mark.parametrize(
    ("zone", "ident"),
    [
        ("us-east-1b", "use1-az2"),
        ("ap-northeast-1d", "apne1-az4"),
        ("eu-central-1a", "euc1-az1"),
        ("odd", "odd"),
    ],
)
def test_zone_ids(zone: str, ident: str) -> None:
    assert zone_id(zone) == ident


def test_agents_join_over_http_on_a_scaled_loop() -> None:
    """World, cloud and agents on a loop that runs 2,000 times faster, sockets real."""
    seen: list[dict[str, Any]] = []
    gate = asyncio.Event()

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads(await read_body(receive))
        seen.append(body)
        said: dict[str, Any] = {"next_s": 60, "commands": [], "state": "READY"}
        if scope["path"].endswith("register"):
            said = {"node": "n", "node_token": "t", "report_interval_s": 60, "required_checks": []}
        if body.get("kind") == "status":
            gate.set()
        await send_answer(send, Answer(200, json.dumps(said).encode()))

    async def main() -> None:
        clock = LoopClock()
        world = World(clock.now, SeededChance(1), WorldSpec((one_cloud(),)))
        async with WireServer(door) as server:
            transport = HttpTransport(server.url)
            nodes = Nodes(world, transport, SeededChance(2))
            world.start()
            user_data = render(BootData(server.url, "b" * 32, "aws", "p"))
            await FakeCloud(world, "aws").create(launch(offer_of("aws"), user_data=user_data))
            await asyncio.wait_for(gate.wait(), 100_000)
            world.stop()
            await nodes.aclose()
        assert [s.get("kind", "register") for s in seen[:3]] == ["register", "gate", "status"]
        assert nodes.failures == []

    with asyncio.Runner(loop_factory=lambda: ScaledLoop(2000.0)) as runner:
        runner.run(main())


def test_http_transport_says_connection_error_when_nobody_answers() -> None:
    async def main() -> None:
        server = WireServer(app_saying(""))
        await server.start()
        await server.aclose()
        transport = HttpTransport(server.url)
        with pytest.raises(ConnectionError):
            await transport.call("POST", "/", {}, b"")
        await transport.aclose()

    asyncio.run(main())

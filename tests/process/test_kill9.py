"""``kill -9`` of the real process at any moment: every intent is settled by the next one.

Cases PC-001, PC-002, PC-007 (double launch after a crash between call and record), PC-150 (stuck
after restart) and etcd#14370 (acknowledged write lost): public-cases.csv.

Against the wire skin (honours ClientToken, loses nothing) and against moto's server (ignores
ClientToken, so only listing before repeating keeps a token's instances at n). Half of the kills
are aimed at the moment after a create was sent, the others fall anywhere from the apply on.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fleetds import IMAGE, PATIENT, Emulator, Fleetd, aws, free_port, pool, wait_for
from zygote import Zygote

from fleet.clock import ScaledLoop, SeededChance
from fleet.sim.node import NodeSettings, SimNode
from fleet.sim.transport import HttpTransport
from providers.base import TAG_CELL, TAG_TOKEN

SOAK = bool(os.environ.get("FLEETD_SOAK"))
ROUNDS = 100 if SOAK else 10
SPEED = 120
SEED = int(os.environ.get("FLEETD_KILL_SEED", "2"))
ENV = {"FLEETD_CLOCK_SPEED": str(SPEED), "FLEETD_CLOCK_SINCE": str(time.time())}
#: Attempts of the adapter have time: a loaded machine is no ambiguous answer here.
CALLS = {"create_s": 1200, "list_s": 2400, "delete_s": 1200}

Seen = list[tuple[str, str, str]]


#: The cell's name in ``fleetds``, written on every instance as a tag.
CELL = "test"


def listed(url: str) -> Seen:
    """(instance, state, token) of everything the cloud shows, ended instances included."""
    import boto3

    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=url,
                          aws_access_key_id="test", aws_secret_access_key="test")  # fmt: skip
    found = []
    for page in client.get_paginator("describe_instances").paginate():
        for reservation in page["Reservations"]:
            for i in reservation["Instances"]:
                tags = {t["Key"]: t["Value"] for t in i.get("Tags", [])}
                if tags.get(TAG_CELL) != CELL:
                    continue  # moto's state is one for its process: another test's instances
                found.append((i["InstanceId"], i["State"]["Name"], tags.get(TAG_TOKEN, "")))
    return found


class Agents:
    """Agents of moto's instances: simulated nodes on real HTTP, in a thread of their own."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End them."""
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: ScaledLoop(SPEED)) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        from moto.ec2.models import ec2_backends

        backend = ec2_backends["123456789012"]["us-east-1"]
        transport = HttpTransport(self._url, timeout_s=10.0 * SPEED)
        tasks: dict[str, asyncio.Task[None]] = {}
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            for reservation in list(backend.all_reservations()):
                for i in list(reservation.instances):
                    if i.state == "running" and i.id not in tasks:
                        tasks[i.id] = loop.create_task(self._node(i, transport).run())
                    elif i.state == "terminated" and i.id in tasks:
                        tasks[i.id].cancel()
            await asyncio.sleep(0.1 * SPEED)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        await transport.aclose()

    @staticmethod
    def _node(instance: Any, transport: HttpTransport) -> SimNode:
        import base64

        user_data = instance.user_data
        if isinstance(user_data, list):
            user_data = user_data[0]
        text = user_data.decode() if isinstance(user_data, bytes) else str(user_data)
        if not text.startswith("#cloud-config"):
            text = base64.b64decode(text).decode()
        machine: Any = SimpleNamespace(
            id=instance.id, user_data=text, peer="", failing=(),
            offer=SimpleNamespace(gpus=8, gpu="H100"),
        )  # fmt: skip
        return SimNode(machine, transport, SeededChance(instance.id), time.time,
                       lambda _m: False, NodeSettings())  # fmt: skip


@pytest.fixture(params=["wire", "moto"])
def cell(request: pytest.FixtureRequest, folder: Path, zygote: Zygote) -> Iterator[Fleetd]:
    """A cell on one of the two emulators; its provider's URL is in its settings."""
    port = free_port()
    limits, close = {}, []
    if request.param == "wire":
        emulator = Emulator(folder, zygote, "--seed", str(SEED), speed=SPEED)
        url = emulator.url
        close.append(emulator.close)
    else:
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        url = "http://{}:{}".format(*server.get_host_and_port())
        agents = Agents(f"http://127.0.0.1:{port}")
        close += [agents.close, server.stop]
        limits = {"batch": 1}  # moto launches MinCount of a batch, which is 1
    made = Fleetd(
        folder, zygote, agents={"port": port}, http=PATIENT, limits=limits,
        providers=[aws(url, limits=CALLS)],
    )  # fmt: skip
    yield made
    made.close()
    for end in close:
        end()


class Judge:
    """What must hold after each restart."""

    def __init__(self, fleetd: Fleetd) -> None:
        self._path = fleetd.data / "fleetd.db"
        self._url = str(fleetd.settings["providers"][0]["endpoint_url"])
        self._fleetd = fleetd

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Committed rows, read beside the daemon."""
        connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def events(self) -> list[tuple[Any, ...]]:
        """History so far."""
        return self.rows("SELECT id, at, kind, object_id, src, dst, reason FROM events ORDER BY id")

    def sent(self) -> bool:
        """A create was sent and nothing is known of it yet."""
        return bool(self.rows("SELECT 1 FROM nodes WHERE state = 'LAUNCHING' AND instance_id = ''"))

    def settled(self, nodes: int) -> bool:
        """The target is reached and nothing is on its way."""
        states = self.rows("SELECT state FROM nodes WHERE state <> 'TERMINATED'")
        served = self.rows("SELECT 1 FROM slots WHERE node_id IS NOT NULL")
        open_ = self.rows("SELECT 1 FROM batches WHERE settled_at IS NULL")
        return [s for (s,) in states] == ["READY"] * nodes and len(served) == nodes and not open_

    def settle(self, nodes: int, when: str) -> None:
        """Wait for the target; what stands in its way when it is not reached."""
        try:
            wait_for(lambda: self.settled(nodes), 60, when)
        except AssertionError:
            columns = "id, state, reason, message, instance_id, token"
            live = self.rows(f"SELECT {columns} FROM nodes WHERE state <> 'TERMINATED'")
            open_ = self.rows("SELECT token, n, attempts, last_error FROM batches "
                              "WHERE settled_at IS NULL")  # fmt: skip
            rests = self.rows("SELECT scope, until, level, reason, message FROM rests")
            parts = ["nodes", *live, "open batches", *open_, "rests", *rests]
            tail = self._fleetd.text().splitlines()[-30:]
            raise AssertionError("\n".join([f"{when}: not {nodes} nodes", *map(str, parts),
                                            *tail])) from None  # fmt: skip

    def story(self, instances: set[str], found: Seen) -> str:
        """All that is known of some instances and their tokens."""
        lines = []
        for instance, state, token in found:
            if instance in instances:
                lines += [f"{instance} is {state} under {token}"]
                lines += map(str, self.rows(f"SELECT * FROM batches WHERE token = '{token}'"))
                lines += map(str, self.rows(f"SELECT * FROM nodes WHERE token = '{token}'"))
                lines += map(str, self.rows(
                    "SELECT e.* FROM events e JOIN nodes n ON n.id = e.object_id "
                    f"WHERE n.token = '{token}' ORDER BY e.id"))  # fmt: skip
                lines += [f"{i} {s}" for i, s, t in found if t == token]
        return "\n".join(lines)

    def check(self, nodes: int, before: list[tuple[Any, ...]]) -> None:
        """Tokens, owners, history."""
        found = listed(self._url)
        batch = dict(self.rows("SELECT token, n FROM batches"))
        for token, n in Counter(token for _, _, token in found).items():
            assert n <= batch[token], f"{n} instances under {token} of a batch of {batch[token]}"
        alive = {i for i, state, _ in found if state in ("pending", "running")}
        owned = self.rows("SELECT instance_id FROM nodes WHERE state <> 'TERMINATED'")
        strangers = alive - {i for (i,) in owned}
        assert not strangers, self.story(strangers, found)
        assert len(alive) == nodes
        after = self.events()
        assert after[: len(before)] == before, "an acknowledged event is gone"
        ids = [row[0] for row in after]
        assert ids == sorted(set(ids))


@pytest.mark.timeout(1800 if SOAK else 120)
def test_kill_9_at_any_moment(cell: Fleetd) -> None:
    rng = random.Random(SEED)
    judge = Judge(cell)
    cell.start(env=ENV)
    nodes, aimed = 0, 0
    for n in range(ROUNDS):
        grow = rng.randint(1, 3) if nodes < 24 else 0
        nodes = nodes + grow if grow else 3  # shrinking: kills fall into terminations, too
        cell.apply(IMAGE, pool(nodes))
        if n % 2 == 0 and grow:
            wait_for(judge.sent, 20, "a create that was sent", 0.001)
            time.sleep(rng.uniform(0.0, 0.08))
            aimed += 1
        else:
            time.sleep(rng.uniform(0.0, 2.0))
        before = judge.events()
        cell.end(signal.SIGKILL)
        cell.start(env=ENV)
        judge.settle(nodes, f"seed {SEED}, round {n}")
        judge.check(nodes, before)
    assert aimed >= ROUNDS // 4
    assert cell.end()[0] == 0

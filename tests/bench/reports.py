"""Agent reports a second on one core: at the door, and over HTTP through the real listener."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from typing import Any

from fleet.api.agent import RATE_WINDOW_S
from fleet.api.asgi import AgentApp
from fleet.api.serve import Listener
from fleet.clock import ScaledLoop
from fleet.config import HttpLimits
from fleet.sim.trial import Trial, image, pool, virtual
from fleet.tokens import digest


def _body(boot_id: str, seq: int) -> bytes:
    return b'{"boot_id":"%s","seq":%d,"sent_at":1800000000.0,"kind":"status"}' % (
        boot_id.encode(), seq,
    )  # fmt: skip


async def _ready(nodes: int) -> Trial:
    from fleet.sim.spec import four_clouds

    world = four_clouds(level=3000)
    trial = Trial(1, world, policies=(image(world), pool(world, nodes=nodes, spares=2)))
    await trial.start()
    assert await trial.until(lambda: trial.serving() == nodes, timeout_s=7200, step_s=30)
    for node in trial.up.cell.view.all():
        trial.up.agent_door._nodes[digest(f"bench-{node.id}")] = node.id
    return trial


def door(rounds: int = 40_000) -> dict[str, Any]:
    """Plain heartbeats of 100 nodes straight into the door: microseconds each."""

    async def work() -> dict[str, Any]:
        trial = await _ready(100)
        cell, handle = trial.up.cell, trial.up.agent_door.handle
        nodes = [n for n in cell.view.all() if n.slot]
        best = float("inf")
        for part in range(4):
            calls = []
            for i in range(rounds // 4):
                node = nodes[i % len(nodes)]
                pulse = cell.watch.pulse(node.id)
                seq = pulse.seq + 1 + i // len(nodes)
                calls.append(
                    ({"authorization": f"Bearer bench-{node.id}"}, _body(pulse.boot_id, seq))
                )
            start, ok = time.process_time(), 0
            for n, (headers, body) in enumerate(calls):
                if n % 3000 == 0:  # the rate limit counts seconds of the clock
                    trial.up.agent_door._rate.clear()
                ok += (await handle("POST", "/v1/agent/report", headers, body, ""))[0] == 200
            best = min(best, time.process_time() - start)
            assert ok == len(calls), (part, ok)
        await trial.close()
        each = best / (rounds // 4)
        return {"us_each": round(1e6 * each, 2), "per_s": round(1 / each)}

    return virtual(work)


class _Well:
    async def ready(self) -> str:
        return ""


def _client(port: int, lines: list[bytes], start: Any) -> None:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    start.wait()
    for line in lines:
        sock.sendall(line)
        answer = sock.recv(4096)
        while not answer.endswith(b"}"):
            answer += sock.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:80]


def http(each: int = 2500, clients: int = 8) -> dict[str, Any]:
    """The same over keep-alive HTTP from client processes on the other core: per second of the
    server's own CPU time, which is what one core can do."""

    async def work() -> dict[str, Any]:
        trial = await _ready(clients)
        cell = trial.up.cell
        sock = socket.create_server(("127.0.0.1", 0))
        app = AgentApp(
            trial.up.agent_door, _Well(), names=("127.0.0.1",), refused=cell.count_refused,
            body_bytes=lambda: cell.settings.limits.body_bytes,
        )  # fmt: skip
        limits = HttpLimits()
        names = ("header_s", "body_s", "write_s", "idle_s")
        limits = limits.model_copy(update={k: getattr(limits, k) * 1000 for k in names})
        listener = Listener("agents", app, sock, limits, refused=cell.count_refused)
        await listener.start()
        spawn = multiprocessing.get_context("fork")
        go = spawn.Event()
        workers = []
        for node in [n for n in cell.view.all() if n.slot][:clients]:
            pulse, lines = cell.watch.pulse(node.id), []
            for i in range(each):
                body = _body(pulse.boot_id, pulse.seq + 100_000 + i)
                lines.append(
                    b"POST /v1/agent/report HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                    b"authorization: Bearer bench-%s\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n" % (node.id.encode(), len(body)) + body
                )
            workers.append(spawn.Process(target=_client, args=(listener.port, lines, go)))
        for worker in workers:
            worker.start()
        await asyncio.sleep(20)
        cpu = time.process_time()
        go.set()
        while any(w.is_alive() for w in workers):
            trial.up.agent_door._rate.clear()
            await asyncio.sleep(RATE_WINDOW_S / 100)
        cpu = time.process_time() - cpu
        assert all(w.exitcode == 0 for w in workers)
        await listener.aclose()
        await trial.close()
        total = each * clients
        return {"reports": total, "us_each": round(1e6 * cpu / total, 1),
                "per_s_of_one_core": round(total / cpu)}  # fmt: skip

    with asyncio.Runner(loop_factory=lambda: ScaledLoop(20.0)) as runner:
        return runner.run(work())

"""A daemon in its world on a virtual loop, and its operator API by ASGI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest
import structlog

from fleet.api.operator import operator_app
from fleet.clock import VirtualLoop
from fleet.model import Node
from fleet.sim.faults import FaultPlan
from fleet.sim.spec import four_clouds
from fleet.sim.trial import Trial, image, pool

ACTOR = {"x-fleetd-actor": "user:mira"}


@pytest.fixture(autouse=True, scope="session")
def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


class Bench:
    """One trial and a client of its API; ``run`` lets virtual time pass."""

    def __init__(self, *, nodes: int = 4, spares: int = 2, plan: FaultPlan | None = None,
                 **spec: Any) -> None:  # fmt: skip
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.nodes_wanted, self.spares_wanted = nodes, spares
        self.trial = self.run(self._start(plan, spec))

    async def _start(self, plan: FaultPlan | None, spec: dict[str, Any]) -> Trial:
        world = four_clouds(seed=3)
        pools = pool(world, nodes=self.nodes_wanted, spares=self.spares_wanted, **spec)
        trial = Trial(3, world, plan, policies=(image(world), pools))
        await trial.start()
        want = self.nodes_wanted + self.spares_wanted
        assert await trial.until(
            lambda: trial.serving() == self.nodes_wanted and trial.ready() == want, timeout_s=7200
        )
        self.app = operator_app(trial.up)
        return trial

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def sleep(self, seconds: float) -> None:
        self.run(self.trial.clock.sleep(seconds))

    def until(self, done: Callable[[], bool], timeout_s: float = 3600.0) -> bool:
        return bool(self.run(self.trial.until(done, timeout_s=timeout_s)))

    def call(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            headers = {**ACTOR, **kwargs.pop("headers", {})}
            async with httpx.AsyncClient(transport=transport, base_url="http://f") as client:
                return await client.request(method, path, headers=headers, **kwargs)

        response: httpx.Response = self.run(go())
        return response

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        response = self.call("GET", path, params=params)
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    def post(self, path: str, body: dict[str, Any], **kwargs: Any) -> httpx.Response:
        return self.call("POST", path, json=body, **kwargs)

    def problem(self, response: httpx.Response, status: int, code: str) -> dict[str, Any]:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
        body: dict[str, Any] = response.json()
        assert body["code"] == code, body
        assert body["status"] == status
        assert body["request_id"] == response.headers["x-request-id"]
        return body

    def node(self, name: str) -> Node:
        found: Node = self.trial.up.cell.view.nodes[name]
        return found

    def serving(self) -> list[str]:
        return sorted(n.id for n in self.trial.up.cell.view.all() if n.slot)

    def spares(self) -> list[str]:
        return [n.id for n in self.trial.up.cell.spares("train")]

    def close(self) -> None:
        self.run(self.trial.close())
        self.runner.close()


@pytest.fixture(scope="session")
def calm() -> Iterator[Bench]:
    """A fleet that nobody changes: for reading."""
    bench = Bench()
    yield bench
    bench.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A fleet of one's own."""
    bench = Bench(nodes=3, spares=1)
    yield bench
    bench.close()

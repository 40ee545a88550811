"""The Google adapter on a server that answers what a test's script says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from wire_gcp import PROJECT, REGION, ZONE, gcp_settings, launch

from fleet.clock import LoopClock
from fleet.errors import ProviderError
from fleet.model import Instance, InstanceRef, Owner
from fleet.sim.wire.asgi import Answer, Dropped, Receive, Scope, Send, read_body, send_answer
from fleet.sim.wire.serve import WireServer
from providers import gcp
from providers.gce.nouns import names_of

#: (method, last part of the path, query, body) to a status and a body, or seconds to wait.
Request = tuple[str, str, Mapping[str, str], Mapping[str, Any]]
Script = Callable[[Request], tuple[int, Mapping[str, Any]]]


def refusal(
    status: int, reason: str, message: str = "the words", **more: Any
) -> tuple[int, dict[str, Any]]:
    """An error answer in Google's form."""
    item = {"reason": reason, "message": message, "domain": "global"}
    errors = {"errors": [item]} if reason else {}
    return status, {"error": {"code": status, "message": message, **errors, **more}}


def operation(name: str, error: Mapping[str, Any] | None = None, **over: Any) -> dict[str, Any]:
    """A zone operation about the instance ``name``, running unless it has an ``error``."""
    place = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}"
    values: dict[str, Any] = {
        "kind": "compute#operation",
        "id": "17",
        "name": f"op-{name}",
        "operationType": "insert",
        "status": "DONE" if error else "RUNNING",
        "targetLink": f"{place}/instances/{name}",
        "zone": place,
        "insertTime": "2026-12-01T00:00:00.000-07:00",
    }
    if error:
        values |= {"error": {"errors": [error]}, "httpErrorStatusCode": 503}
    return values | over


def described(name: str, status: str = "RUNNING", **over: Any) -> dict[str, Any]:
    """An instance."""
    place = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}"
    return {
        "id": "1",
        "name": name,
        "status": status,
        "zone": place,
        "machineType": f"{place}/machineTypes/a3-highgpu-8g",
        "labels": {"fleetd-cell": "cell", "fleetd-token": "tok", "fleetd-pool": "train"},
        "creationTimestamp": "2026-12-01T00:00:00.000-07:00",
        **over,
    }


class Canned:
    """An adapter and the requests that its server got."""

    def __init__(self, script: Script, **settings: Any) -> None:
        self.script = script
        self.settings = settings
        self.sent: list[Request] = []

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads(await read_body(receive) or b"{}")
        query = dict(parse_qsl(scope["query_string"].decode()))
        request = (scope["method"], scope["path"].rpartition("/")[2], query, body)
        self.sent.append(request)
        status, answer = self.script(request)
        if status == 0:
            raise Dropped
        if status < 0:
            await asyncio.sleep(-status)
        headers = {"content-type": "application/json", **answer.get("headers", {})}
        await send_answer(send, Answer(status, json.dumps(answer).encode(), headers))

    def run(self, work: Callable[[gcp.Gcp], Any]) -> Any:
        """What ``work`` does with the adapter gives, while the server runs."""

        async def main() -> Any:
            async with WireServer(self._app) as server:
                provider = gcp.Gcp(gcp_settings(server.url, **self.settings), LoopClock())
                try:
                    return await work(provider)
                finally:
                    await provider.aclose()

        return asyncio.run(main())

    def error(self, work: Callable[[gcp.Gcp], Any]) -> ProviderError:
        """The error that ``work`` ends in."""

        async def main(provider: gcp.Gcp) -> ProviderError:
            try:
                await work(provider)
            except ProviderError as error:
                return error
            raise AssertionError("no error came")

        error = self.run(main)
        assert isinstance(error, ProviderError)
        return error


async def everything(provider: gcp.Gcp) -> list[Instance]:
    """The listing of the cell."""
    return [i async for i in provider.list(Owner("cell"))]


def ref(name: str) -> InstanceRef:
    """An instance of the project's first zone."""
    return InstanceRef("gcp", REGION, ZONE, name)


#: The name of the one instance that ``create`` asks for.
NAME = names_of(launch("tok"))[0]


def create(provider: gcp.Gcp) -> Any:
    """One launch under ``tok``."""
    return provider.create(launch("tok"))


def delete(provider: gcp.Gcp) -> Any:
    """Its end."""
    return provider.delete([ref(NAME)])

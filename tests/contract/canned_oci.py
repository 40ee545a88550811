"""The Oracle adapter on a server that answers what a test's script says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from wire_oci import COMPARTMENT, IMAGE, REGION, TYPE, ZONE, launch, oci_settings

from fleet.clock import LoopClock
from fleet.errors import ProviderError
from fleet.model import Instance, InstanceRef, Owner
from fleet.sim.wire.asgi import (
    Answer,
    Dropped,
    Receive,
    Scope,
    Send,
    headers_of,
    read_body,
    send_answer,
)
from fleet.sim.wire.serve import WireServer
from providers import oci

FULL = f"Uocm:{ZONE}"


@dataclass(frozen=True)
class Asked:
    """One request: ``what`` is its path after the version."""

    method: str
    what: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


#: Status, JSON and headers; status 0 cuts the connection, a negative one waits so many seconds.
Said = tuple[int, Any] | tuple[int, Any, Mapping[str, str]]
Script = Callable[[Asked], Said]


def refusal(status: int, code: str, message: str = "the words", **headers: str) -> Said:
    """An error answer in Oracle's form."""
    return status, {"code": code, "message": message}, headers


def described(ident: str, state: str = "RUNNING", **over: Any) -> dict[str, Any]:
    """An instance."""
    return {
        "id": ident,
        "lifecycleState": state,
        "availabilityDomain": FULL,
        "compartmentId": COMPARTMENT,
        "shape": TYPE,
        "region": "phx",
        "freeformTags": {"fleetd-cell": "cell", "fleetd-token": "tok", "fleetd-pool": "train"},
        "sourceDetails": {"sourceType": "image", "imageId": IMAGE},
        "timeCreated": "2026-12-01T00:00:00.000Z",
        **over,
    }


class Canned:
    """An adapter and the requests that its server got; domains are answered for the script."""

    def __init__(self, script: Script, **settings: Any) -> None:
        self.script = script
        self.settings = settings
        self.sent: list[Asked] = []

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads(await read_body(receive) or b"null")
        query = dict(parse_qsl(scope["query_string"].decode()))
        what = scope["path"].partition("/20160918/")[2]
        asked = Asked(scope["method"], what, query, headers_of(scope), body)
        self.sent.append(asked)
        domains: Said = (200, [{"name": FULL}, {"name": "Uocm:PHX-AD-2"}])
        status, said, *more = domains if what == "availabilityDomains" else self.script(asked)
        if status == 0:
            raise Dropped
        if status < 0:
            await asyncio.sleep(-status)
        headers = {"content-type": "application/json", **(more[0] if more else {})}
        await send_answer(send, Answer(abs(status), json.dumps(said).encode(), headers))

    def run(self, work: Callable[[oci.Oci], Any]) -> Any:
        """What ``work`` does with the adapter gives, while the server runs."""

        async def main() -> Any:
            async with WireServer(self._app) as server:
                provider = oci.Oci(oci_settings(server.url, **self.settings), LoopClock())
                try:
                    return await work(provider)
                finally:
                    await provider.aclose()

        return asyncio.run(main())

    def error(self, work: Callable[[oci.Oci], Any]) -> ProviderError:
        """The error that ``work`` ends in."""

        async def main(provider: oci.Oci) -> ProviderError:
            try:
                await work(provider)
            except ProviderError as error:
                return error
            raise AssertionError("no error came")

        error = self.run(main)
        assert isinstance(error, ProviderError)
        return error


async def everything(provider: oci.Oci) -> list[Instance]:
    """The listing of the cell."""
    return [i async for i in provider.list(Owner("cell"))]


IDENT = "ocid1.instance.oc1.phx.one"


def ref(ident: str = IDENT) -> InstanceRef:
    """An instance of the first availability domain."""
    return InstanceRef("oci", REGION, ZONE, ident)


def create(provider: oci.Oci) -> Any:
    """One launch under ``tok``."""
    return provider.create(launch("tok"))


def delete(provider: oci.Oci) -> Any:
    """Its end."""
    return provider.delete([ref()])

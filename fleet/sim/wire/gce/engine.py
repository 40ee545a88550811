"""What the routes of the Compute Engine skin share: the world, names, operations, refusals.

Invariant: a name is taken in its zone as long as its machine exists, and every machine made here
has one name for ever. One world answers for every project.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fleet.clock import Chance
from fleet.model import Instance, Phase
from fleet.sim.machine import Machine
from fleet.sim.vendor import CODES, Trouble
from fleet.sim.wire.gce.filters import BadFilterError, Test, parse
from fleet.sim.wire.gce.operations import Operations
from fleet.sim.world import World

T = TypeVar("T")

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DOMAINS: Final = {"quotaExceeded": "usageLimits", "rateLimitExceeded": "usageLimits"}


class Refusal(Exception):
    """An error answer: HTTP status, Google's reason, message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.status, self.reason, self.message = status, reason, message

    def body(self) -> bytes:
        """The answer's JSON."""
        item = {
            "message": self.message,
            "domain": _DOMAINS.get(self.reason, "global"),
            "reason": self.reason,
        }
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "errors": [item],
        }
        if self.status == 401:
            error["status"] = "UNAUTHENTICATED"
            error["details"] = [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "ACCESS_TOKEN_EXPIRED",
                    "domain": "googleapis.com",
                }
            ]
        return json.dumps({"error": error}).encode()


def not_found(link: str) -> Refusal:
    """What Google says of a resource that does not exist."""
    return Refusal(404, "notFound", f"The resource '{link}' was not found")


def invalid(message: str, reason: str = "invalid") -> Refusal:
    """What Google says of a request that is wrong."""
    return Refusal(400, reason, message)


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way: where, its query and its body."""

    project: str
    zone: str
    name: str
    query: Mapping[str, str]
    body: bytes

    @property
    def request_id(self) -> str:
        """The ``requestId``, if any; raises Refusal for one that is no UUID."""
        text = self.query.get("requestId", "")
        if text and (not _UUID.fullmatch(text) or not text.strip("0-")):
            raise invalid(f"Invalid value for field 'requestId': '{text}'. Not a valid UUID.")
        return text

    def place(self, kind: str, name: str) -> str:
        """A zonal link from the project on."""
        return f"projects/{self.project}/zones/{self.zone}/{kind}/{name}"


@dataclass(frozen=True, slots=True)
class Held:
    """A machine with its name, the project that asked for it, and its numeric id."""

    machine: Machine
    name: str
    project: str
    number: int


class Engine:
    """One simulated Compute Engine."""

    def __init__(self, world: World, chance: Chance, name: str, refuse_s: float) -> None:
        self.world, self.chance, self.refuse_s = world, chance, refuse_s
        self.cloud = world.clouds[name]
        self.types: Any = importlib.import_module("google.cloud.compute_v1")
        self.operations = Operations()
        self._machines: dict[tuple[str, str], Machine] = {}
        self._held: dict[str, Held] = {}

    def zones(self) -> dict[str, str]:
        """Every zone that sells something, with its region."""
        return {o.zone: o.region for o in self.cloud.spec.offers}

    def region(self, zone: str) -> str:
        """The region of a zone; raises Refusal for one that does not exist."""
        region = self.zones().get(zone)
        if region is None:
            raise invalid(f"Invalid value for field 'zone': '{zone}'. Unknown zone.")
        return region

    def decode(self, kind: str, body: bytes) -> Any:
        """A message of the SDK from JSON; raises Refusal for what it does not know."""
        try:
            return getattr(self.types, kind).from_json(body.decode() or "{}")
        except ValueError as e:
            raise invalid(f"Invalid JSON payload received. {e}", "parseError") from None
        except Exception as e:
            if type(e).__name__ != "ParseError":  # protobuf's own, no ValueError
                raise
            raise invalid(f"Invalid JSON payload received. {e}", "parseError") from None

    def encode(self, message: Any) -> str:
        """JSON of a message of the SDK."""
        return str(type(message).to_json(message, use_integers_for_enums=False, indent=None))

    # -- names ----------------------------------------------------------------------------------

    def named(self, machine: Machine) -> str:
        """A machine's name."""
        held = self._held.get(machine.id)
        return held.name if held is not None else f"instance-{machine.seq}"

    def number(self, machine: Machine) -> int:
        """A machine's numeric id."""
        held = self._held.get(machine.id)
        return held.number if held is not None else int(machine.id)

    def machine(self, shown: Instance) -> Machine:
        """The machine of a snapshot; its first one was taken before it had its name."""
        held = self._held.get(shown.ref.instance_id)
        return held.machine if held else self.cloud.machines[shown.ref.instance_id]

    def take(self, call: Call, name: str, machine: Machine) -> None:
        """Give a new machine its name: agents report under it, and every verb knows it."""
        held = Held(machine, name, call.project, int(machine.id))
        self._machines[call.zone, name] = machine
        self._held[machine.id] = held
        if name in self.cloud.machines:
            return  # in another zone, or not yet forgotten
        existing = self.world._existing  # noqa: SLF001 — until an order can name its machine
        self.cloud.machines[name] = self.cloud.machines.pop(machine.id)
        existing[name] = existing.pop(machine.id)
        machine.id = name
        self._held[name] = held

    def holder(self, zone: str, name: str) -> Machine | None:
        """The machine that exists under a name, shown or not."""
        machine = self._machines.get((zone, name))
        return machine if machine is not None and machine.exists else None

    def shown(self, call: Call) -> Machine:
        """The machine that lists show under the call's name or id; raises Refusal for none."""
        machine = self._machines.get((call.zone, call.name))
        if machine is None and call.name.isdigit() and call.name in self._held:
            machine = self._held[call.name].machine
        seen = self.cloud.shown.get(machine.id) if machine is not None else None
        if machine is None or seen is None or seen.phase is Phase.TERMINATED:
            raise not_found(call.place("instances", call.name))
        return machine

    def sweep(self) -> None:
        """Note what the world ended by itself as operations, and forget what is gone."""
        host = CODES[self.cloud.kind][Trouble.DIED_INTERNAL]
        for (zone, name), m in list(self._machines.items()):
            if m.ended_at is None:
                continue
            del self._machines[zone, name]
            if m.preempted or (m.code == host and not m.died):
                kind = "preempted" if m.preempted else "hostError"
                project = self._held[m.id].project
                op = self.operations.add(
                    f"compute.instances.{kind}", project, zone, name, m.ended_at
                )
                op.target_id, op.user = str(self.number(m)), "system"
        machines = self.cloud.machines
        self._held = {i: h for i, h in self._held.items() if h.machine.id in machines}

    # -- lists ----------------------------------------------------------------------------------

    def wanted(self, call: Call) -> Test:
        """The call's filter."""
        try:
            return parse(call.query.get("filter", ""))
        except BadFilterError as e:
            raise invalid(f"Invalid value for field 'filter': {e}") from None

    def page(
        self, call: Call, found: Sequence[tuple[int, T]], *, down: bool = False
    ) -> tuple[list[T], str]:
        """One page of items, sorted by their keys (``down``: falling), and the next one's token.

        A token names the last item by its key, so pages do not slip when items come and go.
        """
        text = call.query.get("maxResults", "500")
        if not text.isdigit() or not 0 <= int(text) <= 500:
            raise invalid(f"Invalid value for field 'maxResults': '{text}'.")
        if self.cloud.truncates():
            raise Refusal(503, "backendError", "Backend error: the list broke off")
        size, token = int(text) or 500, call.query.get("pageToken", "")
        if token:
            try:
                after = int(base64.urlsafe_b64decode(token))
            except (binascii.Error, ValueError):
                raise invalid(f"Invalid value for field 'pageToken': '{token}'.") from None
            found = [x for x in found if (x[0] < after if down else x[0] > after)]
        page = found[:size]
        more = len(found) > size
        following = base64.urlsafe_b64encode(str(page[-1][0]).encode()).decode() if more else ""
        return [item for _, item in page], following

"""Zone operations: what was asked for, how far it is, and how it failed.

Invariant: an operation has no clock of its own; whether it is done follows from its machine or
from its due time, so it cannot disagree with the world. At most MAX_KEPT of a zone are remembered,
the oldest are forgotten first, their request ids with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from fleet.model import Phase
from fleet.sim.machine import Machine

ROOT: Final = "https://www.googleapis.com/compute/v1/"
MAX_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an operation failed, in Google's words."""

    code: str
    message: str
    status: int = 503
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Operation:
    """One zone operation. ``members`` are those of a bulkInsert."""

    ident: int
    kind: str
    project: str
    zone: str
    target: str
    at: float
    target_id: str = ""
    group: str = ""
    request_id: str = ""
    user: str = "emulator@fleetd.example"
    machine: Machine | None = None
    failure: Failure | None = None
    due_at: float = 0.0
    members: list[Operation] = field(default_factory=list)
    #: Its JSON, and whether it was done when that was made.
    text: str = ""
    told: bool = False

    @property
    def name(self) -> str:
        """Unique in the project."""
        return f"operation-{int(self.at * 1000)}-{self.ident:013x}"

    def state(self, now: float) -> tuple[bool, Failure | None]:
        """Whether it is done, and how it failed."""
        if self.failure is not None:
            done = now >= self.due_at
            return done, self.failure if done else None
        m = self.machine
        if m is not None and self.kind == "insert":
            if m.died:
                return True, Failure(m.code, m.message, 503 if "EXHAUSTED" in m.code else 500)
            return m.phase is not Phase.PENDING, None
        if m is not None and self.kind == "delete":
            return m.phase is Phase.TERMINATED, None
        return all(each.state(now)[0] for each in self.members), None

    def field(self, name: str, now: float) -> str | None:
        """A field's text, as filters see it."""
        read = _FIELDS.get(name)
        return (read(self) or None) if read is not None else self._moving(name, now)

    def _moving(self, name: str, now: float) -> str | None:
        """A field that changes with time."""
        done, failure = self.state(now)
        if name == "status":
            return "DONE" if done else "RUNNING"
        return str(failure.status) if failure and name == "httpErrorStatusCode" else None

    @property
    def target_link(self) -> str:
        """The link of the instance it is about, or of the zone's instances."""
        place = f"{ROOT}projects/{self.project}/zones/{self.zone}"
        return f"{place}/instances/{self.target}" if self.target else f"{place}/instances"

    def render(self, types: Any, now: float) -> str:
        """Its JSON; made once while it runs and once when it is done."""
        done, failure = self.state(now)
        if self.text and self.told == done:
            return self.text
        status = types.Operation.Status.DONE if done else types.Operation.Status.RUNNING
        place = f"{ROOT}projects/{self.project}/zones/{self.zone}"
        values: dict[str, Any] = {
            "kind": "compute#operation",
            "id": self.ident,
            "name": self.name,
            "operation_type": self.kind,
            "status": status,
            "progress": 100 if done else 0,
            "target_link": self.target_link,
            "zone": place,
            "user": self.user,
            "self_link": f"{place}/operations/{self.name}",
            "insert_time": stamp(self.at),
            "start_time": stamp(self.at),
        }
        if self.target_id:
            values["target_id"] = int(self.target_id)
        if self.group:
            values["operation_group_id"] = self.group
        if self.request_id:
            values["client_operation_id"] = self.request_id
        if done:
            values["end_time"] = stamp(now)
        if failure is not None:
            values |= _failed(failure)
        made = types.Operation(values)
        text = str(types.Operation.to_json(made, use_integers_for_enums=False, indent=None))
        self.text, self.told = text, done
        return text


#: Fields that never change, as filters see them.
_FIELDS: Final[Mapping[str, Callable[[Operation], str]]] = {
    "name": lambda op: op.name,
    "id": lambda op: str(op.ident),
    "operationType": lambda op: op.kind,
    "targetLink": lambda op: op.target_link,
    "targetId": lambda op: op.target_id,
    "operationGroupId": lambda op: op.group,
    "clientOperationId": lambda op: op.request_id,
    "zone": lambda op: f"{ROOT}projects/{op.project}/zones/{op.zone}",
    "user": lambda op: op.user,
    "insertTime": lambda op: stamp(op.at),
}


def _failed(failure: Failure) -> dict[str, Any]:
    error: dict[str, Any] = {"code": failure.code, "message": failure.message}
    if failure.metadata:
        info = {
            "reason": "resource_availability",
            "domain": "compute.googleapis.com",
            "metadatas": dict(failure.metadata),
        }
        error["error_details"] = [{"error_info": info}]
    words = {503: "SERVICE UNAVAILABLE", 403: "FORBIDDEN", 404: "NOT FOUND", 500: "INTERNAL"}
    return {
        "error": {"errors": [error]},
        "http_error_status_code": failure.status,
        "http_error_message": words.get(failure.status, "BAD REQUEST"),
    }


class Operations:
    """All operations of the project, by zone."""

    def __init__(self) -> None:
        self._by_zone: dict[str, dict[str, Operation]] = {}
        self._by_request: dict[tuple[str, str], Operation] = {}
        self._seq = 1 << 60

    def add(self, kind: str, project: str, zone: str, target: str, at: float) -> Operation:
        """A new operation; its maker fills in the rest."""
        self._seq += 1
        op = Operation(self._seq, kind, project, zone, target, at)
        mine = self._by_zone.setdefault(zone, {})
        mine[op.name] = op
        if len(mine) > MAX_KEPT:
            old = mine.pop(next(iter(mine)))
            self._by_request.pop((zone, old.request_id), None)
        return op

    def asked(self, zone: str, request_id: str) -> Operation | None:
        """The operation of an earlier request with this id."""
        return self._by_request.get((zone, request_id)) if request_id else None

    def remember(self, op: Operation, request_id: str) -> None:
        """A repeat of ``request_id`` in this zone will be answered with ``op``."""
        if request_id:
            op.request_id = request_id
            self._by_request[op.zone, request_id] = op

    def get(self, zone: str, name: str) -> Operation | None:
        """One operation by name."""
        return self._by_zone.get(zone, {}).get(name)

    def newest_first(self, zone: str) -> Iterator[Operation]:
        """All of a zone."""
        yield from reversed(self._by_zone.get(zone, {}).values())


def stamp(at: float) -> str:
    """A moment in RFC 3339."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")

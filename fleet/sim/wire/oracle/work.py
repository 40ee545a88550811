"""Work requests of the Oracle skin.

Invariant: a work request has no state of its own; how far it is and whether it failed follows from
its machine, so it cannot disagree with the world.
"""

from __future__ import annotations

from typing import Any

from fleet.model import Phase
from fleet.sim.machine import Machine
from fleet.sim.vendor import CODES, Trouble
from fleet.sim.wire.asgi import Answer
from fleet.sim.wire.oracle.engine import Call, Engine, Work, answer, moment, short, unseen


def begin(e: Engine, operation: str, action: str, machine: Machine) -> Work:
    """A new work request about a machine."""
    number = len(e.memory.works_of.get(machine.id, ()))
    key = f"{machine.id.rpartition('.')[2]}{number:04x}"
    ident = f"ocid1.coreservicesworkrequest.oc1.{short(machine.offer.region)}.{key}"
    work = Work(ident, operation, action, machine, e.world.now())
    e.memory.works[ident] = work
    e.memory.works_of.setdefault(machine.id, []).append(work)
    return work


def get(e: Engine, call: Call) -> Answer:
    """``GetWorkRequest``."""
    work = _work(e, call)
    values = _values(e, work)
    item = e.make(
        "WorkRequestResource",
        action_type=work.action if values["status"] == "SUCCEEDED" else "IN_PROGRESS",
        entity_type="instance",
        identifier=work.machine.id,
        entity_uri=f"/instances/{work.machine.id}",
    )
    return answer(e.encode(e.make("WorkRequest", **values, resources=[item])))


def list_(e: Engine, call: Call) -> Answer:
    """``ListWorkRequests`` of a compartment, or of one resource in it."""
    compartment = call.compartment()
    e.cloud.admit("read", call.region, 0)
    resource = call.query.get("resourceId", "")
    works = e.memory.works_of.get(resource, []) if resource else list(e.memory.works.values())
    rows = [
        (n, e.make("WorkRequestSummary", **values))
        for n, work in enumerate(works)
        if (values := _values(e, work))["compartment_id"] in (None, compartment)
        and call.region in ("", work.machine.offer.region)
    ]
    page, head = e.page(call, rows)
    return answer(e.encode(page), headers=head)


def errors(e: Engine, call: Call) -> Answer:
    """``ListWorkRequestErrors``: why a launch died."""
    work, found = _work(e, call), []
    if _failed(work):
        machine = work.machine
        capacity = machine.code == CODES[e.cloud.kind][Trouble.DIED_CAPACITY]
        error = e.make(
            "WorkRequestError",
            code=machine.code,
            message=f"Out of host capacity. {machine.message}" if capacity else machine.message,
            timestamp=moment(machine.ended_at or e.world.now()),
        )
        found.append((0, error))
    page, head = e.page(call, found)
    return answer(e.encode(page), headers=head)


def _work(e: Engine, call: Call) -> Work:
    work = e.memory.works.get(call.ident)
    if work is None or call.region not in ("", work.machine.offer.region):
        raise unseen()
    e.cloud.admit("read", work.machine.offer.region, 0)
    return work


def _failed(work: Work) -> bool:
    return work.operation == "LaunchInstance" and work.machine.died


def _values(e: Engine, work: Work) -> dict[str, Any]:
    """What both forms of a work request say."""
    machine = work.machine
    launches = work.operation == "LaunchInstance"
    over = machine.phase is not Phase.PENDING if launches else machine.phase is Phase.TERMINATED
    status = "FAILED" if _failed(work) else "SUCCEEDED" if over else "IN_PROGRESS"
    end = machine.ended_at if not launches or machine.died else machine.running_at
    made = e.memory.by_machine.get(machine.id)
    return {
        "id": work.ident,
        "operation_type": work.operation,
        "status": status,
        "compartment_id": made.details.compartment_id if made is not None else None,
        "percent_complete": 100.0 if over else 50.0,
        "time_accepted": moment(work.at),
        "time_started": moment(work.at),
        "time_finished": moment(end) if over and end is not None else None,
    }

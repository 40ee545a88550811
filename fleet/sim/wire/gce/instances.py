"""Instances of the Compute Engine skin: get, list, aggregatedList, delete.

Invariant: what is shown is what the world's lists show, never what is; a launch that failed never
became an instance, so only its operation tells of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fleet.model import Instance, Market, Phase
from fleet.sim.machine import Machine
from fleet.sim.wire.gce.engine import Call, Engine
from fleet.sim.wire.gce.filters import Fields
from fleet.sim.wire.gce.operations import ROOT, stamp

_STATUS: Final[Mapping[Phase, str]] = {
    Phase.PENDING: "PROVISIONING",
    Phase.RUNNING: "RUNNING",
    Phase.STOPPING: "STOPPING",
    Phase.STOPPED: "TERMINATED",
    Phase.FAILED: "TERMINATED",
}


def get(e: Engine, call: Call) -> str:
    """``instances.get``: what lists show of one."""
    e.cloud.admit("read", e.region(call.zone))
    machine = e.shown(call)
    return _rendered(e, call, machine, e.cloud.shown[machine.id])


def delete(e: Engine, call: Call) -> str:
    """``instances.delete``: an operation that is done when the machine is gone."""
    region = e.zones().get(call.zone, "")
    e.cloud.admit("terminate", region, 1)
    e.region(call.zone)
    machine = e.shown(call)
    before = e.operations.asked(call.zone, call.request_id)
    if before is not None:
        return before.render(e.types, e.world.now())
    e.cloud.terminate([machine.id])
    op = e.operations.add("delete", call.project, call.zone, e.named(machine), e.world.now())
    op.machine = machine
    op.target_id = str(e.number(machine))
    e.operations.remember(op, call.request_id)
    return op.render(e.types, e.world.now())


def list_zone(e: Engine, call: Call) -> str:
    """``instances.list`` of one zone."""
    e.cloud.admit("list", e.region(call.zone))
    found = [p for p in _found(e, call) if p[1][0].offer.zone == call.zone]
    page, token = e.page(call, found)
    items = ",".join(_rendered(e, call, m, s) for m, s in page)
    return _listing("compute#instanceList", f"[{items}]", token)


def aggregated(e: Engine, call: Call) -> str:
    """``instances.aggregatedList``: all zones; those without an item on this page say so."""
    e.cloud.admit("list", "")
    e.sweep()
    page, token = e.page(call, list(_found(e, call)))
    by_zone: dict[str, list[str]] = {zone: [] for zone in sorted(e.zones())}
    for machine, shown in page:
        by_zone[machine.offer.zone].append(_rendered(e, call, machine, shown))
    scopes = [
        f'"zones/{zone}": ' + (f'{{"instances": [{",".join(items)}]}}' if items else _nothing(zone))
        for zone, items in by_zone.items()
    ]
    return _listing("compute#instanceAggregatedList", f"{{{','.join(scopes)}}}", token)


def _nothing(zone: str) -> str:
    words = f"There are no results for scope 'zones/{zone}' on this page."
    warning = {
        "code": "NO_RESULTS_ON_PAGE",
        "message": words,
        "data": [{"key": "scope", "value": f"zones/{zone}"}],
    }
    return json.dumps({"warning": warning})


def _listing(kind: str, items: str, token: str) -> str:
    following = f', "nextPageToken": "{token}"' if token else ""
    return f'{{"kind": "{kind}", "id": "list", "items": {items}{following}}}'


def _found(e: Engine, call: Call) -> Iterator[tuple[int, tuple[Machine, Instance]]]:
    """What lists show and the filter wants, in order of creation."""
    wanted = e.wanted(call)
    rows = [(e.machine(s), s) for s in e.cloud.listing()]
    for machine, shown in sorted(rows, key=lambda r: r[0].seq):
        if shown.phase is not Phase.TERMINATED and wanted(_fields(e, machine, shown)):
            yield machine.seq, (machine, shown)


#: What filters may ask of an instance beside its labels.
_FIELDS: Final[Mapping[str, Callable[[Engine, Machine, Instance], str]]] = {
    "name": lambda e, m, s: e.named(m),
    "id": lambda e, m, s: str(e.number(m)),
    "status": lambda e, m, s: _STATUS[s.phase],
    "zone": lambda e, m, s: f"{ROOT}projects/{s.ref.provider}/zones/{m.offer.zone}",
    "scheduling.provisioningModel": lambda e, m, s: (
        "SPOT" if m.offer.market is Market.SPOT else "STANDARD"
    ),
}


def _fields(e: Engine, machine: Machine, shown: Instance) -> Fields:
    def read(name: str) -> str | None:
        if name.startswith("labels."):
            return machine.tags.get(name[7:])
        return _FIELDS[name](e, machine, shown) if name in _FIELDS else None

    return read


def _rendered(e: Engine, call: Call, machine: Machine, shown: Instance) -> str:
    """An instance's JSON, kept on the snapshot that it describes."""
    kept = machine.wire
    if kept is not None and kept[0] is shown and isinstance(kept[1], tuple):
        project, text = kept[1]
        if project == call.project:
            return str(text)
    text = e.encode(e.types.Instance(_instance(e, call.project, machine, shown)))
    machine.wire = (shown, (call.project, text))
    return text


def _instance(e: Engine, project: str, machine: Machine, shown: Instance) -> dict[str, Any]:
    offer, name = machine.offer, e.named(machine)
    place = f"{ROOT}projects/{project}/zones/{offer.zone}"
    labels = {k: v for k, v in machine.tags.items() if not k.startswith("metadata:")}
    metadata = {k[9:]: v for k, v in machine.tags.items() if k.startswith("metadata:")}
    scheduling: dict[str, Any] = {
        "on_host_maintenance": "TERMINATE",
        "automatic_restart": False,
        "provisioning_model": "STANDARD",
        "preemptible": False,
    }
    if offer.market is Market.SPOT:
        scheduling |= {"provisioning_model": "SPOT", "preemptible": True,
                       "instance_termination_action": "DELETE"}  # fmt: skip
    item: dict[str, Any] = {
        "kind": "compute#instance",
        "id": e.number(machine),
        "name": name,
        "zone": place,
        "machine_type": f"{place}/machineTypes/{offer.instance_type}",
        "status": _STATUS[shown.phase],
        "creation_timestamp": stamp(machine.created_at),
        "labels": labels,
        "metadata": {
            "items": [
                {"key": "user-data", "value": machine.user_data},
                *({"key": k, "value": v} for k, v in metadata.items()),
            ]
        },
        "scheduling": scheduling,
        "network_interfaces": [{"name": "nic0", "network_i_p": machine.peer}],
        "disks": [{"boot": True, "auto_delete": True, "source": f"{place}/disks/{name}"}],
        "self_link": f"{place}/instances/{name}",
    }
    if offer.market is Market.RESERVED:
        item["reservation_affinity"] = {"consume_reservation_type": "SPECIFIC_RESERVATION"}
    return item

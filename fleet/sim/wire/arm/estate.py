"""What a simulated Azure subscription holds: VMs by name, their parts, and operations on them.

Invariant: a name means one VM from the PUT that made it until it is gone, a failed one included;
a VM's NIC and disk exist as long as it does, and longer only if the PUT did not say Delete. How
VMs and their instance views look on the wire is decided here alone.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from fleet.model import Instance, Market, Phase
from fleet.sim.machine import Machine
from fleet.sim.world import World

#: Operations that are remembered; the oldest are forgotten first.
MAX_OPERATIONS: Final = 20_000
#: Azure gives up on an operating system that never calls back.
OS_PROVISIONING_S: Final = 2400.0
OS_TIMED_OUT: Final = "OSProvisioningTimedOut"

_STATES: Final[Mapping[Phase, tuple[str, str]]] = {
    Phase.PENDING: ("Creating", ""),
    Phase.RUNNING: ("Succeeded", "running"),
    Phase.STOPPING: ("Deleting", "stopping"),
    Phase.STOPPED: ("Succeeded", "deallocated"),
    Phase.TERMINATED: ("Deleting", "deallocated"),
    Phase.FAILED: ("Failed", ""),
}


@dataclass(slots=True, eq=False)
class Vm:
    """One VM resource. ``body`` is what its PUT said, without the custom data."""

    machine: Machine
    subscription: str
    group: str
    name: str
    body: dict[str, Any]
    print_: str
    #: Resource id of each part and whether it goes with the VM.
    parts: tuple[tuple[str, bool], ...] = ()
    #: The JSON of a snapshot, kept as long as that snapshot is shown.
    text: tuple[Instance, bool, str] | None = None

    @property
    def id(self) -> str:
        """The resource id."""
        return f"{_group_id(self.subscription, self.group)}/virtualMachines/{self.name}"

    @property
    def vm_id(self) -> str:
        """The unique id that no other VM ever has."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.id}#{self.machine.seq}"))


def _group_id(subscription: str, group: str, namespace: str = "Microsoft.Compute") -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}/providers/{namespace}"


@dataclass(frozen=True, slots=True)
class Operation:
    """A long-running operation: ``verb`` is create or delete."""

    vm: Vm
    verb: str
    began_at: float


@dataclass(slots=True)
class Estate:
    """All VMs of all resource groups of one simulated account."""

    world: World
    vms: dict[tuple[str, str, str], Vm] = field(default_factory=dict)
    #: By the ids under which the cloud shows them.
    by_machine: dict[str, Vm] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    #: Parts that outlived their VM because nobody said that they should not.
    orphans: list[str] = field(default_factory=list)

    def find(self, subscription: str, group: str, name: str) -> Vm | None:
        """The VM of this name, whatever lists show; names ignore case."""
        vm = self.vms.get((subscription.lower(), group.lower(), name.lower()))
        return None if vm is None or self._gone(vm) else vm

    def _gone(self, vm: Vm) -> bool:
        """Forget a VM that the cloud has let go of."""
        if vm.machine.exists:
            return False
        del self.vms[vm.subscription.lower(), vm.group.lower(), vm.name.lower()]
        self.orphans += [part for part, goes in vm.parts if not goes]
        return True

    def tidy(self) -> None:
        """Forget what is gone and no list shows any more."""
        for vm in list(self.vms.values()):
            self._gone(vm)
        for ident, vm in list(self.by_machine.items()):
            if vm.machine.id not in self.world.clouds[vm.machine.provider].machines:
                del self.by_machine[ident]

    def add(
        self, machine: Machine, name: str, group: tuple[str, str], body: dict[str, Any], print_: str
    ) -> Vm:
        """Enter a VM that was just made; its machine takes the VM's name as its id."""
        if len(self.by_machine) > 3 * len(self.vms) + 1000:
            self.tidy()
        kept = deepcopy(body)
        kept["properties"]["osProfile"].pop("customData", None)
        vm = Vm(machine, *group, name, kept, print_)
        vm.parts = tuple(_parts(vm))
        self.by_machine[machine.id] = vm  # its first snapshot was taken under this id
        self._rename(machine, name)
        self.vms[group[0].lower(), group[1].lower(), name.lower()] = vm
        self.by_machine[machine.id] = vm
        return vm

    def _rename(self, machine: Machine, name: str) -> None:
        """At Azure the owner's name is the id, and agents report under it."""
        machines = self.world.clouds[machine.provider].machines
        existing = self.world._existing  # noqa: SLF001 — until an order can name its machine
        if name in machines:
            return  # in another resource group, or not yet forgotten
        machines[name] = machines.pop(machine.id)
        existing[name] = existing.pop(machine.id)
        machine.id = name

    def begin(self, vm: Vm, verb: str, operation_id: str) -> None:
        """Remember an operation under its id."""
        self.operations[operation_id] = Operation(vm, verb, self.world.now())
        while len(self.operations) > MAX_OPERATIONS:
            del self.operations[next(iter(self.operations))]

    def resources(self, subscription: str, group: str) -> Iterator[str]:
        """Resource ids of everything in a group: VMs, NICs, disks, and what was left behind."""
        self.tidy()
        for vm in self.vms.values():
            if (vm.subscription.lower(), vm.group.lower()) == (subscription.lower(), group.lower()):
                yield vm.id
                yield from (part for part, _ in vm.parts)
        prefix = f"/subscriptions/{subscription}/resourcegroups/{group}/".lower()
        yield from (part for part in self.orphans if part.lower().startswith(prefix))


def _parts(vm: Vm) -> Iterator[tuple[str, bool]]:
    properties = vm.body["properties"]
    network = _group_id(vm.subscription, vm.group, "Microsoft.Network")
    for nic in properties["networkProfile"].get("networkInterfaceConfigurations", ()):
        goes = nic.get("properties", {}).get("deleteOption") == "Delete"
        yield f"{network}/networkInterfaces/{nic['name']}", goes
    disk = properties["storageProfile"].get("osDisk", {})
    name = disk.get("name") or f"{vm.name}_OsDisk_1_{vm.vm_id.replace('-', '')}"
    goes = disk.get("deleteOption") == "Delete"
    yield f"{_group_id(vm.subscription, vm.group)}/disks/{name}", goes


# -- on the wire ---------------------------------------------------------------------------------


def hung(vm: Vm, now: float) -> bool:
    """True when Azure has given up on the VM's operating system, which runs and is billed."""
    since = vm.machine.running_at
    return vm.machine.up_at is None and since is not None and now - since > OS_PROVISIONING_S


def state_of(vm: Vm, shown: Instance, now: float) -> tuple[str, str, str, str]:
    """provisioningState, power state, error code and message."""
    state, power = _STATES[shown.phase]
    if shown.phase is Phase.RUNNING and hung(vm, now):
        return "Failed", power, OS_TIMED_OUT, "OS Provisioning did not finish in the allotted time."
    failed = shown.phase is Phase.FAILED
    return state, power, shown.code if failed else "", shown.message if failed else ""


def view_of(vm: Vm, shown: Instance, now: float) -> dict[str, Any]:
    """The instance view of a snapshot."""
    state, power, code, message = state_of(vm, shown, now)
    word = f"ProvisioningState/{state.lower()}" + (f"/{code}" if code else "")
    first = {
        "code": word,
        "level": "Error" if code else "Info",
        "displayStatus": "Provisioning failed" if code else f"Provisioning {state.lower()}",
        "time": stamp(now),
    }
    statuses = [first | ({"message": message} if message else {})]
    if power:
        shape = {"code": f"PowerState/{power}", "level": "Info", "displayStatus": f"VM {power}"}
        statuses.append(shape)
    return {"statuses": statuses}


def vm_json(vm: Vm, shown: Instance, now: float) -> str:
    """The VM as a list shows it."""
    stuck = hung(vm, now)
    if vm.text is None or vm.text[0] is not shown or vm.text[1] != stuck:
        vm.text = (shown, stuck, json.dumps(vm_body(vm, shown, now)))
    return vm.text[2]


def status_json(vm: Vm, shown: Instance, now: float) -> str:
    """The VM as ``statusOnly=true`` shows it: nothing but its instance view."""
    return json.dumps(
        {
            "id": vm.id,
            "name": vm.name,
            "type": "Microsoft.Compute/virtualMachines",
            "location": vm.machine.offer.region,
            "properties": {"vmId": vm.vm_id, "instanceView": view_of(vm, shown, now)},
        }
    )


def vm_body(vm: Vm, shown: Instance, now: float) -> dict[str, Any]:
    """The VM resource of a snapshot."""
    said = vm.body["properties"]
    nics = [part for part, _ in vm.parts if "/networkInterfaces/" in part]
    disk = next(part for part, _ in vm.parts if "/disks/" in part)
    properties = {
        **{k: v for k, v in said.items() if k not in ("networkProfile", "storageProfile")},
        "vmId": vm.vm_id,
        "provisioningState": state_of(vm, shown, now)[0],
        "timeCreated": stamp(vm.machine.created_at),
        "storageProfile": {
            **said["storageProfile"],
            "osDisk": {
                "osType": "Linux",
                **said["storageProfile"].get("osDisk", {}),
                "name": disk.rsplit("/", 1)[1],
                "managedDisk": {"id": disk, "storageAccountType": "Premium_LRS"},
            },
        },
        "networkProfile": {
            "networkInterfaces": [
                {"id": nic, "properties": {"primary": n == 0, "deleteOption": "Delete"}}
                for n, nic in enumerate(nics)
            ]
        },
    }
    if vm.machine.offer.market is Market.ON_DEMAND:
        properties.setdefault("priority", "Regular")
    return {
        "id": vm.id,
        "name": vm.name,
        "type": "Microsoft.Compute/virtualMachines",
        **{k: v for k, v in vm.body.items() if k != "properties"},
        "etag": f'"{vm.machine.seq}"',
        "properties": properties,
    }


def stamp(at: float) -> str:
    """A time as Azure writes it, to a tenth of a microsecond."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f0+00:00")

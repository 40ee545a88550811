"""Azure's calls about virtual machines and long-running operations.

Invariant: a PUT makes at most one VM for a name, and under ``If-None-Match: *`` changes none; one
VM's GET and DELETE know what is, lists know what the cloud shows. Form is checked here, the rest
by the cloud.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.clock import Chance
from fleet.model import Instance, Market, Phase
from fleet.sim.cloud import Cloud
from fleet.sim.order import Fate, Order
from fleet.sim.vendor import Denied, Trouble
from fleet.sim.wire.arm.estate import Estate, Vm, state_of, status_json, view_of, vm_body, vm_json
from fleet.sim.wire.arm.shapes import problem
from fleet.sim.wire.asgi import Answer, Dropped
from fleet.sim.world import World

#: Seconds between polls that Azure asks for.
POLL_S: Final = "10"
_NAME: Final = re.compile(r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9_])?$", re.IGNORECASE)


class Refusal(Exception):
    """An error that the form of the request, or what exists, decides."""

    def __init__(self, code: str, message: str, status: int = 400, target: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status, self.target = code, message, status, target


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way."""

    world: World
    cloud: Cloud
    estate: Estate
    chance: Chance
    base_url: str
    path: str
    #: What the path names: subscription, group, name, location, operation.
    names: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None
    page_size: int = 200
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def group(self) -> tuple[str, str]:
        """Subscription and resource group."""
        return self.names["subscription"], self.names["group"]


def answer(call: Call, status: int, body: object = None) -> Answer:
    """A JSON answer with the call's extra headers."""
    text = "" if body is None else body if isinstance(body, str) else json.dumps(body)
    return Answer(status, text.encode(), dict(call.extra))


def region_of(body: object) -> str:
    """The location that a body names, as Azure compares it."""
    said = body.get("location") if isinstance(body, dict) else None
    return str(said or "").lower().replace(" ", "")


# -- create --------------------------------------------------------------------------------------


def put_vm(call: Call) -> Answer:
    """Create a VM, or under the same name and body say what it is."""
    order = _order(call)
    call.cloud.admit("launch", order.region, 1)
    fate, delay_s = call.cloud.fate(order.region)
    if fate is Fate.LATE:
        call.world.after(delay_s, lambda: _unheard(call, order))
    elif fate is Fate.UNHEARD:
        _unheard(call, order)
    if fate is not Fate.HEARD:
        raise Dropped
    vm, made = _made(call, order)
    call.extra["x-ms-ratelimit-remaining-resource"] = (
        "Microsoft.Compute/PutVMSubscriptionMaximum;1499,Microsoft.Compute/PutVMResource;11"
    )
    if made:
        _operation(call, vm, "create")
    return answer(call, 201 if made else 200, vm_body(vm, vm.machine.snapshot(), call.world.now()))


def _made(call: Call, order: Order) -> tuple[Vm, bool]:
    """The VM of the call's name, and whether this call made it."""
    name = call.names["name"]
    found = call.estate.find(*call.group, name)
    if found is None:
        (machine,) = call.cloud.launch(order)
        return call.estate.add(machine, name, call.group, call.body, _print(call.body)), True
    if call.headers.get("if-none-match") == "*":
        raise Refusal("PreconditionFailed", f"The resource '{name}' exists already.", 412)
    if found.print_ != _print(call.body):
        message = f"Changing the properties of VM '{name}' is not allowed."
        raise Refusal("PropertyChangeNotAllowed", message, 409, "properties")
    return found, False


def _unheard(call: Call, order: Order) -> None:
    try:
        _made(call, order)
    except (Denied, Refusal):
        return


def _print(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _order(call: Call) -> Order:
    """The order in a PUT; raises Refusal for everything that its form decides."""
    body = call.body
    if wrong := problem(body):
        raise Refusal("InvalidRequestContent", f"The request content was invalid: {wrong}")
    properties = body.get("properties") or {}
    if not _NAME.match(call.names["name"]):
        raise Refusal("InvalidParameter", "The name of the VM is not valid.", target="vmName")
    region, zone = region_of(body), _zone(call)
    market = _market(properties)
    size = _required(properties, "hardwareProfile", "vmSize")
    _sold(call, (region, zone, str(size)), market)
    reference = _required(properties, "storageProfile", "imageReference")
    image = reference.get("id") or reference.get("sharedGalleryImageId") or _urn(reference)
    _form(properties)
    seq = call.estate.world.ever
    return Order(
        region,
        zone,
        str(size),
        market,
        str(image),
        _custom_data(properties),
        _tags(body.get("tags") or {}),
        key=f"{'/'.join(call.group)}/{call.names['name']}#{seq}".lower(),
    )


def _required(properties: Mapping[str, Any], *path: str) -> Any:
    value: Any = properties
    for name in path:
        value = (value or {}).get(name)
    if not value:
        where = ".".join(path)
        raise Refusal("InvalidParameter", f"Required parameter '{where}' is missing.", target=where)
    return value


def _urn(reference: Mapping[str, Any]) -> str:
    parts = [reference.get(k) for k in ("publisher", "offer", "sku", "version")]
    if not all(parts):
        message = "The imageReference names no image."
        raise Refusal("InvalidParameter", message, target="imageReference")
    return ":".join(map(str, parts))


def _zone(call: Call) -> str:
    """The one zone of a VM; raises Refusal when the location has none of that name."""
    zones = call.body.get("zones") or []
    region = region_of(call.body)
    if region not in call.cloud.spec.regions:
        message = f"The provided location '{region}' is not available for virtualMachines."
        raise Refusal("LocationNotAvailableForResourceType", message, 400)
    if len(zones) > 1:
        raise Refusal("InvalidParameter", "A VM has at most one zone.", target="zones")
    have = sorted({o.zone for o in call.cloud.spec.offers if o.region == region})
    if zones and zones[0] not in have:
        message = f"The zone '{zones[0]}' is not supported. Supported: '{','.join(have)}'."
        raise Refusal("AvailabilityZoneNotSupported", message)
    return str(zones[0]) if zones else ""


def _market(properties: Mapping[str, Any]) -> Market:
    if properties.get("priority") in ("Spot", "Low"):
        if properties.get("evictionPolicy") not in ("Delete", "Deallocate"):
            message = "A Spot VM needs an evictionPolicy."
            raise Refusal("InvalidParameter", message, target="evictionPolicy")
        return Market.SPOT
    return Market.RESERVED if properties.get("capacityReservation") else Market.ON_DEMAND


def _sold(call: Call, place: tuple[str, str, str], market: Market) -> None:
    region, zone, size = place
    offers = [o for o in call.cloud.spec.offers if o.instance_type == size]
    if not offers:
        message = f"The value {size} provided for the VM size is not valid."
        raise Refusal("InvalidParameter", message, target="vmSize")
    if not any(o.region == region and zone in ("", o.zone) and o.market is market for o in offers):
        where = f"zone '{zone}' of location '{region}'" if zone else f"location '{region}'"
        message = f"The requested VM size '{size}' is currently not available in {where}."
        raise Refusal("SkuNotAvailable", message, 409)


def _form(properties: Mapping[str, Any]) -> None:
    profile = _required(properties, "osProfile")
    computer = str(profile.get("computerName") or "")
    if not 1 <= len(computer) <= 64:
        message = "The computer name of a Linux VM has 1 to 64 characters."
        raise Refusal("InvalidParameter", message, target="computerName")
    keys = ((profile.get("linuxConfiguration") or {}).get("ssh") or {}).get("publicKeys")
    if not profile.get("adminUsername") or not (keys or profile.get("adminPassword")):
        message = "Authentication using either SSH or by user name and password must be enabled."
        raise Refusal("InvalidParameter", message, target="linuxConfiguration")
    network = _required(properties, "networkProfile")
    inline = network.get("networkInterfaceConfigurations")
    if not inline and not network.get("networkInterfaces"):
        raise Refusal("InvalidParameter", "A VM needs a network interface.", target="network")
    if inline and not network.get("networkApiVersion"):
        message = "networkApiVersion is needed with networkInterfaceConfigurations."
        raise Refusal("InvalidParameter", message, target="networkApiVersion")


def _custom_data(properties: Mapping[str, Any]) -> str:
    try:
        raw = base64.b64decode(properties["osProfile"].get("customData") or "", validate=True)
    except (binascii.Error, ValueError):
        message = "Custom data in OSProfile must be in Base64 encoding."
        raise Refusal("InvalidParameter", message, target="customData") from None
    if len(raw) > 65_535:
        message = "Custom data in OSProfile is longer than 65535 bytes."
        raise Refusal("InvalidParameter", message, target="customData")
    return raw.decode("utf-8", "surrogateescape")


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    if len(tags) > 50 or any(len(k) > 512 or len(v) > 256 for k, v in tags.items()):
        raise Refusal("InvalidTagNameOrValue", "At most 50 tags, of 512 and 256 characters.")
    return dict(tags)


# -- one VM --------------------------------------------------------------------------------------


def get_vm(call: Call) -> Answer:
    """One VM as it is, with its instance view when asked for."""
    call.cloud.admit("read", "", 0)
    vm = _existing(call)
    shown, now = vm.machine.snapshot(), call.world.now()
    body = vm_body(vm, shown, now)
    if call.query.get("$expand", "").lower() == "instanceview":
        body["properties"]["instanceView"] = view_of(vm, shown, now)
    return answer(call, 200, body)


def get_instance_view(call: Call) -> Answer:
    """The instance view of one VM."""
    call.cloud.admit("read", "", 0)
    vm = _existing(call)
    return answer(call, 200, view_of(vm, vm.machine.snapshot(), call.world.now()))


def _existing(call: Call) -> Vm:
    vm = call.estate.find(*call.group, call.names["name"])
    if vm is None:
        name, group = call.names["name"], call.names["group"]
        what = f"The Resource 'Microsoft.Compute/virtualMachines/{name}'"
        message = f"{what} under resource group '{group}' was not found."
        raise Refusal("ResourceNotFound", message, 404)
    return vm


def delete_vm(call: Call) -> Answer:
    """Delete a VM in whatever state; one that is not there is no error."""
    vm = call.estate.find(*call.group, call.names["name"])
    call.cloud.admit("terminate", vm.machine.offer.region if vm else "", 1)
    if vm is None:
        return answer(call, 204)
    call.cloud.terminate([vm.machine.id])
    _operation(call, vm, "delete")
    return answer(call, 202)


def _operation(call: Call, vm: Vm, verb: str) -> None:
    """Begin an operation and name it in the answer's headers."""
    ident = call.chance.uuid()
    call.estate.begin(vm, verb, ident)
    place = f"/subscriptions/{vm.subscription}/providers/Microsoft.Compute/locations"
    version = call.query.get("api-version", "")
    url = f"{call.base_url}{place}/{vm.machine.offer.region}/operations/{ident}"
    call.extra["azure-asyncoperation"] = f"{url}?api-version={version}"
    call.extra["retry-after"] = POLL_S
    if verb == "delete":
        call.extra["location"] = f"{url}?monitor=true&api-version={version}"


def get_operation(call: Call) -> Answer:
    """How a create or delete is going."""
    call.cloud.admit("read", call.names["location"], 0)
    operation = call.estate.operations.get(call.names["operation"])
    if operation is None:
        raise Refusal("NotFound", "The entity was not found in this Azure location.", 404)
    machine, now = operation.vm.machine, call.world.now()
    body: dict[str, Any] = {"name": call.names["operation"]}
    if operation.verb == "delete":
        body["status"] = "InProgress" if machine.exists else "Succeeded"
    else:
        state, _, code, message = state_of(operation.vm, machine.snapshot(), now)
        done = "Canceled" if machine.running_at is None else "Succeeded"
        words = {"Creating": "InProgress", "Succeeded": "Succeeded", "Failed": "Failed"}
        body["status"] = words.get(state, done)
        if code:
            body["error"] = {"code": code, "message": message}
    if body["status"] == "InProgress":
        call.extra["retry-after"] = POLL_S
    return answer(call, 200, body)


# -- lists ---------------------------------------------------------------------------------------


def list_group(call: Call) -> Answer:
    """The VMs of one resource group."""
    _no_view(call)
    return _list(call, vm_json)


def list_all(call: Call) -> Answer:
    """The VMs of the subscription, or with ``statusOnly=true`` their instance views."""
    _no_view(call)
    only = call.query.get("statusOnly", "").lower() == "true"
    return _list(call, status_json if only else vm_json)


def _no_view(call: Call) -> None:
    if "$expand" in call.query and "$filter" not in call.query:
        message = "The expand 'instanceView' is only supported together with a filter."
        raise Refusal("BadRequest", message)


def _list(call: Call, render: Callable[[Vm, Instance, float], str]) -> Answer:
    """One page and the link to the next; links name a place by creation order, not by count."""
    call.cloud.admit("list", "", 0)
    after, now = _after(call), call.world.now()
    if call.cloud.truncates():
        raise call.cloud.deny(Trouble.UNAVAILABLE)
    found = [
        (vm, shown)
        for shown in call.cloud.listing()
        if (vm := call.estate.by_machine.get(shown.ref.instance_id))
        and vm.subscription.lower() == call.names["subscription"].lower()
        and call.names.get("group", vm.group).lower() == vm.group.lower()
        and vm.machine.seq > after
        and shown.phase is not Phase.TERMINATED
    ]
    found.sort(key=lambda pair: pair[0].machine.seq)
    page = found[: call.page_size]
    text = '{"value":[' + ",".join(render(vm, shown, now) for vm, shown in page) + "]"
    if len(found) > len(page):
        token = base64.urlsafe_b64encode(str(page[-1][0].machine.seq).encode()).decode()
        rest = {k: v for k, v in call.query.items() if k != "$skiptoken"} | {"$skiptoken": token}
        query = "&".join(f"{k}={v}" for k, v in rest.items())
        text += f',"nextLink":{json.dumps(f"{call.base_url}{call.path}?{query}")}'
    return answer(call, 200, text + "}")


def _after(call: Call) -> int:
    token = call.query.get("$skiptoken")
    if not token:
        return 0
    try:
        return int(base64.urlsafe_b64decode(token))
    except (binascii.Error, ValueError):
        raise Refusal("InvalidSkipToken", "The skip token is not valid.") from None

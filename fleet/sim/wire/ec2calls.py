"""The EC2 operations over a simulated cloud, in the nouns of botocore's model.

Invariant: each operation is a function from one ``Call`` to the members of its output shape, and
raises ``Refusal`` or ``Denied`` before it changes anything, or ``Dropped`` when its effect stands
but nobody is to hear of it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from fleet.model import Instance, Market, Phase
from fleet.sim.cloud import Cloud
from fleet.sim.machine import Machine
from fleet.sim.order import Fate, Order
from fleet.sim.vendor import Denied, Trouble
from fleet.sim.wire.asgi import Dropped
from fleet.sim.wire.shapes import Raw, Shapes
from fleet.sim.world import World


class Refusal(Exception):
    """An EC2 error that the form of the request alone decides."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


@dataclass(frozen=True, slots=True)
class Call:
    """One decoded request."""

    world: World
    cloud: Cloud
    shapes: Shapes
    region: str
    inputs: Mapping[str, Any]


_STATES: Final[Mapping[Phase, tuple[int, str]]] = {
    Phase.PENDING: (0, "pending"),
    Phase.RUNNING: (16, "running"),
    Phase.STOPPING: (32, "shutting-down"),
    Phase.STOPPED: (80, "stopped"),
    Phase.TERMINATED: (48, "terminated"),
    Phase.FAILED: (48, "terminated"),
}
_MARKETS: Final = {"spot": Market.SPOT, "capacity-block": Market.RESERVED}
_LIFECYCLES: Final = {Market.SPOT: "spot", Market.RESERVED: "capacity-block"}
_DIRECTIONS: Final = {
    "north": "n", "south": "s", "east": "e", "west": "w", "central": "c",
    "northeast": "ne", "northwest": "nw", "southeast": "se", "southwest": "sw",
}  # fmt: skip
OWNER: Final = "000000000000"


def zone_id(zone: str) -> str:
    """The zone id of a zone name in this account: ``us-east-1b`` is ``use1-az2``."""
    found = re.fullmatch(r"([a-z]+)-(?:gov-)?([a-z]+)-(\d)([a-z])", zone)
    if found is None:
        return zone
    area, side, number, letter = found.groups()
    return f"{area}{_DIRECTIONS.get(side, side)}{number}-az{ord(letter) - ord('a') + 1}"


# -- launch ---------------------------------------------------------------------------------------


def run_instances(call: Call) -> Mapping[str, Any]:
    """RunInstances: between MinCount and MaxCount like instances, idempotent by ClientToken."""
    order = _order(call)
    if call.inputs.get("DryRun"):
        raise Refusal("DryRunOperation", "Request would have succeeded, but DryRun is set.", 412)
    call.cloud.admit("launch", call.region, order.count)
    fate, delay_s = call.cloud.fate(call.region)
    if fate is Fate.LATE:
        call.world.after(delay_s, lambda: _unheard(call.cloud, order))
    elif fate is Fate.UNHEARD:
        _unheard(call.cloud, order)
    if fate is not Fate.HEARD:
        raise Dropped
    machines = call.cloud.launch(order)
    return {
        "ReservationId": _reservation(machines[0]),
        "OwnerId": OWNER,
        "Groups": [],
        "Instances": [_instance(m, m.snapshot()) for m in machines],
    }


def _unheard(cloud: Cloud, order: Order) -> None:
    try:
        cloud.launch(order)
    except Denied:
        return


def _order(call: Call) -> Order:
    inputs = call.inputs
    for name in ("ImageId", "InstanceType", "MinCount", "MaxCount"):
        if name not in inputs:
            message = f"The request must contain the parameter {name}"
            raise Refusal("MissingParameter", message)
    least, most = int(inputs["MinCount"]), int(inputs["MaxCount"])
    if not 1 <= least <= most <= 1000:
        raise Refusal("InvalidParameterValue", "Value for MinCount or MaxCount is invalid.")
    token = str(inputs.get("ClientToken", ""))
    if len(token) > 64 or not token.isascii():
        raise Refusal("InvalidParameterValue", "ClientToken must be at most 64 ASCII characters")
    image_id = str(inputs["ImageId"])
    if not image_id.startswith("ami-"):
        raise Refusal("InvalidAMIID.Malformed", f'Invalid id: "{image_id}" (expecting "ami-...")')
    market = _market(inputs)
    zone = _zone(call)
    _sold(call, zone, str(inputs["InstanceType"]), market)
    return Order(
        call.region,
        zone,
        str(inputs["InstanceType"]),
        market,
        image_id,
        _user_data(inputs),
        _tags(inputs),
        count=most,
        least=least,
        key=token,
    )


def _market(inputs: Mapping[str, Any]) -> Market:
    kind = inputs.get("InstanceMarketOptions", {}).get("MarketType", "")
    if kind and kind not in _MARKETS:
        raise Refusal("InvalidParameterValue", f"Invalid market type '{kind}'")
    return _MARKETS.get(kind, Market.ON_DEMAND)


def zones_of(call: Call) -> list[str]:
    """The zones of the call's region."""
    return sorted({o.zone for o in call.cloud.spec.offers if o.region == call.region})


def _zone(call: Call) -> str:
    placement = call.inputs.get("Placement", {})
    zones = zones_of(call)
    name = placement.get("AvailabilityZone", "")
    ident = placement.get("AvailabilityZoneId") or placement.get("ZoneId") or ""
    if name and ident:
        raise Refusal("InvalidParameterCombination", "Give a zone name or a zone id, not both.")
    if ident:
        name = next((z for z in zones if zone_id(z) == ident), ident)
    if name and name not in zones:
        raise Refusal("InvalidParameterValue", f"Invalid availability zone: [{name}]")
    return str(name)


def _sold(call: Call, zone: str, instance_type: str, market: Market) -> None:
    offers = [o for o in call.cloud.spec.offers if o.instance_type == instance_type]
    if not offers:
        message = f"Invalid value '{instance_type}' for InstanceType."
        raise Refusal("InvalidParameterValue", message)
    here = [
        o
        for o in offers
        if o.region == call.region and (not zone or o.zone == zone) and o.market is market
    ]
    if not here:
        where = zone or call.region
        message = f"Your requested instance type ({instance_type}) is not supported in {where}."
        raise Refusal("Unsupported", message)


def _user_data(inputs: Mapping[str, Any]) -> str:
    try:
        raw = base64.b64decode(str(inputs.get("UserData", "")), validate=True)
    except (binascii.Error, ValueError):
        message = "Invalid BASE64 encoding of user data."
        raise Refusal("InvalidParameterValue", message) from None
    if len(raw) > 16 * 1024:
        raise Refusal("InvalidParameterValue", "User data is limited to 16384 bytes")
    return raw.decode("utf-8", "surrogateescape")


def _tags(inputs: Mapping[str, Any]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for spec in inputs.get("TagSpecifications", ()):
        if spec.get("ResourceType") != "instance":
            continue
        for tag in spec.get("Tags", ()):
            key = str(tag.get("Key", ""))
            if key.lower().startswith("aws:") or not 1 <= len(key) <= 128:
                raise Refusal("InvalidParameterValue", f"Tag key '{key}' is not allowed")
            tags[key] = str(tag.get("Value", ""))
    if len(tags) > 50:
        raise Refusal("TagLimitExceeded", "The maximum number of Tags is 50")
    return tags


# -- terminate ------------------------------------------------------------------------------------


def terminate_instances(call: Call) -> Mapping[str, Any]:
    """TerminateInstances: all named or none; an id that is not shown yet is not found."""
    ids = list(dict.fromkeys(map(str, call.inputs.get("InstanceIds", ()))))
    if not ids:
        raise Refusal("MissingParameter", "The request must contain the parameter InstanceId")
    call.cloud.admit("terminate", call.region, len(ids))
    machines = [m for m, _ in _named(call, ids)]
    if call.inputs.get("DryRun"):
        raise Refusal("DryRunOperation", "Request would have succeeded, but DryRun is set.", 412)
    before = {m.id: m.phase for m in machines}
    call.cloud.terminate(ids)
    return {
        "TerminatingInstances": [
            {
                "InstanceId": m.id,
                "CurrentState": instance_state(m.phase),
                "PreviousState": instance_state(before[m.id]),
            }
            for m in machines
        ]
    }


def _named(call: Call, ids: Sequence[str]) -> list[tuple[Machine, Instance]]:
    """The shown instances with these ids; raises Refusal when one is not shown."""
    malformed = [i for i in ids if not re.fullmatch(r"i-[0-9a-f]{8,17}", i)]
    if malformed:
        raise Refusal("InvalidInstanceID.Malformed", f'Invalid id: "{malformed[0]}"')
    shown = {i: s for i in ids if (s := call.cloud.shown.get(i)) and s.ref.region == call.region}
    missing = [i for i in ids if i not in shown]
    if missing:
        form = "ID '{}' does" if len(missing) == 1 else "IDs '{}' do"
        message = f"The instance {form.format(', '.join(missing))} not exist"
        raise Refusal("InvalidInstanceID.NotFound", message)
    return [(call.cloud.machines[i], s) for i, s in shown.items()]


# -- describe -------------------------------------------------------------------------------------


def describe_instances(call: Call) -> Mapping[str, Any]:
    """DescribeInstances: by ids or filters, paged by instance; what lists show, not what is."""
    inputs = call.inputs
    paged = "MaxResults" in inputs or "NextToken" in inputs
    action = "list" if paged or inputs.get("Filters") else "list_all"
    call.cloud.admit(action, call.region)
    page, token = _page(call, found_instances(call))
    items: dict[str, list[Raw | Mapping[str, Any]]] = {}
    for machine, shown in page:
        items.setdefault(_reservation(machine), []).append(_cached(call, machine, shown))
    return {
        "Reservations": [
            {"ReservationId": r, "OwnerId": OWNER, "Groups": [], "Instances": each}
            for r, each in items.items()
        ],
        "NextToken": token,
    }


def found_instances(call: Call) -> list[tuple[Machine, Instance]]:
    """What the request selects, in order of creation."""
    ids = [str(i) for i in call.inputs.get("InstanceIds", ())]
    if ids:
        if "MaxResults" in call.inputs:
            message = "The parameter instancesSet cannot be used with the parameter maxResults"
            raise Refusal("InvalidParameterCombination", message)
        found = _named(call, ids)
    else:
        listing = call.cloud.listing()
        machines = call.cloud.machines
        found = [(machines[s.ref.instance_id], s) for s in listing if s.ref.region == call.region]
        found.sort(key=lambda pair: pair[0].seq)
    for filter_ in call.inputs.get("Filters", ()):
        test = _filter(str(filter_.get("Name", "")), [str(v) for v in filter_.get("Values", ())])
        found = [pair for pair in found if test(*pair)]
    return found


def _filter(name: str, values: Sequence[str]) -> Callable[[Machine, Instance], bool]:
    """One filter: any of its values, with ``*`` and ``?``; raises Refusal for an unknown one."""
    reads: dict[str, Callable[[Machine, Instance], Iterator[str]]] = {
        "instance-id": lambda m, s: iter((m.id,)),
        "client-token": lambda m, s: iter((m.key,)),
        "instance-state-name": lambda m, s: iter((_STATES[s.phase][1],)),
        "instance-type": lambda m, s: iter((m.offer.instance_type,)),
        "availability-zone": lambda m, s: iter((m.offer.zone,)),
        "image-id": lambda m, s: iter((m.image_id,)),
        "instance-lifecycle": lambda m, s: iter((_LIFECYCLES.get(m.offer.market, ""),)),
        "reservation-id": lambda m, s: iter((_reservation(m),)),
        "tag-key": lambda m, s: iter(m.tags),
    }
    if name.startswith("tag:"):
        key = name[4:]
        reads[name] = lambda m, s: iter((m.tags[key],) if key in m.tags else ())
    read = reads.get(name)
    if read is None:
        raise Refusal("InvalidParameterValue", f"The filter '{name}' is invalid")
    exact = frozenset(values)
    if not any(c in v for v in values for c in "*?"):
        return lambda m, s: any(v in exact for v in read(m, s))
    return lambda m, s: any(fnmatchcase(v, pattern) for v in read(m, s) for pattern in values)


def _page(
    call: Call, found: list[tuple[Machine, Instance]]
) -> tuple[list[tuple[Machine, Instance]], str | None]:
    """One page and the token of the next; tokens name a place by creation order, not by count."""
    size, token = call.inputs.get("MaxResults"), call.inputs.get("NextToken")
    if size is not None and not 5 <= size <= 1000:
        message = f"Value ( {size} ) for parameter maxResults is invalid. Expecting 5 to 1000."
        raise Refusal("InvalidParameterValue", message)
    if call.cloud.truncates(call.region):
        raise call.cloud.deny(Trouble.UNAVAILABLE)
    if token:
        try:
            after = int(base64.urlsafe_b64decode(str(token)))
        except (binascii.Error, ValueError):
            raise Refusal("InvalidNextToken", "The NextToken is invalid.") from None
        found = [pair for pair in found if pair[0].seq > after]
    size = size or (1000 if token else len(found))
    if len(found) <= size:
        return found, None
    page = found[:size]
    return page, base64.urlsafe_b64encode(str(page[-1][0].seq).encode()).decode()


def _reservation(machine: Machine) -> str:
    return f"r-{machine.seq - machine.index:017x}"


def instance_state(phase: Phase) -> dict[str, Any]:
    """EC2's InstanceState of a phase."""
    code, name = _STATES[phase]
    return {"Code": code, "Name": name}


def _cached(call: Call, machine: Machine, shown: Instance) -> Raw:
    """The XML of an instance, kept on the snapshot that it describes."""
    kept = machine.wire
    if kept is None or kept[0] is not shown:
        kept = (shown, call.shapes.raw("Instance", _instance(machine, shown)))
        machine.wire = kept
    xml = kept[1]
    assert isinstance(xml, Raw)
    return xml


def _instance(machine: Machine, shown: Instance) -> dict[str, Any]:
    offer = machine.offer
    ended = shown.phase in (Phase.STOPPING, Phase.TERMINATED)
    item: dict[str, Any] = {
        "InstanceId": machine.id,
        "ImageId": machine.image_id,
        "State": instance_state(shown.phase),
        "StateTransitionReason": shown.message,
        "AmiLaunchIndex": machine.index,
        "InstanceType": offer.instance_type,
        "LaunchTime": machine.created_at,
        "Placement": {
            "AvailabilityZone": offer.zone,
            "AvailabilityZoneId": zone_id(offer.zone),
            "Tenancy": "default",
        },
        "Monitoring": {"State": "disabled"},
        "Architecture": "x86_64",
        "RootDeviceType": "ebs",
        "RootDeviceName": "/dev/sda1",
        "VirtualizationType": "hvm",
        "Hypervisor": "xen",
        "ClientToken": machine.key,
        "Tags": [{"Key": k, "Value": v} for k, v in machine.tags.items()],
    }
    if not ended:
        item["PrivateIpAddress"] = machine.peer
    if shown.code:
        item["StateReason"] = {"Code": shown.code, "Message": f"{shown.code}: {shown.message}"}
    if offer.market in _LIFECYCLES:
        item["InstanceLifecycle"] = _LIFECYCLES[offer.market]
    return item

"""Instances of the Oracle skin: launch, get, list, terminate.

Invariant: what is shown is what the world's lists show, never what is. A retry token that was seen
in the last day gets its first answer again, with the same body only, and never a second machine.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from fleet.model import Instance, Market, Phase
from fleet.sim.faults import Kind
from fleet.sim.machine import Machine
from fleet.sim.order import Fate, Order
from fleet.sim.vendor import Denied, Trouble
from fleet.sim.wire.asgi import Answer, Dropped
from fleet.sim.wire.oracle.engine import (
    RETRY_TOKEN_S,
    Call,
    Engine,
    Launched,
    Refusal,
    answer,
    domain_name,
    invalid,
    is_ocid,
    moment,
    short,
    unseen,
)
from fleet.sim.wire.oracle.work import begin

_STATES: Final[Mapping[Phase, str]] = {
    Phase.PENDING: "PROVISIONING",
    Phase.RUNNING: "RUNNING",
    Phase.STOPPING: "TERMINATING",
    Phase.STOPPED: "STOPPED",
    Phase.FAILED: "TERMINATED",
    Phase.TERMINATED: "TERMINATED",
}
_TAG_KEY: Final = re.compile(r"[^\s.]{1,100}")
MAX_TAGS, MAX_TAG_VALUE, MAX_METADATA = 10, 256, 32_000
MAX_TOKEN, MAX_NAME = 64, 255
#: What lists copy from the launch request, beside what the world knows.
_COPIED: Final = (
    "compartment_id",
    "display_name",
    "freeform_tags",
    "defined_tags",
    "metadata",
    "extended_metadata",
    "fault_domain",
    "source_details",
    "preemptible_instance_config",
    "capacity_reservation_id",
    "instance_options",
)


def launch(e: Engine, call: Call) -> Answer:
    """``LaunchInstance``: one instance, or the first answer to its retry token."""
    details = e.decode("LaunchInstanceDetails", call.body)
    region, zone = e.place(details.availability_domain or "", call.region)
    e.cloud.admit("launch", region, 1)
    token = call.headers.get("opc-retry-token", "")
    if len(token) > MAX_TOKEN:
        raise invalid(f"opc-retry-token has more than {MAX_TOKEN} characters")
    order = _order(e, details, region, zone, token)

    def quietly() -> None:
        try:
            _launch(e, call, details, order)
        except (Denied, Refusal):
            return

    fate, delay_s = e.cloud.fate(region)
    if fate is Fate.LATE:
        e.world.after(delay_s, quietly)
    elif fate is Fate.UNHEARD:
        quietly()
    if fate is not Fate.HEARD:
        raise Dropped
    return _launch(e, call, details, order)


def _launch(e: Engine, call: Call, details: Any, order: Order) -> Answer:
    place, print_ = (order.region, order.key), hashlib.sha256(call.body).hexdigest()
    before = e.memory.by_token.get(place) if order.key else None
    if before is not None:
        gone = before.machine.id not in e.cloud.machines
        if before.print_ != print_ or gone:
            text = "The retry token was used in an earlier request that was invalidated since."
            raise Refusal(409, "InvalidatedRetryToken", text)
        if e.world.now() - before.at < RETRY_TOKEN_S:
            return before.answer
    # the world keeps keys for ever, Oracle for a day
    key = f"{order.key}@{before.at}" if before is not None else order.key
    machine = _made(e, order, key)
    made = Launched(machine, details, print_, e.world.now(), answer(""))
    e.memory.by_machine[machine.id] = made
    work = begin(e, "LaunchInstance", "CREATED", machine)
    snapshot = machine.snapshot()
    head = {"etag": _etag(snapshot), "opc-work-request-id": work.ident}
    made.answer = answer(_text(e, machine, snapshot), headers=head)
    if order.key:
        e.memory.by_token[place] = made
    e.memory.trim()
    return made.answer


def _made(e: Engine, order: Order, key: str) -> Machine:
    """The machine; raises Refusal in the words that a launch gets."""
    own = Order(order.region, order.zone, order.instance_type, order.market, order.image_id,
                order.user_data, order.tags, key=key)  # fmt: skip
    try:
        return e.cloud.launch(own)[0]
    except Denied as denied:
        if denied.trouble is Trouble.CAPACITY:
            raise Refusal(500, "InternalError", "Out of host capacity.") from None
        if denied.trouble is Trouble.QUOTA:
            raise Refusal(400, "LimitExceeded", _limit(e, order)) from None
        if denied.trouble is Trouble.IMAGE:
            raise unseen() from None
        if denied.trouble in (Trouble.INVALID, Trouble.TOO_LONG):
            raise invalid(denied.message) from None
        raise


def _limit(e: Engine, order: Order) -> str:
    sold = e.cloud.offer((order.region, order.zone, order.instance_type, order.market))
    name = f"gpu-{(sold.gpu if sold else 'x').lower()}-count"
    return (
        f"The following service limits were exceeded: {name}. Request a service limit increase"
        " from the service limits page in the console."
    )


def _order(e: Engine, d: Any, region: str, zone: str, token: str) -> Order:
    """The order of a launch request; raises Refusal for a wrong one."""
    for name, value in (("compartmentId", d.compartment_id), ("shape", d.shape)):
        if not value:
            raise invalid(f"Missing required parameter {name}", "MissingParameter")
    if not is_ocid(d.compartment_id, "compartment", "tenancy"):
        raise unseen()
    subnet = (d.create_vnic_details.subnet_id if d.create_vnic_details else None) or d.subnet_id
    if not is_ocid(subnet or "", "subnet"):
        text = f"subnet {subnet} was not found or is not authorized"
        raise invalid(text, "RelatedResourceNotAuthorizedOrNotFound")
    if d.display_name and len(d.display_name) > MAX_NAME:
        raise invalid(f"displayName has more than {MAX_NAME} characters")
    tags = dict(d.freeform_tags or {})
    wrong = [k for k, v in tags.items() if not _TAG_KEY.fullmatch(k) or len(v) > MAX_TAG_VALUE]
    if len(tags) > MAX_TAGS or wrong:
        raise invalid(f"freeformTags: at most {MAX_TAGS}, without {wrong}")
    market = _market(d)
    if e.cloud.offer((region, zone, d.shape, market)) is None:
        raise invalid(f"Shape {d.shape} is not available in {domain_name(region, zone)}")
    return Order(
        region, zone, d.shape, market, _image(e, d, region), _user_data(d), tags, key=token
    )


def _market(d: Any) -> Market:
    if d.preemptible_instance_config is not None:
        if d.shape.startswith("BM."):
            raise invalid(f"Shape {d.shape} does not support preemptible instances")
        return Market.SPOT
    return Market.RESERVED if d.capacity_reservation_id else Market.ON_DEMAND


def _image(e: Engine, d: Any, region: str) -> str:
    """The image's OCID; raises Refusal when it is not one of this region."""
    image = getattr(d.source_details, "image_id", None) or d.image_id or ""
    if not image:
        raise invalid("Missing required parameter imageId", "MissingParameter")
    if not in_region(image, region):
        raise unseen()
    missing = e.world.hit(Kind.IMAGE_MISSING, e.cloud.name, region, "", "", "", image)
    if missing is not None or (
        e.cloud.spec.images is not None and image not in e.cloud.spec.images
    ):
        raise unseen()
    return str(image)


def in_region(image: str, region: str) -> bool:
    """True for an image's OCID that names this region or none; any region where it is empty."""
    if not is_ocid(image, "image"):
        return False
    named = image.split(".")[3]
    return not named or not region or named in (region, short(region))


def _user_data(d: Any) -> str:
    metadata = {**(d.metadata or {}), **(d.extended_metadata or {})}
    size = sum(len(k) + len(str(v).encode()) for k, v in metadata.items())
    if size > MAX_METADATA:
        raise invalid(f"metadata and extendedMetadata have {size} bytes, at most {MAX_METADATA}")
    try:
        return base64.b64decode(str(metadata.get("user_data", "")), validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("metadata.user_data must be base64") from None


# -- what lists show ------------------------------------------------------------------------------


def get(e: Engine, call: Call) -> Answer:
    """``GetInstance``: what lists show of one."""
    machine, snapshot = _shown(e, call)
    e.cloud.admit("read", machine.offer.region, 0)
    return answer(_text(e, machine, snapshot), headers={"etag": _etag(snapshot)})


def terminate(e: Engine, call: Call) -> Answer:
    """``TerminateInstance``: 204 at once, TERMINATED later."""
    e.cloud.admit("terminate", call.region, 1)
    machine, snapshot = _shown(e, call)
    wanted = call.headers.get("if-match", "")
    if wanted and wanted != _etag(snapshot):
        raise Refusal(412, "NoEtagMatch", "The etag does not match.")
    if machine.phase is Phase.TERMINATED:
        raise unseen()
    if machine.phase is Phase.STOPPING:
        raise Refusal(409, "IncorrectState", f"{machine.id} is being terminated.")
    e.cloud.terminate([machine.id])
    work = begin(e, "TerminateInstance", "DELETED", machine)
    return Answer(204, b"", {"opc-work-request-id": work.ident})


def list_(e: Engine, call: Call) -> Answer:
    """``ListInstances`` of one compartment, oldest first; there is no filter for tags."""
    compartment = call.compartment()
    e.cloud.admit("list", call.region)
    wanted = {
        "availability_domain": call.query.get("availabilityDomain", ""),
        "display_name": call.query.get("displayName", ""),
        "lifecycle_state": call.query.get("lifecycleState", ""),
    }
    rows = []
    for snapshot in e.cloud.listing():
        machine = e.cloud.machines[snapshot.ref.instance_id]
        if call.region not in ("", machine.offer.region):
            continue
        seen = {
            "availability_domain": domain_name(machine.offer.region, machine.offer.zone),
            "display_name": _details(e, machine, "display_name", ""),
            "lifecycle_state": _STATES[snapshot.phase],
        }
        mine = _details(e, machine, "compartment_id", compartment) == compartment
        if mine and all(not v or seen[k] == v for k, v in wanted.items()):
            rows.append((machine.seq, (machine, snapshot)))
    page, head = e.page(call, sorted(rows, key=lambda row: row[0]))
    return answer(f"[{','.join(_text(e, m, s) for m, s in page)}]", headers=head)


def _shown(e: Engine, call: Call) -> tuple[Machine, Instance]:
    """The machine that lists show under the call's id; raises Refusal for none."""
    machine, snapshot = e.cloud.machines.get(call.ident), e.cloud.shown.get(call.ident)
    if machine is None or snapshot is None or call.region not in ("", machine.offer.region):
        raise unseen()
    return machine, snapshot


def _details(e: Engine, machine: Machine, name: str, default: Any) -> Any:
    made = e.memory.by_machine.get(machine.id)
    return default if made is None else getattr(made.details, name)


def _etag(snapshot: Instance) -> str:
    text = f"{snapshot.ref.instance_id} {snapshot.phase}"
    return hashlib.sha256(text.encode()).hexdigest()


def _text(e: Engine, machine: Machine, snapshot: Instance) -> str:
    """An instance's JSON, kept on the snapshot that it describes."""
    kept = machine.wire
    if kept is not None and kept[0] is snapshot:
        return str(kept[1])
    offer = machine.offer
    values = {name: _details(e, machine, name, None) for name in _COPIED}
    if values["compartment_id"] is None:  # made by another skin
        values["freeform_tags"] = dict(machine.tags)
    model = e.make(
        "Instance",
        **values,
        id=machine.id,
        availability_domain=domain_name(offer.region, offer.zone),
        region=short(offer.region),
        shape=offer.instance_type,
        image_id=machine.image_id,
        lifecycle_state=_STATES[snapshot.phase],
        time_created=moment(machine.created_at),
        launch_mode="NATIVE",
    )
    text = e.encode(model)
    if values["fault_domain"] is None:
        text = json.dumps(
            {**json.loads(text), "faultDomain": f"FAULT-DOMAIN-{machine.seq % 3 + 1}"}
        )
    machine.wire = (snapshot, text)
    return text

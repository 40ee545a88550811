"""Launches of the Compute Engine skin: insert and bulkInsert.

Invariant: each route checks its request's form, lets the cloud admit it, and answers with an
operation; a stock-out is never an answer, always an operation that fails
later, as at Google (clouds.md 4). A request id that was seen before gets its first operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from fleet.model import Market
from fleet.sim.faults import Kind
from fleet.sim.machine import Machine
from fleet.sim.order import Fate, Order
from fleet.sim.vendor import Denied, Trouble
from fleet.sim.wire.asgi import Dropped
from fleet.sim.wire.gce.engine import Call, Engine, Refusal, invalid, not_found
from fleet.sim.wire.gce.operations import Failure, Operation

_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_KEY: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE: Final = re.compile(r"[a-z0-9_-]{0,63}")
MAX_BULK: Final = 1000


def insert(e: Engine, call: Call) -> str:
    """``instances.insert``: one instance under a free name."""
    region = e.region(call.zone)
    e.cloud.admit("launch", region, 1)
    item = e.decode("Instance", call.body)
    order = _order(e, call, item, call.request_id)
    _name(item.name)
    return _heard(e, region, lambda: _insert(e, call, item.name, order))


def bulk_insert(e: Engine, call: Call) -> str:
    """``instances.bulkInsert``: up to ``count`` like instances, not fewer than ``minCount``."""
    region = e.region(call.zone)
    body = e.decode("BulkInsertInstanceResource", call.body)
    names = sorted(body.per_instance_properties, key=_by_number) or [
        body.name_pattern.replace("#" * body.name_pattern.count("#"), str(n))
        for n in range(1, body.count + 1)
    ]
    if not 1 <= body.count <= MAX_BULK or len(names) != body.count:
        raise invalid("Invalid value for field 'resource.count'.")
    for name in names:
        _name(name)
    e.cloud.admit("launch", region, body.count)
    order = _order(e, call, body.instance_properties, call.request_id)
    least = body.min_count or body.count
    return _heard(e, region, lambda: _bulk(e, call, names, order, least))


def _by_number(name: str) -> tuple[str, int]:
    head, _, tail = name.rpartition("-")
    return head, int(tail) if tail.isdigit() else 0


def _heard(e: Engine, region: str, work: Callable[[], Operation]) -> str:
    """Do ``work`` and answer with its operation, unless the answer's fate is to be lost."""

    def quietly() -> None:
        try:
            work()
        except (Denied, Refusal):
            return

    fate, delay_s = e.cloud.fate(region)
    if fate is Fate.LATE:
        e.world.after(delay_s, quietly)
    elif fate is Fate.UNHEARD:
        quietly()
    if fate is not Fate.HEARD:
        raise Dropped
    return work().render(e.types, e.world.now())


def _insert(e: Engine, call: Call, name: str, order: Order) -> Operation:
    before = e.operations.asked(call.zone, call.request_id)
    if before is not None:
        return before
    if e.holder(call.zone, name) is not None:
        link = call.place("instances", name)
        raise Refusal(409, "alreadyExists", f"The resource '{link}' already exists")
    made = _launched(e, call, order)
    op = e.operations.add("insert", call.project, call.zone, name, e.world.now())
    _begun(e, call, op, name, made)
    e.operations.remember(op, call.request_id)
    return op


def _launched(e: Engine, call: Call, order: Order) -> Machine | Failure:
    """The machine, or why it will turn out that there is none; raises Refusal for the rest."""
    try:
        return e.cloud.launch(order)[0]
    except Denied as denied:
        if denied.trouble is Trouble.CAPACITY:
            return _stockout(e, call, order)
        if denied.trouble is Trouble.QUOTA:
            raise Refusal(403, "quotaExceeded", _quota(e, order)) from None
        if denied.trouble is Trouble.IMAGE:
            raise not_found(order.image_id) from None
        if denied.trouble in (Trouble.INVALID, Trouble.TOO_LONG):
            raise invalid(denied.message) from None
        raise


def _begun(e: Engine, call: Call, op: Operation, name: str, made: Machine | Failure) -> None:
    if isinstance(made, Failure):
        op.failure, op.due_at = made, e.world.now() + e.refuse_s
        op.target_id = str(op.ident + (1 << 61))
    else:
        op.machine, op.target_id = made, made.id
        e.take(call, name, made)


def _bulk(e: Engine, call: Call, names: list[str], order: Order, least: int) -> Operation:
    before = e.operations.asked(call.zone, call.request_id)
    if before is not None:
        return before
    taken = [n for n in names if e.holder(call.zone, n) is not None]
    if taken:
        link = call.place("instances", taken[0])
        raise Refusal(409, "alreadyExists", f"The resource '{link}' already exists")
    sold = e.cloud.offer((order.region, order.zone, order.instance_type, order.market))
    short = sold is not None and e.cloud.free(sold) < least
    now, group = e.world.now(), e.chance.uuid()
    first = None if short else _launched(e, call, order)  # refuses before anything is made
    whole = e.operations.add("bulkInsert", call.project, call.zone, "", now)
    whole.group = group
    e.operations.remember(whole, call.request_id)
    if first is None:  # minCount cannot be met: Google takes everything back
        whole.failure, whole.due_at = _stockout(e, call, order), now + e.refuse_s
        return whole
    for n, name in enumerate(names):
        made = first if n == 0 else _member(e, call, order, n)
        op = e.operations.add("insert", call.project, call.zone, name, now)
        op.group = group
        _begun(e, call, op, name, made)
        whole.members.append(op)
    return whole


def _member(e: Engine, call: Call, order: Order, n: int) -> Machine | Failure:
    """One more of a bulkInsert; a quota that is used up meanwhile fails its operation."""
    own = Order(
        order.region, order.zone, order.instance_type, order.market, order.image_id,
        order.user_data, order.tags, key=order.key and f"{order.key}/{n}",
    )  # fmt: skip
    try:
        return _launched(e, call, own)
    except Refusal as refusal:
        code = "QUOTA_EXCEEDED" if refusal.reason == "quotaExceeded" else "INVALID_USAGE"
        return Failure(code, refusal.message, refusal.status)


def _stockout(e: Engine, call: Call, order: Order) -> Failure:
    elsewhere = sorted(
        {
            o.zone
            for o in e.cloud.spec.offers
            if (o.region, o.instance_type, o.market)
            == (order.region, order.instance_type, order.market)
            and o.zone != order.zone
            and e.cloud.free(o) > 0
        }
    )
    where = f"projects/{call.project}/zones/{call.zone}"
    return Failure(
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
        if elsewhere
        else "ZONE_RESOURCE_POOL_EXHAUSTED",
        f"The zone '{where}' does not have enough resources available to fulfill the request.",
        metadata={
            "zone": call.zone,
            "vmType": order.instance_type,
            "zonesAvailable": ",".join(elsewhere),
        },
    )


def _quota(e: Engine, order: Order) -> str:
    sold = e.cloud.offer((order.region, order.zone, order.instance_type, order.market))
    if sold is None:
        return "Quota exceeded."
    family = (order.region, sold.family or sold.instance_type)
    limits = [e.cloud.spec.quota[family]] if family in e.cloud.spec.quota else []
    cut = e.world.hit(Kind.QUOTA_CUT, e.cloud.name, order.region)
    limits += [int(cut.value)] if cut is not None else []
    metric = f"{'PREEMPTIBLE_' if order.market is Market.SPOT else ''}NVIDIA_{sold.gpu}_GPUS"
    limit = float(min(limits, default=0) * sold.gpus)
    return f"Quota '{metric}' exceeded.  Limit: {limit} in region {order.region}."


def _name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise invalid(f"Invalid value for field 'resource.name': '{name}'. Must be a match of "
                      f"regex '{_NAME.pattern}'")  # fmt: skip


def _order(e: Engine, call: Call, item: Any, key: str) -> Order:
    """The order of an Instance or of InstanceProperties; raises Refusal for a wrong one."""
    instance_type = item.machine_type.rpartition("/")[2]
    market = Market.SPOT if item.scheduling.provisioning_model == "SPOT" else Market.ON_DEMAND
    if item.reservation_affinity.consume_reservation_type == "SPECIFIC_RESERVATION":
        market = Market.RESERVED
    sources = [d.initialize_params.source_image for d in item.disks if d.boot]
    for field, value in (
        ("machineType", instance_type),
        ("disks", "".join(sources)),
        ("networkInterfaces", item.network_interfaces),
    ):
        if not value:
            raise invalid(f"Invalid value for field 'resource.{field}': ''. It must be given.",
                          "required")  # fmt: skip
    for k, v in item.labels.items():
        if not _KEY.fullmatch(k) or not _VALUE.fullmatch(v):
            raise invalid(f"Invalid value for field 'resource.labels': '{k}={v}'.")
    region = e.region(call.zone)
    sold = e.cloud.offer((region, call.zone, instance_type, market))
    if sold is None:
        raise invalid(
            f"Invalid value for field 'resource.machineType': '{item.machine_type}'. Machine type"
            f" with name '{instance_type}' does not exist in zone '{call.zone}'."
        )
    if sold.gpus and item.scheduling.on_host_maintenance != "TERMINATE":
        raise invalid("Instances with guest accelerators do not support live migration.")
    data = [m.value for m in item.metadata.items if m.key == "user-data"]
    return Order(
        region, call.zone, instance_type, market, _image(e, sources[0]), "".join(data[:1]),
        {**item.labels, **{f"metadata:{m.key}": m.value for m in item.metadata.items
                           if m.key != "user-data"}},
        key=key,
    )  # fmt: skip


def _image(e: Engine, link: str) -> str:
    """The image as the world knows it: by its whole link, or by its name alone."""
    known = e.cloud.spec.images
    path = link[link.find("projects/") :] if "projects/" in link else link
    short = path.rpartition("/")[2]
    if known is not None and path not in known and short in known:
        return short
    return path

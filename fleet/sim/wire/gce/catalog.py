"""What the Compute Engine skin answers about operations, places, types and images.

Invariant: reads only. A cloud whose spec names no images has every one that is asked for; a
family's newest image is the one whose name sorts last among those that begin with the family.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleet.sim.wire.gce.engine import Call, Engine, not_found
from fleet.sim.wire.gce.operations import ROOT, Operation


def get_operation(e: Engine, call: Call) -> str:
    """``zoneOperations.get``, and one look of ``zoneOperations.wait``."""
    e.cloud.admit("read", e.region(call.zone))
    return operation(e, call).render(e.types, e.world.now())


def operation(e: Engine, call: Call) -> Operation:
    """The operation that a call names; raises Refusal for none."""
    e.sweep()
    found = e.operations.get(call.zone, call.name)
    if found is None:
        raise not_found(call.place("operations", call.name))
    return found


def list_operations(e: Engine, call: Call) -> str:
    """``zoneOperations.list``: newest first when asked so, else oldest first."""
    e.cloud.admit("list", e.region(call.zone))
    e.sweep()
    wanted, now = e.wanted(call), e.world.now()
    down = call.query.get("orderBy") == "creationTimestamp desc"
    found = [
        (op.ident, op)
        for op in e.operations.newest_first(call.zone)
        if wanted(lambda name, op=op: op.field(name, now))  # type: ignore[misc]
    ]
    page, token = e.page(call, found if down else found[::-1], down=down)
    items = ",".join(op.render(e.types, now) for op in page)
    following = f', "nextPageToken": "{token}"' if token else ""
    return f'{{"kind": "compute#operationList", "id": "list", "items": [{items}]{following}}}'


def zones(e: Engine, call: Call) -> str:
    """``zones.list``."""
    e.cloud.admit("read", "")
    place = f"{ROOT}projects/{call.project}"
    return _list(
        e,
        "ZoneList",
        (
            {
                "kind": "compute#zone",
                "name": zone,
                "status": "UP",
                "region": f"{place}/regions/{region}",
                "self_link": f"{place}/zones/{zone}",
            }
            for zone, region in sorted(e.zones().items())
        ),
    )


def regions(e: Engine, call: Call) -> str:
    """``regions.list``."""
    e.cloud.admit("read", "")
    place = f"{ROOT}projects/{call.project}"
    return _list(
        e,
        "RegionList",
        (
            {
                "kind": "compute#region",
                "name": region,
                "status": "UP",
                "zones": [
                    f"{place}/zones/{z}" for z, r in sorted(e.zones().items()) if r == region
                ],
                "self_link": f"{place}/regions/{region}",
            }
            for region in e.cloud.spec.regions
        ),
    )


def _list(e: Engine, kind: str, items: Iterable[dict[str, Any]]) -> str:
    return e.encode(getattr(e.types, kind)({"id": "list", "items": list(items)}))


def machine_type(e: Engine, call: Call) -> str:
    """``machineTypes.get``: its GPUs, if the zone sells it."""
    e.cloud.admit("read", e.region(call.zone))
    sold = next(
        (o for o in e.cloud.spec.offers if (o.zone, o.instance_type) == (call.zone, call.name)),
        None,
    )
    if sold is None:
        raise not_found(call.place("machineTypes", call.name))
    gpus = {
        "guest_accelerator_type": f"nvidia-{sold.gpu.lower()}",
        "guest_accelerator_count": sold.gpus,
    }
    values = {"kind": "compute#machineType", "name": call.name, "zone": call.zone,
              "accelerators": [gpus]}  # fmt: skip
    return e.encode(e.types.MachineType(values))


def image(e: Engine, call: Call) -> str:
    """``images.get``."""
    e.cloud.admit("read", "")
    link, known = f"projects/{call.project}/global/images/{call.name}", e.cloud.spec.images
    if known is not None and link not in known and call.name not in known:
        raise not_found(link)
    return _image(e, link, "")


def image_of_family(e: Engine, call: Call) -> str:
    """``images.getFromFamily``."""
    e.cloud.admit("read", "")
    place, known = f"projects/{call.project}/global/images", e.cloud.spec.images
    if known is None:
        return _image(e, f"{place}/{call.name}-1", call.name)
    names = sorted(i.rpartition("/")[2] for i in known if i.startswith(place) or "/" not in i)
    newest = [n for n in names if n.startswith(call.name)]
    if not newest:
        raise not_found(f"{place}/family/{call.name}")
    return _image(e, f"{place}/{newest[-1]}", call.name)


def _image(e: Engine, link: str, family: str) -> str:
    values = {
        "kind": "compute#image",
        "name": link.rpartition("/")[2],
        "status": "READY",
        "self_link": f"{ROOT}{link}",
    }
    return e.encode(e.types.Image(values | ({"family": family} if family else {})))

"""What the Oracle skin answers about places, shapes and images.

Invariant: reads only; what it lists is the cloud's spec. A cloud whose spec names no images has
every custom image of the right form and region that is asked for, and lists none.
"""

from __future__ import annotations

from typing import Any

from fleet.sim.faults import Kind
from fleet.sim.wire.asgi import Answer
from fleet.sim.wire.oracle.engine import Call, Engine, answer, is_ocid, unseen
from fleet.sim.wire.oracle.instances import in_region


def domains(e: Engine, call: Call) -> Answer:
    """``ListAvailabilityDomains`` (Identity)."""
    compartment = call.compartment()
    e.cloud.admit("read", call.region, 0)
    found = [
        e.make(
            "AvailabilityDomain",
            name=name,
            compartment_id=compartment,
            id=f"ocid1.availabilitydomain.oc1..{name.lower().replace(':', '-')}",
        )
        for name in e.domains(call.region)
    ]
    return answer(e.encode(found))


def shapes(e: Engine, call: Call) -> Answer:
    """``ListShapes``: what is sold, in one availability domain or in all."""
    call.compartment()
    e.cloud.admit("read", call.region, 0)
    domain = call.query.get("availabilityDomain", "")
    place = e.place(domain, call.region) if domain else None
    sold = {
        o.instance_type: o
        for o in e.cloud.spec.offers
        if call.region in ("", o.region) and (place is None or place == (o.region, o.zone))
    }
    rows = [
        (n, e.make("Shape", shape=name, gpus=o.gpus, gpu_description=f"NVIDIA {o.gpu}"))
        for n, (name, o) in enumerate(sorted(sold.items()))
    ]
    page, head = e.page(call, rows)
    return answer(e.encode(page), headers=head)


def image(e: Engine, call: Call) -> Answer:
    """``GetImage``."""
    e.cloud.admit("read", call.region, 0)
    known = e.cloud.spec.images
    hidden = e.world.hit(Kind.IMAGE_MISSING, e.cloud.name, call.region, "", "", "", call.ident)
    if hidden is not None or not in_region(call.ident, call.region):
        raise unseen()
    if known is not None and call.ident not in known:
        raise unseen()
    return answer(e.encode(_image(e, call.ident, None)))


def images(e: Engine, call: Call) -> Answer:
    """``ListImages`` of a compartment."""
    compartment = call.compartment()
    e.cloud.admit("read", call.region, 0)
    state, name = call.query.get("lifecycleState", ""), call.query.get("displayName", "")
    rows = [
        (n, _image(e, ident, compartment))
        for n, ident in enumerate(sorted(e.cloud.spec.images or ()))
        if is_ocid(ident, "image")
        and in_region(ident, call.region)
        and state in ("", "AVAILABLE")
        and name in ("", ident.rpartition(".")[2])
    ]
    page, head = e.page(call, rows)
    return answer(e.encode(page), headers=head)


def _image(e: Engine, ident: str, compartment: str | None) -> Any:
    return e.make(
        "Image",
        id=ident,
        compartment_id=compartment,
        display_name=ident.rpartition(".")[2],
        lifecycle_state="AVAILABLE",
        operating_system="Linux",
        create_image_allowed=True,
    )

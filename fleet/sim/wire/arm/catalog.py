"""Azure's calls about places, sizes, quotas, groups and images.

Invariant: reads only; what it lists is the cloud's spec and what exists. Any subscription and
resource group of the right form is there.
"""

from __future__ import annotations

from collections import Counter

from fleet.sim.wire.arm.calls import Call, Refusal, answer
from fleet.sim.wire.asgi import Answer


def get_subscription(call: Call) -> Answer:
    """The subscription, switched on."""
    call.cloud.admit("read", "", 0)
    ident = call.names["subscription"]
    body = {"id": f"/subscriptions/{ident}", "subscriptionId": ident, "state": "Enabled"}
    return answer(call, 200, body | {"displayName": "emulator"})


def list_locations(call: Call) -> Answer:
    """Every location with its zones."""
    call.cloud.admit("read", "", 0)
    value = [
        {
            "id": f"/subscriptions/{call.names['subscription']}/locations/{region}",
            "name": region,
            "displayName": region,
            "availabilityZoneMappings": [
                {"logicalZone": zone, "physicalZone": f"{region}-az{zone}"}
                for zone in sorted({o.zone for o in call.cloud.spec.offers if o.region == region})
            ],
        }
        for region in call.cloud.spec.regions
    ]
    return answer(call, 200, {"value": value})


def get_group(call: Call) -> Answer:
    """A resource group."""
    call.cloud.admit("read", "", 0)
    subscription, group = call.group
    body = {
        "id": f"/subscriptions/{subscription}/resourceGroups/{group}",
        "name": group,
        "type": "Microsoft.Resources/resourceGroups",
        "location": call.cloud.spec.regions[0],
        "properties": {"provisioningState": "Succeeded"},
    }
    return answer(call, 200, body)


def list_resources(call: Call) -> Answer:
    """Everything in a resource group, the parts of VMs too: how leaks are found."""
    call.cloud.admit("read", "", 0)
    value = [
        {"id": ident, "name": ident.rsplit("/", 1)[1], "type": "/".join(ident.split("/")[6:8])}
        for ident in call.estate.resources(*call.group)
    ]
    return answer(call, 200, {"value": value})


def list_usages(call: Call) -> Answer:
    """What is used of the quotas of a location; this account counts VMs, not cores."""
    location = call.names["location"].lower()
    call.cloud.admit("read", location, 0)
    used = Counter(
        m.offer.family or m.offer.instance_type
        for m in call.world.existing(call.cloud.name)
        if m.offer.region == location
    )
    value = [
        {
            "name": {"value": family, "localizedValue": family},
            "unit": "Count",
            "currentValue": used[family],
            "limit": limit,
        }
        for (region, family), limit in sorted(call.cloud.spec.quota.items())
        if region == location
    ]
    return answer(call, 200, {"value": value})


def list_skus(call: Call) -> Answer:
    """The sizes that are sold, and where."""
    call.cloud.admit("read", "", 0)
    sold = sorted({(o.instance_type, o.region, o.gpus) for o in call.cloud.spec.offers})
    value = [
        {
            "resourceType": "virtualMachines",
            "name": size,
            "locations": [region],
            "locationInfo": [
                {
                    "location": region,
                    "zones": sorted(
                        {
                            o.zone
                            for o in call.cloud.spec.offers
                            if (o.instance_type, o.region) == (size, region)
                        }
                    ),
                }
            ],
            "capabilities": [{"name": "GPUs", "value": str(gpus)}],
            "restrictions": [],
        }
        for size, region, gpus in sold
    ]
    return answer(call, 200, {"value": value})


def get_image_version(call: Call) -> Answer:
    """A Compute Gallery image version; a cloud that names no images has every one asked for."""
    call.cloud.admit("read", "", 0)
    known = call.cloud.spec.images
    wanted = call.path.rstrip("/")
    ident = next((i for i in known or (wanted,) if i.lower() == wanted.lower()), None)
    if ident is None:
        what = "Microsoft.Compute/galleries/" + "/".join(wanted.split("/")[8:])
        raise Refusal("ResourceNotFound", f"The Resource '{what}' was not found.", 404)
    regions = [{"name": r, "regionalReplicaCount": 1} for r in call.cloud.spec.regions]
    summary = [
        {"region": r, "state": "Completed", "progress": 100} for r in call.cloud.spec.regions
    ]
    properties = {
        "provisioningState": "Succeeded",
        "publishingProfile": {"targetRegions": regions},
        "replicationStatus": {"aggregatedState": "Completed", "summary": summary},
    }
    body = {
        "id": ident,
        "name": ident.rsplit("/", 1)[1],
        "type": "Microsoft.Compute/galleries/images/versions",
        "location": call.cloud.spec.regions[0],
        "properties": properties,
    }
    return answer(call, 200, body)

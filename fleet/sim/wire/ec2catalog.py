"""EC2's operations about places, types and images, and the status checks of instances.

Invariant: reads only; what it lists is the cloud's spec and what instance lists show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.model import Phase
from fleet.sim.wire.ec2calls import (
    OWNER,
    Call,
    Refusal,
    found_instances,
    instance_state,
    zone_id,
    zones_of,
)


def describe_regions(call: Call) -> Mapping[str, Any]:
    """DescribeRegions."""
    call.cloud.admit("read", call.region)
    return {
        "Regions": [
            {
                "RegionName": r,
                "Endpoint": f"ec2.{r}.amazonaws.com",
                "OptInStatus": "opt-in-not-required",
            }
            for r in call.cloud.spec.regions
        ]
    }


def describe_availability_zones(call: Call) -> Mapping[str, Any]:
    """DescribeAvailabilityZones of the region."""
    call.cloud.admit("read", call.region)
    return {
        "AvailabilityZones": [
            {
                "ZoneName": z,
                "ZoneId": zone_id(z),
                "RegionName": call.region,
                "State": "available",
                "ZoneType": "availability-zone",
            }
            for z in zones_of(call)
        ]
    }


def describe_instance_types(call: Call) -> Mapping[str, Any]:
    """DescribeInstanceTypes: the GPUs of each type sold in the region."""
    call.cloud.admit("read", call.region)
    asked = [str(t) for t in call.inputs.get("InstanceTypes", ())]
    sold = {o.instance_type: o for o in call.cloud.spec.offers if o.region == call.region}
    unknown = [t for t in asked if t not in sold]
    if unknown:
        message = f"The following supplied instance types do not exist: [{', '.join(unknown)}]"
        raise Refusal("InvalidInstanceType", message)
    return {
        "InstanceTypes": [
            {
                "InstanceType": t,
                "CurrentGeneration": True,
                "SupportedUsageClasses": sorted(
                    {
                        "spot" if o.market == "spot" else "on-demand"
                        for o in call.cloud.spec.offers
                        if o.instance_type == t and o.region == call.region
                    }
                ),
                "GpuInfo": {
                    "Gpus": [{"Name": sold[t].gpu, "Manufacturer": "NVIDIA", "Count": sold[t].gpus}]
                },
            }
            for t in (asked or sorted(sold))
        ]
    }


def describe_images(call: Call) -> Mapping[str, Any]:
    """DescribeImages: a cloud whose spec names no images has every one that is asked for."""
    call.cloud.admit("read", call.region)
    asked = [str(i) for i in call.inputs.get("ImageIds", ())]
    known = call.cloud.spec.images
    unknown = [i for i in asked if known is not None and i not in known]
    if unknown:
        message = f"The image id '[{unknown[0]}]' does not exist"
        raise Refusal("InvalidAMIID.NotFound", message)
    return {
        "Images": [
            {"ImageId": i, "State": "available", "OwnerId": OWNER, "Name": i, "Public": False}
            for i in (asked or sorted(known or ()))
        ]
    }


def describe_instance_status(call: Call) -> Mapping[str, Any]:
    """DescribeInstanceStatus: checks are initializing until the operating system is up."""
    call.cloud.admit("read", call.region)
    everything = bool(call.inputs.get("IncludeAllInstances"))
    statuses = []
    for machine, shown in found_instances(call):
        if shown.phase is not Phase.RUNNING and not everything:
            continue
        running = shown.phase is Phase.RUNNING
        word = ("ok" if machine.up else "initializing") if running else "not-applicable"
        summary = {"Status": word, "Details": []}
        statuses.append(
            {
                "InstanceId": machine.id,
                "AvailabilityZone": machine.offer.zone,
                "InstanceState": instance_state(shown.phase),
                "InstanceStatus": summary,
                "SystemStatus": summary,
            }
        )
    return {"InstanceStatuses": statuses}

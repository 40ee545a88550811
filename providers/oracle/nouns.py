"""Oracle's nouns: names, tokens, requests, instances. Pure; ``providers/oci.py`` speaks them.

Invariant: the same spec gives the same retry tokens and bodies, so that a repeated create finds
what the first one made. Nothing here imports oci. Facts: clouds.md 2.4, 5 and 6.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from fleet.errors import InvalidRequest
from fleet.model import Instance, InstanceRef, LaunchSpec, Market, Phase
from providers.base import TAG_CELL, TAG_IMAGE, TAG_POOL, TAG_TOKEN, CloudNotice
from providers.catalog import sells_spot

PHASES: Final[Mapping[str, Phase]] = {
    "PROVISIONING": Phase.PENDING,
    "STARTING": Phase.PENDING,
    "RUNNING": Phase.RUNNING,
    "MOVING": Phase.RUNNING,  # a reboot migration: it comes back by itself
    "CREATING_IMAGE": Phase.RUNNING,
    "STOPPING": Phase.STOPPING,
    "TERMINATING": Phase.STOPPING,
    "STOPPED": Phase.STOPPED,
    "TERMINATED": Phase.TERMINATED,  # listed for some time after its end
}

MAX_TAGS: Final = 10
MAX_METADATA_BYTES: Final = 32_000
MAX_RETRY_TOKEN_CHARS: Final = 64
MAX_NAME_CHARS: Final = 255
_TAG_KEY = re.compile(r"[^\s.]{1,100}")
OCID: Final = r"^ocid1\.{kind}\.[a-z0-9-]+\.[a-z0-9-]*(\.[a-z0-9-]*)?\.[A-Za-z0-9._-]+$"


def ocid(kind: str) -> str:
    """The pattern of the OCIDs of a kind of resource, ``a|b`` for several."""
    return OCID.replace("{kind}", f"({kind})")


class Region(BaseModel):
    """One region of the tenancy and what instances there are launched into."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: Availability domains to launch in: ``PHX-AD-1``, ``AD-1``, or with the tenancy's prefix
    #: (``Uocm:PHX-AD-1``), which saves one call. Offers show them without the prefix.
    availability_domains: list[str] = Field(min_length=1)
    subnet: str = Field(pattern=ocid("subnet"))
    #: ``FAULT-DOMAIN-1`` to 3; empty lets Oracle choose, which finds more capacity.
    fault_domain: str = ""
    #: OCIDs of network security groups.
    security_groups: list[str] = []
    #: Shape to the OCID of a capacity reservation.
    capacity_reservations: dict[str, str] = {}
    #: Shape to the OCID of a compute cluster (RDMA network).
    compute_clusters: dict[str, str] = {}

    @property
    def zones(self) -> dict[str, str]:
        """Zones as offers name them, and the price table's name where the name is a whole one."""
        bare = [bare_domain(d) for d in self.availability_domains]
        return {d: d if "-AD-" in d.upper() else "" for d in bare}


class Machine(BaseModel):
    """What every instance of the compartment is launched with."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: 0 takes the image's own size.
    boot_volume_gb: int = Field(default=200, ge=0, le=32_768)
    public_ip: bool = False
    #: Lines of ``authorized_keys``; empty means no way in by SSH.
    ssh_public_keys: str = ""
    #: Namespace to key to value; the namespaces and keys must exist in the tenancy.
    defined_tags: dict[str, dict[str, str]] = {}


def bare_domain(name: str) -> str:
    """An availability domain's name without the tenancy's prefix."""
    return name.rpartition(":")[2]


def is_domain(zone: str, full: str) -> bool:
    """True when ``zone`` means the availability domain that the tenancy calls ``full``."""
    bare = bare_domain(full).upper()
    return bare == zone.upper() or bare.endswith(f"-{zone.upper()}")


def zone_of(full: str, region: Region) -> str:
    """The availability domain ``full`` as offers of this configuration name it."""
    return next((z for z in region.zones if is_domain(z, full)), bare_domain(full))


def name_of(spec: LaunchSpec, n: int) -> str:
    """The display name of a launch's ``n``-th instance."""
    return f"fleetd-{spec.token}-{n}"[:MAX_NAME_CHARS]


def retry_token(spec: LaunchSpec, n: int) -> str:
    """The ``opc-retry-token`` of a launch's ``n``-th instance; Oracle keeps it for 24 hours."""
    token = f"{spec.token}-{n}"
    if token.isascii() and len(token) <= MAX_RETRY_TOKEN_CHARS:
        return token
    return hashlib.sha256(token.encode()).hexdigest()


def launch_body(
    spec: LaunchSpec, compartment: str, domain: str, region: Region, machine: Machine
) -> dict[str, Any]:
    """The LaunchInstanceDetails of ``spec`` without a display name, as they go over the wire.

    Raises InvalidRequest for what Oracle would refuse.
    """
    shape = spec.offer.instance_type
    source: dict[str, Any] = {"sourceType": "image", "imageId": spec.image_id}
    if machine.boot_volume_gb:
        source["bootVolumeSizeInGBs"] = machine.boot_volume_gb
    vnic: dict[str, Any] = {"subnetId": region.subnet, "assignPublicIp": machine.public_ip}
    if region.security_groups:
        vnic["nsgIds"] = list(region.security_groups)
    body: dict[str, Any] = {
        "availabilityDomain": domain,
        "compartmentId": compartment,
        "shape": shape,
        "freeformTags": _tags(spec),
        "metadata": _metadata(spec.user_data, machine),
        "createVnicDetails": vnic,
        "sourceDetails": source,
        "instanceOptions": {"areLegacyImdsEndpointsDisabled": True},
    }
    if machine.defined_tags:
        body["definedTags"] = {ns: dict(tags) for ns, tags in machine.defined_tags.items()}
    if region.fault_domain:
        body["faultDomain"] = region.fault_domain
    if cluster := region.compute_clusters.get(shape):
        body["computeClusterId"] = cluster
    return body | _market(spec.offer.market, shape, region)


def _market(market: Market, shape: str, region: Region) -> dict[str, Any]:
    if market is Market.SPOT:
        if not sells_spot("oci", shape):
            raise InvalidRequest(f"{shape} is bare metal, which Oracle never sells preemptibly")
        action = {"type": "TERMINATE", "preserveBootVolume": False}
        return {"preemptibleInstanceConfig": {"preemptionAction": action}}
    if market is Market.RESERVED:
        reservation = region.capacity_reservations.get(shape)
        if not reservation:
            raise InvalidRequest(f"no capacity reservation of {shape} is configured")
        return {"capacityReservationId": reservation}
    return {}


def _tags(spec: LaunchSpec) -> dict[str, str]:
    """The caller's tags and ours; ours win, for they say whose instances these are."""
    tags = {
        TAG_IMAGE: spec.image_id,
        **spec.tags,
        TAG_CELL: spec.cell,
        TAG_POOL: spec.pool,
        TAG_TOKEN: spec.token,
    }
    wrong = [k for k, v in tags.items() if not _TAG_KEY.fullmatch(k) or len(v) > 256]
    if len(tags) > MAX_TAGS or wrong:
        raise InvalidRequest(f"{len(tags)} freeform tags; not in Oracle's form: {wrong}")
    return tags


def _metadata(user_data: str, machine: Machine) -> dict[str, str]:
    metadata = {"user_data": base64.b64encode(user_data.encode()).decode()}
    if machine.ssh_public_keys:
        metadata["ssh_authorized_keys"] = machine.ssh_public_keys
    size = sum(len(k) + len(v.encode()) for k, v in metadata.items())
    if size > MAX_METADATA_BYTES:
        raise InvalidRequest(f"metadata has {size} bytes, Oracle takes {MAX_METADATA_BYTES}")
    return metadata


def instance(provider: str, name: str, region: Region, i: Mapping[str, Any]) -> Instance:
    """What one item of ListInstances says; an incomplete one is PENDING (PC-166)."""
    tags = i.get("freeformTags") or {}
    market = Market.SPOT if i.get("preemptibleInstanceConfig") else Market.ON_DEMAND
    if i.get("capacityReservationId"):
        market = Market.RESERVED
    zone = zone_of(i.get("availabilityDomain") or "", region)
    return Instance(
        ref=InstanceRef(provider, name, zone, i["id"]),
        phase=PHASES.get(i.get("lifecycleState") or "", Phase.PENDING),
        token=tags.get(TAG_TOKEN, ""),
        pool=tags.get(TAG_POOL, ""),
        cell=tags.get(TAG_CELL, ""),
        instance_type=i.get("shape") or "",
        market=market,
        image_id=(i.get("sourceDetails") or {}).get("imageId") or i.get("imageId") or "",
        created_at=moment(i.get("timeCreated") or ""),
    )


def notice(one: Instance, i: Mapping[str, Any]) -> CloudNotice | None:
    """The maintenance reboot that an instance's description announces."""
    due = moment(i.get("timeMaintenanceRebootDue") or "")
    text = "Oracle reboots this instance for maintenance at this time"
    return CloudNotice(one.ref, "maintenance", due, text) if due else None


def moment(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0.0 for none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def of_cell(items: Sequence[Any], cell: str) -> list[Any]:
    """Those of a page that carry the tag of ``cell``: lists have no filter for tags."""
    return [i for i in items if (i.get("freeformTags") or {}).get(TAG_CELL) == cell]

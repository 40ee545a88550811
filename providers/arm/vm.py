"""Azure's words: requests, answers, errors. Pure; ``providers/azure.py`` speaks them.

Invariant: ``CODES`` decides what every vendor code means, nothing else does; the same spec gives
the same VM under the same name, and a name never comes from two tokens. Nothing here imports an
SDK. Facts and wire shapes: clouds.md 2.3, 4 and 5. Codes marked [K] are hypotheses.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from fleet.errors import InvalidRequest
from fleet.model import Instance, InstanceRef, LaunchSpec, Market, Outcome, Phase
from providers.arm.codes import BOOT_FAILED, died_of
from providers.base import TAG_CELL, TAG_IMAGE, TAG_POOL, TAG_TOKEN

#: The first API version of Microsoft.Network with a delete option; needed for an inline NIC.
NETWORK_API: Final = "2020-11-01"

MAX_USER_DATA_BYTES = 65_535
MAX_COMPUTER_NAME = 64  # of Linux; Windows has 15
MAX_TAGS, MAX_TAG_KEY, MAX_TAG_VALUE = 50, 512, 256
MAX_MESSAGE_CHARS = 500
_TAG_KEY_FORBIDS: Final = frozenset('<>%&\\?/"')

#: provisioningState → phase while no power state says more.
PHASES: Final[Mapping[str, Phase]] = {
    "creating": Phase.PENDING,
    "updating": Phase.RUNNING,
    "migrating": Phase.RUNNING,
    "succeeded": Phase.RUNNING,
    "failed": Phase.FAILED,
    "canceled": Phase.FAILED,
    "deleting": Phase.STOPPING,
}
#: Power states, which tell about machines that are neither failed nor being deleted.
POWERS: Final[Mapping[str, Phase]] = {
    "starting": Phase.PENDING,
    "running": Phase.RUNNING,
    "stopping": Phase.STOPPING,
    "deallocating": Phase.STOPPING,
    "stopped": Phase.STOPPED,
    "deallocated": Phase.STOPPED,
}


class Region(BaseModel):
    """One region of the subscription and what VMs there are launched into."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: Resource id of the subnet; its virtual network is in the same region.
    subnet: str = Field(
        pattern=r"(?i)^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/.+/subnets/.+$"
    )
    #: Zones as this subscription numbers them; none: VMs without a zone.
    zones: list[str] = []
    #: Resource id of a network security group for the nodes' interfaces.
    security_group: str = ""
    accelerated_networking: bool = True
    os_disk_type: str = "Premium_LRS"
    os_disk_gb: int = Field(default=0, ge=0)
    #: Resource id of the user-assigned identity the nodes get.
    identity: str = ""
    #: VM size to the id of a capacity reservation group that was bought for it.
    capacity_reservations: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Login:
    """Who may enter a VM: Azure refuses a Linux VM without a key or a password."""

    user: str
    public_key: str


def vm_name(token: str, index: int) -> str:
    """The name of a batch's VM: fits VM, computer and NIC names, and ignores case as ARM does."""
    return f"fleetd-{hashlib.sha256(token.encode()).hexdigest()[:32]}-{index}"


def vm_body(spec: LaunchSpec, index: int, region: Region, login: Login) -> dict[str, Any]:
    """The PUT body of one VM of ``spec``, with its NIC and disk, which are deleted with it.

    Raises InvalidRequest for what Azure would refuse or silently cut.
    """
    name, offer = vm_name(spec.token, index), spec.offer
    disk: dict[str, Any] = {
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "managedDisk": {"storageAccountType": region.os_disk_type},
    }
    if region.os_disk_gb:
        disk["diskSizeGB"] = region.os_disk_gb
    key = {"path": f"/home/{login.user}/.ssh/authorized_keys", "keyData": login.public_key}
    properties: dict[str, Any] = {
        "hardwareProfile": {"vmSize": offer.instance_type},
        "storageProfile": {"imageReference": image_reference(spec.image_id), "osDisk": disk},
        "osProfile": {
            "computerName": name,
            "adminUsername": login.user,
            "customData": _user_data(spec.user_data),
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {"publicKeys": [key]},
            },
        },
        "networkProfile": {
            "networkApiVersion": NETWORK_API,
            "networkInterfaceConfigurations": [_nic(name, region)],
        },
        "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
        **_market(spec, region),
    }
    body: dict[str, Any] = {
        "location": offer.region,
        "tags": tags_of(spec),
        "properties": properties,
    }
    if offer.zone:
        body["zones"] = [offer.zone]
    if region.identity:
        body["identity"] = {
            "type": "UserAssigned",
            "userAssignedIdentities": {region.identity: {}},
        }
    return body


def _nic(name: str, region: Region) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "primary": True,
        "deleteOption": "Delete",
        "enableAcceleratedNetworking": region.accelerated_networking,
        "ipConfigurations": [{"name": "ip", "properties": {"subnet": {"id": region.subnet}}}],
    }
    if region.security_group:
        properties["networkSecurityGroup"] = {"id": region.security_group}
    return {"name": f"{name}-nic", "properties": properties}


def _market(spec: LaunchSpec, region: Region) -> dict[str, Any]:
    if spec.offer.market is Market.SPOT:
        # at most the on-demand price, and gone with its disk when it is evicted
        return {
            "priority": "Spot",
            "evictionPolicy": "Delete",
            "billingProfile": {"maxPrice": -1},
        }
    if spec.offer.market is Market.RESERVED:
        size = spec.offer.instance_type
        group = region.capacity_reservations.get(size)
        if not group:
            raise InvalidRequest(f"no capacity reservation of {size} is configured")
        return {"capacityReservation": {"capacityReservationGroup": {"id": group}}}
    return {}


def image_reference(image_id: str) -> dict[str, str]:
    """A Compute Gallery version or managed image by id, a shared gallery's, or a platform URN."""
    lower = image_id.lower()
    if lower.startswith("/subscriptions/"):
        return {"id": image_id}
    if lower.startswith("/communitygalleries/"):
        return {"communityGalleryImageId": image_id}
    if lower.startswith("/sharedgalleries/"):
        return {"sharedGalleryImageId": image_id}
    parts = image_id.split(":")
    if len(parts) == 4 and all(parts):
        return dict(zip(("publisher", "offer", "sku", "version"), parts, strict=True))
    raise InvalidRequest(f"{image_id!r} is neither a resource id nor publisher:offer:sku:version")


def image_id_of(reference: Mapping[str, Any]) -> str:
    """The image id that gives this reference."""
    for key in ("id", "communityGalleryImageId", "sharedGalleryImageId"):
        if found := reference.get(key):
            return str(found)
    urn = [str(reference.get(key, "")) for key in ("publisher", "offer", "sku", "version")]
    return ":".join(urn) if all(urn) else ""


def tags_of(spec: LaunchSpec) -> dict[str, str]:
    """The caller's tags and ours; ours win, for they say whose VMs these are."""
    tags = {
        TAG_IMAGE: spec.image_id[-MAX_TAG_VALUE:],
        **spec.tags,
        TAG_CELL: spec.cell,
        TAG_POOL: spec.pool,
        TAG_TOKEN: spec.token,
    }
    bad = [
        k
        for k, v in tags.items()
        if not 0 < len(k) <= MAX_TAG_KEY or len(v) > MAX_TAG_VALUE or _TAG_KEY_FORBIDS & set(k)
    ]
    if len(tags) > MAX_TAGS or bad:
        raise InvalidRequest(f"{len(tags)} tags; too long or not allowed: {bad}")
    return dict(sorted(tags.items()))


def _user_data(text: str) -> str:
    raw = text.encode()
    if len(raw) > MAX_USER_DATA_BYTES:
        raise InvalidRequest(f"user data has {len(raw)} bytes, Azure takes {MAX_USER_DATA_BYTES}")
    return base64.b64encode(raw).decode()


# -- what lists say ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """What the instance view of one VM says."""

    code: str = ""
    message: str = ""
    power: str = ""


def status_of(view: Mapping[str, Any]) -> Status:
    """The failure and the power state in ``instanceView.statuses``.

    A failure is ``ProvisioningState/failed/<error code>`` with its message.
    """
    code = message = power = ""
    for item in view.get("statuses") or ():
        parts = str(item.get("code", "")).split("/")
        if parts[0] == "ProvisioningState" and len(parts) > 2 and parts[1].lower() == "failed":
            code, message = parts[2], str(item.get("message") or "")
        elif parts[0] == "PowerState" and len(parts) > 1:
            power = parts[1].lower()
    return Status(code, message[:MAX_MESSAGE_CHARS], power)


def phase_of(state: str, power: str) -> Phase:
    """Failing and deleting beat the power state, which beats the rest; unknown is PENDING."""
    phase = PHASES.get(state.lower(), Phase.PENDING)
    if phase in (Phase.FAILED, Phase.STOPPING):
        return phase
    return POWERS.get(power, phase)


def instance(provider: str, vm: Mapping[str, Any], status: Status | None) -> Instance:
    """What one VM of a list says, with its status where one was listed.

    A VM whose operating system never called back has failed but runs and is billed: it is FAILED
    with the outcome of a boot, so that its owner deletes it.
    """
    properties = vm.get("properties") or {}
    tags = vm.get("tags") or {}
    status = status or status_of(properties.get("instanceView") or {})
    phase = phase_of(str(properties.get("provisioningState") or ""), status.power)
    spot = properties.get("priority") in ("Spot", "Low")
    market = Market.SPOT if spot else Market.ON_DEMAND
    if properties.get("capacityReservation"):
        market = Market.RESERVED
    image = (properties.get("storageProfile") or {}).get("imageReference") or {}
    zones = vm.get("zones") or [""]
    evicted = spot and phase is Phase.STOPPED and status.power == "deallocated"
    return Instance(
        ref=InstanceRef(provider, str(vm.get("location") or ""), zones[0], str(vm["name"])),
        phase=phase,
        token=tags.get(TAG_TOKEN, ""),
        pool=tags.get(TAG_POOL, ""),
        cell=tags.get(TAG_CELL, ""),
        instance_type=str((properties.get("hardwareProfile") or {}).get("vmSize") or ""),
        market=market,
        image_id=image_id_of(image),
        created_at=_timestamp(properties.get("timeCreated")),
        code=_code(phase, status, evicted=evicted),
        message=status.message,
        preempted=evicted,
        died=_died(status) if phase is Phase.FAILED else None,
    )


def _code(phase: Phase, status: Status, *, evicted: bool) -> str:
    """Azure's own code; a failed VM always has one."""
    if evicted:
        return "Deallocated"
    return status.code or ("ProvisioningFailed" if phase is Phase.FAILED else "")


def _died(status: Status) -> Outcome | None:
    if status.code in BOOT_FAILED:
        return Outcome.BOOT_TIMEOUT
    kind = died_of(status.code, status.message)
    return kind.outcome if kind is not None else None


def _timestamp(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else 0.0
    except ValueError:
        return 0.0


_VM_ID: Final = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourcegroups/(?P<group>[^/]+)/providers/"
    r"microsoft\.compute/virtualmachines/(?P<name>[^/]+)$"
)


def name_in(resource_id: str, group: str) -> str:
    """The lower-case name of a VM of the group, ``""`` for another's; ARM ids vary in case."""
    found = _VM_ID.match(resource_id.lower())
    return found["name"] if found and found["group"] == group.lower() else ""

"""Compute Engine's nouns: names, requests, instances. Pure; ``providers/gcp.py`` speaks them.

Invariant: the same spec gives the same names, request ids and bodies, so that a repeated create
finds what the first one made. Nothing here imports google. Facts: clouds.md 2.2, 5 and 6.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from fleet.errors import InvalidRequest
from fleet.model import Instance, InstanceRef, LaunchSpec, Market, Phase
from providers.base import TAG_CELL, TAG_IMAGE, TAG_POOL, TAG_TOKEN
from providers.gce.codes import DIED, MAX_MESSAGE_CHARS, PREEMPTED

PHASES: Final[Mapping[str, Phase]] = {
    "PROVISIONING": Phase.PENDING,
    "STAGING": Phase.PENDING,
    "PENDING": Phase.PENDING,
    "RUNNING": Phase.RUNNING,
    "PENDING_STOP": Phase.STOPPING,
    "STOPPING": Phase.STOPPING,
    "SUSPENDING": Phase.STOPPING,
    "DEPROVISIONING": Phase.STOPPING,
    "SUSPENDED": Phase.STOPPED,
    "STOPPED": Phase.STOPPED,
    "TERMINATED": Phase.STOPPED,  # Google's word for stopped: still there, its disk is billed
    "REPAIRING": Phase.STOPPED,  # the host failed, what ran is lost; we do not restart
}

#: Metadata key that carries the image: no list says what an instance was made from.
IMAGE_KEY: Final = "fleetd-image-id"
MAX_USER_DATA_BYTES = 256 * 1024
MAX_LABELS = 64
_TOKEN = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_UNSAFE = re.compile(r"[^a-z0-9_-]")


class Region(BaseModel):
    """One region of the project and what instances there are launched into."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: Zones to launch in; Google names them alike in every project.
    zones: list[str] = Field(min_length=1)
    #: ``regions/R/subnetworks/NAME`` or a full link; empty with an auto-mode network.
    subnetwork: str = ""
    #: Machine type to the name of a reservation that only named requests use.
    reservations: dict[str, str] = {}


class Machine(BaseModel):
    """What every instance of the project is launched with."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    network: str = ""
    #: Email of the service account the nodes get; empty means none, and no token on a node.
    service_account: str = ""
    network_tags: list[str] = []
    external_ip: bool = False
    disk_gb: int = Field(default=200, ge=10)
    #: e.g. ``pd-balanced``, ``hyperdisk-balanced``; empty lets Google choose.
    disk_type: str = ""


def prefix(cell: str) -> str:
    """How the names of a cell's instances begin; the hash keeps cell ``a`` from matching ``a-b``.

    Needed because an operation, all that is left of a launch that failed, carries no labels.
    """
    return f"fleetd-{hashlib.sha256(cell.encode()).hexdigest()[:8]}-"


def names_of(spec: LaunchSpec) -> list[str]:
    """The ``count`` names of a launch, the same each time, none ever used by another launch.

    Raises InvalidRequest for a token that would make no name (40 lower-case letters, digits, -).
    """
    if not _TOKEN.fullmatch(spec.token):
        raise InvalidRequest(f"token {spec.token!r} makes no instance name of Compute Engine")
    return [f"{prefix(spec.cell)}{spec.token}-{n}" for n in range(spec.count)]


def token_of(name: str, cell: str) -> str:
    """The token in a name that ``names_of`` made for ``cell``; empty for any other name."""
    start = prefix(cell)
    return name[len(start) :].rpartition("-")[0] if name.startswith(start) else ""


def request_id(*what: str) -> str:
    """The UUID of a request, derived from what it asks for: a repeat repeats it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(("fleetd", *what))))


def region_of(zone: str) -> str:
    """``us-central1`` of ``us-central1-a``."""
    return zone.rpartition("-")[0]


def last(link: str) -> str:
    """The last part of a resource link."""
    return link.rpartition("/")[2]


def image_link(project: str, image_id: str) -> str:
    """The link of an image given as a full link, a partial one or a bare name.

    Raises InvalidRequest for a family: it moves, and a repeated create would repeat another body.
    """
    if "/family/" in image_id:
        raise InvalidRequest(f"{image_id} is a family: register the image it resolves to")
    return image_id if "/" in image_id else f"projects/{project}/global/images/{image_id}"


def properties(spec: LaunchSpec, project: str, region: Region, machine: Machine) -> dict[str, Any]:
    """The body of ``spec`` without name and machine type, in the SDK's own field names.

    Raises InvalidRequest for what Compute Engine would refuse.
    """
    disk: dict[str, Any] = {
        "source_image": image_link(project, spec.image_id),
        "disk_size_gb": machine.disk_gb,
    }
    if machine.disk_type:
        disk["disk_type"] = machine.disk_type
    nic: dict[str, Any] = {}
    if machine.network or not region.subnetwork:
        nic["network"] = machine.network or "global/networks/default"
    if region.subnetwork:
        nic["subnetwork"] = region.subnetwork
    if machine.external_ip:
        nic["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    body: dict[str, Any] = {
        "labels": _labels(spec),
        "metadata": {
            "items": [
                {"key": "user-data", "value": _checked_user_data(spec.user_data)},
                {"key": IMAGE_KEY, "value": spec.image_id},
            ]
        },
        "disks": [{"boot": True, "auto_delete": True, "initialize_params": disk}],
        "network_interfaces": [nic],
        # GPUs cannot migrate; a host that failed is replaced by us, not restarted by Google
        "scheduling": {"on_host_maintenance": "TERMINATE", "automatic_restart": False},
    }
    if machine.service_account:
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        body["service_accounts"] = [{"email": machine.service_account, "scopes": scopes}]
    if machine.network_tags:
        body["tags"] = {"items": list(machine.network_tags)}
    if spec.offer.market is Market.SPOT:
        body["scheduling"] |= {
            "provisioning_model": "SPOT",
            "instance_termination_action": "DELETE",
        }
    elif spec.offer.market is Market.RESERVED:
        body["reservation_affinity"] = _reservation(spec.offer.instance_type, region)
    return body


def _reservation(instance_type: str, region: Region) -> dict[str, Any]:
    name = region.reservations.get(instance_type)
    if not name:
        raise InvalidRequest(f"no reservation of {instance_type} is configured")
    return {
        "consume_reservation_type": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [name],
    }


def _labels(spec: LaunchSpec) -> dict[str, str]:
    """The caller's tags as labels; cell, pool and token exactly, the others as far as allowed."""
    exact = {TAG_CELL: spec.cell, TAG_POOL: spec.pool, TAG_TOKEN: spec.token}
    labels = {TAG_IMAGE: last(spec.image_id), **spec.tags}
    labels = {k: _UNSAFE.sub("-", v.lower())[:63] for k, v in labels.items()} | exact
    wrong = [k for k in labels if not _LABEL_KEY.fullmatch(k)]
    wrong += [k for k, v in exact.items() if not _LABEL_VALUE.fullmatch(v)]
    if wrong or len(labels) > MAX_LABELS:
        raise InvalidRequest(f"{len(labels)} labels; not in Compute Engine's form: {wrong}")
    return labels


def _checked_user_data(text: str) -> str:
    if (size := len(text.encode())) > MAX_USER_DATA_BYTES:
        raise InvalidRequest(f"user data has {size} bytes, Compute Engine takes 256 KiB")
    return text


def instance(provider: str, i: Any) -> Instance:
    """What one item of a list says; an incomplete one is PENDING (PC-166)."""
    labels = i.labels
    zone = last(i.zone)
    image = next((m.value for m in i.metadata.items if m.key == IMAGE_KEY), "")
    market = {"SPOT": Market.SPOT, "RESERVATION_BOUND": Market.RESERVED}
    specific = i.reservation_affinity.consume_reservation_type == "SPECIFIC_RESERVATION"
    return Instance(
        ref=InstanceRef(provider, region_of(zone), zone, i.name),
        phase=PHASES.get(i.status, Phase.PENDING),
        token=labels.get(TAG_TOKEN, ""),
        pool=labels.get(TAG_POOL, ""),
        cell=labels.get(TAG_CELL, ""),
        instance_type=last(i.machine_type),
        market=market.get(
            i.scheduling.provisioning_model, Market.RESERVED if specific else Market.ON_DEMAND
        ),
        image_id=image,
        created_at=moment(i.creation_timestamp),
        message=i.status_message[:MAX_MESSAGE_CHARS],
    )


def moment(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0.0 for none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def ended(provider: str, zone: str, name: str, cell: str, code: str, message: str) -> Instance:
    """An instance of which only the operation that ended it is left."""
    died = DIED.get(code)
    return Instance(
        ref=InstanceRef(provider, region_of(zone), zone, name),
        phase=Phase.TERMINATED,
        token=token_of(name, cell),
        cell=cell,
        market=Market.SPOT if code in PREEMPTED else Market.ON_DEMAND,
        code=code,
        message=message[:MAX_MESSAGE_CHARS],
        preempted=code in PREEMPTED,
        died=died.outcome if died is not None else None,
    )

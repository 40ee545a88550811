"""What operators write: ``Pool``, ``Image`` and ``HealthPolicy``, as strict frozen models.

Invariant: a model that exists is valid by itself (what needs other objects is checked by
``policies.load``); unknown fields, non-finite numbers and unbounded integers do not exist; and
``model_validate(model_dump(mode="json"))`` gives the same model back.
"""

from policies.checks import Level
from policies.schema.base import API_VERSION, Metadata, Strict
from policies.schema.gpus import GPUS, GpuModel
from policies.schema.health import (
    CheckRule,
    Driver,
    Gate,
    HealthPolicy,
    HealthPolicySpec,
    Report,
    Warnings,
)
from policies.schema.image import Artifact, Image, ImageSpec, ImageVersion
from policies.schema.offer import OfferSpec, bare_metal
from policies.schema.pool import (
    Deadlines,
    Disruption,
    Pool,
    PoolSpec,
    Quarantine,
    Repair,
    SparesPromise,
    Webhook,
    Window,
)

Policy = Pool | Image | HealthPolicy

#: Kind → model, in the order in which documentation lists them.
KINDS: dict[str, type[Pool] | type[Image] | type[HealthPolicy]] = {
    "Pool": Pool,
    "Image": Image,
    "HealthPolicy": HealthPolicy,
}

__all__ = [
    "API_VERSION",
    "GPUS",
    "KINDS",
    "Artifact",
    "CheckRule",
    "Deadlines",
    "Disruption",
    "Driver",
    "Gate",
    "GpuModel",
    "HealthPolicy",
    "HealthPolicySpec",
    "Image",
    "ImageSpec",
    "ImageVersion",
    "Level",
    "Metadata",
    "OfferSpec",
    "Policy",
    "Pool",
    "PoolSpec",
    "Quarantine",
    "Repair",
    "Report",
    "SparesPromise",
    "Strict",
    "Warnings",
    "Webhook",
    "Window",
    "bare_metal",
]

"""What a create call asks of a simulated cloud, and what may happen to its answer.

Invariant: two orders with the same ``fingerprint`` are the same request byte for byte, as an
idempotent cloud compares them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.model import Market
from fleet.sim.spec import OfferSpec


@dataclass(frozen=True, slots=True)
class Order:
    """One create call: between ``least`` and ``count`` like instances."""

    region: str
    zone: str
    instance_type: str
    market: Market
    image_id: str
    user_data: str
    tags: Mapping[str, str]
    count: int = 1
    least: int = 1
    key: str = ""


class Fate(StrEnum):
    """What happens to the answer of a create call."""

    HEARD = "heard"
    LOST = "lost"
    UNHEARD = "unheard"
    LATE = "late"


def fingerprint(order: Order) -> str:
    """Everything of an order that a repeat must say again, hashed."""
    body = (
        order.region,
        order.zone,
        order.instance_type,
        str(order.market),
        order.image_id,
        order.user_data,
        sorted(order.tags.items()),
        order.count,
        order.least,
    )
    return hashlib.sha256(repr(body).encode()).hexdigest()


def ident(kind: str, seq: int, salt: float, offer: OfferSpec) -> str:
    """An instance id in the cloud's own form."""
    number = (seq << 40) | int(salt * (1 << 40))
    if kind == "aws":
        return f"i-{number & 0xFFFFFFFFFFFFFFFFF:017x}"
    if kind == "gcp":
        return str(1 << 62 | number)
    if kind == "azure":
        return f"fleetd-{number:016x}"
    return f"ocid1.instance.oc1.{offer.region}.{number:032x}"

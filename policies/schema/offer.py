"""Where a pool may buy: offers in the order of preference.

Invariant: an offer names at most one of ``zone`` and ``zones``; expansion keeps the written order.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fleet.model import Market, Offer
from policies.schema.base import CloudWord, Dollars, Name, Strict, refuse


class OfferSpec(Strict):
    """One thing a cloud sells: where, which instance type, and how it is paid."""

    provider: Name
    """Name of a configured provider account."""
    region: CloudWord
    """Region as the cloud writes it."""
    zone: CloudWord | None = None
    """Zone as the cloud writes it. Without zone and zones the cloud chooses within the region."""
    zones: Annotated[tuple[CloudWord, ...], Field(min_length=1, max_length=16, strict=False)] | (
        None
    ) = None
    """Several zones of the region, best first: short for one offer each."""
    type: CloudWord
    """Instance type."""
    market: Annotated[Market, Field(strict=False)] = Market.ON_DEMAND
    """How capacity is bought."""
    price_usd_hour: Dollars | None = None
    """List price of one instance, over the price table's, for contracts and reservations."""

    @model_validator(mode="after")
    def _one_way_to_say_zone(self) -> OfferSpec:
        if self.zone is not None and self.zones is not None:
            raise refuse("both zone and zones are given", "keep one of them")
        return self

    def zone_list(self) -> tuple[str, ...]:
        """The zones of this offer in order; one empty name where the cloud chooses."""
        if self.zones is not None:
            return self.zones
        return (self.zone or "",)

    def expand(self, gpu: str, gpus: int) -> tuple[Offer, ...]:
        """One ``Offer`` per zone, in order, for nodes of ``gpus`` × ``gpu``."""
        return tuple(
            Offer(
                provider=self.provider,
                region=self.region,
                zone=zone,
                instance_type=self.type,
                market=self.market,
                gpu=gpu,
                gpus=gpus,
                price_usd_hour=self.price_usd_hour,
            )
            for zone in self.zone_list()
        )


def bare_metal(instance_type: str) -> bool:
    """True for types that boot real hardware and take longer: OCI ``BM.``, EC2 and GCE metal."""
    name = instance_type.lower()
    return name.startswith("bm.") or ".metal" in name or name.endswith("-metal")

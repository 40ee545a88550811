"""What a simulated world is made of: frozen descriptions, and one ready-made world.

Invariant: a spec holds no state of a run, so one spec gives any number of equal worlds
(``Walk`` keeps a cache that its seed alone decides).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.model import Market
from fleet.sim.capacity import BucketSpec, Capacity, Lognormal, Steady, Trace, Walk
from fleet.sim.vendor import BUCKETS, CODES


@dataclass(frozen=True, slots=True)
class OfferSpec:
    """One thing a simulated cloud sells. ``family`` is what quota counts (default: the type)."""

    region: str
    zone: str
    instance_type: str
    gpu: str = "H100"
    gpus: int = 8
    price_usd_hour: float = 80.0
    market: Market = Market.ON_DEMAND
    family: str = ""
    capacity: Capacity = field(default_factory=Steady)

    @property
    def key(self) -> tuple[str, str, str, Market]:
        """Where this offer is found within its cloud."""
        return (self.region, self.zone, self.instance_type, self.market)


_PENDING, _BOOT = Lognormal(20.0), Lognormal(120.0)
_TERMINATE, _LATENCY = Lognormal(30.0), Lognormal(0.4, 0.4)


@dataclass(frozen=True, slots=True)
class CloudSpec:
    """One simulated cloud account. Rates ``p_*`` are per instance or per call, 0 to 1.

    ``lag_s`` is the largest delay before a new instance or a new state shows in lists.
    ``linger_s`` is how long an ended instance stays listed, ``linger_dead_s`` the same for
    one that died during launch. ``quota`` counts instances per (region, family). ``images``
    names what exists; None lets any image id exist.
    """

    name: str
    kind: str
    offers: tuple[OfferSpec, ...]
    images: frozenset[str] | None = None
    quota: Mapping[tuple[str, str], int] = field(default_factory=dict)
    buckets: Mapping[str, BucketSpec] = field(default_factory=dict)
    pending_s: Lognormal = _PENDING
    boot_s: Lognormal = _BOOT
    terminate_s: Lognormal = _TERMINATE
    latency_s: Lognormal = _LATENCY
    timeout_s: float = 30.0
    lag_s: float = 5.0
    linger_s: float = 3600.0
    linger_dead_s: float = 3600.0
    notice_s: float = 120.0
    p_refuse: float = 0.0
    p_die: float = 0.0
    p_never_boot: float = 0.0
    p_gate_fail: float = 0.0
    fatal_per_gpu_hour: float = 0.0
    reclaims_per_hour: float = 0.0

    @property
    def regions(self) -> tuple[str, ...]:
        """Every region that sells something, sorted."""
        return tuple(sorted({o.region for o in self.offers}))


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """All clouds of a world."""

    clouds: tuple[CloudSpec, ...]


#: What differs between the clouds by nature. Boot: 2-3 min at the best cloud, under 2 min the
#: fastest, longer on bare metal (gpu-health.md 1.1); notices: clouds.md section 4. A cloud whose
#: ``linger_s`` is 0 drops ended instances from its lists at once, without a last word.
_NATURE: Final[Mapping[str, Mapping[str, Any]]] = {
    "aws": {"pending_s": Lognormal(20.0), "boot_s": Lognormal(130.0), "lag_s": 10.0},
    "gcp": {
        "pending_s": Lognormal(15.0),
        "boot_s": Lognormal(95.0),
        "lag_s": 4.0,
        "linger_s": 0.0,
        "linger_dead_s": 900.0,
        "notice_s": 30.0,
    },
    "azure": {
        "pending_s": Lognormal(45.0, 0.35),
        "boot_s": Lognormal(150.0, 0.35),
        "lag_s": 6.0,
        "linger_s": 0.0,
        "notice_s": 30.0,
    },
    "oci": {
        "pending_s": Lognormal(60.0, 0.3),
        "boot_s": Lognormal(210.0, 0.3),
        "lag_s": 8.0,
        "linger_s": 900.0,
        "linger_dead_s": 900.0,
        "notice_s": 30.0,
    },
}


def cloud_spec(
    kind: str, offers: tuple[OfferSpec, ...], *, name: str = "", **over: Any
) -> CloudSpec:
    """A cloud of a known ``kind`` (aws, gcp, azure, oci) with its usual nature.

    ``over`` replaces any CloudSpec field. Raises KeyError for an unknown kind.
    """
    assert kind in CODES, kind
    settings: dict[str, Any] = {"buckets": BUCKETS[kind], **_NATURE[kind], **over}
    return CloudSpec(name=name or kind, kind=kind, offers=offers, **settings)


#: (kind, region, zones, type, on-demand and spot list price per hour or 0 for none sold).
_H100: Final = (
    ("aws", "us-east-1", ("us-east-1a", "us-east-1b"), "p5.48xlarge", 55.04, 22.4),
    ("aws", "us-west-2", ("us-west-2a", "us-west-2b"), "p5.48xlarge", 55.04, 21.1),
    ("gcp", "us-central1", ("us-central1-a", "us-central1-c"), "a3-highgpu-8g", 88.49, 28.8),
    ("gcp", "europe-west4", ("europe-west4-b",), "a3-highgpu-8g", 97.3, 31.2),
    ("azure", "eastus", ("1", "2"), "Standard_ND96isr_H100_v5", 98.32, 39.3),
    ("azure", "westeurope", ("1",), "Standard_ND96isr_H100_v5", 127.8, 0.0),
    ("oci", "us-chicago-1", ("AD-1", "AD-2"), "BM.GPU.H100.8", 80.0, 0.0),
    ("oci", "us-phoenix-1", ("PHX-AD-1",), "BM.GPU.H100.8", 80.0, 0.0),
)


def four_clouds(
    level: int = 10_000, seed: int | str = 0, *, moving: bool = False, **over: Any
) -> WorldSpec:
    """H100 nodes at four clouds, on-demand and spot.

    ``level`` is how many instances each offer can hold; with ``moving`` it walks around that by
    ±30 %. ``over`` replaces CloudSpec fields in all clouds.
    """
    clouds = []
    for kind in _NATURE:
        offers: list[OfferSpec] = []
        for k, region, zones, type_, price, spot in _H100:
            for zone in zones if k == kind else ():
                for market, usd in ((Market.ON_DEMAND, price), (Market.SPOT, spot)):
                    if usd <= 0:
                        continue
                    capacity: Capacity = Steady(level)
                    if moving:
                        walk_seed = f"{seed}/{region}/{zone}/{market}"
                        spread, stride = max(1, level // 3), max(1, level // 8)
                        capacity = Walk(level, spread, walk_seed, stride=stride)
                    offers.append(
                        OfferSpec(region, zone, type_, "H100", 8, usd, market, "", capacity)
                    )
        clouds.append(cloud_spec(kind, tuple(offers), **over))
    return WorldSpec(tuple(clouds))


__all__ = [
    "BucketSpec",
    "CloudSpec",
    "Lognormal",
    "OfferSpec",
    "Steady",
    "Trace",
    "Walk",
    "WorldSpec",
    "cloud_spec",
    "four_clouds",
]

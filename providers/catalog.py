"""What the clouds sell: GPU instance types, where, and for how much (list price).

Invariant: prices come from ``data/gpu_prices.csv`` alone and are never guessed: what the table
marks as a placeholder or leaves out is ``None``. GPU names are the canonical ones of ``GPUS``
wherever fleetd shows or compares them. Read once, on first use (a few ms), no third-party import.

Traps of the table (its README): a spot price equal to the on-demand price or to a tenth of it is a
placeholder (where the row has no on-demand price: of any price of the region); AWS zones are zone
*ids* (``use1-az4``), which every account maps to names in its own way; a missing on-demand price
means that the type is sold in capacity blocks; GCP's ``n1`` machines appear once per accelerator
that can be attached to them, so they are no GPU type and are left out.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fleet.errors import NotFound
from fleet.model import Market, Need, Offer

#: Canonical GPU names. A100 and V100 carry their memory because both sizes are sold side by side.
GPUS = (
    "GB200", "B300", "B200", "H200", "H100", "A100-80GB", "A100-40GB", "L40S", "L4",
    "A10G", "A10", "V100-32GB", "V100", "T4",
)  # fmt: skip

#: Types without a row in the price table: clouds.md section 6 (size of machine not known here).
_UNPRICED: dict[str, dict[str, tuple[str, int]]] = {
    "aws": {"p6e-gb200.36xlarge": ("GB200", 4), "p6-b300.48xlarge": ("B300", 8)},
    "gcp": {
        "a3-ultragpu-8g": ("H200", 8),
        "a3-edgegpu-8g": ("H100", 8),
        "a4-highgpu-8g": ("B200", 8),
        "a4x-highgpu-4g": ("GB200", 4),
    },
    "azure": {"Standard_ND128isr_NDR_GB200_v6": ("GB200", 4)},
    "oci": {"BM.GPU.GB200.4": ("GB200", 4)},
}

#: Sold as spot or flex-start only (clouds.md 6).
_SPOT_ONLY = frozenset({"a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"})

_GPU_PATTERN = re.compile(r"\b(GB200|B300|B200|H200|H100|A100|L40S|L4|A10G|A10|V100|T4)\b")
_BIG_MEMORY = re.compile(r"(?<!\d)(80|32)\s*GI?B\b")


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A size of machine. ``vcpus`` and ``memory_gib`` are 0 where nobody has told us."""

    provider: str
    name: str
    gpu: str
    gpus: int
    vcpus: int = 0
    memory_gib: float = 0.0


@dataclass(frozen=True, slots=True)
class _Row:
    zone: str
    price_usd_hour: float | None
    spot_usd_hour: float | None


def normalise_gpu(name: str) -> str:
    """The canonical name of a GPU however a cloud, a driver or a person spells it.

    Takes ``h100``, ``NVIDIA H100 80GB HBM3``, ``Tesla T4``, ``A100-SXM4-40GB``. A bare A100 is
    40 GB and a bare V100 16 GB, as in the clouds' own tables; ``H100-MEGA`` is an H100 (only its
    network differs). A name nobody knows comes back stripped and in upper case.
    """
    text = name.strip().upper().replace("_", "-")
    found = _GPU_PATTERN.search(text)
    if not found:
        return text
    gpu = found.group(1)
    big = _BIG_MEMORY.search(text, found.end())
    if gpu == "A100":
        return "A100-80GB" if big and big.group(1) == "80" else "A100-40GB"
    if gpu == "V100":
        return "V100-32GB" if big and big.group(1) == "32" else "V100"
    return gpu


def is_metal(provider: str, instance_type: str) -> bool:
    """True for whole machines without a hypervisor: they boot in tens of minutes, not in two."""
    if provider == "oci":
        return instance_type.startswith("BM.")
    return provider == "aws" and ".metal" in instance_type


def sells_spot(provider: str, instance_type: str) -> bool:
    """False where preemptible capacity does not exist: OCI bare metal (clouds.md 0.7)."""
    return not is_metal(provider, instance_type) or provider != "oci"


class Catalog:
    """Answers from one reading of the price table."""

    def __init__(self, rows: Iterable[Mapping[str, str]]) -> None:
        self._types: dict[str, dict[str, InstanceType]] = {}
        self._rows: dict[tuple[str, str], dict[str, list[_Row]]] = {}
        raw = [r for r in rows if not r["instance_type"].startswith("n1-")]
        dear: dict[tuple[str, str], list[float]] = {}
        for r in raw:
            if (price := _number(r["price_usd_hr"])) is not None:
                dear.setdefault((r["cloud"], r["region"]), []).append(price)
        for r in raw:
            cloud, name = r["cloud"], r["instance_type"]
            self._types.setdefault(cloud, {}).setdefault(name, _type(r))
            price, spot = _number(r["price_usd_hr"]), _number(r["spot_price_usd_hr"])
            near = [price] if price is not None else dear.get((cloud, r["region"]), [])
            if spot is not None and _placeholder(spot, near):
                spot = None
            regions = self._rows.setdefault((cloud, name), {})
            regions.setdefault(r["region"], []).append(_Row(r["zone"], price, spot))
        for cloud, types in _UNPRICED.items():
            for name, (gpu, gpus) in types.items():
                known = self._types.setdefault(cloud, {})
                known.setdefault(name, InstanceType(cloud, name, gpu, gpus))

    def types(self, provider: str) -> Mapping[str, InstanceType]:
        """Every GPU type of a cloud (``aws``, ``gcp``, ``azure``, ``oci``) by name."""
        return self._types.get(provider, {})

    def type(self, provider: str, name: str) -> InstanceType:
        """One type; raises NotFound with the nearest names that exist."""
        try:
            return self.types(provider)[name]
        except KeyError:
            raise NotFound("instance type", name, self.nearest(provider, name)) from None

    def nearest(self, provider: str, name: str, n: int = 3) -> tuple[str, ...]:
        """Up to ``n`` existing type names that look like ``name``, best first."""
        by_lower = {t.lower(): t for t in self.types(provider)}
        close = difflib.get_close_matches(name.lower(), by_lower, n=n, cutoff=0.6)
        return tuple(by_lower[c] for c in close)

    def regions(self, provider: str) -> frozenset[str]:
        """Regions in which the table knows a price of this cloud."""
        return frozenset(r for (p, _), by in self._rows.items() if p == provider for r in by)

    def offers(
        self,
        provider: str,
        need: Need,
        regions: Iterable[str],
        *,
        zones: Mapping[str, Mapping[str, str]] | None = None,
        name: str = "",
    ) -> list[Offer]:
        """What ``provider`` sells for ``need`` in ``regions``, cheapest first, unpriced last.

        ``zones`` maps a region to its zones as this account names them and their ids (``""`` when
        the operator does not know the id: then the region's on-demand price holds and the spot
        price is the region's dearest). A region without an entry is offered by the table's own
        zones. ``name`` is the configured provider's name, ``provider`` by default. A type whose
        price nobody knows is offered in every region asked for, without a price.
        """
        found: list[Offer] = []
        gpu = normalise_gpu(need.gpu) if need.gpu else ""
        wanted = [r for r in dict.fromkeys(regions) if not need.regions or r in need.regions]
        for t in self.types(provider).values():
            if (gpu and t.gpu != gpu) or (need.gpus and t.gpus != need.gpus):
                continue
            for region in wanted:
                for row in self._places(provider, t.name, region, (zones or {}).get(region, {})):
                    for market, price in _markets(t, row):
                        if market in need.markets:
                            key = (name or provider, region, row.zone, t.name)
                            found.append(Offer(*key, market, t.gpu, t.gpus, price))
        unpriced = float("inf")
        return sorted(
            found, key=lambda o: (unpriced if o.price_usd_hour is None else o.price_usd_hour, o.key)
        )

    def _places(
        self, provider: str, type_name: str, region: str, zones: Mapping[str, str]
    ) -> list[_Row]:
        known = self._rows.get((provider, type_name))
        if known is None:
            return [_Row(zone, None, None) for zone in zones or ("",)]
        rows = known.get(region, [])
        if not rows or not zones:
            return rows
        by_id = {row.zone: row for row in rows}
        prices = [r.price_usd_hour for r in rows if r.price_usd_hour is not None]
        spots = [r.spot_usd_hour for r in rows if r.spot_usd_hour is not None]
        anywhere = _Row("", max(prices, default=None), max(spots, default=None))
        zoneless = set(by_id) == {""}
        return [
            _Row(zone, row.price_usd_hour, row.spot_usd_hour)
            for zone, zone_id in zones.items()
            if (row := anywhere if zoneless or not zone_id else by_id.get(zone_id)) is not None
        ]


def _markets(t: InstanceType, row: _Row) -> list[tuple[Market, float | None]]:
    """The markets of a type in a place. Without an on-demand price it is sold in blocks."""
    offers: list[tuple[Market, float | None]] = []
    priced = row.price_usd_hour is not None
    unknown = t.name in _UNPRICED.get(t.provider, {})
    if (priced or unknown) and t.name not in _SPOT_ONLY:
        offers.append((Market.ON_DEMAND, row.price_usd_hour))
    if sells_spot(t.provider, t.name):
        offers.append((Market.SPOT, row.spot_usd_hour))
    if not priced:
        offers.append((Market.RESERVED, None))
    return offers


def _number(text: str) -> float | None:
    return float(text) if text else None


def _type(r: Mapping[str, str]) -> InstanceType:
    return InstanceType(
        r["cloud"],
        r["instance_type"],
        normalise_gpu(r["gpu"]),
        int(r["gpu_count"]),
        int(float(r["vcpus"] or 0)),
        float(r["memory_gib"] or 0),
    )


def _placeholder(spot: float, prices: Iterable[float]) -> bool:
    """True for an on-demand price or its tenth; the table cuts or rounds at the fourth digit."""
    return any(abs(spot - real) < 2e-4 for p in prices for real in (p, p / 10))


@cache
def catalog() -> Catalog:
    """The catalogue of the shipped table."""
    table = files("providers") / "data" / "gpu_prices.csv"
    return Catalog(csv.DictReader(table.read_text("utf-8").splitlines()))

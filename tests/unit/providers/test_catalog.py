"""The price table and its traps."""

from __future__ import annotations

import pytest

from fleet.errors import NotFound
from fleet.model import Market, Need
from providers.catalog import (
    GPUS,
    Catalog,
    catalog,
    is_metal,
    normalise_gpu,
    sells_spot,
)

BOTH = frozenset({Market.ON_DEMAND, Market.SPOT})
HEAD = (
    "cloud,instance_type,gpu,gpu_count,vcpus,memory_gib,region,zone,price_usd_hr,spot_price_usd_hr"
)


def table(*lines: str) -> Catalog:
    """A catalogue of a few rows: type, region, zone, price, spot."""
    rows = []
    for line in lines:
        name, region, zone, price, spot = line.split(",")
        values = ("aws", name, "H100", "8", "192", "2048", region, zone, price, spot)
        rows.append(dict(zip(HEAD.split(","), values, strict=True)))
    return Catalog(rows)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("H100-MEGA", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GB200", "GB200"),
        ("A100", "A100-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("A100-80GB", "A100-80GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("V100-32GB", "V100-32GB"),
        (" rtx 9000 ", "RTX 9000"),
    ],
)
def test_gpu_names(spelled: str, name: str) -> None:
    """One spelling for what clouds, drivers and people write."""
    assert normalise_gpu(spelled) == name
    assert normalise_gpu(name) == name


def test_every_gpu_of_the_table_has_a_canonical_name() -> None:
    """A new row with a new GPU wants a decision."""
    clouds = ("aws", "gcp", "azure", "oci")
    seen = {t.gpu for cloud in clouds for t in catalog().types(cloud).values()}
    assert seen <= set(GPUS)


def test_known_types() -> None:
    """GPU model, count and size; unpriced ones from clouds.md 6 are there too."""
    p5 = catalog().type("aws", "p5.48xlarge")
    assert (p5.gpu, p5.gpus, p5.vcpus, p5.memory_gib) == ("H100", 8, 192, 2048)
    for cloud, name, gpus in [
        ("aws", "p6e-gb200.36xlarge", 4),
        ("gcp", "a4-highgpu-8g", 8),
        ("azure", "Standard_ND128isr_NDR_GB200_v6", 4),
        ("oci", "BM.GPU.GB200.4", 4),
    ]:
        assert catalog().type(cloud, name).gpus == gpus


def test_a_typo_gets_near_names() -> None:
    """The message says what exists."""
    with pytest.raises(NotFound, match=r"did you mean p5\.48xlarge"):
        catalog().type("aws", "p5.48xlrge")
    assert catalog().nearest("azure", "standard_nd96isr_h100v5")[0] == "Standard_ND96isr_H100_v5"
    assert catalog().nearest("aws", "zzz") == ()


def test_metal() -> None:
    """Whole machines boot slowly and, at OCI, are never spot."""
    assert is_metal("oci", "BM.GPU.H100.8")
    assert is_metal("aws", "g4dn.metal")
    assert not is_metal("oci", "VM.GPU3.1")
    assert not is_metal("aws", "p5.48xlarge")
    assert not sells_spot("oci", "BM.GPU.H100.8")
    assert sells_spot("oci", "VM.GPU3.1")
    assert sells_spot("aws", "g4dn.metal")


def test_offers_are_cheapest_first_and_only_what_was_asked() -> None:
    """By GPU, count, market and region; canonical GPU names both ways."""
    offers = catalog().offers("aws", Need("h100", 8, BOTH), ["us-east-1", "us-west-2"])
    prices = [o.price_usd_hour for o in offers if o.price_usd_hour is not None]
    assert prices == sorted(prices)
    assert [o.price_usd_hour is None for o in offers] == sorted(
        o.price_usd_hour is None for o in offers
    )
    assert {(o.gpu, o.gpus, o.instance_type) for o in offers} == {("H100", 8, "p5.48xlarge")}
    assert {o.market for o in offers} == BOTH
    need = Need("H100", 8, regions=frozenset({"us-west-2"}))
    there = catalog().offers("aws", need, ["us-east-1", "us-west-2"], name="aws-prod")
    assert {(o.provider, o.region) for o in there} == {("aws-prod", "us-west-2")}


def test_placeholder_spot_prices_are_no_prices() -> None:
    """Equal to on-demand or a tenth of it, in either way of rounding."""
    c = table(
        "a,r,r-az1,68.8,24.8609",
        "a,r,r-az2,68.8,68.8",
        "a,r,r-az3,68.8,6.88",
        "b,r,r-az1,87.34848,8.7348",
        "b,r,r-az2,87.34848,8.7349",
        "c,r,r-az1,,8.7348",
        "c,r,r-az2,,9.5",
    )
    spot = c.offers("aws", Need("H100", 8, frozenset({Market.SPOT})), ["r"])
    assert {(o.instance_type, o.zone): o.price_usd_hour for o in spot} == {
        ("a", "r-az1"): 24.8609,
        ("a", "r-az2"): None,
        ("a", "r-az3"): None,
        ("b", "r-az1"): None,
        ("b", "r-az2"): None,
        ("c", "r-az1"): None,
        ("c", "r-az2"): 9.5,
    }


def test_no_placeholder_is_left_in_the_shipped_table() -> None:
    """No spot offer costs what on-demand costs; OCI's honest half price stays."""
    c = catalog()
    for cloud in ("aws", "gcp", "azure", "oci"):
        offers = c.offers(cloud, Need("", 0, BOTH), c.regions(cloud))
        dear = {
            (o.region, o.instance_type): o.price_usd_hour
            for o in offers
            if o.market is Market.ON_DEMAND and o.price_usd_hour
        }
        for o in offers:
            full = dear.get((o.region, o.instance_type))
            if o.market is Market.SPOT and o.price_usd_hour and full:
                assert min(abs(o.price_usd_hour - p) for p in (full, full / 10)) > 2e-4, o
    spots = c.offers("oci", Need("V100", 2, frozenset({Market.SPOT})), c.regions("oci"))
    assert {o.price_usd_hour for o in spots} == {2.95}


def test_types_without_an_on_demand_price_are_blocks() -> None:
    """p5e is sold in capacity blocks: no on-demand offer is made up."""
    offers = catalog().offers("aws", Need("H200", 8, frozenset(Market)), ["us-east-2"])
    markets = {o.market for o in offers if o.instance_type == "p5e.48xlarge"}
    assert markets == {Market.RESERVED, Market.SPOT}


def test_zones_are_the_accounts_own_names() -> None:
    """With ids: that zone's price, and no offer where the type is not; without: the region's."""
    c = table("a,r,r-az1,10,3", "a,r,r-az2,10,4", "b,r,,5,")
    zones = {"r": {"ra": "r-az2", "rb": "r-az9", "rc": ""}}
    offers = c.offers("aws", Need("H100", 8, BOTH), ["r"], zones=zones)
    assert {(o.instance_type, o.zone, o.market): o.price_usd_hour for o in offers} == {
        ("a", "ra", Market.ON_DEMAND): 10,
        ("a", "ra", Market.SPOT): 4,
        ("a", "rc", Market.ON_DEMAND): 10,
        ("a", "rc", Market.SPOT): 4,
        **{("b", z, Market.ON_DEMAND): 5 for z in ("ra", "rb", "rc")},
        **{("b", z, Market.SPOT): None for z in ("ra", "rb", "rc")},
    }
    bare = c.offers("aws", Need("H100", 8), ["r"])
    assert {o.zone for o in bare} == {"r-az1", "r-az2", ""}


def test_unpriced_types_are_offered_where_asked_without_a_price() -> None:
    """The operator may have them; nobody guesses what they cost."""
    offers = catalog().offers("gcp", Need("GB200", 4), ["us-central1"])
    assert [(o.instance_type, o.price_usd_hour) for o in offers] == [("a4x-highgpu-4g", None)]


def test_spot_only_types() -> None:
    """a3-highgpu-1g to 4g have no on-demand offer (clouds.md 6)."""
    offers = catalog().offers("gcp", Need("H100", 1, BOTH), catalog().regions("gcp"))
    assert {o.market for o in offers} == {Market.SPOT}

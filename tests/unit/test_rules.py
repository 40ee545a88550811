"""From policies to plain numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.gate import judge
from fleet.guards import budget_limit
from fleet.lifecycle import Rules
from fleet.model import Fault, HealthReport, Severity
from fleet.rules import DEFAULT_HEALTH, PRIOR_FAILURES_PER_NODE_HOUR, image_ids, pool_rules
from policies.schema import HealthPolicy, Image, Pool

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

OFFER = {"provider": "aws", "region": "us-east-1", "zone": "us-east-1a",
         "type": "p5.48xlarge"}  # fmt: skip


def pool(**spec: Any) -> Pool:
    base = {"gpu": "H100", "gpus_per_node": 8, "nodes": 4, "image": "ubuntu@v1", "offers": [OFFER]}
    return Pool.model_validate(
        {"apiVersion": "fleetd/v1", "kind": "Pool", "metadata": {"name": "train"},
         "spec": {**base, **spec}}
    )  # fmt: skip


def health(name: str = "default", **spec: Any) -> HealthPolicy:
    return HealthPolicy.model_validate(
        {"apiVersion": "fleetd/v1", "kind": "HealthPolicy", "metadata": {"name": name},
         "spec": spec}
    )  # fmt: skip


def test_defaults_are_those_of_the_field() -> None:
    """field.md section 2 in policies and in Rules() alike."""
    r = pool_rules(pool(), {}).rules("p5.48xlarge")
    assert r == Rules()
    assert (r.launch_s, r.boot_s, r.silent_s, r.replace_silent_s) == (300, 900, 90, 600)


def test_bare_metal_has_longer_deadlines() -> None:
    """PC-113, PC-149."""
    r = pool_rules(pool(), {}).rules("BM.GPU.H100.8")
    assert (r.launch_s, r.boot_s) == (1200, 2700)


@settings(max_examples=50)
@given(p99=st.none() | st.floats(0, 50_000))
def test_learned_deadlines_are_one_and_a_half_p99_and_never_below_the_floor(
    p99: float | None,
) -> None:
    r = pool_rules(pool(), {}).rules("p5.48xlarge", p99, p99)
    assert r.launch_s == max(300, 1.5 * (p99 or 0))
    assert r.boot_s == max(900, 1.5 * (p99 or 0))
    fixed = pool_rules(pool(deadlines={"boot_s": 77.0}), {}).rules("p5.48xlarge", p99, p99)
    assert fixed.boot_s == 77, "a person's word wins over statistics (PC-084)"


def test_deadlines_of_pool_and_health_policy() -> None:
    rules = {"strict": health("strict", report={"silent_s": 30, "replace_silent_s": 300})}
    r = pool_rules(pool(health="strict"), rules).rules("p5.48xlarge")
    assert (r.silent_s, r.replace_silent_s) == (30, 300)
    own = pool_rules(pool(health="strict", deadlines={"suspect_s": 120, "gate_s": 60}), rules)
    r = own.rules("p5.48xlarge")
    assert (r.replace_silent_s, r.gate_s) == (120, 60)


@pytest.mark.parametrize(("repair", "total", "limit"), [
    ({}, 30, 6), ({}, 3, 1), ({"share": "10%"}, 30, 3), ({"share": 4}, 30, 4), ({"share": 4}, 5, 4),
    ({"share": "50%", "absolute": 3}, 30, 3), ({"floor": 2}, 3, 2),
])  # fmt: skip
def test_the_repair_breaker_takes_shares_and_counts(
    repair: dict[str, Any], total: int, limit: int
) -> None:
    assert budget_limit(total, pool_rules(pool(repair=repair), {}).repair) == limit


def test_mode_none_turns_repair_off() -> None:
    """PC-143."""
    assert not pool_rules(pool(repair={"mode": "none"}), {}).rules("p5.48xlarge").repair


def test_slots_are_numbered_or_named() -> None:
    assert pool_rules(pool(nodes=3), {}).slots == ["train-00", "train-01", "train-02"]
    assert pool_rules(pool(nodes=101), {}).slots[-1] == "train-100"
    assert pool_rules(pool(nodes=0), {}).slots == []
    assert pool_rules(pool(nodes=2, slots=["b", "a"]), {}).slots == ["b", "a"]


@settings(max_examples=50)
@given(n=st.integers(0, 20_000))
def test_slot_names_are_distinct_and_sort_by_number(n: int) -> None:
    slots = pool_rules(pool(nodes=n), {}).slots
    assert len(set(slots)) == n
    assert slots == sorted(slots)


def test_spares_by_count_and_by_promise() -> None:
    assert pool_rules(pool(spares=3), {}).spares(99.0, 99.0) == 3
    promise = {"ready_within_s": 60, "probability": 0.99, "max": 5}
    r = pool_rules(pool(nodes=2000, spares=promise), {})
    assert r.spares(None, None) == r.spares(PRIOR_FAILURES_PER_NODE_HOUR, 900) == 1
    assert r.spares(1.0, 900) == 5
    assert r.spares(0.0, 900) == 1, "a measured rate of zero is a measurement"


def test_severity_follows_the_pools_policy() -> None:
    r = pool_rules(pool(), {})
    assert r.severity(Fault("xid_79")) is Severity.FATAL
    mild = pool_rules(pool(), {"default": health(faults={"xid_79": "warning"})})
    assert mild.severity(Fault("xid_79")) is Severity.WARNING


def test_an_unknown_health_policy_is_the_default() -> None:
    assert pool_rules(pool(health="gone"), {}).health is DEFAULT_HEALTH


def test_the_gate_asks_for_the_pools_gpus() -> None:
    gate = pool_rules(pool(), {}).gate
    wrong = judge(HealthReport("b", 1, "NVIDIA A100-SXM4-80GB", 8, "570.1"), gate)
    assert wrong is not None
    assert not wrong.ok
    short = judge(HealthReport("b", 1, "NVIDIA H100 80GB HBM3", 7, "570.1"), gate)
    assert short is not None
    assert "gpu_count 7 of 8" in short.summary


def test_image_ids() -> None:
    image = Image.model_validate({
        "apiVersion": "fleetd/v1", "kind": "Image", "metadata": {"name": "ubuntu"},
        "spec": {"versions": [{"version": "v1", "artifacts": [
            {"provider": "aws", "region": "us-east-1", "id": "ami-0123456789abcdef0"}]}]},
    })  # fmt: skip
    places = [("aws", "us-east-1"), ("aws", "us-west-2")]
    assert image_ids(image, "v1", places) == {("aws", "us-east-1"): "ami-0123456789abcdef0"}
    assert image_ids(image, "v2", places) == {}
    assert image_ids(None, "v1", places) == {}

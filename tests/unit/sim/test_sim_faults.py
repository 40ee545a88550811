"""Fault plans: data in, data out, the same for the same seed, and an end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet.clock import SeededChance
from fleet.errors import InputError
from fleet.sim.faults import FaultPlan, Injection, Kind
from fleet.sim.spec import four_clouds

SPEC = four_clouds()


def test_a_window_is_open_from_its_start_to_its_end() -> None:
    plan = FaultPlan([Injection(Kind.THROTTLE, 10, 5, provider="aws")])
    open_at = [plan.active(Kind.THROTTLE, t, "aws") is not None for t in (9.9, 10, 14.9, 15)]
    assert open_at == [False, True, True, False]
    assert plan.active(Kind.THROTTLE, 12, "gcp") is None
    assert plan.active(Kind.UNAVAILABLE, 12, "aws") is None


def test_selectors_must_agree() -> None:
    storm = Injection(Kind.CAPACITY_STORM, 0, 9, "aws", "us-east-1", "us-east-1a", market="spot")
    assert storm.matches("aws", "us-east-1", "us-east-1a", "p5", "spot")
    assert not storm.matches("aws", "us-east-1", "us-east-1b", "p5", "spot")
    assert not storm.matches("aws", "us-east-1", "us-east-1a", "p5", "on_demand")
    assert Injection(Kind.THROTTLE, 0, 9, region="us-east-1").matches("aws")


def test_nothing_is_active_once_all_stopped() -> None:
    plan = FaultPlan([Injection(Kind.THROTTLE, 0, 1e9)], until_s=100)
    assert plan.active(Kind.THROTTLE, 99, "aws")
    assert plan.active(Kind.THROTTLE, 100, "aws") is None
    assert plan.closes_s(Injection(Kind.STUCK_PENDING, 50, 500)) == 100


def test_from_seed_is_repeatable_and_ends() -> None:
    def make(seed: int) -> dict[str, Any]:
        return FaultPlan.from_seed(SeededChance(seed), SPEC, 7200.0, images=["ami-1"]).dump()

    assert make(1) == make(1) != make(2)
    plan = FaultPlan.load(make(1))
    assert all(i.at_s <= 7200 for i in plan)
    assert [i.image_id for i in plan if i.kind is Kind.IMAGE_DEFECT] == ["ami-1"]


@pytest.mark.parametrize("seed", range(5))
def test_dump_and_load_agree(seed: int) -> None:
    data = FaultPlan.from_seed(SeededChance(seed), SPEC, 3600.0, per_hour=60).dump()
    assert FaultPlan.load(json.loads(json.dumps(data))).dump() == data


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"faults": {}}, "faults"),
        ({"faults": [3]}, "faults[0]"),
        ({"faults": [{}]}, "faults[0].kind"),
        ({"faults": [{"kind": "meteor"}]}, "faults[0].kind"),
        ({"faults": [{"kind": "throttle", "colour": "red"}]}, "faults[0].colour"),
        ({"faults": [{"kind": "throttle", "rate": "high"}]}, "faults[0].rate"),
        ({"faults": [{"kind": "throttle", "at_s": -1}]}, "faults[0].at_s"),
        ({"faults": [{"kind": "throttle", "at_s": True}]}, "faults[0].at_s"),
        ({"until_s": "noon"}, "until_s"),
        ({"faultz": []}, "faultz"),
    ],
)
def test_bad_plans_are_refused_by_place(data: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        FaultPlan.load(data)
    assert where in [p.where for p in caught.value.problems]


def test_all_bad_places_are_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        FaultPlan.load({"faults": [{"kind": "x"}, {"kind": "throttle", "value": "y"}]})
    assert [p.where for p in caught.value.problems] == ["faults[0].kind", "faults[1].value"]

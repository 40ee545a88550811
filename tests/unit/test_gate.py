"""The gate: pass, fail and unknown are three answers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.gate import Bound, GatePolicy, gpu_matches, judge, unknowns
from fleet.model import CheckResult, CheckStatus, HealthReport

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

C = CheckStatus
POLICY = GatePolicy(
    "H100", 8, frozenset({"ecc", "pcie"}), frozenset({"fan"}),
    {"pcie": Bound(16, None, "lanes"), "temp": Bound(None, 85.0, "C"), "bw": Bound(2000, 3500)},
)  # fmt: skip


def report(*checks: CheckResult, **changes: Any) -> HealthReport:
    base: dict[str, Any] = {"boot_id": "b", "seq": 1, "gpu": "NVIDIA H100 80GB HBM3", "gpus": 8,
                            "driver": "570.86.15", "checks": checks}  # fmt: skip
    return HealthReport(**{**base, **changes})


ECC = CheckResult("ecc", C.PASS)
PCIE = CheckResult("pcie", C.PASS, 16.0, "lanes", gpu=0)


def outcome(r: HealthReport, policy: GatePolicy = POLICY) -> str:
    verdict = judge(r, policy)
    return "unknown" if verdict is None else "pass" if verdict.ok else "fail"


TABLE = [
    ("all good", (ECC, PCIE), "pass"),
    ("nothing reported", (), "unknown"),
    ("one required missing", (ECC,), "unknown"),
    ("required skipped", (ECC, CheckResult("pcie", C.SKIP)), "unknown"),
    ("required in error", (ECC, CheckResult("pcie", C.ERROR, message="probe hung")), "unknown"),
    ("required failed", (CheckResult("ecc", C.FAIL, message="3 uncorrected"), PCIE), "fail"),
    ("failed beats missing", (CheckResult("ecc", C.FAIL),), "fail"),
    ("a warning passes", (CheckResult("ecc", C.WARN), PCIE), "pass"),
    ("ignored failure", (ECC, PCIE, CheckResult("fan", C.FAIL)), "pass"),
    ("ignored error", (ECC, PCIE, CheckResult("fan", C.ERROR)), "pass"),
    ("another check failed", (ECC, PCIE, CheckResult("nvlink", C.FAIL)), "fail"),
    ("another check in error", (ECC, PCIE, CheckResult("nvlink", C.ERROR)), "pass"),
    ("another check skipped", (ECC, PCIE, CheckResult("nvlink", C.SKIP)), "pass"),
    ("below its bound", (ECC, CheckResult("pcie", C.PASS, 8.0)), "fail"),
    ("on its bound", (ECC, PCIE, CheckResult("temp", C.PASS, 85.0)), "pass"),
    ("above its bound", (ECC, PCIE, CheckResult("temp", C.PASS, 85.1)), "fail"),
    ("outside two bounds", (ECC, PCIE, CheckResult("bw", C.PASS, 3501.0)), "fail"),
    ("no value, no opinion", (ECC, PCIE, CheckResult("temp", C.PASS)), "pass"),
    ("NaN is unknown", (ECC, CheckResult("pcie", C.PASS, math.nan)), "unknown"),
    ("infinite is unknown", (ECC, CheckResult("pcie", C.PASS, math.inf)), "unknown"),
    ("one GPU of many failed", (ECC, PCIE, CheckResult("pcie", C.FAIL, 4.0, gpu=5)), "fail"),
    ("one GPU of many unknown", (ECC, PCIE, CheckResult("pcie", C.ERROR, gpu=5)), "unknown"),
]


@pytest.mark.parametrize(("checks", "want"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE])
def test_verdicts(checks: tuple[CheckResult, ...], want: str) -> None:
    """PC-161, PC-162, PC-163: only a measured failure fails; no data is never healthy."""
    assert outcome(report(*checks)) == want


@pytest.mark.parametrize(("change", "want"), [
    ({"gpus": 7}, "fail"), ({"gpus": 9}, "fail"), ({"gpus": 0}, "fail"),
    ({"gpu": "NVIDIA A100-SXM4-80GB"}, "fail"), ({"gpu": ""}, "fail"),
    ({"gpu": "NVIDIA H100 PCIe"}, "pass"),
])  # fmt: skip
def test_inventory(change: dict[str, Any], want: str) -> None:
    """PC-133: the expected GPUs, all of them."""
    assert outcome(report(ECC, PCIE, **change)) == want


@pytest.mark.parametrize(("reported", "wanted", "match"), [
    ("NVIDIA A100-SXM4-80GB", "A100", True), ("NVIDIA A100-SXM4-80GB", "A100-80GB", True),
    ("NVIDIA A100-SXM4-40GB", "A100-80GB", False), ("NVIDIA A10", "A100", False),
    ("NVIDIA A100-PCIE-40GB", "A10", False), ("NVIDIA A10G", "A10", False),
    ("NVIDIA H100 80GB HBM3", "H100", True), ("NVIDIA H1000", "H100", False),
    ("NVIDIA GH200 480GB", "H200", False), ("nvidia h200", "H200", True),
    ("NVIDIA L40S", "L40", False), ("NVIDIA L4", "L40S", False), ("Tesla T4", "T4", True),
    ("", "T4", False), ("NVIDIA B200", "B200", True), ("NVIDIA GB200", "B200", False),
])  # fmt: skip
def test_gpu_models_are_compared_word_by_word(reported: str, wanted: str, match: bool) -> None:
    assert gpu_matches(reported, wanted) == match


@pytest.mark.parametrize(("driver", "least", "exact", "want"), [
    ("570.86.15", "", "", "pass"), ("570.86.15", "570.86.15", "", "pass"),
    ("570.86.15", "570.86.16", "", "fail"), ("570.124.06", "570.86.15", "", "pass"),
    ("580", "570.86.15", "", "pass"), ("570", "570.86.15", "", "fail"),
    ("", "535", "", "fail"), ("garbage", "535", "", "fail"),
    ("570.86.15", "", "570.86.15", "pass"), ("570.86.16", "", "570.86.15", "fail"),
    ("570.²", "570.1", "", "fail"), ("５７０.86.15", "570.86", "", "pass"),
])  # fmt: skip
def test_drivers_are_compared_as_numbers(driver: str, least: str, exact: str, want: str) -> None:
    policy = GatePolicy("H100", 8, driver_min=least, driver_exact=exact)
    assert outcome(report(driver=driver), policy) == want


def test_a_failure_names_check_gpu_value_and_bound() -> None:
    verdict = judge(report(ECC, CheckResult("pcie", C.PASS, 8.0, "lanes", gpu=3)), POLICY)
    assert verdict is not None
    assert verdict.summary == "pcie GPU 3 8 of ≥ 16 lanes"
    assert verdict.evidence == {"failed": ["pcie GPU 3 8 of ≥ 16 lanes"]}
    assert verdict.rule
    assert verdict.source


def test_a_summary_is_short_and_the_evidence_whole() -> None:
    checks = [CheckResult("ecc", C.FAIL, message=f"fault {i}", gpu=i) for i in range(8)]
    verdict = judge(report(*checks, PCIE), POLICY)
    assert verdict is not None
    assert len(verdict.evidence["failed"]) == 8
    assert verdict.summary.count("ecc") == 3


def test_an_ignored_check_is_not_counted_as_passed() -> None:
    verdict = judge(report(ECC, PCIE, CheckResult("fan", C.FAIL)), POLICY)
    assert verdict is not None
    assert verdict.summary == "passed 2/2 checks"


def test_unknowns_names_what_is_waited_for() -> None:
    assert unknowns(report(ECC, CheckResult("pcie", C.ERROR)), POLICY) == ["pcie"]
    assert unknowns(report(ECC, PCIE), POLICY) == []


names_st = st.sampled_from(("ecc", "pcie", "fan", "temp", "bw", "nvlink"))
check_st = st.builds(
    CheckResult, names_st, st.sampled_from(C), st.none() | st.floats(), st.just(""),
    st.text(max_size=5), st.none() | st.integers(0, 7),
)  # fmt: skip


@settings(max_examples=400)
@given(checks=st.lists(check_st, max_size=12), driver=st.text(max_size=12), gpu=st.text(max_size=9))
def test_no_report_makes_the_gate_raise_or_pass_what_was_not_shown(
    checks: list[CheckResult], driver: str, gpu: str
) -> None:
    policy = GatePolicy("H100", 8, POLICY.required, POLICY.ignored, POLICY.bounds, "535.1")
    judge(report(*checks, driver=driver, gpu=gpu), policy)
    verdict = judge(report(*checks), POLICY)
    shown = {c.name for c in checks if c.status in (C.PASS, C.WARN)}
    if verdict is not None and verdict.ok:
        assert shown >= POLICY.required
        assert not [c for c in checks if c.status is C.FAIL and c.name not in POLICY.ignored]


@settings(max_examples=200)
@given(checks=st.lists(check_st, max_size=10), more=check_st)
def test_more_results_never_turn_a_failure_into_a_pass(
    checks: list[CheckResult], more: CheckResult
) -> None:
    before = outcome(report(*checks))
    if before == "fail":
        assert outcome(report(*checks, more)) == "fail"

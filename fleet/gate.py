"""The gate: no node serves before it has proved itself.

Invariant: pure; a check that is missing, skipped or in error is *unknown* and blocks service but
blames nobody; only a measured failure fails the gate. The verdict names its evidence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet.model import CheckResult, CheckStatus, HealthReport, Verdict

SOURCE = "pool health policy"
_DIGITS: Final = re.compile(r"\d{1,9}")


@dataclass(frozen=True, slots=True)
class Bound:
    """What one check must show; None means no bound."""

    least: float | None = None
    most: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What the gate asks for. ``gpu`` and ``gpus`` come from the pool, the rest from its health
    policy. ``driver_min`` compares dotted numbers.
    """

    gpu: str
    gpus: int
    required: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    driver_min: str = ""
    driver_exact: str = ""


def judge(report: HealthReport, policy: GatePolicy) -> Verdict | None:
    """The gate's verdict on a first report, or None while it is unknown.

    Fails on: wrong GPU model or count, wrong driver, a failed check that is not ignored, a value
    outside its bound. Unknown (None) on: a required check absent, skipped or in error, or a
    value that is not finite.
    """
    bad = _inventory(report, policy)
    unknown: list[str] = []
    passed = 0
    by_name: dict[str, list[CheckResult]] = {}
    for result in report.checks:
        by_name.setdefault(result.name, []).append(result)
    for name, results in by_name.items():
        if name in policy.ignored:
            continue
        for result in results:
            fault, doubt = _one(result, policy.bounds.get(name), name in policy.required)
            if fault:
                bad.append(fault)
            elif doubt:
                unknown.append(doubt)
            else:
                passed += 1
    unknown += [f"{name} not reported" for name in sorted(policy.required - by_name.keys())]
    if bad:
        return Verdict(False, "; ".join(bad[:3]), "gate", SOURCE, {"failed": bad})
    if unknown:
        return None
    total = len(by_name.keys() - policy.ignored)
    summary = f"passed {total}/{total} checks"
    return Verdict(True, summary, "gate", SOURCE, {"results": passed})


def unknowns(report: HealthReport, policy: GatePolicy) -> list[str]:
    """What keeps the gate from a verdict, for people."""
    names = {r.name for r in report.checks if r.status not in (CheckStatus.SKIP, CheckStatus.ERROR)}
    return sorted(policy.required - names)


def _inventory(report: HealthReport, policy: GatePolicy) -> list[str]:
    bad: list[str] = []
    if report.gpus != policy.gpus:
        bad.append(f"gpu_count {report.gpus} of {policy.gpus}")
    if policy.gpu and not gpu_matches(report.gpu, policy.gpu):
        bad.append(f"gpu_model {report.gpu or 'none'}, {policy.gpu} wanted")
    if policy.driver_exact and report.driver != policy.driver_exact:
        bad.append(f"driver {report.driver or 'unknown'}, {policy.driver_exact} wanted")
    if policy.driver_min and not _at_least(report.driver, policy.driver_min):
        bad.append(f"driver {report.driver or 'unknown'}, at least {policy.driver_min} wanted")
    return bad


def _one(result: CheckResult, bound: Bound | None, required: bool) -> tuple[str, str]:
    """(failure, doubt) of one result; both empty when it passed."""
    where = f" GPU {result.gpu}" if result.gpu is not None else ""
    if result.status in (CheckStatus.SKIP, CheckStatus.ERROR):
        doubt = f"{result.name}{where} {result.status}: {result.message}"
        return "", doubt if required else ""
    if result.value is not None and not math.isfinite(result.value):
        return "", f"{result.name}{where} is not a finite number" if required else ""
    if result.status is CheckStatus.FAIL:
        shown = result.message or _shown(result)
        return f"{result.name}{where} {shown}".rstrip(), ""
    if bound is not None and result.value is None and required:
        # A pass without the measured value cannot be held against the bound (PC-161).
        return "", f"{result.name}{where} passed without a value"
    if bound is not None and result.value is not None:
        if bound.least is not None and result.value < bound.least:
            return f"{result.name}{where} {result.value:g} of ≥ {bound.least:g} {bound.unit}", ""
        if bound.most is not None and result.value > bound.most:
            return f"{result.name}{where} {result.value:g} of ≤ {bound.most:g} {bound.unit}", ""
    return "", ""


def _shown(result: CheckResult) -> str:
    return "failed" if result.value is None else f"{result.value:g} {result.unit}"


def gpu_matches(reported: str, wanted: str) -> bool:
    """True when NVML's product name is the wanted model: ``NVIDIA H100 80GB HBM3`` is ``H100``.

    Compared word by word, so that ``H100`` does not match ``H1000`` nor ``A10`` match ``A100``;
    a size suffix (``A100-80GB``) must be found as well.
    """
    words = set(reported.replace("-", " ").upper().split())
    return all(part in words for part in wanted.replace("-", " ").upper().split())


def _at_least(version: str, least: str) -> bool:
    def parts(text: str) -> tuple[int, ...]:
        # ``570.86.10-grid`` is 570.86.10: a suffix says who built it, not how old it is.
        return tuple(int(m.group()) for p in text.split(".") if (m := _DIGITS.match(p)))

    return bool(version) and parts(version) >= parts(least)

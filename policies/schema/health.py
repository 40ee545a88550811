"""``HealthPolicy``: what a node must show at the gate and for life.

Invariant: check names and units are those of ``policies.checks``; a policy without any field is
the shipped default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from fleet.model import Severity
from policies import faults
from policies.checks import CHECKS, GATE_REQUIRED, Level
from policies.schema.base import Document, Dotted, Seconds, Shape, Strict, refuse
from policies.text import did_you_mean, quoted

_NUMBERED: Final = re.compile(r"s?xid_[1-9][0-9]{0,5}")


def check_name(value: str) -> str:
    """``value`` if it is a known check."""
    if value not in CHECKS:
        raise refuse(f"unknown check {quoted(value)}", did_you_mean(value, CHECKS))
    return value


def check_fault(value: str) -> str:
    """``value`` if it is a known fault class or any XID or SXID number."""
    if value in faults.catalog() or _NUMBERED.fullmatch(value):
        return value
    fix = did_you_mean(value, faults.catalog())
    if fix.startswith("one of"):
        fix = "write xid_79, sxid_20034 or a named fault class"
    raise refuse(f"unknown fault class {quoted(value)}", fix)


CheckName = Annotated[str, AfterValidator(check_name)]
FaultCode = Annotated[str, AfterValidator(check_fault)]
Bound = Annotated[float, Field(ge=-1e12, le=1e12)]
_Severity = Annotated[Severity, Field(strict=False)]
_Path = Annotated[
    str, Shape(r"/[^\0\n]*", "an absolute path", "write a path that starts with /", 255)
]


class Report(Strict):
    """The heartbeat and what silence means (field.md section 2)."""

    interval_s: Annotated[float, Field(ge=1, le=3600)] = 15.0
    """How often the agent reports."""
    silent_s: Seconds = 90.0
    """Without a report for this long a node is SUSPECT."""
    replace_silent_s: Seconds = 600.0
    """Without a report for this long a node is replaced."""

    @model_validator(mode="after")
    def _in_order(self) -> Report:
        if self.silent_s < 2 * self.interval_s:
            raise refuse(
                f"silent_s {self.silent_s:g} is less than two report intervals "
                f"({2 * self.interval_s:g} s)",
                "raise silent_s or lower interval_s",
            )
        if self.replace_silent_s < self.silent_s:
            raise refuse(
                f"replace_silent_s {self.replace_silent_s:g} is less than "
                f"silent_s {self.silent_s:g}",
                "raise replace_silent_s",
            )
        return self


class Gate(Strict):
    """What must be known before a node serves."""

    required: Annotated[tuple[CheckName, ...], Field(max_length=200, strict=False)] = GATE_REQUIRED
    """Checks that must be reported and may neither be skipped nor end in error."""
    deadline_s: Seconds = 300.0
    """First report to verdict."""
    cuda_init_tries: Annotated[int, Field(ge=1, le=20)] = 3
    """Tries of CUDA initialisation; one cloud's L4s fail it once in a thousand."""

    @model_validator(mode="after")
    def _each_once(self) -> Gate:
        for name in self.required:
            if self.required.count(name) > 1:
                raise refuse(f"check {quoted(name)} is named twice", "name each check once")
        return self


class Driver(Strict):
    """Which driver a node must run."""

    min: Dotted | None = None
    """At least this version."""
    exact: Dotted | None = None
    """Exactly this version."""

    @model_validator(mode="after")
    def _one(self) -> Driver:
        if self.min is not None and self.exact is not None:
            raise refuse("both min and exact are given", "keep one of them")
        return self


class CheckRule(Strict):
    """Level and bounds of one check; what is left out comes from the check's own default."""

    level: Annotated[Level, Field(strict=False)] | None = None
    """What a failure does: required, warn or ignore."""
    min: Bound | None = None
    """Least good value."""
    max: Bound | None = None
    """Greatest good value."""
    unit: Annotated[str, Field(max_length=16)] | None = None
    """Unit of the bounds, for readers; must be the check's own."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> CheckRule:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise refuse(f"min {self.min:g} is above max {self.max:g}", "swap them")
        return self


class Warnings(Strict):
    """When a warning matters."""

    persist_s: Seconds = 600.0
    """A warning younger than this changes nothing."""


class HealthPolicySpec(Strict):
    """How health is judged."""

    report: Report = Report()
    """Heartbeat."""
    gate: Gate = Gate()
    """Before service."""
    driver: Driver = Driver()
    """Driver version."""
    checks: Annotated[dict[CheckName, CheckRule], Field(max_length=200)] = {}  # noqa: RUF012 - pydantic copies it
    """Changes to checks, by name."""
    faults: Annotated[dict[FaultCode, _Severity], Field(max_length=1000)] = {}  # noqa: RUF012 - pydantic copies it
    """Severities that differ from the catalogue, by fault class (xid_79, ecc_uncorrectable, …)."""
    warnings: Warnings = Warnings()
    """Persistence of warnings."""
    mounts: Annotated[tuple[_Path, ...], Field(max_length=32, strict=False)] = ()
    """File systems that must be mounted (check mounts)."""

    @model_validator(mode="after")
    def _consistent(self) -> HealthPolicySpec:
        for name, rule in self.checks.items():
            unit = CHECKS[name].unit
            if rule.unit is not None and rule.unit != unit:
                said = f"check {name} is measured in {unit or 'no unit'}, not {quoted(rule.unit)}"
                fix = f"write unit: {unit}" if unit else "leave unit out"
                raise refuse(said, fix, ("checks", name, "unit"))
            if not unit and (rule.min is not None or rule.max is not None):
                what = f"check {name} has no value to bound"
                raise refuse(what, "leave min and max out", ("checks", name))
            if rule.level is Level.IGNORE and name in self.gate.required:
                raise refuse(
                    f"check {name} is required by the gate and ignored",
                    "take it out of gate.required or change its level",
                    ("checks", name, "level"),
                )
        return self

    def level(self, name: str) -> Level:
        """The level of check ``name`` under this policy; unknown names are ignored."""
        rule = self.checks.get(name)
        if rule is not None and rule.level is not None:
            return rule.level
        known = CHECKS.get(name)
        return known.level if known else Level.IGNORE

    def gate_required(self) -> frozenset[str]:
        """Checks without which the gate comes to no verdict."""
        return frozenset(self.gate.required)

    def gate_ignored(self) -> frozenset[str]:
        """Checks whose failure does not fail the gate: levels warn and ignore."""
        return frozenset(name for name in CHECKS if self.level(name) is not Level.REQUIRED)

    def bounds(self) -> Mapping[str, tuple[float | None, float | None, str]]:
        """(least, most, unit) of every check that has a bound, the policy's before the default."""
        found: dict[str, tuple[float | None, float | None, str]] = {}
        for name, check in CHECKS.items():
            rule = self.checks.get(name) or CheckRule()
            least = check.least if rule.min is None else rule.min
            most = check.most if rule.max is None else rule.max
            if least is not None or most is not None:
                found[name] = (least, most, check.unit)
        return found

    def severity(self, code: str) -> Severity:
        """How bad fault ``code`` is under this policy."""
        return faults.severity(code, self.faults)


class HealthPolicy(Document):
    """Rules by which nodes are judged; pools name one."""

    kind: Literal["HealthPolicy"]
    """Kind of object."""
    spec: HealthPolicySpec = HealthPolicySpec()
    """The rules."""

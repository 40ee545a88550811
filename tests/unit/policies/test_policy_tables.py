"""Checks, faults and GPU models as tables; schema, page and examples current."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InputError
from fleet.model import Severity
from policies import jsonschema, reference
from policies.checks import CHECKS, GATE_REQUIRED, Level
from policies.faults import catalog, describe, severity
from policies.load import load_files
from policies.policyset import DEFAULT_HEALTH
from policies.schema import GPUS, HealthPolicy
from policies.text import did_you_mean, nearest, text_in

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "policies" / "examples"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("xid_79", Severity.FATAL), ("xid_48", Severity.FATAL), ("xid_74", Severity.FATAL),
        ("xid_13", Severity.APPLICATION), ("xid_31", Severity.APPLICATION),
        ("xid_43", Severity.APPLICATION), ("xid_45", Severity.APPLICATION),
        ("xid_94", Severity.WARNING), ("xid_63", Severity.INFO), ("xid_154", Severity.WARNING),
        ("sxid_20034", Severity.FATAL), ("sxid_11021", Severity.INFO),
        ("gpu_count_short", Severity.FATAL), ("ecc_uncorrectable", Severity.FATAL),
        ("thermal_hw_slowdown", Severity.WARNING),
        ("xid_9999", Severity.WARNING), ("sxid_1", Severity.WARNING), ("", Severity.WARNING),
        ("\x00" * 9, Severity.WARNING),
    ],
)  # fmt: skip
def test_severity(code: str, expected: Severity) -> None:
    """The catalogue's word; unknown is a warning."""
    assert severity(code, {}) is expected
    assert severity(code, {code: Severity.INFO}) is Severity.INFO


def test_node_fatal_everywhere() -> None:
    """The twelve codes that all published lists agree on (gpu-health.md 0.4)."""
    for number in (46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143):
        assert severity(f"xid_{number}") is Severity.FATAL


def test_app_storms_never_condemn() -> None:
    """Goal G8: no fatal verdict from 13, 31, 43, 45 under the shipped policy."""
    for number in (13, 31, 43, 45):
        assert DEFAULT_HEALTH.spec.severity(f"xid_{number}") is Severity.APPLICATION


def test_catalogue_holds_every_row() -> None:
    """173 XIDs, 95 SXIDs, and each named class with a source."""
    with (ROOT / "policies" / "data" / "xid_catalog.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    xids = [c for c in catalog() if c.startswith("xid_")]
    sxids = [c for c in catalog() if c.startswith("sxid_")]
    assert (len(xids), len(sxids), len(rows)) == (173, 95, 268)
    assert all(f.source and f.description and f.action for f in catalog().values())
    assert describe("xid_79")
    assert describe("nobody_knows") == ""


def test_checks_table() -> None:
    """Names are identifiers, bounds have a unit, the gate asks only for required checks."""
    assert len(CHECKS) > 70
    for name, check in CHECKS.items():
        assert name.replace("_", "").isalnum()
        assert name.islower()
        assert check.name == name
        assert check.description
        assert check.source
        assert check.unit or (check.least is None and check.most is None)
    assert all(CHECKS[name].level is Level.REQUIRED for name in GATE_REQUIRED)
    assert {"gpu_count", "gpu_model"} <= set(GATE_REQUIRED)


def test_health_policy_over_the_table() -> None:
    """Levels and bounds come from the policy, else from the table."""
    policy = HealthPolicy.model_validate(
        {
            "apiVersion": "fleetd/v1", "kind": "HealthPolicy", "metadata": {"name": "h"},
            "spec": {
                "checks": {
                    "temperature_gpu": {"level": "required", "max": 85},
                    "copy_host_to_device": {"min": 48},
                    "ecc_uncorrectable": {"level": "warn"},
                },
                "faults": {"xid_63": "fatal"},
            },
        }
    ).spec  # fmt: skip
    assert policy.level("temperature_gpu") is Level.REQUIRED
    assert policy.level("no_such_check") is Level.IGNORE
    assert policy.bounds()["temperature_gpu"] == (None, 85, "C")
    assert policy.bounds()["copy_host_to_device"] == (48, None, "GB/s")
    assert policy.bounds()["disk_full"] == (None, 95, "percent")
    assert "ecc_uncorrectable" in policy.gate_ignored()
    assert "temperature_gpu" not in policy.gate_ignored()
    assert policy.severity("xid_63") is Severity.FATAL
    assert policy.gate_required() == set(GATE_REQUIRED)


def test_gpu_names_are_unique_without_case() -> None:
    """``h100`` can only mean one model."""
    assert len({name.casefold() for name in GPUS}) == len(GPUS) == 19


def test_text_in() -> None:
    """Unchanged or refused with a reason."""
    assert text_in("näme\n\t☃", 10) == "näme\n\t☃"
    for bad, said in [
        ("a\0", "NUL"), ("\x1b", "U\\+001B"), ("\x7f", "U\\+007F"), ("\x85", "U\\+0085"),
        ("\ud800", "lone surrogate"), ("\u202e", "bidirectional"), ("x" * 11, "11 characters"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=said):
            text_in(bad, 10, where="name")


@given(st.text(max_size=30))
def test_text_in_lets_nothing_bad_through(value: str) -> None:
    """What passes can be encoded, stored and shown."""
    try:
        passed = text_in(value, 30)
    except InputError:
        return
    assert passed.encode().decode() == passed
    assert all(c in "\t\n" or ord(c) >= 32 for c in passed)


def test_nearest() -> None:
    """Case first, then beginnings, then likeness; nothing for nonsense."""
    assert nearest("h100", GPUS) == ("H100",)
    assert nearest("A100-40GB", GPUS) == ("A100",)
    assert nearest("zzzzzz", GPUS) == ()
    assert did_you_mean("x", []) == ""
    assert did_you_mean("x" * 10_000, GPUS).startswith("one of: A10, ")


def test_schema_file_is_current() -> None:
    """Run ``python -m policies.jsonschema`` after a change of the models."""
    assert (ROOT / "docs" / "policy.schema.json").read_text(encoding="utf-8") == jsonschema.text()


def test_page_is_current() -> None:
    """Run ``python -m policies.jsonschema`` after a change of models, checks or faults."""
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    _, mark, generated = page.partition(reference.BEGIN)
    assert mark
    assert generated.strip() == reference.text(jsonschema.schema()).strip()


def test_every_field_says_what_it_means() -> None:
    """No row of the page without words."""
    for line in reference.text(jsonschema.schema()).splitlines():
        if line.startswith("| `spec"):
            assert not line.endswith("|  |"), line


def test_examples_load() -> None:
    """All together, and the first pool and the image by themselves."""
    assert len(load_files([EXAMPLES])) == 5
    assert len(load_files([EXAMPLES / "first-pool.yaml"])) == 2
    four = load_files([EXAMPLES / "image.yaml", EXAMPLES / "four-clouds.yaml"])
    assert four.pools["train"].spec.nodes == 32
    assert {o.provider for o in four.pools["train"].spec.offer_list()} == {
        "aws", "gcp", "azure", "oci",
    }  # fmt: skip
    shipped = load_files([EXAMPLES / "health-default.yaml"]).health["default"]
    assert shipped.spec.bounds() == DEFAULT_HEALTH.spec.bounds()
    assert shipped.spec.gate_required() == DEFAULT_HEALTH.spec.gate_required()


def test_examples_match_the_schema() -> None:
    """An editor with the schema accepts what fleetd accepts, and refuses a typing error."""
    library = pytest.importorskip("jsonschema")
    check: Any = library.Draft202012Validator(jsonschema.schema())
    for policy in load_files([EXAMPLES]):
        value = json.loads(policy.model_dump_json(exclude_none=True))
        assert list(check.iter_errors(value)) == []
        assert list(check.iter_errors(value | {"spec": {"x": 1}})) != []

"""What people read when a policy is wrong: one sentence per kind of error, word for word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from fleet.errors import InputError
from policies.document import Doc
from policies.load import load_text
from policies.problems import fields_at, problems_of
from policies.schema import HealthPolicy, Image, Pool

Said = Callable[..., list[str]]

HEAD = "apiVersion: fleetd/v1\nkind: Pool\nmetadata: {name: train}\nspec:\n"
GOOD = {
    "gpu": "H100",
    "gpus_per_node": "8",
    "nodes": "4",
    "image": "base@v1",
    "offers": "[{provider: aws, region: r, type: t}]",
}


def pool(**fields: str) -> str:
    """A pool's text with each field on a line of its own, from line 5; "-" leaves one out."""
    lines = {**GOOD, **fields}
    return HEAD + "".join(f"  {k}: {v}\n" for k, v in lines.items() if v != "-")


#: (changed fields, the one problem that is said besides the image that is not there)
POOL_CASES: list[tuple[dict[str, str], str]] = [
    ({"gpu": "H100-80"}, 'f.yaml:5: unknown GPU "H100-80" at /spec/gpu (did you mean "H100"?)'),
    ({"gpu": "h200"}, 'f.yaml:5: unknown GPU "h200" at /spec/gpu (did you mean "H200"?)'),
    ({"gpu": "100"}, "f.yaml:5: 100 is not text at /spec/gpu (put it in double quotes)"),
    ({"gpu": ""}, "f.yaml:5: an empty value is not text at /spec/gpu (put it in double quotes)"),
    ({"gpu": "-"}, "f.yaml:4: field gpu is missing at /spec (add gpu: …)"),
    ({"gpus_per_node": '"8"'},
     ('f.yaml:6: "8" is text, not a whole number at /spec/gpus_per_node '
     "(write it in decimals without quotes)")),
    ({"gpus_per_node": "08"},
     ('f.yaml:6: "08" is text, not a whole number at /spec/gpus_per_node '
     "(write it in decimals without quotes)")),
    ({"gpus_per_node": "17"},
     "f.yaml:6: 17 is out of range at /spec/gpus_per_node (write at most 16)"),
    ({"nodes": "-3"}, "f.yaml:7: -3 is out of range at /spec/nodes (write at least 0)"),
    ({"nodes": "20001"}, "f.yaml:7: 20001 is out of range at /spec/nodes (write at most 20000)"),
    ({"nodes": "1.5"}, "f.yaml:7: 1.5 is not a whole number at /spec/nodes (write a whole number)"),
    ({"nodes": "4.0"}, "f.yaml:7: 4 is not a whole number at /spec/nodes (write a whole number)"),
    ({"nodes": "true"},
     "f.yaml:7: true is not a whole number at /spec/nodes (write a whole number)"),
    ({"nodes": "four"},
     'f.yaml:7: "four" is not a whole number at /spec/nodes (write a whole number)'),
    ({"nodes": "[4]"},
     "f.yaml:7: a list is not a whole number at /spec/nodes (write a whole number)"),
    ({"image": "base"},
     ('f.yaml:8: "base" is not a fixed image at /spec/image '
     "(write family@version, for example base@v42)")),
    ({"image": "base@latest"},
     ('f.yaml:8: "base@latest" is not a fixed image at /spec/image '
     "(write family@version, for example base@v42)")),
    ({"offers": "[]"}, "f.yaml:9: 0 entries at /spec/offers (write at least 1)"),
    ({"offers": "aws"}, ('f.yaml:9: "aws" is not a list at /spec/offers '
     "(begin each entry with a dash)")),
    ({"offers": "[aws]"}, ('f.yaml:9: "aws" is not a mapping at /spec/offers/0 '
     "(write its fields indented below it)")),
    ({"offers": "[{provider: aws, region: r, type: t, market: spott}]"},
     'f.yaml:9: "spott" is not allowed here at /spec/offers/0/market (did you mean "spot"?)'),
    ({"offers": "[{provider: aws, region: r, type: t, zone: a, zones: [b]}]"},
     "f.yaml:9: both zone and zones are given at /spec/offers/0 (keep one of them)"),
    ({"offers": "[{provider: aws, region: r, type: t, zones: []}]"},
     "f.yaml:9: 0 entries at /spec/offers/0/zones (write at least 1)"),
    ({"offers": "[{provider: aws, region: r, type: t, price_usd_hour: $30}]"},
     ('f.yaml:9: "$30" is not a number at /spec/offers/0/price_usd_hour '
     "(write a number without quotes)")),
    ({"offers": "[{provider: AWS, region: r, type: t}]"},
     ('f.yaml:9: "AWS" is not a name at /spec/offers/0/provider '
     "(use 1 to 40 lower-case letters, digits and dashes)")),
    ({"offers": "[{provider: aws, region: a b, type: t}]"},
     ('f.yaml:9: "a b" is not a name as clouds use it at /spec/offers/0/region '
     "(use letters, digits, and . _ : -)")),
    ({"spar": "1"}, 'f.yaml:10: unknown field "spar" at /spec/spar (did you mean "spares"?)'),
    ({"xyzzy": "1"},
     ('f.yaml:10: unknown field "xyzzy" at /spec/xyzzy (one of: deadlines, disruption, gpu, '
     "gpus_per_node, health, image, nodes, offers, quarantine, repair, slots, spares, surge, "
     "webhooks)")),
    ({"spares": "-1"}, "f.yaml:10: -1 is out of range at /spec/spares (write at least 0)"),
    ({"spares": "two"},
     'f.yaml:10: "two" is not a whole number at /spec/spares (write a whole number)'),
    ({"spares": "{ready_within_s: 90s, probability: 0.9, max: 1}"},
     ('f.yaml:10: "90s" is not a number at /spec/spares/ready_within_s '
     "(leave the unit out; the field's name has it)")),
    ({"spares": "{ready_within_s: 90, probability: 1, max: 1}"},
     "f.yaml:10: 1 is out of range at /spec/spares/probability (write at most 0.999999)"),
    ({"spares": "{ready_within_s: 0, probability: 0.9, max: 1}"},
     "f.yaml:10: 0 is out of range at /spec/spares/ready_within_s (write more than 0)"),
    ({"spares": "{ready_within_s: 90, probability: 0.9}"},
     "f.yaml:10: field max is missing at /spec/spares (add max: …)"),
    ({"surge": "1.5"},
     'f.yaml:10: "1.5" is neither a count nor a share at /spec/surge (write 3 or "10%")'),
    ({"surge": "120%"},
     'f.yaml:10: "120%" is more than everything at /spec/surge (write at most 100%)'),
    ({"surge": "-1"},
     'f.yaml:10: "-1" is out of range at /spec/surge (write a count from 0 to 100000)'),
    ({"health": "[x]"}, "f.yaml:10: a list is not text at /spec/health (put it in double quotes)"),
    ({"repair": "{mode: off}"},
     'f.yaml:10: "off" is not allowed here at /spec/repair/mode (one of: none, replace)'),
    ({"repair": "{floor: 5, absolute: 2}"},
     "f.yaml:10: floor 5 is above absolute 2 at /spec/repair (lower floor)"),
    ({"slots": "[a, b]"},
     "f.yaml:10: 2 slots for 4 nodes at /spec/slots (name as many slots as nodes, or none)"),
    ({"slots": "[a, b, a, c]"},
     'f.yaml:10: slot "a" is named twice at /spec/slots (give each slot its own name)'),
    ({"disruption": "{windows: [{days: [monday], start: 22:00, end: 06:00, tz: UTC}]}"},
     ('f.yaml:10: "monday" is not allowed here at /spec/disruption/windows/0/days/0 '
     '(did you mean "mon"?)')),
    ({"disruption": "{windows: [{days: [mon], start: 6:00, end: 07:00, tz: UTC}]}"},
     ('f.yaml:10: "6:00" is not a time of day at /spec/disruption/windows/0/start '
     "(write HH:MM, for example 06:00)")),
    ({"disruption": "{windows: [{days: [mon], start: 06:00, end: 07:00, tz: Europe/Berlim}]}"},
     ('f.yaml:10: unknown time zone "Europe/Berlim" at /spec/disruption/windows/0/tz '
     '(did you mean "Europe/Berlin"?)')),
    ({"disruption": "{windows: [{days: [mon], start: 06:00, end: 07:00, tz: ../../etc/passwd}]}"},
     ('f.yaml:10: unknown time zone "../../etc/passwd" at /spec/disruption/windows/0/tz '
     "(write a name such as Europe/Berlin or UTC)")),
    ({"disruption": "{windows: [{days: [mon, mon], start: 06:00, end: 07:00, tz: UTC}]}"},
     "f.yaml:10: a day is written twice at /spec/disruption/windows/0 (write each day once)"),
    ({"disruption": '{windows: [{days: [mon], start: "24:00", end: 07:00, tz: UTC}]}'},
     ("f.yaml:10: a window cannot start at 24:00 at /spec/disruption/windows/0 "
     '(write "00:00" on the next day)')),
    ({"deadlines": "{boot_s: 900000}"},
     "f.yaml:10: 900000 is out of range at /spec/deadlines/boot_s (write at most 86400)"),
    ({"deadlines": "{bare_metal: {gate_s: 1}}"},
     ('f.yaml:10: unknown field "gate_s" at /spec/deadlines/bare_metal/gate_s '
     "(one of: boot_floor_s, boot_s, launch_floor_s, launch_s)")),
    ({"webhooks": "[{url: http://example.com/x, secret_env: X}]"},
     ('f.yaml:10: "http://example.com/x" is not https at /spec/webhooks/0/url '
     "(use https (http only for localhost))")),
    ({"webhooks": "[{url: https://u:p@example.com/x, secret_env: X}]"},
     ("f.yaml:10: a webhook URL may carry neither user, password nor fragment at "
     "/spec/webhooks/0/url (use secret_file or secret_env)")),
    ({"webhooks": '[{url: "https://[::1/x", secret_env: X}]'},
     'f.yaml:10: "https://[::1/x" is not a URL at /spec/webhooks/0/url (write https://host/path)'),
    ({"webhooks": "[{url: https://example.com/x}]"},
     ("f.yaml:10: a webhook needs exactly one of secret_file and secret_env at /spec/webhooks/0 "
     "(keep one of them)")),
    ({"webhooks": "[{url: https://example.com/x, secret_file: s}]"},
     ('f.yaml:10: "s" is not an absolute path at /spec/webhooks/0/secret_file '
     "(write a path that starts with /)")),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), POOL_CASES, ids=lambda v: str(v)[:50])
def test_pool_errors(fields: dict[str, str], words: str, said: Said) -> None:
    """One fault, one problem, at its line, with a fix."""
    found = said(pool(**fields))
    assert [p for p in found if "unknown image family" not in p] == [words]


def health(spec: str) -> str:
    """A health policy with ``spec`` on line 5."""
    head = "apiVersion: fleetd/v1\nkind: HealthPolicy\nmetadata: {name: h}\nspec:\n"
    return f"{head}  {spec}\n"


HEALTH_CASES = [
    ("checks: {gpu_cuont: {level: warn}}",
     'f.yaml:5: unknown check "gpu_cuont" at /spec/checks/gpu_cuont (did you mean "gpu_count"?)'),
    ("checks: {burn: {levl: warn}}",
     'f.yaml:5: unknown field "levl" at /spec/checks/burn/levl (did you mean "level"?)'),
    ("checks: {burn: {level: warning}}",
     'f.yaml:5: "warning" is not allowed here at /spec/checks/burn/level (did you mean "warn"?)'),
    ("checks: {nic_flaps: {min: 5, max: 3}}",
     "f.yaml:5: min 5 is above max 3 at /spec/checks/nic_flaps (swap them)"),
    ("checks: {temperature_gpu: {max: 190, unit: F}}",
     ('f.yaml:5: check temperature_gpu is measured in C, not "F" at '
     "/spec/checks/temperature_gpu/unit (write unit: C)")),
    ("checks: {gpu_lost: {max: 1}}",
     ("f.yaml:5: check gpu_lost has no value to bound at /spec/checks/gpu_lost "
     "(leave min and max out)")),
    ("checks: {gpu_count: {level: ignore}}",
     ("f.yaml:5: check gpu_count is required by the gate and ignored at "
     "/spec/checks/gpu_count/level "
     "(take it out of gate.required or change its level)")),
    ("gate: {required: [gpu_count, gpu_count]}",
     'f.yaml:5: check "gpu_count" is named twice at /spec/gate (name each check once)'),
    ("gate: {required: [gpu]}",
     ('f.yaml:5: unknown check "gpu" at /spec/gate/required/0 (did you mean "gpu_lost" '
      'or "gpu_count" or "gpu_model"?)')),
    ("gate: {deadline_s: .5e3}",
     'f.yaml:5: ".5e3" is not a number at /spec/gate/deadline_s (write a number without quotes)'),
    ("faults: {xid79: fatal}",
     'f.yaml:5: unknown fault class "xid79" at /spec/faults/xid79 (did you mean "xid_79"?)'),
    ("faults: {zzz: fatal}",
     ('f.yaml:5: unknown fault class "zzz" at /spec/faults/zzz '
     "(write xid_79, sxid_20034 or a named fault class)")),
    ("faults: {xid_79: deadly}",
     ('f.yaml:5: "deadly" is not allowed here at /spec/faults/xid_79 '
     "(one of: application, fatal, info, warning)")),
    ("driver: {min: '580', exact: '581'}",
     "f.yaml:5: both min and exact are given at /spec/driver (keep one of them)"),
    ("driver: {min: 580.95}",
     "f.yaml:5: 580.95 is not text at /spec/driver/min (put it in double quotes)"),
    ("driver: {min: v580}",
     ('f.yaml:5: "v580" is not a dotted version at /spec/driver/min '
     "(write numbers such as 580.95.05)")),
    ("report: {interval_s: 60}",
     ("f.yaml:5: silent_s 90 is less than two report intervals (120 s) at /spec/report "
     "(raise silent_s or lower interval_s)")),
    ("report: {silent_s: 700}",
     ("f.yaml:5: replace_silent_s 600 is less than silent_s 700 at /spec/report "
     "(raise replace_silent_s)")),
    ("mounts: [data]",
     ('f.yaml:5: "data" is not an absolute path at /spec/mounts/0 '
     "(write a path that starts with /)")),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "words"), HEALTH_CASES, ids=lambda v: str(v)[:40])
def test_health_errors(spec: str, words: str, said: Said) -> None:
    """The same for health policies."""
    assert said(health(spec)) == [words]


AZURE = (
    "/subscriptions/00000000-1111-2222-3333-444444444444/resourceGroups/rg/providers/"
    "Microsoft.Compute/galleries/g/images/i/versions/"
)
IDS_GOOD = [
    "ami-0a1b2c3d", "ami-0a1b2c3d4e5f60718", "projects/my-proj/global/images/gpu-base-42",
    "projects/example.com:my-proj/global/images/x", AZURE + "42.0.1",
    "ocid1.image.oc1.iad.aaaaaaaabbbbbbbb", "ocid1.image.oc1..aaaaaaaabbbbbbbb",
]  # fmt: skip
IDS_ALIAS = [
    ("latest", "the newest version"), ("resolve:ssm:/aws/service/x", "an SSM parameter"),
    ("projects/p123/global/images/family/deep", "an image family"),
    (AZURE + "latest", "the newest version"), ("Canonical:x:y:latest", "the newest version"),
]  # fmt: skip


def image(artifact_id: str) -> str:
    """An image with one artifact on line 8."""
    return (
        "apiVersion: fleetd/v1\nkind: Image\nmetadata: {name: base}\nspec:\n  versions:\n"
        f"    - version: v1\n      artifacts:\n"
        f'        - {{provider: p, region: r, id: "{artifact_id}"}}\n'
    )


@pytest.mark.parametrize("artifact_id", IDS_GOOD)
def test_artifact_ids_of_four_clouds(artifact_id: str, said: Said) -> None:
    """Fixed ids pass."""
    assert said(image(artifact_id)) == []


@pytest.mark.parametrize(("artifact_id", "what"), IDS_ALIAS)
def test_artifact_aliases_are_refused(artifact_id: str, what: str, said: Said) -> None:
    """An id that changes under a rollout is refused by name."""
    (words,) = said(image(artifact_id))
    assert f"names {what}, which changes at /spec/versions/0/artifacts/0/id" in words
    assert words.startswith("f.yaml:8: ")


@pytest.mark.parametrize("artifact_id", ["ami-xyz", "ami-0a1b2c3d4", "img-1", AZURE + "42"])
def test_other_artifact_ids_are_refused(artifact_id: str, said: Said) -> None:
    """Unknown shapes are refused with the four that are known."""
    (words,) = said(image(artifact_id))
    assert "is not an image id of any cloud" in words
    assert "ami-…, projects/…/global/images/…" in words


@pytest.mark.parametrize("version", ["latest", "stable", "-x", "a b", ""])
def test_version_names(version: str, said: Said) -> None:
    """Aliases are no versions."""
    (words,) = said(image(IDS_GOOD[0]).replace("version: v1", f'version: "{version}"'))
    assert "is not a fixed version at /spec/versions/0/version" in words


HEADER_CASES = [
    ("", "policies: no policy found (name a file with a Pool in it)"),
    ("# nothing\n---\n", "policies: no policy found (name a file with a Pool in it)"),
    ("- a",
     "f.yaml:1: a policy must be a mapping (begin with apiVersion, kind, metadata and spec)"),
    ("just text",
     "f.yaml:1: a policy must be a mapping (begin with apiVersion, kind, metadata and spec)"),
    ("kind: Pool", "f.yaml:1: field apiVersion is missing (add apiVersion: fleetd/v1)"),
    ("apiVersion: v1\nkind: Pool",
     'f.yaml:1: unknown apiVersion "v1" at /apiVersion (write fleetd/v1)'),
    ("apiVersion: fleetd/v1",
     "f.yaml:1: field kind is missing (add kind: Pool, Image, HealthPolicy)"),
    ("apiVersion: fleetd/v1\nkind: pool",
     'f.yaml:2: unknown kind "pool" at /kind (did you mean "Pool"?)'),
    ("apiVersion: fleetd/v1\nkind: [Pool]",
     'f.yaml:2: unknown kind "[\'Pool\']" at /kind (did you mean "Pool"?)'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), HEADER_CASES)
def test_header_errors(text: str, words: str, said: Said) -> None:
    """What is not a policy at all."""
    assert said(text) == [words]


def test_every_problem_of_every_document_is_told(said: Said) -> None:
    """Refused whole, with each place, in reading order."""
    text = pool(gpu="H1", nodes="-1") + "---\n" + health("checks: {x_y: {}}") + "---\nkind: Pol\n"
    assert [p.split(": ")[0] for p in said(text)] == [
        "f.yaml:5", "f.yaml:7", "f.yaml:15", "f.yaml:17", "f.yaml:17",
    ]  # fmt: skip


def test_many_problems_end_with_a_count(said: Said) -> None:
    """A file of rubbish does not fill a terminal."""
    text = pool(offers="[" + ", ".join(["{x: 1}"] * 60) + "]")
    found = said(text)
    assert len(found) <= 52
    assert any("and 190 more problems" in words for words in found)


def test_problem_parts_for_programs() -> None:
    """JSON output has file, line, column and pointer apart."""
    with pytest.raises(InputError) as caught:
        load_text(pool(gpu="H1000"), "f.yaml")
    problem: Any = caught.value.problems[0]
    assert (problem.file, problem.line, problem.column) == ("f.yaml", 5, 8)
    assert problem.pointer == "/spec/gpu"


def test_hostile_values_are_shown_safely(said: Said) -> None:
    """A long or odd value in an error is cut and escaped."""
    (words,) = [w for w in said(pool(gpu='"' + "A" * 5000 + '"')) if "GPU" in w]
    assert len(words) < 600
    (words,) = [w for w in said(pool(gpu='"a\\nb\\tc"')) if "GPU" in w]
    assert "\n" not in words
    assert "a\\u000ab" in words


@pytest.mark.parametrize("model", [Pool, Image, HealthPolicy])
def test_each_error_type_has_a_sentence(model: type[BaseModel]) -> None:
    """No pydantic wording reaches people: try wrong values at every field."""
    wrong: list[Any] = [None, True, 1.5, -1, 10**30, "x", "x" * 9000, [], {}, [[]], [{}], {"x": 1}]
    paths = [("spec",), ("metadata",), ("metadata", "name")]
    for path in list(paths):
        paths += [(*path, name) for name in fields_at(model, path)]
    for path in list(paths):
        paths += [(*path, name) for name in fields_at(model, path)]
    for path in dict.fromkeys(paths):
        for value in wrong:
            body: Any = value
            for step in reversed(path):
                body = {step: body}
            try:
                model.model_validate(body)
            except ValidationError as error:
                for problem in problems_of(Doc("f", body), model, error):
                    for word in ("Input should", "Field required", "validation error", "Extra "):
                        assert word not in str(problem), problem

"""Policies against each other, against what is applied, and against what clouds sell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InputError
from fleet.model import Market, Offer
from policies.jsonio import load_json
from policies.load import (
    EMPTY,
    Known,
    PolicySet,
    Source,
    load_files,
    load_sources,
    load_text,
)
from policies.policyset import DEFAULT_HEALTH, from_json
from policies.schema import GPUS, Pool
from policies.schema.offer import bare_metal
from policies.yamlio import load_yaml

DATA = Path(__file__).parent / "data"
POOL = (DATA / "pool.yaml").read_text()
IMAGE = (DATA / "image.yaml").read_text()

Said = Callable[..., list[str]]

PROVIDERS = {"aws": "aws", "gcp": "gcp", "oci": "oci"}
TYPES = {
    "aws": {"p5.48xlarge": ("H100", 8), "p4d.24xlarge": ("A100", 8), "p5.4xlarge": ("H100", 1)},
}
KNOWN = Known(providers=PROVIDERS, types=TYPES.get)


def test_a_good_file_loads(said: Said) -> None:
    """Two documents, one set; the order in the file does not matter."""
    assert said(POOL + "---\n" + IMAGE, known=KNOWN) == []
    found = load_text(POOL + "---\n" + IMAGE)
    assert [(p.kind, p.metadata.name) for p in found] == [("Image", "base"), ("Pool", "train")]
    assert found.pools["train"].spec.offer_list() == (
        Offer("aws", "us-east-1", "us-east-1a", "p5.48xlarge", Market.ON_DEMAND, "H100", 8),
    )


def test_a_pool_may_refer_to_what_is_applied(image_set: PolicySet) -> None:
    """A file with only a Pool is enough; the answer has only what the file has."""
    found = load_text(POOL, applied=image_set)
    assert (len(found), len(found.over(image_set))) == (1, 2)
    assert found.over(image_set).images["base"] == image_set.images["base"]


TWO_OFFERS = (
    POOL + "    - {provider: aws, region: us-west-2, zone: us-west-2a, type: p5.48xlarge}\n"
)

CROSS = [
    (POOL, 'f.yaml:8: unknown image family "base" at /spec/image (apply an Image first)'),
    (POOL.replace("base@", "bass@") + "---\n" + IMAGE,
     'f.yaml:8: unknown image family "bass" at /spec/image (did you mean "base"?)'),
    (POOL.replace("@v1", "@v2") + "---\n" + IMAGE,
     'f.yaml:8: image base has no version "v2" at /spec/image (one of: v1)'),
    (TWO_OFFERS + "---\n" + IMAGE,
     ("f.yaml:11: image base@v1 has no artifact in aws us-west-2 at /spec/offers/1/region "
     "(add one to Image base, or use us-east-1)")),
    (POOL.replace("aws", "asw") + "---\n" + IMAGE,
     ("f.yaml:10: image base@v1 has no artifact in asw us-east-1 at /spec/offers/0/region "
     "(add one to Image base)\n"
     'f.yaml:10: unknown provider "asw" at /spec/offers/0/provider (did you mean "aws"?)')),
    (POOL.replace("p5.48xlarge", "p5.48xlrage") + "---\n" + IMAGE,
     ('f.yaml:10: unknown instance type "p5.48xlrage" of aws at /spec/offers/0/type '
     '(did you mean "p5.48xlarge"?)')),
    (POOL.replace("p5.48xlarge", "zz1") + "---\n" + IMAGE,
     'f.yaml:10: unknown instance type "zz1" of aws at /spec/offers/0/type (use p5.48xlarge)'),
    (POOL.replace("p5.48xlarge", "p4d.24xlarge") + "---\n" + IMAGE,
     ("f.yaml:10: p4d.24xlarge has 8 × A100, the pool wants 8 × H100 at /spec/offers/0/type "
     "(use p5.48xlarge)")),
    (POOL.replace("p5.48xlarge", "p5.4xlarge") + "---\n" + IMAGE,
     ("f.yaml:10: p5.4xlarge has 1 × H100, the pool wants 8 × H100 at /spec/offers/0/type "
     "(use p5.48xlarge)")),
    (POOL.replace("gpu: H100", "gpu: L4") + "---\n" + IMAGE,
     ("f.yaml:10: p5.48xlarge has 8 × H100, the pool wants 8 × L4 at /spec/offers/0/type "
     "(no type of this provider fits)")),
    (POOL + "  health: strict\n---\n" + IMAGE,
     'f.yaml:11: unknown health policy "strict" at /spec/health (one of: default)'),
    (POOL + "    - {provider: aws, region: us-east-1, zones: [us-east-1b, us-east-1a], "
     "type: p5.48xlarge}\n---\n" + IMAGE,
     ("f.yaml:11: offer aws/us-east-1/us-east-1a/p5.48xlarge/on_demand is written twice, first on "
     "line 10 at /spec/offers/1 (keep one of them)")),
    (POOL + "---\n" + POOL + "---\n" + IMAGE,
     ('f.yaml:14: Pool "train" is defined twice, first at f.yaml:3 at /metadata/name '
     "(rename or remove one of them)")),
    (IMAGE + "        - {provider: aws, region: us-east-1, id: ami-00000000}\n",
     ("f.yaml:9: a second artifact for aws us-east-1, first on line 8 at "
     "/spec/versions/0/artifacts/1/region (keep one of them)")),
    (IMAGE + "        - {provider: gcp, region: us-east-1, id: ami-00000000}\n",
     ('f.yaml:9: "ami-00000000" is an image of aws, not of gcp at '
     "/spec/versions/0/artifacts/1/id (copy the id from the right cloud)")),
    (IMAGE + "        - {provider: lambda, region: us-east-1, id: ami-00000000}\n",
     ('f.yaml:9: unknown provider "lambda" at /spec/versions/0/artifacts/1/provider '
     "(one of: aws, gcp, oci)")),
    (IMAGE + "    - version: v1\n      artifacts: [{provider: aws, region: r, id: ami-00000000}]\n",
     'f.yaml:9: version "v1" is written twice at /spec/versions/1/version (keep one of them)'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), CROSS, ids=lambda v: str(v)[-60:])
def test_cross_object_errors(text: str, words: str, said: Said) -> None:
    """Each with its own line; nothing is said twice."""
    assert said(text, known=KNOWN) == words.split("\n")


def test_market_rules(said: Said) -> None:
    """OCI has no preemptible bare metal; small A3 shapes are not sold on demand."""
    image = IMAGE.replace(
        "{provider: aws, region: us-east-1, id: ami-0a1b2c3d4e5f60718}",
        "{provider: oci, region: r, id: ocid1.image.oc1.iad.aaaaaaaabbbb}\n"
        "        - {provider: gcp, region: global, id: projects/my-proj/global/images/x}",
    )
    head = POOL[: POOL.index("    - {")]
    bad = head + (
        "    - {provider: oci, region: r, type: BM.GPU.H100.8, market: spot}\n"
        "    - {provider: gcp, region: us-central1, type: a3-highgpu-4g}\n"
        "    - {provider: oci, region: r, type: VM.GPU.A10.2, market: spot}\n"
        "    - {provider: gcp, region: us-central1, type: a3-highgpu-4g, market: spot}\n"
    )
    assert said(bad + "---\n" + image, known=Known(providers=PROVIDERS)) == [
        (
            "f.yaml:10: BM.GPU.H100.8 cannot be bought as spot: OCI has preemptible VMs only at "
            "/spec/offers/0/market (use on_demand or a VM shape)"
        ),
        (
            "f.yaml:11: a3-highgpu-4g cannot be bought on demand at /spec/offers/1/market "
            "(use spot or reserved)"
        ),
    ]


def test_no_second_error_for_one_cause(said: Said) -> None:
    """A pool is not blamed for an image that is itself refused."""
    broken = IMAGE.replace("ami-0a1b2c3d4e5f60718", "img")
    (words,) = said(POOL + "---\n" + broken)
    assert "is not an image id of any cloud" in words


def test_applied_versions_never_change(said: Said, image_set: PolicySet) -> None:
    """Another id for an applied artifact is refused; a new region is not."""
    (words,) = said(IMAGE.replace("ami-0a1b2c3d4e5f60718", "ami-00000000"), applied=image_set)
    assert words == (
        'f.yaml:8: base@v1 is applied with "ami-0a1b2c3d4e5f60718" here at '
        "/spec/versions/0/artifacts/0/id (add a new version: applied ones never change)"
    )
    more = IMAGE + "        - {provider: aws, region: us-west-2, id: ami-00000000}\n"
    assert said(more, applied=image_set) == []


def test_a_version_in_use_is_not_removed(said: Said) -> None:
    """Unless the same apply moves the pool away."""
    applied = load_text(POOL + "---\n" + IMAGE)
    next_image = IMAGE.replace("version: v1", "version: v2")
    assert said(next_image, applied=applied) == [
        (
            'f.yaml:5: version "v1" is removed, but pool train uses it at /spec/versions '
            "(move the pool first)"
        )
    ]
    assert said(next_image + "---\n" + POOL.replace("@v1", "@v2"), applied=applied) == []


def test_global_artifact_serves_all_regions() -> None:
    """Google's images; a regional one wins."""
    text = IMAGE + (
        "        - {provider: gcp, region: global, id: projects/my-proj/global/images/g}\n"
        "        - {provider: gcp, region: europe-west4, id: projects/my-proj/global/images/e}\n"
    )
    version = load_text(text).images["base"].spec.versions[0]
    assert version.artifact("gcp", "us-central1") == "projects/my-proj/global/images/g"
    assert version.artifact("gcp", "europe-west4") == "projects/my-proj/global/images/e"
    assert version.artifact("aws", "us-west-2") is None


def test_default_health_policy() -> None:
    """``default`` is there unwritten, and can be written."""
    found = load_text(POOL + "---\n" + IMAGE)
    assert found.health_of(found.pools["train"]) is DEFAULT_HEALTH
    text = "apiVersion: fleetd/v1\nkind: HealthPolicy\nmetadata: {name: default}\n"
    other = load_text(text + "spec: {report: {silent_s: 120}}").over(found)
    assert other.health_of(other.pools["train"]).spec.report.silent_s == 120


def test_files_and_folders(tmp_path: Path) -> None:
    """A folder's policy files by name; what cannot be read is told with the rest."""
    (tmp_path / "b.yaml").write_text(POOL)
    (tmp_path / "a.json").write_text(json.dumps([load_text(IMAGE).images["base"].model_dump()]))
    (tmp_path / "notes.txt").write_text("not a policy")
    assert len(load_files([tmp_path])) == 2
    assert len(load_files([tmp_path / "b.yaml", tmp_path])) == 2, "a file named twice is read once"
    (tmp_path / "c.yaml").write_text(POOL.replace("H100", "H1"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError) as caught:
        load_files([tmp_path, tmp_path / "none.yaml", empty])
    found = [str(p).replace(f"{tmp_path}/", "") for p in caught.value.problems]
    assert found == [
        "empty: folder without policy files (name a folder with .yaml files)",
        "none.yaml: no such file or directory (check the path)",
        'c.yaml:5: unknown GPU "H1" at /spec/gpu (did you mean "H100"?)',
    ]


def test_duplicates_across_files_name_both() -> None:
    """Both places of a name that two files define."""
    with pytest.raises(InputError) as caught:
        load_sources([Source("a.yaml", IMAGE), Source("b.yaml", IMAGE)])
    assert [str(p) for p in caught.value.problems] == [
        (
            'b.yaml:3: Image "base" is defined twice, first at a.yaml:3 at /metadata/name '
            "(rename or remove one of them)"
        )
    ]


def test_too_large_file(tmp_path: Path) -> None:
    """Not even read to its end."""
    path = tmp_path / "big.yaml"
    path.write_bytes(b"#" * (1 << 20))
    with pytest.raises(InputError, match="262145 bytes, at most 262144 are read"):
        load_files([path])


def test_stored_form_round_trips() -> None:
    """What the database keeps gives equal models back."""
    found = load_text(POOL + "---\n" + IMAGE)
    for policy in found:
        stored = json.loads(json.dumps(policy.model_dump(mode="json"), allow_nan=False))
        assert from_json(stored) == policy
    with pytest.raises(InputError, match="unknown kind 'X'"):
        from_json({"kind": "X"})


def test_sets_are_frozen() -> None:
    """Neither the set nor a policy can be changed in place."""
    found = load_text(IMAGE)
    with pytest.raises(TypeError):
        found.images["x"] = found.images["base"]  # type: ignore[index]
    image: Any = found.images["base"]
    with pytest.raises(Exception, match="frozen"):
        image.metadata.name = "x"
    assert found.without("Image", "base") == EMPTY
    assert found.get("Image", "base") is image
    assert found.get("Pool", "base") is None


def test_deadlines_by_machine_kind() -> None:
    """Floors of field.md section 2; history above the floor counts; a fixed value wins."""
    spec = load_text(POOL + "---\n" + IMAGE).pools["train"].spec
    d = spec.deadlines
    assert (d.launch_limit_s("p5.48xlarge"), d.boot_limit_s("p5.48xlarge")) == (300, 900)
    assert (d.launch_limit_s("BM.GPU.H100.8"), d.boot_limit_s("BM.GPU.H100.8")) == (1200, 2700)
    assert d.boot_limit_s("p5.48xlarge", 500) == 900
    assert d.boot_limit_s("p5.48xlarge", 700) == 1050
    fixed = Pool.model_validate(
        {**load_text(POOL + "---\n" + IMAGE).pools["train"].model_dump(mode="json"),
         "spec": {**spec.model_dump(mode="json"), "deadlines": {"boot_s": 60}}}
    ).spec.deadlines  # fmt: skip
    assert fixed.boot_limit_s("p5.48xlarge", 700) == 60
    assert fixed.boot_limit_s("BM.GPU.H100.8") == 2700
    assert [bare_metal(t) for t in ("g4dn.metal", "c3-standard-192-metal", "metal1.x")] == [
        True, True, False,
    ]  # fmt: skip


SHARES = st.integers(0, 100_000) | st.integers(0, 100).map("{}%".format)
SECONDS = st.floats(0.001, 86_400) | st.integers(1, 86_400)
PROMISES = st.fixed_dictionaries(
    {
        "ready_within_s": SECONDS,
        "probability": st.floats(0.5, 0.999_999),
        "max": st.integers(0, 10_000),
    }
)
OFFERS = st.fixed_dictionaries(
    {
        "provider": st.sampled_from(["aws", "gcp-2"]),
        "region": st.just("us-east-1"),
        "type": st.just("p5.48xlarge"),
        "market": st.sampled_from(list(Market)).map(str),
    },
    optional={
        "zones": st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, unique=True),
        "price_usd_hour": st.none() | st.floats(0, 10_000),
    },
)
SPECS = st.fixed_dictionaries(
    {
        "gpu": st.sampled_from(sorted(GPUS)),
        "gpus_per_node": st.integers(1, 16),
        "nodes": st.integers(0, 20_000),
        "image": st.just("base@v1"),
        "offers": st.lists(OFFERS, min_size=1, max_size=3),
    },
    optional={
        "spares": st.integers(0, 10_000) | PROMISES,
        "surge": SHARES,
        "disruption": st.fixed_dictionaries({"budget": SHARES}),
        "deadlines": st.fixed_dictionaries({"boot_s": st.none() | SECONDS, "drain_s": SECONDS}),
    },
)


@given(SPECS)
def test_any_valid_pool_round_trips(spec: dict[str, Any]) -> None:
    """Model to JSON text to model, by pydantic, by our JSON reader and by our YAML reader."""
    value = {"apiVersion": "fleetd/v1", "kind": "Pool", "metadata": {"name": "p"}, "spec": spec}
    pool = Pool.model_validate(value)
    text = json.dumps(pool.model_dump(mode="json"), allow_nan=False)
    assert Pool.model_validate(json.loads(text)) == pool
    assert Pool.model_validate(load_json(text, "f.json")[0].value) == pool
    assert Pool.model_validate(load_yaml(yaml.safe_dump(json.loads(text)), "f")[0].value) == pool
    zones = sum(len(o.get("zones", ["any"])) for o in spec["offers"])
    assert len(pool.spec.offer_list()) == zones

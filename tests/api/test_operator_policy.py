"""Apply and diff: whole or nothing, with the place of every problem."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

Bench = Any


def document(bench: Bench, **spec: Any) -> dict[str, Any]:
    item = bench.get("/v1/policies/pool/train")["item"]["document"]
    item["spec"].update(spec)
    result: dict[str, Any] = item
    return result


def files(*texts: Any) -> list[dict[str, str]]:
    return [
        {"name": f"f{i}.yaml", "text": t if isinstance(t, str) else yaml.safe_dump(t)}
        for i, t in enumerate(texts)
    ]


def test_diff_then_apply(bench: Bench) -> None:
    body = {"files": files(document(bench, nodes=4))}
    plan = bench.post("/v1/diff", body).json()
    assert [(c["object"], c["pointer"], c["old"], c["new"]) for c in plan["changes"]] == [
        ("pool/train", "/spec/nodes", 3, 4)
    ]
    assert plan["changes"][0]["effect"] == "launch 1 more node"
    assert bench.get("/v1/pools")["items"][0]["nodes_wanted"] == 3
    done = bench.post("/v1/apply", body, headers={"if-match": plan["etag"]}).json()
    assert done["applied"] == [{"kind": "Pool", "name": "train", "version": 2}]
    pool = bench.get("/v1/pools")["items"][0]
    assert (pool["nodes_wanted"], pool["version"], pool["applied_by"]) == (4, 2, "user:mira")
    assert pool["source"] == "f0.yaml"
    assert bench.until(lambda: bench.trial.serving() == 4)
    again = bench.post("/v1/apply", body).json()
    assert again["changes"] == []
    assert again["applied"] == []


def test_a_stale_etag_is_412(bench: Bench) -> None:
    body = {"files": files(document(bench, nodes=4))}
    old = bench.post("/v1/diff", body).json()["etag"]
    assert bench.post("/v1/apply", body).status_code == 200
    other = {"files": files(document(bench, nodes=5))}
    response = bench.post("/v1/apply", other, headers={"if-match": old})
    problem = bench.problem(response, 412, "version_conflict")
    assert problem["etag"] != old
    assert bench.get("/v1/pools")["items"][0]["nodes_wanted"] == 4


def test_whole_or_nothing_with_file_and_line(bench: Bench) -> None:
    bad = document(bench)
    bad["metadata"]["name"] = "other"
    bad["spec"]["nodes"] = -1
    bad["spec"]["gpu"] = "H100-80"
    body = {"files": files(document(bench, nodes=4), bad)}
    version = bench.get("/v1/nodes")["version"]
    problem = bench.problem(bench.post("/v1/apply", body), 422, "invalid_policy")
    assert {e["file"] for e in problem["errors"]} == {"f1.yaml"}
    assert {e["pointer"] for e in problem["errors"]} == {"/spec/gpu", "/spec/nodes"}
    assert all(e["line"] > 1 and e["fix"] for e in problem["errors"])
    assert bench.get("/v1/nodes")["version"] == version, "nothing of it was applied"


@pytest.mark.parametrize(
    "change, what",
    [
        ({"offers": [{"provider": "aws", "region": "us-east-1", "type": "p5.49xlarge"}]},
         "unknown instance type"),
        ({"offers": [{"provider": "awss", "region": "us-east-1", "type": "p5.48xlarge"}]},
         "unknown provider"),
        ({"image": "gpu-base@v9"}, "no version"),
        ({"offers": [{"provider": "aws", "region": "eu-west-1", "type": "p5.48xlarge"}]},
         "no artifact"),
        ({"offers": [{"provider": "aws", "region": "us-east-1", "type": "p4d.24xlarge"}]},
         "the pool wants"),
    ],
)  # fmt: skip
def test_judged_against_the_world(calm: Bench, change: dict[str, Any], what: str) -> None:
    body = {"files": files(document(calm, **change))}
    problem = calm.problem(calm.post("/v1/diff", body), 422, "invalid_policy")
    assert any(what in e["what"] for e in problem["errors"]), problem["errors"]


@pytest.mark.parametrize("text", ["", "a: &a [*a]", "kind: Pool\nkind: Pool", "\x00", "- 1"])
def test_hostile_documents(calm: Bench, text: str) -> None:
    problem = calm.problem(calm.post("/v1/diff", {"files": files(text)}), 422, "invalid_policy")
    assert problem["errors"]


def test_dry_run_writes_nothing(calm: Bench) -> None:
    version = calm.get("/v1/nodes")["version"]
    body = {"files": files(document(calm, nodes=6)), "dry_run": True}
    assert calm.post("/v1/apply", body).json()["dry_run"] is True
    assert calm.get("/v1/nodes")["version"] == version

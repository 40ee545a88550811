"""What an apply would change, as data with a sentence."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from policies.diff import Action, diff
from policies.load import EMPTY, PolicySet, load_text
from policies.schema import GPUS, Pool

DATA = Path(__file__).parent / "data"
POOL = (DATA / "pool.yaml").read_text()
IMAGE = (DATA / "image.yaml").read_text()

BASE = load_text(POOL + "---\n" + IMAGE)


def pool(**changes: object) -> PolicySet:
    """The base set with fields of the pool's spec changed."""
    value = BASE.pools["train"].model_dump(mode="json")
    value["spec"] |= changes
    return PolicySet.of([Pool.model_validate(value)]).over(BASE)


def told(old: PolicySet, new: PolicySet) -> list[tuple[str, str]]:
    """(pointer, effect) of each change."""
    return [(change.pointer, change.effect) for change in diff(old, new)]


def test_nothing_changes() -> None:
    """Equal sets, however they came about."""
    assert diff(BASE, BASE) == ()
    assert diff(BASE, load_text(IMAGE + "---\n" + POOL)) == ()
    assert diff(EMPTY, EMPTY) == ()


def test_create_and_delete() -> None:
    """Whole objects, pools first."""
    made = diff(EMPTY, BASE)
    assert [(c.action, c.object, c.effect) for c in made] == [
        (Action.CREATE, "pool/train", "launch 4 nodes: 4 in service, 0 spares"),
        (Action.CREATE, "image/base", ""),
    ]
    gone = diff(BASE, EMPTY)[0]
    assert gone.action is Action.DELETE
    assert gone.effect == "drain and terminate all nodes of the pool (4 nodes in service)"
    promise = {"ready_within_s": 90, "probability": 0.999, "max": 3}
    assert diff(EMPTY, pool(spares=promise))[0].effect == (
        "launch 4 nodes in service and at most 3 spares"
    )


def test_effects_of_fields() -> None:
    """One sentence per change that makes fleetd act."""
    promise = {"ready_within_s": 90, "probability": 0.999, "max": 3}
    cases: list[tuple[dict[str, object], str, str]] = [
        ({"nodes": 8}, "/spec/nodes", "launch 4 more nodes"),
        ({"nodes": 5}, "/spec/nodes", "launch 1 more node"),
        ({"nodes": 1}, "/spec/nodes", "take 3 nodes out of service"),
        ({"spares": 2}, "/spec/spares", "launch 2 more spares"),
        ({"spares": promise}, "/spec/spares",
         "size spares by measured failure and refill, at most 3"),
        ({"gpu": "H200"}, "/spec/gpu", "replace all nodes, at most 10% at once, spares first"),
        ({"image": "base@v2"}, "/spec/image",
         "replace all nodes, at most 10% at once, spares first"),
        ({"health": "other"}, "/spec/health",
         "judge all nodes by the other policy from the next report on"),
        ({"repair": {"mode": "none"}}, "/spec/repair/mode", "stop replacing sick nodes"),
        ({"surge": 2}, "/spec/surge", ""),
        ({"deadlines": {"boot_s": 60}}, "/spec/deadlines/boot_s", ""),
        ({"slots": ["a", "b", "c", "d"]}, "/spec/slots", "move assignments to the new slot names"),
        ({"webhooks": [{"url": "https://x.example/", "secret_env": "S"}]}, "/spec/webhooks/0",
         "tell one receiver more"),
    ]  # fmt: skip
    for changes, pointer, effect in cases:
        assert told(BASE, pool(**changes)) == [(pointer, effect)], changes


def test_spares_shrink_and_leave_a_promise() -> None:
    """Counts down, promise to count, promise changed."""
    promise = {"ready_within_s": 90, "probability": 0.999, "max": 3}
    assert told(pool(spares=3), pool(spares=2)) == [("/spec/spares", "terminate 1 spare")]
    assert told(pool(spares=promise), pool(spares=1)) == [
        ("/spec/spares", "keep 1 spare, whatever is measured")
    ]
    assert told(pool(spares=promise), pool(spares=promise | {"max": 5})) == [
        ("/spec/spares/max", "size spares anew")
    ]


def test_offers_are_compared_by_what_they_are() -> None:
    """One inserted in front is one change, not three; order and price are told apart."""
    a = {"provider": "aws", "region": "us-east-1", "zone": "us-east-1a", "type": "p5.48xlarge"}
    b, c = a | {"zone": "us-east-1b"}, a | {"zone": "us-east-1c"}
    assert told(pool(offers=[a, b]), pool(offers=[c, a, b])) == [
        ("/spec/offers/0", "launch there too from the next launch on")
    ]
    assert told(pool(offers=[a, b]), pool(offers=[b])) == [
        ("/spec/offers/0", "launch no more nodes there; running nodes stay")
    ]
    assert told(pool(offers=[a, b]), pool(offers=[b, a])) == [
        ("/spec/offers", "try offers in the new order from the next launch on")
    ]
    assert told(pool(offers=[a, b]), pool(offers=[a, b | {"price_usd_hour": 30}])) == [
        ("/spec/offers/1/price_usd_hour", "rank the offer by the new price")
    ]


def test_windows_and_health() -> None:
    """A window restricts; a health policy names the pools it judges."""
    window = {"days": ["mon"], "start": "01:00", "end": "02:00", "tz": "UTC"}
    assert told(BASE, pool(disruption={"windows": [window]})) == [
        ("/spec/disruption/windows", "replace healthy nodes only inside the windows")
    ]
    head = "apiVersion: fleetd/v1\nkind: HealthPolicy\nmetadata: {name: default}\nspec: "
    old, new = load_text(head + "{}").over(BASE), load_text(head + "{report: {silent_s: 120}}")
    assert told(old, new.over(BASE)) == [
        ("/spec/report/silent_s", "judges nodes of train from the next report on")
    ]


def test_image_versions_by_name() -> None:
    """A new version in front is one change."""
    text = IMAGE.replace(
        "    - version: v1",
        "    - version: v2\n      artifacts: "
        "[{provider: aws, region: us-east-1, id: ami-00000000}]\n    - version: v1",
    )
    (change,) = diff(BASE, load_text(text).over(BASE))
    assert (change.pointer, change.old) == ("/spec/versions/0", None)
    assert change.effect == "no node changes until a pool or a rollout names the version"


@given(
    st.fixed_dictionaries(
        {
            "nodes": st.integers(0, 5),
            "spares": st.integers(0, 3),
            "gpu": st.sampled_from(sorted(GPUS)),
            "surge": st.sampled_from([1, "25%", "30%"]),
        }
    ),
    st.integers(0, 5),
)
def test_diff_is_empty_only_for_equal_sets(fields: dict[str, object], nodes: int) -> None:
    """Changes name what differs, both ways, and in the same order each time."""
    old, new = pool(nodes=nodes), pool(**fields)
    changes = diff(old, new)
    assert (changes == ()) == (old == new)
    assert changes == diff(old, new)
    back = {c.pointer: (c.new, c.old) for c in diff(new, old)}
    assert {c.pointer: (c.old, c.new) for c in changes} == back

"""What every provider owes the engine, asked of each cloud the harnesses know.

PC-001, PC-027, PC-056, PC-136, PC-144, PC-166, PC-188, PC-190, PC-191, PC-193: eventual
consistency, orphan-leak and pagination; PC-031: credentials; PC-192: throttling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleet.errors import (
    Ambiguous,
    Busy,
    InsufficientCapacity,
    ProviderError,
    Unauthorized,
)
from fleet.model import InstanceRef, Market, Phase

Make = Callable[[int], Any]


def needs(h: Any, *abilities: str) -> None:
    """Skip where a cloud cannot be made to do what the test needs."""
    missing = set(abilities) - h.can
    if missing:
        why = {"tokens": "ignores ClientToken (test_ec2.py proves the request's content)"}
        reasons = [why.get(m, f"has no {m} to give") for m in sorted(missing)]
        pytest.skip(f"{h.name} {', '.join(reasons)}")


def ids(results: Any) -> list[str]:
    """The instance ids of a create's results, in order."""
    return [r.ref.instance_id for r in results if r.ref]


def test_a_batch_is_one_token_and_so_many_instances(h: Any) -> None:
    """Exactly ``count`` results; lists show them with cell, pool, token, type and image."""

    async def main() -> None:
        spec = h.spec("tok-batch", 5, "cell-batch")
        made = ids(await h.provider.create(spec))
        assert len(set(made)) == 5
        found = await h.settled("cell-batch", lambda f: len(f) == 5)
        assert sorted(i.ref.instance_id for i in found) == sorted(made)
        for i in found:
            assert (i.token, i.pool, i.cell) == ("tok-batch", "train", "cell-batch")
            assert (i.instance_type, i.market) == (spec.offer.instance_type, Market.ON_DEMAND)
            assert i.image_id == spec.image_id
            assert (i.ref.provider, i.ref.region) == (h.provider.name, spec.offer.region)
            assert i.ref.zone == spec.offer.zone
            assert i.created_at > 0
            assert (i.code, i.preempted) == ("", False)
            assert i.phase in (Phase.PENDING, Phase.RUNNING)

    h.run(main())
    assert h.count("tok-batch") == 5


def test_the_same_token_twice_makes_one_batch(h: Any) -> None:
    """PC-001, PC-124: however often a create is repeated, ``count`` instances exist."""
    needs(h, "tokens")

    async def main() -> None:
        first = await h.provider.create(h.spec("tok-twice", 3))
        again = await h.provider.create(h.spec("tok-twice", 3))
        assert ids(first) == ids(again)

    h.run(main())
    assert h.count("tok-twice") == 3


def test_spot_is_spot(h: Any) -> None:
    """The market comes back in lists."""

    async def main() -> None:
        o = h.offer()
        spot = type(o)(o.provider, o.region, o.zone, o.instance_type, Market.SPOT, o.gpu, o.gpus)
        await h.provider.create(h.spec("tok-spot", 1, "cell-spot", offer=spot))
        (found,) = await h.settled("cell-spot", lambda f: len(f) == 1)
        assert found.market is Market.SPOT

    h.run(main())


def test_a_partial_batch_says_why_for_the_rest(made: Make) -> None:
    """Three of five: three refs, then two refusals that rest the offer."""
    h = made(3)
    needs(h, "capacity")

    async def main() -> None:
        results = await h.provider.create(h.spec("tok-part", 5))
        assert len(results) == 5
        assert len(ids(results)) == 3
        refusals = [r.error for r in results if r.ref is None]
        assert [type(e) for e in refusals] == [InsufficientCapacity] * 2
        with pytest.raises(InsufficientCapacity):
            await h.provider.create(h.spec("tok-none", 2))

    h.run(main())
    assert (h.count("tok-part"), h.count("tok-none")) == (3, 0)


def test_delete_until_gone(h: Any) -> None:
    """PC-027: ended means that no list shows it in any other phase; asking again is fine."""

    async def main() -> None:
        made = [r.ref for r in await h.provider.create(h.spec("tok-del", 3, "cell-del"))]
        await h.settled("cell-del", lambda f: len(f) == 3)
        await h.provider.delete(made[:2])
        await h.provider.delete(made[:2])
        found = await h.settled("cell-del", lambda f: sum(i.exists for i in f) == 1)
        assert [i.ref for i in found if i.exists] == [made[2]]
        await h.provider.delete(made)
        found = await h.settled("cell-del", lambda f: not any(i.exists for i in f))
        assert not any(i.exists for i in found)
        await h.provider.delete(made)

    h.run(main())
    assert h.count("tok-del") == 0


def test_an_unknown_id_does_not_save_the_others(h: Any) -> None:
    """One wrong id must not fail the batch; nor must a batch of none but wrong ones."""

    async def main() -> None:
        (known,) = [r.ref for r in await h.provider.create(h.spec("tok-unk", 1, "cell-unk"))]
        await h.settled("cell-unk", lambda f: len(f) == 1)
        unknown = [
            InstanceRef(known.provider, known.region, known.zone, f"i-0{n:016x}") for n in range(3)
        ]
        await h.provider.delete([unknown[0], known, *unknown[1:]])
        await h.provider.delete(unknown)
        await h.provider.delete([])
        await h.settled("cell-unk", lambda f: not any(i.exists for i in f))

    h.run(main())
    assert h.count("tok-unk") == 0


def test_lists_are_paged_to_the_end(h: Any) -> None:
    """PC-136, PC-188, PC-190: more instances than any page holds, each exactly once."""
    batch = 5 if h.many < 500 else 100

    async def main() -> None:
        tokens = [f"tok-many-{n}" for n in range(h.many // batch)]
        for token in tokens:
            assert len(ids(await h.provider.create(h.spec(token, batch, "cell-many")))) == batch
        found = await h.settled("cell-many", lambda f: len(f) == h.many)
        assert len({i.ref.instance_id for i in found}) == len(found) == h.many
        assert {i.token for i in found} == set(tokens)

    h.run(main())


def test_instances_of_other_cells_are_not_ours(h: Any) -> None:
    """Nobody else's machine is ever shown, so it can never be reaped."""

    async def main() -> None:
        await h.provider.create(h.spec("tok-mine", 2, "cell-mine"))
        await h.provider.create(h.spec("tok-other", 2, "cell-min"))
        found = await h.settled("cell-mine", lambda f: len(f) >= 2)
        assert {i.token for i in found} == {"tok-mine"}
        assert await h.listed("cell-nobody") == []

    h.run(main())


def test_accepted_then_died_says_why(h: Any) -> None:
    """PC-166: a launch that dies is shown with the cloud's code, not silently absent."""
    needs(h, "faults", "time")
    h.inject("die_after_accept", 600)

    async def main() -> None:
        made = ids(await h.provider.create(h.spec("tok-die", 4, "cell-die")))
        assert len(made) == 4

        def dead(found: Any) -> bool:
            phases = [i.phase for i in found]
            return len(found) == 4 and not {Phase.PENDING, Phase.RUNNING} & set(phases)

        found = await h.settled("cell-die", dead)
        assert {i.phase for i in found} <= {Phase.TERMINATED, Phase.FAILED}
        assert sorted(i.ref.instance_id for i in found) == sorted(made)
        assert all(i.code for i in found)
        assert not any(i.preempted for i in found)

    h.run(main())


def test_expired_credentials_then_renewed(h: Any) -> None:
    """PC-031: refused while expired, forgets nothing, works by itself afterwards."""
    needs(h, "faults", "time")

    async def main() -> None:
        await h.provider.create(h.spec("tok-cred", 1, "cell-cred"))
        await h.settled("cell-cred", lambda f: len(f) == 1)
        h.inject("credentials", 120)
        with pytest.raises(Unauthorized):
            await h.listed("cell-cred")
        with pytest.raises(Unauthorized):
            await h.provider.create(h.spec("tok-cred-2", 1, "cell-cred"))
        await h.pass_time(180)
        assert len(await h.settled("cell-cred", lambda f: len(f) == 1)) == 1
        assert len(ids(await h.provider.create(h.spec("tok-cred-2", 1, "cell-cred")))) == 1

    h.run(main())


@pytest.mark.parametrize(("kind", "exist"), [("create_lost", 0), ("create_unheard", 3)])
def test_a_create_without_an_answer_is_ambiguous(h: Any, kind: str, exist: int) -> None:
    """PC-001: made or not, it is Ambiguous; the same token settles it without a second batch."""
    needs(h, "faults", "time", "tokens")
    h.inject(kind, 45)

    async def main() -> None:
        spec = h.spec("tok-amb", 3, "cell-amb")
        with pytest.raises(Ambiguous):
            await h.provider.create(spec)
        assert h.count("tok-amb") == exist
        await h.pass_time(60)
        assert len(ids(await h.provider.create(spec))) == 3
        assert len(await h.settled("cell-amb", lambda f: len(f) == 3)) == 3

    h.run(main())
    assert h.count("tok-amb") == 3


@pytest.mark.parametrize("kind", ["throttle", "unavailable", "api_cut"])
def test_a_busy_cloud_is_busy_and_nothing_was_made(h: Any, kind: str) -> None:
    """PC-192: every verb says Busy; afterwards the same call works."""
    needs(h, "faults", "time")

    async def main() -> None:
        spec = h.spec("tok-busy", 2, "cell-busy")
        h.inject(kind, 60)
        # a connection that is cut may have carried the create; the others were answered
        with pytest.raises((Busy, Ambiguous) if kind == "api_cut" else Busy):
            await h.provider.create(spec)
        with pytest.raises(Busy):
            await h.listed("cell-busy")
        with pytest.raises(Busy):
            await h.provider.delete([InstanceRef("x", spec.offer.region, "z", "i-0abc")])
        assert h.count("tok-busy") == 0
        await h.pass_time(120)
        assert len(ids(await h.provider.create(spec))) == 2

    h.run(main())


def test_a_truncated_list_is_an_error(h: Any) -> None:
    """PC-188: a list that broke off never looks like a short one."""
    needs(h, "faults", "time")

    async def main() -> None:
        await h.provider.create(h.spec("tok-trunc", 3, "cell-trunc"))
        await h.settled("cell-trunc", lambda f: len(f) == 3)
        h.inject("list_truncated", 60)
        with pytest.raises(ProviderError):
            await h.listed("cell-trunc")
        await h.pass_time(120)
        assert len(await h.listed("cell-trunc")) == 3

    h.run(main())

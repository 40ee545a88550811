"""The Google adapter's listing: pages, zones, phases, and what only operations tell.

PC-136, PC-144, PC-166, PC-188, PC-190: pagination, eventual consistency, orphan-leak.
"""

from __future__ import annotations

from typing import Any

import pytest
from canned_gcp import NAME, Canned, Request, described, everything, operation, ref, refusal
from wire_gcp import ZONE

from fleet.errors import (
    Unauthorized,
    Unavailable,
)
from fleet.model import Phase
from providers import gcp
from providers.gce.codes import ENDED, PREEMPTED
from providers.gce.nouns import PHASES


def page(items: list[dict[str, Any]], token: str = "", **more: Any) -> dict[str, Any]:
    scope = {f"zones/{ZONE}": {"instances": items}, "zones/us-central1-z": {}}
    return {"items": scope, "nextPageToken": token, **more}


def test_listing_follows_every_token_and_never_trusts_the_page_size() -> None:
    """PC-136, PC-190: 2,500 instances; pages of any length, an empty one in the middle too."""
    pages = [range(250), range(250, 251), range(0), range(251, 2500)]

    def script(r: Request) -> Any:
        if r[1] == "operations":
            return 200, {}
        n = int(r[2].get("pageToken", "0"))
        assert r[2]["filter"] == 'labels.fleetd-cell="cell"'
        assert r[2]["maxResults"] == "250"
        following = str(n + 1) if n + 1 < len(pages) else ""
        return 200, page([described(f"i-{k}") for k in pages[n]], following)

    assert len({i.ref for i in Canned(script).run(everything)}) == 2500


def test_a_failing_page_or_zone_fails_the_list() -> None:
    """PC-188: never a short answer, not of instances and not of operations."""

    def second(r: Request) -> Any:
        if "pageToken" in r[2]:
            return refusal(503, "backendError")
        return 200, page([described("i-1")], "more")

    assert type(Canned(second).error(everything)) is Unavailable
    silent = page([described("i-1")], unreachables=["projects/p/zones/us-east1-b"])
    error = Canned(lambda _: (200, silent)).error(everything)
    assert (type(error), error.code, error.message) == (
        Unavailable,
        "UNREACHABLE",
        "no answer from us-east1-b",
    )
    warned = page([])
    warned["items"]["zones/us-east1-c"] = {"warning": {"code": "UNREACHABLE", "message": "x"}}
    assert Canned(lambda _: (200, warned)).error(everything).code == "UNREACHABLE"
    untold = Canned(lambda r: refusal(401, "authError") if r[1] == "operations" else (200, {}))
    assert type(untold.error(everything)) is Unauthorized


def test_a_listing_that_never_ends_is_an_error() -> None:
    error = Canned(lambda _: (200, page([described("i-1")], "again"))).error(everything)
    assert error.code == "EndlessListing"


@pytest.mark.parametrize("status", [*PHASES, "SOMETHING_NEW", ""])
def test_phases(status: str) -> None:
    """TERMINATED is Google's word for stopped: it exists and must be deleted."""
    items = [described("i", status)]
    p = Canned(lambda r: (200, {} if r[1] == "operations" else page(items)))
    (found,) = p.run(everything)
    assert found.phase is PHASES.get(status, Phase.PENDING)
    assert found.exists


def test_an_incomplete_description_is_pending() -> None:
    """PC-166: no labels, no time, no type yet."""
    bare = {"name": "i", "zone": f"projects/p/zones/{ZONE}"}
    (found,) = Canned(lambda r: (200, {} if r[1] == "operations" else page([bare]))).run(everything)
    assert (found.phase, found.created_at, found.token, found.ref) == (
        Phase.PENDING,
        0.0,
        "",
        ref("i"),
    )


@pytest.mark.parametrize("kind", sorted(ENDED))
def test_what_google_ended_itself(kind: str) -> None:
    """Gone from the list, or stopped in it; preemption is told apart from the rest."""
    op = operation(NAME, operationType=kind, status="DONE")
    other = operation("fleetd-00000000-b-1-0", operationType=kind, status="DONE")
    for left in ([], [described(NAME, "TERMINATED")]):

        def script(r: Request) -> Any:
            if r[1] == "operations":
                assert f'(operationType="{kind}")' in r[2]["filter"]
                return 200, {"items": [op, other]}
            return 200, page(left)  # noqa: B023 — used at once

        (found,) = Canned(script, ended_s=1e10).run(everything)
        assert (found.code, found.preempted) == (kind, kind in PREEMPTED)
        assert found.phase is (Phase.STOPPED if left else Phase.TERMINATED)


def test_old_operations_are_not_read() -> None:
    """Newest first, and no further page once one is too old."""

    def script(r: Request) -> Any:
        if r[1] != "operations":
            return 200, page([])
        assert "pageToken" not in r[2]
        assert r[2]["orderBy"] == "creationTimestamp desc"
        why = {"code": "STOCKOUT", "message": "no"}
        old = operation(NAME, why, insertTime="2020-01-01T00:00:00Z")
        return 200, {"items": [old], "nextPageToken": "more"}

    assert Canned(script).run(everything) == []


def test_maintenance_is_announced() -> None:
    plan = {
        "type": "SCHEDULED",
        "maintenanceStatus": "PENDING",
        "windowStartTime": "2026-12-03T00:00:00Z",
        "windowEndTime": "2026-12-03T04:00:00Z",
    }
    item = described("i", resourceStatus={"upcomingMaintenance": plan})

    async def work(provider: gcp.Gcp) -> Any:
        await everything(provider)
        return await provider.notices()

    (one,) = Canned(lambda r: (200, {} if r[1] == "operations" else page([item]))).run(work)
    assert (one.ref, one.kind, one.at) == (ref("i"), "maintenance", 1_796_256_000.0)

"""Applying policies over the API: validate all, show what changes, write all or nothing.

Invariant: the files are judged together with what is applied, the configured providers and the
clouds' known types; what was looked at (ETag) is what is changed, or 412.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fleet.api.ctx import Ctx
from fleet.api.problems import Refusal, place
from fleet.errors import InputError
from fleet.store import apply as store
from policies.crosscheck import Known
from policies.diff import Change, diff
from policies.load import Source, load_sources
from policies.policyset import PolicySet
from providers.catalog import catalog


@cache
def _types(kind: str) -> Mapping[str, tuple[str, int]] | None:
    return {t.name: (t.gpu, t.gpus) for t in catalog().types(kind).values()} or None


def known(ctx: Ctx) -> Known:
    """What this daemon knows of providers and instance types."""
    kinds = {name: ctx.kinds.get(name, name) for name in ctx.cell.providers}
    return Known(kinds, lambda provider: _types(kinds.get(provider, "")))


def etag(ctx: Ctx) -> str:
    """The version of all applied policies, as an ETag."""
    return f'"policies-{ctx.view.meta.get("policies", "0")}"'


async def judge(ctx: Ctx, files: Sequence[tuple[str, str]]) -> tuple[PolicySet, list[Change]]:
    """The policies in ``files`` and what applying them would change. Raises Refusal."""
    applied = await ctx.cell.store.run(store.applied)
    sources = [Source(name, text) for name, text in files]
    try:
        found = load_sources(sources, applied=applied, known=known(ctx))
    except InputError as error:
        errors = [place(p) for p in error.problems]
        what = "1 problem" if len(errors) == 1 else f"{len(errors)} problems"
        raise Refusal(422, "invalid_policy", f"the policies have {what}", errors=errors,
                      fix="mend the files; nothing was applied") from None  # fmt: skip
    return found, list(diff(applied, found.over(applied)))


def change_json(change: Change) -> dict[str, Any]:
    """One change as JSON."""
    return {
        "action": str(change.action), "object": change.object, "kind": change.kind,
        "name": change.name, "pointer": change.pointer, "old": change.old, "new": change.new,
        "effect": change.effect,
    }  # fmt: skip


async def answer(ctx: Ctx, files: Sequence[tuple[str, str]], *, actor: str, if_match: str,
                 write: bool) -> dict[str, Any]:  # fmt: skip
    """What would change (``write`` false) or what was changed."""
    found, changes = await judge(ctx, files)
    tag = etag(ctx)
    if if_match and if_match != tag:
        raise Refusal(412, "version_conflict", "the policies changed since you looked",
                      why=f"now {tag}, you looked at {if_match}",
                      fix="look at the difference again: fleetctl diff -f FILE",
                      more={"etag": tag})  # fmt: skip
    changed: list[tuple[str, str, int]] = []
    if write and changes:
        source = ", ".join(name for name, _ in files)[:200]
        changed = await ctx.cell.commit(
            lambda tx: store.apply(tx, found, actor=actor, now=ctx.now, source=source)
        )
        ctx.cell.wake("plan", "assign", "lifecycle")
    return {
        "apiVersion": "fleetd/v1", "kind": "ApplyResult", "dry_run": not write,
        "objects": [f"{p.kind.lower()}/{p.metadata.name}" for p in found],
        "changes": [change_json(c) for c in changes],
        "applied": [{"kind": k, "name": n, "version": v} for k, n, v in changed],
        "etag": etag(ctx), "frozen": ctx.view.frozen,
    }  # fmt: skip

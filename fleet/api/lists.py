"""Lists: one query, then filter, order, page and render, the same way for every kind.

Invariant: an unknown kind, pool, provider, state or column is an error with the nearest name;
nulls sort last whatever the direction; a page token only fits the query it came from; what was
left out is said as a number.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet.api import columns as c
from fleet.api import rows_fleet, rows_history, rows_system, say
from fleet.api.ctx import Ctx
from fleet.api.problems import Refusal, unknown
from fleet.api.where import parse
from fleet.model import Reason, State
from fleet.store import queries
from fleet.store.write import to_node
from policies.text import nearest

API_VERSION: Final = "fleetd/v1"
LIMIT: Final = 100
LIMIT_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """What a person or page asks of a list. Empty means everything."""

    names: tuple[str, ...] = ()
    pool: str = ""
    provider: str = ""
    state: str = ""
    reason: str = ""
    node: str = ""
    actor: str = ""
    where: str = ""
    sort_by: str = ""
    limit: int = LIMIT
    page_token: str = ""
    window_s: float = 86400.0
    since: float | None = None
    until: float | None = None
    after: int | None = None
    everything: bool = False

    @property
    def digest(self) -> str:
        """What a page token is bound to: everything but the page itself."""
        parts = [self.names, self.pool, self.provider, self.state, self.reason, self.node,
                 self.actor, self.where, self.sort_by, self.everything]  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


Gather = Callable[[Ctx, Query], Awaitable[list[dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of list: its columns and where its items come from."""

    name: str
    one: str
    title: str
    columns: tuple[c.Column, ...]
    gather: Gather
    tail: bool = False

    @property
    def types(self) -> dict[str, str]:
        """Types of the columns by key, and by name where it differs."""
        types = {col.key: col.type for col in self.columns}
        types.setdefault("name", "text")
        return types


async def _nodes(ctx: Ctx, q: Query) -> list[dict[str, Any]]:
    nodes = ctx.view.all()
    items: list[dict[str, Any]] = [
        rows_fleet.node_item(ctx, n)
        for n in nodes
        if (not q.pool or n.pool == q.pool) and (not q.provider or n.offer.provider == q.provider)
    ]
    if q.everything or q.names or q.state.upper() == "TERMINATED":
        since = ctx.now - ctx.cell.settings.limits.terminated_s * 7
        since = since if q.everything or q.names else ctx.now - q.window_s
        rows = await ctx.cell.store.run(lambda tx: queries.ended_nodes(tx, since, 10_000))
        items += [
            rows_fleet.node_item(ctx, to_node(r.model_dump()))
            for r in rows
            if (not q.pool or r.pool == q.pool) and (not q.provider or r.provider == q.provider)
        ]
    return items


async def _pools(ctx: Ctx, _q: Query) -> list[dict[str, Any]]:
    rows = await ctx.cell.store.run(rows_history.policy_rows)
    by_name = {r["name"]: r for r in rows if r["kind"] == "Pool"}
    names = [*ctx.view.pools, *(p for p in ctx.view.deleted_pools if ctx.view.pool_nodes(p))]
    items = [rows_fleet.pool_item(ctx, n, by_name.get(n, {})) for n in names]
    for item in items:
        item["pool"] = item["name"]
    return items


async def _launches(ctx: Ctx, q: Query) -> list[dict[str, Any]]:
    since = q.since if q.since is not None else ctx.now - q.window_s
    if q.everything:
        since = 0.0
    rows = await ctx.cell.store.run(
        lambda tx: rows_history.launch_rows(tx, since, pool=q.pool, provider=q.provider)
    )
    return rows_history.launch_items(ctx, rows)


async def _events(ctx: Ctx, q: Query) -> list[dict[str, Any]]:
    forward = q.after is not None
    since = q.since if q.since is not None else 0.0
    rows = await ctx.cell.store.run(
        lambda tx: queries.events(
            tx, object_id=q.node, pool=q.pool, reason=q.reason, since=since, until=q.until,
            after_id=q.after or 0, limit=10_000, newest=not forward,
        )
    )  # fmt: skip
    items = [rows_history.event_item(r) for r in rows]
    return [i for i in items if not q.actor or i["actor"] == q.actor]


async def _providers(ctx: Ctx, q: Query) -> list[dict[str, Any]]:
    since = ctx.now - q.window_s
    launches, health = await ctx.cell.store.run(lambda tx: rows_history.provider_facts(tx, since))
    names = {*ctx.cell.providers, *launches, *(n.offer.provider for n in ctx.view.all())}
    return [
        rows_history.provider_item(ctx, n, launches.get(n, {}), health.get(n, {}))
        for n in sorted(names)
    ]


async def _faults(ctx: Ctx, q: Query) -> list[dict[str, Any]]:
    since = 0.0 if q.everything else ctx.now - q.window_s
    rows = await ctx.cell.store.run(
        lambda tx: queries.faults(tx, node_id=q.node, since=since, limit=10_000)
    )
    return rows_history.fault_items(rows)


async def _policies(ctx: Ctx, _q: Query) -> list[dict[str, Any]]:
    rows = await ctx.cell.store.run(rows_history.policy_rows)
    return [rows_history.policy_item(ctx, r) for r in rows if not r["deleted"]]


def _sync(make: Callable[[Ctx], list[dict[str, Any]]]) -> Gather:
    async def gather(ctx: Ctx, _q: Query) -> list[dict[str, Any]]:
        return make(ctx)

    return gather


def _slots(ctx: Ctx) -> list[dict[str, Any]]:
    return [rows_fleet.slot_item(ctx, s) for s in ctx.view.slots]


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("pools", "pool", "Pool", c.POOLS, _pools),
        Kind("nodes", "node", "Node", c.NODES, _nodes),
        Kind("launches", "launch", "Launch", c.LAUNCHES, _launches),
        Kind("offers", "offer", "Offer", c.OFFERS, _sync(rows_fleet.offer_items)),
        Kind("providers", "provider", "Provider", c.PROVIDERS, _providers),
        Kind("slots", "slot", "Slot", c.SLOTS, _sync(_slots)),
        Kind("events", "event", "Event", c.EVENTS, _events, tail=True),
        Kind("faults", "fault", "Fault", c.FAULTS, _faults),
        Kind("policies", "policy", "Policy", c.POLICIES, _policies),
        Kind("batches", "batch", "Batch", c.BATCHES, _sync(rows_system.batch_items)),
        Kind("guards", "guard", "Guard", c.GUARDS, _sync(rows_system.guard_items)),
        Kind("tasks", "task", "Task", c.TASKS, _sync(rows_system.task_items)),
        Kind("plan", "plan", "Plan", c.PLANS, _sync(rows_system.plan_items)),
    )
}


async def answer(ctx: Ctx, kind: Kind, q: Query) -> dict[str, Any]:
    """The list answer: columns, items with rendered cells, counts, staleness, next page."""
    check(ctx, q)
    test = parse(q.where, kind.types) if q.where.strip() else None
    order = _order(kind, q.sort_by)
    every = await kind.gather(ctx, q)
    items = [i for i in every if _fits(i, q) and (test is None or test(i))]
    _names_exist(kind, q, items, every)
    items.sort(key=order)
    total = len(items)
    page, token = _page(kind, q, items, order)
    today = (say.rfc3339(ctx.now) or "")[:10]
    return {
        "apiVersion": API_VERSION, "kind": f"{kind.title}List",
        "columns": [col.head() for col in kind.columns],
        "items": [render(kind, i, today) for i in page], "as_of": say.rfc3339(ctx.now),
        "observed": ctx.observed(), "count": len(page), "total": total,
        "next_page_token": token, "version": ctx.version(), "frozen": ctx.view.frozen,
    }  # fmt: skip


def render(kind: Kind, item: dict[str, Any], today: str) -> dict[str, Any]:
    """An item as it leaves: public fields and one text per column."""
    if isinstance(item, rows_fleet.Lazy):
        item.complete()
    item["_today"] = today
    cells = [col.cell(item) for col in kind.columns]
    return {**{k: v for k, v in item.items() if k[0] != "_"}, "cells": cells}


def check(ctx: Ctx, q: Query) -> None:
    """Names in a query must exist: a typo must not look like an empty list."""
    if q.pool:
        pools = {*ctx.view.pools, *ctx.view.by_pool, *ctx.view.deleted_pools}
        if q.pool not in pools:
            raise unknown("pool", q.pool, nearest(q.pool, pools), fix="fleetctl get pools")
    if q.provider:
        providers = {*ctx.cell.providers, *(n.offer.provider for n in ctx.view.nodes.values())}
        if q.provider not in providers:
            near = nearest(q.provider, providers)
            raise unknown("provider", q.provider, near, fix="fleetctl get providers")
    if q.reason and q.reason not in set(Reason):
        near = nearest(q.reason, list(Reason))
        raise unknown("reason", q.reason, near, fix=f"reasons: {', '.join(sorted(Reason))}")


def _fits(item: Mapping[str, Any], q: Query) -> bool:
    """Names and words of the query; asks ``in`` first, so that no lazy item is completed."""
    if q.names and item["name"] not in q.names:
        return False
    for key, wanted in (("pool", q.pool), ("provider", q.provider), ("reason", q.reason)):
        if wanted and key in item and item[key] != wanted:
            return False
    if q.pool and "pools" in item and q.pool not in item["pools"]:
        return False
    if q.state:
        have = next((item[k] for k in ("state", "status", "outcome") if k in item), "")
        if str(have).lower() not in q.state.lower().split(","):
            return False
    return not q.node or q.node in [item[k] for k in ("node", "object", "name") if k in item]


STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "nodes": tuple(State),
    "slots": (*State, "EMPTY"),
    "pools": ("ok", "filling", "short", "held", "deleting"),
    "offers": ("open", "cooling", "probing", "held", "unconfigured"),
    "providers": ("ok", "cooling", "failing", "blind", "held"),
    "faults": ("open", "cleared"),
    "batches": ("waiting", "sent"),
    "tasks": ("ok", "late", "failing"),
}


def check_state(kind: Kind, state: str) -> None:
    """Every word of ``state`` is one of the kind's, else 404 with the nearest."""
    words = STATES.get(kind.name)
    if not state or words is None:
        return
    known = {w.lower(): w for w in words}
    for word in state.lower().split(","):
        if word not in known:
            near = nearest(word, list(words))
            raise unknown("state", word, near, fix=f"states: {', '.join(words)}")


def _names_exist(
    kind: Kind, q: Query, items: Sequence[Mapping[str, Any]], every: Sequence[Mapping[str, Any]]
) -> None:  # fmt: skip
    have = {i["name"] for i in items}
    for name in q.names:
        if name not in have:
            near = nearest(name, {i["name"] for i in every} - {name})
            raise unknown(kind.one, name, near, fix=f"fleetctl get {kind.name}")


class _Down:
    """A value in descending order."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Down) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)


Order = Callable[[Mapping[str, Any]], Any]


def _order(kind: Kind, sort_by: str) -> Order:
    """The sort key: trouble first then name, or a column (``-COLUMN`` down), nulls last."""
    if not sort_by:
        return lambda i: (i.get("_pool", ""), i["_rank"], i["name"]) if kind.name == "plan" else (
            "", i["_rank"], i["name"])  # fmt: skip
    down, wanted = sort_by.startswith("-"), sort_by.lstrip("-+")
    by_name = {col.name.lower(): col for col in kind.columns}
    by_key = {col.key: col for col in kind.columns}
    col = by_name.get(wanted.lower()) or by_key.get(wanted.lower().replace("-", "_"))
    if col is None:
        names = [x.name for x in kind.columns]
        near = nearest(wanted, [*names, *by_key])
        raise unknown("column", wanted, near, fix=f"columns: {', '.join(names)}")
    key = col.key

    def order(item: Mapping[str, Any]) -> Any:
        value = item[key]
        if value is None:
            return (1, "", item["name"])
        if isinstance(value, list | dict):
            value = str(value)
        return (0, _Down(value) if down else value, item["name"])

    return order


def _page(kind: Kind, q: Query, items: list[dict[str, Any]], order: Order
          ) -> tuple[list[dict[str, Any]], str]:  # fmt: skip
    """One page and the token of the next. The token names the last item, so that items which
    come or go in front of it neither repeat nor hide others.
    """
    limit = max(1, min(q.limit, LIMIT_MAX))
    if kind.tail and not q.everything and q.after is None and not q.page_token:
        return items[-limit:], ""
    start = _start(q, items, order) if q.page_token else 0
    page = items[start : start + limit]
    if start + limit >= len(items) or not page:
        return page, ""
    last = order(page[-1])
    parts = [v.value if isinstance(v, _Down) else v for v in last]
    raw = json.dumps([q.digest, parts], ensure_ascii=False).encode()
    return page, base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _start(q: Query, items: list[dict[str, Any]], order: Order) -> int:
    try:
        text = q.page_token + "=" * (-len(q.page_token) % 4)
        digest, parts = json.loads(base64.urlsafe_b64decode(text.encode()))
        down = q.sort_by.startswith("-") and parts[0] == 0
        last = (parts[0], _Down(parts[1]) if down else parts[1], parts[2])
        if digest != q.digest:
            raise Refusal(422, "bad_page_token", "the page token belongs to another query",
                          fix="ask for the first page again")  # fmt: skip
        return next((i for i, item in enumerate(items) if last < order(item)), len(items))
    except (ValueError, TypeError, IndexError, KeyError) as error:
        raise Refusal(422, "bad_page_token", "the page token cannot be read",
                      why=type(error).__name__,
                      fix="ask for the first page again") from None  # fmt: skip

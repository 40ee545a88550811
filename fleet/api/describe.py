"""Describe: everything about one object. Order: verdict, what happens next, then facts.

Invariant: the lines that people read are made from the same answer that ``-o json`` prints;
nothing is cut silently and no secret is in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import yaml

from fleet.api import rows_fleet, rows_history, say
from fleet.api.ctx import Ctx
from fleet.api.describe_node import describe_node
from fleet.api.lists import API_VERSION, KINDS, Kind, Query, render
from fleet.api.lists import answer as list_answer
from fleet.api.problems import Refusal, unknown
from fleet.api.sections import Section, aligned, event_lines, section
from fleet.store import queries
from policies.text import nearest

Page = tuple[dict[str, Any], str, list[Section]]
EVENTS_SHOWN: Final = 10


async def describe(ctx: Ctx, kind_name: str, name: str, window_s: float) -> dict[str, Any]:
    """The page of one object: its item, a headline and sections of lines."""
    kind = KINDS.get(kind_name)
    if kind is None:
        raise unknown("kind", kind_name, nearest(kind_name, KINDS), fix="fleetctl get")
    work = _PAGES.get(kind_name)
    if work is not None:
        item, head, sections = await work(ctx, name, window_s)
    else:
        item, head, sections = await _plain(ctx, kind, name)
    shown = render(kind, item, (say.rfc3339(ctx.now) or "")[:10])
    shown.pop("cells")
    shown = public(shown)
    return {
        "apiVersion": API_VERSION, "kind": kind.title, "name": item["name"], "item": shown,
        "head": head, "sections": [s.json() for s in sections], "as_of": say.rfc3339(ctx.now),
        "observed": ctx.observed(), "version": ctx.version(),
    }  # fmt: skip


def public(value: Any) -> Any:
    """``value`` without the fields that only lists use (their names begin with ``_``)."""
    if isinstance(value, dict):
        return {k: public(v) for k, v in value.items() if not str(k).startswith("_")}
    return [public(v) for v in value] if isinstance(value, list | tuple) else value


async def _events(ctx: Ctx, *, object_id: str = "", pool: str = "", kind: str = ""
                  ) -> list[dict[str, Any]]:  # fmt: skip
    rows = await ctx.cell.store.run(
        lambda tx: queries.events(tx, object_id=object_id, pool=pool, kind=kind,
                                  limit=EVENTS_SHOWN)
    )  # fmt: skip
    return [rows_history.event_item(r) for r in rows]


async def _plain(ctx: Ctx, kind: Kind, name: str) -> Page:
    """Kinds without a page of their own: every column as a line."""
    items = {str(i["name"]): i for i in await kind.gather(ctx, Query(names=(name,)))}
    if name not in items:
        near = nearest(name, items)
        raise unknown(kind.one, name, near, fix=f"fleetctl get {kind.name}")
    item = items[name]
    item["_today"] = ""
    lines = [f"{col.name.lower():16} {col.cell(item)}" for col in kind.columns]
    sections = [section("FACTS", lines)]
    if kind.name == "events" and item["evidence"]:
        pairs = [f"{k:16} {v}" for k, v in item["evidence"].items()]
        sections.append(section("EVIDENCE", pairs))
    return item, f"{kind.one} {name}", sections


async def _pool(ctx: Ctx, name: str, _window_s: float) -> Page:
    items = {i["name"]: i for i in await KINDS["pools"].gather(ctx, Query())}
    if name not in items:
        raise unknown("pool", name, nearest(name, items), fix="fleetctl get pools")
    item = items[name]
    item["events"] = await _events(ctx, pool=name)
    plan = await list_answer(ctx, KINDS["plan"], Query(pool=name))
    item["plan"] = [{k: v for k, v in i.items() if k != "cells"} for i in plan["items"]]
    states: dict[str, int] = {}
    for node in ctx.view.pool_nodes(name):
        states[str(node.state)] = states.get(str(node.state), 0) + 1
    item["states"] = states
    budgets = {g: w for g, w in ctx.cell.guards.items() if g.startswith(f"budget:{name}/")}
    item["guards"] = budgets
    offers = aligned(
        [f"{i['rank']:2d}", say.where(i["provider"], i["region"], i["zone"]), i["instance_type"],
         say.market(i["market"]), f"{i['nodes']} nodes", i["reason_text"]]
        for i in item["plan"]
    )  # fmt: skip
    counts = (
        f"{item['serving']} of {item['nodes_wanted']} in service, {item['spares']} of "
        f"{item['spares_wanted']} spares, {item['ill']} ill, {item['in_flight']} on their way"
    )
    money = f"${say.usd(item['spend_usd_hour'])}/h list price"
    if item["unpriced_nodes"]:
        money += f"; {item['unpriced_nodes']} nodes have no price"
    sections = [
        section("WHY", [item["reason_text"], *budgets.values()]),
        section("NEXT", _pool_next(item)),
        section("NODES", [counts, "  ".join(f"{k} {v}" for k, v in sorted(states.items()))]),
        section("OFFERS", offers),
        section("MONEY", [money]),
        section("WHO", [_applied(item)]),
        section("EVENTS", event_lines(item["events"], ctx.now, name)),
    ]
    gpus = f"{item['gpus_per_node']}×{item['gpu']}"
    return item, f"{name}   {item['state_text']}   {gpus} · {item['image']}", sections


def _applied(item: Mapping[str, Any]) -> str:
    source = item["source"] or "the API"
    by = item["applied_by"] or "?"
    return f"version {item['version']} applied {_at(item['applied_at'])} by {by} from {source}"


def _pool_next(item: Mapping[str, Any]) -> list[str]:
    if item["next_at"]:
        return [f"an offer may be tried again at {_at(item['next_at'])}"]
    if item["in_flight"]:
        return [f"{item['in_flight']} launches become READY or give their reason"]
    return []


def _at(text: str | None) -> str:
    return f"{text[:10]} {text[11:19]}Z" if text else "-"


async def _provider(ctx: Ctx, name: str, window_s: float) -> Page:
    query = Query(window_s=window_s)
    items = {i["name"]: i for i in await KINDS["providers"].gather(ctx, query)}
    if name not in items:
        raise unknown("provider", name, nearest(name, items), fix="fleetctl get providers")
    item = items[name]
    item["events"] = await _events(ctx, object_id=name)
    offers = [o for o in rows_fleet.offer_items(ctx) if o["provider"] == name]
    item["offers"] = [{k: v for k, v in o.items() if k[0] != "_"} for o in offers]
    lines = aligned(
        [say.where(name, o["region"], o["zone"]), o["instance_type"], say.market(o["market"]),
         o["status_text"], f"{o['nodes']} nodes", o["reason_text"]]
        for o in offers
    )  # fmt: skip
    listed = f"last complete list {say.age(item['list_age_s'])} ago"
    if item["list_error"]:
        listed += f"; since then: {item['list_error']}"
    sections = [
        section("WHY", [item["reason_text"] or "nothing holds it back"]),
        section("LAUNCHES", _kept(item)), section("FAULTS", _faults(item)),
        section("NODES", [_owned(item), f"${say.usd(item['spend_usd_hour'])}/h list price"]),
        section("LISTS", [listed]), section("OFFERS", lines),
        section("EVENTS", event_lines(item["events"], ctx.now, name)),
    ]  # fmt: skip
    return item, f"{name}   {item['status_text']}   over {say.dur(window_s)}", sections


def _owned(item: Mapping[str, Any]) -> str:
    return f"{item['nodes']} nodes, {item['ready']} READY, {item['in_flight']} on their way"


def _kept(item: Mapping[str, Any]) -> list[str]:
    """What a provider accepted, and what became of it."""
    accept, ready = say.percent(item["accept_share"]), say.percent(item["ready_share"])
    judged = f"{item['became_ready']} of {item['judged']} accepted became READY"
    return [
        f"{item['asked']} asked, {item['accepted']} accepted ({accept})",
        f"{judged} ({ready}{_interval(item)})",
        ", ".join(f"{k} {v}" for k, v in item["outcomes"].items()),
        f"boot p50 {say.dur(item['boot_p50_s'])}, p95 {say.dur(item['boot_p95_s'])}",
    ]


def _faults(item: Mapping[str, Any]) -> list[str]:
    """Fault events against GPU time, and the hours that had critical ones."""
    counts = ", ".join(
        f"{item[key]} {word}"
        for key, word in (("fatal", "critical"), ("warning", "warning"), ("application",) * 2)
    )
    rate = say.figure(item["critical_per_gpu_hour"])
    hours = [
        f"{h['hour'][:13]}h  {h['critical']} in {h['gpu_hours']:.1f} GPU-hours"
        for h in item["hours"][-12:] if h["critical"]
    ]  # fmt: skip
    total = f"{counts} in {say.figure(item['gpu_hours'])} GPU-hours"
    return [f"{total}: {rate} critical per GPU-hour", *hours]


def _interval(item: Mapping[str, Any]) -> str:
    if not item["ready_share_95"]:
        return ""
    low, high = (100 * v for v in item["ready_share_95"])
    return f", 95 % between {low:.1f} and {high:.1f}"


async def _offer(ctx: Ctx, name: str, window_s: float) -> Page:
    items = {i["name"]: i for i in rows_fleet.offer_items(ctx)}
    if name not in items:
        raise unknown("offer", name, nearest(name, items), fix="fleetctl get offers -o name")
    item = items[name]
    item["events"] = await _events(ctx, object_id=name)
    rows = await ctx.cell.store.run(
        lambda tx: rows_history.launch_rows(tx, ctx.now - window_s, provider=item["provider"])
    )
    launches = [i for i in rows_history.launch_items(ctx, rows) if i["offer"] == name][:10]
    item["launches"] = [{k: v for k, v in i.items() if k[0] != "_"} for i in launches]
    until = f"until {_at(item['until'])}" if item["until"] else ""
    sections = [
        section("WHY", [item["reason_text"] or "nothing rests on it", until]),
        section("POOLS", [", ".join(item["pools"])]),
        section("NODES", [_owned(item)]),
        section("MONEY", [f"${say.usd(item['price_usd_hour'])}/h list price"]),
        section("LAUNCHES", [_launch_line(i) for i in launches]),
        section("EVENTS", event_lines(item["events"], ctx.now, name)),
    ]  # fmt: skip
    return item, f"{name}   {item['status_text']}", sections


def _launch_line(item: Mapping[str, Any]) -> str:
    return (f"{_at(item['requested_at'])}  {item['name'][:10]}  {item['n']}  "
            f"{item['outcome_text']}  {item['reason_text']}").rstrip()  # fmt: skip


async def _launch(ctx: Ctx, name: str, _window_s: float) -> Page:
    """A launch by its token, by the beginning of it, or by a node it made."""
    node = ctx.view.nodes.get(name)
    token = node.token if node else name
    if len(token) < 4:
        raise Refusal(422, "name_too_short", "give at least four characters of the launch",
                      fix="fleetctl get launches -o name")  # fmt: skip
    rows = await ctx.cell.store.run(lambda tx: rows_history.launch_rows(tx, 0.0, token=token))
    items = rows_history.launch_items(ctx, rows)
    if len(items) != 1:
        near = [i["name"] for i in items[:5]]
        raise unknown("launch", name, near, fix="fleetctl get launches -o name")
    item = items[0]
    lines = aligned(
        [r.id, r.outcome or "…", r.instance_id or "-", r.message]
        for r in sorted(rows, key=lambda r: r.id)
    )
    batch = ctx.view.batches.get(item["token"])
    if batch is not None:
        item["attempts"], item["last_error"] = batch.attempts, batch.last_error
        lines.append(f"not settled: {batch.attempts} calls sent; {batch.last_error}")
    phases = (
        f"requested {_at(item['requested_at'])}; running after {say.dur(item['request_s'])}, "
        f"report after {say.dur(item['boot_s'])} more, gate {say.dur(item['gate_s'])}, "
        f"total {say.dur(item['total_s'])}"
    )
    sections = [
        section("WHY", [item["reason_text"]]), section("PHASES", [phases]),
        section("NODES", lines),
        section("CLOUD", [f"code {item['code'] or '-'}, request {item['request_id'] or '-'}"]),
        section("IMAGE", [f"{item['image']} ({item['image_id']})"]),
    ]  # fmt: skip
    head = f"{item['token']}   {item['outcome_text']}   {item['n']} × {item['offer']}"
    return item, head, sections


async def _policy(ctx: Ctx, name: str, _window_s: float) -> Page:
    """A policy by ``kind/name`` (or a name that only one kind has), with defaults filled in."""
    kind, _, short = name.rpartition("/")
    rows = [r for r in await ctx.cell.store.run(rows_history.policy_rows) if not r["deleted"]]
    found = [r for r in rows if r["name"] == short and kind.lower() in ("", str(r["kind"]).lower())]
    names = [f"{r['kind'].lower()}/{r['name']}" for r in rows]
    if len(found) != 1:
        near = [f"{r['kind'].lower()}/{r['name']}" for r in found] or list(nearest(name, names))
        raise unknown("policy", name, near, fix="fleetctl get policies")
    item = rows_history.policy_item(ctx, found[0])
    text = yaml.safe_dump(item["document"], sort_keys=False, allow_unicode=True)
    sections = [
        section("WHO", [_applied(item)]),
        section("TEXT", text.splitlines()),
    ]  # fmt: skip
    return item, f"{item['kind']} {item['name']}   version {item['version']}", sections


_PAGES: Final[Mapping[str, Callable[[Ctx, str, float], Awaitable[Page]]]] = {
    "nodes": describe_node, "pools": _pool, "providers": _provider, "offers": _offer,
    "launches": _launch, "policies": _policy,
}  # fmt: skip

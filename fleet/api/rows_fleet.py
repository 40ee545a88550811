"""Items of what lives now: nodes, pools, slots, offers, batches, guards, tasks, the last plan.

Invariant: an item has every field its columns name (a test walks them), raw and with its unit in
the name; text for people is beside it under ``…_text``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fleet import plan as pure
from fleet.api import say
from fleet.api.ctx import BILLED, Ctx
from fleet.model import IN_FLIGHT, CheckStatus, Node, Offer, Reason, State
from fleet.plan import FOREVER, is_spare
from fleet.watch import Pulse

_NO_PULSE: Final = Pulse()
_HEALTH_REASONS: Final = (Reason.FATAL_FAULT, Reason.WARNING_PERSISTS, Reason.AGENT_SILENT)
#: Trouble first: where a state stands in a list.
RANK: Final = {
    State.DRAINING: 0, State.SUSPECT: 1, State.QUARANTINED: 2, State.TERMINATING: 3,
    State.CHECKING: 4, State.BOOTING: 4, State.LAUNCHING: 4, State.REQUESTED: 4, State.READY: 6,
    State.TERMINATED: 9,
}  # fmt: skip
_WAITS: Final = {
    State.REQUESTED: "waiting to be sent",
    State.BOOTING: "waiting for first report",
    State.CHECKING: "gate judging",
}


_ROUNDED: Final = ("state_s", "age_s", "deadline_s", "boot_s")


class Lazy(dict[str, Any]):
    """An item whose dear half is made when first asked for.

    Of 20,000 nodes a page shows a hundred: filters and order mostly need the cheap half.
    """

    def __init__(self, cheap: dict[str, Any], rest: Callable[[], dict[str, Any]]) -> None:
        super().__init__(cheap)
        self._rest: Callable[[], dict[str, Any]] | None = rest

    def complete(self) -> None:
        """Make the rest now."""
        if self._rest is not None:
            rest, self._rest = self._rest, None
            self.update(rest())
            for key in _ROUNDED:  # rounding right is dear as well
                self[key] = _r(self[key])

    def __missing__(self, key: str) -> Any:
        if self._rest is None:
            raise KeyError(key)
        self.complete()
        return self[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The field, made if need be."""
        if key not in self:
            self.complete()
        return super().get(key, default)


def node_item(ctx: Ctx, node: Node) -> Lazy:
    """A live or ended node as an item."""
    ended = node.state is State.TERMINATED
    boot_s = None
    if node.ready_at is not None:
        boot_s = node.ready_at - (node.requested_at or node.created_at)
    o = node.offer
    end = node.state_since if ended else ctx.now
    cheap = {
        "name": node.id, "pool": node.pool, "state": str(node.state),
        "state_s": ctx.now - node.state_since, "gpu": o.gpu, "gpus": o.gpus,
        "provider": o.provider, "region": o.region, "zone": node.zone or o.zone,
        "instance_type": o.instance_type, "market": str(o.market), "image": node.image,
        "image_id": node.image_id, "price_usd_hour": ctx.price(o),
        "age_s": end - node.created_at, "reason": str(node.reason), "message": node.message,
        "slot": node.slot, "last_slot": node.last_slot, "instance_id": node.instance_id,
        "boot_s": boot_s, "boot_id": node.boot_id, "cordoned": node.cordoned,
        "cordoned_by": node.cordoned_by, "cordon_reason": node.cordon_reason, "wish": node.wish,
        "wish_by": node.wish_by, "wish_reason": node.wish_reason,
        "actor": node.wish_by or node.cordoned_by, "launch": node.token, "fault": node.fault,
        "deadline_s": None if node.deadline_at is None else node.deadline_at - ctx.now,
        "_rank": RANK[node.state] - (node.cordoned and node.slot == ""),
    }  # fmt: skip
    return Lazy(cheap, lambda: _dear(ctx, node))


def _dear(ctx: Ctx, node: Node) -> dict[str, Any]:
    """What of a node costs: times as text, what its agent says, sentences."""
    pulse = ctx.cell.watch.pulses.get(node.id, _NO_PULSE)
    code, text = health(ctx, node, pulse)
    report = pulse.last_report or pulse.gate_report
    silent = None if node.state is State.TERMINATED else ctx.silent_s(node)
    times = ("state_since", "created_at", "requested_at", "accepted_at", "running_at",
             "first_report_at", "ready_at", "deadline_at")  # fmt: skip
    return {
        **{name: say.rfc3339(getattr(node, name)) for name in times},
        "health": code, "health_text": text, "reason_text": reason(ctx, node),
        "gate": _gate(pulse), "driver": report.driver if report else "",
        "last_report_s": _r(silent), "last_report_at": say.rfc3339(pulse.last_at),
    }  # fmt: skip


def _r(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _gate(pulse: Pulse) -> str:
    report = pulse.gate_report
    if report is None:
        return ""
    passed = sum(c.status is CheckStatus.PASS for c in report.checks)
    return f"{passed}/{len(report.checks)}"


def health(ctx: Ctx, node: Node, pulse: Pulse) -> tuple[str, str]:
    """The HEALTH column: a word for programs; shape and word for people (1.4.1 of WCAG)."""
    state = node.state
    if state in IN_FLIGHT:
        limit = None if node.deadline_at is None else node.deadline_at - node.state_since
        return "starting", f"… {say.dur(ctx.now - node.state_since)}/{say.dur(limit)}"
    if state is State.TERMINATED:
        return "ended", "-"
    if state is State.TERMINATING:
        return "ending", f"… {say.dur(ctx.now - node.state_since)}"
    if pulse.fatal is not None or (node.fault and node.reason is Reason.FATAL_FAULT):
        return "fatal", "✗ fatal"
    if state is State.QUARANTINED:
        return "kept", "■ kept"
    silent = ctx.silent_s(node)
    known = ctx.cell.rules(node.pool)
    limit_s = known.health.spec.report.silent_s if known else 90.0
    if silent is not None and silent >= limit_s * 0.75:
        if f"blind:{node.offer.provider}" in ctx.cell.guards:
            return "unknown", f"? blind {say.age(silent)}"
        return "silent", f"▲ silent {say.age(silent)}"
    if pulse.warning is not None:
        return "warning", "▲ warning"
    if pulse.rebooted:
        return "rebooted", "▲ rebooted"
    if state is State.DRAINING:
        return "leaving", "… leaving"
    if silent is None:
        return "unknown", "? no report yet"
    return "ok", "● ok"


def reason(ctx: Ctx, node: Node) -> str:
    """The REASON column: one sentence with the number and the limit it was held against."""
    state = node.state
    if state is State.READY:
        return _ready(ctx, node)
    if state is State.LAUNCHING:
        return "accepted, not running yet" if node.instance_id else "sent, not listed yet"
    if state in _WAITS:
        held = ctx.resting(f"provider:{node.offer.provider}")
        if state is State.REQUESTED and (held or ctx.cell.may_act()):
            return f"held: {ctx.cell.may_act() or held[0].message}"
        return _WAITS[state]
    text = f"{node.reason}: {node.message}" if node.message else str(node.reason)
    if state is State.SUSPECT and node.reason is Reason.AGENT_SILENT:
        silent = ctx.silent_s(node)
        known = ctx.cell.rules(node.pool)
        if silent is not None and known is not None:
            limit = known.rules(node.offer.instance_type).replace_silent_s
            return f"agent_silent: {silent:.0f} s of {limit:.0f} s"
    return text


def _ready(ctx: Ctx, node: Node) -> str:
    serves = f"in service: {node.slot}" if node.slot else ""
    if node.wish:
        want = f"{node.wish} asked by {node.wish_by}: {node.wish_reason}"
        wait = ", waits for a spare" if node.wish == "replace" and node.slot else ""
        return f"{want}{wait}"
    if node.cordoned:
        cordon = f"cordoned by {node.cordoned_by}: {node.cordon_reason}"
        return f"{serves}; {cordon}" if serves else cordon
    if serves:
        return serves
    number, wanted = ctx.spare_rank.get(node.id, (0, 0))
    return f"spare {number} of {wanted}"


def pool_item(ctx: Ctx, name: str, row: dict[str, Any]) -> dict[str, Any]:
    """An applied pool (or a deleted one that still has nodes) as an item."""
    pool = ctx.view.pools.get(name)
    nodes = ctx.view.pool_nodes(name)
    serving = sum(bool(n.slot) and n.state in (State.READY, State.SUSPECT) for n in nodes)
    wanted = pool.spec.nodes if pool else 0
    last = ctx.daemon.plan.last.get(name)
    planned = last.plan if last else pure.Plan()
    billed = [ctx.price(n.offer) for n in nodes if n.state in BILLED]
    spares = sum(is_spare(n) for n in nodes)
    counts = {
        "serving": serving, "nodes_wanted": wanted, "spares": spares,
        "spares_wanted": ctx.spares_wanted(name), "nodes": len(nodes), "short": planned.short,
        "ill": sum(n.state is State.SUSPECT or bool(n.fault) for n in nodes),
        "in_flight": sum(n.state in IN_FLIGHT for n in nodes),
        "leaving": sum(n.state in (State.DRAINING, State.TERMINATING) for n in nodes),
    }  # fmt: skip
    state, text, code, why = _pool_state(ctx, name, counts, planned, deleted=pool is None)
    return {
        "name": name, "state": state, "state_text": text, "reason": code, "reason_text": why,
        **counts, "spend_usd_hour": round(sum(p for p in billed if p is not None), 2),
        "unpriced_nodes": sum(p is None for p in billed),
        "gpu": str(pool.spec.gpu) if pool else "", "image": pool.spec.image if pool else "",
        "gpus_per_node": pool.spec.gpus_per_node if pool else 0,
        "health_policy": pool.spec.health if pool else "",
        "next_at": say.rfc3339(planned.next_at), "version": row.get("version", 0),
        "applied_at": say.rfc3339(row.get("applied_at")), "applied_by": row.get("applied_by", ""),
        "source": row.get("source", ""),
        "_rank": {"deleting": 2, "held": 0, "short": 1, "filling": 3}.get(state, 5),
    }  # fmt: skip


def _pool_state(
    ctx: Ctx, name: str, counts: dict[str, int], planned: pure.Plan, *, deleted: bool
) -> tuple[str, str, str, str]:
    """(state, its text, reason code, reason sentence) of a pool."""
    if deleted:
        return "deleting", "… deleting", str(Reason.POOL_DELETED), f"{counts['nodes']} nodes leave"
    held = ctx.resting(f"pool:{name}")
    if held:
        return "held", "■ held", str(held[0].reason), held[0].message
    budget = [w for g, w in ctx.cell.guards.items() if g.startswith(f"budget:{name}/")]
    missing = counts["nodes_wanted"] - counts["serving"]
    why = ctx.view.frozen
    if planned.blocked:
        why = planned.blocked
        if planned.tried:
            offer, first = planned.tried[0]
            why += f"; {offer}: {first}"
    elif budget:
        why = f"budget: {budget[0]}"
    code = str(Reason.NO_OFFER if planned.blocked else Reason.BUDGET_EXHAUSTED if budget else "")
    if missing > 0:
        return "short", f"▲ short {missing}", code or str(Reason.PLAN_SHORT), why or "launching"
    if counts["spares"] < counts["spares_wanted"] or counts["in_flight"]:
        return "filling", "… filling", code or str(Reason.SPARES_SHORT), why or "refilling spares"
    return "ok", "● ok", code, why or "-"


def slot_item(ctx: Ctx, name: str) -> dict[str, Any]:
    """A consumer's slot as an item."""
    slot = ctx.view.slots[name]
    node = ctx.view.nodes.get(slot.node_id) if slot.node_id else None
    why = reason(ctx, node) if node else "no READY node is free"
    o = node.offer if node else None
    zone = (node.zone or o.zone) if node and o else ""
    return {
        "name": name, "pool": slot.pool, "node": slot.node_id or "",
        "state": str(node.state) if node else "EMPTY", "since": say.rfc3339(slot.since),
        "since_s": _r(ctx.now - slot.since), "moves": slot.moves, "zone": zone,
        "where": say.where(o.provider, o.region, zone) if o else "-",
        "provider": o.provider if o else "", "instance_id": node.instance_id if node else "",
        "reason": "" if node else str(Reason.PLAN_SHORT), "reason_text": why,
        "_rank": 0 if node is None else RANK[node.state] + 1,
    }  # fmt: skip


def offer_items(ctx: Ctx) -> list[dict[str, Any]]:
    """Every offer that a pool names, once, with what rests on it."""
    pools: dict[str, list[str]] = {}
    offers: dict[str, Offer] = {}
    for name, pool in sorted(ctx.view.pools.items()):
        for offer in pool.spec.offer_list():
            offers.setdefault(offer.key, offer)
            pools.setdefault(offer.key, []).append(name)
    by_offer: dict[str, list[Node]] = {}
    for node in ctx.view.nodes.values():
        by_offer.setdefault(node.offer.key, []).append(node)
    return [
        offer_item(ctx, offer, pools[key], by_offer.get(key, [])) for key, offer in offers.items()
    ]


def offer_item(ctx: Ctx, offer: Offer, pools: list[str], nodes: list[Node]) -> dict[str, Any]:
    """One offer as an item; the rest that ends last decides its status."""
    rest = _rest_of(ctx, offer, pools)
    status, text = "open", "● open"
    if rest is not None and rest.until > ctx.now:
        held = rest.until >= FOREVER or rest.scope.startswith("provider:")
        status = "held" if held else "cooling"
        text = "■ held" if held else f"▲ cooling {say.dur(rest.until - ctx.now)}"
    elif rest is not None:
        status, text = "probing", f"◐ probing {rest.allow} at once"
    if offer.provider not in ctx.cell.providers:
        status, text = "unconfigured", "? no provider"
    return {
        "name": offer.key, "provider": offer.provider, "region": offer.region, "zone": offer.zone,
        "instance_type": offer.instance_type, "market": str(offer.market), "gpu": offer.gpu,
        "gpus": offer.gpus, "price_usd_hour": ctx.price(offer), "pools": pools, "status": status,
        "status_text": text, "nodes": len(nodes),
        "ready": sum(n.state is State.READY for n in nodes),
        "in_flight": sum(n.state in IN_FLIGHT for n in nodes),
        "reason": str(rest.reason) if rest else "",
        "reason_text": f"{rest.reason}: {rest.message}" if rest else "",
        "until": say.rfc3339(rest.until) if rest and rest.until < FOREVER else None,
        "failures_in_row": rest.level if rest else 0, "allow": rest.allow if rest else None,
        "_rank": {"held": 0, "cooling": 1, "probing": 2, "unconfigured": 0}.get(status, 5),
    }  # fmt: skip


def _rest_of(ctx: Ctx, offer: Offer, pools: list[str]) -> pure.Rest | None:
    found: list[pure.Rest] = []
    for name in pools:
        image_id = _image_id(ctx, name, offer)
        for scope in pure.scopes(offer, pool=name, image_id=image_id).values():
            if scope in ctx.view.rests:
                found.append(ctx.view.rests[scope])
    return max(found, key=lambda r: r.until, default=None)


def _image_id(ctx: Ctx, pool: str, offer: Offer) -> str:
    spec = ctx.view.pools[pool].spec
    image = ctx.view.images.get(spec.image_family)
    version = image.spec.version(spec.image_version) if image else None
    return (version.artifact(offer.provider, offer.region) or "") if version else ""

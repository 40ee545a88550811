"""The columns of every list: one literal each, so that table, JSON and page say the same.

Invariant: each column names the raw field (``key``) it shows; the field is in every item of its
kind, so no fact exists in only one skin. Priority 0 is shown, 1 with ``-o wide``, 2 by name only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet.api import say

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``show`` gives a cell's text from the item, by default the field itself."""

    name: str
    key: str
    priority: int = 0
    type: str = "text"
    show: Callable[[Item], str] | None = None

    @property
    def align(self) -> str:
        """Numbers to the right."""
        return "right" if self.type == "number" else "left"

    def cell(self, item: Item) -> str:
        """The text of this column for ``item``; ``-`` where there is no value."""
        if self.show is not None:
            return self.show(item)
        value = item[self.key]
        if value is None or value == "":
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def head(self) -> dict[str, Any]:
        """This column as the answer's JSON."""
        return {"name": self.name, "key": self.key, "priority": self.priority,
                "type": self.type, "align": self.align}  # fmt: skip


def _as(form: Callable[[Any], str], key: str) -> Callable[[Item], str]:
    return lambda item: form(item[key])


def text(name: str, key: str, priority: int = 0) -> Column:
    """A column of text."""
    return Column(name, key, priority)


def number(name: str, key: str, priority: int = 0,
           form: Callable[[Any], str] = say.count) -> Column:  # fmt: skip
    """A column of numbers."""
    return Column(name, key, priority, "number", _as(form, key))


def when(name: str, key: str, priority: int = 0) -> Column:
    """A column of times, exact: RFC 3339 without milliseconds."""

    def show(item: Item) -> str:
        value = item[key]
        return "-" if value is None else f"{value[:19]}Z"

    return Column(name, key, priority, "time", show)


def _clock(key: str) -> Callable[[Item], str]:
    """Hours and minutes of today, with the date otherwise."""

    def show(item: Item) -> str:
        value, today = item[key], item["_today"]
        if value is None:
            return "-"
        return value[11:19] if value[:10] == today else f"{value[5:10]} {value[11:16]}"

    return show


def flag(name: str, key: str, priority: int = 2) -> Column:
    """A column of yes and no."""
    return Column(name, key, priority, "bool")


def either(*keys: str) -> Callable[[Item], str]:
    """The first of some fields that says something."""
    return lambda item: next((str(item[k]) for k in keys if item[k]), "-")


def _ready_share(item: Item) -> str:
    if not item["judged"]:
        return "- (0)"
    low, high = (f"{100 * v:.1f}".removesuffix(".0") for v in item["ready_share_95"])
    return f"{say.percent(item['ready_share'])} [{low}–{high}] ({item['judged']})"


def _quantiles(item: Item) -> str:
    if item["boot_p50_s"] is None:
        return "-"
    return f"{say.dur(item['boot_p50_s'])} / {say.dur(item['boot_p95_s'])}"


def _outcomes(item: Item) -> str:
    return ", ".join(f"{k} {v}" for k, v in item["outcomes"].items()) or "-"


NODES: Final = (
    text("NAME", "name"), text("POOL", "pool"), text("STATE", "state"),
    Column("HEALTH", "health", show=lambda i: i["health_text"]),
    Column("GPU", "gpu", show=lambda i: f"{i['gpus']}×{i['gpu']}" if i["gpu"] else "-"),
    Column("WHERE", "zone", show=lambda i: say.where(i["provider"], i["region"], i["zone"])),
    Column("IMAGE", "image", show=lambda i: say.version(i["image"])),
    number("PRICE/H", "price_usd_hour", form=say.usd), number("AGE", "age_s", form=say.age),
    Column("REASON", "reason", show=lambda i: i["reason_text"]),
    text("INSTANCE", "instance_id", 1), text("TYPE", "instance_type", 1),
    Column("MARKET", "market", 1, show=lambda i: say.market(i["market"])),
    number("BOOT", "boot_s", 1, say.dur), text("GATE", "gate", 1), text("DRIVER", "driver", 1),
    number("LAST-REPORT", "last_report_s", 1, say.age), text("ASSIGNED-TO", "slot", 1),
    text("ACTOR", "actor", 1), text("LAUNCH", "launch", 1),
    text("PROVIDER", "provider", 2), text("REGION", "region", 2), number("GPUS", "gpus", 2),
    number("IN-STATE", "state_s", 2, say.dur), number("DEADLINE", "deadline_s", 2, say.dur),
    when("CREATED", "created_at", 2), when("READY-AT", "ready_at", 2),
    text("FAULT", "fault", 2), flag("CORDONED", "cordoned"), text("WISH", "wish", 2),
    text("MESSAGE", "message", 2),
)  # fmt: skip

POOLS: Final = (
    text("NAME", "name"), Column("STATE", "state", show=lambda i: i["state_text"]),
    Column("IN-SERVICE", "serving", type="number",
           show=lambda i: f"{i['serving']}/{i['nodes_wanted']}"),
    Column("SPARES", "spares", type="number",
           show=lambda i: f"{i['spares']}/{i['spares_wanted']}"),
    number("ILL", "ill"), number("COMING", "in_flight"), number("LEAVING", "leaving"),
    Column("GPU", "gpu", show=lambda i: f"{i['gpus_per_node']}×{i['gpu']}"),
    text("IMAGE", "image"), number("$/H", "spend_usd_hour", form=say.usd),
    Column("REASON", "reason", show=lambda i: i["reason_text"]),
    number("MISSING", "short", 1), number("NODES", "nodes", 1), when("NEXT-TRY", "next_at", 1),
    number("VERSION", "version", 1), when("APPLIED", "applied_at", 1), text("BY", "applied_by", 1),
    text("SOURCE", "source", 1), text("HEALTH-POLICY", "health_policy", 2),
    number("GPUS/NODE", "gpus_per_node", 2), number("WANTED", "nodes_wanted", 2),
    number("SPARES-WANTED", "spares_wanted", 2),
)  # fmt: skip

LAUNCHES: Final = (
    Column("LAUNCH", "name", show=lambda i: i["name"][:10]),
    Column("TIME", "requested_at", type="time", show=_clock("requested_at")),
    text("POOL", "pool"),
    Column("OFFER", "offer", show=lambda i: f"{say.where(i['provider'], i['region'], i['zone'])} "
           f"{i['instance_type']} {say.market(i['market'])}"),
    number("N", "n"), Column("OUTCOME", "outcome", show=lambda i: i["outcome_text"]),
    number("REQ→RUN", "request_s", form=say.dur), number("RUN→REPORT", "boot_s", form=say.dur),
    number("GATE", "gate_s", form=say.dur), number("TOTAL", "total_s", form=say.dur),
    Column("IMAGE", "image", show=lambda i: say.version(i["image"])),
    Column("REASON", "reason", show=either("reason_text")),
    text("TOKEN", "token", 1), text("CODE", "code", 1), text("CLOUD-REQUEST", "request_id", 1),
    number("PRICE/H", "price_usd_hour", 1, say.usd),
    Column("NODES", "nodes", 1, show=lambda i: ",".join(i["nodes"])),
    number("READY", "ready", 2), number("ACCEPTED", "accepted", 2),
    text("PROVIDER", "provider", 2), text("REGION", "region", 2), text("ZONE", "zone", 2),
    text("TYPE", "instance_type", 2), text("MARKET", "market", 2),
)  # fmt: skip

OFFERS: Final = (
    Column("OFFER", "name", 1),
    Column("WHERE", "zone", show=lambda i: say.where(i["provider"], i["region"], i["zone"])),
    text("TYPE", "instance_type"),
    Column("MARKET", "market", show=lambda i: say.market(i["market"])),
    Column("STATUS", "status", show=lambda i: i["status_text"]),
    number("PRICE/H", "price_usd_hour", form=say.usd), number("NODES", "nodes"),
    number("READY", "ready"), number("IN-FLIGHT", "in_flight"),
    Column("POOLS", "pools", show=lambda i: ",".join(i["pools"])),
    Column("REASON", "reason", show=either("reason_text")),
    when("UNTIL", "until", 1), number("ROW", "failures_in_row", 1), number("MAY-TRY", "allow", 1),
    Column("GPU", "gpu", 1, show=lambda i: f"{i['gpus']}×{i['gpu']}"),
    text("PROVIDER", "provider", 2), text("REGION", "region", 2),
)  # fmt: skip

EVENTS: Final = (
    Column("TIME", "at", type="time", show=_clock("at")),
    text("KIND", "kind"), text("OBJECT", "object"),
    Column("CHANGE", "dst", show=lambda i: f"{i['src'] or '·'} → {i['dst']}" if i["dst"] else "-"),
    text("REASON", "reason"), text("ACTOR", "actor"), text("MESSAGE", "message"),
    number("ID", "id", 1), text("POOL", "pool", 1), text("SRC", "src", 2), text("NAME", "name", 2),
)  # fmt: skip

PROVIDERS: Final = (
    text("PROVIDER", "name"), Column("STATUS", "status", show=lambda i: i["status_text"]),
    number("NODES", "nodes"), number("READY", "ready"), number("IN-FLIGHT", "in_flight"),
    Column("ACCEPT", "accept_share", type="number",
           show=lambda i: f"{say.percent(i['accept_share'])} ({i['asked']})"),
    Column("READY|ACCEPTED", "ready_share", type="number", show=_ready_share),
    Column("BOOT p50/p95", "boot_p50_s", type="number", show=_quantiles),
    number("FAULTS/1k NODE-H", "faults_per_1k_node_hours", form=say.figure),
    number("CRIT/GPU-H", "critical_per_gpu_hour", form=say.figure),
    number("LIST AGE", "list_age_s", form=say.age), number("$/H", "spend_usd_hour", form=say.usd),
    Column("REASON", "reason", show=either("reason_text")),
    number("LAUNCHES", "launches", 1), Column("OUTCOMES", "outcomes", 1, show=_outcomes),
    number("p95 s", "boot_p95_s", 1, say.count), number("FATAL", "fatal", 1),
    number("WARN", "warning", 1), number("APP", "application", 1),
    number("GPU-H", "gpu_hours", 1, say.figure), number("ACCEPTED", "accepted", 1),
    number("JUDGED", "judged", 2), number("NODE-H", "node_hours", 2, say.figure),
    number("ASKED", "asked", 2), number("GOT READY", "became_ready", 2),
)  # fmt: skip

SLOTS: Final = (
    text("SLOT", "name"), text("POOL", "pool"), text("NODE", "node"), text("STATE", "state"),
    Column("WHERE", "zone", show=lambda i: i["where"]), number("FOR", "since_s", form=say.age),
    number("MOVES", "moves"), Column("REASON", "reason", show=either("reason_text")),
    when("SINCE", "since", 1), text("INSTANCE", "instance_id", 1), text("PROVIDER", "provider", 2),
)  # fmt: skip

POLICIES: Final = (
    text("KIND", "kind"), text("NAME", "name"), number("VERSION", "version"),
    number("AGE", "age_s", form=say.age), text("BY", "applied_by"), text("SOURCE", "source"),
    when("APPLIED", "applied_at", 1),
)  # fmt: skip

TASKS: Final = (
    text("NAME", "name"), Column("STATE", "state", show=lambda i: i["state_text"]),
    number("PERIOD", "period_s", form=say.dur), number("LAST-OK", "last_ok_s", form=say.age),
    number("LATE", "late_s", form=say.dur), number("PASSES", "passes"),
    number("FAILURES", "failures"), number("PASS", "last_pass_s", 0, say.figure),
    Column("REASON", "reason", show=either("reason_text")), number("IN-ROW", "failures_in_row", 1),
)  # fmt: skip

FAULTS: Final = (
    Column("FIRST", "first_at", type="time", show=_clock("first_at")), text("NODE", "node"),
    text("CODE", "code"), Column("GPU", "gpu", type="number"), text("SEVERITY", "severity"),
    number("N", "n"), Column("STATE", "state"), text("MESSAGE", "message"),
    when("LAST", "last_at", 1), text("POOL", "pool", 1), text("PROVIDER", "provider", 1),
    text("REGION", "region", 1), text("BOOT", "boot_id", 1), text("NAME", "name", 2),
)  # fmt: skip

BATCHES: Final = (
    Column("BATCH", "name"), text("POOL", "pool"), text("OFFER", "offer"), number("N", "n"),
    number("AGE", "age_s", form=say.age), number("ATTEMPTS", "attempts"),
    text("STATE", "state"), Column("REASON", "reason", show=either("reason_text")),
    text("PROVIDER", "provider", 1), text("REGION", "region", 1),
)  # fmt: skip

GUARDS: Final = (
    text("GUARD", "name"), text("SCOPE", "scope"),
    Column("REASON", "reason", show=either("reason_text")),
)  # fmt: skip

PLANS: Final = (
    text("POOL", "pool"), number("RANK", "rank"),
    Column("WHERE", "zone", show=lambda i: say.where(i["provider"], i["region"], i["zone"])),
    text("TYPE", "instance_type"),
    Column("MARKET", "market", show=lambda i: say.market(i["market"])),
    number("NODES", "nodes"), number("LAUNCHES", "launches"),
    Column("REASON", "reason", show=either("reason_text")),
    text("OFFER", "name", 1), number("PRICE/H", "price_usd_hour", 1, say.usd),
    text("PROVIDER", "provider", 2), text("REGION", "region", 2),
)  # fmt: skip

"""What Prometheus sees: gauges are read from the cell at each scrape, counters live here.

Invariant: a pool or provider that is gone leaves no ghost; label values are names from policies
and configuration or members of closed sets, so strangers cannot grow the series; counters with a
closed label set exist with 0 from the start; image versions are on nothing.
"""

from __future__ import annotations

import platform
from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from sqlmodel import Session, col, select

from fleet.api.ctx import Ctx
from fleet.daemon import Daemon
from fleet.errors import StoreError
from fleet.model import IN_FLIGHT, Outcome, State
from fleet.plan import is_spare
from fleet.store import rollup
from fleet.store.tables import LaunchHour, OutboxRow

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
NAMESPACE: Final = "fleetd"
#: Boot seconds: 30 s (fast VM) to 30 min (bare metal that is in trouble).
BOOT_S: Final = (30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 450.0, 600.0, 900.0, 1800.0)
CALL_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
OPS: Final = ("create", "delete", "list", "offers")
#: Vendor codes per provider and operation; further ones are counted as "other".
MOST_CODES: Final = 40
#: Causes of refused agent requests, from the door and the listener (closed set).
CAUSES: Final = (
    "unauthorized", "node_ended", "too_long", "too_many", "malformed", "replayed", "join_refused",
    "join_conflict", "wrong_host", "too_many_connections", "slow_headers", "slow_body",
    "slow_reader", "headers_too_large", "ambiguous_framing", "malformed_request",
)  # fmt: skip
GUARDS: Final = ("budget", "blind", "disk", "sweep", "clock", "frozen", "waiting")
HOLD_REASONS: Final = ("unauthorized", "throttled", "other")


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric: the row of docs/metrics.md and what the collector makes it from."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


METRICS: Final = {
    s.name: s
    for s in (
        Spec("build_info", "gauge", ("version", "python"), "1, with what runs as labels"),
        Spec("nodes", "gauge", ("pool", "state"), "Live nodes by pool and state"),
        Spec("pool_wanted", "gauge", ("pool",), "Nodes that should be in service"),
        Spec("pool_serving", "gauge", ("pool",), "Nodes in service: READY with an assignment"),
        Spec("pool_spares", "gauge", ("pool",), "READY nodes that could serve at once"),
        Spec("pool_spares_wanted", "gauge", ("pool",), "Spares that the last plan wanted"),
        Spec("pool_wanted_node_seconds_total", "counter", ("pool",),
             "Node-seconds that should have been in service since start"),
        Spec("pool_missing_node_seconds_total", "counter", ("pool",),
             "Node-seconds of them that were not"),
        Spec("launches_total", "counter", ("provider", "region", "market", "outcome"),
             "Closed launches by outcome, from the hourly rollup"),
        Spec("boot_duration_seconds", "histogram", ("provider",),
             "Seconds from request to READY of launches that got there, from the hourly rollup "
             "(buckets of 8 %)"),
        Spec("launches_in_flight", "gauge", ("provider",), "Launches between request and READY"),
        Spec("provider_request_total", "counter", ("provider", "op", "code"),
             "Calls to the cloud by operation and the cloud's own code; <op>.retry are attempts "
             "that were repeated"),
        Spec("provider_request_duration_seconds", "histogram", ("provider", "op"),
             "Duration of calls to the cloud, waits in line included"),
        Spec("provider_list_age_seconds", "gauge", ("provider",),
             "Age of the last complete list; absent before the first"),
        Spec("provider_held", "gauge", ("provider", "reason"),
             "1 while launches at a provider are held back"),
        Spec("offers_cooling", "gauge", ("provider",), "Offers that rest after a refusal"),
        Spec("nodes_past_deadline", "gauge", ("provider", "state"),
             "Nodes whose state's deadline is over"),
        Spec("orphans", "gauge", ("provider",), "Listed instances of ours without a live node"),
        Spec("spend_usd_per_hour", "gauge", ("pool", "provider"),
             "List price of the instances that exist; those without a known price count 0"),
        Spec("guard_tripped", "gauge", ("guard", "scope"),
             "1 while a guard holds automation back"),
        Spec("task_last_success_timestamp_seconds", "gauge", ("task",),
             "Unix time of the last pass that succeeded; the start before the first"),
        Spec("task_period_seconds", "gauge", ("task",), "Period of a task"),
        Spec("task_passes_total", "counter", ("task",), "Passes begun"),
        Spec("task_failures_total", "counter", ("task",), "Passes that failed"),
        Spec("task_last_pass_seconds", "gauge", ("task",), "Duration of the last pass"),
        Spec("agent_requests_refused_total", "counter", ("cause",),
             "Agent requests refused, by cause"),
        Spec("loop_lag_seconds", "gauge", (), "Largest lateness of the event loop in a minute"),
        Spec("webhooks_waiting", "gauge", (), "Webhooks not delivered yet"),
        Spec("webhooks_dead", "gauge", (), "Webhooks given up"),
        Spec("store_full", "gauge", (), "1 while the disk of the database is full"),
    )
}  # fmt: skip


class Calls:
    """Counts calls to the clouds (``providers.wrap.Recorder``)."""

    def __init__(self) -> None:
        self.total: dict[tuple[str, str, str], int] = {}
        self.seconds: dict[tuple[str, str], list[float]] = {}

    def open(self, provider: str) -> None:
        """Make the series of a configured provider exist."""
        for op in OPS:
            self.total.setdefault((provider, op, "ok"), 0)
            self.seconds.setdefault((provider, op), [0.0] * (len(CALL_S) + 2))

    def call(self, provider: str, op: str, region: str, code: str, seconds: float) -> None:
        """One call ended; ``region`` is not a label (series budget)."""
        key = (provider, op, code)
        if key not in self.total:
            known = sum(1 for p, o, _ in self.total if (p, o) == (provider, op))
            key = key if known < MOST_CODES else (provider, op, "other")
        self.total[key] = self.total.get(key, 0) + 1
        if op in OPS:
            row = self.seconds.setdefault((provider, op), [0.0] * (len(CALL_S) + 2))
            row[sum(1 for bound in CALL_S if seconds > bound)] += 1
            row[-1] += seconds


@dataclass
class Meter:
    """What is measured over time rather than read at a scrape."""

    calls: Calls = field(default_factory=Calls)
    wanted_s: dict[str, float] = field(default_factory=dict)
    missing_s: dict[str, float] = field(default_factory=dict)
    lags: list[float] = field(default_factory=list)

    def beat(self, daemon: Daemon, span_s: float, lag_s: float) -> None:
        """Integrate pools over the last ``span_s`` seconds; note how late the loop was."""
        view = daemon.cell.view
        self.lags = [*self.lags[-59:], lag_s]
        for name, pool in view.pools.items():
            wanted = pool.spec.nodes
            serving = _serving(daemon, name)
            self.wanted_s[name] = self.wanted_s.get(name, 0.0) + span_s * wanted
            gap = max(0, wanted - serving)
            self.missing_s[name] = self.missing_s.get(name, 0.0) + span_s * gap
        for gone in self.wanted_s.keys() - view.pools.keys():
            del self.wanted_s[gone], self.missing_s[gone]


@cache
def version() -> str:
    """The installed version of fleetd."""
    try:
        return installed("fleetd")
    except PackageNotFoundError:
        return "0+source"


def _serving(daemon: Daemon, pool: str) -> int:
    nodes = daemon.cell.view.pool_nodes(pool)
    return sum(1 for n in nodes if n.slot and n.state is State.READY)


class Exposition:
    """The registry of one daemon and its answer to a scrape."""

    def __init__(self, daemon: Daemon, meter: Meter) -> None:
        self._daemon = daemon
        self._history = _History()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Cell(daemon, meter, self._history))
        ProcessCollector(namespace=NAMESPACE, registry=self._registry)

    async def answer(self) -> tuple[int, Mapping[str, str], bytes]:
        """The answer of /metrics; a store that does not answer costs only its own families."""
        cell = self._daemon.cell
        hour = int(cell.clock.now() // rollup.HOUR_S)
        try:
            await cell.store.run(lambda tx: self._history.read(tx, hour))
        except StoreError:
            self._history.stale = True
        return 200, {"content-type": CONTENT_TYPE}, generate_latest(self._registry)


class _History:
    """Counters from the rollup, which survive restarts; hours that are over are read once."""

    def __init__(self) -> None:
        self.launches: Tally[tuple[str, str, str, str]] = Tally()
        self.boots: dict[str, tuple[list[float], float]] = {}
        self.waiting = self.dead = 0
        self.stale = True
        self._past: tuple[Tally[tuple[str, str, str, str]], dict[str, tuple[list[float], float]]]
        self._past = (Tally(), {})
        self._from = 0

    def read(self, tx: Session, hour: int) -> None:
        """Bring everything up to what is committed."""
        rows = list(
            tx.execute(select(LaunchHour).where(col(LaunchHour.hour) >= self._from)).scalars()
        )
        settled = hour - 1  # an hour of leeway for clocks that step back
        self._add(self._past, [r for r in rows if r.hour < settled])
        self._from = max(self._from, settled)
        self.launches = Tally(self._past[0])
        self.boots = {p: (list(counts), total) for p, (counts, total) in self._past[1].items()}
        self._add((self.launches, self.boots), [r for r in rows if r.hour >= settled])
        letters = list(
            tx.execute(select(OutboxRow.dead).where(col(OutboxRow.done_at).is_(None))).scalars()
        )
        self.dead = sum(1 for dead in letters if dead)
        self.waiting = len(letters) - self.dead
        self.stale = False

    @staticmethod
    def _add(
        into: tuple[Tally[tuple[str, str, str, str]], dict[str, tuple[list[float], float]]],
        rows: Iterable[LaunchHour],
    ) -> None:
        launches, boots = into
        for row in rows:
            launches[(row.provider, row.region, row.market, row.outcome)] += row.n
            counts, total = boots.get(row.provider, _no_boots())
            for index, n in rollup.decode(row.boot_hist).items():
                counts[sum(1 for bound in BOOT_S if rollup.middle(index) > bound)] += n
            boots[row.provider] = (counts, total + row.boot_s_sum)


class _Out:
    """The families of one scrape, made from METRICS so that no name is spelled twice."""

    def __init__(self) -> None:
        self.families: dict[str, Metric] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """One sample of a gauge or counter."""
        spec = METRICS[name]
        family = self.families.get(name)
        if family is None:
            make = GaugeMetricFamily if spec.kind == "gauge" else CounterMetricFamily
            family = make(f"{NAMESPACE}_{name}", spec.text, labels=spec.labels)
            self.families[name] = family
        assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
        family.add_metric([str(label) for label in labels], value)

    def histogram(
        self, name: str, bounds: tuple[float, ...], counts: list[float], total: float, *labels: str
    ) -> None:
        """One histogram; ``counts`` has one entry per bound and one beyond."""
        spec = METRICS[name]
        family = self.families.get(name)
        if family is None:
            family = HistogramMetricFamily(f"{NAMESPACE}_{name}", spec.text, labels=spec.labels)
            self.families[name] = family
        assert isinstance(family, HistogramMetricFamily)
        running, buckets = 0.0, []
        for bound, n in zip((*bounds, float("inf")), counts, strict=True):
            running += n
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", running))
        family.add_metric(list(labels), buckets, total)


class _Cell(Collector):
    def __init__(self, daemon: Daemon, meter: Meter, history: _History) -> None:
        self._daemon, self._meter, self._history = daemon, meter, history

    def collect(self) -> Iterable[Metric]:
        """Every family, in the order of METRICS."""
        out = _Out()
        daemon, meter = self._daemon, self._meter
        now = daemon.cell.clock.now()
        out.add("build_info", 1, version(), platform.python_version())
        _pools(out, daemon, meter)
        _nodes(out, daemon, now)
        if not self._history.stale:
            _history(out, self._history, daemon.cell.providers)
        _calls(out, meter.calls)
        _providers(out, daemon, now)
        _self(out, daemon, meter, now)
        return [out.families[name] for name in METRICS if name in out.families]


def _pools(out: _Out, daemon: Daemon, meter: Meter) -> None:
    view = daemon.cell.view
    for name, pool in sorted(view.pools.items()):
        spares = sum(1 for n in view.pool_nodes(name) if is_spare(n))
        last = daemon.plan.last.get(name)
        out.add("pool_wanted", pool.spec.nodes, name)
        out.add("pool_serving", _serving(daemon, name), name)
        out.add("pool_spares", spares, name)
        out.add("pool_spares_wanted", last.spares_wanted if last else 0, name)
        out.add("pool_wanted_node_seconds_total", meter.wanted_s.get(name, 0.0), name)
        out.add("pool_missing_node_seconds_total", meter.missing_s.get(name, 0.0), name)


def _nodes(out: _Out, daemon: Daemon, now: float) -> None:
    view = daemon.cell.view
    states = Tally((n.pool, n.state) for n in view.nodes.values())
    for pool in sorted(view.pools.keys() | {p for p, _ in states}):
        for state in State:
            if state is not State.TERMINATED:
                out.add("nodes", states.get((pool, state), 0), pool, state)
    flying = Tally(n.offer.provider for n in view.nodes.values() if n.state in IN_FLIGHT)
    late = Tally(
        (n.offer.provider, n.state)
        for n in view.nodes.values()
        if n.deadline_at is not None and now > n.deadline_at
    )
    spend: dict[tuple[str, str], float] = {}
    prices = Ctx(daemon)
    for node in view.nodes.values():
        if node.instance_id:
            key = (node.pool, node.offer.provider)
            spend[key] = spend.get(key, 0.0) + (prices.price(node.offer) or 0.0)
    for provider in sorted(daemon.cell.providers):
        out.add("launches_in_flight", flying.get(provider, 0), provider)
        for state in State:
            if state not in (State.READY, State.TERMINATED):
                out.add("nodes_past_deadline", late.get((provider, state), 0), provider, state)
    for (pool, provider), usd in sorted(spend.items()):
        out.add("spend_usd_per_hour", usd, pool, provider)


def _history(out: _Out, history: _History, providers: Iterable[str]) -> None:
    out.add("webhooks_waiting", history.waiting)
    out.add("webhooks_dead", history.dead)
    for provider, region, market in sorted({key[:3] for key in history.launches}):
        for outcome in Outcome:
            n = history.launches.get((provider, region, market, str(outcome)), 0)
            out.add("launches_total", n, provider, region, market, outcome)
    boots = {**{p: _no_boots() for p in providers}, **history.boots}
    for provider, (counts, total) in sorted(boots.items()):
        out.histogram("boot_duration_seconds", BOOT_S, counts, total, provider)


def _no_boots() -> tuple[list[float], float]:
    return [0.0] * (len(BOOT_S) + 1), 0.0


def _calls(out: _Out, calls: Calls) -> None:
    for (provider, op, code), n in sorted(calls.total.items()):
        out.add("provider_request_total", n, provider, op, code)
    for (provider, op), row in sorted(calls.seconds.items()):
        name = "provider_request_duration_seconds"
        out.histogram(name, CALL_S, row[:-1], row[-1], provider, op)


def _providers(out: _Out, daemon: Daemon, now: float) -> None:
    cell = daemon.cell
    for name, seen in sorted(cell.watch.sightings.items()):
        age = seen.age_s(now)
        if age is not None:
            out.add("provider_list_age_seconds", age, name)
        rest = cell.view.rests.get(f"provider:{name}")
        held = str(rest.reason) if rest is not None and rest.until > now else ""
        held = held if held in HOLD_REASONS or not held else "other"
        for reason in HOLD_REASONS:
            out.add("provider_held", float(reason == held), name, reason)
        cooling = sum(
            1 for scope, r in cell.view.rests.items()
            if scope.startswith(f"offer:{name}/") and r.until > now
        )  # fmt: skip
        out.add("offers_cooling", cooling, name)
        orphans = sum(
            1 for i in seen.instances.values()
            if i.exists and cell.view.node_of(name, i.ref.instance_id) is None
        )  # fmt: skip
        out.add("orphans", orphans, name)


def _self(out: _Out, daemon: Daemon, meter: Meter, now: float) -> None:
    cell = daemon.cell
    held: set[tuple[str, str]] = {(name, "") for name in GUARDS}
    active: set[tuple[str, str]] = set()
    for name, why in cell.guards.items():
        guard, _, scope = name.partition(":")
        held.add((guard, scope))
        if why:
            active.add((guard, scope))
    if cell.view.frozen:
        active.add(("frozen", ""))
    if cell.pause.active(cell.clock.monotonic()):
        active.add(("clock", ""))
    for guard, scope in sorted(held):
        out.add("guard_tripped", float((guard, scope) in active), guard, scope)
    shift = now - cell.clock.monotonic()
    for name, driver in sorted(cell.drivers.items()):
        status = driver.status
        last = status.last_ok_at if status.last_ok_at is not None else status.started_at
        out.add("task_last_success_timestamp_seconds", last + shift, name)
        out.add("task_period_seconds", status.period_s, name)
        out.add("task_passes_total", status.passes, name)
        out.add("task_failures_total", status.failures, name)
        out.add("task_last_pass_seconds", status.last_pass_s, name)
    causes = Tally(dict.fromkeys(CAUSES, 0))
    for why, n in cell.refused.items():
        causes[why.partition(":")[0]] += n
    for cause, n in sorted(causes.items()):
        out.add("agent_requests_refused_total", n, cause)
    out.add("loop_lag_seconds", max(meter.lags, default=0.0))
    out.add("store_full", float(cell.full))


def reference() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Served at `/metrics` on the operator socket, and on a loopback TCP port with the setting",
        "`metrics`. Generated from `fleet/api/metrics.py`; a test keeps this page current.",
        "",
        "| name | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for spec in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in spec.labels) or "–"
        lines.append(f"| `{NAMESPACE}_{spec.name}` | {spec.kind} | {labels} | {spec.text} |")
    lines += [
        "",
        f"Beside these, `{NAMESPACE}_process_*` (memory, CPU, file descriptors) as",
        "prometheus-client names them.",
        "",
        f"Outcomes: {', '.join(f'`{o}`' for o in Outcome)}.",
        f"Refusal causes: {', '.join(f'`{c}`' for c in CAUSES)}.",
        f"Guards: {', '.join(f'`{g}`' for g in GUARDS)}.",
        "",
    ]
    return "\n".join(lines)

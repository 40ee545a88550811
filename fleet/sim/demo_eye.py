"""What the demo sees of a running daemon: a measured moment, and one picture at a time.

Invariant: reads only; every figure comes from the daemon's own store, view and watch, none from
the world behind the clouds. Real milliseconds are loop seconds divided by the loop's speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import func, select
from sqlmodel import Session, col

from fleet.api import say
from fleet.api.asgi import Door
from fleet.cell import Cell
from fleet.model import IN_FLIGHT, Node, State
from fleet.sim.demo_words import Feed, Line
from fleet.store import queries
from fleet.store.tables import LaunchRow
from fleet.store.view import View


class Stopwatch:
    """Measures from a fault report at fleetd's door to the slot's move being committed."""

    def __init__(self, time: Callable[[], float], speed: float) -> None:
        """``time`` is the loop's, which runs ``speed`` times as fast as ours."""
        self._time, self._speed = time, speed
        self._node, self._slot = "", ""
        self.code = ""
        self._heard_at: float | None = None
        self.moved_ms: float | None = None
        self.errors: list[str] = []

    def aim(self, node: Node, code: str) -> None:
        """Watch the slot of ``node`` from the first report of ``code`` on."""
        self._node, self._slot, self.code = node.id, node.slot, code
        self._heard_at = self.moved_ms = None

    def heard(self, body: bytes) -> None:
        """A request has come in whole."""
        if self.code and self._heard_at is None and self.code.encode() in body:
            self._heard_at = self._time()

    def saw(self, view: View) -> None:
        """A transaction was committed and the view has followed."""
        if self._heard_at is None or self.moved_ms is not None:
            return
        slot = view.slots.get(self._slot)
        if slot is not None and slot.node_id not in (None, self._node):
            self.moved_ms = (self._time() - self._heard_at) / self._speed * 1000.0


class SeenDoor:
    """The agents' door with a stopwatch beside it."""

    def __init__(self, door: Door, watch: Stopwatch) -> None:
        self._door, self._watch = door, watch

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str = ""
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Hand the request on."""
        self._watch.heard(body)
        return await self._door.handle(method, path, headers, body, peer)


class SeenView(View):
    """The daemon's view with a stopwatch beside it."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._watch = watch

    def refresh(self, tx: Session) -> None:
        """Follow what was committed."""
        super().refresh(tx)
        self._watch.saw(self)


# -- one picture -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dot:
    """One node on the screen: its glyph's name and whether it is bought on the spot market."""

    mark: str
    spot: bool


@dataclass(frozen=True, slots=True)
class CloudRow:
    """One cloud as the table shows it; the figures are the store's."""

    name: str
    status: str
    note: str
    nodes: int
    ready: int
    in_flight: int
    asked: int
    accepted: int
    judged: int
    good: int
    boot_p50_s: float | None
    boot_p95_s: float | None
    faults: int
    usd_hour: float
    outcomes: Mapping[str, int]
    dots: tuple[Dot, ...] = ()
    #: The longest boot under way and its limit, in words.
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything on the screen at one moment."""

    now: float
    wanted: int
    spares_wanted: int
    serving: int
    spares: int
    states: Mapping[str, int]
    clouds: tuple[CloudRow, ...]
    lines: tuple[Line, ...] = ()


#: Order of dots within a cloud: what serves, then spares, then what comes, then what goes.
_ORDER: Final = ("serving", "spare", "SUSPECT", "CHECKING", "BOOTING", "LAUNCHING", "REQUESTED",
                 "DRAINING", "QUARANTINED", "TERMINATING")  # fmt: skip


def mark_of(node: Node) -> str:
    """The glyph's name of a node: its state, or what it is used for."""
    if node.state is not State.READY:
        return str(node.state)
    return "serving" if node.slot else "spare"


@dataclass
class Eye:
    """Looks at a cell for the screen."""

    cell: Cell
    clouds: tuple[str, ...]
    pool: str
    wanted: int
    spares: int
    since: float
    feed: Feed = field(init=False)
    _stats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _faults: Mapping[str, int] = field(default_factory=dict)
    _asked: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.feed = Feed(self.pool)

    async def follow(self, began: Sequence[float]) -> list[Line]:
        """Take in new events and the launch figures; the new lines. ``began`` says when each act
        did.
        """
        return await self.cell.store.run(lambda tx: self._follow(tx, began))

    def _follow(self, tx: Session, began: Sequence[float]) -> list[Line]:
        fresh = self.feed.read(tx, began)
        if fresh or not self._stats:
            self._stats = {s["provider"]: s for s in queries.launch_stats(tx, self.since)}
            self._asked = _asked(tx)
            faults: Counter[str] = Counter()
            for row in queries.faults(tx, since=self.since, limit=1000):
                faults[row.provider] += row.severity == "fatal"
            self._faults = faults
        return fresh

    def picture(self) -> Picture:
        """What is to be seen now."""
        cell = self.cell
        now, nodes = cell.clock.now(), cell.view.pool_nodes(self.pool)
        marks = [mark_of(n) for n in nodes]
        return Picture(
            now, self.wanted, self.spares, marks.count("serving"), marks.count("spare"),
            Counter(marks), tuple(self._cloud(name, nodes, now) for name in self.clouds),
            tuple(self.feed.lines),
        )  # fmt: skip

    def _cloud(self, name: str, every: Sequence[Node], now: float) -> CloudRow:
        mine = [n for n in every if n.offer.provider == name]
        stats = self._stats.get(name, {})
        dots = sorted(
            (Dot(mark_of(n), n.offer.market == "spot") for n in mine),
            key=lambda d: (_ORDER.index(d.mark) if d.mark in _ORDER else 99, d.spot),
        )
        status, note = self._status(name, now)
        asked, accepted = self._asked.get(name, (0, 0))
        return CloudRow(
            name, status, note, len(mine), sum(n.state is State.READY for n in mine),
            sum(n.state in IN_FLIGHT for n in mine), asked, accepted, int(stats.get("judged", 0)),
            int(stats.get("ready", 0)), stats.get("boot_p50_s"), stats.get("boot_p95_s"),
            int(self._faults.get(name, 0)),
            sum(n.offer.price_usd_hour or 0.0 for n in mine if n.instance_id),
            dict(stats.get("outcomes", {})), tuple(dots), self._waiting(mine, now),
        )  # fmt: skip

    def _waiting(self, mine: Sequence[Node], now: float) -> str:
        """The longest boot under way, once it has taken half of its limit."""
        slow = [
            (now - n.running_at, n.deadline_at - n.running_at) for n in mine
            if n.state is State.BOOTING and n.running_at and n.deadline_at
            and now - n.running_at > 0.6 * (n.deadline_at - n.running_at)
        ]  # fmt: skip
        if not slow:
            return ""
        age_s, limit_s = max(slow)
        n = f"{len(slow)} silent for" if len(slow) > 1 else "silent for"
        return f"{n} {say.dur(age_s)} of {say.dur(limit_s)}"

    def _status(self, name: str, now: float) -> tuple[str, str]:
        """What rests at a cloud, in a word and a sentence."""
        seen = self.cell.watch.sightings.get(name)
        if seen is not None and seen.error:
            return "held", f"its list fails: {seen.error}"
        resting = [
            (scope, r) for scope, r in self.cell.view.rests.items()
            if now < r.until and _provider_of(scope) == name
        ]  # fmt: skip
        boot = next((r for s, r in resting if s.startswith("boot:")), None)
        if boot is not None:
            return "held", f"rests {(boot.until - now) / 60:.0f} min: {boot.message}"
        if resting:
            soonest = min(r.until for _, r in resting)
            reason = resting[0][1].reason
            many = f"{len(resting)} offers rest" if len(resting) > 1 else "offer rests"
            return "cooling", f"{reason}: {many}, probe in {(soonest - now) / 60:.0f} min"
        return "ok", ""


def _asked(tx: Session) -> dict[str, tuple[int, int]]:
    """Per cloud: launches that it has answered, and how many of them it accepted; those that are
    still under way too, which the rollup of closed launches does not have.
    """
    accepted = func.count(col(LaunchRow.accepted_at))
    rows = tx.execute(
        select(col(LaunchRow.provider), func.count(), accepted)
        .where(col(LaunchRow.accepted_at).is_not(None) | col(LaunchRow.outcome).is_not(None))
        .group_by(col(LaunchRow.provider))
    )
    return {provider: (int(n), int(yes)) for provider, n, yes in rows}


def _provider_of(scope: str) -> str:
    kind, _, rest = scope.partition(":")
    parts = rest.split("/")
    return parts[1] if kind == "boot" and len(parts) > 1 else parts[0]

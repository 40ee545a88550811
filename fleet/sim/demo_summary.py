"""The demo's last words: figures per cloud from the store, and what was to be seen.

Invariant: every figure is a question to the store (or a measured moment); the total is the sum of
the rows above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.api import say
from fleet.sim.demo_eye import CloudRow, Picture, Stopwatch
from fleet.sim.demo_screen import event_text, promise
from fleet.sim.demo_words import Feed, Line

_HEAD = ("CLOUD", "LAUNCHES", "READY|ACCEPTED", "BOOT p50/p95", "FAULTS", "$/H", "OTHER OUTCOMES")
_WIDE = (6, 8, 20, 12, 6, 5, 0)
_LEFT = (0, 6)
#: Outcomes in few words.
_SHORT = {"insufficient_capacity": "no capacity", "boot_timeout": "never booted"}
#: Most lines told of one act.
TOLD = 10


def _row(values: Sequence[str]) -> str:
    cells = [
        f"{v:<{w}}" if i in _LEFT else f"{v:>{w}}"
        for i, (v, w) in enumerate(zip(values, _WIDE, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _outcomes(outcomes: Mapping[str, int]) -> str:
    """All outcomes but READY, the most frequent first."""
    return ", ".join(
        f"{n} {_SHORT.get(name, name.replace('_', ' '))}"
        for name, n in sorted(outcomes.items(), key=lambda o: -o[1])
        if name != "ready"
    )


def _cloud(c: CloudRow) -> str:
    boots = f"{say.dur(c.boot_p50_s)}/{say.dur(c.boot_p95_s)}" if c.good else "-"
    return _row(
        (c.name, str(sum(c.outcomes.values())), promise(c.good, c.judged), boots,
         str(c.faults), f"{c.usd_hour:,.0f}", _outcomes(c.outcomes))
    )  # fmt: skip


def table(picture: Picture) -> list[str]:
    """One line per cloud and one for all."""
    clouds = picture.clouds
    total: Counter[str] = Counter()
    for c in clouds:
        total.update(c.outcomes)
    last = _row(
        ("all", str(sum(total.values())),
         promise(sum(c.good for c in clouds), sum(c.judged for c in clouds)), "",
         str(sum(c.faults for c in clouds)), f"{sum(c.usd_hour for c in clouds):,.0f}",
         _outcomes(total))
    )  # fmt: skip
    return [_row(_HEAD), *(_cloud(c) for c in clouds), last]


def seen(feed: Feed, titles: Sequence[str], began: Sequence[float]) -> list[str]:
    """The acts with the event lines that made them."""
    lines = []
    for n, (title, at) in enumerate(zip(titles, began, strict=False), 1):
        ready = feed.seen[n, "gate_passed"]
        tail = f": {ready} node{'' if ready == 1 else 's'} passed the gate" if ready else ""
        lines.append(f"{say.clock(at, at)}  {n}. {title}{tail}")
        lines += [event_text(told).plain.rstrip() for told in _told(feed, n)]
    return lines


def _told(feed: Feed, act: int) -> list[Line]:
    """What an act was about: like lines added up."""
    found: dict[tuple[str, str, str], list[Line]] = {}
    for line in feed.told:
        if line.act == act and (line.weight == 2 or line.reason == "launch_accepted"):
            found.setdefault((line.who, line.reason, line.mark), []).append(line)
    return [_sum(lines) for lines in found.values()][:TOLD]


def _sum(lines: Sequence[Line]) -> Line:
    """One line for several alike."""
    first, n = lines[0], sum(line.n for line in lines)
    if len(lines) == 1:
        return first
    _, colon, why = first.text.partition(": ")
    text = {
        "launch_accepted": f"{n} launches accepted",
        "moved": f"{n} slots moved to spares, each together with its node's leaving",
        "spot_notice": f"{n} nodes leave service{colon}{why}",
        "boot_timeout": f"{n} nodes never booted{colon}{why}",
        "insufficient_capacity": f"{n} launches refused{colon}{why}",
    }.get(first.reason, first.text)
    return replace(first, text=text, n=n)


def closing(
    picture: Picture, watch: Stopwatch, least: int | None, real_s: float, speed: float
) -> list[str]:
    """The last lines: service (``least`` served at once since the pool was full) and the one
    measured moment.
    """
    world = say.dur(real_s * speed)
    service = f"{picture.serving} of {picture.wanted} in service and {picture.spares} spares"
    lines = [f"{service} after {world} of the world, {real_s:.0f} s of ours."]
    if least is not None:
        lines.append(f"Fewest in service since the pool was full: {least} of {picture.wanted}.")
    if watch.moved_ms is not None:
        lines.append(f"From the report of {watch.code} at fleetd's door to the slot moved and "
                     f"committed: {watch.moved_ms:.1f} ms.")  # fmt: skip
    return lines

"""The demo's live view: one picture as lines of text that fit any terminal.

Invariant: drawing is a pure function of a picture and a size; a state is told by its glyph first
and its colour second (Okabe and Ito's palette, safe for colour-blind eyes); what does not fit is
left out whole, least important first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from fleet.api import say
from fleet.sim.demo_eye import CloudRow, Picture
from fleet.sim.demo_out import ASCII
from fleet.sim.demo_words import Line

#: name → (glyph, the same in ASCII, colour, what it means). Order is that of the legend.
MARKS: Final = {
    "serving": ("●", "#", "#009e73", "serving"),
    "spare": ("◆", "S", "#56b4e9", "spare"),
    "REQUESTED": ("·", ".", "grey62", "asked"),
    "LAUNCHING": ("◌", "l", "grey74", "launching"),
    "BOOTING": ("○", "o", "#e69f00", "booting"),
    "CHECKING": ("◐", "g", "#f0e442", "gate"),
    "SUSPECT": ("▲", "!", "#d55e00", "suspect"),
    "DRAINING": ("▼", "v", "#cc79a7", "draining"),
    "QUARANTINED": ("■", "Q", "#d55e00", "evidence"),
    "TERMINATING": ("×", "x", "grey62", "ending"),
}  # fmt: skip
#: Glyphs of event lines that are no state of a node.
SIGNS: Final = {
    "READY": MARKS["serving"], "TERMINATED": MARKS["TERMINATING"],
    "no": ("✗", "!", "#d55e00", ""), "rest": ("◷", "~", "#e69f00", ""),
}  # fmt: skip
STATUS: Final = {"ok": ("● ok", "#009e73"), "cooling": ("▲ resting", "#e69f00"),
                 "held": ("■ held", "#d55e00")}  # fmt: skip
DIM: Final = "grey62"
LEAST_WIDTH: Final = 40


@dataclass(frozen=True, slots=True)
class Talk:
    """What the screen says besides the picture."""

    n: int
    acts: int
    title: str
    narration: str
    speed: float
    real_s: float


@dataclass(frozen=True, slots=True)
class Part:
    """Some lines that stay or go together; the least ``rank`` stays longest."""

    rank: int
    lines: tuple[Text, ...]


def sign(mark: str, *, ascii_only: bool = False) -> tuple[str, str]:
    """The glyph of a mark and its colour."""
    glyph, plain, colour, _ = MARKS.get(mark) or SIGNS.get(mark, ("·", ".", DIM, ""))
    return (plain if ascii_only else glyph), colour


def draw(
    picture: Picture, talk: Talk, width: int, height: int, *, ascii_only: bool = False
) -> list[Text]:
    """At most ``height`` lines of at most ``width`` columns."""
    width = max(LEAST_WIDTH, width)
    parts = [
        Part(0, (_header(picture, talk, width),)),
        Part(1, _narration(talk, width)),
        Part(2, (_strip(picture, width, ascii_only),)),
        Part(4, (Text(""), _rule("nodes by cloud", width), *_grid(picture, width, ascii_only))),
        Part(6, (_legend(ascii_only),)),
        Part(5, (Text(""), _rule("clouds", width), *_table(picture, width))),
    ]
    room = height - 5
    while sum(len(p.lines) for p in parts) > room and len(parts) > 3:
        parts.remove(max(parts, key=lambda p: p.rank))
    lines = [line for part in parts for line in part.lines]
    left = height - len(lines)
    if left >= 4:
        lines += [Text(""), _rule("what happened", width)]
        lines += _events(picture.lines, left - 2, ascii_only)
    for line in lines:
        if ascii_only:
            line.plain = line.plain.translate(ASCII)
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis" if not ascii_only else "crop")
    return lines[:height]


def _header(picture: Picture, talk: Talk, width: int) -> Text:
    clock = say.clock(picture.now, picture.now)
    left = Text.assemble((" fleetd demo ", "bold reverse"), "  ")
    if talk.n:
        left.append(f"{talk.n}/{talk.acts} ", style="bold")
        left.append(talk.title, style="bold #56b4e9")
    right = f"world {clock}   ×{talk.speed:g}   {talk.real_s:.0f} s"
    left.append(" " * max(2, width - left.cell_len - len(right)))
    left.append(right, style=DIM)
    return left


def _narration(talk: Talk, width: int) -> tuple[Text, ...]:
    """The narration in two lines, always two, so that nothing below jumps."""
    lines, line = [], ""
    for word in talk.narration.split():
        if line and len(line) + 1 + len(word) > width - 2:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    lines = [*lines, line, ""][:2]
    return tuple(Text(f" {text}", style="bold") for text in lines)


def _strip(picture: Picture, width: int, ascii_only: bool) -> Text:
    """The pool in one line: a bar of what serves, and how many nodes are in which state."""
    full = "#009e73" if picture.serving >= picture.wanted else "#e69f00"
    text = Text(" pool train  ")
    size = 16 if width >= 100 else 8
    done = round(size * picture.serving / max(1, picture.wanted))
    text.append("█" * done, style=full)
    text.append("░" * (size - done), style=DIM)
    text.append(f" {picture.serving}/{picture.wanted} in service", style=f"bold {full}")
    text.append(f"  {picture.spares}/{picture.spares_wanted} spares", style="bold #56b4e9")
    for mark, (_, _, colour, name) in MARKS.items():
        n = picture.states.get(mark, 0)
        if n and mark not in ("serving", "spare"):
            glyph, _ = sign(mark, ascii_only=ascii_only)
            text.append(f"  {glyph} {n} {name}", style=colour)
    usd = f"${sum(c.usd_hour for c in picture.clouds):,.0f}/h "
    if text.cell_len + len(usd) + 2 <= width:
        text.append(" " * (width - text.cell_len - len(usd)) + usd, style=DIM)
    return text


def _grid(picture: Picture, width: int, ascii_only: bool) -> list[Text]:
    lines = []
    for cloud in picture.clouds:
        text = Text(f" {cloud.name:<6} {cloud.nodes:>3}  ")
        for dot in cloud.dots:
            glyph, colour = sign(dot.mark, ascii_only=ascii_only)
            if text.cell_len + 2 > width:
                break
            text.append(f"{glyph} ", style=colour)
        why = "; ".join(w for w in (cloud.waiting, cloud.note) if w)
        if why and text.cell_len + 12 < width:
            text.append(f"  {why}", style=STATUS[cloud.status][1] if cloud.note else "#e69f00")
        lines.append(text)
    return lines


def _legend(ascii_only: bool) -> Text:
    text = Text(" ")
    for mark, (_, _, _, name) in MARKS.items():
        glyph, colour = sign(mark, ascii_only=ascii_only)
        text.append(f"{glyph} ", style=colour)
        text.append(f"{name} ", style=DIM)
    return text


#: Columns of the table: heading, width, right-aligned, from which width of the terminal on.
_COLUMNS: Final = (
    ("CLOUD", 6, False, 0), ("STATUS", 9, False, 0), ("READY", 5, True, 0),
    ("COMING", 6, True, 80), ("ACCEPTED", 10, True, 60), ("READY|ACCEPTED", 20, True, 72),
    ("BOOT p50/p95", 13, True, 88), ("FAULTS", 6, True, 96), ("$/H", 6, True, 42),
)  # fmt: skip


def cells(cloud: CloudRow) -> tuple[str, ...]:
    """A cloud's figures as text, in the order of the columns."""
    share = say.share(cloud.accepted, cloud.asked)
    boots = f"{say.dur(cloud.boot_p50_s)}/{say.dur(cloud.boot_p95_s)}" if cloud.good else "-"
    return (
        cloud.name, STATUS[cloud.status][0], str(cloud.ready), str(cloud.in_flight),
        f"{say.percent(share)} ({cloud.asked})" if cloud.asked else "-",
        promise(cloud.good, cloud.judged), boots, str(cloud.faults),
        f"{cloud.usd_hour:,.0f}",
    )  # fmt: skip


def promise(good: int, judged: int) -> str:
    """READY given accepted with Wilson's 95 % interval: ``8/11 73 % [43–90]``."""
    bounds = say.wilson(good, judged)
    if bounds is None:
        return "-"
    low, high = bounds
    return f"{good}/{judged} {say.percent(good / judged)} [{100 * low:.0f}–{100 * high:.0f}]"


def _table(picture: Picture, width: int) -> list[Text]:
    shown = [i for i, c in enumerate(_COLUMNS) if width >= c[3]]
    head = Text(" ")
    for i in shown:
        name, size, right, _ = _COLUMNS[i]
        head.append((f"{name:>{size}}" if right else f"{name:<{size}}") + "  ", style=DIM)
    lines = [head]
    for cloud in picture.clouds:
        text, values = Text(" "), cells(cloud)
        for i in shown:
            name, size, right, _ = _COLUMNS[i]
            style = STATUS[cloud.status][1] if name == "STATUS" else ""
            value = values[i]
            text.append((f"{value:>{size}}" if right else f"{value:<{size}}") + "  ", style=style)
        lines.append(text)
    return lines


def _rule(title: str, width: int) -> Text:
    return Text.assemble(
        ("── ", DIM), (title, "bold"), (" " + "─" * max(0, width - len(title) - 4), DIM)
    )


def event_text(line: Line, *, ascii_only: bool = False) -> Text:
    """One line of history: when, where, what and why."""
    glyph, colour = sign(line.mark, ascii_only=ascii_only)
    text = Text(f" {say.clock(line.at, line.at)}  ", style="")
    text.append(f"{line.who:<6} ", style="" if line.weight else DIM)
    text.append(f"{glyph} ", style=colour)
    text.append(line.text, style="bold" if line.weight == 2 else "" if line.weight else DIM)
    text.append(f"  {line.reason}", style=DIM)
    return text


def _events(lines: Sequence[Line], most: int, ascii_only: bool) -> list[Text]:
    return [event_text(line, ascii_only=ascii_only) for line in lines[-most:]] if most > 0 else []

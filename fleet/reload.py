"""What a running daemon takes over from a changed configuration file.

Invariant: all of the changes or none; what needs a restart is named and refused with the rest.
"""

from __future__ import annotations

from typing import Any, Final

from fleet.cell import Cell
from fleet.config import Settings
from fleet.errors import InputError, Problem

#: Sections whose values the loops read at each use.
LIVE: Final = ("mode", "timing", "limits")


def changed(before: Settings, after: Settings) -> list[str]:
    """Names of the fields that differ, sections field by field."""
    old, new = before.model_dump(), after.model_dump()
    names: list[str] = []
    for name in new:
        if isinstance(old[name], dict) and isinstance(new[name], dict):
            names += [f"{name}.{k}" for k in new[name] if old[name].get(k) != new[name][k]]
        elif old[name] != new[name]:
            names.append(name)
    return names


def swap(cell: Cell, after: Settings) -> list[str]:
    """Put ``after`` in force; the fields that changed.

    Raises InputError when one needs a restart, and then nothing has changed.
    """
    names = changed(cell.settings, after)
    stuck = [n for n in names if n.partition(".")[0] not in LIVE]
    if stuck:
        raise InputError([Problem(n, "cannot change while fleetd runs", "restart fleetd")
                          for n in stuck])  # fmt: skip
    cell.settings = after
    cell.effects.limit = after.limits.effects
    for name, driver in cell.drivers.items():
        period_s = _period_s(name, after)
        if period_s is not None:
            driver.task.period_s = driver.status.period_s = period_s
    cell.wake(*cell.drivers)
    return names


def _period_s(task: str, settings: Settings) -> float | None:
    timing = settings.timing
    if task == "observe":
        return min(timing.list_busy_s, timing.list_s)
    value: Any = getattr(timing, f"{task}_s", None)
    return float(value) if value is not None else None

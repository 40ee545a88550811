"""How numbers, times and places are written for people, once for every surface.

Invariant: pure; None is ``-``; the same input gives the same text on every machine and locale.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Final

_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])")


def rfc3339(at: float | None) -> str | None:
    """Seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    if at is None or not -6e10 < at < 2e11:
        return None
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return f"{text[:-6]}Z"


def from_rfc3339(text: str) -> float | None:
    """Seconds since the epoch of an RFC 3339 time (no zone: UTC), None if it is none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def clock(at: float | None, now: float) -> str:
    """Time of day in UTC, with the date when it is not within 20 hours of ``now``."""
    if at is None:
        return "-"
    when = datetime.fromtimestamp(at, UTC)
    return when.strftime("%H:%M:%S" if abs(at - now) < 72000 else "%m-%d %H:%M")


def age(seconds: float | None) -> str:
    """A rough age: ``45s``, ``4m``, ``3h``, ``12d``."""
    if seconds is None:
        return "-"
    s = max(0.0, seconds)
    for unit, size, until in (("s", 1, 100), ("m", 60, 5400), ("h", 3600, 172800)):
        if s < until:
            return f"{s / size:.0f}{unit}"
    return f"{s / 86400:.0f}d"


def dur(seconds: float | None) -> str:
    """A duration with two units: ``45s``, ``6m10s``, ``3h05m``, ``12d 4h``."""
    if seconds is None:
        return "-"
    s = round(max(0.0, seconds))
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02d}s"
    if s < 172800:
        return f"{s // 3600}h{s % 3600 // 60:02d}m"
    return f"{s // 86400}d {s % 86400 // 3600}h"


def span_s(text: str) -> float | None:
    """Seconds of ``90``, ``90s``, ``10m``, ``24h``, ``7d`` or ``1h30m``; None if it is none."""
    text = text.strip().lower()
    if re.fullmatch(r"\d{1,12}(\.\d{1,6})?", text):
        return float(text)
    parts = _SPAN.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        return None
    return sum(float(n) * _UNIT_S[u] for n, u in parts)


def usd(value: float | None) -> str:
    """Dollars with cents."""
    return "-" if value is None else f"{value:,.2f}"


def count(value: float | None) -> str:
    """A count with thousands separators."""
    return "-" if value is None else f"{value:,.0f}"


def figure(value: float | None) -> str:
    """A measured figure with four digits."""
    return "-" if value is None else f"{value:.4g}"


def share(k: int, n: int) -> float | None:
    """The share k / n, None for n = 0."""
    return k / n if n else None


def percent(value: float | None) -> str:
    """A share as a percentage: two digits are enough until it nears 100."""
    if value is None:
        return "-"
    p = 100 * value
    return f"{p:.0f} %" if p < 95 or p == 100 else f"{p:.1f} %"


def wilson(k: int, n: int, z: float = 1.959964) -> tuple[float, float] | None:
    """The Wilson score interval of k successes in n trials (95 % by default), None for n = 0.

    E. B. Wilson, JASA 22 (1927); it holds its level for small n and shares near 0 and 1.
    """
    if n <= 0:
        return None
    p, z2 = k / n, z * z
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def where(provider: str, region: str, zone: str) -> str:
    """A place in few words: ``aws us-east-1a``, ``azure eastus-2``, ``oci us-ashburn-1 AD-2``."""
    if not zone:
        return f"{provider} {region}"
    if zone.startswith(region):
        return f"{provider} {zone}"
    return f"{provider} {region}-{zone}" if zone.isdigit() else f"{provider} {region} {zone}"


def market(name: str) -> str:
    """How capacity is bought, short."""
    return {"on_demand": "od", "spot": "spot", "reserved": "res"}.get(name, name)


def version(image: str) -> str:
    """``v42`` of ``gpu-base@v42``."""
    return image.partition("@")[2] or image

"""What goes wrong in a simulated world, and when: a list of faults, by hand or from a seed.

Invariant: a plan is data, decided before the run; nothing of it is active at or after ``until_s``,
so that a simulation can ask whether fleetd converges once the world is well again. All times are
seconds since the world began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final

from fleet.clock import Chance
from fleet.errors import InputError, Problem
from fleet.sim.spec import WorldSpec


class Kind(StrEnum):
    """What a fault is. Windows last ``duration_s``; strikes hit ``count`` machines once."""

    # windows on a cloud's API
    CAPACITY_STORM = "capacity_storm"  # level falls to ``value``
    QUOTA_CUT = "quota_cut"  # quota falls to ``value`` instances
    THROTTLE = "throttle"  # each call, with ``rate``
    UNAVAILABLE = "unavailable"
    SLOW_API = "slow_api"  # latency times ``value``
    API_CUT = "api_cut"  # the cloud's API cannot be reached at all
    CREDENTIALS = "credentials"  # expired
    IMAGE_MISSING = "image_missing"
    LIST_LAG = "list_lag"  # ``value`` more seconds until changes show
    LIST_TRUNCATED = "list_truncated"  # a list breaks off with an error
    LIST_SLIP = "list_slip"  # a complete-looking list omits each instance with ``rate``
    CREATE_LOST = "create_lost"  # time-out, nothing was made
    CREATE_UNHEARD = "create_unheard"  # time-out, the instances were made
    CREATE_LATE = "create_late"  # time-out, the instances appear ``value`` s later
    # windows on what was launched in them
    DIE_AFTER_ACCEPT = "die_after_accept"
    STUCK_PENDING = "stuck_pending"
    NEVER_BOOT = "never_boot"
    SLOW_BOOT = "slow_boot"  # boot time times ``value``
    IMAGE_DEFECT = "image_defect"  # ``code``: the gate check that fails; empty: never boots
    # windows on what is ended in them
    SLOW_TERMINATE = "slow_terminate"  # termination time times ``value``
    STUCK_TERMINATE = "stuck_terminate"  # stays in stopping until the window is over
    # windows on the network of agents
    AGENT_CUT = "agent_cut"
    # strikes on running machines
    SPOT_RECLAIM = "spot_reclaim"
    EXTERNAL_TERMINATE = "external_terminate"
    HOST_DEATH = "host_death"
    NODE_SILENT = "node_silent"  # for ``duration_s``, or for ever when it is 0
    NODE_REBOOT = "node_reboot"  # takes ``duration_s``
    GPU_FAULT = "gpu_fault"  # ``code``, e.g. xid_79; gone after a reboot, or after duration_s > 0


STRIKES: Final = frozenset(
    {
        Kind.SPOT_RECLAIM,
        Kind.EXTERNAL_TERMINATE,
        Kind.HOST_DEATH,
        Kind.NODE_SILENT,
        Kind.NODE_REBOOT,
        Kind.GPU_FAULT,
    }
)

#: What a random plan draws from: everything but defects of images, which it is given by name.
_STORM: Final = (
    Kind.CAPACITY_STORM,
    Kind.THROTTLE,
    Kind.UNAVAILABLE,
    Kind.CREATE_LOST,
    Kind.CREATE_UNHEARD,
    Kind.CREATE_LATE,
    Kind.LIST_LAG,
    Kind.LIST_TRUNCATED,
    Kind.LIST_SLIP,
    Kind.API_CUT,
    Kind.CREDENTIALS,
    Kind.DIE_AFTER_ACCEPT,
    Kind.STUCK_PENDING,
    Kind.NEVER_BOOT,
    Kind.SLOW_BOOT,
    Kind.SLOW_TERMINATE,
    Kind.STUCK_TERMINATE,
    Kind.AGENT_CUT,
    Kind.SPOT_RECLAIM,
    Kind.EXTERNAL_TERMINATE,
    Kind.HOST_DEATH,
    Kind.NODE_SILENT,
    Kind.NODE_REBOOT,
    Kind.GPU_FAULT,
)

#: Fatal, warning and application XIDs to draw from (gpu-health.md section 4).
GPU_CODES: Final = ("xid_79", "xid_48", "xid_119", "xid_95", "xid_94", "xid_31", "xid_13")


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault. Empty selectors match anything; ``rate`` is per call or per machine."""

    kind: Kind
    at_s: float = 0.0
    duration_s: float = 0.0
    provider: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    market: str = ""
    image_id: str = ""
    rate: float = 1.0
    value: float = 0.0
    count: int = 1
    code: str = ""

    @property
    def end_s(self) -> float:
        """When the window closes."""
        return self.at_s + self.duration_s

    def matches(
        self,
        provider: str,
        region: str = "",
        zone: str = "",
        instance_type: str = "",
        market: str = "",
        image_id: str = "",
    ) -> bool:
        """True when every selector that is set agrees with a given, non-empty value."""
        return (
            (not self.provider or self.provider == provider)
            and (not self.region or not region or self.region == region)
            and (not self.zone or self.zone == zone)
            and (not self.instance_type or self.instance_type == instance_type)
            and (not self.market or self.market == market)
            and (not self.image_id or self.image_id == image_id)
        )


class FaultPlan:
    """All faults of a run, found by kind and time."""

    def __init__(self, injections: Iterable[Injection] = (), until_s: float | None = None) -> None:
        self.until_s = until_s
        self._windows: dict[Kind, list[Injection]] = {}
        self._strikes: list[Injection] = []
        for injection in injections:
            self.add(injection)

    def __iter__(self) -> Iterator[Injection]:
        yield from sorted(
            [*self._strikes, *(i for w in self._windows.values() for i in w)],
            key=lambda i: (i.at_s, i.kind),
        )

    @property
    def strikes(self) -> list[Injection]:
        """The faults that hit machines at one moment."""
        return self._strikes

    def add(self, injection: Injection) -> None:
        """Add one fault; on a running world use ``World.inject``, which also arms strikes."""
        if injection.kind in STRIKES:
            self._strikes.append(injection)
        else:
            self._windows.setdefault(injection.kind, []).append(injection)

    def active(self, kind: Kind, t: float, provider: str, *where: str) -> Injection | None:
        """The first window of ``kind`` open at ``t``; ``where`` is as in ``Injection.matches``."""
        windows = self._windows.get(kind)
        if not windows or not self.raging(t):
            return None
        for window in windows:
            if window.at_s <= t < window.end_s and window.matches(provider, *where):
                return window
        return None

    def has(self, kind: Kind) -> bool:
        """True when any window of ``kind`` is planned, open or not."""
        return kind in self._windows

    def raging(self, t: float) -> bool:
        """False once all faults have stopped."""
        return self.until_s is None or t < self.until_s

    def closes_s(self, injection: Injection) -> float:
        """When a window closes, ``until_s`` included."""
        return injection.end_s if self.until_s is None else min(injection.end_s, self.until_s)

    def dump(self) -> dict[str, Any]:
        """The plan as plain data; ``load`` reads it back."""
        blank = asdict(Injection(Kind.THROTTLE))
        faults = [
            {k: v for k, v in asdict(i).items() if k == "kind" or v != blank[k]} for i in self
        ]
        return {"until_s": self.until_s, "faults": faults}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> FaultPlan:
        """A plan from plain data (YAML or JSON); raises InputError naming each bad place."""
        problems: list[Problem] = []
        injections = []
        if not isinstance(data.get("faults", []), list):
            raise InputError([Problem("faults", "must be a list")])
        for n, raw in enumerate(data.get("faults", [])):
            injection = _injection(raw, f"faults[{n}]", problems)
            if injection is not None:
                injections.append(injection)
        until_s = data.get("until_s")
        if until_s is not None and not isinstance(until_s, int | float):
            problems.append(Problem("until_s", "must be a number of seconds"))
        problems += [Problem(k, "unknown field") for k in data.keys() - {"faults", "until_s"}]
        if problems:
            raise InputError(problems)
        return cls(injections, until_s)

    @classmethod
    def from_seed(
        cls,
        chance: Chance,
        spec: WorldSpec,
        until_s: float,
        *,
        per_hour: float = 12.0,
        kinds: Iterable[Kind] = _STORM,
        images: Iterable[str] = (),
    ) -> FaultPlan:
        """A random schedule of about ``per_hour`` faults until ``until_s``, the same per seed.

        ``images`` adds IMAGE_DEFECT faults for these image ids.
        """
        pool, ids = list(kinds), list(images)
        injections = []
        for _ in range(round(per_hour * until_s / 3600.0)):
            kind = pool[int(chance.random() * len(pool))]
            injections.append(_draw(kind, chance, spec, until_s))
        for image_id in ids:
            code = "" if chance.random() < 0.5 else "gpu_count"
            injections.append(
                Injection(
                    Kind.IMAGE_DEFECT,
                    chance.uniform(0, until_s / 2),
                    until_s,
                    image_id=image_id,
                    rate=chance.uniform(0.05, 0.9),
                    code=code,
                )
            )
        return cls(injections, until_s)


_TYPES: Final = {f.name: str(f.type) for f in fields(Injection)}


def _injection(raw: Any, where: str, problems: list[Problem]) -> Injection | None:
    """One Injection from plain data, or None with its problems noted."""
    if not isinstance(raw, Mapping):
        problems.append(Problem(where, "must be a mapping"))
        return None
    found = len(problems)
    values: dict[str, Any] = {}
    for name, value in raw.items():
        kind = _TYPES.get(name)
        if kind is None:
            problems.append(Problem(f"{where}.{name}", "unknown field", f"one of {sorted(_TYPES)}"))
        elif kind == "Kind":
            if value not in frozenset(Kind):
                problems.append(Problem(f"{where}.kind", f"no fault {value!r}", ", ".join(Kind)))
            else:
                values[name] = Kind(value)
        elif kind == "str":
            values[name] = str(value)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            problems.append(Problem(f"{where}.{name}", "must be a number, 0 or more"))
        else:
            values[name] = int(value) if kind == "int" else float(value)
    if "kind" not in raw:
        problems.append(Problem(f"{where}.kind", "is missing", ", ".join(Kind)))
    return Injection(**values) if len(problems) == found else None


#: kind → (rate low, high), (value low, high), (duration low, high) for random plans.
_Range = tuple[float, float]
_SHAPES: Final[Mapping[Kind, tuple[_Range, _Range, _Range]]] = {
    Kind.CAPACITY_STORM: ((1, 1), (0, 0), (300, 3600)),
    Kind.THROTTLE: ((0.3, 0.9), (0, 0), (60, 600)),
    Kind.UNAVAILABLE: ((0.2, 0.9), (0, 0), (60, 600)),
    Kind.LIST_LAG: ((1, 1), (20, 120), (300, 1200)),
    Kind.LIST_TRUNCATED: ((0.3, 0.8), (0, 0), (120, 900)),
    Kind.LIST_SLIP: ((0.01, 0.1), (0, 0), (60, 600)),
    Kind.CREATE_LOST: ((0.3, 0.8), (0, 0), (120, 900)),
    Kind.CREATE_UNHEARD: ((0.3, 0.8), (0, 0), (120, 900)),
    Kind.CREATE_LATE: ((0.3, 0.8), (10, 60), (120, 900)),
    Kind.API_CUT: ((1, 1), (0, 0), (60, 600)),
    Kind.CREDENTIALS: ((1, 1), (0, 0), (60, 900)),
    Kind.DIE_AFTER_ACCEPT: ((0.2, 0.9), (0, 0), (300, 1800)),
    Kind.STUCK_PENDING: ((0.2, 0.8), (0, 0), (300, 1200)),
    Kind.NEVER_BOOT: ((0.2, 1.0), (0, 0), (300, 1800)),
    Kind.SLOW_BOOT: ((1, 1), (1.5, 4), (300, 1800)),
    Kind.SLOW_TERMINATE: ((1, 1), (3, 20), (300, 1800)),
    Kind.STUCK_TERMINATE: ((0.3, 1.0), (0, 0), (300, 1800)),
    Kind.AGENT_CUT: ((1, 1), (0, 0), (60, 900)),
    Kind.NODE_SILENT: ((1, 1), (0, 0), (60, 1800)),
    Kind.NODE_REBOOT: ((1, 1), (0, 0), (60, 300)),
}


def _draw(kind: Kind, chance: Chance, spec: WorldSpec, until_s: float) -> Injection:
    """One random fault of ``kind``, at one cloud and half of the time at one of its zones."""
    cloud = spec.clouds[int(chance.random() * len(spec.clouds))]
    offer = cloud.offers[int(chance.random() * len(cloud.offers))]
    rates, values, spans = _SHAPES.get(kind, ((1, 1), (0, 0), (0, 0)))
    zonal = kind is Kind.CAPACITY_STORM and chance.random() < 0.5
    code = GPU_CODES[int(chance.random() * len(GPU_CODES))] if kind is Kind.GPU_FAULT else ""
    return Injection(
        kind,
        round(chance.uniform(0, until_s), 3),
        round(chance.uniform(*spans), 3),
        provider=cloud.name,
        region=offer.region if zonal else "",
        zone=offer.zone if zonal else "",
        rate=round(chance.uniform(*rates), 3),
        value=round(chance.uniform(*values), 3),
        count=1 + int(chance.random() * 3) if kind in STRIKES else 1,
        code=code,
    )

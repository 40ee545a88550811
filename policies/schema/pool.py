"""``Pool``: which GPU, how many, where from, and what may be done to its nodes.

Invariant: defaults are those of field.md section 2; a deadline that is None is learned from the
offer's own history and never below its floor.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from fleet.model import Offer
from policies.schema.base import (
    Document,
    ImageRef,
    LongSeconds,
    Name,
    Probability,
    Seconds,
    Shape,
    Share,
    Strict,
    check_text,
    refuse,
)
from policies.schema.gpus import Gpu
from policies.schema.offer import OfferSpec, bare_metal
from policies.text import did_you_mean, quoted

#: Learned deadlines are this many times the 99th percentile of the offer (field.md section 2).
LEARNED_FACTOR: Final = 1.5
MAX_NODES: Final = 20_000

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class SparesPromise(Strict):
    """Spares sized from measured failure rate and refill time (Poisson quantile)."""

    ready_within_s: Seconds
    """A failed node's work must have a ready node within this time."""
    probability: Probability
    """How often that must hold."""
    max: Annotated[int, Field(ge=0, le=10_000)]
    """Never more spares than this, whatever the statistics ask for."""


def _spares_tag(value: object) -> str:
    return "<promise>" if isinstance(value, dict | SparesPromise) else "<count>"


Spares = Annotated[
    Annotated[int, Field(ge=0, le=10_000), Tag("<count>")]
    | Annotated[SparesPromise, Tag("<promise>")],
    Discriminator(_spares_tag),
]


def _check_zone_name(value: str) -> str:
    # Membership first: ZoneInfo opens files by this name.
    if value not in available_timezones():
        fix = did_you_mean(value, available_timezones() - {"localtime"})
        if fix.startswith("one of"):
            fix = "write a name such as Europe/Berlin or UTC"
        raise refuse(f"unknown time zone {quoted(value)}", fix)
    ZoneInfo(value)
    return value


TimeZone = Annotated[str, AfterValidator(_check_zone_name)]
Clock = Annotated[
    str,
    Shape(
        r"([01][0-9]|2[0-3]):[0-5][0-9]|24:00", "a time of day", "write HH:MM, for example 06:00", 5
    ),
]


class Window(Strict):
    """When voluntary disruption is allowed, in local time.

    A window whose end is not after its start goes on into the next day; equal times are a whole
    day. It belongs to the day on which it starts.
    """

    days: Annotated[tuple[Day, ...], Field(min_length=1, max_length=7, strict=False)]
    """Days on which the window opens."""
    start: Clock
    """Local time at which it opens."""
    end: Clock
    """Local time at which it closes."""
    tz: TimeZone
    """IANA time zone."""

    @model_validator(mode="after")
    def _sane(self) -> Window:
        if len(set(self.days)) != len(self.days):
            raise refuse("a day is written twice", "write each day once")
        if self.start == "24:00":
            raise refuse("a window cannot start at 24:00", 'write "00:00" on the next day')
        return self


class Disruption(Strict):
    """Limits for what fleetd does to healthy nodes: image changes, moves, surplus."""

    budget: Share = "10%"
    """Healthy nodes that may be out of service for such reasons at once (rounded up)."""
    windows: Annotated[tuple[Window, ...], Field(max_length=32, strict=False)] = ()
    """When it is allowed. With no window always; with any window never outside them."""


class Repair(Strict):
    """The repair breaker, per pool × provider × zone."""

    mode: Literal["replace", "none"] = "replace"
    """none: judge and report, never take a node away for its health."""
    share: Share = "20%"
    """More than this many nodes ill or under repair within the window opens the breaker."""
    floor: Annotated[int, Field(ge=1, le=1000)] = 1
    """At least this many may be under repair, however small the pool."""
    absolute: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Never more than this many, however large the pool."""
    window_s: Seconds = 900.0
    """Over which time ill nodes are counted."""
    half_open_s: Seconds = 1800.0
    """An open breaker lets one probe through after this time."""

    @model_validator(mode="after")
    def _floor_below_absolute(self) -> Repair:
        if self.floor > self.absolute:
            raise refuse(f"floor {self.floor} is above absolute {self.absolute}", "lower floor")
        return self


class Quarantine(Strict):
    """Failed nodes kept as evidence, so that the cloud cannot hand the machine back at once."""

    max: Annotated[int, Field(ge=0, le=100)] = 1
    """How many at once; 0 keeps none."""
    for_s: LongSeconds = 7200.0
    """How long each."""


class MachineDeadlines(Strict):
    """Launch and boot deadlines for one sort of machine."""

    launch_s: Seconds | None = None
    """Create accepted to RUNNING. Null: 1.5 × p99 of the offer's history, at least the floor."""
    launch_floor_s: Seconds = 300.0
    """Least learned launch deadline."""
    boot_s: Seconds | None = None
    """RUNNING to the first report. Null: 1.5 × p99 of the offer's history, at least the floor."""
    boot_floor_s: Seconds = 900.0
    """Least learned boot deadline."""


class BareMetalDeadlines(MachineDeadlines):
    """The same for bare metal, which takes longer."""

    launch_floor_s: Seconds = 1200.0
    """Least learned launch deadline."""
    boot_floor_s: Seconds = 2700.0
    """Least learned boot deadline."""


class Deadlines(MachineDeadlines):
    """How long a node may stay in each transient state. launch and boot here are for VMs."""

    bare_metal: BareMetalDeadlines = BareMetalDeadlines()
    """Launch and boot deadlines of bare metal types."""
    request_s: Seconds = 900.0
    """An intent that could not be sent is dropped after this time."""
    gate_s: Seconds | None = None
    """First report to verdict. Null: the health policy's gate deadline."""
    suspect_s: Seconds | None = None
    """Time in SUSPECT before replacement. Null: the health policy's replace_silent_s."""
    drain_s: Seconds = 600.0
    """Time the consumer has to leave a draining node."""
    terminate_alarm_s: Seconds = 900.0
    """Alarm when the cloud has not confirmed a deletion; the record stays open."""

    def launch_limit_s(self, instance_type: str, p99_s: float | None = None) -> float:
        """Launch deadline for ``instance_type``; ``p99_s`` is measured on the offer, if known."""
        d: MachineDeadlines = self.bare_metal if bare_metal(instance_type) else self
        return _learned(d.launch_s, d.launch_floor_s, p99_s)

    def boot_limit_s(self, instance_type: str, p99_s: float | None = None) -> float:
        """Boot deadline for ``instance_type``; ``p99_s`` is measured on the offer, if known."""
        d: MachineDeadlines = self.bare_metal if bare_metal(instance_type) else self
        return _learned(d.boot_s, d.boot_floor_s, p99_s)


def _learned(fixed_s: float | None, floor_s: float, p99_s: float | None) -> float:
    if fixed_s is not None:
        return fixed_s
    return max(floor_s, LEARNED_FACTOR * (p99_s or 0.0))


_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _check_url(value: str) -> str:
    check_text(value)
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise refuse(f"{quoted(value)} is not a URL", "write https://host/path") from None
    if len(value) > 500 or not host or re.search(r"[\s\\]", value):
        raise refuse(f"{quoted(value)} is not a URL", "write https://host/path")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise refuse(
            "a webhook URL may carry neither user, password nor fragment",
            "use secret_file or secret_env",
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK):
        raise refuse(f"{quoted(value)} is not https", "use https (http only for localhost)")
    return value


class Webhook(Strict):
    """Who is told when an assignment moves. The body is signed with the secret (HMAC-SHA256)."""

    url: Annotated[str, AfterValidator(_check_url)]
    """https address; its host must be on the daemon's allow-list."""
    secret_file: (
        Annotated[
            str, Shape(r"/[^\0\n]*", "an absolute path", "write a path that starts with /", 255)
        ]
        | None
    ) = None
    """File that holds the secret."""
    secret_env: (
        Annotated[str, Shape(r"[A-Z_][A-Z0-9_]*", "a variable name", "use A-Z, 0-9 and _", 80)]
        | None
    ) = None
    """Environment variable of the daemon that holds the secret."""

    @model_validator(mode="after")
    def _one_secret(self) -> Webhook:
        if (self.secret_file is None) == (self.secret_env is None):
            raise refuse(
                "a webhook needs exactly one of secret_file and secret_env", "keep one of them"
            )
        return self


class PoolSpec(Strict):
    """What is wanted."""

    gpu: Gpu
    """GPU model."""
    gpus_per_node: Annotated[int, Field(ge=1, le=16)]
    """GPUs of one node; every offer's type must have as many."""
    nodes: Annotated[int, Field(ge=0, le=MAX_NODES)]
    """Nodes in service."""
    spares: Spares = 0
    """Ready nodes beyond those: a count, or a promise from which the count is computed."""
    image: ImageRef
    """family@version of an Image."""
    offers: Annotated[tuple[OfferSpec, ...], Field(min_length=1, max_length=64, strict=False)]
    """Where to buy, best first."""
    health: Name = "default"
    """Name of the HealthPolicy."""
    disruption: Disruption = Disruption()
    """Limits for voluntary disruption."""
    repair: Repair = Repair()
    """Limits for repair."""
    surge: Share = "25%"
    """Extra nodes that may exist while nodes are being replaced (rounded up, at least 1)."""
    quarantine: Quarantine = Quarantine()
    """Failed nodes kept as evidence."""
    deadlines: Deadlines = Deadlines()
    """Deadlines of transient states."""
    webhooks: Annotated[tuple[Webhook, ...], Field(max_length=8, strict=False)] = ()
    """Who is told of assignments."""
    slots: Annotated[tuple[Name, ...], Field(max_length=MAX_NODES, strict=False)] = ()
    """Names of the places in service, one per node; without them fleetd numbers the places."""

    @model_validator(mode="after")
    def _slots_fit(self) -> PoolSpec:
        if len(set(self.slots)) != len(self.slots):
            twice = min(s for s in set(self.slots) if self.slots.count(s) > 1)
            raise refuse(
                f"slot {quoted(twice)} is named twice", "give each slot its own name", ("slots",)
            )
        if self.slots and len(self.slots) != self.nodes:
            raise refuse(
                f"{len(self.slots)} slots for {self.nodes} nodes",
                "name as many slots as nodes, or none",
                ("slots",),
            )
        return self

    def offer_list(self) -> tuple[Offer, ...]:
        """All offers in order of preference, one per zone."""
        return tuple(
            offer for spec in self.offers for offer in spec.expand(self.gpu, self.gpus_per_node)
        )

    @property
    def image_family(self) -> str:
        """The family of the wanted image."""
        return self.image.partition("@")[0]

    @property
    def image_version(self) -> str:
        """The version of the wanted image."""
        return self.image.partition("@")[2]


class Pool(Document):
    """A set of like GPU nodes kept in service."""

    kind: Literal["Pool"]
    """Kind of object."""
    spec: PoolSpec
    """What is wanted."""

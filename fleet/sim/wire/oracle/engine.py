"""What the routes of the Oracle skin share: the world, places, the SDK's types, pages, refusals.

Invariant: names on the wire come from the SDK's own models, read and written by the SDK's own
code, so the skin cannot drift from the client; a field that a model does not have is an error.
One world answers for every tenancy and compartment.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from fleet.clock import Chance
from fleet.sim.machine import Machine
from fleet.sim.wire.asgi import Answer
from fleet.sim.world import World

T = TypeVar("T")

#: Every tenancy has its own prefix of availability domains; this is the emulator's.
TENANCY_PREFIX: Final = "fLtD"
#: Two old regions are called by their airport in OCIDs and in ``Instance.region``.
SHORT: Final[Mapping[str, str]] = {"us-ashburn-1": "iad", "us-phoenix-1": "phx"}
#: Items that one page holds at most.
PAGE_MAX: Final = 1000
#: Launches whose retry tokens and details are remembered.
MAX_KEPT: Final = 100_000
RETRY_TOKEN_S: Final = 86_400.0

_COLLECTION: Final = re.compile(r"(?:list\[|dict\(str, )(.+)[\])]")
_OCID: Final = re.compile(r"ocid1\.(\w+)\.[a-z0-9-]+\.[a-z0-9-]*(\.[a-z0-9-]*)?\.[A-Za-z0-9._-]+")


class Refusal(Exception):
    """An error answer: HTTP status, Oracle's code, message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status, self.code, self.message = status, code, message

    def body(self) -> bytes:
        """The answer's JSON."""
        return json.dumps({"code": self.code, "message": self.message}).encode()


def unseen() -> Refusal:
    """What Oracle says of anything that is not there or not ours; it never says which."""
    text = "Authorization failed or requested resource not found."
    return Refusal(404, "NotAuthorizedOrNotFound", text)


def invalid(message: str, code: str = "InvalidParameter") -> Refusal:
    """What Oracle says of a request that is wrong."""
    return Refusal(400, code, message)


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way: in which region (empty: all), about what, its query and body."""

    region: str
    ident: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def compartment(self) -> str:
        """The compartment that a list is asked for; raises Refusal for none or a wrong one."""
        text = self.query.get("compartmentId", "")
        if not text:
            raise invalid("Missing required parameter compartmentId", "MissingParameter")
        if not is_ocid(text, "compartment", "tenancy"):
            raise unseen()
        return text


def is_ocid(text: str, *kinds: str) -> bool:
    """True for an OCID of one of the kinds."""
    found = _OCID.fullmatch(text)
    return found is not None and found.group(1) in kinds


@dataclass(slots=True, eq=False)
class Launched:
    """A machine's launch request: its details (a model of the SDK) and the answer it got."""

    machine: Machine
    details: Any
    print_: str
    at: float
    answer: Answer


@dataclass(slots=True, eq=False)
class Work:
    """One work request; how far it is follows from its machine."""

    ident: str
    operation: str
    action: str
    machine: Machine
    at: float


@dataclass(slots=True)
class Memory:
    """What the skin remembers beside the world."""

    by_machine: dict[str, Launched] = field(default_factory=dict)
    by_token: dict[tuple[str, str], Launched] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)
    works_of: dict[str, list[Work]] = field(default_factory=dict)

    def trim(self) -> None:
        """Forget the oldest once there are too many."""
        for kept in (self.by_machine, self.by_token, self.works, self.works_of):
            while len(kept) > MAX_KEPT:
                kept.pop(next(iter(kept)))  # type: ignore[call-overload]


class Engine:
    """One simulated Oracle Cloud."""

    def __init__(self, world: World, chance: Chance, name: str, page_max: int) -> None:
        """Imports the SDK (1 s)."""
        self.world, self.chance, self.page_max = world, chance, page_max
        self.cloud = world.clouds[name]
        self.memory = Memory()
        core = importlib.import_module("oci.core.models")
        work = importlib.import_module("oci.work_requests.models")
        identity = importlib.import_module("oci.identity.models")
        base = importlib.import_module("oci.base_client")
        types = {
            **identity.identity_type_mapping,
            **work.work_requests_type_mapping,
            **core.core_type_mapping,
        }
        self.types: Mapping[str, Any] = types
        # the SDK's reader and writer are methods of its client; nothing else of one is needed
        self._sdk = object.__new__(base.BaseClient)
        self._sdk.complex_type_mappings = types
        self._sdk.type_mappings = {**base.BaseClient.primitive_type_map, **types}
        self._sdk.skip_deserialization = False
        self._sdk._allow_control_chars = None  # noqa: SLF001
        self._sdk.logger = importlib.import_module("logging").getLogger(__name__)
        self._domains = {
            domain_name(o.region, o.zone): (o.region, o.zone) for o in self.cloud.spec.offers
        }

    # -- places ---------------------------------------------------------------------------------

    def place(self, domain: str, region: str) -> tuple[str, str]:
        """Region and zone of an availability domain; raises Refusal for one not of ``region``."""
        found = self._domains.get(domain)
        if found is None or region not in ("", found[0]):
            raise invalid(f"Invalid availabilityDomain: {domain}")
        return found

    def domains(self, region: str) -> list[str]:
        """The availability domains of a region, or of all."""
        return sorted(d for d, (r, _) in self._domains.items() if region in ("", r))

    # -- the SDK's models -----------------------------------------------------------------------

    def decode(self, kind: str, body: bytes) -> Any:
        """A model of the SDK from JSON; raises Refusal for what it does not know."""
        try:
            data = json.loads(body or b"{}")
            self._strict(kind, data, "")
            return self._sdk.deserialize_response_data(body, kind)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise invalid(f"The request cannot be read: {e}", "CannotParseRequest") from None

    def _strict(self, kind: str, data: Any, where: str) -> None:
        inner = _COLLECTION.fullmatch(kind)
        if inner is not None:
            items = data.items() if kind.startswith("dict") else enumerate(data)
            for key, value in items:
                self._strict(inner.group(1), value, f"{where}[{key}]")
            return
        model = self.types.get(kind)
        if model is None or data is None:
            return
        if not isinstance(data, dict):
            raise invalid(f"{where or kind} must be an object", "CannotParseRequest")
        if hasattr(model, "get_subtype"):
            model = self.types[model.get_subtype(data)]
        made = model()
        wire = {name: made.swagger_types[own] for own, name in made.attribute_map.items()}
        for name, value in data.items():
            if name not in wire:
                raise invalid(f"Unrecognized field {where}{'.' if where else ''}{name}")
            self._strict(wire[name], value, f"{where}{'.' if where else ''}{name}")

    def make(self, kind: str, **values: Any) -> Any:
        """A model of the SDK; the SDK refuses what the model does not have."""
        return self.types[kind](**{k: v for k, v in values.items() if v is not None})

    def encode(self, model: Any) -> str:
        """JSON of a model or a list of them."""
        return json.dumps(self._sdk.sanitize_for_serialization(model))

    # -- lists ----------------------------------------------------------------------------------

    def page(self, call: Call, found: Sequence[tuple[int, T]]) -> tuple[list[T], dict[str, str]]:
        """One page of items, sorted by their keys, and the header that leads to the next.

        A token names the last item by its key, so pages do not slip when items come and go.
        """
        text = call.query.get("limit", str(self.page_max))
        if not text.isdigit() or not 1 <= int(text) <= PAGE_MAX:
            raise invalid(f"limit must be 1 to {PAGE_MAX}")
        if self.cloud.truncates(call.region):
            raise Refusal(503, "ServiceUnavailable", "The list broke off.")
        size = min(int(text), self.page_max)
        if token := call.query.get("page", ""):
            try:
                after = int(base64.urlsafe_b64decode(token))
            except (binascii.Error, ValueError):
                raise invalid("Invalid page token") from None
            found = [x for x in found if x[0] > after]
        page = found[:size]
        if len(found) <= size:
            return [item for _, item in page], {}
        following = base64.urlsafe_b64encode(str(page[-1][0]).encode()).decode()
        return [item for _, item in page], {"opc-next-page": following}


def domain_name(region: str, zone: str) -> str:
    """The whole name of an availability domain: ``fLtD:PHX-AD-1``."""
    bare = zone if "-AD-" in zone.upper() else f"{region.upper()}-{zone}"
    return f"{TENANCY_PREFIX}:{bare}"


def short(region: str) -> str:
    """How OCIDs and instances call a region."""
    return SHORT.get(region, region)


def moment(at: float) -> datetime:
    """A moment as the SDK's models hold it."""
    return datetime.fromtimestamp(round(at, 3), UTC)


def answer(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """A JSON answer."""
    return Answer(status, text.encode(), {"content-type": "application/json", **(headers or {})})

"""The provider protocol: five verbs, the whole surface between fleetd and a cloud.

Invariant: a provider raises ``ProviderError`` and nothing else, holds no decision, and keeps no
state that a restart would miss. Optional abilities are small protocols tested with isinstance;
refuse the sixth verb.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fleet.errors import ProviderError
from fleet.model import Instance, InstanceRef, LaunchSpec, Need, Offer, Owner

#: Tag keys on every instance: lowercase, within the strictest cloud's rules (clouds.md 5).
TAG_CELL = "fleetd-cell"
TAG_POOL = "fleetd-pool"
TAG_TOKEN = "fleetd-token"  # noqa: S105 — the idempotency token, public by design
TAG_IMAGE = "fleetd-image"


@dataclass(frozen=True, slots=True)
class CreateResult:
    """One of the ``count`` results of a create call: an accepted instance or why not."""

    ref: InstanceRef | None = None
    error: ProviderError | None = None


class Provider(Protocol):
    """One cloud account. Every method raises ProviderError and nothing else."""

    name: str

    async def offers(self, need: Need) -> Sequence[Offer]:
        """What this account could buy for ``need``, with list prices, cheapest first."""
        ...

    async def create(self, spec: LaunchSpec) -> Sequence[CreateResult]:
        """Ask for ``spec.count`` like instances; exactly that many results, in order.

        Idempotent by ``spec.token``: at most ``count`` instances ever carry it. Raises when the
        whole call was refused, ``Busy`` when nothing was sent or made, ``Ambiguous`` when it may
        have been.
        """
        ...

    async def delete(self, refs: Sequence[InstanceRef]) -> None:
        """Ask for deletion; gone already is success. The caller repeats until list() agrees."""
        ...

    def list(self, owner: Owner) -> AsyncIterator[Instance]:
        """Every instance of ``owner`` in all regions, paged to the end; the only read path.

        Yields everything or raises: a truncated list is an error, never a short answer.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections and threads."""
        ...


@dataclass(frozen=True, slots=True)
class CloudNotice:
    """A cloud's word that an instance will be taken away or worked on."""

    ref: InstanceRef
    kind: str
    at: float
    message: str = ""


@runtime_checkable
class EmitsNotices(Protocol):
    """Clouds whose API announces spot reclaim or maintenance."""

    async def notices(self) -> Sequence[CloudNotice]:
        """Notices in force now."""
        ...


@runtime_checkable
class HasConsole(Protocol):
    """Clouds that hand out the serial console."""

    async def console(self, ref: InstanceRef) -> str:
        """The tail of the console, as boot evidence."""
        ...

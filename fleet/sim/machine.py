"""One simulated instance: what really is, beside what the cloud shows of it.

Invariant: ``history`` only grows, its phases follow the life of an instance, and ``token`` and
``offer`` never change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.model import Instance, InstanceRef, Market, Phase
from fleet.sim.spec import OfferSpec
from providers.base import TAG_CELL, TAG_POOL, TAG_TOKEN


@dataclass(slots=True, eq=False)
class Machine:
    """A simulated instance.

    ``index`` is its place in its create call, ``died`` says that its launch failed after it was
    accepted, ``failing`` names the gate checks it will fail.
    """

    id: str
    seq: int
    provider: str
    kind: str
    offer: OfferSpec
    key: str
    image_id: str
    user_data: str
    tags: dict[str, str]
    created_at: float
    peer: str
    index: int = 0
    phase: Phase = Phase.PENDING
    history: list[tuple[float, Phase]] = field(default_factory=list)
    code: str = ""
    message: str = ""
    preempted: bool = False
    died: bool = False
    lag_s: float = 0.0
    running_at: float | None = None
    up_at: float | None = None
    ended_at: float | None = None
    reclaim_at: float | None = None
    failing: tuple[str, ...] = ()
    shown_age: int = 0
    #: A wire skin's rendering of a snapshot, kept as long as that snapshot is shown.
    wire: tuple[Instance, object] | None = None

    @property
    def token(self) -> str:
        """The token of the create call that made it: its tag, or the call's own key."""
        return self.tags.get(TAG_TOKEN) or self.key

    @property
    def pool(self) -> str:
        """The pool that its tags name."""
        return self.tags.get(TAG_POOL, "")

    @property
    def cell(self) -> str:
        """The cell that its tags name."""
        return self.tags.get(TAG_CELL, "")

    @property
    def exists(self) -> bool:
        """True until the cloud has let go of it (and stopped billing)."""
        return self.phase is not Phase.TERMINATED

    @property
    def up(self) -> bool:
        """True while its operating system runs and an agent could report."""
        return self.up_at is not None and self.phase is Phase.RUNNING

    @property
    def ref(self) -> InstanceRef:
        """What a provider calls it."""
        return InstanceRef(self.provider, self.offer.region, self.offer.zone, self.id)

    def snapshot(self) -> Instance:
        """What a list that shows the present would say."""
        offer: OfferSpec = self.offer
        market: Market = offer.market
        return Instance(
            ref=self.ref,
            phase=self.phase,
            token=self.token,
            pool=self.pool,
            cell=self.cell,
            instance_type=offer.instance_type,
            market=market,
            image_id=self.image_id,
            created_at=self.created_at,
            code=self.code,
            message=self.message,
            preempted=self.preempted,
        )

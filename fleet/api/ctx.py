"""What the rows of the API are made from: the daemon now, and what is looked up once per answer.

Invariant: reads the view and what is observed, changes nothing, and never calls a cloud.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from fleet.model import Market, Need, Node, Offer, State
from fleet.plan import Rest, is_spare
from fleet.store.view import View
from providers.catalog import catalog

if TYPE_CHECKING:  # the composition root is above us
    from fleet.cell import Cell
    from fleet.daemon import Daemon

#: States in which the cloud bills an instance.
BILLED = frozenset(
    {State.BOOTING, State.CHECKING, State.READY, State.SUSPECT, State.DRAINING,
     State.QUARANTINED, State.TERMINATING}
)  # fmt: skip


@cache
def list_price(kind: str, region: str, zone: str, type_: str, market: str, gpu: str,
               gpus: int) -> float | None:  # fmt: skip
    """List price per instance-hour from the shipped table, None where it has none."""
    need = Need(gpu, gpus, frozenset({Market(market)}))
    zones = {region: {zone: ""}} if zone else None
    for offer in catalog().offers(kind, need, [region], zones=zones):
        if offer.instance_type == type_ and offer.market == market:
            return offer.price_usd_hour
    return None


class Ctx:
    """One moment of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon: Daemon = daemon
        self.cell: Cell = daemon.cell
        self.now = daemon.cell.clock.now()

    @property
    def view(self) -> View:
        """The read model."""
        return self.cell.view

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kind of each configured provider by name."""
        kinds = {name: name.partition("-")[0] for name in self.cell.providers}
        for entry in self.cell.settings.providers:
            name = str(entry.get("name") or entry.get("kind"))
            kinds[name] = str(entry.get("kind") or name)
        return kinds

    def price(self, offer: Offer) -> float | None:
        """Price per hour: the policy's own, else the list's."""
        if offer.price_usd_hour is not None:
            return offer.price_usd_hour
        kind = self.kinds.get(offer.provider, offer.provider)
        return list_price(kind, offer.region, offer.zone, offer.instance_type,
                          str(offer.market), offer.gpu, offer.gpus)  # fmt: skip

    @cached_property
    def spare_rank(self) -> dict[str, tuple[int, int]]:
        """(number of this spare, spares wanted) per spare node."""
        ranks: dict[str, tuple[int, int]] = {}
        for pool in self.view.by_pool:
            spares = [n for n in self.view.pool_nodes(pool) if is_spare(n)]
            wanted = self.spares_wanted(pool)
            ranks.update({n.id: (i, wanted) for i, n in enumerate(spares, 1)})
        return ranks

    def spares_wanted(self, pool: str) -> int:
        """Spares that the last plan wanted, or that the policy names."""
        last = self.daemon.plan.last.get(pool)
        if last is not None:
            return last.spares_wanted
        rules = self.cell.rules(pool)
        return rules.spares(None, None) if rules else 0

    def silent_s(self, node: Node) -> float | None:
        """Seconds since the last report, None when none came since this process began."""
        pulse = self.cell.watch.pulses.get(node.id)
        return None if pulse is None or pulse.last_at is None else self.now - pulse.last_at

    def resting(self, prefix: str) -> list[Rest]:
        """Rests in force whose scope begins so."""
        rests = self.view.rests.items()
        return [r for s, r in rests if s.startswith(prefix) and r.until > self.now]

    def observed(self) -> dict[str, float | None]:
        """Age of each provider's last complete list, seconds."""
        ages: dict[str, float | None] = {}
        for name, seen in self.cell.watch.sightings.items():
            age = seen.age_s(self.now)
            ages[name] = None if age is None else round(age, 1)
        return ages

    def version(self) -> str:
        """Changes whenever a committed change could change an answer."""
        meta: dict[str, Any] = self.view.meta
        parts = [str(self.view.seq)]
        parts += [str(meta.get(k, "0")) for k in ("policies", "rests", "batches")]
        parts.append("f" if self.view.frozen else "")
        return ".".join(parts)

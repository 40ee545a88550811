"""A read model of everything live, followed by change sequence.

Invariant: the view is only ever as new as the last ``refresh`` and never ahead of what is
committed; decisions made on it are guarded by row versions, so being behind costs a dropped step
and never a wrong write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sqlalchemy import select
from sqlmodel import Session, col

from fleet.model import Node, Reason, State
from fleet.plan import Rest
from fleet.store.tables import Base, BatchRow, PolicyRow, RestRow, SlotRow
from fleet.store.write import to_node
from policies.schema import HealthPolicy, Image, Pool


@dataclass(frozen=True, slots=True)
class Slot:
    """A consumer's slot and who serves it."""

    slot: str
    pool: str
    node_id: str | None
    since: float
    moves: int = 0


_META = select(Base.metadata.tables["meta"].c.name, Base.metadata.tables["meta"].c.value)


@dataclass
class View:
    """Live nodes, slots, open batches, rests and applied policies."""

    nodes: dict[str, Node] = field(default_factory=dict)
    by_pool: dict[str, set[str]] = field(default_factory=dict)
    by_token: dict[str, set[str]] = field(default_factory=dict)
    by_provider: dict[str, set[str]] = field(default_factory=dict)
    by_instance: dict[tuple[str, str], str] = field(default_factory=dict)
    ending: set[str] = field(default_factory=set)
    slots: dict[str, Slot] = field(default_factory=dict)
    slot_of: dict[str, str] = field(default_factory=dict)
    batches: dict[str, BatchRow] = field(default_factory=dict)
    rests: dict[str, Rest] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    deleted_pools: set[str] = field(default_factory=set)
    images: dict[str, Image] = field(default_factory=dict)
    health: dict[str, HealthPolicy] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    seq: int = -1
    changed: set[str] = field(default_factory=set)

    def refresh(self, tx: Session) -> None:
        """Take in what was committed since the last refresh; ids of changed nodes are added to
        ``changed`` (the reader clears it).
        """
        meta: dict[str, str] = {row[0]: row[1] for row in tx.connection().execute(_META)}
        first = self.seq < 0
        since, self.seq = self.seq, int(meta.get("seq", "0"))
        before, self.meta = self.meta, meta
        if first or self.seq != since:
            self._slots(tx, since)
            self._nodes(tx, since, first=first)
        if first or meta.get("batches") != before.get("batches"):
            rows = tx.execute(select(BatchRow).where(col(BatchRow.settled_at).is_(None)))
            self.batches = {b.token: b for b in rows.scalars()}
        if first or meta.get("rests") != before.get("rests"):
            self._rests(tx)
        if first or meta.get("policies") != before.get("policies"):
            self._policies(tx)

    def _nodes(self, tx: Session, since: int, *, first: bool) -> None:
        table = Base.metadata.tables["nodes"]
        query = select(table).where(table.c.seq > since)
        if first:
            query = select(table).where(table.c.state != str(State.TERMINATED))
        for row in tx.connection().execute(query).mappings():
            self._put(to_node(dict(row), self.slot_of.get(row["id"], "")))

    def _put(self, node: Node) -> None:
        self.changed.add(node.id)
        old = self.nodes.get(node.id)
        if old is not None and old.instance_id != node.instance_id:
            self._unbind(old)
        if node.state is State.TERMINATED:
            self._drop(node)
            return
        self.nodes[node.id] = node
        if node.state is State.TERMINATING:
            self.ending.add(node.id)
        self.by_pool.setdefault(node.pool, set()).add(node.id)
        self.by_token.setdefault(node.token, set()).add(node.id)
        self.by_provider.setdefault(node.offer.provider, set()).add(node.id)
        if node.instance_id:
            self.by_instance[(node.offer.provider, node.instance_id)] = node.id

    def _drop(self, node: Node) -> None:
        self.nodes.pop(node.id, None)
        self.ending.discard(node.id)
        self.by_pool.get(node.pool, set()).discard(node.id)
        self.by_provider.get(node.offer.provider, set()).discard(node.id)
        siblings = self.by_token.get(node.token, set())
        siblings.discard(node.id)
        if not siblings:
            self.by_token.pop(node.token, None)
        self._unbind(node)

    def _unbind(self, node: Node) -> None:
        """Forget a node's instance, unless another node has taken it over meanwhile."""
        key = (node.offer.provider, node.instance_id)
        if self.by_instance.get(key) == node.id:
            del self.by_instance[key]

    def _slots(self, tx: Session, since: int) -> None:
        rows = list(tx.execute(select(SlotRow).where(col(SlotRow.seq) > since)).scalars())
        for row in rows:
            old = self.slots.get(row.slot)
            if old is not None and old.node_id and self.slot_of.get(old.node_id) == row.slot:
                del self.slot_of[old.node_id]
                self._reslot(old.node_id, "")
        for row in rows:
            if row.pool == "":  # a removed slot keeps its row so that readers can follow
                self.slots.pop(row.slot, None)
                continue
            self.slots[row.slot] = Slot(row.slot, row.pool, row.node_id, row.since, row.moves)
            if row.node_id:
                self.slot_of[row.node_id] = row.slot
                self._reslot(row.node_id, row.slot)

    def _reslot(self, node_id: str, slot: str) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            self.nodes[node_id] = replace(node, slot=slot)
            self.changed.add(node_id)

    def _rests(self, tx: Session) -> None:
        self.rests = {
            r.scope: Rest(r.scope, r.until, r.level, r.allow, Reason(r.reason), r.message)
            for r in tx.execute(select(RestRow)).scalars()
        }

    def _policies(self, tx: Session) -> None:
        pools, images, health, deleted = {}, {}, {}, set()
        for row in tx.execute(select(PolicyRow)).scalars():
            if row.deleted_at is not None:
                if row.kind == "Pool" and row.spec:
                    deleted.add(row.name)
                continue
            if row.kind == "Pool":
                pools[row.name] = Pool.model_validate(row.spec)
            elif row.kind == "Image":
                images[row.name] = Image.model_validate(row.spec)
            elif row.kind == "HealthPolicy":
                health[row.name] = HealthPolicy.model_validate(row.spec)
        self.pools, self.images, self.health, self.deleted_pools = pools, images, health, deleted

    # -- reading ---------------------------------------------------------------------------------

    def pool_nodes(self, pool: str) -> list[Node]:
        """Live nodes of a pool in a stable order."""
        return [self.nodes[i] for i in sorted(self.by_pool.get(pool, ()))]

    def provider_nodes(self, provider: str) -> list[Node]:
        """Live nodes at a provider, in no order."""
        return [self.nodes[i] for i in self.by_provider.get(provider, ())]

    def token_nodes(self, token: str) -> list[Node]:
        """Live nodes of a batch in a stable order."""
        return [self.nodes[i] for i in sorted(self.by_token.get(token, ()))]

    def node_of(self, provider: str, instance_id: str) -> Node | None:
        """The live node bound to an instance."""
        node_id = self.by_instance.get((provider, instance_id))
        return self.nodes.get(node_id) if node_id else None

    def all(self) -> Iterable[Node]:
        """Every live node."""
        return list(self.nodes.values())

    @property
    def frozen(self) -> str:
        """Why everything is frozen, or ""."""
        return self.meta.get("frozen", "")

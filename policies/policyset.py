"""A set of policies, by kind and name, frozen.

Invariant: names are unique per kind; a set never changes after it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from fleet.errors import InputError
from policies.schema import API_VERSION, KINDS, HealthPolicy, Image, Policy, Pool

#: The health policy that pools get without writing one.
DEFAULT_HEALTH: Final = HealthPolicy.model_validate(
    {"apiVersion": API_VERSION, "kind": "HealthPolicy", "metadata": {"name": "default"}}
)


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Pools, images and health policies by name."""

    pools: Mapping[str, Pool] = field(default_factory=_empty)
    images: Mapping[str, Image] = field(default_factory=_empty)
    health: Mapping[str, HealthPolicy] = field(default_factory=_empty)

    @classmethod
    def of(cls, policies: Iterable[Policy]) -> PolicySet:
        """A set of ``policies``; of two with one kind and name the later stays."""
        pools: dict[str, Pool] = {}
        images: dict[str, Image] = {}
        health: dict[str, HealthPolicy] = {}
        for policy in policies:
            name = policy.metadata.name
            if isinstance(policy, Pool):
                pools[name] = policy
            elif isinstance(policy, Image):
                images[name] = policy
            else:
                health[name] = policy
        frozen = MappingProxyType
        return cls(frozen(pools), frozen(images), frozen(health))

    def __iter__(self) -> Iterator[Policy]:
        """Images, health policies, then pools, each by name: the order in which to apply."""
        for name in sorted(self.images):
            yield self.images[name]
        for name in sorted(self.health):
            yield self.health[name]
        for name in sorted(self.pools):
            yield self.pools[name]

    def __len__(self) -> int:
        return len(self.pools) + len(self.images) + len(self.health)

    def get(self, kind: str, name: str) -> Policy | None:
        """The policy of ``kind`` called ``name``, or None."""
        return next((p for p in self if p.kind == kind and p.metadata.name == name), None)

    def over(self, base: PolicySet) -> PolicySet:
        """``base`` with this set's policies laid over it: what is in force after an apply."""
        return PolicySet.of([*base, *self])

    def without(self, kind: str, name: str) -> PolicySet:
        """A copy without one policy."""
        return PolicySet.of(p for p in self if (p.kind, p.metadata.name) != (kind, name))

    def health_of(self, pool: Pool) -> HealthPolicy:
        """The health policy of ``pool``; the shipped one for ``default`` where none is written.

        Raises ``InputError`` for a name that is not in the set: sets that were loaded have none.
        """
        name = pool.spec.health
        found = self.health.get(name)
        if found is not None:
            return found
        if name == DEFAULT_HEALTH.metadata.name:
            return DEFAULT_HEALTH
        raise InputError(f"pool {pool.metadata.name} wants health policy {name}, which is unknown")


EMPTY: Final = PolicySet()


def from_json(value: Mapping[str, Any]) -> Policy:
    """A policy from its stored JSON (``model_dump(mode="json")``).

    Raises ``InputError`` for an unknown kind and pydantic's ``ValidationError`` otherwise.
    """
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"unknown kind {kind!r}")
    return KINDS[kind].model_validate(value)

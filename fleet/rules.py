"""From applied policies to the plain numbers that pure decisions take.

Invariant: the one place that knows both the YAML schema and the decision modules; everything it
returns is frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.gate import Bound, GatePolicy
from fleet.guards import RepairPolicy
from fleet.lifecycle import Rules
from fleet.model import Fault, Severity
from fleet.spares import spares_needed
from policies.budget import share_count
from policies.schema import GPUS, HealthPolicy, Image, Pool
from policies.schema.pool import SparesPromise

#: Failure rate and refill time assumed until the pool has a history of its own: 3.8 faults per
#: 1,000 node-days (Llama 3 405B, gpu-health.md 5) and a boot of 15 minutes.
PRIOR_FAILURES_PER_NODE_HOUR = 3.8 / 24_000
PRIOR_REFILL_S = 900.0

DEFAULT_HEALTH = HealthPolicy.model_validate(
    {"apiVersion": "fleetd/v1", "kind": "HealthPolicy", "metadata": {"name": "default"}, "spec": {}}
)


@dataclass(frozen=True, slots=True)
class PoolRules:
    """Everything decided about a pool by its policies, ready for use."""

    name: str
    pool: Pool
    health: HealthPolicy
    gate: GatePolicy
    repair: RepairPolicy
    surge: int
    quarantine: int
    urls: tuple[str, ...]

    def rules(self, instance_type: str, launch_p99_s: float | None = None,
              boot_p99_s: float | None = None) -> Rules:  # fmt: skip
        """Deadlines for a node of ``instance_type``, learned where policy leaves them open."""
        d, r = self.pool.spec.deadlines, self.health.spec.report
        gate_s = self.health.spec.gate.deadline_s if d.gate_s is None else d.gate_s
        suspect = r.replace_silent_s if d.suspect_s is None else d.suspect_s
        return Rules(
            request_s=d.request_s,
            launch_s=d.launch_limit_s(instance_type, launch_p99_s),
            boot_s=d.boot_limit_s(instance_type, boot_p99_s),
            gate_s=gate_s,
            silent_s=r.silent_s,
            replace_silent_s=suspect,
            warning_persist_s=self.health.spec.warnings.persist_s,
            drain_s=d.drain_s,
            quarantine_s=self.pool.spec.quarantine.for_s,
            terminate_alarm_s=d.terminate_alarm_s,
            repair=self.pool.spec.repair.mode == "replace",
        )

    def severity(self, fault: Fault) -> Severity:
        """How bad a fault is for nodes of this pool."""
        return self.health.spec.severity(fault.code)

    def spares(self, failures_per_node_hour: float | None, refill_s: float | None) -> int:
        """Spares wanted: the count, or what the promise needs given measured rates.

        A promise that leaves time for a refill (``ready_within_s`` beyond the refill time) needs
        no spare for that part: the Poisson mean counts only what the window cannot refill.
        """
        want = self.pool.spec.spares
        if not isinstance(want, SparesPromise):
            return want
        rate = PRIOR_FAILURES_PER_NODE_HOUR
        if failures_per_node_hour is not None:
            rate = failures_per_node_hour
        refill = max(0.0, (refill_s or PRIOR_REFILL_S) - want.ready_within_s)
        return spares_needed(self.pool.spec.nodes, rate, refill, want.probability, want.max)

    @property
    def slots(self) -> list[str]:
        """Names of the consumer's slots, in order."""
        if self.pool.spec.slots:
            return list(self.pool.spec.slots)
        width = max(2, len(str(max(0, self.pool.spec.nodes - 1))))
        return [f"{self.name}-{i:0{width}d}" for i in range(self.pool.spec.nodes)]


def pool_rules(pool: Pool, health: Mapping[str, HealthPolicy]) -> PoolRules:
    """The rules of one pool under the applied health policies."""
    spec = pool.spec
    policy = health.get(spec.health, DEFAULT_HEALTH)
    driver = policy.spec.driver
    bounds = {
        name: Bound(least, most, unit) for name, (least, most, unit) in policy.spec.bounds().items()
    }
    gate = GatePolicy(
        " ".join(GPUS[spec.gpu].nvml), spec.gpus_per_node, policy.spec.gate_required(),
        policy.spec.gate_ignored(),
        bounds, driver.min or "", driver.exact or "",
    )  # fmt: skip
    r = spec.repair
    share = float(r.share.rstrip("%")) / 100 if isinstance(r.share, str) else 0.0
    floor = r.floor if isinstance(r.share, str) else max(r.floor, r.share)
    repair = RepairPolicy(share, floor, r.absolute, r.window_s, r.half_open_s)
    return PoolRules(
        pool.metadata.name, pool, policy, gate, repair,
        share_count(spec.surge, spec.nodes, floor=1), spec.quarantine.max,
        tuple(w.url for w in spec.webhooks),
    )  # fmt: skip


def image_ids(
    image: Image | None, version: str, places: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """Artifact ids of one version by (provider, region), for the places that have one."""
    found = image.spec.version(version) if image is not None else None
    if found is None:
        return {}
    ids = {place: found.artifact(*place) for place in places}
    return {place: artifact for place, artifact in ids.items() if artifact is not None}

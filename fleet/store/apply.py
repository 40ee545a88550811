"""Applying policies: all objects of a set or none, with versions and history.

Invariant: one transaction; an object that did not change keeps its version; a version that the
caller did not expect is a Conflict and nothing is written; deleting a pool keeps its row until its
nodes are gone (PC-139).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select, update
from sqlmodel import Session, col

from fleet.errors import Conflict, NotFound
from fleet.model import Reason
from fleet.store import control
from fleet.store.tables import PolicyRow
from fleet.store.write import event
from policies.policyset import PolicySet
from policies.schema import HealthPolicy, Image, Policy, Pool


def applied(tx: Session) -> PolicySet:
    """The policies in force."""
    kinds: dict[str, type[Pool | Image | HealthPolicy]] = {
        "Pool": Pool, "Image": Image, "HealthPolicy": HealthPolicy,
    }  # fmt: skip
    rows = tx.execute(select(PolicyRow).where(col(PolicyRow.deleted_at).is_(None))).scalars()
    return PolicySet.of(kinds[row.kind].model_validate(row.spec) for row in rows)


def versions(tx: Session) -> dict[tuple[str, str], int]:
    """Version (ETag) of each policy in force."""
    rows = tx.execute(select(PolicyRow).where(col(PolicyRow.deleted_at).is_(None))).scalars()
    return {(r.kind, r.name): r.version for r in rows}


def apply(
    tx: Session, policies: Iterable[Policy], *, actor: str, now: float, source: str = "",
    expected: Mapping[tuple[str, str], int] | None = None,
) -> list[tuple[str, str, int]]:  # fmt: skip
    """Write the policies that differ; (kind, name, new version) of each that changed.

    ``expected`` are versions that the caller looked at; one that has moved raises Conflict.
    """
    have = versions(tx)
    for key, version in (expected or {}).items():
        if have.get(key, 0) != version:
            raise Conflict(
                f"{key[0]} {key[1]} is at version {have.get(key, 0)}, you looked at {version}",
                code="version_conflict", fix="look at the difference again: fleetctl diff -f FILE",
            )  # fmt: skip
    changed: list[tuple[str, str, int]] = []
    for policy in policies:
        spec = policy.model_dump(mode="json")
        row = tx.get(PolicyRow, (policy.kind, policy.metadata.name))
        if row is not None and row.deleted_at is None and row.spec == spec:
            continue
        version = _write(tx, row, policy, spec, actor, now, source)
        changed.append((policy.kind, policy.metadata.name, version))
    if changed:
        control.bump(tx, "policies")
    return changed


def _write(
    tx: Session, row: PolicyRow | None, policy: Policy, spec: dict[str, Any], actor: str,
    now: float, source: str,
) -> int:  # fmt: skip
    kind, name = policy.kind, policy.metadata.name
    if row is None:
        row = PolicyRow(kind=kind, name=name, version=0)
        tx.add(row)
    row.version, row.spec, row.source = row.version + 1, spec, source
    row.applied_at, row.applied_by, row.deleted_at = now, actor, None
    tx.flush()
    event(
        tx, kind=kind.lower(), object_id=name, pool=name if kind == "Pool" else "",
        reason=Reason.POLICY_APPLIED, actor=actor, at=now,
        message=f"version {row.version} from {source or 'the API'}",
    )  # fmt: skip
    if kind == "Pool":  # what was held for the old policy gets a new chance
        control.clear_rest(tx, f"pool:{name}", actor=actor, now=now)
    return row.version


def delete_policy(tx: Session, kind: str, name: str, *, actor: str, now: float) -> None:
    """Mark a policy deleted; a pool's nodes are then drained by the plan loop."""
    row = tx.get(PolicyRow, (kind, name))
    if row is None or row.deleted_at is not None:
        raise NotFound(kind.lower(), name)
    row.deleted_at, row.applied_by = now, actor
    row.version += 1
    tx.flush()
    control.bump(tx, "policies")
    event(tx, kind=kind.lower(), object_id=name, pool=name if kind == "Pool" else "",
          reason=Reason.POOL_DELETED if kind == "Pool" else Reason.POLICY_APPLIED, actor=actor,
          at=now, message=f"{kind} deleted")  # fmt: skip


def forget_deleted(tx: Session, name: str) -> None:
    """Empty a deleted pool's row once nothing of it is left. The row stays, so that a pool of the
    same name goes on with the next version and an old ETag never matches again.
    """
    tx.execute(
        update(PolicyRow)
        .where(col(PolicyRow.kind) == "Pool", col(PolicyRow.name) == name)
        .values(spec={})
    )
    control.bump(tx, "policies")

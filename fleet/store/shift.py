"""A wall clock that stepped: every stamp of what is under way steps with it.

Invariant: durations that were begun keep their length, in the store as in memory; what has ended
keeps the times at which people saw it happen (public case PC-208).
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import update
from sqlmodel import Session

from fleet.model import Actor, Reason, State
from fleet.plan import FOREVER
from fleet.store import control, write
from fleet.store.tables import Base

_T: Final = Base.metadata.tables
_NODE: Final = (
    "state_since", "created_at", "requested_at", "accepted_at", "running_at", "first_report_at",
    "ready_at", "deadline_at", "drained_at",
)  # fmt: skip
_BATCH: Final = ("created_at", "sent_at", "next_at", "boot_expires_at")


def shift(tx: Session, step_s: float, *, now: float) -> None:
    """Move the stamps of live nodes, open batches, rests, open faults and the outbox."""
    nodes, batches, rests = _T["nodes"], _T["batches"], _T["rests"]
    faults, outbox = _T["faults"], _T["outbox"]
    moved = {name: nodes.c[name] + step_s for name in _NODE}
    tx.execute(
        update(nodes)
        .where(nodes.c.state != str(State.TERMINATED))
        .values(seq=write.next_seq(tx), version=nodes.c.version + 1, **moved)
    )
    tx.execute(update(batches).values({name: batches.c[name] + step_s for name in _BATCH}))
    tx.execute(
        update(rests).where(rests.c.until < FOREVER / 2).values(until=rests.c.until + step_s)
    )
    tx.execute(
        update(faults)
        .where(faults.c.cleared_at.is_(None))
        .values(first_at=faults.c.first_at + step_s, last_at=faults.c.last_at + step_s)
    )
    tx.execute(
        update(outbox).where(outbox.c.done_at.is_(None)).values(next_at=outbox.c.next_at + step_s)
    )
    control.bump(tx, "batches")
    control.bump(tx, "rests")
    control.bump(tx, "outbox")
    write.event(
        tx, kind="cell", object_id="clock", reason=Reason.CLOCK_JUMP, actor=Actor.LIFECYCLE,
        at=now, message=f"the wall clock stepped {step_s:+.0f} s: deadlines step with it",
    )  # fmt: skip

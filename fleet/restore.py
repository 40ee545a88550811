"""What a fresh process takes over from the store into memory.

Invariant: only facts that were committed come back (open faults, what agents were last known to
say); silence starts to count at this process's start, never before.
"""

from __future__ import annotations

from fleet.cell import Cell
from fleet.model import Fault, Severity
from fleet.store import control


async def restore(cell: Cell) -> None:
    """Fill the pulses with open faults of live nodes, in the boot in which they were seen."""
    rows = await cell.store.run(control.open_faults)
    for row in rows:
        node = cell.view.nodes.get(row.node_id)
        if node is None or node.boot_id != row.boot_id:
            continue
        pulse = cell.watch.pulse(node.id)
        gpu = None if row.gpu < 0 else row.gpu
        fault = Fault(row.code, gpu, row.message, row.first_at)
        rules = cell.rules(node.pool)
        severity = rules.severity(fault) if rules else Severity(row.severity)
        if severity is Severity.FATAL:
            pulse.condemned(fault, row.last_at, row.n)
        elif severity is Severity.WARNING:
            pulse.warning = fault
            pulse.warning_since = row.first_at
    seen = await cell.store.run(control.last_seen)
    for node in cell.view.nodes.values():
        pulse = cell.watch.pulse(node.id)
        pulse.boot_id = node.boot_id
        boot_id, seq = seen.get(node.id, ("", 0))
        pulse.seq = seq if boot_id == node.boot_id else 0
        pulse.drained = node.drained_at is not None

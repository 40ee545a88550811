"""Fault classes and how bad they are.

Invariant: an unknown code is a warning, so that a new driver's news is seen and condemns nobody;
a policy's override always wins; XID and SXID severities are data with a source.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from fleet.model import Severity

#: NVSwitch SXIDs begin here; NVIDIA's XIDs end far below.
FIRST_SXID: Final = 10_000


@dataclass(frozen=True, slots=True)
class FaultDef:
    """One fault class: code as agents send it, severity, what it is, advised action, source."""

    code: str
    severity: Severity
    description: str
    action: str
    source: str
    mnemonic: str = ""
    category: str = ""


F, W, A, N = Severity.FATAL, Severity.WARNING, Severity.APPLICATION, Severity.INFO

# fmt: off
_NAMED: Final = (
    FaultDef("gpu_count_short", F, "fewer GPUs answer than the node has", "replace", "field.md 2"),
    FaultDef("gpu_lost", F, "GPU fell off the bus", "replace", "XID 79; field.md 2"),
    FaultDef("ecc_uncorrectable", F, "uncorrectable ECC error not contained", "replace",
             "field.md 2; gpu-health.md 1.1"),
    FaultDef("ecc_contained", W, "uncorrectable ECC error contained to one program", "watch",
             "XID 94: keep the node"),
    FaultDef("ecc_correctable_storm", W, "correctable ECC errors far above normal", "watch",
             "gpu-health.md 3.1"),
    FaultDef("sram_threshold", F, "SRAM error threshold exceeded", "replace", "vendor RMA rule"),
    FaultDef("row_remap_failure", F, "a bad row could not be remapped", "replace", "XID 64"),
    FaultDef("row_remap_pending", W, "a row remapping waits for a reset", "reset", "XID 63"),
    FaultDef("thermal_hw_slowdown", W, "hardware slowed the GPU for heat", "watch",
             "gpu-health.md 1.1, 3.1"),
    FaultDef("thermal_limit", W, "GPU or HBM above its temperature limit", "watch",
             "gpu-health.md 1.1"),
    FaultDef("power_brake", W, "external power brake", "watch", "gpu-health.md 1.1"),
    FaultDef("pcie_narrow", W, "PCIe link trained with fewer lanes or a lower generation",
             "reboot", "gpu-health.md 2.2"),
    FaultDef("nvlink_down", F, "an NVLink is down", "reset", "XID 74"),
    FaultDef("nvlink_errors", W, "NVLink error counters grow", "watch", "gpu-health.md 4(e)"),
    FaultDef("fabric_failed", F, "GPU could not join its fabric", "reboot", "gpu-health.md 3.1"),
    FaultDef("fabric_manager_down", W, "fabric manager does not run", "restart service",
             "gpu-health.md 3.1"),
    FaultDef("driver_mismatch", F, "driver and library versions differ", "reboot", "issue 4"),
    FaultDef("driver_missing", F, "no driver answers", "replace", "issue 4"),
    FaultDef("gsp_failed", F, "GSP firmware failed or timed out", "reset", "XID 119, 120"),
    FaultDef("inforom_corrupt", W, "InfoROM is corrupt", "watch", "gpu-health.md 3.1"),
    FaultDef("recovery_reset", F, "driver asks for a GPU reset", "reset", "XID 154"),
    FaultDef("recovery_reboot", F, "driver asks for a reboot", "reboot", "XID 154"),
    FaultDef("recovery_drain", W, "driver asks to drain peer-to-peer work", "drain", "XID 154"),
    FaultDef("cuda_init_failed", F, "CUDA cannot be initialised after all tries", "replace",
             "gpu-health.md 1.1"),
    FaultDef("memory_pattern_wrong", F, "memory gave back another pattern", "replace",
             "gate experiment"),
    FaultDef("compute_wrong", F, "an SM computed a wrong result", "replace", "gate experiment"),
    FaultDef("probe_hung", F, "a probe did not come back in time", "reboot",
             "gpu-health.md 7.2: a hung probe is a fault"),
    FaultDef("probe_failed", W, "a probe could not run: unknown, blames nobody", "watch",
             "gpu-health.md 7.2"),
    FaultDef("edac_uncorrectable", F, "uncorrectable host memory error", "replace",
             "gpu-health.md 2.2"),
    FaultDef("disk_read_only", F, "a file system went read-only", "replace", "issue 4"),
    FaultDef("disk_full", W, "a file system is full", "watch", "issue 4"),
    FaultDef("nic_down", W, "a network link is down", "watch", "gpu-health.md 2.2"),
    FaultDef("nic_flapping", W, "a network link flaps", "watch", "gpu-health.md 3.1"),
    FaultDef("infiniband_down", W, "an InfiniBand port is down", "watch", "gpu-health.md 3.1"),
    FaultDef("infiniband_flapping", W, "an InfiniBand port flaps", "watch", "gpu-health.md 3.1"),
    FaultDef("clock_unsynced", N, "the host clock is not in step", "watch", "issue 4"),
    FaultDef("mount_missing", W, "a file system of the policy is not mounted", "watch",
             "gpu-health.md 2.2"),
    FaultDef("stuck_process", W, "processes hang in D state", "watch", "gpu-health.md 3.1"),
    FaultDef("slow_outlier", W, "far slower than the fleet's like nodes", "watch",
             "gpu-health.md 7.8"),
    FaultDef("kernel_log_flood", N, "kernel log came faster than it could be read", "none",
             "issue 4"),
    FaultDef("application_error", A, "the program broke, not the machine", "none",
             "gpu-health.md 0.3"),
)
# fmt: on


@cache
def catalog() -> Mapping[str, FaultDef]:
    """All known fault classes by code: named ones, ``xid_N`` and ``sxid_N``."""
    found = {fault.code: fault for fault in _NAMED}
    text = files("policies").joinpath("data/xid_catalog.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        number = int(row["xid"])
        code = f"sxid_{number}" if number >= FIRST_SXID else f"xid_{number}"
        found[code] = FaultDef(
            code=code,
            severity=Severity(row["severity"]),
            description=row["description"],
            action=row["recommended_action"],
            source=row["source"],
            mnemonic=row["mnemonic"],
            category=row["category"],
        )
    return found


def severity(code: str, overrides: Mapping[str, Severity] | None = None) -> Severity:
    """How bad ``code`` is: the policy's word, else the catalogue's, else a warning."""
    if overrides and code in overrides:
        return overrides[code]
    known = catalog().get(code)
    return known.severity if known else Severity.WARNING


def describe(code: str) -> str:
    """What ``code`` means, for messages; "" if nobody knows."""
    known = catalog().get(code)
    return known.description if known else ""

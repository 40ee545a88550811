"""Every health check by name: unit, level, bounds, what it looks at and who says so.

Invariant: closed list. Agent, gate, policies and pages use these names and no other; a name is
never reused for another meaning. Sources are sections of the project's gpu-health page ("gh") and
the systems named there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Level(StrEnum):
    """What a failing check does. Absence is another matter: see ``gate.required``."""

    REQUIRED = "required"
    """A failure keeps the node out of service."""
    WARN = "warn"
    """A failure is a warning; it counts only if it persists."""
    IGNORE = "ignore"
    """Not judged."""


class Stage(StrEnum):
    """When a check runs, from cheap to dear."""

    PASSIVE = "passive"
    """All the time, beside the workload, read-only."""
    QUICK = "quick"
    """At the boot gate: seconds, needs an idle GPU."""
    STANDARD = "standard"
    """Minutes, needs an idle node."""
    DEEP = "deep"
    """Up to an hour, needs an idle node."""


@dataclass(frozen=True, slots=True)
class CheckDef:
    """One check. ``least`` and ``most`` are default bounds in ``unit``; None: the agent judges
    alone, from vendor limits or per-model reference numbers. ``gate``: must be reported there.
    """

    name: str
    unit: str
    level: Level
    stage: Stage
    description: str
    source: str
    least: float | None = None
    most: float | None = None
    per_gpu: bool = True
    gate: bool = False


R, W, I = Level.REQUIRED, Level.WARN, Level.IGNORE  # noqa: E741 — columns of a table
P, Q, S, D = Stage.PASSIVE, Stage.QUICK, Stage.STANDARD, Stage.DEEP

# fmt: off
_GPU: Final = (
    CheckDef("gpu_count", "gpus", R, Q, "GPUs that lspci, NVML and the pool agree on",
             "gh 7.1; gpud, AzNHC", per_gpu=False, gate=True),
    CheckDef("gpu_model", "", R, Q, "GPU model is the pool's", "gh 7.1", gate=True),
    CheckDef("gpu_lost", "", R, P, "GPU fell off the bus: on PCI but not answering NVML",
             "gh 4 XID 79; NVSentinel, ClusterMAX"),
    CheckDef("driver_version", "", R, Q, "driver is the policy's", "gh 7.1", per_gpu=False,
             gate=True),
    CheckDef("driver_library_match", "", R, Q, "kernel module and user library are one version",
             "gh 7.1; gpud libraries", per_gpu=False, gate=True),
    CheckDef("xid_since_boot", "faults", R, P, "node-fatal XIDs since boot", "gh 4, 7.1", most=0),
    CheckDef("sxid_since_boot", "faults", R, P, "node-fatal NVSwitch SXIDs since boot", "gh 4",
             most=0, per_gpu=False),
    CheckDef("recovery_action", "", R, P, "driver asks for no recovery action (reset, reboot)",
             "gh 4(d) XID 154"),
    CheckDef("inforom", "", W, P, "InfoROM checksum is valid", "gh 3.1 NVSentinel"),
    CheckDef("gsp", "", W, P, "GSP firmware runs and is the driver's", "gh 4 XID 119, 120"),
    CheckDef("persistence_mode", "", W, P, "persistence mode or daemon is on", "gh 3.1 gpud"),
    CheckDef("mig_mode", "", R, Q, "MIG is off and no change pending", "issue 4"),
    CheckDef("stray_process", "processes", W, Q, "no process on a GPU that should be free",
             "gh 3.1 gpud", most=0),
)

_MEMORY: Final = (
    CheckDef("ecc_mode", "", W, P, "ECC is on where the model has it", "gh 3.1"),
    CheckDef("ecc_uncorrectable", "errors", R, P, "uncorrectable ECC errors since boot",
             "gh 1.1; CHS: any volatile uncorrected", most=0),
    CheckDef("ecc_correctable", "errors", W, P, "correctable ECC errors since boot",
             "gh 3.1 AzNHC: 20,000,000 volatile", most=20_000_000),
    CheckDef("sram_threshold", "", R, P, "SRAM uncorrectable threshold flag is not set",
             "gh 3.1; RMA criterion of the vendor"),
    CheckDef("sram_correctable", "errors", W, P, "corrected SRAM errors since boot",
             "gh 3.1 AzNHC: 10,000", most=10_000),
    CheckDef("row_remap_pending", "", R, P, "no row remapping waits for a reset", "gh 7.1"),
    CheckDef("row_remap_failure", "", R, P, "no row remapping failed", "gh 4 XID 64"),
    CheckDef("row_remap_banks", "banks", W, P, "banks without spare rows", "gh 3.1", most=0),
    CheckDef("row_remap_rows", "rows", W, P, "rows remapped so far", "gh 3.1 AzNHC: 512",
             most=512),
    CheckDef("page_retirement", "pages", W, P, "retired pages (before Ampere), none pending",
             "gh 4 XID 63"),
    CheckDef("memory_reserved", "MiB", W, Q, "memory the host keeps, against the type's reference",
             "gh 1.1: one cloud keeps 228 MiB more"),
    CheckDef("memory_size", "MiB", W, Q, "usable memory against the model's reference", "gh 7.1"),
)

_LINKS: Final = (
    CheckDef("pcie_generation", "gen", W, P, "PCIe generation reached under load",
             "gh 2.2 fallback to slower mode"),
    CheckDef("pcie_width", "lanes", R, P, "PCIe lanes against the most the slot has", "gh 7.1"),
    CheckDef("pcie_replay", "replays/min", W, P, "growth of the PCIe replay counter", "gh 2.2"),
    CheckDef("nvlink_state", "links", R, P, "NVLinks that are down or missing", "gh 3.1", most=0),
    CheckDef("nvlink_errors", "errors/min", W, P, "growth of NVLink error counters", "gh 4 XID 74"),
    CheckDef("nvswitch_state", "", W, P, "NVSwitches present and without fatal error", "gh 3.1",
             per_gpu=False),
    CheckDef("fabric_manager", "", R, P, "fabric manager runs and has the driver's version",
             "gh 3.1 gpud", per_gpu=False),
    CheckDef("fabric_state", "", R, P, "GPU joined its fabric (state completed, no error)",
             "gh 3.1"),
)

_HEAT: Final = (
    CheckDef("temperature_gpu", "C", W, P, "GPU core temperature", "gh 1.1 Modal: 88 C", most=88),
    CheckDef("temperature_memory", "C", W, P, "HBM temperature, against the vendor's limit",
             "gh 3.1 gpud"),
    CheckDef("temperature_margin", "C", W, P, "distance to the slowdown temperature", "gh 3.1 gpud",
             least=0),
    CheckDef("slowdown_hardware", "events/min", W, P, "hardware slowdown",
             "gh 3.1 gpud: 0.6 a minute over 10 min", most=0.6),
    CheckDef("slowdown_thermal", "events/min", W, P, "thermal slowdown, hardware or software",
             "gh 1.1", most=0.6),
    CheckDef("slowdown_power_brake", "events/min", W, P, "external power brake", "gh 1.1",
             most=0.6),
    CheckDef("slowdown_power_cap", "", I, P, "software power cap: normal under load", "issue 4"),
    CheckDef("slowdown_sync_boost", "", W, P, "sync-boost violation", "gh 1.1"),
    CheckDef("power_draw", "W", W, P, "board power against its limit", "gh 3.1 gpud"),
    CheckDef("power_limit", "W", W, Q, "enforced limit is the model's default", "gh 3.1"),
    CheckDef("clocks_under_load", "MHz", W, S, "SM clock under load against the reference",
             "gh 1.1"),
)

_HOST: Final = (
    CheckDef("services", "", W, P, "units that must run do (persistence, fabric, DCGM, runtime)",
             "gh 1.1 systemctl queries", per_gpu=False),
    CheckDef("edac_uncorrectable", "errors", R, P, "uncorrectable host memory errors", "gh 2.2",
             most=0, per_gpu=False),
    CheckDef("edac_correctable", "errors", W, P, "correctable host memory errors", "gh 2.2",
             per_gpu=False),
    CheckDef("cpu_count", "cpus", W, Q, "CPUs against the type's reference", "gh 3.1 AzNHC",
             per_gpu=False),
    CheckDef("host_memory", "MiB", W, Q, "host memory against the type's reference",
             "gh 3.1 AzNHC", per_gpu=False),
    CheckDef("disk_read_only", "", R, P, "no file system has gone read-only", "issue 4",
             per_gpu=False),
    CheckDef("disk_full", "percent", W, P, "fullest file system", "issue 4", most=95,
             per_gpu=False),
    CheckDef("nvme_count", "disks", W, Q, "NVMe disks against the type's reference",
             "gh 3.1 AzNHC", per_gpu=False),
    CheckDef("nic_link", "", W, P, "network links up at full speed", "gh 2.2", per_gpu=False),
    CheckDef("nic_flaps", "flaps/h", W, P, "network link losses", "gh 3.1 NVSentinel: 3 an hour",
             most=3, per_gpu=False),
    CheckDef("infiniband_link", "", W, P, "InfiniBand ports active at full rate",
             "gh 3.1 gpud: down 25 s", per_gpu=False),
    CheckDef("infiniband_flaps", "flaps/h", W, P, "InfiniBand link losses",
             "gh 3.1 gpud: 3 times", most=3, per_gpu=False),
    CheckDef("peermem", "", I, P, "nvidia-peermem is loaded", "gh 3.1 gpud", per_gpu=False),
    CheckDef("pcie_acs", "", I, P, "PCI ACS is off where peers talk directly", "gh 3.1 gpud",
             per_gpu=False),
    CheckDef("clock_sync", "s", W, P, "distance of the host clock from its source", "issue 4",
             most=5, per_gpu=False),
    CheckDef("mounts", "", W, P, "file systems of the policy are mounted", "gh 2.2",
             per_gpu=False),
    CheckDef("stuck_processes", "processes", W, P, "processes in D state for minutes",
             "gh 3.1 gpud", most=0, per_gpu=False),
)

_QUICK: Final = (
    CheckDef("cuda_init", "s", R, Q, "cuInit and a context on every GPU, with retries",
             "gh 1.1: 0.1 % of one cloud's L4", gate=True),
    CheckDef("memory_pattern", "GiB", R, Q, "two patterns over all free memory, read back",
             "gate experiment; gh 7.1", gate=True),
    CheckDef("tensor_checksum", "SMs", R, Q, "tensor-core result bitwise equal on every SM",
             "gate experiment", gate=True),
    CheckDef("fp32_checksum", "SMs", R, Q, "FP32 result bitwise equal on every SM",
             "gate experiment", gate=True),
    CheckDef("tensor_throughput", "TFLOP/s", W, Q, "tensor throughput against the reference",
             "gh 1.1, 7.8"),
    CheckDef("memory_bandwidth", "TB/s", W, Q, "device memory bandwidth against the reference",
             "gh 7.8"),
    CheckDef("copy_host_to_device", "GB/s", W, Q, "pinned host-to-device copy",
             "gh 3.1 AzNHC: H100 48, H200 55, A100 23"),
    CheckDef("copy_device_to_host", "GB/s", W, Q, "pinned device-to-host copy", "gh 1.1"),
)

_ACTIVE: Final = (
    CheckDef("peer_copy", "GB/s", W, S, "copies between GPUs of the node",
             "gh 3.1 AzNHC: H100 335, H200 400, A100 228"),
    CheckDef("nvlink_bandwidth", "GB/s", W, S, "NVLink bandwidth between GPU pairs", "gh 2.2"),
    CheckDef("nccl_allreduce", "GB/s", W, S, "all-reduce within the node",
             "gh 3.1 AzNHC: H100 460; NVSentinel", per_gpu=False),
    CheckDef("nccl_tests", "GB/s", W, D, "nccl-tests, where installed", "gh 3.1 soperator",
             per_gpu=False),
    CheckDef("dcgm_diag", "", W, D, "dcgmi diag, where installed", "gh 1.1 level 2 weekly",
             per_gpu=False),
    CheckDef("ib_write_bandwidth", "Gb/s", W, D, "ib_write_bw between ports, where installed",
             "gh 3.1 AzNHC: 380", per_gpu=False),
    CheckDef("ib_write_latency", "us", W, D, "ib_write_lat between ports, where installed",
             "gh 2.2", per_gpu=False),
    CheckDef("training_convergence", "", W, D, "short training run against its reference loss",
             "gh 2.2", per_gpu=False),
    CheckDef("burn", "", W, D, "burn of chosen length watching clocks and temperature",
             "gh 1.1 GPUBurn, gpu-fryer"),
)

# fmt: on
CHECKS: Final[Mapping[str, CheckDef]] = {
    check.name: check for check in (*_GPU, *_MEMORY, *_LINKS, *_HEAT, *_HOST, *_QUICK, *_ACTIVE)
}

#: Checks that the gate waits for by default: those every GPU model can answer.
GATE_REQUIRED: Final = tuple(name for name, check in CHECKS.items() if check.gate)

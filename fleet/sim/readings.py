"""What a simulated node measures: plausible values for every check, and bad ones on demand.

Invariant: a healthy machine passes every check by a margin; a named defect fails that check alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fleet.clock import Chance
from policies.checks import CHECKS

DRIVER: Final = "580.95.05"

#: Short model name → what NVML calls the product.
PRODUCTS: Final = {
    "H100": "NVIDIA H100 80GB HBM3",
    "H200": "NVIDIA H200",
    "B200": "NVIDIA B200",
    "A100": "NVIDIA A100-SXM4-40GB",
    "A100-80GB": "NVIDIA A100-SXM4-80GB",
}

#: check → (healthy low, healthy high, value when it fails). Checks without numbers are left out.
_VALUES: Final[dict[str, tuple[float, float, float]]] = {
    "pcie_width": (16, 16, 8),
    "pcie_generation": (5, 5, 3),
    "pcie_replay": (0, 0.2, 40),
    "ecc_correctable": (0, 12, 3e7),
    "temperature_gpu": (31, 48, 93),
    "temperature_memory": (35, 55, 98),
    "temperature_margin": (35, 50, -2),
    "memory_size": (81_079, 81_079, 79_000),
    "memory_reserved": (480, 520, 760),
    "cuda_init": (0.6, 1.6, 30),
    "memory_pattern": (74.0, 77.5, 12.0),
    "tensor_checksum": (132, 132, 131),
    "fp32_checksum": (132, 132, 131),
    "tensor_throughput": (640, 700, 330),
    "memory_bandwidth": (2.7, 3.0, 1.2),
    "copy_host_to_device": (49, 54, 14),
    "copy_device_to_host": (50, 54, 14),
    "disk_full": (8, 30, 99),
    "clock_sync": (0.0, 0.01, 900),
    "power_draw": (68, 120, 900),
}

#: What a gate report holds beside the required checks.
_ALWAYS: Final = ("ecc_uncorrectable", "pcie_width", "nvlink_state", "temperature_gpu", "inforom")


def product(gpu: str) -> str:
    """NVML's name of a model."""
    return PRODUCTS.get(gpu, f"NVIDIA {gpu}")


def gate_checks(
    required: Iterable[str], failing: Iterable[str], gpus: int, chance: Chance
) -> list[dict[str, Any]]:
    """Results of a boot gate as the agent sends them: required ones, usual ones, failing ones."""
    bad = frozenset(failing)
    names = dict.fromkeys([*required, *_ALWAYS, *sorted(bad)])
    return [_result(name, name in bad, gpus, chance) for name in names]


def _result(name: str, failed: bool, gpus: int, chance: Chance) -> dict[str, Any]:
    unit = CHECKS[name].unit if name in CHECKS else ""
    value: float | None
    if name == "gpu_count":
        value = gpus - 1 if failed else gpus
    elif name in _VALUES:
        low, high, broken = _VALUES[name]
        value = broken if failed else round(chance.uniform(low, high), 2)
    else:
        # Counters of bad things: none on a healthy machine.
        value = (2.0 if failed else 0.0) if unit else None
    return {
        "name": name,
        "status": "fail" if failed else "pass",
        "value": value,
        "unit": unit,
        "message": f"{name} out of bounds" if failed else "",
        "gpu": int(chance.random() * gpus) if failed and name != "gpu_count" and gpus else None,
    }

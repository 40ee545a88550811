"""The GPU models fleetd knows, by the names used in policies and price tables.

Invariant: every name is unique without regard to case, and ``nvml`` are the words (upper case,
split at blanks and dashes) that NVML's product name of such a GPU contains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, WithJsonSchema

from policies.schema.base import refuse
from policies.text import did_you_mean, quoted


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU model: policy name and words of the NVML product name."""

    name: str
    nvml: tuple[str, ...]


_TABLE: Final = (
    GpuModel("A10", ("A10",)),
    GpuModel("A10G", ("A10G",)),
    GpuModel("A100", ("A100",)),
    GpuModel("A100-80GB", ("A100", "80GB")),
    GpuModel("B200", ("B200",)),
    GpuModel("B300", ("B300",)),
    GpuModel("GB200", ("GB200",)),
    GpuModel("GB300", ("GB300",)),
    GpuModel("GH200", ("GH200",)),
    GpuModel("H100", ("H100",)),
    # Google's a3-megagpu-8g: the GPU is an H100, the host has more network; NVML cannot tell.
    GpuModel("H100-MEGA", ("H100",)),
    GpuModel("H200", ("H200",)),
    GpuModel("L4", ("L4",)),
    GpuModel("L40", ("L40",)),
    GpuModel("L40S", ("L40S",)),
    GpuModel("RTX-PRO-6000", ("RTX", "PRO", "6000")),
    GpuModel("T4", ("T4",)),
    GpuModel("V100", ("V100",)),
    GpuModel("V100-32GB", ("V100", "32GB")),
)

GPUS: Final[Mapping[str, GpuModel]] = {model.name: model for model in _TABLE}


def check_gpu(value: str) -> str:
    """``value`` if it is a known model; the error names the nearest ones."""
    if value not in GPUS:
        raise refuse(f"unknown GPU {quoted(value)}", did_you_mean(value, GPUS))
    return value


Gpu = Annotated[
    str,
    AfterValidator(check_gpu),
    WithJsonSchema({"type": "string", "enum": [model.name for model in _TABLE]}),
]

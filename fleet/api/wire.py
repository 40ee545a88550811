"""The agent protocol's bodies: strict, bounded, finite.

Invariant: whatever passes these models can be stored, printed and compared: no NaN, no number
beyond 64 bits, no control characters, no unknown field (docs/agent-protocol.md).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from fleet.errors import InputError
from fleet.model import CheckResult, CheckStatus, Fault, HealthReport
from policies.text import text_in


def _clean(value: str) -> str:
    try:
        return text_in(value, limit=2000)
    except InputError as error:  # pydantic takes a ValueError as the body's fault
        raise ValueError(str(error)) from None


Text = Annotated[str, Field(max_length=500), AfterValidator(_clean)]
Ident = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:/+-]+$")]
Secret = Annotated[str, Field(min_length=16, max_length=256, pattern=r"^[A-Za-z0-9_-]+$")]
Number = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False, strict=False)]
Gpu = Annotated[int, Field(ge=0, le=255)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Register(_Wire):
    """Body of ``POST /v1/agent/register``."""

    boot_token: Secret
    provider: Ident
    instance_id: Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_clean)]
    boot_id: Ident
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    agent_version: Text = ""


class CheckIn(_Wire):
    """One probe's result."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_]+$")]
    status: Literal["pass", "warn", "fail", "skip", "error"]
    value: Number | None = None
    unit: Text = ""
    message: Text = ""
    gpu: Gpu | None = None


class FaultIn(_Wire):
    """One fault class seen."""

    code: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_]+$")]
    gpu: Gpu | None = None
    message: Text = ""
    at: Number = 0.0


class NoticeIn(_Wire):
    """A notice found in the instance metadata."""

    kind: Literal["spot", "maintenance"]
    at: Number
    message: Text = ""


class Inventory(_Wire):
    """What hardware and driver the agent sees."""

    gpu: Text = ""
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    driver: Text = ""
    cuda: Text = ""
    kernel: Text = ""


class Report(_Wire):
    """Body of ``POST /v1/agent/report``."""

    boot_id: Ident
    seq: Annotated[int, Field(ge=1, le=2**53)]
    sent_at: Number = 0.0
    kind: Literal["gate", "status"] = "status"
    inventory: Inventory | None = None
    checks: Annotated[tuple[CheckIn, ...], Field(max_length=2048, strict=False)] = ()
    faults: Annotated[tuple[FaultIn, ...], Field(max_length=256, strict=False)] = ()
    notice: NoticeIn | None = None
    drained: bool = False

    def health(self) -> HealthReport:
        """The same as the model's frozen type."""
        inv = self.inventory or _NOTHING
        return HealthReport(
            boot_id=self.boot_id, seq=self.seq, gpu=inv.gpu, gpus=inv.gpus, driver=inv.driver,
            checks=tuple(
                CheckResult(c.name, CheckStatus(c.status), c.value, c.unit, c.message, c.gpu)
                for c in self.checks
            ),
            faults=tuple(Fault(f.code, f.gpu, f.message, f.at) for f in self.faults),
            notice=self.notice.kind if self.notice else "",
            notice_at=self.notice.at if self.notice else None,
            drained=self.drained,
        )  # fmt: skip


_NOTHING: Final = Inventory()
REGISTER: Final = TypeAdapter(Register)
REPORT: Final = TypeAdapter(Report)

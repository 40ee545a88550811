"""Settings of the daemon: one YAML file, every field overridable by the environment.

Invariant: a file is accepted whole or refused whole with the place of each mistake; a secret is a
file name here, never a value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from fleet.errors import InputError, Problem

Seconds = Annotated[float, Field(gt=0, le=86400 * 30, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StoreSettings(_Part):
    """Where durable state is."""

    url: str = Field("", description="Database URL; empty means SQLite in data_dir")


class AgentListen(_Part):
    """The TCP listener for agents."""

    host: str = Field("127.0.0.1", description="Address to bind")
    port: int = Field(7070, ge=0, le=65535, description="Port to bind, 0 picks a free one")
    public_url: str = Field("", description="How nodes reach it; empty means http://host:port")
    tls_cert: str = Field("", description="PEM certificate file; plain HTTP when empty")
    tls_key: str = Field("", description="PEM key file")
    per_address: int = Field(64, ge=1, description="Most open connections of one address")
    hosts: list[str] = Field(
        default_factory=list,
        description="Names clients may call this listener by, besides public_url and addresses",
    )


class HttpLimits(_Part):
    """What one client may take of the listeners' time and memory."""

    header_s: Seconds = Field(5.0, description="Headers are complete this long after the accept")
    body_s: Seconds = Field(30.0, description="A body is complete this long after its headers")
    write_s: Seconds = Field(15.0, description="A client that does not read is cut off after this")
    idle_s: Seconds = Field(75.0, description="A connection without a request stays this long")
    close_s: Seconds = Field(5.0, description="Requests may take this long at a stop")
    header_bytes: int = Field(32_768, ge=1024, description="Request line and headers together")
    headers: int = Field(64, ge=8, description="Most headers of one request")


class MetricsListen(_Part):
    """A loopback TCP listener for /metrics, beside the one on the operator socket."""

    host: Literal["127.0.0.1", "::1", "localhost"] = Field("127.0.0.1", description="Address")
    port: int = Field(7071, ge=0, le=65535, description="Port to bind, 0 picks a free one")


class Timing(_Part):
    """Periods and windows of the loops, seconds."""

    list_s: Seconds = Field(30.0, description="One list per provider this often")
    list_busy_s: Seconds = Field(10.0, description="The same while something is in flight")
    list_limit_s: Seconds = Field(180.0, description="Older lists make a provider blind")
    visibility_s: Seconds = Field(120.0, description="A new instance may be unlisted this long")
    lifecycle_s: Seconds = Field(5.0, description="Full lifecycle pass")
    plan_s: Seconds = Field(10.0, description="Plan pass")
    assign_s: Seconds = Field(5.0, description="Assign pass")
    launch_s: Seconds = Field(5.0, description="Pass that sends committed launches")
    reap_s: Seconds = Field(10.0, description="Pass that ends instances and sweeps")
    flush_s: Seconds = Field(60.0, description="Pass that writes what is in memory")
    deliver_s: Seconds = Field(15.0, description="Webhook delivery pass")
    orphan_age_s: Seconds = Field(600.0, description="Surplus instances live at least this long")
    retry_delete_s: Seconds = Field(30.0, description="First repeat of a delete")
    retry_delete_max_s: Seconds = Field(900.0, description="Longest repeat of a delete")
    stop_s: Seconds = Field(8.0, description="In-flight cloud calls may take this long at a stop")


class Limits(_Part):
    """Bounds of everything that could grow."""

    effects: int = Field(64, ge=1, description="Cloud calls in flight per provider")
    batch: int = Field(100, ge=1, le=1000, description="Most launches in one create call")
    body_bytes: int = Field(262_144, ge=1024, description="Largest agent report")
    terminated_s: Seconds = Field(86400.0, description="Ended nodes stay listed this long")
    events_days: int = Field(90, ge=1, description="Events are kept this many days")


class Settings(BaseSettings):
    """fleetd's configuration file."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETD_", env_nested_delimiter="__", extra="forbid"
    )

    cell: str = Field(
        "default", pattern=r"^[a-z][a-z0-9-]{0,31}$",
        description="Name of this fleet, written on every instance as a tag",
    )  # fmt: skip
    data_dir: Path = Field(Path("/var/lib/fleetd"), description="Database, key, ballast")
    socket: Path | None = Field(None, description="Operator socket; default data_dir/fleetd.sock")
    mode: Literal["act", "observe"] = Field(
        "act", description="observe decides and logs, and does nothing"
    )
    log: Literal["json", "console"] = Field("json", description="Log format on stderr")
    seed: int | None = Field(None, description="Seed of all randomness, for simulations only")
    store: StoreSettings = StoreSettings()
    agents: AgentListen = AgentListen()
    metrics: MetricsListen | None = Field(
        None, description="TCP listener for metrics; none means the socket only"
    )
    http: HttpLimits = HttpLimits()
    timing: Timing = Timing()
    limits: Limits = Limits()
    webhook_hosts: list[str] = Field(
        default_factory=list, description="Hosts that webhooks may reach"
    )
    webhook_private: bool = Field(
        default=False, description="Webhooks may reach private and loopback addresses"
    )
    providers: list[dict[str, Any]] = Field(
        default_factory=list, description="One entry per cloud account: kind, name and its settings"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file, which comes in through the constructor."""
        return env_settings, init_settings

    @property
    def socket_path(self) -> Path:
        """Where people's commands reach the daemon."""
        return self.socket or self.data_dir / "fleetd.sock"

    @property
    def store_url(self) -> str:
        """The database URL in force."""
        return self.store.url or f"sqlite:///{self.data_dir / 'fleetd.db'}"

    @property
    def provider_names(self) -> list[str]:
        """Names of the configured providers, in order."""
        return [str(p.get("name") or p.get("kind")) for p in self.providers]


def load(path: Path) -> Settings:
    """The settings in ``path``; InputError names file, line, field and fix."""
    from policies import yamlio

    document = yamlio.load_file(path)
    return parse(document.value or {}, where=document.where)


def parse(value: Any, where: Any = None) -> Settings:
    """Settings from parsed YAML; ``where(pointer)`` tells a value's ``file:line``."""
    if not isinstance(value, dict):
        raise InputError([Problem(str(where(()) if where else "config"), "must be a mapping")])
    try:
        settings = Settings(**value)
    except ValidationError as error:
        raise InputError([_problem(e, where) for e in error.errors()]) from None
    names = settings.provider_names
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        at = str(where(("providers",)) if where else "providers")
        raise InputError([Problem(at, f"provider name {twice[0]!r} is used twice",
                                  "give each account its own name")])  # fmt: skip
    return settings


def _problem(error: Any, where: Any) -> Problem:
    pointer = tuple(error["loc"])
    field = ".".join(str(p) for p in pointer)
    at = f"{where(pointer)}: {field}" if where else field
    return Problem(at, str(error["msg"]))

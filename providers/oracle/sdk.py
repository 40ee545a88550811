"""The clients of the OCI SDK, made ready: the only module that imports oci.

Invariant: importing this module imports nothing of oci; ``connect`` does (1.4 s the first time,
clouds.md 1), so it is called in a thread. Every client has no retries, no circuit breaker (one
opened by "Out of host capacity" would cut every call for 30 s), a time-out, and as many pooled
connections as there are threads. All clients share one signer: a key is parsed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Who an emulator is told that we are.
USER: Final = "ocid1.user.oc1..emulator"
FINGERPRINT: Final = ":".join(["00"] * 16)


@dataclass(frozen=True, slots=True)
class Access:
    """How the clients reach Oracle and as whom; ``endpoint`` may hold ``{region}``."""

    tenancy: str
    config_file: str
    profile: str
    instance_principal: bool
    endpoint: str
    emulator: bool
    direct: bool
    pool: int
    timeout_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Clients:
    """One region's clients; shared by all threads (clouds.md 7)."""

    compute: Any
    work: Any
    identity: Any

    def close(self) -> None:
        """Let go of the connections."""
        for client in (self.compute, self.work, self.identity):
            client.base_client.session.close()


def connect(access: Access, regions: Sequence[str]) -> Mapping[str, Clients]:
    """Clients of each region; raises the SDK's errors, OSError or ValueError."""
    import oci

    config, signer = _identity(oci, access)
    options: dict[str, Any] = {
        "signer": signer,
        "retry_strategy": oci.retry.NoneRetryStrategy(),
        "circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
        "timeout": access.timeout_s,
        # answers come as plain JSON: the SDK reads an empty or foreign page as an empty list
        "skip_deserialization": True,
    }

    def client(kind: Any, region: str) -> Any:
        more = {"service_endpoint": access.endpoint.replace("{region}", region)}
        made = kind({**config, "region": region}, **options, **(more if access.endpoint else {}))
        session = made.base_client.session
        for scheme in ("https://", "http://"):
            adapter = type(session.get_adapter(scheme))
            session.mount(scheme, adapter(pool_connections=4, pool_maxsize=access.pool))
        if access.direct:
            session.trust_env = False
        return made

    return {
        region: Clients(
            client(oci.core.ComputeClient, region),
            client(oci.work_requests.WorkRequestClient, region),
            client(oci.identity.IdentityClient, region),
        )
        for region in regions
    }


def _identity(oci: Any, access: Access) -> tuple[dict[str, Any], Any]:
    """The configuration and the signer that every client gets."""
    if access.instance_principal:
        return {}, oci.auth.signers.InstancePrincipalsSecurityTokenSigner()
    if access.emulator:
        config = {
            "tenancy": access.tenancy,
            "user": USER,
            "fingerprint": FINGERPRINT,
            "key_content": _throw_away_key(),
        }
    else:
        at = access.config_file or oci.config.DEFAULT_LOCATION
        config = oci.config.from_file(at, access.profile)
        if config.get("security_token_file"):
            return config, _session(oci, config)
    signer = oci.signer.Signer(
        tenancy=config["tenancy"],
        user=config["user"],
        fingerprint=config["fingerprint"],
        private_key_file_location=config.get("key_file"),
        pass_phrase=config.get("pass_phrase"),
        private_key_content=config.get("key_content"),
    )
    return config, signer


def _session(oci: Any, config: Mapping[str, Any]) -> Any:
    """The signer of a session token, which the profile's file holds (``oci session``)."""
    from pathlib import Path

    token = Path(config["security_token_file"]).expanduser().read_text("utf-8").strip()
    key = oci.signer.load_private_key_from_file(config["key_file"], config.get("pass_phrase"))
    return oci.auth.signers.SecurityTokenSigner(token, key)


def _throw_away_key() -> str:
    """A key that no tenancy knows (24 ms)."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()

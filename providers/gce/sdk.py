"""The clients of google-cloud-compute, made ready: the only module that imports google.

Invariant: importing this module imports nothing of google; ``connect`` does (3.4 s the first time,
clouds.md 1), so it is called in a thread. Every client has SDK retries off, a time-out, and as
many pooled connections as there are threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


@dataclass(frozen=True, slots=True)
class Clients:
    """One set of clients on one set of credentials; shared by all threads (clouds.md 7).

    ``options`` goes into every call, ``done`` is the enum value of a finished operation, and
    ``partial`` says whether this SDK can ask for lists without the zones that do not answer.
    """

    instances: Any
    operations: Any
    images: Any
    options: dict[str, Any]
    done: Any
    partial: bool

    def close(self) -> None:
        """Let go of the connections."""
        for client in (self.instances, self.operations, self.images):
            client.transport.close()


def connect(endpoint: str, *, emulator: bool, direct: bool, pool: int, timeout_s: float) -> Clients:
    """Clients on the Application Default Credentials, or on a made-up token for an emulator.

    ``direct`` ignores proxies of the environment. Raises google.auth's errors.
    """
    import google.auth
    from google.api_core.client_options import ClientOptions
    from google.cloud import compute_v1
    from requests.adapters import HTTPAdapter

    credentials = _emulator() if emulator else google.auth.default(scopes=[SCOPE])[0]
    options = ClientOptions(api_endpoint=endpoint or None)

    def client(kind: Any) -> Any:
        made = kind(credentials=credentials, client_options=options)
        session = made.transport._session  # noqa: SLF001 — no other way to size its pool
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=pool))
        if direct:
            session.trust_env = False
        return made

    return Clients(
        instances=client(compute_v1.InstancesClient),
        operations=client(compute_v1.ZoneOperationsClient),
        images=client(compute_v1.ImagesClient),
        options={"retry": None, "timeout": timeout_s},
        done=compute_v1.Operation.Status.DONE,
        partial="return_partial_success" in compute_v1.AggregatedListInstancesRequest.meta.fields,
    )


def _emulator() -> Any:
    """Credentials that always say the same word: no file, no network, no refresh."""
    from google.auth.credentials import AnonymousCredentials

    class Emulator(AnonymousCredentials):
        def before_request(self, request: Any, method: str, url: str, headers: Any) -> None:
            headers["authorization"] = "Bearer emulator"

        def refresh(self, request: Any) -> None:
            """The word stays the same, so a 401 comes out as it was answered."""

    return Emulator()  # type: ignore[no-untyped-call]

"""The link to Azure Resource Manager: the SDK's client, its pipeline and its credentials.

Invariant: the pipeline holds no retry, redirect or registration policy, and what is not in it
cannot happen; a refusal of the credentials makes the next call read them anew; a client is closed
when its last call has ended. The SDK is imported in a thread when the first call needs it (1.4 s),
never by importing this module. (aiohttp itself repeats a request once when a kept-alive connection
turns out to be dead: harmless, for every request of ours may be repeated.)
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fleet.errors import ProviderError, Unauthorized, Unavailable
from providers.arm.codes import translate
from providers.pool import BlockingPool

T = TypeVar("T")

PUBLIC = "https://management.azure.com"


@dataclass(frozen=True, slots=True)
class Target:
    """Which Resource Manager, and as whom. Empty ``endpoint_url``: the public cloud's."""

    subscription: str
    endpoint_url: str
    emulator_credentials: bool
    connect_timeout_s: float
    read_timeout_s: float


class Link:
    """Runs pieces of work with a client, whose errors become ours."""

    def __init__(self, target: Target, pool: BlockingPool) -> None:
        self._target, self._pool = target, pool
        self._building = asyncio.Lock()
        self._connection: _Connection | None = None
        self._closed = False

    async def call(self, work: Callable[[Any], Awaitable[T]], *, creates: bool = False) -> T:
        """What ``work`` returns; ``creates`` when an effect would be a VM."""
        connection = await self._connected()
        try:
            async with connection.used() as client:
                return await work(client)
        except ProviderError:
            raise
        except Exception as e:
            error = translate(e, creates=creates)
            if isinstance(error, Unauthorized) and self._connection is connection:
                self._connection = None
                await connection.retire()
            raise error from e

    async def _connected(self) -> _Connection:
        async with self._building:
            if self._connection is None and not self._closed:
                try:
                    self._connection = await self._pool.run(lambda: _connect(self._target))
                except ProviderError:
                    raise
                except Exception as e:
                    raise translate(e, creates=False) from e
            connection = self._connection
            if self._closed or connection is None:
                await self.aclose()  # closed while it was being made
                raise Unavailable("this provider is closed", code="Closed")
            return connection

    async def aclose(self) -> None:
        """Take no new calls; close when the last one under way has ended."""
        self._closed = True
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.retire()


class _Connection:
    """A client and its credential, closed when it is retired and the last call has ended."""

    def __init__(self, client: Any, credential: Any) -> None:
        self._client, self._credential = client, credential
        self._users = 0
        self._retired = False

    @asynccontextmanager
    async def used(self) -> AsyncIterator[Any]:
        """The client for one call."""
        self._users += 1
        try:
            yield self._client
        finally:
            self._users -= 1
            await self._close_if_unused()

    async def retire(self) -> None:
        """Take no new calls."""
        self._retired = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._retired and not self._users:
            await self._client.close()
            await self._credential.close()


class _EmulatorCredential:
    """A token of the right form, for an emulator on this machine."""

    async def get_token(self, *scopes: str, **_: Any) -> Any:
        """A token that does not expire."""
        from azure.core.credentials import AccessToken

        return AccessToken("emulator.emulator.emulator", 2**40)

    async def close(self) -> None:
        """Nothing is held."""


def _connect(target: Target) -> _Connection:
    """A client whose pipeline signs and decodes, and does nothing else; slow, for a thread."""
    from azure.core.pipeline import PipelineRequest, policies
    from azure.identity.aio import DefaultAzureCredential
    from azure.mgmt.compute.aio import ComputeManagementClient
    from azure.mgmt.core.policies import (
        AsyncARMChallengeAuthenticationPolicy,
    )

    class HttpBearer(policies.AsyncBearerTokenCredentialPolicy[Any, Any]):
        """Signs plain HTTP too, which the SDK refuses; for emulators on this machine only."""

        async def on_request(self, request: PipelineRequest[Any]) -> None:
            request.context.options["enforce_https"] = False
            await super().on_request(request)

    url = target.endpoint_url.rstrip("/")
    plain = plain_loopback(url)
    made_up = target.emulator_credentials
    credential: Any = _EmulatorCredential() if made_up else DefaultAzureCredential()
    scope = f"{PUBLIC if plain or not url else url}/.default"
    bearer = HttpBearer if plain else AsyncARMChallengeAuthenticationPolicy
    client = ComputeManagementClient(
        credential,
        target.subscription,
        base_url=url or PUBLIC,
        policies=[
            policies.RequestIdPolicy(),
            policies.HeadersPolicy(),
            policies.UserAgentPolicy(base_user_agent="fleetd"),
            policies.ContentDecodePolicy(),
            bearer(credential, scope),
        ],
        connection_timeout=target.connect_timeout_s,
        read_timeout=target.read_timeout_s,
        use_env_settings=not plain,
    )
    return _Connection(client, credential)


def plain_loopback(url: str) -> bool:
    """True for plain HTTP on this machine, the only place where a token may go unencrypted."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
    return local and parts.scheme == "http"

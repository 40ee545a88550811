"""Deliver: webhooks from the outbox to consumers, signed, with retries.

Invariant: a webhook is committed with the change it tells of and is delivered at least once or
ends as a dead letter that people can see; the body is signed as Standard Webhooks define it; a
consumer that is slow or down never slows a loop.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import os
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import structlog
from sqlalchemy import func, select, update
from sqlmodel import Session, col

from fleet.cell import Cell
from fleet.store.tables import OutboxRow
from policies.schema.pool import Webhook

log = structlog.get_logger("fleetd")

#: Waits between attempts, seconds; after the last one the letter is dead.
RETRY_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0)
PER_PASS: Final = 64
TIMEOUT_S: Final = 5.0


class Post(Protocol):
    """How a webhook leaves: one POST; returns the status code or raises OSError."""

    async def __call__(self, url: str, headers: dict[str, str], body: bytes) -> int:
        """Send ``body`` and give back the status code."""
        ...


class Deliver:
    """The only sender of webhooks."""

    name = "deliver"

    def __init__(self, cell: Cell, post: Post | None = None) -> None:
        self._cell = cell
        settings = cell.settings
        self._post: Post = post or partial(
            http_post, hosts=settings.webhook_hosts, private=settings.webhook_private
        )
        #: Counter of posted webhooks at the last look, and when the next retry is due.
        self._looked: tuple[str | None, float | None] = (None, 0.0)
        self.period_s = cell.settings.timing.deliver_s

    async def run(self) -> None:
        """Start the deliveries that are due, oldest first per URL."""
        cell = self._cell
        now = cell.clock.now()
        posted = cell.view.meta.get("outbox")
        counter, next_at = self._looked
        if counter == posted and (next_at is None or now < next_at):
            return

        def due(tx: Session) -> list[OutboxRow]:
            return list(
                tx.execute(
                    select(OutboxRow)
                    .where(
                        col(OutboxRow.done_at).is_(None), col(OutboxRow.dead).is_(False),
                        col(OutboxRow.next_at) <= now,
                    )
                    .order_by(col(OutboxRow.id))
                    .limit(PER_PASS)
                ).scalars()
            )  # fmt: skip

        rows = await cell.store.run(due)
        self._looked = (posted, await cell.store.run(_next_due))
        for row in rows:
            cell.effects.start(f"post:{row.id}", "webhooks", partial(self._send, row))

    async def _send(self, row: OutboxRow) -> None:
        cell = self._cell
        body = json.dumps({"type": row.topic, **row.body}, separators=(",", ":")).encode()
        error = ""
        try:
            headers = self._sign(row, body)
            status = await self._post(row.url, headers, body)
            if not 200 <= status < 300:
                error = f"answered {status}"
        except (OSError, ValueError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        await cell.store.run(lambda tx: self._record(tx, row, error, cell.clock.now()))

    def _record(self, tx: Session, row: OutboxRow, error: str, now: float) -> None:
        values: dict[str, Any] = {"attempts": row.attempts + 1, "last_error": error[:300]}
        if not error:
            values["done_at"] = now
        elif row.attempts >= len(RETRY_S):
            values["dead"] = True
            log.error("webhook dead", id=row.id, url=row.url, error=error)
        else:
            values["next_at"] = now + RETRY_S[row.attempts]
        tx.execute(update(OutboxRow).where(col(OutboxRow.id) == row.id).values(**values))

    def _sign(self, row: OutboxRow, body: bytes) -> dict[str, str]:
        """Standard Webhooks headers; the id stays the same over retries, so that a consumer can
        tell a repeat from a new message.
        """
        ident, at = f"fleetd-{row.id}", str(int(self._cell.clock.now()))
        secret = self._secret(row)
        signed = hmac.new(secret, f"{ident}.{at}.".encode() + body, hashlib.sha256).digest()
        return {
            "content-type": "application/json", "webhook-id": ident, "webhook-timestamp": at,
            "webhook-signature": "v1," + base64.b64encode(signed).decode(),
        }  # fmt: skip

    def _secret(self, row: OutboxRow) -> bytes:
        pool = self._cell.view.pools.get(row.pool)
        hooks: list[Webhook] = [w for w in pool.spec.webhooks if w.url == row.url] if pool else []
        if not hooks:
            raise ValueError("the pool no longer names this URL")
        hook = hooks[0]
        if hook.secret_file:
            return Path(hook.secret_file).read_bytes().strip()
        value = os.environ.get(hook.secret_env or "", "")
        if not value:
            raise ValueError(f"environment variable {hook.secret_env} is empty")
        return value.encode()


async def http_post(url: str, headers: dict[str, str], body: bytes, *, hosts: Sequence[str],
                    private: bool) -> int:  # fmt: skip
    """One POST to a host that the configuration allows; every failure is an OSError or ValueError.

    The name is resolved once, all its addresses are judged, and the connection goes to the judged
    address under the host's own name: a second answer of the resolver changes nothing. Redirects
    are not followed and the answer's body is not read.
    """
    import httpx

    parts = urlsplit(url)
    host = parts.hostname or ""
    if host not in hosts:
        raise ValueError(f"{host} is not in webhook_hosts of the configuration")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(info[4][0]) for info in found]
    for address in addresses:
        refuse_address(address, private=private)
    shown = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    target = parts._replace(netloc=f"{shown}:{port}").geturl()
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False) as client:
            request = client.build_request(
                "POST", target, content=body, headers={**headers, "host": parts.netloc},
                extensions={"sni_hostname": host},
            )  # fmt: skip
            answer = await client.send(request, stream=True)
            await answer.aclose()
            return answer.status_code
    except httpx.HTTPError as error:
        raise OSError(str(error) or type(error).__name__) from error


def _next_due(tx: Session) -> float | None:
    """When the next open webhook is due, None if there is none."""
    at: float | None = tx.execute(
        select(func.min(col(OutboxRow.next_at))).where(
            col(OutboxRow.done_at).is_(None), col(OutboxRow.dead).is_(False)
        )
    ).scalar_one()  # fmt: skip
    return at


#: Instance metadata of the clouds: never, whatever the configuration allows.
METADATA: Final = frozenset(
    {"169.254.169.254", "fd00:ec2::254", "169.254.169.253", "168.63.129.16"}
)


def refuse_address(address: str, *, private: bool) -> None:
    """ValueError for an address that a webhook must not reach."""
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    ip = mapped or ip
    if str(ip) in METADATA or ip.is_link_local:
        raise ValueError(f"{address} is an instance metadata address")
    if not ip.is_global and not private:
        raise ValueError(f"{address} is not a public address (webhook_private allows it)")

"""Deliver: webhooks from the outbox to consumers, signed, with retries.

Invariant: a webhook is committed with the change it tells of and is delivered at least once or
ends as a dead letter that people can see; the body is signed as Standard Webhooks define it; a
consumer that is slow or down never slows a loop.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
from sqlalchemy import select, update
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
        self._post: Post = post or http_post
        self.period_s = cell.settings.timing.deliver_s

    async def run(self) -> None:
        """Start the deliveries that are due, oldest first per URL."""
        cell = self._cell
        now = cell.clock.now()

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

        for row in await cell.store.run(due):
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
        tell a repeat from a new message."""
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


async def http_post(url: str, headers: dict[str, str], body: bytes) -> int:
    """One POST without redirects; every failure is an OSError."""
    import httpx

    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False) as client:
            return (await client.post(url, headers=headers, content=body)).status_code
    except httpx.HTTPError as error:
        raise OSError(str(error)) from error

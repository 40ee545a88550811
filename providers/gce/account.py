"""Calls to one project: threads, time-outs, credentials, pages, operations.

Invariant: whatever the SDK raises leaves here as a ProviderError; a listing is whole or an error;
clients are made anew after a refusal of their credentials, and only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fleet.errors import ProviderError, Unauthorized, Unavailable
from providers.gce.codes import operation_error, translate
from providers.gce.nouns import last, moment
from providers.gce.sdk import Clients
from providers.pool import BlockingPool

T = TypeVar("T")

#: A listing that needs more pages than this is a server that never ends.
MAX_PAGES: Final = 2000


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one operation is: ``target`` is the instance's name, ``at`` when it was asked for."""

    operation: str
    kind: str
    target: str
    zone: str
    group: str
    done: bool
    at: float
    error: ProviderError | None


class Account:
    """One project's clients and the two thread pools that use them."""

    def __init__(
        self,
        name: str,
        project: str,
        connect: Callable[[], Clients],
        *,
        threads: int,
        list_threads: int,
        page_size: int,
    ) -> None:
        self.project, self.page_size = project, page_size
        self.calls = BlockingPool(f"{name}-call", threads)
        self._lists = BlockingPool(f"{name}-list", list_threads)
        self._connect = connect
        self._clients: Clients | None = None
        self._building = asyncio.Lock()

    async def call(
        self,
        work: Callable[[Clients], T],
        *,
        creates: bool = False,
        pool: BlockingPool | None = None,
    ) -> T:
        """SDK calls and the reading of their answers, in a thread; errors become ours.

        ``creates`` when an effect would be an instance: then a lost answer is Ambiguous.
        """
        sent = False
        try:
            clients = await self._connected()
            sent = creates
            return await (pool or self.calls).run(lambda: work(clients))
        except ProviderError:
            raise
        except Exception as e:
            error = translate(e, creates=sent)
            if isinstance(error, Unauthorized):
                self._clients = None  # read the credentials anew with the next call
            raise error from e

    async def _connected(self) -> Clients:
        async with self._building:
            if self._clients is None:
                self._clients = await self.calls.run(self._connect)
            return self._clients

    async def paged(
        self, what: str, fetch: Callable[[Clients, str], tuple[list[T], str]]
    ) -> list[T]:
        """All pages, or an error; never a part. ``fetch`` gives a page and the next token."""
        items: list[T] = []
        token, seen = "", {""}
        for _ in range(MAX_PAGES):
            page, token = await self.call(_bound(fetch, token), pool=self._lists)
            items += page
            if not token:
                return items
            if token in seen:
                break
            seen.add(token)
        raise Unavailable(f"the listing of {what} does not end", code="EndlessListing")

    async def operations(self, zone: str, words: str, since: float = 0.0) -> list[Progress]:
        """The zone's operations that ``words`` select, newest first, none older than ``since``."""
        request = {
            "project": self.project,
            "zone": zone,
            "filter": words,
            "order_by": "creationTimestamp desc",
            "max_results": self.page_size,
        }

        def fetch(c: Clients, token: str) -> tuple[list[Progress], str]:
            page = c.operations.list({**request, "page_token": token}, **c.options)
            read = [progress(c, op) for op in first_page(page).items]
            young = [p for p in read if p.at >= since]
            return young, page.next_page_token if len(young) == len(read) else ""

        return await self.paged(zone, fetch)

    def aclose(self) -> None:
        """Let the threads go; calls under way end by their own time-outs."""
        self.calls.close()
        self._lists.close()
        if self._clients is not None:
            self._clients.close()
        self._clients = None


def _bound(fetch: Callable[[Clients, str], T], token: str) -> Callable[[Clients], T]:
    return lambda clients: fetch(clients, token)


def progress(c: Clients, op: Any) -> Progress:
    """What an Operation of the SDK says."""
    return Progress(
        operation=op.name,
        kind=op.operation_type,
        target=last(op.target_link),
        zone=last(op.zone),
        group=op.operation_group_id,
        done=op.status == c.done,
        at=moment(op.insert_time),
        error=operation_error(op),
    )


def first_page(pager: Any) -> Any:
    """The page that a list call has fetched, without asking for the next.

    As plain protobuf: reading 250 instances through the SDK's wrappers costs several times more.
    """
    page = next(iter(pager.pages))
    return type(page).pb(page)


async def settled(call: Awaitable[T]) -> T | ProviderError:
    """The result or the error of one call of several."""
    try:
        return await call
    except ProviderError as error:
        return error


def failures(results: Mapping[str, object]) -> dict[str, ProviderError]:
    """Those of ``results`` that are errors."""
    return {n: e for n, e in results.items() if isinstance(e, ProviderError)}

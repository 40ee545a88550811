"""Calls to one tenancy: threads, time-outs, credentials, pages, availability domains, reasons.

Invariant: whatever the SDK raises leaves here as a ProviderError; a listing is whole or an error;
clients are made anew after a refusal of their credentials, and only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from fleet.clock import Clock
from fleet.errors import Gone, InvalidRequest, ProviderError, Unauthorized, Unavailable
from fleet.model import Market
from providers.oracle.codes import MAX_MESSAGE_CHARS, translate, unopened
from providers.oracle.nouns import is_domain
from providers.oracle.sdk import Access, Clients, connect
from providers.pool import BlockingPool

T = TypeVar("T")

#: A listing that needs more pages than this is a server that never ends.
MAX_PAGES: Final = 2000
#: An instance has a handful of work requests.
WORK_PAGE: Final = 50


@dataclass(frozen=True, slots=True)
class Ended:
    """Why an instance is TERMINATED, as far as its work requests tell."""

    code: str = ""
    message: str = ""
    preempted: bool = False


class Account:
    """One tenancy's clients and the two thread pools that use them."""

    def __init__(
        self,
        name: str,
        access: Access,
        regions: Sequence[str],
        clock: Clock,
        *,
        threads: int,
        list_threads: int,
    ) -> None:
        self.calls = BlockingPool(f"{name}-call", threads)
        self._lists = BlockingPool(f"{name}-list", list_threads)
        self._access, self._regions, self._clock = access, tuple(regions), clock
        self._clients: Mapping[str, Clients] = {}
        self._building = asyncio.Lock()
        self._domains: dict[str, list[str]] = {}

    async def call(
        self,
        region: str,
        work: Callable[[Clients], T],
        *,
        creates: bool = False,
        instance: bool = False,
        lists: bool = False,
    ) -> T:
        """SDK calls and the reading of their answers, in a thread; errors become ours.

        ``creates`` when an effect would be an instance: then a lost answer is Ambiguous;
        ``instance`` when the call is about one instance: then a 404 is Gone.
        """
        clients = (await self._connected())[region]
        try:
            return await (self._lists if lists else self.calls).run(lambda: work(clients))
        except ProviderError:
            raise
        except Exception as e:
            now = self._clock.now()
            error = translate(e, now=now, creates=creates, instance=instance)
            if isinstance(error, Unauthorized):
                self._clients = {}  # read the credentials anew with the next call
            raise error from e

    async def _connected(self) -> Mapping[str, Clients]:
        async with self._building:
            if not self._clients:
                try:
                    make = partial(connect, self._access, self._regions)
                    self._clients = await self.calls.run(make)
                except ProviderError:
                    raise
                except Exception as e:
                    raise unopened(e) from e
            return self._clients

    async def paged(
        self, region: str, fetch: Callable[[Clients, dict[str, str]], tuple[list[T], str]]
    ) -> list[T]:
        """All pages, or an error; never a part. ``fetch`` gives a page and the next token."""
        items: list[T] = []
        token, seen = "", {""}
        for _ in range(MAX_PAGES):
            page, token = await self.call(region, _bound(fetch, token), lists=True)
            items += page
            if not token:
                return items
            if token in seen:
                break
            seen.add(token)
        raise Unavailable(f"the listing of {region} does not end", code="EndlessListing")

    async def domain(self, region: str, zone: str, configured: Sequence[str]) -> str:
        """The whole name, tenancy's prefix included, of the availability domain ``zone``.

        One call per region and process at most. Raises InvalidRequest when there is none.
        """
        known = [*configured, *self._domains.get(region, [])]
        for name in known:
            if ":" in name and is_domain(zone, name):
                return name
        if region not in self._domains:
            tenancy = self._access.tenancy
            self._domains[region] = await self.call(
                region,
                lambda c: [
                    str(d["name"]) for d in items(c.identity.list_availability_domains(tenancy))
                ],
            )
            return await self.domain(region, zone, configured)
        there = ", ".join(self._domains[region]) or "none"
        raise InvalidRequest(f"no availability domain {zone!r} in {region}; there are: {there}")

    async def ended(self, region: str, compartment: str, ident: str, market: Market) -> Ended:
        """What the work requests of a terminated instance say.

        Without a request to terminate it, a preemptible one was taken back by Oracle [K].
        """

        def ask(c: Clients) -> Ended:
            options = {"resource_id": ident, "limit": WORK_PAGE}
            found = items(c.work.list_work_requests(compartment, **options))
            failed = next((w for w in found if w.get("status") == "FAILED"), None)
            if failed is not None:
                for error in items(c.work.list_work_request_errors(failed["id"])):
                    message = str(error.get("message") or "")[:MAX_MESSAGE_CHARS]
                    return Ended(error.get("code") or "", message)
                return Ended("FAILED", f"{failed.get('operationType')} failed")
            asked = any("terminate" in str(w.get("operationType")).lower() for w in found)
            taken = market is Market.SPOT and bool(found) and not asked
            return Ended("Preempted", "taken back by Oracle", True) if taken else Ended()

        return await self.call(region, ask, lists=True)

    async def missing(self, region: str, compartment: str, image: str) -> str:
        """Why ``image`` cannot be used in ``region`` now; empty when it is not to blame.

        A 404 blames it only where images can be read: custom images are per region and take time
        to arrive, while a right that is missing hides them all. Two calls at most.
        """

        def ask(c: Clients) -> str:
            return str(item(c.compute.get_image(image)).get("lifecycleState"))

        state = await settled(self.call(region, ask, instance=True))
        if isinstance(state, str):
            return "" if state == "AVAILABLE" else f"image {image} is {state} in {region}"
        if not isinstance(state, Gone):
            return ""
        seen = await settled(
            self.call(region, lambda c: items(c.compute.list_images(compartment, limit=1)))
        )
        return "" if isinstance(seen, ProviderError) else f"no image {image} in {region}"

    def aclose(self) -> None:
        """Let the threads go; calls under way end by their own time-outs."""
        self.calls.close()
        self._lists.close()
        for clients in self._clients.values():
            clients.close()
        self._clients = {}


def _bound(fetch: Callable[[Clients, dict[str, str]], T], token: str) -> Callable[[Clients], T]:
    page = {"page": token} if token else {}
    return lambda clients: fetch(clients, page)


def items(answer: Any) -> list[Any]:
    """The items of a list's page; raises ValueError for a page that is no list of objects."""
    data = answer.data
    if not isinstance(data, list) or not all(isinstance(i, dict) for i in data):
        raise ValueError(f"no list came but {str(data)[:80]!r}")
    return data


def item(answer: Any) -> Mapping[str, Any]:
    """The one object of an answer; raises ValueError for anything without an id."""
    data = answer.data
    if not isinstance(data, dict) or not data.get("id"):
        raise ValueError(f"no object with an id came but {str(data)[:80]!r}")
    return data


def following(answer: Any) -> str:
    """The token of the next page of a list, empty after the last."""
    return str(answer.headers.get("opc-next-page") or "")


async def settled(call: Awaitable[T]) -> T | ProviderError:
    """The result or the error of one call of several."""
    try:
        return await call
    except ProviderError as error:
        return error

"""One create: start it, watch it for a bounded time, say of each name what is known.

Invariant: a name is reported as failed only when Google said that its launch failed; what still
runs when the watch ends is accepted, and a listing tells if it fails. No thread waits for a
launch: the watch is one cheap list of operations every few seconds, whatever the batch's size.

A bulkInsert counts as one API call, its operations are listed by group, and it takes our names
(``perInstanceProperties``), so a repeat is as safe as with single inserts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from fleet.clock import Clock
from fleet.errors import Ambiguous, Busy, ProviderError
from fleet.model import LaunchSpec
from providers.base import TAG_TOKEN
from providers.gce.account import Account, Progress, failures, first_page, progress, settled
from providers.gce.nouns import names_of, request_id
from providers.gce.sdk import Clients

#: Inserts of a batch that was accepted in part are sent so often while Google is busy.
BUSY_TRIES: Final = 3
_TAKEN: Final = frozenset({"alreadyExists", "RESOURCE_ALREADY_EXISTS"})


class Launch:
    """Carries out one LaunchSpec whose ``body`` is what all its instances share."""

    def __init__(
        self,
        account: Account,
        clock: Clock,
        spec: LaunchSpec,
        body: Mapping[str, Any],
        *,
        settle_s: float,
        poll_s: float,
    ) -> None:
        self._account, self._clock = account, clock
        self._spec, self._body = spec, body
        self._zone, self._names = spec.offer.zone, names_of(spec)
        self._settle_s, self._poll_s = settle_s, poll_s

    async def run(self, *, bulk: bool) -> dict[str, ProviderError | None]:
        """Each name with its error, or None when it was accepted. Names come in order."""
        failed = await (self._bulk() if bulk else self._singly())
        if any(e.code in _TAKEN for e in failed.values()):
            for name in await self._ours():
                failed.pop(name, None)
        return {n: failed.get(n) for n in self._names}

    async def _singly(self) -> dict[str, ProviderError]:
        """One insert for each name; those that Google had no time for once more, if any went."""
        started: list[Progress] = []
        failed: dict[str, ProviderError] = {}
        waiting = list(self._names)
        for attempt in range(BUSY_TRIES):
            answers = await asyncio.gather(*(settled(self._insert(n)) for n in waiting))
            failed |= failures(dict(zip(waiting, answers, strict=True)))
            started += [a for a in answers if isinstance(a, Progress)]
            waiting = [n for n in waiting if isinstance(failed.get(n), Busy)]
            if not waiting or not started or attempt == BUSY_TRIES - 1:
                break
            await self._clock.sleep(self._poll_s * 2**attempt)
            for name in waiting:
                del failed[name]
        return failed | await self._watch({p.target: p for p in started})

    async def _insert(self, name: str) -> Progress:
        zone, project = self._zone, self._account.project
        machine_type = f"zones/{zone}/machineTypes/{self._spec.offer.instance_type}"
        request = {
            "project": project,
            "zone": zone,
            "request_id": request_id(project, zone, name),
            "instance_resource": {**self._body, "name": name, "machine_type": machine_type},
        }
        return await self._account.call(
            lambda c: progress(c, c.instances.insert_unary(request, **c.options)), creates=True
        )

    async def _bulk(self) -> dict[str, ProviderError]:
        """One call for all names; what became of each is told by the operations of its group."""
        zone, project, spec = self._zone, self._account.project, self._spec
        request = {
            "project": project,
            "zone": zone,
            "request_id": request_id(project, zone, "bulk", spec.token, str(spec.count)),
            "bulk_insert_instance_resource_resource": {
                "count": spec.count,
                "min_count": 1,  # else Google takes back what it could make
                "per_instance_properties": {name: {} for name in self._names},
                "instance_properties": {**self._body, "machine_type": spec.offer.instance_type},
            },
        }
        answer = await settled(
            self._account.call(
                lambda c: progress(c, c.instances.bulk_insert_unary(request, **c.options)),
                creates=True,
            )
        )
        if isinstance(answer, ProviderError):
            return dict.fromkeys(self._names, answer)
        waiting = {n: replace(answer, target=n, done=False, error=None) for n in self._names}
        return await self._watch(waiting, answer)

    async def _watch(
        self, started: Mapping[str, Progress], whole: Progress | None = None
    ) -> dict[str, ProviderError]:
        """What failed of ``started`` (by instance name) before ``settle_s`` is over.

        An error of such a list ends the watch: the launches are accepted either way.
        """
        failed = {n: p.error for n, p in started.items() if p.error is not None}
        waiting = {n: p for n, p in started.items() if not p.done}
        deadline = self._clock.monotonic() + self._settle_s
        while waiting and (left_s := deadline - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(self._poll_s, left_s))
            words = " OR ".join(f'(name="{p.operation}")' for p in waiting.values())
            if whole is not None:
                words = f'operationGroupId="{whole.group}"'
            try:
                seen = await self._account.operations(self._zone, words)
            except ProviderError:
                break
            for p in seen:
                if p.done and p.target in waiting:
                    del waiting[p.target]
                    if p.error is not None:
                        failed[p.target] = p.error
            if whole is not None:
                untold = _untold(seen, whole)
                begun = {p.target for p in seen}
                if untold is not None:
                    return failed | {n: untold for n in waiting if n not in begun}
        return failed

    async def _ours(self) -> list[str]:
        """Names that exist in the zone under the spec's token: an earlier call made them."""
        request = {
            "project": self._account.project,
            "zone": self._zone,
            "filter": f'labels.{TAG_TOKEN}="{self._spec.token}"',
            "max_results": self._account.page_size,
        }

        def fetch(c: Clients, token: str) -> tuple[list[str], str]:
            page = c.instances.list({**request, "page_token": token}, **c.options)
            return [i.name for i in first_page(page).items], page.next_page_token

        names = await settled(self._account.paged(self._zone, fetch))
        return [] if isinstance(names, ProviderError) else names


def _untold(seen: Sequence[Progress], whole: Progress) -> ProviderError | None:
    """Once a bulkInsert is over: why a name has no operation of its own; None before.

    Without a word of Google's that name may exist, so it is Ambiguous.
    """
    group = next((p for p in seen if p.operation == whole.operation), None)
    if group is None or not group.done:
        return None
    return group.error or Ambiguous("bulkInsert did not tell of this name", code="NoOperation")

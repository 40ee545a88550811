"""The operator API: FastAPI on the local Unix socket, permission by file mode.

Invariant: every list is one query with three skins (columns, cells and raw fields in one answer);
every mutation has an actor and a reason and leaves an event; every refusal is a problem document.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import FastAPI, Header, Request
from fastapi import Query as Param
from pydantic import BaseModel, ConfigDict, Field

from fleet.api import actions, policy, say
from fleet.api.ctx import Ctx
from fleet.api.describe import describe
from fleet.api.lists import KINDS, LIMIT, LIMIT_MAX, Kind, Query, answer, check_state
from fleet.api.peer import actor_of
from fleet.api.problems import Refusal, install
from policies.text import text_in

if TYPE_CHECKING:  # the composition root is above us
    from fleet.daemon import Daemon

WAIT_MAX_S: Final = 60.0
WAIT_STEP_S: Final = 0.25
KEYS_MAX: Final = 10_000
KEYS_S: Final = 86400.0
BODY_MAX: Final = 16 * 1024 * 1024

Why = Annotated[str, Field(min_length=1, max_length=500)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NodesIn(_Body):
    """Which nodes, and why."""

    reason: Why
    nodes: Annotated[list[Name], Field(max_length=20_000)] = []
    where: Annotated[str, Field(max_length=1000)] = ""
    pool: Annotated[str, Field(max_length=200)] = ""
    provider: Annotated[str, Field(max_length=200)] = ""
    state: Annotated[str, Field(max_length=200)] = ""
    max: Annotated[int, Field(ge=1, le=20_000)] | None = None
    plan: bool = False


class WhyIn(_Body):
    """Only a reason."""

    reason: Why
    plan: bool = False


class FileIn(_Body):
    """One policy file as text."""

    name: Annotated[str, Field(min_length=1, max_length=500)]
    text: Annotated[str, Field(max_length=BODY_MAX)]


class FilesIn(_Body):
    """Policy files to judge or apply together."""

    files: Annotated[list[FileIn], Field(min_length=1, max_length=1000)]
    dry_run: bool = False


def operator_app(daemon: Daemon) -> FastAPI:
    """The operator API of one daemon."""
    app = FastAPI(title="fleetd operator API", version="1", docs_url=None, redoc_url=None,
                  redirect_slashes=False)  # fmt: skip
    door = _Door(daemon)
    install(app, door.new_id, BODY_MAX)
    for kind in KINDS.values():
        _list_route(app, door, kind)
    _read_routes(app, door)
    _write_routes(app, door)
    return app


class _Door:
    """What the routes share: the daemon, request ids and remembered idempotent answers."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._n = 0
        self._keys: dict[str, tuple[float, str, dict[str, Any]]] = {}

    def ctx(self) -> Ctx:
        """The daemon at this moment."""
        return Ctx(self.daemon)

    def new_id(self) -> str:
        """A request id: time in milliseconds and a counter, both hexadecimal."""
        self._n = (self._n + 1) % 0x10000
        return f"{int(self.daemon.cell.clock.now() * 1000):011x}{self._n:04x}"

    async def wait(self, wait_s: float, version: str) -> None:
        """Return when the version differs, at the latest after ``wait_s`` seconds."""
        clock = self.daemon.cell.clock
        end = clock.monotonic() + min(wait_s, WAIT_MAX_S)
        while version == self.ctx().version() and clock.monotonic() < end:
            await clock.sleep(WAIT_STEP_S)

    async def once(self, key: str, what: Any, work: Callable[[], Awaitable[dict[str, Any]]]
                   ) -> dict[str, Any]:  # fmt: skip
        """Do ``work`` once per Idempotency-Key and 24 h; a repeat gets the first answer."""
        if not key:
            return await work()
        now = self.daemon.cell.clock.now()
        text = json.dumps(what, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()
        known = self._keys.get(key)
        if known is not None and now - known[0] < KEYS_S:
            if known[1] != digest:
                raise Refusal(422, "idempotency_key_reused",
                              "this Idempotency-Key was used for another request",
                              fix="send a new key")  # fmt: skip
            return {**known[2], "repeated": True}
        result = await work()
        while len(self._keys) >= KEYS_MAX:
            self._keys.pop(next(iter(self._keys)))
        self._keys[key] = (now, digest, result)
        return result


def _span(text: str, default: float) -> float:
    if not text:
        return default
    seconds = say.span_s(text)
    if seconds is None or seconds <= 0:
        raise Refusal(422, "bad_window", f"{text!r} is no span of time",
                      fix="write 90s, 10m, 24h or 7d")  # fmt: skip
    return seconds


def _moment(text: str, now: float) -> float | None:
    """A time: RFC 3339, or a span that counts back from now."""
    if not text:
        return None
    seconds = say.span_s(text)
    at = now - seconds if seconds is not None else say.from_rfc3339(text)
    if at is None:
        raise Refusal(422, "bad_time", f"{text!r} is no time",
                      fix="write 2026-12-01T12:00:00Z, or 2h for two hours ago")  # fmt: skip
    return at


_FILTERS: Final = ("pool", "provider", "state", "reason", "node", "actor", "where")


def _list_route(app: FastAPI, door: _Door, kind: Kind) -> None:
    async def get(
        request: Request,
        name: Annotated[list[str] | None, Param(max_length=1000)] = None,
        pool: str = "", provider: str = "", state: str = "", reason: str = "", node: str = "",
        actor: str = "", where: str = "", sort_by: str = "", page_token: str = "",
        limit: Annotated[int, Param(ge=1, le=LIMIT_MAX)] = LIMIT,
        window: str = "", since: str = "", until: str = "", after: int | None = None,
        all: bool = False,  # noqa: A002 — the name people type
        wait: Annotated[float, Param(ge=0, le=WAIT_MAX_S)] = 0.0, version: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        now = door.ctx().now
        if wait and version:
            await door.wait(wait, version)
        check_state(kind, state)
        query = Query(
            names=tuple(name or ()), pool=pool, provider=provider, state=state, reason=reason,
            node=node, actor=actor, where=where, sort_by=sort_by, limit=limit,
            page_token=page_token, window_s=_span(window, 86400.0), since=_moment(since, now),
            until=_moment(until, now), after=after, everything=all,
        )  # fmt: skip
        _known(request, _LIST_PARAMS)
        return await answer(door.ctx(), kind, query)

    app.add_api_route(f"/v1/{kind.name}", get, methods=["GET"], name=f"list_{kind.name}",
                      summary=f"List {kind.name}")  # fmt: skip


_LIST_PARAMS: Final = frozenset(
    (*_FILTERS, "name", "sort_by", "page_token", "limit", "window", "since", "until", "after",
     "all", "wait", "version")
)  # fmt: skip


def _known(request: Request, params: frozenset[str]) -> None:
    """An unknown parameter is an error: a typo in a filter must not widen the answer."""
    for key in request.query_params:
        if key not in params:
            raise Refusal(422, "unknown_parameter", f"unknown parameter {key!r}",
                          fix=f"parameters: {', '.join(sorted(params))}")  # fmt: skip


def _read_routes(app: FastAPI, door: _Door) -> None:
    @app.get("/v1")
    async def kinds() -> dict[str, Any]:
        """Every kind with its count."""
        ctx = door.ctx()
        counts = []
        for kind in KINDS.values():
            n = len(ctx.view.nodes)
            if kind.name != "nodes":  # the one kind that may be large
                n = len(await kind.gather(ctx, Query()))
            counts.append({"name": kind.name, "kind": kind.title, "count": n})
        return {"apiVersion": "fleetd/v1", "kind": "KindList", "items": counts,
                "as_of": say.rfc3339(ctx.now), "version": ctx.version(),
                "frozen": ctx.view.frozen}  # fmt: skip

    @app.get("/v1/system")
    async def system() -> dict[str, Any]:
        """What the daemon itself does: mode, guards, tasks, refused agent requests."""
        ctx = door.ctx()
        cell = ctx.cell
        tasks = await answer(ctx, KINDS["tasks"], Query())
        return {
            "apiVersion": "fleetd/v1", "kind": "System", "cell": cell.settings.cell,
            "mode": cell.settings.mode, "frozen": ctx.view.frozen, "guards": dict(cell.guards),
            "observed": ctx.observed(), "as_of": say.rfc3339(ctx.now), "version": ctx.version(),
            "refused_agent_requests": dict(cell.refused), "disk_full": cell.full,
            "store": cell.store.url.split("@")[-1] if not cell.store.sqlite else "sqlite",
            "tasks": tasks["items"],
            "grace_over": {p: cell.grace.over(p, ctx.now) for p in cell.providers},
        }  # fmt: skip

    @app.get("/v1/pools/{name}/budget")
    async def budget(name: str) -> dict[str, Any]:
        """How many healthy nodes people may still disrupt at once."""
        return {"pool": name, "free": actions.budget_free(door.ctx(), name)}

    @app.get("/v1/{kind}/{name:path}")
    async def one(kind: str, name: str, window: str = "") -> dict[str, Any]:
        """Everything about one object: verdict, what happens next, then facts."""
        return await describe(door.ctx(), kind, name, _span(window, 86400.0))


def _write_routes(app: FastAPI, door: _Door) -> None:
    @app.post("/v1/actions/{verb}")
    async def act(
        request: Request, verb: str, body: NodesIn,
        idempotency_key: Annotated[str, Header(max_length=200)] = "",
    ) -> dict[str, Any]:  # fmt: skip
        """cordon, uncordon, drain, replace or clear nodes."""
        if verb not in actions.VERBS:
            raise Refusal(404, "unknown_action", f"no action named {verb!r}",
                          fix=f"actions: {', '.join(actions.VERBS)}")  # fmt: skip
        ask = actions.Ask(
            verb, _reason(body.reason), actor_of(request), tuple(body.nodes), body.where,
            body.pool, body.provider, body.state, body.max, body.plan,
        )  # fmt: skip
        what = [verb, body.model_dump()]
        return await door.once(idempotency_key, what, lambda: actions.on_nodes(door.ctx(), ask))

    @app.post("/v1/freeze")
    async def freeze(request: Request, body: WhyIn) -> dict[str, Any]:
        """Stop everything that changes the world."""
        return await actions.freeze(door.ctx(), actor_of(request), _reason(body.reason))

    @app.post("/v1/unfreeze")
    async def unfreeze(request: Request, body: WhyIn) -> dict[str, Any]:
        """Let the loops act again."""
        return await actions.unfreeze(door.ctx(), actor_of(request), _reason(body.reason))

    @app.post("/v1/pools/{name}/delete")
    async def delete(request: Request, name: str, body: WhyIn) -> dict[str, Any]:
        """Delete a pool and let its nodes go."""
        return await actions.delete_pool(door.ctx(), name, actor_of(request),
                                         _reason(body.reason), plan=body.plan)  # fmt: skip

    async def judge(request: Request, body: FilesIn, if_match: str, *, write: bool
                    ) -> dict[str, Any]:  # fmt: skip
        files = [(f.name, f.text) for f in body.files]
        return await policy.answer(door.ctx(), files, actor=actor_of(request), if_match=if_match,
                                   write=write)  # fmt: skip

    @app.post("/v1/apply")
    async def apply(
        request: Request, body: FilesIn, if_match: Annotated[str, Header()] = ""
    ) -> dict[str, Any]:
        """Apply policy files, all or nothing."""
        return await judge(request, body, if_match, write=not body.dry_run)

    @app.post("/v1/diff")
    async def diff(
        request: Request, body: FilesIn, if_match: Annotated[str, Header()] = ""
    ) -> dict[str, Any]:
        """What applying the files would change."""
        return await judge(request, body, if_match, write=False)


def _reason(text: str) -> str:
    """A reason that may enter: not blank, no control characters."""
    if not text.strip():
        raise Refusal(422, "reason_missing", "a reason is needed", fix='--reason "…"')
    return text_in(text.strip(), 500, where="reason")

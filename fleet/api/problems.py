"""Refusals of the operator API as problem documents (RFC 9457).

Invariant: every answer that is no success has one shape with a stable ``code``, what failed, why,
what to do and the request's id; nothing of a stack trace or a secret is in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleet.errors import (
    Conflict,
    FleetError,
    InputError,
    NotFound,
    Problem,
    ProviderError,
    Stale,
    StoreError,
    StoreFull,
)  # fmt: skip

log = structlog.get_logger("fleetd")

MEDIA: Final = "application/problem+json"
TITLES: Final[Mapping[int, str]] = {
    400: "Bad request", 403: "Forbidden", 404: "Not found", 405: "Method not allowed",
    409: "Conflict", 412: "Precondition failed", 413: "Too long", 422: "Refused input",
    428: "Precondition required", 500: "Internal error", 503: "Unavailable",
    507: "Insufficient storage",
}  # fmt: skip


class Refusal(FleetError):
    """A request that is refused: what (``detail``), why, and what to do (``fix``)."""

    def __init__(
        self, status: int, code: str, detail: str, *, why: str = "", fix: str = "",
        errors: Sequence[Mapping[str, Any]] = (), more: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.why, self.fix, self.errors, self.more = why, fix, list(errors), dict(more or {})


def unknown(kind: str, name: str, near: Sequence[str], *, fix: str = "") -> Refusal:
    """A name that does not exist, with the nearest ones that do."""
    hint = f"did you mean {' or '.join(near)}?" if near else ""
    return Refusal(
        404, f"unknown_{kind.replace(' ', '_')}", f"no {kind} named {name!r}", why=hint,
        fix=fix, more={"near": list(near)},
    )  # fmt: skip


def place(problem: Problem) -> dict[str, Any]:
    """One problem of an input as JSON: where, what, fix and the parts of where."""
    body: dict[str, Any] = {"where": problem.where, "what": problem.what, "fix": problem.fix}
    for name in ("file", "line", "column", "pointer"):
        value = getattr(problem, name, None)
        if value:
            body[name] = value
    return body


def _of(error: Exception) -> Refusal:
    """The refusal that an error of ours means."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, NotFound):
        return unknown(error.kind, error.name, error.near)
    if isinstance(error, Conflict):
        status = 412 if error.code == "version_conflict" else 409
        return Refusal(status, error.code, str(error), fix=error.fix)
    if isinstance(error, InputError):
        errors = [place(p) for p in error.problems]
        return Refusal(422, "invalid_input", str(error), errors=errors)
    if isinstance(error, Stale):
        return Refusal(409, "changed_meanwhile", f"{error} changed while you asked",
                       fix="look again and repeat")  # fmt: skip
    return _outage(error)


def _outage(error: Exception) -> Refusal:
    if isinstance(error, StoreFull):
        return Refusal(507, "store_full", "the disk of the database is full", why=str(error),
                       fix="free space; drains and reads go on")  # fmt: skip
    if isinstance(error, StoreError):
        return Refusal(503, "store_unavailable", "the database did not answer", why=str(error))
    if isinstance(error, ProviderError):
        return Refusal(503, str(error.reason), str(error))
    return Refusal(500, "internal", "fleetd failed on this request",
                   fix="look for the request id in the log")  # fmt: skip


def document(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """The problem document of a refusal."""
    body: dict[str, Any] = {
        "type": f"urn:fleetd:problem:{refusal.code}",
        "title": TITLES.get(refusal.status, "Refused"),
        "status": refusal.status,
        "detail": refusal.detail,
        "instance": f"urn:fleetd:request:{request_id}",
        "code": refusal.code,
        "why": refusal.why,
        "fix": refusal.fix,
        "request_id": request_id,
        **refusal.more,
    }
    if refusal.errors:
        body["errors"] = refusal.errors
    return body


def _answer(request: Request, refusal: Refusal) -> Response:
    request_id = getattr(request.state, "request_id", "")
    body = json.dumps(document(refusal, request_id), ensure_ascii=False).encode()
    return Response(body, refusal.status, {"x-request-id": request_id}, media_type=MEDIA)


async def _fleet(request: Request, error: Exception) -> Response:
    return _answer(request, _of(error))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "no_such_route", 405: "method_not_allowed"}.get(error.status_code, "refused")
    return _answer(request, Refusal(error.status_code, code, str(error.detail)))


async def _invalid(request: Request, error: Exception) -> Response:
    """FastAPI's own 422 shape, replaced by ours: JSON pointers, never the input's text."""
    assert isinstance(error, RequestValidationError)
    errors = [
        {"pointer": "/" + "/".join(str(p) for p in e["loc"][1:]), "what": str(e["msg"]),
         "where": str(e["loc"][0]) if e["loc"] else "", "fix": ""}
        for e in error.errors()[:50]
    ]  # fmt: skip
    first = errors[0] if errors else {"pointer": "", "what": "malformed"}
    detail = f"{first['pointer']}: {first['what']}"
    return _answer(request, Refusal(422, "invalid_request", detail, errors=errors))


class _Edge:
    """The outermost layer: a request id, a bound on bodies, and a problem instead of a trace."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str], body_max: int) -> None:
        self._app, self._new_id, self._body_max = app, new_id, body_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; raises nothing for anything a client can send."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._new_id()
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def tell(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                head = MutableHeaders(scope=message)
                head["x-request-id"], head["cache-control"] = request_id, "no-store"
            await send(message)

        request = Request(scope)
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._body_max:
            refusal = Refusal(413, "too_long", f"a body has at most {self._body_max} bytes")
            await _answer(request, refusal)(scope, receive, tell)
            return
        try:
            await self._app(scope, receive, tell)
        except Exception as error:
            log.exception("request failed", request=request_id, path=scope["path"])
            if started:
                raise
            await _answer(request, _of(error))(scope, receive, tell)


def install(app: FastAPI, new_id: Callable[[], str], body_max: int) -> None:
    """Give ``app`` our errors, a request id per request, and no answer but those."""
    app.add_exception_handler(FleetError, _fleet)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(_Edge, new_id=new_id, body_max=body_max)

"""Failures as people and scripts see them: exit codes, and four lines on stderr.

Invariant: line 1 what failed, line 2 why with numbers, line 3 what to do as a command, last line
the code, the request and the exit code. No stack trace, no "please", no exclamation mark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fleet.cli.text_out import json_text, terminal

OK, FAILED, USAGE, NOT_FOUND, CONFLICT, BAD, UNDECIDED, UNREACHABLE = 0, 1, 2, 3, 4, 5, 6, 7
DENIED, DIFFERS, INTERRUPTED = 8, 9, 130

#: Exit codes and their meaning (operator.md 3.7); ``fleetctl help exit-codes`` prints this.
CODES: Final[Mapping[int, str]] = {
    OK: "done; list answered (even empty); waited-for state reached",
    FAILED: "the server refused or the operation failed",
    USAGE: "usage: unknown flag, bad value, a file that is refused",
    NOT_FOUND: "named thing not found, or nothing listed with --fail-empty",
    CONFLICT: "conflict or precondition: version, freeze, budget",
    BAD: "answered, and the answer is bad: the waited-for state cannot come any more",
    UNDECIDED: "--timeout is over, still undecided",
    UNREACHABLE: "the daemon is not reachable, or it answered 5xx after retries",
    DENIED: "not allowed to use the socket, or role too small",
    DIFFERS: "differs: diff --exit-code, apply --dry-run --exit-code",
    INTERRUPTED: "interrupted; says what goes on",
}


class Fail(Exception):
    """A command that did not succeed, with everything its four lines need."""

    def __init__(
        self, code: int, what: str, *, why: str = "", fix: str = "", name: str = "",
        problem: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(what)
        self.code, self.what, self.why, self.fix = code, what, why, fix
        self.name, self.problem = name, problem


def of_problem(problem: Mapping[str, Any]) -> Fail:
    """The failure that a problem document of the server means."""
    return Fail(
        exit_code(problem), str(problem.get("detail") or problem.get("title") or "refused"),
        why=str(problem.get("why") or ""), fix=str(problem.get("fix") or ""),
        name=str(problem.get("code") or ""), problem=problem,
    )  # fmt: skip


def exit_code(problem: Mapping[str, Any]) -> int:
    """The exit code of a problem document, from its status."""
    status = int(problem.get("status") or 500)
    if status == 404:
        return NOT_FOUND
    if status in (409, 412, 423, 428):
        return CONFLICT
    if status in (401, 403):
        return DENIED
    if status in (400, 413, 422):
        return USAGE
    return UNREACHABLE if status >= 500 else FAILED


def lines(fail: Fail) -> list[str]:
    """The lines of a failure, safe for a terminal."""
    problem = fail.problem or {}
    errors = [e for e in problem.get("errors", []) if isinstance(e, Mapping)]
    found: list[str] = []
    if errors and problem.get("code") == "invalid_policy":
        for e in errors:
            found += _block(_place(e), "", str(e.get("fix") or ""))
        found[-1:] = [found[-1]]
        why = fail.what if len(errors) > 1 else ""
        found += _rest(why, fail.fix)
        name = "invalid_policy"
        if len(errors) == 1 and errors[0].get("pointer"):
            name += f" at {errors[0]['pointer']}"
    else:
        found = _block(fail.what, fail.why, fail.fix)
        name = fail.name
    request = f"   request {problem['request_id']}" if problem.get("request_id") else ""
    found.append(f"  code  {terminal(name or 'failed')}{terminal(request)}   (exit {fail.code})")
    return found


def _place(e: Mapping[str, Any]) -> str:
    where = str(e.get("where") or "")
    return f"{where}: {e.get('what')}" if where else str(e.get("what"))


def _block(what: str, why: str, fix: str) -> list[str]:
    return [f"error: {terminal(what)}", *_rest(why, fix)]


def _rest(why: str, fix: str) -> list[str]:
    found = []
    if why:
        found.append(f"  why   {terminal(why)}")
    if fix:
        found.append(f"  try   {terminal(fix)}")
    return found


def show(fail: Fail, *, as_json: bool) -> None:
    """Write a failure to stderr: lines for people, the problem document with ``-o json``."""
    if as_json:
        document = dict(fail.problem or {
            "type": f"urn:fleetd:problem:{fail.name or 'failed'}", "detail": fail.what,
            "code": fail.name or "failed", "why": fail.why, "fix": fail.fix,
        })  # fmt: skip
        document["exit_code"] = fail.code
        tell([json_text(document)])
    else:
        tell(lines(fail))


def tell(texts: Iterable[str]) -> None:
    """Talk on stderr; a closed stderr is nobody listening."""
    try:
        for text in texts:
            print(text, file=sys.stderr)
        sys.stderr.flush()
    except (BrokenPipeError, ValueError, OSError):
        pass

"""Asking before something is taken away, in proportion to what it reaches.

Invariant: questions only on a terminal, on stderr; without one ``--yes`` and ``--reason`` must be
there. Ctrl-C or end of input at a question means that nothing was done.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fleet.cli.fail import INTERRUPTED, USAGE, Fail, tell


def interactive() -> bool:
    """A person is there to be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def reason(given: str, verb: str, *, destructive: bool, yes: bool) -> str:
    """The reason, asked for on a terminal; exit 2 naming what is missing otherwise."""
    if not interactive():
        missing = [f for f, there in (("--yes", yes or not destructive), ("--reason", given))
                   if not there]  # fmt: skip
        if missing:
            raise Fail(USAGE, f"{verb} needs {' and '.join(missing)} when there is no terminal",
                       fix=f'fleetctl {verb} … {" ".join(_with(m) for m in missing)}',
                       name="usage")  # fmt: skip
        return given
    return given or question("reason: ")


def _with(flag: str) -> str:
    return f'{flag} "…"' if flag == "--reason" else flag


def question(text: str) -> str:
    """One answer from the terminal, not blank."""
    while True:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            line = ""
        if not line:
            tell([""])
            raise Fail(INTERRUPTED, "nothing was done", name="interrupted")
        if line.strip():
            return line.strip()


def confirm(plan: Sequence[str], wanted: str, what: str, *, yes: bool) -> None:
    """Show a plan and ask to type ``wanted``; another answer does nothing (exit 130)."""
    tell(plan)
    if yes or not interactive():
        return
    if question(f"type {wanted} to {what}: ") != wanted:
        raise Fail(INTERRUPTED, "nothing was done", why=f"{wanted} was not typed",
                   name="not_confirmed")  # fmt: skip

"""``fleetctl``: for people. What is typed becomes one request and one exit code.

Invariant: stdout is data, stderr is talk; nothing heavy is imported before a command needs it (no
web framework, database, cloud SDK, pydantic or rich); exits are raised, never returned.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from fleet.cli import render
from fleet.cli.fail import (
    CODES,
    DIFFERS,
    FAILED,
    INTERRUPTED,
    USAGE,
    Fail,
    show,
    tell,
)  # fmt: skip
from fleet.cli.quick import QuickCommand, QuickGroup
from fleet.cli.session import Session, split
from fleet.cli.text_out import json_text

app = typer.Typer(
    name="fleetctl", cls=QuickGroup, rich_markup_mode=None, pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True, help="Look at and steer a fleetd fleet.",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Form = Annotated[str, typer.Option("--output", "-o", help="|".join(render.FORMATS))]
Reason = Annotated[str, typer.Option("--reason", "-m", help="why; it is stored and shown")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
Where = Annotated[str, typer.Option("--where", help="filter, e.g. 'boot_s>600 and provider=oci'")]
Pool = Annotated[str, typer.Option("--pool", "-p", help="only this pool")]
Provider = Annotated[str, typer.Option("--provider", help="only this provider")]
State = Annotated[str, typer.Option("--state", "-s", help="only these states, a,b")]
Window = Annotated[str, typer.Option("--window", help="how far back, e.g. 24h")]
Files = Annotated[list[str], typer.Option("--file", "-f", help="file, folder or - (repeat)")]
Nodes = Annotated[list[str] | None, typer.Argument(help="node names")]
Most = Annotated[int, typer.Option("--max", help="at most so many, spares first")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="only say what would happen")]
ExitCode = Annotated[bool, typer.Option("--exit-code", help="exit 9 when something differs")]
Limit = Annotated[int, typer.Option("--limit", help="at most so many")]
Columns = Annotated[str, typer.Option("--columns", help="columns by name or key, a,b")]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="no header line")]

command: Callable[..., Any] = app.command


@app.callback()
def root(
    ctx: typer.Context,
    socket: Annotated[str, typer.Option("--socket", help="fleetd's Unix socket")] = "",
    no_color: Annotated[bool, typer.Option("--no-color", help="no colour")] = False,
    ascii_: Annotated[bool, typer.Option("--ascii", help="ASCII shapes only")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="stack traces of fleetctl")] = False,
) -> None:
    """Options that may stand anywhere on the line."""
    _ = debug
    ctx.obj = Session(socket, no_color, ascii_)


@app.command(cls=QuickCommand)
def get(
    ctx: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="[KIND [NAME]...]")] = None,
    output: Form = "table", columns: Columns = "",
    sort_by: Annotated[str, typer.Option("--sort-by", help="column, -column descending")] = "",
    no_headers: NoHeaders = False, pool: Pool = "", provider: Provider = "", state: State = "",
    reason: Annotated[str, typer.Option("--reason", help="only this reason")] = "",
    label: Annotated[list[str] | None, typer.Option("-l", help="key=value (repeat)")] = None,
    where: Where = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="keep showing")] = False,
    all_: Annotated[bool, typer.Option("--all", "-a", help="every page, ended ones too")] = False,
    limit: Limit = 0, window: Window = "",
    fail_empty: Annotated[bool, typer.Option("--fail-empty", help="exit 3 when empty")] = False,
) -> None:  # fmt: skip
    """List a kind; without one, the kinds with counts."""
    from fleet.cli import listing

    session = _session(ctx, output)
    if not words:
        listing.kinds(session, output)
        return
    kind, names = split(words)
    filters = {"pool": pool, "provider": provider, "state": state, "reason": reason,
               "window": window}  # fmt: skip
    ask = listing.Ask(
        kind, names, filters, list(label or []), where, sort_by, _limit(limit), all_, output,
        _list(columns), not no_headers, fail_empty,
    )  # fmt: skip
    if watch:
        from fleet.cli import live

        live.watch(session, ask)
    else:
        listing.show(session, ask)


@app.command(cls=QuickCommand)
def describe(
    ctx: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="KIND NAME...")],
    output: Form = "table", window: Window = "",
) -> None:  # fmt: skip
    """Everything about an object: verdict, what happens next, facts."""
    from fleet.cli import listing

    listing.describe(_session(ctx, output), words, output, window)


@app.command(cls=QuickCommand)
def events(
    ctx: typer.Context, output: Form = "table",
    since: Annotated[str, typer.Option("--since", help="2h, or a time")] = "",
    until: Annotated[str, typer.Option("--until", help="2h, or a time")] = "",
    node: Annotated[str, typer.Option("--node", help="only of this node (or object)")] = "",
    reason: Annotated[str, typer.Option("--reason", help="only this reason")] = "",
    actor: Annotated[str, typer.Option("--actor", help="only by this loop or user:NAME")] = "",
    pool: Pool = "", where: Where = "", limit: Limit = 0, columns: Columns = "",
    no_headers: NoHeaders = False,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="go on as they come")] = False,
    all_: Annotated[bool, typer.Option("--all", "-a", help="from the first one")] = False,
) -> None:  # fmt: skip
    """The history, oldest first."""
    from fleet.cli import listing

    filters = {"since": since, "until": until, "node": node, "reason": reason, "actor": actor,
               "pool": pool}  # fmt: skip
    ask = listing.Ask("events", [], filters, [], where, "", _limit(limit), all_, output,
                      _list(columns), not no_headers)  # fmt: skip
    session = _session(ctx, output)
    if follow:
        from fleet.cli import live

        live.follow(session, ask)
    else:
        listing.show(session, ask)


@app.command(cls=QuickCommand)
def plan(
    ctx: typer.Context,
    pool: Annotated[str, typer.Argument(metavar="[POOL]")] = "", output: Form = "table",
) -> None:  # fmt: skip
    """The last plan: why each offer was or was not used."""
    from fleet.cli import listing

    ask = listing.Ask("plan", filters={"pool": pool}, form=output, everything=True)
    listing.show(_session(ctx, output), ask)


@app.command(cls=QuickCommand)
def apply(
    ctx: typer.Context, files: Files,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would change")] = False,
    exit_code: ExitCode = False, yes: Yes = False,
    if_version: Annotated[str, typer.Option("--if-version", help="ETag that must hold")] = "",
    output: Form = "table",
) -> None:  # fmt: skip
    """Apply policy files: all are validated, then all or none applied."""
    from fleet.cli import files as work

    work.apply(_session(ctx, output), files, dry_run=dry_run, exit_code=exit_code, yes=yes,
               if_version=if_version, form=output)  # fmt: skip


@app.command(cls=QuickCommand)
def diff(
    ctx: typer.Context, files: Files, exit_code: ExitCode = False, output: Form = "table"
) -> None:
    """What applying policy files would change."""
    from fleet.cli import files as work

    work.diff(_session(ctx, output), files, exit_code=exit_code, form=output)


@app.command(cls=QuickCommand)
def delete(
    ctx: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="pool NAME")],
    reason: Reason = "", yes: Yes = False, output: Form = "table",
) -> None:  # fmt: skip
    """Delete a pool: its nodes are drained and terminated."""
    from fleet.cli import change

    kind, names = split(words)
    if kind != "pools" or len(names) != 1:
        raise Fail(USAGE, "only one pool at a time can be deleted",
                   fix='fleetctl delete pool NAME --reason "…"', name="usage")  # fmt: skip
    change.delete_pool(_session(ctx, output), names[0], reason, yes=yes, form=output)


def _verb(name: str, text: str) -> None:
    def run(
        ctx: typer.Context, nodes: Nodes = None, where: Where = "", pool: Pool = "",
        provider: Provider = "", state: State = "", reason: Reason = "", yes: Yes = False,
        most: Most = 0, plan: PlanOnly = False, output: Form = "table",
    ) -> None:  # fmt: skip
        from fleet.cli import change

        filters = {"where": where, "pool": pool, "provider": provider, "state": state}
        change.on_nodes(_session(ctx, output), name, list(nodes or []), filters=filters,
                        reason=reason, yes=yes, most=_limit(most), plan_only=plan,
                        form=output)  # fmt: skip

    run.__doc__ = text
    run.__name__ = name
    app.command(name, cls=QuickCommand)(run)


_verb("cordon", "Nodes take no new slot; what they serve goes on.")
_verb("uncordon", "Take a cordon back, and a replace that still waits.")
_verb("drain", "Nodes leave: slot to a spare, drain, terminate.")
_verb("replace", "Nodes leave once a spare is READY for them.")
_verb("clear", "Forget the faults of nodes until they are seen again.")


@app.command(cls=QuickCommand)
def freeze(ctx: typer.Context, reason: Reason = "", output: Form = "table") -> None:
    """Stop cord: nothing is launched, moved, drained or ended."""
    from fleet.cli import change

    change.cord(_session(ctx, output), "freeze", reason, output)


@app.command(cls=QuickCommand)
def unfreeze(ctx: typer.Context, reason: Reason = "", output: Form = "table") -> None:
    """Let the loops act again."""
    from fleet.cli import change

    change.cord(_session(ctx, output), "unfreeze", reason, output)


@app.command(cls=QuickCommand)
def wait(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(metavar="KIND/NAME")],
    for_: Annotated[str, typer.Option("--for", help="state=READY, gone, budget-free, boot_s<600")],
    timeout: Annotated[str, typer.Option("--timeout", help="90s, 10m, 2h")] = "10m",
    output: Form = "table",
) -> None:  # fmt: skip
    """Wait until an object is as wanted; its exit code is the verdict."""
    from fleet.cli import wait as work

    work.wait(_session(ctx, output), target, for_, timeout, form=output)


@app.command("help", cls=QuickCommand)
def help_(
    ctx: typer.Context, topic: Annotated[str, typer.Argument(metavar="[TOPIC]")] = ""
) -> None:
    """Help on a command, or on exit-codes."""
    if topic == "exit-codes":
        render.out(f"{code:>4}  {text}" for code, text in CODES.items())
        return
    parent = ctx.parent
    assert parent is not None
    found = parent.command.get_command(parent, topic) if topic else parent.command  # type: ignore[attr-defined]
    if found is None:
        raise Fail(USAGE, f"no command or topic {topic!r}", fix="fleetctl help", name="usage")
    inner = parent if found is parent.command else type(ctx)(found, parent=parent, info_name=topic)
    render.out([found.get_help(inner)])


@app.command(cls=QuickCommand)
def version(ctx: typer.Context, output: Form = "table") -> None:
    """The version of fleetctl."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    _session(ctx, output)
    try:
        found = installed("fleetd")
    except PackageNotFoundError:
        found = "0+source"
    render.out([json_text({"fleetctl": found}) if output == "json" else found])


@app.command(cls=QuickCommand)
def completion(
    ctx: typer.Context, shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish")]
) -> None:
    """A completion script for a shell; it holds its words and starts nothing."""
    from fleet.cli.complete import script

    assert ctx.parent is not None
    render.out([script(shell, ctx.parent.command)])


# -- running -------------------------------------------------------------------------------------

_ANYWHERE: Final = {"--socket": 1, "--no-color": 0, "--ascii": 0, "--debug": 0}


def hoist(argv: Sequence[str]) -> list[str]:
    """``argv`` with the global options in front, wherever they were typed (before a ``--``)."""
    front: list[str] = []
    rest: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            rest += ["--", *words]
            break
        name = word.partition("=")[0]
        if name in _ANYWHERE:
            front.append(word)
            if _ANYWHERE[name] and "=" not in word and words:
                front.append(words.pop(0))
        else:
            rest.append(word)
    return front + rest


def run(argv: Sequence[str]) -> int:
    """One command; its exit code. Prints failures, never a stack trace but with ``--debug``."""
    args = hoist(argv)
    as_json = any(a in ("json", "-ojson", "--output=json", "jsonl") for a in args)
    try:
        main_command = typer.main.get_command(app)
        code = main_command.main(args, prog_name="fleetctl", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # Typer makes this exit of a KeyboardInterrupt
            return _stopped()
        return code if isinstance(code, int) else 0
    except Fail as fail:
        if fail.code != DIFFERS:
            show(fail, as_json=as_json)
        return fail.code
    except BrokenPipeError:
        # The reader has enough (`| head`): not our failure, and nothing more may be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return _stopped()
    except Exception as error:  # noqa: BLE001 — the last resort: no stack trace for people
        return _other(error, args, as_json=as_json)


def _stopped() -> int:
    tell(["", "stopped; fleetd goes on with what it was asked"])
    return INTERRUPTED


def _other(error: Exception, args: Sequence[str], *, as_json: bool) -> int:
    """A usage error as Typer says it, or a bug of ours."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        ctx = getattr(error, "ctx", None)
        path = ctx.command_path if ctx is not None else "fleetctl"
        show(Fail(USAGE, str(format_message()), fix=f"{path} --help", name="usage"),
             as_json=as_json)  # fmt: skip
        return USAGE
    if "--debug" in args:
        raise error
    show(Fail(FAILED, f"fleetctl failed: {type(error).__name__}: {error}",
              fix="repeat with --debug and report it", name="bug"), as_json=as_json)  # fmt: skip
    return FAILED


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def _session(ctx: typer.Context, output: str) -> Session:
    render.check_format(output)
    session: Session = ctx.obj
    session.form = output
    return session


def _limit(value: int) -> int:
    if value < 0:
        raise Fail(USAGE, f"{value} is no count", name="usage")
    return value


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


if __name__ == "__main__":
    main()

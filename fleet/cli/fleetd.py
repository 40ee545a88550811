"""``fleetd``: the daemon and what is done to it on its own machine.

Invariant: nothing heavy is imported before a command is chosen; every failure is said in four
lines (what, why, what to do, code) on stderr with a documented exit code; stdout carries only the
payload.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

app = typer.Typer(
    name="fleetd", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None,
    help="Keeps a fleet of GPU nodes alive, healthy and cheap.\n\n"
    "Exit codes: 0 done; 1 refused or failed; 2 usage; 69 address in use; 70 internal failure; "
    "74 disk failure; 75 another fleetd holds the data directory; 78 configuration or database "
    "does not fit.",
)  # fmt: skip
db = typer.Typer(no_args_is_help=True, help="The database: upgrade and backup.")
app.add_typer(db, name="db")

CONFIG_PATH: Final = Path("/etc/fleetd/fleetd.yaml")
Config = Annotated[
    Path, typer.Option("--config", "-c", help="Configuration file", envvar="FLEETD_CONFIG")
]
REFUSED, UNAVAILABLE, LOCKED, CONFIG = 1, 69, 75, 78
_EXITS: Final = {
    "port_taken": UNAVAILABLE, "socket_in_use": UNAVAILABLE, "socket_path": UNAVAILABLE,
    "store_locked": LOCKED, "empty_store": CONFIG, "no_schema": CONFIG,
    "schema_mismatch": CONFIG, "other_cell": CONFIG,
}  # fmt: skip


def say(what: str, *, why: str = "", fix: str = "", code: str, status: int) -> None:
    """One error in the house style, on stderr."""
    lines = [f"error: {what}"]
    lines += [f"  why   {why}"] if why else []
    lines += [f"  try   {fix}"] if fix else []
    print("\n".join([*lines, f"  code  {code}   (exit {status})"]), file=sys.stderr)


def fail(error: Exception) -> int:
    """Say an error of ours; the exit code that fits it."""
    from fleet.errors import Conflict, InputError, StoreBroken, StoreError

    if isinstance(error, InputError):
        many = len(error.problems) > 1
        if many:
            print(f"error: the configuration has {len(error.problems)} problems", file=sys.stderr)
        for problem in error.problems:
            what = f"{problem.where}: {problem.what}" if problem.where else problem.what
            if many:
                print(f"  {what}" + (f"\n      try  {problem.fix}" if problem.fix else ""),
                      file=sys.stderr)  # fmt: skip
            else:
                say(what, fix=problem.fix, code="invalid_config", status=CONFIG)
        if many:
            print(f"  code  invalid_config   (exit {CONFIG})", file=sys.stderr)
        return CONFIG
    if isinstance(error, Conflict):
        status = _EXITS.get(error.code, REFUSED)
        say(str(error), fix=error.fix, code=error.code, status=status)
        return status
    if isinstance(error, StoreBroken):
        say(str(error), fix="check the disk, then restore: docs/operate.md", code="store_broken",
            status=74)  # fmt: skip
        return 74
    if isinstance(error, StoreError):
        say(str(error), code="store", status=REFUSED)
        return REFUSED
    say(str(error), code=type(error).__name__.lower(), status=REFUSED)
    return REFUSED


def _end(code: int) -> NoReturn:
    """End now: a hung thread of a cloud's SDK must not keep the process."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def _guarded(work: Callable[[], int]) -> NoReturn:
    from fleet.errors import FleetError

    try:
        code = work()
    except FleetError as error:
        code = fail(error)
    except KeyboardInterrupt:
        code = 130
    _end(code)


def _until_serving() -> None:
    """A signal before the loop has its handlers: nothing is served yet, so end at once."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@app.command()
def run(config: Config = CONFIG_PATH) -> None:
    """Run the daemon."""

    def work() -> int:
        _until_serving()
        from fleet import logs, opening

        os.umask(0o077)
        settings = opening.configuration(config)
        logs.configure(settings.log)
        store = opening.store(settings)  # the lock first: a second daemon is told so at once
        from fleet import process

        return process.run(settings, store, config)

    _guarded(work)


@app.command("check-config")
def check_config(
    config: Config = CONFIG_PATH,
    online: Annotated[bool, typer.Option(help="Ask each cloud for one list, too")] = False,
) -> None:
    """Judge the configuration file: every problem with its file and line."""
    from fleet.cli import check

    _guarded(lambda: check.main(config, online=online))


@db.command("upgrade")
def db_upgrade(
    config: Config = CONFIG_PATH,
    adopt: Annotated[
        bool, typer.Option(help="Begin a new database beside running instances: they are adopted "
                                "and everything freezes until you unfreeze")
    ] = False,
) -> None:  # fmt: skip
    """Bring the database to this program's schema."""

    def work() -> int:
        from fleet import opening

        os.umask(0o077)
        before, after = opening.upgrade(opening.configuration(config), adopt=adopt)
        print(f"database at {after}" + (f", was {before or 'empty'}" if before != after else ""))
        return 0

    _guarded(work)


@db.command("backup")
def db_backup(
    file: Annotated[Path, typer.Argument(help="Where to write the copy; must not exist")],
    config: Config = CONFIG_PATH,
) -> None:
    """Copy the database while fleetd runs, check the copy and rehearse a restore from it."""
    from fleet.cli import backup

    _guarded(lambda: backup.main(config, file))


@app.command()
def emulate(
    host: Annotated[str, typer.Option(help="Loopback address to serve on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port, 0 picks a free one")] = 4580,
    speed: Annotated[float, typer.Option(min=0.1, max=3600, help="World seconds a second")] = 1.0,
    faults: Annotated[Path | None, typer.Option(help="Fault plan (YAML)")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the world")] = 0,
    level: Annotated[int, typer.Option(min=0, help="Instances each offer can hold")] = 1000,
    agents_url: Annotated[
        str, typer.Option(help="fleetd's address for the simulated nodes; empty: as told")
    ] = "",
    ready_file: Annotated[
        Path | None, typer.Option(help="Written when serving: JSON, see docs/emulator.md")
    ] = None,
) -> None:
    """Answer as AWS, Google, Azure and Oracle on one loopback port; the clouds are simulated."""
    from fleet.cli import emulate as work

    ask = work.Ask(host, port, speed, faults, seed, level, agents_url, ready_file)
    _guarded(lambda: work.main(ask))


@app.command()
def simulate(
    seed: Annotated[int, typer.Option(help="Seed of everything")] = 1,
    hours: Annotated[float, typer.Option(min=0.01, max=24 * 90, help="Virtual hours")] = 3.0,
    nodes: Annotated[int, typer.Option(min=1, max=20_000, help="Nodes in service")] = 100,
    faults_per_hour: Annotated[float, typer.Option(min=0, help="Random faults an hour")] = 6.0,
) -> None:
    """Run the whole daemon against a simulated world in virtual time and print what happened."""
    from fleet.cli import simulate as work

    _guarded(lambda: work.main(seed, hours, nodes, faults_per_hour))


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of everything")] = 7,
    speed: Annotated[
        float, typer.Option(min=1, max=240, help="How much faster time runs in the world")
    ] = 30.0,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live view")] = False,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="End after this many seconds of ours")
    ] = None,
) -> None:
    """Show a fleet at work in a made-up world (about a minute)."""
    from fleet.sim.demo import main as play

    raise typer.Exit(play(seed, speed, plain=plain, seconds=seconds))


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        print(installed("fleetd"))
    except PackageNotFoundError:
        print("0+source")


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()

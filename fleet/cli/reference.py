"""``docs/cli.md`` from the commands themselves.

Invariant: a pure function of the code; a test compares it with the file, and
``python -m fleet.cli.reference`` writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from fleet.cli.fail import CODES
from fleet.cli.fleetctl import app
from fleet.cli.session import KINDS

HEAD: Final = """# fleetctl

Written by `python -m fleet.cli.reference` from the commands; do not edit.

stdout is data, stderr is talk: a pipe changes neither columns nor bytes. Global options may stand
anywhere on the line. The socket is `--socket`, else `FLEETD_SOCKET`, else
`/run/fleetd/fleetd.sock` or `/var/lib/fleetd/fleetd.sock`; who may use it is its file mode.
"""

EXAMPLES: Final = """## Examples

```
fleetctl get nodes --pool train --where 'boot_s>600 and provider=oci' --sort-by -boot_s
fleetctl get providers --window 7d -o wide
fleetctl describe node n-7f3a2145
fleetctl apply -f policies/ --dry-run --exit-code
fleetctl drain n-7f3a2145 --reason "noisy fan"
fleetctl replace --where 'state=READY and driver=580.95.05' --max 2 --reason "new driver"
fleetctl wait node/n-7f3a2145 --for gone --timeout 30m
fleetctl events --since 2h --node n-7f3a2145
fleetctl get nodes -o jsonl --all | jq -r 'select(.slot == "") | .name'
```
"""

ASKING: Final = """## Asking

Questions are asked on a terminal only. Without one, what takes nodes away needs `--yes` and
`--reason`, else exit 2. One node: a reason. Two or more: the plan is shown and their number is
typed. A pool: its name is typed. The daemon checks budget and freeze whatever was confirmed.
Ctrl-C at a question does nothing and exits 130.
"""


def text() -> str:
    """The whole page."""
    return "\n".join(_parts())


def _parts() -> Iterator[str]:
    root: Any = typer.main.get_command(app)
    yield HEAD
    yield "## Kinds\n\n| kind | also |\n|---|---|"
    yield from (f"| {kind} | {', '.join(also)} |" for kind, also in KINDS.items())
    yield "\n## Options anywhere\n"
    yield from _options(root)
    yield "\n## Commands\n"
    for name, command in root.commands.items():
        yield f"### {name}\n\n{command.help}\n\n```\n{_usage(name, command)}\n```\n"
        yield from _options(command)
        yield ""
    yield ASKING
    yield "## Exit codes\n\n| code | meaning |\n|---|---|"
    yield from (f"| {code} | {meaning} |" for code, meaning in CODES.items())
    yield "\n" + EXAMPLES


def _usage(name: str, command: Any) -> str:
    parts = [f"fleetctl {name}"]
    for param in command.params:
        if param.param_type_name == "argument":
            word = param.metavar or f"{param.name.upper()}{'...' if param.nargs == -1 else ''}"
            bare = word.startswith("[") or param.required
            parts.append(word if bare else f"[{word}]")
    if any(p.param_type_name == "option" for p in command.params):
        parts.append("[OPTIONS]")
    return " ".join(parts)


def _options(command: Any) -> Iterator[str]:
    options = [p for p in command.params if p.param_type_name == "option"]
    if not options:
        return
    yield "| option | what |\n|---|---|"
    for option in options:
        names = ", ".join(f"`{o}`" for o in option.opts)
        what = str(option.help or "").replace("|", "\\|")
        default = option.default
        plain = isinstance(default, str | int) and not isinstance(default, bool) and default
        yield f"| {names} | {what}{f' (default {default})' if plain else ''} |"


def main() -> None:
    """Write the page into docs/ of the folder this is run in."""
    path = Path("docs/cli.md")
    path.write_text(text(), encoding="utf-8")
    print(path, file=sys.stderr)


if __name__ == "__main__":
    main()

"""Completion scripts that hold their words, so that pressing Tab starts no Python.

Invariant: the words come from the commands themselves.
"""

from __future__ import annotations

from typing import Any

from fleet.cli.fail import USAGE, Fail
from fleet.cli.session import KINDS


def words(command: Any) -> tuple[dict[str, list[str]], list[str]]:
    """Options per command, and the kinds."""
    options = {}
    for name, sub in sorted(command.commands.items()):
        options[name] = sorted(
            o for p in sub.params for o in getattr(p, "opts", ()) if o.startswith("--")
        )
    return options, sorted({*KINDS, *(names[0] for names in KINDS.values())})


def script(shell: str, command: Any) -> str:
    """The script for bash, zsh or fish. Exit 2 for another."""
    options, kinds = words(command)
    if shell in ("bash", "zsh"):
        cases = "\n".join(f"    {n}) words='{' '.join(o)}' ;;" for n, o in options.items())
        head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
        return _BASH.format(head=head, commands=" ".join(options), cases=cases,
                            kinds=" ".join(kinds))  # fmt: skip
    if shell == "fish":
        names = " ".join(options)
        lines = [f"complete -c fleetctl -f -n __fish_use_subcommand -a '{names}'"]
        lines += [
            f"complete -c fleetctl -f -n '__fish_seen_subcommand_from {n}' -l {o.lstrip('-')}"
            for n, found in options.items() for o in found
        ]  # fmt: skip
        seen = "__fish_seen_subcommand_from get describe wait"
        lines.append(f"complete -c fleetctl -f -n '{seen}' -a '{' '.join(kinds)}'")
        return "\n".join(lines)
    raise Fail(USAGE, f"no completion for {shell!r}", fix="fleetctl completion bash|zsh|fish",
               name="usage")  # fmt: skip


_BASH = """{head}_fleetctl() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{commands}' -- "$cur")); return
  fi
  if [ "$COMP_CWORD" -eq 2 ] && [[ "$cur" != -* ]]; then
    case ${{COMP_WORDS[1]}} in
      get|describe|wait) COMPREPLY=($(compgen -W '{kinds}' -- "$cur")); return ;;
    esac
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _fleetctl fleetctl"""

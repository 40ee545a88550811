"""House rules that a linter cannot say; line length is ruff's E501.

A rule may be broken where keeping it makes the code worse: say so here, with the reason.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("fleet", "images", "policies", "providers")
CODE: Final = (*PACKAGES, "scripts", "tests")
MODULE_LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 60
FOLDER_MODULES_MAX: Final = 12

LONG_MODULES: Final[dict[str, tuple[int, str]]] = {
    # path: (lines at most, why)
    "fleet/api/agent.py": (450, "register and report share one refusal and one transaction"),
    "fleet/api/metrics.py": (480, "one list of metric families, read as a whole"),
    "fleet/loops/lifecycle.py": (460, "one pass over one node: facts, guards, move, commit"),
    "fleet/lifecycle.py": (460, "the table of moves is read beside the rules that use it"),
}
LONG_FUNCTIONS: Final[dict[str, tuple[int, str]]] = {
    # path::qualified name: (lines at most, why)
}
FULL_FOLDERS: Final[dict[str, tuple[int, str]]] = {
    # folder: (modules at most, why)
    "fleet": (28, "one module for each noun and each pure decision of the engine"),
    "fleet/api": (26, "routes, one row builder for each kind, and the listeners below them"),
    "fleet/cli": (24, "one module for each family of commands keeps start-up at 0.1 s"),
    "fleet/sim": (26, "one made-up world: capacity, machines, faults, clouds, and its demo"),
    "policies": (16, "load, check, diff and document one schema"),
}
MAY_PRINT: Final = (
    "fleet/agent/",  # its journal
    "fleet/cli/",  # a terminal
    "fleet/sim/demo",  # the live view is a terminal program
    "fleet/sim/view",
)
CATCHES_ALL: Final = {
    "providers/pool.py": "hands whatever a vendor's SDK raised to the one who waits for it",
}
# The machine a change was written on and the places packages come from are nobody's business.
# Spelled backwards, so that this file keeps its own rule.
MACHINES: Final = ("/krow/", "/toor/", "/sleehw/tpo/", "/ipyp/tpo/")
REGISTRIES: Final = (
    *("gro.ipyp", "gro.detsohnohtyp", "gro.sjmpn", "moc.sjmpn"),
    *("gro.gnalog.yxorp", "gro.naibed.bed", "oi.setarc"),
)
AGENT_MAY_IMPORT: Final = {"pynvml", *sys.stdlib_module_names}


@cache
def files() -> tuple[str, ...]:
    """Every text file of the project, tracked or about to be, by its path from the root."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False)
    if done.returncode == 0:
        names = set(done.stdout.decode().split("\0")) - {""}
    else:  # an unpacked source archive
        names = {
            path.relative_to(ROOT).as_posix()
            for top in (*CODE, "config", "docs")
            for path in (ROOT / top).rglob("*")
            if "__pycache__" not in path.parts
        }
    return tuple(sorted(name for name in names if (ROOT / name).is_file()))


def text(name: str) -> str:
    """The file's text, empty for a binary one."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def modules(*tops: str) -> list[str]:
    """The Python files below these folders."""
    return [n for n in files() if n.endswith(".py") and n.split("/")[0] in tops]


@cache
def tree(name: str) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(text(name), name)


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(body: list[ast.stmt], inside: str = "") -> Iterator[tuple[str, Function]]:
    """Every function of a module and of its classes, by qualified name; not the nested ones."""
    for node in body:
        if isinstance(node, Function):
            yield inside + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{inside}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from functions(node.body, inside)


def say(found: list[str]) -> None:
    """Fail with one finding a line."""
    assert not found, "\n" + "\n".join(found)


def over(
    sizes: dict[str, int], most: int, listed: dict[str, tuple[int, str]], unit: str
) -> list[str]:
    """What is larger than its limit, and what is listed without need."""
    found = [
        f"{name}: {size} {unit}, {limit} at most"
        for name, size in sizes.items()
        if size > (limit := listed.get(name, (most, ""))[0])
    ]
    return found + [
        f"{name}: fits, take it off the list"
        for name in listed
        if name in sizes and sizes[name] <= most
    ]


def test_modules_are_short() -> None:
    sizes = {name: text(name).count("\n") for name in modules(*CODE)}
    tests = {n: s for n, s in sizes.items() if n.startswith("tests/")}
    code = {n: s for n, s in sizes.items() if n not in tests}
    # a table of cases may run longer than what it tests
    say(over(code, MODULE_LINES_MAX, LONG_MODULES, "lines") + over(tests, 800, {}, "lines"))


def test_functions_are_short() -> None:
    sizes = {
        f"{name}::{function}": (node.end_lineno or 0) - node.lineno + 1
        for name in modules(*PACKAGES, "scripts")
        if "/migrations/versions/" not in name
        for function, node in functions(tree(name).body)
    }
    say(over(sizes, FUNCTION_LINES_MAX, LONG_FUNCTIONS, "lines"))


def test_folders_are_small() -> None:
    sizes = Counter(
        str(Path(name).parent) for name in modules(*PACKAGES) if not name.endswith("__init__.py")
    )
    say(over(dict(sizes), FOLDER_MODULES_MAX, FULL_FOLDERS, "modules"))


def test_modules_say_what_they_keep() -> None:
    say([
        f"{name}: no module docstring"
        for name in modules(*PACKAGES, "scripts")
        if text(name).strip() and not ast.get_docstring(tree(name))
    ])  # fmt: skip


def test_public_functions_say_what_they_do() -> None:
    say([
        f"{name}:{node.lineno}: {function} has no docstring"
        for name in modules(*PACKAGES)
        if "/migrations/" not in name  # alembic's names mean what alembic says
        for function, node in functions(tree(name).body)
        if "." not in function and not function.startswith("_") and not ast.get_docstring(node)
    ])  # fmt: skip


def test_cancellation_is_never_swallowed() -> None:
    say([
        f"{name}:{node.lineno}: catches BaseException"
        for name in modules(*PACKAGES, "scripts")
        if name not in CATCHES_ALL
        for node in ast.walk(tree(name))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or "BaseException" in ast.unparse(node.type))
        # a handler that raises again passes it on
        and not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)
    ])  # fmt: skip


def test_only_programs_print() -> None:
    say([
        f"{name}:{node.lineno}: print: use structlog"
        for name in modules(*PACKAGES)
        if not name.startswith(MAY_PRINT)
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ])  # fmt: skip


def test_typer_exit_is_raised() -> None:
    """Returned or called for nothing it ends with status 0: a failure that looks like success."""
    found = []
    for name in modules(*PACKAGES):
        raised = {
            id(node.exc) for node in ast.walk(tree(name)) if isinstance(node, ast.Raise)
        }  # fmt: skip
        found += [
            f"{name}:{node.lineno}: {ast.unparse(node.func)} is made and not raised"
            for node in ast.walk(tree(name))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in {"typer.Exit", "typer.Abort"}
            and id(node) not in raised
        ]
    say(found)


@pytest.mark.parametrize("words", [MACHINES, REGISTRIES], ids=["path", "registry"])
def test_no_file_names_a_machine_or_a_registry(words: tuple[str, ...]) -> None:
    names = "|".join(re.escape(word[::-1]) for word in words)
    pattern = re.compile(rf"(?<![\w.~-])(?:{names})", re.IGNORECASE)
    say([
        f"{name}:{number}: {hit[0]}"
        for name in files()
        for number, line in enumerate(text(name).splitlines(), 1)
        if (hit := pattern.search(line))
    ])  # fmt: skip


def test_the_lock_names_no_place() -> None:
    lines = text("requirements.lock").splitlines()
    say([
        f"requirements.lock:{number}: {line}"
        for number, line in enumerate(lines, 1)
        if "://" in line or " @ " in line or line.lstrip().startswith(("-e", "--index", "--find"))
    ])  # fmt: skip


def test_the_lock_holds_what_pyproject_asks_for() -> None:
    project = tomllib.loads(text("pyproject.toml"))
    asked = [
        *project["project"]["dependencies"],
        *(r for extra in project["project"]["optional-dependencies"].values() for r in extra),
        *project["dependency-groups"]["dev"],
    ]
    names = {plain(re.split(r"[\[<>=!~; ]", r, maxsplit=1)[0]) for r in asked} - {"fleetd"}
    pins = re.findall(r"^([\w.-]+)==", text("requirements.lock"), re.MULTILINE)
    locked = {plain(name) for name in pins}
    say([f"{name}: not in requirements.lock, run make lock" for name in sorted(names - locked)])


def plain(name: str) -> str:
    """A distribution's name in its normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_agent_stands_alone() -> None:
    found = []
    for name in modules("fleet"):
        if not name.startswith("fleet/agent/"):
            continue
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                # "from fleet import agent" and "from fleet.agent import x" alike
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            found += [
                f"{name}:{node.lineno}: imports {wanted}"
                for wanted in names
                if wanted.split(".")[0] not in AGENT_MAY_IMPORT
                and not f"{wanted}.".startswith("fleet.agent.")
            ]
    say(found)


def test_no_package_is_called_config_or_tests() -> None:
    """Installed under such a name it would shadow somebody else's."""
    assert not (ROOT / "tests" / "__init__.py").exists()
    assert not (ROOT / "config" / "__init__.py").exists()
    build = tomllib.loads(text("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sorted(build["packages"]) == sorted(PACKAGES)

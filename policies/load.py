"""From files to a checked ``PolicySet``, or to every problem at once.

Invariant: all or nothing. A set that is returned is valid together with what is applied already;
an ``InputError`` carries each problem with file, line, pointer and fix, in reading order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fleet.errors import InputError, Problem
from policies.crosscheck import ANYTHING, Known, Loaded, check
from policies.document import POLICY, Doc, PolicyProblem
from policies.jsonio import load_json
from policies.policyset import EMPTY, PolicySet
from policies.problems import problems_of
from policies.schema import API_VERSION, KINDS
from policies.text import did_you_mean, quoted
from policies.yamlio import load_yaml

__all__ = [
    "ANYTHING",
    "EMPTY",
    "Known",
    "PolicySet",
    "Source",
    "load_files",
    "load_sources",
    "load_text",
]

SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
MAX_FILES: Final = 1000
#: Problems in one answer; the rest is said as a number.
MAX_PROBLEMS: Final = 200


@dataclass(frozen=True, slots=True)
class Source:
    """A text and what errors call it. JSON when the name ends so, else YAML."""

    name: str
    data: bytes | str


def load_files(
    paths: Iterable[str | os.PathLike[str]], *, applied: PolicySet = EMPTY, known: Known = ANYTHING
) -> PolicySet:
    """The policies in ``paths``: files, or folders whose YAML and JSON files are read by name.

    ``applied`` are policies already in force, to which the files may refer; they are not in the
    answer (``answer.over(applied)`` is what is in force after applying it). ``known`` says what
    the daemon knows of providers and instance types. Raises ``InputError`` with all problems.
    """
    problems: list[Problem] = []
    sources: list[Source] = []
    for path in _files(paths, problems):
        try:
            with path.open("rb") as file:
                sources.append(Source(str(path), file.read(POLICY.size + 1)))
        except OSError as error:
            what = error.strerror or type(error).__name__
            problems.append(PolicyProblem(str(path), what.lower(), "check the path", str(path)))
    return load_sources(sources, applied=applied, known=known, problems=problems)


def load_text(
    data: bytes | str, name: str = "stdin", *, applied: PolicySet = EMPTY, known: Known = ANYTHING
) -> PolicySet:
    """The policies in one text; ``name`` is how errors call it. Raises ``InputError``."""
    return load_sources([Source(name, data)], applied=applied, known=known)


def load_sources(
    sources: Iterable[Source],
    *,
    applied: PolicySet = EMPTY,
    known: Known = ANYTHING,
    problems: Iterable[Problem] = (),
) -> PolicySet:
    """The policies in several texts. ``problems`` found earlier are reported with the new ones."""
    found = list(problems)
    loaded: list[Loaded] = []
    failed: set[tuple[str, str]] = set()
    empty = True
    for source in sources:
        docs = _documents(source, found)
        empty = empty and not docs
        for doc in docs:
            item = _object(doc, found)
            if item is None:
                failed |= _name_of(doc)
            else:
                loaded.append(item)
    if empty and not found:
        found.append(PolicyProblem("policies", "no policy found", "name a file with a Pool in it"))
    found += check(loaded, frozenset(failed), applied, known)
    if found:
        raise InputError(_bounded(found))
    return PolicySet.of(item.policy for item in loaded)


def _files(paths: Iterable[str | os.PathLike[str]], problems: list[Problem]) -> list[Path]:
    files: list[Path] = []
    for name in paths:
        path = Path(name)
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and p.is_file())
        if not inside:
            fix = "name a folder with .yaml files"
            problems.append(PolicyProblem(str(path), "folder without policy files", fix, str(path)))
        files += inside
    if len(files) > MAX_FILES:
        what = f"{len(files)} files, at most {MAX_FILES} are read"
        problems.append(PolicyProblem("policies", what, "merge some of them"))
    return list(dict.fromkeys(files))[:MAX_FILES]


def _documents(source: Source, problems: list[Problem]) -> list[Doc]:
    read = load_json if source.name.endswith(".json") else load_yaml
    try:
        return read(source.data, source.name, POLICY)
    except InputError as error:
        problems += error.problems
        return []


def _name_of(doc: Doc) -> set[tuple[str, str]]:
    """Kind and name of a document that is no good, so that others may still refer to it."""
    kind, name = doc.get(("kind",)), doc.get(("metadata", "name"))
    return {(kind, name)} if isinstance(kind, str) and isinstance(name, str) else set()


def _object(doc: Doc, problems: list[Problem]) -> Loaded | None:
    """The policy of ``doc``, or None with its problems noted."""
    value = doc.value
    if not isinstance(value, dict):
        fix = "begin with apiVersion, kind, metadata and spec"
        problems.append(doc.problem((), "a policy must be a mapping", fix))
        return None
    header = _header(doc, value)
    if header:
        problems += header
        return None
    model = KINDS[value["kind"]]
    try:
        return Loaded(doc, model.model_validate(value))
    except ValidationError as error:
        problems += problems_of(doc, model, error)
        return None


def _header(doc: Doc, value: Mapping[str, Any]) -> list[PolicyProblem]:
    """What is wrong with ``apiVersion`` and ``kind``; the rest cannot be judged before."""
    found: list[PolicyProblem] = []
    version, kind = value.get("apiVersion"), value.get("kind")
    if "apiVersion" not in value:
        fix = f"add apiVersion: {API_VERSION}"
        found.append(doc.problem((), "field apiVersion is missing", fix))
    elif version != API_VERSION:
        what = f"unknown apiVersion {quoted(version)}"
        found.append(doc.problem(("apiVersion",), what, f"write {API_VERSION}"))
    if "kind" not in value:
        fix = f"add kind: {', '.join(KINDS)}"
        found.append(doc.problem((), "field kind is missing", fix))
    elif not isinstance(kind, str) or kind not in KINDS:
        fix = did_you_mean(str(kind), KINDS)
        found.append(doc.problem(("kind",), f"unknown kind {quoted(kind)}", fix))
    return found


def _bounded(problems: list[Problem]) -> list[Problem]:
    """``problems`` by file (in the order read) and line, each once, at most ``MAX_PROBLEMS``."""
    order: dict[str, int] = {}
    for problem in problems:
        order.setdefault(_file(problem), len(order))
    unique = list(dict.fromkeys(problems))
    unique.sort(key=lambda p: (order[_file(p)], getattr(p, "line", 0)))
    if len(unique) > MAX_PROBLEMS:
        rest = len(unique) - MAX_PROBLEMS
        return [
            *unique[:MAX_PROBLEMS],
            Problem("policies", f"and {rest} more problems", "mend these first"),
        ]
    return unique


def _file(problem: Problem) -> str:
    return problem.file if isinstance(problem, PolicyProblem) else problem.where

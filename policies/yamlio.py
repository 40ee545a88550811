"""Reads YAML that strangers wrote.

Invariant: what comes out is a tree (no aliases, anchors or merge keys), its size is bounded before
it is built, and nothing but ``InputError`` is raised, whatever the bytes (trust.md 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from fleet.errors import InputError
from policies.document import (
    DOCUMENT,
    Collector,
    Doc,
    Limits,
    Mark,
    PolicyProblem,
    Steps,
    decode,
    refused,
)

#: libyaml where the wheel has it: 20 times faster, same events.
EVENT_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(
    data: bytes | str, file: str, limits: Limits = DOCUMENT, *, loader: Any = None
) -> list[Doc]:
    """All documents of a YAML text, empty ones left out.

    ``file`` is how errors call the text. Raises ``InputError`` with every problem found.
    """
    text = decode(data, file, limits)
    collect = Collector(file, limits)
    try:
        events = yaml.parse(text, Loader=loader or EVENT_LOADER)
        docs = list(_Tree(collect, events).documents())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = error.problem or error.context or "malformed"
        raise refused(file, line, f"not YAML: {what}", _hint(text, line), column) from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise refused(file, 1, f"not YAML: {type(error).__name__}") from None
    if collect.problems:
        raise InputError(collect.problems)
    return docs


def load_file(path: Path | str, limits: Limits = DOCUMENT) -> Doc:
    """The one document of the file at ``path``; an empty file gives a document of value None.

    Raises ``InputError``, also for a file that cannot be read or has several documents.
    """
    name = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(limits.size + 1)
    except OSError as error:
        what = (error.strerror or type(error).__name__).lower()
        raise InputError([PolicyProblem(name, what, "check the path", name)]) from None
    docs = load_yaml(data, name, limits)
    if len(docs) > 1:
        line, column = docs[1].start
        raise refused(name, line, "a second document", "keep one document in this file", column)
    return docs[0] if docs else Doc(name, None)


def _hint(text: str, line: int) -> str:
    lines = text.split("\n")
    shown = lines[line - 1] if 0 < line <= len(lines) else ""
    if shown[: len(shown) - len(shown.lstrip())].count("\t"):
        return "indent with blanks, not tabs"
    return "check indentation, colons and quotes near this line"


class _Tree:
    """Builds values from parser events, iteratively, with one frame per open collection."""

    def __init__(self, collect: Collector, events: Iterator[Event]) -> None:
        self.collect = collect
        self.events = events
        self.values: dict[Steps, Mark] = {}
        self.keys: dict[Steps, Mark] = {}

    def documents(self) -> Iterator[Doc]:
        """Documents in order."""
        count = 0
        for event in self.events:
            if isinstance(event, StreamStartEvent | StreamEndEvent):
                continue
            if isinstance(event, DocumentStartEvent):
                count += 1
                if count > self.collect.limits.documents:
                    what = f"more than {self.collect.limits.documents} documents"
                    self.collect.stop(_mark(event), what, "split it into several files")
                if event.tags:
                    self.collect.say(_mark(event), "tag directives are not accepted", "remove it")
                continue
            if isinstance(event, NodeEvent):
                self.values, self.keys = {}, {}
                value = self._value(event, (), 1)
                if value is not None:
                    start = self.values[()]
                    yield Doc(self.collect.file, value, start, self.values, self.keys)

    def _value(self, event: Event, path: Steps, depth: int) -> Any:
        """The value that begins with ``event``. Recursion ends at ``limits.depth``."""
        mark = _mark(event)
        self.collect.node(mark, depth)
        self.values[path] = mark
        if isinstance(event, AliasEvent):
            self.collect.say(mark, f"alias *{event.anchor} is not accepted", "write the value out")
            return None
        self._plain_node(event, mark)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(path, depth)
        if isinstance(event, MappingStartEvent):
            return self._mapping(path, depth)
        assert isinstance(event, ScalarEvent), event
        if event.implicit[0]:
            return self.collect.plain(event.value, mark)
        return self.collect.text(event.value, mark)

    def _plain_node(self, event: Event, mark: Mark) -> None:
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor:
            self.collect.say(mark, f"anchor &{anchor} is not accepted", "write the value out")
        if tag:
            self.collect.say(mark, f"tag {tag[:60]} is not accepted", "remove it")

    def _sequence(self, path: Steps, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), CollectionEndEvent):
            items.append(self._value(event, (*path, len(items)), depth + 1))
        return items

    def _mapping(self, path: Steps, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        seen: dict[str, Mark] = {}
        while not isinstance(event := next(self.events), CollectionEndEvent):
            mark = _mark(event)
            key = self._key(event, mark, path, depth)
            self.collect.key(seen, key, mark)
            at = (*path, key)
            self.keys.setdefault(at, mark)
            items[key] = self._value(next(self.events), at, depth + 1)
        return items

    def _key(self, event: Event, mark: Mark, path: Steps, depth: int) -> str:
        if not isinstance(event, ScalarEvent):
            # Built and dropped, so that the parser stays in step and the limits hold.
            self._value(event, (*path, ""), depth + 1)
            self.collect.say(mark, "a key must be text", "write a plain key")
            return ""
        self.collect.node(mark, depth)
        self._plain_node(event, mark)
        if event.value == "<<" and event.implicit[0]:
            self.collect.say(mark, "merge key << is not accepted", "write the fields out")
        return self.collect.text(event.value, mark)


def _mark(event: Event) -> Mark:
    start = event.start_mark
    if start is None:
        return (1, 1)
    return (start.line + 1, start.column + 1)

"""``get``, ``describe``, ``events``, ``plan``: asking and showing.

Invariant: what was left out is said on stderr; an unreachable daemon is exit 7 with an empty
stdout, never an empty list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.cli import render
from fleet.cli.client import quote
from fleet.cli.fail import NOT_FOUND, USAGE, Fail, tell
from fleet.cli.session import KINDS, Session, split
from fleet.cli.text_out import json_text, terminal

PAGE = 1000


@dataclass
class Ask:
    """One list request as typed."""

    kind: str
    names: list[str] = field(default_factory=list)
    filters: dict[str, str] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    where: str = ""
    sort_by: str = ""
    limit: int = 0
    everything: bool = False
    form: str = "table"
    columns: list[str] = field(default_factory=list)
    headers: bool = True
    fail_empty: bool = False

    def params(self) -> list[tuple[str, str]]:
        """The query string."""
        found = [("name", n) for n in self.names]
        found += [(k, v) for k, v in self.filters.items() if v]
        tests = [f"({self.where})"] if self.where else []
        for label in self.labels:
            key, mark, value = label.partition("=")
            if not mark or not key:
                raise Fail(USAGE, f"{label!r} is not key=value", fix="-l provider=oci",
                           name="usage")  # fmt: skip
            quote = "'" if '"' in value else '"'
            tests.append(f"{key.strip()}={quote}{value.strip()}{quote}")
        if tests:
            found.append(("where", " and ".join(tests)))
        if self.sort_by:
            found.append(("sort_by", self.sort_by))
        if self.everything:
            found.append(("all", "true"))
        limit = self.limit or (PAGE if self.everything else 100)
        found.append(("limit", str(max(1, min(limit, PAGE)))))
        return found

    @property
    def said(self) -> str:
        """The filters, for the line on stderr."""
        parts = [f"{k}={v}" for k, v in self.filters.items() if v] + self.labels
        return ", ".join(parts + ([self.where] if self.where else []))


def fetch(session: Session, ask: Ask) -> dict[str, Any]:
    """One answer; with ``--all`` (or a limit beyond one page) every page joined."""
    pages = list(_pages(session, ask))
    answer = pages[0]
    for more in pages[1:]:
        answer["items"] += more["items"]
    if ask.limit:
        answer["items"] = answer["items"][: ask.limit]
    answer["count"] = len(answer["items"])
    answer["next_page_token"] = pages[-1]["next_page_token"]
    return answer


def _pages(session: Session, ask: Ask) -> Iterator[dict[str, Any]]:
    params, got, token = ask.params(), 0, ""
    while True:
        extra = [("page_token", token)] if token else []
        answer = session.client.get(f"/v1/{ask.kind}", params + extra)
        yield answer
        got += len(answer["items"])
        token = answer["next_page_token"]
        more = ask.everything or (ask.limit and got < ask.limit)
        if not token or not more:
            return


def show(session: Session, ask: Ask) -> None:
    """Ask, print the payload on stdout and what it means on stderr."""
    answer = fetch(session, ask)
    render.out(
        render.payload(answer, ask.form, names=ask.columns, headers=ask.headers,
                       how=session.look())
    )  # fmt: skip
    summary(ask, answer)
    if ask.fail_empty and not answer["items"]:
        raise Fail(NOT_FOUND, f"no {ask.kind} match", why=ask.said, name="empty")


def summary(ask: Ask, answer: dict[str, Any]) -> None:
    """``5 of 2,412 nodes (pool=train) as of 12:41:07; oci list 41s old``, on stderr."""
    count, total = answer["count"], answer["total"]
    many = "offers planned with" if ask.kind == "plan" else ask.kind
    noun = many if total != 1 else KINDS[ask.kind][0]
    said = f" ({terminal(ask.said)})" if ask.said else ""
    if ask.form not in ("table", "wide"):
        if count < total:
            tell([f"shown {count:,} of {total:,} {noun}: --all shows all"])
        return
    text = f"{count:,} of {total:,} {noun}" if count < total else f"{total:,} {noun}"
    if not total:
        text = f"no {ask.kind}"
    text += f"{said} as of {terminal(str(answer['as_of'])[11:19])}Z"
    old = [(a, p) for p, a in answer["observed"].items() if a is not None and a > 60]
    never = [p for p, a in answer["observed"].items() if a is None]
    if old:
        age, provider = max(old)
        text += f"; {terminal(provider)} list {age:.0f} s old"
    if never:
        text += f"; not listed yet: {terminal(', '.join(never))}"
    if answer.get("frozen"):
        text += f"\nFROZEN: {terminal(str(answer['frozen']))}"
    if count < total:
        text += "   (--all shows all)"
    tell(text.split("\n"))


def kinds(session: Session, form: str) -> None:
    """What can be listed, with counts."""
    answer = session.client.get("/v1")
    if form in ("table", "wide"):
        rows = [["KIND", "COUNT", "ALSO"]]
        rows += [
            [terminal(i["name"]), f"{i['count']:,}", ", ".join(KINDS.get(i["name"], ()))]
            for i in answer["items"]
        ]
        render.out(render.align(rows, [False, True, False], None))
    else:
        columns = [
            {"name": "KIND", "key": "name", "priority": 0, "align": "left"},
            {"name": "COUNT", "key": "count", "priority": 0, "align": "right"},
        ]
        items = [{**i, "cells": [i["name"], str(i["count"])]} for i in answer["items"]]
        render.out(render.payload({**answer, "items": items, "columns": columns}, form))
    if answer.get("frozen"):
        tell([f"FROZEN: {terminal(str(answer['frozen']))}"])


def describe(session: Session, words: Sequence[str], form: str, window: str) -> None:
    """The page of one or more objects."""
    kind, names = split(words)
    if not names:
        raise Fail(USAGE, f"name the {KINDS[kind][0]} to describe",
                   fix=f"fleetctl get {kind} -o name", name="usage")  # fmt: skip
    for i, name in enumerate(names):
        params = [("window", window)] if window else []
        answer = session.client.get(f"/v1/{kind}/{quote(name)}", params)
        render.out(_page(answer, form, session, first=i == 0))


def _page(answer: dict[str, Any], form: str, session: Session, *, first: bool) -> list[str]:
    facts = {k: v for k, v in answer.items() if k not in ("sections", "head")}
    if form == "json":
        return [json_text(facts, indent=2)]
    if form == "jsonl":
        return [json_text(facts)]
    if form == "yaml":
        return ([] if first else ["---"]) + render.yaml_lines(facts)
    if form == "name":
        return [f"{answer['kind'].lower()}/{terminal(answer['name'])}"]
    if form == "csv":
        raise Fail(USAGE, "describe has no csv", fix="-o table|json|yaml", name="usage")
    return ([] if first else [""]) + render.page(answer, session.look())

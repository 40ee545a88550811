"""The policy schema as JSON Schema, for editors and other tools: ``python -m policies.jsonschema``.

Invariant: generated; ``docs/policy.schema.json`` in the repository is always this output (a test
compares). What needs other objects (an image's artifacts, instance types) is not in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from policies import reference
from policies.schema import Policy

TARGET = Path("docs") / "policy.schema.json"


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one policy document."""
    body = TypeAdapter(Policy).json_schema(ref_template="#/$defs/{model}")
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fleetd policy",
        "description": "One document of a policy file: a Pool, an Image or a HealthPolicy.",
        "oneOf": body.pop("anyOf"),
        **body,
    }
    _drop_titles(found["$defs"])
    return found


def text() -> str:
    """The file's content."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _drop_titles(node: Any) -> None:
    """Titles repeat the field names; they double the file and say nothing."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for inner in node.values():
            _drop_titles(inner)
    elif isinstance(node, list):
        for inner in node:
            _drop_titles(inner)


def main() -> int:
    """Write the schema and the generated part of the reference page."""
    TARGET.write_text(text(), encoding="utf-8")
    reference.write(schema())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The bricks of the policy models: strictness, names, shares, times, and how they refuse.

Invariant: every string type here has a length limit and every number both bounds; an error raised
by a brick carries a sentence and a fix, never a regular expression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from policies.text import bad_character, quoted

API_VERSION: Final = "fleetd/v1"


class Strict(BaseModel):
    """Base of all policy models: frozen, no unknown field, no coercion, no NaN."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def refuse(what: str, fix: str = "", at: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """The error a validator raises: ``what`` is wrong, and how to ``fix`` it.

    ``at`` leads from the validated value to the part that is wrong.
    """
    return PydanticCustomError("refused", "{what}", {"what": what, "fix": fix, "at": at})


@dataclass(frozen=True, slots=True)
class Shape:
    """Annotation for a string of a certain form.

    ``what`` names the form in an error ("an image version"), ``fix`` says what is allowed.
    """

    pattern: str
    what: str
    fix: str
    limit: int

    def check(self, value: str) -> str:
        """``value`` if it has the form; raises the custom error otherwise."""
        if len(value) > self.limit or not re.fullmatch(self.pattern, value):
            raise refuse(f"{quoted(value)} is not {self.what}", self.fix)
        return value

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$", "maxLength": self.limit}


#: Names end up in labels of four clouds, of which the strictest takes [a-z0-9_-] (clouds.md 5).
Name = Annotated[
    str,
    Shape(
        r"[a-z0-9]([a-z0-9-]*[a-z0-9])?",
        "a name",
        "use 1 to 40 lower-case letters, digits and dashes",
        40,
    ),
]
CloudWord = Annotated[
    str,
    Shape(
        r"[A-Za-z0-9][A-Za-z0-9._:-]*",
        "a name as clouds use it",
        "use letters, digits, and . _ : -",
        80,
    ),
]
Version = Annotated[
    str,
    Shape(
        r"(?!(latest|stable|current|newest)$)[A-Za-z0-9][A-Za-z0-9._-]*",
        "a fixed version",
        "use letters, digits, and . _ - ; aliases such as latest would change under a rollout",
        60,
    ),
]
Dotted = Annotated[
    str,
    Shape(r"[0-9]+(\.[0-9]+){0,3}", "a dotted version", "write numbers such as 580.95.05", 24),
]

ImageRef = Annotated[
    str,
    Shape(
        r"[a-z0-9]([a-z0-9-]*[a-z0-9])?@(?!(latest|stable|current|newest)$)"
        r"[A-Za-z0-9][A-Za-z0-9._-]*",
        "a fixed image",
        "write family@version, for example base@v42",
        101,
    ),
]

#: A day is the longest any single deadline may be: longer ones are typing errors (ms for s).
Seconds = Annotated[float, Field(gt=0, le=86_400)]
LongSeconds = Annotated[float, Field(gt=0, le=31 * 86_400)]
Probability = Annotated[float, Field(ge=0.5, le=0.999_999)]
Dollars = Annotated[float, Field(ge=0, le=10_000)]

_PERCENT: Final = re.compile(r"(\d{1,3}(\.\d{1,2})?)%")
MAX_COUNT: Final = 100_000


def check_share(value: object) -> object:
    """A share is an integer count or a percentage such as ``"10%"``."""
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value <= MAX_COUNT:
            return value
        raise refuse(f"{quoted(value)} is out of range", f"write a count from 0 to {MAX_COUNT}")
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value)):
        if float(match[1]) <= 100:
            return value
        raise refuse(f"{quoted(value)} is more than everything", "write at most 100%")
    raise refuse(f"{quoted(value)} is neither a count nor a share", 'write 3 or "10%"')


Share = Annotated[
    int | str,
    BeforeValidator(check_share),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MAX_COUNT},
                {"type": "string", "pattern": r"^\d{1,3}(\.\d{1,2})?%$"},
            ],
            "description": "A count, or a share of the pool such as 10%.",
        }
    ),
]


def check_text(value: str) -> str:
    """Free text without characters that harm a terminal, a log or a database."""
    bad = bad_character(value)
    if bad or "\n" in value:
        raise refuse(f"{bad or 'line break'} in text", "remove it")
    return value


class Metadata(Strict):
    """Which object this is."""

    name: Name
    """Unique among objects of its kind."""


class Document(Strict):
    """The header every policy document has."""

    apiVersion: Literal["fleetd/v1"]  # noqa: N815 — the field's name in the document
    """Version of this schema."""
    metadata: Metadata
    """Name of the object."""

"""Shared texts of the policy tests."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from fleet.errors import InputError
from policies.load import ANYTHING, EMPTY, Known, PolicySet, load_text

settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

DATA = Path(__file__).parent / "data"

Said = Callable[..., list[str]]


@pytest.fixture
def said() -> Said:
    """Problems of a text as the strings people see."""

    def load(text: str, applied: PolicySet = EMPTY, known: Known = ANYTHING) -> list[str]:
        try:
            load_text(textwrap.dedent(text), "f.yaml", applied=applied, known=known)
        except InputError as error:
            return [str(problem) for problem in error.problems]
        return []

    return load


@pytest.fixture
def image_set() -> PolicySet:
    """The image that the test pool names, as if applied."""
    return load_text((DATA / "image.yaml").read_text())

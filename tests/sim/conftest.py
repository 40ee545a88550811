"""Whole-daemon runs: quiet logs, and one folder of helpers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

# so that the suites of this folder share scene.py in every import mode of pytest
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A day of a fleet logs more than a person reads, and slower than it runs."""
    before = structlog.get_config()
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)
    yield
    structlog.configure(**before)

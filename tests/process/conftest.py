"""Fixtures of the process tests."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# so that the suites of this folder share fleetds.py in every import mode of pytest
sys.path.insert(0, str(Path(__file__).parent))

from fleetds import Fleetd
from zygote import Zygote


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path (Unix sockets have 107 bytes) that is removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="fd-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Where quick processes come from."""
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def fleetd(folder: Path, zygote: Zygote) -> Iterator[Fleetd]:
    """A cell without providers."""
    made = Fleetd(folder, zygote)
    yield made
    made.close()

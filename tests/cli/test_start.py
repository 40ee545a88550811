"""fleetctl starts fast because it imports little, and its reference page is current."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from fleet.cli import reference

HEAVY = {"fastapi", "starlette", "sqlmodel", "sqlalchemy", "pydantic", "pydantic_settings", "rich",
         "httpx", "uvicorn", "structlog", "boto3", "yaml", "asyncio", "ssl", "http.client",
         "providers", "policies", "fleet.model", "fleet.api", "fleet.store"}  # fmt: skip
PROBE = """
import sys
from fleet.cli.fleetctl import run
code = run(sys.argv[1:])
print(code, *sorted(sys.modules), file=sys.stderr)
"""


def test_get_and_describe_import_nothing_heavy(tmp_path: Path) -> None:
    for args in (["get", "nodes"], ["describe", "node", "n-1"], ["events"], ["diff", "-f", "x"]):
        done = subprocess.run(
            [sys.executable, "-c", PROBE, "--socket", str(tmp_path / "none"), *args],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        loaded = set(done.stderr.split())
        assert "fleet.cli.fleetctl" in loaded
        assert not loaded & HEAVY, loaded & HEAVY


def test_time_to_first_byte(tmp_path: Path) -> None:
    """Under 150 ms of processor time on the machine where it was measured (about 110); the bound
    here is loose, since a test must not fail because a neighbour is busy."""
    args = [sys.executable, "-m", "fleet.cli.fleetctl", "--socket", str(tmp_path / "none"),
            "get", "nodes"]  # fmt: skip
    best = 9.0
    for _ in range(3):
        before = os.times()
        start = time.monotonic()
        done = subprocess.run(args, capture_output=True, check=False)
        assert done.returncode == 7
        after = os.times()
        used = (after.children_user - before.children_user) + (
            after.children_system - before.children_system
        )
        best = min(best, used, time.monotonic() - start)
    assert best < 0.3, f"{best:.3f} s"


def test_the_reference_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text("utf-8") == reference.text(), "run python -m fleet.cli.reference"

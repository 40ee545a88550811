"""Pages and examples that must not lag behind the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fleetds import ROOT

from fleet import configdoc, opening
from fleet.api import metrics

HINT = "write it again: python tests/process/test_docs.py"
PAGES = {"docs/config.md": configdoc.reference, "docs/metrics.md": metrics.reference}


def test_the_configuration_page_is_current() -> None:
    assert (ROOT / "docs/config.md").read_text() == configdoc.reference(), HINT


def test_the_metrics_page_is_current() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == metrics.reference(), HINT


def test_every_setting_is_explained() -> None:
    rows = [r for r in configdoc.reference().splitlines() if r.startswith("| `")]
    core = rows[: next(i for i, r in enumerate(rows) if r.startswith("| `kind`"))]
    assert [r for r in core if r.endswith("|  |")] == []


def test_the_example_is_accepted() -> None:
    settings = opening.configuration(ROOT / "config/fleetd.yaml")
    assert settings.mode == "observe"
    assert settings.provider_names == ["aws"]


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "sys.argv = ['fleetd', '--help']\n"
        "from fleet.cli.fleetd import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'sqlmodel', 'sqlalchemy', 'fastapi', 'pydantic', 'boto3', 'uvicorn', 'yaml'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          cwd=ROOT, check=True)  # fmt: skip
    assert done.stderr.strip() == "[]"
    assert "check-config" in done.stdout


if __name__ == "__main__":
    for name, page in PAGES.items():
        Path(ROOT, name).write_text(page())

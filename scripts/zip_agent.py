"""Pack fleet-agent into one file that a node runs with its own python3.

Invariant: the same sources give the same bytes (fixed order, time and modes), so two builds can be
compared. In it are fleet/agent and pynvml, and nothing else of ours: the agent stands alone.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build" / "fleet-agent.pyz"
OLDEST_S = 315532800  # 1980-01-01, where zip's calendar begins
MAIN = b"import sys\n\nfrom fleet.agent.main import main\n\nsys.exit(main())\n"


def sources() -> dict[str, bytes]:
    """Return what goes into the archive, by its name there."""
    found = {"__main__.py": MAIN, "fleet/__init__.py": b""}
    for path in (ROOT / "fleet" / "agent").rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            found[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    spec = importlib.util.find_spec("pynvml")
    if spec is not None and spec.origin is not None:
        found["pynvml.py"] = Path(spec.origin).read_bytes()
    return found


def main() -> int:
    """Write build/fleet-agent.pyz; return the exit status."""
    files = sources()
    if "fleet/agent/main.py" not in files:
        print("zip_agent: fleet/agent/main.py is missing", file=sys.stderr)
        return 1
    epoch_s = max(OLDEST_S, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    date = time.gmtime(epoch_s)[:6]
    TARGET.parent.mkdir(exist_ok=True)
    with TARGET.open("wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in sorted(files.items()):
                entry = zipfile.ZipInfo(name, date)
                entry.external_attr = 0o100644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, data)
    TARGET.chmod(0o755)
    digest = hashlib.sha256(TARGET.read_bytes()).hexdigest()
    print(f"{TARGET.relative_to(ROOT)}  {TARGET.stat().st_size:,} bytes  sha256:{digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

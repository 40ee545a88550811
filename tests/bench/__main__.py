"""make bench: figures as a table, and as JSON lines in build/bench.jsonl.

``python -m tests.bench [NAME …]`` runs some of them; without names all. A figure is a measurement
on this machine at this moment, never a test.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog


def _table() -> dict[str, Callable[[], dict[str, Any]]]:
    from tests.bench import (
        bench_aws,
        bench_azure,
        bench_gcp,
        bench_oci,
        fleetday,
        reports,
        rest,
        rollups,
    )

    return {
        "report, at the door": reports.door,
        "report, over HTTP": reports.http,
        "fault to spare, 2,500 nodes of 8": lambda: fleetday.fault(2500, 8, 100),
        "fault to spare, 20,000 nodes of 1": lambda: fleetday.fault(20_000, 1, 50),
        "simulated day, 2,500 nodes": fleetday.day,
        "at rest, 2,500 nodes": rest.figures,
        "90 days of 4 M launches": rollups.figures,
        "launching, AWS": bench_aws.figures,
        "launching, Google": bench_gcp.figures,
        "launching, Azure": bench_azure.figures,
        "launching, Oracle": bench_oci.figures,
    }


def main(names: list[str]) -> int:
    """Run the figures whose name contains one of ``names``."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    out = Path("build")
    out.mkdir(exist_ok=True)
    table = _table()
    chosen = [n for n in table if not names or any(word in n for word in names)]
    if not chosen:
        print("no such figure; there are: " + "; ".join(table), file=sys.stderr)
        return 2
    with (out / "bench.jsonl").open("a") as lines:
        for name in chosen:
            start = time.perf_counter()
            figures = table[name]()
            took_s = time.perf_counter() - start
            shown = "  ".join(f"{k}={v}" for k, v in figures.items())
            print(f"{name:36}{took_s:8.1f} s   {shown}", flush=True)
            lines.write(json.dumps({"name": name, "took_s": round(took_s, 1), **figures}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

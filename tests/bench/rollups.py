"""The provider statistics of 90 days and four million launches, from the hourly rollup."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from fleet.store import queries, rollup, schema
from fleet.store.door import Store
from fleet.store.tables import LaunchDay, LaunchHour

HOURS = 90 * 24
LAUNCHES = 4_000_000
PLACES = [(p, f"{p}-region-{r}") for p in ("aws", "gcp", "azure", "oci") for r in range(6)]


def figures() -> dict[str, Any]:
    """Milliseconds of ``launch_stats`` over all of it, median of five."""
    rng = random.Random(1)
    share = LAUNCHES / HOURS / len(PLACES)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{Path(folder) / 'bench.db'}")
        schema.upgrade(store)
        total = 0
        rows = []
        for hour in range(HOURS):
            for provider, region in PLACES:
                for outcome, part in (("ready", 0.9), ("insufficient_capacity", 0.08),
                                      ("boot_timeout", 0.02)):  # fmt: skip
                    n = max(1, round(share * part * rng.uniform(0.7, 1.3)))
                    total += n
                    hist = {
                        rollup.bucket(rng.lognormvariate(5.1, 0.3)): 1 for _ in range(min(n, 12))
                    }
                    ready = outcome == "ready"
                    rows.append(
                        {"hour": hour, "provider": provider, "region": region,
                         "market": "on_demand", "outcome": outcome,
                         "accepted": outcome != "insufficient_capacity", "n": n,
                         "boot_s_sum": 170.0 * n if ready else 0.0,
                         "boot_hist": rollup.encode(hist) if ready else ""}
                    )  # fmt: skip
        store.call(lambda tx: tx.connection().execute(insert(LaunchHour), rows))
        days: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in rows:
            key = (row["hour"] // 24, row["provider"], row["region"], row["outcome"])
            day = days.setdefault(key, {**row, "n": 0, "boot_s_sum": 0.0, "boot_hist": ""})
            day["n"] += row["n"]
            day["boot_s_sum"] += row["boot_s_sum"]
            day["boot_hist"] = rollup.encode(rollup.merge((day["boot_hist"], row["boot_hist"])))
        dated = [
            {k: v for k, v in d.items() if k != "hour"} | {"day": k[0]} for k, d in days.items()
        ]
        store.call(lambda tx: tx.connection().execute(insert(LaunchDay), dated))
        times = []
        for _ in range(5):
            start = time.perf_counter()
            stats = store.call(lambda tx: queries.launch_stats(tx, 0.0))
            times.append(time.perf_counter() - start)
        assert sum(s["launches"] for s in stats) == total
        store.close()
    return {
        "launches": total,
        "rows": len(rows),
        "median_ms": round(1e3 * statistics.median(times), 1),
    }

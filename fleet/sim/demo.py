"""``fleetd demo``: the main job on four simulated clouds, live in a terminal, in about a minute.

Invariant: whatever ends it (its own end, ``seconds``, Ctrl-C, an error), the terminal is as it was
and no thread, process, socket or file is left; the exit code says which: 0, 130, or 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fleet.sim.demo_out import BYE, put

INTERRUPTED, FAILED = 130, 1


def main(
    seed: int = 7, speed: float = 30.0, plain: bool = False, seconds: float | None = None
) -> int:
    """Play the demo. ``speed`` is how much faster time runs in the world, ``seconds`` ends it after
    so long of ours. Returns the exit code: 0 done, 1 an error (said in one line), 130 Ctrl-C.
    """
    live = not plain and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    try:
        put("fleetd demo: four clouds are being set up …")
        with _quiet():
            # These take seconds: after the first line, and where a Ctrl-C is heard.
            from fleet.clock import ScaledLoop
            from fleet.sim.demo_show import Show

            with asyncio.Runner(loop_factory=partial(ScaledLoop, speed)) as runner:
                return runner.run(Show(seed, speed, live, seconds).run())
    except KeyboardInterrupt:
        put(BYE, sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has gone; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 — one line for people, never a traceback
        put(f"error: the demo broke: {type(error).__name__}: {error}", sys.stderr)
        return FAILED


@contextmanager
def _quiet() -> Iterator[None]:
    """No log line gets onto the screen; all is as before afterwards."""
    import structlog

    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    root.handlers[:] = [logging.NullHandler()]
    try:
        yield
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)

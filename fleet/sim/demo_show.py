"""One performance of the demo: stage, script and view side by side, and an orderly end.

Invariant: the stage is closed whatever happened, before the last words are said; the view reads
and never delays the daemon for longer than a frame takes to draw.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live

from fleet.api import say
from fleet.sim import demo_summary
from fleet.sim.demo_eye import Eye
from fleet.sim.demo_out import BYE, put
from fleet.sim.demo_screen import Talk, draw
from fleet.sim.demo_script import Script
from fleet.sim.demo_stage import EPOCH, NODES, POOL, SPARES, Stage
from fleet.sim.demo_words import Line

FRAMES_PER_S: Final = 8.0
PLAIN_PER_S: Final = 4.0
INTERRUPTED, FAILED = 130, 1
#: Ctrl-C, a polite kill, and the terminal that was closed.
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Closing everything may take this many real seconds.
CLOSE_S: Final = 10.0


class Show:
    """One performance."""

    def __init__(self, seed: int, speed: float, live: bool, seconds: float | None) -> None:
        self._seed, self._speed, self._live, self._seconds = seed, speed, live, seconds
        self._stop: asyncio.Event = asyncio.Event()
        self._interrupted = False
        self._error = ""
        self._began = 0.0

    async def run(self) -> int:
        """Open the stage, play, close it, say what was seen."""
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        loop.set_exception_handler(self._stray)
        for number in SIGNALS:
            loop.add_signal_handler(number, self._interrupt)
        self._began = loop.time()
        stage, last = Stage(self._seed, self._speed), list[str]()
        try:
            await self._unless_stopped(self._open(stage))
            if not self._stop.is_set():
                self._began = loop.time()
                last = await self._play(stage)
        except BrokenPipeError:
            raise  # nobody reads any more: main says nothing either
        except Exception as error:  # noqa: BLE001 — said in one line, never as a traceback
            self._error = f"{type(error).__name__}: {error}"
        finally:
            await asyncio.wait_for(stage.aclose(), CLOSE_S * self._speed)
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
        for text in last:
            put(text if len(text) <= width else f"{text[: width - 1]}…")
        return self._verdict(stage)

    async def _open(self, stage: Stage) -> None:
        """Load the SDKs, which people see, and open the stage."""
        names = ", ".join(sdk.sdk for sdk in stage.sdks.values())
        put(f"loading the {len(stage.sdks)} SDKs: {names} …")
        for kind in [kind for kind in stage.clouds if kind not in stage.sdks]:
            put(f"{kind}: its SDK is not installed, so this cloud is played without one")
        await stage.load()
        await stage.start()
        put(f"ready after {self._real_s:.0f} s")

    def _verdict(self, stage: Stage) -> int:
        if self._interrupted:
            put(BYE, sys.stderr)
            return INTERRUPTED
        errors = [*([self._error] if self._error else []), *stage.watch.errors]
        for text in errors[:3]:
            put(f"error: the demo broke: {text}", sys.stderr)
        return FAILED if errors else 0

    def _interrupt(self) -> None:
        self._interrupted = True
        self._stop.set()

    def _stray(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error that nobody waits for is kept and told at the end."""
        error = context.get("exception")
        if isinstance(error, ConnectionError):
            return  # a socket that was cut while everything closes
        self._error = self._error or f"{context.get('message')} {error or ''}".strip()

    async def _unless_stopped(self, work: Any) -> None:
        """Await ``work``, or leave it as soon as somebody wants to go."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return
        task.result()

    @property
    def _real_s(self) -> float:
        return (asyncio.get_running_loop().time() - self._began) / self._speed

    async def _play(self, stage: Stage) -> list[str]:
        """Script and view side by side; the lines of the summary."""
        eye = Eye(stage.daemon.cell, stage.clouds, POOL, NODES, SPARES, EPOCH)
        script = Script(stage)
        acting = asyncio.ensure_future(script.run())
        acting.add_done_callback(lambda _: self._stop.set())
        stage.daemon.died.add_done_callback(lambda _: self._stop.set())
        try:
            await (self._on_screen if self._live else self._on_paper)(eye, script)
        finally:
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
        if stage.daemon.died.done():
            self._error = stage.daemon.died.result()
        elif acting.done() and not acting.cancelled() and acting.exception() is not None:
            self._error = repr(acting.exception())
        if stage.nodes.failures:
            self._error = self._error or f"a simulated node broke: {stage.nodes.failures[0]!r}"
        if script.missed:
            self._error = self._error or f"these acts took too long: {', '.join(script.missed)}"
        if self._interrupted:
            return []
        await eye.follow(script.began)
        picture = eye.picture()
        titles = [act.title for act in script.acts]
        return [
            "", "what you saw", *demo_summary.seen(eye.feed, titles, script.began),
            "", "launches by cloud", *demo_summary.table(picture),
            "", *demo_summary.closing(picture, stage.watch, script.least, self._real_s,
                                     self._speed),
        ]  # fmt: skip

    async def _wait(self, real_s: float) -> bool:
        """Wait for the next look; False when the show is over."""
        if self._seconds is not None and self._real_s >= self._seconds:
            return False
        try:
            async with asyncio.timeout(real_s * self._speed):
                await self._stop.wait()
        except TimeoutError:
            return True
        return False

    # -- live and plain --------------------------------------------------------------------------

    async def _on_screen(self, eye: Eye, script: Script) -> None:
        console = Console()
        ascii_only = not (console.encoding or "").lower().startswith("utf")

        def frame() -> Group:
            talk = Talk(script.n, len(script.acts), script.title, script.narration, self._speed,
                        self._real_s)  # fmt: skip
            width, height = console.size
            return Group(*draw(eye.picture(), talk, width, height, ascii_only=ascii_only))

        with Live(console=console, screen=True, auto_refresh=False) as view:
            while True:
                await eye.follow(script.began)
                view.update(frame(), refresh=True)
                if not await self._wait(1.0 / FRAMES_PER_S):
                    return

    async def _on_paper(self, eye: Eye, script: Script) -> None:
        """One line per act, narration and event."""
        act, narration = 0, ""
        while True:
            lines = await eye.follow(script.began)
            if script.n != act:
                act = script.n
                put(f"== {act}/{len(script.acts)} {script.title}")
            if script.narration != narration:
                narration = script.narration
                put(f"{say.clock(eye.cell.clock.now(), eye.cell.clock.now())}  -- {narration}")
            for line in lines:
                put(_plain(line))
            sys.stdout.flush()
            if not await self._wait(1.0 / PLAIN_PER_S):
                return


def _plain(line: Line) -> str:
    return f"{say.clock(line.at, line.at)}  {line.who:<6} {line.text}  {line.reason}"

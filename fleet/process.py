"""The real process around one daemon: store, key, providers, listeners, signals, systemd.

Invariant: a start either serves or ends with one sentence and a documented exit code, having
changed nothing; a stop touches no node and takes less than ten seconds, whatever hangs (trust.md
D10); a reload takes a file whole or keeps what was; the watchdog is fed only while every task
makes its passes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from fleet import opening, sdnotify
from fleet.api.asgi import AgentApp, App, MetricsApp, OperatorApp
from fleet.api.metrics import Exposition, Meter
from fleet.api.operator import operator_app
from fleet.api.serve import Listener, bind_tcp, bind_unix, load_chain, tls_context
from fleet.clock import (
    LoopClock,
    ScaledLoop,
    SeededChance,
    SystemChance,
    monotonic_usec,
    scaled_wall,
)
from fleet.config import Settings
from fleet.daemon import Daemon, assemble
from fleet.errors import FleetError, InputError, StoreBroken
from fleet.reload import swap
from fleet.store.door import Store
from fleet.watchman import Watchman

log = structlog.get_logger("fleetd")

#: Exit codes, after sysexits.h. systemd restarts on all but CONFIG and UNAVAILABLE.
OK: Final = 0
UNAVAILABLE: Final = 69
SOFTWARE: Final = 70
IO_ERROR: Final = 74
LOCKED: Final = 75
CONFIG: Final = 78
#: A stop takes at most this long, whatever hangs.
STOP_S: Final = 9.0
BEAT_S: Final = 1.0
#: For tests and demos: how much faster the daemon's clock runs than ours.
SPEED_VARIABLE: Final = "FLEETD_CLOCK_SPEED"
#: Unix time at which the faster clock agreed with ours.
SINCE_VARIABLE: Final = "FLEETD_CLOCK_SINCE"


@dataclass
class Process:
    """One running fleetd."""

    settings: Settings
    store: Store
    path: Path | None = None
    daemon: Daemon | None = None
    meter: Meter = field(default_factory=Meter)
    listeners: list[Listener] = field(default_factory=list)
    _ended: asyncio.Future[int] | None = None
    _signals: int = 0
    _tls: Any = None
    _reloading: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def up(self) -> Daemon:
        """The daemon, once assembled."""
        assert self.daemon is not None
        return self.daemon

    # -- start -----------------------------------------------------------------------------------

    async def main(self) -> int:
        """Serve until told to stop; the exit code. Raises FleetError when it cannot start."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._catch_signals(loop)
        clock = new_clock()
        seed = self.settings.seed
        chance = SeededChance(seed) if seed is not None else SystemChance()
        providers = opening.providers(self.settings, clock, chance, self.meter.calls)
        agents, operators, extra, self._tls = self._bind()
        key = opening.cell_key(self.settings, chance)
        port = agents.getsockname()[1]
        url = self.settings.agents.public_url or _url(self.settings, port)
        self.daemon = daemon = assemble(
            self.settings, self.store, clock, chance, providers, key, url
        )
        daemon.tasks.on_death = self._died
        watchman = Watchman(daemon, self.meter)
        self._listen(daemon, watchman, agents, operators, extra, url)
        await daemon.start()
        for listener in self.listeners:
            await listener.start()
        daemon.tasks.start("beat", self._beat(watchman))
        ports = {listener.name: listener.port for listener in self.listeners if listener.port}
        log.info("serving", cell=self.settings.cell, agents=url, mode=self.settings.mode,
                 socket=str(self.settings.socket_path), ports=ports, pid=os.getpid())  # fmt: skip
        sdnotify.notify(READY="1", STATUS="serving", MAINPID=str(os.getpid()))
        code = await self._ended
        await self._stop(code)
        return code

    def _bind(self) -> tuple[Any, Any, Any, Any]:
        settings = self.settings
        tls = tls_context(settings.agents.tls_cert, settings.agents.tls_key)
        agents = bind_tcp(settings.agents.host, settings.agents.port, "agents")
        extra = None
        if settings.metrics is not None:
            extra = bind_tcp(settings.metrics.host, settings.metrics.port, "metrics")
        return agents, bind_unix(settings.socket_path), extra, tls

    def _listen(
        self, daemon: Daemon, watchman: Watchman, agents: Any, operators: Any, extra: Any,
        url: str,
    ) -> None:  # fmt: skip
        settings, cell = self.settings, daemon.cell
        exposition = Exposition(daemon, self.meter)
        names = {_host(url), settings.agents.host.lower(), *settings.agents.hosts}
        agent_app = AgentApp(
            daemon.agent_door, watchman, names=names,
            body_bytes=lambda: cell.settings.limits.body_bytes, refused=cell.count_refused,
        )  # fmt: skip
        operator_app = OperatorApp(_operator_api(daemon), watchman, exposition.answer)
        self.listeners = [
            Listener("operators", operator_app, operators, settings.http,
                     refused=lambda why: log.info("operator request cut", why=why)),
            Listener("agents", agent_app, agents, settings.http, refused=cell.count_refused,
                     per_address=settings.agents.per_address, tls=self._tls),
        ]  # fmt: skip
        if extra is not None:
            app = MetricsApp(watchman, exposition.answer)
            self.listeners.append(
                Listener("metrics", app, extra, settings.http, per_address=16,
                         refused=lambda why: log.info("scrape cut", why=why))
            )  # fmt: skip

    # -- signals and ends ------------------------------------------------------------------------

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told, number)
        loop.add_signal_handler(signal.SIGHUP, self._hangup)

    def _told(self, number: int) -> None:
        """The first signal stops orderly, the second at once."""
        self._signals += 1
        if self._signals > 1:
            log.warning("second signal: ending at once", signal=signal.Signals(number).name)
            os._exit(128 + number)
        log.info("stopping", signal=signal.Signals(number).name)
        self._end(OK)

    def _end(self, code: int) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(code)

    def _died(self, name: str, error: BaseException | None) -> None:
        """A task that ends is the end of the process: half a daemon is worse than none."""
        broken = isinstance(error, StoreBroken) or (
            isinstance(error, OSError) and error.errno == errno.EIO
        )
        log.error("task ended", task=name, error=str(error), exc_info=error)
        self._end(IO_ERROR if broken else SOFTWARE)

    async def _stop(self, code: int) -> None:
        """Streams first, then no new decisions, then a bounded wait for what is in flight."""
        loop = asyncio.get_running_loop()
        loop.call_later(STOP_S, _give_up, code)
        sdnotify.notify(STOPPING="1", STATUS="stopping: streams closed, calls in flight may end")
        await asyncio.gather(*(listener.hush() for listener in self.listeners))
        await asyncio.gather(
            self.up.stop(), *(listener.aclose() for listener in self.listeners),
            return_exceptions=True,
        )  # fmt: skip
        log.info("stopped", code=code)

    # -- reload ----------------------------------------------------------------------------------

    def _hangup(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload(), name="reload")
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _reload(self) -> None:
        """Read the file again and swap what can be swapped, or keep everything as it was."""
        sdnotify.notify(RELOADING="1", MONOTONIC_USEC=str(monotonic_usec()))
        try:
            if self.path is None:
                raise InputError("started without a configuration file")
            after, agents = opening.configuration(self.path), self.settings.agents
            tls_context(agents.tls_cert, agents.tls_key)  # refuses files that do not fit
            done = swap(self.up.cell, after)
            if self._tls is not None:
                load_chain(self._tls, agents.tls_cert, agents.tls_key)
                done.append("agents.tls_cert")
            text = f"reloaded: {', '.join(done) or 'nothing changed'}"
            log.info("reloaded", changed=done)
        except FleetError as error:
            text = f"reload refused, the old configuration stays: {error}"
            log.warning("reload refused", why=str(error))
        sdnotify.notify(READY="1", STATUS=text)

    async def _beat(self, watchman: Watchman) -> None:
        """Once a second: how late the loop is, who is late, and a word to systemd."""
        clock = self.up.cell.clock
        last = clock.monotonic()
        while True:
            await clock.sleep(BEAT_S)
            now = clock.monotonic()
            watchman.beat(now - last, now - last - BEAT_S)
            last = now
            for listener in self.listeners:
                listener.tick(clock.now())


def run(settings: Settings, store: Store, path: Path | None = None) -> int:
    """Run fleetd until it is told to stop; the exit code (see the constants above).

    ``store`` is open and locked (``opening.store``) and is closed here; ``path`` is the
    configuration file for reloads. Raises FleetError when it cannot start. The caller ends the
    process with ``os._exit``: a hung SDK thread must not keep it.
    """
    loop = new_loop()
    asyncio.set_event_loop(loop)
    process = Process(settings, store, path)
    try:
        return loop.run_until_complete(process.main())
    except StoreBroken as error:
        log.critical("store broken", error=str(error))
        return IO_ERROR
    finally:
        _drain(loop)
        with suppress(FleetError):
            store.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """The loop to run on: uvloop where there is one, a faster clock when a test asks for it."""
    if _speed() != 1.0:
        return ScaledLoop(_speed())
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def new_clock() -> LoopClock:
    """The machine's clock, or one that runs as fast as the loop of ``new_loop``."""
    if _speed() == 1.0:
        return LoopClock()
    return LoopClock(scaled_wall(_speed(), float(os.environ.get(SINCE_VARIABLE, "0") or 0)))


def _speed() -> float:
    return float(os.environ.get(SPEED_VARIABLE, "1") or 1)


def _drain(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left without waiting for threads."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=0.5))


def _give_up(code: int) -> None:
    log.error("stop took too long: ending with calls in flight, their tokens are committed")
    os._exit(code)


def _operator_api(daemon: Daemon) -> App:
    app: App = operator_app(daemon)
    return app


def _url(settings: Settings, port: int) -> str:
    scheme = "https" if settings.agents.tls_cert else "http"
    host = settings.agents.host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").lower()

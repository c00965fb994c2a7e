"""The life of a server in its process: open, announce, serve, drain, close. Signals decide when.

The first SIGTERM or SIGINT has it stop properly, within the deadline; the second ends the process at once, which loses
nothing that was acknowledged.
Below: server, place, config. Above: serve.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import runnel
from runnel.cli.document import print_line
from runnel.cli.doors import announcement, facts
from runnel.cli.problem import FINE, FOUND
from runnel.cli.progress import Ticker
from runnel.cli.table import human_size
from runnel.config.settings import DEFAULT, Settings
from runnel.place.shared_folder import SharedBroker
from runnel.server import Gateway, Server, ServerOptions, http

if TYPE_CHECKING:
    from runnel.broker.broker import Broker

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LEFT_FOR_THE_DISK = 0.2  # of the deadline: closing the journal comes after the clients have gone
PATIENCE = 2.0  # seconds of opening before anything is said about it
TELL_EVERY = 10.0  # seconds, where nobody watches

log = logging.getLogger("runnel.serve")


class Life:
    """One server, from its opening to its end."""

    def __init__(self, settings: Settings, *, as_json: bool = False) -> None:
        self.settings, self._as_json = settings, as_json
        self._asked: signal.Signals | None = None
        self._stop = asyncio.Event()
        self._ending: float | None = None  # since when
        self._options, self._note = wanted(settings)

    def run(self) -> int:
        """Serve; the exit code."""
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            return runner.run(self._live())

    async def _live(self) -> int:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        serving = self.settings.serving
        for one in SIGNALS:
            loop.add_signal_handler(one, self._on_signal, one)
        if serving.engine is not None:
            return await self._relay(serving.engine)
        opening = asyncio.ensure_future(self._open())
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait([opening, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()  # it lets go of the folder, once it has read it
        try:
            broker = await opening
        except asyncio.CancelledError:
            if me is not None and me.cancelling():
                raise
            return FINE
        finally:
            stopped.cancel()
        try:
            async with Server(broker, self._options) as server:
                if isinstance(broker, SharedBroker):
                    broker.serve_at_door(server)  # who opens the folder comes in there, and counts among its clients
                self._announce(server)
                await self._stop.wait()
                self._begin_to_end()
                await server.close(serving.deadline * (1 - LEFT_FOR_THE_DISK))
        finally:
            began = self._begin_to_end()
            await broker.__aexit__(None, None, None)
        log.info("stopped in %.1f s", time.monotonic() - began)
        return FINE

    async def _relay(self, engine: str) -> int:
        """Be a gateway before another server."""
        async with Gateway(engine, self.settings.server) as gateway:
            self._announce(gateway)
            await self._stop.wait()
            began = self._begin_to_end()
            await gateway.close(self.settings.serving.deadline * (1 - LEFT_FOR_THE_DISK))
        log.info("stopped in %.1f s", time.monotonic() - began)
        return FINE

    async def _open(self) -> Broker:
        settings = self.settings
        if settings.serving.memory:
            broker = runnel.open()
            return await broker.__aenter__()
        folder = settings.general.data
        broker = SharedBroker(Path(folder), settings.journal, joins=False)
        waiting = asyncio.ensure_future(_tell_of_opening(Path(folder)))
        try:
            return await broker.__aenter__()
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])

    def _announce(self, server: Server | Gateway) -> None:
        try:
            if self._as_json:
                print_line(facts(server.doors, self.settings))
            else:
                print(announcement(server.doors, self.settings, runnel.__version__, self._note))
            sys.stdout.flush()
        except BrokenPipeError:  # whoever started it need not read what it says
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    # -- the end ------------------------------------------------------------------------------------------------

    def _on_signal(self, number: signal.Signals) -> None:
        if self._asked is not None:
            log.warning("%s again: going at once", number.name)
            _go(128 + number)
        self._asked = number
        self._stop.set()

    def _begin_to_end(self) -> float:
        """From now on the deadline runs, whatever hangs: a disk that does not answer holds up a thread, too."""
        if self._ending is None:
            self._ending = time.monotonic()
            deadline = self.settings.serving.deadline
            if self._asked is not None:
                log.info("%s: no more is taken, what is under way is finished, within %g s", self._asked.name, deadline)
            watch = threading.Timer(deadline, _too_late, (deadline,))
            watch.daemon = True
            watch.start()
        return self._ending


def wanted(settings: Settings) -> tuple[ServerOptions, str | None]:
    """What to serve with, and what to say about it. HTTP, unless it was asked for, is left out where it cannot be."""
    options = settings.server
    if settings.serving.engine is not None or options.http_port is None:
        return options, None
    if settings.where("serve.http_port") != DEFAULT:
        http.check("--http-port")
    elif lacking := http.missing():
        note = f"Without HTTP, for {', '.join(lacking)} is not installed: pip install 'runnel[server]'."
        return msgspec.structs.replace(options, http_port=None), note
    return options, None


async def _tell_of_opening(folder: Path) -> None:
    """Say what takes so long, on a terminal while it lasts, else once in a while."""
    began = time.monotonic()
    await asyncio.sleep(PATIENCE)
    size = await asyncio.to_thread(lambda: sum(one.stat().st_size for one in folder.iterdir() if one.is_file()))
    with Ticker() as ticker:
        told = 0.0
        while True:
            seconds = time.monotonic() - began
            if not ticker(f"opening {folder} ({human_size(size)}), {seconds:.0f} s") and seconds - told >= TELL_EVERY:
                log.info("still opening %s (%s), %.0f s", folder, human_size(size), seconds)
                told = seconds
            await asyncio.sleep(0.25)


def _too_late(deadline: float) -> None:
    log.error("not done within %g s: going; the next opening recovers", deadline)
    _go(FOUND)


def _go(status: int) -> None:
    """End the process here and now; what was acknowledged is on disk."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(status)


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

"""The process of `runnel serve`: open, announce, serve, drain, close.

The first SIGTERM or SIGINT stops it properly, within the deadline; the second ends it at once. Neither loses
acknowledged records.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

import runnel
from runnel.api.broker import Broker
from runnel.cli.errors import FINE, FOUND
from runnel.cli.output import StatusLine, human_size, pairs, print_line
from runnel.cli.server_address import DEFAULT_SERVER, server_url
from runnel.config.history import open_sources
from runnel.config.keys import keys
from runnel.config.settings import DEFAULT, Settings
from runnel.core.errors import RunnelError
from runnel.opening.opening import CLUSTER_SCHEMES, check_is_folder, open_server, without_password
from runnel.opening.shared_folder import SharedBackend
from runnel.server import Server, ServerOptions, http
from runnel.server.options import RELOADED

if TYPE_CHECKING:
    from runnel.postgres.config import RelayConfig
    from runnel.server.served_broker import ListenerAddress


SIGNALS = (signal.SIGTERM, signal.SIGINT)
LEFT_FOR_THE_DISK = 0.2  # of the deadline: closing the journal comes after the clients have gone
QUIET_SECONDS = 2.0  # seconds of opening before anything is said about it
FIRST_WAIT = 1.0  # seconds for a server that has the topics to be reached, before clients are let in
WAIT_FOR_EVER = 1e9  # seconds: a server that has the topics is waited for, whenever it comes
TELL_EVERY = 10.0  # seconds, without a terminal

log = logging.getLogger("runnel.serve")


class ServerProcess:
    """One server, from its opening to its end."""

    def __init__(
        self,
        settings: Settings,
        *,
        as_json: bool = False,
        relay: RelayConfig | None = None,
        reread: Callable[[], Settings] | None = None,
    ) -> None:
        self.settings, self._as_json, self._relay = settings, as_json, relay
        self._reread = reread  # what flags, environment and file say now
        self._asked: signal.Signals | None = None
        self._stop = asyncio.Event()
        self._ending: float | None = None  # since when
        self._deadline = ExitDeadline(settings.serving.deadline)
        self._options, self._note = server_options(settings)

    def run(self) -> int:
        """Serve; the exit code."""
        before = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            with asyncio.Runner(loop_factory=fast_loop()) as runner:
                return runner.run(self._live())
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._deadline.cancel()

    async def _live(self) -> int:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        serving = self.settings.serving
        # Not `add_signal_handler`, which calls back when the loop has time: the deadline runs from the signal on,
        # however busy the loop is.
        for number in SIGNALS:
            signal.signal(number, partial(self._on_signal, loop))
        if serving.backend is not None:
            return await self._serve_backend(serving.backend)
        opening = asyncio.ensure_future(self._open())
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait([opening, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()  # it releases the folder, once it has read it
        try:
            broker = await opening
        except asyncio.CancelledError:
            if me is not None and me.cancelling():
                raise
            return FINE
        finally:
            stopped.cancel()
        gc.freeze()  # the topics of the folder are there to stay: no collection walks over them again
        try:
            where = None if serving.memory else Path(self.settings.general.data)
            async with Server(broker, self._options, on_reload=self._reload, folder=where) as server:
                if isinstance(broker.backend, SharedBackend):
                    # Processes that open the folder come in there, and count among the server's clients.
                    broker.backend.hand_listener_to(server)
                self._reload_on_hangup(server)
                self._announce(server)
                async with self._relaying(broker), self._stopping_old_primary(broker):
                    await self._stop.wait()
                await server.close(self._time_for_clients())
        finally:
            began = self._begin_to_end()
            await broker.__aexit__(None, None, None)
        log.info("stopped in %.1f s", time.monotonic() - began)
        return FINE

    async def _serve_backend(self, url: str) -> int:
        """Serve the topics of a server, or of a cluster. It need not be there yet: until it is, clients are refused."""
        if url.partition("://")[0] not in CLUSTER_SCHEMES:
            url = server_url(url, argparse.Namespace())  # with the token of the environment, if there is one
        broker = open_server(url, wait=WAIT_FOR_EVER, name="runnel serve")
        opening = asyncio.ensure_future(broker.__aenter__())
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            # Mostly it is there, and then no client is refused; what stays wrong, like a certificate, is reported now.
            await asyncio.wait([opening, stopped], timeout=FIRST_WAIT, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                await opening
            async with Server(broker, self._options, on_reload=self._reload) as server:
                self._reload_on_hangup(server)
                self._announce(server)
                await asyncio.wait([opening, stopped], return_when=asyncio.FIRST_COMPLETED)
                if not stopped.done():
                    await opening
                    async with self._relaying(broker):
                        await stopped
                began = self._begin_to_end()
                await server.close(self._time_for_clients())
        finally:
            stopped.cancel()
            if opening.cancel():
                await asyncio.wait([opening])
            await broker.__aexit__(None, None, None)
        log.info("stopped in %.1f s", time.monotonic() - began)
        return FINE

    def _reload_on_hangup(self, server: Server) -> None:
        """SIGHUP reloads. That of a terminal which is closed ends a server without --auth, as ever."""
        if self._options.auth is None and sys.stdin is not None and sys.stdin.isatty():
            return
        loop, reloading = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        async def reload() -> None:
            try:
                await self._reload(server)
            except RunnelError as error:
                log.error("everything stays as it was: %s", error)

        def begin() -> None:
            task = loop.create_task(reload())
            reloading.add(task)
            task.add_done_callback(reloading.discard)

        loop.add_signal_handler(signal.SIGHUP, begin)

    async def _reload(self, server: Server) -> None:
        """Reload certificates, rules, tokens, limits and the log level from the files."""
        settings = self.settings if self._reread is None else await asyncio.to_thread(self._reread)
        await server.reload(settings.server)
        logging.getLogger().setLevel(settings.serving.log_level.upper())
        if waiting := needs_restart(self.settings, settings):
            log.warning("these changed, and act after a restart: %s", ", ".join(waiting))

    @asynccontextmanager
    async def _relaying(self, broker: Broker) -> AsyncIterator[None]:
        """Run the relay of the configuration, if there is one, until the server stops."""
        if self._relay is None:
            yield
            return
        from runnel.cli.relay import keep_relaying

        relaying = asyncio.ensure_future(keep_relaying(broker, self._relay))
        try:
            yield
        finally:
            relaying.cancel()
            await asyncio.wait([relaying])

    @asynccontextmanager
    async def _stopping_old_primary(self, broker: Broker) -> AsyncIterator[None]:
        """Show the server that this one took over from, wherever it comes back, that it was superseded."""
        replication = broker.backend.replication
        if replication is None or replication.old_primary is None:
            yield
            return
        from runnel.standby.announcing import stop_old_primary

        announcing = asyncio.ensure_future(stop_old_primary(replication))
        try:
            yield
        finally:
            announcing.cancel()
            await asyncio.wait([announcing])

    async def _open(self) -> Broker:
        settings = self.settings
        if settings.serving.memory:
            broker = runnel.open(auto_create=settings.serving.auto_create, telemetry=settings.serving.telemetry)
            return await broker.__aenter__()
        folder = settings.general.data
        check_is_folder(folder)
        history = open_sources(settings.history, os.environ)
        broker = Broker(
            SharedBackend(
                Path(folder),
                settings.journal,
                auto_create=settings.serving.auto_create,
                joins=False,
                history=history,
                telemetry=settings.serving.telemetry,
            )
        )
        waiting = asyncio.ensure_future(_tell_of_opening(Path(folder)))
        try:
            return await broker.__aenter__()
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])

    def _announce(self, server: Server) -> None:
        try:
            if self._as_json:
                print_line(ready_facts(server.listeners, self.settings))
            else:
                print(announcement(server.listeners, self.settings, runnel.__version__, self._note))
            sys.stdout.flush()
        except BrokenPipeError:  # the parent process need not read the output
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    # -- the end ------------------------------------------------------------------------------------------------

    def _on_signal(self, loop: asyncio.AbstractEventLoop, number: int, frame: FrameType | None) -> None:
        if self._asked is not None:
            log.warning("%s again: going at once", signal.Signals(number).name)
            exit_now(128 + number)
        self._asked = signal.Signals(number)
        self._begin_to_end()
        loop.call_soon_threadsafe(self._stop_serving)

    def _stop_serving(self) -> None:
        assert self._asked is not None
        deadline = self.settings.serving.deadline
        log.info("%s: stopping; calls in progress have %g s to finish", self._asked.name, deadline)
        self._stop.set()

    def _begin_to_end(self) -> float:
        """From now on the deadline runs, whatever hangs: a disk that does not answer holds up a thread, too."""
        if self._ending is None:
            self._ending = time.monotonic()
            self._deadline.begin()
        return self._ending

    def _time_for_clients(self) -> float:
        """Seconds that clients may use of the time left until the deadline."""
        left = self.settings.serving.deadline - (time.monotonic() - self._begin_to_end())
        return max(0.0, left) * (1 - LEFT_FOR_THE_DISK)


class ExitDeadline:
    """Ends the process `seconds` after `begin`, unless `cancel` comes first. Both may be called in a signal handler.

    A thread waits, so that neither a busy event loop nor a disk that does not answer delays the end. It is started
    ahead: starting a thread takes locks, which the code that a signal interrupts may hold.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._said: SimpleQueue[bool] = SimpleQueue()  # whose `put` may interrupt another
        threading.Thread(target=self._wait, name="runnel-deadline", daemon=True).start()

    def begin(self) -> None:
        """The time runs from now on."""
        self._said.put(True)

    def cancel(self) -> None:
        """It ended in time, or did not begin to."""
        self._said.put(False)

    def _wait(self) -> None:
        if self._said.get():
            try:
                self._said.get(timeout=self._seconds)
            except Empty:
                log.error("not done within %g s: going; the next opening recovers", self._seconds)
                exit_now(FOUND)


def server_options(settings: Settings) -> tuple[ServerOptions, str | None]:
    """The server's options, and the notes to print. HTTP, unless requested, is left out where it is unavailable."""
    options = settings.server
    if options.http_port is None:
        return options, None
    if settings.where("serve.http_port") != DEFAULT:
        http.check("--http-port")
    elif lacking := http.missing():
        note = f"Without HTTP, for {', '.join(lacking)} is not installed: pip install 'runnel-mq[server]'."
        return msgspec.structs.replace(options, http_port=None), note
    return options, None


def needs_restart(before: Settings, now: Settings) -> list[str]:
    """The settings that changed and that a reload leaves as they were."""
    reloaded = {"serve.log_level", *(f"serve.{name}" for name in RELOADED)}
    changed = [key for key in keys().values() if before.value(key) != now.value(key)]
    return [key.dotted for key in changed if key.dotted not in reloaded]


async def _tell_of_opening(folder: Path) -> None:
    """Say what takes so long, on a terminal while it lasts, else once in a while."""
    began = time.monotonic()
    await asyncio.sleep(QUIET_SECONDS)
    size = await asyncio.to_thread(lambda: sum(one.stat().st_size for one in folder.iterdir() if one.is_file()))
    with StatusLine() as ticker:
        told = 0.0
        while True:
            seconds = time.monotonic() - began
            if not ticker(f"opening {folder} ({human_size(size)}), {seconds:.0f} s") and seconds - told >= TELL_EVERY:
                log.info("still opening %s (%s), %.0f s", folder, human_size(size), seconds)
                told = seconds
            await asyncio.sleep(0.25)


def exit_now(status: int) -> None:
    """End the process here and now; acknowledged records are on disk."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, RuntimeError):  # RuntimeError: the signal came while it was written to
            pass
    os._exit(status)


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


# -- What it prints when it is ready ---------------------------------------------------------------------


_NAMES = {"native": "native", "json": "JSON lines", "unix": "Unix socket", "http": "HTTP", "nats": "NATS"}
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # listened on, but nothing to connect to


def ready_facts(listeners: Sequence[ListenerAddress], settings: Settings) -> dict[str, Any]:
    """The same for programs: one line when it is ready."""
    backend = settings.serving.backend
    keeps = not settings.serving.memory and backend is None
    return {
        "event": "ready",
        "pid": os.getpid(),
        "data": settings.general.data if keeps else None,
        "fsync": settings.journal.fsync if keeps else None,
        **({} if backend is None else {"backend": without_password(backend)}),
        "listeners": [{"name": one.name, "url": one.url, "host": one.host, "port": one.port} for one in listeners],
    }


def announcement(
    listeners: Sequence[ListenerAddress], settings: Settings, version: str, note: str | None = None
) -> str:
    """The banner for a terminal."""
    serving, server = settings.serving, settings.server
    if serving.backend is not None:
        what = f"serves the topics of {without_password(serving.backend)}"
    elif serving.memory:
        what = "serves from memory: nothing is kept when it stops"
    else:
        what = f"serves the folder {settings.general.data!r}, fsync {settings.journal.fsync!r}"
    lines = [f"runnel {version} {what} (process {os.getpid()})", ""]
    lines += [
        "  " + line for line in pairs((_NAMES.get(one.name, one.name), one.url) for one in listeners).splitlines()
    ]
    lines.append("")
    if note is not None:
        lines.append(note)
    folder = settings.general.data if serving.backend is None and not serving.memory else None
    lines += _protection(server, folder)
    asks_clients = server.ssl is not None and server.ssl.client_ca is not None
    lines += [
        "",
        f"Try, in another terminal{_tls_files(listeners, asks_clients)[1]}:",
        *("  " + line for line in commands_to_try(listeners, server.auth, asks_clients)),
        "",
        "Ctrl-C stops it.",
    ]
    return "\n".join(lines)


def _protection(server: ServerOptions, folder: str | None) -> list[str]:
    """The authentication of the server, and its exposure to the network."""
    ca = None if server.ssl is None else server.ssl.client_ca
    if server.auth is not None:
        found = [f"Authentication is on, by the rules of {str(server.auth)!r}; it listens on {server.host}."]
        if folder is not None:
            found.append(f"Commands that your user runs on the folder {folder!r} need no token: they have all rights.")
    elif server.insecure_public:
        who = "anyone who reaches these listeners" if ca is None else f"every client with a certificate of {str(ca)!r}"
        found = [f"Authentication is off: {who} may read and write everything."]
    else:
        found = [f"Authentication is off, so it listens on this machine only ({server.host})."]
    if ca is not None:
        found.append(f"TLS is on, and clients need a certificate of {str(ca)!r}; the Unix socket needs none.")
    elif server.ssl is not None:
        found.append("TLS is on.")
    elif server.auth is not None or server.insecure_public:
        found.append("TLS is off: what is sent over the network, tokens too, can be read on the way.")
    return found


def _tls_files(listeners: Sequence[ListenerAddress], asks_clients: bool) -> tuple[str, str]:
    """The client options for a listener with TLS, and a note about them."""
    if not any(one.name == "native" and one.url.startswith("runnels:") for one in listeners):
        return "", ""
    client = "&cert=client.pem&key=client.key" if asks_clients else ""
    files = "ca.pem, client.pem and client.key are your files" if asks_clients else "ca.pem is your file"
    return f"?ca=ca.pem{client}", f" ({files}; leave out ca for a public authority)"


def commands_to_try(
    listeners: Sequence[ListenerAddress], auth: Path | None = None, asks_clients: bool = False
) -> list[str]:
    """Three commands that can be copied, with TLS once the names of the files are right."""
    command = command_name()
    native = next((one for one in listeners if one.name in ("native", "unix")), None)
    url = DEFAULT_SERVER if native is None else _client_url(native) + _tls_files([native], asks_clients)[0]
    server = "" if url == DEFAULT_SERVER else f" --server {shlex.quote(url)}"
    if auth is not None:
        make = f"{command} token create me --role admin --auth {shlex.quote(str(auth))} --output me.token"
        server = f"{server} --token-file me.token"
    found = [f"{command} sub 'greetings.>'{server}", f"{command} pub greetings.world hello{server}"] if native else []
    if auth is not None:
        return [make, *found]
    lines = next((one for one in listeners if one.name == "json"), None)
    if lines is not None and lines.url.startswith("tcp://"):  # nc speaks no TLS
        line = '{"command": "PUB", "topic": "greetings.world", "payload": "100"}'
        found.append(f"echo '{line}' | nc -w 1 {_EVERYWHERE.get(lines.host, lines.host)} {lines.port}")
    elif native is not None:
        found.append(f"{command} top{server}")
    return found


def _client_url(listener: ListenerAddress) -> str:
    """An address that a client on this machine can use."""
    for listened, reached in _EVERYWHERE.items():
        if listener.host == listened:
            shown = f"[{reached}]" if ":" in reached else reached
            return f"{listener.url.partition('://')[0]}://{shown}:{listener.port}"
    return listener.url


def command_name() -> str:
    """How this command is called here: `runnel`, or the path of it. Safe to paste."""
    if shutil.which("runnel"):
        return "runnel"
    beside = Path(sys.executable).parent / "runnel"
    if not beside.exists():
        return f"{shlex.quote(sys.executable)} -m runnel"
    return shlex.quote(os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside))

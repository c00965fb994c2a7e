"""Places at the other end of a socket: a server with a loop and a thread of its own, and a client on the test loop."""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import runnel
from runnel import Broker
from runnel.core.clock import Timer
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from runnel.testing.clock import JumpingClock

T = TypeVar("T")
Test = TypeVar("Test", bound=Callable[..., Any])

running: "set[Served]" = set()  # those that `at_rest` waits for


def on_every_socket(test: Test) -> Test:
    """Have `make test` run this test over a Unix socket and through a second server, too, and not only over TCP."""
    test.on_every_socket = True  # type: ignore[attr-defined]
    return test


def is_on_every_socket(test: Callable[..., Any]) -> bool:
    """Whether it was decorated so."""
    return getattr(test, "on_every_socket", False)


class SharedClock:
    """The test's clock, for a server: what is due is done on the server's loop."""

    def __init__(self, clock: JumpingClock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock, self._loop = clock, loop

    def time(self) -> float:
        return self._clock.time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        def call() -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(callback)

        return self._clock.call_later(delay, call)


class ServerThread:
    """A server with a loop and a thread of its own. `opens` gives the broker that it serves."""

    def __init__(self, clock: JumpingClock, opens: Callable[[SharedClock], Broker], *, unix: bool) -> None:
        self._clock, self._opens, self._unix = clock, opens, unix
        self.loop = asyncio.new_event_loop()
        self._up: Future[str] = Future()
        self._down = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.broker: Broker | None = None  # the one that is served

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as error:
            if not self._up.done():
                self._up.set_exception(error)
            raise
        finally:
            self.loop.close()

    async def _serve(self) -> None:
        with tempfile.TemporaryDirectory(prefix="runnel-") as short:  # the path of a socket must be
            options = ServerOptions(port=0, json_port=None, unix=Path(short) / "socket" if self._unix else None)
            async with self._opens(SharedClock(self._clock, self.loop)) as self.broker:
                async with Server(self.broker, options) as server:
                    self._up.set_result(server.listeners[-1].url)
                    await self._down.wait()

    async def start(self) -> str:
        """Start it; its address."""
        self._thread.start()
        return await asyncio.wrap_future(self._up)

    async def stop(self) -> None:
        """Stop it, and return when it has."""
        if self._thread.ident is not None:
            if not self.loop.is_closed():
                self.loop.call_soon_threadsafe(self._down.set)
            await asyncio.to_thread(self._thread.join)

    async def there(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """What a coroutine gives that runs on the server's loop; None: it is closed."""
        if self.loop.is_closed() or not self._thread.is_alive():
            return None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self.loop))


class Served:
    """A broker that is served, seen through a client: `async with` gives the client's side.

    `front`: the client is connected to a second server, which serves the topics of the first over a client of its own.
    `client`: options of the client.
    """

    def __init__(
        self,
        clock: JumpingClock,
        folder: Path | None,
        options: dict[str, Any],
        *,
        unix: bool,
        front: bool = False,
        client: dict[str, Any] | None = None,
    ) -> None:
        self._clock, self._unix, self._front, self._client_options = clock, unix, front, client or {}
        self.server = ServerThread(clock, lambda shared: runnel.open(folder, clock=shared, **options), unix=unix)
        self.servers = [self.server]  # from the one that has the topics to the one that the client is connected to
        self.client: Broker | None = None

    async def __aenter__(self) -> Broker:
        try:
            url = await self.server.start()
            if self._front:
                behind = url
                front = ServerThread(self._clock, lambda shared: runnel.open(behind, clock=shared), unix=self._unix)
                self.servers.append(front)
                url = await front.start()
            self.client = runnel.open(url, clock=self._clock, **self._client_options)
            running.add(self)
            return await self.client.__aenter__()
        except BaseException:
            await self._stop()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.client is not None:
                await self.client.__aexit__(kind, error, trace)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        running.discard(self)
        for server in reversed(self.servers):
            await server.stop()

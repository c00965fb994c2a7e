"""`GET /console/updates`: the broker's figures once a second as server-sent events, for scripts and `curl`.

The pages of the console have one connection for everything instead: see `live`.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from runnel.core.errors import LimitExceeded, RunnelError
from runnel.security.principal import ConsoleRole
from runnel.server.access.access import CONSOLE
from runnel.server.http import sse
from runnel.server.http.authentication import serving_of
from runnel.server.http.console.pages import ConsoleQuery, parse_console_query
from runnel.server.http.event_stream import RETRY_MILLISECONDS, STREAM_HEADERS, connection_of
from runnel.server.http.requests import parameters
from runnel.server.http.stop_signals import ended_by_signals

if TYPE_CHECKING:
    from runnel.server.http.console.pages import ConsolePages
    from runnel.server.http.console.sampling import ConsoleSampling
    from runnel.server.served_broker import ServedBroker


class ConsoleUpdates:
    """The route, as an ASGI application: a stream has no end."""

    def __init__(self, serving: ServedBroker, sampling: ConsoleSampling) -> None:
        self._serving, self._sampling = serving, sampling

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one viewer, until either side has enough."""
        if scope["method"] != "GET":
            raise HTTPException(405, "updates are read with GET", {"allow": "GET"})
        access = serving_of(scope, self._serving).access
        if access is not None:
            access.check_role(ConsoleRole.VIEWER, "look at the console")
        query = parse_console_query(parameters(scope))
        options, sampling = self._serving.options, self._sampling
        if sampling.viewers >= options.max_streams:
            raise LimitExceeded("max_streams", sampling.viewers + 1, options.max_streams)
        self._serving.backend.check_ready("looking at it")
        viewer = UpdatesViewer(query, scope, receive, send, options.send_timeout)
        if access is not None:
            access.opened(viewer, CONSOLE, ())  # raises beyond a limit
        sampling.attach(viewer)
        try:
            with ended_by_signals(viewer.end) if connection_of(scope) is None else nullcontext():
                await viewer.run(await sampling.pages())
        finally:
            sampling.detach(viewer)


class UpdatesViewer:
    """One stream."""

    def __init__(self, query: ConsoleQuery, scope: Scope, receive: Receive, send: Send, patience: float) -> None:
        self._query, self._receive, self._out, self._patience = query, receive, send, patience
        self._connection: Any = connection_of(scope)
        self._fresh = asyncio.Event()
        self.ended = False

    def wake(self) -> None:
        """There are new figures."""
        self._fresh.set()

    def end(self, error: RunnelError | None = None) -> None:
        """Send no more. The page comes back, unless its login is over."""
        self.ended = True
        self._fresh.set()

    def gone(self) -> None:
        """The connection is lost."""
        self.end()

    def paused(self) -> None:
        """The page has not read the last message yet: `_send` waits."""

    def resumed(self) -> None:
        """It is read."""

    def unread(self) -> None:
        """The page read nothing for too long: `_send` notices it."""

    async def run(self, pages: ConsolePages) -> None:
        """Send figures until either side has enough."""
        if self._connection is not None:
            self._connection.stream = self
        watch = asyncio.get_running_loop().create_task(self._watch())
        try:
            await self._out({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await self._send(sse.retry(random.randint(*RETRY_MILLISECONDS)))
            while not self.ended:
                self._fresh.clear()
                await self._send(b"event: figures\ndata: %b\n\n" % pages.page(self._query))
                await self._fresh.wait()
            await self._send(b"", more=False)
        except TimeoutError:
            if self._connection is not None:
                self._connection.abort()  # it has read nothing for long: let nothing wait for it
        finally:
            watch.cancel()
            if self._connection is not None:
                self._connection.stream = None

    async def _send(self, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._patience):
            await self._out({"type": "http.response.body", "body": body, "more_body": more})

    async def _watch(self) -> None:
        """Notice that the page disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.end()

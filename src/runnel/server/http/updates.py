"""`GET /console/updates`: what the console shows, as server-sent events, once a second.

The broker is surveyed once for all who look, and only while somebody does (and some seconds longer, so that a page
that is loaded again finds the last minute). A viewer that reads slowly gets the newest figures, not those between.
Below: figures, survey, sse. Above: application.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from runnel.core.errors import BrokerClosed
from runnel.core.network_errors import LimitExceeded
from runnel.server.http import sse
from runnel.server.http.figures import Figures, Query, read
from runnel.server.http.path import parameters
from runnel.server.http.stream import CONNECTION, HEADERS, RETRY
from runnel.server.http.survey import Survey

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.server.options import ServerOptions

EVERY = 1.0  # seconds
LINGER = 30.0  # seconds that surveying goes on for nobody

log = logging.getLogger("runnel")


class Updates:
    """The route: an ASGI application of its own, since a stream has no end."""

    def __init__(self, broker: Broker, options: ServerOptions) -> None:
        self._broker, self._options = broker, options
        self._viewers: set[Viewer] = set()
        self._figures: Figures | None = None
        self._first: asyncio.Future[None] | None = None  # done when there is a first survey
        self._surveying: asyncio.Task[None] | None = None
        self._alone_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one viewer, until either side has enough."""
        if scope["method"] != "GET":
            raise HTTPException(405, "updates are read with GET", {"allow": "GET"})
        query = read(parameters(scope))
        if len(self._viewers) >= self._options.max_streams:
            raise LimitExceeded("max_streams", len(self._viewers) + 1, self._options.max_streams)
        self._broker._bus.home.check_usable("looking at it")
        viewer = Viewer(query, scope, receive, send, self._options.send_timeout)
        self._viewers.add(viewer)
        try:
            await viewer.run(await self._surveyed())
        finally:
            self._viewers.discard(viewer)
            self._alone_since = None if self._viewers else asyncio.get_running_loop().time()

    async def _surveyed(self) -> Figures:
        """The figures, of which there is at least one survey."""
        if self._surveying is None or self._surveying.done():
            survey = Survey(self._broker)
            self._figures = Figures(self._broker, survey)
            self._first = asyncio.get_running_loop().create_future()
            self._surveying = asyncio.get_running_loop().create_task(self._survey(survey, self._figures, self._first))
        assert self._figures is not None
        assert self._first is not None
        figures = self._figures
        await asyncio.wait([self._first])
        return figures

    async def _survey(self, survey: Survey, figures: Figures, first: asyncio.Future[None]) -> None:
        """Look every second, and tell all viewers; until there is nobody, or nothing to look at."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while self._broker._bus.home.state == "open" and not self._is_over(loop.time()):
                await survey.take()
                figures.renew()
                if not first.done():
                    first.set_result(None)
                for viewer in list(self._viewers):
                    viewer.wake()
                due = max(due + EVERY, loop.time() + EVERY / 4)  # however long a look takes, others come to their turn
                await asyncio.sleep(due - loop.time())
        except BrokerClosed:
            pass
        except Exception:
            log.exception("the figures of the console could not be made")
        finally:
            if not first.done():
                first.set_result(None)
            for viewer in list(self._viewers):
                viewer.end()

    def _is_over(self, now: float) -> bool:
        return not self._viewers and self._alone_since is not None and now - self._alone_since > LINGER


class Viewer:
    """One page that is open."""

    def __init__(self, query: Query, scope: Scope, receive: Receive, send: Send, patience: float) -> None:
        self._query, self._receive, self._out, self._patience = query, receive, send, patience
        self._connection: Any = ((scope.get("extensions") or {}).get(CONNECTION) or {}).get(CONNECTION)
        self._news = asyncio.Event()
        self._over = False

    def wake(self) -> None:
        """There are new figures."""
        self._news.set()

    def end(self) -> None:
        """Send no more. The page comes back."""
        self._over = True
        self._news.set()

    def gone(self) -> None:
        """The connection is lost."""
        self.end()

    def paused(self) -> None:
        """What was sent is not read yet: `_send` waits by itself."""

    def resumed(self) -> None:
        """It is read."""

    async def run(self, figures: Figures) -> None:
        """Send figures until either side has enough."""
        if self._connection is not None:
            self._connection.stream = self
        watch = asyncio.get_running_loop().create_task(self._watch())
        try:
            await self._out({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._send(sse.retry(random.randint(*RETRY)))
            while not self._over:
                self._news.clear()
                await self._send(b"event: figures\ndata: %b\n\n" % figures.page(self._query))
                await self._news.wait()
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
        """Notice that the page is gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.end()

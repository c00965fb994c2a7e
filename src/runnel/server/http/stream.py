"""One stream of events to one browser: a feed is read, written and sent, as fast as the browser reads and no faster.

A wake-up carries all that has come. Every `HEARTBEAT` seconds something is sent, so that proxies keep the line, and
that a browser which is frozen or gone is noticed: no send may take longer than `send_timeout`.
Below: broker.feed, sse. Above: events.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from runnel.core.batch import Slice
from runnel.core.record import Gap
from runnel.server.http import event_id, sse
from runnel.server.http.shape import gap_shape

if TYPE_CHECKING:
    from runnel.broker.feed import Feed
    from runnel.server.options import ServerOptions

HEARTBEAT = 15.0  # seconds
TAKE = 512  # records at a time
RETRY = (1_000, 3_000)  # milliseconds: of a thousand browsers that come back not all come at once
TURN = 128  # records after which others on the loop have their turn
CONNECTION = "runnel.connection"  # in the extensions of a scope: the connection, at a door of ours

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back to fill a buffer
]

log = logging.getLogger("runnel")


class Frozen(Exception):
    """The browser reads nothing any more."""


class Stream:
    """One of them."""

    def __init__(
        self, mark: bytes, keys: frozenset[bytes], receive: Receive, send: Send, options: ServerOptions, scope: Scope
    ) -> None:
        self._mark, self._keys, self._receive, self._out = mark, keys, receive, send
        self._patience = options.send_timeout
        self._connection: Any = ((scope.get("extensions") or {}).get(CONNECTION) or {}).get(CONNECTION)
        self._peer = scope.get("client")
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._beat = self._gone = self._over = False
        self._feed: Feed | None = None
        self._gap: Gap | None = None
        self._sequence = 0  # behind what was taken
        self._told = 0  # the sequence in the last id that the browser has
        self._covered = event_id.Covered()
        self._coverage = -1  # as of when
        self._resumed = False

    def attend(self, feed: Feed, gap: Gap | None, sequence: int, *, resumed: bool) -> None:
        """Read this one, after telling the gap. `sequence` is behind all that is visible now."""
        self._feed, self._gap, self._resumed = feed, gap, resumed
        at_end = not feed.is_pattern and feed.flow.cursor.pending() == 0
        self._sequence = feed.position if feed.is_pattern else sequence if at_end else 0

    @property
    def feed(self) -> Feed:
        """What it reads."""
        assert self._feed is not None, "attended before it runs"
        return self._feed

    def wake(self) -> None:
        """There may be something to do."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def end(self) -> None:
        """Send no more: the server stops. The browser comes back, and goes on from its last id."""
        self._over = True
        self.wake()

    async def run(self) -> None:
        """Stream until either side has enough."""
        if self._connection is not None:
            self._connection.stream = self
        watch = self._loop.create_task(self._watch())
        ticking = self._loop.call_later(HEARTBEAT, self._tick)
        self._ticking = ticking
        try:
            await self._out({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._send(self._opening())
            await self._stream()
            await self._send(self._closing(), more=False)
        except Frozen:
            log.info("an event stream of %s is dropped: it has read nothing for %g s", self._peer, self._patience)
            if self._connection is not None:
                self._connection.abort()  # or what it has not read would wait here for as long as the system likes
                await asyncio.wait([watch], timeout=1.0)
        finally:
            self._ticking.cancel()
            watch.cancel()
            self.feed.leave()
            if self._connection is not None:
                self._connection.stream = None

    # -- what is sent -------------------------------------------------------------------------------------------

    def _opening(self) -> bytes:
        """How to come back, where this begins, and what was missed before it."""
        id = self._here()
        told = sse.retry(random.randint(*RETRY))
        if self._gap is not None:
            told += sse.event("gap", gap_shape(self._gap))
        self._told = self._sequence
        return told + sse.event("ready", {"resumed": self._resumed, "topics": self.feed.pattern.split(" ")}, id)

    def _closing(self) -> bytes:
        error = self.feed.error
        if error is None:
            return b""
        return sse.event("end", {"code": error.code, "detail": str(error)})

    async def _stream(self) -> None:
        feed = self.feed
        while not (self._gone or self._over):
            if self._beat:
                self._beat = False
                if (end := feed.end_sequence()) is not None:
                    self._sequence = end
                    self._covered.leave(feed.epochs)
                id = self._here()  # what was passed over, being of no interest, is not to be read again
                await self._send(sse.HEARTBEAT if self._sequence == self._told else sse.here(id))
                self._told = self._sequence
                continue
            taken = feed.take_slices(TAKE)
            if taken is None:
                if feed.ended:
                    return
                self._waiting = self._loop.create_future()
                if not self._beat and not self._gone and not self._over:
                    await self._waiting
                self._waiting = None
                continue
            await self._tell(*taken)

    async def _tell(self, gap: Gap | None, slices: list[Slice]) -> None:
        feed, mark, tail = self.feed, self._mark, self._tail()
        pending = b"" if gap is None else sse.event("gap", gap_shape(gap))
        count = 0
        for part in slices:
            count += len(part)
            if self._keys:
                wanted = [record for record in part.records if record.key in self._keys]
                cut: Sequence[bytes] = sse.parts(wanted, mark) if wanted else ()
            else:
                cut = sse.parts_of(part, mark)
            last = part.stretches[-1]
            self._sequence = last.sequence + part.end - last.offset
            if not cut:
                continue
            self._told = self._sequence
            for chunk in sse.joined(cut, tail):
                if len(pending) + len(chunk) > sse.CHUNK and pending:
                    await self._send(pending)
                    pending = b""
                pending = pending + chunk if pending else chunk
        if pending:
            await self._send(pending)
        feed.confirm(feed.sent)
        feed.count_all()
        if count >= TURN:
            await asyncio.sleep(0)

    async def _send(self, body: bytes, *, more: bool = True) -> None:
        if self._connection is not None and not self._connection.flow.write_paused:
            await self._out({"type": "http.response.body", "body": body, "more_body": more})  # nobody has to wait
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._out({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise Frozen from None

    # -- places -------------------------------------------------------------------------------------------------

    def _here(self) -> bytes:
        """The id to go on from, between records."""
        feed = self.feed
        if feed.is_pattern:
            return event_id.write(self._mark, max(self._sequence, feed.position)) + self._tail()
        return event_id.write(self._mark, self._sequence, feed.epoch or 0, feed.position)

    def _tail(self) -> bytes:
        """What goes behind the ids of several topics."""
        feed = self.feed
        if not feed.is_pattern:
            return b""
        if feed.coverage != self._coverage:
            self._coverage = feed.coverage
            self._covered.join(feed.epochs)
        return self._covered.tail

    # -- what happens meanwhile ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._beat = True
        self._ticking = self._loop.call_later(HEARTBEAT, self._tick)
        self.wake()

    async def _watch(self) -> None:
        """Notice that the browser is gone: what is sent to it then nobody hears of."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self.wake()

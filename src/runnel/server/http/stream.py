"""One stream of events to one browser: a feed is read, written and sent, as fast as the browser reads and no faster.

A wake-up carries all that has come. Every `HEARTBEAT` seconds something is sent, so that proxies keep the line, and
that a browser which is frozen or gone is noticed: no send may take longer than `send_timeout`.
At a door of ours the bytes go straight to the connection, in rounds and without a task of their own; in an application
that is mounted elsewhere they are sent as ASGI has it. What is sent, and when, is the same.
Below: broker.feed, sse, rounds. Above: events.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from runnel.broker.step import Step, Steps
from runnel.core.record import Gap
from runnel.server.http import event_id, sse
from runnel.server.http.shape import gap_shape

if TYPE_CHECKING:
    from runnel.broker.feed import Feed
    from runnel.server.http.rounds import Rounds
    from runnel.server.options import ServerOptions

HEARTBEAT = 15.0  # seconds
TAKE = 512  # records at a time
RETRY = (1_000, 3_000)  # milliseconds: of a thousand browsers that come back not all come at once
TURN = 32 << 10  # bytes after which others on the loop have their turn
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

    __slots__ = (  # there are many, and all are looked at for every event: what lies close together is looked at faster
        "__weakref__",
        "_beat",
        "_connection",
        "_coverage",
        "_covered",
        "_feed",
        "_form",
        "_frozen",
        "_gap",
        "_gone",
        "_in_round",
        "_loop",
        "_out",
        "_over",
        "_parked",
        "_patience",
        "_peer",
        "_pieces",
        "_receive",
        "_resumed",
        "_rounds",
        "_sequence",
        "_several",
        "_steps",
        "_ticking",
        "_told",
        "_took",
        "_waiting",
        "_write",
    )

    def __init__(
        self,
        mark: bytes,
        keys: frozenset[bytes],
        receive: Receive,
        send: Send,
        options: ServerOptions,
        scope: Scope,
        rounds: Rounds,
    ) -> None:
        self._receive, self._out, self._rounds = receive, send, rounds
        self._patience = options.send_timeout
        self._connection: Any = ((scope.get("extensions") or {}).get(CONNECTION) or {}).get(CONNECTION)
        self._form = sse.Form(mark, b"", keys, self._connection is not None)
        self._peer = scope.get("client")
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None  # what its task waits for
        self._beat = self._gone = self._over = self._in_round = False
        self._parked: bool | None = False  # whether all pieces there were are sent
        self._took: Step | None = None  # what the next pieces are made of, if that was taken already
        self._steps: Steps = {}
        self._write: Callable[[bytes], None] | None = None  # to the connection, at a door of ours
        self._frozen: asyncio.TimerHandle | None = None  # while the connection takes nothing
        self._feed: Feed | None = None
        self._gap: Gap | None = None
        self._sequence = 0  # behind what was taken
        self._told = 0  # the sequence in the last id that the browser has
        self._covered: event_id.Covered | None = None
        self._coverage = -1  # as of when
        self._resumed = False

    def attend(self, feed: Feed, gap: Gap | None, sequence: int, *, resumed: bool) -> None:
        """Read this one, after telling the gap. `sequence` is behind all that is visible now."""
        self._feed, self._gap, self._resumed = feed, gap, resumed
        at_end = not feed.is_pattern and feed.flow.cursor.pending() == 0
        self._sequence = feed.position if feed.is_pattern else sequence if at_end else 0
        self._several = feed.is_pattern
        self._pieces = self._told_pieces()

    @property
    def feed(self) -> Feed:
        """What it reads."""
        assert self._feed is not None, "attended before it runs"
        return self._feed

    # -- what others tell it ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to do."""
        if self._connection is None:
            self._go_on()
        elif not self._in_round and self._frozen is None:
            self._in_round = True
            self._rounds.add(self)

    def end(self) -> None:
        """Send no more: the server stops. The browser comes back, and goes on from its last id."""
        self._over = True
        self._go_on()

    def gone(self) -> None:
        """The browser is."""
        self._gone, self._write = True, None
        self._go_on()

    def paused(self) -> None:
        """The connection has as much as it takes. It must take more some time."""
        self._look(self._connection.transport.get_write_buffer_size(), 0)

    def _look(self, unsent: int, times: int) -> None:
        """Look twice within `send_timeout`: the first look may be late, and the browser's bytes be there already."""
        self._frozen = self._loop.call_later(self._patience / 2, self._freeze, unsent, times)

    def resumed(self) -> None:
        """The connection takes more again."""
        if self._frozen is not None:
            self._frozen.cancel()
            self._frozen = None
            self.wake()

    # -- its life -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stream until either side has enough."""
        ticking = self._loop.call_later(HEARTBEAT, self._tick)
        self._ticking = ticking
        try:
            await self._out({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await (self._as_asgi() if self._connection is None else self._directly())
            await self._send(self._closing(), more=False)
        except Frozen:
            log.info("an event stream of %s is dropped: it has read nothing for %g s", self._peer, self._patience)
            if self._connection is not None:
                self._connection.abort()  # or what it has not read would wait here for as long as the system likes
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._watch(), 1.0)  # until uvicorn knows, too
        finally:
            self._ticking.cancel()
            self.feed.leave()

    async def _directly(self) -> None:
        """Have the bytes written to the connection, in rounds; return when that is over."""
        connection = self._connection
        self._waiting, self._write = self._loop.create_future(), connection.transport.write
        connection.stream = self
        self._gone = self._gone or connection.transport.is_closing()
        self.wake()
        try:
            if not (self._gone or self._over):
                await self._waiting
        finally:
            connection.stream = self._write = None
            if self._frozen is not None:
                self._frozen.cancel()

    def serve(self, steps: Steps) -> None:
        """Write what there is to the connection, as far as that takes it."""
        self._in_round, self._steps = False, steps
        waiting, write = self._waiting, self._write
        if write is None or waiting is None or waiting.done():
            return
        try:
            if self._parked and self._serve_last(write):
                return
            self._parked = self._serve_pieces(write)
            if self._parked is None:
                waiting.set_result(None)
        except Exception as error:
            waiting.set_exception(error)

    def _serve_pieces(self, write: Callable[[bytes], None]) -> bool | None:
        """Piece by piece; whether all there were are sent, or None: there will be no more."""
        size = 0
        for piece in self._pieces:
            if piece is None:
                return True
            write(piece)
            size += len(piece)
            if self._frozen is not None:
                return False
            if size >= sse.CHUNK:
                self.wake()  # others first
                return False
        return None

    def _serve_last(self, write: Callable[[bytes], None]) -> bool:
        """The short way, for the common case that what has come is one piece and was all; whether it was."""
        feed = self._feed
        assert feed is not None
        if self._beat or self._over:
            return False
        step = self._took = feed.take_step(self._steps, TAKE)
        if step is None:
            return not feed.ended
        told = self._tell(step)
        if not step.is_last or not isinstance(told, tuple) or len(told) > 1:
            return False
        self._took = None
        for piece in told:
            write(piece)
        feed.pass_all()
        feed.park()
        return True

    def _freeze(self, before: int, times: int) -> None:
        unsent = self._connection.transport.get_write_buffer_size()
        if unsent < before:
            self._look(unsent, 0)  # it reads, if slowly
        elif not times:
            self._look(unsent, 1)
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Frozen())

    async def _as_asgi(self) -> None:
        """Send what there is, piece by piece, as an ASGI application does."""
        watch = self._loop.create_task(self._watch())
        try:
            for piece in self._pieces:
                if piece is not None:
                    await self._send(piece)
                    if len(piece) >= TURN:
                        await asyncio.sleep(0)
                elif not (self._beat or self._gone or self._over):
                    self._waiting = self._loop.create_future()
                    await self._waiting
                if self._gone or self._over:
                    return
                self._steps = {}  # what was found is of another moment
        finally:
            watch.cancel()

    async def _send(self, body: bytes, *, more: bool = True) -> None:
        if self._connection is not None and not self._connection.flow.write_paused:
            await self._out({"type": "http.response.body", "body": body, "more_body": more})  # nobody has to wait
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._out({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise Frozen from None

    def _go_on(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # -- what is sent -------------------------------------------------------------------------------------------

    def _told_pieces(self) -> Iterator[bytes | None]:
        """All that is sent, piece by piece; None: nothing now, until it is woken."""
        feed, form = self.feed, self._form
        yield sse.framed(self._opening(), form)
        while not self._over:
            if self._beat:
                self._beat = False
                yield sse.framed(self._heartbeat(), form)
            elif (step := self._took or feed.take_step(self._steps, TAKE)) is not None:
                self._took = None
                yield from self._tell(step)
                feed.pass_all()
            elif feed.ended:
                return
            else:
                yield None

    def _opening(self) -> bytes:
        """How to come back, where this begins, and what was missed before it."""
        id = self._here()
        told = sse.retry(random.randint(*RETRY))
        if self._gap is not None:
            told += sse.event("gap", gap_shape(self._gap))
        self._told = self._sequence
        return told + sse.event("ready", {"resumed": self._resumed, "topics": self.feed.pattern.split(" ")}, id)

    def _heartbeat(self) -> bytes:
        """A sign of life. It says where it is: what was passed over, being of no interest, is not to be read again."""
        feed = self.feed
        if (end := feed.end_sequence()) is not None:
            self._sequence = end
            if self._several:
                self._cover().leave(feed.epochs)
        id = self._here()
        moved, self._told = self._sequence != self._told, self._sequence
        return sse.here(id) if moved else sse.HEARTBEAT

    def _tell(self, step: Step) -> Iterable[bytes]:
        """The events of what was taken, for whoever takes it in the same moment too."""
        form = self._form
        if self._several and (tail := self._tail()) != form.tail:
            self._form = form = form._replace(tail=tail)
        if step.sequence is not None:
            self._sequence = step.sequence
            if not form.keys:
                self._told = step.sequence
        found: tuple[bytes, ...] | None = step.shared.get(form)
        if found is not None:
            return found
        made = sse.chunks(step.slices, form)
        if step.gap is not None:
            return chain((sse.framed(sse.event("gap", gap_shape(step.gap)), form),), made)
        if isinstance(made, tuple):
            step.shared[form] = made
        return made

    def _closing(self) -> bytes:
        error = self.feed.error
        if error is None:
            return b""
        return sse.event("end", {"code": error.code, "detail": str(error)})

    # -- places -------------------------------------------------------------------------------------------------

    def _here(self) -> bytes:
        """The id to go on from, between records."""
        feed, mark = self.feed, self._form.mark
        if self._several:
            return event_id.write(mark, max(self._sequence, feed.position)) + self._tail()
        return event_id.write(mark, self._sequence, feed.epoch or 0, feed.position)

    def _tail(self) -> bytes:
        """What goes behind the ids of several topics."""
        return self._cover().tail

    def _cover(self) -> event_id.Covered:
        """The topics that it has, as of now."""
        covered = self._covered = self._covered or event_id.Covered()
        if (coverage := self.feed.attachment.changes) != self._coverage:
            self._coverage = coverage
            covered.join(self.feed.epochs)
        return covered

    # -- what happens meanwhile ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._beat = True
        self._ticking = self._loop.call_later(HEARTBEAT, self._tick)
        self.wake()

    async def _watch(self) -> None:
        """Notice that the browser is gone: what is sent to it then nobody hears of."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone()

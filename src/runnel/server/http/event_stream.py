"""One event stream: sends records to a browser, over one of two transports.

A reader is read, encoded and sent as fast as the browser reads; one wake-up sends all available records. Something is
sent every `HEARTBEAT` seconds, so that proxies keep the connection and a frozen browser is noticed. On a runnel
listener bytes go straight to the connection, without a task per stream (`DirectStream`); in a mounted application they
go out as ASGI messages (`AsgiStream`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from runnel.core.backend import Reader, SharedStep, SharedSteps
from runnel.core.record import Gap
from runnel.server.http import sse
from runnel.server.http.record_json import gap_as_json
from runnel.server.tcp_info import LostPeer, tcp_info

HEARTBEAT = 15.0  # seconds
CLOSE_HEARTBEAT = 5.0  # seconds, at most, while the presence of a topic that it reads is watched
TAKE_RECORDS = 512  # records at a time
RETRY_MILLISECONDS = (1_000, 3_000)  # random in between: a thousand browsers must not reconnect at once
BYTES_PER_TURN = 32 << 10  # bytes after which a stream yields to the event loop
CONNECTION = "runnel.connection"  # in the extensions of a scope: the connection, on a runnel listener

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx would buffer events
]

log = logging.getLogger("runnel")


def connection_of(scope: Scope) -> Any:
    """The connection of a request on a runnel listener; None in a mounted application."""
    return ((scope.get("extensions") or {}).get(CONNECTION) or {}).get(CONNECTION)


class SendTimeout(Exception):
    """The browser has read nothing for `send_timeout` seconds."""


class EventStream(ABC):
    """The content of one event stream to one browser. Subclasses are the transports."""

    __slots__ = (  # there are many, all visited for every event: slots are faster to access
        "__weakref__",
        "_beat",
        "_coverage",
        "_covered",
        "_form",
        "_gap",
        "_gone",
        "_loop",
        "_out",
        "_over",
        "_patience",
        "_peer",
        "_pieces",
        "_reader",
        "_receive",
        "_resumed",
        "_sequence",
        "_several",
        "_steps",
        "_ticking",
        "_told",
        "_took",
        "_waiting",
    )

    is_framed = False  # whether each piece is a chunk of HTTP already

    def __init__(
        self, tag: bytes, keys: frozenset[bytes], scope: Scope, receive: Receive, send: Send, patience: float
    ) -> None:
        self._receive, self._out, self._patience = receive, send, patience
        self._form = sse.EventFormat(tag, b"", keys, self.is_framed)
        self._peer = scope.get("client")
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None  # the future that its task awaits
        self._beat = self._gone = self._over = False
        self._took: SharedStep | None = None  # the step of the next pieces, if it was taken already
        self._steps: SharedSteps = {}
        self._reader: Reader | None = None
        self._gap: Gap | None = None
        self._sequence = 0  # the sequence after the last record taken
        self._told = 0  # the sequence of the last id sent
        self._covered: sse.CoveredTopics | None = None
        self._coverage = -1  # `Reader.changes` at the last update
        self._resumed = False

    def attach_reader(self, reader: Reader, gap: Gap | None, sequence: int, *, resumed: bool) -> None:
        """Read from `reader`, after reporting the gap. `sequence` is the one after the last visible record."""
        self._reader, self._gap, self._resumed = reader, gap, resumed
        at_end = not reader.is_pattern and reader.end_sequence() is not None
        self._sequence = reader.position if reader.is_pattern else sequence if at_end else 0
        self._several = reader.is_pattern
        self._pieces = self._told_pieces()

    @property
    def reader(self) -> Reader:
        """The reader of the stream."""
        assert self._reader is not None, "attached before it runs"
        return self._reader

    # -- the transport ------------------------------------------------------------------------------------------

    @abstractmethod
    def wake(self) -> None:
        """There may be something to send."""

    @abstractmethod
    async def _stream(self) -> None:
        """Send pieces until the reader or the browser ends the stream."""

    @abstractmethod
    async def _send(self, body: bytes, *, more: bool = True) -> None:
        """Send one piece, or raise `SendTimeout`."""

    @abstractmethod
    async def _dropped(self) -> None:
        """The browser read nothing for too long: discard pending output."""

    # -- its life -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until the reader or the browser ends the stream."""
        self._ticking = self._loop.call_later(HEARTBEAT, self._tick)
        self.reader.on_presence = self.watch_closely
        try:
            await self._out({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await self._stream()
            await self._send(self._closing(), more=False)
        except SendTimeout:
            log.info("an event stream of %s is dropped: it has read nothing for %g s", self._peer, self._patience)
            await self._dropped()
        finally:
            self._ticking.cancel()
            self.reader.on_presence = None
            self.reader.leave()

    def end(self) -> None:
        """End the stream: the server stops. The browser reconnects and continues from its last id."""
        self._over = True
        self._go_on()

    def gone(self) -> None:
        """The browser has gone."""
        self._gone = True
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _tick(self) -> None:
        self._beat = True
        self._ticking = self._loop.call_later(HEARTBEAT, self._tick)
        self.wake()

    def watch_closely(self) -> None:
        """Others ask who is there, once a second while they watch: send heartbeats sooner."""
        if self._ticking.when() > self._loop.time() + CLOSE_HEARTBEAT:
            self._ticking.cancel()
            self._ticking = self._loop.call_later(CLOSE_HEARTBEAT, self._tick)

    async def _watch(self) -> None:
        """Notice that the browser disconnected: sending to it does not report that."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone()

    async def _send_in_time(self, body: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._out({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise SendTimeout from None

    # -- sent events --------------------------------------------------------------------------------------------

    def _told_pieces(self) -> Iterator[bytes | None]:
        """All pieces to send; None: nothing now, until `wake`."""
        reader, form = self.reader, self._form
        yield sse.framed(self._opening(), form)
        while not self._over:
            if self._beat:
                self._beat = False
                yield sse.framed(self._heartbeat(), form)
            elif (step := self._took or reader.take_step(self._steps, TAKE_RECORDS)) is not None:
                self._took = None
                yield from self._tell(step)
                reader.pass_all()
            elif reader.ended:
                return
            else:
                yield None

    def _opening(self) -> bytes:
        """The first events: retry time, the gap if any, and `ready` with the id of the start."""
        id = self._here()
        told = sse.retry(random.randint(*RETRY_MILLISECONDS))
        if self._gap is not None:
            told += sse.event("gap", gap_as_json(self._gap))
        self._told = self._sequence
        return told + sse.event("ready", {"resumed": self._resumed, "topics": self.reader.pattern.split(" ")}, id)

    def _heartbeat(self) -> bytes:
        """A heartbeat, with a new id if the stream has passed other records: they need not be read again."""
        reader = self.reader
        if (end := reader.end_sequence()) is not None:
            self._sequence = end
            if self._several and (epochs := reader.epochs) is not None:
                self._cover().leave(epochs)
        id = self._here()
        moved, self._told = self._sequence != self._told, self._sequence
        return sse.id_only(id) if moved else sse.HEARTBEAT

    def _tell(self, step: SharedStep) -> Iterable[bytes]:
        """The encoded events of a step, shared with the streams that take the same step."""
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
            return chain((sse.framed(sse.event("gap", gap_as_json(step.gap)), form),), made)
        if isinstance(made, tuple):
            step.shared[form] = made
        return made

    def _closing(self) -> bytes:
        error = self.reader.error
        if error is None:
            return b""
        return sse.event("end", {"code": error.code, "detail": str(error)})

    # -- places -------------------------------------------------------------------------------------------------

    def _here(self) -> bytes:
        """The id to resume from, between records."""
        reader, tag = self.reader, self._form.tag
        if self._several:
            return sse.format_id(tag, max(self._sequence, reader.position)) + self._tail()
        return sse.format_id(tag, self._sequence, reader.epoch or 0, reader.position)

    def _tail(self) -> bytes:
        """The suffix of the ids of several topics, which lists the known ones."""
        return b"" if self.reader.epochs is None else self._cover().tail

    def _cover(self) -> sse.CoveredTopics:
        """The topics that it reads now."""
        covered = self._covered = self._covered or sse.CoveredTopics()
        if (coverage := self.reader.changes) != self._coverage:
            self._coverage = coverage
            covered.join(self.reader.epochs or ())
        return covered


# -- The two transports ----------------------------------------------------------------------------------


class AsgiStream(EventStream):
    """A stream in a mounted application: a task sends ASGI messages."""

    __slots__ = ()

    def wake(self) -> None:
        """There may be something to send."""
        self._go_on()

    async def _stream(self) -> None:
        watch = self._loop.create_task(self._watch())
        try:
            for piece in self._pieces:
                if piece is not None:
                    await self._send(piece)
                    if len(piece) >= BYTES_PER_TURN:
                        await asyncio.sleep(0)
                elif not (self._beat or self._gone or self._over):
                    self._waiting = self._loop.create_future()
                    await self._waiting
                if self._gone or self._over:
                    return
                self._steps = {}  # steps are shared within one event loop iteration only
        finally:
            watch.cancel()

    async def _send(self, body: bytes, *, more: bool = True) -> None:
        await self._send_in_time(body, more=more)

    async def _dropped(self) -> None:
        """Left to the server of the application."""


class DirectStream(EventStream):
    """A stream on a connection of a runnel listener, written to in rounds together with other streams."""

    __slots__ = ("_connection", "_frozen", "_in_round", "_lost_peer", "_parked", "_scheduler", "_write")

    is_framed = True

    def __init__(
        self,
        tag: bytes,
        keys: frozenset[bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
        patience: float,
        connection: Any,
        scheduler: StreamScheduler,
    ) -> None:
        super().__init__(tag, keys, scope, receive, send, patience)
        self._connection, self._scheduler = connection, scheduler
        self._in_round = False
        self._parked: bool | None = False  # whether all available pieces are sent
        self._write: Callable[[bytes], None] | None = None  # to the connection
        self._frozen = False  # while the connection accepts nothing
        self._lost_peer: LostPeer | None = None  # after the presence of a topic that it reads was requested

    def wake(self) -> None:
        """There may be something to send: be served in the next round."""
        if not self._in_round and not self._frozen:
            self._in_round = True
            self._scheduler.add(self)

    def gone(self) -> None:
        """The browser has gone."""
        self._write = None
        super().gone()

    async def _stream(self) -> None:
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

    async def _send(self, body: bytes, *, more: bool = True) -> None:
        if self._connection.flow.write_paused:
            await self._send_in_time(body, more=more)
        else:
            await self._out({"type": "http.response.body", "body": body, "more_body": more})  # returns at once

    async def _dropped(self) -> None:
        self._connection.abort()  # or unread bytes would stay in memory until the system gives up
        with suppress(TimeoutError):
            await asyncio.wait_for(self._watch(), 1.0)  # until uvicorn has noticed, too

    # -- writing ------------------------------------------------------------------------------------------------

    def serve(self, steps: SharedSteps) -> None:
        """Write the available pieces, as far as the connection accepts them."""
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
        """Write pieces; return whether all available ones were sent, or None: the stream has ended."""
        size = 0
        for piece in self._pieces:
            if piece is None:
                return True
            write(piece)
            size += len(piece)
            if self._frozen:
                return False
            if size >= sse.CHUNK:
                self.wake()  # serve other streams first
                return False
        return None

    def _serve_last(self, write: Callable[[bytes], None]) -> bool:
        """The fast path for the common case of one piece and nothing after it; return whether it applied."""
        reader = self._reader
        assert reader is not None
        if self._beat or self._over:
            return False
        step = self._took = reader.take_step(self._steps, TAKE_RECORDS)
        if step is None:
            return not reader.ended
        told = self._tell(step)
        if not step.is_last or not isinstance(told, tuple) or len(told) > 1:
            return False
        self._took = None
        for piece in told:
            write(piece)
        reader.pass_all()
        reader.park()
        return True

    # -- a connection that takes nothing ------------------------------------------------------------------------

    def watch_closely(self) -> None:
        """Notice soon, too, that the browser acknowledges nothing: the system would try for many minutes."""
        super().watch_closely()
        self._lost_peer = self._lost_peer or LostPeer()
        if self._write is not None and self._lost_peer.look(tcp_info(self._connection.raw_socket), self._loop.time()):
            log.info("an event stream of %s is dropped: its connection is lost", self._peer)
            self._write = None
            self._connection.abort()

    def paused(self) -> None:
        """The connection is full."""
        self._frozen = True

    def resumed(self) -> None:
        """The connection accepts more again."""
        self._frozen = False
        self.wake()

    def unread(self) -> None:
        """The browser has read nothing for `send_timeout` seconds."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(SendTimeout())


# -- Scheduling of streams -------------------------------------------------------------------------------
# One callback serves all streams that were woken, some at a time. Streams at the same position are served side by
# side, and share what the first of them read (`Steps`).


STREAMS_PER_TURN = 64  # streams served before yielding to the event loop


class ScheduledStream(Protocol):
    """A stream that takes part in rounds."""

    def serve(self, steps: SharedSteps) -> None:
        """Send up to a bound. Raises nothing."""


class StreamScheduler:
    """The streams to serve, in the order in which they were woken."""

    def __init__(self) -> None:
        self._woken: deque[ScheduledStream] = deque()
        self._under_way = False

    def add(self, one: ScheduledStream) -> None:
        """Serve this stream soon. A stream that waits already must not be added again."""
        self._woken.append(one)
        if not self._under_way:
            self._under_way = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Serve up to `STREAMS_PER_TURN` streams. They share steps: nothing else runs in between."""
        steps: SharedSteps = {}
        woken = self._woken
        try:
            for _ in range(min(STREAMS_PER_TURN, len(woken))):
                woken.popleft().serve(steps)
        finally:  # also after an error of one stream
            self._under_way = bool(woken)
            if woken:
                asyncio.get_running_loop().call_soon(self._serve)

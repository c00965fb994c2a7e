"""`GET /events`: server-sent events over names and patterns, resumed by `Last-Event-ID`.

A connection is a cursor: records that a slow browser has not read wait in the log, and only a position is kept here.
A browser that reads nothing for `send_timeout` seconds is disconnected; it resumes from its last id when it returns.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from runnel.broker.remote.cursor import SharedStep, SharedSteps, open_remote_cursor
from runnel.core.errors import InvalidOption, LimitExceeded
from runnel.core.pattern import check_pattern, is_pattern, matches
from runnel.core.position import Position, Start
from runnel.core.record import Gap
from runnel.server.http import sse
from runnel.server.http.options import event_options, read_event_options
from runnel.server.http.record_json import gap_as_json
from runnel.server.http.requests import parameters, parse_start, single_parameter
from runnel.server.http.sse import EventId, digest_of

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.broker.remote.cursor import RemoteCursor
    from runnel.broker.topic.log import Log
    from runnel.server.options import ServerOptions


LAST_EVENT_ID = b"last-event-id"


class EventsRequest(NamedTuple):
    """What a request for events asks for."""

    patterns: tuple[str, ...]
    start: Start
    keys: frozenset[bytes]
    last_id: sse.EventId | None
    options: dict[str, Any]  # of `subscribe`, besides start


class EventsRoute:
    """The route: an ASGI application of its own, since a stream has no end."""

    def __init__(self, broker: Broker, options: ServerOptions) -> None:
        self._broker, self._options = broker, options
        self._tag = sse.broker_tag(broker.id)
        self.streams: set[EventStream] = set()
        self._scheduler = StreamScheduler()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one stream, until either side has enough."""
        if scope["method"] != "GET":
            raise HTTPException(405, "events are read with GET", {"allow": "GET"})
        asked = parse_events_request(scope, self._options.max_subscriptions)
        if len(self.streams) >= self._options.max_streams:
            raise LimitExceeded("max_streams", len(self.streams) + 1, self._options.max_streams)
        stream = self._open(asked, scope, receive, send)
        self.streams.add(stream)
        try:
            await stream.run()
        finally:
            self.streams.discard(stream)

    def _open(self, asked: EventsRequest, scope: Scope, receive: Receive, send: Send) -> EventStream:
        backend = self._broker.backend
        backend.loop_owner.check_usable("subscribing")
        beginning = choose_start(
            asked.patterns,
            asked.start,
            asked.last_id,
            tag=self._tag,
            logs=backend.catalog.logs,
            end=backend.timeline.sequence,
        )
        stream = EventStream(self._tag, asked.keys, receive, send, self._options, scope, self._scheduler)
        cursor = open_remote_cursor(
            self._broker, beginning.pattern, ready=stream.wake, **beginning.options, **asked.options
        )
        cursor.enter()
        stream.attach_cursor(cursor, beginning.gap, backend.timeline.sequence, resumed=beginning.resumed)
        return stream


def parse_events_request(scope: Scope, most: int) -> EventsRequest:
    """What a request asks for; raises what is wrong with it."""
    said = parameters(scope)
    patterns = tuple(dict.fromkeys((*said.get("topic", ()), *said.get("pattern", ()))))
    if not patterns:
        raise InvalidOption("topic", None, "name at least one: /events?topic=orders&pattern=jobs.*")
    if len(patterns) > most:
        raise LimitExceeded("max_subscriptions", len(patterns), most)
    for one in patterns:
        check_pattern(one)
    return EventsRequest(
        patterns,
        parse_start("start", single_parameter(said, "start")),
        frozenset(key.encode() for key in said.get("key", ())),
        _last_event_id(scope, said),
        read_event_options({name: single_parameter(said, name) for name in event_options()}),
    )


def _last_event_id(scope: Scope, said: dict[str, list[str]]) -> sse.EventId | None:
    """The id to resume from. The header wins: a browser sends it by itself when it reconnects."""
    found: list[Any] = [value for name, value in scope["headers"] if name == LAST_EVENT_ID]
    if len(found) > 1:
        raise InvalidOption("Last-Event-ID", found[1].decode("latin-1")[:64], "the header is there twice")
    texts = (found[0].decode("latin-1") if found else None, single_parameter(said, "lastEventId"))
    ids = [sse.parse_id(text) for text in texts if text]
    return ids[0] if ids else None


# -- Where a stream starts -------------------------------------------------------------------------------
# Decided from the request, the last event id and the existing topics; nothing is opened here. When the id cannot be
# resumed from, a gap is reported and the stream goes on.


OTHER_BROKER = "the id is of another broker, or of one in memory that has stopped since"
AHEAD = "the id is ahead of all that there is"
TOPIC_DELETED = "a topic was deleted since"
TOPIC_RECREATED = "the topic was deleted, or made again, since"


class StreamStart(NamedTuple):
    """How to open the feed (one topic by offset, or several by sequence), and what to report first."""

    pattern: str | tuple[str, ...]
    options: dict[str, Any]  # start or resume
    gap: Gap | None
    resumed: bool


def choose_start(
    patterns: tuple[str, ...],
    start: Start,
    last_id: EventId | None,
    *,
    tag: bytes,
    logs: Mapping[str, Log],
    end: int,
) -> StreamStart:
    """Where a stream of `patterns` starts. `end` is the sequence after the last visible record."""
    log = logs.get(patterns[0]) if len(patterns) == 1 and not is_pattern(patterns[0]) else None
    if last_id is not None and last_id.tag == tag and log is not None and last_id.epoch == log.epoch:
        if last_id.offset <= log.end:
            return StreamStart(log.name, {"resume": Position(last_id.epoch, last_id.offset)}, None, True)
        ahead = Gap(log.name, log.end, last_id.offset, None, AHEAD)
        return StreamStart(log.name, {"start": "earliest" if start is None else start}, ahead, False)
    if last_id is not None and last_id.tag == tag and last_id.sequence <= end:
        return StreamStart(patterns, {"resume": last_id.sequence}, _deletion_gap(patterns, last_id, logs, end), True)
    gap: Gap | None = None
    if last_id is not None:
        why = OTHER_BROKER if last_id.tag != tag else AHEAD
        gap, start = Gap(" ".join(patterns), 0, 0, None, why), "earliest" if start is None else start
    if log is not None:
        if isinstance(start, int):
            start = min(log.end, start if start >= 0 else max(log.first, log.end + start))
        return StreamStart(log.name, {"start": "latest" if start is None else start}, gap, False)
    if isinstance(start, int):
        if len(patterns) > 1 or is_pattern(patterns[0]):
            why = "offsets differ between topics: start at earliest, latest or a time"
            raise InvalidOption("start", start, why)
        start = "earliest"  # of a topic that is not there yet: whatever comes is wanted
    return StreamStart(patterns, {"start": "latest" if start is None else start}, gap, False)


def _deletion_gap(patterns: tuple[str, ...], last_id: EventId, logs: Mapping[str, Log], end: int) -> Gap | None:
    """The gap to report when topics were deleted since the id was issued."""
    shown = " ".join(patterns)
    if last_id.known is not None:
        covered = covered_epochs(patterns, logs)
        if digest_of(covered, last_id.known.highest) != last_id.known:
            return Gap(shown, last_id.sequence, end, None, TOPIC_DELETED)
    elif last_id.epoch and len(patterns) == 1 and not is_pattern(patterns[0]):  # it was the topic's, in an earlier life
        return Gap(shown, last_id.sequence, end, None, TOPIC_RECREATED)
    return None


def covered_epochs(patterns: tuple[str, ...], logs: Mapping[str, Log]) -> list[int]:
    """The epochs of the topics that these patterns cover."""
    found = {logs[name] for name in patterns if name in logs}
    if wild := [one for one in patterns if is_pattern(one)]:
        found |= {log for log in logs.values() if any(matches(one, log.name) for one in wild)}
    return [log.epoch for log in found]


# -- One stream ------------------------------------------------------------------------------------------
# A feed is read, encoded and sent as fast as the browser reads. One wake-up sends all that has arrived. Something is
# sent every `HEARTBEAT` seconds, so that proxies keep the connection and a frozen browser is noticed.
# On our own listener bytes go straight to the connection, scheduled in rounds, without a task per stream; in a
# mounted application they go out as ASGI messages. What is sent, and when, is the same.


HEARTBEAT = 15.0  # seconds
TAKE_RECORDS = 512  # records at a time
RETRY_MILLISECONDS = (1_000, 3_000)  # milliseconds: of a thousand browsers that come back not all come at once
BYTES_PER_TURN = 32 << 10  # bytes after which others on the loop have their turn
CONNECTION = "runnel.connection"  # in the extensions of a scope: the connection, at a listener of ours

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back to fill a buffer
]

log = logging.getLogger("runnel")


class SendTimeout(Exception):
    """The browser has read nothing for `send_timeout` seconds."""


class EventStream:
    """One event stream to one browser."""

    __slots__ = (  # there are many, and all are looked at for every event: what lies close together is looked at faster
        "__weakref__",
        "_beat",
        "_connection",
        "_coverage",
        "_covered",
        "_cursor",
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
        "_scheduler",
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
        tag: bytes,
        keys: frozenset[bytes],
        receive: Receive,
        send: Send,
        options: ServerOptions,
        scope: Scope,
        scheduler: StreamScheduler,
    ) -> None:
        self._receive, self._out, self._scheduler = receive, send, scheduler
        self._patience = options.send_timeout
        self._connection: Any = ((scope.get("extensions") or {}).get(CONNECTION) or {}).get(CONNECTION)
        self._form = sse.EventFormat(tag, b"", keys, self._connection is not None)
        self._peer = scope.get("client")
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None  # what its task waits for
        self._beat = self._gone = self._over = self._in_round = False
        self._parked: bool | None = False  # whether all pieces there were are sent
        self._took: SharedStep | None = None  # what the next pieces are made of, if that was taken already
        self._steps: SharedSteps = {}
        self._write: Callable[[bytes], None] | None = None  # to the connection, at a listener of ours
        self._frozen: asyncio.TimerHandle | None = None  # while the connection takes nothing
        self._cursor: RemoteCursor | None = None
        self._gap: Gap | None = None
        self._sequence = 0  # behind what was taken
        self._told = 0  # the sequence in the last id that the browser has
        self._covered: sse.CoveredTopics | None = None
        self._coverage = -1  # as of when
        self._resumed = False

    def attach_cursor(self, cursor: RemoteCursor, gap: Gap | None, sequence: int, *, resumed: bool) -> None:
        """Read this one, after telling the gap. `sequence` is behind all that is visible now."""
        self._cursor, self._gap, self._resumed = cursor, gap, resumed
        at_end = not cursor.is_pattern and cursor.overflow.cursor.pending() == 0
        self._sequence = cursor.position if cursor.is_pattern else sequence if at_end else 0
        self._several = cursor.is_pattern
        self._pieces = self._told_pieces()

    @property
    def cursor(self) -> RemoteCursor:
        """What it reads."""
        assert self._cursor is not None, "attached before it runs"
        return self._cursor

    # -- what others tell it ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to do."""
        if self._connection is None:
            self._go_on()
        elif not self._in_round and self._frozen is None:
            self._in_round = True
            self._scheduler.add(self)

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
            await self._out({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await (self._as_asgi() if self._connection is None else self._directly())
            await self._send(self._closing(), more=False)
        except SendTimeout:
            log.info("an event stream of %s is dropped: it has read nothing for %g s", self._peer, self._patience)
            if self._connection is not None:
                self._connection.abort()  # or what it has not read would wait here for as long as the system likes
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._watch(), 1.0)  # until uvicorn knows, too
        finally:
            self._ticking.cancel()
            self.cursor.leave()

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

    def serve(self, steps: SharedSteps) -> None:
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
        cursor = self._cursor
        assert cursor is not None
        if self._beat or self._over:
            return False
        step = self._took = cursor.take_step(self._steps, TAKE_RECORDS)
        if step is None:
            return not cursor.ended
        told = self._tell(step)
        if not step.is_last or not isinstance(told, tuple) or len(told) > 1:
            return False
        self._took = None
        for piece in told:
            write(piece)
        cursor.pass_all()
        cursor.park()
        return True

    def _freeze(self, before: int, times: int) -> None:
        unsent = self._connection.transport.get_write_buffer_size()
        if unsent < before:
            self._look(unsent, 0)  # it reads, if slowly
        elif not times:
            self._look(unsent, 1)
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(SendTimeout())

    async def _as_asgi(self) -> None:
        """Send what there is, piece by piece, as an ASGI application does."""
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
            raise SendTimeout from None

    def _go_on(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # -- what is sent -------------------------------------------------------------------------------------------

    def _told_pieces(self) -> Iterator[bytes | None]:
        """All that is sent, piece by piece; None: nothing now, until it is woken."""
        cursor, form = self.cursor, self._form
        yield sse.framed(self._opening(), form)
        while not self._over:
            if self._beat:
                self._beat = False
                yield sse.framed(self._heartbeat(), form)
            elif (step := self._took or cursor.take_step(self._steps, TAKE_RECORDS)) is not None:
                self._took = None
                yield from self._tell(step)
                cursor.pass_all()
            elif cursor.ended:
                return
            else:
                yield None

    def _opening(self) -> bytes:
        """How to come back, where this begins, and what was missed before it."""
        id = self._here()
        told = sse.retry(random.randint(*RETRY_MILLISECONDS))
        if self._gap is not None:
            told += sse.event("gap", gap_as_json(self._gap))
        self._told = self._sequence
        return told + sse.event("ready", {"resumed": self._resumed, "topics": self.cursor.pattern.split(" ")}, id)

    def _heartbeat(self) -> bytes:
        """A sign of life. It says where it is: what was passed over, being of no interest, is not to be read again."""
        cursor = self.cursor
        if (end := cursor.end_sequence()) is not None:
            self._sequence = end
            if self._several:
                self._cover().leave(cursor.epochs)
        id = self._here()
        moved, self._told = self._sequence != self._told, self._sequence
        return sse.id_only(id) if moved else sse.HEARTBEAT

    def _tell(self, step: SharedStep) -> Iterable[bytes]:
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
            return chain((sse.framed(sse.event("gap", gap_as_json(step.gap)), form),), made)
        if isinstance(made, tuple):
            step.shared[form] = made
        return made

    def _closing(self) -> bytes:
        error = self.cursor.error
        if error is None:
            return b""
        return sse.event("end", {"code": error.code, "detail": str(error)})

    # -- places -------------------------------------------------------------------------------------------------

    def _here(self) -> bytes:
        """The id to go on from, between records."""
        cursor, tag = self.cursor, self._form.tag
        if self._several:
            return sse.format_id(tag, max(self._sequence, cursor.position)) + self._tail()
        return sse.format_id(tag, self._sequence, cursor.epoch or 0, cursor.position)

    def _tail(self) -> bytes:
        """What goes behind the ids of several topics."""
        return self._cover().tail

    def _cover(self) -> sse.CoveredTopics:
        """The topics that it has, as of now."""
        covered = self._covered = self._covered or sse.CoveredTopics()
        if (coverage := self.cursor.attachment.changes) != self._coverage:
            self._coverage = coverage
            covered.join(self.cursor.epochs)
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


# -- Scheduling of streams -------------------------------------------------------------------------------
# One callback serves all streams that were woken, some at a time. Streams at the same position are served side by
# side, and share what the first of them read (`Steps`).


STREAMS_PER_TURN = 64  # streams that are served before others on the loop have their turn


class ScheduledStream(Protocol):
    """A stream that can be served."""

    def serve(self, steps: SharedSteps) -> None:
        """Do what there is to do, up to a bound. It raises nothing."""


class StreamScheduler:
    """The streams to serve, in the order in which they were woken."""

    def __init__(self) -> None:
        self._woken: deque[ScheduledStream] = deque()
        self._under_way = False

    def add(self, one: ScheduledStream) -> None:
        """Serve this one soon. Whoever waits already must not be added again."""
        self._woken.append(one)
        if not self._under_way:
            self._under_way = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """A handful. What one of them found the others take over: nothing can happen in between."""
        steps: SharedSteps = {}
        woken = self._woken
        try:
            for _ in range(min(STREAMS_PER_TURN, len(woken))):
                woken.popleft().serve(steps)
        finally:  # whatever one of them does, the others are served
            self._under_way = bool(woken)
            if woken:
                asyncio.get_running_loop().call_soon(self._serve)

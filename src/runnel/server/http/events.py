"""`GET /events`: server-sent events over names and patterns, resumed by `Last-Event-ID`.

A connection is a cursor: records that a slow browser has not read wait in the log, and only a position is kept here.
A browser that reads nothing for `send_timeout` seconds is disconnected; it resumes from its last id when it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from runnel.core.backend import Reader
from runnel.core.errors import InvalidOption, LimitExceeded
from runnel.core.options import SubscribeOptions
from runnel.core.pattern import check_pattern, is_pattern
from runnel.core.position import Position, Start
from runnel.core.record import Gap
from runnel.server.http import sse
from runnel.server.http.authentication import serving_of
from runnel.server.http.event_stream import AsgiStream, DirectStream, EventStream, StreamScheduler, connection_of
from runnel.server.http.options import event_options, read_event_options
from runnel.server.http.requests import parameters, parse_start, single_parameter
from runnel.server.http.sse import EventId, digest_of
from runnel.server.http.stop_signals import ended_by_signals

if TYPE_CHECKING:
    from runnel.core.backend import Backend
    from runnel.core.topic_bounds import TopicBounds
    from runnel.server.served_broker import ServedBroker


LAST_EVENT_ID = b"last-event-id"


class EventsRequest(NamedTuple):
    """The parameters of a request for events."""

    patterns: tuple[str, ...]
    start: Start
    keys: frozenset[bytes]
    last_id: sse.EventId | None
    options: dict[str, Any]  # of `subscribe`, besides start


class EventsRoute:
    """The route: an ASGI application of its own, since a stream has no end."""

    def __init__(self, serving: ServedBroker) -> None:
        self._serving = serving
        self.streams: set[EventStream] = set()
        self._open_streams = 0  # and those that are being opened
        self._scheduler = StreamScheduler()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one stream until the reader or the browser ends it."""
        if scope["method"] != "GET":
            raise HTTPException(405, "events are read with GET", {"allow": "GET"})
        asked = parse_events_request(scope, self._serving.options.max_subscriptions)
        if self._open_streams >= self._serving.options.max_streams:
            raise LimitExceeded("max_streams", self._open_streams + 1, self._serving.options.max_streams)
        self._open_streams += 1  # before anything is waited for
        try:
            stream = await self._open(asked, scope, receive, send)
            self.streams.add(stream)
            try:
                # A server of ours ends its streams when it stops.
                with ended_by_signals(stream.end) if connection_of(scope) is None else nullcontext():
                    await stream.run()
            finally:
                self.streams.discard(stream)
        finally:
            self._open_streams -= 1

    async def _open(self, asked: EventsRequest, scope: Scope, receive: Receive, send: Send) -> EventStream:
        backend = serving_of(scope, self._serving).backend
        backend.check_ready("subscribing")
        tag, end = sse.broker_tag(backend.origin), await backend.end_sequence()
        needed = needed_bounds(asked.patterns, asked.last_id)
        topics = await backend.bounds(needed, history=False)
        if isinstance(asked.start, int) and any(topic.end + asked.start < topic.first for topic in topics):
            topics = await backend.bounds(needed)  # so many from the end on that the journal has not all of them
        if isinstance(asked.start, int) and asked.start < 0 and len(topics) == 1:
            asked = asked._replace(start=await first_of_last(backend, topics[0], asked.start))
        beginning = choose_start(asked.patterns, asked.start, asked.last_id, tag=tag, topics=topics, end=end)
        told = (tag, asked.keys, scope, receive, send, self._serving.options.send_timeout)
        connection = connection_of(scope)
        stream = AsgiStream(*told) if connection is None else DirectStream(*told, connection, self._scheduler)
        options = SubscribeOptions.of({"start": beginning.start, **asked.options})
        reader: Reader = backend.reader(beginning.pattern, options, stream.wake, beginning.resume, far=True)
        if (standing := reader.enter()) is not None:
            await standing
        stream.attach_reader(reader, beginning.gap, end, resumed=beginning.resumed)
        return stream


async def first_of_last(backend: Backend, topic: TopicBounds, start: int) -> int:
    """The offset of the first of the last `-start` records of a topic: offsets may have holes."""
    found = await backend.history(topic.topic, start, 1, 1)
    return found.records[0].offset if found.records else topic.end


def parse_events_request(scope: Scope, most: int) -> EventsRequest:
    """The parameters of a request; raises if they are invalid."""
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
    """The id to resume from. The header wins: a browser sends it when it reconnects."""
    found: list[Any] = [value for name, value in scope["headers"] if name == LAST_EVENT_ID]
    if len(found) > 1:
        raise InvalidOption("Last-Event-ID", found[1].decode("latin-1")[:64], "the header is there twice")
    texts = (found[0].decode("latin-1") if found else None, single_parameter(said, "lastEventId"))
    ids = [sse.parse_id(text) for text in texts if text]
    return ids[0] if ids else None


# -- Where a stream starts -------------------------------------------------------------------------------
# Decided from the request, the last event id and the existing topics; nothing is opened here. When the id cannot be
# resumed from, a gap is reported and the stream continues.


OTHER_BROKER = "the id is of another broker, or of one in memory that has stopped since"
AHEAD = "the id is ahead of all that there is"
TOPIC_DELETED = "a topic was deleted since"
TOPIC_RECREATED = "the topic was deleted, or made again, since"


class StreamStart(NamedTuple):
    """How to open the reader (one topic by offset, or several by sequence), and what to report first."""

    pattern: str | tuple[str, ...]
    start: Start
    resume: Position | int | None  # the place of the same stream on an earlier connection
    gap: Gap | None

    @property
    def resumed(self) -> bool:
        """Whether it resumes an earlier stream."""
        return self.resume is not None


def needed_bounds(patterns: tuple[str, ...], last_id: EventId | None) -> tuple[str, ...]:
    """Of which topics `choose_start` needs the bounds: all that are covered only where the id knows of them."""
    if last_id is not None and last_id.known is not None:
        return patterns
    return patterns if len(patterns) == 1 and not is_pattern(patterns[0]) else ()


def choose_start(
    patterns: tuple[str, ...],
    start: Start,
    last_id: EventId | None,
    *,
    tag: bytes,
    topics: Sequence[TopicBounds],
    end: int,
) -> StreamStart:
    """Where a stream of `patterns` starts. `end` is the sequence after the last visible record.

    `topics` are the bounds that `needed_bounds` asks for.
    """
    topic = topics[0] if topics and len(patterns) == 1 and not is_pattern(patterns[0]) else None
    if last_id is not None and last_id.tag == tag and topic is not None and last_id.epoch == topic.epoch:
        if last_id.offset <= topic.end:
            return StreamStart(topic.topic, None, Position(last_id.epoch, last_id.offset), None)
        ahead = Gap(topic.topic, topic.end, last_id.offset, None, AHEAD)
        return StreamStart(topic.topic, "earliest" if start is None else start, None, ahead)
    if last_id is not None and last_id.tag == tag and last_id.sequence <= end:
        return StreamStart(patterns, None, last_id.sequence, _deletion_gap(patterns, last_id, topics, end))
    gap: Gap | None = None
    if last_id is not None:
        why = OTHER_BROKER if last_id.tag != tag else AHEAD
        gap, start = Gap(" ".join(patterns), 0, 0, None, why), "earliest" if start is None else start
    if topic is not None:
        if isinstance(start, int):
            start = min(topic.end, start if start >= 0 else max(topic.first, topic.end + start))
        return StreamStart(topic.topic, "latest" if start is None else start, None, gap)
    if isinstance(start, int):
        if len(patterns) > 1 or is_pattern(patterns[0]):
            why = "offsets differ between topics: start at earliest, latest or a time"
            raise InvalidOption("start", start, why)
        start = "earliest"  # of a topic that does not exist yet: send all its records
    return StreamStart(patterns, "latest" if start is None else start, None, gap)


def _deletion_gap(patterns: tuple[str, ...], last_id: EventId, topics: Sequence[TopicBounds], end: int) -> Gap | None:
    """The gap to report when topics were deleted since the id was issued."""
    shown = " ".join(patterns)
    if last_id.known is not None:
        covered = [topic.epoch for topic in topics]
        if digest_of(covered, last_id.known.highest) != last_id.known:
            return Gap(shown, last_id.sequence, end, None, TOPIC_DELETED)
    elif last_id.epoch and len(patterns) == 1 and not is_pattern(patterns[0]):  # of an earlier creation of the topic
        return Gap(shown, last_id.sequence, end, None, TOPIC_RECREATED)
    return None

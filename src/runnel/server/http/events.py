"""`GET /events`: server-sent events over names and patterns, resumed by `Last-Event-ID`.

A connection is a cursor: what a slow browser has not read waits in the log, and here is only a position. One that reads
nothing for `send_timeout` seconds is dropped, and goes on from its last id when it comes back.
Below: resuming, sse, stream. Above: application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from runnel.broker.feed import open_feed
from runnel.core.errors import InvalidOption
from runnel.core.network_errors import LimitExceeded
from runnel.core.pattern import check_pattern
from runnel.core.start import Start
from runnel.server.http import event_id
from runnel.server.http.path import parameters, single, start_of
from runnel.server.http.resuming import begin
from runnel.server.http.rounds import Rounds
from runnel.server.http.stream import Stream

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.server.options import ServerOptions

LAST_EVENT_ID = b"last-event-id"


class Asked(NamedTuple):
    """What a request for events asks for."""

    patterns: tuple[str, ...]
    start: Start
    keys: frozenset[bytes]
    place: event_id.Place | None


class Events:
    """The route: an ASGI application of its own, since a stream has no end."""

    def __init__(self, broker: Broker, options: ServerOptions) -> None:
        self._broker, self._options = broker, options
        self._mark = event_id.mark_of(broker.id)
        self.streams: set[Stream] = set()
        self._rounds = Rounds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one stream, until either side has enough."""
        if scope["method"] != "GET":
            raise HTTPException(405, "events are read with GET", {"allow": "GET"})
        asked = read(scope, self._options.max_subscriptions)
        if len(self.streams) >= self._options.max_streams:
            raise LimitExceeded("max_streams", len(self.streams) + 1, self._options.max_streams)
        stream = self._open(asked, scope, receive, send)
        self.streams.add(stream)
        try:
            await stream.run()
        finally:
            self.streams.discard(stream)

    def _open(self, asked: Asked, scope: Scope, receive: Receive, send: Send) -> Stream:
        bus = self._broker._bus
        bus.home.check_usable("subscribing")
        beginning = begin(
            asked.patterns,
            asked.start,
            asked.place,
            mark=self._mark,
            logs=bus.catalog.logs,
            end=bus.timeline.sequence,
        )
        stream = Stream(self._mark, asked.keys, receive, send, self._options, scope, self._rounds)
        feed = open_feed(self._broker, beginning.pattern, ready=stream.wake, **beginning.options)
        feed.enter()
        stream.attend(feed, beginning.gap, bus.timeline.sequence, resumed=beginning.resumed)
        return stream


def read(scope: Scope, most: int) -> Asked:
    """What a request asks for; raises what is wrong with it."""
    said = parameters(scope)
    patterns = tuple(dict.fromkeys((*said.get("topic", ()), *said.get("pattern", ()))))
    if not patterns:
        raise InvalidOption("topic", None, "name at least one: /events?topic=orders&pattern=jobs.*")
    if len(patterns) > most:
        raise LimitExceeded("max_subscriptions", len(patterns), most)
    for one in patterns:
        check_pattern(one)
    return Asked(
        patterns,
        start_of("start", single(said, "start")),
        frozenset(key.encode() for key in said.get("key", ())),
        _place(scope, said),
    )


def _place(scope: Scope, said: dict[str, list[str]]) -> event_id.Place | None:
    """From where to go on. A browser sends the header by itself when it comes back, so that it wins."""
    found: list[Any] = [value for name, value in scope["headers"] if name == LAST_EVENT_ID]
    if len(found) > 1:
        raise InvalidOption("Last-Event-ID", found[1].decode("latin-1")[:64], "the header is there twice")
    texts = (found[0].decode("latin-1") if found else None, single(said, "lastEventId"))
    places = [event_id.read(text) for text in texts if text]
    return places[0] if places else None

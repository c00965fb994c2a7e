"""Forward packed batches of the clients of a gateway to the server behind it, in the bytes in which they arrived.

The batches keep the numbers of their producers, so a batch that is sent again is stored once, whichever of the two
connections was lost. All clients share one connection to the server behind. At most `max_pending_bytes` are unanswered
on it: beyond that the server would stop reading, and would not get the frames that make room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from runnel.client.outbox import LANES, OutgoingBatch, Route
from runnel.client.writer import RemoteWriter, checked_options
from runnel.core.backend import Done
from runnel.core.errors import RunnelError
from runnel.core.lone_record import append_of_lone
from runnel.core.options import NO_TOPIC_OPTIONS, TopicOptions
from runnel.core.position import Position
from runnel.core.publishing import Append, PublishDetails, append_of_batch, checked_batch
from runnel.core.schema import Schema
from runnel.wire.binary_messages import batch_weight

if TYPE_CHECKING:
    from runnel.client.publishing import RoomWaiter
    from runnel.client.server_link import ServerLink


SHARE = 8  # one client may have this part of what the connection takes on its way: others have room while it waits


class RemotePackedPublisher:
    """The `PackedPublisher` over a connection to a server."""

    def __init__(self, link: ServerLink, lanes: ClientLanes | None = None) -> None:
        self._link, self._lanes = link, lanes or ClientLanes()
        self._lane = self._lanes.take()
        self._bytes = 0  # of this client that are not answered
        self._line: deque[ForwardedPublish] = deque()  # what it published beyond its share
        self.is_turn_over = False

    def __repr__(self) -> str:
        return f"<RemotePackedPublisher to {self._link.address}>"

    def for_client(self) -> RemotePackedPublisher:
        """A publisher for one client: what it publishes keeps its order, and waits for no other client's."""
        return RemotePackedPublisher(self._link, self._lanes)

    def release(self) -> None:
        """The client disconnected."""
        self._lanes.release(self._lane)

    def publish(
        self, topic: str, data: bytes, details: PublishDetails | None, done: Done, readers: Sequence[Any] = ()
    ) -> ForwardedPublish | None:
        """Forward a batch; `done` is called once, with the answer of the server or the error."""
        try:
            self._link.check_usable("publishing")
            lone = append_of_lone(data) if details is None else None
            append = lone or append_of_batch(topic, data, checked_batch(topic, data), details)
        except RunnelError as error:
            done(error)
            return None
        if details is not None and details.reads:
            details = replace(details, reads=[reader.id for reader in readers if reader.id])
        route = Route(topic, topic.encode(), self._lane)
        once = not append.producer and append.message_id is None

        weight, publishing = batch_weight(data), self._link.publishing
        forwarded = ForwardedPublish(self, weight, for_readers=details is not None and details.wait)

        def answered(outcome: Position | RunnelError) -> None:
            self.over(weight)
            done(append.span(outcome) if isinstance(outcome, Position) else outcome)

        def forward() -> None:
            count = len(append.values)
            forwarded.outgoing = publishing.add_packed(route, data, count, details, answered, once=once)

        def begin() -> None:
            self._bytes += weight
            forwarded.turn = publishing.when_room(weight, forward, answered)

        if self._line or (self._bytes and self._bytes + weight > publishing.outbox.limit // SHARE):
            forwarded.begin = begin
            self._line.append(forwarded)
        else:
            begin()
        return forwarded

    def over(self, weight: int) -> None:
        """A publish was answered or taken back: the next of this client may go."""
        self._bytes -= weight
        limit = self._link.publishing.outbox.limit // SHARE
        while self._line and (not self._bytes or self._bytes + self._line[0].weight <= limit):
            begin = self._line.popleft().begin
            assert begin is not None, "what is in line has not begun"
            begin()

    def withdraw(self, forwarded: ForwardedPublish) -> bool:
        """Cancel it. True: it was not sent. False: a request to cancel was sent; the server answers the outcome."""
        publishing = self._link.publishing
        if forwarded in self._line:
            self._line.remove(forwarded)
            return True
        if forwarded.outgoing is not None:
            is_back = publishing.withdraw(forwarded.outgoing)
        else:
            is_back = forwarded.turn is None or publishing.no_room_wanted(forwarded.turn)
        if is_back:
            self.over(forwarded.weight)
        return is_back

    def plan(self, topic: str, data: bytes, details: PublishDetails | None) -> tuple[RemoteWriter, Append]:
        """A batch as part of a transaction: the writer, and what it appends."""
        append = append_of_batch(topic, data, checked_batch(topic, data), details)
        options, schema = NO_TOPIC_OPTIONS, None
        if details is not None:
            schema = details.schema
            if details.options:
                options = checked_options(TopicOptions.of(details.options), durable=self._link.welcome.durable)
        return RemoteWriter(self._link, topic, schema, options), append

    async def declare(self, topic: str, options: Mapping[str, Any], schema: Schema | None) -> None:
        """Create a topic, or check that it exists with these options and this type."""
        await self._link.call("declare", {"topic": topic, "options": dict(options), "schema": schema})


class ClientLanes:
    """Numbers of lanes in the outbox for the clients of a server, above those of topics."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = LANES

    def take(self) -> int:
        """One that no client has."""
        if self._free:
            return self._free.pop()
        self._next += 1
        return self._next

    def release(self, lane: int) -> None:
        """Its client disconnected."""
        self._free.append(lane)


class ForwardedPublish:
    """A publish that waits for its turn or for room on the connection, or that the server has not answered."""

    __slots__ = ("_for_readers", "_publisher", "begin", "outgoing", "turn", "weight")

    def __init__(self, publisher: RemotePackedPublisher, weight: int, *, for_readers: bool) -> None:
        self._publisher, self.weight, self._for_readers = publisher, weight, for_readers
        self.begin: Callable[[], None] | None = None  # while its client has enough on its way
        self.turn: RoomWaiter | None = None  # until there is room for it
        self.outgoing: OutgoingBatch | None = None  # since then

    @property
    def is_waiting(self) -> bool:
        """Whether none of it is known to be written: the server may wait for room, too.

        Sent, one that waits for readers was written, most likely: withdrawn it would pass for one that was not.
        """
        outgoing = self.outgoing
        return outgoing is None or (outgoing.lane is not None and not (self._for_readers and outgoing.sent))

    def withdraw(self) -> bool:
        """Take it back if it was not sent; else ask the server to, which answers what became of it."""
        return self._publisher.withdraw(self)

"""Forward packed batches that arrive at a server over this client, in the very bytes that they came in.

They keep the numbers of their producers, so that what is sent again is stored once, whichever of two connections was
lost. All clients share one connection to the server. No more is on its way there than it takes (`max_pending_bytes`),
or it would stop reading, and would not hear of what makes room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from runnel.client.outbox import LANES, OVERHEAD, OutgoingBatch, Route
from runnel.client.writer import RemoteWriter, checked_options
from runnel.core.backend import Done
from runnel.core.batch_format import UnpackedBatch
from runnel.core.errors import RunnelError
from runnel.core.options import NO_TOPIC_OPTIONS, TopicOptions
from runnel.core.position import Position
from runnel.core.publishing import Append, PublishDetails, append_of_batch, checked_batch
from runnel.core.schema import Schema

if TYPE_CHECKING:
    from runnel.client.publishing import ClientPublisher
    from runnel.client.server_link import ServerLink


class RemotePackedPublisher:
    """The `PackedPublisher` over a connection to a server."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self.is_turn_over = False

    def __repr__(self) -> str:
        return f"<RemotePackedPublisher to {self._link.address}>"

    def publish(
        self, topic: str, data: bytes, details: PublishDetails | None, done: Done, readers: Sequence[Any] = ()
    ) -> ForwardedPublish | None:
        """Forward a batch; `done` is called once, with what the server answers or what was wrong with it."""
        try:
            self._link.check_usable("publishing")
            append = append_of_batch(topic, data, checked_batch(topic, data), details)
        except RunnelError as error:
            done(error)
            return None
        if details is not None and details.reads:
            details = replace(details, reads=[reader.id for reader in readers if reader.id])
        route = Route.to(topic)
        if append.producer:
            route = route._replace(lane=append.producer % LANES)  # what a producer numbers stays in order

        def answered(outcome: Position | RunnelError) -> None:
            done(append.span(outcome) if isinstance(outcome, Position) else outcome)

        publishing = self._link.publishing
        forwarded = ForwardedPublish(publishing)

        def forward() -> None:
            forwarded.outgoing = publishing.add_packed(route, data, len(append.values), details, answered)

        forwarded.turn = publishing.when_room(len(data) + OVERHEAD, forward, done)
        return forwarded

    def plan(self, topic: str, data: bytes, details: PublishDetails | None) -> tuple[RemoteWriter, Append]:
        """A batch as part of a transaction: what to append, and to what."""
        append = append_of_batch(topic, data, checked_batch(topic, data), details)
        options, schema = NO_TOPIC_OPTIONS, None
        if details is not None:
            schema = details.schema
            if details.options:
                options = checked_options(TopicOptions.of(details.options), durable=self._link.welcome.durable)
        return RemoteWriter(self._link, topic, schema, options), append

    def checked(self, topic: str, data: bytes, *, typed: bool) -> UnpackedBatch:
        """A batch, if its records may be published. Whether they fit the topic's type is the server's to say."""
        return checked_batch(topic, data)

    async def declare(self, topic: str, options: Mapping[str, Any], schema: Schema | None) -> None:
        """Make a topic, or check that it is there with these options and this type."""
        await self._link.call("declare", {"topic": topic, "options": dict(options), "schema": schema})


class ForwardedPublish:
    """A publish that waits for room on the connection, or that the server has not answered."""

    __slots__ = ("_publishing", "outgoing", "turn")

    def __init__(self, publishing: ClientPublisher) -> None:
        self._publishing = publishing
        self.turn: asyncio.Future[None] | None = None  # done when there is room for it
        self.outgoing: OutgoingBatch | None = None  # since then

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of it is written, as far as is known here: the server may wait for room, too."""
        return self.outgoing is None or self.outgoing.lane is not None

    def withdraw(self) -> bool:
        """Take it back if it was not sent; else ask the server to, which answers what became of it."""
        if self.outgoing is not None:
            return self._publishing.withdraw(self.outgoing)
        if self.turn is not None:
            self.turn.cancel()
        return True

"""The numbers of a producer in this process: a record that is sent again with its number is stored once."""

from __future__ import annotations

from runnel.broker.topic.publisher import Publisher
from runnel.broker.writer import LocalWriter
from runnel.core.position import Position
from runnel.core.publishing import Append
from runnel.runtime.loop_owner import LoopOwner


class LocalProducerNumbers:
    """The `ProducerNumbers` of one producer."""

    __slots__ = ("_floor", "_id", "_loop_owner", "_publisher")

    def __init__(self, loop_owner: LoopOwner, publisher: Publisher, id: int) -> None:
        self._loop_owner, self._publisher, self._id = loop_owner, publisher, id
        self._floor = 0  # numbers below it are stored, even if they are not remembered any more

    def next(self) -> int:
        """The number of its next record. From any thread."""
        found = self._loop_owner.ask(self._next)
        return self._floor if found is None else found

    def _next(self) -> int | None:
        self._loop_owner.check_usable("looking at a producer")
        return self._publisher.deduplicator.next(self._id)

    async def append(self, writer: LocalWriter, append: Append, sequence: int | None) -> Position:
        """Append with the number `sequence`, or the next."""
        append.producer = self._id
        append.producer_sequence = -1 - self._floor if sequence is None else sequence
        position = await self._publisher.publish_numbered(writer.resolve(), append)
        self._floor = max(self._floor, append.producer_sequence + len(append.values))
        return position

"""The numbers of a producer on a server: the server stores a number once, however often it is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runnel.client.writer import RemoteWriter
from runnel.core.position import Position
from runnel.core.publishing import Append, PublishDetails

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink

_NO_DETAILS = PublishDetails()


class RemoteProducerNumbers:
    """The `ProducerNumbers` of one producer."""

    __slots__ = ("_floor", "_id", "_is_sure", "_link", "_named", "_turn")

    def __init__(self, link: ServerLink, id: int, *, named: bool) -> None:
        self._link, self._id, self._named = link, id, named
        self._floor = 0  # lower numbers are stored, even if the server has forgotten them
        self._is_sure = True  # whether no others are: no publish was abandoned in flight
        self._turn = asyncio.Lock()  # numbers are assigned to one publish at a time

    def next(self) -> int:
        """The number of its next record. A round trip that blocks the thread; from any thread."""
        found = self._link.ask("producer_next", {"producer": self._id})
        return self._floor if found is None else int(found)

    async def append(self, writer: RemoteWriter, append: Append, sequence: int | None) -> Position:
        """Send it with the number `sequence`, or the next one."""
        append.values = tuple(append.values)  # the caller may change its list later
        if sequence is not None:
            return await self._sent(writer, append, sequence)
        async with self._turn:
            return await self._sent(writer, append, await self._following())

    async def _sent(self, writer: RemoteWriter, append: Append, sequence: int) -> Position:
        details = writer.details(append)
        try:
            batch = writer.pack(append, self._id, sequence)
            span = await self._link.publish(writer.topic, batch, None if details == _NO_DETAILS else details)
        except BaseException:
            self._is_sure = False  # it may be stored: a record that reuses its number would be lost as a duplicate
            raise
        self._floor = max(self._floor, sequence + len(append.values))
        return span.first

    async def _following(self) -> int:
        """The next number. Asks the server if another client may publish under the same name."""
        if not self._named and self._floor and self._is_sure:
            return self._floor
        known = await self._link.call("producer_next", {"producer": self._id})
        self._is_sure = True  # the server answered after all earlier publishes
        return self._floor if known is None else int(known)

"""Reads the records [first, end) of one topic as packed batches, for code that converts whole batches (Spark).

After a lost connection it continues after the last batch received, so every record comes once. It ends at `end`, also
when the last offsets are holes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from runnel.client.receive_buffer import record_count
from runnel.client.subscription_session import RemoteSession
from runnel.core.errors import BadBatch, BrokerClosed, NoAnswer, RunnelError, TopicDeleted
from runnel.core.position import Position
from runnel.core.record import MissedRange
from runnel.runtime.waiting import resolve_waiter
from runnel.wire.binary_messages import DeliverPayload, credit_frame, read_deliver
from runnel.wire.frames import FRAME_HEADER_SIZE, FrameKind
from runnel.wire.msgpack_messages import Subscribe, SubscribeReply, read_gap, wire_start

if TYPE_CHECKING:
    from runnel.client.server_link import ServerLink


class RemoteRangeReader(RemoteSession):
    """A range of offsets of one topic, to be read once: `async with RangeReading(...) as reading`."""

    def __init__(self, link: ServerLink, topic: str, epoch: int, first: int, end: int, credit: int) -> None:
        super().__init__(link)
        self._topic, self._epoch, self._until, self._credit = topic, epoch, end, credit
        self._next = first  # earlier records were received
        self._items: deque[DeliverPayload | MissedRange] = deque()
        self._returned = 0  # bytes of credit that can be given back
        self._is_done = False
        self._error: RunnelError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<RemoteRangeReader of {self._topic!r}, {self._next} of {self._until}>"

    async def __aenter__(self) -> RemoteRangeReader:
        await self.subscribe()
        return self

    async def __aexit__(self, *how: object) -> None:
        self.unsubscribe(None)
        await self.left()

    async def take(self, max_bytes: int) -> list[DeliverPayload | MissedRange]:
        """Received records, up to about so many bytes, and gaps; empty when all were taken.

        `NoAnswer` if nothing comes for as long as an answer may take.
        """
        taken: list[DeliverPayload | MissedRange] = []
        while max_bytes > 0:
            if not self._items:
                if self._error is not None:
                    raise self._error
                if self._is_done:
                    break
                self.flush()
                await self._something()
                continue
            item = self._items.popleft()
            if isinstance(item, DeliverPayload):
                max_bytes -= len(item.batch)
            taken.append(item)
        self.flush()
        return taken

    async def _something(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        timeout = self._link.options.timeout
        try:
            async with asyncio.timeout(timeout):
                await self._waiter
        except TimeoutError:
            raise NoAnswer("reading a range", timeout or 0.0, self._link.state) from self._link.connection.error
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None:
            resolve_waiter(self._waiter)

    # -- as the reader of a session ----------------------------------------------------------------------------

    def asks(self) -> Subscribe:
        """The number of records still missing."""
        start = wire_start(Position(self._epoch, self._next))
        return Subscribe(pattern=self._topic, start=start, credit=self._credit, resume=True, until=self._until)

    def stands(self, said: SubscribeReply) -> None:
        """It stands, for the first time or again: on the topic that is meant, or not at all."""
        if said.epoch != self._epoch:
            self.unsubscribe(None)
            self.over(TopicDeleted(self._topic, self._epoch))

    def arrived(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """Records, or that some were missed."""
        if kind == FrameKind.DELIVER:
            found = read_deliver(extra, payload)
            count = record_count(found.batch)
            if not count:
                self.over(BadBatch("it came without its records"))
                return
            self._returned += FRAME_HEADER_SIZE + len(payload)
            self._items.append(found)
            self._next = found.offset + count
        elif kind == FrameKind.GAP:
            gap, _ = read_gap(payload)
            self._items.append(MissedRange(gap.first, gap.end, gap.count or 0, gap.reason))
            self._next = max(self._next, gap.end)
        self._wake()

    def flush(self) -> None:
        """Return the credit of taken records, when that is worth a frame."""
        held = sum(len(one.batch) for one in self._items if isinstance(one, DeliverPayload))
        given = self._returned - held
        if self.is_up and given * 4 >= self._credit:
            self._returned -= given
            self._link.send(credit_frame(self.id, given), ahead=True)

    def broken(self) -> None:
        """The connection was lost. Received records stay; the rest is requested again, with all of the credit."""
        self._returned = 0

    def over(self, error: RunnelError | None) -> None:
        """Nothing comes any more: all is here, or this is why."""
        if not self._is_done:
            self._is_done = True
            if self._link.state == "closed" and error is None:
                error = BrokerClosed("reading a range")
            self._error = error
            self._wake()

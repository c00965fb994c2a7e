"""The records [first, end) of one topic of a server, as the batches that they travel in: none is unpacked here.

For whoever turns them into something else as a whole, such as columns. When the connection is lost it goes on behind
what was received, so every record comes once; and it says when all of them have come, also where the last are holes.
Below: standing. Above: spark.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from runnel.client.arrival import count_of
from runnel.client.standing import Standing
from runnel.core.errors import BadBatch, BrokerClosed, RunnelError, TopicDeleted
from runnel.core.missed import Missed
from runnel.core.network_errors import NoAnswer
from runnel.core.position import Position
from runnel.surface.waiting import tell
from runnel.wire.frame import HEADER_SIZE, Kind
from runnel.wire.layouts import Deliver, credit_frame, read_deliver
from runnel.wire.messages import Subscribe, Subscribed, read_gap, start_note

if TYPE_CHECKING:
    from runnel.client.link import Link


class RangeReading:
    """A range of offsets of one topic, to be read once: `async with RangeReading(...) as reading`."""

    task: asyncio.Task[Any] | None = None

    def __init__(self, link: Link, topic: str, epoch: int, first: int, end: int, credit: int) -> None:
        self._link, self._topic, self._epoch, self._end, self._credit = link, topic, epoch, end, credit
        self._next = first  # what was received lies before it
        self._items: deque[Deliver | Missed] = deque()
        self._returned = 0  # bytes of credit that can be given back
        self._is_over = False
        self._error: RunnelError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._standing = Standing(link, self)

    def __repr__(self) -> str:
        return f"<RangeReading of {self._topic!r}, {self._next} of {self._end}>"

    async def __aenter__(self) -> RangeReading:
        await self._standing.enter()
        return self

    async def __aexit__(self, *how: object) -> None:
        self._standing.leave(None)
        await self._standing.left()

    async def take(self, max_bytes: int) -> list[Deliver | Missed]:
        """What came, up to about so many bytes, and what was missed; nothing when all of it was taken.

        `NoAnswer` if nothing comes for as long as an answer may take.
        """
        taken: list[Deliver | Missed] = []
        while max_bytes > 0:
            if not self._items:
                if self._error is not None:
                    raise self._error
                if self._is_over:
                    break
                self.flush()
                await self._something()
                continue
            item = self._items.popleft()
            if isinstance(item, Deliver):
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
            tell(self._waiter)

    # -- as the reader of a standing ----------------------------------------------------------------------------

    def asks(self) -> Subscribe:
        """What is still missing."""
        start = start_note(Position(self._epoch, self._next))
        return Subscribe(pattern=self._topic, start=start, credit=self._credit, resume=True, until=self._end)

    def stands(self, said: Subscribed) -> None:
        """It stands, for the first time or again: on the topic that is meant, or not at all."""
        if said.epoch != self._epoch:
            self._standing.leave(None)
            self.over(TopicDeleted(self._topic, self._epoch))

    def arrived(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        """Records, or that some were missed."""
        if kind == Kind.DELIVER:
            found = read_deliver(extra, payload)
            count = count_of(found.batch)
            if not count:
                self.over(BadBatch("it came without its records"))
                return
            self._returned += HEADER_SIZE + len(payload)
            self._items.append(found)
            self._next = found.offset + count
        elif kind == Kind.GAP:
            gap = read_gap(payload)
            self._items.append(Missed(gap.first, gap.end, gap.count or 0, gap.reason))
            self._next = max(self._next, gap.end)
        self._wake()

    def flush(self) -> None:
        """Give credit back for what was taken, when that is worth a frame."""
        held = sum(len(one.batch) for one in self._items if isinstance(one, Deliver))
        given = self._returned - held
        if self._standing.is_up and given * 4 >= self._credit:
            self._returned -= given
            self._link.send(credit_frame(self._standing.id, given), ahead=True)

    def broken(self) -> None:
        """The connection was lost. What is here stays; the rest is asked for again, with all of the credit."""
        self._returned = 0

    def over(self, error: RunnelError | None) -> None:
        """Nothing comes any more: all is here, or this is why."""
        if not self._is_over:
            self._is_over = True
            if self._link.state == "closed" and error is None:
                error = BrokerClosed("reading a range")
            self._error = error
            self._wake()

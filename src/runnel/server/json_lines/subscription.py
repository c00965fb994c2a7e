"""One subscription of a JSON lines connection: records become lines while the client reads them.

Nothing is taken from the broker while the connection has enough to send: records not yet read wait in the log, and only
a position is kept here. With a credit, no more is sent than the client asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from runnel.core.batch import Batch
from runnel.core.errors import RunnelError
from runnel.wire import json_events as events
from runnel.wire.json_commands import Id

if TYPE_CHECKING:
    from runnel.api.delivery import Delivery, DeliveryBatch

TAKE_RECORDS = 64  # records taken at a time: what a reader that stops keeps hold of
WRITE_BYTES = 64 << 10  # bytes gathered before they are written
MAX_CREDIT_RECORDS = 2**53 - 1  # the most records that may be requested: more than any browser can count

log = logging.getLogger("runnel")


class LineWriter(Protocol):
    """Writes to the client."""

    def write(self, data: bytes) -> None:
        """Send it."""

    async def writable(self) -> None:
        """Return when the client has read enough for more to be sent."""


class JsonLinesStream:
    """An open subscription of a connection, and the task that reads it."""

    group: str | None = None
    name: str | None = None
    credit: int | None = None  # records that may be sent; None: all of them

    def __init__(self, outlet: LineWriter, topic: str, id: Id | None) -> None:
        self.topic, self.id, self._outlet = topic, id, outlet
        self._task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Stop, and release everything at the next loop iteration."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop. Nothing is written when it returns."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])


class JsonLinesSubscription(JsonLinesStream):
    """One subscription."""

    def __init__(
        self,
        subscription: Any,
        outlet: LineWriter,
        opened: bytes,
        number: Callable[[Delivery[bytes]], int],
        *,
        topic: str,
        id: Id | None,
        group: str | None,
        name: str | None,
        credit: int | None = None,
    ) -> None:
        super().__init__(outlet, topic, id)
        self.group, self.name, self.credit = group, name, credit
        self._asked: asyncio.Future[None] | None = None  # it waits for more credit
        self._subscription, self._number = subscription, number
        self._opened = opened

    async def open(self, over: Callable[[JsonLinesSubscription], None]) -> None:
        """Subscribe, and begin to read; `over` is called at the end. Raises why it cannot be."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = task = asyncio.create_task(self._run(ready))
        task.add_done_callback(lambda _: over(self))
        try:
            await ready
        except asyncio.CancelledError:
            task.cancel()
            raise

    def allow(self, records: int) -> None:
        """The client asks for so many more."""
        assert self.credit is not None, "opened with one"
        self.credit = min(self.credit + records, MAX_CREDIT_RECORDS)
        if self.credit and self._asked is not None and not self._asked.done():
            self._asked.set_result(None)

    async def _run(self, ready: asyncio.Future[None]) -> None:
        outlet, last = self._outlet, events.End(self.topic, id=self.id)
        tell: Callable[[Any], Awaitable[None]] = self._tell if self.group is None else self._tell_deliveries
        try:
            async with self._subscription as subscription:
                outlet.write(self._opened)
                _resolve(ready)
                await outlet.writable()
                # A name's place is behind the taken records: with a credit, only requested ones are taken.
                async for batch in subscription.batches(1 if self.credit is not None and self.name else TAKE_RECORDS):
                    await tell(batch)
        except RunnelError as error:
            if _resolve(ready, error):
                return
            last = events.End(self.topic, error.code, str(error), self.id)
        except asyncio.CancelledError:
            _resolve(ready)
            raise
        except Exception as error:
            if _resolve(ready, error):
                return
            log.exception("the server failed at a subscription of %r of a JSON connection", self.topic)
            last = events.End(self.topic, RunnelError.code, "the server failed; its log says why", self.id)
        outlet.write(last.line())

    async def _tell(self, batch: Batch[bytes]) -> None:
        lines: list[bytes] = []
        size = 0
        if batch.gap is not None:
            lines.append(events.gap(batch.gap, self.id))
        for record in batch:
            if record.gap is not None:
                lines.append(events.gap(record.gap, self.id))
            if self.credit is not None:
                if not self.credit:
                    await self._write(lines)
                    size = 0
                    await self._allowed()
                self.credit -= 1
            lines.append(events.message(record, self.id))
            size += len(lines[-1])
            if size >= WRITE_BYTES:
                await self._write(lines)
                size = 0
        await self._write(lines)

    async def _tell_deliveries(self, batch: DeliveryBatch[bytes]) -> None:
        lines: list[bytes] = []
        size = 0
        for delivery in batch:
            if delivery.settled:  # its time was over while those before it were written
                continue
            lines.append(events.message(delivery.record, self.id, self._number(delivery), delivery.attempt))
            size += len(lines[-1])
            if size >= WRITE_BYTES:
                await self._write(lines)
                size = 0
        await self._write(lines)

    async def _allowed(self) -> None:
        """Return when the client has asked for more."""
        while not self.credit:
            self._asked = asyncio.get_running_loop().create_future()
            await self._asked

    async def _write(self, lines: list[bytes]) -> None:
        if lines:
            self._outlet.write(b"".join(lines))
            lines.clear()
        await self._outlet.writable()


def _resolve(ready: asyncio.Future[None], error: Exception | None = None) -> bool:
    """Complete the opening of the subscription; False: it was complete already."""
    if ready.done():
        return False
    if error is None:
        ready.set_result(None)
    else:
        ready.set_exception(error)
    return True

"""Reading a server's topics over a connection: bounds by a call, records as the packed batches that they travel in.

It has a small event loop of its own, that runs while something is waited for, in the thread of its user. Lost
connections are made again; what was received is not asked for twice.
Below: client. Above: reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from runnel.client.broker import RemoteBroker
from runnel.client.range_reading import RangeReading
from runnel.core.bounds import TopicBounds
from runnel.core.errors import BadBatch, OffsetOutOfRange, TopicDeleted
from runnel.core.missed import Missed
from runnel.core.packing import unpack
from runnel.journal.found import Lost
from runnel.spark.portion import Portion, placed
from runnel.spark.ranges import OffsetRange
from runnel.wire.layouts import Deliver

CREDIT = 8 << 20  # bytes that the server may send ahead
TAKE = 4 << 20  # bytes that are taken up at a time
PATIENCE = 60.0  # seconds for which a server may be away: it is started again, say

T = TypeVar("T")


class ServerReading:
    """A server, for one task or one query."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._loop = _loop()
        patience = {"timeout": PATIENCE, "wait": PATIENCE, "close_timeout": 1.0, "name": "spark"}
        self._broker = RemoteBroker(url, **{**patience, **options})
        try:
            self._run(self._broker.__aenter__())
        except BaseException:
            self._loop.close()
            raise

    def __repr__(self) -> str:
        return f"<ServerReading of {self._broker!r}>"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        # Not asyncio.run, nor a Runner: they have signal.signal() write the whole result into a message that nobody
        # sees, call by call. That took two thirds of the time.
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """Say goodbye. Harmless twice."""
        if not self._broker._home.closed:
            self._run(self._broker.__aexit__(None, None, None))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @property
    def journal(self) -> str:
        """The id of the server's journal."""
        return self._broker.id

    def bounds(self, patterns: Sequence[str], time: datetime | None = None) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end now, by name."""
        return self._run(self._broker.bounds(*patterns, time=time))

    def read(self, wanted: OffsetRange) -> Iterator[Portion | Lost]:
        """The records of a range in order, and what of it cannot be read any more."""
        topic, epoch, first, end, size = wanted
        credit = min(CREDIT, max(1 << 16, int(2 * size * (end - first))))
        reading = RangeReading(self._broker._link, topic, epoch, first, end, credit)
        place = first
        try:
            self._run(reading.__aenter__())
            try:
                while taken := self._run(reading.take(TAKE)):
                    for item in taken:
                        found = _told(item)
                        yield found
                        place = found.end if isinstance(found, Lost) else found.runs[-1].offset + found.runs[-1].count
            finally:
                self._run(reading.__aexit__())
        except TopicDeleted as error:
            yield Lost(place, end, str(error))
        except OffsetOutOfRange as error:
            yield Lost(place, end, f"the topic ends at offset {error.end}: it has shrunk")


def _told(item: Deliver | Missed) -> Portion | Lost:
    if isinstance(item, Missed):
        return Lost(item.first, item.end, item.reason)
    try:
        return placed(unpack(item.batch), item.offset, item.sequence, item.time)
    except BadBatch as error:
        count = int.from_bytes(item.batch[8:12], "little")
        return Lost(item.offset, item.offset + count, f"cannot be decoded: {error.why}")


def _loop() -> asyncio.AbstractEventLoop:
    """The quicker kind, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()

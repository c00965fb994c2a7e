"""Reads a server's topics: bounds by a call, records as the packed batches they are stored in.

It runs an event loop of its own in the caller's thread, only while it waits. Lost connections are made again, and
what was received is not requested twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from runnel.client.backend import RemoteBackend
from runnel.client.range_reader import RemoteRangeReader
from runnel.core.batch_format import unpack
from runnel.core.errors import BadBatch, OffsetOutOfRange, TopicDeleted
from runnel.core.record import MissedRange
from runnel.core.topic_bounds import TopicBounds
from runnel.journal.read.segment_reader import LostRange
from runnel.spark.range_reader import DecodedBatch, with_offsets
from runnel.spark.ranges import OffsetRange
from runnel.wire.binary_messages import DeliverPayload

CREDIT = 8 << 20  # bytes that the server may send ahead
TAKE = 4 << 20  # bytes that are taken up at a time
PATIENCE = 60.0  # seconds for which a server may be away: it is started again, say

T = TypeVar("T")


class ServerReader:
    """A server, for one task or one query."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._loop = _loop()
        patience = {"timeout": PATIENCE, "wait": PATIENCE, "close_timeout": 1.0, "name": "spark"}
        self._backend = RemoteBackend.at(url, **{**patience, **options})
        try:
            self._run(self._backend.open())
        except BaseException:
            self._loop.close()
            raise

    def __repr__(self) -> str:
        return f"<ServerReader of {self._backend!r}>"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        # Not asyncio.run, nor a Runner: they have signal.signal() write the whole result into a message that nobody
        # sees, call by call. That took two thirds of the time.
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """Say goodbye. Harmless twice."""
        if not self._backend.loop_owner.closed:
            self._run(self._backend.aclose())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @property
    def journal(self) -> str:
        """The id of the server's journal."""
        return self._backend.id

    def bounds(self, patterns: Sequence[str], time: datetime | None = None) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end now, by name."""
        return self._run(self._backend.bounds(patterns, time))

    def read(self, wanted: OffsetRange) -> Iterator[DecodedBatch | LostRange]:
        """The records of a range in order, and what of it cannot be read any more."""
        topic, epoch, first, end, size = wanted
        credit = min(CREDIT, max(1 << 16, int(2 * size * (end - first))))
        reading = RemoteRangeReader(self._backend.link, topic, epoch, first, end, credit)
        place = first
        try:
            self._run(reading.__aenter__())
            try:
                while taken := self._run(reading.take(TAKE)):
                    for item in taken:
                        found = _told(item)
                        yield found
                        place = (
                            found.end if isinstance(found, LostRange) else found.runs[-1].offset + found.runs[-1].count
                        )
            finally:
                self._run(reading.__aexit__())
        except TopicDeleted as error:
            yield LostRange(place, end, str(error))
        except OffsetOutOfRange as error:
            yield LostRange(place, end, f"the topic ends at offset {error.end}: it has shrunk")


def _told(item: DeliverPayload | MissedRange) -> DecodedBatch | LostRange:
    if isinstance(item, MissedRange):
        return LostRange(item.first, item.end, item.reason)
    try:
        return with_offsets(unpack(item.batch), item.offset, item.sequence, item.time)
    except BadBatch as error:
        count = int.from_bytes(item.batch[8:12], "little")
        return LostRange(item.offset, item.offset + count, f"cannot be decoded: {error.why}")


def _loop() -> asyncio.AbstractEventLoop:
    """The quicker kind, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()

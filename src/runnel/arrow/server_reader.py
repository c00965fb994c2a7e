"""Reads a server's topics: bounds by a call, records as the packed batches they are stored in.

It runs an event loop of its own in the caller's thread, only while it waits. Lost connections are made again, and
received records are not requested twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from runnel.arrow.range_reader import DecodedBatch, with_offsets
from runnel.arrow.ranges import RANGE_COST, OffsetRange
from runnel.client.backend import RemoteBackend
from runnel.client.range_reader import RemoteRangeReader
from runnel.core.batch_format import unpack
from runnel.core.errors import BadBatch, OffsetOutOfRange, TopicDeleted
from runnel.core.record import MissedRange
from runnel.core.topic_bounds import TopicBounds, TopicFloors
from runnel.journal.read.segment_reader import LostRange
from runnel.security.rules import covers
from runnel.wire.binary_messages import DeliverPayload

CREDIT = 8 << 20  # bytes that the server may send ahead
TAKE = 4 << 20  # bytes that are taken up at a time
TOGETHER = 64  # small ranges that are requested at once
PATIENCE = 60.0  # seconds for which a server may be away: it is started again, say

T = TypeVar("T")


class ServerReader:
    """A server, for one task or one query."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._loop = _loop()
        self._expected: deque[OffsetRange] = deque()
        self._fetched: dict[OffsetRange, list[DecodedBatch | LostRange]] = {}
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
        # Not asyncio.run, nor a Runner: they have signal.signal() write the whole result into a message that no process
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
        """The id of the first journal of the server's history."""
        return self._backend.origin

    def bounds(
        self, patterns: Sequence[str], time: datetime | None = None, sequence: int | None = None
    ) -> list[TopicBounds]:
        """Where the topics of these names and patterns begin and end now, by name."""
        return self._run(self._backend.bounds(patterns, time, sequence))

    def journal_bounds(self, patterns: Sequence[str]) -> list[TopicBounds]:
        """The same of the server's journal alone, with the reasons for which ranges left it."""
        return self._run(self._backend.bounds(patterns, history=False))

    def end_sequence(self) -> int:
        """The sequence after the last record that can be read."""
        return self._run(self._backend.end_sequence())

    def floors(self, topics: Sequence[str]) -> dict[str, TopicFloors]:
        """By name, how far these topics have left the journal by now."""
        return {one.topic: one for one in self._run(self._backend.floors(topics))}

    def visible(self, topics: Iterable[str]) -> set[str]:
        """Those that the rules of its login cover; all of them, if authentication is off."""
        rules = self._run(self._backend.link.call("whoami", {})).get("rules")
        if rules is None:
            return set(topics)
        allowed = {pattern for patterns in rules.values() for pattern in patterns}
        return {topic for topic in topics if any(covers(pattern, topic) for pattern in allowed)}

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """These will be read next, in this order: small ones are requested together."""
        self._expected = deque(ranges)

    def read(self, wanted: OffsetRange) -> Iterator[DecodedBatch | LostRange]:
        """The records of a range in order, and what of it cannot be read any more."""
        if wanted not in self._fetched:
            if len(group := self._following(wanted)) < 2:
                yield from self._read(wanted)
                return
            found = self._run(self._fetch_all(group))
            self._fetched = dict(zip(group, found, strict=True))
        yield from self._fetched.pop(wanted)

    def _following(self, wanted: OffsetRange) -> list[OffsetRange]:
        """A range, and small ones that are expected behind it."""
        group, size = [wanted], _weight(wanted)
        while self._expected and self._expected[0] != wanted:
            self._expected.popleft()
        for one in islice(self._expected, 1, TOGETHER):
            size += _weight(one)
            if size > TAKE or one in group:
                break
            group.append(one)
        return group

    async def _fetch_all(self, group: Sequence[OffsetRange]) -> list[list[DecodedBatch | LostRange]]:
        return await asyncio.gather(*map(self._fetch, group))

    async def _fetch(self, wanted: OffsetRange) -> list[DecodedBatch | LostRange]:
        """All of a small range."""
        found: list[DecodedBatch | LostRange] = []
        reading = self._reading(wanted)
        try:
            async with reading:
                while taken := await reading.take(TAKE):
                    found += map(_told, taken)
        except (TopicDeleted, OffsetOutOfRange) as error:
            found.append(_rest(_end_of(found, wanted.first), wanted.end, error))
        return found

    def _reading(self, wanted: OffsetRange) -> RemoteRangeReader:
        topic, epoch, first, end, *_ = wanted
        credit = min(CREDIT, max(1 << 16, int(2 * wanted.bytes)))
        return RemoteRangeReader(self._backend.link, topic, epoch, first, end, credit)

    def _read(self, wanted: OffsetRange) -> Iterator[DecodedBatch | LostRange]:
        """The same of a range that may be large, a part at a time."""
        reading, place = self._reading(wanted), wanted.first
        try:
            self._run(reading.__aenter__())
            try:
                while taken := self._run(reading.take(TAKE)):
                    for item in taken:
                        found = _told(item)
                        yield found
                        place = _end_of([found], place)
            finally:
                if not self._loop.is_closed():  # else closing the reader ended it: an error may hold on to this frame
                    self._run(reading.__aexit__())
        except (TopicDeleted, OffsetOutOfRange) as error:
            yield _rest(place, wanted.end, error)


def _weight(wanted: OffsetRange) -> float:
    """The cost of a range, about, where its records may weigh twice the known average."""
    return 2 * wanted.bytes + RANGE_COST


def _end_of(found: Sequence[DecodedBatch | LostRange], first: int) -> int:
    """The offset behind the last found record."""
    if not found:
        return first
    last = found[-1]
    return last.end if isinstance(last, LostRange) else last.runs[-1].offset + last.runs[-1].count


def _rest(place: int, end: int, error: TopicDeleted | OffsetOutOfRange) -> LostRange:
    if isinstance(error, TopicDeleted):
        return LostRange(place, end, str(error))
    return LostRange(place, end, f"the topic ends at offset {error.end}: it has shrunk")


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

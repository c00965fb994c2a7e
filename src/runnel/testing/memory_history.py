"""A source of history in memory: what an archive would hold, filled by a test.

Give it to `runnel.open(folder, history=...)`, and add the records that the archive has copied by then. A record keeps
its topic, offset, sequence, epoch, key, value, headers and time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter

from runnel.core.batch import Slice, SliceRun
from runnel.core.columns import HEADERS, KEYS, Columns
from runnel.core.history import HistoryBounds
from runnel.core.pattern import matches
from runnel.core.record import Record

_offset, _sequence = attrgetter("offset"), attrgetter("sequence")


class MemoryHistory:
    """Records by topic and epoch. `chunk` is how many of them one call returns at the most.

    `error`, if it is set, is raised by every call. `calls` counts them, by the name of the method. While `gate` is
    cleared, calls wait.
    """

    def __init__(self, pattern: str = ">", *, chunk: int = 1000) -> None:
        self.pattern, self.chunk = pattern, chunk
        self.error: Exception | None = None
        self.calls: dict[str, int] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_closed = False
        self._topics: dict[tuple[str, int], list[Record[bytes]]] = {}

    def __repr__(self) -> str:
        return f"<MemoryHistory of {self.pattern!r}, {sum(map(len, self._topics.values()))} records>"

    def add(self, records: Iterable[Record[bytes]]) -> None:
        """Hold these, too: of each topic, records that come after those it has."""
        for record in records:
            held = self._topics.setdefault((record.topic, record.epoch), [])
            if held and held[-1].offset >= record.offset:
                raise ValueError(f"{record.topic!r} is held up to {held[-1].offset}: {record.offset} comes too late")
            held.append(record)

    def drop(self, topic: str, before: int) -> None:
        """Hold no record of `topic` before an offset: the archive's own retention."""
        for (name, _), held in self._topics.items():
            if name == topic:
                del held[: bisect_left(held, before, key=_offset)]

    def remove(self, topic: str, offset: int) -> None:
        """Lose one record."""
        for (name, _), held in self._topics.items():
            if name == topic:
                held[:] = [record for record in held if record.offset != offset]

    # -- HistorySource ------------------------------------------------------------------------------------------

    def covers(self, topic: str) -> bool:
        """Whether the topic matches its pattern."""
        return matches(self.pattern, topic)

    async def bounds(self, topic: str, epoch: int) -> HistoryBounds | None:
        """The records that it holds of a topic."""
        await self._called("bounds")
        held = self._topics.get((topic, epoch))
        return HistoryBounds(held[0].offset, held[-1].offset + 1) if held else None

    async def read(self, topic: str, epoch: int, start: int, end: int) -> Sequence[Slice]:
        """Its first records with offsets in [start, end)."""
        await self._called("read")
        held = self._topics.get((topic, epoch), [])
        first, last = (bisect_left(held, place, key=_offset) for place in (start, end))
        return list(_slices(held[first : min(last, first + self.chunk)]))

    async def offset_at(self, topic: str, epoch: int, time: datetime) -> int | None:
        """The offset of its first record that is not older than `time`."""
        await self._called("offset_at")
        held = self._topics.get((topic, epoch), [])
        return next((record.offset for record in held if record.time >= time), None)

    async def offset_at_sequence(self, topic: str, epoch: int, sequence: int) -> int | None:
        """The offset of its first record with this sequence or a later one."""
        await self._called("offset_at_sequence")
        held = self._topics.get((topic, epoch), [])
        at = bisect_left(held, sequence, key=_sequence)
        return held[at].offset if at < len(held) else None

    async def read_sequences(self, patterns: Sequence[str], start: int, end: int) -> Sequence[Slice]:
        """Its first records of matching topics with sequences in [start, end)."""
        await self._called("read_sequences")
        found = [record for record in self._matching(patterns) if start <= record.sequence < end]
        return list(_slices(found[: self.chunk]))

    async def sequence_at(self, patterns: Sequence[str], time: datetime) -> int | None:
        """The sequence of its first record of matching topics that is not older than `time`."""
        await self._called("sequence_at")
        return next((record.sequence for record in self._matching(patterns) if record.time >= time), None)

    async def close(self) -> None:
        """Refuse every later call."""
        self.is_closed = True

    async def _called(self, method: str) -> None:
        self.calls[method] = self.calls.get(method, 0) + 1
        await self.gate.wait()
        if self.is_closed:
            raise OSError("the source is closed")
        if self.error is not None:
            raise self.error

    def _matching(self, patterns: Sequence[str]) -> list[Record[bytes]]:
        topics = [held for (name, _), held in self._topics.items() if any(matches(one, name) for one in patterns)]
        return sorted((record for held in topics for record in held), key=_sequence)


def _slices(records: Sequence[Record[bytes]]) -> Iterator[Slice]:
    """Records in order, as slices without holes."""
    start = 0
    for at in range(1, len(records) + 1):
        if at < len(records):
            one, two = records[at - 1], records[at]
            is_next = two.offset == one.offset + 1 and two.sequence == one.sequence + 1
            if is_next and (two.topic, two.epoch) == (one.topic, one.epoch):
                continue
        yield _slice(records[start:at])
        start = at


def _slice(records: Sequence[Record[bytes]]) -> Slice:
    first = records[0]
    runs: list[SliceRun] = []
    for record in records:
        if not runs or record.time != runs[-1].time:
            runs.append(SliceRun(record.offset, record.sequence, record.time))
    columns = Columns()
    if any(record.key is not None for record in records):
        columns[KEYS] = [record.key for record in records]
    if any(record.headers for record in records):
        columns[HEADERS] = [dict(record.headers) or None for record in records]
    values = tuple(record.value for record in records)
    return Slice(first.topic, first.epoch, first.offset, values, runs, columns or None)

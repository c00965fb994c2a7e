"""Batches from disk as slices: neighbours become one, and what cannot be decoded is lost.

A slice goes on by one in offsets, and for readers by sequence in sequences too. A batch is decoded when the
first of its records is asked for: a block of many topics is never decoded at once.
Below: journal.found, core.packing. Above: catch_up, stage_reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from runnel.broker.log import Log
from runnel.core.batch import PackedSlice, Slice, Stretch
from runnel.core.errors import BadBatch
from runnel.core.packing import VALUES, Unpacked, read_header, unpack
from runnel.core.record import Meta
from runnel.journal.found import Found, Lost, Staged
from runnel.journal.merged import Run

SLICE = 4096

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Growing:
    """The slice that is being put together."""

    __slots__ = (
        "_count",
        "_end",
        "_is_packed",
        "_metas",
        "_packs",
        "_sequence",
        "_start",
        "_stretches",
        "_topic",
        "_values",
        "by_sequence",
    )

    def __init__(self, *, by_sequence: bool) -> None:
        self.by_sequence = by_sequence
        self._topic = self._start = self._end = self._sequence = self._count = 0
        self._is_packed = False  # whether its batches stay packed until somebody wants their values
        self._values: list[bytes] = []
        self._stretches: list[Stretch] = []
        self._packs: list[bytes | None] = []
        self._metas: dict[int, Meta] = {}

    def goes_on(self, topic: int, offset: int, sequence: int, packed: int = 0) -> bool:
        """Whether records from there on belong to it; `packed`: so many, of a batch that is to stay packed."""
        if not self._count:
            self._topic, self._start, self._end, self._sequence = topic, offset, offset, sequence
            self._is_packed = packed > 0
            return True
        return (
            topic == self._topic
            and offset == self._end
            # A packed one is never cut: that would have it unpacked, and packed again, for every reader.
            and (self._count + packed <= SLICE if packed else self._count < SLICE)
            and self._is_packed == (packed > 0)
            and (sequence == self._sequence or not self.by_sequence)
        )

    def add(self, offset: int, sequence: int, time: int, values: Sequence[bytes], packed: bytes | None = None) -> None:
        """Records that go on with it; `packed` is the batch that they are all of."""
        self._values.extend(values)
        self._grow(offset, sequence, time, len(values), packed)

    def add_packed(self, offset: int, sequence: int, time: int, count: int, packed: bytes) -> None:
        """A whole batch that goes on with it, and stays packed."""
        self._grow(offset, sequence, time, count, packed)

    def _grow(self, offset: int, sequence: int, time: int, count: int, packed: bytes | None) -> None:
        self._packs.append(packed)
        self._stretches.append(Stretch(offset, sequence, _EPOCH + timedelta(microseconds=time)))
        self._end, self._sequence = offset + count, sequence + count
        self._count += count

    def carry(self, metas: Iterable[tuple[int, Meta]]) -> None:
        """What some of them carry, by offset."""
        self._metas.update(metas)

    def close(self, topics: Mapping[int, Log]) -> Iterator[Slice]:
        """What was put together, if there is anything; then it is empty again."""
        if self._count:
            log = topics[self._topic]
            if self._is_packed:
                yield PackedSlice(log.name, log.epoch, self._start, self._count, self._stretches, self._packs)
            else:
                packs = self._packs if any(self._packs) else None
                yield Slice(log.name, log.epoch, self._start, tuple(self._values), self._stretches, self._metas, packs)
            self._values, self._stretches, self._packs, self._metas = [], [], [], {}
            self._count = 0


def slices(
    items: Iterable[Found | Staged | Lost], topics: Mapping[int, Log], *, by_sequence: bool, packed: bool = False
) -> Iterator[Slice | Staged | Lost]:
    """What was found, as slices, in the same order. What was staged is for others to follow.

    With `packed`, slices hold the batches that they are made of, too: to be sent on as they are. Those that are values
    and nothing else stay packed until somebody asks for them.
    """
    growing = _Growing(by_sequence=by_sequence)
    decoded: dict[int, tuple[bytes, Unpacked]] = {}  # by topic, the merged batch that it is in the middle of
    for item in items:
        if not isinstance(item, Found):
            yield from growing.close(topics)
            yield item
            continue
        known = decoded.pop(item.topic, None) if decoded else None
        try:  # the crc was checked when it was found
            if packed and (count := _values_alone(item)):
                if not growing.goes_on(item.topic, item.base, item.sequence, count):
                    yield from growing.close(topics)
                    growing.goes_on(item.topic, item.base, item.sequence, count)
                growing.add_packed(item.base, item.sequence, item.time, count, item.body)
                continue
            batch = known[1] if known is not None and known[0] is item.body else unpack(item.body, verify=False)
        except BadBatch as error:
            yield from growing.close(topics)
            yield from _undecoded(item, f"cannot be decoded: {error.why}", by_sequence=by_sequence)
            continue
        runs = item.runs
        if runs is None and batch.deltas is not None:
            runs = _runs_of_deltas(item, batch.deltas)
        if runs is None:
            if not growing.goes_on(item.topic, item.base, item.sequence):
                yield from growing.close(topics)
                growing.goes_on(item.topic, item.base, item.sequence)
            growing.add(item.base, item.sequence, item.time, batch.values, item.body if packed else None)
            if batch.metas:
                growing.carry((item.base + at, meta) for at, meta in batch.metas.items())
            continue
        first = item.at
        for run in runs:
            yield from _of_run(growing, item.topic, run, batch, first, topics)
            first += run.count
        if first < len(batch):
            decoded[item.topic] = (item.body, batch)
    yield from growing.close(topics)


def _values_alone(item: Found) -> int:
    """How many records a batch has that holds nothing but their values, side by side; 0: it has to be looked into."""
    if item.runs is not None:
        return 0
    header = read_header(item.body)
    is_plain = header.columns == VALUES and header.count == item.last - item.base + 1
    return header.count if is_plain else 0


def _of_run(
    growing: _Growing, topic: int, run: Run, batch: Unpacked, first: int, topics: Mapping[int, Log]
) -> Iterator[Slice]:
    """Put the records of a run, the first of which is number `first` in its batch, behind what there is."""
    offset, sequence, end = run.offset, run.sequence, first + run.count
    metas = batch.metas
    while first < end:
        if not growing.goes_on(topic, offset, sequence):
            yield from growing.close(topics)
            growing.goes_on(topic, offset, sequence)
        count = min(end - first, SLICE)
        growing.add(offset, sequence, run.time, batch.values[first : first + count])
        if metas:
            growing.carry((offset + at, metas[first + at]) for at in range(count) if first + at in metas)
        first, offset, sequence = first + count, offset + count, sequence + count


def _runs_of_deltas(item: Found, deltas: Sequence[int]) -> list[Run]:
    """The runs of a batch that a publisher left holes in."""
    runs: list[Run] = []
    for delta in deltas:
        if runs and runs[-1].offset + runs[-1].count == item.base + delta:
            runs[-1] = runs[-1]._replace(count=runs[-1].count + 1)
        else:
            runs.append(Run(item.base + delta, item.sequence + delta, item.time, 1))
    return runs


def _undecoded(item: Found, why: str, *, by_sequence: bool) -> Iterator[Lost]:
    if item.runs is None:
        first = item.sequence if by_sequence else item.base
        yield Lost(first, first + item.last - item.base + 1, why)
        return
    for run in item.runs:
        first = run.sequence if by_sequence else run.offset
        yield Lost(first, first + run.count, why)

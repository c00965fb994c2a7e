"""Batches in memory: slices of a log, and the `Batch` that a subscriber receives.

A `Slice` is built once and shared by every subscriber that reads the same range; its records are
built on first use. A `Batch` is one subscriber's view of one or more slices, with that subscriber's gap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, overload

from runnel.core.batch_format import unpack
from runnel.core.columns import EXPIRES, HEADERS, KEYS, Columns
from runnel.core.record import NO_HEADERS, Gap, Meta, Record

T = TypeVar("T")


class SliceRun(NamedTuple):
    """Where a run of records lies: from `offset` on, with sequences from `sequence` on, all of one time."""

    offset: int
    sequence: int
    time: datetime


class Slice:
    """The immutable records [start, end) of one topic.

    `columns` is what they carry besides their values; None: nothing.
    `packs` holds, for each stretch, its records here as a packed batch, if there is one; None elsewhere.
    `written` is what a listener made of it for its readers, kept for the next of them.
    """

    __slots__ = (
        "_metas",
        "_records",
        "_size",
        "columns",
        "epoch",
        "packs",
        "start",
        "stretches",
        "topic",
        "values",
        "written",
    )

    def __init__(
        self,
        topic: str,
        epoch: int,
        start: int,
        values: tuple[bytes, ...],
        stretches: Sequence[SliceRun],
        columns: Columns | None = None,
        packs: list[bytes | None] | None = None,
    ) -> None:
        self.topic, self.epoch, self.start, self.values = topic, epoch, start, values
        self.stretches, self.columns, self.packs = stretches, columns, packs
        self._metas: Mapping[int, Meta] | None = None
        self._records: tuple[Record[bytes], ...] | None = None
        self._size = -1  # decoded on first access
        self.written: Any = None

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"<Slice {self.topic!r} [{self.start}, {self.end})>"

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.start + len(self.values)

    @property
    def size(self) -> int:
        """The bytes of the values, summed once for all readers of this slice."""
        if self._size < 0:
            self._size = sum(map(len, self.values))
        return self._size

    @property
    def weight(self) -> int:
        """About the bytes of the values, estimated without unpacking them."""
        return self.size

    @property
    def metas(self) -> Mapping[int, Meta]:
        """Keys, headers and times of the records, by offset; built on first access and then shared."""
        if self._metas is None:
            self._metas = {} if self.columns is None else self.columns.rows(self.start)
        return self._metas

    @property
    def sequence(self) -> int:
        """The sequence of the first record."""
        offset, sequence, _ = self.stretches[0]
        return sequence + self.start - offset

    @property
    def time_of_first(self) -> datetime:
        """When the first record was published."""
        return self.stretches[0].time

    @property
    def records(self) -> tuple[Record[bytes], ...]:
        """The records, built when first asked for and then shared."""
        if self._records is None:
            self._records = tuple(chain.from_iterable(self._built()))
        return self._records

    def _built(self) -> Iterator[Iterator[Record[bytes]]]:
        ends = [stretch.offset for stretch in self.stretches[1:]] + [self.end]
        keys: Iterator[bytes | None] = repeat(None)
        headers: Iterator[Mapping[str, str]] = repeat(NO_HEADERS)
        if self.columns is not None:  # read on from stretch to stretch
            keys = chain(self.columns.get(KEYS, ()), keys)
            headers = chain(_read_only(self.columns.get(HEADERS, ())), headers)
        for (offset, sequence, time), end in zip(self.stretches, ends, strict=True):
            first = max(offset, self.start)
            yield map(
                Record,
                repeat(self.topic),
                range(first, end),
                range(sequence + first - offset, sequence + end - offset),
                repeat(self.epoch),
                keys,
                self.values[first - self.start : end - self.start],
                headers,
                repeat(time),
            )

    def cut(self, start: int, end: int) -> Slice:
        """The part [start, end) of this slice."""
        first = max(0, bisect_right(self.stretches, start, key=_offset) - 1)
        last = bisect_left(self.stretches, end, key=_offset)
        kept, packs = self.stretches[first:last], None
        if self.packs is not None:
            packs = self.packs[first:last]
            if packs and max(kept[0].offset, self.start) < start:
                packs[0] = None
            if packs and end < (self.stretches[last].offset if last < len(self.stretches) else self.end):
                packs[-1] = None
        at, behind = start - self.start, end - self.start
        columns = None if self.columns is None else self.columns.part(at, behind)
        return Slice(self.topic, self.epoch, start, self.values[at:behind], kept, columns, packs)

    def without(self, offsets: Sequence[int]) -> Iterator[Slice]:
        """The batch without the records at `offsets`, which it contains, in ascending order."""
        if not offsets:
            yield self
            return
        start = self.start
        for offset in (*offsets, self.end):
            if start < offset:
                yield self.cut(start, offset)
            start = offset + 1


class PackedSlice(Slice):
    """A slice of whole batches that hold values alone. They are unpacked when their values are used.

    A listener sends them unchanged: a client that reads from disk costs its server no decoding.
    """

    __slots__ = ("_count", "_unpacked")

    def __init__(
        self, topic: str, epoch: int, start: int, count: int, stretches: Sequence[SliceRun], packs: list[bytes | None]
    ) -> None:
        self.topic, self.epoch, self.start, self._count = topic, epoch, start, count
        self.stretches, self.columns, self.packs = stretches, None, packs
        self._metas = None
        self._records: tuple[Record[bytes], ...] | None = None
        self._unpacked: tuple[bytes, ...] | None = None
        self._size = -1
        self.written = None

    def __len__(self) -> int:
        return self._count

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.start + self._count

    @property
    def values(self) -> tuple[bytes, ...]:  # type: ignore[override]  # made on first access
        """The values. Their crc was checked when they were read, and what they are when they were published."""
        if self._unpacked is None:
            self._unpacked = _joined([unpack(one, verify=False).values for one in self.packs or () if one is not None])
        return self._unpacked

    @property
    def weight(self) -> int:
        """The bytes of the packed batches: their values are not looked at."""
        return sum(len(one) for one in self.packs or () if one is not None)

    def cut(self, start: int, end: int) -> Slice:
        """The part [start, end) of this slice; as long as that is whole batches, they stay packed."""
        bounds = [stretch.offset for stretch in self.stretches] + [self.end]
        if start not in bounds or end not in bounds or self.packs is None:
            return super().cut(start, end)
        first, last = bounds.index(start), bounds.index(end)
        return PackedSlice(
            self.topic, self.epoch, start, end - start, self.stretches[first:last], self.packs[first:last]
        )


_offset = attrgetter("offset")


def _read_only(column: Iterable[dict[str, str] | None]) -> Iterator[Mapping[str, str]]:
    """The headers of records, as their readers see them; most often those of one record are those of the next."""
    last, shown = None, NO_HEADERS
    for headers in column:
        if headers is not last:
            last, shown = headers, MappingProxyType(headers) if headers else NO_HEADERS
        yield shown


def without_expired(slices: list[Slice], now: float) -> tuple[list[Slice], int]:
    """`slices` without the records whose time has run out, and how many those were."""
    kept: list[Slice] = []
    count = 0
    for part in slices:
        expires = () if part.columns is None else part.columns.get(EXPIRES, ())
        gone = [offset for offset, time in enumerate(expires, part.start) if time is not None and time <= now]
        count += len(gone)
        kept += part.without(gone)
    return kept, count


class Batch(Generic[T]):
    """Records read together: `len(batch)`, `batch.values`, and iteration over records.

    Immutable: what one subscriber does with a batch no other can see.
    """

    __slots__ = ("_records", "_slices", "_values", "gap")

    def __init__(
        self, slices: Sequence[Slice] = (), *, records: tuple[Record[T], ...] | None = None, gap: Gap | None = None
    ) -> None:
        self._slices, self._records, self.gap = slices, records, gap
        self._values: tuple[T, ...] | None = None

    def __len__(self) -> int:
        if self._records is not None:
            return len(self._records)
        return len(self._slices[0].values) if len(self._slices) == 1 else sum(map(len, self._slices))

    def __iter__(self) -> Iterator[Record[T]]:
        return iter(self.records)

    @overload
    def __getitem__(self, at: int) -> Record[T]: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Record[T], ...]: ...
    def __getitem__(self, at: int | slice) -> Record[T] | tuple[Record[T], ...]:
        return self.records[at]

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} records{f', {self.gap}' if self.gap else ''}>"

    @property
    def values(self) -> tuple[T, ...]:
        """The values alone: the cheapest way to read, since no record is built."""
        if self._values is None:
            if self._records is not None:
                self._values = tuple(record.value for record in self._records)
            else:
                self._values = _joined([part.values for part in self._slices])
        return self._values

    @property
    def records(self) -> tuple[Record[T], ...]:
        """The records, in order."""
        if self._records is None:
            self._records = _joined([part.records for part in self._slices])
        return self._records


def _joined(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    return parts[0] if len(parts) == 1 else tuple(chain.from_iterable(parts))

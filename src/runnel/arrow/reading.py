"""Reading topics into Arrow: the lake below the journal's first offset, then the journal, with no gap and no repeat.

What a read covers is settled when it begins: records that are published later belong to another read. Retention goes on
meanwhile, so before the journal is entered its first offset is asked for again, and what it lost by then is read from
the lake.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.arrow.layout import ColumnLayout
from runnel.arrow.location import BrokerLocation
from runnel.arrow.range_reader import (
    DataLossPolicy,
    DecodedBatch,
    RangeReader,
    durable_only,
    open_range_reader,
)
from runnel.arrow.ranges import OffsetRange
from runnel.core.errors import InvalidOption, NotSupported, UnknownTopic
from runnel.core.pattern import check_pattern, is_pattern, matches
from runnel.core.position import Position
from runnel.core.topic_bounds import TopicBounds
from runnel.journal.read.segment_reader import LostRange

if TYPE_CHECKING:
    import pyarrow as pa

    from runnel.lake import LakeHistory

COLUMNS = ("topic", "epoch", "offset", "sequence", "time", "key", "value", "headers")
"""Of a read that does not choose."""

T = TypeVar("T")
Place = int | str | datetime | Position | None


def read(
    where: str | os.PathLike[str] | None,
    topic: str | Sequence[str],
    start: Place = None,
    end: Place = None,
    *,
    lake: str | os.PathLike[str] | LakeHistory | None = None,
    columns: Sequence[str] | None = None,
    typed: bool = False,
    fail_on_data_loss: bool = True,
    client: Mapping[str, Any] | None = None,
) -> pa.Table:
    """The records of a topic as an Arrow table. Takes what `batches` takes, and holds all of it in memory.

    >>> table = runnel.arrow.read("data/", "orders", lake="lake/")
    >>> polars.from_arrow(table).group_by("key").len()
    """
    found = _Reading(where, topic, start, end, lake, columns, typed, fail_on_data_loss, client or {})
    import pyarrow as pa

    try:
        return pa.Table.from_batches(list(found.batches()), found.schema)
    finally:
        found.close()


def batches(
    where: str | os.PathLike[str] | None,
    topic: str | Sequence[str],
    start: Place = None,
    end: Place = None,
    *,
    lake: str | os.PathLike[str] | LakeHistory | None = None,
    columns: Sequence[str] | None = None,
    typed: bool = False,
    fail_on_data_loss: bool = True,
    client: Mapping[str, Any] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a topic as Arrow record batches, a few megabytes at a time, in the order of their offsets.

    - `where`: a folder, which its broker may go on writing, or the URL of a server; None: the lake alone.
    - `topic`: a name, a pattern, or several of them. Topics come one behind the other.
    - `start`: an offset, a `Position`, a time; None or "earliest": the oldest record that there is.
    - `end`: an offset or a time, not included; None or "latest": what is there now.
    - `lake`: the lake that keeps old records; a `LakeHistory` where it needs storage options.
    - `columns`: of topic, epoch, offset, sequence, time, key, value, headers, due, expires and priority.
    - `typed`: the fields of the topic's type are columns in place of `value`; values that do not fit it are in the
      column `_corrupt_record`.
    - `fail_on_data_loss`: records of the range that are neither here nor there are an error, `DataLost`. Otherwise
      they are logged.
    - `client`: how to reach the server: the options of `runnel.open`.

    >>> for batch in runnel.arrow.batches("runnel://localhost:7788", "orders.>", start=yesterday):
    ...     ...
    """
    found = _Reading(where, topic, start, end, lake, columns, typed, fail_on_data_loss, client or {})
    try:
        yield from found.batches()
    finally:
        found.close()


class _Reading:
    """One read: where it reads, what of each topic, and with which columns."""

    def __init__(
        self,
        where: str | os.PathLike[str] | None,
        topic: str | Sequence[str],
        start: Place,
        end: Place,
        lake: str | os.PathLike[str] | LakeHistory | None,
        columns: Sequence[str] | None,
        typed: bool,
        fail: bool,
        client: Mapping[str, Any],
    ) -> None:
        try:
            import pyarrow as pa

            from runnel.lake import LakeHistory
            from runnel.lake.layout import record_schema
        except ImportError as error:
            raise NotSupported("runnel.arrow", f"{error}; pip install 'runnel-mq[lake]'") from error
        self._patterns = [check_pattern(one) for one in ([topic] if isinstance(topic, str) else topic)]
        self._start, self._end = _checked(start, end, self._patterns)
        self._loss = DataLossPolicy(fail=fail)
        every = record_schema()
        chosen = COLUMNS if columns is None else tuple(columns)
        if unknown := [name for name in chosen if name not in every.names]:
            raise InvalidOption("columns", unknown[0], f"records have {', '.join(every.names)}")
        self._lake: LakeHistory | None = None
        if lake is not None:
            self._lake = lake if isinstance(lake, LakeHistory) else LakeHistory(lake)
        if where is None and self._lake is None:
            raise InvalidOption("where", None, "name a folder, the URL of a server, or a lake")
        self._reader = None if where is None else opened(location_of(where, client))
        try:
            if self._reader is not None and self._lake is not None:
                self._lake.check_journal(self._reader.journal)
            self._topics = self._found()
            # What decoding needs is read, too.
            self._plain = pa.schema([every.field(name) for name in (chosen if not typed else _with_value(chosen))])
            self._layout = self._typed_layout() if typed else None
            self.schema = self._plain if self._layout is None else _typed_schema(self._plain, chosen, self._layout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    # -- what is read -------------------------------------------------------------------------------------------

    def _found(self) -> list[TopicBounds]:
        """The topics, and where they begin and end: in the journal, or in the lake alone."""
        if self._reader is not None:
            found = durable_only(self._reader.bounds(self._patterns), self._patterns)
        else:
            assert self._lake is not None, "one of them is there"
            ends = {name: (epoch, end) for (name, epoch), end in sorted(self._lake.next_offsets().items())}
            wanted = (name for name in ends if any(matches(one, name) for one in self._patterns))
            # All that is there is below the first offset of a journal.
            found = [TopicBounds(name, ends[name][0], ends[name][1], ends[name][1]) for name in wanted]
        known = {one.topic for one in found}
        for name in self._patterns:
            if not is_pattern(name) and name not in known:
                raise UnknownTopic(name)
        return found

    def _typed_layout(self) -> ColumnLayout:
        from runnel.arrow.typed_values import TypedDecoder

        schemas = [one.schema for one in self._topics]
        if not schemas or None in schemas or any(one != schemas[0] for one in schemas):
            why = "the topics have no type, or not the same one, or are in a lake alone; read their values as bytes"
            raise InvalidOption("typed", True, why)
        assert schemas[0] is not None, "it was just looked at"
        return ColumnLayout(TypedDecoder(schemas[0], bad="_corrupt_record"), header_list=True)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for one in self._topics:
            for batch in self._topic(one):
                yield batch if self._layout is None else _typed(batch, self.schema, self._layout)

    def _topic(self, bounds: TopicBounds) -> Iterator[pa.RecordBatch]:
        place, end = self._place(self._start, bounds, bounds.first), self._place(self._end, bounds, bounds.end)
        end = min(end, bounds.end)
        if self._lake is not None and self._start in (None, "earliest"):
            oldest = self._lake.first_offset(bounds.topic, bounds.epoch)
            place = place if oldest is None else min(place, oldest)
        place = place if self._reader is None else max(place, min(self._reader.gone(bounds.topic), bounds.first))
        first = bounds.first
        while place < end:
            if place < first:
                stop = min(first, end)
                yield from self._from_lake(bounds, place, stop)
                place = stop
            elif (now := self._first_now(bounds)) > first:
                first = now
            else:
                yield from self._from_journal(bounds, place, end)
                return

    def _place(self, asked: Place, bounds: TopicBounds, otherwise: int) -> int:
        """An offset for what was asked for."""
        if isinstance(asked, Position):
            if asked.epoch != bounds.epoch:
                why = f"topic {bounds.topic!r} has the epoch {bounds.epoch} now: it was deleted and made again"
                raise InvalidOption("start", str(asked), why)
            return asked.offset
        if isinstance(asked, datetime):
            old = None if self._lake is None else self._lake.first_offset(bounds.topic, bounds.epoch, asked)
            return min(bounds.end if old is None else old, self._journal_at(bounds, asked))
        return asked if isinstance(asked, int) else otherwise

    def _journal_at(self, bounds: TopicBounds, asked: datetime) -> int:
        if self._reader is None:
            return bounds.end
        found = [one.at for one in self._reader.bounds([bounds.topic], asked) if one.epoch == bounds.epoch]
        return bounds.end if not found or found[0] is None else found[0]

    def _first_now(self, bounds: TopicBounds) -> int:
        """Where the topic begins in the journal by now."""
        if self._reader is None:
            return bounds.first
        found = [one.first for one in self._reader.bounds([bounds.topic]) if one.epoch == bounds.epoch]
        return found[0] if found else bounds.end

    # -- rows ---------------------------------------------------------------------------------------------------

    def _from_lake(self, bounds: TopicBounds, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """What the lake has of [start, end); what it was never given is lost."""
        known = 0
        if self._lake is not None:
            known = self._lake.next_offsets().get((bounds.topic, bounds.epoch), 0)
            for table in self._lake.rows(bounds.topic, bounds.epoch, start, min(end, known)):
                for batch in _without_expired(table, time.time()).select(self._plain.names).to_batches():
                    yield _without_null_lists(batch, self._plain)
        if known < end:
            self._loss.tell(bounds.topic, max(start, known), end, "the journal has dropped them, and no lake has them")

    def _from_journal(self, bounds: TopicBounds, start: int, end: int) -> Iterator[pa.RecordBatch]:
        from runnel.arrow.columns import RecordBatchBuilder

        assert self._reader is not None, "without one, all is in the lake"
        builder = RecordBatchBuilder(self._plain)
        rows = builder.buffer(bounds.topic, bounds.epoch)
        for found in self._reader.read(OffsetRange(bounds.topic, bounds.epoch, start, end, bounds.record_bytes)):
            if not isinstance(found, LostRange):
                rows.add(found, time.time())
            if rows.is_full or (rows.count and isinstance(found, LostRange)):
                yield builder.batch(rows)
                rows = builder.buffer(bounds.topic, bounds.epoch)
            if isinstance(found, LostRange):
                first, last = max(found.first, start), min(found.end, end)
                if self._lake is not None and first < last:
                    yield from self._from_lake(bounds, first, last)
                elif first < last:
                    self._loss.tell(bounds.topic, first, last, found.reason)
        if rows.count:
            yield builder.batch(rows)


def _checked(start: Place, end: Place, patterns: Sequence[str]) -> tuple[Place, Place]:
    """Where to begin and to end; `InvalidOption` for what makes no sense."""
    one_topic = len(patterns) == 1 and not is_pattern(patterns[0])
    for name, place, word in (("start", start, "earliest"), ("end", end, "latest")):
        if isinstance(place, bool) or (isinstance(place, str) and place != word):
            raise InvalidOption(name, place, f"expected {word!r}, an offset, a Position or a time")
        if isinstance(place, int | Position) and not one_topic:
            raise InvalidOption(name, place, "an offset is of one topic; several topics begin and end at a time")
        if isinstance(place, int) and place < 0:
            raise InvalidOption(name, place, "an offset is 0 or more")
        if isinstance(place, datetime) and place.tzinfo is None:
            raise InvalidOption(name, place, "a time needs a time zone: datetime.now(UTC)")
    if type(start) is type(end) and not isinstance(start, str) and start is not None and start > end:  # type: ignore[operator]
        raise InvalidOption("start", start, f"it lies behind the end, {end}")
    return start, end


def location_of(where: str | os.PathLike[str], client: Mapping[str, Any]) -> BrokerLocation:
    """Where topics are: a URL is a server, anything else a folder."""
    text = os.fspath(where)
    return BrokerLocation(url=text, client=dict(client)) if "://" in text else BrokerLocation(path=text)


def opened(location: BrokerLocation) -> RangeReader:
    """A reader. That of a server runs an event loop, so beside a running one (in a notebook) it has its own thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return open_range_reader(location)
    return open_range_reader(location) if location.url is None else _ThreadedReader(location)


class _ThreadedReader:
    """A reader that lives in a thread of its own; a caller waits for it."""

    def __init__(self, location: BrokerLocation) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runnel-arrow")
        try:
            self._reader: RangeReader = self._run(open_range_reader, location)
        except BaseException:
            self._thread.shutdown()
            raise

    def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        return self._thread.submit(work, *arguments).result()

    @property
    def journal(self) -> str:
        return self._reader.journal

    def bounds(
        self, patterns: Sequence[str], time: datetime | None = None, sequence: int | None = None
    ) -> list[TopicBounds]:
        return self._run(self._reader.bounds, patterns, time, sequence)

    def end_sequence(self) -> int:
        return self._run(self._reader.end_sequence)

    def gone(self, topic: str) -> int:
        return self._run(self._reader.gone, topic)

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        self._run(self._reader.expect, ranges)

    def read(self, wanted: OffsetRange) -> Iterator[DecodedBatch | LostRange]:
        found = self._reader.read(wanted)
        while (item := self._run(next, found, None)) is not None:
            yield item

    def close(self) -> None:
        self._run(self._reader.close)
        self._thread.shutdown()


def _without_expired(table: pa.Table, now: float) -> pa.Table:
    """Rows of the lake, less those whose time has run out."""
    import pyarrow.compute as pc

    expires = table["expires"]
    if expires.null_count == len(expires):
        return table
    return table.filter(pc.fill_null(pc.greater(expires, now), True))


def _without_null_lists(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of the lake as the journal's look: a record without headers has an empty list."""
    import pyarrow as pa

    arrays = []
    for field, column in zip(schema, batch.columns, strict=True):
        if field.name == "headers" and column.null_count:
            column = pa.ListArray.from_arrays(column.offsets, column.values, type=field.type)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# -- Typed values ----------------------------------------------------------------------------------------


def _with_value(chosen: Sequence[str]) -> tuple[str, ...]:
    """The columns, and those that a value is decoded with: its key and place say what and where it is."""
    return (*chosen, *(name for name in ("topic", "offset", "key", "value") if name not in chosen))


def _typed_schema(plain: pa.Schema, chosen: Sequence[str], layout: ColumnLayout) -> pa.Schema:
    import pyarrow as pa

    assert layout.typed is not None, "it is a typed one"
    own = [plain.field(name).with_name(shown) for shown, name in layout.own.items() if name in chosen]
    return pa.schema([*own, *layout.typed.fields])


def _typed(batch: pa.RecordBatch, schema: pa.Schema, layout: ColumnLayout) -> pa.RecordBatch:
    """The same rows, with the fields of their values as columns. An empty value that has a key is a tombstone."""
    import pyarrow as pa

    assert layout.typed is not None, "it is a typed one"
    values = tombstones_as_none(batch)
    made = layout.typed.columns(values, lambda at: (batch["topic"][at].as_py(), batch["offset"][at].as_py()))
    own = [batch.column(layout.own[name]) for name in schema.names if name in layout.own]
    return pa.RecordBatch.from_arrays([*own, *made], schema=schema)


def tombstones_as_none(batch: pa.RecordBatch) -> list[bytes | None]:
    """The values of records; an empty one that has a key is a tombstone: None."""
    values: list[bytes | None] = batch.column("value").to_pylist()
    if b"" not in values:
        return values
    keys = batch.column("key").to_pylist()
    return [None if value == b"" and key is not None else value for value, key in zip(values, keys, strict=True)]

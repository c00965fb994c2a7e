"""Reading topics into Arrow: the lake below the journal's first offset, then the journal, with no gap and no repeat.

The range of a read is fixed when it begins: records that are published later belong to another read. Retention runs
meanwhile: see `LayeredReader`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.arrow.layout import PLAIN_LAYOUT, ColumnLayout
from runnel.arrow.location import BrokerLocation, open_range_reader
from runnel.arrow.range_reader import (
    DataLossPolicy,
    FoundPart,
    RangeReader,
    durable_only,
)
from runnel.arrow.ranges import OffsetRange
from runnel.core.errors import InvalidOption, NotSupported, UnknownTopic
from runnel.core.pattern import check_pattern, is_pattern
from runnel.core.position import Position
from runnel.core.topic_bounds import TopicBounds, TopicFloors

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

    - `where`: a folder, which its broker may keep writing, or the URL of a server or a NATS cluster; None: the lake
      alone.
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

            from runnel.arrow.record_batches import RangeBatches
            from runnel.lake import LakeHistory
            from runnel.lake.layout import record_schema
        except ImportError as error:
            raise NotSupported("runnel.arrow", f"{error}; pip install 'runnel-mq[lake]'") from error
        self._patterns = [check_pattern(one) for one in ([topic] if isinstance(topic, str) else topic)]
        self._start, self._end = _checked(start, end, self._patterns)
        every = record_schema()
        chosen = COLUMNS if columns is None else tuple(columns)
        if unknown := [name for name in chosen if name not in every.names]:
            raise InvalidOption("columns", unknown[0], f"records have {', '.join(every.names)}")
        kept = lake if lake is None or isinstance(lake, LakeHistory) else LakeHistory(lake)
        self._reader = reader_of(where, kept, client)
        try:
            self._topics = self._found()
            plain = pa.schema([every.field(name) for name in chosen])
            layout = self._typed_layout() if typed else PLAIN_LAYOUT
            self.schema = _typed_schema(plain, layout) if typed else plain
            self._batches = RangeBatches(self.schema, DataLossPolicy(fail=fail), layout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._reader.close()

    # -- the range of a read ------------------------------------------------------------------------------------

    def _found(self) -> list[TopicBounds]:
        """The topics, and where they begin and end."""
        found = durable_only(self._reader.bounds(self._patterns), self._patterns)
        known = {one.topic for one in found}
        for name in self._patterns:
            if not is_pattern(name) and name not in known:
                raise UnknownTopic(name)
        return found

    def _typed_layout(self) -> ColumnLayout:
        from runnel.arrow.typed_values import TypedDecoder

        if not self._topics:
            raise InvalidOption("typed", True, f"there is no topic of {', '.join(self._patterns)} whose type is known")
        first = self._topics[0]
        for one in self._topics:
            if one.schema is None:
                in_journal = any(found.topic == one.topic for found in self._reader.journal_bounds([one.topic]))
                lacks = "has no type" if in_journal else "is in the lake alone, which keeps no types"
                raise InvalidOption("typed", True, f"topic {one.topic!r} {lacks}; leave typed out to read bytes")
            if one.schema != first.schema:
                why = f"topics {first.topic!r} and {one.topic!r} have different types; read them one by one"
                raise InvalidOption("typed", True, why)
        assert first.schema is not None, "it was just looked at"
        return ColumnLayout(TypedDecoder(first.schema, bad="_corrupt_record"), header_list=True)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for one in self._topics:
            first, end = self._place(self._start, one, one.first), self._place(self._end, one, one.end)
            floors = self._reader.floors([one.topic]).get(one.topic)
            first = first if floors is None else max(first, min(floors.gone, floors.moved))  # it was trimmed since
            wanted = OffsetRange(one.topic, one.epoch, first, min(end, one.end), one.record_bytes, one.density)
            if wanted.offsets:
                yield from self._batches.of(self._reader.read(wanted), wanted)

    def _place(self, asked: Place, bounds: TopicBounds, otherwise: int) -> int:
        """An offset for the given start or end."""
        if isinstance(asked, Position):
            if asked.epoch != bounds.epoch:
                why = f"topic {bounds.topic!r} has the epoch {bounds.epoch} now: it was deleted and made again"
                raise InvalidOption("start", str(asked), why)
            return asked.offset
        if isinstance(asked, datetime):
            found = [one.at for one in self._reader.bounds([bounds.topic], asked) if one.epoch == bounds.epoch]
            return bounds.end if not found or found[0] is None else found[0]
        return asked if isinstance(asked, int) else otherwise


def reader_of(where: str | os.PathLike[str] | None, lake: LakeHistory | None, client: Mapping[str, Any]) -> RangeReader:
    """The journal, the lake, or both."""
    if lake is None:
        if where is None:
            raise InvalidOption("where", None, "name a folder, the URL of a server, or a lake")
        return opened(location_of(where, client))
    from runnel.arrow.lake_reader import LakeReader, LayeredReader

    if where is None:
        return LakeReader(lake)
    return LayeredReader(opened(location_of(where, client)), LakeReader(lake))


def _checked(start: Place, end: Place, patterns: Sequence[str]) -> tuple[Place, Place]:
    """Where to begin and to end; `InvalidOption` for invalid values."""
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
    """A reader that runs in a separate thread; a caller waits for it."""

    def __init__(self, location: BrokerLocation) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runnel-arrow")
        self._is_closed = False
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

    def journal_bounds(self, patterns: Sequence[str]) -> list[TopicBounds]:
        return self._run(self._reader.journal_bounds, patterns)

    def end_sequence(self) -> int:
        return self._run(self._reader.end_sequence)

    def floors(self, topics: Sequence[str]) -> dict[str, TopicFloors]:
        return self._run(self._reader.floors, topics)

    def visible(self, topics: Iterable[str]) -> set[str]:
        return self._run(self._reader.visible, list(topics))

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        self._run(self._reader.expect, ranges)

    def read(self, wanted: OffsetRange) -> Iterator[FoundPart]:
        found = self._run(self._generator, wanted)
        try:
            while (item := self._run(next, found, None)) is not None:
                yield item
        finally:
            if not self._is_closed:  # else closing the reader ended it
                self._run(found.close)

    def _generator(self, wanted: OffsetRange) -> Generator[FoundPart, None, None]:
        yield from self._reader.read(wanted)

    def close(self) -> None:
        self._is_closed = True
        self._run(self._reader.close)
        self._thread.shutdown()


def _typed_schema(plain: pa.Schema, layout: ColumnLayout) -> pa.Schema:
    """The columns of the record that were chosen, and behind them those of the type, which stand for `value`."""
    import pyarrow as pa

    assert layout.typed is not None, "it is a typed one"
    own = [plain.field(name).with_name(shown) for shown, name in layout.own.items() if name in plain.names]
    return pa.schema([*own, *layout.typed.fields])

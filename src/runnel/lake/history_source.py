"""The lake as a `HistorySource`: a broker reads below its journal from the table.

Every answer comes from one snapshot of the table, so nothing is served that was not committed. A snapshot answers for
the offsets below the next offset that it stores: nothing is added there any more. For later offsets, a newer one is
read first. Answers are of bounded size and are read in threads, never on the event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.core.batch import Slice, SliceRun
from runnel.core.clock import from_micros, micros
from runnel.core.columns import DUE, EXPIRES, HEADERS, KEYS, PRIORITIES, Columns
from runnel.core.errors import UnknownLake
from runnel.core.history import HistoryBounds
from runnel.core.pattern import check_pattern, matches
from runnel.lake.files import LakeRange
from runnel.lake.snapshot import FileCache, LakeSnapshot, RowGroup
from runnel.lake.storage import need
from runnel.lake.table import Lake

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_RECORDS, PAGE_BYTES = 1 << 15, 8 << 20
"""Of one answer, about."""

CACHE_BYTES = 64 << 20
"""Caches row groups that were read: the records behind a small answer are in the same ones."""

THREADS = 2

T = TypeVar("T")


class LakeHistory:
    """Old records from a lake, for `runnel.open(..., history=)`.

    - `location`, `storage_options`: of the lake, as `Lake` takes them.
    - `pattern`: which topics it answers for.
    - `cache_bytes`: of the memory that it keeps for what it read.

    >>> async with runnel.open("data/", history=LakeHistory("lake/")) as broker:
    ...     async with broker.subscribe("orders", start="earliest") as records:
    ...         ...
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        pattern: str = ">",
        storage_options: Mapping[str, str] | None = None,
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        need("deltalake"), need("pyarrow"), need("numpy")  # now, not when the first record is requested
        self._lake, self._pattern = Lake(location, storage_options), check_pattern(pattern)
        self._cache = FileCache(self._lake.records, cache_bytes)
        self._lock = threading.Lock()
        self._known: LakeSnapshot | None = None
        self._oldest_of: LakeSnapshot | None = None  # the snapshot that the next ones are of
        self._oldest: dict[tuple[str, int], int | None] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<LakeHistory {self._lake.storage.uri}, {self._pattern!r}>"

    # -- HistorySource ------------------------------------------------------------------------------------------

    def covers(self, topic: str) -> bool:
        """Whether it answers for `topic`."""
        return matches(self._pattern, topic)

    async def bounds(self, topic: str, epoch: int) -> HistoryBounds | None:
        """The first offset of the topic's rows, and the next that will be added; None: there are no rows."""
        return await self._run(self._bounds, topic, epoch)

    async def read(self, topic: str, epoch: int, start: int, end: int) -> Sequence[Slice]:
        """The first rows of the topic with offsets in [start, end), one page of them."""
        return await self._run(self._read, topic, epoch, start, end)

    async def offset_at(self, topic: str, epoch: int, time: datetime) -> int | None:
        """The offset of the topic's first row at `time` or later."""
        return await self._run(self._offset_at, topic, epoch, micros(time))

    async def offset_at_sequence(self, topic: str, epoch: int, sequence: int) -> int | None:
        """The offset of the topic's first row with this sequence or a later one."""
        return await self._run(self._offset_at_sequence, topic, epoch, sequence)

    async def read_sequences(self, patterns: Sequence[str], start: int, end: int) -> Sequence[Slice]:
        """The first rows of the topics that match, with sequences in [start, end), one page of them."""
        return await self._run(self._read_sequences, self._matching(patterns), start, end)

    async def sequence_at(self, patterns: Sequence[str], time: datetime) -> int | None:
        """The sequence of the first row of these topics at `time` or later."""
        return await self._run(self._sequence_at, self._matching(patterns), micros(time))

    async def close(self) -> None:
        """End the threads. Calls under way fail, or end unseen."""
        self._is_closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do `work` in a thread; once more, if a file was removed under its hands."""
        if self._is_closed:
            raise OSError(f"the history of {self._lake.storage.uri} is closed")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="runnel-lake")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._twice, work, arguments)
        except asyncio.CancelledError:
            if self._is_closed:
                raise OSError(f"the history of {self._lake.storage.uri} is closed") from None
            raise

    def _twice(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        try:
            return work(*arguments)
        except FileNotFoundError:
            self._snapshot(newest=True)
            return work(*arguments)

    # -- without an event loop: in the caller's thread ----------------------------------------------------------

    def check_journal(self, journal: str) -> None:
        """Raise `LakeMismatch` if the lake holds records of another journal."""
        self._lake.check_journal(journal)

    @property
    def journal(self) -> str | None:
        """The id of the journal whose records the lake holds; None: no archive said it."""
        return self._lake.journal if self._lake.exists else None

    def next_offsets(self) -> Mapping[tuple[str, int], int]:
        """By topic and epoch, the offset after the last record that the newest snapshot holds."""
        snapshot = self._snapshot_or_none(newest=True)
        return {} if snapshot is None else snapshot.next_offsets

    def end_sequence(self) -> int:
        """The sequence after the last row of the newest snapshot."""
        snapshot = self._snapshot_or_none(newest=True)
        return 0 if snapshot is None else max((file.last_sequence + 1 for file in snapshot.files), default=0)

    def first_offsets(
        self, topics: Iterable[tuple[str, int]], *, since: datetime | None = None, sequence: int = 0
    ) -> dict[tuple[str, int], int]:
        """By topic and epoch, the offset of the first row, at `since` or later, with this sequence or a later one.

        All of one snapshot. Topics without such a row are left out.
        """
        snapshot = self._snapshot_or_none(newest=True)
        found: dict[tuple[str, int], int] = {}
        if snapshot is None:
            return found
        for key in topics:
            if since is not None:
                first = self._offset_at(*key, micros(since))
            elif sequence:
                first = self._offset_at_sequence(*key, sequence, snapshot)
            else:
                first = self._oldest_in(snapshot, *key)
            if first is not None:
                found[key] = first
        return found

    def _oldest_in(self, snapshot: LakeSnapshot, topic: str, epoch: int) -> int | None:
        """The offset of a topic's first row. Each is looked for once in a snapshot."""
        if self._oldest_of is not snapshot:
            self._oldest_of, self._oldest = snapshot, {}
        if (topic, epoch) not in self._oldest:
            bounds = self._bounds(topic, epoch, snapshot)
            self._oldest[topic, epoch] = None if bounds is None else bounds.first
        return self._oldest[topic, epoch]

    def rows(self, topic: str, epoch: int, start: int, end: int) -> Iterator[pa.Table]:
        """The rows of the topic with offsets in [start, end), in order, as the newest snapshot has them.

        Some at a time: at most as many as are in memory at once.
        """
        place, is_retry = start, False
        while True:
            try:
                snapshot = self._snapshot_or_none(newest=True)
                if snapshot is None:
                    return
                for part in self._parts(snapshot, topic, epoch, place, end):
                    yield part
                    place, is_retry = int(part["offset"][-1].as_py()) + 1, False
                return
            except FileNotFoundError:  # a file was removed that this snapshot names: a newer one does not
                if is_retry:
                    raise
                is_retry = True

    # -- in a thread --------------------------------------------------------------------------------------------

    def _snapshot(self, *, newest: bool) -> LakeSnapshot:
        """The snapshot that was read last, or the newest one."""
        with self._lock:
            if newest or self._known is None:
                self._known = self._lake.snapshot(self._known)
            return self._known

    def _snapshot_or_none(self, *, newest: bool) -> LakeSnapshot | None:
        """The same; None, if there is no lake yet: the archive creates it."""
        try:
            return self._snapshot(newest=newest)
        except UnknownLake:
            return None

    def _bounds(self, topic: str, epoch: int, snapshot: LakeSnapshot | None = None) -> HistoryBounds | None:
        snapshot = snapshot or self._snapshot_or_none(newest=True)
        end = None if snapshot is None else snapshot.next_offsets.get((topic, epoch))
        if snapshot is None or end is None:
            return None
        first = end
        for file in snapshot.of_topic(topic, self._lake.buckets):
            if file.first >= first:
                break
            for group in self._cache.groups(file, topic, epoch):
                first = min(first, group.ranges[0].first)
        return HistoryBounds(first, end) if first < end else None

    def _read(self, topic: str, epoch: int, start: int, end: int) -> list[Slice]:
        snapshot = self._snapshot_or_none(newest=False)
        known = 0 if snapshot is None else snapshot.next_offsets.get((topic, epoch), 0)
        if snapshot is not None and (found := self._page(snapshot, topic, epoch, start, min(end, known))):
            return found
        if known >= end:
            return []
        snapshot = self._snapshot_or_none(newest=True)
        if snapshot is None:
            return []
        known = snapshot.next_offsets.get((topic, epoch), 0)
        return self._page(snapshot, topic, epoch, start, min(end, known))

    def _page(self, snapshot: LakeSnapshot, topic: str, epoch: int, start: int, end: int) -> list[Slice]:
        """The first rows in [start, end): of one row group or, where these hold few of the topic, of several."""
        found: list[Any] = []
        rows = size = 0
        for part in self._parts(snapshot, topic, epoch, start, end):
            found.append(part)
            rows, size = rows + len(part), size + part.nbytes
            if rows >= PAGE_RECORDS // 2 or size >= PAGE_BYTES:
                break
        return _slices(found, by_sequence=False)

    def _parts(self, snapshot: LakeSnapshot, topic: str, epoch: int, start: int, end: int) -> Iterator[pa.Table]:
        """The rows of a topic in [start, end), row group by row group."""
        np = need("numpy")
        for group in self._in_order(snapshot, topic, epoch, start, end):
            one = group.ranges[0]
            table = self._cache.rows(group)
            begin = _begin(self._cache.index(group.path)[group.number], one)
            offsets = table["offset"].slice(begin, one.count).to_numpy()
            first, last = np.searchsorted(offsets, (start, end))
            if first < last:
                yield table.slice(begin + int(first), int(last - first))

    def _in_order(
        self,
        snapshot: LakeSnapshot,
        topic: str,
        epoch: int,
        start: int,
        end: int,
        since: int = -(2**63),
        sequence: int = 0,
    ) -> Iterator[RowGroup]:
        """Row groups with records of a topic, by their first offsets."""
        waiting: list[RowGroup] = []
        for file in snapshot.of_topic(topic, self._lake.buckets, start, end, since):
            if file.last_sequence < sequence:
                continue
            while waiting and waiting[0].ranges[0].first < file.first:
                yield waiting.pop(0)
            for group in self._cache.groups(file, topic, epoch):
                one = group.ranges[0]
                is_there = one.last >= start and one.first < end
                if is_there and one.last_time >= since and one.last_sequence >= sequence:
                    waiting.append(group)
            waiting.sort(key=lambda group: group.ranges[0].first)
        yield from waiting

    def _offset_at(self, topic: str, epoch: int, time: int) -> int | None:
        for newest in (False, True):
            snapshot = self._snapshot_or_none(newest=newest)
            if snapshot is None:
                continue
            for group in self._in_order(snapshot, topic, epoch, 0, 2**63 - 1, time):
                one = group.ranges[0]
                begin = _begin(self._cache.index(group.path)[group.number], one)
                part = self._cache.rows(group).slice(begin, one.count)
                late = (_times(part) >= time).nonzero()[0]
                if len(late):
                    return int(part["offset"][int(late[0])].as_py())
        return None

    def _offset_at_sequence(
        self, topic: str, epoch: int, sequence: int, snapshot: LakeSnapshot | None = None
    ) -> int | None:
        np = need("numpy")
        snapshot = snapshot or self._snapshot_or_none(newest=True)
        if snapshot is None:
            return None
        for group in self._in_order(snapshot, topic, epoch, 0, 2**63 - 1, sequence=sequence):
            one = group.ranges[0]
            if one.first_sequence >= sequence:
                return one.first
            begin = _begin(self._cache.index(group.path)[group.number], one)
            part = self._cache.rows(group).slice(begin, one.count)
            at = int(np.searchsorted(part["sequence"].to_numpy(), sequence))
            return int(part["offset"][at].as_py())
        return None

    # -- in a thread: several topics ----------------------------------------------------------------------------

    def _matching(self, patterns: Sequence[str]) -> Callable[[str], bool]:
        known: dict[str, bool] = {}

        def is_wanted(topic: str) -> bool:
            if topic not in known:
                known[topic] = self.covers(topic) and any(matches(one, topic) for one in patterns)
            return known[topic]

        return is_wanted

    def _read_sequences(self, is_wanted: Callable[[str], bool], start: int, end: int) -> list[Slice]:
        snapshot = self._snapshot_or_none(newest=True)
        while snapshot is not None and start < end:
            groups, until = self._next_groups(snapshot, is_wanted, start, end)
            if groups and (found := self._merged(groups, is_wanted, start, until)) is not None:
                return _slices([found], by_sequence=True)
            start = until
        return []

    def _next_groups(
        self, snapshot: LakeSnapshot, is_wanted: Callable[[str], bool], start: int, end: int
    ) -> tuple[list[RowGroup], int]:
        """Row groups with the first records from `start` on, and up to which sequence they are all there are.

        By their ranges that is about one page.
        """
        np = need("numpy")
        files = snapshot.of_sequences(start, end)
        groups: list[RowGroup] = []
        spans: list[tuple[int, int, int]] = []  # the first and last sequence, and how many
        until = end
        for at, file in enumerate(files):
            for number, ranges in enumerate(self._cache.index(file.path)):
                wanted = tuple(one for one in ranges if is_wanted(one.topic) and _overlaps(one, start, end))
                if wanted:
                    groups.append(RowGroup(file.path, number, wanted))
                    spans += [(one.first_sequence, one.last_sequence, one.count) for one in wanted]
            until = files[at + 1].first_sequence if at + 1 < len(files) else end
            if until > start and spans and _estimate(np.array(spans), start, until) >= PAGE_RECORDS:
                break
        if not spans:
            return [], end
        until = max(until, start + 1)
        found = np.array(spans)
        low, high = start + 1, until
        while low < high:  # the least place before which there is a page
            middle = (low + high) // 2
            if _estimate(found, start, middle) >= PAGE_RECORDS:
                high = middle
            else:
                low = middle + 1
        until = min(low, until)
        return [group for group in groups if any(_overlaps(one, start, until) for one in group.ranges)], until

    def _merged(
        self, groups: Iterable[RowGroup], is_wanted: Callable[[str], bool], start: int, until: int
    ) -> pa.Table | None:
        """Rows with sequences in [start, until), in order: the first, if there are too many. None: there are none."""
        pa, np = need("pyarrow"), need("numpy")
        held: Any = None
        for group in groups:
            table, index = self._cache.rows(group), self._cache.index(group.path)[group.number]
            picked = []
            for one in group.ranges:
                sequences = table["sequence"].slice(begin := _begin(index, one), one.count).to_numpy()
                first, last = np.searchsorted(sequences, (start, until))
                if first < last:
                    picked.append(table.slice(begin + int(first), int(last - first)))
            if not picked:
                continue
            held = pa.concat_tables([*([] if held is None else [held]), *picked])
            if len(held) > 2 * PAGE_RECORDS or held.nbytes > 2 * PAGE_BYTES:
                held = _first_page(held)
                until = int(held["sequence"][-1].as_py()) + 1
        return None if held is None else _first_page(held)

    def _sequence_at(self, is_wanted: Callable[[str], bool], time: int) -> int | None:
        snapshot, best = self._snapshot_or_none(newest=True), None
        for file in () if snapshot is None else snapshot.of_sequences(0, 2**63 - 1, time):
            if best is not None and file.first_sequence >= best:
                break
            for number, ranges in enumerate(index := self._cache.index(file.path)):
                for one in ranges:
                    if not is_wanted(one.topic) or one.last_time < time:
                        continue
                    if best is not None and one.first_sequence >= best:
                        continue
                    group = RowGroup(file.path, number, (one,))
                    part = self._cache.rows(group).slice(_begin(index[number], one), one.count)
                    late = (_times(part) >= time).nonzero()[0]
                    if len(late):
                        found = int(part["sequence"][int(late[0])].as_py())
                        best = found if best is None else min(best, found)
        return best


def history(location: str, pattern: str = ">", storage_options: dict[str, str] | None = None) -> LakeHistory:
    """A lake as a source of history: what `[history] kind = "lake"` opens."""
    return LakeHistory(location, pattern, storage_options)


# -- Rows of a row group ---------------------------------------------------------------------------------


def _begin(ranges: Sequence[LakeRange], one: LakeRange) -> int:
    """At which row of its row group a range begins: ranges lie one behind the other."""
    begin = 0
    for other in ranges:
        if other.key == one.key:
            return begin
        begin += other.count
    raise AssertionError("it is one of them")


def _overlaps(one: LakeRange, start: int, end: int) -> bool:
    return one.first_sequence < end and one.last_sequence >= start


def _estimate(spans: Any, start: int, end: int) -> float:
    """About how many records have sequences in [start, end), if each range is spread evenly."""
    np = need("numpy")
    first, last, count = spans[:, 0], spans[:, 1], spans[:, 2]
    inside = np.minimum(last + 1, end) - np.maximum(first, start)
    return float((np.maximum(inside, 0) / (last + 1 - first) * count).sum())


def _first_page(table: pa.Table) -> pa.Table:
    """The first rows by sequence, as many as are good to hold."""
    np, pa = need("numpy"), need("pyarrow")
    order = np.argsort(table["sequence"].to_numpy(), kind="stable")
    each = max(1, table.nbytes // len(table))
    return table.take(pa.array(order[: max(1, min(PAGE_RECORDS, PAGE_BYTES // each))]))


def _times(table: pa.Table) -> Any:
    return table["time"].cast(need("pyarrow").int64()).to_numpy()


# -- Rows as slices --------------------------------------------------------------------------------------


def _slices(tables: Sequence[pa.Table], *, by_sequence: bool) -> list[Slice]:
    """Rows in order as slices: each without holes in its offsets, and in its sequences where these are the order."""
    np, pa = need("numpy"), need("pyarrow")
    if not tables:
        return []
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    offsets, sequences, times = table["offset"].to_numpy(), table["sequence"].to_numpy(), _times(table)
    epochs, numbers, topics = table["epoch"].to_numpy(), *_topics(table)
    breaks = (np.diff(offsets) != 1) | (np.diff(epochs) != 0) | (np.diff(numbers) != 0)
    steps = np.diff(sequences) != 1
    breaks |= steps if by_sequence else False
    runs = (np.flatnonzero(breaks | steps | (np.diff(times) != 0)) + 1).tolist()
    cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(table)]
    values, columns = tuple(table["value"].to_pylist()), _carried(table)
    found, next_run = [], 0
    for first, last in pairwise(cuts):
        starts = [first]
        while next_run < len(runs) and runs[next_run] < last:
            if runs[next_run] > first:
                starts.append(runs[next_run])
            next_run += 1
        stretches = [SliceRun(int(offsets[at]), int(sequences[at]), from_micros(int(times[at]))) for at in starts]
        whole = first == 0 and last == len(table)
        carried = None if columns is None else columns if whole else columns.part(first, last)
        mine = values if whole else values[first:last]
        topic = topics[int(numbers[first])]
        found.append(Slice(topic, int(epochs[first]), int(offsets[first]), mine, stretches, carried))
    return found


def _topics(table: pa.Table) -> tuple[Any, list[str]]:
    """The number of each row's topic, and the topics."""
    encoded = table["topic"].combine_chunks().dictionary_encode()
    if isinstance(encoded, need("pyarrow").ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()


def _carried(table: pa.Table) -> Columns | None:
    """Keys, headers and times of the records."""
    found = Columns()
    for kind, name in ((KEYS, "key"), (DUE, "due"), (EXPIRES, "expires"), (PRIORITIES, "priority")):
        column = table[name]
        if column.null_count < len(column):
            found[kind] = column.to_pylist()
    headers = table["headers"]
    if headers.null_count < len(headers):
        found[HEADERS] = [
            None if not pairs else {pair["key"]: pair["value"].decode() for pair in pairs}
            for pairs in headers.to_pylist()
        ]
    return found or None

"""Indexes: where the records of a segment lie, by topic and offset, by sequence, by time. Sparse.

While a segment is written its index grows in memory; when it is sealed, the index becomes a file that is mapped.
A window is a position to start reading from: an entry with records of the topic, at least `WINDOW` bytes behind the
window before. In a cleaned segment every entry has a window, and the windows of the segment are its blocks.
An index can always be rebuilt from its segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple, Protocol

import msgspec

from runnel.core.checksum import crc_of
from runnel.core.errors import BadBatch, FormatUnknown, JournalDamaged
from runnel.journal.format import entry, merged_batch, staged_block
from runnel.journal.format.entry import HOLDS_RECORDS, HOLDS_STAGED, STAGE_TOPIC, Part, PartKind, body_crc
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.segment import START, SegmentInfo

VERSION = 1
MAGIC = b"runnel/i"
WINDOW = 64 * 1024

HEADER = Struct("<8sIIQQQIII")  # magic, version, crc, segment number, id, end; windows, topics, topic windows
_WINDOW = Struct("<QQQ")  # sequence (or base offset), time, position
_TOPIC = Struct("<IIQQQQII")  # id, reserved, first, end, records, bytes, first window, windows
_AFTER_CRC = 16


class TopicRange(NamedTuple):
    """The entry of one topic in a segment's index."""

    first: int
    end: int
    records: int
    bytes: int


class SegmentBlock(NamedTuple):
    """A stretch of a cleaned segment: the sequences from `first` on lie in it, and nowhere else, up to `behind`.

    `end` and `behind` are None for the last one.
    """

    position: int
    end: int | None
    first: int
    behind: int | None


class IndexWindow(NamedTuple):
    """Where records of a topic begin: the first offset, its time, and the position of its entry."""

    base: int
    time: int
    position: int


class Index(Protocol):
    """Finds records in one segment."""

    def topics(self) -> Iterator[tuple[int, TopicRange]]:
        """Every topic that has records here, by id."""

    def range_of(self, topic: int) -> TopicRange | None:
        """The entry of `topic`."""

    def window(self, topic: int, offset: int) -> tuple[int, int | None]:
        """Where to begin reading for `offset` of a topic that is here, and where its next window is."""

    def base_behind(self, topic: int, position: int) -> int | None:
        """The offset that the first window of a topic at `position` or behind it begins with."""

    def window_at_time(self, topic: int, time: int) -> int:
        """Where to begin reading for the first record of a topic that is here, not older than `time`."""

    def windows_at_time(self, topic: int, time: int) -> tuple[IndexWindow | None, IndexWindow | None]:
        """The last window of a topic that is here and begins before `time`, and the one behind it."""

    def sequence_window(self, sequence: int) -> int:
        """Where to begin reading for `sequence`."""

    def time_window(self, time: int) -> int:
        """Where to begin reading for the first record not older than `time`."""

    def block(self, sequence: int, position: int = 0) -> SegmentBlock | None:
        """The block that holds `sequence`, or the first at `position` if that is further on; None: there is none."""

    def block_at_time(self, time: int) -> SegmentBlock | None:
        """The first block that may hold a record not older than `time`."""


class _Topic(msgspec.Struct, gc=False):
    """The index of a topic. All numbers of its windows are in one array: there may be a million topics."""

    windows: array[int]  # base, time and position of each
    first: int
    end: int
    records: int = 0
    bytes: int = 0

    @property
    def every(self) -> range:
        """The numbers of its windows."""
        return range(len(self.windows) // 3)

    def base(self, at: int) -> int:
        """The first offset of a window."""
        return self.windows[3 * at]

    def time(self, at: int) -> int:
        """The time of its first record."""
        return self.windows[3 * at + 1]

    def position(self, at: int) -> int:
        """Where it begins."""
        return self.windows[3 * at + 2]


class IndexBuilder:
    """The index of the segment that is being written. Others may read it meanwhile: it only grows."""

    def __init__(self) -> None:
        self._sequences, self._times, self._positions = array("Q"), array("Q"), array("Q")
        self._topics: dict[int, _Topic] = {}
        self.end_sequence = 0
        self.records = 0  # of topics; those that are staged do not count

    def add(
        self,
        position: int,
        topic: int,
        base: int,
        last: int,
        sequence: int,
        time: int,
        size: int,
        records: int | None = None,
        *,
        apart: bool = False,
        end_sequence: int | None = None,
    ) -> None:
        """A batch in the entry at `position`; of `records`, where there are holes between its offsets.

        In a cleaned segment every entry lies `apart`: its topic finds it by a window of its own, and readers by
        sequence find its block. A staged batch, whose topic is its stage, has no sequence yet. `end_sequence` is where
        its sequences end, if others lie between them.
        """
        if records is None:
            records = last - base + 1
        staged = topic >= STAGE_TOPIC
        if not (apart or staged) and (not self._positions or position >= self._positions[-1] + WINDOW):
            self.begin_block(position, sequence, time)
        found = self._topics.get(topic)
        if found is None:
            found = _Topic(array("Q", (base, time, position)), base, base)
        elif apart or position >= found.windows[-1] + WINDOW:
            found.windows.extend((base, time, position))
        self._topics[topic] = found
        found.end = last + 1
        found.records += records
        found.bytes += size
        if not staged:
            self.records += records
            self.end_sequence = max(self.end_sequence, sequence + records if end_sequence is None else end_sequence)

    def begin_block(self, position: int, sequence: int, time: int) -> None:
        """Entries from `position` on are behind all earlier ones: `sequence` and `time` are the lowest in them."""
        self._positions.append(position)  # first: a reader that finds a window by the other lists finds it here
        self._times.append(time)
        self._sequences.append(sequence)

    def __len__(self) -> int:
        return len(self._topics)

    def topics(self) -> Iterator[tuple[int, TopicRange]]:
        """Every topic that has records here, by id."""
        for topic in sorted(self._topics):
            found = self._topics[topic]
            yield topic, TopicRange(found.first, found.end, found.records, found.bytes)

    def range_of(self, topic: int) -> TopicRange | None:
        """The entry of `topic`."""
        found = self._topics.get(topic)
        return None if found is None else TopicRange(found.first, found.end, found.records, found.bytes)

    def window(self, topic: int, offset: int) -> tuple[int, int | None]:
        """Where to begin reading for `offset`, and where the next window is."""
        found = self._topics[topic]
        every = found.every
        at = max(0, bisect_right(every, offset, key=found.base) - 1)
        following = found.position(at + 1) if at + 1 < len(every) else None
        return found.position(at), following

    def base_behind(self, topic: int, position: int) -> int | None:
        """The offset that the first window of a topic at `position` or behind it begins with."""
        found = self._topics[topic]
        every = found.every
        at = bisect_left(every, position, key=found.position)
        return found.base(at) if at < len(every) else None

    def window_at_time(self, topic: int, time: int) -> int:
        """Where to begin reading for the first record not older than `time`."""
        found = self._topics[topic]
        return found.position(max(0, bisect_left(found.every, time, key=found.time) - 1))

    def windows_at_time(self, topic: int, time: int) -> tuple[IndexWindow | None, IndexWindow | None]:
        """The last window of a topic that begins before `time`, and the one behind it."""
        found = self._topics[topic]
        count = len(found.every)
        at = bisect_left(range(count), time, key=found.time)

        def window(at: int) -> IndexWindow | None:
            return IndexWindow(*found.windows[3 * at : 3 * at + 3]) if 0 <= at < count else None

        return window(at - 1), window(at)

    def sequence_window(self, sequence: int) -> int:
        """Where to begin reading for `sequence`."""
        return self._positions[max(0, bisect_right(self._sequences, sequence) - 1)]

    def time_window(self, time: int) -> int:
        """Where to begin reading for the first record not older than `time`."""
        return self._positions[max(0, bisect_left(self._times, time) - 1)]

    def block(self, sequence: int, position: int = 0) -> SegmentBlock | None:
        """The block that holds `sequence`, or the first at `position` if that is further on."""
        at = max(0, bisect_right(self._sequences, sequence) - 1, bisect_left(self._positions, position))
        return self._block(at)

    def block_at_time(self, time: int) -> SegmentBlock | None:
        """The first block that may hold a record not older than `time`."""
        return self._block(max(0, bisect_left(self._times, time) - 1))

    def _block(self, at: int) -> SegmentBlock | None:
        if at >= len(self._sequences):
            return None
        end, behind = None, None
        if at + 1 < len(self._sequences):
            end, behind = self._positions[at + 1], self._sequences[at + 1]
        return SegmentBlock(self._positions[at], end, self._sequences[at], behind)

    def encode(self, info: SegmentInfo) -> bytes:
        """The file of this index."""
        table: list[bytes] = []
        windows: list[bytes] = []
        for topic in sorted(self._topics):
            found = self._topics[topic]
            count = len(found.every)
            table.append(_TOPIC.pack(topic, 0, found.first, found.end, found.records, found.bytes, len(windows), count))
            windows.extend(_WINDOW.pack(*found.windows[3 * at : 3 * at + 3]) for at in found.every)
        own = b"".join(map(_WINDOW.pack, self._sequences, self._times, self._positions))
        counts = (len(self._positions), len(table), len(windows))
        header = HEADER.pack(MAGIC, VERSION, 0, info.number, info.id, info.end, *counts)
        covered = header[_AFTER_CRC:] + own + b"".join(table) + b"".join(windows)
        return header[:12] + crc_of(covered).to_bytes(4, "little") + covered


def check_version(data: bytes | memoryview, info: SegmentInfo) -> None:
    """Raise FormatUnknown if a whole index file was written in a later format."""
    if data[:8] == MAGIC and len(data) >= HEADER.size:
        version, crc = int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:_AFTER_CRC], "little")
        # One that is right but for its version is a damaged one of this version, and can be made again.
        if version != VERSION and crc != crc_of(bytes(data[_AFTER_CRC:])):
            raise FormatUnknown(info.index_name, version, VERSION)


class IndexFile:
    """The index of a sealed segment, mapped. Checked once, when it is opened."""

    def __init__(self, data: memoryview, info: SegmentInfo) -> None:
        if len(data) < HEADER.size or data[:8] != MAGIC:
            raise JournalDamaged(info.index_name, 0, "this is not an index")
        check_version(data, info)
        _, version, crc, number, segment_id, end, windows, topics, topic_windows = HEADER.unpack_from(data)
        size = HEADER.size + (windows + topic_windows) * _WINDOW.size + topics * _TOPIC.size
        if version != VERSION or len(data) != size or crc_of(bytes(data[_AFTER_CRC:])) != crc:
            raise JournalDamaged(info.index_name, 0, "the crc is wrong")
        if (number, segment_id, end) != (info.number, info.id, info.end):
            raise JournalDamaged(info.index_name, 0, "it belongs to another segment")
        self._data = data
        self._windows, self._topic_count = windows, topics
        self._topics_at = HEADER.size + windows * _WINDOW.size
        self._topic_windows_at = self._topics_at + topics * _TOPIC.size

    def topics(self) -> Iterator[tuple[int, TopicRange]]:
        """Every topic that has records here, by id."""
        for at in range(self._topic_count):
            topic, _, first, end, records, size, _, _ = self._topic(at)
            yield topic, TopicRange(first, end, records, size)

    def range_of(self, topic: int) -> TopicRange | None:
        """The entry of `topic`."""
        found = self._find(topic)
        return None if found is None else TopicRange(found[2], found[3], found[4], found[5])

    def window(self, topic: int, offset: int) -> tuple[int, int | None]:
        """Where to begin reading for `offset`, and where the next window is."""
        start, count = self._windows_of(topic)
        at = max(0, bisect_right(range(count), offset, key=lambda i: self._topic_window(start + i)[0]) - 1)
        following = self._topic_window(start + at + 1)[2] if at + 1 < count else None
        return self._topic_window(start + at)[2], following

    def base_behind(self, topic: int, position: int) -> int | None:
        """The offset that the first window of a topic at `position` or behind it begins with."""
        start, count = self._windows_of(topic)
        at = bisect_left(range(count), position, key=lambda i: self._topic_window(start + i)[2])
        return self._topic_window(start + at)[0] if at < count else None

    def window_at_time(self, topic: int, time: int) -> int:
        """Where to begin reading for the first record not older than `time`."""
        start, count = self._windows_of(topic)
        at = bisect_left(range(count), time, key=lambda i: self._topic_window(start + i)[1])
        return self._topic_window(start + max(0, at - 1))[2]

    def windows_at_time(self, topic: int, time: int) -> tuple[IndexWindow | None, IndexWindow | None]:
        """The last window of a topic that begins before `time`, and the one behind it."""
        start, count = self._windows_of(topic)
        at = bisect_left(range(count), time, key=lambda i: self._topic_window(start + i)[1])
        before = IndexWindow(*self._topic_window(start + at - 1)) if at else None
        return before, IndexWindow(*self._topic_window(start + at)) if at < count else None

    def sequence_window(self, sequence: int) -> int:
        """Where to begin reading for `sequence`."""
        at = bisect_right(range(self._windows), sequence, key=lambda i: self._window(i)[0])
        return self._window(max(0, at - 1))[2]

    def time_window(self, time: int) -> int:
        """Where to begin reading for the first record not older than `time`."""
        at = bisect_left(range(self._windows), time, key=lambda i: self._window(i)[1])
        return self._window(max(0, at - 1))[2]

    def block(self, sequence: int, position: int = 0) -> SegmentBlock | None:
        """The block that holds `sequence`, or the first at `position` if that is further on."""
        every = range(self._windows)
        at = max(0, bisect_right(every, sequence, key=lambda i: self._window(i)[0]) - 1)
        return self._block(max(at, bisect_left(every, position, key=lambda i: self._window(i)[2])))

    def block_at_time(self, time: int) -> SegmentBlock | None:
        """The first block that may hold a record not older than `time`."""
        at = bisect_left(range(self._windows), time, key=lambda i: self._window(i)[1])
        return self._block(max(0, at - 1))

    def _block(self, at: int) -> SegmentBlock | None:
        if at >= self._windows:
            return None
        behind, _, end = self._window(at + 1) if at + 1 < self._windows else (None, None, None)
        first, _, position = self._window(at)
        return SegmentBlock(position, end, first, behind)

    def _window(self, at: int) -> tuple[int, int, int]:
        found: tuple[int, int, int] = _WINDOW.unpack_from(self._data, HEADER.size + at * _WINDOW.size)
        return found

    def _topic_window(self, at: int) -> tuple[int, int, int]:
        found: tuple[int, int, int] = _WINDOW.unpack_from(self._data, self._topic_windows_at + at * _WINDOW.size)
        return found

    def _topic(self, at: int) -> tuple[int, int, int, int, int, int, int, int]:
        found: tuple[int, int, int, int, int, int, int, int] = _TOPIC.unpack_from(
            self._data, self._topics_at + at * _TOPIC.size
        )
        return found

    def _find(self, topic: int) -> tuple[int, int, int, int, int, int, int, int] | None:
        at = bisect_left(range(self._topic_count), topic, key=lambda i: self._topic(i)[0])
        if at < self._topic_count and (found := self._topic(at))[0] == topic:
            return found
        return None

    def _windows_of(self, topic: int) -> tuple[int, int]:
        found = self._find(topic)
        if found is None:
            raise KeyError(topic)
        return found[6], found[7]


# -- Indexes of cleaned segments -------------------------------------------------------------------------
# A window for every entry, and one for every block. An entry of a cleaned segment stores in its header, where
# others store the synced position, the position of its block: so blocks are found again after damage.


class _BlockBounds:
    """The facts of one block: the lowest sequence and time in it, and the end of its sequences."""

    __slots__ = ("end", "first", "position", "time")

    def __init__(self, position: int) -> None:
        self.position = position
        self.first = self.time = -1  # it holds no records, or none that could be read
        self.end = 0


class CleanedIndexBuilder:
    """Makes the index of a cleaned segment from its parts, in the order that they lie in."""

    def __init__(self) -> None:
        self.builder = IndexBuilder()
        self._blocks: list[_BlockBounds] = []
        self._spots: list[tuple[int, int]] = []  # positions whose contents are unknown

    def add(self, position: int, block: int, part: Part, runs: Sequence[RecordRun] | None = None) -> None:
        """A part in the entry at `position`, in the block that begins at `block`; of a merged one also its runs."""
        if part.kind not in HOLDS_STAGED and part.kind not in HOLDS_RECORDS:
            return
        if not self._blocks or block > self._blocks[-1].position:
            self._blocks.append(_BlockBounds(block))
        if part.kind in HOLDS_STAGED:
            topic = STAGE_TOPIC | part.topic
            self.builder.add(position, topic, part.base, part.last, 0, part.time, len(part.body), 1, apart=True)
        else:
            records = part.count if runs is None else sum(run.count for run in runs)
            size = len(part.body)
            self.builder.add(
                position, part.topic, part.base, part.last, part.sequence, part.time, size, records, apart=True
            )
            found = self._blocks[-1]
            if found.first < 0 or part.sequence < found.first:
                found.first, found.time = part.sequence, part.time
            found.end = max(found.end, end_sequence(part) if runs is None else _end(runs))

    def skip(self, position: int, end: int) -> None:
        """The contents between these positions are unknown."""
        self._spots.append((position, end))

    def finish(self, info: SegmentInfo) -> IndexBuilder:
        """The finished index.

        A block begins with the lowest sequence in it; one without records where the next one does. Behind damage it
        begins where the one before ends, and includes the missing records.
        """
        blocks = self._blocks
        if self._spots and (not blocks or blocks[0].position > START):
            blocks.insert(0, _BlockBounds(START))
        windows: list[tuple[int, int, int]] = []
        before, since = info.first_sequence, info.first_time
        for at, block in enumerate(blocks):
            behind = blocks[at + 1].position if at + 1 < len(blocks) else info.end
            if any(first < behind and end > block.position for first, end in self._spots):
                windows.append((block.position, before, since))
            else:
                windows.append((block.position, block.first, block.time))
            before, since = max(before, block.end), max(since, block.time)
        following = (info.end_sequence, info.last_time)
        for at in range(len(windows) - 1, -1, -1):
            if windows[at][1] < 0:
                windows[at] = (windows[at][0], *following)
            following = windows[at][1:]
        for window in windows:
            self.builder.begin_block(*window)
        return self.builder


def rebuild_cleaned_index(data: bytes, info: SegmentInfo) -> tuple[IndexBuilder, bool]:
    """The index of a cleaned segment, from the heads of its entries; and whether all of them are whole."""
    made = CleanedIndexBuilder()
    position, whole = START, True
    while position < info.end:
        head = entry.read_head(data, position, info.id, position)
        if head is None or head.end > info.end:
            whole = False
            following = next_head(data, position + 1, info, position + 1)
            until = info.end if following is None else following.position
            made.skip(position, until)
            position = until
            continue
        add_head(made, data, head)
        position = head.end
    return made.finish(info), whole


def add_head(made: CleanedIndexBuilder, data: bytes, head: entry.EntryHead) -> None:
    """Note the parts of an entry in the bytes of its segment. Their bodies need not be whole."""
    at = head.position + head.bodies
    for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
        body = data[at : at + length]
        at += length
        runs = known_runs(body, crc) if kind == PartKind.MERGED else None
        made.add(head.position, block_start(head), Part(kind, body, crc, topic, base, last, sequence, time), runs)


def block_start(head: entry.EntryHead | entry.Entry) -> int:
    """Where the block of an entry begins."""
    return head.synced if START <= head.synced <= head.position else head.position


def next_head(data: bytes, start: int, info: SegmentInfo, position: int) -> entry.EntryHead | None:
    """The next entry with a whole head in `data[start:]`, which begins at `position` of a segment."""
    at = data.find(entry.MAGIC, start)
    while at >= 0:
        head = entry.read_head(data, at, info.id, position + at - start)
        if head is not None and head.end <= info.end:
            return head
        at = data.find(entry.MAGIC, at + 1)
    return None


def known_runs(body: bytes, crc: int) -> list[RecordRun] | None:
    """The runs of a merged part that should have `crc`; None where they cannot be known."""
    if body_crc(PartKind.MERGED, body) != crc:
        return merged_batch.provable_runs(body, crc)
    try:
        return merged_batch.runs_of(body)
    except BadBatch:
        return None


def end_sequence(part: Part) -> int:
    """The end of the sequences of a part that holds records, if known."""
    if part.kind == PartKind.BLOCKS_COMMIT:
        share = staged_block.share_of(part.body)
        return part.sequence + (part.count if share is None else share.records)
    runs = known_runs(part.body, part.crc) if part.kind == PartKind.MERGED else None
    return part.sequence + part.count if runs is None else _end(runs)


def _end(runs: Sequence[RecordRun]) -> int:
    return runs[-1].sequence + runs[-1].count

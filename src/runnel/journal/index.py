"""Where the records of a segment lie: by topic and offset, by sequence, by time. Sparse.

While a segment is written its index grows in memory; when it is sealed the index becomes a file
of its own, which is mapped. A window is where to begin reading: an entry that holds records of
the topic, at least `WINDOW` bytes behind the one before. In a cleaned segment every entry has a
window of its topic, and those of the segment are its blocks. An index can always be made again.
Below: storage. Above: journal, history.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, Protocol

from runnel.core.checksum import crc_of
from runnel.core.journal_errors import FormatUnknown, JournalDamaged
from runnel.journal.entry import STAGE_TOPIC
from runnel.journal.segment import SegmentInfo

VERSION = 1
MAGIC = b"runnel/i"
WINDOW = 64 * 1024

_HEADER = Struct("<8sIIQQQIII")  # magic, version, crc, segment number, id, end; windows, topics, topic windows
_WINDOW = Struct("<QQQ")  # sequence (or base offset), time, position
_TOPIC = Struct("<IIQQQQII")  # id, reserved, first, end, records, bytes, first window, windows
_AFTER_CRC = 16


class TopicRange(NamedTuple):
    """What a segment holds of one topic."""

    first: int
    end: int
    records: int
    bytes: int


class Block(NamedTuple):
    """A stretch of a cleaned segment: the sequences from `first` on lie in it, and nowhere else, up to `behind`.

    `end` and `behind` are None for the last one.
    """

    position: int
    end: int | None
    first: int
    behind: int | None


class Window(NamedTuple):
    """Where records of a topic begin: the first offset, its time, and the position of its entry."""

    base: int
    time: int
    position: int


class Index(Protocol):
    """Finds records in one segment."""

    def topics(self) -> Iterator[tuple[int, TopicRange]]:
        """Every topic that has records here, by id."""

    def range_of(self, topic: int) -> TopicRange | None:
        """What is here of `topic`."""

    def window(self, topic: int, offset: int) -> tuple[int, int | None]:
        """Where to begin reading for `offset` of a topic that is here, and where its next window is."""

    def base_behind(self, topic: int, position: int) -> int | None:
        """The offset that the first window of a topic at `position` or behind it begins with."""

    def window_at_time(self, topic: int, time: int) -> int:
        """Where to begin reading for the first record of a topic that is here, not older than `time`."""

    def windows_at_time(self, topic: int, time: int) -> tuple[Window | None, Window | None]:
        """The last window of a topic that is here and begins before `time`, and the one behind it."""

    def sequence_window(self, sequence: int) -> int:
        """Where to begin reading for `sequence`."""

    def time_window(self, time: int) -> int:
        """Where to begin reading for the first record not older than `time`."""

    def block(self, sequence: int, position: int = 0) -> Block | None:
        """The block that holds `sequence`, or the first at `position` if that is further on; None: there is none."""

    def block_at_time(self, time: int) -> Block | None:
        """The first block that may hold a record not older than `time`."""


class _Topic:
    __slots__ = ("bases", "bytes", "end", "first", "positions", "records", "times")

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        self.records = self.bytes = 0
        self.bases, self.times, self.positions = array("Q"), array("Q"), array("Q")


class IndexBuilder:
    """The index of the segment that is being written. Others may read it meanwhile: it only grows."""

    def __init__(self) -> None:
        self._sequences, self._times, self._positions = array("Q"), array("Q"), array("Q")
        self._topics: dict[int, _Topic] = {}
        self.end_sequence = 0

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
    ) -> None:
        """A batch in the entry at `position`; of `records`, where there are holes between its offsets.

        In a cleaned segment every entry lies `apart`: its topic finds it by a window of its own, and readers by
        sequence find its block. A staged batch, whose topic is its stage, has no sequence yet.
        """
        if records is None:
            records = last - base + 1
        staged = topic >= STAGE_TOPIC
        if not (apart or staged) and (not self._positions or position >= self._positions[-1] + WINDOW):
            self.begin_block(position, sequence, time)
        found = self._topics.get(topic)
        if found is None:
            found = _Topic(base)
        if apart or not found.positions or position >= found.positions[-1] + WINDOW:
            found.positions.append(position)
            found.times.append(time)
            found.bases.append(base)
        self._topics[topic] = found
        found.end = last + 1
        found.records += records
        found.bytes += size
        if not staged:
            self.end_sequence = max(self.end_sequence, sequence + records)

    def begin_block(self, position: int, sequence: int, time: int) -> None:
        """What follows `position` is behind all that came before: `sequence` and `time` are the lowest in it."""
        self._positions.append(position)  # first: whoever finds a window by the others finds it here
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
        """What is here of `topic`."""
        found = self._topics.get(topic)
        return None if found is None else TopicRange(found.first, found.end, found.records, found.bytes)

    def window(self, topic: int, offset: int) -> tuple[int, int | None]:
        """Where to begin reading for `offset`, and where the next window is."""
        found = self._topics[topic]
        at = max(0, bisect_right(found.bases, offset) - 1)
        following = found.positions[at + 1] if at + 1 < len(found.positions) else None
        return found.positions[at], following

    def base_behind(self, topic: int, position: int) -> int | None:
        """The offset that the first window of a topic at `position` or behind it begins with."""
        found = self._topics[topic]
        at = bisect_left(found.positions, position)
        return found.bases[at] if at < len(found.positions) else None

    def window_at_time(self, topic: int, time: int) -> int:
        """Where to begin reading for the first record not older than `time`."""
        found = self._topics[topic]
        return found.positions[max(0, bisect_left(found.times, time) - 1)]

    def windows_at_time(self, topic: int, time: int) -> tuple[Window | None, Window | None]:
        """The last window of a topic that begins before `time`, and the one behind it."""
        found = self._topics[topic]
        count = len(found.bases)  # the last to grow
        at = bisect_left(found.times, time, 0, count)

        def window(at: int) -> Window | None:
            return Window(found.bases[at], found.times[at], found.positions[at]) if 0 <= at < count else None

        return window(at - 1), window(at)

    def sequence_window(self, sequence: int) -> int:
        """Where to begin reading for `sequence`."""
        return self._positions[max(0, bisect_right(self._sequences, sequence) - 1)]

    def time_window(self, time: int) -> int:
        """Where to begin reading for the first record not older than `time`."""
        return self._positions[max(0, bisect_left(self._times, time) - 1)]

    def block(self, sequence: int, position: int = 0) -> Block | None:
        """The block that holds `sequence`, or the first at `position` if that is further on."""
        at = max(0, bisect_right(self._sequences, sequence) - 1, bisect_left(self._positions, position))
        return self._block(at)

    def block_at_time(self, time: int) -> Block | None:
        """The first block that may hold a record not older than `time`."""
        return self._block(max(0, bisect_left(self._times, time) - 1))

    def _block(self, at: int) -> Block | None:
        if at >= len(self._sequences):
            return None
        end, behind = None, None
        if at + 1 < len(self._sequences):
            end, behind = self._positions[at + 1], self._sequences[at + 1]
        return Block(self._positions[at], end, self._sequences[at], behind)

    def encode(self, info: SegmentInfo) -> bytes:
        """The file of this index."""
        table: list[bytes] = []
        windows: list[bytes] = []
        for topic in sorted(self._topics):
            found = self._topics[topic]
            count = len(found.positions)
            table.append(_TOPIC.pack(topic, 0, found.first, found.end, found.records, found.bytes, len(windows), count))
            windows.extend(map(_WINDOW.pack, found.bases, found.times, found.positions))
        own = b"".join(map(_WINDOW.pack, self._sequences, self._times, self._positions))
        counts = (len(self._positions), len(table), len(windows))
        header = _HEADER.pack(MAGIC, VERSION, 0, info.number, info.id, info.end, *counts)
        covered = header[_AFTER_CRC:] + own + b"".join(table) + b"".join(windows)
        return header[:12] + crc_of(covered).to_bytes(4, "little") + covered


class IndexFile:
    """The index of a sealed segment, mapped. Checked once, when it is opened."""

    def __init__(self, data: memoryview, info: SegmentInfo) -> None:
        if len(data) < _HEADER.size or data[:8] != MAGIC:
            raise JournalDamaged(info.index_name, 0, "this is not an index")
        _, version, crc, number, segment_id, end, windows, topics, topic_windows = _HEADER.unpack_from(data)
        if version != VERSION:
            raise FormatUnknown(info.index_name, version, VERSION)
        size = _HEADER.size + (windows + topic_windows) * _WINDOW.size + topics * _TOPIC.size
        if len(data) != size or crc_of(bytes(data[_AFTER_CRC:])) != crc:
            raise JournalDamaged(info.index_name, 0, "the crc is wrong")
        if (number, segment_id, end) != (info.number, info.id, info.end):
            raise JournalDamaged(info.index_name, 0, "it belongs to another segment")
        self._data = data
        self._windows, self._topic_count = windows, topics
        self._topics_at = _HEADER.size + windows * _WINDOW.size
        self._topic_windows_at = self._topics_at + topics * _TOPIC.size

    def topics(self) -> Iterator[tuple[int, TopicRange]]:
        """Every topic that has records here, by id."""
        for at in range(self._topic_count):
            topic, _, first, end, records, size, _, _ = self._topic(at)
            yield topic, TopicRange(first, end, records, size)

    def range_of(self, topic: int) -> TopicRange | None:
        """What is here of `topic`."""
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

    def windows_at_time(self, topic: int, time: int) -> tuple[Window | None, Window | None]:
        """The last window of a topic that begins before `time`, and the one behind it."""
        start, count = self._windows_of(topic)
        at = bisect_left(range(count), time, key=lambda i: self._topic_window(start + i)[1])
        before = Window(*self._topic_window(start + at - 1)) if at else None
        return before, Window(*self._topic_window(start + at)) if at < count else None

    def sequence_window(self, sequence: int) -> int:
        """Where to begin reading for `sequence`."""
        at = bisect_right(range(self._windows), sequence, key=lambda i: self._window(i)[0])
        return self._window(max(0, at - 1))[2]

    def time_window(self, time: int) -> int:
        """Where to begin reading for the first record not older than `time`."""
        at = bisect_left(range(self._windows), time, key=lambda i: self._window(i)[1])
        return self._window(max(0, at - 1))[2]

    def block(self, sequence: int, position: int = 0) -> Block | None:
        """The block that holds `sequence`, or the first at `position` if that is further on."""
        every = range(self._windows)
        at = max(0, bisect_right(every, sequence, key=lambda i: self._window(i)[0]) - 1)
        return self._block(max(at, bisect_left(every, position, key=lambda i: self._window(i)[2])))

    def block_at_time(self, time: int) -> Block | None:
        """The first block that may hold a record not older than `time`."""
        at = bisect_left(range(self._windows), time, key=lambda i: self._window(i)[1])
        return self._block(max(0, at - 1))

    def _block(self, at: int) -> Block | None:
        if at >= self._windows:
            return None
        behind, _, end = self._window(at + 1) if at + 1 < self._windows else (None, None, None)
        first, _, position = self._window(at)
        return Block(position, end, first, behind)

    def _window(self, at: int) -> tuple[int, int, int]:
        found: tuple[int, int, int] = _WINDOW.unpack_from(self._data, _HEADER.size + at * _WINDOW.size)
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

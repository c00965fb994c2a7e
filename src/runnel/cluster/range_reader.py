"""Reads a range of offsets of one topic, for Spark and Arrow: messages by stream sequence, many with one direct get.

Any replica answers a direct get, also one that lags behind the others. So when it has no more, the request goes to the
leader, and only the leader's answer ends a range.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from runnel.cluster.catalog import ClusterCatalog
from runnel.cluster.jetstream import JetStream, StoredCopy
from runnel.cluster.layout import (
    GONE,
    StoredMessage,
    UnitFollower,
    first_offset,
    slices_of,
    stored_message,
    stream_sequence,
)
from runnel.core.batch_format import UnpackedBatch, pack, unpack
from runnel.core.clock import micros
from runnel.core.errors import BadBatch
from runnel.core.record import MissedRange

PAGE, PAGE_BYTES = 1000, 4 << 20  # messages, and their bytes, of one direct get

DELETED = "the topic was deleted"


class FoundRecords(NamedTuple):
    """Records of one unit. `offset`: that of the first, which is its sequence, too; `time` in microseconds."""

    batch: UnpackedBatch
    offset: int
    time: int


class ClusterRangeReader:
    """The records of a topic in [first, end), in order."""

    def __init__(self, js: JetStream, catalog: ClusterCatalog, topic: str, epoch: int, first: int, end: int) -> None:
        self._js, self._catalog = js, catalog
        self._topic, self._epoch, self._end = topic, epoch, end
        self._everything = js.subjects.every_bucket(topic)
        self._at = max(1, stream_sequence(first))
        self._follower = UnitFollower(first)
        self._unit: list[StoredMessage] = []
        self._has_begun = self._is_over = False

    def __repr__(self) -> str:
        return f"<ClusterRangeReader of {self._topic!r} up to {self._end}, at message {self._at}>"

    async def take(self) -> list[FoundRecords | MissedRange]:
        """The next records, some of them outside of the range; empty: the range is read."""
        found: list[FoundRecords | MissedRange] = []
        while not self._is_over and not found:
            entry = self._catalog.get(self._topic)
            if entry is None or entry.epoch != self._epoch:
                self._miss(self._end, DELETED, found)
                break
            copies = await self._js.get_many(self._everything, self._at, PAGE, PAGE_BYTES)
            if not copies and (copy := await self._js.next(self._everything, self._at)) is not None:
                copies = [copy]
            if not copies:
                self._flush(found)
                self._miss(entry.trimmed, GONE, found)
            for copy in copies:
                if not self._add(copy, found):
                    break
        return found

    def _add(self, copy: StoredCopy, found: list[FoundRecords | MissedRange]) -> bool:
        """Take a message; False: those behind it in this page are not wanted."""
        self._at = copy.sequence + 1
        try:
            message = stored_message(self._topic, copy.sequence, copy.nanoseconds, copy.head, copy.payload)
        except BadBatch as error:
            self._unreadable(copy.sequence, error, found)
            return True
        if message.epoch != self._epoch:
            return True
        if message.number and not self._has_begun:
            self._at, self._has_begun = message.first, True  # the other messages of its unit come before this one
            return False
        self._has_begun = True
        if self._unit and self._unit[0].first != message.first:
            self._flush(found)
        if first_offset(message.first) >= self._end:
            self._told(self._follower.missed([message]), found)
            self._is_over = True
            return False
        self._unit.append(message)
        if message.number + 1 == message.messages:
            self._flush(found)
        return True

    def _flush(self, found: list[FoundRecords | MissedRange]) -> None:
        """Hand out a unit, which may lack messages."""
        unit, self._unit = self._unit, []
        if not unit:
            return
        self._told(self._follower.missed(unit), found)
        head = unit[0]
        time = micros(head.time)
        try:
            if len(unit) == 1:
                batch = unpack(head.payload)
                found.append(FoundRecords(batch, first_offset(head.first) + batch.header.schema, time))
            else:
                found += [
                    FoundRecords(unpack(pack(one.values, one.columns)), one.start, time) for one in slices_of(unit)[0]
                ]
        except BadBatch as error:
            self._unreadable(head.first, error, found)

    def _miss(self, end: int, why: str, found: list[FoundRecords | MissedRange]) -> None:
        """The range ends; records not reached before `end` are missed."""
        self._told(MissedRange(self._follower.reached or 0, end, 1, why), found)
        self._is_over = True

    def _told(self, missed: MissedRange | None, found: list[FoundRecords | MissedRange]) -> None:
        if missed is not None and missed.first < (end := min(missed.end, self._end)):
            found.append(replace(missed, end=end))

    def _unreadable(self, sequence: int, error: BadBatch, found: list[FoundRecords | MissedRange]) -> None:
        first = first_offset(sequence)
        found.append(MissedRange(first, first + 1, 1, f"it could not be read: {error.why}"))

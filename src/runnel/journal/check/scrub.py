"""Scrub: read sealed segments now and then, so that damage is known before the data is needed.

A step reads a little; the caller decides how often. The time of the last read is kept in memory only: at the start
each segment gets a random time within the interval, so every segment has its turn however often a process restarts.
"""

from __future__ import annotations

from collections.abc import Callable
from random import random
from typing import NamedTuple

from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.check.salvage import load_index
from runnel.journal.format import entry, segment
from runnel.journal.format.entry import HEADER
from runnel.journal.format.segment import START
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.read.segment_reader import SegmentReader
from runnel.journal.storage import File, Storage

STEP_BYTES = 256 * 1024  # bytes; an entry that is longer is read whole


class ScrubStep(NamedTuple):
    """The number of bytes read (0: nothing is due), and the damage found."""

    bytes: int
    damage: JournalDamaged | None = None


class Scrub:
    """Reads every sealed segment of a journal once per `interval` seconds. For one thread at a time."""

    def __init__(
        self,
        storage: Storage,
        history: JournalReader,
        interval: float,
        now: float,
        chance: Callable[[], float] = random,
    ) -> None:
        self._storage, self._history, self._interval = storage, history, interval
        # By segment id: the next time. Those that come later were just written, and are read after an interval.
        self._due = {one.info.id: now + chance() * interval for one in history.sources if one.info.sealed}
        self._source: SegmentReader | None = None  # the one that is being read
        self._file: File | None = None
        self._position = 0
        self.bytes = 0  # end of the part read so far
        self.segments = 0  # read to their end
        self.damage: dict[int, JournalDamaged] = {}  # by segment id, of those that are still there

    def __repr__(self) -> str:
        return f"<Scrub, {self.segments} segments read, {len(self.damage)} damaged>"

    def wait(self, now: float) -> float:
        """Seconds until something is due."""
        if self._source is not None:
            return 0.0
        self._look(now)
        return max(0.0, min(self._due.values(), default=now + self._interval) - now)

    def step(self, now: float) -> ScrubStep:
        """Read a part of the due segments, the longest unread first."""
        if self._source is None and not self._begin(now):
            return ScrubStep(0)
        source = self._source
        assert source is not None, "it has begun"
        before = self.bytes
        try:
            done = self._read(source)
        except (JournalDamaged, FormatUnknown, OSError) as error:
            if source in self._history.sources:
                if isinstance(error, FileNotFoundError):
                    error = JournalDamaged(source.info.name, 0, "it is missing")
                elif not isinstance(error, JournalDamaged):
                    error = JournalDamaged(source.info.name, self._position, str(error))
                return self._damaged(source, now, before, error)
            self._end(now)  # its owner dropped or replaced it meanwhile, so its files may be missing
        else:
            if done:
                self.segments += 1
                self.damage.pop(source.info.id, None)
                self._end(now)
        return ScrubStep(max(1, self.bytes - before))

    def close(self) -> None:
        """Close the segment that is being read."""
        if self._file is not None:
            self._file.close()
        self._file = self._source = None

    # -- which --------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> dict[int, SegmentReader]:
        """Take over the list of sealed segments: forget removed ones, schedule new ones."""
        there = {one.info.id: one for one in tuple(self._history.sources) if one.info.sealed}
        self._due = {one: self._due.get(one, now + self._interval) for one in there}
        self.damage = {one: found for one, found in self.damage.items() if one in there}
        return there

    def _begin(self, now: float) -> bool:
        there = self._look(now)
        due = min(self._due, key=self._due.__getitem__, default=None)
        if due is None or self._due[due] > now:
            return False
        self._source, self._position = there[due], 0
        return True

    def _end(self, now: float) -> None:
        if self._source is not None:
            self._due[self._source.info.id] = now + self._interval
        self.close()

    def _damaged(self, source: SegmentReader, now: float, before: int, damage: JournalDamaged) -> ScrubStep:
        """The rest of a damaged segment is for `runnel log verify`."""
        known = source.info.id in self.damage
        self.damage[source.info.id] = damage
        self._end(now)
        return ScrubStep(max(1, self.bytes - before), None if known else damage)

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, source: SegmentReader) -> bool:
        """The next entries of a segment, and behind them its index; whether that was all."""
        info = source.info
        if self._file is None:
            self._file = self._storage.open(info.name)
            header = self._file.read(0, START)
            segment.check_header(header, info)
            self.bytes += len(header)
            self._position = START
        if self._position < info.end:
            self._check_entries(self._file, source)
            return False
        load_index(self._storage, info)
        return True

    def _check_entries(self, file: File, source: SegmentReader) -> None:
        info, begin = source.info, self._position
        data = file.read(begin, min(STEP_BYTES, info.end - begin))
        if len(data) >= HEADER.size:
            _, _, length, *_ = HEADER.unpack_from(data)
            if len(data) < length <= info.end - begin:
                data += file.read(begin + len(data), length - len(data))
        self.bytes += len(data)
        while self._position - begin < len(data):
            found = entry.read_entry(data, self._position - begin, info.id, self._position)
            if found is None:
                break  # perhaps it is only cut off here; the next step begins with it
            self._position = found.end
        if self._position == begin:
            raise JournalDamaged(info.name, begin, "no whole entry begins here")

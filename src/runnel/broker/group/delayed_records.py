"""Read records again that a group dropped from memory: delayed ones, and failed ones whose next attempt is due.

Records in memory are returned at once. The rest is read from disk in a thread, a chunk at a time; nothing is read
before the group has room for it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from runnel.broker.durable.journal_reads import JournalReads
from runnel.broker.group.logic.group import GroupLogic
from runnel.broker.group.records import GroupSlice
from runnel.broker.read.attachment import Attachment
from runnel.broker.read.catch_up import END, CatchUp
from runnel.broker.read.cursor import DELETED, RETENTION
from runnel.broker.topic.log import Log
from runnel.core.batch import Slice
from runnel.journal.read.segment_reader import LostRange

BATCH = 256  # places requested from the group at a time; more urgent ones wait for no more than these
TURN = 1024  # places brought back in one turn of the loop
OPEN_CHUNKS = 4  # chunks in hand: records that failed now and a minute ago lie far apart, and are due side by side

NOT_FOUND = "no longer on disk: retention took it, or its topic was deleted"
SUSPECT = "perhaps damaged on disk, and so is an index"


class UnreadablePlaces(NamedTuple):
    """The requested records before `end` cannot be read: never again (`for_good`), or not before a restart."""

    end: int
    reason: str
    for_good: bool


class OpenChunk:
    """A chunk of the journal in hand, from where on it was not taken yet."""

    __slots__ = ("at", "catch_up")

    def __init__(self, catch_up: CatchUp) -> None:
        self.catch_up = catch_up
        self.at = 0


class DelayedRecords:
    """Reads delayed records of one group again. `missed` is called with unreadable places, and the reason."""

    def __init__(
        self,
        attachment: Attachment,
        group: GroupLogic,
        wake: Callable[[], None],
        missed: Callable[[int, str], None],
    ) -> None:
        self._attachment, self._group, self._timeline = attachment, group, attachment.timeline
        self._wake, self._missed = wake, missed
        self._wanted: deque[int] = deque()  # places that the group has called back, in order
        self._open_chunks: list[OpenChunk] = []  # the one used last is last

    def __repr__(self) -> str:
        return f"<DelayedRecords of group {self._group.name!r}, {len(self._wanted)} wanted>"

    def forget(self) -> None:
        """The group was reset: nothing is wanted any more."""
        self._wanted.clear()
        self._open_chunks.clear()

    def bring(self, now: float) -> None:
        """Return due records that are in memory; request those on disk, and wake the group later."""
        lost: Counter[str] = Counter()
        self._group.release(now)
        brought = 0
        while True:
            if not self._wanted:
                if brought >= TURN:
                    break
                self._wanted.extend(self._group.recall(BATCH))
                if not self._wanted:
                    if not self._group.scheduled:
                        self._open_chunks.clear()  # nothing will be wanted that is near
                    break
            if (room := self._group.room()) <= 0:
                break
            place = self._wanted[0]
            found = self._find(place, self._in_a_row(room))
            if found is None:
                break
            end = found.end if isinstance(found, UnreadablePlaces) else place + len(found.slice)
            if isinstance(found, GroupSlice):
                self._group.came(place, end, found)
            while self._wanted and self._wanted[0] < end:
                gone = self._wanted.popleft()
                brought += 1
                if isinstance(found, UnreadablePlaces) and self._group.gone(gone, now, for_good=found.for_good):
                    lost[found.reason] += 1
        for reason, count in lost.items():
            self._missed(count, reason)

    def has_more(self) -> bool:
        """Whether `bring` would have something to do: there was too much for once, or it is due since."""
        return not self._wanted and self._group.due > 0 and self._group.room() > 0

    def _in_a_row(self, limit: int) -> int:
        """How many of the places that are wanted follow one another, from the first on."""
        count, first = 1, self._wanted[0]
        while count < min(limit, len(self._wanted)) and self._wanted[count] == first + count:
            count += 1
        return count

    # -- finding ------------------------------------------------------------------------------------------------

    def _find(self, place: int, limit: int) -> GroupSlice | UnreadablePlaces | None:
        """Up to `limit` records from `place` on. None: they are being read."""
        if self._attachment.is_pattern:
            run = self._timeline.run_at(place)
            if run is None:
                return self._read(place, limit)
            log, offset = run.log, run.offset + place - run.sequence
            limit = min(limit, run.end - offset)
        else:
            (log,) = self._attachment.logs
            offset = place
            limit = min(limit, log.end - offset)
        if log.deleted:
            return UnreadablePlaces(place + limit, DELETED, for_good=True)
        if (first := self._timeline.first(log)) > offset:
            return UnreadablePlaces(place + min(limit, first - offset), RETENTION, for_good=True)
        if offset < log.base:
            return self._read(place, limit)
        return GroupSlice(place, log.slice(offset, offset + limit), is_kept=True)

    def _read(self, place: int, limit: int) -> GroupSlice | UnreadablePlaces | None:
        """The same for records that are not in memory."""
        reads = self._attachment.cursors.reads
        assert reads is not None, "only what is on disk was let go"
        if not any(log.stored is not None for log in self._attachment.logs):
            return UnreadablePlaces(place + 1, NOT_FOUND, for_good=True)
        chunk = self._open_chunk(place, reads)
        try:
            found = chunk.catch_up.take(place, limit)
        except OSError as error:  # of an index, or of records behind damage
            self._open_chunks.remove(chunk)
            return UnreadablePlaces(place + 1, f"cannot be read: {error}", for_good=False)
        if found is None:
            return None
        if found is END:
            suspect = reads.journal.history.suspect
            return UnreadablePlaces(place + 1, SUSPECT if suspect else NOT_FOUND, for_good=not suspect)
        first = self._place_of(found)
        if first > place:
            chunk.catch_up.put_back(found)
            return UnreadablePlaces(first, NOT_FOUND, for_good=True)
        # a member that needs it once more reads it again
        chunk.at = place + len(found) if isinstance(found, Slice) else found.end
        if isinstance(found, LostRange):
            return UnreadablePlaces(found.end, found.reason, for_good=False)
        log = self._attachment.catalog.logs.get(found.topic)
        if log is None or log.epoch != found.epoch:
            return UnreadablePlaces(place + len(found), DELETED, for_good=True)
        if (gone := self._timeline.first(log) - found.start) > 0:
            if gone < len(found):
                chunk.catch_up.put_back(found.cut(found.start + gone, found.end))
                chunk.at = place + gone
            return UnreadablePlaces(place + min(gone, len(found)), RETENTION, for_good=True)
        return GroupSlice(place, found, is_kept=True)

    def _place_of(self, found: Slice | LostRange) -> int:
        if isinstance(found, LostRange):
            return found.first
        return found.sequence if self._attachment.is_pattern else found.start

    def _open_chunk(self, place: int, reads: JournalReads) -> OpenChunk:
        """The chunk in hand that `place` is in, or comes right behind; else a new one."""
        near = [chunk for chunk in self._open_chunks if chunk.at <= place <= chunk.catch_up.reach]
        if near:
            chunk = near[-1]
            self._open_chunks.remove(chunk)
        else:
            del self._open_chunks[: max(0, len(self._open_chunks) + 1 - OPEN_CHUNKS)]
            sequence = self._attachment.is_pattern
            chunk = OpenChunk(CatchUp(reads, self._stored_logs, self._wake, sequence=sequence, on_demand=True))
        chunk.at = place
        self._open_chunks.append(chunk)
        return chunk

    def _stored_logs(self) -> dict[int, Log]:
        return {log.stored.id: log for log in self._attachment.logs if log.stored is not None}

"""From slices of a log to records that a group can hand out.

Records between the group's own places (records of other topics, records that retention took) is noted as settled, or
the group's floor would never pass it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from runnel.broker.group.logic.group import GroupLogic
from runnel.broker.group.logic.leases import Lease
from runnel.broker.group.logic.ready import PLAIN, is_special
from runnel.broker.read.cursor import Cursor, is_gone
from runnel.broker.topic.log import Log
from runnel.core.backend import Taken
from runnel.core.batch import Slice
from runnel.core.record import Record
from runnel.journal.format.ledger import GroupState


class GroupSlice:
    """A slice of a log at the group's places: offsets, or sequences of a pattern.

    `is_kept`: it is on disk too, so that a group need not hold on to what it does not want soon.
    """

    __slots__ = ("first", "is_kept", "slice")

    def __init__(self, first: int, slice_: Slice, *, is_kept: bool = False) -> None:
        self.first, self.slice, self.is_kept = first, slice_, is_kept

    def size(self, place: int) -> int:
        """How many bytes lie at `place`."""
        return len(self.slice.values[place - self.first])

    def weight(self, first: int, end: int) -> int:
        """How many bytes lie at [first, end)."""
        return sum(map(len, self.values(first, end)))

    def time(self, place: int) -> float:
        """The publish time of the record at `place`."""
        stretches = self.slice.stretches
        at = bisect_right(stretches, self.slice.start + place - self.first, key=_offset) - 1
        return stretches[max(0, at)].time.timestamp()

    def only(self, place: int) -> GroupSlice:
        """The one record at `place`, which holds on to no other."""
        if len(self.slice) == 1:
            return self
        offset = self.slice.start + place - self.first
        return GroupSlice(place, self.slice.cut(offset, offset + 1), is_kept=self.is_kept)

    def records(self, first: int, end: int) -> tuple[Record[bytes], ...]:
        """The records at [first, end)."""
        return self.slice.records[first - self.first : end - self.first]

    def values(self, first: int, end: int) -> tuple[bytes, ...]:
        """The values at [first, end)."""
        return self.slice.values[first - self.first : end - self.first]


_offset = attrgetter("offset")


def slice_of(lease: Lease) -> GroupSlice:
    """The records of a lease."""
    assert isinstance(lease.contents, GroupSlice)
    return lease.contents


def group_slice(part: Slice, log: Log | None, *, by_sequence: bool) -> GroupSlice:
    """A slice of `log` at the group's places."""
    is_kept = log is not None and log.stored is not None
    return GroupSlice(part.sequence if by_sequence else part.start, part, is_kept=is_kept)


def bring_records(group: GroupLogic, contents: GroupSlice, now: float) -> None:
    """Bring records to the group: the plain ones as stretches, those with traits one by one."""
    part, first = contents.slice, contents.first
    values, metas = part.values, part.metas
    end = first + len(values)
    if not metas:
        group.bring(first, end, contents)
        return
    plain = first
    shift = first - part.start
    for offset in sorted(metas):
        meta, place = metas[offset], offset + shift
        if not first <= place < end or not is_special(meta):
            continue
        if plain < place:
            group.bring(plain, place, contents)
        group.bring_one(place, meta, len(values[place - first]), contents, now)
        plain = place + 1
    if plain < end:
        group.bring(plain, end, contents)


def empty_ranges(taken: Taken, group_slices: list[GroupSlice], before: int, behind: int) -> Iterator[tuple[int, int]]:
    """The places between `before` and `behind`, where a cursor stood and stands, that hold nothing of the group's.

    What could not be read is not among them: it may be readable in another life.
    """
    place = before
    if taken.missed is not None and not is_gone(taken.missed):
        if place < taken.missed.first:
            yield place, taken.missed.first
        place = max(place, taken.missed.end)
    for contents in group_slices:
        if place < contents.first:
            yield place, contents.first
        place = contents.first + len(contents.slice)
    if place < behind:
        yield place, behind


LONG_RANGE = 4096  # places: fewer are sooner read and passed over than found the way around


def pass_settled(cursor: Cursor, known: GroupState) -> bool:
    """Move over much that was settled in an earlier life, without reading it; whether all of that life is passed."""
    if (end := known.settled.end_of(cursor.position)) is not None and end - cursor.position > LONG_RANGE:
        cursor.go_to(end)
    return cursor.position >= known.end


def bring_unsettled(group: GroupLogic, contents: GroupSlice, known: GroupState, now: float) -> None:
    """Bring records unsettled before the restart; failed ones keep their attempts."""
    part, shift = contents.slice, contents.first - contents.slice.start
    for place in range(contents.first, contents.first + len(part)):
        if place in known.settled:
            continue
        meta = part.metas.get(place - shift)
        failure = known.failed.get(place)
        if failure is not None:
            group.bring_again(place, meta or PLAIN, contents, failure.attempts, failure.reason, failure.due, now)
        elif meta is not None and is_special(meta):
            group.bring_one(place, meta, contents.size(place), contents, now)
        else:
            group.bring(place, place + 1, contents)

"""From slices of a log to what a group can hand out, and what it had done with them in an earlier life.

Places of a group are offsets, or sequences of the whole broker. What lies between its own (records of
other topics, what retention took) is noted as settled, or its floor would stay there for ever.
Below: group, journal.group_state. Above: group_reader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from runnel.broker.cursor import Cursor, Taken, is_gone
from runnel.broker.group.machine import Group
from runnel.broker.group.ready import PLAIN, is_special
from runnel.broker.log import Log
from runnel.core.batch import Slice
from runnel.core.record import Record
from runnel.journal.group_state import GroupState


class Stock:
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
        """When what lies at `place` was published."""
        stretches = self.slice.stretches
        at = bisect_right(stretches, self.slice.start + place - self.first, key=_offset) - 1
        return stretches[max(0, at)].time.timestamp()

    def only(self, place: int) -> Stock:
        """The one record at `place`, which holds on to no other."""
        if len(self.slice) == 1:
            return self
        offset = self.slice.start + place - self.first
        return Stock(place, self.slice.cut(offset, offset + 1), is_kept=self.is_kept)

    def records(self, first: int, end: int) -> tuple[Record[bytes], ...]:
        """The records at [first, end)."""
        return self.slice.records[first - self.first : end - self.first]

    def values(self, first: int, end: int) -> tuple[bytes, ...]:
        """The values at [first, end)."""
        return self.slice.values[first - self.first : end - self.first]


_offset = attrgetter("offset")


def stock_of(part: Slice, log: Log | None, *, by_sequence: bool) -> Stock:
    """A slice of `log` at the group's places."""
    is_kept = log is not None and log.stored is not None
    return Stock(part.sequence if by_sequence else part.start, part, is_kept=is_kept)


def bring(group: Group, stock: Stock, now: float) -> None:
    """Bring records to the group: the plain ones as stretches, those with traits one by one."""
    part = stock.slice
    end = stock.first + len(part)
    if not part.metas:
        group.bring(stock.first, end, stock)
        return
    plain = stock.first
    shift = stock.first - part.start
    for offset in sorted(part.metas):
        meta = part.metas[offset]
        if not part.start <= offset < part.end or not is_special(meta):
            continue
        place = offset + shift
        if plain < place:
            group.bring(plain, place, stock)
        group.bring_one(place, meta, stock.size(place), stock, now)
        plain = place + 1
    if plain < end:
        group.bring(plain, end, stock)


def holes(taken: Taken, stocks: list[Stock], before: int, behind: int) -> Iterator[tuple[int, int]]:
    """The places between `before` and `behind`, where a cursor stood and stands, that hold nothing of the group's.

    What could not be read is not among them: it may be readable in another life.
    """
    place = before
    if taken.missed is not None and not is_gone(taken.missed):
        if place < taken.missed.first:
            yield place, taken.missed.first
        place = max(place, taken.missed.end)
    for stock in stocks:
        if place < stock.first:
            yield place, stock.first
        place = stock.first + len(stock.slice)
    if place < behind:
        yield place, behind


FAR = 4096  # places: fewer are sooner read and passed over than found the way around


def pass_settled(cursor: Cursor, known: GroupState) -> bool:
    """Move over much that was settled in an earlier life, without reading it; whether all of that life is passed."""
    if (end := known.settled.end_of(cursor.position)) is not None and end - cursor.position > FAR:
        cursor.go_to(end)
    return cursor.position >= known.end


def bring_again(group: Group, stock: Stock, known: GroupState, now: float) -> None:
    """Bring what was not settled in an earlier life; what failed then is not as good as new."""
    part, shift = stock.slice, stock.first - stock.slice.start
    for place in range(stock.first, stock.first + len(part)):
        if place in known.settled:
            continue
        meta = part.metas.get(place - shift)
        failure = known.failed.get(place)
        if failure is not None:
            group.bring_again(place, meta or PLAIN, stock, failure.attempts, failure.reason, failure.due, now)
        elif meta is not None and is_special(meta):
            group.bring_one(place, meta, stock.size(place), stock, now)
        else:
            group.bring(place, place + 1, stock)

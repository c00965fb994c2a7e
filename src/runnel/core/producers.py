"""What each producer published last, so that a publish that is sent again is stored once.

A producer numbers its records; the numbers of one publish are [sequence, sequence + count). Of
each producer the last `MAX_POSITIONS` publishes are remembered (those that lie side by side count
as one), and of all producers the `MAX_PRODUCERS` that published last, for `MAX_SECONDS` after their
last publish. Whoever is forgotten begins anew. Time is an argument, in seconds.
Below: position, errors. Above: journal.ledger, broker.once.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from runnel.core.position import Position
from runnel.core.transaction_errors import SequenceForgotten, SequenceGap, SequenceOverlap

MAX_PRODUCERS = 16_384
MAX_POSITIONS = 64
MAX_SECONDS = 24 * 3600.0
MAX_SEQUENCE = 2**63 - 1

_FIELDS = 4  # of a stretch: its first number, the number behind its last, and the epoch and offset of its first


def id_of(name: str) -> int:
    """The id of the producer that is called `name`: 64 bits, and never 0."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") or 1


class Producer:
    """One producer: where its last publishes lie, its next number, and when it published last."""

    __slots__ = ("begun", "next", "stretches", "time")

    def __init__(self, begun: int, next: int, time: float, stretches: array[int] | None = None) -> None:
        self.begun = begun  # the first number that was not known to be stored when it was met; -1: all were
        self.next, self.time = next, time
        self.stretches: array[int] = array("Q") if stretches is None else stretches  # flat: half the memory of objects

    def where(self, sequence: int, end: int) -> Position | None:
        """Where the records [sequence, end) lie side by side, if that is remembered."""
        stretches = self.stretches
        for at in range(len(stretches) - _FIELDS, -1, -_FIELDS):
            first = stretches[at]
            if first <= sequence:
                if end <= stretches[at + 1]:
                    return Position(stretches[at + 2], stretches[at + 3] + sequence - first)
                break
        return None

    def add(self, sequence: int, end: int, position: Position) -> None:
        """Records that follow all that it published before."""
        stretches, epoch, offset = self.stretches, position.epoch, position.offset
        if (
            stretches
            and stretches[-3] == sequence
            and stretches[-2] == epoch
            and stretches[-1] + sequence - stretches[-4] == offset
        ):
            stretches[-3] = end
        else:
            stretches.extend((sequence, end, epoch, offset))
            if len(stretches) > MAX_POSITIONS * _FIELDS:
                del stretches[:_FIELDS]
        self.next = end

    def cut(self, sequence: int) -> None:
        """What it published from `sequence` on was not stored."""
        stretches = self.stretches
        while stretches and stretches[-4] >= sequence:
            del stretches[-_FIELDS:]
        if stretches and stretches[-3] > sequence:
            stretches[-3] = sequence
        self.next = sequence


class Producers:
    """The producers that published lately, the one that did so last at the end."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Producer] = OrderedDict()  # a dict would pass all that moved, to find its first
        self._unsorted = False  # checkpoints do not keep the order

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def next(self, producer: int, now: float) -> int | None:
        """The number that the next record of `producer` has; None: it is not known (any more)."""
        found = self._found(producer, now)
        return None if found is None else found.next

    def find(self, producer: int, sequence: int, count: int, now: float) -> Position | None:
        """Where this publish was stored first; None: it is new. Raises when its numbers fit neither."""
        found = self._found(producer, now)
        if found is None or sequence == found.next:
            return None
        if sequence > found.next:
            raise SequenceGap(producer, found.next, sequence)
        end = sequence + count
        if end > found.next:
            raise SequenceOverlap(producer, sequence, end, found.next)
        position = found.where(sequence, end)
        if position is None:
            raise SequenceForgotten(producer, sequence, found.stretches[0] if found.stretches else found.next)
        return position

    def remember(self, producer: int, sequence: int, count: int, position: Position, now: float) -> None:
        """A publish was stored, or is about to be. Saying it twice changes nothing."""
        found, end = self._known.pop(producer, None), sequence + count
        if found is not None and (
            found.time <= now - MAX_SECONDS  # nobody asked since it was to be forgotten
            # or whoever let it begin anew had forgotten it already, being told of more producers than this
            or (sequence < found.next and found.where(sequence, end) != position)
        ):
            found = None
        if found is None:
            found = Producer(sequence, sequence, now)
        self._known[producer] = found
        if now > found.time:
            found.time = now
        if sequence >= found.next:
            found.add(sequence, end, position)
        self.expire(now)

    def take_back(self, producer: int, sequence: int) -> None:
        """What `producer` published from number `sequence` on was not stored."""
        found = self._known.get(producer)
        if found is not None and sequence < found.next:
            if sequence <= found.begun:
                del self._known[producer]  # nothing of it ever was
            else:
                found.cut(sequence)

    def copy(self) -> Producers:
        """The same, apart. All of it is stored."""
        twin = Producers()
        twin._unsorted = self._unsorted
        for name, one in self._known.items():
            twin._known[name] = Producer(-1, one.next, one.time, one.stretches[:])
        return twin

    def _found(self, producer: int, now: float) -> Producer | None:
        found = self._known.get(producer)
        return found if found is not None and found.time > now - MAX_SECONDS else None

    def expire(self, now: float) -> None:
        """Forget those who published too long ago, and those who are too many."""
        if self._unsorted:
            self._known = OrderedDict(sorted(self._known.items(), key=lambda item: item[1].time))
            self._unsorted = False
        while self._known:
            oldest = next(iter(self._known))
            if len(self._known) <= MAX_PRODUCERS and self._known[oldest].time > now - MAX_SECONDS:
                return
            del self._known[oldest]

    # -- checkpoints --------------------------------------------------------------------------------------------

    def encode(self, producer: int) -> list[Any] | int:
        """One producer for a checkpoint; its id alone when it is forgotten."""
        found = self._known.get(producer)
        return producer if found is None else [producer, found.time, found.next, found.stretches.tolist()]

    def restore(self, item: list[Any] | int) -> None:
        """One producer from a checkpoint."""
        if isinstance(item, int):
            self._known.pop(item, None)
            return
        producer, time, following, stretches = item
        self._known[producer] = Producer(-1, following, time, array("Q", stretches))
        self._unsorted = True

"""Duplicate detection: producer sequences and message ids, so that a retried publish is stored once.

A producer numbers its records; one publish has the sequences [sequence, sequence + count). Per producer
the last MAX_POSITIONS publishes are remembered (contiguous ones count as one), and in all the
MAX_PRODUCERS that published last, for MAX_PRODUCER_SECONDS. A forgotten producer starts anew, unless what it
sends is a retry that may have been stored before it was forgotten: then the outcome is unknown. Time is an
argument, in seconds.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heapreplace
from itertools import islice
from math import inf
from typing import Any

from runnel.core.errors import OutcomeUnknown, SequenceForgotten, SequenceGap, SequenceOverlap
from runnel.core.position import Position

MAX_PRODUCERS = 65_536
MAX_POSITIONS = 64
MAX_TOTAL_POSITIONS = 1_048_576  # of all producers together: 34 MB
MAX_PRODUCER_SECONDS = 24 * 3600.0
MAX_SEQUENCE = 2**63 - 1

_FIELDS = 4  # of a stretch: its first number, the number behind its last, and the epoch and offset of its first


def producer_id(name: str) -> int:
    """The id of the producer that is called `name`: 64 bits, and never 0."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") or 1


def check_remembered(sent: float | None, forgotten: float) -> None:
    """Raise for a retry, sent first at `sent`, that may have been stored up to `forgotten` and then dropped."""
    if sent is not None and sent <= forgotten:
        raise OutcomeUnknown("too many others published since, or it is too long ago", repeated=True)


class ProducerState:
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
        """The records that it published from `sequence` on were not stored."""
        stretches = self.stretches
        while stretches and stretches[-4] >= sequence:
            del stretches[-_FIELDS:]
        if stretches and stretches[-3] > sequence:
            stretches[-3] = sequence
        self.next = sequence


class ProducerTable:
    """The producers that published lately, the one that did so last at the end."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, ProducerState] = (
            OrderedDict()
        )  # a dict would pass all that moved, to find its first
        self._unsorted = False  # checkpoints do not keep the order
        self._fields = 0  # in the stretches of all of them
        self._forgotten = -inf  # when the last producer published that was forgotten before its time

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def next(self, producer: int, now: float) -> int | None:
        """The number that the next record of `producer` has; None: it is not known (any more)."""
        found = self._found(producer, now)
        return None if found is None else found.next

    def find(self, producer: int, sequence: int, count: int, now: float, sent: float | None = None) -> Position | None:
        """Where this publish was stored first; None: it is new. Raises when its numbers fit neither.

        `sent`: it is a retry, and was sent first at this time. Raises if it may have been stored and forgotten.
        """
        found = self._found(producer, now)
        if found is None:
            self._sort()
            check_remembered(sent, max(self._forgotten, now - MAX_PRODUCER_SECONDS))
            return None
        if sequence == found.next:
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
        before = 0 if found is None else len(found.stretches)
        if found is not None and (
            found.time <= now - MAX_PRODUCER_SECONDS  # not used since it was to be forgotten
            # or the writer that let it begin anew had forgotten it already, since it knew more producers than this
            or (sequence < found.next and found.where(sequence, end) != position)
        ):
            found = None
        if found is None:
            found = ProducerState(sequence, sequence, now)
        self._known[producer] = found
        if now > found.time:
            found.time = now
        if sequence >= found.next:
            found.add(sequence, end, position)
        self._fields += len(found.stretches) - before
        self.expire(now)

    def take_back(self, producer: int, sequence: int) -> None:
        """The records that `producer` published from number `sequence` on were not stored."""
        found = self._known.get(producer)
        if found is not None and sequence < found.next:
            self._fields -= len(found.stretches)
            if sequence <= found.begun:
                del self._known[producer]  # none of its records were stored
            else:
                found.cut(sequence)
                self._fields += len(found.stretches)

    def copy(self) -> ProducerTable:
        """The same, apart. All of it is stored."""
        self._sort()
        twin = ProducerTable()
        for name, one in self._known.items():
            twin._known[name] = ProducerState(-1, one.next, one.time, one.stretches[:])
        twin._fields, twin._forgotten = self._fields, self._forgotten
        return twin

    def _found(self, producer: int, now: float) -> ProducerState | None:
        found = self._known.get(producer)
        return found if found is not None and found.time > now - MAX_PRODUCER_SECONDS else None

    def expire(self, now: float) -> None:
        """Forget producers that published too long ago, and the oldest of too many."""
        self._sort()
        while self._known:
            oldest = self._known[name := next(iter(self._known))]
            if oldest.time > now - MAX_PRODUCER_SECONDS:
                if len(self._known) <= MAX_PRODUCERS and self._fields <= MAX_TOTAL_POSITIONS * _FIELDS:
                    return
                self._forgotten = max(self._forgotten, oldest.time)
            del self._known[name]
            self._fields -= len(oldest.stretches)

    def _sort(self) -> None:
        """After a checkpoint was read: bring the producers into the order of their last publishes.

        A checkpoint does not say whether others were forgotten. They may have been if it is full, and then they
        published before all that it holds.
        """
        if self._unsorted:
            self._known = OrderedDict(sorted(self._known.items(), key=lambda item: item[1].time))
            self._unsorted = False
            self._fields = sum(len(one.stretches) for one in self._known.values())
            if len(self._known) >= MAX_PRODUCERS or self._fields > (MAX_TOTAL_POSITIONS - MAX_POSITIONS) * _FIELDS:
                self._forgotten = max(self._forgotten, next(iter(self._known.values())).time)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def encode(self, producer: int) -> list[Any] | int:
        """One producer for a checkpoint; its id alone when it is forgotten."""
        found = self._known.get(producer)
        return producer if found is None else [producer, found.time, found.next, found.stretches.tolist()]

    def restore(self, item: list[Any] | int) -> None:
        """One producer from a checkpoint."""
        self._unsorted = True
        if isinstance(item, int):
            self._known.pop(item, None)
            return
        producer, time, following, stretches = item
        self._known[producer] = ProducerState(-1, following, time, array("Q", stretches))


# -- Message ids -----------------------------------------------------------------------------------------
# Each topic remembers its last MAX_MESSAGE_IDS ids for MAX_MESSAGE_ID_SECONDS, all topics together
# MAX_TOTAL_MESSAGE_IDS. Whichever bound is reached first, the oldest ids are forgotten.


MAX_MESSAGE_IDS = 65_536
MAX_MESSAGE_ID_SECONDS = 120.0
MAX_TOTAL_MESSAGE_IDS = 262_144  # of all topics together: 55 MB, with ids of 36 characters
SHRINK_DIVISOR = 64  # when there are too many, this part of them goes at once


class MessageIdWindow:
    """Where each recent message id of one topic was stored."""

    __slots__ = ("_expires", "_order", "_seen", "epoch", "forgotten", "fresh", "max_ids", "max_seconds")

    def __init__(self, max_ids: int = MAX_MESSAGE_IDS, max_seconds: float = MAX_MESSAGE_ID_SECONDS) -> None:
        self.max_ids, self.max_seconds = max_ids, max_seconds
        self.epoch = 0  # of the topic
        self.fresh = 0  # ids that no checkpoint holds; at least so many
        self.forgotten = -inf  # when the last id was stored that is forgotten
        self._seen: dict[str, tuple[float, int]] = {}  # when, and at which offset
        # By both, oldest first. A dict knows that too, but to find its first key it passes all that were deleted.
        self._order: deque[str] = deque()
        self._expires = -inf  # when the oldest is too old, or was when that was last looked at: not later

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, message_id: str, now: float, sent: float | None = None) -> Position | None:
        """Where `message_id` was stored first, if that is still remembered.

        `sent`: it is a retry, and was sent first at this time. Raises if it may have been stored and forgotten.
        """
        self.expire(now)
        found = self._seen.get(message_id)
        if found is None:
            check_remembered(sent, max(self.forgotten, now - self.max_seconds))
            return None
        return Position(self.epoch, found[1])

    def remember(self, message_id: str, epoch: int, offset: int, now: float) -> None:
        """Note that `message_id` was stored at this position, behind all others."""
        self.epoch = epoch
        if message_id in self._seen:
            self._order.remove(message_id)  # the writer that forgot the id allowed it to be stored again
        self._order.append(message_id)
        self._seen[message_id] = (now, offset)
        self.fresh += 1
        self.expire(now)

    def claim(self, message_id: str, epoch: int, offset: int, now: float) -> int | None:
        """Note that `message_id` is stored at this position, unless it was before: the offset of that."""
        order, seen = self._order, self._seen
        if now >= self._expires:
            self.expire(now)
            self._expires = self.max_seconds + (seen[order[0]][0] if order else now)
        found = seen.get(message_id)
        if found is not None:
            return found[1]
        order.append(message_id)
        seen[message_id] = (now, offset)
        self.epoch = epoch
        self.fresh += 1
        if len(order) > self.max_ids:
            self.drop_oldest()
        return None

    def forget_from(self, offset: int) -> None:
        """The records from `offset` on were not stored."""
        while self._order and self._seen[self._order[-1]][1] >= offset:
            del self._seen[self._order.pop()]

    def copy(self) -> MessageIdWindow:
        """The same, apart."""
        twin = MessageIdWindow(self.max_ids, self.max_seconds)
        twin.epoch, twin._seen, twin._order = self.epoch, self._seen.copy(), self._order.copy()
        twin.forgotten = self.forgotten
        return twin

    @property
    def oldest(self) -> float:
        """When its oldest id was stored; there must be one."""
        return self._seen[self._order[0]][0]

    def drop_oldest(self) -> None:
        """Forget one id."""
        self.forgotten = max(self.forgotten, self._seen.pop(self._order.popleft())[0])

    def expire(self, now: float) -> None:
        """Forget entries that are too old or exceed the limits."""
        order, seen, too_old = self._order, self._seen, now - self.max_seconds
        while order and (len(order) > self.max_ids or seen[order[0]][0] <= too_old):
            self.drop_oldest()

    # -- checkpoints --------------------------------------------------------------------------------------------

    def encode(self, *, everything: bool) -> list[Any]:
        """For a checkpoint: the epoch, how many ids earlier ones hold, and all others; or all there are."""
        held = 0 if everything else max(0, len(self._seen) - self.fresh)
        return [self.epoch, held, [[name, *self._seen[name]] for name in islice(self._order, held, None)]]

    def restore(self, encoded: list[Any]) -> None:
        """From a checkpoint, on top of what those before it say."""
        epoch, held, found = encoded
        if not held:
            self._seen.clear()
            self._order.clear()
        for name, time, offset in found:
            self.remember(name, epoch, offset, time)
        self.fresh = 0
        if len(self._order) >= self.max_ids:  # there may have been others before these
            self.forgotten = max(self.forgotten, self.oldest)


class MessageIdLimit:
    """How many more ids there may be in all; looks at the windows only when that may be used up."""

    __slots__ = ("left", "limit")

    def __init__(self, limit: int = MAX_TOTAL_MESSAGE_IDS) -> None:
        self.limit, self.left = limit, 0

    def take(self, count: int, windows: Callable[[], Iterable[MessageIdWindow]]) -> None:
        """`count` ids came; if there may be too many now, the oldest of all go, some at a time."""
        self.left -= count
        if self.left < 0:
            self.left = self.limit - shrink_windows(windows(), self.limit)


def forgotten_of_all(windows: Iterable[MessageIdWindow], limit: int = MAX_TOTAL_MESSAGE_IDS) -> float:
    """Of windows from a checkpoint: up to when ids may have been stored that `shrink_windows` made them forget."""
    filled = [window for window in windows if len(window)]
    if sum(map(len, filled)) < limit - limit // SHRINK_DIVISOR:
        return -inf
    return min(window.oldest for window in filled)


def shrink_windows(windows: Iterable[MessageIdWindow], limit: int) -> int:
    """Bring the windows down to `limit` ids and a little less, if they are above it; how many are left."""
    filled = [window for window in windows if len(window)]
    total = sum(map(len, filled))
    if total > limit:
        heads = [(window.oldest, number, window) for number, window in enumerate(filled)]
        heapify(heads)
        for _ in range(total - (limit - limit // SHRINK_DIVISOR)):
            _, number, window = heads[0]
            window.drop_oldest()
            # An empty one goes last: there are always enough ids in the others.
            heapreplace(heads, (window.oldest if len(window) else float("inf"), number, window))
            total -= 1
    return total

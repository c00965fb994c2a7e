"""One look through a topic for keys: what is new is learnt, and what that supersedes is found.

It reads sealed segments, first what is new, to learn the newest offset of each key, then what was compacted
before. It takes nothing away. How far it came can be noted, and gone on from after a restart.
Below: history, staged, key_note, offset_set. Above: compaction.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise

from runnel.core.errors import BadBatch
from runnel.core.packing import HEADER_SIZE, MAX_RAW, Unpacked, unpack
from runnel.journal.found import Found, Lost, Staged, runs_of
from runnel.journal.history import History
from runnel.journal.key_note import PassNote
from runnel.journal.offset_set import OffsetSet
from runnel.journal.staged import followed

RECORDS = 500  # looked at between two looks at the clock
_BESIDE = 4  # bytes of a record besides its key and value: their lengths, about
_SIZE_BITS = (HEADER_SIZE + MAX_RAW).bit_length()
_MAX_SIZE = (1 << _SIZE_BITS) - 1
_NAME = 16  # bytes


class Known:
    """What is known of one topic, in this life."""

    __slots__ = ("cut_short", "kept", "look_at", "rests_until", "superseded", "surveyed", "told")

    def __init__(self, surveyed: int, look_at: int) -> None:
        self.told = surveyed  # what the journal knows of it
        self.surveyed = surveyed  # below it, no two records share a key, but for what is superseded
        self.superseded = OffsetSet()  # what the cleaner may take
        self.cut_short = False  # whether the last pass had too many keys to come to the end
        self.kept = 0  # records below `surveyed` that stay
        self.rests_until = 0  # it could not be read: when to try again
        self.look_at = look_at  # when a tombstone may go, in microseconds

    @property
    def clean(self) -> int:
        """Below this nothing is superseded."""
        lowest = self.superseded.lowest()
        return self.surveyed if lowest is None else min(lowest, self.surveyed)


class KeyPass:
    """One look through a topic. `step` until `done`."""

    def __init__(
        self, history: History, topic: int, known: Known, bounds: tuple[int, int], old: int, max_keys: int
    ) -> None:
        self.topic, self.done = topic, False
        self.read = 0  # bytes
        self.tombstone: int | None = None  # the time of the oldest that stayed
        self._history, self._known, self._old, self._max_keys = history, known, old, max_keys
        self._first, self._end = bounds
        self._newest: dict[bytes, int] = {}  # offset and size, in one number: there are many
        self._salt = secrets.token_bytes(16)  # nobody can choose keys that look the same to us
        self._clean, self._start = known.clean, max(known.surveyed, self._first)
        # A hold may have come to lie below what is known: nothing behind it is taken.
        self._stop = min(self._start, self._end)
        self._reached, self._kept = self._end, 0 if self._is_whole else known.kept
        self._fixed = False  # whether there was something that cannot be read
        self._at = self._start  # what lies before was looked at
        self._is_back = False  # whether it is at what was compacted before
        self._work = self._run()

    def __repr__(self) -> str:
        return f"<KeyPass of topic {self.topic}, {len(self._newest)} keys>"

    @property
    def _is_whole(self) -> bool:
        return self._stop == self._start

    def step(self) -> None:
        """Do a little."""
        if next(self._work, self) is self:
            self.done = True

    # -- across restarts ----------------------------------------------------------------------------------------

    def note(self) -> PassNote:
        """How far it came, at any time: what it looked at since the last chunk it may look at again."""
        values = self._newest.values()
        return PassNote(
            self.topic,
            self._known.surveyed,
            (self._first, self._end),
            self._old,
            self._clean,
            self._reached,
            self._kept,
            self._at,
            self.tombstone,
            self._fixed,
            self._is_back,
            self._salt,
            b"".join(self._newest),
            array("Q", [value >> _SIZE_BITS for value in values]).tobytes(),
            array("I", [value & _MAX_SIZE for value in values]).tobytes(),
        )

    @classmethod
    def resumed(cls, history: History, known: Known, note: PassNote, max_keys: int) -> KeyPass:
        """Go on from where it was noted. What it had found until then must be in `known`."""
        found = cls(history, note.topic, known, note.bounds, note.old, max_keys)
        found._clean, found._reached, found._kept = note.clean, note.reached, note.kept
        found._at, found.tombstone = note.at, note.tombstone
        found._fixed, found._is_back, found._salt = note.fixed, note.is_back, note.salt
        offsets, sizes = array("Q", note.offsets), array("I", note.sizes)
        names = (note.names[at : at + _NAME] for at in range(0, len(note.names), _NAME))
        found._newest = {
            name: offset << _SIZE_BITS | size for name, offset, size in zip(names, offsets, sizes, strict=True)
        }
        return found

    # -- looking ------------------------------------------------------------------------------------------------

    def _run(self) -> Iterator[None]:
        if not self._is_back:
            yield from self._learn()
            self._is_back, self._at = True, self._first
        if self._at < self._stop:
            yield from self._look_back()
        known = self._known
        known.surveyed, known.kept = max(known.surveyed, self._reached), max(0, self._kept)
        if self._is_whole:
            known.cut_short = self._reached < self._end
        else:
            self._stays(0)  # there may be some behind the hold
        self._newest = {}

    def _learn(self) -> Iterator[None]:
        """See which record of each key is the newest, in what is new."""
        known, newest, begin = self._known, self._newest, self._at
        for item in self._items(begin, self._end):
            if item is None:
                yield
                continue
            for at, (offset, time, key, is_empty, size) in enumerate(_keyed(item, begin) or ()):
                if offset >= self._end:
                    break
                name = self._name(key)
                if (before := newest.get(name)) is not None:
                    if before >> _SIZE_BITS >= offset:
                        continue  # it was looked at: before a restart, or before the cleaner put it elsewhere
                    known.superseded.add(before >> _SIZE_BITS, before & _MAX_SIZE)
                    self._kept -= 1
                elif len(newest) >= self._max_keys:
                    self._reached = offset
                    break
                newest[name] = offset << _SIZE_BITS | min(size, _MAX_SIZE)
                if is_empty:
                    self._stays(time)
                if at % RECORDS == RECORDS - 1:
                    yield
            self._kept += _count(item, begin, self._reached)
            if self._reached < self._end:
                break

    def _look_back(self) -> Iterator[None]:
        """Find what is superseded in what was compacted before."""
        known, newest, begin = self._known, self._newest, self._at
        for item in self._items(begin, self._stop):
            if item is None:
                yield
                continue
            if self._is_whole:
                self._kept += _count(item, begin, self._stop)
            if (keyed := _keyed(item, begin)) is None:
                self._fixed = True
                continue
            for at, (offset, time, key, is_empty, size) in enumerate(keyed):
                if offset >= self._stop:
                    break
                if offset in known.superseded:
                    self._kept -= self._is_whole
                    continue
                # A tombstone may go when no older record of its key can be there: none below, and none that hides.
                is_over = is_empty and time <= self._old and offset < self._clean and not self._fixed
                if is_over or self._name(key) in newest:
                    known.superseded.add(offset, size)
                    self._kept -= 1
                elif is_empty:
                    self._stays(time)
                if at % RECORDS == RECORDS - 1:
                    yield

    def _items(self, offset: int, end: int) -> Iterator[Found | Lost | None]:
        """What there is of the topic from `offset` on, and None after each chunk."""
        history, topic = self._history, self.topic
        plan = history.plan(topic, offset)
        while plan is not None and plan.place < end and plan.source.info.sealed:
            parsed = history.parse(plan, history.fetch(plan), (topic,), by_sequence=False)
            for item in parsed.items:
                if isinstance(item, Staged):
                    yield from self._staged(item, max(offset, item.base))
                else:
                    yield item
            self.read += max(0, parsed.position - plan.position)
            offset = max(offset, parsed.place)
            self._at = max(self._at, offset)
            yield None
            plan = history.plan(topic, offset, plan, parsed.position)

    def _staged(self, staged: Staged, offset: int) -> Iterator[Found | Lost | None]:
        """What was committed as a stage, from where it lies; the cleaner may put it elsewhere meanwhile."""
        for found in followed(self._history, staged, offset, by_sequence=False):
            if isinstance(found, int):
                self.read += found
                self._at = max(self._at, offset)
                yield None
            elif isinstance(found, Lost) and not self._is_there(staged, found.first):
                yield from self._items(found.first, staged.last + 1)
                return
            else:
                yield found
                offset = max(offset, found.end if isinstance(found, Lost) else found.last + 1)

    def _is_there(self, staged: Staged, offset: int) -> bool:
        """Whether a commit still stands for its records."""
        history, topic = self._history, self.topic
        plan = history.plan(topic, offset)
        if plan is None:
            return False
        parsed = history.parse(plan, history.fetch(plan), (topic,), by_sequence=False)
        return any(isinstance(item, Staged) and item.stage == staged.stage for item in parsed.items)

    def _name(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._salt).digest()

    def _stays(self, time: int) -> None:
        self.tombstone = time if self.tombstone is None else min(self.tombstone, time)


def _count(item: Found | Lost, first: int, end: int) -> int:
    """How many records there are in [first, end), with or without keys, about."""
    if isinstance(item, Lost):
        return 0
    return sum(max(0, min(end, run.offset + run.count) - max(first, run.offset)) for run in runs_of(item))


def _keyed(item: Found | Lost, first: int) -> Iterator[tuple[int, int, bytes, bool, int]] | None:
    """The offset, time and key of each record that has a key, from an offset on.

    And whether it is a tombstone, and how many bytes it has on disk. None: that cannot be told here.
    """
    if isinstance(item, Lost):
        return None
    try:
        return _keys_in(item, unpack(item.body, verify=False), first)  # the crc was checked when it was found
    except BadBatch:
        return None  # whoever reads it is told; here it stays


def _keys_in(item: Found, batch: Unpacked, first: int) -> Iterator[tuple[int, int, bytes, bool, int]]:
    keys, values = batch.keys, batch.values
    if keys is None:
        return
    sizes = _sizes(len(item.body), keys, values)
    if item.runs is None and batch.deltas is not None:
        for at, delta in enumerate(batch.deltas):
            if (key := keys[at]) is not None and item.base + delta >= first:
                yield item.base + delta, item.time, key, not values[at], sizes[at]
        return
    at = item.at
    for run in runs_of(item):
        for offset in range(run.offset, run.offset + run.count):
            if (key := keys[at]) is not None and offset >= first:
                yield offset, run.time, key, not values[at], sizes[at]
            at += 1


def _sizes(length: int, keys: Sequence[bytes | None], values: Sequence[bytes]) -> list[int]:
    """What each record has of the bytes of its batch, by how long it is before compression; together, all of them."""
    ends = list(accumulate(len(key or b"") + len(value) + _BESIDE for key, value in zip(keys, values, strict=True)))
    marks = [length * end // ends[-1] for end in ends]
    return [end - begin for begin, end in pairwise((0, *marks))]

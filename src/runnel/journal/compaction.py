"""Compaction by key: of each key of a topic only the newest record is kept.

A record with a key and an empty value is a *tombstone*: it takes all older records of its key with it, and
goes itself when it is old enough and none of them can be there any more. Records without a key stay.

A *pass* over a topic reads sealed segments: first what is new, to learn the newest offset of each key, then what
was compacted before, to find what that supersedes. It reads; the cleaner takes away. The keys of a pass are
bounded: it goes as far as they reach, and the next one goes on from there. Records that were staged are
neither taken nor looked into.
Below: history, living, offset_set. Above: broker.cleaning.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise

from runnel.core.errors import BadBatch, RunnelError
from runnel.core.packing import HEADER_SIZE, MAX_RAW, Unpacked, unpack
from runnel.journal.cleaner import Job
from runnel.journal.cleaning import WAIT
from runnel.journal.entry import Part
from runnel.journal.found import Found, Lost, Staged, runs_of
from runnel.journal.history import History
from runnel.journal.index import TopicRange
from runnel.journal.living import Living
from runnel.journal.offset_set import OffsetSet
from runnel.journal.parts import compacted_part

MAX_KEYS = 512 * 1024  # in one pass: some 80 MiB
RECORDS = 500  # looked at between two looks at the clock
TOMBSTONE_AGE = 24 * 3600.0
_LOOKS = 24  # tombstones are looked for so often in the time that they are kept
_BESIDE = 4  # bytes of a record besides its key and value: their lengths, about
_SIZE_BITS = (HEADER_SIZE + MAX_RAW).bit_length()
_MAX_SIZE = (1 << _SIZE_BITS) - 1


class _Topic:
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
        self, history: History, topic: int, known: _Topic, bounds: tuple[int, int], old: int, max_keys: int
    ) -> None:
        self.topic, self.done = topic, False
        self.read = 0  # bytes
        self.tombstone: int | None = None  # the time of the oldest that stayed
        self._history, self._known, self._old, self._max_keys = history, known, old, max_keys
        self._first, self._end = bounds
        self._newest: dict[bytes, int] = {}  # offset and size, in one number: there are many
        self._salt = secrets.token_bytes(16)  # nobody can choose keys that look the same to us
        self._work = self._run()

    def __repr__(self) -> str:
        return f"<KeyPass of topic {self.topic}, {len(self._newest)} keys>"

    def step(self) -> None:
        """Do a little."""
        if next(self._work, self) is self:
            self.done = True

    def _run(self) -> Iterator[None]:
        known, newest = self._known, self._newest
        clean, start = known.clean, max(known.surveyed, self._first)
        stop = min(start, self._end)  # a hold may have come to lie below what is known: nothing behind it is taken
        is_whole = stop == start
        reached, kept = self._end, 0 if is_whole else known.kept
        fixed = False  # whether there was something that cannot be taken, or not even be read
        for item in self._items(start, self._end):
            if item is None:
                yield
                continue
            for at, (offset, time, key, is_empty, size) in enumerate(_keyed(item, start) or ()):
                if offset >= self._end:
                    break
                name = self._name(key)
                if (before := newest.get(name)) is not None:
                    known.superseded.add(before >> _SIZE_BITS, before & _MAX_SIZE)
                    kept -= 1
                elif len(newest) >= self._max_keys:
                    reached = offset
                    break
                newest[name] = offset << _SIZE_BITS | min(size, _MAX_SIZE)
                if is_empty:
                    self._stays(time)
                if at % RECORDS == RECORDS - 1:
                    yield
            kept += _count(item, start, reached)
            if reached < self._end:
                break
        if self._first < stop:
            for item in self._items(self._first, stop):
                if item is None:
                    yield
                    continue
                if is_whole:
                    kept += _count(item, self._first, stop)
                if (keyed := _keyed(item, self._first)) is None:
                    fixed = True
                    continue
                for at, (offset, time, key, is_empty, size) in enumerate(keyed):
                    if offset >= stop:
                        break
                    if offset in known.superseded:
                        kept -= is_whole
                        continue
                    # A tombstone may go when no older record of its key can be there: none below, and none that hides.
                    is_over = is_empty and time <= self._old and offset < clean and not fixed
                    if is_over or self._name(key) in newest:
                        known.superseded.add(offset, size)
                        kept -= 1
                    elif is_empty:
                        self._stays(time)
                    if at % RECORDS == RECORDS - 1:
                        yield
        known.surveyed, known.kept = max(known.surveyed, reached), max(0, kept)
        if is_whole:
            known.cut_short = reached < self._end
        else:
            self._stays(0)  # there may be some behind the hold
        self._newest = {}

    def _items(self, offset: int, end: int) -> Iterator[Found | Staged | Lost | None]:
        """What there is of the topic from `offset` on, and None after each chunk."""
        history, topic = self._history, self.topic
        plan = history.plan(topic, offset)
        while plan is not None and plan.place < end and plan.source.info.sealed:
            parsed = history.parse(plan, history.fetch(plan), (topic,), by_sequence=False)
            yield from parsed.items
            self.read += max(0, parsed.position - plan.position)
            yield None
            offset = max(offset, parsed.place)
            plan = history.plan(topic, offset, plan, parsed.position)

    def _name(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._salt).digest()

    def _stays(self, time: int) -> None:
        self.tombstone = time if self.tombstone is None else min(self.tombstone, time)


class Compaction:
    """The compacted topics of a journal: which is due, and what was found in each."""

    def __init__(self, history: History, tombstone_age: float = TOMBSTONE_AGE, max_keys: int = MAX_KEYS) -> None:
        self._history, self._max_keys = history, max_keys
        self._age = int(tombstone_age * 1e6)
        self._topics: dict[int, _Topic] = {}
        self.error: Exception | None = None  # the last that kept a topic from being looked through

    def __repr__(self) -> str:
        return f"<Compaction of {len(self._topics)} topics>"

    def due(self, living: Living, holds: Mapping[int, int], now: int, but: Container[int] = ()) -> KeyPass | None:
        """A pass over a topic that has as much that is new as was kept before, or tombstones whose time has come.

        Nothing at or behind the offset that `holds` names for a topic is taken. Topics in `but` had their turn.
        """
        for topic in self._topics.keys() - living.compacting.keys():
            del self._topics[topic]
        for topic, (compacted, end) in living.compacting.items():
            if topic in but:
                continue
            known = self._topics.get(topic)
            if known is None:
                known = self._topics[topic] = _Topic(compacted, now + self._age // _LOOKS)
            if now < known.rests_until:
                continue
            first, hold = living.firsts[topic], holds.get(topic, end)
            enough = max(known.surveyed, first) + (1 if known.cut_short else max(1, known.kept))
            is_old = now >= known.look_at and min(known.surveyed, hold) > first
            if not is_old and min(end, hold) < enough:
                continue  # without a look at any segment: there may be many topics
            try:
                bound = min(self._sealed_end(topic), hold)
            except (OSError, RunnelError) as error:
                self.error = error
                known.rests_until = now + WAIT
                continue
            if is_old or bound >= enough:
                known.superseded.discard(0, first)
                bound = min(max(bound, known.surveyed), hold)  # what lay last may have been taken
                return KeyPass(self._history, topic, known, (first, bound), now - self._age, self._max_keys)
        return None

    def failed(self, broken: KeyPass, now: int) -> None:
        """A pass could not be done: its topic is left alone for a while. What it found so far is true."""
        if (known := self._topics.get(broken.topic)) is not None:
            known.rests_until = now + WAIT

    def over(self, done: KeyPass, now: int) -> Part | None:
        """A pass is done: what is to be written about it, if anything is."""
        known = self._topics.get(done.topic)
        if known is None:
            return None
        soon = now + self._age // _LOOKS + 1
        known.look_at = now + self._age if done.tombstone is None else max(soon, done.tombstone + self._age)
        if known.clean <= known.told:
            return None
        known.told = clean = known.clean
        return compacted_part(done.topic, clean, clean, known.kept, 0, now, clean)

    def taken(self, holds: Mapping[int, int]) -> dict[int, OffsetSet]:
        """What the cleaner may take, by topic: nothing from where it is held on, however long ago it was found."""
        found = ((topic, known.superseded.below(holds.get(topic))) for topic, known in self._topics.items())
        return {topic: offsets for topic, offsets in found if len(offsets)}

    def is_held(self, job: Job, holds: Mapping[int, int]) -> bool:
        """Whether a job takes something that has come to be held since it was made."""
        return any(
            job.living.taken[topic].count(max(found.first, holds[topic]), found.end)
            for topic in job.taken.keys() & holds.keys()
            for found in _ranges(job, topic)
        )

    def replaced(self, job: Job, now: int) -> list[Part]:
        """A job was put in place, and what it took is gone: what is to be written about it."""
        parts = []
        for topic, removed in job.taken.items():
            known = self._topics.get(topic)
            if known is None or not removed:
                continue
            ranges = _ranges(job, topic)
            for found in ranges:
                known.superseded.remove(job.living.taken[topic], found.first, found.end)
            parts.append(compacted_part(topic, ranges[0].first, ranges[-1].end, known.kept, removed, now, known.clean))
        return parts

    def _sealed_end(self, topic: int) -> int:
        """Up to where a topic lies in sealed segments."""
        for source in reversed(tuple(self._history.sources)):
            if source.info.sealed and (found := source.index.range_of(topic)) is not None:
                return found.end
        return 0


def _ranges(job: Job, topic: int) -> list[TopicRange]:
    """What a job read of a topic."""
    return [found for source in job.sources if (found := source.index.range_of(topic)) is not None]


def _count(item: Found | Staged | Lost, first: int, end: int) -> int:
    """How many records there are in [first, end), with or without keys, about."""
    if isinstance(item, Lost):
        return 0
    return sum(max(0, min(end, run.offset + run.count) - max(first, run.offset)) for run in runs_of(item))


def _keyed(item: Found | Staged | Lost, first: int) -> Iterator[tuple[int, int, bytes, bool, int]] | None:
    """The offset, time and key of each record that has a key, from an offset on.

    And whether it is a tombstone, and how many bytes it has on disk. None: that cannot be told here.
    """
    if isinstance(item, (Staged, Lost)):
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

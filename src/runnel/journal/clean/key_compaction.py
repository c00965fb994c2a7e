"""Compaction by key: of each key of a topic only the newest record is kept.

A record with a key and an empty value is a tombstone: it removes all older records of its key, and is removed itself
when it is old enough and none of them can be left. Records without a key stay. A pass over a topic reads; the cleaner
removes. The keys of one pass are bounded, and the next pass continues from there. Progress is stored in the file KEYS.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from hashlib import blake2b
from itertools import accumulate, pairwise

import msgspec

from runnel.core.batch_format import HEADER_SIZE, MAX_RAW, UnpackedBatch, unpack
from runnel.core.errors import BadBatch, RunnelError
from runnel.journal.clean.cleaning_job import CleaningJob
from runnel.journal.clean.live_records import LiveSnapshot
from runnel.journal.clean.planning import RETRY_AFTER
from runnel.journal.format.atomic_file import decode_value, encode_value, read_whole, replace_file
from runnel.journal.format.entry import Part
from runnel.journal.format.index import TopicRange
from runnel.journal.format.ledger import compacted_part
from runnel.journal.format.offset_sets import BitmapPages, OffsetBitmap
from runnel.journal.read.journal_reader import JournalReader, read_committed_stage
from runnel.journal.read.segment_reader import BlocksCommit, FoundBatch, LostRange, StageCommit, runs_of_item
from runnel.journal.storage import Storage

KEYS_FILE = "KEYS"
KEYS_MAGIC = b"runnel/k"
KEYS_VERSION = 1


class TopicCompactionState(msgspec.Struct, array_like=True):
    """A topic: below `surveyed`, no two records share a key but for the `superseded` ones, which are still there."""

    topic: int
    surveyed: int
    kept: int  # records below that stay, about
    cut_short: bool
    look_at: int  # when a tombstone may go, in microseconds
    superseded: BitmapPages


class KeyPassState(msgspec.Struct, array_like=True):
    """A look through a topic that was under way."""

    topic: int
    surveyed: int  # of its topic when it began
    bounds: tuple[int, int]
    old: int
    clean: int
    reached: int
    kept: int
    at: int
    tombstone: int | None
    fixed: bool
    is_back: bool
    salt: bytes
    names: bytes  # of all keys, 16 bytes each
    offsets: bytes  # of the newest record of each, u64
    sizes: bytes  # of those records, u32


class PendingCleaning(msgspec.Struct, array_like=True):
    """A cleaning that is about to be put in place, and removes these offsets."""

    replaced: list[int]  # ids of segments
    made: list[int]
    taken: list[tuple[int, BitmapPages]]  # by topic


class CompactionState(msgspec.Struct, array_like=True):
    """All of it. `segments` are the ids of those that it knows: in others there may be anything."""

    journal: str
    segments: list[int]
    topics: list[TopicCompactionState]
    pending: PendingCleaning | None = None
    under_way: KeyPassState | None = None


def save_state(storage: Storage, note: CompactionState) -> int:
    """Replace the file; durable but for its name. How many bytes it has."""
    data = encode_value(KEYS_MAGIC, KEYS_VERSION, note)
    replace_file(storage, KEYS_FILE, [data])
    return len(data)


def load_state(storage: Storage, journal: str) -> CompactionState | None:
    """The stored state of this journal; None: nothing valid is stored."""
    try:
        data = read_whole(storage, KEYS_FILE)
        found = decode_value(data, KEYS_MAGIC, KEYS_VERSION, CompactionState, KEYS_FILE, "these are not its notes")
    except (FileNotFoundError, RunnelError, msgspec.MsgspecError):
        return None
    return found if found.journal == journal else None


# -- One pass over the keys of a topic -------------------------------------------------------------------


RECORDS_PER_STEP = 500  # looked at between two looks at the clock
_BESIDE = 4  # bytes of a record besides its key and value: their lengths, about
_SIZE_BITS = (HEADER_SIZE + MAX_RAW).bit_length()
_MAX_SIZE = (1 << _SIZE_BITS) - 1
_KEY_HASH_BYTES = 16  # bytes


class TopicKeys:
    """The state of one topic since the start."""

    __slots__ = ("cut_short", "kept", "look_at", "rests_until", "superseded", "surveyed", "told")

    def __init__(self, surveyed: int, look_at: int) -> None:
        self.told = surveyed  # what the journal knows of it
        self.surveyed = surveyed  # below it, no two records share a key, except superseded ones
        self.superseded = OffsetBitmap()  # what the cleaner may take
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
        self, history: JournalReader, topic: int, known: TopicKeys, bounds: tuple[int, int], old: int, max_keys: int
    ) -> None:
        self.topic, self.done = topic, False
        self.read = 0  # bytes
        self.tombstone: int | None = None  # the time of the oldest that stayed
        self._history, self._known, self._old, self._max_keys = history, known, old, max_keys
        self._first, self._end = bounds
        self._newest: dict[bytes, int] = {}  # offset and size, in one number: there are many
        self._salt = secrets.token_bytes(16)  # so that keys with equal hashes cannot be chosen
        self._clean, self._start = known.clean, max(known.surveyed, self._first)
        # A hold may lie below the known part: nothing behind it is removed.
        self._stop = min(self._start, self._end)
        self._reached, self._kept = self._end, 0 if self._is_whole else known.kept
        self._fixed = False  # whether there was something that cannot be read
        self._at = self._start  # all before that was examined
        self._is_back = False  # whether it is in the part that was compacted before
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

    def note(self) -> KeyPassState:
        """The progress of the pass: records since the last finished chunk may be examined again."""
        values = self._newest.values()
        return KeyPassState(
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
    def resumed(cls, history: JournalReader, known: TopicKeys, note: KeyPassState, max_keys: int) -> KeyPass:
        """Continue from the stored progress. The findings up to it must be in `known`."""
        found = cls(history, note.topic, known, note.bounds, note.old, max_keys)
        found._clean, found._reached, found._kept = note.clean, note.reached, note.kept
        found._at, found.tombstone = note.at, note.tombstone
        found._fixed, found._is_back, found._salt = note.fixed, note.is_back, note.salt
        offsets, sizes = array("Q", note.offsets), array("I", note.sizes)
        names = (note.names[at : at + _KEY_HASH_BYTES] for at in range(0, len(note.names), _KEY_HASH_BYTES))
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
        """Find the newest record of each key among the new records."""
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
                if at % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
                    yield
            self._kept += _count(item, begin, self._reached)
            if self._reached < self._end:
                break

    def _look_back(self) -> Iterator[None]:
        """Find superseded records in the part that was compacted before."""
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
                if at % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
                    yield

    def _items(self, offset: int, end: int) -> Iterator[FoundBatch | LostRange | None]:
        """The records of the topic from `offset` on, and None after each chunk."""
        history, topic = self._history, self.topic
        plan = history.plan(topic, offset)
        while plan is not None and plan.place < end and plan.source.info.sealed:
            parsed = history.parse(plan, history.fetch(plan), (topic,), by_sequence=False)
            for item in parsed.items:
                if isinstance(item, StageCommit | BlocksCommit):
                    yield from self._staged(item, max(offset, item.base))
                else:
                    yield item
            self.read += max(0, parsed.position - plan.position)
            offset = max(offset, parsed.place)
            self._at = max(self._at, offset)
            yield None
            plan = history.plan(topic, offset, plan, parsed.position)

    def _staged(self, staged: StageCommit | BlocksCommit, offset: int) -> Iterator[FoundBatch | LostRange | None]:
        """The records committed as a stage, read from their place; the cleaner may move them meanwhile."""
        for found in read_committed_stage(self._history, staged, offset, by_sequence=False):
            if isinstance(found, int):
                self.read += found
                self._at = max(self._at, offset)
                yield None
            elif isinstance(found, LostRange) and not self._is_there(staged, found.first):
                yield from self._items(found.first, staged.last + 1)
                return
            else:
                yield found
                offset = max(offset, found.end if isinstance(found, LostRange) else found.last + 1)

    def _is_there(self, staged: StageCommit | BlocksCommit, offset: int) -> bool:
        """Whether a commit still represents its records."""
        history, topic = self._history, self.topic
        plan = history.plan(topic, offset)
        if plan is None:
            return False
        parsed = history.parse(plan, history.fetch(plan), (topic,), by_sequence=False)
        commits = (item for item in parsed.items if isinstance(item, StageCommit | BlocksCommit))
        return any(item.stage == staged.stage for item in commits)

    def _name(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._salt).digest()

    def _stays(self, time: int) -> None:
        self.tombstone = time if self.tombstone is None else min(self.tombstone, time)


def _count(item: FoundBatch | LostRange, first: int, end: int) -> int:
    """How many records there are in [first, end), with or without keys, about."""
    if isinstance(item, LostRange):
        return 0
    return sum(max(0, min(end, run.offset + run.count) - max(first, run.offset)) for run in runs_of_item(item))


def _keyed(item: FoundBatch | LostRange, first: int) -> Iterator[tuple[int, int, bytes, bool, int]] | None:
    """The offset, time and key of each record that has a key, from an offset on.

    And whether it is a tombstone, and how many bytes it has on disk. None: not known here.
    """
    if isinstance(item, LostRange):
        return None
    try:
        return _keys_in(item, unpack(item.body, verify=False), first)  # the crc was checked when it was found
    except BadBatch:
        return None  # readers get the error; here it stays


def _keys_in(item: FoundBatch, batch: UnpackedBatch, first: int) -> Iterator[tuple[int, int, bytes, bool, int]]:
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
    for run in runs_of_item(item):
        for offset in range(run.offset, run.offset + run.count):
            if (key := keys[at]) is not None and offset >= first:
                yield offset, run.time, key, not values[at], sizes[at]
            at += 1


def _sizes(length: int, keys: Sequence[bytes | None], values: Sequence[bytes]) -> list[int]:
    """The share of each record in the bytes of its batch, by its length before compression; the sum is all of them."""
    ends = list(accumulate(len(key or b"") + len(value) + _BESIDE for key, value in zip(keys, values, strict=True)))
    marks = [length * end // ends[-1] for end in ends]
    return [end - begin for begin, end in pairwise((0, *marks))]


# -- The compacted topics of a journal -------------------------------------------------------------------


MAX_KEYS = 512 * 1024  # in one pass: some 80 MiB
TOMBSTONE_AGE = 24 * 3600.0
_LOOKS = 24  # tombstones are looked for so often in the time that they are kept
_END = 1 << 64  # behind all offsets


class Compaction:
    """The compacted topics of a journal: the due one, and the findings in each."""

    def __init__(self, history: JournalReader, tombstone_age: float = TOMBSTONE_AGE, max_keys: int = MAX_KEYS) -> None:
        self._history, self._max_keys = history, max_keys
        self._age = int(tombstone_age * 1e6)
        self._topics: dict[int, TopicKeys] = {}
        self.error: Exception | None = None  # the last that kept a topic from being looked through
        self.under_way: KeyPass | None = None  # the pass of an earlier life that was recalled

    def __repr__(self) -> str:
        return f"<Compaction of {len(self._topics)} topics>"

    def due(self, living: LiveSnapshot, holds: Mapping[int, int], now: int, but: Container[int] = ()) -> KeyPass | None:
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
                known = self._topics[topic] = TopicKeys(compacted, now + self._age // _LOOKS)
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
                known.rests_until = now + RETRY_AFTER
                continue
            if is_old or bound >= enough:
                known.superseded.discard(0, first)
                bound = min(max(bound, known.surveyed), hold)  # what lay last may have been taken
                return KeyPass(self._history, topic, known, (first, bound), now - self._age, self._max_keys)
        return None

    def failed(self, broken: KeyPass, now: int) -> None:
        """A pass failed: its topic is left alone for a while. Its findings so far are valid."""
        if (known := self._topics.get(broken.topic)) is not None:
            known.rests_until = now + RETRY_AFTER

    def over(self, done: KeyPass, now: int) -> Part | None:
        """A pass is done: the state to store, if there is any."""
        known = self._topics.get(done.topic)
        if known is None:
            return None
        soon = now + self._age // _LOOKS + 1
        known.look_at = now + self._age if done.tombstone is None else max(soon, done.tombstone + self._age)
        if known.clean <= known.told:
            return None
        known.told = clean = known.clean
        return compacted_part(done.topic, clean, clean, known.kept, 0, now, clean)

    def taken(self, holds: Mapping[int, int]) -> dict[int, OffsetBitmap]:
        """The offsets that the cleaner may remove, by topic: none from a hold on, even if they were found before it."""
        found = ((topic, known.superseded.below(holds.get(topic))) for topic, known in self._topics.items())
        return {topic: offsets for topic, offsets in found if len(offsets)}

    def is_held(self, job: CleaningJob, holds: Mapping[int, int]) -> bool:
        """Whether a job takes something that has come to be held since it was made."""
        return any(
            job.living.taken[topic].count(max(first, holds[topic]), end)
            for topic in job.taken.keys() & holds.keys()
            for first, end in _cleaned_offsets(job, topic)
        )

    def replaced(self, job: CleaningJob, now: int) -> list[Part]:
        """A job was put in place and removed its records: the state to store."""
        parts = []
        for topic, removed in job.taken.items():
            known = self._topics.get(topic)
            if known is None or not removed:
                continue
            ranges = _ranges(job, topic)
            for first, end in _cleaned_offsets(job, topic):
                known.superseded.remove(job.living.taken[topic], first, end)
            parts.append(compacted_part(topic, ranges[0].first, ranges[-1].end, known.kept, removed, now, known.clean))
        return parts

    # -- across restarts ----------------------------------------------------------------------------------------

    def note(self, journal: str, job: CleaningJob | None = None, under_way: KeyPass | None = None) -> CompactionState:
        """The state to store; before a job is put in place, as it will be afterwards."""
        topics = [
            TopicCompactionState(
                topic, known.surveyed, known.kept, known.cut_short, known.look_at, known.superseded.encode()
            )
            for topic, known in self._topics.items()
        ]
        segments = [source.info.id for source in tuple(self._history.sources) if source.info.sealed]
        pending = None
        if job is not None:
            made = [info.id for info in job.made]
            taken = [
                (
                    topic,
                    [page for span in _cleaned_offsets(job, topic) for page in job.living.taken[topic].encode(*span)],
                )
                for topic in job.taken
                if topic in job.living.taken
            ]
            segments += made
            pending = PendingCleaning([source.info.id for source in job.sources], made, taken)
        return CompactionState(journal, segments, topics, pending, None if under_way is None else under_way.note())

    def recall(self, note: CompactionState, living: LiveSnapshot) -> Iterator[None]:
        """Load the stored state, a segment at a time; then `under_way` is the pass that can continue, if there is one.

        A segment unknown to the state may hold anything: all from its first offset on is examined again.
        Superseded records in removed segments are forgotten.
        """
        sources = [source for source in tuple(self._history.sources) if source.info.sealed]
        noted = {one.topic: one for one in note.topics if one.topic in living.compacting}
        spans: dict[int, list[tuple[int, int]]] = {}
        surveyed = {one.topic: one.surveyed for one in noted.values()}
        segments = frozenset(note.segments)
        for source in sources:
            for topic, found in source.index.topics():
                if topic in noted:
                    if source.info.id in segments:
                        spans.setdefault(topic, []).append((found.first, found.end))
                    else:
                        surveyed[topic] = min(surveyed[topic], found.first)
            yield
        gone = _removed_by(note.pending, {source.info.id for source in sources})
        for topic, one in noted.items():
            compacted, _ = living.compacting[topic]
            known = self._topics[topic] = TopicKeys(compacted, one.look_at)
            known.surveyed = max(compacted, surveyed[topic])
            known.kept, known.cut_short = one.kept, one.cut_short
            superseded = OffsetBitmap()
            superseded.put(one.superseded)
            if topic in gone:
                superseded.remove(gone[topic], 0, _END)
            superseded.discard(0, max(compacted, living.firsts[topic]))
            known.superseded.put([page for span in spans.get(topic, ()) for page in superseded.encode(*span)])
        if (passed := note.under_way) is not None and passed.topic in noted:
            known = self._topics[passed.topic]
            if known.surveyed == passed.surveyed:
                self.under_way = KeyPass.resumed(self._history, known, passed, self._max_keys)

    def _sealed_end(self, topic: int) -> int:
        """Up to where a topic lies in sealed segments."""
        for source in reversed(tuple(self._history.sources)):
            if source.info.sealed and (found := source.index.range_of(topic)) is not None:
                return found.end
        return 0


def _removed_by(pending: PendingCleaning | None, there: Set[int]) -> dict[int, OffsetBitmap]:
    """By topic: what a job took, if it was put in place."""
    gone: dict[int, OffsetBitmap] = {}
    if pending is None or (there.isdisjoint(pending.made) and not there.isdisjoint(pending.replaced)):
        return gone
    for topic, pages in pending.taken:
        gone[topic] = OffsetBitmap()
        gone[topic].put(pages)
    return gone


def _ranges(job: CleaningJob, topic: int) -> list[TopicRange]:
    """The records of a topic that a job read."""
    return [found for source in job.sources if (found := source.index.range_of(topic)) is not None]


def _cleaned_offsets(job: CleaningJob, topic: int) -> list[tuple[int, int]]:
    """The offsets of a topic from which a job took what it should: not those of stages that stay where they lie."""
    cleaned: list[tuple[int, int]] = []
    left = sorted(job.left.get(topic, ()))
    for found in _ranges(job, topic):
        at = found.first
        for first, end in left:
            if found.first <= first < found.end:
                cleaned.append((at, first))
                at = end
        cleaned.append((at, found.end))
    return cleaned

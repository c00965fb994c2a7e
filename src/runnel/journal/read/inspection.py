"""Reading a folder without owning it, also while its owner writes. Nothing is ever written.

An `Inspection` shows the journal at the time of its opening: beside an owner up to the durable watermark, else all that
the next owner will find. A `FolderFollower` can be refreshed, and reads only new entries. While one is open, no file
that it may read is removed. Records come decoded, in order; unreadable records come as a `Gap` in their place.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from runnel.core.batch_format import UnpackedBatch, unpack
from runnel.core.clock import from_micros
from runnel.core.errors import BadBatch, FolderUnusable, JournalDamaged, UsageError
from runnel.core.pattern import is_pattern, matches
from runnel.core.record import Gap, Meta, Record
from runnel.journal.folder_lock import LOCK, FolderOwner, ReadersLease, read_owner
from runnel.journal.format import lineage, manifest, watermark
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import HOLDS_RECORDS, STAGE_TOPIC
from runnel.journal.format.ledger import CursorState, GroupState, Ledger, TopicState
from runnel.journal.format.manifest import Manifest
from runnel.journal.format.removed_offsets import RemovalReason, count_skipped
from runnel.journal.format.segment import START, SegmentInfo, entries
from runnel.journal.read.journal_reader import JournalReader, ReadPlan, read_committed_stage
from runnel.journal.read.recovery import Recovered, recover
from runnel.journal.read.segment_reader import (
    BlocksCommit,
    FoundBatch,
    LostRange,
    OpenFiles,
    SegmentReader,
    StageCommit,
    index_entry,
    runs_of_item,
)
from runnel.journal.storage import OsStorage, Storage

_PLAIN = Meta()


class RecordExtract:
    """The records of one topic (places are offsets), or of several (places are sequences).

    `name` is the topic in reported gaps.
    """

    def __init__(self, history: JournalReader, topics: Collection[TopicState], name: str, *, by_sequence: bool) -> None:
        self._history, self._name, self._by_sequence = history, name, by_sequence
        self._topics = {topic.id: topic for topic in topics}
        self._merged: dict[
            int, tuple[bytes, UnpackedBatch]
        ] = {}  # by topic, the batch that a block is in the middle of

    def __repr__(self) -> str:
        return f"<RecordExtract of {self._name!r}, {len(self._topics)} topics>"

    def read(self, place: int = 0, time: int | None = None) -> Iterator[Record[bytes] | Gap]:
        """Everything from `place` on, or from the first record on that is not older than `time` (microseconds)."""
        if not self._by_sequence:
            for topic in self._topics.values():
                place = max(place, topic.first)
        plan = self._first(place, time)
        while plan is not None:
            parsed = self._history.parse(
                plan, self._history.fetch(plan), self._topics.keys(), by_sequence=self._by_sequence
            )
            for item in parsed.items:
                if isinstance(item, StageCommit | BlocksCommit):
                    for one in self._followed(item, place):
                        yield from self._told(one, place, time)
                else:
                    yield from self._told(item, place, time)
            place = max(place, parsed.place)
            if parsed.position <= plan.position:
                break  # nothing more can be said about this segment, and nothing lies behind it
            plan = self._next(place, plan, parsed.position)
        if not self._by_sequence:
            for topic in self._topics.values():
                yield from self._rest(topic, place)

    def _first(self, place: int, time: int | None) -> ReadPlan | None:
        history = self._history
        if time is None:
            return self._next(place, None, 0)
        if self._by_sequence:
            return history.plan_sequence_at_time(time)
        return next((history.plan_at_time(topic, time) for topic in self._topics), None)

    def _next(self, place: int, after: ReadPlan | None, position: int) -> ReadPlan | None:
        if self._by_sequence:
            return self._history.plan_sequence(place, after, position)
        return next((self._history.plan(topic, place, after, position) for topic in self._topics), None)

    def _rest(self, topic: TopicState, place: int) -> Iterator[Gap]:
        """The place after the last found record: records from there on are lost, if a segment may have held them."""
        sources = self._history.sources
        last = max((at for at, one in enumerate(sources) if one.index.range_of(topic.id) is not None), default=0)
        skipped = (one.first for one in topic.gone if one.reason == RemovalReason.SKIPPED and one.end >= topic.end)
        end = min(skipped, default=topic.end)  # those were never assigned
        if place < end and (held := [one for one in sources[last:] if one.suspect]):
            yield self._gap(place, end, f"damaged on disk, and so is the index ({held[0].info.name})")

    def _followed(self, staged: StageCommit | BlocksCommit, place: int) -> Iterator[FoundBatch | LostRange]:
        """The records committed there, read from their stage."""
        topic = self._topics[staged.topic]
        if isinstance(staged, BlocksCommit):
            if all(last < self._topics[one].first for one, (_, last) in staged.shares.items()):
                return
        elif staged.last < topic.first:
            return  # retention removed it
        if not (self._by_sequence and isinstance(staged, BlocksCommit)):
            start = staged.sequence if self._by_sequence else staged.base
            place = max(place, start + topic.first - staged.base)  # earlier batches may be missing
        for found in read_committed_stage(self._history, staged, place, by_sequence=self._by_sequence):
            if not isinstance(found, int):
                yield found

    def _told(self, item: FoundBatch | LostRange, place: int, time: int | None) -> Iterator[Record[bytes] | Gap]:
        if isinstance(item, FoundBatch):
            yield from self._records(item, place, time)
        elif item.end > (first := max(item.first, place)):
            yield self._gap(first, item.end, item.reason)

    def _gap(self, first: int, end: int, reason: str) -> Gap:
        return Gap(self._name, first, end, None if self._by_sequence else end - first, reason)

    def _records(self, found: FoundBatch, place: int, time: int | None) -> Iterator[Record[bytes] | Gap]:
        topic = self._topics[found.topic]
        first, end = max(found.base, topic.first), min(found.last + 1, topic.end)
        if first >= end:
            return  # retention removed it
        try:
            batch = self._unpacked(found)
        except BadBatch as error:
            yield Gap(topic.name, first, end, end - first, str(error))
            return
        since = None if time is None else from_micros(time)
        for record in decode_records(found, batch, topic):
            here = record.sequence if self._by_sequence else record.offset
            if first <= record.offset < end and here >= place and (since is None or record.time >= since):
                yield record

    def _unpacked(self, found: FoundBatch) -> UnpackedBatch:
        """A batch, decoded once, in how many pieces it may come."""
        if found.runs is None:
            return unpack(found.body)
        known = self._merged.pop(found.topic, None)
        batch = known[1] if known is not None and known[0] is found.body else unpack(found.body)
        if found.at + sum(run.count for run in found.runs) < len(batch):
            self._merged[found.topic] = (found.body, batch)
        return batch


def decode_records(found: FoundBatch, batch: UnpackedBatch, topic: TopicState) -> Iterator[Record[bytes]]:
    """The records of a batch."""
    metas, index = batch.metas, found.at
    for run in runs_of_item(found):
        appended = from_micros(run.time)
        behind = index + run.count if found.runs is not None else len(batch)
        for number in range(index, behind):
            delta = number - index if batch.deltas is None else batch.deltas[number]
            meta = metas.get(number, _PLAIN)
            own = None if batch.times is None else batch.times[number]
            yield Record(
                topic.name,
                run.offset + delta,
                run.sequence + delta,
                topic.epoch,
                meta.key,
                batch.values[number],
                meta.headers,
                appended if own is None else from_micros(own),
            )
        index = behind


# -- A folder at one moment ------------------------------------------------------------------------------


MAX_RETRIES = 100  # times that an owner may swap the manifest while we read


class NoJournal(UsageError):
    """A folder that was to be looked at, and holds no journal."""

    code = "no_journal"

    def __init__(self, folder: str) -> None:
        self.folder = folder
        super().__init__(f"there is no journal in {folder!r}; name the folder that a broker was opened with")


class StoredSize(NamedTuple):
    """The stored part of a topic: offsets that retention kept, and bytes of their batches."""

    records: int
    bytes: int


class UnsyncedTail(NamedTuple):
    """Whole entries that an owner has written behind the durable watermark: the bytes, and the records in them."""

    records: int = 0
    bytes: int = 0


class Inspection:
    """A snapshot of a folder, read only: `with Inspection("data/") as seen: ...`."""

    manifest: Manifest
    ledger: Ledger
    history: JournalReader
    only_durable = False  # whether it ends at the durable watermark also where the folder has no owner

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.storage: Storage = OsStorage(self.folder)
        self.owner: FolderOwner | None = None
        self.notes: list[str] = []
        self.torn_bytes = 0  # of the last segment, behind its last whole entry
        self.unsynced = UnsyncedTail()  # what an owner has written and this does not show
        self._by_name: dict[str, TopicState] = {}
        self._lease: ReadersLease | None = None

    def __repr__(self) -> str:
        return f"<Inspection of {str(self.folder)!r}, {'open' if self._lease else 'closed'}>"

    def __enter__(self) -> Self:
        check_folder(self.folder)
        self._lease = ReadersLease(self.folder)
        try:
            self.owner = owner_of(self.folder)
            self._take(
                _recover_consistent(
                    self.storage, self.folder, up_to_watermark=self.only_durable or self.owner is not None
                )
            )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files, and release the lease on them. Closing twice is harmless."""
        if hasattr(self, "history"):
            self.history.close()
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _take(self, found: Recovered) -> None:
        self.manifest, self.ledger, self.notes = found.manifest, found.ledger, found.notes
        self._by_name = {topic.name: topic for topic in found.ledger.topics.values()}
        handles = OpenFiles()
        sources = [
            SegmentReader(self.storage, info, handles=handles) for info in found.manifest.segments if info.sealed
        ]
        if found.tail is not None:
            if self.owner is None and not self.only_durable:
                self.torn_bytes = found.tail.cut_bytes
                for entry in found.tail.unproven:  # the next owner keeps them
                    found.ledger.apply(entry.parts, entry.time)
                    index_entry(found.tail.builder, entry)
                    found.tail.end = entry.end
            elif found.manifest.fsync != "commit" and not self.only_durable:
                self.unsynced = unsynced_tail(self.storage, found.tail.info, found.tail.end)
            tail = SegmentReader(self.storage, found.tail.info, found.tail.builder, handles)
            tail.written = found.tail.end
            sources.append(tail)
        self.history = JournalReader(sources)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def clean(self) -> bool:
        """Whether the journal was closed; not so while it is open, or after a crash."""
        return self.manifest.clean

    @property
    def topics(self) -> list[TopicState]:
        """The durable topics, by name."""
        return sorted(self.ledger.topics.values(), key=lambda topic: topic.name)

    @property
    def cursors(self) -> list[CursorState]:
        """The named subscriptions, by name."""
        return sorted(self.ledger.cursors.values(), key=lambda cursor: cursor.name)

    @property
    def origin(self) -> str:
        """The id of the first journal of this history."""
        found = lineage.load(self.storage)
        return self.manifest.journal if found is None or not found.origin else found.origin

    @property
    def groups(self) -> list[GroupState]:
        """The groups, by name and what they read."""
        return sorted(self.ledger.groups.values(), key=lambda group: (group.name, group.pattern))

    def topic(self, name: str) -> TopicState | None:
        """The topic of that name."""
        return self._by_name.get(name)

    def lag_of(self, group: GroupState) -> int | None:
        """How many offsets of its topic a group has not settled; None for a pattern, whose places are sequences."""
        topic = self.topic(group.pattern)
        if topic is None:
            return None if is_pattern(group.pattern) else 0
        floor = max(group.floor, topic.first)
        settled = sum(_count_assigned(topic, max(first, floor), end) for first, end in group.settled)
        return max(0, _count_assigned(topic, floor, topic.end) - settled)

    def cursor_lag(self, cursor: CursorState) -> int | None:
        """How far a named subscription is behind its topic; None for a pattern, or a topic of another life."""
        topic = self.topic(cursor.pattern)
        return None if topic is None or topic.epoch != cursor.epoch else _count_assigned(topic, cursor.place, topic.end)

    def held(self) -> dict[str, StoredSize]:
        """The stored part of every topic, by name. One look at each segment, however many topics there are."""
        records = dict.fromkeys(self.ledger.topics, 0)
        sizes = dict.fromkeys(self.ledger.topics, 0)
        for source in self.history.sources:
            for number, found in source.index.topics():
                if number >= STAGE_TOPIC:  # of a stage: its records are counted where they were committed
                    committed = self.ledger.committed.get(number & ~STAGE_TOPIC)
                    if committed is not None and committed.topic in sizes:
                        sizes[committed.topic] += found.bytes
                    continue  # of many topics: see below
                topic = self.ledger.topics.get(number)
                if topic is not None and found.end > topic.first:
                    # Never a difference of offsets alone: after a crash they continue far higher, and leave a hole.
                    records[number] += min(found.records, found.end - max(found.first, topic.first))
                    sizes[number] += found.bytes
        for blocks in self.ledger.blocks.values():
            for share in blocks.shares.values():
                sizes[share.topic] += share.bytes
        return {topic.name: StoredSize(records[number], sizes[number]) for number, topic in self.ledger.topics.items()}

    def sizes(self) -> dict[str, int]:
        """The bytes of every file that counts, by name; the written part of the active segment."""
        found: dict[str, int] = {}
        for name in sorted(self.manifest.files()):
            try:
                found[name] = (self.folder / name).stat().st_size
            except FileNotFoundError:
                continue
        for source in self.history.sources:
            if source.info.name in found:
                found[source.info.name] = min(found[source.info.name], source.written)
        return found

    # -- records ------------------------------------------------------------------------------------------------

    def read(self, *patterns: str, place: int = 0, time: int | None = None) -> Iterator[Record[bytes] | Gap]:
        """The records of one topic from an offset on, or of several and patterns from a sequence on; of all by default.

        With `time` (microseconds), from the first that is not older. Unreadable records are reported as a `Gap`, in
        their place.
        """
        patterns = patterns or (">",)
        by_sequence = len(patterns) > 1 or is_pattern(patterns[0])
        chosen = [topic for topic in self.topics if any(matches(pattern, topic.name) for pattern in patterns)]
        name = ", ".join(patterns)
        return RecordExtract(self.history, chosen, name, by_sequence=by_sequence).read(place, time)

    def place_at(self, pattern: str, time: int) -> int | None:
        """The offset (of a pattern: the sequence) of the first record that is not older than `time`; None: none is."""
        for found in self.read(pattern, time=time):
            if isinstance(found, Gap):
                return found.first
            return found.sequence if is_pattern(pattern) else found.offset
        return None


def _count_assigned(topic: TopicState, first: int, end: int) -> int:
    """How many of the offsets [first, end) were ever given."""
    return max(0, end - first - count_skipped(topic.gone, first, end))


def check_folder(folder: Path) -> None:
    """Raise unless the folder holds a journal, or the rest of one."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        raise NoJournal(str(folder)) from None
    except OSError as error:
        raise FolderUnusable(str(folder), error.strerror or str(error)) from None
    if not any(name == manifest.NAME or name.endswith((".seg", ".ckpt")) for name in names):
        raise NoJournal(str(folder))


def owner_of(folder: Path) -> FolderOwner | None:
    """The present owner of the folder."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return read_owner(fd)
    finally:
        os.close(fd)
    return None


def consistent_view(folder: Path) -> tuple[Manifest, int]:
    """The manifest, and up to where its last segment is durable at the same moment (0: the journal is closed).

    A copy of both goes by this. If the cleaner puts files in the place of others and notes that between two reads,
    a copy would have the files of before and the note, and take away tombstones that it still needs.
    """
    storage = OsStorage(folder)
    for _ in range(MAX_RETRIES):
        found = manifest.load(storage)
        if found is None:
            raise NoJournal(str(folder))
        if found.clean:
            return found, 0
        published = watermark.read(storage)
        if manifest.load(storage) == found:
            # A watermark of another segment is an old one: nothing proves that anything of this one is durable.
            return found, published.position if published and published.id == found.segments[-1].id else START
    raise FolderUnusable(str(folder), "its owner swapped the manifest whenever it was read")


def unsynced_tail(storage: Storage, info: SegmentInfo, position: int) -> UnsyncedTail:
    """The whole entries of a segment behind `position`."""
    records, end = 0, position
    try:
        data = read_whole(storage, info.name)
    except FileNotFoundError:  # the owner has closed meanwhile
        return UnsyncedTail()
    for found in entries(data, position, info, position):
        records += sum(part.count for part in found.parts if part.kind in HOLDS_RECORDS)
        end = found.end
    return UnsyncedTail(records, end - position)


def _recover_consistent(storage: Storage, folder: Path, *, up_to_watermark: bool) -> Recovered:
    """The journal as one manifest describes it, however often the owner swaps it meanwhile."""
    for _ in range(MAX_RETRIES):
        before = manifest.load(storage)
        try:
            found = recover(storage, lambda: "", up_to_watermark=up_to_watermark)
        except (FileNotFoundError, JournalDamaged) as error:
            # Either that is so, or the manifest no longer names the file.
            if _active(before) != _active(manifest.load(storage)):
                continue
            if isinstance(error, FileNotFoundError):
                raise JournalDamaged(Path(error.filename or "a file").name, 0, "it is missing") from None
            raise
        # A mark that has moved on to another segment would hide the end of this one.
        if _active(before) == _active(found.manifest) == _active(manifest.load(storage)):
            return found
    raise FolderUnusable(str(folder), "its owner swapped the manifest whenever it was read")


def _active(found: Manifest | None) -> tuple[int, int, int] | None:
    last = found.segments[-1] if found is not None and found.segments else None
    return None if last is None else (last.number, last.id, last.end)


# -- A folder that is read again and again ---------------------------------------------------------------


class FolderFollower(Inspection):
    """A folder up to its watermark: `with FolderFollower("data/") as seen`, and `seen.look()` for new entries."""

    only_durable = True

    def __repr__(self) -> str:
        state = "closed" if not hasattr(self, "history") else "open" if self._lease else "resting"
        return f"<FolderFollower of {str(self.folder)!r}, {state}>"

    @classmethod
    def at(cls, folder: str | Path) -> FolderFollower:
        """One that has looked."""
        follower = cls(folder)
        follower.__enter__()
        return follower

    @property
    def is_held(self) -> bool:
        """Whether it holds the lease."""
        return self._lease is not None

    def rest(self) -> None:
        """Hold no lease until the next look."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def look(self) -> None:
        """Read the durable state, and hold the lease on it."""
        if not hasattr(self, "history"):
            self.__enter__()
            return
        if self._lease is None:
            self._lease = ReadersLease(self.folder)
        tail = self._tail()
        if manifest.load(self.storage) != self.manifest or (tail is not None and not self._read_on(tail)):
            self.close()
            self.__enter__()

    def _tail(self) -> SegmentReader | None:
        """The segment that was being written at the last look."""
        sources = self.history.sources
        return sources[-1] if sources and not sources[-1].info.sealed else None

    def _read_on(self, tail: SegmentReader) -> bool:
        """Take in the entries up to the watermark; False where that is not possible: all has to be read again."""
        found = watermark.read(self.storage)
        if found is None or found.id != tail.info.id or found.position < tail.written:
            return found is None
        while tail.written < found.position:
            data = tail.file.read(tail.written, found.position - tail.written)
            before = tail.written
            for entry in entries(data, 0, tail.info, tail.written):
                if entry.end > found.position:
                    break
                self.ledger.apply(entry.parts, entry.time)
                index_entry(tail.index, entry)  # type: ignore[arg-type]  # of the last segment it is a builder
                tail.written = entry.end
            if tail.written == before:
                raise JournalDamaged(tail.info.name, before, f"the journal was synced up to {found.position}")
        self._by_name = {topic.name: topic for topic in self.ledger.topics.values()}
        return True

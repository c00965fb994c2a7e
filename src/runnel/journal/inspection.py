"""Looking at a folder without owning it: any process may, while the owner goes on writing.

What is seen is the journal as it was when the inspection was opened. Beside an owner that ends at the
durable mark; where nobody owns it, it is all that the next owner will find. Nothing is written, ever.
While it is open no file that it may still read is removed.
Below: recovery, history, folder. Above: cli, verify, snapshot.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from runnel.core.errors import UsageError
from runnel.core.journal_errors import FolderUnusable, JournalDamaged
from runnel.core.pattern import is_pattern, matches
from runnel.core.record import Gap, Record
from runnel.journal import manifest, mark
from runnel.journal.entry import HOLDS_RECORDS, STAGE_TOPIC
from runnel.journal.extract import Extract
from runnel.journal.folder import LOCK, Owner, ReadersLease, read_owner
from runnel.journal.gone import skipped
from runnel.journal.group_state import GroupState
from runnel.journal.handles import Handles
from runnel.journal.history import History, Source, add_to
from runnel.journal.ledger import CursorState, Ledger, TopicState
from runnel.journal.manifest import Manifest
from runnel.journal.os_storage import OsStorage
from runnel.journal.recovery import Recovered, recover
from runnel.journal.segment import START, SegmentInfo, entries
from runnel.journal.storage import Storage
from runnel.journal.swap import read_whole

PATIENCE = 100  # times that an owner may swap the manifest while we read


class NoJournal(UsageError):
    """A folder that was to be looked at, and holds no journal."""

    code = "no_journal"

    def __init__(self, folder: str) -> None:
        self.folder = folder
        super().__init__(f"there is no journal in {folder!r}; name the folder that a broker was opened with")


class Held(NamedTuple):
    """What is stored of a topic: offsets that retention has not let go of, and bytes of the batches they lie in."""

    records: int
    bytes: int


class Unsynced(NamedTuple):
    """Whole entries that an owner has written behind the durable mark: the bytes, and the records in them."""

    records: int = 0
    bytes: int = 0


class Inspection:
    """A folder as it is now, read only: `with Inspection("data/") as seen: ...`."""

    manifest: Manifest
    ledger: Ledger
    history: History
    only_durable = False  # whether it ends at the durable mark also where nobody owns the folder

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.storage: Storage = OsStorage(self.folder)
        self.owner: Owner | None = None
        self.notes: list[str] = []
        self.torn_bytes = 0  # of the last segment, behind its last whole entry
        self.unsynced = Unsynced()  # what an owner has written and this does not show
        self._by_name: dict[str, TopicState] = {}
        self._lease: ReadersLease | None = None

    def __repr__(self) -> str:
        return f"<Inspection of {str(self.folder)!r}, {'open' if self._lease else 'closed'}>"

    def __enter__(self) -> Self:
        check_folder(self.folder)
        self._lease = ReadersLease(self.folder)
        try:
            self.owner = owner_of(self.folder)
            self._take(_settled(self.storage, self.folder, up_to_mark=self.only_durable or self.owner is not None))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files, and of the lease on them. Closing twice is harmless."""
        if hasattr(self, "history"):
            self.history.close()
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _take(self, found: Recovered) -> None:
        self.manifest, self.ledger, self.notes = found.manifest, found.ledger, found.notes
        self._by_name = {topic.name: topic for topic in found.ledger.topics.values()}
        handles = Handles()
        sources = [Source(self.storage, info, handles=handles) for info in found.manifest.segments if info.sealed]
        if found.tail is not None:
            if self.owner is None and not self.only_durable:
                self.torn_bytes = found.tail.cut_bytes
                for entry in found.tail.unproven:  # the next owner keeps them
                    found.ledger.apply(entry.parts, entry.time)
                    add_to(found.tail.builder, entry)
                    found.tail.end = entry.end
            elif found.manifest.fsync != "commit" and not self.only_durable:
                self.unsynced = unsynced(self.storage, found.tail.info, found.tail.end)
            tail = Source(self.storage, found.tail.info, found.tail.builder, handles)
            tail.written = found.tail.end
            sources.append(tail)
        self.history = History(sources)

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
        settled = sum(_given(topic, max(first, floor), end) for first, end in group.settled)
        return max(0, _given(topic, floor, topic.end) - settled)

    def cursor_lag(self, cursor: CursorState) -> int | None:
        """How far a named subscription is behind its topic; None for a pattern, or a topic of another life."""
        topic = self.topic(cursor.pattern)
        return None if topic is None or topic.epoch != cursor.epoch else _given(topic, cursor.place, topic.end)

    def held(self) -> dict[str, Held]:
        """What is stored of every topic, by name. One look at each segment, however many topics there are."""
        records = dict.fromkeys(self.ledger.topics, 0)
        sizes = dict.fromkeys(self.ledger.topics, 0)
        for source in self.history.sources:
            for number, found in source.index.topics():
                if number >= STAGE_TOPIC:  # of a stage: its records are counted where they were committed
                    committed = self.ledger.committed.get(number & ~STAGE_TOPIC)
                    if committed is not None and committed.topic in sizes:
                        sizes[committed.topic] += found.bytes
                    continue
                topic = self.ledger.topics.get(number)
                if topic is not None and found.end > topic.first:
                    # Never a difference of offsets alone: after a crash they go on far higher, and leave a hole.
                    records[number] += min(found.records, found.end - max(found.first, topic.first))
                    sizes[number] += found.bytes
        return {topic.name: Held(records[number], sizes[number]) for number, topic in self.ledger.topics.items()}

    def sizes(self) -> dict[str, int]:
        """The bytes of every file that counts, by name; the active segment as far as it is written."""
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

        With `time` (microseconds), from the first that is not older. What cannot be read is told as a `Gap`,
        in its place.
        """
        patterns = patterns or (">",)
        by_sequence = len(patterns) > 1 or is_pattern(patterns[0])
        chosen = [topic for topic in self.topics if any(matches(pattern, topic.name) for pattern in patterns)]
        name = ", ".join(patterns)
        return Extract(self.history, chosen, name, by_sequence=by_sequence).read(place, time)

    def place_at(self, pattern: str, time: int) -> int | None:
        """The offset (of a pattern: the sequence) of the first record that is not older than `time`; None: none is."""
        for found in self.read(pattern, time=time):
            if isinstance(found, Gap):
                return found.first
            return found.sequence if is_pattern(pattern) else found.offset
        return None


def _given(topic: TopicState, first: int, end: int) -> int:
    """How many of the offsets [first, end) were ever given."""
    return max(0, end - first - skipped(topic.gone, first, end))


def check_folder(folder: Path) -> None:
    """Raise unless a journal lies there, or what is left of one."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        raise NoJournal(str(folder)) from None
    except OSError as error:
        raise FolderUnusable(str(folder), error.strerror or str(error)) from None
    if not any(name == manifest.NAME or name.endswith((".seg", ".ckpt")) for name in names):
        raise NoJournal(str(folder))


def owner_of(folder: Path) -> Owner | None:
    """Who owns the folder now."""
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


def at_one_moment(folder: Path) -> tuple[Manifest, int]:
    """The manifest, and up to where its last segment is durable at the same moment (0: the journal is closed).

    A copy of both goes by this. If the cleaner puts files in the place of others and notes that between two reads,
    a copy would have the files of before and the note, and take away tombstones that it still needs.
    """
    storage = OsStorage(folder)
    for _ in range(PATIENCE):
        found = manifest.load(storage)
        if found is None:
            raise NoJournal(str(folder))
        if found.clean:
            return found, 0
        published = mark.read(storage)
        if manifest.load(storage) == found:
            # A mark of another segment is an old one: nothing proves that anything of this one is durable.
            return found, published.position if published and published.id == found.segments[-1].id else START
    raise FolderUnusable(str(folder), "its owner swapped the manifest whenever it was read")


def unsynced(storage: Storage, info: SegmentInfo, position: int) -> Unsynced:
    """The whole entries of a segment behind `position`."""
    records, end = 0, position
    try:
        data = read_whole(storage, info.name)
    except FileNotFoundError:  # the owner has closed meanwhile
        return Unsynced()
    for found in entries(data, position, info, position):
        records += sum(part.count for part in found.parts if part.kind in HOLDS_RECORDS)
        end = found.end
    return Unsynced(records, end - position)


def _settled(storage: Storage, folder: Path, *, up_to_mark: bool) -> Recovered:
    """The journal as one manifest describes it, however often the owner swaps it meanwhile."""
    for _ in range(PATIENCE):
        before = manifest.load(storage)
        try:
            found = recover(storage, lambda: "", up_to_mark=up_to_mark)
        except (FileNotFoundError, JournalDamaged) as error:
            # Either that is so, or the file is named no more: the manifest tells.
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

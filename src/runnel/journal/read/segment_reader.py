"""Reading one segment: its file, its index, and what a read returns.

A `SegmentReader` opens file and index when they are needed, and rebuilds an index that is missing or damaged.
`OpenFiles` bounds what all segments of a journal keep open: the least recently used are closed first.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Generic, NamedTuple, TypeVar
from weakref import ref

from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.format import entry, index, segment
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import HOLDS_RECORDS, HOLDS_STAGED, STAGE_TOPIC, PartKind
from runnel.journal.format.index import Index, IndexBuilder, IndexFile, TopicRange, end_sequence
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.format.segment import START, SegmentInfo
from runnel.journal.storage import File, Storage


class FoundBatch(NamedTuple):
    """A batch as it lies on disk, checked.

    Of a merged one, `runs` say where its records belong: those in `body` from number `at` on, in order.
    """

    topic: int
    base: int
    last: int
    sequence: int
    time: int
    body: bytes
    runs: Sequence[RecordRun] | None = None
    at: int = 0


class StageCommit(NamedTuple):
    """Records that were staged before, and are visible from here on: they lie where their stage does.

    `counts` are the records of its batches, in order.
    """

    topic: int
    base: int
    last: int
    sequence: int
    time: int
    stage: int
    counts: Sequence[int]


class BlocksCommit(NamedTuple):
    """Records of several topics that were staged in blocks, and are visible from here on. See `staged_block`.

    `sequence` is that of the first of all `records` of the stage. `shares` are the first and the last offset of each
    topic that is read; `topic`, `base` and `last` are those of the first of them. `known` are the topics of which the
    commit can be read; None: no other is wanted.
    """

    topic: int
    base: int
    last: int
    sequence: int
    time: int
    stage: int
    records: int
    shares: Mapping[int, tuple[int, int]]
    known: Collection[int] | None = None

    @property
    def end_sequence(self) -> int:
        """Behind the sequences of all its records."""
        return self.sequence + self.records


def blocks_commit(
    stage: int,
    sequence: int,
    records: int,
    time: int,
    shares: Mapping[int, tuple[int, int]],
    known: Collection[int] | None = None,
) -> BlocksCommit:
    """The records that a commit of blocks makes visible, of the topics in `shares`."""
    topic, (base, last) = next(iter(shares.items()))
    return BlocksCommit(topic, base, last, sequence, time, stage, records, shares, known)


class LostRange(NamedTuple):
    """Offsets of the topic (or sequences) [first, end) that cannot be read."""

    first: int
    end: int
    reason: str


STAGED_MISSING = "a staged batch of it is not there any more"

FoundItem = FoundBatch | StageCommit | BlocksCommit | LostRange
"""An item that a reader finds: records, the commit of records that lie elsewhere, or damage."""


class ParsedChunk(NamedTuple):
    """The items of a chunk, the end of its whole entries, and the first place behind it."""

    items: Iterable[FoundItem]
    position: int
    place: int


def runs_of_item(item: FoundBatch | StageCommit | BlocksCommit) -> Sequence[RecordRun]:
    """Where its records belong, as runs: of all but merged batches it is one.

    Of records in blocks, one run covers all: the blocks have their sequences.
    """
    if isinstance(item, FoundBatch) and item.runs is not None:
        return item.runs
    return (RecordRun(item.base, item.sequence, item.time, item.last - item.base + 1),)


def offset_at(item: FoundBatch | StageCommit | BlocksCommit, sequence: int) -> int | None:
    """The offset of its first record at `sequence` or behind it; None: all lie before."""
    for run in runs_of_item(item):
        if run.sequence + run.count > sequence:
            return run.offset + max(0, sequence - run.sequence)
    return None


def run_at_time(item: FoundBatch | StageCommit | BlocksCommit, time: int) -> RecordRun | None:
    """Its first run that is not older than `time`."""
    return next((run for run in runs_of_item(item) if run.time >= time), None)


# -- Files that are kept open ----------------------------------------------------------------------------
# A process has few file handles, and a mapped file takes one too. With none left the journal cannot write
# either. So the least recently used segment closes its file, and opens it again when it is read.


FILES = 32  # segments that are open for reading
HELD = 32  # segments whose names have gone, open for readers that opened them before
INDEX_BYTES = 32 * 1024 * 1024  # of the indexes of sealed segments, in memory
MAPPED = 1024 * 1024  # an index that is longer is mapped, and counts as if it were as long as this: so 32 at most
NO_HANDLES = (errno.EMFILE, errno.ENFILE)

T = TypeVar("T")


class LruLimit(Generic[T]):
    """The sources with open files or held data, least recently used first. From any thread.

    When they weigh more than `limit` together, it closes the first ones. It keeps none of them alive.
    """

    def __init__(self, limit: int, let_go: Callable[[T], None]) -> None:
        self.limit, self._let_go = limit, let_go
        self._weights: OrderedDict[ref[T], int] = OrderedDict()
        self._total = 0
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<LruLimit, {len(self._weights)} that weigh {self._total} of {self.limit}>"

    def __contains__(self, one: T) -> bool:
        return ref(one) in self._weights

    def put(self, one: T, weight: int = 1) -> None:
        """It holds so many bytes or files from now on; others may have to close."""
        with self._lock:
            self._take(ref(one))
            self._weights[ref(one)] = weight
            self._total += weight
            if self._total > self.limit:
                for key in [key for key in self._weights if key() is None]:
                    self._take(key)
            while self._total > self.limit and len(self._weights) > 1:  # one may exceed the limit alone
                self._take_first()

    def used(self, one: T) -> None:
        """It was used just now, if it is still here."""
        with self._lock:
            if (key := ref(one)) in self._weights:
                self._weights.move_to_end(key)

    def take_out(self, one: T) -> None:
        """Stop asking it to release the file. A request that is under way has ended when this returns."""
        with self._lock:
            self._take(ref(one))

    def clear(self) -> None:
        """All close."""
        with self._lock:
            while self._weights:
                self._take_first()

    def _take(self, key: ref[T]) -> None:
        self._total -= self._weights.pop(key, 0)

    def _take_first(self) -> None:
        key = next(iter(self._weights))
        self._take(key)
        if (one := key()) is not None:
            self._let_go(one)


class OpenFiles:
    """The cached resources of the sources of one journal: files, indexes, and files held for late readers."""

    def __init__(self, files: int = FILES, index_bytes: int = INDEX_BYTES, held: int = HELD) -> None:
        self.files: LruLimit[SegmentReader] = LruLimit(files, lambda source: source.drop_file())
        self.indexes: LruLimit[SegmentReader] = LruLimit(index_bytes, lambda source: source.drop_index())
        self.held: LruLimit[SegmentReader] = LruLimit(held, lambda source: source.hold_no_more())

    def __repr__(self) -> str:
        return f"<OpenFiles, files: {self.files}, indexes: {self.indexes}, held: {self.held}>"

    def enough_for(self, opening: Callable[[], T]) -> T:
        """The result of `opening`. If no handle is left, all files that can be opened again are closed first."""
        try:
            return opening()
        except OSError as error:
            if error.errno not in NO_HANDLES:
                raise
        self.files.clear()
        self.indexes.clear()
        return opening()


# -- The reader of one segment ---------------------------------------------------------------------------


class SegmentReader:
    """One segment to read from: sealed, or the one that is being written.

    Its file and its index stay open for a while after use, and are opened again on access: see `OpenFiles`. A reader
    keeps them in a variable of its own, so it may continue.
    """

    __slots__ = (
        "__weakref__",
        "_file",
        "_handles",
        "_held",
        "_index",
        "damage",
        "info",
        "pin",
        "pinned",
        "records",
        "storage",
        "suspect",
        "written",
    )

    def __init__(
        self,
        storage: Storage,
        info: SegmentInfo,
        builder: IndexBuilder | None = None,
        handles: OpenFiles | None = None,
    ) -> None:
        self.storage, self.info = storage, info
        self._handles = handles or OpenFiles()
        self._held = False  # open in spite of all others: its names have gone
        self._file: File | None = None
        self._index: Index | None = builder
        self.written = info.end  # up to where it may be read; grows while it is written
        self.damage: str | None = None  # the error of its index
        self.suspect = False  # the index was rebuilt, and some of its entries could not be read
        self.pin: int | None = None  # a topic whose records here are still needed, if known
        self.pinned: TopicRange | None = None  # its first records here, at least
        self.records: int | None = None  # how many it holds, once they were counted: see `count`

    def __repr__(self) -> str:
        return f"<SegmentReader {self.info.name}, {self.written} bytes>"

    @property
    def file(self) -> File:
        """The segment, opened when it is not at hand."""
        file = self._file  # looked at once: it may be dropped meanwhile
        if file is not None:
            self._handles.files.used(self)
            return file
        try:
            file = self._handles.enough_for(lambda: self.storage.open(self.info.name))
        except FileNotFoundError:
            if (file := self._file) is None:  # or it was opened just now, before its name went: see `hold_on`
                raise
            return file
        self._file = file
        if not self._held:
            self._handles.files.put(self)
        return file

    @property
    def index(self) -> Index:
        """The index, read or mapped when it is not at hand; made again when it is missing or damaged."""
        index = self._index  # looked at once: the writer may seal the segment meanwhile, or it may be dropped
        if index is not None:
            if isinstance(index, IndexFile):
                self._handles.indexes.used(self)
            return index
        try:
            index, size = self._handles.enough_for(self._read_index)
        except (JournalDamaged, FormatUnknown, OSError) as error:
            if (index := self._index) is not None:
                return index
            if isinstance(error, OSError) and error.errno in NO_HANDLES:
                raise  # nothing is wrong with the index
            self.damage = str(error)
            index, whole = rebuild_index(self.storage, self.info)
            self.suspect = not whole
            self._index = index  # and it stays: to make it is dear
            return index
        self._index = index
        if not self._held:
            self._handles.indexes.put(self, min(size, MAPPED))
        return index

    def _read_index(self) -> tuple[IndexFile, int]:
        file = self.storage.open(self.info.index_name)
        try:
            size = file.size()
            return IndexFile(file.map() if size > MAPPED else memoryview(file.read(0, size)), self.info), size
        finally:
            file.close()

    def hold_on(self) -> None:
        """Its names are about to go: have open whatever a reader that came upon it before may still ask for.

        All is closed when there is no reference to this source, or when too many others came to be held after it.
        """
        self._held = True
        self._handles.files.take_out(self)
        self._handles.indexes.take_out(self)
        self._handles.held.put(self)
        with suppress(OSError):
            _ = self.file, self.index

    def hold_no_more(self) -> None:
        """Too many others are held. Present readers continue; one that begins now may find it removed."""
        self._held = False
        self.drop_file()
        self.drop_index()

    def drop_file(self) -> None:
        """Close the file, unless it could not be opened again. It is closed when its last reader is done."""
        if not self._held:
            self._file = None

    def drop_index(self) -> None:
        """Drop the index, unless it could not be opened again, or was not read from a file."""
        if not self._held and isinstance(self._index, IndexFile):
            self._index = None

    @property
    def is_cleaned(self) -> bool:
        """Whether the cleaner wrote it: then it consists of blocks."""
        return self.info.generation > 0

    @property
    def end_sequence(self) -> int:
        """An upper bound of its sequences, as known now."""
        index = self.index
        return (
            index.end_sequence if isinstance(index, IndexBuilder) and not self.info.sealed else self.info.end_sequence
        )

    def holds_records(self) -> bool:
        """Whether there is anything here but state, and batches that are staged."""
        return any(topic < STAGE_TOPIC for topic, _ in self.index.topics())

    def count(self) -> int:
        """How many records it holds, wanted or not. Reads the index if that is not at hand, once for all."""
        index = self._index
        if isinstance(index, IndexBuilder):
            return index.records
        if self.records is None:
            self.records = sum(found.records for topic, found in self.index.topics() if topic < STAGE_TOPIC)
        return self.records

    @property
    def is_counted(self) -> bool:
        """Whether `count` reads no index."""
        return self.records is not None or isinstance(self._index, IndexBuilder)

    def seal(self, info: SegmentInfo) -> None:
        """Nothing more is written to it; the index goes to its file."""
        self.records = self.count()
        self.info, self.written, self._index = info, info.end, None

    def close(self) -> None:
        """Close the files."""
        file, self._file, self._held = self._file, None, False
        if file is not None:
            file.close()
        self.drop_index()
        for shelf in (self._handles.files, self._handles.indexes, self._handles.held):
            shelf.take_out(self)


def rebuild_index(storage: Storage, info: SegmentInfo) -> tuple[IndexBuilder, bool]:
    """The index of a segment, rebuilt from its whole entries; and whether it is complete."""
    data = read_whole(storage, info.name)[: info.end]
    if info.generation:
        return index.rebuild_cleaned_index(data, info)
    builder, whole = IndexBuilder(), True
    position = START
    while position < len(data):
        found = entry.read_entry(data, position, info.id, position)
        if found is None:
            whole = False
            if (found := segment.next_whole_entry(data, position + 1, info)) is None:
                break
        index_entry(builder, found)
        position = found.end
    return builder, whole and position == info.end


def index_entry(builder: IndexBuilder, found: entry.Entry) -> None:
    """Index the batches of an entry of an uncleaned segment."""
    for part in found.parts:
        index_part(builder, found.position, part)


def index_part(builder: IndexBuilder, position: int, part: entry.Part) -> None:
    """Note a part of the entry at `position`, if it holds records, or is a staged batch."""
    size = len(part.body)
    if part.kind in HOLDS_RECORDS:
        end = end_sequence(part) if part.kind == PartKind.BLOCKS_COMMIT else None
        builder.add(position, part.topic, part.base, part.last, part.sequence, part.time, size, end_sequence=end)
    elif part.kind in HOLDS_STAGED:
        builder.add(position, STAGE_TOPIC | part.topic, part.base, part.last, 0, part.time, size, 1)

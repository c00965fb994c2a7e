"""One segment to read from, and its index: read, mapped, or made again where it is missing or damaged.

Below: entry, handles, index, block_index, segment. Above: history, journal, survey.
"""

from __future__ import annotations

from contextlib import suppress

from runnel.core.journal_errors import FormatUnknown, JournalDamaged
from runnel.journal import block_index, entry, segment
from runnel.journal.entry import HOLDS_RECORDS, STAGE_TOPIC, Kind
from runnel.journal.handles import MAPPED, NO_HANDLES, Handles
from runnel.journal.index import Index, IndexBuilder, IndexFile, TopicRange
from runnel.journal.segment import START, SegmentInfo
from runnel.journal.storage import File, Storage
from runnel.journal.swap import read_whole


class Source:
    """One segment to read from: sealed, or the one that is being written.

    Its file and its index are at hand for a while after they were used, and are opened again when they are asked
    for: see `Handles`. Whoever reads has what it reads from in a variable of its own, so it may go on.
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
        "storage",
        "suspect",
        "written",
    )

    def __init__(
        self,
        storage: Storage,
        info: SegmentInfo,
        builder: IndexBuilder | None = None,
        handles: Handles | None = None,
    ) -> None:
        self.storage, self.info = storage, info
        self._handles = handles or Handles()
        self._held = False  # open in spite of all others: its names have gone
        self._file: File | None = None
        self._index: Index | None = builder
        self.written = info.end  # up to where it may be read; grows while it is written
        self.damage: str | None = None  # what was wrong with its index
        self.suspect = False  # the index was made again, and not all that it should tell of could be read
        self.pin: int | None = None  # a topic whose records here are still wanted, as far as is known
        self.pinned: TopicRange | None = None  # what is here of it, at least

    def __repr__(self) -> str:
        return f"<Source {self.info.name}, {self.written} bytes>"

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
            index, whole = rebuilt(self.storage, self.info)
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

        It is all closed when nobody knows this source any more, or when too many others came to be held after it.
        """
        self._held = True
        self._handles.files.take_out(self)
        self._handles.indexes.take_out(self)
        self._handles.held.put(self)
        with suppress(OSError):
            _ = self.file, self.index

    def hold_no_more(self) -> None:
        """Too many others are held. Those who still read go on; who begins now may find it gone."""
        self._held = False
        self.drop_file()
        self.drop_index()

    def drop_file(self) -> None:
        """Let go of the file, unless it could not be opened again. It is closed when nobody reads it any more."""
        if not self._held:
            self._file = None

    def drop_index(self) -> None:
        """Let go of the index, unless it could not be opened again, or was not read from a file."""
        if not self._held and isinstance(self._index, IndexFile):
            self._index = None

    @property
    def is_cleaned(self) -> bool:
        """Whether the cleaner wrote it: then it consists of blocks."""
        return self.info.generation > 0

    @property
    def end_sequence(self) -> int:
        """No sequence in it is as high as this, as far as is known now."""
        index = self.index
        return (
            index.end_sequence if isinstance(index, IndexBuilder) and not self.info.sealed else self.info.end_sequence
        )

    def holds_records(self) -> bool:
        """Whether there is anything here but state, and batches that are staged."""
        return any(topic < STAGE_TOPIC for topic, _ in self.index.topics())

    def seal(self, info: SegmentInfo) -> None:
        """Nothing more is written to it; the index goes to its file."""
        self.info, self.written, self._index = info, info.end, None

    def close(self) -> None:
        """Let go of the files."""
        file, self._file, self._held = self._file, None, False
        if file is not None:
            file.close()
        self.drop_index()
        for shelf in (self._handles.files, self._handles.indexes, self._handles.held):
            shelf.take_out(self)


def rebuilt(storage: Storage, info: SegmentInfo) -> tuple[IndexBuilder, bool]:
    """The index of a segment, made again from its whole entries; and whether it tells of all that is in it."""
    data = read_whole(storage, info.name)[: info.end]
    if info.generation:
        return block_index.rebuilt(data, info)
    builder, whole = IndexBuilder(), True
    position = START
    while position < len(data):
        found = entry.read_entry(data, position, info.id, position)
        if found is None:
            whole = False
            if (found := segment.next_whole(data, position + 1, info)) is None:
                break
        add_to(builder, found)
        position = found.end
    return builder, whole and position == info.end


def add_to(builder: IndexBuilder, found: entry.Entry) -> None:
    """Note the batches of an entry, of a segment that is as it was written."""
    for part in found.parts:
        add_part(builder, found.position, part)


def add_part(builder: IndexBuilder, position: int, part: entry.Part) -> None:
    """Note a part of the entry at `position`, if it holds records, or is a staged batch."""
    if part.kind in HOLDS_RECORDS:
        builder.add(position, part.topic, part.base, part.last, part.sequence, part.time, len(part.body))
    elif part.kind == Kind.STAGED:
        builder.add(position, STAGE_TOPIC | part.topic, part.base, part.last, 0, part.time, len(part.body))

"""One segment to read from, and its index: mapped, or made again where it is missing or damaged.

Below: entry, index, block_index, segment. Above: history, journal, survey.
"""

from __future__ import annotations

from contextlib import suppress

from runnel.core.journal_errors import FormatUnknown, JournalDamaged
from runnel.journal import block_index, entry, segment
from runnel.journal.entry import HOLDS_RECORDS, STAGE_TOPIC, Kind
from runnel.journal.index import Index, IndexBuilder, IndexFile
from runnel.journal.segment import START, SegmentInfo
from runnel.journal.storage import File, Storage
from runnel.journal.swap import read_whole


class Source:
    """One segment to read from: sealed, or the one that is being written."""

    __slots__ = ("_file", "_index", "damage", "info", "pin", "storage", "suspect", "written")

    def __init__(self, storage: Storage, info: SegmentInfo, builder: IndexBuilder | None = None) -> None:
        self.storage, self.info = storage, info
        self._file: File | None = None
        self._index: Index | None = builder
        self.written = info.end  # up to where it may be read; grows while it is written
        self.damage: str | None = None  # what was wrong with its index
        self.suspect = False  # the index was made again, and not all that it should tell of could be read
        self.pin: int | None = None  # a topic whose records here are still wanted, as far as is known

    def __repr__(self) -> str:
        return f"<Source {self.info.name}, {self.written} bytes>"

    @property
    def file(self) -> File:
        """The segment, opened when first read."""
        if self._file is None:
            try:
                self._file = self.storage.open(self.info.name)
            except FileNotFoundError:
                if self._file is None:  # or it was opened just now, before its name went: see `hold_on`
                    raise
        return self._file

    @property
    def index(self) -> Index:
        """The index, mapped when first used; made again when it is missing or damaged."""
        index = self._index  # looked at once: the writer may seal the segment meanwhile
        if index is None:
            try:
                file = self.storage.open(self.info.index_name)
                try:
                    index = IndexFile(file.map(), self.info)
                finally:
                    file.close()
            except (JournalDamaged, FormatUnknown, OSError) as error:
                if self._index is not None:
                    return self._index
                self.damage = str(error)
                index, whole = rebuilt(self.storage, self.info)
                self.suspect = not whole
            self._index = index
        return index

    def hold_on(self) -> None:
        """Its names are about to go: have open whatever a reader that came upon it before may still ask for."""
        with suppress(OSError):
            _ = self.file, self.index

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
        if self._file is not None:
            self._file.close()
            self._file = None


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

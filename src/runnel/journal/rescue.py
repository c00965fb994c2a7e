"""All that is whole of a damaged segment, in a new one.

Entries keep their order, and cleaned segments their blocks. A commit of a stage of which something is missing
becomes the batches that are left of it: so what was staged and its commit never part.
Below: survey, salvage, segment. Above: repair.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from runnel.core.errors import BadBatch, NotSupported
from runnel.journal.block_index import BlockIndex, block_of, known_runs
from runnel.journal.entry import HOLDS_RECORDS, Entry, Kind, Part, encode, read_head, size_of
from runnel.journal.index import IndexBuilder
from runnel.journal.salvage import check_part, end_sequence, staged_by, walk
from runnel.journal.segment import START, TEMPORARY, SegmentInfo, encode_header
from runnel.journal.source import add_part
from runnel.journal.storage import File
from runnel.journal.survey import Survey
from runnel.journal.swap import read_whole, write_new

PIECE = 1024 * 1024  # bytes written at a time


def rescued(survey: Survey, info: SegmentInfo, number: int) -> SegmentInfo | None:
    """All whole entries of a segment in a new one, with an index, durable but for their names; None: there are none."""
    storage = survey.storage
    try:
        data = read_whole(storage, info.name)
    except FileNotFoundError:
        return None
    made = SegmentInfo(
        number,
        secrets.randbits(63),
        0,
        info.first_sequence,
        max(info.first_sequence, info.end_sequence),  # never below: readers look for segments by it
        info.first_time,
        info.last_time,
        info.generation,
    )
    file = storage.create(made.name + TEMPORARY)
    try:
        file.write(0, [encode_header(made, info.first_time)])
        copy = _Copy(file, made)
        for time, block, parts in _kept(survey, data[: info.end] if info.sealed else data, info):
            copy.write(parts, time, block)
        copy.flush()
        file.sync()
    finally:
        file.close()
    if copy.end == START:
        storage.remove(made.name + TEMPORARY)
        return None
    storage.rename(made.name + TEMPORARY, made.name)
    made.end = copy.end
    write_new(storage, made.index_name, [copy.index().encode(made)])
    return made


class _Copy:
    """A segment that is being written, entry by entry, with its index."""

    def __init__(self, file: File, made: SegmentInfo) -> None:
        self.end = START
        self._file, self._made = file, made
        self._written = START
        self._pieces: list[bytes] = []
        self._builder, self._blocks = IndexBuilder(), BlockIndex()
        self._begun: dict[int, int] = {}  # where blocks begin, by where they began

    def write(self, parts: Sequence[Part], time: int, block: int) -> None:
        """One entry; in a cleaned segment, of the block that began at `block`."""
        made, position = self._made, self.end
        if made.generation:
            begun = self._begun.setdefault(block, position)
            self._pieces += encode(parts, made.id, position, begun, time)
        else:
            self._pieces += encode(parts, made.id, position, START, time)
            made.last_time = max(made.last_time, time)
        for part in parts:
            if made.generation:
                runs = known_runs(part.body, part.crc) if part.kind == Kind.MERGED else None
                self._blocks.add(position, begun, part, runs)
            else:
                add_part(self._builder, position, part)
            if part.kind in HOLDS_RECORDS:
                made.end_sequence = max(made.end_sequence, end_sequence(part))
        self.end += size_of(parts)
        if self.end - self._written > PIECE:
            self.flush()

    def flush(self) -> None:
        """Hand what is gathered to the file."""
        self._file.write(self._written, self._pieces)
        self._written, self._pieces = self.end, []

    def index(self) -> IndexBuilder:
        """The index, when everything is written."""
        return self._blocks.finish(self._made) if self._made.generation else self._builder


def _kept(survey: Survey, data: bytes, info: SegmentInfo) -> Iterator[tuple[int, int, list[Part]]]:
    """The entries that a segment is to have: their times, where their blocks began, and their parts."""
    broken = {
        (commit.position, commit.staged.base)
        for commit, _ in survey.stages.broken(survey.ledger)
        if commit.info is info
    }
    for found in walk(data, info):
        parts: list[Part] = []
        block = _block_of(data, found.position, info)
        for part in found.parts if isinstance(found, Entry) else found.kept:
            if part.kind == Kind.STAGE_COMMIT and (found.position, part.base) in broken:
                if parts:
                    yield found.time, block, parts
                    parts = []
                staged = staged_by(part)
                assert staged is not None, "it was read before"
                for batch in survey.stages.batches_of(staged, survey.storage):
                    yield found.time, block, [batch]
            elif _is_sound(part):
                parts.append(part)
        if parts:
            yield found.time, block, parts


def _block_of(data: bytes, position: int, info: SegmentInfo) -> int:
    head = read_head(data, position, info.id, position) if info.generation else None
    return position if head is None else block_of(head)


def _is_sound(part: Part) -> bool:
    """Whether readers can do something with it: its crc is right, and so is what it covers."""
    try:
        check_part(part)
    except NotSupported:
        return True  # it cannot be looked into here, and its crc is right
    except BadBatch:
        return False
    return True

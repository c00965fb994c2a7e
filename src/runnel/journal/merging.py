"""Merging: batches of a stretch of the journal become a few, a topic after the other.

They come in the order of their sequences and leave grouped by topic: one block of a cleaned segment.
Offsets, sequences, append times and all that records carry stay as they are. Batches that differ in
content type, schema or compression are not merged with each other, and neither are those on both
sides of a stage's commit.
Below: core.packing, merged, entry. Above: cleaner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from runnel.core import packing
from runnel.core.errors import BadBatch
from runnel.core.packing import DELTAS, HEADER_SIZE, VALUES, Packed
from runnel.journal import merged
from runnel.journal.entry import Kind, Part
from runnel.journal.found import Staged
from runnel.journal.merged import Run

BLOCK = 8 * 1024 * 1024  # bytes of records, before compression
LARGEST = 1024 * 1024  # of one topic that make one entry: merged in one step, and read in one

Spans = list[tuple[int, int]]  # of indexes in a batch, [first, end)

_PRIORITIES = 6  # where they are among the columns: the only one that holds no None


class Piece(msgspec.Struct, gc=False):
    """Records of one batch that live: where they belong, and which they are; None: all of them.

    Not known to the garbage collector, and neither are its neighbours: a block has many of them.
    """

    runs: Sequence[Run]
    header: Packed
    batch: bytes | memoryview
    spans: Spans | None = None

    @property
    def raw(self) -> int:
        """Their bytes, about."""
        if self.spans is None:
            return HEADER_SIZE + self.header.raw_length
        living = sum(run.count for run in self.runs)
        return HEADER_SIZE + self.header.raw_length * living // self.header.count


class Item(msgspec.Struct, gc=False):
    """Something that goes into a block: a piece of a batch, or a part that stays as it is.

    Or a commit of what was `staged`, in the place of which its records go there.
    """

    topic: int
    sequence: int
    time: int
    size: int
    piece: Piece | None
    part: Part | None = None
    staged: Staged | None = None


class Written(NamedTuple):
    """A part of a block, ready to be written; of a merged one also its runs."""

    part: Part
    runs: list[Run] | None = None


class _Group:
    """Neighbouring pieces of one topic that become one batch."""

    __slots__ = ("pieces", "size")

    def __init__(self, piece: Piece, size: int) -> None:
        self.pieces = [piece]
        self.size = size

    def takes(self, piece: Piece, size: int) -> bool:
        """Whether `piece` may be merged with what is here."""
        one, two = self.pieces[0].header, piece.header
        return (
            self.size + size <= LARGEST
            and one.content_type == two.content_type
            and one.schema == two.schema
            and one.flags == two.flags
        )

    def add(self, piece: Piece, size: int) -> None:
        self.pieces.append(piece)
        self.size += size


class Merging:
    """What was gathered so far for a block. `parts` empties it."""

    def __init__(self) -> None:
        self.size = 0
        self.sequence = self.time = 0  # the lowest
        self.end_sequence = self.end_time = 0  # the highest, of the sequences one more
        self._topics: dict[int, list[_Group | Part]] = {}

    def __bool__(self) -> bool:
        return bool(self._topics)

    def __repr__(self) -> str:
        return f"<Merging of {len(self._topics)} topics, {self.size:,} bytes>"

    def add(self, item: Item) -> None:
        """Take one more; of each topic, in the order of its offsets."""
        if not self._topics:
            self.sequence, self.time = item.sequence, item.time
            self.end_sequence = self.end_time = 0
        elif item.sequence < self.sequence:
            self.sequence, self.time = item.sequence, item.time
        self.size += item.size
        groups = self._topics.setdefault(item.topic, [])
        piece = item.piece
        if piece is None:
            assert item.part is not None
            self._ends(item.sequence + item.part.count, item.time)
            groups.append(item.part)
            return
        last_run = piece.runs[-1]
        self._ends(last_run.sequence + last_run.count, last_run.time)
        last = groups[-1] if groups else None
        if isinstance(last, _Group) and last.takes(piece, item.size):
            last.add(piece, item.size)
        else:
            groups.append(_Group(piece, item.size))

    def _ends(self, sequence: int, time: int) -> None:
        if sequence > self.end_sequence:
            self.end_sequence, self.end_time = sequence, time

    def parts(self) -> Iterator[Written]:
        """All of it, topic by topic."""
        topics, self._topics, self.size = self._topics, {}, 0
        for topic in sorted(topics):
            for group in topics[topic]:
                if isinstance(group, Part):
                    yield Written(group)
                else:
                    yield _merged(topic, group.pieces)


def runs_of_batch(part: Part, header: Packed) -> Sequence[Run]:
    """Where the records of a plain batch belong."""
    if not header.columns & DELTAS:
        if part.count != header.count:
            raise BadBatch(f"it holds {header.count} records for {part.count} offsets")
        return (Run(part.base, part.sequence, part.time, header.count),)
    deltas = packing.unpack(part.body, verify=False).deltas
    assert deltas is not None
    if deltas[-1] != part.last - part.base:
        raise BadBatch(f"it spans {deltas[-1] + 1} offsets, not {part.count}")
    return joined([Run(part.base + delta, part.sequence + delta, part.time, 1) for delta in deltas])


def parted(items: Sequence[Item], sequence: int) -> tuple[list[Item], list[Item]]:
    """The same in two: what lies before a sequence that none of them has, and what lies behind it."""
    before: list[Item] = []
    behind: list[Item] = []
    for item in items:
        piece = item.piece
        if piece is None or not piece.runs[0].sequence < sequence <= piece.runs[-1].sequence:
            (before if item.sequence < sequence else behind).append(item)
            continue
        at = sum(run.sequence < sequence for run in piece.runs)
        count = sum(run.count for run in piece.runs[:at])
        low: Spans = []
        high: Spans = []
        for first, end in piece.spans or [(0, piece.header.count)]:
            middle = min(end, first + max(0, count))
            count -= end - first
            low += [(first, middle)] if middle > first else []
            high += [(middle, end)] if end > middle else []
        for runs, spans, found in ((piece.runs[:at], low, before), (piece.runs[at:], high, behind)):
            one = Piece(runs, piece.header, piece.batch, spans)
            found.append(Item(item.topic, runs[0].sequence, runs[0].time, one.raw, one))
    return before, behind


def joined(runs: Sequence[Run]) -> list[Run]:
    """The same with as few runs as there can be."""
    found: list[Run] = []
    for run in runs:
        if found:
            offset, sequence, time, count = found[-1]
            if offset + count == run.offset and sequence + count == run.sequence and time == run.time:
                found[-1] = Run(offset, sequence, time, count + run.count)
                continue
        found.append(run)
    return found


def _merged(topic: int, pieces: list[Piece]) -> Written:
    """The part that some pieces become."""
    runs = joined([run for piece in pieces for run in piece.runs])
    header = pieces[0].header
    if len(pieces) == 1 and pieces[0].spans is None and not header.columns & DELTAS:
        batch = bytes(pieces[0].batch)
    else:
        about: dict[str, Any] = {
            "compression": header.compression,
            "content_type": header.content_type,
            "schema": header.schema,
        }
        if all(piece.header.columns == VALUES and piece.spans is None for piece in pieces):
            count = sum(piece.header.count for piece in pieces)
            body = b"".join((b"\x91", _array_head(count), *map(_elements, pieces)))
            batch = packing.pack_body(VALUES, count, body, **about)
        else:
            batch = packing.pack_columns(_columns(pieces), **about)
    body = merged.encode(runs, batch)
    first, last = runs[0], runs[-1]
    crc, end = int.from_bytes(body[:4], "little"), last.offset + last.count
    part = Part(Kind.MERGED, body, crc, topic, first.offset, end - 1, first.sequence, first.time)
    return Written(part, runs)


def _elements(piece: Piece) -> bytes | memoryview:
    """The values of a batch that has nothing else, one behind the other as they are encoded: nothing is decoded."""
    body = packing.body_of(piece.header, piece.batch)
    size, count = 0, -1
    if len(body) > 1 and body[0] == 0x91:
        kind = body[1]
        if 0x90 <= kind <= 0x9F:
            size, count = 2, kind & 0x0F
        elif kind in (0xDC, 0xDD):
            size = 4 if kind == 0xDC else 6
            count = int.from_bytes(body[2:size], "big")
    if count != piece.header.count:
        raise BadBatch("its values are not an array of as many as it says")
    return body[size:]


def _array_head(count: int) -> bytes:
    """How msgpack begins an array."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def _columns(pieces: list[Piece]) -> list[list[Any] | None]:
    """The columns of all pieces, each as long as all of them together; None where no record has anything in it."""
    columns: list[list[Any] | None] = [[], None, None, None, None, None, None]
    length = 0
    for piece in pieces:
        one = packing.unpack(piece.batch, verify=False)
        spans = [(0, len(one))] if piece.spans is None else piece.spans
        count = sum(end - first for first, end in spans)
        found = (one.values, one.keys, one.headers, one.times, one.due, one.expires, one.priorities)
        for at, column in enumerate(found):
            have = columns[at]
            if have is None:
                if column is None:
                    continue
                have = columns[at] = [_absent(at)] * length
            if column is None:
                have.extend([_absent(at)] * count)
            else:
                for first, end in spans:
                    have.extend(column[first:end])
        length += count
    return [
        None if at and column is not None and column.count(_absent(at)) == length else column
        for at, column in enumerate(columns)
    ]


def _absent(at: int) -> int | None:
    return 0 if at == _PRIORITIES else None

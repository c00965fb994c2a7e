"""Entries: the atomic unit of the journal, as bytes.

An entry is a header, a table of part headers, and the bodies of the parts. Its crc covers the header and the table,
which holds the crcs of the bodies; it is seeded with the segment's random id and the entry's position, so that bytes
of another segment, another position or an earlier use of the disk never pass. An entry is whole, or it is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import msgspec

from runnel.core.checksum import crc_behind, crc_extended, crc_of
from runnel.core.errors import FormatUnknown

MAGIC = b"rnle"
HEADER = Struct("<4sIIIQQ")  # magic, crc, length, parts, synced, time
PART = Struct("<BBHIIIQQQQ")  # kind, flags, reserved, length, crc, topic, base, last, sequence, time
MAX_LENGTH = 1 << 30  # a longer entry was never written: its length is damaged

_SEED = Struct("<QQ")
_AFTER_CRC = 8


class PartKind(IntEnum):
    """The kind of a part. Readers refuse unknown kinds, unless they are `OPTIONAL` or above."""

    BATCH = 1
    TOPIC = 2
    TOPIC_DELETED = 3
    CURSOR = 4
    GROUP = 5
    PROGRESS = 6
    GROUP_DELETED = 7
    SEQUENCE = 8
    TRIM = 9
    CURSOR_FORGOTTEN = 10
    STAGED = 16
    STAGE_COMMIT = 17
    MARK = 18
    MESSAGE_IDS = 19
    MERGED = 20
    STAGE = 21
    STAGE_DROPPED = 22
    COMPACTED = 23
    STAGED_BLOCK = 24
    BLOCKS_COMMIT = 25
    CONFIRMED = 26
    OPTIONAL = 128
    NAMES = 129


# Their bodies begin with a crc of all that follows.
SELF_CHECKED = frozenset((PartKind.BATCH, PartKind.STAGED, PartKind.MERGED, PartKind.STAGED_BLOCK))
# They hold records of their topic, at the offsets that they name.
HOLDS_RECORDS = frozenset((PartKind.BATCH, PartKind.MERGED, PartKind.STAGE_COMMIT, PartKind.BLOCKS_COMMIT))
# They hold records of a stage, which is in the place of a topic.
HOLDS_STAGED = frozenset((PartKind.STAGED, PartKind.STAGED_BLOCK))
STAGE_TOPIC = 1 << 31  # with a stage's id: represents a topic in searches for staged batches


class Part(msgspec.Struct, gc=False):
    """One change: a batch for a topic, or a piece of state. The fields hold the values assigned by the broker.

    `topic` is the id of the topic (of the group, for PROGRESS; of the stage, for STAGED and STAGED_BLOCK); `base` and
    `last` are offsets, `sequence` is that of the first record, `time` the append time in microseconds.
    """

    kind: int
    body: bytes
    crc: int
    topic: int = 0
    base: int = 0
    last: int = 0
    sequence: int = 0
    time: int = 0

    @property
    def count(self) -> int:
        """How many offsets, and sequences, it takes up."""
        return self.last - self.base + 1


def state_part(kind: PartKind, body: bytes = b"", topic: int = 0, base: int = 0) -> Part:
    """A part that holds no records."""
    return Part(kind, body, crc_of(body), topic, base)


class Entry(NamedTuple):
    """A whole entry, as read. The bodies of its parts are views of the read bytes."""

    position: int
    end: int
    synced: int  # up to where the segment was synced when this was written
    time: int
    parts: list[Part]


class EntryHead(NamedTuple):
    """The header and table of an entry: where its parts lie, without their bodies."""

    position: int
    end: int
    synced: int
    time: int
    table: list[tuple[int, int, int, int, int, int, int, int, int, int]]
    bodies: int  # where the first body begins, from the entry's position


def size_of(parts: Sequence[Part]) -> int:
    """How many bytes an entry of `parts` takes."""
    size = HEADER.size + PART.size * len(parts)
    for part in parts:
        size += len(part.body)
    return size


def encode(parts: Sequence[Part], segment_id: int, position: int, synced: int, time: int) -> list[bytes]:
    """The entry as pieces to be written one behind the other."""
    pack = PART.pack
    pieces = [HEADER.pack(MAGIC, 0, size_of(parts), len(parts), synced, time)[_AFTER_CRC:]]
    for part in parts:
        pieces.append(  # noqa: PERF401  # a comprehension costs a call
            pack(part.kind, 0, 0, len(part.body), part.crc, part.topic, part.base, part.last, part.sequence, part.time)
        )
    covered = b"".join(pieces)
    crc = crc_extended(_seed(segment_id, position), covered)
    return [MAGIC + crc.to_bytes(4, "little") + covered, *[part.body for part in parts]]


def read_head(data: bytes | memoryview, at: int, segment_id: int, position: int) -> EntryHead | None:
    """The header and table at `data[at:]`; None unless they are whole and belong at `position`."""
    if at + HEADER.size > len(data):
        return None
    magic, crc, length, count, synced, time = HEADER.unpack_from(data, at)
    table_end = at + HEADER.size + count * PART.size
    if magic != MAGIC or length > MAX_LENGTH or table_end > len(data) or table_end > at + length:
        return None
    # google_crc32c takes bytes only; headers are small.
    covered = bytes(data[at + _AFTER_CRC : table_end])
    if crc_extended(_seed(segment_id, position), covered) != crc:
        return None
    table = list(PART.iter_unpack(data[at + HEADER.size : table_end]))
    for _, flags, reserved, *_ in table:
        if flags or reserved:  # whole, and of a later version: not damage, and nothing to guess about
            raise FormatUnknown(f"an entry part with flags {flags:#x} {reserved:#x}", flags or reserved, 0)
    return EntryHead(position, position + length, synced, time, table, table_end - at)


def read_entry(data: bytes | memoryview, at: int, segment_id: int, position: int) -> Entry | None:
    """The entry at `data[at:]`, every body checked; None unless it is whole."""
    head = read_head(data, at, segment_id, position)
    if head is None or at + head.end - position > len(data):
        return None
    parts: list[Part] = []
    body_at = at + head.bodies
    for kind, _, _, length, crc, topic, base, last, sequence, time in head.table:
        body = bytes(data[body_at : body_at + length])
        body_at += length
        if body_crc(kind, body) != crc:
            return None
        parts.append(Part(kind, body, crc, topic, base, last, sequence, time))
    if body_at != at + head.end - position:
        return None
    return Entry(position, head.end, head.synced, head.time, parts)


def body_crc(kind: int, body: bytes) -> int:
    """The crc of a body as the table holds it. Some begin with their own crc, of all that follows it."""
    if kind not in SELF_CHECKED:
        return crc_of(body)
    own = crc_behind(body)
    return own if body[:4] == own.to_bytes(4, "little") else ~own & 0xFFFFFFFF


def _seed(segment_id: int, position: int) -> int:
    return crc_of(_SEED.pack(segment_id, position))


# -- Entries to be written -------------------------------------------------------------------------------


class Draft(NamedTuple):
    """An entry to be written: its parts, and its time in microseconds."""

    parts: Sequence[Part]
    time: int


class WriteFailed(Exception):
    """A write stopped: drafts before `done` are durable, before `begun` unknown, the others not written."""

    def __init__(self, done: int, begun: int, cause: Exception) -> None:
        self.done, self.begun, self.cause = done, begun, cause
        super().__init__(f"{done} entries were written, {begun - done} perhaps: {cause}")

"""Segments: the files that hold entries, one after the other.

A segment is written by one journal between one opening and the next, then sealed: nothing is ever written to it again.
It is created under a temporary name, renamed, and synced before the manifest names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

import msgspec

from runnel.core.checksum import crc_of
from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.format import entry
from runnel.journal.format.entry import Entry, Part
from runnel.journal.storage import File, Storage

VERSION = 1

_ZEROS = bytes(64 * 1024)
MAGIC = b"runnel/s"
START = 64  # where the first entry lies
ZERO_STEP = 256 * 1024
SMALL_COMMIT = 16 * 1024

TEMPORARY = ".tmp"

HEADER = Struct("<8sIIQQQQ")  # magic, version, reserved, number, id, first sequence, created
_CRC = Struct("<I")


class SegmentInfo(msgspec.Struct, array_like=True, gc=False):
    """The manifest's entry of a segment. `end` is 0 for the one that is being written.

    One of a `generation` above 0 was written by the cleaner, replacing others.
    """

    number: int
    id: int
    end: int = 0
    first_sequence: int = 0
    end_sequence: int = 0
    first_time: int = 0
    last_time: int = 0
    generation: int = 0

    @property
    def sealed(self) -> bool:
        """Whether nothing is written to it any more."""
        return self.end > 0

    @property
    def name(self) -> str:
        """The file of its entries."""
        return f"{self._stem}.seg"

    @property
    def index_name(self) -> str:
        """The file of its index."""
        return f"{self._stem}.idx"

    @property
    def _stem(self) -> str:
        return f"{self.number:012d}-{self.generation}" if self.generation else f"{self.number:012d}"


class ActiveSegment:
    """The segment that is being written. One thread at a time."""

    def __init__(self, info: SegmentInfo, file: File, limit: int) -> None:
        self.info, self.file, self.limit = info, file, limit
        self.end = START
        self.synced = START  # up to where it is known to be durable
        self._zeroed = START  # up to where the file system has allocated blocks

    def __repr__(self) -> str:
        return f"<ActiveSegment {self.info.number} [{START}, {self.end}) of {self.limit}>"

    @classmethod
    def create(cls, storage: Storage, info: SegmentInfo, limit: int, now: int) -> ActiveSegment:
        """A new segment, not durable yet. ENOSPC leaves nothing behind but a temporary file."""
        temporary = info.name + TEMPORARY
        file = storage.create(temporary)
        try:
            file.allocate(limit)
            file.write(0, [encode_header(info, now)])
            storage.rename(temporary, info.name)
        except BaseException:
            file.close()
            raise
        return cls(info, file, limit)

    def encode(self, parts: Sequence[Part], position: int, time: int) -> list[bytes]:
        """An entry for `position`."""
        return entry.encode(parts, self.info.id, position, self.synced, time)

    def write(self, pieces: Sequence[bytes], size: int) -> None:
        """Write encoded entries at the end. They are not durable before `sync`."""
        self.file.write(self.end, pieces)
        self.end += size
        # Writing into reserved but never written space costs the file system a commit of its own at
        # every sync. Many small commits into zeros are cheaper; a large one is its own preparation.
        if self.end > self._zeroed - SMALL_COMMIT:
            if size <= SMALL_COMMIT and self.end + ZERO_STEP <= self.limit:
                self.file.write(self.end, [_ZEROS])
                self._zeroed = self.end + ZERO_STEP
            else:
                self._zeroed = max(self._zeroed, self.end)

    def sync(self) -> None:
        """Return when everything written is durable."""
        end = self.end
        self.file.sync()
        self.synced = end


_ZEROS = bytes(ZERO_STEP)


def encode_header(info: SegmentInfo, now: int) -> bytes:
    """The first bytes of a segment."""
    header = HEADER.pack(MAGIC, VERSION, 0, info.number, info.id, info.first_sequence, now)
    return (header + _CRC.pack(crc_of(header))).ljust(START, b"\0")


def check_header(data: bytes, info: SegmentInfo) -> None:
    """Raise unless `data` begins a segment that is the one the manifest means."""
    if len(data) < START or data[:8] != MAGIC:
        raise JournalDamaged(info.name, 0, "this is not a segment")
    header = data[: HEADER.size]
    crc = _CRC.unpack_from(data, HEADER.size)[0]
    _, version, *fields, number, segment_id, first, created = HEADER.unpack(header)
    # A later version may have another header, but one that is right but for its version is a damaged one of this.
    known = HEADER.pack(MAGIC, VERSION, *fields, number, segment_id, first, created)
    if version != VERSION and crc != crc_of(known):
        raise FormatUnknown(info.name, version, VERSION)
    if crc != crc_of(header) or any(data[HEADER.size + 4 : START]):
        raise JournalDamaged(info.name, 0, "the header's crc is wrong")
    if (number, segment_id) != (info.number, info.id):
        raise JournalDamaged(info.name, 0, f"it is segment {number} of another journal or life")


def release_reserved(storage: Storage, info: SegmentInfo) -> None:
    """Cut off what a sealed segment had reserved and not used, if a crash kept that from being done."""
    file = storage.open(info.name, writable=True)
    try:
        if file.size() > info.end:
            file.truncate(info.end)
    finally:
        file.close()


def entries(data: bytes | memoryview, at: int, info: SegmentInfo, position: int) -> Iterator[Entry]:
    """The whole entries in `data[at:]`, which begins at `position`; ends at the first that is not whole."""
    while (found := entry.read_entry(data, at, info.id, position)) is not None:
        yield found
        at += found.end - found.position
        position = found.end


def next_whole_entry(data: bytes, start: int, info: SegmentInfo) -> Entry | None:
    """The next whole entry at `start` or anywhere behind it, in a segment read from its beginning."""
    at = data.find(entry.MAGIC, start)
    while at >= 0:
        if (found := entry.read_entry(data, at, info.id, at)) is not None:
            return found
        at = data.find(entry.MAGIC, at + 1)
    return None


def written_end(data: bytes) -> int:
    """The end of the last byte that is not zero: the rest was reserved, and never written.

    Whole pieces are compared at once. To strip 64 MiB byte by byte takes an eighth of a second, of the time in which
    the folder cannot be used.
    """
    end = len(data)
    while end >= len(_ZEROS) and data[end - len(_ZEROS) : end] == _ZEROS:
        end -= len(_ZEROS)
    begin = max(0, end - len(_ZEROS))
    return begin + len(data[begin:end].rstrip(b"\0"))

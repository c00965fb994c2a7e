"""What compaction by key has found so far, in a small file, so that a restart need not look for it again.

The file says nothing that reading the segments would not say: one that is missing, damaged, or of another
journal is not believed, and all is looked through again. It is replaced as a whole; see docs/reference/disk.md.
Below: storage. Above: key_pass, compaction, broker.cleaning.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from runnel.core.checksum import crc_of
from runnel.journal.offset_set import Pages
from runnel.journal.storage import Storage
from runnel.journal.swap import read_whole, write_new

NAME = "KEYS"
MAGIC = b"runnel/k"
VERSION = 1

_HEADER = Struct("<8sII")  # magic, version, crc


class TopicNote(msgspec.Struct, array_like=True):
    """A topic: below `surveyed`, no two records share a key but for the `superseded` ones, which are still there."""

    topic: int
    surveyed: int
    kept: int  # records below that stay, about
    cut_short: bool
    look_at: int  # when a tombstone may go, in microseconds
    superseded: Pages


class PassNote(msgspec.Struct, array_like=True):
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


class Pending(msgspec.Struct, array_like=True):
    """A cleaning that is about to be put in place: then these offsets are gone."""

    replaced: list[int]  # ids of segments
    made: list[int]
    taken: list[tuple[int, Pages]]  # by topic


class KeyNote(msgspec.Struct, array_like=True):
    """All of it. `segments` are the ids of those that it knows: in others there may be anything."""

    journal: str
    segments: list[int]
    topics: list[TopicNote]
    pending: Pending | None = None
    under_way: PassNote | None = None


def save(storage: Storage, note: KeyNote) -> int:
    """Replace the file; durable but for its name. How many bytes it has."""
    body = msgspec.msgpack.encode(note)
    write_new(storage, NAME, [_HEADER.pack(MAGIC, VERSION, crc_of(body)), body])
    return _HEADER.size + len(body)


def load(storage: Storage, journal: str) -> KeyNote | None:
    """What was noted of this journal; None: nothing that can be believed."""
    try:
        data = read_whole(storage, NAME)
    except FileNotFoundError:
        return None
    if len(data) < _HEADER.size or data[:8] != MAGIC:
        return None
    _, version, crc = _HEADER.unpack_from(data)
    if version != VERSION or crc_of(data[_HEADER.size :]) != crc:
        return None
    try:
        found = msgspec.msgpack.decode(data[_HEADER.size :], type=KeyNote)
    except msgspec.MsgspecError:
        return None
    return found if found.journal == journal else None

"""The durable high watermark: how far the journal is synced, for other processes that read the folder.

It is written after each sync and never synced itself: after a power loss it may be old, but never ahead. Version 1 ends
with its crc; a later version stores its number in the four bytes behind that.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from runnel.core.checksum import crc_of
from runnel.core.errors import FormatUnknown
from runnel.journal.storage import File, Storage

VERSION = 1
NAME = "DURABLE"

_WATERMARK = Struct("<8sQQQ")  # magic, segment number, segment id, position
_MAGIC = b"runnel/d"


class Watermark(NamedTuple):
    """Up to `position` of a segment, everything is durable."""

    number: int
    id: int
    position: int


def write(file: File, number: int, segment_id: int, position: int) -> None:
    """Publish the watermark."""
    mark = _WATERMARK.pack(_MAGIC, number, segment_id, position)
    file.write(0, [mark + crc_of(mark).to_bytes(4, "little")])


def read(storage: Storage) -> Watermark | None:
    """The mark; None where there is none that makes sense. FormatUnknown: a later version wrote it."""
    try:
        file = storage.open(NAME)
    except FileNotFoundError:
        return None
    try:
        for _ in range(3):  # a read may meet a write halfway
            data, later = file.read(0, _WATERMARK.size + 4), file.read(_WATERMARK.size + 4, 4)
            if later:
                raise FormatUnknown(NAME, int.from_bytes(later, "little"), VERSION)
            if len(data) == _WATERMARK.size + 4 and crc_of(data[:-4]).to_bytes(4, "little") == data[-4:]:
                magic, number, segment_id, position = _WATERMARK.unpack_from(data)
                return Watermark(number, segment_id, position) if magic == _MAGIC else None
    finally:
        file.close()
    return None

"""The durable high watermark: how far the journal is synced, for other processes that read the folder.

It is written after each sync and never synced itself: after a power loss it may be old, but never ahead.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from runnel.core.checksum import crc_of
from runnel.journal.storage import File, Storage

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
    """The mark; None where there is none that makes sense."""
    try:
        file = storage.open(NAME)
    except FileNotFoundError:
        return None
    try:
        for _ in range(3):  # a read may meet a write halfway
            data = file.read(0, _WATERMARK.size + 4)
            if len(data) == _WATERMARK.size + 4 and crc_of(data[:-4]).to_bytes(4, "little") == data[-4:]:
                magic, number, segment_id, position = _WATERMARK.unpack_from(data)
                return Watermark(number, segment_id, position) if magic == _MAGIC else None
    finally:
        file.close()
    return None

"""Checkpoints: the state of the ledger at the beginning of a segment.

A full checkpoint holds everything; the others hold what changed since the one before. The chain is bounded: `MAX_CHAIN`
links, or until the links are larger than the full one.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any

import msgspec

from runnel.core.checksum import crc_extended, crc_of
from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.format.atomic_file import read_whole, replace_file
from runnel.journal.format.ledger import Ledger
from runnel.journal.storage import Storage

VERSION = 1
MAGIC = b"runnel/c"
MAX_CHAIN = 16

HEADER = Struct("<8sIIQQI")  # magic, version, crc, number, the one before (0: none), pieces
_PIECE = Struct("<II")  # length, crc
_AFTER_CRC = 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def name_of(number: int) -> str:
    """The file of the checkpoint that was taken when segment `number` began."""
    return f"{number:012d}.ckpt"


def write(storage: Storage, number: int, before: int, ledger: Ledger) -> int:
    """Write a checkpoint, durable but for its name, full when there is none `before` it; its size."""
    bodies = [_encode(piece) for piece in ledger.changes(everything=not before)]
    covered = HEADER.pack(MAGIC, VERSION, 0, number, before, len(bodies))[_AFTER_CRC:]
    crc = crc_of(covered)
    pieces = [MAGIC + VERSION.to_bytes(4, "little") + crc.to_bytes(4, "little") + covered]
    for body in bodies:
        crc = crc_extended(crc, body)  # each covers all before it, so no piece can change places
        pieces += (_PIECE.pack(len(body), crc), body)
    replace_file(storage, name_of(number), pieces)
    return sum(map(len, pieces))


def load(storage: Storage, number: int, before: int, ledger: Ledger) -> None:
    """Take a checkpoint into `ledger`, or raise and leave it unchanged."""
    name = name_of(number)
    try:
        data = read_whole(storage, name)
    except FileNotFoundError:
        raise JournalDamaged(name, 0, "it is missing") from None
    ledger.restore(list(_pieces(data, name, number, before)))


def verify(data: bytes, number: int, before: int) -> None:
    """Raise JournalDamaged unless `data` is the whole checkpoint of that number."""
    for _ in _pieces(data, name_of(number), number, before):
        pass


def _pieces(data: bytes, name: str, number: int, before: int) -> Iterator[list[Any]]:
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise JournalDamaged(name, 0, "this is not a checkpoint")
    _, version, crc, found, found_before, count = HEADER.unpack_from(data)
    if version != VERSION:
        raise FormatUnknown(name, version, VERSION)
    if crc != crc_of(data[_AFTER_CRC : HEADER.size]):
        raise JournalDamaged(name, 0, "the header's crc is wrong")
    if (found, found_before) != (number, before):
        raise JournalDamaged(name, 0, f"it is checkpoint {found} after {found_before}")
    at = HEADER.size
    for _ in range(count):
        if at + _PIECE.size > len(data):
            raise JournalDamaged(name, at, "it is cut short")
        length, piece_crc = _PIECE.unpack_from(data, at)
        body = data[at + _PIECE.size : at + _PIECE.size + length]
        crc = crc_extended(crc, body)
        if len(body) != length or crc != piece_crc:
            raise JournalDamaged(name, at, "the crc is wrong")
        yield _decode(body)
        at += _PIECE.size + length
    if at != len(data):
        raise JournalDamaged(name, at, "there are bytes after its end")

"""Batches of one record that is a value alone: the same bytes as in `batch_format`, packed and unpacked in fewer steps.

Over a network most publishes that are awaited one by one, and most deliveries at a low rate, are such batches. Every
function here leaves other batches to the general code: it returns None, or calls it.
"""

from __future__ import annotations

from struct import Struct

from runnel.core.batch_format import BATCH_VERSION, BYTES, HEADER_SIZE, MSGPACK, VALUES, pack
from runnel.core.checksum import BEFORE_CRC, crc_extended, crc_of
from runnel.core.publishing import Append

LoneRecord = tuple[bytes, int, int, int]
"""(value, content type, producer, producer sequence). A plain tuple: there are very many."""

_KIND = Struct("<BBHI").pack(BATCH_VERSION, 0, VALUES, 1)  # not compressed, no other column, one record
_HEADER = Struct("<I8sIIQQIB7s")  # crc, kind, body length, raw length, producer, its number, schema, content type
_AFTER_CRC = Struct("<8sIIQQIB7x")
_RESERVED = bytes(7)
_BIN8, _BIN16 = b"\x91\x91\xc4", b"\x91\x91\xc5"  # an array of one column, an array of one value, how long it is
_START = {_BIN8: HEADER_SIZE + 4, _BIN16: HEADER_SIZE + 5}  # where the value is, behind its length


def pack_lone(value: bytes, content_type: int = BYTES, producer: int = 0, producer_sequence: int = 0) -> bytes:
    """One value packed as a batch, equal to the result of `pack`."""
    size = len(value)
    if size < 1 << 8:
        start = _BIN8 + size.to_bytes(1, "big")
    elif size < 1 << 16:
        start = _BIN16 + size.to_bytes(2, "big")
    else:
        return pack((value,), content_type=content_type, producer=producer, producer_sequence=producer_sequence)
    length = len(start) + size
    after = _AFTER_CRC.pack(_KIND, length, length, producer, producer_sequence, 0, content_type)
    rest = b"".join((after, start, value))
    return crc_of(rest).to_bytes(4, "little") + rest


def unpack_lone(data: bytes, *, verify: bool = True) -> LoneRecord | None:
    """The only record of a batch, if it is below 64 KiB and a value alone.

    None: it is another batch, or an invalid one. Then `unpack` reads it, or raises the error.
    """
    start = _START.get(data[HEADER_SIZE : HEADER_SIZE + 3])
    if start is None:
        return None
    crc, kind, length, raw_length, producer, sequence, _, content_type, reserved = _HEADER.unpack_from(data)
    size = len(data)
    if (
        kind != _KIND
        or not length == raw_length == size - HEADER_SIZE
        or int.from_bytes(data[HEADER_SIZE + 3 : start], "big") != size - start
        or content_type > MSGPACK
        or reserved != _RESERVED
        or (verify and crc_extended(crc ^ BEFORE_CRC, data) != crc)
    ):
        return None
    return data[start:], content_type, producer, sequence


def append_of_lone(data: bytes) -> Append | None:
    """The append for a batch received over a network; None: it is not a single value, or invalid."""
    found = unpack_lone(data)
    if found is None:
        return None
    value, _, producer, sequence = found
    return Append((value,), None, len(value), producer=producer, producer_sequence=sequence, packed=data)

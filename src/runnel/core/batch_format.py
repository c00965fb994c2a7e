"""The record batch as bytes: the same bytes are sent, stored and delivered.

A batch is a header of 48 bytes, which a broker reads, and a body of columns, which it decodes only
when it must. Little-endian; reserved bits and bytes are 0:

    0   u32  crc                crc32c of everything behind this field
    4   u8   version            1
    5   u8   flags              bits 0-1: compression of the body, 0 none, 1 zstd, 2 lz4
    6   u16  columns            bit 0 values (always), 1 keys, 2 headers, 3 times, 4 due,
                                5 expires, 6 priorities, 7 offset deltas
    8   u32  count              records, at least 1
    12  u32  body length        as stored
    16  u32  raw length         before compression, at most MAX_RAW
    20  u64  producer           0: none
    28  u64  producer sequence
    36  u32  schema             0: none
    40  u8   content type       of the values: 0 bytes, 1 json, 2 msgpack
    41  7 bytes reserved

The body is a msgpack array of the columns that are present, in the order of their bits, each
an array of `count`: values bin; keys bin or nil; headers map of str to str, or nil; times
int (microseconds since 1970) or nil; due and expires float (seconds since 1970) or nil;
priorities int 0-9; offset deltas int, strictly rising from 0, where a batch has holes.

Input is untrusted: bytes that break any of these rules raise `BadBatch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain, islice, repeat
from operator import lt
from struct import Struct
from sys import float_info
from typing import Annotated, Any

import msgspec

from runnel.core.checksum import BEFORE_CRC, crc_extended, crc_of
from runnel.core.columns import DELTAS as DELTAS  # a batch is found here with the bits of its columns
from runnel.core.columns import DUE, EXPIRES, HEADERS, KEYS, PRIORITIES, Columns
from runnel.core.columns import TIMES as TIMES
from runnel.core.columns import VALUES as VALUES
from runnel.core.compression import COMPRESSIONS, compress, decompress
from runnel.core.errors import BadBatch, TooLarge
from runnel.core.payload import HEADER_NAME, MAX_HEADERS
from runnel.core.record import Meta
from runnel.core.trace_context import TRACEPARENT as TRACE
from runnel.core.trace_context import is_traceparent

HEADER_SIZE = 48
BATCH_VERSION = 1
MAX_RAW = 128 << 20
MAX_DELTA = 2**32 - 1
MAX_BATCH_RECORDS = 1_000_000  # records of a batch from outside
_COUNT = slice(8, 12)  # where a header says how many there are

BYTES, JSON, MSGPACK = range(3)
CONTENT_TYPES: dict[str | None, int] = {None: BYTES, "json": JSON, "msgpack": MSGPACK}  # by encoding

_RESERVED = bytes(7)
_AFTER_CRC = Struct("<BBHIIIQQIB7x")
_WHOLE = Struct("<IBBHIIIQQIB7s")
_NUMBERS = Struct("<QQ")

_LAST_MICROSECOND = 253_402_300_799_999_999  # of the year 9999, the last that a datetime can show
_Time = Annotated[int, msgspec.Meta(ge=0, le=_LAST_MICROSECOND)]
_Seconds = Annotated[float, msgspec.Meta(ge=-float_info.max)]  # a NaN has no place in any order
_COLUMNS: tuple[tuple[int, Any], ...] = (
    (VALUES, tuple[bytes, ...]),
    (KEYS, tuple[bytes | None, ...]),
    (HEADERS, tuple[dict[str, str] | None, ...]),
    (TIMES, tuple[_Time | None, ...]),
    (DUE, tuple[_Seconds | None, ...]),
    (EXPIRES, tuple[_Seconds | None, ...]),
    (PRIORITIES, tuple[Annotated[int, msgspec.Meta(ge=0, le=9)], ...]),
    (DELTAS, tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_DELTA)], ...]),
)

_CARRIED = (KEYS, HEADERS, DUE, EXPIRES, PRIORITIES)
_encode = msgspec.msgpack.Encoder().encode


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a batch, checked except for checks that need the body."""

    crc: int
    version: int
    flags: int
    columns: int
    count: int
    body_length: int
    raw_length: int
    producer: int
    producer_sequence: int
    schema: int
    content_type: int

    @property
    def compression(self) -> str | None:
        """How the body is compressed."""
        return COMPRESSIONS[self.flags - 1] if self.flags else None

    @property
    def size(self) -> int:
        """The bytes of the whole batch."""
        return HEADER_SIZE + self.body_length


class UnpackedBatch:
    """A decoded batch: its values, and the columns that it has; None for an absent column."""

    __slots__ = (
        "_metas",
        "deltas",
        "due",
        "expires",
        "header",
        "headers",
        "keys",
        "priorities",
        "times",
        "values",
    )

    def __init__(self, header: BatchHeader, columns: Sequence[Any]) -> None:
        self.header = header
        self.values: tuple[bytes, ...] = columns[0]
        self.keys: tuple[bytes | None, ...] | None = None
        self.headers: tuple[dict[str, str] | None, ...] | None = None
        self.times: tuple[int | None, ...] | None = None
        self.due: tuple[float | None, ...] | None = None
        self.expires: tuple[float | None, ...] | None = None
        self.priorities: tuple[int, ...] | None = None
        self.deltas: tuple[int, ...] | None = None
        self._metas: dict[int, Meta] | None = None
        if len(columns) > 1:
            present = iter(columns)
            every = [next(present) if header.columns & bit else None for bit, _ in _COLUMNS]
            _, self.keys, self.headers, self.times, self.due, self.expires, self.priorities, self.deltas = every

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"<Unpacked batch of {len(self.values)} records>"

    @property
    def metas(self) -> dict[int, Meta]:
        """Keys, headers and times of the records, by index in the batch; built on first access."""
        if self._metas is None:
            columns = self.columns
            self._metas = {} if columns is None else columns.rows()
        return self._metas

    @property
    def columns(self) -> Columns | None:
        """Keys, headers and times of the records; None: no record has any."""
        if not self.header.columns & (KEYS | HEADERS | DUE | EXPIRES | PRIORITIES):
            return None
        every = zip(_CARRIED, (self.keys, self.headers, self.due, self.expires, self.priorities), strict=True)
        return Columns((kind, column) for kind, column in every if column is not None)

    @property
    def last_delta(self) -> int:
        """Microseconds from the first to the last record."""
        return self.deltas[-1] if self.deltas else len(self.values) - 1


# -- writing ----------------------------------------------------------------------------------------------------


def pack(
    values: Sequence[bytes],
    carried: Columns | None = None,
    *,
    compression: str | None = None,
    content_type: int = BYTES,
    producer: int = 0,
    producer_sequence: int = 0,
    schema: int = 0,
    deltas: Sequence[int] | None = None,
    times: Sequence[int | None] | None = None,
) -> bytes:
    """One or more records as a batch. Their keys and headers were checked on publish, not here.

    A body that compression would not make smaller is stored as it is.
    """
    count = len(values)
    if not count:
        raise ValueError("a batch holds at least one record")
    if not isinstance(values, (list, tuple)):
        values = tuple(values)
    columns = VALUES
    if carried is None and deltas is None and times is None:
        body = _encode((values,))
    else:
        columns, present = _gathered(values, carried or Columns(), times, deltas)
        body = _encode(present)
    return pack_body(
        columns,
        count,
        body,
        compression=compression,
        content_type=content_type,
        producer=producer,
        producer_sequence=producer_sequence,
        schema=schema,
    )


def pack_columns(columns: Sequence[Sequence[Any] | None], **about: Any) -> bytes:
    """Columns as `Unpacked` holds them, in the order of their bits, as a batch; None: it has no such column."""
    present = [column for column in columns if column is not None]
    bits = sum(bit for (bit, _), column in zip(_COLUMNS, columns, strict=False) if column is not None)
    return pack_body(bits, len(present[0]), _encode(present), **about)


def pack_body(
    columns: int,
    count: int,
    body: bytes,
    *,
    compression: str | None = None,
    content_type: int = BYTES,
    producer: int = 0,
    producer_sequence: int = 0,
    schema: int = 0,
) -> bytes:
    """A batch of a body that is encoded already, and not compressed."""
    raw_length = body_length = len(body)
    if raw_length > MAX_RAW:
        raise TooLarge("a batch in bytes", raw_length, "MAX_RAW", MAX_RAW)
    flags = 0
    if compression is not None:
        smaller = compress(compression, body)
        if len(smaller) < raw_length:
            body, body_length, flags = smaller, len(smaller), 1 + COMPRESSIONS.index(compression)
    after = _AFTER_CRC.pack(
        BATCH_VERSION,
        flags,
        columns,
        count,
        body_length,
        raw_length,
        producer,
        producer_sequence,
        schema,
        content_type,
    )
    return b"".join((crc_extended(crc_of(after), body).to_bytes(4, "little"), after, body))


def with_producer_sequence(data: bytes, producer: int, sequence: int) -> bytes:
    """The same batch, with other numbers of its producer."""
    after = b"".join((data[4:20], _NUMBERS.pack(producer, sequence), data[36:HEADER_SIZE]))
    body = data[HEADER_SIZE:]
    return b"".join((crc_extended(crc_of(after), body).to_bytes(4, "little"), after, body))


def _gathered(
    values: Sequence[bytes],
    carried: Columns,
    times: Sequence[int | None] | None,
    deltas: Sequence[int] | None,
) -> tuple[int, list[Sequence[Any]]]:
    """The columns that have something to say, and their bits."""
    count = len(values)
    for given in (times, deltas):
        if given is not None and len(given) != count:
            raise ValueError(f"{count} values, and a column of {len(given)}")
    if any(len(column) > count for column in carried.values()):
        raise ValueError(f"{count} values, and a column of {max(map(len, carried.values()))}")
    bits = VALUES
    columns: list[Sequence[Any]] = [values]
    for bit, _ in _COLUMNS[1:]:
        column = times if bit == TIMES else deltas if bit == DELTAS else carried.get(bit)
        if column is None or column.count(None) == len(column):
            continue
        if bit == PRIORITIES:
            if not any(column):
                continue
            column = [priority or 0 for priority in column] + [0] * (count - len(column))
        elif len(column) < count:
            column = [*column, *repeat(None, count - len(column))]
        bits |= bit
        columns.append(column if isinstance(column, (list, tuple)) else list(column))
    return bits, columns


# -- reading ----------------------------------------------------------------------------------------------------


def read_batch_header(data: bytes | memoryview) -> BatchHeader:
    """The header of the batch that `data` is, from its first byte to its last. Neither crc nor body is looked at."""
    if len(data) < HEADER_SIZE:
        raise BadBatch(f"it ends after {len(data)} bytes, inside its header")
    *fields, reserved = _WHOLE.unpack_from(data)
    header = BatchHeader(*fields)
    if header.version != BATCH_VERSION:
        raise BadBatch(f"its version is {header.version}, and this runnel reads version {BATCH_VERSION}")
    if header.flags > len(COMPRESSIONS) or reserved != _RESERVED:
        raise BadBatch("it uses flags or bytes that are reserved")
    if not header.columns & VALUES or header.columns >= 2 * DELTAS:
        raise BadBatch(f"its columns are {header.columns:#b}")
    if header.content_type > MSGPACK:
        raise BadBatch(f"its content type is {header.content_type}")
    if header.body_length != len(data) - HEADER_SIZE:
        raise BadBatch(f"its body is {len(data) - HEADER_SIZE:,} bytes, not {header.body_length:,} as its header says")
    if header.raw_length > MAX_RAW:
        raise BadBatch(f"its raw length is {header.raw_length:,}, more than {MAX_RAW:,}")
    if not header.flags and header.raw_length != header.body_length:
        raise BadBatch("it is not compressed and has two lengths")
    if not 0 < header.count <= header.raw_length // 2:  # a value is two bytes at least
        raise BadBatch(f"its count is {header.count:,} with a body of {header.raw_length:,} bytes")
    return header


def batch_body(header: BatchHeader, data: bytes | memoryview) -> bytes | memoryview:
    """The encoded columns of a batch whose header was read, decompressed. The columns are not parsed."""
    body = memoryview(data)[HEADER_SIZE:]
    return decompress(COMPRESSIONS[header.flags - 1], body, header.raw_length) if header.flags else body


def check_crc(header: BatchHeader, data: bytes) -> None:
    """Raise `BadBatch` unless the checksum of a batch fits."""
    if crc_extended(header.crc ^ BEFORE_CRC, data) != header.crc:  # as crc_behind does
        raise BadBatch("its checksum does not fit")


def unpack(data: bytes | memoryview, *, verify: bool = True) -> UnpackedBatch:
    """The records of a batch, or a `BadBatch`. A memoryview is copied once.

    `verify=False` skips the crc alone, for bytes that never left this process's memory.
    """
    if not isinstance(data, bytes):
        data = bytes(data)
    header = read_batch_header(data)
    if verify:
        check_crc(header, data)
    body = batch_body(header, data)
    try:
        columns = _decoder(header.columns).decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise BadBatch(f"its body does not decode: {error}") from error
    for column in columns:
        if len(column) != header.count:
            raise BadBatch(f"its count is {header.count:,}, and it has a column of {len(column):,}")
    unpacked = UnpackedBatch(header, columns)
    if (deltas := unpacked.deltas) is not None and (deltas[0] or not all(map(lt, deltas, islice(deltas, 1, None)))):
        raise BadBatch("its offset deltas do not rise from 0")
    return unpacked


def unpack_untrusted(data: bytes | memoryview) -> UnpackedBatch:
    """The records of a batch that a listener may accept: all checks of `unpack`, and those of `publish`."""
    if (
        count := int.from_bytes(data[_COUNT], "little")
    ) > MAX_BATCH_RECORDS:  # first: a few bytes may unpack to gigabytes
        read_batch_header(data)
        raise TooLarge("a batch", count, "max_entry_records", MAX_BATCH_RECORDS)
    return _sound(data)


def check_batch(data: bytes | memoryview) -> BatchHeader:
    """The header of a batch whose records and headers are sound, however many there are."""
    return _sound(data).header


def _sound(data: bytes | memoryview) -> UnpackedBatch:
    unpacked = unpack(data)
    if unpacked.headers is not None:
        _check_headers(unpacked.headers)
    return unpacked


def last_offset_delta(data: bytes | memoryview) -> int:
    """Microseconds from the first to the last record of a checked batch."""
    header = read_batch_header(data)
    return unpack(data, verify=False).last_delta if header.columns & DELTAS else header.count - 1


def _check_headers(headers: Sequence[dict[str, str] | None]) -> None:
    """The rules of `payload`, asked of all records at once: a name or a trace is often the same in all."""
    present = [one for one in headers if one]
    if (most := max(map(len, present), default=0)) > MAX_HEADERS:
        raise BadBatch(f"a record of it has {most:,} headers, and {MAX_HEADERS} are the most")
    for name in set(chain.from_iterable(present)):
        if not HEADER_NAME.fullmatch(name):
            raise BadBatch(f"{name!r} is not the name of a header")
    text = "".join(chain.from_iterable(map(dict.values, present)))
    if "\n" in text or "\r" in text or "\0" in text:  # on a text protocol it would forge another header
        raise BadBatch("a header of it is not one line of text")
    for trace in {one[TRACE] for one in present if TRACE in one}:
        if not is_traceparent(trace):
            raise BadBatch(f"{trace!r} is not a traceparent")


@cache
def _decoder(columns: int) -> msgspec.msgpack.Decoder[tuple[Any, ...]]:
    present = tuple(kind for bit, kind in _COLUMNS if columns & bit)
    return msgspec.msgpack.Decoder(tuple[present])  # type: ignore[valid-type]

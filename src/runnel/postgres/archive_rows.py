"""Records as rows of an archive: the partition that each belongs to, and its bytes in the binary format of COPY.

Every row has the columns of `BASE`. Rows of typed topics also fill the columns of their fields; the value itself is
stored unchanged, so that history serves the same bytes.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from psycopg.types.numeric import DecimalBinaryDumper

from runnel.core.batch import Slice
from runnel.core.columns import EXPIRES, HEADERS, KEYS
from runnel.core.schema import Schema

BASE = {
    "topic": 'text COLLATE "C" NOT NULL',
    "epoch": "bigint NOT NULL",
    "offset": "bigint NOT NULL",
    "sequence": "bigint NOT NULL",
    "time": "timestamptz NOT NULL",
    "key": "bytea",
    "value": "bytea NOT NULL",
    "headers": "jsonb",
    "expires": "timestamptz",
}
"""The columns that every row has, in the order of COPY."""

MAX_COLUMNS = 500  # of fields; PostgreSQL allows 1,600 columns
MAX_COLUMN_NAME = 63  # bytes
COPY_HEAD, COPY_TAIL = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL counts from here
_EPOCH_DAY = date(2000, 1, 1)
_EPOCH_SECONDS = _EPOCH.timestamp()
_MICROSECOND = timedelta(microseconds=1)
_NULL = b"\xff\xff\xff\xff"
_LENGTH, _INT4, _INT8, _FLOAT8 = Struct("!i"), Struct("!ii"), Struct("!iq"), Struct("!id")
_TRUE, _FALSE = b"\0\0\0\x01\x01", b"\0\0\0\x01\0"
_LAST_TIME = (1 << 62) - 1

Encode = Callable[[Any], bytes]
"""A value of a field as a column: its length and its bytes. ValueError or TypeError: it does not fit."""


# -- Partitions ------------------------------------------------------------------------------------------


class PartitionSpan(NamedTuple):
    """The time that one partition covers, and what its name ends with. Names sort as times do."""

    start: datetime
    stop: datetime
    suffix: str


def partition_at(kind: str, time: datetime) -> PartitionSpan:
    """The partition that holds `time`."""
    time = time.astimezone(UTC)
    day = time.replace(hour=0, minute=0, second=0, microsecond=0)
    if kind == "hour":
        start = time.replace(minute=0, second=0, microsecond=0)
        return PartitionSpan(start, start + timedelta(hours=1), f"{start:_p%Y%m%d_%H}")
    if kind == "day":
        return PartitionSpan(day, day + timedelta(days=1), f"{day:_p%Y%m%d}")
    if kind == "month":
        start = day.replace(day=1)
        return PartitionSpan(start, (start + timedelta(days=31)).replace(day=1), f"{start:_p%Y%m}")
    start = day.replace(month=1, day=1)
    return PartitionSpan(start, start.replace(year=start.year + 1), f"{start:_p%Y}")


# -- Columns of fields -----------------------------------------------------------------------------------


class FieldColumn(NamedTuple):
    """A column that a field of a typed topic fills."""

    field: str
    column: str
    type: str


def columns_of(schema: Schema) -> list[FieldColumn]:
    """The columns of a type; none unless its values are objects with named fields."""
    top = _resolved(schema.schema, schema.schema)
    found = []
    for field, kind in dict(top.get("properties") or {}).items():
        column = f"{field}_" if field in BASE else field
        if field and "\0" not in field and len(column.encode()) <= MAX_COLUMN_NAME:
            found.append(FieldColumn(field, column, _type_of(kind, schema.schema)))
    return found[:MAX_COLUMNS] if top.get("type") == "object" else []


def _resolved(kind: Any, whole: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema, or the definition that it refers to; of something or null, the something."""
    for _ in range(10):
        if not isinstance(kind, dict):
            return {}
        if isinstance(name := kind.get("$ref"), str):
            kind = (whole.get("$defs") or {}).get(name.rpartition("/")[2])
        elif len(others := [one for one in kind.get("anyOf") or () if one != {"type": "null"}]) == 1:
            kind = others[0]
        else:
            return kind
    return {}


def _type_of(kind: Any, whole: Mapping[str, Any]) -> str:
    kind = _resolved(kind, whole)
    if isinstance(choices := kind.get("enum"), list) and choices:
        kinds = {type(one) for one in choices}
        return "text" if kinds == {str} else "bigint" if kinds == {int} else "jsonb"
    if kind.get("type") == "string":
        if kind.get("contentEncoding") == "base64":
            return "bytea"
        return _FORMATS.get(str(kind.get("format")), "text")
    return _PLAIN.get(str(kind.get("type")), "jsonb")


_FORMATS = {"date-time": "timestamp with time zone", "date": "date", "uuid": "uuid", "decimal": "numeric"}
_PLAIN = {"integer": "bigint", "number": "double precision", "boolean": "boolean"}


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _bigint(value: Any) -> bytes:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("it has more than 64 bits")
    return _INT8.pack(8, value)


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        value = msgspec.to_builtins(value)  # msgpack has times of its own
    data: bytes = value.encode()
    if b"\0" in data:
        raise ValueError("PostgreSQL stores no NUL in text")
    return _sized(data)


def _jsonb(value: Any) -> bytes:
    data = msgspec.json.encode(value)
    if b"\\u0000" in data:
        raise ValueError("PostgreSQL stores no NUL in jsonb")
    return _sized(b"\x01" + data)


def _boolean(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("expected true or false")
    return _TRUE if value else _FALSE


def _timestamp(value: Any) -> bytes:
    time = value if isinstance(value, datetime) else msgspec.convert(value, datetime)
    return _INT8.pack(8, _microseconds(time))


def _date(value: Any) -> bytes:
    return _INT4.pack(4, (msgspec.convert(value, date) - _EPOCH_DAY).days)


def _numeric(value: Any) -> bytes:
    return _sized(bytes(DecimalBinaryDumper(Decimal).dump(Decimal(value)) or b""))


_ENCODERS: dict[str, Encode] = {
    "bigint": _bigint,
    "double precision": lambda value: _FLOAT8.pack(8, value),
    "boolean": _boolean,
    "text": _text,
    "jsonb": _jsonb,
    "bytea": lambda value: _sized(value if isinstance(value, bytes) else b64decode(value)),
    "timestamp with time zone": _timestamp,
    "date": _date,
    "uuid": lambda value: _sized(UUID(value).bytes),
    "numeric": _numeric,
}
_MISFITS = (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError)  # msgspec's errors are ValueErrors


class RowFields:
    """Fills the columns of one typed topic, among those that the table has."""

    def __init__(self, schema: Schema, fields: Sequence[FieldColumn], table: Sequence[str]) -> None:
        """`fields` are those that have a column, `table` the columns of all fields of all topics, in order."""
        self.schema = schema
        self._decode = (msgspec.json if schema.encoding == "json" else msgspec.msgpack).decode
        index = {column: at for at, column in enumerate(table)}
        self._fields = [(index[one.column], one.field, _ENCODERS[one.type]) for one in fields]
        self._nulls = [_NULL] * len(table)
        self._known = {one.field for one in columns_of(schema)}
        self.new: set[str] = set()  # fields of values that the schema does not know
        self.misfits = 0  # fields whose value the column does not take

    def columns(self, value: bytes) -> bytes:
        """The columns of one row. A value that does not decode, such as a tombstone, has NULL in all of them."""
        found = self._nulls.copy()
        try:
            fields = self._decode(value)
        except _MISFITS:
            fields = None
        if isinstance(fields, dict):
            for at, name, encode in self._fields:
                if (field := fields.get(name)) is not None:
                    try:
                        found[at] = encode(field)
                    except _MISFITS:
                        self.misfits += 1
            if len(fields) > len(self._known) or not fields.keys() <= self._known:
                self.new |= {name for name in fields if isinstance(name, str)} - self._known
        return b"".join(found)


# -- Rows ------------------------------------------------------------------------------------------------


class RowRun(NamedTuple):
    """Rows of one topic that belong together: of one time, with offsets and sequences that rise by one."""

    topic: str
    epoch: int
    first: int
    end: int
    sequence: int
    time: datetime
    data: bytes  # for COPY


def runs_of(part: Slice, fields: RowFields | None, columns: int) -> Iterator[RowRun]:
    """The rows of a slice. `columns` is the number of columns of fields that the table has."""
    name = part.topic.encode()
    row = Struct(f"!hi{len(name)}siqiqiqiq")
    width, named = len(BASE) + columns, len(name)
    nulls = _NULL * columns
    carried = part.columns
    values, keys, headers, expires = part.values, (), (), ()
    if carried is not None:
        keys, headers, expires = carried.get(KEYS, ()), carried.get(HEADERS, ()), carried.get(EXPIRES, ())
    is_plain = carried is None and fields is None
    pack, length, tail = row.pack, _LENGTH.pack, _NULL + _NULL + nulls
    pack_plain = Struct(f"{row.format}ii").pack  # with a key that is NULL, and the length of the value
    ends = [stretch.offset for stretch in part.stretches[1:]] + [part.end]
    last_headers, headers_data = None, _NULL
    for (offset, sequence, time), end in zip(part.stretches, ends, strict=True):
        first = max(offset, part.start)
        moved, at = sequence - offset, _microseconds(time)
        pieces: list[bytes] = []
        add = pieces.append
        if is_plain:
            for number, value in enumerate(values[first - part.start : end - part.start], first):
                add(pack_plain(width, named, name, 8, part.epoch, 8, number, 8, number + moved, 8, at, -1, len(value)))
                add(value)
                add(tail)
        for number in range(end if is_plain else first, end):
            index = number - part.start
            value = values[index]
            add(pack(width, named, name, 8, part.epoch, 8, number, 8, number + moved, 8, at))
            key = keys[index] if index < len(keys) else None
            if key is None:
                add(_NULL)
            else:
                add(length(len(key)))
                add(key)
            add(length(len(value)))
            add(value)
            given = headers[index] if index < len(headers) else None
            if given is not last_headers:
                last_headers, headers_data = given, _jsonb(given) if given else _NULL
            add(headers_data)
            until = expires[index] if index < len(expires) else None
            add(_NULL if until is None else _INT8.pack(8, _seconds(until)))
            add(nulls if fields is None else fields.columns(value))
        yield RowRun(part.topic, part.epoch, first, end, first + moved, time, b"".join(pieces))


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def _seconds(time: float) -> int:
    """A time in seconds since 1970, as PostgreSQL counts; later ones become its last one."""
    return max(-_LAST_TIME, min(_LAST_TIME, int((time - _EPOCH_SECONDS) * 1_000_000)))

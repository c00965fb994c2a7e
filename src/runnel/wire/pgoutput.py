"""PostgreSQL's logical replication, sans-IO: the replication stream and `pgoutput` messages, protocol version 1.

Bytes in, messages out. Column values stay in PostgreSQL's text format; `runnel.postgres.types` gives them types.
With protocol 1 the server sends whole transactions after their commit: Begin, changes, Commit. Nothing here
connects, waits or reads a clock.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from runnel.core.errors import ProtocolError

Data: TypeAlias = bytes | memoryview

POSTGRES_EPOCH = 946_684_800  # 2000-01-01 in seconds since 1970: PostgreSQL counts microseconds from there


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""Stands for a large value that an UPDATE did not change, and that PostgreSQL therefore did not send (TOAST)."""

ColumnValue: TypeAlias = bytes | Unchanged | None
"""A column's value in text format; None is NULL."""


# -- Positions in the write-ahead log --------------------------------------------------------------------

_LSN = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def format_lsn(lsn: int) -> str:
    """An LSN as PostgreSQL writes it.

    >>> format_lsn(0x16B374D848)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """An LSN from PostgreSQL's text form; ValueError if it is not one."""
    found = _LSN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an LSN; expected two hexadecimal numbers such as 16/B374D848")
    return int(found[1], 16) << 32 | int(found[2], 16)


# -- The replication stream ------------------------------------------------------------------------------


class WalData(NamedTuple):
    """A piece of the stream: one pgoutput message."""

    start: int  # LSN of the change; 0 for a Relation, which has no place in the log
    end: int  # the same, for pgoutput: only a Keepalive has the end of the log
    payload: Data


class Keepalive(NamedTuple):
    """The server reports the end of its log."""

    end: int  # LSN
    time: int  # microseconds since 2000
    reply_requested: bool


_WAL_DATA = Struct("!xQQq")
_KEEPALIVE = Struct("!xQqB")
_STATUS = Struct("!cQQQqB")


def decode_stream(data: Data) -> WalData | Keepalive:
    """One CopyData message of a replication connection."""
    kind = data[0] if data else 0
    try:
        if kind == 0x77:  # w
            start, end, _ = _WAL_DATA.unpack_from(data)
            return WalData(start, end, data[_WAL_DATA.size :])
        if kind == 0x6B:  # k
            end, time, reply = _KEEPALIVE.unpack(data)
            return Keepalive(end, time, bool(reply))
    except struct.error as error:
        raise ProtocolError(
            f"PostgreSQL sent a message of the replication stream that is cut off or damaged: {error}"
        ) from None
    raise ProtocolError(f"PostgreSQL sent an unknown message of the replication stream (kind {kind:#04x})")


def encode_status(flushed: int, now: float, *, reply: bool = False) -> bytes:
    """A standby status update: everything before the LSN `flushed` is stored. `now` in seconds since 1970."""
    return _STATUS.pack(b"r", flushed, flushed, flushed, int((now - POSTGRES_EPOCH) * 1e6), reply)


# -- Messages of pgoutput --------------------------------------------------------------------------------


class Begin(NamedTuple):
    """A transaction begins."""

    final_lsn: int  # of its commit record: the same in Commit
    time: int  # of the commit, in microseconds since 2000
    xid: int


class Commit(NamedTuple):
    """The transaction ends."""

    lsn: int
    end_lsn: int  # where the server's log continues: confirm this one
    time: int


class Column(NamedTuple):
    """A column of a relation."""

    name: str
    type_oid: int
    type_modifier: int
    is_key: bool  # part of the replica identity


class Relation(NamedTuple):
    """A table, sent before its first row and after each change of its shape."""

    oid: int
    schema: str
    table: str
    identity: str  # the replica identity: d(efault), n(othing), f(ull), i(ndex)
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        """`schema.table`."""
        return f"{self.schema}.{self.table}"


class Insert(NamedTuple):
    """A row was inserted."""

    relation: int  # oid
    new: list[ColumnValue]


class Update(NamedTuple):
    """A row was updated."""

    relation: int
    old: list[ColumnValue] | None  # the whole old row, or only its key (other columns NULL); None: the key is the same
    new: list[ColumnValue]
    old_is_key: bool


class Delete(NamedTuple):
    """A row was deleted."""

    relation: int
    old: list[ColumnValue]  # the whole row, or only its key (other columns NULL)
    old_is_key: bool


class Truncate(NamedTuple):
    """Tables were emptied."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class LogicalMessage(NamedTuple):
    """The contents written by `pg_logical_emit_message`."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message: TypeAlias = Begin | Commit | Relation | Insert | Update | Delete | Truncate | LogicalMessage

_BEGIN = Struct("!xQqI")
_COMMIT = Struct("!xBQQq")
_OID = Struct("!I")
_SHORT = Struct("!H")
_COLUMN_TYPE = Struct("!Ii")
_RELATIONS = Struct("!IB")
_MESSAGE = Struct("!BQ")


def decode_message(data: Data) -> Message | None:
    """One message; None for those that say nothing here: Origin, Type, and a Stream Abort that 18 sends unasked.

    Raises `ProtocolError` for bytes that are not pgoutput of protocol 1.
    """
    data = bytes(data)
    decode = _DECODERS[data[0]] if data and data[0] < len(_DECODERS) else _unknown
    try:
        return decode(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"PostgreSQL sent a pgoutput message that is cut off or damaged: {error}") from None


def _unknown(data: bytes) -> Message | None:
    kind = data[:1].decode("latin-1")
    raise ProtocolError(f"PostgreSQL sent an unknown pgoutput message (kind {kind!r})")


def _ignored(data: bytes) -> Message | None:
    return None


def _begin(data: bytes) -> Begin:
    return Begin(*_BEGIN.unpack(data))


def _commit(data: bytes) -> Commit:
    _, lsn, end, time = _COMMIT.unpack(data)
    return Commit(lsn, end, time)


def _relation(data: bytes) -> Relation:
    (oid,) = _OID.unpack_from(data, 1)
    schema, at = _text(data, 5)
    table, at = _text(data, at)
    identity = chr(data[at])
    (count,) = _SHORT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(data[at] & 1)
        name, at = _text(data, at + 1)
        type_oid, modifier = _COLUMN_TYPE.unpack_from(data, at)
        at += 8
        columns.append(Column(name, type_oid, modifier, is_key))
    _expect_end(data, at)
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns))


def _insert(data: bytes) -> Insert:
    (relation,) = _OID.unpack_from(data, 1)
    _expect(data, 5, b"N")
    return Insert(relation, _last_tuple(data, 6))


def _update(data: bytes) -> Update:
    (relation,) = _OID.unpack_from(data, 1)
    kind, at, old = data[5], 6, None
    if kind in b"KO":
        old, at = _tuple(data, at)
        _expect(data, at, b"N")
        at += 1
    else:
        _expect(data, 5, b"N")
    return Update(relation, old, _last_tuple(data, at), kind == 0x4B)


def _delete(data: bytes) -> Delete:
    (relation,) = _OID.unpack_from(data, 1)
    _expect(data, 5, b"KO")
    return Delete(relation, _last_tuple(data, 6), data[5] == 0x4B)


def _truncate(data: bytes) -> Truncate:
    count, options = _RELATIONS.unpack_from(data, 1)
    _expect_end(data, 6 + 4 * count)
    oids = tuple(_OID.unpack_from(data, 6 + 4 * i)[0] for i in range(count))
    return Truncate(oids, bool(options & 1), bool(options & 2))


def _message(data: bytes) -> LogicalMessage:
    flags, lsn = _MESSAGE.unpack_from(data, 1)
    prefix, at = _text(data, 10)
    (length,) = _OID.unpack_from(data, at)
    _expect_end(data, at + 4 + length)
    return LogicalMessage(bool(flags & 1), lsn, prefix, data[at + 4 :])


def _last_tuple(data: bytes, at: int) -> list[ColumnValue]:
    """The columns of a row that ends with the message."""
    values, end = _tuple(data, at)
    _expect_end(data, end)
    return values


def _tuple(data: bytes, at: int) -> tuple[list[ColumnValue], int]:
    """The columns of a row, and where it ends: beyond the message, if the last value is cut off."""
    count = data[at] << 8 | data[at + 1]
    at += 2
    values: list[ColumnValue] = []
    append, length_at = values.append, _OID.unpack_from
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 0x74:  # t(ext)
            start = at + 4
            at = start + length_at(data, at)[0]
            append(data[start:at])
        elif kind == 0x6E:  # n(ull)
            append(None)
        elif kind == 0x75:  # u(nchanged)
            append(UNCHANGED)
        else:
            raise IndexError(f"a column of kind {chr(kind)!r}; only the text format was asked for")
    return values, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise IndexError("a name without an end")
    return data[at:end].decode(), end + 1


def _expect(data: bytes, at: int, kinds: bytes) -> None:
    if data[at] not in kinds:
        raise IndexError(f"a tuple of kind {chr(data[at])!r}, where {kinds.decode()!r} may stand")


def _expect_end(data: bytes, end: int) -> None:
    if len(data) != end:
        raise IndexError(f"it ends after {end} bytes, and {len(data)} came")


_KINDS: dict[str, Callable[[bytes], Message | None]] = {
    "B": _begin,
    "C": _commit,
    "R": _relation,
    "I": _insert,
    "U": _update,
    "D": _delete,
    "T": _truncate,
    "M": _message,
    "O": _ignored,  # Origin
    "Y": _ignored,  # Type: its name; the catalog has the rest
    "A": _ignored,  # Stream Abort
}
_DECODERS = [_KINDS.get(chr(kind), _unknown) for kind in range(128)]

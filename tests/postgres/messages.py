"""Messages of pgoutput as a server writes them, for tests without one."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from runnel.wire.pgoutput import UNCHANGED, Column, ColumnValue, Relation

INT, TEXT, BYTEA = 20, 25, 17

CHAT = Relation(
    1,
    "public",
    "chat",
    "d",
    (Column("id", INT, -1, True), Column("room", TEXT, -1, True), Column("body", TEXT, -1, False)),
)


def begin(lsn: int, xid: int = 7) -> bytes:
    return b"B" + struct.pack("!QqI", lsn, 0, xid)


def commit(lsn: int, end: int | None = None) -> bytes:
    return b"C" + struct.pack("!BQQq", 0, lsn, end or lsn + 8, 0)


def values(row: Sequence[ColumnValue | str]) -> bytes:
    data = struct.pack("!H", len(row))
    for value in row:
        if value is None:
            data += b"n"
        elif value is UNCHANGED:
            data += b"u"
        else:
            text = value.encode() if isinstance(value, str) else value
            assert isinstance(text, bytes)
            data += b"t" + struct.pack("!I", len(text)) + text
    return data


def insert(*row: ColumnValue | str, oid: int = 1) -> bytes:
    return b"I" + struct.pack("!I", oid) + b"N" + values(row)


def update(
    new: Sequence[ColumnValue | str],
    old: Sequence[ColumnValue | str] | None = None,
    *,
    kind: bytes = b"O",
    oid: int = 1,
) -> bytes:
    before = b"" if old is None else kind + values(old)
    return b"U" + struct.pack("!I", oid) + before + b"N" + values(new)


def delete(*old: ColumnValue | str, kind: bytes = b"K", oid: int = 1) -> bytes:
    return b"D" + struct.pack("!I", oid) + kind + values(old)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack("!IB", len(oids), 0) + struct.pack(f"!{len(oids)}I", *oids)


def message(prefix: str, content: bytes, *, transactional: bool = True) -> bytes:
    head = struct.pack("!BQ", transactional, 99) + prefix.encode() + b"\0"
    return b"M" + head + struct.pack("!I", len(content)) + content

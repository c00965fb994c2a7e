"""PostgreSQL's replication stream is decoded as a server writes it; what is cut off or damaged is a ProtocolError."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import ProtocolError
from runnel.wire.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    ColumnValue,
    Commit,
    Delete,
    Insert,
    Keepalive,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    Update,
    WalData,
    decode_message,
    decode_stream,
    encode_status,
    format_lsn,
    parse_lsn,
)
from tests.nightly import examples

# Written by PostgreSQL 16.14 and 18.4 for the statements of tests/postgres/test_pgoutput_live.py.
CHAT = Relation(
    0x4005,
    "public",
    "chat",
    "d",
    (Column("id", 23, -1, True), Column("body", 25, -1, False), Column("mood", 0x4001, -1, False)),
)
LOGS = Relation(0x400C, "public", "logs", "f", (Column("at", 1184, -1, True), Column("line", 25, -1, True)))
AT = b"2024-02-29 12:00:00+00"
GOLDEN: list[tuple[str, Message | None]] = [
    ("4200000000014bab2000030366cdceb549000002e1", Begin(0x014BAB20, 0x030366CDCEB549, 737)),
    ("430000000000014bab2000000000014bab5000030366cdceb549", Commit(0x014BAB20, 0x014BAB50, 0x030366CDCEB549)),
    ("59000040017075626c6963006d6f6f6400", None),  # Type
    ("4f0000000000000000656c7365776865726500", None),  # Origin
    (
        "52000040057075626c69630063686174006400030169640000000017ffffffff00626f64790000000019ffffffff006d6f6f64000000"
        "4001ffffffff",
        CHAT,
    ),
    ("520000400c7075626c6963006c6f67730066000201617400000004a0ffffffff016c696e650000000019ffffffff", LOGS),
    (
        "49000040054e0003740000000131740000000668c3a96c6c6f74000000056861707079",
        Insert(0x4005, [b"1", "héllo".encode(), b"happy"]),
    ),
    ("49000040054e00037400000001326e6e", Insert(0x4005, [b"2", None, None])),
    (
        "55000040054e0003740000000131740000000074000000056861707079",
        Update(0x4005, None, [b"1", b"", b"happy"], False),
    ),
    (
        "55000040054b00037400000001316e6e4e0003740000000133740000000074000000056861707079",
        Update(0x4005, [b"1", None, None], [b"3", b"", b"happy"], True),
    ),
    (
        "550000400c4f00027400000016323032342d30322d32392031323a30303a30302b30307400000001614e00027400000016323032342d"
        "30322d32392031323a30303a30302b3030740000000162",
        Update(0x400C, [AT, b"a"], [AT, b"b"], False),
    ),
    ("55000040114e000374000000013174000000013275", Update(0x4011, None, [b"1", b"2", UNCHANGED], False)),
    ("44000040054b00037400000001326e6e", Delete(0x4005, [b"2", None, None], True)),
    (
        "440000400c4f00027400000016323032342d30322d32392031323a30303a30302b3030740000000162",
        Delete(0x400C, [AT, b"b"], False),
    ),
    ("540000000203000040050000400c", Truncate((0x4005, 0x400C), True, True)),
    ("4d0100000000014bbb0872756e6e656c0000000002696e", LogicalMessage(True, 0x014BBB08, "runnel", b"in")),
    ("4d0000000000014bbb7872756e6e656c000000000200ff", LogicalMessage(False, 0x014BBB78, "runnel", b"\x00\xff")),
    ("42000000000172fbb800030366cdff0d83000002f7", Begin(0x0172FBB8, 0x030366CDFF0D83, 759)),  # 18, like those below
    ("43000000000001731fe0000000000173223800030366cdff3f88", Commit(0x01731FE0, 0x01732238, 0x030366CDFF3F88)),
    ("540000000203000040050000400d", Truncate((0x4005, 0x400D), True, True)),
]


def test_messages_of_real_servers_are_decoded() -> None:
    for text, message in GOLDEN:
        data = bytes.fromhex(text)
        assert decode_message(data) == message
        assert decode_message(memoryview(data)) == message
    assert CHAT.name == "public.chat"


def test_a_stream_abort_that_was_not_asked_for_is_ignored() -> None:
    assert decode_message(b"A" + bytes(8)) is None


def test_a_schema_without_a_name_is_that_of_the_catalog() -> None:
    relation = decode_message(b"R" + struct.pack("!I", 7) + b"\0pg_class\0n" + struct.pack("!H", 0))
    assert relation == Relation(7, "pg_catalog", "pg_class", "n", ())


def test_messages_of_the_stream_of_real_servers_are_decoded() -> None:
    relation = "52000040007075626c69630063686174006400020169640000000017ffffffff00626f64790000000019ffffffff"
    streams: list[tuple[str, WalData | Keepalive]] = [
        ("6b00000000014a9e1800030366d18a6fdc00", Keepalive(0x014A9E18, 0x030366D18A6FDC, False)),
        ("6b0000000001718af000030366d1d4ac3c01", Keepalive(0x01718AF0, 0x030366D1D4AC3C, True)),
        ("770000000000000000000000000000000000030366d18a6fb7" + relation, WalData(0, 0, bytes.fromhex(relation))),
        (
            "770000000001718d580000000001718d5800030366d1d4adf149000040004e0002740000000131740000000161",
            WalData(0x01718D58, 0x01718D58, bytes.fromhex("49000040004e0002740000000131740000000161")),
        ),
    ]
    for text, message in streams:
        data = bytes.fromhex(text)
        assert decode_stream(data) == message
        assert decode_stream(memoryview(data)) == message


def test_a_status_says_what_is_stored_and_when() -> None:
    at = 946_684_800 + 1.5
    assert encode_status(0x16B374D848, at) == struct.pack("!cQQQqB", b"r", *[0x16B374D848] * 3, 1_500_000, 0)
    assert encode_status(1, at, reply=True)[-1] == 1


@given(st.integers(0, 2**64 - 1))
def test_an_lsn_is_read_as_it_was_written(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn
    assert parse_lsn(format_lsn(lsn).lower()) == lsn


@pytest.mark.parametrize(
    "text",
    ["", "/", "0", "0/", "/0", "0/0/0", "-1/0", "0/-1", "+1/0", "0x1/0", "1_0/0", " 1/0", "0/1\n", "g/0", "123456789/0",
     "0/123456789", "\u0661/0"],
)  # fmt: skip
def test_what_is_not_an_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an LSN"):
        parse_lsn(text)


# -- any message -----------------------------------------------------------------------------------------

oids = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
values = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=30), max_size=6)
columns = st.builds(Column, names, oids, st.integers(-1, 2**31 - 1), st.booleans())


@st.composite
def updates(draw: st.DrawFn) -> Update:
    old = draw(st.none() | values)
    return Update(draw(oids), old, draw(values), old is not None and draw(st.booleans()))


messages = st.one_of(
    st.builds(Begin, lsns, times, oids),
    st.builds(Commit, lsns, lsns, times),
    st.builds(Relation, oids, names, names, st.sampled_from("dnfi"), st.lists(columns, max_size=5).map(tuple)),
    st.builds(Insert, oids, values),
    updates(),
    st.builds(Delete, oids, values, st.booleans()),
    st.builds(Truncate, st.lists(oids, max_size=5).map(tuple), st.booleans(), st.booleans()),
    st.builds(LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=40)),
)


def encoded_tuple(row: Iterable[ColumnValue]) -> bytes:
    row = [*row]
    parts = [struct.pack("!H", len(row))]
    for value in row:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack("!I", len(value)) + value)
    return b"".join(parts)


def encoded(message: Message) -> bytes:
    """As the protocol's description says, and as `decode_message` does not know."""
    match message:
        case Begin(lsn, time, xid):
            return b"B" + struct.pack("!QqI", lsn, time, xid)
        case Commit(lsn, end, time):
            return b"C" + struct.pack("!BQQq", 0, lsn, end, time)
        case Relation(oid, schema, table, identity, columns):
            head = b"R%b%b\0%b\0%b" % (struct.pack("!I", oid), schema.encode(), table.encode(), identity.encode())
            return b"".join(
                [head, struct.pack("!H", len(columns))]
                + [
                    b"%c%b\0%b" % (one.is_key, one.name.encode(), struct.pack("!Ii", one.type_oid, one.type_modifier))
                    for one in columns
                ]
            )
        case Insert(oid, new):
            return b"I" + struct.pack("!I", oid) + b"N" + encoded_tuple(new)
        case Update(oid, old, new, old_is_key):
            before = b"" if old is None else (b"K" if old_is_key else b"O") + encoded_tuple(old)
            return b"U" + struct.pack("!I", oid) + before + b"N" + encoded_tuple(new)
        case Delete(oid, old, old_is_key):
            return b"D" + struct.pack("!I", oid) + (b"K" if old_is_key else b"O") + encoded_tuple(old)
        case Truncate(relations, cascade, restart):
            count = len(relations)
            return b"T" + struct.pack(f"!IB{count}I", count, cascade | restart << 1, *relations)
        case LogicalMessage(transactional, lsn, prefix, content):
            head = struct.pack("!BQ", transactional, lsn) + prefix.encode() + b"\0"
            return b"M" + head + struct.pack("!I", len(content)) + content


@examples(150, 5_000)
@given(messages)
def test_any_message_is_decoded_as_it_was_encoded(message: Message) -> None:
    data = encoded(message)
    assert decode_message(data) == message
    stream = b"w" + struct.pack("!QQq", 5, 6, 7) + data
    assert decode_stream(stream) == WalData(5, 6, data)


@examples(50, 2_000)
@given(messages)
def test_a_message_that_is_cut_off_or_has_more_bytes_is_an_error(message: Message) -> None:
    data = encoded(message)
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_message(data[:end])
    with pytest.raises(ProtocolError, match="cut off or damaged"):
        decode_message(data + b"\0")


@examples(150, 5_000)
@given(messages, st.integers(0), st.integers(1, 255))
def test_a_message_with_a_flipped_byte_is_an_error_or_a_message(message: Message, at: int, flip: int) -> None:
    data = bytearray(encoded(message))
    data[at % len(data)] ^= flip
    try:
        decode_message(bytes(data))
    except ProtocolError:
        pass


def test_a_stream_that_is_cut_off_or_unknown_is_an_error() -> None:
    for message in (b"w" + bytes(24), b"k" + bytes(17)):
        decode_stream(message)
        for end in range(1, len(message)):
            with pytest.raises(ProtocolError, match="cut off or damaged"):
                decode_stream(message[:end])
    for data in (b"", b"x", b"r" + bytes(33), memoryview(b"")):
        with pytest.raises(ProtocolError, match="unknown message of the replication stream"):
            decode_stream(data)


def test_messages_of_other_protocols_are_unknown() -> None:
    for kind in b"SEcPKbrp\x00\x7f\x80\xff":  # streams, two-phase commits, and no message at all
        with pytest.raises(ProtocolError, match="unknown pgoutput message"):
            decode_message(bytes([kind]) + bytes(40))
    with pytest.raises(ProtocolError, match="only the text format was asked for"):
        decode_message(b"I" + bytes(4) + b"N\0\1b\0\0\0\1x")


def test_a_length_that_the_bytes_do_not_have_costs_no_memory() -> None:
    huge = b"\xff\xff\xff\xff"
    lies = [
        b"T" + huge + b"\0",
        b"M\1" + bytes(8) + b"p\0" + huge,
        b"I" + bytes(4) + b"N\xff\xff",
        b"I" + bytes(4) + b"N\0\1t" + huge,
        b"R" + bytes(4) + b"s\0t\0d\xff\xff",
    ]
    tracemalloc.start()
    try:
        for data in lies:
            with pytest.raises(ProtocolError):
                decode_message(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()

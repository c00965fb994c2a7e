"""What a real server writes for each kind of statement, decoded. The golden messages of tests/wire come from here.

To record them anew, print `data.hex()` in `changes`.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import psycopg

from runnel.postgres.types import SESSION_SETTINGS
from runnel.wire.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
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
from tests.patience import PATIENCE
from tests.postgres.conftest import Database

OPTIONS = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
SHAPES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE chat (id int PRIMARY KEY, body text, mood mood);
CREATE TABLE logs (at timestamptz, line varchar(9));
ALTER TABLE logs REPLICA IDENTITY FULL;
CREATE TABLE big (id int PRIMARY KEY, n int, doc text);
ALTER TABLE big ALTER doc SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR TABLE chat, logs, big;
"""
AT = b"2024-02-29 12:00:00+00"
LARGE = b"x" * 2_100


def changes(connection: psycopg.Connection[Any], *statements: str) -> list[Message]:
    """What the slot has after these statements, each in a transaction of its own; without Begin and Commit."""
    for statement in statements:
        connection.execute(statement)
    rows = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
    )
    found = [decode_message(data) for (data,) in rows]
    return [message for message in found if message is not None and not isinstance(message, Begin | Commit)]


def test_each_kind_of_statement_is_decoded(database: Database) -> None:
    with psycopg.connect(database.dsn, options=OPTIONS, autocommit=True) as connection:
        connection.execute(SHAPES)
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        oids = "'chat'::regclass::oid, 'logs'::regclass::oid, 'big'::regclass::oid, 'mood'::regtype::oid"
        row = connection.execute(f"SELECT {oids}").fetchone()
        assert row is not None
        chat, logs, big, mood = row
        shape = Relation(
            chat,
            "public",
            "chat",
            "d",
            (Column("id", 23, -1, True), Column("body", 25, -1, False), Column("mood", mood, -1, False)),
        )
        assert changes(connection, "INSERT INTO chat VALUES (1, 'héllo', 'happy'), (2, NULL, NULL)") == [
            shape,
            Insert(chat, [b"1", "héllo".encode(), b"happy"]),
            Insert(chat, [b"2", None, None]),
        ]
        assert changes(
            connection,
            "UPDATE chat SET body = '' WHERE id = 1",
            "UPDATE chat SET id = 3 WHERE id = 1",
            "DELETE FROM chat WHERE id = 2",
        ) == [
            shape,
            Update(chat, None, [b"1", b"", b"happy"], False),
            Update(chat, [b"1", None, None], [b"3", b"", b"happy"], True),
            Delete(chat, [b"2", None, None], True),
        ]
        assert changes(
            connection,
            f"INSERT INTO logs VALUES ('{AT.decode()}', 'a')",
            "UPDATE logs SET line = 'b'",
            "DELETE FROM logs",
        ) == [
            Relation(logs, "public", "logs", "f", (Column("at", 1184, -1, True), Column("line", 1043, 13, True))),
            Insert(logs, [AT, b"a"]),
            Update(logs, [AT, b"a"], [AT, b"b"], False),
            Delete(logs, [AT, b"b"], False),
        ]
        _, inserted, updated = changes(
            connection, f"INSERT INTO big VALUES (1, 1, '{LARGE.decode()}')", "UPDATE big SET n = 2"
        )
        assert inserted == Insert(big, [b"1", b"1", LARGE])
        assert updated == Update(big, None, [b"1", b"2", UNCHANGED], False)
        one, two = changes(
            connection,
            "SELECT pg_logical_emit_message(false, 'other', '\\x00ff'::bytea)",  # not flushed before the next commit
            "SELECT pg_logical_emit_message(true, 'runnel', 'in')",
        )
        assert isinstance(one, LogicalMessage)
        assert isinstance(two, LogicalMessage)
        assert (one.transactional, one.prefix, one.content) == (False, "other", b"\x00\xff")
        assert (two.transactional, two.prefix, two.content) == (True, "runnel", b"in")
        truncated = changes(connection, "TRUNCATE chat, logs RESTART IDENTITY", "TRUNCATE chat CASCADE")
        assert [message for message in truncated if isinstance(message, Truncate)] == [
            Truncate((chat, logs), False, True),
            Truncate((chat,), True, False),
        ]


def test_a_stream_is_decoded_and_a_status_confirms_it(database: Database) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(SHAPES)
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        connection.execute("INSERT INTO chat VALUES (1, 'a', 'sad')")
        dsn = f"{database.dsn}?replication=database"
        with closing(psycopg.connect(dsn, options=OPTIONS, autocommit=True)) as replication:
            stream = replication.pgconn
            stream.exec_(b"START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')")
            messages: list[Message] = []
            while not messages or not isinstance(messages[-1], Commit):
                _, data = stream.get_copy_data(0)
                match decode_stream(data):
                    case WalData(_, _, payload):
                        message = decode_message(payload)
                        messages += [] if message is None else [message]
                    case Keepalive(end, _, _):
                        assert end > 0
            begin, relation, insert, commit = messages
            assert isinstance(begin, Begin)
            assert isinstance(relation, Relation)
            assert insert == Insert(relation.oid, [b"1", b"a", b"sad"])
            assert isinstance(commit, Commit)
            assert begin.final_lsn == commit.lsn < commit.end_lsn
            stream.put_copy_data(encode_status(commit.end_lsn, time.time()))
            stream.flush()
            query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = %s"
            deadline, confirmed = time.monotonic() + PATIENCE, 0
            while confirmed != commit.end_lsn and time.monotonic() < deadline:
                row = connection.execute(query, [database.name]).fetchone()
                assert row is not None
                confirmed = parse_lsn(row[0])
                assert row[0] == format_lsn(confirmed)
            assert confirmed == commit.end_lsn

"""Publish from inside the user's own PostgreSQL transaction: `emit`.

The record is written to PostgreSQL's log and nowhere else. The relay publishes it when the transaction commits;
if that is rolled back, nothing is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import msgspec

from runnel.core.errors import InvalidOption, TooLarge
from runnel.core.pattern import check_name
from runnel.core.payload import MAX_HEADERS, checked_headers, key_bytes, value_bytes
from runnel.core.publishing import MAX_RECORD_BYTES

EMIT_PREFIX = "runnel"
RELAY_HEADERS = 16  # that the relay may add to a record


class Emitted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A record as it travels in PostgreSQL's log, in msgpack."""

    topic: str
    value: bytes
    key: bytes | None = None
    headers: dict[str, str] = {}


def emit(
    connection: Any,
    topic: str,
    value: bytes | str,
    *,
    key: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Publish a record with the transaction that is open on `connection`, through the relay.

    `connection` is a psycopg connection or cursor, or a SQLAlchemy connection or session; with an asynchronous one,
    await what this returns. Subscribers get the record after the transaction committed, and never after a rollback.

    >>> with psycopg.connect(dsn) as connection:
    ...     connection.execute("UPDATE orders SET paid = true WHERE id = 7")
    ...     emit(connection, "orders.paid", "7")
    """
    checked, _ = checked_headers(topic, headers or {})
    record = Emitted(check_name(topic), value_bytes(topic, value), key_bytes(topic, key), checked)
    _check(record)
    content = msgspec.msgpack.encode(record)
    kind = type(connection).__module__.partition(".")[0]
    if kind == "sqlalchemy":
        text = import_module("sqlalchemy").text
        query = text("SELECT pg_logical_emit_message(true, :prefix, CAST(:content AS bytea))")
        return connection.execute(query, {"prefix": EMIT_PREFIX, "content": content})
    if not hasattr(connection, "execute"):
        raise InvalidOption("connection", connection, "expected a connection of psycopg 3 or SQLAlchemy")
    return connection.execute("SELECT pg_logical_emit_message(true, %s, %s::bytea)", (EMIT_PREFIX, content))


def _check(record: Emitted) -> None:
    """Raise unless a broker takes the record, with the headers that the relay adds."""
    headers, weight = checked_headers(record.topic, record.headers)
    if len(headers) > MAX_HEADERS - RELAY_HEADERS:
        raise InvalidOption("headers", len(headers), f"expected at most {MAX_HEADERS - RELAY_HEADERS}")
    for what, size in (("value", len(record.value)), ("key and headers", len(record.key or b"") + weight)):
        if size > MAX_RECORD_BYTES:
            raise TooLarge(f"the {what} of a record for {record.topic!r}", size, "max_record_bytes", MAX_RECORD_BYTES)


def unpack_emitted(content: bytes) -> Emitted:
    """The record that `emit` wrote; ValueError for other bytes under its prefix."""
    try:
        emitted = msgspec.msgpack.decode(content, type=Emitted)
        check_name(emitted.topic)
        _check(emitted)
    except Exception as error:
        raise ValueError(
            f"a message with the prefix {EMIT_PREFIX!r} that runnel.postgres.emit did not write: {error}"
        ) from None
    return emitted

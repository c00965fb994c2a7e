"""Read a table by SELECT, then continue live: `since` gives the start behind the rows that the SELECT saw.

A relayed record carries the id of the transaction that wrote its row. A snapshot of PostgreSQL says of every
transaction whether its rows are visible. So a subscription that begins a little before the snapshot, and leaves out the
records of transactions that the snapshot saw, continues exactly behind it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from runnel.core.errors import InvalidOption, NotSupported
from runnel.core.pattern import check_name
from runnel.core.position import Position
from runnel.core.record import Record
from runnel.postgres.snapshot import PgSnapshot
from runnel.wire.pgoutput import parse_lsn

MARGIN = 10.0  # seconds
PROBE_RECORDS, PROBE_BYTES = 32, 1 << 18
FIRST_STEP, STEP_GROWTH = 64, 4  # records before the end of the topic that are looked at first; then further back

# On a standby, all that is replayed is visible. On a primary a commit is in the log, and so may be relayed, before it
# is visible: for a moment, or for as long as it waits for a synchronous standby.
_QUERY = """
SELECT CAST(pg_current_snapshot() AS text), current_setting('transaction_isolation'),
    CAST(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END AS text),
    CASE WHEN pg_is_in_recovery() THEN least(now(), pg_last_xact_replay_timestamp())
    ELSE least(now(), (SELECT min(xact_start) FROM pg_stat_activity WHERE wait_event = 'SyncRep')) END, now()
"""


class Since(NamedTuple):
    """The start behind a snapshot, for `broker.subscribe(topic, start=...)`. Made by `since`."""

    topic: str
    snapshot: PgSnapshot
    lsn: int  # all that the snapshot saw was committed before
    before: datetime  # all that it did not see was committed after
    taken: datetime  # the time of the snapshot, or earlier

    async def find(self, backend: Any) -> tuple[Position | None, str | None]:
        """The position of a record that was committed before `before`. Looks back from the end, in growing steps."""
        bounds = await backend.bounds((self.topic,))
        if not bounds:
            return None, None
        found, step = bounds[0], FIRST_STEP
        while True:
            at = max(found.first, found.end - step)
            page = await backend.history(self.topic, at, PROBE_RECORDS, PROBE_BYTES)
            times = [time for record in page.records if (time := _committed(record)) is not None]
            if at == found.first or (times and times[0] < self.before):
                why = None
                if at == found.first > 0 and times and times[0] > self.taken:
                    why = "retention may have removed records that were committed after the snapshot"
                return Position(found.epoch, at), why
            step *= STEP_GROWTH

    def seen(self, headers: Mapping[str, str]) -> bool | None:
        """Whether the snapshot saw a record; None: neither this one nor any after it. Not relayed: it did not."""
        xid, lsn = headers.get("pg-xid"), headers.get("pg-lsn")
        if xid is None or lsn is None:
            return False
        return None if parse_lsn(lsn) >= self.lsn else self.snapshot.saw(int(xid))


def since(connection: Any, topic: str, *, margin: float = MARGIN) -> Any:
    """The start of a subscription to `topic` that continues behind the rows of the relay's tables seen here.

    Call it first in a transaction that is REPEATABLE READ (or SERIALIZABLE), then SELECT, then subscribe: rows that the
    SELECT returned are not delivered, and everything else is. `connection` is a psycopg connection or cursor, or a
    SQLAlchemy connection or session; with an asynchronous one, await what this returns. Records that no relay published
    are all delivered from there on, however old. `margin` is how many seconds before the snapshot a commit may have
    been relayed that the snapshot does not see.

    >>> with psycopg.connect(dsn) as connection:
    ...     connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    ...     start = since(connection, "chat.general")
    ...     past = connection.execute("SELECT * FROM chat_messages WHERE channel_id = 'general'").fetchall()
    >>> async with broker.subscribe("chat.general", start=start) as live:
    ...     ...
    """
    check_name(topic)
    if margin <= 0:
        raise InvalidOption("margin", margin, "expected seconds, more than 0")
    kind = type(connection).__module__.partition(".")[0]
    if kind == "sqlalchemy":
        result = connection.execute(import_module("sqlalchemy").text(_QUERY))
    else:
        connection = getattr(connection, "connection", connection)  # of a cursor
        if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            raise InvalidOption("connection", connection, "expected a connection of psycopg 3 or SQLAlchemy")
        _check_not_autocommit(connection)
        result = connection.cursor(row_factory=tuple_row).execute(_QUERY)
    if inspect.isawaitable(result):
        return _finish(result, topic, margin)
    return _made(result.fetchone(), topic, margin)


async def _finish(result: Any, topic: str, margin: float) -> Since:
    row = (await result).fetchone()
    return _made(await row if inspect.isawaitable(row) else row, topic, margin)


def _check_not_autocommit(connection: Any) -> None:
    if connection.autocommit and connection.info.transaction_status.name == "IDLE":
        raise _wrong_isolation("it is in autocommit mode, where every statement has a snapshot of its own")


def _wrong_isolation(why: str) -> NotSupported:
    return NotSupported(
        "since()", f"{why}; open a transaction with BEGIN ISOLATION LEVEL REPEATABLE READ, and SELECT in it, too"
    )


def _made(row: Any, topic: str, margin: float) -> Since:
    snapshot, isolation, lsn, before, taken = row
    if isolation not in ("repeatable read", "serializable"):
        raise _wrong_isolation(f"the transaction is {isolation.upper()}, where every statement has its own snapshot")
    return Since(topic, PgSnapshot.parse(snapshot), parse_lsn(lsn), before - timedelta(seconds=margin), taken)


def _committed(record: Record[bytes]) -> datetime | None:
    text = record.headers.get("pg-time")
    return None if text is None else datetime.fromisoformat(text)

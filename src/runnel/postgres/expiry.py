"""Removes rows past their time from event tables: whole partitions, or bounded batches of rows.

Subscribers get no record of it: the transactions say what they are, and the relay leaves their deletes out unless the
configuration asks for them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from runnel.postgres.config import TableConfig
from runnel.postgres.connecting import connect
from runnel.postgres.snapshot import EXPIRY_PREFIX

log = logging.getLogger("runnel.postgres")

BATCH_ROWS = 5_000  # removed in one transaction: a large DELETE delays live events by seconds
SHORTEST_ROUND, LONGEST_ROUND = 0.2, 60.0  # seconds between rounds

# Partitions by one range of dates or times, and where each ends. Other partitions have no time that they end at.
_PAST_PARTITIONS = """
SELECT n.nspname::text, c.relname::text
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_partitioned_table p ON p.partrelid = i.inhparent AND p.partstrat = 'r' AND p.partnatts = 1
JOIN pg_attribute a ON a.attrelid = i.inhparent AND a.attnum = p.partattrs[0]
    AND a.atttypid IN ('date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype)
CROSS JOIN LATERAL substring(pg_get_expr(c.relpartbound, c.oid) FROM $$TO \\('([^']+)'\\)$$) AS upper
WHERE i.inhparent = to_regclass(%s) AND upper IS NOT NULL
    AND upper::timestamptz <= clock_timestamp() - make_interval(secs => %s)
ORDER BY upper::timestamptz
"""


class Expired(NamedTuple):
    """The rows and partitions removed of a table."""

    partitions: list[str]
    rows: int


async def expire_rows(dsn: str, slot: str, table: TableConfig) -> None:
    """Remove rows of a table past `keep`, in rounds, until cancelled. Errors are logged and retried."""
    assert table.keep is not None
    async with await connect(dsn, f"runnel relay {slot} (expiry of {table.name})") as connection:
        await connection.execute("SET lock_timeout = '1s'")
        while True:
            try:
                await expire_now(connection, slot, table, table.keep)
            except psycopg.Error as error:
                if connection.closed:
                    raise
                log.warning("relay %s: rows of %s are past their time and stay: %s", slot, table.name, error)
            await asyncio.sleep(min(max(table.keep / 10, SHORTEST_ROUND), LONGEST_ROUND))


async def expire_now(connection: psycopg.AsyncConnection[Any], slot: str, table: TableConfig, keep: float) -> Expired:
    """Remove rows older than `keep` seconds: partitions first, then rows in batches."""
    partitions, rows = await drop_partitions(connection, table, keep), 0
    if table.keep_column is not None:
        while deleted := await delete_batch(connection, slot, table, keep):
            rows += deleted
            if deleted < BATCH_ROWS:
                break
    return Expired(partitions, rows)


async def drop_partitions(connection: psycopg.AsyncConnection[Any], table: TableConfig, keep: float) -> list[str]:
    """Drop the partitions that ended longer than `keep` seconds ago; return their names."""
    root = sql.Identifier(*table.name.split(".", 1)).as_string(connection)
    past = await (await connection.execute(_PAST_PARTITIONS, (root, keep))).fetchall()
    for schema, name in past:
        await connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(schema, name)))
    return [f"{schema}.{name}" for schema, name in past]


async def delete_batch(connection: psycopg.AsyncConnection[Any], slot: str, table: TableConfig, keep: float) -> int:
    """Delete at most `BATCH_ROWS` rows that are older than `keep` seconds; return how many."""
    assert table.keep_column is not None
    names = {
        "table": sql.Identifier(*table.name.split(".", 1)),
        "column": sql.Identifier(table.keep_column),
        "keep": sql.Literal(keep),
        "rows": sql.Literal(BATCH_ROWS),
    }
    past = "{column} < clock_timestamp() - make_interval(secs => {keep})"
    exist = sql.SQL(f"SELECT EXISTS (SELECT FROM {{table}} WHERE {past})").format(**names)
    if not (await (await connection.execute(exist)).fetchall())[0][0]:
        return 0
    delete = sql.SQL(
        f"DELETE FROM {{table}} t USING (SELECT tableoid, ctid FROM {{table}} WHERE {past} LIMIT {{rows}} "
        "FOR UPDATE SKIP LOCKED) past WHERE t.tableoid = past.tableoid AND t.ctid = past.ctid"
    ).format(**names)
    async with connection.transaction():
        await connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (EXPIRY_PREFIX, slot))
        return (await connection.execute(delete)).rowcount

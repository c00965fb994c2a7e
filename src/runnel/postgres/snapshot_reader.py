"""Reads snapshots of tables in chunks, while the changes of the same tables are streamed. See `snapshot`."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from runnel.core.statistics import SnapshotStatistics
from runnel.postgres.changes import ChangeAssembler
from runnel.postgres.config import RelayConfig, TableConfig
from runnel.postgres.connecting import connect
from runnel.postgres.replication import VALUE_SETTINGS
from runnel.postgres.routing import RowRouter
from runnel.postgres.snapshot import SNAPSHOT_PREFIX, WATERMARK_PREFIX, ChunkWindow, PgSnapshot, SnapshotProgress
from runnel.postgres.types import TypeCatalog
from runnel.wire.pgoutput import Column, ColumnValue, Relation

log = logging.getLogger("runnel.postgres")

CHUNK_BYTES = 4 << 20  # after which a chunk ends, whatever its number of rows
FETCH_ROWS = 200
# A table that takes no more is read as one chunk, and becomes visible as a whole: an entry of the journal takes 16 MiB.
SMALL_BYTES, SMALL_ROWS = 8 << 20, 50_000
RETRY_SECONDS = 60.0  # after which a table that could not be read is tried again
# With row_security off PostgreSQL refuses a query of which a policy would hide rows: a snapshot lacks none in silence.
OPTIONS = f"{VALUE_SETTINGS} -c synchronous_commit=local -c row_security=off"

_SHAPE = """
SELECT a.attname::text, a.atttypid::bigint, a.atttypmod, a.attnum = ANY(coalesce(k.columns, '{}')),
    array_position(k.columns, a.attnum), c.oid::bigint, c.relreplident::text, p.rowfilter, c.reltuples::bigint,
    greatest(pg_table_size(c.oid), (SELECT sum(pg_table_size(relid)) FROM pg_partition_tree(c.oid)))::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_publication_tables p ON p.pubname = %s AND p.schemaname = n.nspname AND p.tablename = c.relname
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY(p.attnames)
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
LEFT JOIN LATERAL (SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS columns) k ON true
WHERE n.nspname = %s AND c.relname = %s ORDER BY a.attnum
"""


class TableShape(NamedTuple):
    """The part of a table to read: its published columns, and the query."""

    relation: Relation
    key: tuple[str, ...]  # the columns of the primary key, in order
    filter: str | None
    rows: int  # estimated
    size: int  # bytes on disk


class SnapshotReader:
    """The snapshots of one relay, one table at a time. `published` returns their stored progress."""

    def __init__(
        self,
        dsn: str,
        config: RelayConfig,
        changes: ChangeAssembler,
        catalog: Callable[[Relation], Awaitable[TypeCatalog]],
        progress: Mapping[str, SnapshotProgress],
    ) -> None:
        self._dsn, self._config, self._changes, self._catalog = dsn, config, changes, catalog
        self._progress = dict(progress)
        self._impossible: set[str] = set()
        self._moved = asyncio.Event()  # `_progress` has changed
        self.statistics: dict[str, SnapshotStatistics] = {}

    def published(self, progress: Mapping[str, SnapshotProgress]) -> None:
        """Take over requested and stored snapshots."""
        if progress:
            self._progress |= progress
            self._impossible -= progress.keys()
            self._moved.set()

    async def run(self) -> None:
        """Read requested snapshots, now and later."""
        while True:
            self._moved.clear()
            waiting = [name for name, one in self._progress.items() if not one.is_done and name not in self._impossible]
            if waiting:
                await self._try_table(self._config.table_named(waiting[0]))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS if self._impossible else None):
                    await self._moved.wait()
                    continue
            self._impossible.clear()

    async def _try_table(self, table: TableConfig) -> None:
        """Read a table. One that the role may not read waits: changes are streamed meanwhile."""
        try:
            await self._read_table(table)
        except psycopg.errors.InsufficientPrivilege as error:
            self._changes.window = None
            self._impossible.add(table.name)
            log.error(
                "relay %s: no snapshot of %s: %s. The relay's role has to read all of it (GRANT SELECT ON %s TO …; "
                "with row-level security also BYPASSRLS); it is tried again every %.0f s",
                self._config.slot,
                table.name,
                " ".join(str(error).split()),
                table.name,
                RETRY_SECONDS,
            )

    async def _read_table(self, table: TableConfig) -> None:
        name = f"runnel relay {self._config.slot} (snapshot)"
        async with await connect(self._dsn, name, options=OPTIONS) as connection:
            shape = await read_shape(connection, self._config.publication, table)
            if shape is None or not shape.key:
                log.error("relay %s: no snapshot of %s: it has no published primary key", self._config.slot, table.name)
                self._impossible.add(table.name)
                return
            router = RowRouter(table, shape.relation, await self._catalog(shape.relation))
            rows = 0
            while not (progress := self._progress[table.name]).is_done:
                rows += await self._read_chunk(connection, table, shape, router, progress)
                is_done = self._progress[table.name].is_done
                self.statistics[table.name] = SnapshotStatistics(table.name, rows, shape.rows, is_done)
        log.info("relay %s: the snapshot of %s is complete: %d rows", self._config.slot, table.name, rows)

    async def _read_chunk(
        self,
        connection: psycopg.AsyncConnection[Any],
        table: TableConfig,
        shape: TableShape,
        router: RowRouter,
        progress: SnapshotProgress,
    ) -> int:
        """Publish one chunk, and wait until it is stored; the number of rows that were read."""
        finished: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def finish(is_good: bool) -> None:
            if not finished.done():
                finished.set_result(is_good)

        window = ChunkWindow(f"{self._config.slot}:{secrets.token_hex(8)}", router, shape.key, finish)
        self._changes.window = window
        emit = "SELECT pg_logical_emit_message(true, %s, %s)"
        await connection.execute(emit, (WATERMARK_PREFIX, window.watermark("low")))
        rows, snapshot, is_last = await self._select(connection, table, shape, progress.last_key)
        if is_last:
            reached = progress.done()
        else:
            last_key = tuple(text.decode() for text in router.texts_of(rows[-1], shape.key) if isinstance(text, bytes))
            reached = SnapshotProgress(progress.requested, progress.chunk + 1, last_key)
        window.read(rows, snapshot, reached)
        await connection.execute(emit, (WATERMARK_PREFIX, window.watermark("high")))
        if not await finished:
            return 0
        while self._progress[table.name][:2] < reached[:2]:
            self._moved.clear()
            await self._moved.wait()
        return len(rows)

    async def _select(
        self,
        connection: psycopg.AsyncConnection[Any],
        table: TableConfig,
        shape: TableShape,
        after: tuple[str, ...] | None,
    ) -> tuple[list[list[ColumnValue]], PgSnapshot, bool]:
        """The rows after a primary key, what their query saw, and whether they are the last."""
        rows: list[list[ColumnValue]] = []
        size, is_last = 0, False
        most_rows, most_bytes = self._config.snapshot_rows, CHUNK_BYTES
        if after is None and shape.size <= SMALL_BYTES:
            most_rows, most_bytes = max(most_rows, SMALL_ROWS), SMALL_BYTES
        async with connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            found = await (await connection.execute("SELECT pg_current_snapshot()::text")).fetchone()
            assert found is not None
            await connection.execute(chunk_query(table, shape, after))
            while not is_last and size < most_bytes and len(rows) < most_rows:
                wanted = min(FETCH_ROWS, most_rows - len(rows))
                cursor = await connection.execute(sql.SQL("FETCH {} FROM chunk").format(sql.Literal(wanted)))
                result = cursor.pgresult
                assert result is not None
                for at in range(result.ntuples):
                    texts = [result.get_value(at, i) for i in range(result.nfields)]
                    size += sum(len(text) for text in texts if text is not None)
                    rows.append([*texts])
                is_last = result.ntuples < wanted
        return rows, PgSnapshot.parse(found[0]), is_last


def chunk_query(table: TableConfig, shape: TableShape, after: tuple[str, ...] | None) -> sql.Composed:
    """Declares the cursor `chunk` over the rows after a primary key, in its order."""
    schema, _, name = table.name.partition(".")
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in shape.relation.columns)
    key = sql.SQL(", ").join(map(sql.Identifier, shape.key))
    conditions: list[sql.Composable] = []
    if shape.filter:
        conditions.append(sql.SQL("({})").format(sql.SQL(shape.filter)))
    if after is not None:
        conditions.append(sql.SQL("({}) > ({})").format(key, sql.SQL(", ").join(map(sql.Literal, after))))
    where = sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL("")
    return sql.SQL("DECLARE chunk NO SCROLL CURSOR FOR SELECT {} FROM {}{} ORDER BY {}").format(
        columns, sql.Identifier(schema, name), where, key
    )


async def read_shape(
    connection: psycopg.AsyncConnection[Any], publication: str, table: TableConfig
) -> TableShape | None:
    """The published columns of a table; None: it is not published."""
    schema, _, name = table.name.partition(".")
    found = await (await connection.execute(_SHAPE, (publication, schema, name))).fetchall()
    if not found:
        return None
    columns = tuple(Column(name, oid, modifier, is_key) for name, oid, modifier, is_key, *_ in found)
    key = sorted((at, name) for name, _, _, _, at, *_ in found if at is not None)
    _, _, _, _, _, oid, identity, row_filter, rows, size = found[0]
    relation = Relation(oid, schema, name, identity, columns)
    return TableShape(relation, tuple(one for _, one in key), row_filter, rows, size)


async def request_snapshot(connection: psycopg.AsyncConnection[Any], config: RelayConfig, name: str) -> None:
    """Ask the relay that holds the slot, which may be another process, to read a table again."""
    table = config.table_named(name)
    content = msgspec.json.encode({"slot": config.relay_name, "table": table.name}).decode()
    await connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (SNAPSHOT_PREFIX, content))

"""The table of an archive as a `HistorySource`: the broker reads below its journal from PostgreSQL.

Every query reads one partition through an index, and returns at most `PAGE_RECORDS` records or about `PAGE_BYTES`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from runnel.core.batch import Slice, SliceRun
from runnel.core.columns import EXPIRES, HEADERS, KEYS, Columns
from runnel.core.history import HistoryBounds
from runnel.core.pattern import check_pattern, matches
from runnel.postgres.archive_config import check_table_name
from runnel.postgres.connecting import connect

CONNECTIONS = 4  # at most, of one source
PAGE_RECORDS, PAGE_BYTES = 4096, 4 << 20
SCANNED = 100_000  # sequences of one query, where topics in between do not match

_ROWS = """
SELECT topic, epoch, "offset", sequence, "time", key, value, headers::text, extract(epoch FROM expires)::float8 FROM (
    SELECT *, sum(octet_length(value)) OVER (ORDER BY {order}) - octet_length(value) AS before FROM (
        SELECT * FROM {leaf} WHERE {where} ORDER BY {order} LIMIT {limit}) page) sized
WHERE before < {bytes} ORDER BY {order}
"""
# Times and sequences of a topic rise with its offsets, and all times with sequences: so one is found by bisection.
_BISECT = """
WITH RECURSIVE search(low, high) AS (
    SELECT %(low)s::bigint, %(high)s::bigint
    UNION ALL
    SELECT CASE WHEN {by} < %(than)s THEN at + 1 ELSE low END, CASE WHEN {by} < %(than)s THEN high ELSE middle END
    FROM search CROSS JOIN LATERAL (SELECT (low + high) / 2 AS middle) half LEFT JOIN LATERAL (
        SELECT {order} AS at, {by} FROM {leaf} WHERE {where} AND {order} >= middle AND {order} < high
        ORDER BY {order} LIMIT 1) found ON true
    WHERE low < high)
SELECT low FROM search WHERE low >= high LIMIT 1
"""
_OF_TOPIC = sql.SQL("topic = %(topic)s AND epoch = %(epoch)s")


class _Part(NamedTuple):
    """A partition that holds some of the requested records."""

    name: str
    first: int
    end: int


class ArchiveHistory:
    """Old records from the table of an archive, for `runnel.open(..., history=)`.

    `pattern` says which topics it answers for; it need not be all that the archive copies.

    >>> history = ArchiveHistory("postgresql://localhost/app", "orders", "orders.>")
    >>> async with runnel.open("data/", history=history) as broker:
    ...     ...
    """

    def __init__(self, dsn: str, table: str, pattern: str = ">") -> None:
        self._dsn, self._pattern = dsn, check_pattern(pattern)
        self._schema, _, self._relation = check_table_name(table).rpartition(".")
        self._schema = self._schema or "public"
        self._name = f"{self._schema}.{self._relation}"
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._open: set[psycopg.AsyncConnection[Any]] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ArchiveHistory {self._name}, {self._pattern!r}>"

    def covers(self, topic: str) -> bool:
        """Whether it answers for `topic`."""
        return matches(self._pattern, topic)

    async def bounds(self, topic: str, epoch: int) -> HistoryBounds | None:
        """The first and the end offset of the topic's rows; None: there are none."""
        query = 'SELECT min(first), max("end") FROM {range} WHERE table_name = %s AND topic = %s AND epoch = %s'
        rows = await self._ask(self._own(query), self._name, topic, epoch)
        first, end = rows[0]
        return None if first is None else HistoryBounds(first, end)

    async def read(self, topic: str, epoch: int, start: int, end: int) -> Sequence[Slice]:
        """The first rows of the topic with offsets in [start, end), one page of them."""
        query = (
            'SELECT part, first, "end" FROM {range} WHERE table_name = %s AND topic = %s AND epoch = %s '
            'AND "end" > %s AND first < %s ORDER BY first'
        )
        for part in await self._parts(query, self._name, topic, epoch, start, end):
            where = sql.SQL('topic = {} AND epoch = {} AND "offset" >= {} AND "offset" < {}').format(
                sql.Literal(topic), epoch, max(start, part.first), min(end, part.end)
            )
            if slices := await self._page(part, where, "offset"):
                return slices
        return []

    async def offset_at(self, topic: str, epoch: int, time: datetime) -> int | None:
        """The offset of the topic's first row at `time` or later."""
        query = (
            'SELECT r.part, r.first, r."end" FROM {range} r JOIN {part} p USING (table_name, part) '
            "WHERE r.table_name = %s AND r.topic = %s AND r.epoch = %s AND p.stop > %s ORDER BY r.first"
        )
        return await self._first_offset(query, topic, epoch, "time", time)

    async def offset_at_sequence(self, topic: str, epoch: int, sequence: int) -> int | None:
        """The offset of the topic's first row with this sequence or a later one."""
        query = (
            'SELECT part, first, "end" FROM {range} '
            "WHERE table_name = %s AND topic = %s AND epoch = %s AND end_sequence > %s ORDER BY first"
        )
        return await self._first_offset(query, topic, epoch, "sequence", sequence)

    async def read_sequences(self, patterns: Sequence[str], start: int, end: int) -> Sequence[Slice]:
        """The first rows of the topics that match, with sequences in [start, end), one page of them."""
        wanted = _expression(patterns)
        for part in await self._sequence_parts(wanted, start, end):
            at, last = max(start, part.first), min(end, part.end)
            while at < last:
                until = min(last, at + SCANNED)
                where = sql.SQL("topic ~ {} AND sequence >= {} AND sequence < {}").format(
                    sql.Literal(wanted), at, until
                )
                if slices := await self._page(part, where, "sequence"):
                    return slices
                at = until
        return []

    async def sequence_at(self, patterns: Sequence[str], time: datetime) -> int | None:
        """A sequence at which no row of these topics is older than `time`, and before which all are."""
        query = (
            "SELECT part, first_sequence, end_sequence FROM {part} "
            "WHERE table_name = %s AND stop > %s AND rows > 0 ORDER BY start"
        )
        wanted = _expression(patterns)
        for part in await self._parts(query, self._name, time):
            low = await self._bisect(part, "sequence", "time", time, sql.SQL("true"))
            if low is None or low >= part.end:
                continue
            if parts := await self._sequence_parts(wanted, low, None):
                return max(low, parts[0].first)
        return None

    async def close(self) -> None:
        """Close the connections. Calls under way fail."""
        self._is_closed = True
        for connection in [*self._open, *self._idle]:
            await connection.close()
        self._idle.clear()

    # -- queries ------------------------------------------------------------------------------------------------

    async def _first_offset(self, parts: str, topic: str, epoch: int, by: str, than: datetime | int) -> int | None:
        """The offset of the topic's first row of which the column `by` is not less, in the partitions of a query."""
        for part in await self._parts(parts, self._name, topic, epoch, than):
            low = await self._bisect(part, "offset", by, than, _OF_TOPIC, topic=topic, epoch=epoch)
            if low is not None and low < part.end:
                where = sql.SQL('topic = %s AND epoch = %s AND "offset" >= %s ORDER BY "offset" LIMIT 1')
                select = sql.SQL('SELECT "offset" FROM {} WHERE {}').format(self._leaf(part), where)
                if rows := await self._ask_part(select, topic, epoch, low):
                    return int(rows[0][0])
        return None

    def _own(self, query: str) -> sql.Composed:
        return sql.SQL(query).format(
            range=sql.Identifier(self._schema, "runnel_archive_range"),
            part=sql.Identifier(self._schema, "runnel_archive_part"),
        )

    def _leaf(self, part: _Part) -> sql.Identifier:
        return sql.Identifier(self._schema, part.name)

    async def _parts(self, query: str, *values: Any) -> list[_Part]:
        return [_Part(*row) for row in await self._ask(self._own(query), *values)]

    async def _sequence_parts(self, wanted: str, start: int, end: int | None) -> list[_Part]:
        """The partitions with rows of topics that match, and the sequences of those rows there, in order."""
        query = (
            "SELECT part, min(first_sequence), max(end_sequence) FROM {range} WHERE table_name = %s AND topic ~ %s "
            "AND end_sequence > %s AND first_sequence < %s GROUP BY part ORDER BY 2"
        )
        last = 2**63 - 1 if end is None else end
        return await self._parts(query, self._name, wanted, start, last)

    async def _page(self, part: _Part, where: sql.Composed, order: str) -> list[Slice]:
        query = sql.SQL(_ROWS).format(
            leaf=self._leaf(part), where=where, order=sql.Identifier(order), limit=PAGE_RECORDS, bytes=PAGE_BYTES
        )
        return list(_slices(await self._ask_part(query)))

    async def _bisect(
        self, part: _Part, order: str, by: str, than: datetime | int, where: sql.Composable, **values: Any
    ) -> int | None:
        """The first place in a partition whose `by` is not less; its end: there is none. None: it was dropped."""
        names = {"order": sql.Identifier(order), "by": sql.Identifier(by)}
        query = sql.SQL(_BISECT).format(leaf=self._leaf(part), where=where, **names)
        rows = await self._ask_part(query, low=part.first, high=part.end, than=than, **values)
        return int(rows[0][0]) if rows else None

    async def _ask_part(self, query: sql.Composed, *values: Any, **named: Any) -> list[tuple[Any, ...]]:
        """The rows of a query on a partition; none if retention has dropped it meanwhile."""
        try:
            return await self._ask(query, *values, **named)
        except _Gone:
            return []

    async def _ask(self, query: sql.Composed, *values: Any, **named: Any) -> list[tuple[Any, ...]]:
        try:
            async with self._connected() as connection, connection.cursor(binary=True) as cursor:
                await cursor.execute(query, named or values or None, prepare=False)
                return await cursor.fetchall()
        except psycopg.errors.UndefinedTable as error:
            hint = "`runnel archive run` creates it"
            raise _Gone(f"the archive {self._name} cannot be read: {error.diag.message_primary}; {hint}") from None
        except psycopg.Error as error:
            raise OSError(f"the archive {self._name} cannot be read: {error}") from error

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with self._room:
            if self._is_closed:
                raise OSError(f"the history of {self._name} is closed")
            connection = self._idle.pop() if self._idle else await connect(self._dsn, f"runnel history {self._name}")
            self._open.add(connection)
            is_sound = False
            try:
                yield connection
                is_sound = True
            except psycopg.Error:
                is_sound = not connection.broken
                raise
            finally:  # a query that was cancelled may still run: its connection is not used again
                self._open.discard(connection)
                if is_sound and not self._is_closed:
                    self._idle.append(connection)
                else:
                    await connection.close()


class _Gone(OSError):
    """The table that a query reads does not exist."""


def history(dsn: str, table: str, pattern: str = ">") -> ArchiveHistory:
    """The table of an archive as a source of history: what `[history] kind = "postgres"` opens."""
    return ArchiveHistory(dsn, table, pattern)


def _expression(patterns: Sequence[str]) -> str:
    """A regular expression of PostgreSQL for the topics that match any of the patterns."""
    tokens = {"*": r"[^.]+", ">": r".+"}
    each = [r"\.".join(tokens.get(one) or re.escape(one) for one in pattern.split(".")) for pattern in patterns]
    return f"^({'|'.join(each)})$"


def _slices(rows: Sequence[tuple[Any, ...]]) -> Iterator[Slice]:
    """Rows in order as slices: each without holes, in offsets and in sequences."""
    first = 0
    for at in range(1, len(rows) + 1):
        if at < len(rows):
            (topic, epoch, offset, sequence, *_), before = rows[at], rows[at - 1]
            if (topic, epoch, offset - 1, sequence - 1) == before[:4]:
                continue
        yield _slice(rows[first:at])
        first = at


def _slice(rows: Sequence[tuple[Any, ...]]) -> Slice:
    topic, epoch, start, *_ = rows[0]
    runs: list[SliceRun] = []
    columns = Columns()
    for index, (_, _, offset, sequence, time, key, _, headers, expires) in enumerate(rows):
        if not runs or runs[-1].time != time:
            runs.append(SliceRun(offset, sequence, time.astimezone(UTC)))
        if key is not None:
            columns.add(KEYS, index, key)
        if headers is not None:
            columns.add(HEADERS, index, msgspec.json.decode(headers))
        if expires is not None:
            columns.add(EXPIRES, index, expires)
    return Slice(topic, epoch, start, tuple(row[6] for row in rows), runs, columns or None)

"""The archive: records of topics become rows of a table, each once.

Rows and the position behind them are committed in one transaction of PostgreSQL, and the broker gets the position after
that. After any crash the archive reads its position from PostgreSQL and continues there. Only its own cursor waits
while PostgreSQL is slow or down.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg

from runnel.api.broker import Broker
from runnel.core.backend import Reader
from runnel.core.batch import Slice
from runnel.core.errors import (
    BrokerClosed,
    JournalFailed,
    NameInUse,
    NotNow,
    NotSupported,
    OffsetOutOfRange,
    TopicDeleted,
    UnknownName,
)
from runnel.core.options import SubscribeOptions
from runnel.core.pattern import is_pattern
from runnel.core.position import Position
from runnel.core.record import MissedRange
from runnel.core.schema import Schema
from runnel.core.statistics import ARCHIVE, RelayStatistics
from runnel.observe.prometheus import postgres_archives
from runnel.postgres.archive_config import ArchiveConfig, archive_config, archive_dsn
from runnel.postgres.archive_rows import FieldColumn, RowFields, RowRun, columns_of, partition_at, runs_of
from runnel.postgres.archive_table import (
    ArchiveFenced,
    ArchivePlace,
    ArchiveTable,
    ArchiveTableMismatch,
    lock_name,
    split_by_partition,
)
from runnel.postgres.connecting import connect
from runnel.postgres.reporting import reported

log = logging.getLogger("runnel.postgres")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds between attempts to connect
LOCK_SECONDS = 0.5  # that a standby waits for the lock at once
UPKEEP_SECONDS = 600.0  # between looks at the partitions: new ones are made, old ones dropped
AHEAD = 2  # partitions that are made before they are needed
RATE_SECONDS = 5.0  # over which rows per second are counted
TAKEN = 1024  # records at once: the event loop is not held up for longer than they take to encode
MAX_TOPICS = 10_000  # whose types are remembered

_RETRIED = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    NotNow,
    OSError,
    ArchiveFenced,
    NameInUse,  # the server has not noticed yet that an earlier archive disconnected
    TopicDeleted,
)


class ArchiveStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How far an archive is.

    - `table`: `schema.table`.
    - `state`: "starting", "standby" (another archive writes the table), "copying", or "waiting" to connect again.
    - `rows`, `batches`: how many were written since this object was made; a batch is one transaction.
    - `rows_per_second`: in the last seconds, between two calls.
    - `place`: its position: an offset; for a pattern, a sequence. None: at the beginning.
    - `lag_seconds`: the age of the oldest record that was read and is not written; 0 if there is none.
    - `missed`: records that were gone before they were read. The table `runnel_archive_gap` names them.
    - `expired`: records that were older than the retention when they were read: they are not written.
    - `misfits`: fields of typed values that did not fit their column, and are NULL there.
    - `last_error`: why it connected again the last time.
    """

    table: str
    state: str
    rows: int = 0
    batches: int = 0
    rows_per_second: float = 0.0
    place: int | None = None
    lag_seconds: float = 0.0
    missed: int = 0
    expired: int = 0
    misfits: int = 0
    last_error: str | None = None


def render(statistics: ArchiveStatistics) -> str:
    """The text that a Prometheus server scrapes, for `runnel_archive_*`."""
    return "".join(f"{line}\n" for line in postgres_archives((report_of(statistics),)))


def report_of(statistics: ArchiveStatistics, errors: int = 0) -> RelayStatistics:
    """What an archive reports to its broker, in the form of a relay's report."""
    return RelayStatistics(
        kind=ARCHIVE,
        slot=statistics.table,
        state=statistics.state,
        lag_seconds=statistics.lag_seconds,
        rows=statistics.rows,
        rows_per_second=statistics.rows_per_second,
        transactions=statistics.batches,
        missed=statistics.missed,
        misfits=statistics.misfits,
        errors=errors,
        last_error=statistics.last_error,
    )


class Archive:
    """Copies the records of a topic or a pattern into a table of PostgreSQL, exactly once.

    The table is created, and gets columns for the fields of typed topics. `options` are those of `ArchiveConfig`:
    `batch_records`, `batch_bytes`, `batch_seconds`, `partition`, `retention` (seconds), `hold`. The broker is a
    folder, or a server with one. `ArchiveHistory` serves the table as history.

    >>> archive = Archive(broker, "postgresql://localhost/app", "orders.>", "orders", retention=90 * 86_400)
    >>> await archive.run()  # until it is cancelled
    """

    def __init__(self, broker: Broker, dsn: str | None, pattern: str, table: str, **options: Any) -> None:
        self.config = archive_config({"pattern": pattern, "table": table, **options})
        self.dsn = archive_dsn(self.config, dsn)
        self.broker = broker
        self.state = "starting"
        self.last_error: str | None = None
        self.errors = 0  # how often it had to connect again
        self.rows = self.batches = self.missed = self.expired = self.misfits = 0
        self.place: ArchivePlace | None = None
        self.oldest: datetime | None = None  # the time of the oldest record that was read and is not written
        self._has_copied = False
        self._samples: deque[tuple[float, int]] = deque()

    @classmethod
    def of(cls, broker: Broker, config: ArchiveConfig) -> Archive:
        """The archive that a configuration describes."""
        return cls(broker, **(msgspec.structs.asdict(config) | {"dsn": archive_dsn(config)}))

    def __repr__(self) -> str:
        return f"<Archive {self.config.pattern!r} into {self.config.name}, {self.state}>"

    async def run(self) -> None:
        """Copy until cancelled. Lost connections, to PostgreSQL and to the broker, are made again.

        A second archive of the same table waits, and takes over when the first one ends. `ArchiveTableMismatch` is
        raised if the table holds the records of another pattern or another journal.
        """
        async with reported(self, lambda: report_of(self.statistics(), self.errors)):
            await self._copy()

    async def _copy(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self.state = "starting"
            before = self.batches
            try:
                await _Session(self).run()
            except _RETRIED as error:
                self.last_error = " ".join(str(error).split()) or type(error).__name__
            except (JournalFailed, psycopg.Error) as error:
                is_lost = isinstance(error, JournalFailed) and not self.broker.backend.is_remote
                if is_lost or not self._has_copied:
                    raise
                self.last_error = " ".join(str(error).split())
            self.errors += 1
            if self.batches > before:
                pause = FIRST_PAUSE
            self.state, self.oldest = "waiting", None
            log.warning("archive %s: %s; trying again in %.1f s", self.config.name, self.last_error, pause)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    def copied(self) -> None:
        """Rows can be written now: later errors are retried."""
        self.state, self._has_copied = "copying", True

    def statistics(self) -> ArchiveStatistics:
        """The progress of the archive."""
        now = time.monotonic()
        self._samples.append((now, self.rows))
        while len(self._samples) > 2 and self._samples[1][0] < now - RATE_SECONDS:
            self._samples.popleft()
        since, before = self._samples[0]
        return ArchiveStatistics(
            table=self.config.name,
            state=self.state,
            rows=self.rows,
            batches=self.batches,
            rows_per_second=(self.rows - before) / (now - since) if now > since else 0.0,
            place=None if self.place is None else self.place.place,
            lag_seconds=0.0 if self.oldest is None else max(0.0, time.time() - self.oldest.timestamp()),
            missed=self.missed,
            expired=self.expired,
            misfits=self.misfits,
            last_error=self.last_error,
        )


class _Batch:
    """Records that are written together."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.missed: list[MissedRange] = []
        self.records = self.bytes = 0
        self.end = ArchivePlace(0, 0)  # behind the last of them
        self.columns: tuple[str, ...] = ()  # of fields, that their rows have
        self.runs: list[RowRun] = []

    @property
    def is_empty(self) -> bool:
        return not self.slices and not self.missed


class _Session:
    """Connect, lock, read, write: once."""

    def __init__(self, archive: Archive) -> None:
        self._archive, self._config, self._broker = archive, archive.config, archive.broker
        self._is_pattern = is_pattern(self._config.pattern)
        self._woken = asyncio.Event()
        self._fields: dict[str, RowFields | None] = {}  # of topics; None: it has no type
        self._ignored: dict[str, set[str]] = {}  # fields of values that no schema of the topic has
        self._said: set[str] = set()  # warnings, by column
        self._upkept = 0.0  # when partitions were looked at
        self._using = asyncio.Lock()  # the connection, for one transaction

    async def run(self) -> None:
        config = self._config
        if (await self._broker.info()).get("fsync") is None:
            why = "its records have new ids after a restart; open a folder, or a server with one"
            raise NotSupported("an archive of a broker in memory", why)
        async with await connect(self._archive.dsn, lock_name(config)) as connection:
            self._connection, self._table = connection, ArchiveTable(connection, config)
            await self._own()
            await self._table.set_up()
            self._archive.place = await self._checked_place()
            await self._upkeep()
            reader = self._reader = await self._opened()
            try:
                self._archive.copied()
                await self._copy_all()
            finally:
                reader.leave()
                await reader.left()

    async def _copy_all(self) -> None:
        """Write one batch after the other. The next one is read and encoded while PostgreSQL works on the last."""
        ahead = asyncio.ensure_future(self._prepared())
        try:
            while True:
                batch = await ahead
                ahead = asyncio.ensure_future(self._prepared())
                await self._write(batch)
                if time.monotonic() - self._upkept > UPKEEP_SECONDS:
                    await self._upkeep()
        finally:
            ahead.cancel()
            await asyncio.wait([ahead])
            if not ahead.cancelled():
                ahead.exception()  # its exception is read here: it is the reason of the end already

    # -- before it starts ---------------------------------------------------------------------------------------

    async def _own(self) -> None:
        """Wait until no other archive writes the table: one that dies releases its lock at once."""
        connection, config = self._connection, self._config
        await connection.execute(f"SET lock_timeout = {int(LOCK_SECONDS * 1000)}")
        while True:
            try:
                await connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (lock_name(config),))
                break
            except psycopg.errors.LockNotAvailable:
                if self._archive.state != "standby":
                    self._archive.state = "standby"
                    log.info("archive %s: another one writes the table; waiting to take over", config.name)
        await connection.execute("RESET lock_timeout")
        self._archive.state = "starting"

    async def _checked_place(self) -> ArchivePlace | None:
        """Where to continue, if the table and the journal belong together."""
        config, table = self._config, self._table
        state = await table.state()
        assert state is not None, "set_up has made it"
        if state.pattern != config.pattern:
            why = f"the table holds {state.pattern!r}, not {config.pattern!r}; name another table for another pattern"
            raise ArchiveTableMismatch(config.name, why)
        if state.partition != config.partition:
            why = f"its partitions cover a {state.partition}, not a {config.partition}; leave that as it is"
            raise ArchiveTableMismatch(config.name, why)
        place, journal = state.place, self._broker.backend.origin
        if place is None:
            await table.adopt(journal)
            return None
        if state.journal != journal:
            bounds = await self._broker.bounds(config.pattern)
            if not await table.epochs([(one.topic, one.epoch) for one in bounds]):
                why = (
                    f"it was filled from the journal {state.journal}, and this is {journal}, which shares no topic "
                    "with it; archive another broker into another table"
                )
                raise ArchiveTableMismatch(config.name, why)
            reason = (
                f"the journal was restored from a backup: {journal} follows {state.journal}. "
                "Records that were published after the backup and archived are in the table only"
            )
            log.warning("archive %s: %s", config.name, reason)
            await table.adopt(journal, [MissedRange(place.place, place.place, 0, reason)])
        if self._is_pattern and place.place > (end := await self._broker.backend.end_sequence()):
            raise ArchiveTableMismatch(config.name, _went_back(place.place, end))
        return place

    async def _opened(self) -> Reader:
        config, place = self._config, self._archive.place
        name = f"archive:{config.name}"
        resume: Position | int | None = None
        if place is None:
            with suppress(UnknownName):
                await self._broker.forget(name)  # the position of a table that was dropped
        else:
            resume = place.place if self._is_pattern else Position(*place)
        options = SubscribeOptions.of({"name": name, "hold": config.hold, "start": "earliest"})
        reader: Reader = self._broker.backend.reader(config.pattern, options, self._woken.set, resume)
        try:
            if (standing := reader.enter()) is not None:
                await standing
        except OffsetOutOfRange as error:
            raise ArchiveTableMismatch(config.name, _went_back(error.asked, error.end)) from None
        return reader

    async def _upkeep(self) -> None:
        """Drop partitions past the retention, and make those that are needed soon."""
        config, now = self._config, self._now()
        async with self._using:
            await self._table.look_at_parts()
            if config.retention is not None:
                for part in await self._table.drop_before(now - timedelta(seconds=config.retention)):
                    log.info("archive %s: dropped the partition %s", config.name, part)
            at = now
            for _ in range(AHEAD + 1):
                span = partition_at(config.partition, at)
                await self._table.make_partition(span)
                at = span.stop
        self._upkept = time.monotonic()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._broker.clock.time(), UTC)

    # -- reading ------------------------------------------------------------------------------------------------

    async def _prepared(self) -> _Batch:
        """The next records, as rows."""
        batch = await self._gathered()
        batch.end = ArchivePlace(0 if self._is_pattern else self._reader.epoch or 0, self._reader.sent)
        await self._encode(batch)
        return batch

    async def _gathered(self) -> _Batch:
        """The next records: as many as one transaction takes, or as come in `batch_seconds` after the first."""
        config, reader, batch = self._config, self._reader, _Batch()
        deadline: float | None = None
        while batch.records < config.batch_records and batch.bytes < config.batch_bytes:
            self._woken.clear()
            taken = reader.take(min(TAKEN, config.batch_records - batch.records))
            if taken is not None:
                self._add(batch, taken.slices, taken.missed)
                await asyncio.sleep(0)
                continue
            if reader.error is not None:
                raise reader.error
            if reader.ended:
                if batch.is_empty:
                    raise BrokerClosed("archiving")
                break
            now = time.monotonic()
            if deadline is None and not batch.is_empty:
                deadline = now + config.batch_seconds
            if deadline is not None and now >= deadline:
                break
            reader.park()
            left = UPKEEP_SECONDS if deadline is None else deadline - now
            try:
                async with asyncio.timeout(left):
                    await self._woken.wait()
            except TimeoutError:
                if deadline is None:
                    await self._upkeep()
        return batch

    def _add(self, batch: _Batch, slices: list[Slice], missed: MissedRange | None) -> None:
        if missed is not None:
            batch.missed.append(missed)
            self._archive.missed += missed.count
            log.warning(
                "archive %s: missed %d records in [%d, %d): %s",
                self._config.name,
                missed.count,
                missed.first,
                missed.end,
                missed.reason,
            )
        for part in slices:
            batch.slices.append(part)
            batch.records += len(part)
            batch.bytes += part.size + (0 if part.columns is None else part.columns.weight)
        if slices and self._archive.oldest is None:
            self._archive.oldest = slices[0].stretches[0].time

    # -- writing ------------------------------------------------------------------------------------------------

    async def _write(self, batch: _Batch) -> None:
        archive = self._archive
        runs = self._kept(batch.runs)
        async with self._using:
            try:
                await self._commit(runs, batch)
            except psycopg.DataError as error:  # PostgreSQL refuses a column of a field: the value itself always fits
                log.warning("archive %s: %s; writing these records without their fields", self._config.name, error)
                width = len(batch.columns)
                runs = self._kept([run for part in batch.slices for run in runs_of(part, None, width)])
                await self._commit(runs, batch)
        count = sum(run.end - run.first for run in runs)
        archive.place, archive.oldest = batch.end, None
        archive.rows += count
        archive.expired += batch.records - count
        archive.batches += 1
        self._reader.confirm(batch.end.place)

    def _kept(self, runs: list[RowRun]) -> list[RowRun]:
        """The rows that the retention does not drop at once."""
        kind, retention = self._config.partition, self._config.retention
        if retention is None:
            return runs
        oldest = partition_at(kind, self._now() - timedelta(seconds=retention)).start
        return [run for run in runs if run.time >= oldest]

    async def _commit(self, runs: list[RowRun], batch: _Batch) -> None:
        parts = split_by_partition(self._config.partition, runs)
        await self._table.write(parts, batch.columns, batch.missed, self._archive.place, batch.end)

    async def _encode(self, batch: _Batch) -> None:
        """Make rows of a batch. Columns are added first, so that all rows of one COPY have the same ones."""
        for _ in range(3):  # a topic may turn out to have fields that the table has no columns for
            await self._learn(batch)
            batch.columns, batch.runs = tuple(self._table.columns), []
            for part in batch.slices:
                batch.runs += runs_of(part, self._fields[part.topic], len(batch.columns))
                await asyncio.sleep(0)
            grown = [
                topic
                for topic, fields in self._fields.items()
                if fields is not None and fields.new - self._ignored.get(topic, set())
            ]
            if not grown:
                break
            for topic in grown:
                fields = self._fields.pop(topic)
                assert fields is not None
                self._ignored.setdefault(topic, set()).update(fields.new)  # asked for once
        for fields in self._fields.values():
            if fields is not None:
                self._archive.misfits += fields.misfits
                fields.misfits = 0

    async def _learn(self, batch: _Batch) -> None:
        """Look up the types of topics that are not known yet, and add the columns of their fields."""
        topics = dict.fromkeys(part.topic for part in batch.slices)
        for topic in topics:
            if self._fields.get(topic) is None and self._reader.encoding_of(topic) is not None:
                self._fields.pop(topic, None)  # it got its type after it was looked up
        unknown = [topic for topic in topics if topic not in self._fields]
        if not unknown:
            return
        if len(self._fields) > MAX_TOPICS:
            self._fields = {topic: self._fields[topic] for topic in topics if topic in self._fields}
        schemas: dict[str, Schema | None] = dict.fromkeys(unknown)
        for bounds in await self._broker.bounds(*unknown):
            schemas[bounds.topic] = bounds.schema
        width = len(self._table.columns)
        found: dict[str, tuple[Schema | None, list[FieldColumn]]] = {}
        for topic, schema in schemas.items():
            wanted = [] if schema is None else columns_of(schema)
            good = await self._with_columns(wanted)
            for one in wanted:
                if one not in good and one.column not in self._said:
                    self._said.add(one.column)
                    log.warning(
                        "archive %s: the field %r of %r is %s, and the column has another type; it stays NULL",
                        self._config.name,
                        one.field,
                        topic,
                        one.type,
                    )
            found[topic] = (schema, good)
        if len(self._table.columns) != width:  # every row has the new columns, also those of other topics
            others = [topic for topic, fields in self._fields.items() if fields is not None]
            for topic in others:
                fields = self._fields[topic]
                assert fields is not None
                found[topic] = (fields.schema, await self._with_columns(columns_of(fields.schema)))
        names = [*self._table.columns]
        for topic, (schema, good) in found.items():
            self._fields[topic] = None if schema is None or not good else RowFields(schema, good, names)

    async def _with_columns(self, wanted: list[FieldColumn]) -> list[FieldColumn]:
        """Those of the columns that the table has with their type; missing ones are added first."""
        if all(one.column in self._table.columns for one in wanted):
            return await self._table.add_columns(wanted)
        async with self._using:
            return await self._table.add_columns(wanted)


def _went_back(place: int, end: int) -> str:
    return (
        f"it is at {place}, and the journal ends at {end}: the folder is an older copy, which would give the same ids "
        "to other records. Restore a backup with `runnel restore`, or archive into another table"
    )

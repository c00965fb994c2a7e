"""One connection of a relay to PostgreSQL, from the check of its set-up until the connection is lost.

A task receives and assembles, a second one publishes, a third one reports to PostgreSQL, and others watch the slot,
read snapshots and remove rows past their time. An error of one of them ends all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec
import psycopg

from runnel.api.broker import Broker
from runnel.core.errors import NotSupported, ProtocolError
from runnel.postgres.changes import ChangeAssembler, Shapes
from runnel.postgres.channels import listen
from runnel.postgres.config import RelayConfig
from runnel.postgres.connecting import connect, together
from runnel.postgres.control import RelayStuck, skipped_transaction
from runnel.postgres.expiry import expire_rows
from runnel.postgres.progress import (
    ENDED,
    START,
    MarkerNames,
    Resume,
    ServerFacts,
    Stored,
    other_systems,
    pack_generation,
    read_stored,
    resume,
)
from runnel.postgres.publisher import RelayPublisher
from runnel.postgres.replication import ReplicationConnection
from runnel.postgres.setup import (
    SetupIncomplete,
    SlotState,
    examine,
    missing_tables,
    problems,
    read_slot,
    recreate_lost_slot,
    warnings,
)
from runnel.postgres.snapshot import SnapshotProgress
from runnel.postgres.snapshot_reader import SnapshotReader
from runnel.postgres.types import TYPE_QUERY, TypeCatalog
from runnel.wire.pgoutput import Data, Keepalive, Relation, format_lsn

log = logging.getLogger("runnel.postgres")

IDLE_MARK_SECONDS = 10.0  # between markers that only store how far PostgreSQL's log was read
WATCH_SECONDS = 10.0  # between looks at the slot, at most
LOCK_SECONDS = 0.5  # that a standby waits for the slot before it checks whether its holder is alive
SLOT_RETRY = 0.02  # seconds between attempts to stream from a slot that a lost connection still holds


class RelayState:
    """The state of a relay that outlives one connection."""

    def __init__(self) -> None:
        self.name = "starting"  # or standby, streaming, paused, waiting
        self.slot: SlotState | None = None  # its last observed state
        self.gives_up = False  # the slot holds back more than `max_retained`: it has to be created anew
        self.warned: set[str] = set()  # warnings already logged: once is enough


class RelaySession:
    """Check, connect, stream: once."""

    def __init__(self, broker: Broker, dsn: str, config: RelayConfig, state: RelayState) -> None:
        self._broker, self._dsn, self._config, self._state = broker, dsn, config, state
        self._catalog = TypeCatalog()
        self._work = asyncio.Event()  # there is something for the publishing task to do
        self._room = asyncio.Event()  # there is room for more rows
        self._asked = False  # PostgreSQL waits for a report
        self._idle_marked = time.monotonic()
        self._received = 0  # LSN up to which everything was assembled
        self._in_flight_since = 0.0  # commit time of the oldest transaction that is being published
        self._synced = 0  # LSN before which everything is on disk
        self._missing: set[str] = set()  # tables that are not published any more
        self.changes: ChangeAssembler | None = None
        self.publisher: RelayPublisher | None = None
        self.stream: ReplicationConnection | None = None
        self.snapshots: SnapshotReader | None = None

    @property
    def has_streamed(self) -> bool:
        """Whether the connection was set up, so that rows could arrive."""
        return self.changes is not None

    async def run(self) -> None:
        """Relay until something fails."""
        config = self._config
        self._fsync = (await self._broker.info()).get("fsync")
        if self._fsync is None:
            why = "it is empty after a restart, and the slot is ahead of it; open a folder, or a server with one"
            raise NotSupported("a relay into memory", why)
        async with await connect(self._dsn, f"runnel relay {config.slot} (control)") as control:
            self._control = control
            await self._own_slot()
            await self._check()
            stream = self.stream = await ReplicationConnection.connect(self._dsn, f"runnel relay {config.slot}")
            try:
                await self._prepare(stream)
                await self._start_streaming(stream)
                self._state.name = "streaming"
                await together(
                    self._receive(),
                    self._publish(),
                    self._report(),
                    self._watch(),
                    *([self._snapshots_task()] if config.table else []),
                    *([listen(self._dsn, config, self._broker)] if config.channel else []),
                    *[expire_rows(self._dsn, config.slot, table) for table in config.table if table.keep is not None],
                )
            finally:
                await stream.close()

    # -- the slot -----------------------------------------------------------------------------------------------

    async def _own_slot(self) -> None:
        """Wait until no other relay holds the slot: one that dies releases its lock at once, a hung one is ended."""
        lock, moved = f"runnel relay {self._config.relay_name}", 0.0
        await self._control.execute(f"SET lock_timeout = {int(LOCK_SECONDS * 1000)}")
        while True:
            try:
                await self._control.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (lock,))
                break
            except psycopg.errors.LockNotAvailable:
                if self._state.name != "standby":
                    self._state.name = "standby"
                    log.info("relay %s: another relay holds the slot; waiting to take over", self._config.slot)
                await self._end_hung_holder(lock)
                if self._config.relay_name != self._config.slot and time.monotonic() - moved > IDLE_MARK_SECONDS:
                    moved = time.monotonic()
                    await self._follow_markers()
        await self._control.execute("RESET lock_timeout")
        self._state.name = "starting"

    async def _end_hung_holder(self, lock: str) -> None:
        """End the connections of a holder that was silent for `holder_timeout`: its process is stopped or cut off.

        A relay that lives looks at its slot several times in that time, on the connection that has the lock.
        """
        hung = await self._values(
            "SELECT a.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' "
            "AND l.granted AND l.classid::bigint << 32 | l.objid::bigint = hashtextextended(%s, 0) AND l.objsubid = 1 "
            "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND a.state_change < clock_timestamp() - make_interval(secs => %s)",
            lock,
            self._config.holder_timeout,
        )
        for pid in hung:
            log.warning(
                "relay %s: its holder (process %d of PostgreSQL) has been silent for %g s; ending its connections",
                self._config.slot,
                pid,
                self._config.holder_timeout,
            )
            await self._values(
                "SELECT pg_terminate_backend(pid) FROM (SELECT %s AS pid UNION SELECT active_pid "
                "FROM pg_replication_slots WHERE slot_name = %s AND active_pid IS NOT NULL) AS held",
                pid,
                self._config.slot,
            )

    async def _follow_markers(self) -> None:
        """Move the own slot behind what the relay of the same name has stored, so that it holds back no log."""
        (system,) = await self._values("SELECT system_identifier::text FROM pg_control_system()")
        names = MarkerNames(system, self._config.relay_name)
        stored = read_stored(names, await self._broker.marks(names.generation))
        slot = self._state.slot = await read_slot(self._control, self._config.slot)
        if stored is not None and slot is not None and slot.active_pid is None and stored.confirmed > slot.confirmed:
            await self._values(
                "SELECT pg_replication_slot_advance(%s, least(%s::pg_lsn, pg_current_wal_flush_lsn()))",
                self._config.slot,
                format_lsn(stored.confirmed),
            )

    async def _start_streaming(self, stream: ReplicationConnection) -> None:
        """Begin to stream. PostgreSQL may notice only now that an earlier connection of the slot was lost."""
        config = self._config
        deadline = time.monotonic() + config.holder_timeout
        while True:
            try:
                await stream.start(config.slot, config.publication, self._resume.start)
                return
            except psycopg.errors.ObjectInUse as error:
                if time.monotonic() > deadline:
                    log.warning("relay %s: %s; ending that connection", config.slot, error)
                    await self._values(
                        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
                        config.slot,
                    )
                    deadline = time.monotonic() + config.holder_timeout
                await asyncio.sleep(SLOT_RETRY)

    async def _values(self, query: str, *parameters: Any) -> list[Any]:
        """The first column of a query on the control connection."""
        rows = await (await self._control.execute(query, parameters)).fetchall()
        return [row[0] for row in rows]

    # -- where to continue --------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Raise unless PostgreSQL is set up as the configuration needs it."""
        facts = await examine(self._control, self._config)
        if self._config.on_lost_slot == "snapshot" and facts.slot is not None and facts.slot.wal_status == "lost":
            log.error(
                "relay %s: the slot is lost; it is created anew, and all tables are read again", self._config.slot
            )
            await recreate_lost_slot(self._control, self._config, facts)
            facts = await examine(self._control, self._config)
        if self._state.gives_up and facts.slot is not None:
            self._state.gives_up = False
            log.error("relay %s: it drops its position, and creates the slot again", self._config.slot)
            await recreate_lost_slot(self._control, self._config, facts)
            facts = await examine(self._control, self._config)
        if found := problems(self._config, facts):
            raise SetupIncomplete(found)
        for warning in warnings(facts):
            if warning.what not in self._state.warned:
                self._state.warned.add(warning.what)
                log.warning("relay %s: %s", self._config.slot, warning.what)
        self._state.slot = facts.slot

    async def _prepare(self, stream: ReplicationConnection) -> None:
        """Find out where to continue. A new generation, and the gap before it, are stored together."""
        config, identity = self._config, await stream.identify()
        slot = self._state.slot = await read_slot(self._control, config.slot)
        if slot is None:
            raise psycopg.OperationalError(f"the replication slot {config.slot!r} was dropped")
        names = MarkerNames(identity.system, config.relay_name)
        marks = await self._broker.marks("relay:")
        stored = read_stored(names, marks)
        server = ServerFacts(identity.timeline, identity.end, identity.forks, slot.confirmed)
        self._resume = found = resume(stored, server, other_systems(names, marks))
        if stored is None or (found.generation, identity.timeline) != (stored.generation, stored.timeline):
            await self._begin_generation(names, found, identity.timeline, stored)
        marks = await self._broker.marks(names.generation)
        progress = {
            table.name: SnapshotProgress.unpack(said)
            for table in config.table
            if isinstance(said := marks.get(names.snapshot(found.generation, table.name)), str)
        }
        self.publisher = RelayPublisher(self._broker, config, names, found, progress)
        await self.publisher.drop_abandoned()
        self._received = self._synced = found.start
        skip = await skipped_transaction(self._broker, config)
        shapes = await read_shapes(self._broker, config)
        self.changes = ChangeAssembler(config, self._catalog, found.place, shapes, skip)
        self.snapshots = SnapshotReader(self._dsn, config, self.changes, self._types_of, progress)

    async def _begin_generation(self, names: MarkerNames, found: Resume, timeline: int, stored: Stored | None) -> None:
        config, is_first = self._config, stored is None
        snapshot_of = [
            table.name
            for table in config.table
            if (is_first and table.snapshot) or (found.gap is not None and config.on_lost_slot == "snapshot")
        ]
        async with self._broker.transaction() as tx:
            tx.mark(names.generation, pack_generation(found.generation, timeline))
            if stored is not None and stored.generation < found.generation:
                # Two relays of one name may stream at once, from two servers of PostgreSQL: fence the other one. If it
                # has published since the markers were read, this is a conflict, and they are read again.
                before = None if stored.place == START else stored.place.pack()
                tx.mark(names.place(stored.generation), ENDED.pack(), expected=before)
            if await self._broker.mark(names.confirmed(found.generation)) is None:
                tx.mark(names.confirmed(found.generation), found.start)
                if found.place != START:
                    tx.mark(names.place(found.generation), found.place.pack())
                for table in snapshot_of:
                    tx.mark(names.snapshot(found.generation, table), SnapshotProgress(found.start, 0, None).pack())
            if found.gap is not None:
                event = {
                    "event": "gap",
                    "slot": config.slot,
                    "generation": found.generation,
                    "lsn": format_lsn(found.start),
                    "reason": found.gap,
                }
                tx.publish(config.events_topic, msgspec.json.encode(event), key=config.slot, headers={"pg-op": "event"})
        if found.gap is not None:
            log.warning("relay %s: rows may be missing: %s", config.slot, found.gap)

    # -- streaming ----------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        changes, stream, config = self.changes, self.stream, self._config
        assert changes is not None
        assert stream is not None
        while True:
            messages = await stream.receive()
            for message in messages:
                if isinstance(message, Keepalive):
                    if message.reply_requested:
                        self._asked = True
                        self._work.set()
                elif (relation := self._feed(changes, message.payload)) is not None:
                    await self._learn(relation)
            self._received = stream.server_end
            if changes.has_ready:
                self._work.set()
                while changes.ready_records >= config.batch_records or changes.ready_size >= config.batch_bytes:
                    self._room.clear()
                    await self._room.wait()

    @staticmethod
    def _feed(changes: ChangeAssembler, payload: Data) -> Relation | None:
        try:
            return changes.feed(payload)
        except ProtocolError as error:
            if (lsn := changes.transaction) is None:
                raise
            raise RelayStuck(lsn, str(error)) from error

    async def _learn(self, relation: Relation) -> None:
        """Take the shape of a table."""
        await self._types_of(relation)
        assert self.changes is not None
        self.changes.learn(relation)

    async def _types_of(self, relation: Relation) -> TypeCatalog:
        """The catalog, with the types of these columns."""
        if missing := self._catalog.missing([column.type_oid for column in relation.columns]):
            cursor = await self._control.execute(TYPE_QUERY, (list(missing),))
            self._catalog.add(await cursor.fetchall())
        return self._catalog

    async def _publish(self) -> None:
        """Publish ready rows; with none under way, store how far PostgreSQL's log was read."""
        changes, publisher, stream = self.changes, self.publisher, self.stream
        assert changes is not None
        assert publisher is not None
        assert stream is not None
        while True:
            try:
                async with asyncio.timeout(self._config.status_interval):
                    await self._work.wait()
            except TimeoutError:
                pass
            self._work.clear()
            asked, self._asked = self._asked, False
            if rows := changes.take():
                self._room.set()
                if changes.has_ready:
                    self._work.set()
                self._in_flight_since = rows.oldest
                completed = await publisher.publish(rows)
                self._in_flight_since = 0.0
                assert self.snapshots is not None
                self.snapshots.published(completed)
            elif not changes.in_transaction and (asked or time.monotonic() - self._idle_marked >= IDLE_MARK_SECONDS):
                # Everything that PostgreSQL sent is stored: its log must not be kept for changes of other tables.
                self._idle_marked = time.monotonic()
                await publisher.store(self._received)
            if asked or self._fsync == "commit":
                await self._sync()
            if asked or self._synced > stream.confirmed:
                await stream.report(self._synced)

    async def _report(self) -> None:
        """Report in intervals, also while publishing takes long."""
        stream = self.stream
        assert stream is not None
        while True:
            await asyncio.sleep(self._config.status_interval)
            await self._sync()
            await stream.report(self._synced)

    async def _sync(self) -> None:
        """Return when all commits to the broker are on disk: only those may be confirmed."""
        assert self.publisher is not None
        if (stored := self.publisher.stored) > self._synced:
            if self._fsync != "commit":
                await self._broker.sync()
            self._synced = max(self._synced, stored)

    # -- beside the stream --------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Check the slot and the publication in intervals: the stream does not show their errors."""
        config = self._config
        while True:
            slot = await read_slot(self._control, config.slot)
            self._state.slot = slot or self._state.slot
            if slot is not None and slot.retained > config.warn_retained:
                log.warning(
                    "relay %s: its slot holds back %d MiB of PostgreSQL's log (wal_status %s)",
                    config.slot,
                    slot.retained >> 20,
                    slot.wal_status,
                )
            if slot is not None and config.max_retained is not None and slot.retained > config.max_retained:
                self._state.gives_up = True
                raise psycopg.OperationalError(
                    f"the slot holds back {slot.retained >> 20} MiB of PostgreSQL's log, more than max_retained; "
                    "the relay drops its position"
                )
            missing = await missing_tables(self._control, config)
            for table in sorted(missing ^ self._missing):
                word = "unpublished" if table in missing else "published"
                log.warning("relay %s: %s is %s by the publication %s", config.slot, table, word, config.publication)
                event = {"event": word, "table": table, "publication": config.publication}
                await self._broker.publish(
                    config.events_topic, msgspec.json.encode(event), key=table, headers={"pg-op": "event"}
                )
            self._missing = missing
            await asyncio.sleep(min(WATCH_SECONDS, config.holder_timeout / 4))

    async def _snapshots_task(self) -> None:
        assert self.snapshots is not None
        await self.snapshots.run()

    # -- statistics ---------------------------------------------------------------------------------------------

    @property
    def oldest_pending(self) -> float | None:
        """When the oldest transaction that is not published yet was committed, in seconds since 1970."""
        changes = self.changes
        pending = (
            [] if changes is None else [changes.oldest_ready, changes.open.oldest if changes.in_transaction else 0.0]
        )
        known = [at for at in (self._in_flight_since, *pending) if at]
        return min(known) if known else None


async def read_shapes(broker: Broker, config: RelayConfig) -> Shapes:
    """The shapes of tables that subscribers of the events topic know: what its last schema events say."""
    shapes: Shapes = {}
    bounds = await broker.bounds(config.events_topic)
    at, end = (bounds[0].first, bounds[0].end) if bounds else (0, 0)
    while at < end:
        page = await broker.backend.history(config.events_topic, at, 1000, 1 << 20)
        for record in page.records:
            try:
                event = msgspec.json.decode(record.value)
            except msgspec.DecodeError:
                continue  # another program published it
            if isinstance(event, dict) and event.get("event") == "schema":
                shapes[event["table"]] = event["columns"]
        at = page.next
    return shapes

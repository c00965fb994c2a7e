"""From decoded changes to records: routes rows, keeps transactions whole and in commit order. No I/O.

Changes of a transaction are numbered as they come, whether they are published or not, so that a place
(commit LSN, number) means the same row every time the stream is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from runnel.core.dead_letter import REASON, TOPIC
from runnel.core.errors import ProtocolError
from runnel.core.publishing import MAX_RECORD_BYTES
from runnel.postgres.config import Operation, RelayConfig
from runnel.postgres.emit import EMIT_PREFIX, unpack_emitted
from runnel.postgres.progress import RowPlace
from runnel.postgres.routing import RowRouter, TooLargeValue, Unroutable
from runnel.postgres.snapshot import (
    EXPIRY_PREFIX,
    SNAPSHOT_PREFIX,
    WATERMARK_PREFIX,
    ChunkWindow,
    SnapshotProgress,
    requested_table,
)
from runnel.postgres.types import TypeCatalog
from runnel.wire.pgoutput import (
    POSTGRES_EPOCH,
    UNCHANGED,
    Begin,
    ColumnValue,
    Commit,
    Data,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Truncate,
    Update,
    decode_message,
    format_lsn,
    parse_lsn,
)

PART_RECORDS = 100_000  # of a transaction, beyond which it comes in parts: an entry of the journal has a bound
PART_BYTES = 16 << 20
RECENT_XIDS = 4096  # transactions that are remembered for the chunks of a snapshot
MAX_KEY_AND_HEADERS = 1 << 20  # bytes, of the columns of one row
HEADERS_WEIGHT = 250  # bytes, about, of the headers that every record gets

Shapes = dict[str, list[list[str]]]
"""The columns of each table, by its name: [name, type] each."""

_EPOCH = datetime.fromtimestamp(POSTGRES_EPOCH, UTC)


class RecordRun:
    """Records of one topic, one after the other."""

    __slots__ = ("headers", "keys", "topic", "values")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.values: list[bytes | None] = []  # None: a tombstone
        self.keys: list[bytes | None] = []
        self.headers: list[dict[str, str]] = []


class PendingRows:
    """Records in commit order, and the place that they reach."""

    __slots__ = ("end", "is_part", "oldest", "place", "records", "runs", "size", "snapshots")

    def __init__(self) -> None:
        self.runs: list[RecordRun] = []
        self.records = self.size = 0
        self.place: RowPlace | None = None  # of the last change
        self.end = 0  # LSN that may be confirmed when these are stored; 0: no transaction ends in them
        self.is_part = False  # of one transaction that is too large for an entry; with an `end` it is the last part
        self.oldest = 0.0  # when the first of their transactions was committed, in seconds since 1970
        self.snapshots: dict[str, SnapshotProgress] = {}  # that these records complete, by table

    def __bool__(self) -> bool:
        return self.place is not None

    def add(
        self, topic: str, value: bytes | None, key: bytes | None, headers: dict[str, str], own_headers: int = 0
    ) -> None:
        """Add a record. `own_headers`: bytes of the headers that not every record has."""
        runs = self.runs
        if not runs or runs[-1].topic != topic:
            runs.append(RecordRun(topic))
        run = runs[-1]
        run.values.append(value)
        run.keys.append(key)
        run.headers.append(headers)
        self.records += 1
        self.size += len(value or b"") + len(key or b"") + HEADERS_WEIGHT + own_headers

    def extend(self, other: PendingRows) -> None:
        """Add the rows behind it."""
        runs = other.runs
        if self.runs and runs and self.runs[-1].topic == runs[0].topic:
            last, first = self.runs[-1], runs[0]
            last.values += first.values
            last.keys += first.keys
            last.headers += first.headers
            runs = runs[1:]
        self.runs += runs
        self.records += other.records
        self.size += other.size
        self.place, self.end = other.place, other.end or self.end
        self.oldest = self.oldest or other.oldest
        self.snapshots |= other.snapshots


def split_by_transaction(rows: PendingRows) -> list[PendingRows]:
    """The same records, those of each transaction for themselves."""
    found: list[PendingRows] = []
    last = ""
    for run in rows.runs:
        for value, key, headers in zip(run.values, run.keys, run.headers, strict=True):
            if not found or headers["pg-lsn"] != last:
                last = headers["pg-lsn"]
                found.append(PendingRows())
            found[-1].add(run.topic, value, key, headers)
            found[-1].place = RowPlace(parse_lsn(last), int(headers["pg-index"]))
    if found:
        found[-1].place, found[-1].end, found[-1].snapshots = rows.place, rows.end, rows.snapshots
    return found


def cut_records(rows: PendingRows, count: int) -> RowPlace | None:
    """Take the first `count` records from `rows`; the place of the last of them, or None if there was none."""
    place: RowPlace | None = None
    kept = PendingRows()
    for run in rows.runs:
        for value, key, headers in zip(run.values, run.keys, run.headers, strict=True):
            if count > 0:
                place = RowPlace(parse_lsn(headers["pg-lsn"]), int(headers["pg-index"]))
                count -= 1
            else:
                kept.add(run.topic, value, key, headers)
    rows.runs, rows.records, rows.size = kept.runs, kept.records, kept.size
    return place


class ChangeAssembler:
    """Turns the messages of one replication stream into records.

    `feed` takes a message. It returns a `Relation` whose types the caller has to look up before it calls `learn`
    and feeds the next message. `take` returns records of whole transactions, or a part of one that is too large.
    """

    def __init__(
        self,
        config: RelayConfig,
        catalog: TypeCatalog,
        published: RowPlace,
        shapes: Shapes | None = None,
        skip: int = 0,
    ) -> None:
        self._config, self._catalog = config, catalog
        self._published = published  # changes up to here are skipped
        self._skip = skip  # the commit LSN of a transaction that an operator passes over
        self._skips = False  # it is under way
        self._tables = {table.name: table for table in config.table}
        self._messages = {source.prefix: source.topic for source in config.message}
        self._routers: dict[int, RowRouter | None] = {}  # by the table's oid; None: not configured
        self._shapes: Shapes = dict(shapes or {})  # as subscribers of the events topic know them
        self._begin: Begin | None = None
        self._number = 0  # of the last change in the transaction
        self._headers: dict[str, str] = {}
        self._last_added = 0  # the change that gave the last record
        self._is_split = False  # this transaction comes in parts
        self._expires = False  # this transaction removes rows past their time
        self._told: set[int] = set()  # relations whose shape is known, to report changes
        self.window: ChunkWindow | None = None  # of the snapshot that is under way
        self.recent_xids: deque[int] = deque(maxlen=RECENT_XIDS)
        self._ready: deque[PendingRows] = deque()
        self.open = PendingRows()  # of the transaction that is under way
        self.rows = self.dead = self.transactions = 0

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way: it began, and its end has not come."""
        return self._begin is not None

    @property
    def transaction(self) -> int | None:
        """The commit LSN of the transaction that is under way."""
        return None if self._begin is None else self._begin.final_lsn

    @property
    def ready_records(self) -> int:
        """How many records can be taken."""
        return sum(rows.records for rows in self._ready)

    @property
    def ready_size(self) -> int:
        """Their bytes, about."""
        return sum(rows.size for rows in self._ready)

    @property
    def oldest_ready(self) -> float:
        """When the first of their transactions was committed, in seconds since 1970; 0.0: there are none."""
        return self._ready[0].oldest if self._ready else 0.0

    @property
    def has_ready(self) -> bool:
        """Whether there is something to take."""
        return bool(self._ready)

    def take(self) -> PendingRows:
        """The next whole transactions, or a part of one. Empty, if none is ready."""
        return self._ready.popleft() if self._ready else PendingRows()

    def feed(self, payload: Data) -> Relation | None:
        """Take one message of pgoutput."""
        if self._skips and bytes(payload[:1]) not in (b"C", b"R"):
            return None  # it may be one that cannot be decoded
        message = decode_message(payload)
        kind = type(message)
        if kind is Insert:
            self._insert(message)  # type: ignore[arg-type]
        elif kind is Begin:
            self._started(message)  # type: ignore[arg-type]
        elif kind is Commit:
            self._committed(message)  # type: ignore[arg-type]
        elif kind is Update:
            self._update(message)  # type: ignore[arg-type]
        elif kind is Delete:
            self._delete(message)  # type: ignore[arg-type]
        elif kind is LogicalMessage:
            self._message(message)  # type: ignore[arg-type]
        elif kind is Truncate:
            self._truncate(message)  # type: ignore[arg-type]
        elif kind is Relation:
            return message  # type: ignore[return-value]
        return None

    # -- transactions -------------------------------------------------------------------------------------------

    def _started(self, begin: Begin) -> None:
        self._begin, self._number, self._last_added, self._expires = begin, 0, 0, False
        self._is_split = begin.final_lsn == self._published.lsn
        self._skips = begin.final_lsn == self._skip and self._skip >= self._published.lsn
        committed = _EPOCH + timedelta(microseconds=begin.time)
        self.open.oldest = committed.timestamp()
        self._headers = {
            "pg-lsn": format_lsn(begin.final_lsn),
            "pg-xid": str(begin.xid),
            "pg-time": committed.isoformat(timespec="microseconds"),
        }

    def _committed(self, commit: Commit) -> None:
        if self._begin is None:
            raise ProtocolError("PostgreSQL sent a Commit without a Begin")
        if self._skips:
            self._skips = False
            self._number = self._published.number + 1 if self._is_split else 1
            lsn = format_lsn(commit.lsn)
            reason = f"an operator had the transaction at {lsn} skipped"
            self._event({"event": "gap", "slot": self._config.slot, "lsn": lsn, "reason": reason}, self._config.slot)
        if self.open.records or self.open.snapshots:
            rows = self.open
            rows.place, rows.end, rows.is_part = RowPlace(commit.lsn, self._number), commit.end_lsn, self._is_split
            self.transactions += 1
            if self._ready and not rows.is_part and not self._ready[-1].is_part:
                self._ready[-1].extend(rows)
            else:
                self._ready.append(rows)
        self.recent_xids.append(self._begin.xid)
        self.open = PendingRows()
        self._begin = None

    def _is_new(self) -> bool:
        """Count a change; whether it is not published yet."""
        begin = self._begin
        if begin is None:
            raise ProtocolError("PostgreSQL sent a change outside of a transaction")
        self._number += 1
        lsn, number = self._published
        return begin.final_lsn > lsn or (begin.final_lsn == lsn and self._number > number)

    def _add(
        self, topic: str, value: bytes | None, key: bytes | None, headers: dict[str, str], own_headers: int = 0
    ) -> None:
        """Add a record. Of a transaction that is larger than an entry of the journal, a part becomes ready."""
        rows = self.open
        if (rows.records >= PART_RECORDS or rows.size >= PART_BYTES) and self._number > self._last_added:
            assert self._begin is not None, "records are of transactions"
            rows.place, rows.is_part = RowPlace(self._begin.final_lsn, self._number - 1), True
            self._ready.append(rows)
            rows, oldest = PendingRows(), rows.oldest
            rows.oldest, self.open, self._is_split = oldest, rows, True
        self._last_added = self._number
        rows.add(topic, value, key, headers, own_headers)

    # -- tables -------------------------------------------------------------------------------------------------

    def learn(self, relation: Relation) -> None:
        """Take the shape of a table."""
        table = self._tables.get(relation.name)
        self._routers[relation.oid] = None if table is None else RowRouter(table, relation, self._catalog)
        self._told.discard(relation.oid)

    def _router(self, oid: int, operation: Operation) -> RowRouter | None:
        """How to route a row of the table; None: nothing is published of it."""
        try:
            router = self._routers[oid]
        except KeyError:
            raise ProtocolError(f"PostgreSQL sent a row of the relation {oid} before its shape") from None
        if router is None or operation not in router.table.publish:
            return None
        if oid not in self._told:
            self._tell_shape(router)
            self._told.add(oid)
        return router

    def _tell_shape(self, router: RowRouter) -> None:
        """Publish a schema event before the first row of another shape."""
        before = self._shapes.get(router.name)
        if before != router.shape:
            self._shapes[router.name] = router.shape
            self._event(
                {"event": "schema", "table": router.name, "columns": router.shape, "before": before}, router.name
            )

    def _insert(self, change: Insert) -> None:
        if self._is_new() and (router := self._router(change.relation, "insert")) is not None:
            if self.window is not None:
                self.window.saw(router, change.new)
            self._publish(router, "insert", change.new)

    def _update(self, change: Update) -> None:
        if not self._is_new() or (router := self._router(change.relation, "update")) is None:
            return
        new, old = change.new, change.old
        if self.window is not None:
            self.window.saw(router, new)
            if old is not None:
                self.window.saw(router, old)
        if old is not None:
            if change.old_is_key:
                old = router.key_only(old)
            else:
                new = [before if value is UNCHANGED else value for value, before in zip(new, old, strict=True)]
            before, after = self._route(router, old), self._route(router, new)
            if before is not None and before != after:  # a row that cannot be routed any more leaves its topic, too
                self._publish(router, "delete", old)
                self._publish(router, "insert", new, may_lack=True)
                return
        self._publish(router, "update", new, may_lack=True)

    @staticmethod
    def _route(router: RowRouter, row: list[ColumnValue]) -> tuple[str, bytes | None] | None:
        """Topic and key of a row; None: it has none. Their columns are in the replica identity."""
        try:
            return router.topic_of(row), router.key_of(row)
        except Unroutable:
            return None

    def _delete(self, change: Delete) -> None:
        if not self._is_new() or (router := self._router(change.relation, "delete")) is None:
            return
        if self.window is not None:
            self.window.saw(router, change.old)
        if not self._expires or router.table.publish_expired:
            self._publish(router, "delete", router.key_only(change.old) if change.old_is_key else change.old)

    def _publish(
        self, router: RowRouter, operation: str, row: Sequence[ColumnValue], *, may_lack: bool = False
    ) -> None:
        """Add the record of a row. `may_lack`: large columns that did not change may not have been sent."""
        headers = {"pg-op": operation, "pg-table": router.name, "pg-index": str(self._number), **self._headers}
        self.rows += 1
        try:
            topic, key, weight = router.topic_of(row), router.key_of(row), 0
            if router.table.headers:
                own = router.headers_of(row)
                weight = sum(map(len, own.values()))
                headers |= own
            if (beside := weight + len(key or b"")) > MAX_KEY_AND_HEADERS:
                raise Unroutable(f"key and headers have {beside} bytes, more than {MAX_KEY_AND_HEADERS}")
            if operation == "delete" and router.table.compact:
                self._add(topic, None, key, headers, weight)
                return
            value = router.value_of(row, is_delete=operation == "delete")
            if may_lack and (missing := router.unchanged(row)):
                headers["pg-unchanged"] = ",".join(missing)
            self._add(topic, value, key, headers, weight)
        except TooLargeValue as error:
            self._too_large(router.name, str(error))
        except Unroutable as error:
            headers = {name: text for name, text in headers.items() if name.startswith("pg-")}
            self._bury(router.dead_letter_of(row), headers, str(error), router.table.topic)

    def _bury(self, value: bytes, headers: dict[str, str], reason: str, topic: str) -> None:
        self.dead += 1
        self._add(self._config.dead_letter_topic, value, None, headers | {REASON: one_line(reason), TOPIC: topic})

    # -- messages other than rows -------------------------------------------------------------------------------

    def _truncate(self, change: Truncate) -> None:
        if not self._is_new():
            return
        for oid in change.relations:
            if self.window is not None:
                self.window.emptied(self._routers.get(oid))
            if (router := self._router(oid, "truncate")) is not None:
                self._event({"event": "truncate", "table": router.name}, router.name)

    def _message(self, message: LogicalMessage) -> None:
        # Without a transaction a message has no place that could be remembered.
        if not message.transactional or not self._is_new():
            return
        headers = {"pg-op": "message", "pg-index": str(self._number), **self._headers}
        prefix, content = message.prefix, message.content
        if prefix == EMIT_PREFIX:
            self._emitted(content, headers)
        elif prefix == EXPIRY_PREFIX:
            self._expires = True  # also where another relay of these tables, or `retain`, removes them
        elif prefix == SNAPSHOT_PREFIX:
            self._snapshot_requested(content)
        elif prefix == WATERMARK_PREFIX:
            self._watermark(content)
        elif (topic := self._messages.get(prefix)) is not None:
            if len(content) > MAX_RECORD_BYTES:
                self._too_large(prefix, f"the message has {len(content)} bytes, more than {MAX_RECORD_BYTES}")
                return
            self.rows += 1
            self._add(topic, content, None, headers)

    def _emitted(self, content: bytes, headers: dict[str, str]) -> None:
        try:
            emitted = unpack_emitted(content)
        except ValueError as error:
            self._bury(content[:MAX_RECORD_BYTES], headers, str(error), EMIT_PREFIX)
            return
        self.rows += 1
        weight = sum(len(name) + len(text) for name, text in emitted.headers.items())
        self._add(emitted.topic, emitted.value, emitted.key, emitted.headers | headers, weight)

    def _too_large(self, name: str, reason: str) -> None:
        self._event({"event": "too_large", "table": name, "reason": reason}, name)

    def _event(self, event: dict[str, Any], key: str) -> None:
        headers = {"pg-op": "event", "pg-index": str(self._number), **self._headers}
        self._add(self._config.events_topic, msgspec.json.encode(event), key.encode(), headers)

    # -- snapshots ----------------------------------------------------------------------------------------------

    def _snapshot_requested(self, content: bytes) -> None:
        table = requested_table(content, self._config)
        if table is not None and self._begin is not None:
            self.open.snapshots[table] = SnapshotProgress(self._begin.final_lsn, 0, None)

    def _watermark(self, content: bytes) -> None:
        window = self.window
        if window is None or not (edge := window.edge_of(content)):
            return  # of an earlier life of this relay, or of another one
        if edge == "low":
            window.opened(self.recent_xids)
            return
        self.window = None
        rows = window.closed()
        if rows is None:
            return
        for row in rows:
            self._publish(window.router, "read", row)
        self.open.snapshots[window.router.name] = window.progress


def one_line(text: str) -> str:
    """A text as the value of a header."""
    return " ".join(text.encode(errors="replace").decode().replace("\0", "?").split())[:1000]

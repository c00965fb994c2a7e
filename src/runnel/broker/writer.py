"""Publish to one topic of this process: the fast path of a handle, and the writer behind it.

The fast path takes small untyped values. It appends to the list of the log, or to the pending batch of a durable topic,
directly. Everything else goes through the publisher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from threading import get_ident
from typing import Any

from runnel.broker.parts import BrokerParts
from runnel.broker.topic.log import SMALL, Log
from runnel.broker.topic.pending_batch import BATCH_BYTES
from runnel.core.columns import DUE, EXPIRES, HEADERS, KEYS, PRIORITIES, Columns
from runnel.core.errors import OffsetOutOfRange, Stalled, UnknownTopic
from runnel.core.options import (
    MAX_MESSAGE_ID,
    MAX_PRIORITY,
    Seconds,
    TopicOptions,
    check_message_id,
    check_priority,
    check_seconds,
)
from runnel.core.payload import checked_headers, key_bytes
from runnel.core.position import Position
from runnel.core.publishing import Append, append_of, check_weight
from runnel.core.schema import Codec
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.runtime.waiting import wait_all

# Stands for a log wherever the fast path must not be taken: its trip is never above its length.
_NOWHERE = Log("", 0, TopicOptions())

PIECE = 1024  # values of another thread that are appended together


class LocalWriter:
    """The `Writer` of one topic. It keeps the topic's log at hand for the fast path."""

    __slots__ = (
        "_agreed",
        "_expires",
        "_expires_seconds",
        "_headers",
        "_headers_size",
        "_parts",
        "_publisher",
        "_time",
        "codec",
        "log",
        "loop_owner",
        "options",
        "thread",
        "topic",
        "tracing",
        "typed",
    )

    def __init__(self, parts: BrokerParts, topic: str, codec: Any, options: TopicOptions) -> None:
        self.topic, self.options = topic, options
        self.codec: Codec[Any] | None = codec  # or, if values were encoded by a client, only their `Schema`
        self.log = self._agreed = _NOWHERE
        self.typed = _NOWHERE  # the same log, if the handle has a type: values are encoded first
        self.thread = 0
        self._parts, self._publisher, self.loop_owner = parts, parts.publisher, parts.loop_owner
        self.tracing = parts.publisher.tracing
        self._time = parts.clock.time
        self._headers: dict[str, str] = {}  # of the record before that had any, and their bytes
        self._headers_size = 0
        self._expires: Seconds | None = None  # of the record before that expires, and in seconds
        self._expires_seconds = 0.0

    def __repr__(self) -> str:
        return f"<LocalWriter of {self.topic!r}>"

    def now(self) -> float:
        """The broker's time."""
        return self._time()

    def has_tombstones(self) -> bool:
        """Whether the topic is compacted, or will be once it is created."""
        log = self._parts.catalog.logs.get(self.topic)
        return bool(self.options.compact) or (log is not None and bool(log.options.compact))

    async def learn_tombstones(self) -> None:
        """Nothing to ask: it is known in this process."""

    # -- appending ----------------------------------------------------------------------------------------------

    def append_nowait(self, append: Append) -> None:
        """Append without waiting, or raise `Full`. To a durable topic it is handed over."""
        log = self.resolve()
        if self._publisher.append_now(log, append) is None:
            raise self._publisher.full(log, append)

    def appends(self, values: list[bytes]) -> Iterable[Append]:
        """The appends for plain values of another thread: one append, unless a reader's policy counts each."""
        log = self.resolve()
        if log.topic_readers is not None and log.topic_readers.limited:
            return (Append((value,), None, len(value)) for value in values)
        pieces = (values[at : at + PIECE] for at in range(0, len(values), PIECE))
        return (Append(piece, None, sum(map(len, piece))) for piece in pieces)

    def take_over(self, append: Append) -> None:
        """Append what another thread published, as soon as there is room."""
        self._publisher.take_over(self.resolve(), append)

    async def append(self, append: Append) -> Position:
        """Append, and return the position of the first record. It is visible and, if the topic is durable, on disk."""
        publisher, log = self._publisher, self.resolve()
        if append.expected_offset is not None:
            await publisher.until_known(log, append.expected_offset)
        if publisher.is_hurried(log, append):
            await publisher.give_way(log, append)
            log = self.resolve()
        first = publisher.append_now(log, append)
        if first is None:
            first = await publisher.append_later(log, append)
        elif log.stored is None and publisher.is_long_turn():
            await asyncio.sleep(0)
        if log.stored is not None:
            await publisher.until_durable(log, append, first)
        return log.position(first)

    async def append_and_wait(self, append: Append, timeout: float | None) -> Position:
        """Append, and wait until every current reader has processed it."""
        position = await self.append(append)
        watched = {} if self.loop_owner.closed else self._publisher.watch(self.resolve(), position)
        await wait_all(watched, timeout, self._parts.clock)
        if stalled := [label for passed, label in watched.items() if not passed.done()]:
            raise Stalled(self.topic, position.offset, stalled, timeout or 0.0)
        return position

    # The fast path of records that have a key, headers, a time, a priority or an id, and of all durable ones.

    def put(
        self, log: Log, value: Any, key: Any, headers: Any, delay: Any, expires: Any, priority: int, id: str | None
    ) -> int:
        """Append a small record to a log in memory that has room, or to the pending batch of a durable topic.

        Returns its offset; -1: take the slow path. Everything is checked before anything is appended.
        """
        stored = log.stored
        if value.__class__ is not bytes or (size := len(value)) >= SMALL or get_ident() != self.thread:
            return -1
        if stored is not None:
            readers = log.topic_readers
            if (log.type is not None and self.codec is None) or (readers is not None and readers.limited):
                return -1  # the slow path checks the stored schema, and policies that count each record
            if (  # most have neither key nor options
                (batch := stored.pending_batch) is not None
                and batch.columns is None
                and key is headers is id is delay is expires is None
                and not priority
                and batch.weight < BATCH_BYTES
                and (pending := batch.pending).bytes < pending.limit
            ):
                batch.size += size
                batch.weight += size
                pending.bytes += size
                values = batch.values
                values.append(value)
                return batch.first + len(values) - 1
        columns = log.columns
        if (  # most have a key and nothing else
            columns is not None
            and stored is None
            and key.__class__ is bytes
            and headers is None
            and id is None
            and delay is expires is None
            and not priority
            and KEYS in columns
            and len(columns[KEYS]) == (index := len(log.values))
            and len(key) < SMALL
        ):
            columns[KEYS].append(key)
            log.values.append(value)
            return log.base + index
        extra, due = 0, None
        if key is not None:
            if key.__class__ is not bytes:
                key = key.encode() if key.__class__ is str and key.isascii() else key_bytes(self.topic, key)
            extra = len(key)
        if headers:
            if headers != self._headers:  # else they were checked with the record before
                self._headers, self._headers_size = checked_headers(self.topic, headers)
            extra += self._headers_size
        if extra >= SMALL:
            check_weight(self.topic, extra)
        if expires is not None:
            if expires is not self._expires:  # else it was checked with the record before
                self._expires, self._expires_seconds = expires, check_seconds("expires", expires)
            expires = self._time() + self._expires_seconds
        if delay is not None:
            if id is not None:
                return -1  # the id becomes a header, so that the record can be cancelled
            due = self._time() + check_seconds("delay", delay)
        # Most are of the usual class, and a call of a check costs more than to look at that.
        if priority.__class__ is not int or not 0 <= priority <= MAX_PRIORITY:
            check_priority("priority", priority)
        if id is not None and (id.__class__ is not str or not 0 < len(id) <= MAX_MESSAGE_ID):
            check_message_id("message_id", id)
        if stored is None:
            values, columns, index = log.values, log.columns, len(log.values)
            offset = log.base + index
            if id is not None:
                if (found := self._publisher.deduplicator.claim(log, id, offset)) is not None:
                    return found
                if key is None and not headers and due is None and expires is None and not priority:
                    values.append(value)
                    return offset
            if columns is None:
                columns = log.columns = Columns()
        else:
            batch = stored.pending_batch
            if batch is None:
                commits = self._publisher.commits
                if commits is None or (batch := commits.gather(log, size)) is None:
                    return -1
            elif batch.weight >= BATCH_BYTES or batch.pending.bytes >= batch.pending.limit:
                return -1
            values, columns, index = batch.values, batch.columns, len(batch.values)
            offset, weight = batch.first + index, size + extra
            if id is not None:
                if self._publisher.deduplicator.claim(log, id, offset) is not None:
                    return -1  # the slow path finds out when that one is durable
                batch.ids = batch.ids or []
                batch.ids.append((id, offset))
            batch.size += size
            batch.weight += weight
            batch.pending.bytes += weight
            if columns is None:
                if key is None and not headers and due is None and expires is None and not priority:
                    values.append(value)
                    return offset
                columns = batch.columns = Columns()
        # A call for each would cost as much as all the rest.
        if key is not None:
            if KEYS in columns and len(column := columns[KEYS]) == index:
                column.append(key)
            else:
                columns.add(KEYS, index, key)
        if headers:
            if HEADERS in columns and len(column := columns[HEADERS]) == index:
                column.append(self._headers)
            else:
                columns.add(HEADERS, index, self._headers)
        if due is not None:
            columns.add(DUE, index, due)
        if expires is not None:
            if EXPIRES in columns and len(column := columns[EXPIRES]) == index:
                column.append(expires)
            else:
                columns.add(EXPIRES, index, expires)
        if priority:
            if PRIORITIES in columns and len(column := columns[PRIORITIES]) == index:
                column.append(priority)
            else:
                columns.add(PRIORITIES, index, priority)
        values.append(value)
        return offset

    def put_typed(
        self, value: Any, key: Any, headers: Any, delay: Any, expires: Any, priority: int, id: str | None
    ) -> int:
        """Do the same as `put` for a value of the topic's type."""
        log = self.typed
        if (log.stored is None and len(log.values) >= log.room) or value is None or get_ident() != self.thread:
            return -1
        assert self.codec is not None, "the handle has a type"
        return self.put(log, self.codec.encode(self.topic, value), key, headers, delay, expires, priority, id)

    def resolve(self, *, declared: bool = False) -> Log:
        """The topic's log, created if needed. Stores it for the fast path, unless the fast path is not allowed."""
        catalog = self._parts.catalog
        # A type only grows: one that agreed with the type of the topic fits all later ones.
        codec = None if catalog.logs.get(self.topic) is self._agreed else self.codec
        log = self._agreed = catalog.find(self.topic, self.options, codec, declared=declared)
        if self.tracing.is_active:
            self.log = self.typed = _NOWHERE  # every record may be part of another span
        elif self.codec is None:
            if self.log is not log:
                self.log, self.thread = log, get_ident()
        elif self.typed is not log and isinstance(self.codec, Codec):
            self.typed, self.thread = log, get_ident()
        return log

    # -- the topic itself ---------------------------------------------------------------------------------------

    async def declare(self) -> None:
        """Create the topic, or check that it exists with these options and this type."""
        self.resolve(declared=True)
        await self._parts.flushed()

    async def delete(self) -> None:
        """Delete the topic and its records; its subscribers get `TopicDeleted`."""
        self.loop_owner.check_usable("deleting a topic")
        self._parts.catalog.delete(self.topic)
        await self._parts.flushed()

    async def trim(self, before: int | datetime, *, force: bool) -> int:
        """Remove the records before an offset, or older than a time; return the first offset that is left."""
        self.loop_owner.check_usable("trimming a topic")
        parts = self._parts
        log, store = parts.catalog.logs.get(self.topic), parts.store
        if log is None:
            raise UnknownTopic(self.topic)
        parts.timeline.cool()
        offset = await self._trim_offset(log, before)
        if log.held is not None and log.held < offset:
            await parts.flushed()  # a subscription that holds it may have read on a moment ago
        if store is None:
            log.begin_at(offset, RemovalReason.ASKED)
        else:
            store.trim(log, offset, force=force)
            await parts.flushed()
        return parts.timeline.first(log)

    async def _trim_offset(self, log: Log, before: int | datetime) -> int:
        if isinstance(before, datetime):
            if (asked := self._parts.cursors.old_place(log, before, once=True)) is not None:
                return await asked
            time, reads = before.astimezone(UTC), self._parts.cursors.reads
            return log.offset_at(time) if reads is None or log.stored is None else reads.offset_at(log, time)
        if before > log.end:
            raise OffsetOutOfRange(log.name, before, self._parts.timeline.first(log), log.end)
        return before


class LocalFastPath:
    """`publish` and `publish_nowait` of a handle on a topic of this process. See `api.topic`."""

    __slots__ = ()

    _writer: LocalWriter
    _slow_publish: Callable[..., Awaitable[Position]]
    _slow_publish_nowait: Callable[..., None]

    def publish_nowait(
        self,
        value: Any,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
    ) -> None:
        """Append to the list of the log or to the pending batch; everything else takes the slow path."""
        writer = self._writer
        log = writer.log
        values = log.values
        if (
            len(values) < log.trip
            and value.__class__ is bytes
            and len(value) < SMALL
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and get_ident() == writer.thread
        ):
            values.append(value)
            return
        if len(values) < log.trip or log.stored is not None:
            if writer.put(log, value, key, headers, delay, expires, priority, message_id) >= 0:
                return
        elif (
            writer.typed is not _NOWHERE
            and writer.put_typed(value, key, headers, delay, expires, priority, message_id) >= 0
        ):
            return
        self._slow_publish_nowait(value, key, headers, delay, expires, priority, message_id)

    async def publish(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
        expected_offset: int | None = None,
    ) -> Position:
        """The same, and wait until the record is on disk if the topic is durable."""
        writer = self._writer
        log = writer.log
        values = log.values
        if (
            len(values) < log.trip
            and value.__class__ is bytes
            and len(value) < SMALL
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and expected_offset is None
            and get_ident() == writer.thread
        ):
            values.append(value)
            return Position(log.epoch, log.base + len(values) - 1)
        if expected_offset is None:
            offset = -1
            if len(values) < log.trip or log.stored is not None:
                offset = writer.put(log, value, key, headers, delay, expires, priority, message_id)
            elif writer.typed is not _NOWHERE:
                log = writer.typed
                offset = writer.put_typed(value, key, headers, delay, expires, priority, message_id)
            if offset >= 0:
                position = Position(log.epoch, offset)
                if log.stored is not None and (pending_batch := log.stored.pending_batch) is not None:
                    landed = pending_batch.pending.create_future()
                    pending_batch.waiters.append(landed)
                    await landed
                return position
        if value is not None and writer.loop_owner.is_here():  # a key or option: saves a coroutine over the slow path
            return await writer.append(
                append_of(writer, value, key, headers, delay, expires, priority, message_id, expected_offset)
            )
        return await self._slow_publish(
            value,
            key=key,
            headers=headers,
            delay=delay,
            expires=expires,
            priority=priority,
            message_id=message_id,
            expected_offset=expected_offset,
        )

"""Publish to one topic of this process: the fast path of a handle, and the writer behind it.

The fast path takes small untyped values without options. It appends to the list of the log, or to the pending batch of
a durable topic, directly. Everything else goes through the publisher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from threading import get_ident
from typing import Any

from runnel.broker.parts import BrokerParts
from runnel.broker.topic.log import SMALL, Log
from runnel.broker.topic.pending_batch import BATCH_BYTES, PendingBatch
from runnel.core.errors import OffsetOutOfRange, Stalled, UnknownTopic
from runnel.core.options import Seconds, TopicOptions
from runnel.core.position import Position
from runnel.core.publishing import Append, append_of
from runnel.core.schema import Codec
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.runtime.waiting import wait_all

# Stands for a log wherever the fast path must not be taken: its trip is never above its length.
_NOWHERE = Log("", 0, TopicOptions())


class LocalWriter:
    """The `Writer` of one topic. It keeps the topic's log at hand for the fast path."""

    __slots__ = ("_parts", "_publisher", "codec", "log", "loop_owner", "options", "thread", "topic", "tracing")

    def __init__(self, parts: BrokerParts, topic: str, codec: Any, options: TopicOptions) -> None:
        self.topic, self.options = topic, options
        self.codec: Codec[Any] | None = codec  # or, if values were encoded by a client, only their `Schema`
        self.log = _NOWHERE
        self.thread = 0
        self._parts, self._publisher, self.loop_owner = parts, parts.publisher, parts.loop_owner
        self.tracing = parts.publisher.tracing

    def __repr__(self) -> str:
        return f"<LocalWriter of {self.topic!r}>"

    def now(self) -> float:
        """The broker's time."""
        return self._parts.clock.time()

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

    def take_over(self, append: Append) -> None:
        """Append what another thread published, as soon as there is room."""
        self._publisher.take_over(self.resolve(), append)

    async def append(self, append: Append) -> Position:
        """Append, and return the position of the first record. It is visible and, if the topic is durable, on disk."""
        publisher, log = self._publisher, self.resolve()
        if append.expected_offset is not None:
            await publisher.until_known(log, append.expected_offset)
        first = publisher.append_now(log, append)
        if first is None:
            first = await publisher.append_later(log, append)
        elif log.stored is None and publisher.is_turn_over(log):
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

    def join(self, log: Log, value: Any) -> PendingBatch | None:
        """The fast path of a durable topic: the pending batch, with `value` in it; None: take the slow path.

        Once a batch is pending, all that could stand in the way was looked at.
        """
        if (
            value.__class__ is not bytes
            or (size := len(value)) >= SMALL
            or (log.topic_readers is not None and log.topic_readers.limited)
            or log.codec is not None
            or get_ident() != self.thread
        ):
            return None
        pending_batch = log.stored.pending_batch if log.stored is not None else None
        if pending_batch is None:
            commits = self._publisher.commits
            if commits is None or (pending_batch := commits.gather(log, size)) is None:
                return None
        elif (
            pending_batch.metas is not None
            or pending_batch.weight >= BATCH_BYTES
            or pending_batch.pending.bytes >= pending_batch.pending.limit
        ):
            return None
        pending_batch.values.append(value)
        pending_batch.size += size
        pending_batch.weight += size
        pending_batch.pending.bytes += size
        return pending_batch

    def resolve(self, *, declared: bool = False) -> Log:
        """The topic's log, created if needed. Stores it for the fast path, unless the fast path is not allowed."""
        log = self._parts.catalog.find(self.topic, self.options, self.codec, declared=declared)
        if self.tracing.is_active:
            self.log = _NOWHERE  # every record may be part of another span
        elif self.codec is None and self.log is not log:
            self.log, self.thread = log, get_ident()
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
        offset = self._trim_offset(log, before)
        if log.held is not None and log.held < offset:
            await parts.flushed()  # a subscription that holds it may have read on a moment ago
        if store is None:
            log.begin_at(offset, RemovalReason.ASKED)
        else:
            store.trim(log, offset, force=force)
            await parts.flushed()
        return parts.timeline.first(log)

    def _trim_offset(self, log: Log, before: int | datetime) -> int:
        if isinstance(before, datetime):
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
        if (
            log.stored is not None
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and writer.join(log, value) is not None
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
        if (
            log.stored is not None
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and expected_offset is None
            and (pending_batch := writer.join(log, value)) is not None
        ):
            position = Position(log.epoch, pending_batch.first + len(pending_batch.values) - 1)
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

"""The `Topic` handle: publish to, subscribe to, trim and delete one topic. Making a handle does no I/O.

`publish` and `publish_nowait` begin with a fast path for small untyped values, which appends to the list of the log
or to the pending batch directly. Everything else goes through the publisher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from runnel.broker.subscribe import open_subscription
from runnel.broker.topic.log import SMALL, Log
from runnel.broker.topic.pending_batch import BATCH_BYTES, PendingBatch
from runnel.broker.topic.readers import Append
from runnel.core.errors import InvalidOption, OffsetOutOfRange, Stalled, UnknownTopic
from runnel.core.options import SubscribeKeywords, SubscribeOptions, TopicOptions, spell_out
from runnel.core.position import Position, Span
from runnel.core.publishing import Seconds, check_expected_offset
from runnel.core.schema import Codec
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.runtime.waiting import wait_all

if TYPE_CHECKING:
    from runnel.broker.backend import LocalBackend
    from runnel.broker.group.subscription import GroupSubscription
    from runnel.broker.read.subscription import Subscription

T = TypeVar("T")

# Stands for a log wherever the short way must not be taken: its trip is never above its length.
_NOWHERE = Log("", 0, TopicOptions())


class Topic(Generic[T]):
    """A topic of a broker. Made by `broker.topic(name, type)`; making it does nothing yet.

    Options apply at `declare()` or the first publish; options that contradict those of
    the topic raise `TopicConflict`.
    """

    __slots__ = ("_backend", "_codec", "_log", "_thread", "name", "options")

    def __init__(self, backend: LocalBackend, name: str, codec: Codec[T] | None, options: TopicOptions) -> None:
        self.name, self.options = name, options
        self._backend, self._codec = backend, codec
        self._log = _NOWHERE
        self._thread = 0

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}{f' of {self._codec.name}' if self._codec else ''}>"

    async def declare(self) -> None:
        """Make the topic now, or check that it is there with these options and this type."""
        self._resolve(declared=True)
        await self._backend.flushed()

    async def delete(self) -> None:
        """Delete the topic and its records; its subscribers are told."""
        self._backend.loop_owner.check_usable("deleting a topic")
        self._backend.catalog.delete(self.name)
        await self._backend.flushed()

    async def trim(self, before: int | datetime, *, force: bool = False) -> int:
        """Take away the records before an offset, or older than a time, for good; the first offset that is left.

        Subscribers that had not read them are told a gap. `TopicHeld` if a subscription holds some of them: with
        `force` they are taken all the same.
        """
        self._backend.loop_owner.check_usable("trimming a topic")
        return await self._trim(self._backend, before, force=force)

    async def _trim(self, backend: LocalBackend, before: int | datetime, *, force: bool) -> int:
        log, store = backend.catalog.logs.get(self.name), backend.store
        if log is None:
            raise UnknownTopic(self.name)
        backend.timeline.cool()
        offset = self._trim_offset(log, before)
        if log.held is not None and log.held < offset:
            await backend.flushed()  # a subscription that holds it may have read on a moment ago
        if store is None:
            log.begin_at(offset, RemovalReason.ASKED)
        else:
            store.trim(log, offset, force=force)
            await backend.flushed()
        return backend.timeline.first(log)

    def _trim_offset(self, log: Log, before: int | datetime) -> int:
        if isinstance(before, datetime):
            if before.tzinfo is None:
                raise InvalidOption("before", before, "give the time a zone, such as datetime.now(UTC)")
            time, reads = before.astimezone(UTC), self._backend.cursors.reads
            return log.offset_at(time) if reads is None or log.stored is None else reads.offset_at(log, time)
        if isinstance(before, bool) or not isinstance(before, int) or before < 0:
            raise InvalidOption("before", before, "expected an offset, 0 or more, or a datetime")
        if before > log.end:
            raise OffsetOutOfRange(log.name, before, self._backend.timeline.first(log), log.end)
        return before

    def publish_nowait(
        self,
        value: T | bytes | str | None,
        # Not keyword-only: Python fills in keyword-only defaults from a dict, which costs a quarter of this call.
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
    ) -> None:
        """Publish without waiting; raises `Full` where `publish` would wait. From any thread.

        To a durable topic it is handed over, and not yet on disk: `publish` waits until it is.
        From a thread other than the loop's, the record is handed over and appended at the loop's next turn.
        """
        log = self._log
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
            and get_ident() == self._thread
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
            and self._joined(log, value) is not None
        ):
            return
        if value is None and self.options.compact and self._backend.loop_owner.is_here():
            self._resolve()  # a tombstone: known as one once the topic is there
        entry = self._backend.publisher.one(
            self.name, self._codec, value, key, headers, delay, expires, priority, message_id
        )
        if not self._backend.loop_owner.is_here():
            self._backend.loop_owner.post(lambda: self._backend.publisher.take_over(self._resolve(), entry))
            return
        log = self._resolve()
        if self._backend.publisher.append_now(log, entry) is None:
            raise self._backend.publisher.full(log, entry)

    async def publish(
        self,
        value: T | bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        message_id: str | None = None,
        expected_offset: int | None = None,
    ) -> Position:
        """Publish; the record's position. Where the topic is durable, the record is on disk when this returns.

        Waits for room where a subscriber's policy is `block`. Cancelled while it waits for the disk, the
        record may still be stored. With `expected_offset`, the record gets this offset or `OffsetConflict` is
        raised: somebody else published first.
        """
        log = self._log
        values = log.values
        if (  # the same short way as in publish_nowait
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
            and get_ident() == self._thread
        ):
            values.append(value)
            return Position(log.epoch, log.base + len(values) - 1)
        backend = self._backend
        if (
            log.stored is not None
            and key is None
            and headers is None
            and delay is None
            and expires is None
            and message_id is None
            and not priority
            and expected_offset is None
            and (pending_batch := self._joined(log, value)) is not None
        ):
            position = Position(log.epoch, pending_batch.first + len(pending_batch.values) - 1)
            landed = pending_batch.pending.create_future()
            pending_batch.waiters.append(landed)
            await landed
            return position
        if not backend.loop_owner.is_here():
            return await backend.loop_owner.visit(
                self.publish(
                    value,
                    key=key,
                    headers=headers,
                    delay=delay,
                    expires=expires,
                    priority=priority,
                    message_id=message_id,
                    expected_offset=expected_offset,
                )
            )
        if value is None and self.options.compact:
            self._resolve()  # a tombstone: known as one once the topic is there
        entry = backend.publisher.one(self.name, self._codec, value, key, headers, delay, expires, priority, message_id)
        entry.expected_offset = check_expected_offset(expected_offset)
        log, first = await self._appended(entry)
        return log.position(first)

    async def publish_many(
        self,
        values: Sequence[T | bytes | str],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int = 0,
        expected_offset: int | None = None,
    ) -> Span:
        """Publish many at once: all or nothing, side by side; the first and the last position.

        `keys` gives a key (or None) for each value; the other options hold for all. With
        `expected_offset`, the first of them gets this offset or `OffsetConflict` is raised.
        """
        backend = self._backend
        if not backend.loop_owner.is_here():
            return await backend.loop_owner.visit(
                self.publish_many(
                    values,
                    keys=keys,
                    headers=headers,
                    delay=delay,
                    expires=expires,
                    priority=priority,
                    expected_offset=expected_offset,
                )
            )
        entry = backend.publisher.many(self.name, self._codec, values, keys, headers, delay, expires, priority)
        entry.expected_offset = check_expected_offset(expected_offset)
        log, first = await self._appended(entry)
        return Span(log.position(first), log.position(first + len(entry.values) - 1))

    async def _appended(self, entry: Append) -> tuple[Log, int]:
        """The topic's log with `entry` in it, visible, and on disk where it is durable; and its first offset."""
        backend, log = self._backend, self._resolve()
        if entry.expected_offset is not None:
            await backend.publisher.until_known(log, entry.expected_offset)
        first = backend.publisher.append_now(log, entry)
        if first is None:
            first = await backend.publisher.append_later(log, entry)
        elif log.stored is None and backend.publisher.is_turn_over(log):
            await asyncio.sleep(0)
        if log.stored is not None:
            await backend.publisher.until_durable(log, entry, first)
        return log, first

    async def publish_and_wait(
        self,
        value: T | bytes | str,
        *,
        timeout: float | None = None,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Position:
        """Publish, and wait until every current subscriber has asked for what comes next. For tests.

        After `timeout` seconds `Stalled` names the subscribers that have not.
        """
        backend = self._backend
        if not backend.loop_owner.is_here():
            return await backend.loop_owner.visit(
                self.publish_and_wait(value, timeout=timeout, key=key, headers=headers)
            )
        position = await self.publish(value, key=key, headers=headers)
        watched = {} if backend.loop_owner.closed else backend.publisher.watch(self._resolve(), position)
        await wait_all(watched, timeout, backend.clock)
        if stalled := [label for passed, label in watched.items() if not passed.done()]:
            raise Stalled(self.name, position.offset, stalled, timeout or 0.0)
        return position

    @overload
    def subscribe(self, *, group: str, **options: Unpack[SubscribeKeywords]) -> GroupSubscription[T]: ...
    @overload
    def subscribe(self, *, group: None = None, **options: Unpack[SubscribeKeywords]) -> Subscription[T]: ...
    @spell_out(SubscribeKeywords, SubscribeOptions)
    def subscribe(
        self, *, group: str | None = None, **options: Unpack[SubscribeKeywords]
    ) -> Subscription[T] | GroupSubscription[T]:
        """Read this topic, with values of its type. Options as in `broker.subscribe`."""
        found: Subscription[T] | GroupSubscription[T] = open_subscription(
            self._backend, self.name, group=group, codec=self._codec, **options
        )
        return found

    def _joined(self, log: Log, value: Any) -> PendingBatch | None:
        """The short way of a durable topic: the batch that is gathering, with `value` in it; None: go the long way.

        Once a batch is gathering, all that could stand in the way was looked at.
        """
        if (
            value.__class__ is not bytes
            or (size := len(value)) >= SMALL
            or (log.topic_readers is not None and log.topic_readers.limited)
            or log.codec is not None
            or get_ident() != self._thread
        ):
            return None
        pending_batch = log.stored.pending_batch if log.stored is not None else None
        if pending_batch is None:
            store = self._backend.store
            if store is None or (pending_batch := store.commits.gather(log, size)) is None:
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

    def _resolve(self, *, declared: bool = False) -> Log:
        """The topic's log, made if need be. Remembers it for the short way, if that may be taken at all."""
        log = self._backend.catalog.find(self.name, self.options, self._codec, declared=declared)
        if self._backend.publisher.tracing.is_active:
            self._log = _NOWHERE  # every record may be part of another span
        elif self._codec is None and self._log is not log:
            self._log, self._thread = log, get_ident()
        return log

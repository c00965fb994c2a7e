"""Publish packed batches of clients, in the bytes in which they arrived.

Nothing that a client sends is trusted: checksum, columns, lengths and limits are checked before anything is appended.
The usual publish needs no task and no future: `done` is called when it is stored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from runnel.broker.parts import BrokerParts
from runnel.broker.topic.log import Log
from runnel.broker.writer import LocalWriter
from runnel.core.backend import Done
from runnel.core.errors import BrokerClosed, RunnelError, Stalled, TopicDeleted, WouldDeadlock
from runnel.core.lone_record import append_of_lone
from runnel.core.options import NO_TOPIC_OPTIONS, TopicOptions
from runnel.core.position import Position, Span
from runnel.core.publishing import Append, PublishDetails, append_of_batch, checked_batch
from runnel.core.schema import Schema
from runnel.runtime.waiting import wait_all

MAX_KNOWN = 65_536  # topics whose logs are cached
CLOCK_ERROR = 2.0  # seconds: how well a client knows our time, and how late in its loop iteration a record is appended


class LocalPackedPublisher:
    """The `PackedPublisher` of a broker in this process. One for all listeners of a server."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._parts.timeline.keeps_packed = True
        self._logs: dict[str, Log] = {}
        self._late: Counter[int] = Counter()  # how many waiting publishes each producer has
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_turn_over = False  # whether readers should run before more is published; the caller resets it

    def __repr__(self) -> str:
        return f"<LocalPackedPublisher, {len(self._tasks)} publishes wait>"

    def for_client(self) -> LocalPackedPublisher:
        """The same for every client: nothing is on its way anywhere."""
        return self

    def release(self) -> None:
        """A client disconnected."""

    def publish(
        self, topic: str, data: bytes, details: PublishDetails | None, done: Done, readers: Sequence[Any] = ()
    ) -> WaitingPublish | None:
        """Publish a batch; `done` is called once, with its positions or the error, perhaps before this returns.

        The result, if any, can withdraw the publish while it waits for room. `readers` are the
        readers and groups that only the publishing task reads: a publish that waited for them would never end.
        """
        parts = self._parts
        try:
            entry = self._append(topic, data, details)
            log = self._log(topic, details)
            waits = details is not None and (details.wait or details.expected_offset is not None)
            if waits or (entry.producer and entry.producer in self._late):
                if readers and (ahead := parts.publisher.waits_for(entry.producer)) is not None:
                    _check_deadlock(ahead, entry, readers)
                return self._publish_late(log, entry, details, done)
            first = parts.publisher.append_now(log, entry)
            if first is None:
                _check_deadlock(log, entry, readers)
                return self._publish_late(log, entry, details, done)
        except RunnelError as error:
            done(error)
            return None
        span = entry.span(entry.known or log.position(first))
        if entry.pending_batch is not None:
            entry.pending_batch.listeners.append(lambda error: done(span if error is None else error))
        elif (log.stored is not None or entry.known is not None) and (
            landed := parts.publisher.landing(log, entry, first)
        ) is not None:  # stored, or being stored
            landed.add_done_callback(lambda landed: done(_failure(landed) or span))
        else:
            self.is_turn_over = self.is_turn_over or (log.stored is None and parts.publisher.is_turn_over(log, entry))
            done(span)
        return None

    def plan(self, topic: str, data: bytes, details: PublishDetails | None) -> tuple[LocalWriter, Append]:
        """A batch as part of a transaction: the writer, and what it appends."""
        append = self._append(topic, data, details)
        append.packed, append.producer = None, 0  # one batch per topic; the marker detects a repetition
        options, schema = self._said(details)  # the topic is created after all checks
        return LocalWriter(self._parts, topic, schema, options), append

    async def declare(self, topic: str, options: Mapping[str, Any], schema: Schema | None) -> None:
        """Create a topic, or check that it exists with these options and this type."""
        catalog = self._parts.catalog
        catalog.find(topic, catalog.check(TopicOptions.of(dict(options))), schema, declared=True)

    # -- looking at it ------------------------------------------------------------------------------------------

    def _append(self, topic: str, data: bytes, details: PublishDetails | None) -> Append:
        """The append of a batch, with the checks of `publish`. A publisher that sends a schema validated its values."""
        if details is None and (lone := append_of_lone(data)) is not None:
            return lone
        append = append_of_batch(topic, data, checked_batch(topic, data), details)
        if details is not None:
            append.checked = details.schema is not None
            if details.sent is not None:
                append.sent = details.sent - CLOCK_ERROR
        return append

    def _log(self, topic: str, details: PublishDetails | None) -> Log:
        """The log of a topic; the first publish creates it or checks its options."""
        said = details is not None and (details.options or details.schema)
        known = self._logs.get(topic)
        if known is not None and not known.deleted and not said and (known.stored is not None or known.end):
            if self._parts.loop_owner.closed:
                raise BrokerClosed("publishing")
            return known
        if len(self._logs) >= MAX_KNOWN:
            self._logs.clear()
        found = self._logs[topic] = self._parts.catalog.find(topic, *self._said(details))
        return found

    def _said(self, details: PublishDetails | None) -> tuple[TopicOptions, Schema | None]:
        """The options and the type that a publish gives for its topic."""
        options, schema = NO_TOPIC_OPTIONS, None
        if details is not None and details.options:
            options = self._parts.catalog.check(TopicOptions.of(details.options))
        if details is not None and details.schema:
            schema = Schema(details.schema.encoding, details.schema.schema)
        return options, schema

    # -- the slow path ------------------------------------------------------------------------------------------

    def _publish_late(self, log: Log, entry: Append, details: PublishDetails | None, done: Done) -> WaitingPublish:
        """Publish after waiting: for room, for an offset, or for its readers."""
        self._late[entry.producer] += 1
        late = WaitingPublish(entry, for_readers=details is not None and details.wait)

        async def publish() -> None:
            try:
                result: Span | Exception = await self._published(log, entry, details)
            except Exception as error:  # every error goes to the publisher
                result = error
            finally:
                self._late[entry.producer] -= 1
                if not self._late[entry.producer]:
                    del self._late[entry.producer]
            done(result)

        task = late.task = asyncio.get_running_loop().create_task(publish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return late

    async def _published(self, log: Log, entry: Append, details: PublishDetails | None) -> Span:
        parts = self._parts
        if entry.expected_offset is not None:
            await parts.publisher.until_known(log, entry.expected_offset)
        if log.deleted:
            raise TopicDeleted(log.name, log.epoch)
        if entry.producer:
            position = await parts.publisher.publish_numbered(log, entry)
        else:
            first = parts.publisher.append_now(log, entry)
            if first is None:
                first = await parts.publisher.append_later(log, entry)
            if log.stored is not None:
                await parts.publisher.until_durable(log, entry, first)
            position = log.position(first)
        if details is not None and details.wait:
            await self._processed(log, position, details.timeout)
        return entry.span(position)

    async def _processed(self, log: Log, position: Position, timeout: float | None) -> None:
        """Return when every current subscriber has processed the record at `position`."""
        parts = self._parts
        watched = {} if parts.loop_owner.closed else parts.publisher.watch(log, position)
        await wait_all(watched, timeout, parts.clock)
        if stalled := [label for passed, label in watched.items() if not passed.done()]:
            raise Stalled(log.name, position.offset, stalled, timeout or 0.0)


class WaitingPublish:
    """A publish that waits, and can be withdrawn."""

    __slots__ = ("_entry", "_for_readers", "task")

    def __init__(self, entry: Append, *, for_readers: bool) -> None:
        self._entry, self._for_readers = entry, for_readers
        self.task: asyncio.Task[None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of it is written: withdrawing it then leaves no trace."""
        return not self._entry.appended

    def withdraw(self) -> bool:
        """Take it back; False: it is on its way to disk, and `done` gets its offsets."""
        if self._entry.appended and not self._for_readers:
            return False
        if self.task is not None:
            self.task.cancel()
        return True


def _failure(landed: asyncio.Future[None]) -> Exception | None:
    error = landed.exception()
    return error if isinstance(error, Exception) else None


def _check_deadlock(log: Log, entry: Append, readers: Sequence[Any]) -> None:
    """Raise if a publish would wait, or be in line behind one that waits, for a reader that waits for this publish."""
    if readers and log.topic_readers is not None:
        ahead = log.topic_readers.blocked or ()
        count = len(entry.values) + sum(len(other.entry.values) for other in ahead)
        size = entry.size + sum(other.entry.size for other in ahead)
        for overflow in log.topic_readers.limited:
            if overflow.owner in readers and not overflow.fits(count, size):
                raise WouldDeadlock(log.name, overflow.owner.label)

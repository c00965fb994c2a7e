"""Publish packed batches that arrive from a connection, in the very bytes that they came in.

Nothing that a client sends is trusted: checksum, columns, lengths and limits are checked before anything is appended.
The usual publish takes no task and no future: `done` is called when it is stored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, cast

import msgspec

from runnel.broker.topic.log import Log
from runnel.broker.topic.readers import Append
from runnel.broker.topic_handle import Topic
from runnel.core.batch_format import BYTES, DELTAS, JSON, MSGPACK, TIMES, UnpackedBatch, unpack_untrusted
from runnel.core.errors import (
    BadBatch,
    BrokerClosed,
    RunnelError,
    Stalled,
    TooLarge,
    TopicDeleted,
    ValidationFailed,
    WouldDeadlock,
)
from runnel.core.options import TopicOptions
from runnel.core.position import Position, Span
from runnel.core.publishing import MAX_ENTRY_BYTES, MAX_RECORD_BYTES, check_expected_offset
from runnel.core.schema import Schema, schema_mismatch, schema_title
from runnel.runtime.waiting import wait_all

if TYPE_CHECKING:
    from runnel.broker.broker import Broker
    from runnel.broker.tx.transaction import Transaction
    from runnel.core.publishing import Publication
    from runnel.wire.msgpack_messages import PublishDetails

Done = Callable[[Span | Exception], None]

MAX_KNOWN = 65_536  # topics whose logs are remembered

_PLAIN = TopicOptions()
_CONTENT = {"json": JSON, "msgpack": MSGPACK}
_PARSE: dict[str, Callable[[bytes], Any]] = {"json": msgspec.json.decode, "msgpack": msgspec.msgpack.decode}


class RemotePublisher:
    """Publishes packed batches that arrive over connections. One for all listeners of a server."""

    def __init__(self, broker: Broker) -> None:
        self._backend = broker.backend
        self._backend.timeline.keeps_packed = True
        self._logs: dict[str, Log] = {}
        self._late: Counter[int] = Counter()  # producers with publishes that wait for something, and how many
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_turn_over = (
            False  # whether readers should be let run before more is published; who acts on it resets it
        )

    def __repr__(self) -> str:
        return f"<RemotePublisher, {len(self._tasks)} publishes wait>"

    def publish(
        self, topic: str, data: bytes, about: PublishDetails | None, done: Done, readers: Collection[Any] = ()
    ) -> WaitingPublish | None:
        """Publish a batch; `done` is called once, with where it is or what was wrong, perhaps before this returns.

        The result, if there is one, takes the publish back while it waits for room. `readers` are the feeds and
        groups whose only reader is the very one that publishes: waiting for them would be for ever.
        """
        backend = self._backend
        try:
            entry = self.entry(topic, data, about)
            log = self._log(topic, about)
            waits = about is not None and (about.wait or about.expected_offset is not None)
            if waits or (entry.producer and entry.producer in self._late):
                if readers and (ahead := backend.publisher.waits_for(entry.producer)) is not None:
                    _check_deadlock(ahead, entry, readers)
                return self._publish_late(log, entry, about, done)
            first = backend.publisher.append_now(log, entry)
            if first is None:
                _check_deadlock(log, entry, readers)
                return self._publish_late(log, entry, about, done)
        except RunnelError as error:
            done(error)
            return None
        span = _span(entry.known or log.position(first), entry)
        if entry.pending_batch is not None:
            entry.pending_batch.listeners.append(lambda error: done(span if error is None else error))
        elif (landed := backend.publisher.landing(log, entry, first)) is not None:  # it is there, or on its way
            landed.add_done_callback(lambda landed: done(_failure(landed) or span))
        else:
            self.is_turn_over = self.is_turn_over or (log.stored is None and backend.publisher.is_turn_over(log))
            done(span)
        return None

    def add(self, tx: Transaction, topic: str, data: bytes, about: PublishDetails | None) -> Publication:
        """Publish a batch at the end of a transaction."""
        entry = self.entry(topic, data, about)
        entry.packed, entry.producer = None, 0  # one batch a topic and transaction; what it is repeated by, is the mark
        options, schema = self._said(about)  # the topic is made when all of it is known to be right
        handle: Topic[Any] = Topic(self._backend, topic, cast(Any, schema), options)
        return tx._want(handle, entry, None if about is None else about.expected_offset)

    def declare(self, topic: str, options: dict[str, Any], schema: Schema | None) -> None:
        """Make a topic, or check that it is there with these options and this type."""
        catalog = self._backend.catalog
        catalog.find(topic, catalog.check(TopicOptions.of(options)), schema, declared=True)

    # -- looking at it ------------------------------------------------------------------------------------------

    def entry(self, topic: str, data: bytes, about: PublishDetails | None) -> Append:
        """What a batch appends, checked as `publish` checks what is given to it."""
        batch = self.checked(topic, data, typed=about is not None and about.schema is not None)
        header, values = batch.header, batch.values
        size = sum(map(len, values))
        entry = Append(values, None, size, packed=data)
        if header.producer:
            entry.producer, entry.producer_sequence = header.producer, header.producer_sequence
        if about is not None:
            entry.message_id, entry.expected_offset = about.message_id, check_expected_offset(about.expected_offset)
            if about.message_id is not None and header.count > 1:
                raise BadBatch(f"it has a message id and {header.count} records; an id is for one")
        if batch.metas:
            entry.metas = [batch.metas.get(at) for at in range(header.count)]
            entry.extra = sum(meta.weight for meta in batch.metas.values())
        if size + entry.extra > MAX_ENTRY_BYTES:
            raise TooLarge(f"a batch for {topic!r}", size + entry.extra, "max_entry_bytes", MAX_ENTRY_BYTES)
        return entry

    def checked(self, topic: str, data: bytes, *, typed: bool) -> UnpackedBatch:
        """A batch for a topic, if its records may be published there. `typed`: whoever wrote it knows the type."""
        batch = unpack_untrusted(data)
        if batch.header.columns & (DELTAS | TIMES):
            raise BadBatch("it says which offsets or times its records have; these are the broker's to give")
        if batch.header.raw_length > MAX_RECORD_BYTES:
            if (largest := max(map(len, batch.values))) > MAX_RECORD_BYTES:
                raise TooLarge(f"a record for {topic!r}", largest, "max_record_bytes", MAX_RECORD_BYTES)
            if (size := sum(map(len, batch.values))) > MAX_ENTRY_BYTES:
                raise TooLarge(f"a batch for {topic!r}", size, "max_entry_bytes", MAX_ENTRY_BYTES)
        if not typed:
            self._check_type(topic, batch)
        return batch

    def _check_type(self, topic: str, batch: UnpackedBatch) -> None:
        """Where only the schema of a topic is known, what comes from those who know nothing of it is held to that."""
        log = self._backend.catalog.logs.get(topic)
        if log is None or log.codec is not None or log.schema is None:
            return  # a codec looks at every value, later
        encoding, content = log.schema.encoding, batch.header.content_type
        if content == _CONTENT[encoding]:
            return  # whoever wrote it validated it, and its schema was agreed on
        schema = log.schema.schema
        if content != BYTES:
            raise ValidationFailed(topic, schema_title(schema), "the value", f"it is not written as {encoding}")
        for at, value in enumerate(batch.values):
            if not value and (meta := batch.metas.get(at)) is not None and meta.key is not None:
                continue  # a tombstone
            try:
                wrong = schema_mismatch(schema, _PARSE[encoding](value))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                wrong = "the value", str(error)
            if wrong is not None:
                raise ValidationFailed(topic, schema_title(schema), *wrong)

    def _log(self, topic: str, about: PublishDetails | None) -> Log:
        """The log of a topic; made, and agreed upon, the first time that somebody publishes to it."""
        said = about is not None and (about.options or about.schema)
        known = self._logs.get(topic)
        if known is not None and not known.deleted and not said and known.stored is not None:
            if self._backend.loop_owner.closed:
                raise BrokerClosed("publishing")
            return known
        if len(self._logs) >= MAX_KNOWN:
            self._logs.clear()
        found = self._logs[topic] = self._backend.catalog.find(topic, *self._said(about))
        return found

    def _said(self, about: PublishDetails | None) -> tuple[TopicOptions, Schema | None]:
        """What a publish says of its topic."""
        options, schema = _PLAIN, None
        if about is not None and about.options:
            options = self._backend.catalog.check(TopicOptions.of(about.options))
        if about is not None and about.schema:
            schema = Schema(about.schema.encoding, about.schema.schema)
        return options, schema

    # -- the long way -------------------------------------------------------------------------------------------

    def _publish_late(self, log: Log, entry: Append, about: PublishDetails | None, done: Done) -> WaitingPublish:
        """Publish what has to wait for something first: room, an offset, or those who read it."""
        self._late[entry.producer] += 1
        late = WaitingPublish(entry)

        async def publish() -> None:
            try:
                result: Span | Exception = await self._published(log, entry, about)
            except Exception as error:  # whatever it is, whoever waits is told
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

    async def _published(self, log: Log, entry: Append, about: PublishDetails | None) -> Span:
        backend = self._backend
        if entry.expected_offset is not None:
            await backend.publisher.until_known(log, entry.expected_offset)
        if log.deleted:
            raise TopicDeleted(log.name, log.epoch)
        if entry.producer:
            position = await backend.publisher.publish_numbered(log, entry)
        else:
            first = backend.publisher.append_now(log, entry)
            if first is None:
                first = await backend.publisher.append_later(log, entry)
            if log.stored is not None:
                await backend.publisher.until_durable(log, entry, first)
            position = log.position(first)
        if about is not None and about.wait:
            await self._processed(log, position, about.timeout)
        return _span(position, entry)

    async def _processed(self, log: Log, position: Position, timeout: float | None) -> None:
        """Return when every current subscriber has asked beyond the record at `position`."""
        backend = self._backend
        watched = {} if backend.loop_owner.closed else backend.publisher.watch(log, position)
        await wait_all(watched, timeout, backend.clock)
        if stalled := [label for passed, label in watched.items() if not passed.done()]:
            raise Stalled(log.name, position.offset, stalled, timeout or 0.0)


class WaitingPublish:
    """A publish that waits for something. Called, it is taken back."""

    __slots__ = ("_entry", "task")

    def __init__(self, entry: Append) -> None:
        self._entry = entry
        self.task: asyncio.Task[None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of it is written: then it is as if it had never been, once it is taken back."""
        return not self._entry.appended

    def __call__(self) -> None:
        """Take it back."""
        if self.task is not None:
            self.task.cancel()


def _span(first: Position, entry: Append) -> Span:
    return Span(first, Position(first.epoch, first.offset + len(entry.values) - 1))


def _failure(landed: asyncio.Future[None]) -> Exception | None:
    error = landed.exception()
    return error if isinstance(error, Exception) else None


def _check_deadlock(log: Log, entry: Append, readers: Collection[Any]) -> None:
    """Raise if a publish would wait, or be in line behind one that waits, for a reader that waits for this publish."""
    if readers and log.topic_readers is not None:
        ahead = log.topic_readers.blocked or ()
        count = len(entry.values) + sum(len(other.entry.values) for other in ahead)
        size = entry.size + sum(other.entry.size for other in ahead)
        for overflow in log.topic_readers.limited:
            if overflow.owner in readers and not overflow.fits(count, size):
                raise WouldDeadlock(log.name, overflow.owner.label)

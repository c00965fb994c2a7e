"""Publishes on their way to a cluster: gathered by topic, one unit of each topic at a time.

What is published to a topic while a unit of it is under way is gathered in the next one: so records keep their order,
though publishes may be repeated, and one message carries many records. A unit is stored once, however often it is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import ceil
from secrets import token_hex
from typing import Any

from runnel.cluster.catalog import ClusterCatalog, TopicEntry
from runnel.cluster.jetstream import EXPECTED, EXPECTED_OF, WINDOW, WRONG_LAST, JetStream, Outgoing
from runnel.cluster.layout import (
    MESSAGE_ID,
    PER_MESSAGE,
    TTL,
    UNIT,
    WriterLink,
    bucket_of,
    first_offset,
    schedule_id,
    stored_message,
    token,
    unit_header,
    unit_parts,
)
from runnel.core.batch_format import CONTENT_TYPES, pack
from runnel.core.clock import Clock
from runnel.core.columns import DUE, EXPIRES, KEYS, Columns
from runnel.core.deduplication import check_remembered
from runnel.core.errors import (
    BrokerClosed,
    ClusterRefused,
    Full,
    NotSupported,
    OffsetConflict,
    OutcomeUnknown,
    RunnelError,
)
from runnel.core.options import TopicOptions
from runnel.core.position import Position
from runnel.core.publishing import Append
from runnel.core.schema import Codec, Schema
from runnel.runtime.connection_state import ConnectionState
from runnel.runtime.loop_owner import LoopOwner
from runnel.runtime.tracing import Tracing

log = logging.getLogger("runnel")

OVERHEAD = 32  # bytes that a record weighs besides its value
GATHER = PER_MESSAGE  # records of a unit that is gathered
MAX_CHAINS = 65_536

Outcome = Callable[[Position | Exception], None]


class Source:
    """A publisher of one topic: the options that it gives the topic, and the type of its records."""

    def __init__(self, topic: str, options: TopicOptions, codec: Codec[Any] | Schema | None) -> None:
        self.topic, self.options, self.codec = topic, options, codec
        self.agreed: TopicEntry | None = None  # the entry that was found to agree with it
        encoding = None if codec is None else codec.encoding
        self.content_type = CONTENT_TYPES[encoding]


class Unit:
    """Records that are stored together, and their waiters. It takes more while its `size` is below its `cap`."""

    __slots__ = ("append", "cap", "is_sent", "size", "source", "values", "waiters")

    def __init__(self, source: Source, append: Append, cap: int) -> None:
        self.source, self.append, self.cap = source, append, cap
        self.is_sent = False  # it may be stored, though no answer came
        self.values = list(append.values)
        self.size = append.size + append.extra + OVERHEAD * len(self.values)
        self.waiters: list[tuple[int, asyncio.Future[Position] | Outcome | None, int]] = []

    @property
    def columns(self) -> Columns | None:
        """Keys, headers and times of the records."""
        return self.append.columns


class WriterChain:
    """The units that this process stored in one topic, as its next unit refers to them. See `WriterLink`."""

    __slots__ = ("epoch", "previous", "writer", "written")

    def __init__(self) -> None:
        self.epoch = self.previous = self.written = 0
        self.writer = token_hex(4)

    def link(self, epoch: int) -> WriterLink:
        """For the next unit."""
        if epoch != self.epoch:
            self.epoch, self.previous, self.written = epoch, 0, 0
        return WriterLink(self.previous, self.written, self.writer)

    def stored(self, epoch: int, first: int, messages: Sequence[Outgoing], records: int) -> None:
        """A unit was stored, with this offset of its first record."""
        if epoch == self.epoch and not all(one.is_expiring for one in messages):
            self.previous = max(self.previous, first + records)
            self.written += records

    def lost(self) -> None:
        """The outcome of a unit is unknown: later units are counted anew."""
        self.writer, self.written = token_hex(4), 0


class TopicQueue:
    """The units of one topic that are not stored yet, in order."""

    def __init__(self, publishing: ClusterPublishing, topic: str) -> None:
        self.topic = topic
        self._publishing = publishing
        self.units: deque[Unit] = deque()
        self.task: asyncio.Task[None] | None = None

    def add(self, source: Source, append: Append, waiter: asyncio.Future[Position] | Outcome | None) -> Unit:
        """Add an append behind the others, in their unit if that is possible; the unit."""
        publishing, count = self._publishing, len(append.values)
        size = append.size + append.extra + OVERHEAD * count
        publishing.bytes += size
        columns = append.columns
        is_plain = (
            append.message_id is None
            and append.expected_offset is None
            and not append.producer
            and count < GATHER
            and (columns is None or DUE not in columns)
        )
        last = self.units[-1] if self.units else None
        if (
            is_plain
            and last is not None
            and last.size + size <= last.cap
            and last.source is source
            and last.append.checked == append.checked
            and len(last.values) + count <= GATHER
        ):
            index = len(last.values)
            last.values.extend(append.values)
            if columns is not None:
                if last.append.columns is None:
                    last.append.columns = Columns()
                last.append.columns.extend(index, columns)
            last.size += size
            last.waiters.append((index, waiter, count))
        else:
            if last is not None:
                last.cap = 0
            if is_plain and columns is not None:
                copy = Columns()
                copy.extend(0, columns)
                append.columns = copy
            last = Unit(source, append, publishing.gather_bytes if is_plain else 0)
            last.waiters.append((0, waiter, count))
            self.units.append(last)
        if self.task is None:
            # A task begins with the next loop iteration: what this one publishes is in the unit by then.
            self.task = asyncio.get_running_loop().create_task(self._run())
        return last

    async def _run(self) -> None:
        publishing = self._publishing
        try:
            while self.units:
                unit = self.units[0]
                unit.cap = 0
                try:
                    outcome: Position | Exception = await publishing.store(unit)
                except RunnelError as error:
                    outcome = error
                except Exception as error:  # every error goes to its publisher
                    log.exception("a publish to %r failed", self.topic)
                    outcome = error
                self.units.popleft()
                publishing.landed(unit, outcome)
        finally:
            self.task = None
            if not self.units:
                publishing.queues.pop(self.topic, None)


class ClusterPublishing:
    """All publishes of one backend."""

    def __init__(
        self,
        js: JetStream,
        catalog: ClusterCatalog,
        clock: Clock,
        loop_owner: LoopOwner,
        connection: ConnectionState,
        max_pending: int,
    ) -> None:
        self.js, self.catalog, self.clock, self.loop_owner = js, catalog, clock, loop_owner
        self.tracing = Tracing()
        self.queues: dict[str, TopicQueue] = {}
        self._chains: dict[str, WriterChain] = {}
        self.bytes, self.max_pending = 0, max_pending
        self.published = self.published_bytes = 0
        self.published_to: dict[str, tuple[int, int]] = {}  # records and bytes, by topic
        self._connection = connection
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self.requests: set[asyncio.Future[None]] = set()  # those that wait for replies

    @property
    def gather_bytes(self) -> int:
        """How large a gathered unit gets: it should fit into one message."""
        return self.js.link.max_payload // 2

    def source(self, topic: str, options: TopicOptions, codec: Codec[Any] | Schema | None) -> Source:
        """The publishing objects of a topic's writer."""
        return Source(topic, options, codec)

    # -- adding -------------------------------------------------------------------------------------------------

    def add(self, source: Source, append: Append, waiter: asyncio.Future[Position] | Outcome | None) -> Unit:
        """Add an append to the queue of its topic; the unit that it is in."""
        queue = self.queues.get(source.topic)
        if queue is None:
            queue = self.queues[source.topic] = TopicQueue(self, source.topic)
        return queue.add(source, append, waiter)

    def seal(self) -> None:
        """Let no unit take more by the fast path, and no request wait: the backend is closed."""
        for queue in self.queues.values():
            for unit in queue.units:
                unit.cap = 0
        for request in self.requests:
            if not request.done():
                request.set_exception(BrokerClosed("waiting for a reply"))

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be on their way."""
        return self.bytes + size <= self.max_pending or not self.bytes

    def check_room(self, topic: str, size: int) -> None:
        """Raise `Full` if there is no room."""
        if not self.has_room(size):
            raise Full(topic, "the cluster", self.max_pending)

    async def room(self, size: int) -> None:
        """Wait for room."""
        while not self.has_room(size):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter
            self.loop_owner.check_usable("publishing")

    def landed(self, unit: Unit, outcome: Position | Exception) -> None:
        """A unit is stored, or failed."""
        self.bytes -= unit.size
        if isinstance(outcome, Position):
            self.count(unit.source.topic, len(unit.values), unit.size - OVERHEAD * len(unit.values))
        for index, waiter, count in unit.waiters:
            result: Position | Exception = outcome
            if index and isinstance(outcome, Position):
                result = Position(outcome.epoch, outcome.offset + index)
            if waiter is None:
                if isinstance(result, Exception):
                    for _ in range(count):
                        self._connection.count_failed()
                    log.error("a record published to %r without waiting was refused: %s", unit.source.topic, result)
            elif isinstance(waiter, asyncio.Future):
                if not waiter.done():
                    if isinstance(result, Exception):
                        waiter.set_exception(result)
                    else:
                        waiter.set_result(result)
            else:
                waiter(result)
        while self._room:
            one = self._room.popleft()
            if not one.done():
                one.set_result(None)
        if not self.bytes:
            idle, self._idle = self._idle, []
            for waiting in idle:
                if not waiting.done():
                    waiting.set_result(None)

    def count(self, topic: str, records: int, size: int) -> None:
        """Count what this process has published to a topic."""
        self.published += records
        self.published_bytes += size
        known = self.published_to.get(topic, (0, 0))
        if known == (0, 0) and len(self.published_to) >= MAX_CHAINS:
            return
        self.published_to[topic] = known[0] + records, known[1] + size

    async def idle(self) -> None:
        """Return when everything added so far is stored, or failed."""
        if self.bytes:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter

    def fail(self) -> None:
        """The backend is closed: pending units fail."""
        for queue in list(self.queues.values()):
            if queue.task is not None:
                queue.task.cancel()
            units, queue.units = queue.units, deque()
            for unit in units:
                closed = BrokerClosed("publishing")
                self.landed(unit, OutcomeUnknown(str(closed), unanswered=True) if unit.is_sent else closed)
        self.queues.clear()

    # -- storing ------------------------------------------------------------------------------------------------

    async def entry(self, source: Source) -> TopicEntry:
        """The entry of the topic of a source, made if need be; its options and type must agree."""
        known = self.catalog.get(source.topic)
        if known is not None and known is source.agreed:
            return known
        source.agreed = await self.catalog.find(source.topic, source.options, source.codec)
        return source.agreed

    def check_values(self, source: Source, append: Append, values: list[bytes]) -> None:
        """Raise unless values that their publisher did not encode are of the type of the topic."""
        if not append.checked and (validator := self.catalog.validator(source.topic)) is not None:
            for value in values:
                validator.check(source.topic, value)

    def chain(self, topic: str) -> WriterChain:
        """The units that this process stored in a topic."""
        found = self._chains.get(topic)
        if found is None:
            if len(self._chains) >= MAX_CHAINS:
                self._chains.clear()
            found = self._chains[topic] = WriterChain()
        return found

    async def store(self, unit: Unit) -> Position:
        """Store a unit; the position of its first record."""
        source, append = unit.source, unit.append
        entry = await self.entry(source)
        self.check_values(source, append, unit.values)
        # Until the last attempt of this unit, the cluster has to remember the ids of units stored since.
        check_remembered(append.sent, self.clock.time() + self.js.timeout - WINDOW)
        columns = append.columns
        if columns is not None and DUE in columns and max(filter(None, columns[DUE]), default=0.0) > self.clock.time():
            return await self._schedule(unit, entry)
        expected: dict[str, str] = {}
        if append.expected_offset is not None:
            expected = await self.expected(source.topic, append.expected_offset)
        messages = self.messages(source, entry, unit.values, columns)
        if expected:
            messages[0] = messages[0]._replace(headers={**messages[0].headers, **expected})
        id = self._id(source.topic, entry, append)
        chain, is_known = self.chain(source.topic), False
        unit.is_sent = True
        try:
            if len(messages) == 1:
                only = messages[0]
                sequence, is_known = await self.js.store(only.subject, only.payload, {MESSAGE_ID: id, **only.headers})
            else:
                sequence = await self.js.store_all(messages, id=token(id) if append.producer else None)
        except ClusterRefused as error:
            if append.expected_offset is not None and error.number == WRONG_LAST:
                end, _ = await self.end(source.topic)
                raise OffsetConflict(source.topic, append.expected_offset, end) from error
            raise
        except OutcomeUnknown:
            chain.lost()
            raise
        first = first_offset(sequence)
        if not (is_known and append.message_id):  # else it was stored by an earlier publish, of any process
            chain.stored(entry.epoch, first, messages, len(unit.values))
        return Position(entry.epoch, first)

    @staticmethod
    def _id(topic: str, entry: TopicEntry, append: Append) -> str:
        if append.message_id is not None:  # of this life of the topic: units of an earlier one are removed
            return f"{topic}:{entry.epoch:x}:{token(append.message_id)}"
        if append.producer:
            return f"p{append.producer:x}:{append.producer_sequence}"
        return token_hex(12)

    def messages(
        self, source: Source, entry: TopicEntry, values: list[bytes], columns: Columns | None
    ) -> list[Outgoing]:
        """Records as the messages of a unit."""
        parts = unit_parts(
            values,
            columns,
            self.js.link.max_payload - 1024,
            compression=entry.options.compression,
            content_type=source.content_type,
        )
        found: list[Outgoing] = []
        link = self.chain(source.topic).link(entry.epoch)
        for number, part in enumerate(parts):
            headers = {UNIT: unit_header(entry.epoch, number, len(parts), len(values), part.records, link)}
            if (ttl := self._ttl(part.expires, entry.options.retention_age, self.clock.time())) is not None:
                headers[TTL] = f"{ttl}s"
            subject = self.js.subjects.records(part.bucket, source.topic)
            found.append(Outgoing(subject, part.payload, headers, part.expires is not None))
        return found

    @staticmethod
    def _ttl(expires: float | None, retention_age: float | None, at: float) -> int | None:
        """For how many seconds the cluster keeps a message that is stored at a time; at least 1.

        The exact time is in the records.
        """
        left = [] if expires is None else [expires - at + 1]
        if retention_age is not None:
            left.append(retention_age)
        return max(1, ceil(min(left))) if left else None

    async def end(self, topic: str) -> tuple[int, int]:
        """The offset behind the last record of a topic, and the stream sequence of its last message; 0: none."""
        found = await self.js.last(self.js.subjects.every_bucket(topic))
        if found is None:
            entry = self.catalog.get(topic)
            return (0 if entry is None else entry.trimmed), 0
        last = stored_message(topic, found.sequence, found.nanoseconds, found.head, found.payload)
        return first_offset(last.first) + last.records, found.sequence

    async def expected(self, topic: str, offset: int) -> dict[str, str]:
        """The headers with which a publish is stored only if the topic still ends at `offset`."""
        end, sequence = await self.end(topic)
        if offset != end:
            raise OffsetConflict(topic, offset, end)
        return {EXPECTED: str(sequence), EXPECTED_OF: self.js.subjects.every_bucket(topic)}

    async def _schedule(self, unit: Unit, entry: TopicEntry) -> Position:
        """Have the cluster publish records when they are due. Their position now is that of the schedule."""
        source, append = unit.source, unit.append
        assert append.columns is not None
        if append.expected_offset is not None:
            raise NotSupported("delay with expected_offset", "where a record will lie is not known before it is due")
        messages: list[Outgoing] = []
        for index, value in enumerate(unit.values):
            columns = append.columns.part(index, index + 1) or Columns()
            due = columns.pop(DUE, [None])[0] or self.clock.time()
            keys = columns.get(KEYS)
            at = datetime.fromtimestamp(due, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            headers = {
                "Nats-Schedule": f"@at {at}",
                "Nats-Schedule-Target": self.js.subjects.records(bucket_of(keys[0] if keys else None), source.topic),
                UNIT: unit_header(entry.epoch, 0, 1, 1, 1),
            }
            expires = columns[EXPIRES][0] if EXPIRES in columns else None
            if (ttl := self._ttl(expires, entry.options.retention_age, due)) is not None:
                headers["Nats-Schedule-TTL"] = f"{ttl}s"
            payload = pack(
                [value], columns or None, compression=entry.options.compression, content_type=source.content_type
            )
            subject = self.js.subjects.schedule(schedule_id(source.topic, append.message_id), token_hex(12))
            messages.append(Outgoing(subject, payload, headers))
        unit.is_sent, id = True, self._id(source.topic, entry, append)
        if len(messages) == 1:
            only = messages[0]
            sequence, _ = await self.js.store(only.subject, only.payload, {MESSAGE_ID: id, **only.headers})
        else:
            sequence = await self.js.store_all(messages, id=token(id) if append.producer else None)
        return Position(entry.epoch, first_offset(sequence))

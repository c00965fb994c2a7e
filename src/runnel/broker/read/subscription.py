"""A subscription: where it starts, which topics it covers, and the records that its user iterates over.

Leaving the block, cancelling the task and closing the broker all end it. `async for` ends after the records that were
published before the end; it never hangs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from runnel.api.subscription_base import RecordSubscriptionBase
from runnel.broker.durable.journal_reads import JournalReads
from runnel.broker.read.cursor import RETENTION, SLICE, Cursor, LogCursor, TakenSlices
from runnel.broker.read.overflow import OVERFLOW_POLICIES, KeepOnDisk, OverflowPolicy
from runnel.broker.read.pattern_cursor import PatternCursor
from runnel.broker.topic.catalog import UNDECLARED, TopicCatalog
from runnel.broker.topic.log import KEEP_BYTES, KEEP_COUNT, Log
from runnel.broker.topic.named_positions import NamedPositions
from runnel.broker.topic.publisher import Publisher
from runnel.broker.topic.readers import AttachedReaders, ProcessedWaiter, TopicReader, TopicReaders
from runnel.broker.topic.timeline import Timeline
from runnel.core import dead_letter
from runnel.core.batch import Batch, Slice
from runnel.core.clock import Clock
from runnel.core.errors import Disconnected, InvalidOption, NameInUse, NotSupported, OffsetOutOfRange, RunnelError
from runnel.core.options import Policy, SubscribeOptions, not_negative, positive
from runnel.core.pattern import check_pattern, is_pattern, matches
from runnel.core.position import Position, Start, check_start
from runnel.core.record import Gap, MissedRange, Record
from runnel.core.schema import Codec


def open_cursor(
    timeline: Timeline, logs: set[Log], start: Start, *, is_pattern: bool, reads: JournalReads | None = None
) -> tuple[Cursor, MissedRange | None]:
    """A cursor at `start`, and what it has already missed. Of a pattern, a number is a sequence."""
    if is_pattern:
        if isinstance(start, datetime):
            time = start.astimezone(UTC)
            sequence = timeline.sequence_at(time)
            if reads is not None and (on_disk := reads.sequence_at(time)) is not None:
                sequence = min(sequence, on_disk)
        else:
            sequence = start if isinstance(start, int) else timeline.sequence if start == "latest" else 0
        cursor = PatternCursor(timeline, logs, sequence, reads)
        if start != sequence:  # not a place that it had come to: what is gone was never its own
            cursor.forget_gone()
            return cursor, None
        # In memory, not even the place of what is gone is kept for ever: that something was there is all that is known.
        forgotten = max((log.forgotten for log in logs if log.stored is None), default=0)
        return cursor, MissedRange(sequence, forgotten, 0, RETENTION) if forgotten > sequence else None
    (log,) = logs
    oldest = timeline.first(log)
    missed = None
    if isinstance(start, Position):
        if start.epoch == log.epoch:
            start = start.offset
        else:
            reason = f"the topic was deleted and made again since epoch {start.epoch}"
            # Who had read nothing of the other life lost nothing with it, and is owed all of this one.
            missed = MissedRange(oldest, oldest, 0, reason) if start.offset else None
            start = "earliest" if start.offset else 0
    if isinstance(start, datetime):
        time = start.astimezone(UTC)
        start = log.offset_at(time) if reads is None or log.stored is None else reads.offset_at(log, time)
    offset = start if isinstance(start, int) else log.end if start == "latest" else oldest
    if offset > log.end:
        raise OffsetOutOfRange(log.name, offset, oldest, log.end)
    return LogCursor(timeline, log, offset, reads), missed


class Cursors:
    """Opens cursors on the logs of a broker."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.reads: JournalReads | None = None  # set when the folder is open

    def open(self, logs: set[Log], start: Start, *, is_pattern: bool) -> tuple[Cursor, MissedRange | None]:
        """A cursor at `start`, and what it has already missed. Of a pattern, a number is a sequence."""
        return open_cursor(self.timeline, logs, start, is_pattern=is_pattern, reads=self.reads)


# -- Topics of a reader ----------------------------------------------------------------------------------
# Those that its pattern covers now, and those created later.


class Attachment:
    """Which logs a reader reads, where it starts, and how it is woken."""

    def __init__(
        self,
        catalog: TopicCatalog,
        readers: AttachedReaders,
        cursors: Cursors,
        pattern: str | Sequence[str],
        start: Start,
    ) -> None:
        several = isinstance(pattern, list | tuple)  # then it is read by sequence, whatever they are
        self.patterns = tuple(map(check_pattern, dict.fromkeys(pattern) if several else (pattern,)))
        self.pattern = " ".join(self.patterns)
        self.is_pattern = several or is_pattern(self.pattern)
        check_start(start, self.pattern, is_pattern=self.is_pattern)
        self.logs: set[Log] = set()
        self.changes = 0  # how often topics came or went
        self.catalog, self.cursors, self.timeline = catalog, cursors, cursors.timeline
        self._readers = readers

    @contextmanager
    def covering(self) -> Iterator[None]:
        """Find the logs there are; what was made for it goes again if the reader comes to nothing."""
        self.cover()
        try:
            yield
        except BaseException:
            self._let_go()
            raise

    def cover(self) -> None:
        """Find the logs there are."""
        if self.is_pattern:
            logs = self.catalog.logs
            self.logs = {logs[name] for name in self.patterns if name in logs}
            if wild := [one for one in self.patterns if is_pattern(one)]:
                self.logs |= {log for log in logs.values() if any(matches(one, log.name) for one in wild)}
        else:
            self.logs = {self.catalog.find(self.pattern)}

    def cursor(self, start: Start) -> tuple[Cursor, MissedRange | None]:
        """A cursor on the logs, at `start`."""
        return self.cursors.open(self.logs, start, is_pattern=self.is_pattern)

    def encoding_of(self, topic: str) -> str | None:
        """How the values of a typed topic are written; None where nobody has said."""
        log = self.catalog.logs.get(topic)
        known = None if log is None else log.codec or log.schema
        return None if known is None else known.encoding

    def attach(self, reader: TopicReader) -> None:
        """Have `reader` told of what is published from now on."""
        if self.is_pattern:
            for one in self.patterns:
                self.catalog.patterns.add(one, reader)
        for log in self.logs:
            self.join(log, reader)
        self._readers.add(reader)

    def join(self, log: Log, reader: TopicReader) -> None:
        """Read `log` too."""
        self.logs.add(log)
        self.changes += 1
        if log.topic_readers is None:
            log.topic_readers = TopicReaders()
        log.topic_readers.attach(reader, pattern=self.is_pattern)
        self.timeline.cool()

    def is_attached(self, reader: TopicReader) -> bool:
        """Whether `reader` is told of what is published."""
        return reader in self._readers

    def part(self, log: Log) -> None:
        """`log` was deleted."""
        self.logs.discard(log)
        self.changes += 1

    def detach(self, reader: TopicReader) -> bool:
        """Have `reader` told of nothing more; whether it was attached at all."""
        if reader not in self._readers:
            return False
        self._readers.remove(reader)
        if self.is_pattern:
            for one in self.patterns:
                self.catalog.patterns.remove(one, reader)
        for log in self.logs:
            if log.topic_readers is not None:
                log.topic_readers.detach(reader)
        self._let_go()
        return True

    def _let_go(self) -> None:
        """A topic that was only made to be read need not stay. It is still known here: where its reader stood."""
        if not self.is_pattern:
            for log in self.logs:
                self.catalog.forget_unused(log)

    def park(self, reader: TopicReader) -> None:
        """`reader` sleeps: the next publish must take the long way, and wake it."""
        timeline = self.timeline
        if self.is_pattern:
            timeline.cool()  # the gates of a pattern wake its readers always
            return
        for log in self.logs:
            if log.topic_readers is not None:
                log.topic_readers.parked[reader] = None
            if timeline.hot is log:
                timeline.cool()


# -- The broker's side -----------------------------------------------------------------------------------


log = logging.getLogger("runnel")


class SubscriptionEvents(Protocol):
    """The broker, as an open subscription needs it."""

    def check_usable(self, what: str) -> None:
        """Raise unless the broker is open, on its own loop."""

    def ended(self, subscription: Subscription[Any]) -> None:
        """A subscription ended: its counts go into the totals."""


class SubscriptionReader:
    """One subscription as the broker knows it."""

    def __init__(
        self,
        attachment: Attachment,
        positions: NamedPositions,
        publisher: Publisher,
        events: SubscriptionEvents,
        clock: Clock,
        options: SubscribeOptions,
        label: str,
    ) -> None:
        self.attachment, self.options, self.clock = attachment, options, clock
        self._positions, self._publisher, self._events = positions, publisher, events
        self.name, self.strict = options.name, options.strict
        self.label = label
        self.watches: list[ProcessedWaiter] = []
        self.resume: Position | int | None = None  # where this very reader stood before, in another connection
        options.check_for(attachment.patterns, several=self.is_pattern)

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""
        return self.attachment.pattern

    @property
    def is_pattern(self) -> bool:
        """Whether it may read several topics, by sequence."""
        return self.attachment.is_pattern

    # -- coming and going ---------------------------------------------------------------------------------------

    def start(self, subscription: Subscription[Any]) -> OverflowPolicy:
        """Take up the start position."""
        self._events.check_usable("subscribing")
        if self.name is not None and self.name in self._positions.open:
            raise NameInUse(self.name)
        with self.attachment.covering():
            if self.options.hold and not self._on_disk():
                raise NotSupported("hold=True", f"topic {self.pattern!r} is kept in memory only")
            cursor, missed = self._starting()
        options = self.options
        eager = options.on_drop is not None or options.dead_letter is not None
        policy = options.policy or Policy()
        kind = KeepOnDisk if options.lags and self._on_disk() else OVERFLOW_POLICIES[policy.kind]
        buffer, buffer_bytes = options.buffer or KEEP_COUNT, options.buffer_bytes or KEEP_BYTES
        overflow = kind(cursor, policy, buffer, buffer_bytes, subscription, eager=eager)
        overflow.missed = missed
        return overflow

    def attach(self, subscription: Subscription[Any]) -> None:
        """Be told of what is published from now on."""
        self.attachment.attach(subscription)
        if self.name is not None:
            self._positions.open[self.name] = subscription
            if self.options.hold is not None and self._positions.store is not None:
                place = self.place_of(subscription)
                self._positions.store.hold(subscription, self.name, place, hold=self.options.hold)

    def leave(self, subscription: Subscription[Any]) -> None:
        """Let go of everything; a name keeps its position."""
        if not self.attachment.detach(subscription):
            return  # it was never entered
        if self.name is not None:
            self._positions.keep(self.name, *self.place_of(subscription))
            del self._positions.open[self.name]
        for watch in self.watches:
            watch.tell()
        self._events.ended(subscription)
        self.made_room()

    # -- where to start -----------------------------------------------------------------------------------------

    def _starting(self) -> tuple[Cursor, MissedRange | None]:
        start: Start = self.options.start
        if self.resume is not None:
            start = self.resume
        elif self.name is not None and (stored := self._positions.stored.get(self.name)) is not None:
            pattern, start = stored
            if pattern != self.pattern:
                raise InvalidOption("name", self.name, f"it holds a position on {pattern!r}, not on {self.pattern!r}")
        elif start is None:
            start = "latest" if self.name is None else "earliest"
        return self.attachment.cursor(start)

    def _on_disk(self) -> bool:
        """Whether what it reads is on disk, or will be as far as anybody has said."""
        if self.attachment.cursors.reads is None:
            return False
        return self.is_pattern or any(log.options.durable is not False for log in self.attachment.logs)

    def moves(self) -> Callable[[Subscription[Any]], None] | None:
        """Whom to tell that it moved; None: nobody keeps its position while it reads."""
        if self.name is None or self._positions.store is None:
            return None
        return self._positions.store.moved

    def place_of(self, subscription: Subscription[Any]) -> tuple[str, Position | int]:
        """What a name keeps: its pattern, and a position or a sequence."""
        if self.is_pattern:
            return self.pattern, subscription.position
        (found,) = self.attachment.logs
        return self.pattern, found.position(subscription.position)

    # -- while it reads -----------------------------------------------------------------------------------------

    def advanced(self, subscription: Subscription[Any]) -> None:
        """The subscriber asked beyond all that it had taken."""
        if self.watches:
            for watch in [watch for watch in self.watches if watch.place < subscription.position]:
                watch.tell()
                self.watches.remove(watch)

    def sequence_of(self, found: Log, offset: int) -> int:
        """Where a record of one of its topics lies in the order that it reads in."""
        return self.attachment.timeline.sequence_of(found, offset)

    def end_sequence(self) -> int:
        """Behind all that is visible now."""
        return self.attachment.timeline.sequence

    def made_room(self) -> None:
        """Publishers may ask again."""
        self._publisher.release()

    def expired(self, slices: list[Slice]) -> set[Position]:
        """The positions of the records that are past their time."""
        now = self.clock.time()
        return {
            Position(part.epoch, offset)
            for part in slices
            for offset, meta in part.metas.items()
            if meta.expires is not None and meta.expires <= now
        }

    def told(self, gap: Gap) -> None:
        """A gap was found; tell whoever asked to hear."""
        if self.options.on_gap is not None:
            self._call(self.options.on_gap, gap)

    def hand_on(self, slices: list[Slice]) -> None:
        """Hand dropped records to the callback and the dead-letter topic."""
        for part in slices:
            for record in part.records:
                if self.options.on_drop is not None:
                    self._call(self.options.on_drop, record)
                # A dead letter that is dropped again stays dropped, or two topics could toss it for ever.
                if self.options.dead_letter is not None and not dead_letter.is_dead_letter(record):
                    self._call(self._bury, record)

    def _bury(self, record: Record[bytes]) -> None:
        topic, publisher = self.options.dead_letter, self._publisher
        assert topic is not None, "only called where there is one"
        headers = dead_letter.dead_letter_headers(record, "dropped", subscriber=self.label)
        entry = publisher.one(topic, None, record.value, record.key, headers, None, None, 0, None)
        log = self.attachment.catalog.find(topic, UNDECLARED)
        if publisher.append_now(log, entry) is None:
            raise publisher.full(log, entry)

    def _call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the user's function; what it raises is its own affair, never the publisher's."""
        try:
            callback(argument)
        except Exception:
            log.exception("a callback of subscriber %r failed", self.label)


# -- The user's side -------------------------------------------------------------------------------------


T = TypeVar("T")

READ_TURN = 128  # records after which a reader that never has to wait lets others on the loop run


class Subscription(RecordSubscriptionBase[T]):
    """Records of one topic or pattern, read one by one or in batches.

    >>> async with broker.subscribe("orders") as orders:
    ...     async for record in orders:
    ...         print(record.offset, record.value)
    """

    def __init__(self, reader: SubscriptionReader, codec: Codec[T] | None) -> None:
        super().__init__(codec)
        self._reader = reader
        self._current: Record[T] | None = None  # handed to the user, who has not asked for the next
        self._holding: Slice | None = None  # the same, of a batch
        self._flow: OverflowPolicy | None = None  # since the block was entered
        self._moved: Callable[[Subscription[T]], None] | None = None  # whom to tell when its place changes

    def __repr__(self) -> str:
        return (
            f"<Subscription {self.label!r} {self._state}, delivered {self.delivered:,}, dropped {self.dropped_count:,}>"
        )

    # -- what a user sees ---------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The name it was given, or its pattern and a number: how errors and statistics call it."""
        return self._reader.label

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""
        return self._reader.pattern

    @property
    def name(self) -> str | None:
        """The name that keeps its position, if it was given one."""
        return self._reader.name

    @property
    def lag(self) -> int:
        """Records published for it that it has not taken up: reading takes them up a few thousand at a time."""
        return self.overflow.lag()

    async def __aenter__(self) -> Subscription[T]:
        self._check_not_entered()
        self._flow = self._reader.start(self)
        self._moved = self._reader.moves()
        self._entered = True
        self._reader.attach(self)
        return self

    def __aiter__(self) -> AsyncIterator[Record[T]]:
        return self._iterate(self._records, None, None)

    def __anext__(self) -> Any:
        return self.__aiter__().__anext__()

    def batches(self, max_records: int | None = None, max_wait: float | None = None) -> AsyncIterator[Batch[T]]:
        """Read in batches: what is there, up to `max_records`.

        With `max_wait`, a batch that is not full waits so many seconds for more.
        """
        limit = SLICE if max_records is None else positive("max_records", max_records)
        if max_wait is not None:
            not_negative("max_wait", max_wait)
        return self._iterate(self._batches, limit, max_wait)

    # -- reading ------------------------------------------------------------------------------------------------

    async def _records(self, *_: None) -> AsyncIterator[Record[T]]:
        overflow = self.overflow
        while True:
            taken = self._take(SLICE)
            if taken is None:
                if self._ended:
                    return
                await self._parked()
                continue
            self._holding = taken.slices[0] if taken.slices else None  # a gap may be raised: this was not read
            records = self._told(self._open(taken))
            self._holding = None
            if overflow.strict:
                self.task = asyncio.current_task()
                sizes = iter(_sizes(taken.slices))
                for record in records:
                    self._current = record
                    yield record
                    overflow.done(next(sizes))
                    if self._moved is not None:
                        self._moved(self)
                for size in sizes:  # of those that were not handed out: expired, or not to be decoded
                    overflow.done(size)
            elif self._moved is not None:
                for record in records:
                    self._current = record
                    yield record
                    self._moved(self)
            else:
                for record in records:
                    self._current = record
                    yield record
            self._advanced()
            if len(records) >= READ_TURN:
                await asyncio.sleep(0)  # a long history must not keep others from the loop

    async def _batches(self, limit: int, max_wait: float | None) -> AsyncIterator[Batch[T]]:
        overflow = self.overflow
        while True:
            if max_wait is not None:
                # To wait for more than the buffer holds would be to wait for drops.
                await self._gather(overflow.lag, min(limit, overflow.buffer), max_wait, self._reader.clock)
            taken = self._take(limit)
            if taken is None:
                if self._ended:
                    return
                await self._parked()
                continue
            self._holding = taken.slices[0] if taken.slices else None
            batch = self._open(taken)
            if not len(batch):
                batch.gap = self._gap()
            if len(batch) or batch.gap is not None:
                if overflow.strict:
                    self.task = asyncio.current_task()
                yield batch
            if overflow.strict:
                for size in _sizes(taken.slices):
                    overflow.done(size)
            self._advanced()
            if len(batch) >= READ_TURN:
                await asyncio.sleep(0)

    def _advanced(self) -> None:
        """The user asked beyond all that was taken."""
        self._current = self._holding = None
        if self._moved is not None:
            self._moved(self)
        if self._reader.watches:
            self._reader.advanced(self)

    def _take(self, limit: int) -> TakenSlices | None:
        if self._error is not None:
            raise self._error
        return None if self._left else self.overflow.take(limit)

    def _parked(self) -> asyncio.Future[None]:
        # A reader that is cancelled while it waits stays on the list of those to be woken, where it does no harm.
        self._reader.attachment.park(self)
        return super()._parked()

    # -- what was read ------------------------------------------------------------------------------------------

    def _open(self, taken: TakenSlices) -> Batch[T]:
        """What was taken, decoded, without the expired, with the gap before it."""
        batch: Batch[Any] = Batch(taken.slices)
        count = len(batch)
        nothing_special = taken.missed is None and self._missed is None and self._codec is None
        if nothing_special and len(taken.slices) == 1 and not taken.slices[0].metas:
            self.delivered += count
            return batch
        if any(part.metas for part in taken.slices) and (gone := self._reader.expired(taken.slices)):
            batch = Batch(records=tuple(record for record in batch.records if record.position not in gone))
            self.expired += count - len(batch)
        self._miss(taken.missed, len(batch))
        if self._codec is not None:
            batch = self._decoded(self._codec, batch.records, self._reader.attachment.encoding_of)
        elif len(batch):
            batch.gap = self._gap()
        self.delivered += len(batch)
        return batch

    @property
    def overflow(self) -> OverflowPolicy:
        """The policy at work, once the block is entered."""
        self._check_entered()
        assert self._flow is not None, "entering opened it"
        return self._flow

    # -- what the broker does with it ---------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset (or sequence, of a pattern) of the first record that the user has not asked beyond."""
        if self._current is not None:
            return self._current.sequence if self._reader.is_pattern else self._current.offset
        held = self._holding or self.overflow.put_aside()
        if held is not None:
            return held.sequence if self._reader.is_pattern else held.start
        return self.overflow.cursor.position

    def place(self) -> tuple[str, Position | int] | None:
        """What its name keeps now; None once it has ended, and left that behind."""
        return None if self._ended else self._reader.place_of(self)

    @property
    def is_pattern(self) -> bool:
        """Whether it reads in the order of sequences."""
        return self._reader.is_pattern

    @property
    def members(self) -> int:
        """One: itself."""
        return 1

    def end(self, error: RunnelError | None = None) -> None:
        """No more records. Those already published are still read, unless it ends with an error."""
        if not self._ended:
            self._ended, self._error = True, error
            self._reader.leave(self)
            self.wake()

    def join(self, found: Log) -> None:
        """A topic was made that the pattern covers."""
        self._reader.attachment.join(found, self)

    def part(self, found: Log) -> None:
        """A topic of the pattern was deleted; what was not read of it is told as a gap."""
        self._reader.attachment.part(found)

    def settle(self) -> None:
        """Note what lies ahead, and drop what exceeds the bounds, before records go."""
        if self._reader.is_pattern and self.overflow.cursor.pending():
            self.overflow.settle()

    def watch(self, found: Log, watch: ProcessedWaiter) -> None:
        """Tell when the record at an offset of `found` was processed."""
        if self._reader.is_pattern:
            watch = watch._replace(place=self._reader.sequence_of(found, watch.place))
        self._reader.watches.append(watch)
        self._reader.advanced(self)

    def dropped(self, slices: list[Slice]) -> None:
        """These records were dropped; hand them on."""
        self._reader.hand_on(slices)

    def disconnect(self, drops: int) -> None:
        """End the subscription: it was too slow for too long."""
        self.end(Disconnected(self.label, drops, self.overflow.policy.after))

    def _say(self, gap: Gap) -> None:
        self._reader.told(gap)

    @property
    def _is_strict(self) -> bool:
        return self._reader.strict

    def made_room(self) -> None:
        """Publishers that wait, or that passed this subscriber by, may ask again."""
        self._reader.made_room()


def _sizes(slices: list[Slice]) -> list[int]:
    return [len(value) for part in slices for value in part.values]

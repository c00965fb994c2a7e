"""The slow path of a publish: check it against its topic, wait for room, append.

Nothing is appended before everything about it was checked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Protocol

from runnel.broker.topic.deduplicator import Deduplicator
from runnel.broker.topic.log import SMALL, Log
from runnel.broker.topic.pending_batch import PendingBatch, PendingBytes
from runnel.broker.topic.readers import PUBLISH_TURN, BlockedPublish, LagLimit, ProcessedWaiter
from runnel.broker.topic.timeline import Timeline
from runnel.core.by_reference import ByReference
from runnel.core.clock import Clock
from runnel.core.columns import KEYS
from runnel.core.errors import (
    Full,
    OffsetConflict,
    PublishTimeout,
    RunnelError,
    TooLarge,
    TopicDeleted,
    WouldDeadlock,
)
from runnel.core.options import PolicyKind
from runnel.core.position import Position
from runnel.core.publishing import Append, checked_record
from runnel.runtime.tracing import Tracing

logger = logging.getLogger("runnel")

PATIENCE = 8  # turns of the event loop in which a reader that keeps up takes something


class DurableAppends(Protocol):
    """The commit queue, as publishing needs it."""

    pending: PendingBytes

    def hand_over(self, log: Log, entry: Append) -> int:
        """Take `entry` for the next commit; its first offset."""

    def waiter(self, log: Log, offset: int) -> asyncio.Future[None] | None:
        """Done when the record at `offset` is durable and visible; None: it is."""

    def gather(self, log: Log, size: int) -> PendingBatch | None:
        """A batch that takes a plain record of `size` bytes; None: something has to be checked first."""


class ProducerQueue:
    """Publishes of one producer that wait, one behind the other, until the first of them is handed over."""

    __slots__ = ("head", "length", "turn")

    def __init__(self) -> None:
        self.length, self.turn = 0, asyncio.Lock()
        self.head: Log | None = None  # where the first of them waits for room


class Publisher:
    """The long way of a publish, shared by all topics of a broker."""

    def __init__(
        self, timeline: Timeline, clock: Clock, logs: Mapping[str, Log], check_usable: Callable[[str], None]
    ) -> None:
        self.deduplicator = Deduplicator(timeline, logs)
        self.commits: DurableAppends | None = None  # set when the folder is open
        self._timeline, self._clock, self._logs, self._check_usable = timeline, clock, logs, check_usable
        self._lines: dict[int, ProducerQueue] = {}  # of the producers that have to wait for room
        self.blocked: set[Log] = set()  # logs with publishers that wait
        self.tracing = Tracing()

    def own(self, topic: str, value: bytes | str, key: bytes | None, headers: Mapping[str, str]) -> Append:
        """The append of a record that the broker itself makes: a dead letter, a reply.

        It is not held against the type of its topic: a record that cannot be handled must not be lost for that.
        """
        traced = self.tracing.traced(headers) if self.tracing.is_active else headers
        if isinstance(value, ByReference):
            value = bytes(value)  # a dead letter says what it was; the object stays where it is
        values, columns, size, extra = checked_record(topic, None, value, key, traced)
        return Append(values, columns, size, checked=True, extra=extra)

    # -- appending ----------------------------------------------------------------------------------------------

    def append(self, log: Log, entry: Append) -> int:
        """Append `entry`, or find it already there; its first offset. To a durable topic: hand it over."""
        if log.type is not None and not entry.checked:
            self.check_type(log, entry)  # it may have waited, while the topic got a type
        is_told_apart = entry.message_id is not None or entry.producer
        if is_told_apart and (found := self.deduplicator.find(log, entry)) is not None:
            return found.offset
        if entry.expected_offset is not None and entry.expected_offset != log.next:
            raise OffsetConflict(log.name, entry.expected_offset, log.next)
        if log.stored is not None:
            assert self.commits is not None, "only a store makes logs durable"
            first = self.commits.hand_over(log, entry)
        else:
            timeline, packed = self._timeline, entry.packed
            if packed is None:
                first = timeline.append(log, entry.values, entry.columns, entry.size)
            else:
                first = timeline.append_packed(log, entry.values, entry.columns, entry.size, packed)
        entry.appended = True
        if is_told_apart:
            self.deduplicator.remember(log, entry, first)
        return first

    async def until_known(self, log: Log, offset: int) -> None:
        """Return when no commit under way includes `offset`: then `expected_offset` can be checked.

        Without this, a publisher that reads the visible end and retries would retry until the other record is on disk.
        """
        while self.is_on_its_way(log, offset):
            assert self.commits is not None
            if (landed := self.commits.waiter(log, offset)) is not None:
                with suppress(RunnelError):  # the other failed: the offset is free again
                    await landed

    @staticmethod
    def is_on_its_way(log: Log, offset: int) -> bool:
        """Whether a record was handed over that gets `offset` and is not visible yet."""
        return log.stored is not None and not log.deleted and log.end <= offset < log.next

    def append_now(self, log: Log, entry: Append) -> int | None:
        """Append `entry` if that needs no waiting, or find it already there; None otherwise."""
        if log.type is not None and not entry.checked:
            self.check_type(log, entry)  # a publish that will be refused does not wait
        if (log.stored is None or self._journal_has_room()) and not self.must_wait(log, entry):
            return self.append(log, entry)
        if entry.message_id is None and (not entry.producer or entry.producer_sequence < 0):
            return None
        found = self.deduplicator.find(log, entry)
        return None if found is None else found.offset

    def _journal_has_room(self) -> bool:
        return self.commits is None or self.commits.pending.has_room()

    @staticmethod
    def must_wait(log: Log, entry: Append) -> bool:
        """Whether a reader of `log` has no room for `entry`, or others wait for that already."""
        topic_readers = log.topic_readers
        return (
            topic_readers is not None
            and bool(topic_readers.limited)
            and bool(topic_readers.blocked or topic_readers.refusing(log, entry))
        )

    @staticmethod
    def check_type(log: Log, entry: Append) -> None:
        """Raise unless records published by an untyped handle fit the topic's type. Types only grow: once is enough."""
        if log.type is None or entry.checked:
            return
        check, keys = log.type.check, entry.columns.get(KEYS) if entry.columns and log.options.compact else None
        for at, value in enumerate(entry.values):
            if value or keys is None or at >= len(keys) or keys[at] is None:  # else it is a tombstone
                check(log.name, value)
        entry.checked = True

    def take_over(self, log: Log, entry: Append) -> None:
        """Append what another thread published, as soon as there is room."""
        if self.append_now(log, entry) is None:
            if log.stored is not None and not self._journal_has_room():
                raise self.full(log, entry)  # no caller waits for a later error
            self.queue(log, entry, None).add_done_callback(_report)

    def full(self, log: Log, entry: Append) -> Full:
        """Why `append_now` did not."""
        if log.stored is not None and self.commits is not None and not self.commits.pending.has_room():
            return Full(log.name, "the journal", self.commits.pending.limit)
        overflow = self._in_the_way(log, entry)
        return Full(log.name, overflow.owner.label, overflow.buffer)

    async def append_later(self, log: Log, entry: Append) -> int:
        """Append `entry` as soon as there is room; its first offset."""
        if log.stored is not None and not self._journal_has_room():
            assert self.commits is not None
            await self.commits.pending.room()
            if log.deleted:
                raise TopicDeleted(log.name, log.epoch)
            if not self.must_wait(log, entry):
                return self.append(log, entry)
        entry.is_awaited = True
        return await self.queue(log, entry, asyncio.current_task())

    def queue(
        self, log: Log, entry: Append, task: asyncio.Task[Any] | None, go: Callable[[], int] | None = None
    ) -> asyncio.Future[int]:
        """Have `entry` appended as soon as there is room, for `task`; its first offset. With `go`, that is called."""
        topic_readers = log.topic_readers
        assert topic_readers is not None, "only a reader can be in the way"
        topic_readers.blocked = topic_readers.blocked or deque()
        count = len(entry.values)
        for overflow in topic_readers.limited:
            if overflow.policy.kind is PolicyKind.BLOCK and count > overflow.buffer:
                raise TooLarge(
                    f"a batch for {log.name!r}", count, f"buffer of {overflow.owner.label!r}", overflow.buffer
                )
            if (
                task is not None
                and overflow.owner.task is task
                and not overflow.fits(*_with_all_before(entry, topic_readers.blocked))
            ):
                raise WouldDeadlock(log.name, overflow.owner.label)
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        overflow = self._in_the_way(log, entry)
        if overflow.owner.task is None and overflow.owner.members == 1 and not topic_readers.blocked:
            logger.warning(
                "publishing to %r waits for subscriber %r, which has not been read yet; "
                "if this very task was to read it, it waits for ever",
                log.name,
                overflow.owner.label,
            )
        entry.values = tuple(entry.values)  # the caller may change its own
        topic_readers.blocked.append(BlockedPublish(entry, first, go))
        if len(topic_readers.blocked) == 1:  # else the first of them waits for a reader that was pressed
            overflow.pressed(count, entry.size, *log.on_the_way())
        self.blocked.add(log)
        if (seconds := overflow.policy.timeout) is not None:
            late = PublishTimeout(log.name, overflow.owner.label, seconds)
            timer = self._clock.call_later(seconds, lambda: None if first.done() else first.set_exception(late))
            first.add_done_callback(lambda _: timer.cancel())
        first.add_done_callback(self._gave_up)
        return first

    def _gave_up(self, first: asyncio.Future[int]) -> None:
        """Those behind a publisher that did not wait to the end may fit where it did not."""
        if first.cancelled() or first.exception() is not None:
            self.release()

    def release(self) -> None:
        """There is room again: continue with the publishers that wait."""
        if not self.blocked:
            return
        self._timeline.cool()
        for log in list(self.blocked):
            if log.topic_readers is not None:
                log.topic_readers.release(log, partial(self._append_late, log))
            if log.topic_readers is None or not log.topic_readers.blocked:
                self.blocked.discard(log)

    def _append_late(self, log: Log, entry: Append) -> int:
        first = self.append(log, entry)
        if entry.is_awaited and (landed := self.landing(log, entry, first)) is not None:
            # Its task continues one loop iteration later. Until then this may fail, and another record get the same
            # offset.
            landed.add_done_callback(_heard)
            entry.landed = landed
        return first

    def refuse_blocked(self, log: Log, error: Exception) -> None:
        """There will be no room any more: the waiting publishers get `error`."""
        if log.topic_readers is not None and log.topic_readers.blocked:
            for _, first, _ in log.topic_readers.blocked:
                if not first.done():
                    first.set_exception(error)
            log.topic_readers.blocked.clear()
        self.blocked.discard(log)

    # -- publishing with numbers --------------------------------------------------------------------------------

    async def publish_numbered(self, log: Log, entry: Append) -> Position:
        """Publish an entry that a producer numbers, behind what it published before; where its first record is.

        Where the topic is durable, it is on disk then; so is what this is a duplicate of.
        """
        first = None
        if entry.producer not in self._lines and not self.is_hurried(log, entry):
            first = self.append_now(log, entry)
        if first is None:
            first = await self._in_line(log, entry)
        elif log.stored is None and self.is_long_turn():
            await asyncio.sleep(0)
        await self.until_durable(log, entry, first)
        return entry.known or log.position(first)

    async def _in_line(self, log: Log, entry: Append) -> int:
        """Append `entry` when those of its producer that came before it are, and there is room; its first offset.

        A producer may publish to several topics, of which one has room and another not: without this the second
        publish would overtake the first, and be refused.
        """
        line = self._lines.setdefault(entry.producer, ProducerQueue())
        line.length += 1
        entry.values = tuple(entry.values)  # the caller may change its own
        try:
            self._check_not_ones_own(line)
            async with line.turn:
                line.head = None
                if self.is_hurried(log, entry):
                    await self.give_way(log, entry)
                self._check_usable("publishing")
                if log.deleted:
                    raise TopicDeleted(log.name, log.epoch)
                first = self.append_now(log, entry)
                if first is None:
                    line.head = log
                    first = await self.append_later(log, entry)
                return first
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[entry.producer]

    def waits_for(self, producer: int) -> Log | None:
        """The topic where the first in line of a producer waits for room; None: no publish waits."""
        line = self._lines.get(producer)
        return None if line is None or not line.turn.locked() else line.head

    @staticmethod
    def _check_not_ones_own(line: ProducerQueue) -> None:
        """Raise if the first in line waits for a reader that this very task would have to be."""
        if line.turn.locked() and line.head is not None and line.head.topic_readers is not None:
            for overflow in line.head.topic_readers.limited:
                if overflow.owner.task is asyncio.current_task():
                    raise WouldDeadlock(line.head.name, overflow.owner.label)

    # -- after appending ----------------------------------------------------------------------------------------

    def landing(self, log: Log, entry: Append, first: int) -> asyncio.Future[None] | None:
        """Done when all of `entry`, or of what it is a duplicate of, is on disk and visible; None: it is."""
        if entry.pending_batch is not None and not entry.pending_batch.is_told:
            waiter: asyncio.Future[None] = entry.pending_batch.waiter()
            return waiter
        if entry.known is not None and entry.known.epoch != log.epoch:
            epoch = entry.known.epoch  # the producer published it to another topic, the first time
            there = next((one for one in self._logs.values() if one.epoch == epoch), None)
            if there is None:
                return None
            log = there
        if log.stored is None or self.commits is None:
            return None
        return self.commits.waiter(log, first + len(entry.values) - 1)

    async def until_durable(self, log: Log, entry: Append, first: int) -> None:
        """Return when `entry`, whose first record is at `first`, is on disk where its topic is, and visible."""
        if (landed := entry.landed or self.landing(log, entry, first)) is not None:
            await landed

    # -- giving way to readers ----------------------------------------------------------------------------------

    def is_hurried(self, log: Log, entry: Append) -> bool:
        """Whether readers of `log` that keep up would drop records if so much as `entry` came before they run again."""
        topic_readers = log.topic_readers
        if log.stored is not None or topic_readers is None:
            return False
        if topic_readers.waiting:
            return True
        count, size, end = len(entry.values), entry.size, log.end
        if end + count <= topic_readers.until > end + size // SMALL and not topic_readers.patterns:
            return False  # the usual case, without a look at the readers
        return bool(topic_readers.hurried(end, self._timeline.head, count, size))

    async def give_way(self, log: Log, entry: Append) -> None:
        """Let the readers of `log` run until those that keep up have room for `entry`. Publishes keep their order."""
        topic_readers = log.topic_readers
        assert topic_readers is not None, "only a reader can be hurried"
        entry.values = tuple(entry.values)  # the caller may change its own
        topic_readers.line = topic_readers.line or asyncio.Lock()
        topic_readers.waiting += 1
        self._timeline.cool()
        try:
            async with topic_readers.line:
                await self._until_read(log, entry)
        finally:
            topic_readers.waiting -= 1

    async def _until_read(self, log: Log, entry: Append) -> None:
        while not log.deleted and (topic_readers := log.topic_readers) is not None:
            hurried = topic_readers.hurried(log.end, self._timeline.head, len(entry.values), entry.size)
            if not hurried:
                return
            before = [overflow.progress for overflow in hurried]
            for _ in range(PATIENCE):
                await asyncio.sleep(0)
                if any(overflow.progress != then for overflow, then in zip(hurried, before, strict=True)):
                    break
            else:
                for overflow in hurried:
                    overflow.until = inf  # it does something else: no reason to wait, until it has caught up

    def is_turn_over(self, log: Log, entry: Append) -> bool:
        """Whether a publisher should let others run after `entry`: no room for another, or a long turn."""
        return self.is_long_turn() or self.is_hurried(log, entry)

    def is_long_turn(self) -> bool:
        """Whether so much was published in this turn of the event loop that others should run."""
        return self._timeline.published_in_turn() >= PUBLISH_TURN

    @staticmethod
    def watch(log: Log, position: Position) -> dict[asyncio.Future[None], str]:
        """A future per current reader of `log`, done once it has processed `position`; and the reader's label."""
        watched: dict[asyncio.Future[None], str] = {}
        if log.topic_readers is not None and log.epoch == position.epoch:
            loop = asyncio.get_running_loop()
            for reader in log.topic_readers:
                watched[future := loop.create_future()] = reader.label
                reader.watch(log, ProcessedWaiter(position.offset, future))
        return watched

    def _in_the_way(self, log: Log, entry: Append) -> LagLimit:
        topic_readers = log.topic_readers
        assert topic_readers is not None, "only a reader can be in the way"
        return topic_readers.refusing(log, entry) or next(
            overflow for overflow in topic_readers.limited if overflow.strict
        )


def _with_all_before(entry: Append, blocked: Iterable[BlockedPublish]) -> tuple[int, int]:
    """The records and bytes of `entry` and of all that wait before it: there may be very many."""
    entries = [entry, *(other.entry for other in blocked)]
    return sum(len(one.values) for one in entries), sum(one.size for one in entries)


def _heard(landed: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved: the waiter got it, or was cancelled."""
    if not landed.cancelled():
        landed.exception()


def _report(first: asyncio.Future[int]) -> None:
    """A publish of another thread is not awaited: its failure is only logged."""
    if not first.cancelled() and (error := first.exception()) is not None:
        logger.error("a record that another thread published was refused: %s", error)

"""From what a caller wants published to what is appended: checks first, then one entry.

Nothing is appended before everything about an entry is known to be right.
Below: core.publishing, which checks; gate, once, timeline. Above: topic, producer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from runnel.broker.flow import Flow
from runnel.broker.gate import Blocked, Entry
from runnel.broker.once import Once
from runnel.core import publishing
from runnel.core.codec import Codec
from runnel.core.errors import (
    Full,
    PublishTimeout,
    RunnelError,
    TooLarge,
    TopicDeleted,
    WouldDeadlock,
)
from runnel.core.policy import PolicyKind
from runnel.core.publishing import Headers, Seconds
from runnel.core.transaction_errors import OffsetConflict
from runnel.surface.tracing import Tracing

if TYPE_CHECKING:
    from runnel.broker.bus import Bus
    from runnel.broker.log import Log

logger = logging.getLogger("runnel")


class Publisher:
    """The long way of a publish, shared by all topics of a bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.once = Once(bus)
        self.blocked: set[Log] = set()  # logs with publishers that wait
        self.tracing = Tracing()

    # -- what to append -----------------------------------------------------------------------------------------

    def one(
        self,
        topic: str,
        codec: Codec[Any] | None,
        value: object,
        key: object,
        headers: Mapping[str, str] | None,
        delay: Seconds | None,
        expires: Seconds | None,
        priority: int,
        message_id: str | None,
    ) -> Entry:
        """The entry of one record."""
        if self.tracing.is_active:
            headers = self.tracing.traced(headers)
        values, metas, size, extra = publishing.one(
            topic,
            codec,
            value,
            key,
            headers,
            delay,
            expires,
            priority,
            message_id,
            0.0 if delay is None and expires is None else self._bus.clock.time(),
            tombstones=value is None and self._is_compacted(topic),
        )
        return Entry(values, metas, size, message_id, codec is not None, extra)

    def _is_compacted(self, topic: str) -> bool:
        log = self._bus.catalog.logs.get(topic)
        return log is not None and bool(log.options.compact)

    def many(
        self,
        topic: str,
        codec: Codec[Any] | None,
        values: Sequence[object],
        keys: Sequence[object] | None,
        headers: Headers | None,
        delay: Seconds | None,
        expires: Seconds | None,
        priority: int,
    ) -> Entry:
        """The entry of many records, in order."""
        if self.tracing.is_active:
            headers = self.tracing.traced_all(headers)
        now = 0.0 if delay is None and expires is None else self._bus.clock.time()
        data, metas, size, extra = publishing.many(topic, codec, values, keys, headers, delay, expires, priority, now)
        return Entry(data, metas, size, None, codec is not None, extra)

    # -- appending ----------------------------------------------------------------------------------------------

    def append(self, log: Log, entry: Entry) -> int:
        """Append `entry`, or find it already there; its first offset. To a durable topic: hand it over."""
        bus = self._bus
        is_told_apart = entry.message_id is not None or entry.producer
        if is_told_apart and (found := self.once.find(log, entry)) is not None:
            return found.offset
        if entry.expected_offset is not None and entry.expected_offset != log.next:
            raise OffsetConflict(log.name, entry.expected_offset, log.next)
        if log.stored is not None:
            assert bus.store is not None, "only a store makes logs durable"
            first = bus.store.commits.hand_over(log, entry)
        else:
            first = bus.timeline.append(log, entry.values, entry.metas, entry.size, entry.packed)
        entry.appended = True
        if is_told_apart:
            self.once.remember(log, entry, first)
        return first

    async def until_known(self, log: Log, offset: int) -> None:
        """Return when nothing is on its way to `offset`: whoever expects to be there knows then whether it is.

        Without this, one who reads what is visible and tries again would do so until the other's record is on disk.
        """
        while self.is_on_its_way(log, offset):
            assert self._bus.store is not None
            if (landed := self._bus.store.commits.waiter(log, offset)) is not None:
                with suppress(RunnelError):  # the other failed: the offset is free again
                    await landed

    @staticmethod
    def is_on_its_way(log: Log, offset: int) -> bool:
        """Whether a record was handed over that gets `offset`, and nobody sees yet."""
        return log.stored is not None and not log.deleted and log.end <= offset < log.next

    def append_now(self, log: Log, entry: Entry) -> int | None:
        """Append `entry` if nobody has to be waited for, or find it already there; None otherwise."""
        self._check_type(log, entry)
        if (log.stored is None or self._journal_has_room()) and not self._must_wait(log, entry):
            return self.append(log, entry)
        if entry.message_id is None and (not entry.producer or entry.producer_sequence < 0):
            return None
        found = self.once.find(log, entry)
        return None if found is None else found.offset

    def _journal_has_room(self) -> bool:
        store = self._bus.store
        return store is None or store.commits.pending.has_room()

    @staticmethod
    def _must_wait(log: Log, entry: Entry) -> bool:
        """Whether a reader of `log` has no room for `entry`, or others wait for that already."""
        gate = log.gate
        return gate is not None and bool(gate.limited) and bool(gate.blocked or gate.refusing(log, entry))

    @staticmethod
    def _check_type(log: Log, entry: Entry) -> None:
        """Raise unless what comes through an untyped handle fits the topic's type."""
        if log.codec is not None and not entry.checked:
            for value in entry.values:
                log.codec.decode(log.name, value)

    def take_over(self, log: Log, entry: Entry) -> None:
        """Append what another thread published, as soon as there is room."""
        if self.append_now(log, entry) is None:
            if log.stored is not None and not self._journal_has_room():
                raise self.full(log, entry)  # nobody waits who could be told later
            self.queue(log, entry, None).add_done_callback(_report)

    def full(self, log: Log, entry: Entry) -> Full:
        """Why `append_now` did not."""
        store = self._bus.store
        if log.stored is not None and store is not None and not store.commits.pending.has_room():
            return Full(log.name, "the journal", store.journal.options.max_pending_bytes)
        flow = self._in_the_way(log, entry)
        return Full(log.name, flow.owner.label, flow.buffer)

    async def append_later(self, log: Log, entry: Entry) -> int:
        """Append `entry` as soon as there is room; its first offset."""
        if log.stored is not None and not self._journal_has_room():
            assert self._bus.store is not None
            await self._bus.store.commits.pending.room()
            if log.deleted:
                raise TopicDeleted(log.name, log.epoch)
            if not self._must_wait(log, entry):
                return self.append(log, entry)
        entry.is_awaited = True
        return await self.queue(log, entry, asyncio.current_task())

    def queue(
        self, log: Log, entry: Entry, task: asyncio.Task[Any] | None, go: Callable[[], int] | None = None
    ) -> asyncio.Future[int]:
        """Have `entry` appended as soon as there is room, for `task`; its first offset. With `go`, that is called."""
        gate = log.gate
        assert gate is not None, "only a reader can be in the way"
        gate.blocked = gate.blocked or deque()
        count = len(entry.values)
        for flow in gate.limited:
            if flow.policy.kind is PolicyKind.BLOCK and count > flow.buffer:
                raise TooLarge(f"a batch for {log.name!r}", count, f"buffer of {flow.owner.label!r}", flow.buffer)
            if task is not None and flow.owner.task is task and not flow.fits(*_with_all_before(entry, gate.blocked)):
                raise WouldDeadlock(log.name, flow.owner.label)
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        flow = self._in_the_way(log, entry)
        if flow.owner.task is None and flow.owner.members == 1 and not gate.blocked:
            logger.warning(
                "publishing to %r waits for subscriber %r, which nobody has begun to read; "
                "if this very task was to read it, it waits for ever",
                log.name,
                flow.owner.label,
            )
        entry.values = tuple(entry.values)  # the caller may go on changing its own
        gate.blocked.append(Blocked(entry, first, go))
        self.blocked.add(log)
        if (seconds := flow.policy.timeout) is not None:
            late = PublishTimeout(log.name, flow.owner.label, seconds)
            timer = self._bus.clock.call_later(seconds, lambda: None if first.done() else first.set_exception(late))
            first.add_done_callback(lambda _: timer.cancel())
        first.add_done_callback(self._gave_up)
        return first

    def _gave_up(self, first: asyncio.Future[int]) -> None:
        """Those behind a publisher that did not wait to the end may fit where it did not."""
        if first.cancelled() or first.exception() is not None:
            self.release()

    def release(self) -> None:
        """Somebody made room: go on with those who waited."""
        self._bus.timeline.cool()
        for log in list(self.blocked):
            if log.gate is not None:
                log.gate.release(log, partial(self._append_late, log))
            if log.gate is None or not log.gate.blocked:
                self.blocked.discard(log)

    def _append_late(self, log: Log, entry: Entry) -> int:
        self._check_type(log, entry)  # the topic may have got a type while it waited
        first = self.append(log, entry)
        if entry.is_awaited and (landed := self.once.landing(log, entry, first)) is not None:
            # Its task goes on a turn later. Until then this may fail, and another record get the same offset.
            landed.add_done_callback(_heard)
            entry.landed = landed
        return first

    def refuse_blocked(self, log: Log, error: Exception) -> None:
        """Nobody will make room any more: the waiting publishers get `error`."""
        if log.gate is not None and log.gate.blocked:
            for _, first, _ in log.gate.blocked:
                if not first.done():
                    first.set_exception(error)
            log.gate.blocked.clear()
        self.blocked.discard(log)

    def _in_the_way(self, log: Log, entry: Entry) -> Flow:
        gate = log.gate
        assert gate is not None, "only a reader can be in the way"
        return gate.refusing(log, entry) or next(flow for flow in gate.limited if flow.strict)


def _with_all_before(entry: Entry, blocked: Iterable[Blocked]) -> tuple[int, int]:
    """The records and bytes of `entry` and of all that wait before it: there may be very many."""
    entries = [entry, *(other.entry for other in blocked)]
    return sum(len(one.values) for one in entries), sum(one.size for one in entries)


def _heard(landed: asyncio.Future[None]) -> None:
    """Whoever waits for it was told, or has given up: asyncio need not complain."""
    if not landed.cancelled():
        landed.exception()


def _report(first: asyncio.Future[int]) -> None:
    """Nobody awaits what another thread published: its failure is only logged."""
    if not first.cancelled() and (error := first.exception()) is not None:
        logger.error("a record that another thread published was refused: %s", error)

"""Subscriptions: enter, iterate, leave; gaps and decoding. Group members are in `api.group_subscription`.

Leaving the block, cancelling the task and closing the broker all end a subscription. `async for` ends after the records
that were published before the end; it never hangs. A subscription is read in one way at a time. Gaps are delivered with
the next item; values that do not decode are reported as a gap, and reading continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from operator import length_hint
from types import AsyncGeneratorType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from runnel.core.backend import SLICE, Member, ReadableBackend, Reader, Taken
from runnel.core.batch import Batch
from runnel.core.clock import Clock
from runnel.core.errors import RecordsMissed, SubscriptionMisused, ValidationFailed
from runnel.core.options import SubscribeOptions, not_negative, positive
from runnel.core.record import TOO_SLOW, Gap, MissedRange, Record, joined_missed
from runnel.core.schema import Codec
from runnel.runtime.waiting import resolve_waiter


class SubscriptionIterator:
    """Reads a subscription by an async generator and, after a cancelled read, by the next one.

    A generator in which a read was cancelled is finished: its next `anext` would end the iteration, and a reader with
    `asyncio.wait_for` would take its own time-out for the end of the subscription. So is one whose first read is a task
    that is cancelled before it runs: no code of the generator notices that, so the generator reports when it has begun.
    """

    # `async for` looks for `__anext__` on the class, which finds the slot and calls its content: a method
    # of the generator. A method in Python would cost 40 ns more for each record.
    __slots__ = ("__anext__", "_iterate", "_make", "generator", "how")

    def __init__(self, iterate: Callable[..., SubscriptionIterator], make: Callable[..., Any], how: tuple[Any, ...]):
        self._iterate, self._make, self.how = iterate, make, (make.__name__, how)
        self.begin()

    def __aiter__(self) -> SubscriptionIterator:
        return self

    def begin(self) -> None:
        """Read by a new generator."""
        self.generator: AsyncGeneratorType[Any, Any] = self._make(*self.how[1])
        self.__anext__: Callable[[], Any] = self._begin_again

    def begun(self) -> None:
        """The generator runs: read by it directly."""
        self.__anext__ = self.generator.__anext__

    def cancelled(self) -> None:
        """A read was cancelled: the next one begins again, if there is one."""
        self.__anext__ = self._begin_again

    def _begin_again(self) -> Any:
        return self._iterate(self._make, *self.how[1], again=self).generator.__anext__()

    async def aclose(self) -> None:
        """End this iteration. The next one continues after it."""
        if not self.generator.ag_running:
            await self.generator.aclose()


class SubscriptionBase:
    """The common part of subscriptions: enter, iterate, leave. `_source` is a reader or a group member."""

    _source: Reader | Member

    def __init__(self) -> None:
        self._entered = False
        self._waiter: asyncio.Future[None] | None = None
        self._iterator: SubscriptionIterator | None = None

    @property
    def label(self) -> str:
        """Its name in errors and statistics: the given name, or a generated one."""
        return self._source.label

    @property
    def _state(self) -> str:
        return "ended" if self._source.ended else "open" if self._entered else "not entered"

    def _check_entered(self) -> None:
        if not self._entered:
            raise SubscriptionMisused(self.label, "enter it first: `async with broker.subscribe(...) as ...`")

    async def __aenter__(self) -> Self:
        if self._entered:
            raise SubscriptionMisused(self.label, "it was entered before; subscribe again for another one")
        if (standing := self._source.enter()) is not None:
            await standing
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        if self._iterator is not None:
            await self._iterator.aclose()
        await self._source.left()

    if not TYPE_CHECKING:

        def __enter__(self) -> None:
            raise SubscriptionMisused(self.label, "write `async with`, or use runnel.blocking")

        def __exit__(self, *_: object) -> None: ...

        def __iter__(self) -> None:
            raise SubscriptionMisused(self.label, "write `async for`, or use runnel.blocking")

        def __await__(self) -> None:
            raise SubscriptionMisused(self.label, "do not await it: `async with broker.subscribe(...) as ...`")

    def _leave(self) -> None:
        self._source.leave()

    def end(self) -> None:
        """End the subscription after the items that are there."""
        self._source.end()

    def _iterate(
        self, make: Callable[..., Any], *how: Any, again: SubscriptionIterator | None = None
    ) -> SubscriptionIterator:
        """The iterator by `make`. There is one per subscription: after a `break` reading continues where it was.

        `again` is an iterator whose read was cancelled; reading continues with it.
        """
        self._check_entered()
        if self._source.error is not None:
            raise self._source.error
        current = self._iterator
        if current is None or current.generator.ag_frame is None:  # no generator reads: it ended or was cancelled
            if again is None:
                current = SubscriptionIterator(self._iterate, make, how)
            else:
                current = again
                again.begin()
            self._iterator = current
        elif current.how != (make.__name__, how):
            raise SubscriptionMisused(self.label, "it is being read already; read it one way, or subscribe twice")
        return current

    def _begun(self) -> None:
        """Called by a generator that reads this subscription, before anything else."""
        assert self._iterator is not None, "a generator of it runs"
        self._iterator.begun()

    def _cancelled(self) -> None:
        """Called by a generator that reads this subscription, and is cancelled.

        It waits, or it has handed out an item and the task that asks for the next one is cancelled before it runs.
        """
        assert self._iterator is not None, "a generator of it runs"
        self._iterator.cancelled()

    def _parked(self) -> asyncio.Future[None]:
        """A future that is done when there may be something to read, or at the end. Then the caller checks again."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def wake(self) -> None:
        """Called by the backend: there may be something to read, or it has ended."""
        if (waiter := self._waiter) is not None:
            self._waiter = None
            resolve_waiter(waiter)

    async def _gather(self, ahead: Callable[[], int], limit: int, max_wait: float, clock: Clock) -> None:
        """Wait until something is `ahead`, then for `limit` of it or `max_wait` seconds."""
        source = self._source
        while not ahead() and not source.ended:
            await self._parked()
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            self.wake()

        timer = clock.call_later(max_wait, expire)
        try:
            while ahead() < limit and not expired and not source.ended:
                await self._parked()
        finally:
            timer.cancel()


# -- Subscriptions to records ----------------------------------------------------------------------------


T = TypeVar("T")

READ_TURN = 128  # records after which a reader that never waits yields to the event loop
WARN_SHARE = 0.01  # above this share of drops a subscription is warned about, once

log = logging.getLogger("runnel")


class Subscription(SubscriptionBase, Generic[T]):
    """Records of one topic or pattern, read one by one or in batches.

    >>> async with broker.subscribe("orders") as orders:
    ...     async for record in orders:
    ...         print(record.offset, record.value)
    """

    def __init__(
        self, backend: ReadableBackend, pattern: str, options: SubscribeOptions, codec: Codec[T] | None
    ) -> None:
        super().__init__()
        self._source: Reader = backend.reader(pattern, options, self.wake)
        self._source.in_hand = self._in_hand
        self._options, self._codec = options, codec
        self._slice: tuple[Record[T], ...] = ()  # records that the user is processing, and
        self._rest: Iterator[Record[T]] = iter(())  # those of them that come after the present one
        self._is_out = False  # whether a batch was handed out that is not confirmed
        self._missed: MissedRange | None = None  # counted, and to be reported with the next item
        self._warned = False
        self.on_undecodable: Callable[[Record[bytes], ValidationFailed], None] | None = None  # set by handlers

    def __repr__(self) -> str:
        counts = f"delivered {self.delivered:,}, dropped {self.dropped_count:,}"
        return f"<Subscription {self.label!r} {self._state}, {counts}>"

    @property
    def pattern(self) -> str:
        """The topic or pattern it reads."""
        return self._source.pattern

    @property
    def name(self) -> str | None:
        """The name under which its position is stored, if any."""
        return self._source.name

    @property
    def delivered(self) -> int:
        """How many records were handed out."""
        return self._source.delivered

    @property
    def dropped_count(self) -> int:
        """How many records it missed: dropped, removed before it read them, or impossible to decode."""
        return self._source.dropped_count

    @property
    def expired(self) -> int:
        """How many records expired before it read them."""
        return self._source.expired

    @property
    def lag(self) -> int:
        """Records published and not yet taken by this subscription, which takes a few thousand at a time.

        If the broker is a server, this is a round trip that blocks the event loop.
        """
        self._check_entered()
        return self._source.lag

    @property
    def position(self) -> int:
        """The offset (of a pattern, the sequence) of the first record that the user has not finished processing."""
        place = self._in_hand()
        return self._source.position if place is None else place

    def _in_hand(self) -> int | None:
        """The place of the record that the user is processing."""
        at = len(self._slice) - length_hint(self._rest) - 1
        if at < 0:
            return None
        current = self._slice[at]
        return current.sequence if self._source.is_pattern else current.offset

    def __aiter__(self) -> AsyncIterator[Record[T]]:
        return self._iterate(self._records, None, None)

    def __anext__(self) -> Any:
        return self.__aiter__().__anext__()

    def batches(self, max_records: int | None = None, max_wait: float | None = None) -> AsyncIterator[Batch[T]]:
        """Read in batches of the records that are there, up to `max_records`.

        With `max_wait`, a batch that is not full waits so many seconds for more.
        """
        limit = SLICE if max_records is None else positive("max_records", max_records)
        if max_wait is not None:
            not_negative("max_wait", max_wait)
        return self._iterate(self._batches, limit, max_wait)

    def next_at_hand(self) -> Record[T] | None:
        """The next record, if it was taken already and the event loop need not be checked; None: ask the iterator.

        For another thread that reads this subscription: it crosses to the event loop once for each slice.
        """
        reader = self._source
        return None if reader.is_exact and not reader.is_quiet else next(self._rest, None)

    def _leave(self) -> None:
        self._source.leave(self.position if self._entered else None)

    # -- reading ------------------------------------------------------------------------------------------------

    async def _records(self, *_: None) -> AsyncIterator[Record[T]]:
        reader = self._source
        is_exact, is_pattern = reader.is_exact, reader.is_pattern
        try:
            self._begun()
            self._confirm_batch()
            while True:
                if not self._slice:  # else an iteration before this one was closed or cancelled in it
                    taken = reader.take(SLICE)
                    if taken is None:
                        if self._is_over():
                            return
                        await self._parked()
                        continue
                    # The place in the slice is found by the iterator: nothing is stored for each record.
                    self._slice = self._told(self._open(taken))
                    self._rest = iter(self._slice)
                records, rest = self._slice, self._rest
                if is_exact:
                    reader.task = asyncio.current_task()
                    for record in rest:
                        yield record
                        if not reader.is_quiet:
                            place = (record.sequence if is_pattern else record.offset) + 1
                            if place >= reader.due:
                                reader.confirm(place)
                else:
                    for record in rest:
                        yield record
                self._slice = ()
                reader.confirm(reader.sent)
                if len(records) >= READ_TURN:
                    await asyncio.sleep(0)  # a long history must not block the event loop
        except asyncio.CancelledError:
            self._cancelled()
            raise

    async def _batches(self, limit: int, max_wait: float | None) -> AsyncIterator[Batch[T]]:
        reader = self._source
        is_exact = reader.is_exact
        try:
            self._begun()
            self._confirm_batch()
            if self._slice:  # an iteration by record was closed or cancelled in it
                while rest := tuple(islice(self._rest, limit)):
                    yield Batch(records=rest)
                self._slice = ()
                reader.confirm(reader.sent)
            while True:
                if max_wait is not None:
                    # Waiting for more than the buffer holds would mean waiting for drops.
                    await self._gather(reader.ahead, min(limit, reader.buffer), max_wait, reader.clock)
                taken = reader.take(limit)
                if taken is None:
                    if self._is_over():
                        return
                    await self._parked()
                    continue
                batch = self._open(taken)
                if not len(batch):
                    batch.gap = self._gap()
                if len(batch) or batch.gap is not None:
                    if is_exact:
                        reader.task = asyncio.current_task()
                    self._is_out = True
                    yield batch
                    self._is_out = False
                reader.confirm(reader.sent)
                if len(batch) >= READ_TURN:
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._cancelled()
            raise

    def _confirm_batch(self) -> None:
        """A new iteration asks for the next item: the user is done with the batch that the one before handed out."""
        if self._is_out:
            self._is_out = False
            self._source.confirm(self._source.sent)

    def _is_over(self) -> bool:
        """Whether it has ended; raises the error, if it ended with one."""
        reader = self._source
        if reader.error is not None:
            if isinstance(reader.error, RecordsMissed):
                self._say(reader.error.gap)
            raise reader.error
        return reader.ended

    def _parked(self) -> asyncio.Future[None]:
        self._source.park()
        return super()._parked()

    # -- received records ---------------------------------------------------------------------------------------

    def _open(self, taken: Taken) -> Batch[T]:
        """The records taken, decoded, with the gap before them."""
        slices, missed = taken
        batch: Batch[Any] = Batch(slices)
        if missed is None and self._missed is None and self._codec is None:
            return batch
        self._miss(missed)
        if self._codec is not None:
            return self._decoded(self._codec, batch.records)
        if len(batch):
            batch.gap = self._gap()
        return batch

    def _decoded(self, codec: Codec[T], records: Iterable[Record[bytes]]) -> Batch[T]:
        """Records with decoded values. Records that cannot be decoded are reported as a gap."""
        reader, encoding_of = self._source, self._source.encoding_of
        good: list[Record[T]] = []
        leading: Gap | None = None
        missed: MissedRange | None = None
        for record in records:
            try:
                typed = decoded(codec, encoding_of(record.topic), record)
            except ValidationFailed as error:
                at = record.sequence if reader.is_pattern else record.offset
                first, count, why = (missed.first, missed.count, missed.reason) if missed else (at, 0, "")
                missed = MissedRange(first, at + 1, count + 1, why or f"not a {codec.name}: {error.why}")
                reader.unreadable(1)
                if self.on_undecodable is not None:
                    self.on_undecodable(record, error)
                continue
            self._miss(missed)
            missed, gap = None, self._gap()
            if not good:
                leading, gap = gap, None
            good.append(typed if gap is None else msgspec.structs.replace(typed, gap=gap))
        self._miss(missed)
        return Batch(records=tuple(good), gap=leading)

    @staticmethod
    def _told(batch: Batch[T]) -> tuple[Record[T], ...]:
        """The records of `batch`, the first with its gap."""
        if batch.gap is None:
            return batch.records
        return (msgspec.structs.replace(batch[0], gap=batch.gap), *batch[1:])

    # -- gaps ---------------------------------------------------------------------------------------------------

    def _gap(self) -> Gap | None:
        """The gap since the last item, reported once."""
        missed, self._missed = self._missed, None
        return None if missed is None else self._as_gap(missed)

    def _as_gap(self, missed: MissedRange) -> Gap:
        return Gap(self.pattern, missed.first, missed.end, missed.count, missed.reason)

    def _miss(self, missed: MissedRange | None) -> None:
        """Note a gap, warn once if much was missed, and call `on_gap`; with `strict`, end with an error."""
        if missed is None:
            return
        gap = self._as_gap(missed)
        self._missed = joined_missed(self._missed, missed)
        share = self.dropped_count / max(1, self.delivered + self.dropped_count)
        if share > WARN_SHARE and not self._warned:
            self._warned = True
            log.warning(
                "subscriber %r has missed %s records, %.1f %% of the published records: %s. %sThis is logged once.",
                self.label,
                f"{self.dropped_count:,}",
                100 * share,
                gap.reason,
                "A larger buffer, batches() or a group would help. " if TOO_SLOW in gap.reason else "",
            )
        self._say(gap)
        if self._options.strict:
            missing = RecordsMissed(self.label, gap)
            self._source.end(missing)
            raise missing

    def _say(self, gap: Gap) -> None:
        """Call the user's `on_gap`. Its exceptions are logged, and do not reach the reader."""
        if self._options.on_gap is not None:
            try:
                self._options.on_gap(gap)
            except Exception:
                log.exception("a callback of subscriber %r failed", self.label)


# -- Decoding one record ---------------------------------------------------------------------------------


def decoded(codec: Codec[T], encoding: str | None, record: Record[bytes], gap: Gap | None = None) -> Record[T]:
    """`record` with its value decoded, or ValidationFailed; `encoding` is how it is written (None: as `codec` says)."""
    value = codec.encoded_as(encoding).value_of(record)
    return Record(**(msgspec.structs.asdict(record) | {"value": value, "gap": gap}))

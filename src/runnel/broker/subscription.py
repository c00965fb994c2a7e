"""What a user holds: records to iterate over, for as long as the block lasts.

Leaving the block, cancelling the task and closing the broker all end it; there is
nothing to forget. `async for` ends when the subscription ends, after what was
published before; it never hangs.
Below: flow, cursor, surface.record_reading. Above: the user.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.broker.cursor import SLICE, Taken
from runnel.broker.flow import Flow
from runnel.core.batch import Batch, Slice
from runnel.core.codec import Codec
from runnel.core.errors import Disconnected, RunnelError
from runnel.core.options import not_negative, positive
from runnel.core.position import Position
from runnel.core.record import Gap, Record
from runnel.surface.record_reading import RecordReading

if TYPE_CHECKING:
    from runnel.broker.gate import Watch
    from runnel.broker.log import Log
    from runnel.broker.reader import Reader

T = TypeVar("T")

TURN = 128  # records after which a reader that never has to wait lets others on the loop run


class Subscription(RecordReading[T]):
    """Records of one topic or pattern, read one by one or in batches.

    >>> async with broker.subscribe("orders") as orders:
    ...     async for record in orders:
    ...         print(record.offset, record.value)
    """

    def __init__(self, reader: Reader, codec: Codec[T] | None) -> None:
        super().__init__(codec)
        self._reader = reader
        self._current: Record[T] | None = None  # handed to the user, who has not asked for the next
        self._holding: Slice | None = None  # the same, of a batch
        self._flow: Flow | None = None  # since the block was entered
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
        return self.flow.lag()

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
        flow = self.flow
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
            if flow.strict:
                self.task = asyncio.current_task()
                sizes = iter(_sizes(taken.slices))
                for record in records:
                    self._current = record
                    yield record
                    flow.done(next(sizes))
                    if self._moved is not None:
                        self._moved(self)
                for size in sizes:  # of those that were not handed out: expired, or not to be decoded
                    flow.done(size)
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
            if len(records) >= TURN:
                await asyncio.sleep(0)  # a long history must not keep others from the loop

    async def _batches(self, limit: int, max_wait: float | None) -> AsyncIterator[Batch[T]]:
        flow = self.flow
        while True:
            if max_wait is not None:
                # To wait for more than the buffer holds would be to wait for drops.
                await self._gather(flow.lag, min(limit, flow.buffer), max_wait, self._reader.clock)
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
                if flow.strict:
                    self.task = asyncio.current_task()
                yield batch
            if flow.strict:
                for size in _sizes(taken.slices):
                    flow.done(size)
            self._advanced()
            if len(batch) >= TURN:
                await asyncio.sleep(0)

    def _advanced(self) -> None:
        """The user asked beyond all that was taken."""
        self._current = self._holding = None
        if self._moved is not None:
            self._moved(self)
        if self._reader.watches:
            self._reader.advanced(self)

    def _take(self, limit: int) -> Taken | None:
        if self._error is not None:
            raise self._error
        return None if self._left else self.flow.take(limit)

    def _parked(self) -> asyncio.Future[None]:
        # A reader that is cancelled while it waits stays on the list of those to be woken, where it does no harm.
        self._reader.attachment.park(self)
        return super()._parked()

    # -- what was read ------------------------------------------------------------------------------------------

    def _open(self, taken: Taken) -> Batch[T]:
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
    def flow(self) -> Flow:
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
        held = self._holding or self.flow.put_aside()
        if held is not None:
            return held.sequence if self._reader.is_pattern else held.start
        return self.flow.cursor.position

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
        if self._reader.is_pattern and self.flow.cursor.pending():
            self.flow.settle()

    def watch(self, found: Log, watch: Watch) -> None:
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
        self.end(Disconnected(self.label, drops, self.flow.policy.after))

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

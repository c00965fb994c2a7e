"""Base classes of subscriptions: entering and leaving, iteration, wake-ups, gaps and decoding.

A subscription is read in one way at a time. Gaps are delivered with the next item; values that do not decode
are reported as a gap, and reading goes on.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from types import AsyncGeneratorType, TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from runnel.core.batch import Batch
from runnel.core.clock import Clock
from runnel.core.errors import RecordsMissed, RunnelError, SubscriptionMisused, ValidationFailed
from runnel.core.record import TOO_SLOW, Gap, MissedRange, Record, joined_missed
from runnel.core.schema import Codec
from runnel.runtime.waiting import resolve_waiter


class SubscriptionBase(ABC):
    """A block that is entered, iterated over, and left."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None  # the one that reads
        self._entered = self._ended = self._left = False
        self._error: RunnelError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._iterator: AsyncGeneratorType[Any, Any] | None = None

    @property
    @abstractmethod
    def label(self) -> str:
        """How errors and statistics call it."""

    @abstractmethod
    def end(self, error: RunnelError | None = None) -> None:
        """No more items."""

    @property
    def _state(self) -> str:
        return "ended" if self._ended else "open" if self._entered else "not entered"

    def _check_not_entered(self) -> None:
        if self._entered:
            raise SubscriptionMisused(self.label, "it was entered before; subscribe again for another one")

    def _check_entered(self) -> None:
        if not self._entered:
            raise SubscriptionMisused(self.label, "enter it first: `async with broker.subscribe(...) as ...`")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        self.end()
        if self._iterator is not None and not self._iterator.ag_running:
            await self._iterator.aclose()

    def _iterate(self, make: Callable[..., Any], *how: Any) -> AsyncIterator[Any]:
        """The generator that `make` makes. There is one: what is in hand after a `break` stays where it was."""
        self._check_entered()
        if self._error is not None:
            raise self._error
        # A read that was cancelled has finished its generator, with nothing in hand: the next one makes another.
        if self._iterator is None or self._iterator.ag_frame is None:
            self._iterator = make(*how)
            self._how = (make.__name__, how)
        elif self._how != (make.__name__, how):
            raise SubscriptionMisused(self.label, "it is being read already; read it one way, or subscribe twice")
        return self._iterator

    def _parked(self) -> asyncio.Future[None]:
        """Done when there may be something to read, or at the end. Whoever awaits it looks again."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def wake(self) -> None:
        """Look again: there is something to read, or it is over."""
        if self._waiter is not None:
            resolve_waiter(self._waiter)

    async def _gather(self, ahead: Callable[[], int], limit: int, max_wait: float, clock: Clock) -> None:
        """Wait until something is `ahead`, then for `limit` of it or `max_wait` seconds."""
        while not ahead() and not self._ended:
            await self._parked()
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            self.wake()

        timer = clock.call_later(max_wait, expire)
        try:
            while ahead() < limit and not expired and not self._ended:
                await self._parked()
        finally:
            timer.cancel()


# -- Subscriptions to records: gaps and decoding ---------------------------------------------------------


T = TypeVar("T")

WARN_SHARE = 0.01  # above this share of drops a subscription is warned about, once

log = logging.getLogger("runnel")


class RecordSubscriptionBase(SubscriptionBase, Generic[T]):
    """A subscription that hands out records, and says which ones it has missed."""

    def __init__(self, codec: Codec[T] | None) -> None:
        super().__init__()
        self._codec = codec
        self._missed: MissedRange | None = None  # counted, and to be told with the next item
        self._warned = False
        self.delivered = 0
        self.dropped_count = 0
        self.expired = 0

    @property
    @abstractmethod
    def pattern(self) -> str:
        """The topic or pattern it reads."""

    @property
    @abstractmethod
    def is_pattern(self) -> bool:
        """Whether it reads in the order of sequences."""

    @property
    @abstractmethod
    def _is_strict(self) -> bool:
        """Whether a gap is an error."""

    @abstractmethod
    def _say(self, gap: Gap) -> None:
        """Tell a gap to whoever asked to hear of it at once."""

    # -- values -------------------------------------------------------------------------------------------------

    def _decoded(
        self, codec: Codec[T], records: Iterable[Record[bytes]], encoding_of: Callable[[str], str | None]
    ) -> Batch[T]:
        """Records with values of their own. What cannot be decoded is told as a gap, and reading goes on."""
        good: list[Record[T]] = []
        leading: Gap | None = None
        missed: MissedRange | None = None
        for record in records:
            try:
                typed = decoded(codec, encoding_of(record.topic), record)
            except ValidationFailed as error:
                at = record.sequence if self.is_pattern else record.offset
                first, count, why = (missed.first, missed.count, missed.reason) if missed else (at, 0, "")
                missed = MissedRange(first, at + 1, count + 1, why or f"not a {codec.name}: {error.why}")
                continue
            self._miss(missed, len(good))
            missed, gap = None, self._gap()
            if not good:
                leading, gap = gap, None
            good.append(typed if gap is None else msgspec.structs.replace(typed, gap=gap))
        self._miss(missed, len(good))
        return Batch(records=tuple(good), gap=leading)

    @staticmethod
    def _told(batch: Batch[T]) -> tuple[Record[T], ...]:
        """The records of `batch`, the first with its gap."""
        if batch.gap is None:
            return batch.records
        return (msgspec.structs.replace(batch[0], gap=batch.gap), *batch[1:])

    # -- gaps ---------------------------------------------------------------------------------------------------

    def _gap(self) -> Gap | None:
        """What was missed since the last item, once."""
        missed, self._missed = self._missed, None
        return None if missed is None else self._as_gap(missed)

    def _as_gap(self, missed: MissedRange) -> Gap:
        return Gap(self.pattern, missed.first, missed.end, missed.count, missed.reason)

    def _miss(self, missed: MissedRange | None, beside: int) -> None:
        """Count what was missed beside so many records that were not; tell whoever asked to hear at once."""
        if missed is None:
            return
        gap = self._as_gap(missed)
        self._missed = joined_missed(self._missed, missed)
        self.dropped_count += missed.count
        share = self.dropped_count / max(1, self.delivered + beside + self.dropped_count)
        if share > WARN_SHARE and not self._warned:
            self._warned = True
            log.warning(
                "subscriber %r has missed %s records, %.1f %% of what was published for it: %s. %sThis is said once.",
                self.label,
                f"{self.dropped_count:,}",
                100 * share,
                gap.reason,
                "A larger buffer, batches() or a group would help. " if TOO_SLOW in gap.reason else "",
            )
        self._say(gap)
        if self._is_strict:
            self.end(RecordsMissed(self.label, gap))
            raise RecordsMissed(self.label, gap)


# -- Decoding one record ---------------------------------------------------------------------------------


def decoded(codec: Codec[T], encoding: str | None, record: Record[bytes], gap: Gap | None = None) -> Record[T]:
    """`record` with its value decoded, or ValidationFailed; `encoding` is how it is written (None: as `codec` says)."""
    value = codec.encoded_as(encoding).value_of(record)
    return Record(**(msgspec.structs.asdict(record) | {"value": value, "gap": gap}))

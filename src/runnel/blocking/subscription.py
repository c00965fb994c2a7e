"""Subscriptions, deliveries and delivery batches without asyncio: a plain `for`, or `receive` with a timeout."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runnel.api.delivery import ACCEPTED
from runnel.blocking.portal import Portal
from runnel.core.batch import Batch
from runnel.core.clock import Clock
from runnel.core.errors import BrokerClosed, SubscriptionEnded
from runnel.core.position import Position
from runnel.core.record import Record
from runnel.runtime.waiting import wait_all

if TYPE_CHECKING:
    from runnel.api.delivery import Delivery as AsyncDelivery
    from runnel.api.delivery import DeliveryBatch as AsyncBatch
    from runnel.api.group_subscription import GroupSubscription as AsyncGroupSubscription
    from runnel.api.subscription import Subscription as AsyncSubscription


T = TypeVar("T")


class _Settleable:
    """Something to be acked, nacked or rejected on the broker's loop."""

    def __init__(self, inner: AsyncDelivery[Any] | AsyncBatch[Any], portal: Portal) -> None:
        self._inner, self._portal = inner, portal

    def __repr__(self) -> str:
        return f"<Blocking {self._inner!r}>"

    def ack(self, *, durable: bool = False) -> None:
        """The work is done. Accepted when it returns; with `durable`, on disk."""
        self._settle(lambda: self._inner.ack(durable=durable))

    def nack(self, delay: float | None = None, reason: str = "nacked") -> None:
        """The work failed: try again after `delay` seconds, or after the group's backoff."""
        self._settle(lambda: self._inner.nack(delay, reason))

    def reject(self, reason: str) -> None:
        """The work can never succeed: to the dead-letter topic, with the reason."""
        self._settle(lambda: self._inner.reject(reason))

    def _settle(self, say: Callable[[], Awaitable[None]]) -> None:
        accepted = self._portal.call(say)
        if accepted is not ACCEPTED:
            self._portal.run(_finished(accepted))


async def _finished(said: Awaitable[None]) -> None:
    await said


class Delivery(_Settleable, Generic[T]):
    """A record, `delivery.record`, and the duty to settle it. `with delivery:` acks, or nacks if the block raises."""

    _inner: AsyncDelivery[T]

    @property
    def record(self) -> Record[T]:
        """The record."""
        return self._inner.record

    @property
    def topic(self) -> str:
        """The topic of the record."""
        return self._inner.topic

    @property
    def offset(self) -> int:
        """The offset of the record."""
        return self._inner.offset

    @property
    def sequence(self) -> int:
        """The sequence of the record in its broker."""
        return self._inner.sequence

    @property
    def epoch(self) -> int:
        """The epoch of the record's topic."""
        return self._inner.epoch

    @property
    def position(self) -> Position:
        """The epoch and offset of the record."""
        return self._inner.position

    @property
    def key(self) -> bytes | None:
        """The key of the record."""
        return self._inner.key

    @property
    def value(self) -> T:
        """The value of the record."""
        return self._inner.record.value

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the record."""
        return self._inner.headers

    @property
    def time(self) -> datetime:
        """When the record was published."""
        return self._inner.time

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the record."""
        return self._inner.traceparent

    @property
    def reply_to(self) -> str | None:
        """The topic for the reply, if the record is a request."""
        return self._inner.reply_to

    @property
    def attempt(self) -> int:
        """1 the first time, and one more each time it is handed out again."""
        return self._inner.attempt

    @property
    def settled(self) -> bool:
        """Whether it was acked, nacked or rejected, or its lease ended."""
        return self._inner.settled

    def extend(self, seconds: float) -> None:
        """The work takes longer: keep the lease for so many seconds from now."""
        self._settle(lambda: self._inner.extend(seconds))

    def __enter__(self) -> Delivery[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._inner.__aexit__(kind, error, trace))


class DeliveryBatch(_Settleable, Generic[T]):
    """Deliveries taken together: `batch.values`, iteration over deliveries, and one `ack()` for all."""

    _inner: AsyncBatch[T]

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Delivery[T]]:
        return (Delivery(delivery, self._portal) for delivery in self._inner)

    @property
    def values(self) -> tuple[T, ...]:
        """The values alone."""
        return self._inner.values


# -- Subscriptions ---------------------------------------------------------------------------------------


S = TypeVar("S", bound="_BlockingReader")


class _BlockingReader:
    """The common part of both kinds of subscription: enter, leave, and wait for the next item with a limit."""

    def __init__(
        self, inner: AsyncSubscription[Any] | AsyncGroupSubscription[Any], portal: Portal, clock: Clock
    ) -> None:
        self._inner, self._portal, self._clock = inner, portal, clock
        self._next: asyncio.Future[Any] | None = None  # outlives a time-out: cancelling it would end the reading

    def __repr__(self) -> str:
        return f"<Blocking {self._inner!r}>"

    def __enter__(self: S) -> S:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokerClosed):  # it was closed first, and this with it
            self._portal.run(self._leave())

    @property
    def label(self) -> str:
        """How errors and statistics call it."""
        return self._inner.label

    def _receive(self, timeout: float | None) -> Any:
        item = self._inner.next_at_hand() or self._portal.run(self._wait(timeout))
        if item is None:
            raise SubscriptionEnded(self.label)
        return item

    def _items(self) -> Iterator[Any]:
        next_at_hand = self._inner.next_at_hand
        while (item := next_at_hand() or self._portal.run(self._wait(None))) is not None:
            yield item

    def _batches(self, batches: AsyncIterator[Any]) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(batches, None)

        while (batch := self._portal.run(following())) is not None:
            yield batch

    async def _wait(self, timeout: float | None) -> Any:
        began = self._clock.time()
        while True:
            if self._next is None:
                self._next = asyncio.ensure_future(anext(aiter(self._inner), None))
            awaited = self._next
            left = None if timeout is None else max(0.0, timeout - (self._clock.time() - began))
            if not await wait_all([awaited], left, self._clock):
                raise TimeoutError(f"nothing for {self.label!r} within {timeout:g} s")
            if awaited is self._next:  # else another thread that waits for the same was quicker
                self._next = None
                return awaited.result()

    async def _leave(self) -> None:
        self._inner.end()
        if (awaited := self._next) is not None:
            await asyncio.wait([awaited])
            awaited.exception()
        await self._inner.__aexit__(None, None, None)


class Subscription(_BlockingReader, Generic[T]):
    """Records to iterate over with a plain `for`, or one by one with `receive`."""

    _inner: AsyncSubscription[T]

    def __iter__(self) -> Iterator[Record[T]]:
        return self._items()

    def receive(self, timeout: float | None = None) -> Record[T]:
        """The next record. After `timeout` seconds without one, TimeoutError; at the end, SubscriptionEnded."""
        record: Record[T] = self._receive(timeout)
        return record

    def batches(self, max_records: int | None = None, max_wait: float | None = None) -> Iterator[Batch[T]]:
        """Read in batches: far quicker than one by one, since each batch crosses threads once."""
        return self._batches(self._inner.batches(max_records, max_wait))


class GroupSubscription(_BlockingReader, Generic[T]):
    """Deliveries to iterate over with a plain `for`, or one by one with `receive`."""

    _inner: AsyncGroupSubscription[T]

    def __iter__(self) -> Iterator[Delivery[T]]:
        return (Delivery(delivery, self._portal) for delivery in self._items())

    def receive(self, timeout: float | None = None) -> Delivery[T]:
        """The next delivery. After `timeout` seconds without one, TimeoutError; at the end, SubscriptionEnded."""
        return Delivery(self._receive(timeout), self._portal)

    def batches(self, max_records: int | None = None, max_wait: float | None = None) -> Iterator[DeliveryBatch[T]]:
        """Read in batches, to ack with one call."""
        batches = self._batches(self._inner.batches(max_records, max_wait))
        return (DeliveryBatch(batch, self._portal) for batch in batches)

"""Subscriptions without asyncio: records, or deliveries, with a plain `for`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runnel.blocking.delivery import Delivery, DeliveryBatch
from runnel.blocking.portal import Portal
from runnel.core.batch import Batch
from runnel.core.clock import Clock
from runnel.core.errors import BrokerClosed, SubscriptionEnded
from runnel.core.record import Record
from runnel.surface.waiting import all_done

if TYPE_CHECKING:
    from runnel.broker.group_subscription import GroupSubscription as AsyncGroupSubscription
    from runnel.broker.subscription import Subscription as AsyncSubscription

S = TypeVar("S", bound="_Reading")
T = TypeVar("T")


class _Reading:
    """What both kinds of subscription do alike: enter, leave, and wait for the next item with a limit."""

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
        item = self._portal.run(self._wait(timeout))
        if item is None:
            raise SubscriptionEnded(self.label)
        return item

    def _items(self) -> Iterator[Any]:
        while (item := self._portal.run(self._wait(None))) is not None:
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
            if not await all_done([awaited], left, self._clock):
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


class Subscription(_Reading, Generic[T]):
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


class GroupSubscription(_Reading, Generic[T]):
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

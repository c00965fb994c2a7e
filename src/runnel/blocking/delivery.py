"""`runnel.Delivery` and `runnel.DeliveryBatch` without asyncio: settled from whatever thread works on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runnel.blocking.portal import Portal
from runnel.core.record import Record

if TYPE_CHECKING:
    from runnel.broker.delivery import Delivery as AsyncDelivery
    from runnel.broker.delivery import DeliveryBatch as AsyncBatch

T = TypeVar("T")


class _Settling:
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
        async def saying() -> None:
            await say()

        self._portal.run(saying())


class Delivery(_Settling, Generic[T]):
    """A record, `delivery.record`, and the duty to settle it. `with delivery:` acks, or nacks if the block raises."""

    _inner: AsyncDelivery[T]

    @property
    def record(self) -> Record[T]:
        """The record."""
        return self._inner.record

    @property
    def value(self) -> T:
        """The value of the record."""
        return self._inner.record.value

    @property
    def attempt(self) -> int:
        """1 the first time, and one more each time it is handed out again."""
        return self._inner.attempt

    def extend(self, seconds: float) -> None:
        """The work takes longer: keep the lease for so many seconds from now."""
        self._settle(lambda: self._inner.extend(seconds))

    def __enter__(self) -> Delivery[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._inner.__aexit__(kind, error, trace))


class DeliveryBatch(_Settling, Generic[T]):
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

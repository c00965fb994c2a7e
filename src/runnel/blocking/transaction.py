"""`runnel.Transaction` without asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.blocking.delivery import Delivery, DeliveryBatch
from runnel.blocking.portal import Portal
from runnel.blocking.stage import Stage
from runnel.blocking.topic import Topic
from runnel.core.errors import InvalidOption
from runnel.core.mark import ANYTHING, Unasked
from runnel.core.publication import Publication

if TYPE_CHECKING:
    from runnel.broker.transaction import Transaction as AsyncTransaction
    from runnel.core.mark import MarkValue

T = TypeVar("T")


class Transaction:
    """Publishes, acks and marks that happen together or not at all. Made by `broker.transaction()`.

    >>> with broker.transaction() as tx:
    ...     tx.publish("paid", order.id)
    ...     tx.ack(delivery)
    """

    def __init__(self, transaction: AsyncTransaction, portal: Portal) -> None:
        self._transaction, self._portal = transaction, portal

    def __repr__(self) -> str:
        return f"<Blocking {self._transaction!r}>"

    def __enter__(self) -> Transaction:
        self._portal.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._transaction.__aexit__(kind, error, trace))

    @property
    def applied(self) -> bool:
        """Whether it was committed. False after the block: a mark said that it had been done before."""
        return self._transaction.applied

    def publish(self, topic: str | Topic[T], value: T | bytes | str, **options: Any) -> Publication:
        """Publish one record at the end of the block; its `position` is known then."""
        return self._transaction.publish(_bare(topic), value, **options)

    def publish_many(self, topic: str | Topic[T], values: Sequence[T | bytes | str], **options: Any) -> Publication:
        """Publish many records side by side at the end of the block; their `span` is known then."""
        return self._transaction.publish_many(_bare(topic), values, **options)

    def commit(self, *stages: Stage[Any] | tuple[str, int, int, int]) -> list[Publication]:
        """Make what was staged visible at the end of the block; of each stage, where that is."""
        return self._transaction.commit(*(one._stage if isinstance(one, Stage) else one for one in stages))

    def ack(self, delivery: Delivery[Any] | DeliveryBatch[Any]) -> None:
        """Ack a delivery, or a batch of them, at the end of the block."""
        if not isinstance(delivery, Delivery | DeliveryBatch):
            raise InvalidOption("delivery", delivery, "expected what a group of `runnel.blocking` delivered")

        async def noting() -> None:  # leases are the loop's
            self._transaction.ack(delivery._inner)

        self._portal.run(noting())

    def mark(self, name: str, value: MarkValue | None, expected: MarkValue | Unasked | None = ANYTHING) -> None:
        """Have the mark `name` moved forward to `value`, or forgotten (None). See `runnel.Transaction.mark`."""
        self._transaction.mark(name, value, expected)


def _bare(topic: str | Topic[T]) -> Any:
    return topic._topic if isinstance(topic, Topic) else topic

"""`Topic`, `Producer`, `Stage` and `Transaction` without asyncio: each call blocks until it is done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from runnel.blocking.portal import Portal
from runnel.blocking.subscription import Delivery, DeliveryBatch, GroupSubscription, Subscription
from runnel.core.clock import Clock
from runnel.core.errors import InvalidOption
from runnel.core.markers import ANYTHING, NoExpectation
from runnel.core.options import PublishKeywords, PublishOptions, SubscribeKeywords, SubscribeOptions, spell_out
from runnel.core.position import Position, Span
from runnel.core.publishing import Publication
from runnel.core.record import Record
from runnel.core.replies import Replies
from runnel.core.stages import StageKey

if TYPE_CHECKING:
    from runnel.api.producer import Producer as AsyncProducer
    from runnel.api.stage import MixedStage as AsyncMixedStage
    from runnel.api.stage import Stage as AsyncStage
    from runnel.api.stage import Value
    from runnel.api.topic import Topic as AsyncTopic
    from runnel.api.transaction import Transaction as AsyncTransaction
    from runnel.core.markers import MarkerValue


T = TypeVar("T")


class Topic(Generic[T]):
    """`runnel.Topic` without asyncio."""

    def __init__(self, topic: AsyncTopic[T], portal: Portal, clock: Clock) -> None:
        self._topic, self._portal, self._clock = topic, portal, clock

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._topic.name

    def declare(self) -> None:
        """Make the topic now, or check that it is there with these options and this type."""
        self._portal.run(self._topic.declare())

    def delete(self) -> None:
        """Delete the topic and its records."""
        self._portal.run(self._topic.delete())

    def configure(self, **options: Any) -> dict[str, Any]:
        """Change options of the topic, and return all that it has now; None takes one back to its default."""
        return self._portal.run(self._topic.configure(**options))

    def trim(self, before: int | datetime, *, force: bool = False) -> int:
        """Take away the records before an offset, or older than a time; the first offset that is left."""
        return self._portal.run(self._topic.trim(before, force=force))

    @spell_out(PublishKeywords, PublishOptions)
    def publish(self, value: T | bytes | str | None, **options: Unpack[PublishKeywords]) -> Position:
        """Publish one record; its position."""
        return self._portal.run(self._topic.publish(value, **options))

    def publish_nowait(self, value: T | bytes | str | None, **options: Any) -> None:
        """Hand one record over without waiting; the quickest way from a thread."""
        self._topic.publish_nowait(value, **options)

    def publish_many(self, values: Sequence[T | bytes | str], **options: Any) -> Span:
        """Publish many at once, all or nothing; the first and the last position."""
        return self._portal.run(self._topic.publish_many(values, **options))

    def publish_and_wait(self, value: T | bytes | str, **options: Any) -> Position:
        """Publish, and wait until every current subscriber has processed it. For tests."""
        return self._portal.run(self._topic.publish_and_wait(value, **options))

    def request(self, value: T | bytes | str, **options: Any) -> Record[Any]:
        """Publish a request, and wait for the reply. Options as in `runnel.Topic.request`."""
        return self._portal.run(self._topic.request(value, **options))

    def request_many(self, value: T | bytes | str, **options: Any) -> Replies[Any]:
        """Publish a request, and gather replies until a deadline. Options as in `runnel.Topic.request_many`."""
        return self._portal.run(self._topic.request_many(value, **options))

    @overload
    def subscribe(self, *, group: str, **options: Unpack[SubscribeKeywords]) -> GroupSubscription[T]: ...
    @overload
    def subscribe(self, *, group: None = None, **options: Unpack[SubscribeKeywords]) -> Subscription[T]: ...
    @spell_out(SubscribeKeywords, SubscribeOptions)
    def subscribe(
        self, *, group: str | None = None, **options: Unpack[SubscribeKeywords]
    ) -> Subscription[T] | GroupSubscription[T]:
        """Read this topic, with values of its type."""
        if group is None:
            return Subscription(self._topic.subscribe(**options), self._portal, self._clock)
        return GroupSubscription(self._topic.subscribe(group=group, **options), self._portal, self._clock)


# -- Producer --------------------------------------------------------------------------------------------


class Producer:
    """A publisher that numbers its records, so that what it sends again is stored once."""

    def __init__(self, producer: AsyncProducer, portal: Portal) -> None:
        self._producer, self._portal = producer, portal

    def __repr__(self) -> str:
        return f"<Blocking {self._producer!r}>"

    @property
    def id(self) -> int:
        """The encoded value for the journal."""
        return self._producer.id

    @property
    def name(self) -> str | None:
        """Its name, if it has one."""
        return self._producer.name

    @property
    def next(self) -> int:
        """The number of its next record; all below are stored, or on their way."""
        return self._producer.next

    def publish(self, topic: str | Topic[T], value: T | bytes | str, **options: Any) -> Position:
        """Publish one record; its position, which is the first one if it was there already."""
        return self._portal.run(self._producer.publish(_async_topic(topic), value, **options))

    def publish_many(self, topic: str | Topic[T], values: Sequence[T | bytes | str], **options: Any) -> Span:
        """Publish many at once, all or nothing; the first and the last position."""
        return self._portal.run(self._producer.publish_many(_async_topic(topic), values, **options))


def _async_topic(topic: str | Topic[T]) -> str | AsyncTopic[T]:
    return topic if isinstance(topic, str) else topic._topic


# -- Stage -----------------------------------------------------------------------------------------------


class Stage(Generic[T]):
    """Records that are durable and invisible until a transaction commits them. Made by `broker.stage(...)`."""

    def __init__(self, stage: AsyncStage[T], portal: Portal) -> None:
        self._stage, self._portal = stage, portal

    def __repr__(self) -> str:
        return f"<Blocking {self._stage!r}>"

    @property
    def key(self) -> StageKey:
        """Its key: (writer, batch, part, attempt)."""
        return self._stage.key

    @property
    def topic(self) -> str:
        """The topic that its records are for."""
        return self._stage.topic

    @property
    def records(self) -> int:
        """How many records are in it, durable."""
        return self._stage.records

    @property
    def bytes(self) -> int:
        """How many bytes they take on disk."""
        return self._stage.bytes

    def write(self, values: Sequence[T | Value], **options: Any) -> int:
        """Stage more records; how many there are now. Options as in `runnel.Stage.write`."""
        return self._portal.run(self._stage.write(values, **options))

    def drop(self) -> None:
        """Give it up: its records are never seen."""
        self._portal.run(self._stage.drop())


class MixedStage:
    """Records of many topics that are staged in one order. Made by `broker.stage(...)` without a topic."""

    def __init__(self, stage: AsyncMixedStage, portal: Portal) -> None:
        self._stage, self._portal = stage, portal

    def __repr__(self) -> str:
        return f"<Blocking {self._stage!r}>"

    @property
    def key(self) -> StageKey:
        """Its key: (writer, batch, part, attempt)."""
        return self._stage.key

    @property
    def records(self) -> int:
        """How many records are in it, durable."""
        return self._stage.records

    @property
    def bytes(self) -> int:
        """How many bytes they take on disk."""
        return self._stage.bytes

    @property
    def pending(self) -> int:
        """How many records were collected since the last `write`."""
        return self._stage.pending

    def publish(self, topic: str | Topic[T], value: T | Value | None, **options: Any) -> None:
        """Collect one record; the next `write` stages it. Options as in `runnel.MixedStage.publish`."""
        self._stage.publish(_async_topic(topic), value, **options)

    def publish_many(self, topic: str | Topic[T], values: Sequence[T | Value], **options: Any) -> None:
        """Collect many records of one topic, side by side; the next `write` stages them."""
        self._stage.publish_many(_async_topic(topic), values, **options)

    def write(self, *, ordinal: int | None = None) -> int:
        """Stage all records that were collected; how many there are now. See `runnel.MixedStage.write`."""
        return self._portal.run(self._stage.write(ordinal=ordinal))

    def drop(self) -> None:
        """Give it up: its records are never seen."""
        self._portal.run(self._stage.drop())


# -- Transaction -----------------------------------------------------------------------------------------


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
        """Whether it was committed. False after the block: a marker showed that it had been committed before."""
        return self._transaction.applied

    @spell_out(PublishKeywords, PublishOptions)
    def publish(
        self, topic: str | Topic[T], value: T | bytes | str | None, **options: Unpack[PublishKeywords]
    ) -> Publication:
        """Publish one record at the end of the block; its `position` is known then."""
        return self._transaction.publish(_async_topic(topic), value, **options)

    def publish_many(self, topic: str | Topic[T], values: Sequence[T | bytes | str], **options: Any) -> Publication:
        """Publish many records side by side at the end of the block; their `span` is known then."""
        return self._transaction.publish_many(_async_topic(topic), values, **options)

    def commit(self, *stages: Stage[Any] | MixedStage | tuple[str, int, int, int]) -> list[Publication]:
        """Make stages visible at the end of the block; a publication for each."""
        return self._transaction.commit(*(one if isinstance(one, tuple) else one._stage for one in stages))

    def ack(self, delivery: Delivery[Any] | DeliveryBatch[Any]) -> None:
        """Ack a delivery, or a batch of them, at the end of the block."""
        if not isinstance(delivery, Delivery | DeliveryBatch):
            raise InvalidOption("delivery", delivery, "expected what a group of `runnel.blocking` delivered")

        self._portal.call(lambda: self._transaction.ack(delivery._inner))  # leases are the loop's

    def mark(
        self, name: str, value: MarkerValue | None, expected: MarkerValue | NoExpectation | None = ANYTHING
    ) -> None:
        """Have the mark `name` moved forward to `value`, or forgotten (None). See `runnel.Transaction.mark`."""
        self._transaction.mark(name, value, expected)

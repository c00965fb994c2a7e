"""`runnel.broker.producer.Producer` without asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runnel.blocking.portal import Portal
from runnel.blocking.topic import Topic
from runnel.core.position import Position, Span

if TYPE_CHECKING:
    from runnel.broker.producer import Producer as AsyncProducer
    from runnel.broker.topic import Topic as AsyncTopic

T = TypeVar("T")


class Producer:
    """A publisher that numbers its records, so that what it sends again is stored once."""

    def __init__(self, producer: AsyncProducer, portal: Portal) -> None:
        self._producer, self._portal = producer, portal

    def __repr__(self) -> str:
        return f"<Blocking {self._producer!r}>"

    @property
    def id(self) -> int:
        """What stands for it in the journal."""
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
        return self._portal.run(self._producer.publish(_within(topic), value, **options))

    def publish_many(self, topic: str | Topic[T], values: Sequence[T | bytes | str], **options: Any) -> Span:
        """Publish many at once, all or nothing; the first and the last position."""
        return self._portal.run(self._producer.publish_many(_within(topic), values, **options))


def _within(topic: str | Topic[T]) -> str | AsyncTopic[T]:
    return topic if isinstance(topic, str) else topic._topic

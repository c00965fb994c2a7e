"""`runnel.Topic` without asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from runnel.blocking.portal import Portal
from runnel.blocking.subscription import GroupSubscription, Subscription
from runnel.core.clock import Clock
from runnel.core.position import Position, Span

if TYPE_CHECKING:
    from runnel.broker.topic import Topic as AsyncTopic

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

    def trim(self, before: int | datetime, *, force: bool = False) -> int:
        """Take away the records before an offset, or older than a time; the first offset that is left."""
        return self._portal.run(self._topic.trim(before, force=force))

    def publish(self, value: T | bytes | str | None, **options: Any) -> Position:
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

    @overload
    def subscribe(self, *, group: str, **options: Any) -> GroupSubscription[T]: ...
    @overload
    def subscribe(self, *, group: None = None, **options: Any) -> Subscription[T]: ...
    def subscribe(self, *, group: str | None = None, **options: Any) -> Subscription[T] | GroupSubscription[T]:
        """Read this topic, with values of its type."""
        if group is None:
            return Subscription(self._topic.subscribe(**options), self._portal, self._clock)
        return GroupSubscription(self._topic.subscribe(group=group, **options), self._portal, self._clock)

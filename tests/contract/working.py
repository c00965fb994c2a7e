"""Ways to work in a group that the contract's tests share."""

from collections.abc import Iterable
from typing import Any, TypeVar

from runnel import Broker, Delivery, GroupSubscription
from runnel.core.statistics import GroupStatistics

T = TypeVar("T")


async def fill(broker: Broker, count: int, topic: str = "jobs", first: int = 0, **options: Any) -> None:
    """Publish the numbers from `first` on."""
    for number in range(first, first + count):
        await broker.publish(topic, b"%d" % number, **options)


async def fill_at_once(broker: Broker, count: int, topic: str = "jobs", **options: Any) -> None:
    """Publish the numbers in one go: those who wait for them share what comes, wherever they are."""
    await broker.topic(topic).publish_many(numbers(0, count), **options)


async def take(deliveries: GroupSubscription[T], count: int) -> list[Delivery[T]]:
    """The next `count` deliveries, held."""
    return [await anext(deliveries) for _ in range(count)]


async def work(deliveries: GroupSubscription[T], count: int) -> list[T]:
    """The values of the next `count` deliveries, each acked."""
    done = []
    for _ in range(count):
        async with await anext(deliveries) as delivery:
            done.append(delivery.value)
    return done


def offsets(deliveries: Iterable[Delivery[Any]]) -> list[int]:
    return [delivery.offset for delivery in deliveries]


def attempts(deliveries: Iterable[Delivery[Any]]) -> list[tuple[int, int]]:
    """(offset, attempt) of each."""
    return [(delivery.offset, delivery.attempt) for delivery in deliveries]


def numbers(first: int, end: int) -> list[bytes]:
    """What `fill` published."""
    return [b"%d" % number for number in range(first, end)]


def look(broker: Broker, name: str = "g") -> GroupStatistics:
    """The statistics of one group."""
    (group,) = [group for group in broker.statistics().groups if group.name == name]
    return group

"""A reader that keeps up loses nothing: awaited publishes give way to it before its buffer is full.

It keeps up if it takes what is there whenever it gets a turn of the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from runnel import Broker
from runnel.api.subscription import Subscription
from tests.contract.reading import running, values

pytestmark = pytest.mark.near("over a connection a reader is as slow as the network")

POLICIES = ("drop_oldest", "drop_newest", "disconnect")


@pytest.fixture
async def broker(broker: Broker) -> Broker:
    for name in ("t", "u"):
        await broker.topic(name, durable=False).declare()  # what is on disk may be read at any pace
    return broker


async def by_record(subscription: Subscription[bytes]) -> AsyncIterator[int]:
    async for record in subscription:
        yield int(record.value)


async def by_batch(subscription: Subscription[bytes]) -> AsyncIterator[int]:
    async for batch in subscription.batches():
        for value in batch.values:
            yield int(value)


async def by_small_batch(subscription: Subscription[bytes]) -> AsyncIterator[int]:
    async for batch in subscription.batches(max_records=3):
        for value in batch.values:
            yield int(value)


async def all_numbers(numbers: AsyncIterator[int], count: int) -> list[int]:
    found: list[int] = []
    async for number in numbers:
        found.append(number)
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("buffer", "size", "count"),
    [(1, 1, 20), (100, 1, 500), (100, 60, 600), (100, 100, 600), (6000, 2900, 23_200)],
)
async def test_a_reader_that_keeps_up_loses_nothing(
    broker: Broker, policy: str, buffer: int, size: int, count: int
) -> None:
    topic = broker.topic("t", durable=False)
    readers = [(pattern, how) for pattern in ("t", "*") for how in (by_record, by_batch, by_small_batch)]

    async def read(pattern: str, how: Callable[[Subscription[bytes]], AsyncIterator[int]]) -> list[int]:
        async with broker.subscribe(pattern, buffer=buffer, policy=policy) as subscription:
            return await all_numbers(how(subscription), count)

    async with running(asyncio.wait_for(asyncio.gather(*(read(*one) for one in readers)), 30)) as reading:
        for first in range(0, count, size):
            batch = [b"%d" % number for number in range(first, first + size)]
            if size > 1:
                await topic.publish_many(batch)
            elif first % 2:
                await broker.publish("t", batch[0])
            else:
                await topic.publish(batch[0])
        assert all(found == list(range(count)) for found in await reading)
    assert broker.statistics().dropped == 0


@pytest.mark.parametrize("buffer", [100, None])
async def test_many_publishers_give_way_together(broker: Broker, buffer: int | None) -> None:
    async def publish(publisher: int) -> None:
        topic = broker.topic("tu"[publisher % 2], durable=False)
        for _ in range(8):
            await topic.publish_many([b"0"] * 37)

    async with broker.subscribe("*", buffer=buffer) as subscription:
        async with running(all_numbers(by_batch(subscription), 20 * 8 * 37)) as reading:
            await asyncio.gather(*(publish(publisher) for publisher in range(20)))
            await asyncio.wait_for(reading, 30)
        assert subscription.dropped_count == 0


@pytest.mark.parametrize("policy", POLICIES)
async def test_producers_and_transactions_give_way_before_they_publish(broker: Broker, policy: str) -> None:
    topic, batch = broker.topic("t", durable=False), [b"0"] * 40

    async def publish() -> None:
        for _ in range(10):
            await topic.publish_many(batch)

    async def publish_numbered() -> None:
        producer = broker.producer()
        for _ in range(10):
            await producer.publish_many(topic, batch)

    async def publish_together() -> None:
        for _ in range(10):
            async with broker.transaction() as transaction:
                transaction.publish_many(topic, batch[:30])
                transaction.publish_many(topic, batch[30:])

    publishers = [publish, publish_numbered, publish_together] * 3
    async with broker.subscribe("t", buffer=100, policy=policy) as subscription:
        async with running(all_numbers(by_batch(subscription), len(publishers) * 400)) as reading:
            await asyncio.gather(*(one() for one in publishers))
            await asyncio.wait_for(reading, 30)
        assert subscription.dropped_count == 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("turns", [1, 3])
async def test_a_reader_that_goes_on_to_another_record_in_a_few_turns_keeps_up(
    broker: Broker, turns: int, pattern: str, policy: str
) -> None:
    """It takes many records at once, and nothing while it goes through them: publishers must see that it goes on."""
    topic = broker.topic("t", durable=False)

    async def read() -> int:
        count = 0
        async for _ in subscription:
            count += 1
            for _ in range(turns):
                await asyncio.sleep(0)
            if count == 400:
                break
        return count

    async with broker.subscribe(pattern, buffer=20, policy=policy) as subscription:
        async with running(read()) as reading:
            for _ in range(40):
                await topic.publish_many([b"0"] * 10)
            await asyncio.wait_for(reading, 30)
        assert subscription.dropped_count == 0


async def test_bytes_are_a_buffer_too(broker: Broker) -> None:
    topic = broker.topic("t", durable=False)
    async with broker.subscribe("t", buffer_bytes=10_000) as subscription:
        async with running(values(subscription, 400)) as reading:
            for _ in range(100):
                await topic.publish_many([bytes(1000)] * 4)
            assert len(await asyncio.wait_for(reading, 30)) == 400
        assert subscription.dropped_count == 0


async def test_publishes_that_give_way_keep_their_order(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=50) as subscription:
        async with running(values(subscription, 600)) as reading:
            await asyncio.gather(*(broker.publish("t", b"%d" % number) for number in range(600)))
            assert await asyncio.wait_for(reading, 30) == [b"%d" % number for number in range(600)]


async def test_a_small_publish_does_not_overtake_a_large_one_that_gives_way(broker: Broker) -> None:
    """Else those that need little room could keep one that needs much waiting for ever."""
    topic = broker.topic("t", durable=False)
    async with broker.subscribe("t", buffer=10) as subscription:
        await topic.publish_many([b"first"] * 8)
        later = [
            asyncio.ensure_future(topic.publish_many([value] * size)) for value, size in ((b"large", 10), (b"small", 2))
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(task.done() for task in later)
        found = [(await asyncio.wait_for(anext(subscription), 30)).value for _ in range(20)]
        assert found == [b"first"] * 8 + [b"large"] * 10 + [b"small"] * 2
        await asyncio.gather(*later)


@pytest.mark.parametrize(("policy", "kept"), [("drop_oldest", range(25, 35)), ("drop_newest", range(5, 15))])
async def test_a_batch_larger_than_the_buffer_drops_of_itself_alone(broker: Broker, policy: str, kept: range) -> None:
    topic = broker.topic("t", durable=False)
    async with broker.subscribe("t", buffer=10, policy=policy) as subscription:
        async with running(values(subscription, 15)) as reading:
            await topic.publish_many([b"%d" % number for number in range(5)])
            await topic.publish_many([b"%d" % number for number in range(5, 35)])
            found = [int(value) for value in await asyncio.wait_for(reading, 30)]
        assert found == [*range(5), *kept]


async def test_a_publish_that_gives_way_may_be_cancelled_and_leaves_nothing(broker: Broker) -> None:
    topic = broker.topic("t", durable=False)
    async with broker.subscribe("t", buffer=2) as subscription:
        await topic.publish_many([b"1", b"2"])
        late = asyncio.ensure_future(topic.publish(b"3"))
        await asyncio.sleep(0)
        assert not late.done()
        late.cancel()
        await asyncio.wait([late])
        await asyncio.wait_for(topic.publish(b"4"), 30)  # nobody reads, so that it is not held up for long
        assert [record.value for record in [await anext(subscription), await anext(subscription)]] == [b"2", b"4"]

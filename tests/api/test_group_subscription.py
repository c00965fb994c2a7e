"""The subscription of a member: entered once, read one way, and gone when the block is left."""

import asyncio
from typing import Any

import msgspec
import pytest

from runnel import Broker, GroupSubscription
from runnel.core.errors import InvalidOption, SubscriptionMisused, TopicDeleted
from runnel.testing.clock import JumpingClock


class Order(msgspec.Struct):
    id: int


async def publish(broker: Broker, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await broker.publish("t", b"%d" % number)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def subscribe(broker: Broker, **options: Any) -> GroupSubscription[bytes]:
    return broker.subscribe("t", group="g", **options)


async def test_it_is_read_inside_its_block_and_entered_once(runnel_broker: Broker) -> None:
    deliveries = subscribe(runnel_broker)
    assert repr(deliveries) == "<GroupSubscription 'g#1' not entered>"
    with pytest.raises(SubscriptionMisused, match="enter it first"):
        await anext(deliveries)
    with pytest.raises(SubscriptionMisused, match="enter it first"):
        deliveries.batches()
    async with deliveries:
        assert repr(deliveries) == "<GroupSubscription 'g#1' open>"
        with pytest.raises(SubscriptionMisused, match="entered before"):
            await deliveries.__aenter__()
    assert repr(deliveries) == "<GroupSubscription 'g#1' ended>"
    assert [delivery async for delivery in deliveries] == []


async def test_it_is_read_one_way(runnel_broker: Broker) -> None:
    await publish(runnel_broker, 3)
    async with subscribe(runnel_broker) as deliveries:
        await anext(deliveries)
        with pytest.raises(SubscriptionMisused, match="read it one way"):
            deliveries.batches()
    async with subscribe(runnel_broker) as deliveries:
        await anext(aiter(deliveries.batches(2)))
        with pytest.raises(SubscriptionMisused, match="read it one way"):
            deliveries.batches(3)


async def test_a_break_and_a_cancelled_read_lose_nothing(runnel_broker: Broker) -> None:
    async with subscribe(runnel_broker) as deliveries:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(deliveries)
        await publish(runnel_broker, 3)
        seen = []
        async for delivery in deliveries:
            seen.append(delivery.value)
            break
        async for delivery in deliveries:
            seen.append(delivery.value)
            if len(seen) == 3:
                break
        assert seen == [b"0", b"1", b"2"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(deliveries)
        await publish(runnel_broker, 1, first=3)
        assert (await anext(deliveries)).value == b"3"


async def test_a_cancelled_wait_for_a_batch_loses_nothing(runnel_broker: Broker) -> None:
    async with subscribe(runnel_broker) as deliveries:
        await publish(runnel_broker, 2)
        waiting = asyncio.ensure_future(anext(aiter(deliveries.batches(5, max_wait=60))))
        await turns()
        waiting.cancel()
        await asyncio.wait([waiting])
        await publish(runnel_broker, 3, first=2)
        batch = await anext(aiter(deliveries.batches(5, max_wait=60)))
        assert batch.values == (b"0", b"1", b"2", b"3", b"4")


@pytest.mark.parametrize("option", ["prefetch", "prefetch_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_bounds_are_whole_numbers_above_zero(runnel_broker: Broker, option: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=option):
        subscribe(runnel_broker, **{option: value})


@pytest.mark.parametrize("how", [{"max_records": 0}, {"max_wait": -1}])
async def test_batches_are_bounded_by_sensible_numbers(runnel_broker: Broker, how: dict[str, Any]) -> None:
    async with subscribe(runnel_broker) as deliveries:
        with pytest.raises(InvalidOption):
            deliveries.batches(**how)


async def test_a_batch_holds_no_more_than_asked_for_and_no_more_than_the_member_may(runnel_broker: Broker) -> None:
    await publish(runnel_broker, 10)
    async with subscribe(runnel_broker, prefetch=4) as deliveries:
        batches = deliveries.batches(max_records=3)
        assert (await anext(batches)).values == (b"0", b"1", b"2")
        assert (await anext(batches)).values == (b"3",)
    async with subscribe(runnel_broker, prefetch=4) as deliveries:
        batch = await anext(deliveries.batches(max_records=100))
        assert [(delivery.value, delivery.attempt) for delivery in batch] == [
            (b"0", 2),
            (b"1", 2),
            (b"2", 2),
            (b"3", 2),
        ]


async def test_what_was_not_seen_of_a_granted_stretch_is_not_an_attempt(runnel_broker: Broker) -> None:
    await publish(runnel_broker, 4)
    async with subscribe(runnel_broker) as deliveries:
        await anext(deliveries)
    async with subscribe(runnel_broker) as deliveries:
        attempts = [(await anext(deliveries)).attempt for _ in range(4)]
    assert attempts == [2, 1, 1, 1]


async def test_a_batch_waits_for_more_until_it_is_full_or_the_time_is_up(
    runnel_broker: Broker, runnel_clock: JumpingClock
) -> None:
    async with subscribe(runnel_broker) as deliveries:
        batches = deliveries.batches(3, max_wait=5.0)
        waiting = asyncio.ensure_future(anext(batches))
        await runnel_clock.advance(60)
        await publish(runnel_broker, 1)
        await runnel_clock.advance(4.9)
        assert not waiting.done()
        await publish(runnel_broker, 1, first=1)
        await runnel_clock.advance(0.1)
        assert (await waiting).values == (b"0", b"1")
        await publish(runnel_broker, 4, first=2)
        assert (await anext(batches)).values == (b"2", b"3", b"4")


async def test_what_is_void_does_not_fill_a_batch(runnel_broker: Broker, runnel_clock: JumpingClock) -> None:
    async with subscribe(runnel_broker, prefetch=3, ack_wait=10.0) as late:
        await publish(runnel_broker, 3)
        await turns()
        runnel_broker.group("g", "t").pause()
        await runnel_clock.advance(10)
        async with subscribe(runnel_broker) as other:
            runnel_broker.group("g", "t").resume()
            waiting = asyncio.ensure_future(anext(late.batches(3, max_wait=5.0)))
            await runnel_clock.advance(4.9)
            assert (await anext(other)).value == b"2"
            assert not waiting.done()
            await runnel_clock.advance(0.1)
            assert (await waiting).values == (b"0", b"1")


async def test_a_reset_holds_on_to_nothing(runnel_broker: Broker) -> None:
    async with subscribe(runnel_broker) as deliveries:
        await publish(runnel_broker, 3)
        await turns()
        assert deliveries._source.inbox
        runnel_broker.group("g", "t").reset("latest")
        assert not deliveries._source.inbox


async def test_a_batch_that_waits_ends_with_the_broker(runnel_broker: Broker) -> None:
    async with subscribe(runnel_broker) as deliveries:
        waiting = asyncio.ensure_future(anext(deliveries.batches(3, max_wait=5.0), None))
        await turns()
        runnel_broker.close()
        assert await waiting is None


async def test_leases_that_ended_unobserved_are_passed_over(runnel_broker: Broker, runnel_clock: JumpingClock) -> None:
    await publish(runnel_broker, 4)
    async with subscribe(runnel_broker, ack_wait=5.0, prefetch=4) as deliveries:
        first = await anext(deliveries)
        await runnel_clock.advance(5.0)
        assert first.settled
        again = [await anext(deliveries) for _ in range(4)]
        assert [(delivery.value, delivery.attempt) for delivery in again] == [
            (b"0", 2),
            (b"1", 1),
            (b"2", 1),
            (b"3", 1),
        ]
    async with subscribe(runnel_broker, prefetch=2) as deliveries:
        batches = deliveries.batches()
        await turns()
        await runnel_clock.advance(5.0)
        batch = await anext(batches)
        assert not any(delivery.settled for delivery in batch)


async def test_a_deleted_topic_is_reported_to_its_readers(runnel_broker: Broker) -> None:
    async with subscribe(runnel_broker) as one, subscribe(runnel_broker) as batched:
        reading = asyncio.ensure_future(anext(one))
        reading_batches = asyncio.ensure_future(anext(batched.batches()))
        await turns()
        await runnel_broker.delete("t")
        with pytest.raises(TopicDeleted):
            await reading
        with pytest.raises(TopicDeleted):
            await reading_batches
        with pytest.raises(TopicDeleted):
            await anext(one)


@pytest.mark.parametrize("batched", [False, True])
async def test_what_cannot_be_decoded_is_passed_over_and_buried(runnel_broker: Broker, batched: bool) -> None:
    for value in (b'{"id": 1}', b"junk", b'{"id": "x"}', b'{"id": 4}'):
        await runnel_broker.publish("t", value)
    async with runnel_broker.subscribe("t", group="g", type=Order) as deliveries:
        if batched:
            batch = await anext(deliveries.batches())
            assert (batch.values, len(batch)) == ((Order(1), Order(4)), 2)
            assert [delivery.offset for delivery in batch] == [0, 3]
            await batch.ack()
        else:
            got = [await anext(deliveries) for _ in range(2)]
            assert [(delivery.value, delivery.offset) for delivery in got] == [(Order(1), 0), (Order(4), 3)]
            for delivery in got:
                await delivery.ack()
    (group,) = runnel_broker.statistics().groups
    assert (group.acked, group.dead_lettered, group.lag) == (2, 2, 0)
    async with runnel_broker.subscribe("dead-letters.g", start="earliest") as letters:
        reasons = [(await anext(letters)).headers["runnel-dead-letter-reason"] for _ in range(2)]
    assert reasons[0].startswith("not a Order: at the value: this is not JSON")
    assert reasons[1].startswith("not a Order: at id: Expected `int`")


async def test_values_of_a_member_are_its_own(runnel_broker: Broker) -> None:
    await runnel_broker.publish("t", b"[1]")
    async with runnel_broker.subscribe("t", group="g", type=list[int]) as deliveries:
        delivery = await anext(deliveries)
        delivery.value.append(2)
        await delivery.nack(delay=0)
        assert (await anext(deliveries)).value == [1]


async def test_leaving_while_another_task_reads_ends_its_read(runnel_broker: Broker) -> None:
    async with subscribe(runnel_broker) as deliveries:
        reading = asyncio.ensure_future(anext(deliveries, None))
        await turns()
    assert await reading is None

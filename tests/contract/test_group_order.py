"""In which order a group works: keys above priorities, priorities above age, and everything at its time."""

import asyncio
from typing import Any

import pytest

from runnel import Broker, GroupSubscription
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.reading import at_rest, read, running, soon
from tests.contract.working import attempts, fill, look, numbers, offsets, take, work


def member(broker: Broker, pattern: str = "jobs", **options: Any) -> GroupSubscription[bytes]:
    return broker.subscribe(pattern, group="g", **options)


async def keyed(broker: Broker, keys: str, topic: str = "jobs") -> None:
    """A record for each letter, which is its key."""
    await broker.topic(topic).publish_many([key.encode() for key in keys], keys=[*keys])


# -- keys -------------------------------------------------------------------------------------------------------


async def test_a_key_is_with_one_member_at_a_time(broker: Broker) -> None:
    async with member(broker) as one, member(broker) as two:
        await keyed(broker, "aaabbb")
        await at_rest()
        assert look(broker).in_flight == 2
        (a,), (b,) = await take(one, 1), await take(two, 1)
        assert (a.offset, b.offset) == (0, 3)
        await a.ack()
        await at_rest()
        assert look(broker).in_flight == 2


async def test_a_key_comes_in_order_across_workers(broker: Broker) -> None:
    await keyed(broker, "aabbab" * 20)
    seen: dict[bytes, list[int]] = {b"a": [], b"b": []}

    async def worker() -> None:
        async with member(broker, prefetch=3) as deliveries:
            async for delivery in deliveries:
                seen[delivery.value].append(delivery.offset)
                await asyncio.sleep(0)
                await delivery.ack()

    async with running(worker()), running(worker()), running(worker()):
        while look(broker).lag:
            await at_rest()
    assert {key: len(order) for key, order in seen.items()} == {b"a": 60, b"b": 60}
    assert all(order == sorted(order) for order in seen.values())


async def test_a_key_keeps_its_order_through_a_nack_while_others_go_on(broker: Broker, clock: JumpingClock) -> None:
    await keyed(broker, "aabb")
    async with member(broker) as deliveries:
        a, b = await take(deliveries, 2)
        await a.nack(delay=60)
        await b.ack()
        (other,) = await take(deliveries, 1)
        assert other.offset == 3
        await other.ack()
        async with running(read(deliveries, 1)) as waiting:
            await clock.advance(59)
            assert not waiting.done()
            await clock.advance(1)
            (again,) = await soon(waiting)
        assert (again.offset, again.attempt) == (0, 2)
        await again.ack()
        assert attempts(await take(deliveries, 1)) == [(1, 1)]


@on_every_socket
async def test_a_key_keeps_its_order_when_its_member_is_lost(broker: Broker) -> None:
    async with member(broker) as other:
        async with member(broker) as lost:
            await keyed(broker, "aab")
            mine = offsets(await take(lost, 1))
        got = await take(other, 2)
        assert sorted(offsets(got)) == [0, 2]
        assert {delivery.offset: delivery.attempt for delivery in got} == {0: 1, 2: 1} | dict.fromkeys(mine, 2)
        for delivery in got:
            await delivery.ack()
        assert attempts(await take(other, 1)) == [(1, 1)]


async def test_a_key_keeps_its_order_when_a_lease_ends(broker: Broker, clock: JumpingClock) -> None:
    await keyed(broker, "aaa")
    async with member(broker, ack_wait=10) as deliveries:
        for _ in range(3):
            await take(deliveries, 1)
            await clock.advance(10)
        assert [await work(deliveries, 1) for _ in range(3)] == [[b"a"]] * 3
    assert (look(broker).acked, look(broker).redelivered) == (3, 3)


async def test_a_dead_record_makes_way_for_the_next_of_its_key(broker: Broker) -> None:
    await keyed(broker, "aaa")
    async with member(broker, max_deliver=1) as deliveries:
        await (await anext(deliveries)).nack()
        await (await anext(deliveries)).reject("no")
        assert attempts(await take(deliveries, 1)) == [(2, 1)]


async def test_a_key_is_one_key_in_all_topics_of_a_pattern(broker: Broker) -> None:
    await keyed(broker, "a", "jobs.x")
    await keyed(broker, "a", "jobs.y")
    async with member(broker, "jobs.*") as deliveries:
        (first,) = await take(deliveries, 1)
        async with running(read(deliveries, 1)) as waiting:
            assert not waiting.done()
            await first.ack()
            assert [delivery.topic for delivery in await soon(waiting)] == ["jobs.y"]


async def test_a_key_that_is_stuck_does_not_hold_up_what_has_no_key(broker: Broker) -> None:
    await keyed(broker, "a" * 50)
    await fill(broker, 50)
    async with member(broker) as deliveries:
        await take(deliveries, 1)
        assert await work(deliveries, 50) == numbers(0, 50)


# -- priorities -------------------------------------------------------------------------------------------------


@on_every_socket
async def test_the_urgent_goes_first_and_within_a_priority_the_oldest(broker: Broker) -> None:
    for number, priority in enumerate((0, 5, 9, 5, 9)):
        await fill(broker, 1, first=number, priority=priority)
    async with member(broker) as deliveries:
        assert offsets(await take(deliveries, 5)) == [2, 4, 1, 3, 0]


@pytest.mark.parametrize("low", [0, 3])
async def test_the_low_ones_are_not_starved(broker: Broker, low: int) -> None:
    """However fast urgent ones come, what is not urgent gets its turn."""
    await fill(broker, 3, priority=low)
    urgent = 3
    waited = []
    async with member(broker, prefetch=1) as deliveries:
        for turn in range(60):
            await fill(broker, 1, first=urgent, priority=9)
            urgent += 1
            async with await anext(deliveries) as delivery:
                if delivery.offset < 3:
                    waited.append(turn)
    assert len(waited) == 3
    assert waited[-1] < 30


async def test_a_key_outranks_a_priority(broker: Broker) -> None:
    await broker.publish("jobs", b"first", key="k")
    await broker.publish("jobs", b"second", key="k", priority=9)
    async with member(broker) as deliveries:
        assert await work(deliveries, 2) == [b"first", b"second"]


async def test_priorities_mean_nothing_to_a_plain_subscriber(broker: Broker) -> None:
    async with broker.subscribe("jobs") as plain:
        await fill(broker, 1, priority=0)
        await fill(broker, 1, first=1, priority=9, delay=60)
        assert [record.offset for record in await read(plain, 2)] == [0, 1]


# -- delays -----------------------------------------------------------------------------------------------------


async def test_a_delayed_record_comes_at_its_time(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 1, delay=60)
    await fill(broker, 1, first=1)
    async with member(broker) as deliveries:
        assert await work(deliveries, 1) == numbers(1, 2)
        assert look(broker).scheduled == 1
        async with running(read(deliveries, 1)) as waiting:
            await clock.advance(59.9)
            assert not waiting.done()
            await clock.advance(0.1)
            assert attempts(await soon(waiting)) == [(0, 1)]


async def test_delayed_records_come_in_the_order_of_their_times(broker: Broker, clock: JumpingClock) -> None:
    for number, delay in enumerate((30, 10, 20)):
        await fill(broker, 1, first=number, delay=delay)
    async with member(broker) as deliveries:
        order = []
        for _ in range(3):
            await clock.advance(10)
            order += await work(deliveries, 1)
    assert order == [b"1", b"2", b"0"]


async def test_a_delay_that_has_passed_when_the_group_comes_is_over(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 1, delay=60)
    await clock.advance(61)
    async with member(broker) as deliveries:
        assert await work(deliveries, 1) == numbers(0, 1)


async def test_more_delayed_records_than_the_window_do_not_fill_it(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 20, delay=60)
    await fill(broker, 1, first=20)
    async with member(broker, max_ack_pending=4) as deliveries:
        assert await work(deliveries, 1) == numbers(20, 21)
        await clock.advance(60)
        assert await work(deliveries, 20) == numbers(0, 20)


# -- expiry -----------------------------------------------------------------------------------------------------


async def test_an_expired_record_is_skipped_and_counted(broker: Broker, clock: JumpingClock) -> None:
    async with member(broker):
        pass
    await fill(broker, 2, expires=10)
    await fill(broker, 1, first=2, expires=100)
    await fill(broker, 1, first=3)
    await clock.advance(10)
    async with member(broker) as deliveries:
        assert await work(deliveries, 2) == numbers(2, 4)
    assert (look(broker).expired, look(broker).acked, look(broker).lag, look(broker).dead_lettered) == (2, 2, 0, 0)


async def test_a_record_that_expires_while_it_waits_for_another_attempt_is_skipped(
    broker: Broker, clock: JumpingClock
) -> None:
    await fill(broker, 1, expires=30)
    async with member(broker) as deliveries:
        await (await anext(deliveries)).nack(delay=60)
        await clock.advance(60)
        await fill(broker, 1, first=1)
        assert await work(deliveries, 1) == numbers(1, 2)
    assert look(broker).expired == 1


async def test_an_expired_record_makes_way_for_the_next_of_its_key(broker: Broker, clock: JumpingClock) -> None:
    await broker.publish("jobs", b"stale", key="k", expires=10)
    await broker.publish("jobs", b"fresh", key="k")
    await clock.advance(10)
    async with member(broker) as deliveries:
        assert await work(deliveries, 1) == [b"fresh"]

"""Records that a busy member has not begun are taken back for members that have nothing to do."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from runnel import Broker, Delivery, GroupSubscription
from tests.contract.afar import on_every_socket
from tests.contract.reading import at_rest, running, soon, until
from tests.contract.working import attempts, fill_at_once, look, numbers, offsets, take, work


def member(broker: Broker, **options: Any) -> GroupSubscription[bytes]:
    return broker.subscribe("jobs", group="g", **options)


def held(broker: Broker) -> list[int]:
    return [one.held for one in look(broker).members]


@on_every_socket
async def test_a_member_that_joins_late_gets_its_share(broker: Broker) -> None:
    await fill_at_once(broker, 40)
    async with member(broker) as busy:
        (job,) = await take(busy, 1)
        await at_rest()
        assert held(broker) == [40]
        async with member(broker) as late:
            await at_rest()
            assert held(broker) == [20, 20]
            await job.ack()
            done = [job.value, *await work(busy, 19), *await work(late, 20)]
    assert sorted(done, key=int) == numbers(0, 40)
    assert (look(broker).acked, look(broker).redelivered) == (40, 0)


@on_every_socket
async def test_a_member_that_is_done_gets_what_a_busy_one_has_not_begun(broker: Broker) -> None:
    async with member(broker) as busy, member(broker) as quick:
        await fill_at_once(broker, 40)
        (job,) = await take(busy, 1)
        got = await take_and_ack(quick, 39)
        assert sorted(offsets([job, *got])) == list(range(40))
        assert {attempt for _, attempt in attempts(got)} == {1}
        await job.ack()
        await until(lambda: look(broker).acked == 40)


async def take_and_ack(deliveries: GroupSubscription[bytes], count: int) -> list[Delivery[bytes]]:
    got = []
    for _ in range(count):
        got.append(await soon(anext(deliveries)))
        await got[-1].ack()
    return got


@on_every_socket
async def test_records_with_keys_are_taken_back_and_stay_in_order(broker: Broker) -> None:
    keys = [b"k%d" % (number % 8) for number in range(40)]
    await fill_at_once(broker, 40, keys=keys)
    async with member(broker) as busy:
        (job,) = await take(busy, 1)
        async with member(broker) as quick:
            got = [job, *await take_and_ack(quick, 35)]  # all but those behind the job that is not done
            await job.ack()
            async with running(ack_all(busy, got)), running(ack_all(quick, got)):
                await until(lambda: look(broker).acked == 40)
    assert sorted(offsets(got)) == list(range(40))
    for key in set(keys):
        of_key = offsets(delivery for delivery in got if delivery.key == key)
        assert of_key == sorted(of_key)


async def ack_all(deliveries: GroupSubscription[bytes], got: list[Delivery[bytes]]) -> None:
    async for delivery in deliveries:
        got.append(delivery)
        await delivery.ack()


@on_every_socket
async def test_what_was_taken_in_a_batch_is_begun_and_the_rest_is_taken_back(broker: Broker) -> None:
    await fill_at_once(broker, 40)
    async with member(broker) as busy:
        batch = await anext(busy.batches(max_records=10))
        async with member(broker) as late:
            got = await take_and_ack(late, 30)
            assert sorted(offsets([*batch, *got])) == list(range(40))
            await batch.ack()
            await until(lambda: look(broker).acked == 40)


async def test_a_record_that_was_taken_back_was_not_tried(broker: Broker) -> None:
    await fill_at_once(broker, 12)
    async with member(broker, max_deliver=1) as busy:
        (job,) = await take(busy, 1)
        for _ in range(5):
            async with member(broker):
                await at_rest()
        async with member(broker) as late:
            assert {attempt for _, attempt in attempts(await take_and_ack(late, 11))} == {1}
        await job.ack()
        await until(lambda: look(broker).acked == 12)
    assert look(broker).dead_lettered == 0


async def test_a_paused_group_takes_nothing_back(broker: Broker) -> None:
    await fill_at_once(broker, 10)
    async with member(broker) as busy:
        await take(busy, 1)
        broker.group("g", "jobs").pause()
        async with member(broker):
            await at_rest()
            assert held(broker) == [10, 0]
            broker.group("g", "jobs").resume()
            await at_rest()
            assert held(broker) == [5, 5]


@on_every_socket
@pytest.mark.parametrize("keys", [0, 7])
async def test_members_that_come_go_and_dawdle_handle_each_record_once(broker: Broker, keys: int) -> None:
    """Whatever is taken back at whatever moment, no record is with two members, and a key keeps its order."""
    count, seen, order = 120, Counter[int](), dict[bytes | None, int]()

    async def labor(late: int, pause: int, enough: int) -> None:
        for _ in range(late):
            await asyncio.sleep(0)
        async with member(broker, prefetch=16) as deliveries:
            async for delivery in deliveries:
                seen[delivery.offset] += 1
                assert order.get(delivery.key, -1) < delivery.offset or delivery.key is None
                order[delivery.key] = delivery.offset
                for _ in range(pause):
                    await asyncio.sleep(0)
                await delivery.ack()
                if not (enough := enough - 1):
                    return

    names = [b"k%d" % (number % keys) for number in range(count)] if keys else None
    await fill_at_once(broker, count, keys=names)
    async with running(labor(0, 40, count)), running(labor(20, 3, count)), running(labor(50, 5, 15)):
        async with running(labor(100, 0, 15)), running(labor(150, 1, count)):
            await until(lambda: look(broker).acked == count)
    assert set(seen.values()) == {1}
    assert len(seen) == count

"""Deliveries: acked, failed, delayed, extended, given up; and what time does to them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import runnel
from runnel import Broker, Delivery, GroupSubscription
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.reading import at_rest, read, running, soon
from tests.contract.working import attempts, fill, look, numbers, take, work

Settle = Callable[[Delivery[bytes]], Awaitable[None]]

SETTLE: dict[str, Settle] = {
    "ack": lambda delivery: delivery.ack(),
    "nack": lambda delivery: delivery.nack(),
    "reject": lambda delivery: delivery.reject("no"),
    "extend": lambda delivery: delivery.extend(5),
}


def member(broker: Broker, **options: Any) -> GroupSubscription[bytes]:
    return broker.subscribe("jobs", group="g", **options)


@on_every_socket
async def test_what_is_acked_never_comes_again(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 3)
    async with member(broker) as deliveries:
        await work(deliveries, 3)
        async with running(read(deliveries, 1)) as waiting:
            await clock.advance(3600)
            assert not waiting.done()
    assert (look(broker).acked, look(broker).lag, look(broker).redelivered) == (3, 0, 0)


@pytest.mark.parametrize("order", [(2, 0, 1), (2, 1, 0), (1, 2, 0)])
async def test_acks_come_in_any_order(broker: Broker, order: tuple[int, ...]) -> None:
    await fill(broker, 3)
    async with member(broker) as deliveries:
        held = await take(deliveries, 3)
        for at in order[:2]:
            await held[at].ack()
    async with member(broker) as deliveries:
        assert attempts(await take(deliveries, 1)) == [(order[2], 2)]
        assert look(broker).lag == 1


async def test_a_nacked_record_comes_back_with_attempt_two(broker: Broker) -> None:
    await fill(broker, 2)
    async with member(broker) as deliveries:
        first, second = await take(deliveries, 2)
        await first.nack(delay=0)
        assert attempts(await take(deliveries, 1)) == [(0, 2)]
        await second.ack()
    assert look(broker).redelivered == 1


async def test_a_nack_with_a_delay_comes_back_then(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 1)
    async with member(broker) as deliveries:
        await (await anext(deliveries)).nack(delay=7.5)
        assert (look(broker).in_flight, look(broker).scheduled, look(broker).lag) == (0, 1, 1)
        async with running(read(deliveries, 1)) as waiting:
            await clock.advance(7.4)
            assert not waiting.done()
            await clock.advance(0.1)
            assert attempts(await soon(waiting)) == [(0, 2)]


async def test_failures_back_off_with_jitter(broker: Broker, clock: JumpingClock) -> None:
    pauses: list[float] = []
    await fill(broker, 1)
    async with member(broker, backoff=[10, 100], jitter=0.5) as deliveries:
        for _ in range(4):
            delivery = await anext(deliveries)
            await delivery.nack()
            failed = clock.time()
            async with running(read(deliveries, 1)) as waiting:
                while not waiting.done():
                    await clock.advance(1)
                pauses.append(clock.time() - failed)
                await (await waiting)[0].nack(delay=0)
    assert 10 <= pauses[0] <= 16
    assert all(100 <= pause <= 151 for pause in pauses[1:])
    assert len(set(pauses)) > 1


async def test_without_jitter_the_pauses_are_exact(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 1)
    async with member(broker, backoff=[1, 5], jitter=0) as deliveries:
        delivery = await anext(deliveries)
        for pause, attempt in ((1, 2), (5, 3), (5, 4)):
            await delivery.nack()
            async with running(read(deliveries, 1)) as waiting:
                await clock.advance(pause - 0.01)
                assert not waiting.done()
                await clock.advance(0.01)
                (delivery,) = await soon(waiting)
                assert delivery.attempt == attempt


async def test_the_default_backoff_grows(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 1)
    async with member(broker, jitter=0) as deliveries:
        for pause in (1, 2, 5, 15, 30, 60, 60):
            await (await anext(deliveries)).nack()
            await clock.advance(pause - 0.01)
            assert look(broker).in_flight == 0
            await clock.advance(0.01)
            assert look(broker).in_flight == 1


# -- leases -----------------------------------------------------------------------------------------------------


@on_every_socket
async def test_a_lease_that_ends_gives_the_record_to_another_member(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 1)
    async with member(broker, ack_wait=10) as slow:
        late = await anext(slow)
        async with member(broker) as other:
            await clock.advance(9.9)
            assert not late.settled
            await clock.advance(0.1)
            assert late.settled
            (again,) = await take(other, 1)
            assert again.attempt == 2
            for settle in SETTLE.values():
                with pytest.raises(runnel.LeaseEnded):
                    await settle(late)
            assert not again.settled
            await again.ack()
    assert (look(broker).acked, look(broker).lag) == (1, 0)


async def test_what_waited_unseen_when_the_lease_ended_was_no_attempt(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 3)
    async with member(broker, ack_wait=10, max_deliver=1) as deliveries:
        await take(deliveries, 1)
        await clock.advance(10)
        assert attempts(await take(deliveries, 2)) == [(1, 1), (2, 1)]
    assert look(broker).dead_lettered == 3


@pytest.mark.parametrize("keyed", [False, True])
async def test_what_a_busy_member_has_not_begun_with_does_not_run_out_of_time(
    broker: Broker, clock: JumpingClock, keyed: bool
) -> None:
    for number in range(10):
        await fill(broker, 1, first=number, **({"key": f"k{number}"} if keyed else {}))
    async with member(broker, ack_wait=10, max_deliver=1) as deliveries:
        for _ in range(10):
            delivery = await anext(deliveries)
            await clock.advance(9)
            await delivery.ack()
    assert (look(broker).acked, look(broker).redelivered, look(broker).dead_lettered) == (10, 0, 0)


async def test_a_delivery_knows_that_its_lease_has_ended(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 2)
    async with member(broker, ack_wait=10) as deliveries:
        acked, late = await take(deliveries, 2)
        await acked.ack()
        assert (acked.lapsed, late.lapsed) == (False, False)
        await clock.advance(10)
        assert (late.lapsed, late.settled) == (True, True)


async def test_extending_keeps_the_lease(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 1)
    async with member(broker, ack_wait=10) as deliveries:
        delivery = await anext(deliveries)
        for _ in range(5):
            await clock.advance(9)
            await delivery.extend(10)
        await delivery.extend(100)
        await clock.advance(99)
        assert not delivery.settled
        await clock.advance(1)
        assert delivery.settled


async def test_acking_a_neighbour_does_not_shorten_an_extended_lease(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 2)
    async with member(broker, ack_wait=10) as deliveries:
        long, short = await take(deliveries, 2)
        await long.extend(1000)
        await short.ack()
        await clock.advance(999)
        await long.ack()
    assert look(broker).acked == 2


async def test_a_member_that_keeps_acking_keeps_the_rest(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 10)
    async with member(broker, ack_wait=10) as deliveries:
        for delivery in await take(deliveries, 10):
            await clock.advance(9)
            await delivery.ack()
    assert (look(broker).acked, look(broker).redelivered) == (10, 0)


# -- blocks and batches -----------------------------------------------------------------------------------------


async def test_a_block_acks_and_a_failing_one_nacks(broker: Broker) -> None:
    await fill(broker, 2)
    async with member(broker, backoff=[0], jitter=0) as deliveries:
        with pytest.raises(ValueError, match="oops"):
            async with await anext(deliveries):
                raise ValueError("oops")
        async with await anext(deliveries) as delivery:
            assert (delivery.offset, delivery.attempt) == (1, 1)
        assert (look(broker).acked, look(broker).lag) == (1, 1)
        assert attempts(await take(deliveries, 1)) == [(0, 2)]


@on_every_socket
async def test_one_ack_for_a_whole_batch(broker: Broker) -> None:
    await fill(broker, 10)
    async with member(broker) as deliveries:
        async for batch in deliveries.batches():
            assert batch.values == tuple(numbers(0, 10))
            await batch.ack()
            break
    assert (look(broker).acked, look(broker).lag) == (10, 0)


async def test_a_batch_may_hold_records_with_keys_and_others(broker: Broker) -> None:
    await fill(broker, 2)
    await broker.publish("jobs", b"2", key="k")
    await fill(broker, 2, first=3)
    async with member(broker) as deliveries:
        batch = await anext(deliveries.batches())
        assert batch.values == tuple(numbers(0, 5))
        assert [delivery.key for delivery in batch] == [None, None, b"k", None, None]
        await batch.ack()
    assert look(broker).acked == 5


# -- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", SETTLE)
async def test_settling_twice_says_so_and_changes_nothing(broker: Broker, again: str) -> None:
    await fill(broker, 2)
    async with member(broker) as deliveries:
        delivery, _ = await take(deliveries, 2)
        await delivery.ack()
        before = look(broker)
        with pytest.raises(runnel.AlreadySettled):
            await SETTLE[again](delivery)
        assert look(broker) == before


@pytest.mark.parametrize("again", SETTLE)
async def test_settling_after_leaving_says_so_and_changes_nothing(broker: Broker, again: str) -> None:
    await fill(broker, 1)
    async with member(broker) as deliveries:
        delivery = await anext(deliveries)
    before = look(broker)
    with pytest.raises(runnel.LeaseEnded):
        await SETTLE[again](delivery)
    assert look(broker) == before


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan")])
async def test_negative_times_are_refused_and_change_nothing(broker: Broker, seconds: float) -> None:
    await fill(broker, 1)
    async with member(broker) as deliveries:
        delivery = await anext(deliveries)
        before = look(broker)
        with pytest.raises(runnel.InvalidOption):
            await delivery.nack(delay=seconds)
        with pytest.raises(runnel.InvalidOption):
            await delivery.extend(seconds)
        assert look(broker) == before
        await delivery.ack()


async def test_every_delivery_may_be_settled_from_another_task(broker: Broker) -> None:
    await fill(broker, 20)
    async with member(broker) as deliveries:
        held = await take(deliveries, 20)

        async def settle(delivery: Delivery[bytes]) -> None:
            await asyncio.sleep(0)
            await delivery.ack()

        await asyncio.gather(*map(settle, reversed(held)))
        await at_rest()
    assert look(broker).acked == 20

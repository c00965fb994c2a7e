"""Acks in a transaction: what was taken is settled with what was made of it, or not at all."""

import pytest

import runnel
from runnel import Broker
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.reading import at_rest
from tests.contract.transacting import refused, stored
from tests.contract.working import fill, look, numbers, take


@on_every_socket
async def test_what_was_taken_is_acked_with_what_was_made_of_it(broker: Broker) -> None:
    await fill(broker, 3)
    async with broker.subscribe("jobs", group="g") as deliveries:
        for _ in range(3):
            delivery = await anext(deliveries)
            async with broker.transaction() as tx:
                tx.publish("done", delivery.value)
                tx.ack(delivery)
                assert not delivery.settled
            assert delivery.settled
            assert not delivery.lapsed
    group = look(broker)
    assert (group.acked, group.lag, group.in_flight, group.redelivered) == (3, 0, 0, 0)
    assert await stored(broker, "done") == [numbers(0, 3)]


async def test_a_batch_is_acked_less_what_is_settled(broker: Broker) -> None:
    await fill(broker, 5)
    async with broker.subscribe("jobs", group="g") as deliveries:
        batch = await anext(deliveries.batches(max_records=5))
        second = list(batch)[1]
        await second.ack()
        async with broker.transaction() as tx:
            tx.publish_many("done", list(batch.values))
            tx.ack(batch)
            tx.ack(list(batch)[2])  # twice is once
        assert look(broker).acked == 5
        assert look(broker).lag == 0
        assert look(broker).members[0].acked == 5


async def test_a_group_on_a_pattern_is_acked_too(broker: Broker) -> None:
    for topic in ("t.a", "t.b"):
        await fill(broker, 2, topic)
    async with broker.subscribe("t.*", group="g") as deliveries:
        held = await take(deliveries, 4)
        async with broker.transaction() as tx:
            for delivery in held[::2]:
                tx.ack(delivery)
        assert [delivery.settled for delivery in held] == [True, False, True, False]
    assert look(broker).lag == 2


async def test_an_exception_in_the_block_leaves_the_delivery_open(broker: Broker) -> None:
    await fill(broker, 1)
    async with broker.subscribe("jobs", group="g") as deliveries:
        delivery = await anext(deliveries)
        async with refused(broker, ZeroDivisionError) as tx:
            tx.ack(delivery)
            _ = 1 // 0
        assert not delivery.settled
        await delivery.ack()
        assert look(broker).acked == 1


async def test_a_block_of_a_delivery_around_a_transaction_leaves_the_ack_to_it(broker: Broker) -> None:
    await fill(broker, 1)
    async with broker.subscribe("jobs", group="g") as deliveries:
        async with await anext(deliveries) as delivery:
            async with broker.transaction() as tx:
                tx.publish("done", b"1")
                tx.ack(delivery)
    assert look(broker).acked == 1


async def test_a_block_of_a_delivery_inside_a_transaction_leaves_the_ack_to_it(broker: Broker) -> None:
    await fill(broker, 1)
    async with broker.subscribe("jobs", group="g") as deliveries:
        delivery = await anext(deliveries)
        async with broker.transaction() as tx:
            async with delivery:
                tx.ack(delivery)
            assert not delivery.settled
        assert delivery.settled
    assert look(broker).acked == 1


async def test_a_delivery_whose_block_was_left_goes_back_if_its_transaction_is_given_up(broker: Broker) -> None:
    await fill(broker, 1)
    async with broker.subscribe("jobs", group="g", backoff=[0.0], jitter=0.0) as deliveries:
        async with refused(broker, ZeroDivisionError) as tx:
            async with await anext(deliveries) as delivery:
                tx.ack(delivery)
            _ = 1 // 0
        again = await anext(deliveries)
        assert (again.offset, again.attempt) == (0, 2)
        await again.ack()


async def test_a_delivery_whose_block_was_left_goes_back_if_its_transaction_is_refused(broker: Broker) -> None:
    await fill(broker, 1)
    async with broker.subscribe("jobs", group="g", backoff=[0.0], jitter=0.0) as deliveries:
        async with refused(broker, runnel.OffsetConflict) as tx:
            async with await anext(deliveries) as delivery:
                tx.ack(delivery)
                tx.publish("jobs", b"1", expected_offset=7)
        again = await anext(deliveries)
        assert (again.offset, again.attempt) == (0, 2)
        await again.ack()


async def test_a_delivery_whose_block_was_left_is_acked_if_its_transaction_was_done_before(broker: Broker) -> None:
    await fill(broker, 1)
    async with broker.transaction() as tx:
        tx.mark("m", 1)
    async with broker.subscribe("jobs", group="g") as deliveries:
        async with broker.transaction() as tx:
            async with await anext(deliveries) as delivery:
                tx.ack(delivery)
                tx.mark("m", 1)
        assert (tx.applied, delivery.settled) == (False, True)
    assert look(broker).lag == 0


async def test_a_delivery_that_was_settled_cannot_be_acked_by_a_transaction(broker: Broker) -> None:
    await fill(broker, 2)
    async with broker.subscribe("jobs", group="g") as deliveries:
        one, two = await take(deliveries, 2)
        await one.ack()
        async with refused(broker, runnel.AlreadySettled) as tx:
            tx.publish("done", b"1")
            await two.nack(delay=60)
            with pytest.raises(runnel.AlreadySettled):
                tx.ack(one)
            tx.ack(two)
        assert await stored(broker, "done") == [[]]


async def test_a_delivery_that_is_settled_in_the_block_stops_all_of_it(broker: Broker) -> None:
    await fill(broker, 2)
    async with broker.subscribe("jobs", group="g") as deliveries:
        one, two = await take(deliveries, 2)
        async with refused(broker, runnel.AlreadySettled) as tx:
            tx.publish("done", b"1")
            tx.ack(two)
            tx.ack(one)
            await one.reject("no")
        assert not two.settled
        assert await stored(broker, "done") == [[]]


@on_every_socket
async def test_a_lease_that_ended_stops_all_of_it(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, 1)
    async with broker.subscribe("jobs", group="g", ack_wait=10.0) as deliveries:
        delivery = await anext(deliveries)
        async with refused(broker, runnel.LeaseEnded) as tx:
            tx.publish("done", b"1")
            tx.ack(delivery)
            await clock.advance(11)
            await at_rest()
        async with refused(broker, runnel.LeaseEnded) as tx:
            tx.ack(delivery)
        assert await stored(broker, "done") == [[]]
        again = await anext(deliveries)
        assert again.attempt == 2


async def test_a_delivery_of_another_broker_is_refused(place: Place, broker: Broker) -> None:
    await fill(broker, 1)
    async with place.open() as other, broker.subscribe("jobs", group="g") as deliveries:
        delivery = await anext(deliveries)
        async with other.transaction() as tx:
            with pytest.raises(runnel.NotSupported, match="another broker"):
                tx.ack(delivery)
            with pytest.raises(runnel.NotSupported, match="another broker"):
                tx.publish(broker.topic("a"), b"1")
            with pytest.raises(runnel.InvalidOption, match="Delivery"):
                tx.ack(object())  # type: ignore[arg-type]
        assert not delivery.settled


async def test_the_next_record_of_a_key_comes_when_the_transaction_has_landed(broker: Broker) -> None:
    await fill(broker, 2, key=b"k")
    async with broker.subscribe("jobs", group="g") as deliveries:
        first = await anext(deliveries)
        async with broker.transaction() as tx:
            tx.ack(first)
        second = await anext(deliveries)
        assert (second.offset, second.attempt) == (1, 1)


async def test_a_handler_may_ack_in_a_transaction_of_its_own(broker: Broker) -> None:
    await fill(broker, 3)

    @broker.on("jobs", group="g")
    async def job(delivery: runnel.Delivery[bytes]) -> None:
        async with broker.transaction() as tx:
            tx.publish("done", delivery.value)
            tx.ack(delivery)
        if delivery.value == b"2":
            broker.stop()

    await broker.run(signals=False)
    assert look(broker).acked == 3
    assert await stored(broker, "done") == [numbers(0, 3)]

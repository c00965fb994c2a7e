"""Transactions and subscribers that are slow: all of it waits, or nothing."""

import asyncio

import pytest

import runnel
from runnel import Broker, Transaction
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.reading import at_rest, running, values
from tests.contract.transacting import refused, stored
from tests.contract.working import fill, numbers


@on_every_socket
async def test_a_transaction_waits_until_a_blocking_subscriber_has_room_for_all_of_it(broker: Broker) -> None:
    async def transact() -> None:
        async with broker.transaction() as tx:
            tx.publish("free", b"x")
            tx.publish_many("slow", [b"2", b"3"])

    async with broker.subscribe("slow", policy="block", buffer=3) as slow:
        await broker.topic("slow").publish_many([b"0", b"1"])
        async with running(transact()) as task:
            assert not task.done()
            assert await stored(broker, "free") == [[]]
            assert await values(slow, 1) == [b"0"]
            assert await values(slow, 3) == [b"1", b"2", b"3"]
            await task
    assert await stored(broker, "free", "slow") == [[b"x"], numbers(0, 4)]


async def test_those_who_publish_behind_a_transaction_that_waits_stay_behind_it(broker: Broker) -> None:
    async def transact() -> None:
        async with broker.transaction() as tx:
            tx.publish_many("slow", [b"2", b"3"])

    async with broker.subscribe("slow", policy="block", buffer=3) as slow:
        await broker.topic("slow").publish_many([b"0", b"1"])
        async with running(transact()), running(broker.publish("slow", b"4")) as behind:
            assert not behind.done()
            assert await values(slow, 5) == numbers(0, 5)
            await behind


async def test_a_transaction_that_would_fit_stays_behind_those_who_wait(broker: Broker) -> None:
    async def transact() -> None:
        async with broker.transaction() as tx:
            tx.publish("slow", b"4")

    async with broker.subscribe("slow", policy="block", buffer=3) as slow:
        await broker.topic("slow").publish_many([b"0", b"1"])
        async with running(broker.topic("slow").publish_many([b"2", b"3"])), running(transact()) as behind:
            assert not behind.done()
            assert await values(slow, 5) == numbers(0, 5)
            await behind


async def test_two_slow_subscribers_are_both_waited_for(broker: Broker) -> None:
    async def transact() -> None:
        async with broker.transaction() as tx:
            tx.publish("one", b"1")
            tx.publish("two", b"1")

    async with broker.subscribe("one", policy="block", buffer=1) as one:
        async with broker.subscribe("two", policy="block", buffer=1) as two:
            await broker.publish("one", b"0")
            await broker.publish("two", b"0")
            async with running(transact()) as task:
                reading = asyncio.ensure_future(values(one, 2))
                await at_rest()
                assert (reading.done(), task.done()) == (False, False)
                assert await values(two, 2) == numbers(0, 2)
                assert await reading == numbers(0, 2)
                await task


async def test_a_transaction_that_gives_up_waiting_has_done_nothing(broker: Broker) -> None:
    await fill(broker, 1)

    async def transact(delivery: runnel.Delivery[bytes]) -> None:
        async with broker.transaction() as tx:
            tx.publish("free", b"x")
            tx.publish("slow", b"2")
            tx.ack(delivery)

    async with broker.subscribe("jobs", group="g") as deliveries, broker.subscribe("slow", policy="block", buffer=1):
        delivery = await anext(deliveries)
        await broker.publish("slow", b"0")
        async with running(transact(delivery)) as task:
            task.cancel()
            await at_rest()
        assert not delivery.settled
        assert broker.statistics().topics["slow"].end == 1
        assert await stored(broker, "free") == [[]]


async def test_more_than_a_blocking_subscriber_can_ever_hold_is_refused(broker: Broker) -> None:
    async with broker.subscribe("slow", policy="block", buffer=1):
        async with refused(broker, runnel.TooLarge) as tx:
            tx.publish("slow", b"1")
            tx.publish("slow", b"2")


async def test_closing_the_broker_ends_the_waiting(place: Place) -> None:
    # A server before another has sent the commit on, and is not told whether it has begun there when it is cancelled.
    told = runnel.OutcomeUnknown if place.name == "front" else runnel.BrokerClosed
    async with place.open() as broker:

        async def transact() -> None:
            async with broker.transaction() as tx:
                tx.publish("slow", b"2")

        async with broker.subscribe("slow", policy="block", buffer=1):
            await broker.publish("slow", b"0")
            async with running(transact()) as task:
                broker.close()
                with pytest.raises(told):
                    await task
    with pytest.raises(runnel.BrokerClosed):
        await transact()


async def test_a_transaction_from_another_thread_is_carried_out_on_the_brokers_loop(broker: Broker) -> None:
    await broker.publish("a", b"0")

    def elsewhere() -> Transaction:
        async def transact() -> Transaction:
            async with broker.transaction() as tx:
                tx.publish("a", b"1")
                tx.mark("m", 1)
            return tx

        return asyncio.run(transact())

    tx = await asyncio.to_thread(elsewhere)
    assert tx.applied
    assert await stored(broker, "a") == [numbers(0, 2)]


async def test_a_pattern_that_blocks_counts_what_comes_to_all_of_its_topics() -> None:
    async with runnel.open() as broker:
        for name in ("m.a", "m.b"):
            await broker.topic(name).declare()
        async with broker.subscribe("m.*", policy="block", buffer=10) as subscription:

            async def publish_to_both() -> None:
                async with broker.transaction() as tx:
                    tx.publish_many("m.a", [b"1"] * 8)
                    tx.publish_many("m.b", [b"2"] * 8)

            with pytest.raises(runnel.TooLarge, match="is 16, more than buffer"):
                await publish_to_both()
            assert subscription.lag == 0


async def test_a_dead_letter_that_a_transaction_causes_does_not_come_before_its_own_record() -> None:
    async with runnel.open() as broker:
        for name in ("t", "dead"):
            await broker.topic(name).declare()
        async with broker.subscribe("t", buffer=1, dead_letter="dead"):
            await broker.publish("t", b"dropped")
            async with broker.transaction() as tx:
                tx.publish("t", b"kept")
                tx.publish("dead", b"first")
                tx.publish("dead", b"second", expected_offset=1)
                tx.mark("m", 1)
            async with broker.subscribe("dead", start="earliest") as letters:
                assert [(await anext(letters)).value for _ in range(3)] == [b"first", b"second", b"dropped"]
        assert await broker.marks() == {"m": 1}

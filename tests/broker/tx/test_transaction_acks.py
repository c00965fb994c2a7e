"""The acks of a transaction: checked when planned and when claimed, and undone when it is given up."""

from collections.abc import AsyncIterator

import pytest

from runnel.broker.broker import Broker
from runnel.broker.tx.transaction import GIVEN_UP, TransactionAcks
from runnel.core.errors import AlreadySettled, InvalidOption, LeaseEnded


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as opened:
        await opened.topic("jobs").publish_many([b"0", b"1", b"2"])
        yield opened


async def test_what_is_noted_is_checked_again_before_it_is_claimed(broker: Broker) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        one, two = [await anext(deliveries) for _ in range(2)]
        settling = TransactionAcks(broker.backend)
        settling.note(one)
        settling.note(two)
        settling.check()
        assert (len(settling), settling.is_kept) == (2, False)
        await two.ack()
        with pytest.raises(AlreadySettled):
            settling.check()
        broker.group("g", "jobs").reset("earliest")
        with pytest.raises(LeaseEnded):
            settling.check()


async def test_a_batch_with_an_ended_lease_is_refused_whole(broker: Broker) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        batch = await anext(deliveries.batches())
        broker.group("g", "jobs").reset("earliest")
        settling = TransactionAcks(broker.backend)
        with pytest.raises(LeaseEnded):
            settling.note(batch)
        assert len(settling) == 0
        with pytest.raises(InvalidOption, match="Delivery"):
            settling.note(b"0")  # type: ignore[arg-type]


async def test_a_delivery_whose_block_was_left_is_nacked_when_all_is_forgotten_and_the_others_stay(
    broker: Broker,
) -> None:
    async with broker.subscribe("jobs", group="g", backoff=[60.0]) as deliveries:
        left, held = [await anext(deliveries) for _ in range(2)]
        settling = TransactionAcks(broker.backend)
        settling.note(left)
        settling.note(held)
        async with left:
            pass
        assert not left.settled
        settling.forget()
        assert (left.settled, held.settled) == (True, False)
        assert broker.statistics().groups[0].scheduled == 1
        async with held:
            pass
        assert held.settled, "nobody else looks after it any more"


async def test_a_delivery_that_is_given_back_after_its_block_was_left_goes_to_the_group(broker: Broker) -> None:
    async with broker.subscribe("jobs", group="g", max_deliver=1) as deliveries:
        delivery = await anext(deliveries)
        settling = TransactionAcks(broker.backend)
        settling.note(delivery)
        async with delivery:
            pass
        settling.claim()
        settling.give_back()
        async with broker.subscribe("dead-letters.g", start="earliest") as letters:
            assert GIVEN_UP in str((await anext(letters)).headers)


async def test_in_memory_nothing_of_it_is_written(broker: Broker) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        settling = TransactionAcks(broker.backend)
        settling.note(await anext(deliveries))
        settling.claim()
        assert settling.parts() == []
        settling.settle()
        assert broker.statistics().groups[0].acked == 1

"""The acks of a transaction: claimed while it is committed, settled with it, or given back."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from runnel.api.broker import Broker
from runnel.api.transaction import ack_ranges
from runnel.broker.tx.commit import ClaimedAcks
from runnel.core.transaction import GIVEN_UP, TransactionRequest
from tests.brokers import local_broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with local_broker() as opened:
        await opened.topic("jobs").publish_many([b"0", b"1", b"2"])
        yield opened


def acking(broker: Broker, *deliveries: Any) -> tuple[TransactionRequest, ClaimedAcks]:
    request = TransactionRequest()
    for delivery in deliveries:
        request.ack(ack_ranges(broker.backend, delivery))
    return request, ClaimedAcks(broker.backend, request)


async def test_a_delivery_that_is_given_back_after_its_block_was_left_goes_to_the_group(broker: Broker) -> None:
    async with broker.subscribe("jobs", group="g", max_deliver=1) as deliveries:
        delivery = await anext(deliveries)
        _, acks = acking(broker, delivery)
        async with delivery:
            pass
        acks.claim()
        acks.give_back()
        async with broker.subscribe("dead-letters.g", start="earliest") as letters:
            assert GIVEN_UP in str((await anext(letters)).headers)


async def test_in_memory_nothing_of_it_is_written(broker: Broker) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        request, acks = acking(broker, await anext(deliveries))
        acks.claim()
        assert (acks.is_kept, acks.parts()) == (False, [])
        acks.settle()
        assert request.applied
        assert broker.statistics().groups[0].acked == 1

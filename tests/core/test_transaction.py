"""What a transaction is to do: collected, checked when it is asked for and again when it is committed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from runnel.api.broker import Broker
from runnel.api.transaction import ack_ranges
from runnel.core.errors import AlreadySettled, InvalidOption, LeaseEnded, StageEnded, TooLarge
from runnel.core.markers import Marker
from runnel.core.options import NO_TOPIC_OPTIONS
from runnel.core.publishing import MAX_ENTRY_BYTES, MAX_ENTRY_RECORDS, Append
from runnel.core.stages import StageKey
from runnel.core.transaction import TransactionRequest
from tests.brokers import local_broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with local_broker() as opened:
        await opened.topic("jobs").publish_many([b"0", b"1", b"2"])
        yield opened


def ack(broker: Broker, request: TransactionRequest, delivery: Any) -> None:
    request.ack(ack_ranges(broker.backend, delivery))


def test_it_knows_whether_there_is_anything_to_do() -> None:
    request = TransactionRequest()
    assert not request
    request.mark(Marker("m", 1))
    assert request
    assert repr(request) == "0 publishes, 0 acks, 1 marks"
    with pytest.raises(InvalidOption, match="once"):
        request.mark(Marker("m", 2))


def test_a_stage_is_committed_once() -> None:
    request, key = TransactionRequest(), StageKey("w", 1, 0, 0)
    assert request.commit(key).topic == "'w' batch 1 part 0 attempt 0"
    with pytest.raises(StageEnded, match="commits it already"):
        request.commit(key, "t")


@pytest.mark.parametrize(
    ("large", "limit"),
    [
        (Append([b""] * MAX_ENTRY_RECORDS, None, 0), "max_entry_records"),
        (Append([b""], None, MAX_ENTRY_BYTES - 1), "max_entry_bytes"),
    ],
)
async def test_more_than_an_entry_holds_is_refused_and_not_counted(broker: Broker, large: Append, limit: str) -> None:
    request, writer = TransactionRequest(), broker.backend.writer("t", None, NO_TOPIC_OPTIONS)
    request.publish(writer, large)
    with pytest.raises(TooLarge, match=limit):
        request.publish(writer, Append([b"xx"], None, 2))
    assert len(request.publishes) == 1


async def test_what_is_noted_is_checked_again_before_it_is_claimed(broker: Broker) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        one, two = [await anext(deliveries) for _ in range(2)]
        request = TransactionRequest()
        ack(broker, request, one)
        ack(broker, request, two)
        request.check_acks()
        assert len(request.acks) == 2
        await two.ack()
        with pytest.raises(AlreadySettled):
            request.check_acks()
        broker.group("g", "jobs").reset("earliest")
        with pytest.raises(LeaseEnded):
            request.check_acks()


async def test_a_batch_with_an_ended_lease_is_refused_whole(broker: Broker) -> None:
    async with broker.subscribe("jobs", group="g") as deliveries:
        batch = await anext(deliveries.batches())
        broker.group("g", "jobs").reset("earliest")
        request = TransactionRequest()
        with pytest.raises(LeaseEnded):
            ack(broker, request, batch)
        assert not request
        with pytest.raises(InvalidOption, match="Delivery"):
            ack(broker, request, b"0")


async def test_a_delivery_whose_block_was_left_is_nacked_when_all_is_forgotten_and_the_others_stay(
    broker: Broker,
) -> None:
    async with broker.subscribe("jobs", group="g", backoff=[60.0]) as deliveries:
        left, held = [await anext(deliveries) for _ in range(2)]
        request = TransactionRequest()
        ack(broker, request, left)
        ack(broker, request, held)
        async with left:
            pass
        assert not left.settled
        request.forget()
        assert (left.settled, held.settled) == (True, False)
        assert broker.statistics().groups[0].scheduled == 1
        async with held:
            pass
        assert held.settled, "nobody else looks after it any more"

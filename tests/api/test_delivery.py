"""A delivery: the record's fields, the duty to settle it, and batches of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runnel import Broker, Delivery, DeliveryBatch, GroupSubscription
from runnel.core.errors import AlreadySettled, InvalidOption, LeaseEnded
from runnel.testing.clock import JumpingClock


@asynccontextmanager
async def member(broker: Broker, *values: bytes, **options: Any) -> AsyncIterator[GroupSubscription[bytes]]:
    """A member of a group with these records before it."""
    for value in values:
        await broker.publish("t", value)
    async with broker.subscribe("t", group="g", **options) as deliveries:
        yield deliveries


def counts(broker: Broker) -> tuple[int, int, int]:
    """How many are acked, dead-lettered and not settled."""
    (group,) = broker.statistics().groups
    return group.acked, group.dead_lettered, group.lag


async def test_it_has_the_fields_of_its_record(runnel_broker: Broker) -> None:
    await runnel_broker.publish("t", b"v", key="k", headers={"h": "x", "runnel-reply-to": "answers"})
    async with member(runnel_broker) as deliveries:
        delivery = await anext(deliveries)
        record = delivery.record
        for field in ("topic", "offset", "sequence", "epoch", "position", "key", "value", "headers", "time"):
            assert getattr(delivery, field) == getattr(record, field)
        assert (delivery.value, delivery.key, delivery.attempt, delivery.reply_to) == (b"v", b"k", 1, "answers")
        assert delivery.traceparent == record.traceparent
        assert delivery.group == "g"
        assert repr(delivery) == "<Delivery 't' offset 0, attempt 1, to 'g#1'>"


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
async def test_it_is_settled_once(runnel_broker: Broker, how: str) -> None:
    settle: dict[str, Callable[[Delivery[bytes]], Awaitable[None]]] = {
        "ack": lambda delivery: delivery.ack(),
        "nack": lambda delivery: delivery.nack(delay=60),
        "reject": lambda delivery: delivery.reject("never"),
    }
    async with member(runnel_broker, b"v") as deliveries:
        delivery = await anext(deliveries)
        assert not delivery.settled
        await settle[how](delivery)
        assert delivery.settled
        before = counts(runnel_broker)
        for again in settle.values():
            with pytest.raises(AlreadySettled):
                await again(delivery)
        with pytest.raises(AlreadySettled):
            await delivery.extend(5)
        assert counts(runnel_broker) == before


async def test_settling_counts_when_the_call_is_made_awaited_or_not(runnel_broker: Broker) -> None:
    async with member(runnel_broker, b"a", b"b") as deliveries:
        accepted = (await anext(deliveries)).ack()
        assert counts(runnel_broker) == (1, 0, 1)
        await accepted
        await accepted
        (await anext(deliveries)).ack()
        assert counts(runnel_broker) == (2, 0, 0)


# -- as a block -------------------------------------------------------------------------------------------------


async def test_leaving_the_block_acks(runnel_broker: Broker) -> None:
    async with member(runnel_broker, b"v") as deliveries:
        async with await anext(deliveries) as delivery:
            assert isinstance(delivery, Delivery)
        assert delivery.settled
        assert counts(runnel_broker) == (1, 0, 0)


async def test_an_error_in_the_block_nacks_with_its_text(runnel_broker: Broker) -> None:
    async with member(runnel_broker, b"v", max_deliver=1) as deliveries:
        with pytest.raises(ZeroDivisionError):
            async with await anext(deliveries):
                raise ZeroDivisionError("no way")
        assert counts(runnel_broker) == (0, 1, 0)
    async with runnel_broker.subscribe("dead-letters.g", start="earliest") as letters:
        assert (await anext(letters)).headers["runnel-dead-letter-reason"] == "ZeroDivisionError: no way"


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
async def test_what_was_settled_in_the_block_stays_as_it_is(runnel_broker: Broker, how: str) -> None:
    async with member(runnel_broker, b"v") as deliveries:
        async with await anext(deliveries) as delivery:
            await (delivery.reject("x") if how == "reject" else getattr(delivery, how)())
        assert counts(runnel_broker) == {"ack": (1, 0, 0), "nack": (0, 0, 1), "reject": (0, 1, 0)}[how]


async def test_an_error_after_settling_changes_nothing(runnel_broker: Broker) -> None:
    async with member(runnel_broker, b"v") as deliveries:

        async def work() -> None:
            async with await anext(deliveries) as delivery:
                await delivery.ack()
                raise ValueError("afterwards")

        with pytest.raises(ValueError, match="afterwards"):
            await work()
        assert counts(runnel_broker) == (1, 0, 0)


async def test_a_block_that_outlasts_its_lease_says_so(runnel_broker: Broker, runnel_clock: JumpingClock) -> None:
    async with member(runnel_broker, b"v", ack_wait=5.0) as deliveries:
        delivery = await anext(deliveries)
        with pytest.raises(LeaseEnded, match="attempt 1"):
            async with delivery:
                await runnel_clock.advance(5.0)
        assert delivery.settled
        assert counts(runnel_broker) == (0, 0, 1)


async def test_an_error_in_a_block_that_outlasted_its_lease_is_the_error(
    runnel_broker: Broker, runnel_clock: JumpingClock
) -> None:
    async with member(runnel_broker, b"v", ack_wait=5.0) as deliveries:

        async def work() -> None:
            async with await anext(deliveries):
                await runnel_clock.advance(5.0)
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await work()
        assert (await anext(deliveries)).attempt == 2


async def test_what_was_acked_in_time_does_not_mind_that_the_lease_of_its_neighbours_ends(
    runnel_broker: Broker, runnel_clock: JumpingClock
) -> None:
    async with member(runnel_broker, b"a", b"b", ack_wait=5.0) as deliveries:
        async with await anext(deliveries) as delivery:
            await delivery.ack()
            await runnel_clock.advance(60.0)
        assert counts(runnel_broker) == (1, 0, 1)


async def test_a_cancelled_block_neither_acks_nor_counts_as_failed(runnel_broker: Broker) -> None:
    at_work = asyncio.Event()

    async def work() -> None:
        async with member(runnel_broker, b"v") as deliveries:
            async with await anext(deliveries):
                at_work.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await at_work.wait()
    task.cancel()
    await asyncio.wait([task])
    assert counts(runnel_broker) == (0, 0, 1)
    async with member(runnel_broker) as deliveries:
        assert (await anext(deliveries)).value == b"v"


# -- batches ----------------------------------------------------------------------------------------------------


async def batch_of(deliveries: GroupSubscription[bytes], **options: Any) -> DeliveryBatch[bytes]:
    return await anext(aiter(deliveries.batches(**options)))


async def test_a_batch_is_deliveries_their_values_and_one_ack(runnel_broker: Broker) -> None:
    async with member(runnel_broker, b"a", b"b", b"c") as deliveries:
        batch = await batch_of(deliveries)
        assert (len(batch), batch.values, repr(batch)) == (3, (b"a", b"b", b"c"), "<DeliveryBatch of 3 records>")
        assert [(delivery.value, delivery.offset, delivery.attempt) for delivery in batch] == [
            (b"a", 0, 1),
            (b"b", 1, 1),
            (b"c", 2, 1),
        ]
        await batch.ack()
        assert counts(runnel_broker) == (3, 0, 0)


async def test_a_batch_ack_leaves_alone_what_was_settled_before(runnel_broker: Broker) -> None:
    async with member(runnel_broker, b"a", b"b", b"c") as deliveries:
        batch = await batch_of(deliveries)
        first, second, _ = batch
        await first.nack(delay=60)
        await second.reject("bad")
        await batch.ack()
        assert counts(runnel_broker) == (1, 1, 1)
        await batch.ack()
        assert counts(runnel_broker) == (1, 1, 1)


async def test_a_batch_can_be_nacked_or_rejected_but_for_what_is_settled(runnel_broker: Broker) -> None:
    async with member(runnel_broker, b"a", b"b", b"c") as deliveries:
        iterator = aiter(deliveries.batches())
        batch = await anext(iterator)
        await next(iter(batch)).ack()
        await batch.nack(delay=0)
        assert counts(runnel_broker) == (1, 0, 2)
        batch = await anext(iterator)
        assert [(delivery.value, delivery.attempt) for delivery in batch] == [(b"b", 2), (b"c", 2)]
        await next(iter(batch)).ack()
        await batch.reject("bad")
        assert counts(runnel_broker) == (2, 1, 0)
        await batch.nack()
        await batch.reject("again")
        assert counts(runnel_broker) == (2, 1, 0)


async def test_a_batch_whose_lease_has_ended_is_acked_too_late(
    runnel_broker: Broker, runnel_clock: JumpingClock
) -> None:
    async with member(runnel_broker, b"a", b"b", ack_wait=5.0) as deliveries:
        batch = await batch_of(deliveries)
        await runnel_clock.advance(5.0)
        with pytest.raises(LeaseEnded):
            await batch.ack()
        assert counts(runnel_broker) == (0, 0, 2)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
async def test_negative_times_are_refused(runnel_broker: Broker, seconds: float) -> None:
    async with member(runnel_broker, b"a") as deliveries:
        delivery = await anext(deliveries)
        with pytest.raises(InvalidOption, match="delay"):
            await delivery.nack(delay=seconds)
        with pytest.raises(InvalidOption, match="seconds"):
            await delivery.extend(seconds)
        assert not delivery.settled

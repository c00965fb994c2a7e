"""Stored once, however often it is sent: by a producer's numbers, or by a message id. In every place, and for good."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker, Position, Producer
from runnel.core.deduplication import MAX_MESSAGE_ID_SECONDS as TWO_MINUTES
from runnel.core.deduplication import MAX_PRODUCER_SECONDS as A_DAY
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.lives import ON_DISK, Folder
from tests.contract.reading import at_rest, values


class Order(msgspec.Struct):
    id: int


async def stored(broker: Broker, topic: str, count: int) -> list[bytes]:
    """All that a topic holds, which must be so many records."""
    assert broker.statistics().topics[topic].end == count
    async with broker.subscribe(topic, start="earliest") as everything:
        return await values(everything, count)


# -- producers --------------------------------------------------------------------------------------------------


@on_every_socket
async def test_a_number_sent_again_gives_the_first_position_and_stores_nothing(broker: Broker) -> None:
    producer = broker.producer("import")
    first = await producer.publish("t", b"a", sequence=0)
    await broker.publish("t", b"of somebody else")
    second = await producer.publish("t", b"b", sequence=1)
    assert await producer.publish("t", b"a", sequence=0) == first
    assert await producer.publish("t", b"b", sequence=1) == second
    assert await stored(broker, "t", 3) == [b"a", b"of somebody else", b"b"]


async def test_a_list_sent_again_gives_the_first_span(broker: Broker) -> None:
    producer = broker.producer()
    span = await producer.publish_many("t", [b"a", b"b", b"c"], sequence=5)
    assert span.records() == 3
    assert await producer.publish_many("t", [b"a", b"b", b"c"], sequence=5) == span
    assert await producer.publish("t", b"c", sequence=7) == span.last
    assert producer.next == 8
    assert await stored(broker, "t", 3) == [b"a", b"b", b"c"]


async def test_without_a_number_a_record_gets_the_next_one(broker: Broker) -> None:
    producer = broker.producer("n")
    assert producer.next == 0
    await producer.publish("t", b"a")
    await producer.publish_many("u", [b"b", b"c"])
    assert producer.next == 3
    again = await producer.publish("u", b"c", sequence=2)
    assert again.offset == 1


async def test_numbers_count_over_all_topics(broker: Broker) -> None:
    producer = broker.producer()
    await producer.publish("t", b"a", sequence=0)
    with pytest.raises(runnel.SequenceGap) as gap:
        await producer.publish("u", b"c", sequence=2)
    assert (gap.value.expected, gap.value.got, gap.value.producer) == (1, 2, producer.id)
    await producer.publish("u", b"b", sequence=1)
    await producer.publish("u", b"c", sequence=2)


async def test_sent_again_to_another_topic_it_is_still_where_it_was_stored_first(broker: Broker) -> None:
    producer = broker.producer()
    first = await producer.publish("t", b"a", sequence=0)
    assert await producer.publish("u", b"a", sequence=0) == first
    assert broker.statistics().topics["u"].end == 0


@on_every_socket
async def test_a_list_that_is_half_new_is_refused_and_says_where_to_go_on(broker: Broker) -> None:
    producer = broker.producer()
    await producer.publish_many("t", [b"0", b"1"], sequence=0)
    with pytest.raises(runnel.SequenceOverlap) as overlap:
        await producer.publish_many("t", [b"1", b"2"], sequence=1)
    assert overlap.value.stored == 2
    assert await stored(broker, "t", 2) == [b"0", b"1"]


async def test_where_a_number_lies_is_forgotten_after_64_publishes_that_it_was_stored_is_not(broker: Broker) -> None:
    producer = broker.producer()
    for number in range(70):
        await producer.publish("tu"[number % 2], b"x", sequence=number)
    with pytest.raises(runnel.SequenceForgotten):
        await producer.publish("t", b"x", sequence=0)
    assert (await producer.publish("t", b"x", sequence=68)).offset == 34


async def test_two_of_one_name_are_one_and_those_without_are_not(broker: Broker) -> None:
    one, same = broker.producer("a"), broker.producer("a")
    await one.publish("t", b"0", sequence=0)
    await same.publish("t", b"1")
    assert (one.id, one.next) == (same.id, 2)
    new, other = broker.producer(), broker.producer()
    assert len({new.id, other.id, one.id, 0}) == 4
    await new.publish("t", b"2", sequence=0)
    await other.publish("t", b"3", sequence=0)
    assert await stored(broker, "t", 4) == [b"0", b"1", b"2", b"3"]


async def test_a_typed_topic_is_published_to_by_its_handle(broker: Broker) -> None:
    orders = broker.topic("orders", Order)
    producer = broker.producer()
    await producer.publish(orders, Order(1), key="k", headers={"h": "v"})
    await producer.publish_many(orders, [Order(2), Order(3)], keys=["a", None])
    async with orders.subscribe(start="earliest") as found:
        first, second, _ = [await anext(found) for _ in range(3)]
    assert (first.value, first.key, first.headers["h"], second.key) == (Order(1), b"k", "v", b"a")
    with pytest.raises(runnel.ValidationFailed):
        await producer.publish("orders", b"{}")
    assert producer.next == 3


async def test_what_is_refused_takes_no_number(broker: Broker) -> None:
    producer = broker.producer()
    for wrong in (-1, True, 1.5, 2**63):
        with pytest.raises(runnel.InvalidOption, match="sequence"):
            await producer.publish("t", b"x", sequence=wrong)  # type: ignore[arg-type]
    with pytest.raises(runnel.InvalidValue):
        await producer.publish("t", 5)
    with pytest.raises(runnel.InvalidOption):
        await producer.publish_many("t", [])
    assert producer.next == 0
    await producer.publish("t", b"a", sequence=0)


async def test_publishes_of_many_tasks_are_numbered_in_the_order_they_were_made(broker: Broker) -> None:
    producer = broker.producer()
    places = await asyncio.gather(*(producer.publish("tu"[n % 2], str(n)) for n in range(50)))
    assert [place.offset for place in places] == [n // 2 for n in range(50)]
    assert producer.next == 50
    again = await asyncio.gather(*(producer.publish("tu"[n % 2], b"", sequence=n) for n in range(49, 0, -7)))
    assert again == places[49:0:-7]


async def test_a_topic_that_has_no_room_makes_those_for_others_wait_too(broker: Broker) -> None:
    producer = broker.producer()
    async with broker.subscribe("slow", policy="block", buffer=1) as slow:
        await producer.publish("slow", b"0", sequence=0)
        await at_rest()
        waiting = [
            asyncio.create_task(producer.publish(topic, str(number), sequence=number))
            for number, topic in ((1, "slow"), (2, "quick"), (3, "slow"), (4, "quick"))
        ]
        await at_rest()
        assert not any(task.done() for task in waiting)
        assert producer.next == 1
        assert await values(slow, 3) == [b"0", b"1", b"3"]
        assert [(await task).offset for task in waiting] == [1, 0, 2, 1]
    await producer.publish("quick", b"5")  # nothing is left in line


async def test_one_that_gave_up_waiting_may_be_sent_again_and_does_not_hold_up_the_others(broker: Broker) -> None:
    producer = broker.producer()
    async with broker.subscribe("slow", policy="block", buffer=1) as slow:
        await producer.publish("slow", b"0", sequence=0)
        first, second, third = [
            asyncio.create_task(producer.publish("slow", str(number), sequence=number)) for number in (1, 2, 1)
        ]
        await at_rest()
        first.cancel()
        await at_rest()
        with pytest.raises(runnel.SequenceGap):  # nobody else could know that 1 comes again
            await second
        assert await values(slow, 2) == [b"0", b"1"]
        assert (await third).offset == 1


async def test_a_producer_is_forgotten_after_a_day_and_goes_on_by_itself(broker: Broker, clock: JumpingClock) -> None:
    producer = broker.producer("n")
    await producer.publish("t", b"a", sequence=0)
    await clock.advance(A_DAY - 1)
    assert (await producer.publish("t", b"a", sequence=0)).offset == 0
    await clock.advance(1)
    assert broker.producer("n").next == 0  # so a new one is not warned
    assert producer.next == 1  # and this one knows what it did
    await producer.publish("t", b"b")
    assert broker.producer("n").next == 2


async def test_a_topic_made_again_holds_nothing_of_the_old_one(broker: Broker) -> None:
    producer = broker.producer()
    first = await producer.publish("t", b"a", sequence=0)
    await broker.delete("t")
    assert await producer.publish("t", b"a", sequence=0) == first  # it was stored, and then deleted
    second = await producer.publish("t", b"b")
    assert second == Position(second.epoch, 0)
    assert second.epoch > first.epoch


async def test_a_topic_of_another_broker_is_refused(broker: Broker, place: Place) -> None:
    async with place.open() as other:
        with pytest.raises(runnel.InvalidOption, match="another broker"):
            await broker.producer().publish(other.topic("t"), b"a")


async def test_a_name_is_a_short_text(broker: Broker) -> None:
    for wrong in ("", "x" * 257, 5):
        with pytest.raises(runnel.InvalidOption, match="name"):
            broker.producer(wrong)  # type: ignore[arg-type]
    assert repr(broker.producer("a")) == "<Producer 'a'>"


async def test_other_threads_publish_with_numbers_too(broker: Broker) -> None:
    producer = broker.producer()

    def elsewhere() -> Any:
        async def publish() -> Any:
            await producer.publish("t", b"a")
            return await producer.publish_many("t", [b"b", b"c"]), producer.next

        return asyncio.run(publish())

    span, following = await asyncio.to_thread(elsewhere)
    assert (span.first.offset, span.last.offset, following) == (1, 2, 3)


async def test_a_closed_broker_says_so() -> None:
    async with runnel.open() as broker:
        producer = broker.producer("n")
    with pytest.raises(runnel.BrokerClosed):
        await producer.publish("t", b"a")
    with pytest.raises(runnel.BrokerClosed):
        _ = producer.next


# -- message ids ------------------------------------------------------------------------------------------------


async def test_a_message_id_counts_for_its_topic_alone(broker: Broker) -> None:
    assert (await broker.publish("t", b"a", message_id="m")).offset == 0
    assert (await broker.publish("u", b"x")).offset == 0
    assert (await broker.publish("u", b"a", message_id="m")).offset == 1
    assert (await broker.publish("t", b"other", message_id="m")).offset == 0


async def test_records_published_without_waiting_are_distinguished_too(broker: Broker) -> None:
    topic = broker.topic("t")
    for _ in range(3):
        topic.publish_nowait(b"a", message_id="m")
        topic.publish_nowait(b"b", message_id="n")
    assert (await topic.publish(b"a", message_id="m")).offset == 0
    assert (await topic.publish(b"b", message_id="n")).offset == 1
    assert await stored(broker, "t", 2) == [b"a", b"b"]


@pytest.mark.near("it looks at what the broker remembers, and makes that little")
async def test_of_all_topics_together_the_oldest_ids_are_forgotten(broker: Broker) -> None:
    broker.backend.publisher.deduplicator._ids_allowed.limit = 64
    for number in range(65):
        await broker.publish(f"t{number % 4}", b"x", message_id=str(number))
    assert "63 message ids" in repr(broker.backend.publisher.deduplicator)
    assert (await broker.publish("t0", b"x", message_id="0")).offset == 17  # stored again
    assert (await broker.publish("t2", b"x", message_id="2")).offset == 0


# -- restarts ---------------------------------------------------------------------------------------------------


async def test_a_producer_goes_on_where_it_was_when_the_broker_went(folder: Folder) -> None:
    async with folder.life() as broker:
        producer = broker.producer("import")
        spans = [await producer.publish_many("t", [b"%d" % n, b"+"]) for n in range(3)]
        await broker.publish("t", b"between")
        last = await producer.publish("u", b"last")
    async with folder.life() as broker:
        producer = broker.producer("import")
        assert producer.next == 7
        assert await producer.publish("u", b"last", sequence=6) == last
        assert await producer.publish_many("t", [b"1", b"+"], sequence=2) == spans[1]
        with pytest.raises(runnel.SequenceGap):
            await producer.publish("t", b"x", sequence=8)
        assert (await producer.publish("t", b"new")).offset == 7
    async with folder.life() as broker:
        assert broker.producer("import").next == 8
        assert len(await stored(broker, "t", 8)) == 8


async def test_an_importer_that_dies_at_any_line_imports_each_line_once(folder: Folder) -> None:
    lines = [b"line %d" % number for number in range(40)]

    async def run(producer: Producer, most: int) -> None:
        for number in range(producer.next, min(len(lines), producer.next + most)):
            await producer.publish("lines", lines[number], sequence=number)

    for most in (7, 0, 1, 20, 99):
        async with folder.life(**ON_DISK) as broker:
            await run(broker.producer("import"), most)
    async with folder.life() as broker:
        assert await stored(broker, "lines", 40) == lines


async def test_producers_survive_many_segments_and_their_checkpoints(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        early = await broker.producer("early").publish("t", b"early", sequence=41)
        ours = broker.producer("ours")
        for _ in range(30):
            await ours.publish_many("t", [bytes(1000)] * 5)
    assert len(folder.segments()) > 3
    async with folder.life(**ON_DISK) as broker:
        assert (broker.producer("early").next, broker.producer("ours").next) == (42, 150)
        assert await broker.producer("early").publish("t", b"early", sequence=41) == early


async def test_a_message_id_is_remembered_when_the_broker_went(folder: Folder) -> None:
    async with folder.life() as broker:
        first = await broker.publish("t", b"a", message_id="m")
        await broker.publish("t", b"b", message_id="n")
    await folder.clock.advance(TWO_MINUTES - 1)
    async with folder.life() as broker:
        assert await broker.publish("t", b"a", message_id="m") == first
        assert await stored(broker, "t", 2) == [b"a", b"b"]
    await folder.clock.advance(1)
    async with folder.life() as broker:
        assert (await broker.publish("t", b"a", message_id="m")).offset == 2


async def test_ids_survive_many_segments_and_their_checkpoints(folder: Folder) -> None:
    async with folder.life(**ON_DISK) as broker:
        for number in range(60):
            await broker.publish("t", bytes(1000), message_id=f"id {number}")
    assert len(folder.segments()) > 3
    async with folder.life(**ON_DISK) as broker:
        places = [await broker.publish("t", b"", message_id=f"id {number}") for number in range(60)]
        assert [place.offset for place in places] == list(range(60))
        assert broker.statistics().topics["t"].end == 60


async def test_the_ids_of_a_topic_go_with_it(folder: Folder) -> None:
    async with folder.life() as broker:
        first = await broker.publish("t", b"a", message_id="m")
        await broker.delete("t")
        second = await broker.publish("t", b"a", message_id="m")
        assert second.epoch > first.epoch
    async with folder.life() as broker:
        assert await broker.publish("t", b"a", message_id="m") == second


async def test_a_producer_that_was_forgotten_stays_so(folder: Folder) -> None:
    async with folder.life() as broker:
        await broker.producer("n").publish("t", b"a", sequence=7)
    await folder.clock.advance(A_DAY)
    async with folder.life() as broker:
        assert broker.producer("n").next == 0
        assert (await broker.producer("n").publish("t", b"a", sequence=7)).offset == 1

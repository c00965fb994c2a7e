"""Transactions: publishes, acks and marks that happen together or not at all."""

import asyncio
from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.lives import Folder
from tests.contract.reading import at_rest, read, running, values
from tests.contract.transacting import refused, stored
from tests.contract.working import fill, numbers, take, work
from tests.patience import PATIENCE


class Paid(msgspec.Struct):
    order: int


# -- publishing --------------------------------------------------------------------------------------------------------


@on_every_socket
async def test_all_of_it_is_there_after_the_block_and_nothing_before(broker: Broker) -> None:
    async with broker.transaction() as tx:
        one = tx.publish("a", b"1", key=b"k", headers={"h": "x"})
        two = await tx.publish("b", "2")
        many = tx.publish_many("a", [b"3", b"4"], keys=[None, b"4"])
        await at_rest()
        assert not tx.applied
        assert await broker.topics() == []
        with pytest.raises(runnel.NotSupported, match="known when the block is left"):
            _ = one.position
    assert tx.applied
    assert await stored(broker, "a", "b") == [[b"1", b"3", b"4"], [b"2"]]
    assert (one.position.offset, two.position.offset) == (0, 0)
    assert [position.offset for position in many.span] == [1, 2]
    assert many.position == many.span.first
    async with broker.subscribe("a", start="earliest") as subscription:
        records = await read(subscription, 3)
    assert [record.key for record in records] == [b"k", None, b"4"]
    assert records[0].headers["h"] == "x"
    assert [record.position for record in records] == [one.position, many.span.first, many.span.last]


async def test_a_pattern_sees_all_of_it_at_once_and_in_the_order_of_the_publishes(broker: Broker) -> None:
    async with broker.subscribe("t.*") as subscription:
        async with broker.transaction() as tx:
            for number in range(6):
                tx.publish(f"t.{number % 3}", b"%d" % number)
        batch = await anext(subscription.batches())
    assert len(batch) == 6
    sequences = [record.sequence for record in batch]
    assert sequences == list(range(sequences[0], sequences[0] + 6))
    assert [record.value for record in batch] == numbers(0, 6)


@on_every_socket
async def test_an_exception_in_the_block_leaves_nothing(broker: Broker) -> None:
    async with refused(broker, ZeroDivisionError) as tx:
        tx.publish("a", b"1")
        tx.mark("m", 1)
        _ = 1 // 0
    assert not tx.applied
    assert await broker.topics() == []
    assert await broker.marks() == {}


async def test_cancelling_the_block_leaves_nothing(broker: Broker) -> None:
    async def transact() -> None:
        async with broker.transaction() as tx:
            tx.publish("a", b"1")
            await asyncio.Event().wait()

    async with running(transact()) as task:
        task.cancel()
        await at_rest()
    assert await broker.topics() == []


async def test_an_empty_transaction_is_nothing(broker: Broker) -> None:
    async with broker.transaction() as tx:
        pass
    assert not tx.applied


async def test_a_typed_topic_encodes_and_refuses_in_the_block(broker: Broker) -> None:
    paid = broker.topic("paid", Paid)
    async with broker.transaction() as tx:
        with pytest.raises(runnel.RunnelError):
            tx.publish(paid, 7)  # type: ignore[misc]
        tx.publish(paid, Paid(1))
        tx.publish_many(paid, [Paid(2), Paid(3)])
    async with paid.subscribe(start="earliest") as subscription:
        assert await values(subscription, 3) == [Paid(1), Paid(2), Paid(3)]


async def test_what_does_not_fit_the_type_of_a_topic_stops_all_of_it(broker: Broker) -> None:
    await broker.topic("paid", Paid).publish(Paid(1))
    async with refused(broker, runnel.ValidationFailed) as tx:
        tx.publish("a", b"1")
        tx.publish("paid", b"{}")
    assert broker.statistics().topics["paid"].end == 1
    assert await stored(broker, "a") == [[]]


async def test_a_transaction_is_used_once_and_in_its_block(broker: Broker) -> None:
    tx = broker.transaction()
    with pytest.raises(runnel.NotSupported, match="outside of its block"):
        tx.publish("a", b"1")
    async with tx:
        pass
    for late in (lambda: tx.publish("a", b"1"), lambda: tx.mark("m", 1)):
        with pytest.raises(runnel.TransactionEnded):
            late()
    with pytest.raises(runnel.TransactionEnded):
        await tx.__aenter__()


async def test_more_than_a_transaction_can_hold_is_refused_in_the_block(broker: Broker) -> None:
    large = b"x" * (16 * 1024 * 1024)
    async with broker.transaction() as tx:
        for _ in range(4):
            tx.publish("a", large)
        with pytest.raises(runnel.TooLarge, match="stage"):
            tx.publish("b", b"x")
        tx._request.publishes.clear()  # 64 MiB need not be written to know that


async def test_values_that_are_changed_later_are_published_as_they_were(broker: Broker) -> None:
    mine: list[Any] = [b"1", b"2"]
    async with broker.transaction() as tx:
        tx.publish_many("a", mine)
        mine.clear()
    assert await stored(broker, "a") == [[b"1", b"2"]]


async def test_a_message_id_that_was_seen_is_left_out_and_has_its_first_position(broker: Broker) -> None:
    first = await broker.publish("a", b"1", message_id="one")
    async with broker.transaction() as tx:
        again = tx.publish("a", b"again", message_id="one")
        new = tx.publish("a", b"2", message_id="two")
        twice = tx.publish("a", b"2", message_id="two")
    assert again.position == first
    assert (new.position.offset, twice.position.offset) == (1, 1)
    assert await stored(broker, "a") == [[b"1", b"2"]]
    assert await broker.publish("a", b"2", message_id="two") == new.position


async def test_without_auto_create_an_unknown_topic_stops_all_of_it(place: Place) -> None:
    async with place.open(auto_create=False) as broker:
        await broker.topic("a").declare()
        async with refused(broker, runnel.UnknownTopic) as tx:
            tx.publish("a", b"1")
            tx.publish("b", b"1")
        assert broker.statistics().topics["a"].end == 0


# -- compare and publish -----------------------------------------------------------------------------------------------


async def test_a_publish_gets_the_offset_that_it_expects_or_is_refused(broker: Broker) -> None:
    topic = broker.topic("a")
    assert (await topic.publish(b"0", expected_offset=0)).offset == 0
    assert (await broker.publish("a", b"1", expected_offset=1)).offset == 1
    assert (await topic.publish_many([b"2", b"3"], expected_offset=2)).last.offset == 3
    for late in (0, 3, 5):
        with pytest.raises(runnel.OffsetConflict) as caught:
            await topic.publish(b"x", expected_offset=late)
        assert (caught.value.topic, caught.value.expected, caught.value.actual) == ("a", late, 4)
        with pytest.raises(runnel.OffsetConflict):
            await topic.publish_many([b"x"], expected_offset=late)
    assert await stored(broker, "a") == [numbers(0, 4)]


@on_every_socket
async def test_of_two_who_expect_the_same_offset_one_wins(broker: Broker) -> None:
    topic = broker.topic("a")
    outcomes = await asyncio.gather(
        *(topic.publish(b"%d" % number, expected_offset=0) for number in range(5)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [runnel.Position] + [runnel.OffsetConflict] * 4
    assert await stored(broker, "a") == [[b"0"]]


@pytest.mark.parametrize("wrong", [-1, True, "0", 1.0])
async def test_an_offset_that_is_none_cannot_be_expected(broker: Broker, wrong: Any) -> None:
    with pytest.raises(runnel.InvalidOption, match="expected_offset"):
        await broker.publish("a", b"1", expected_offset=wrong)
    async with broker.transaction() as tx:
        with pytest.raises(runnel.InvalidOption, match="expected_offset"):
            tx.publish("a", b"1", expected_offset=wrong)


async def test_in_a_transaction_an_expected_offset_counts_what_it_publishes_itself(broker: Broker) -> None:
    async with broker.transaction() as tx:
        tx.publish("a", b"0", expected_offset=0)
        tx.publish_many("a", [b"1", b"2"], expected_offset=1)
        tx.publish("a", b"3", expected_offset=3)
    assert await stored(broker, "a") == [numbers(0, 4)]


@pytest.mark.parametrize("expected", [0, 2])
async def test_an_offset_that_is_not_the_expected_one_stops_all_of_it(broker: Broker, expected: int) -> None:
    await broker.publish("a", b"0")
    async with refused(broker, runnel.OffsetConflict) as tx:
        tx.publish("b", b"1")
        tx.publish("a", b"1", expected_offset=expected)
        tx.mark("m", 1)
    assert await stored(broker, "a", "b") == [[b"0"], []]
    assert await broker.mark("m") is None


async def test_no_topic_is_made_for_a_transaction_that_expected_more_of_it(broker: Broker) -> None:
    async with refused(broker, runnel.OffsetConflict) as tx:
        tx.publish("b", b"1")
        tx.publish("a", b"1", expected_offset=4)
    assert await broker.topics() == []


# -- lives -------------------------------------------------------------------------------------------------------------


async def test_the_next_life_finds_all_of_it(folder: Folder) -> None:
    async with folder.life() as broker:
        await fill(broker, 3)
        async with broker.subscribe("jobs", group="g") as deliveries:
            held = await take(deliveries, 2)
            async with broker.transaction() as tx:
                tx.publish("done", b"0")
                tx.publish("done", b"1", message_id="one")
                tx.ack(held[1])
                tx.mark("m", b"here")
                tx.mark("n", 1)
            async with broker.transaction() as tx:
                tx.mark("n", None)
    async with folder.life() as broker:
        assert await stored(broker, "done") == [numbers(0, 2)]
        assert await broker.marks() == {"m": b"here"}
        assert (await broker.publish("done", b"1", message_id="one")).offset == 1
        async with broker.transaction() as tx:
            tx.publish("done", b"never")
            tx.mark("m", b"here")
        assert not tx.applied
        async with broker.subscribe("jobs", group="g") as deliveries:
            assert sorted(await work(deliveries, 2)) == [b"0", b"2"]


async def test_topics_in_memory_join_in_when_the_rest_has_landed(data: Folder) -> None:
    async with data.life() as broker:
        await broker.topic("memory", durable=False).publish(b"0")
        async with broker.transaction() as tx:
            memory = tx.publish("memory", b"1")
            tx.publish("disk", b"1")
        assert memory.position.offset == 1
        async with refused(broker, runnel.NotSupported, match="in memory") as tx:
            tx.publish("memory", b"2", expected_offset=2)
            tx.publish("disk", b"2")
        assert await stored(broker, "memory", "disk") == [numbers(0, 2), [b"1"]]
        async with broker.transaction() as tx:
            tx.publish("memory", b"2", expected_offset=2)
        async with broker.subscribe("memory", group="g") as deliveries:
            held = await take(deliveries, 3)
            async with broker.transaction() as tx:
                tx.ack(held[0])
                tx.publish("disk", b"2")
            assert held[0].settled


# -- compare and publish -----------------------------------------------------------------------------------------------


async def test_those_who_read_decide_and_try_again_get_on(broker: Broker) -> None:
    counter = broker.topic("counter")
    await counter.publish("0")

    async def count_up(times: int, *, transacted: bool) -> None:
        while times:
            end = broker.statistics().topics["counter"].end
            async with counter.subscribe(start=end - 1) as subscription:
                number = int((await anext(subscription)).value)
            try:
                if transacted:
                    async with broker.transaction() as tx:
                        tx.publish(counter, str(number + 1), expected_offset=end)
                else:
                    await counter.publish(str(number + 1), expected_offset=end)
                times -= 1
            except runnel.OffsetConflict:
                pass  # and again, at once: nothing here waits for the disk but publishing itself

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(count_up(5, transacted=task % 2 == 0) for task in range(4)))
    assert await stored(broker, "counter") == [[b"%d" % number for number in range(21)]]


async def test_a_transaction_that_is_refused_leaves_no_topics_behind(broker: Broker) -> None:
    await broker.publish("old", b"x")

    async def expect(topic: str, offset: int) -> None:
        async with broker.transaction() as tx:
            tx.publish("other", b"1")
            tx.publish(topic, b"2", expected_offset=offset)

    for topic, offset in (("old", 99), ("new", 1)):
        with pytest.raises(runnel.OffsetConflict):
            await expect(topic, offset)
        assert await broker.topics() == ["old"]


async def test_a_topic_that_is_made_by_the_transaction_has_the_offsets_that_are_expected(broker: Broker) -> None:
    async with broker.transaction() as tx:
        tx.publish("new", b"first", expected_offset=0)
        tx.publish_many("new", [b"second", b"third"])
        last = tx.publish("new", b"fourth", expected_offset=3)
    assert await stored(broker, "new") == [[b"first", b"second", b"third", b"fourth"]]
    assert last.position.offset == 3

"""What happens to a slow subscriber, by policy: and to it alone."""

import asyncio
from typing import Any

import pytest

import runnel
from runnel import Broker, Gap, Policy, Record, Subscription
from runnel.testing.clock import JumpingClock
from tests.contract.afar import on_every_socket
from tests.contract.reading import at_rest, read, rest, running, values, visible
from tests.patience import PATIENCE

POLICIES = ["drop_oldest", "drop_newest", "block", "disconnect"]


def span(gap: Gap | None) -> tuple[int, int, int | None] | None:
    """(from, to, how many)."""
    return None if gap is None else (gap.first, gap.end, gap.count)


async def flood(broker: Broker, count: int, topic: str = "t", start: int = 0) -> None:
    """Publish without letting anybody read in between, so that `topic` reaches to `start + count`."""
    for number in range(start, start + count):
        broker.topic(topic).publish_nowait(b"%d" % number)
    await visible(broker, topic, start + count)


async def unread(subscription: Subscription[bytes], broker: Broker) -> list[tuple[bytes, Any]]:
    """What is left for it, with the gaps, once the broker closes."""
    broker.close()
    return [(record.value, span(record.gap)) for record in await rest(subscription)]


# -- dropping ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_drop_oldest_keeps_the_newest_and_tells_what_went(broker: Broker, pattern: str) -> None:
    async with broker.subscribe(pattern, buffer=3) as subscription:
        await flood(broker, 10)
        assert await unread(subscription, broker) == [(b"7", (0, 7, 7)), (b"8", None), (b"9", None)]


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_drop_newest_keeps_the_oldest_and_tells_what_went(broker: Broker, pattern: str) -> None:
    async with broker.subscribe(pattern, buffer=3, policy="drop_newest") as subscription:
        await flood(broker, 10)
        assert await values(subscription, 3) == [b"0", b"1", b"2"]
        async with running(read(subscription, 1)) as reader:
            await broker.publish("t", b"new")
            (record,) = await reader
    assert (record.value, record.offset, span(record.gap)) == (b"new", 10, (3, 10, 7))


async def test_drop_newest_takes_again_as_soon_as_one_record_is_done_with(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=2, policy="drop_newest") as subscription:
        await flood(broker, 4)
        await read(subscription, 1)
        await flood(broker, 1, start=4)  # the first is still in hand: no room
        await read(subscription, 1)
        await flood(broker, 2, start=5)  # room for one
        broker.close()
        assert [(record.value, span(record.gap)) for record in await rest(subscription)] == [(b"5", (2, 5, 3))]


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("by", ["publish_nowait", "publish_many"])
async def test_the_bytes_bound_as_well_as_the_count(broker: Broker, pattern: str, by: str) -> None:
    topic = broker.topic("t")
    async with (
        broker.subscribe(pattern, buffer_bytes=250) as oldest,
        broker.subscribe(pattern, buffer_bytes=250, policy="drop_newest") as newest,
    ):
        data = [b"%d" % number * 100 for number in range(5)]
        if by == "publish_many":
            await topic.publish_many(data)
        else:
            for value in data:
                topic.publish_nowait(value)
        broker.close()
        dropped_old, dropped_new = await rest(oldest), await rest(newest)
    assert [(record.offset, span(record.gap)) for record in dropped_old] == [(3, (0, 3, 3)), (4, None)]
    assert [(record.offset, span(record.gap)) for record in dropped_new] == [(0, None), (1, None)]


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
async def test_one_record_always_fits_however_large(broker: Broker, policy: str) -> None:
    async with broker.subscribe("t", buffer_bytes=10, policy=policy) as subscription:
        for _ in range(3):
            async with running(values(subscription, 1)) as reader:  # it asked beyond the one before
                await broker.publish("t", bytes(1000))
                assert await reader == [bytes(1000)]
        assert broker.statistics().dropped == 0


@on_every_socket
async def test_by_default_a_subscriber_lags_by_at_most_1024_records(broker: Broker) -> None:
    await broker.topic("t", durable=False).declare()  # what is on disk may be read at any pace
    async with broker.subscribe("t") as subscription:
        await flood(broker, 1025)
        record = await anext(subscription)
    assert (record.offset, span(record.gap)) == (1, (0, 1, 1))


async def test_a_publisher_that_awaits_lets_readers_keep_up(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=10) as subscription:
        async with running(values(subscription, 1000)) as reader:
            for number in range(1000):
                await broker.publish("t", b"%d" % number)
            assert await reader == [b"%d" % number for number in range(1000)]
            assert broker.statistics().dropped == 0


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_subscriber_that_never_reads_harms_no_other(broker: Broker, policy: str) -> None:
    sleeper = broker.subscribe("t", buffer=10, policy=policy, name="sleeper")
    async with sleeper, broker.subscribe("t") as reader, broker.subscribe("*") as watcher:
        if policy == "block":
            await flood(broker, 10)
        else:
            await flood(broker, 100)
            await flood(broker, 100, start=100)
        expected = [b"%d" % number for number in range(10 if policy == "block" else 200)]
        assert await values(reader, len(expected)) == expected
        assert await values(watcher, len(expected)) == expected


# -- block ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_block_makes_publishers_wait_and_loses_nothing(broker: Broker, pattern: str) -> None:
    async with broker.subscribe(pattern, buffer=2, policy="block") as subscription:

        async def publish() -> None:
            for number in range(10):
                await broker.publish("t", b"%d" % number)

        async with running(publish()) as publisher:
            assert broker.statistics().topics["t"].published == 2
            assert broker.statistics().waiting_publishers == 1
            assert await values(subscription, 10) == [b"%d" % number for number in range(10)]
            await publisher
    assert broker.statistics().dropped == 0


@pytest.mark.near("publish_nowait hands over; how full a subscriber is, the server knows")
async def test_a_record_in_hand_still_counts_against_the_bound(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=1, policy="block") as subscription:
        await broker.publish("t", b"a")
        await anext(subscription)
        with pytest.raises(runnel.Full):
            broker.topic("t").publish_nowait(b"b")
        async with running(anext(subscription)):
            broker.topic("t").publish_nowait(b"b")


@pytest.mark.near("publish_nowait hands over; how full a subscriber is, the server knows")
async def test_publish_nowait_says_who_is_full(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=2, policy="block", name="slow"):
        await flood(broker, 2)
        with pytest.raises(runnel.Full, match="'slow' holds its bound of 2") as caught:
            broker.topic("t").publish_nowait(b"x")
        assert (caught.value.topic, caught.value.subscriber) == ("t", "slow")
        assert broker.statistics().topics["t"].published == 2


@pytest.mark.near("publish_nowait hands over; how full a subscriber is, the server knows")
async def test_block_bounds_bytes_too(broker: Broker) -> None:
    async with broker.subscribe("t", buffer_bytes=250, policy="block") as subscription:
        topic = broker.topic("t")
        topic.publish_nowait(bytes(100))
        topic.publish_nowait(bytes(100))
        with pytest.raises(runnel.Full):
            topic.publish_nowait(bytes(100))
        topic.publish_nowait(bytes(50))
        await read(subscription, 3)
        async with running(anext(subscription)):
            topic.publish_nowait(bytes(1000))  # more than the bound, and nothing else waits


@on_every_socket
async def test_block_times_out_and_then_nothing_was_published(broker: Broker, clock: JumpingClock) -> None:
    async with broker.subscribe("t", buffer=1, policy=Policy.block(timeout=5), name="slow") as subscription:
        await broker.publish("t", b"a")
        async with running(broker.publish("t", b"b")) as publisher:
            await clock.advance(4.9)
            assert not publisher.done()
            await clock.advance(0.1)
            with pytest.raises(runnel.PublishTimeout, match="'slow' made no room on 't' within 5 s"):
                await publisher
        assert await values(subscription, 1) == [b"a"]
        async with running(values(subscription, 1)) as reader:
            await broker.publish("t", b"c")
            assert await reader == [b"c"]


@on_every_socket
async def test_waiting_publishers_go_on_in_the_order_they_came(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=1, policy="block") as subscription:
        publishers = []
        for number in range(5):
            publishers.append(asyncio.ensure_future(broker.publish("t", b"%d" % number)))
            await at_rest()
        assert await values(subscription, 5) == [b"%d" % number for number in range(5)]
        assert [position.offset for position in await asyncio.gather(*publishers)] == list(range(5))


async def test_a_publisher_that_is_cancelled_while_it_waits_has_written_nothing(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=1, policy="block") as subscription:
        await broker.publish("t", b"a")
        async with running(broker.publish("t", b"cancelled")):
            pass
        async with running(broker.publish("t", b"b")):
            assert await values(subscription, 2) == [b"a", b"b"]


async def test_a_publisher_that_gave_up_does_not_hold_up_those_behind_it(broker: Broker) -> None:
    topic = broker.topic("t")
    async with topic.subscribe(buffer=5, policy="block"):
        await topic.publish(b"a")
        async with running(topic.publish_many([b"b"] * 5)):
            async with running(topic.publish(b"c")) as behind:
                assert not behind.done()
                broker_waits = broker.statistics().waiting_publishers
        assert broker_waits in (1, 2)  # those of one client wait in one line, and only its head at the topic
        topic.publish_nowait(b"d")
        await visible(broker, "t", 2)
        assert broker.statistics().waiting_publishers == 0


async def test_those_behind_a_publisher_that_gave_up_go_on_if_they_fit(broker: Broker) -> None:
    topic = broker.topic("t")
    async with topic.subscribe(buffer=5, policy="block"):
        await topic.publish(b"a")
        batch = asyncio.ensure_future(topic.publish_many([b"b"] * 5))
        await at_rest()
        async with running(topic.publish(b"c")) as behind:
            batch.cancel()
            assert (await asyncio.wait_for(behind, PATIENCE)).offset == 1


async def test_publish_many_waits_for_room_for_all_of_it(broker: Broker) -> None:
    topic = broker.topic("t")
    async with topic.subscribe(buffer=3, policy="block") as subscription:
        await topic.publish_many([b"a", b"b"])
        waiting = [b"c", b"d"]
        async with running(topic.publish_many(waiting)) as publisher:
            waiting.append(b"too late to join")
            assert await values(subscription, 1) == [b"a"]
            await at_rest()
            assert not publisher.done()
            assert await values(subscription, 3) == [b"b", b"c", b"d"]
            assert (await publisher).records() == 2


@pytest.mark.parametrize("buffers", [(2, 10), (10, 2)])
async def test_a_batch_that_can_never_fit_is_refused(broker: Broker, buffers: tuple[int, int]) -> None:
    topic = broker.topic("t")
    one, two = (topic.subscribe(buffer=buffer, policy="block") for buffer in buffers)
    async with one, two:
        await topic.publish_many([b"a"] * 2)
        with pytest.raises(runnel.TooLarge, match="=2;"):
            await asyncio.wait_for(topic.publish_many([b"a"] * 9), PATIENCE)


async def test_leaving_lets_the_waiting_publishers_go(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=1, policy="block"):
        await broker.publish("t", b"a")
        publisher = asyncio.ensure_future(broker.publish("t", b"b"))
        await at_rest()
        assert not publisher.done()
    assert (await publisher).offset == 1


async def test_a_topic_that_goes_makes_room_for_the_others_of_its_pattern(broker: Broker) -> None:
    async with broker.subscribe("*", buffer=2, policy="block") as subscription:
        await flood(broker, 2, topic="a")
        async with running(broker.publish("b", b"waits")) as publisher:
            await broker.delete("a")
            async with running(read(subscription, 1)) as reader:
                await asyncio.wait_for(publisher, PATIENCE)
                (record,) = await reader
    assert (record.value, span(record.gap)) == (b"waits", (0, 2, 2))


async def test_records_that_age_out_make_room(broker: Broker, clock: JumpingClock) -> None:
    topic = broker.topic("t", retention_age=10)
    await topic.declare()
    async with topic.subscribe(buffer=2, policy="block") as subscription:
        await flood(broker, 2)
        async with running(topic.publish(b"waits")) as publisher:
            await clock.advance(11)
            async with running(read(subscription, 1)) as reader:
                await asyncio.wait_for(publisher, PATIENCE)
                (record,) = await reader
    assert (record.value, span(record.gap)) == (b"waits", (0, 2, 2))


async def test_publishing_from_the_subscribers_own_task_would_deadlock(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=1, policy="block", name="loop") as subscription:
        await broker.publish("t", b"a")
        await anext(subscription)
        with pytest.raises(runnel.WouldDeadlock, match="'loop'"):
            await broker.publish("t", b"b")
    assert (await broker.publish("t", b"c")).offset == 1


async def test_waiting_behind_one_who_waits_for_this_task_would_deadlock_too(broker: Broker) -> None:
    topic = broker.topic("t")
    async with topic.subscribe(buffer=5, policy="block", name="loop") as subscription:
        await topic.publish(b"a")
        await anext(subscription)
        async with running(topic.publish_many([b"b"] * 5)):
            with pytest.raises(runnel.WouldDeadlock, match="'loop'"):
                async with asyncio.timeout(PATIENCE):
                    await topic.publish(b"c")


async def test_a_subscriber_with_room_may_publish_to_itself(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=2, policy="block") as subscription:
        await broker.publish("t", b"0")
        async for record in subscription:
            if record.value == b"5":
                break
            await broker.publish("t", b"%d" % (int(record.value) + 1))


# -- disconnect -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_disconnect_ends_the_subscription_after_so_many_drops_in_a_row(broker: Broker, pattern: str) -> None:
    policy = Policy.disconnect(after=3)
    async with broker.subscribe(pattern, buffer=2, policy=policy, name="slow") as subscription:
        await flood(broker, 4)
        assert [record.value for record in await read(subscription, 2)] == [b"2", b"3"]
        await flood(broker, 5, start=4)  # reading ended the row, so these count anew
        with pytest.raises(runnel.Disconnected, match="'slow' was disconnected") as caught:
            await read(subscription, 1)
    assert (caught.value.drops, caught.value.after) == (3, 3)
    assert broker.statistics().subscriptions == ()


@on_every_socket
async def test_disconnect_counts_the_drops_of_a_pattern_while_topics_come_and_go(broker: Broker) -> None:
    async with broker.subscribe("*", buffer=1, policy=Policy.disconnect(after=4)) as subscription:
        for number in range(5):
            await broker.publish("t", b"%d" % number)
            await broker.topic("other").declare()
            await broker.delete("other")
        with pytest.raises(runnel.Disconnected):
            await anext(subscription)


async def test_a_reader_that_waits_is_notified_of_its_disconnection(broker: Broker) -> None:
    policy = Policy.disconnect(after=1)
    async with broker.subscribe("t", buffer=1, policy=policy) as subscription, broker.subscribe("t") as other:
        async with running(read(subscription, 1)) as reader:
            await flood(broker, 2)
            with pytest.raises(runnel.Disconnected):
                await reader
        with pytest.raises(runnel.Disconnected):
            await read(subscription, 1)
        assert await values(other, 2) == [b"0", b"1"]


async def test_disconnect_lets_fewer_drops_pass(broker: Broker) -> None:
    async with broker.subscribe("t", buffer=2, policy=Policy.disconnect(after=3)) as subscription:
        for start in range(0, 40, 4):
            await flood(broker, 4, start=start)
            records = await read(subscription, 2)
            assert span(records[0].gap) == (start, start + 2, 2)


# -- where drops go ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize(
    ("policy", "kept", "gone"),
    [
        ("drop_oldest", [7, 8, 9], range(7)),
        ("drop_newest", [0, 1, 2], range(3, 10)),
        ("disconnect", [7, 8, 9], range(7)),
    ],
)
@pytest.mark.parametrize("by", ["publish_nowait", "publish_many"])
async def test_on_drop_gets_every_dropped_record_once(
    broker: Broker, pattern: str, policy: str, kept: list[int], gone: range, by: str
) -> None:
    dropped: list[Record[bytes]] = []
    async with broker.subscribe(pattern, buffer=3, policy=policy, on_drop=dropped.append) as subscription:
        if by == "publish_many":
            await broker.topic("t").publish_many([b"%d" % number for number in range(10)])
        else:
            await flood(broker, 10)
        assert broker.statistics().dropped == 7
        await at_rest()  # they may be on their way
        assert [record.offset for record in dropped] == list(gone)
        assert [record.value for record in dropped] == [b"%d" % number for number in gone]
        broker.close()
        records = await rest(subscription)
    assert [record.offset for record in records] == kept
    assert broker.statistics().dropped == 7


async def test_an_on_drop_that_raises_harms_neither_publisher_nor_subscriber(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(record: Record[bytes]) -> None:
        raise RuntimeError("boom")

    async with broker.subscribe("t", buffer=1, on_drop=explode, name="odd") as subscription:
        await flood(broker, 3)
        assert await values(subscription, 1) == [b"2"]
    assert "a callback of subscriber 'odd' failed" in caplog.text


@pytest.mark.parametrize("pattern", ["t", "t.>"])
async def test_dropped_records_go_to_the_dead_letter_topic_with_the_reason(broker: Broker, pattern: str) -> None:
    topic = "t" if pattern == "t" else "t.x"
    async with broker.subscribe("dead") as dead:
        async with broker.subscribe(pattern, buffer=1, dead_letter="dead", name="slow") as subscription:
            position = await broker.publish(topic, b"a", key=b"k", headers={"h": "x"})
            broker.topic(topic).publish_nowait(b"b")
            letter = await anext(dead)
            assert await values(subscription, 1) == [b"b"]
    assert (letter.value, letter.key) == (b"a", b"k")
    assert letter.headers["h"] == "x"
    assert letter.headers["runnel-dead-letter-reason"] == "dropped"
    assert letter.headers["runnel-dead-letter-topic"] == topic
    assert letter.headers["runnel-dead-letter-position"] == str(position)
    assert letter.headers["runnel-dead-letter-subscriber"] == "slow"


@on_every_socket
async def test_a_dead_letter_keeps_the_trace_of_its_record(broker: Broker) -> None:
    async with broker.subscribe("dead") as dead, broker.subscribe("t") as witness:
        async with broker.subscribe("t", buffer=1, dead_letter="dead"):
            await flood(broker, 2)
            assert (await anext(dead)).traceparent == (await anext(witness)).traceparent


async def test_a_dead_letter_that_is_dropped_again_stays_dropped(broker: Broker) -> None:
    async with broker.subscribe("a", buffer=1, dead_letter="b"), broker.subscribe("b", buffer=1, dead_letter="a"):
        await flood(broker, 50, topic="a")
        await at_rest()
    statistics = broker.statistics()
    assert (statistics.topics["a"].published, statistics.topics["b"].published) == (50, 49)


@pytest.mark.parametrize(("pattern", "dead"), [("t", "t"), ("*", "dead"), (">", "a.b")])
async def test_a_subscription_may_not_read_its_own_dead_letters(broker: Broker, pattern: str, dead: str) -> None:
    with pytest.raises(runnel.InvalidOption, match="would read it itself"):
        broker.subscribe(pattern, dead_letter=dead)


async def test_a_wrong_dead_letter_topic_is_refused(broker: Broker) -> None:
    with pytest.raises(runnel.InvalidName):
        broker.subscribe("t", dead_letter="a.*")


@pytest.mark.near("publish_nowait hands over; how full a subscriber is, the server knows")
async def test_block_counts_bytes_while_there_is_history_too(broker: Broker) -> None:
    topic = broker.topic("t")
    await topic.publish(b"old")
    async with broker.subscribe("t", policy="block", start="earliest", buffer_bytes=100):
        topic.publish_nowait(bytes(60))
        with pytest.raises(runnel.Full):
            topic.publish_nowait(bytes(60))

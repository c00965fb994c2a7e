"""From a publish to its answer: gathered, waited for, given up, refused."""

import asyncio

import pytest

import runnel
from runnel.core.errors import BrokerClosed, Full, LimitExceeded, NoAnswer, TopicConflict, ValidationFailed
from runnel.core.position import Position
from runnel.wire.frames import FrameKind
from tests.client.scripted_server import Joined, Peer
from tests.patience import PATIENCE


async def test_what_one_turn_of_the_loop_publishes_travels_together(joined: Joined) -> None:
    async with joined() as (broker, caller):
        tasks = [asyncio.create_task(broker.publish("a", b"%d" % number)) for number in range(5)]
        asked = await caller.next()
        assert asked.values == (b"0", b"1", b"2", b"3", b"4")
        caller.publish(asked, 10)
        assert await asyncio.gather(*tasks) == [Position(1, 10 + number) for number in range(5)]


async def test_with_a_linger_more_than_one_turn_travels_together(joined: Joined) -> None:
    async with joined(linger=0.05) as (broker, caller):
        topic = broker.topic("a")
        for number in range(3):
            topic.publish_nowait(b"%d" % number)
            await asyncio.sleep(0)
        assert (await caller.next()).values == (b"0", b"1", b"2")


async def test_a_call_does_not_overtake_what_lingers(joined: Joined) -> None:
    async with joined(linger=100.0) as (broker, caller):
        broker.topic("a").publish_nowait(b"1")
        listing = asyncio.create_task(broker.topics())
        assert (await caller.next()).values == (b"1",)
        caller.reply(await caller.next_call("topics"), [])
        await listing


async def test_a_full_parcel_does_not_linger(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.client.outbox.BATCH_BYTES", 100)
    async with joined(linger=100.0) as (broker, caller):
        for number in range(4):
            broker.topic("a").publish_nowait(b"%d" % number)
        assert (await caller.next()).values == (b"0", b"1", b"2")


async def test_a_publish_waits_for_room_and_those_who_came_first_go_first(joined: Joined) -> None:
    async with joined(max_pending_bytes=200) as (broker, caller):
        topic = broker.topic("a")
        first = asyncio.create_task(topic.publish(bytes(100)))
        asked = await caller.next()
        others = [asyncio.create_task(topic.publish(b"%d" % number * 90)) for number in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(Full, match="'the outbox' holds its bound of 200"):
            topic.publish_nowait(b"3" * 90)
        with pytest.raises(Full):
            topic.publish_nowait(b"")  # nobody overtakes those who wait
        for number in (1, 2):
            caller.publish(asked, number)
            asked = await caller.next()
            assert asked.values == (b"%d" % number * 90,)
        caller.publish(asked, 3)
        await asyncio.gather(first, *others)
        assert broker.backend.link.publishing.outbox.bytes == 0
        topic.publish_nowait(b"4")


async def test_one_that_gives_up_waiting_for_room_is_not_in_the_way(joined: Joined) -> None:
    async with joined(max_pending_bytes=200) as (broker, caller):
        topic = broker.topic("a")
        first = asyncio.create_task(topic.publish(bytes(100)))
        asked = await caller.next()
        second, third = (asyncio.create_task(topic.publish(value * 90)) for value in (b"2", b"3"))
        await asyncio.sleep(0)
        second.cancel()
        caller.publish(asked, 0)
        asked = await caller.next()
        assert asked.values == (b"3" * 90,)
        caller.publish(asked, 1)
        await asyncio.gather(first, third)
        assert broker.backend.link.publishing.outbox.bytes == 0


async def test_room_that_does_not_come_is_not_waited_for(joined: Joined) -> None:
    async with joined(max_pending_bytes=100, timeout=0.05) as (broker, _):
        broker.topic("a").publish_nowait(bytes(100))
        with pytest.raises(NoAnswer, match="waited for room"):
            await broker.publish("b", bytes(100))


async def test_closing_ends_the_wait_for_room(joined: Joined) -> None:
    async with joined(max_pending_bytes=100) as (broker, _):
        broker.topic("a").publish_nowait(bytes(100))
        publishing = asyncio.create_task(broker.publish("b", bytes(100)))
        await asyncio.sleep(0)
        broker.close()
        with pytest.raises(BrokerClosed):
            await publishing


async def test_what_is_larger_than_the_bound_goes_alone(joined: Joined) -> None:
    async with joined(max_pending_bytes=100) as (broker, caller):
        publishing = asyncio.create_task(broker.publish("a", bytes(1000)))
        caller.publish(await caller.next(), 0)
        assert await publishing == Position(1, 0)


async def test_a_cancelled_publish_is_cancelled_on_the_server(joined: Joined) -> None:
    async with joined() as (broker, caller):
        publishing = asyncio.create_task(broker.publish("a", b"1"))
        asked = await caller.next()
        publishing.cancel()
        cancel = await caller.next()
        assert (cancel.kind, cancel.id) == (FrameKind.CANCEL, asked.id)


async def test_a_publish_that_is_cancelled_before_it_is_sent_is_not_sent(joined: Joined, peer: Peer) -> None:
    async with joined() as (broker, caller):
        caller.cut()
        await broker.connection.wait("reconnecting", timeout=PATIENCE)
        first, second = (asyncio.create_task(broker.publish("a", value)) for value in (b"1", b"2"))
        await asyncio.sleep(0)
        first.cancel()
        caller = await peer.accept()
        asked = await caller.next()
        assert asked.values == (b"2",)
        caller.publish(asked, 5)
        assert await second == Position(1, 5)


async def test_an_answer_that_does_not_come_is_not_waited_for(joined: Joined) -> None:
    async with joined(timeout=0.02) as (broker, caller):
        with pytest.raises(NoAnswer, match=r"a publish to 'a' within 0\.02 s \(connected\)"):
            await broker.publish("a", b"1")
        asked, cancel = await caller.next(), await caller.next()
        assert (cancel.kind, cancel.id) == (FrameKind.CANCEL, asked.id)


async def test_what_was_not_sent_in_time_is_not_sent_later(joined: Joined, peer: Peer) -> None:
    async with joined(timeout=0.02) as (broker, caller):
        caller.cut()
        await broker.connection.wait("reconnecting", timeout=PATIENCE)
        broker.topic("a").publish_nowait(b"kept")
        with pytest.raises(NoAnswer, match="reconnecting"):
            await broker.publish("a", b"given up")
        caller = await peer.accept()
        assert (await caller.next()).values == (b"kept",)


async def test_every_publish_in_a_refused_frame_gets_its_own_error(joined: Joined) -> None:
    async with joined() as (broker, caller):
        tasks = [asyncio.create_task(broker.publish("a", b"%d" % number)) for number in range(2)]
        caller.refuse(await caller.next(), TopicConflict("a", "compact", 1, 2))
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [(type(error), error.option) for error in errors] == [(TopicConflict, "compact")] * 2  # type: ignore[union-attr]
        assert errors[0] is not errors[1]


async def test_only_the_wrong_record_of_a_frame_is_refused(joined: Joined) -> None:
    async with joined() as (broker, caller):
        tasks = [asyncio.create_task(broker.publish("a", value)) for value in (b"0", b"bad", b"2")]
        stored, refused = 0, False
        while stored < 2 or not refused:
            asked = await caller.next()
            if b"bad" in asked.values:
                refused = asked.values == (b"bad",)
                caller.refuse(asked, ValidationFailed("a", "T", "f", "no"))
            else:
                caller.publish(asked, stored)
                stored += len(asked.values)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[0] == Position(1, 0)
        assert isinstance(found[1], ValidationFailed)
        assert found[2] == Position(1, 1)


async def test_a_refused_publish_that_is_not_awaited_is_logged_and_counted(
    joined: Joined, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined() as (broker, caller):
        topic = broker.topic("a")
        waited = asyncio.create_task(topic.publish(b"1"))
        await asyncio.sleep(0)
        topic.publish_nowait(b"2")
        topic.publish_nowait(b"3")
        caller.refuse(await caller.next(), TopicConflict("a", "compact", 1, 2))
        with pytest.raises(TopicConflict):
            await waited
        assert broker.connection.failed == 2
        assert "2 records published without waiting to 'a' were refused" in caplog.text


async def test_a_frame_that_the_server_would_not_take_is_not_sent(peer: Peer) -> None:
    broker = runnel.open(peer.url, close_timeout=0.0)
    entering = asyncio.create_task(broker.__aenter__())
    await peer.accept(max_frame=1 << 20)
    await entering
    with pytest.raises(LimitExceeded, match="max_frame"):
        await broker.publish("a", bytes(2 << 20))
    await broker.__aexit__(None, None, None)


async def test_a_late_publish_into_a_lost_connection_waits_as_long_as_the_others(joined: Joined, peer: Peer) -> None:
    async with joined(timeout=0.4, backoff_min=100.0, backoff_max=100.0) as (broker, caller):
        caller.cut()
        await broker.connection.wait("reconnecting", timeout=PATIENCE)
        topic, loop = broker.topic("a"), asyncio.get_running_loop()
        topic.publish_nowait(b"nobody waits")
        (gathering,) = broker.backend.link.publishing.outbox.unanswered()
        gathering.born -= 100  # since long ago
        waits = []

        async def publish(value: bytes) -> None:
            began = loop.time()
            with pytest.raises(NoAnswer):
                await topic.publish(value)
            waits.append(loop.time() - began)

        first = asyncio.create_task(publish(b"1"))
        await asyncio.wait([first], timeout=0.3)
        await asyncio.gather(first, publish(b"2"))
        assert min(waits) >= 0.4


async def test_records_that_fit_alone_do_not_travel_together_where_that_is_too_much(joined: Joined, peer: Peer) -> None:
    async with joined() as (broker, caller):
        broker.backend.link.publishing.outbox.max_frame = 300_000
        topic = broker.topic("a")
        for size in (140_000, 200_000):
            topic.publish_nowait(bytes(size))
        first = await caller.next()
        caller.publish(first, 0)
        assert [len(first.values[0]), len((await caller.next()).values[0])] == [140_000, 200_000]
        assert broker.connection.failed == 0

"""The link to a server: connected, lost, connected again, and closed."""

import asyncio
import os
from typing import Any

import pytest

import runnel
from runnel.client import server_link as module
from runnel.core.batch_format import pack
from runnel.core.errors import (
    BrokerClosed,
    ConnectionLost,
    Forked,
    LimitExceeded,
    NoAnswer,
    NotSupported,
    ProtocolError,
    RunnelError,
    TopicConflict,
    UnknownTopic,
    Unreachable,
)
from runnel.wire.binary_messages import shared_deliver_head
from runnel.wire.errors import error_frame
from runnel.wire.frames import FrameKind, frame
from runnel.wire.msgpack_messages import SHARED_DELIVER, Goodbye, SubscribeReply, encode_message
from tests.client.scripted_server import Joined, Peer, a_peer
from tests.held_time import held_time
from tests.patience import PATIENCE


class Reader:
    """An owner that writes down what happens to it."""

    def __init__(self) -> None:
        self.id = 0
        self.task = None
        self.is_left = False
        self.notes: list[Any] = []

    def connected(self) -> None:
        self.notes.append(("connected", self.id))

    def frame(self, kind: int, flags: int, extra: int, payload: bytes) -> None:
        self.notes.append((FrameKind(kind).name, payload))

    def flush(self) -> None:
        self.notes.append("flush")

    def lost(self) -> None:
        self.notes.append("lost")

    def closed(self, error: RunnelError | None) -> None:
        self.notes.append(("closed", error))


async def test_a_broker_is_connected_when_its_block_is_entered(joined: Joined, peer: Peer) -> None:
    async with joined(name="billing") as (broker, caller):
        assert caller.hello.client == "billing"
        connection = broker.connection
        assert (connection.state, connection.server, connection.address) == ("connected", "a peer", peer.url)
        assert (connection.error, connection.attempts, connection.connections) == (None, 0, 1)
        assert repr(broker) == f"<Broker at {peer.url}, open, connected>"
    assert (broker.connection.state, broker.connection.error) == ("closed", None)


async def test_before_its_block_is_entered_nothing_can_be_done() -> None:
    broker = runnel.open("runnel://127.0.0.1:1")
    with pytest.raises(NotSupported, match="before it is connected"):
        await broker.publish("a", b"x")
    with pytest.raises(NotSupported, match="before it is connected"):
        broker.topic("a").publish_nowait(b"x")
    broker.close()


async def test_a_missing_responder_is_reported_at_once() -> None:
    broker = runnel.open("runnel://127.0.0.1:1")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: connection refused"):
        async with broker:
            pass
    assert broker.connection.state == "closed"
    with pytest.raises(BrokerClosed):
        await broker.publish("a", b"x")


async def test_it_waits_for_a_server_if_asked() -> None:
    broker = runnel.open("runnel://127.0.0.1:1", wait=5.0, backoff_min=1.0, backoff_max=1.0)
    with held_time() as later:
        entering = asyncio.create_task(broker.__aenter__())
        while not entering.done():
            await later(0.1)
        with pytest.raises(Unreachable):
            await entering
    assert broker.connection.attempts > 1


async def test_servers_are_tried_in_turn(peer: Peer) -> None:
    url = peer.url.replace("runnel://", "runnel://127.0.0.1:1,")
    broker = runnel.open(url, close_timeout=0.0)
    entering = asyncio.create_task(broker.__aenter__())
    await peer.accept()
    await entering
    assert broker.connection.address == peer.url
    await broker.__aexit__(None, None, None)


async def test_a_server_that_greets_with_an_error_is_heard(peer: Peer) -> None:
    entering = asyncio.create_task(runnel.open(peer.url).__aenter__())
    caller = await peer.meet()
    await caller.next()
    caller.send(error_frame(0, LimitExceeded("max_connections", 11, 10)))
    with pytest.raises(LimitExceeded, match="max_connections"):
        await entering


async def test_a_server_that_does_not_greet_is_not_waited_for(peer: Peer) -> None:
    with pytest.raises(Unreachable, match=r"within 0\.02 s"):
        await runnel.open(peer.url, connect_timeout=0.02).__aenter__()


async def test_after_a_lost_connection_publishes_are_sent_again_as_they_were(joined: Joined, peer: Peer) -> None:
    async with joined() as (broker, caller):
        publishing = asyncio.create_task(broker.publish("a", b"x"))
        before = await caller.next()
        caller.cut()
        caller = await peer.accept()
        again = await caller.next()
        assert again.publish._replace(about=None) == before.publish
        assert again.publish.about is not None
        assert again.publish.about.sent is not None, "the server has to know that it may have it already"
        caller.publish(again, 7)
        assert await publishing == runnel.Position(1, 7)
        assert broker.connection.connections == 2


async def test_calls_that_may_be_sent_again_are(joined: Joined, peer: Peer) -> None:
    async with joined() as (broker, caller):
        listing = asyncio.create_task(broker.topics())
        await caller.next_call("topics")
        caller.cut()
        caller = await peer.accept()
        caller.reply(await caller.next_call("topics"), ["a"])
        assert await listing == ["a"]


async def test_calls_that_may_not_be_sent_again_fail(joined: Joined, peer: Peer) -> None:
    async with joined() as (broker, caller):
        deleting = asyncio.create_task(broker.delete("a"))
        await caller.next_call("delete")
        caller.cut()
        with pytest.raises(ConnectionLost, match="may have executed the call or not"):
            await deleting
        await peer.accept()


async def test_what_is_called_while_there_is_no_connection_waits_for_one(joined: Joined, peer: Peer) -> None:
    async with joined() as (broker, caller):
        caller.cut()
        await broker.connection.wait("reconnecting", timeout=PATIENCE)
        listing = asyncio.create_task(broker.topics())
        publishing = asyncio.create_task(broker.publish("a", b"x"))
        caller = await peer.accept()
        frames = [await caller.next(), await caller.next()]
        assert [one.kind for one in frames] == [FrameKind.PUBLISH, FrameKind.CALL]
        caller.publish(frames[0], 0)
        caller.reply(frames[1], [])
        await asyncio.gather(listing, publishing)


async def test_the_errors_of_the_server_are_raised(joined: Joined) -> None:
    async with joined() as (broker, caller):
        deleting = asyncio.create_task(broker.delete("a"))
        caller.refuse(await caller.next_call("delete"), UnknownTopic("a"))
        with pytest.raises(UnknownTopic) as caught:
            await deleting
        assert caught.value.topic == "a"


async def test_a_connection_that_never_comes_back_ends_everything(joined: Joined, peer: Peer) -> None:
    async with joined(reconnect=False) as (broker, caller):
        reader = Reader()
        broker.backend.link.attach(reader)
        publishing = asyncio.create_task(broker.publish("a", b"x"))
        listing = asyncio.create_task(broker.topics())
        await caller.next()
        caller.cut()
        with pytest.raises(ConnectionLost):
            await publishing
        with pytest.raises(ConnectionLost):
            await listing
        assert broker.connection.state == "closed"
        assert reader.notes[-2] == "lost"
        assert isinstance(reader.notes[-1][1], ConnectionLost)
        with pytest.raises(ConnectionLost):
            await broker.publish("a", b"y")
        with pytest.raises(ConnectionLost):
            broker.topic("a").publish_nowait(b"y")


async def test_it_gives_up_after_the_given_number_of_rounds() -> None:
    async with a_peer() as peer:
        broker = runnel.open(peer.url, reconnect=3, backoff_min=0.001, backoff_max=0.001)
        entering = asyncio.create_task(broker.__aenter__())
        await peer.accept()
        await entering
    await broker.connection.wait("closed", timeout=PATIENCE)
    assert isinstance(broker.connection.error, Unreachable)
    assert broker.connection.attempts == 3
    broker.close()


async def test_a_server_that_goes_for_good_is_not_looked_for(joined: Joined) -> None:
    async with joined() as (broker, caller):
        caller.send(frame(FrameKind.GOODBYE, 0, encode_message(Goodbye(reason="moved"))))
        caller.close()
        with pytest.raises(ConnectionLost):
            await broker.connection.wait("new", timeout=PATIENCE)
        assert broker.connection.state == "closed"


async def test_a_server_that_comes_back_is_waited_for(joined: Joined, peer: Peer) -> None:
    async with joined(backoff_min=100, backoff_max=100) as (broker, caller):
        caller.send(frame(FrameKind.GOODBYE, 0, encode_message(Goodbye(reason="restart", retry=0.01))))
        caller.close()
        await peer.accept()
        await broker.connection.wait("connected", timeout=PATIENCE)


async def test_a_silent_server_is_asked_and_then_given_up(joined: Joined, peer: Peer) -> None:
    async with joined(ping=0.02) as (broker, caller):
        assert (await caller.next()).kind == FrameKind.PING
        await peer.accept()
        await broker.connection.wait("connected", timeout=PATIENCE)
        assert broker.connection.connections == 2


async def test_a_server_that_answers_is_not_given_up(joined: Joined) -> None:
    async with joined(ping=0.02) as (broker, caller):
        for _ in range(3):
            ping = await caller.next()
            assert ping.kind == FrameKind.PING
            caller.send(frame(FrameKind.PONG, 0, ping.payload))
        assert broker.connection.connections == 1


async def test_a_ping_is_answered(joined: Joined) -> None:
    async with joined() as (_, caller):
        caller.send(frame(FrameKind.PING, 0, b"hi"))
        pong = await caller.next()
        assert (pong.kind, pong.payload) == (FrameKind.PONG, b"hi")


async def test_an_error_about_the_connection_ends_it_and_another_is_made(joined: Joined, peer: Peer) -> None:
    async with joined() as (broker, caller):
        caller.send(error_frame(0, ProtocolError("a frame of kind 99")))
        await broker.connection.wait("reconnecting", timeout=PATIENCE)
        assert isinstance(broker.connection.error, ProtocolError)
        await peer.accept()


async def test_frames_that_make_no_sense_end_the_connection(joined: Joined, peer: Peer) -> None:
    async with joined() as (broker, caller):
        caller.send(b"\xff" * 12)
        await peer.accept()
        await broker.connection.wait("connected", timeout=PATIENCE)


# -- owners -----------------------------------------------------------------------------------------------------


async def test_an_owner_gets_the_frames_with_its_id(joined: Joined, peer: Peer) -> None:
    async with joined() as (broker, caller):
        reader = Reader()
        id = broker.backend.link.attach(reader)
        assert reader.notes == [("connected", id)]
        caller.send(frame(FrameKind.END, id + 1) + frame(FrameKind.END, id) + frame(FrameKind.PING, 0))
        assert (await caller.next()).kind == FrameKind.PONG
        caller.cut()
        caller = await peer.accept()
        await broker.connection.wait("reconnecting", timeout=PATIENCE)
        await broker.connection.wait("connected", timeout=PATIENCE)
        assert reader.notes == [("connected", id), ("END", b""), "lost", ("connected", reader.id)]
        broker.backend.link.detach(reader)
        broker.backend.link.detach(reader)


async def test_ids_begin_anew_on_every_connection_and_are_never_used_up(
    joined: Joined, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_ID", 3)
    async with joined() as (broker, caller):
        for expected in (1, 2):
            listing = asyncio.create_task(broker.topics())
            asked = await caller.next_call("topics")
            assert asked.id == expected
            caller.reply(asked, [])
            await listing
        listing = asyncio.create_task(broker.topics())
        caller = await peer.accept()
        asked = await caller.next_call("topics")
        assert asked.id == 1
        caller.reply(asked, [])
        await listing


# -- closing ----------------------------------------------------------------------------------------------------


async def test_closing_sends_what_was_published_and_then_says_goodbye(joined: Joined) -> None:
    async with joined(close_timeout=5.0) as (broker, caller):
        topic = broker.topic("a")
        topic.publish_nowait(b"1")
        broker.close()
        broker.close()
        with pytest.raises(BrokerClosed):
            topic.publish_nowait(b"2")  # though what it would be gathered into was not sent yet
        asked = await caller.next()
        assert asked.values == (b"1",)
        assert (await caller.next()).kind == FrameKind.GOODBYE
        caller.publish(asked, 0)
        with pytest.raises(EOFError):
            await caller.next()
        with pytest.raises(BrokerClosed):
            await broker.publish("a", b"2")
        with pytest.raises(BrokerClosed):
            broker.topic("a").publish_nowait(b"2")


async def test_a_commit_that_is_not_answered_before_the_end_has_an_unknown_outcome(joined: Joined) -> None:
    async with joined(close_timeout=0.01) as (broker, caller):
        tx = broker.transaction()
        await tx.__aenter__()
        tx.mark("m", 1)
        leaving = asyncio.ensure_future(tx.__aexit__(None, None, None))
        await caller.next_call("transact")
        broker.close()
        with pytest.raises(runnel.OutcomeUnknown, match="mark"):
            await leaving


async def test_a_commit_waits_no_longer_than_anything_else(joined: Joined) -> None:
    async with joined(timeout=0.01) as (broker, caller):
        with pytest.raises(runnel.OutcomeUnknown):
            async with broker.transaction() as tx:
                tx.mark("m", 1)
        await caller.next_call("transact")
        assert (await caller.next()).kind == FrameKind.CANCEL


async def test_a_reader_that_has_not_got_all_at_the_deadline_gets_an_error(joined: Joined) -> None:
    async with joined(close_timeout=0.01) as (broker, _):
        reader = Reader()
        broker.backend.link.attach(reader)
        broker.close()
        await broker.connection.wait("closed", timeout=PATIENCE)
        assert isinstance(reader.notes[-1][1], BrokerClosed)


async def test_what_owners_gathered_is_said_before_the_goodbye(joined: Joined) -> None:
    async with joined(close_timeout=5.0) as (broker, caller):
        link = broker.backend.link
        gathered = [frame(FrameKind.SETTLE, 0, encode_message([]))]

        class Acking(Reader):
            def flush(self) -> None:
                if gathered:
                    link.send(gathered.pop())

        link.attach(Acking())
        broker.close()
        assert [(await caller.next()).kind for _ in range(2)] == [FrameKind.SETTLE, FrameKind.GOODBYE]
        caller.close()


async def test_goodbye_is_said_only_when_all_was_sent(joined: Joined) -> None:
    async with joined(close_timeout=5.0) as (broker, caller):
        tasks = [asyncio.create_task(broker.topic("a").publish_many([value, value])) for value in (b"1", b"2")]
        first = await caller.next()
        broker.close()
        await asyncio.sleep(0)
        caller.publish(first, 0)
        second = await caller.next()
        assert second.values == (b"2", b"2")
        assert (await caller.next()).kind == FrameKind.GOODBYE
        caller.publish(second, 2)
        await asyncio.gather(*tasks)


async def test_what_was_not_answered_before_the_goodbye_is_sent_again(joined: Joined, peer: Peer) -> None:
    async with joined(close_timeout=5.0) as (broker, caller):
        publishing = asyncio.create_task(broker.publish("a", b"1"))
        before = await caller.next()
        broker.close()
        assert (await caller.next()).kind == FrameKind.GOODBYE
        caller.cut()
        caller = await peer.accept()
        again = await caller.next()
        assert again.publish._replace(about=None) == before.publish
        assert (await caller.next()).kind == FrameKind.GOODBYE
        caller.publish(again, 3)
        assert (await publishing).offset == 3
        with pytest.raises(EOFError):
            await caller.next()


async def test_closing_does_not_wait_for_ever(joined: Joined, caplog: pytest.LogCaptureFixture) -> None:
    async with joined(close_timeout=0.01) as (broker, caller):
        publishing = asyncio.create_task(broker.publish("a", b"1"))
        await caller.next()
        broker.topic("a").publish_nowait(b"2")
    with pytest.raises(BrokerClosed, match="what became of it"):
        await publishing
    assert "1 records published without waiting" in caplog.text


async def test_closing_lets_a_reader_read_to_the_end(joined: Joined) -> None:
    async with joined(close_timeout=5.0) as (broker, caller):
        reader = Reader()
        id = broker.backend.link.attach(reader)
        broker.close()
        assert (await caller.next()).kind == FrameKind.GOODBYE
        caller.send(frame(FrameKind.END, id))
        caller.close()
        await broker.connection.wait("closed", timeout=PATIENCE)
        assert reader.notes == [("connected", id), "flush", ("END", b""), ("closed", None)]


async def test_the_connection_is_over_when_the_last_reader_has_left(joined: Joined) -> None:
    async with joined(close_timeout=5.0) as (broker, caller):
        reader = Reader()
        broker.backend.link.attach(reader)
        broker.close()
        assert (await caller.next()).kind == FrameKind.GOODBYE
        broker.backend.link.detach(reader)
        with pytest.raises(EOFError):
            await caller.next()


async def test_leaving_the_block_waits_for_the_end_of_a_subscription_that_was_left(joined: Joined) -> None:
    async with joined(close_timeout=PATIENCE) as (broker, caller):
        reader = Reader()
        id = broker.backend.link.attach(reader)
        reader.is_left = True
        leaving = asyncio.ensure_future(broker.backend.aclose())
        assert (await caller.next()).kind == FrameKind.GOODBYE
        await asyncio.wait([leaving], timeout=0.01)
        assert not leaving.done()
        caller.send(frame(FrameKind.END, id))
        caller.close()
        await leaving
        assert broker.connection.state == "closed"


async def test_a_broker_that_was_never_entered_can_be_closed() -> None:
    broker = runnel.open("runnel://127.0.0.1:1")
    broker.close()
    assert broker.connection.state == "closed"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_the_child_of_a_fork_gets_an_error_that_it_has_no_broker(joined: Joined) -> None:
    async with joined() as (broker, caller):
        topic = broker.topic("a")
        topic.publish_nowait(b"1")
        child = os.fork()
        if not child:
            code = 1
            try:
                topic.publish_nowait(b"2")
            except Forked:
                try:
                    broker.statistics()
                except Forked:
                    broker.close()
                    code = 0
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0
        assert (await caller.next()).values == (b"1",)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_connection_ends_with_the_process_that_made_it_even_after_a_fork(joined: Joined) -> None:
    async with joined() as (broker, caller):
        until, end = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(end)
                os.read(until, 1)
            finally:
                os._exit(0)
        try:
            publishing = asyncio.create_task(broker.topic("a").publish(b"the child has not ended it"))
            caller.publish(await caller.next(), 0)
            await publishing
            assert broker.backend.link._current is not None
            broker.backend.link._current.close()  # as the death of this process would
            with pytest.raises(EOFError):
                await caller.next()
        finally:
            os.close(end)
            os.close(until)
            await asyncio.to_thread(os.waitpid, child, 0)


async def test_an_answer_that_does_not_come_is_not_waited_for(joined: Joined) -> None:
    async with joined(timeout=0.02) as (broker, caller):
        with pytest.raises(NoAnswer, match=r"topics\(\) within 0\.02 s"):
            await broker.topics()
        asked, cancel = await caller.next(), await caller.next()
        assert (cancel.kind, cancel.id) == (FrameKind.CANCEL, asked.id)
        caller.refuse(asked, TopicConflict("a", "x", 1, 2))  # too late: for nobody
        with pytest.raises(NoAnswer):
            await broker.topics()


async def test_a_frame_for_several_subscriptions_is_read_once_for_all(joined: Joined) -> None:
    async with joined() as (broker, caller):
        subscriptions = [broker.subscribe("t") for _ in range(3)]
        ids = []
        for subscription in subscriptions:
            entering = asyncio.create_task(subscription.__aenter__())
            asked = await caller.next()
            reply = SubscribeReply(label="t", eager=True, position=0, epoch=1)
            caller.send(frame(FrameKind.SUBSCRIBED, asked.id, encode_message(reply)))
            await entering
            ids.append(asked.id)
        assert SHARED_DELIVER in caller.hello.features
        batch = pack([b"a", b"b"])
        caller.send(shared_deliver_head([*ids, 99], b"t", 1, 0, 0, 0, len(batch)) + batch)  # 99: it was left meanwhile
        found = [await anext(aiter(subscription.batches())) for subscription in subscriptions]
        assert [one.values for one in found] == [(b"a", b"b")] * 3
        assert found[0].values is found[1].values is found[2].values

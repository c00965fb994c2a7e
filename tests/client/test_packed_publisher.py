"""Packed batches that a server over a client forwards: in the same bytes, stored once, and withdrawn if need be."""

import asyncio
from typing import Any

import pytest

import runnel
from runnel.client.packed_publisher import ForwardedPublish, RemotePackedPublisher
from runnel.core.batch_format import pack
from runnel.core.errors import BadBatch, ConnectionLost, InvalidOption, OffsetConflict, PublishCancelled
from runnel.core.position import Position, Span
from runnel.core.publishing import PublishDetails
from runnel.core.schema import Codec, Schema
from runnel.core.transaction import TransactionRequest
from runnel.wire.frames import FrameKind
from tests.client.scripted_server import Joined, Peer


class Sender:
    """Publishes packed batches, and waits for what comes of it."""

    def __init__(self, broker: Any) -> None:
        self.publisher: RemotePackedPublisher = RemotePackedPublisher(broker.backend.link)
        self.waiting: ForwardedPublish | None = None

    def send(
        self, topic: str, data: bytes, details: PublishDetails | None = None, **options: Any
    ) -> asyncio.Future[Span]:
        found: asyncio.Future[Span] = asyncio.get_running_loop().create_future()

        def done(result: Span | Exception) -> None:
            if isinstance(result, Exception):
                found.set_exception(result)
            else:
                found.set_result(result)

        self.waiting = self.publisher.publish(topic, data, details, done, **options)
        return found


def offsets(span: Span) -> tuple[int, int]:
    return span.first.offset, span.last.offset


async def test_a_batch_goes_on_in_the_bytes_that_it_came_in(joined: Joined) -> None:
    async with joined() as (broker, caller):
        data = pack([b"a", b"b"], producer=7, producer_sequence=5)
        sent = Sender(broker).send("t", data)
        asked = await caller.next()
        assert (asked.publish.topic, asked.publish.batch, asked.publish.about) == ("t", data, None)
        caller.publish(asked, 3)
        assert await sent == Span(Position(1, 3), Position(1, 4))


async def test_what_a_producer_numbers_is_stored_once_and_in_order(remote: Any) -> None:
    sender = Sender(remote)
    sent = [sender.send(f"t{n % 2}", pack([b"%d" % n], producer=9, producer_sequence=n)) for n in range(20)]
    assert [offsets(await one)[0] for one in sent] == [n // 2 for n in range(20)]
    again = await sender.send("t1", pack([b"3"], producer=9, producer_sequence=3))
    assert offsets(again) == (1, 1)


async def test_all_that_it_says_is_said_to_the_server(remote: Any) -> None:
    sender = Sender(remote)
    for _ in range(2):
        assert offsets(await sender.send("t", pack([b"a"]), PublishDetails(message_id="m"))) == (0, 0)
    with pytest.raises(OffsetConflict):
        await sender.send("t", pack([b"b"]), PublishDetails(expected_offset=0))
    with pytest.raises(runnel.TopicConflict):
        await sender.send("t", pack([b"b"]), PublishDetails(options={"retention_count": 6}))
    schema = Schema("json", Codec(dict[str, int]).schema)
    await sender.send("typed", pack([b'{"a": 1}']), PublishDetails(schema=schema))


async def test_that_it_waits_is_said_to_the_server(joined: Joined) -> None:
    async with joined(timeout=0.001) as (broker, caller):
        sent = Sender(broker).send("t", pack([b"a"]), PublishDetails(wait=True, timeout=600.0))
        asked = await caller.next()
        assert asked.publish.about == PublishDetails(wait=True, timeout=600.0)
        caller.publish(asked, 0)
        await sent


async def test_nothing_in_it_is_trusted(joined: Joined) -> None:
    async with joined() as (broker, _):
        sender = Sender(broker)
        for wrong in (b"", b"no batch at all" * 10, pack([b"a"])[:-1] + b"?"):
            with pytest.raises(BadBatch):
                await sender.send("t", wrong)
        with pytest.raises(BadBatch, match="an id is for one"):
            await sender.send("t", pack([b"a", b"b"]), PublishDetails(message_id="m"))
        with pytest.raises(InvalidOption):
            await sender.send("t", pack([b"a"]), PublishDetails(expected_offset=-1))


async def test_readers_are_named_as_the_server_knows_them(joined: Joined) -> None:
    class Reader:
        id = 77

    async with joined() as (broker, caller):
        sender = Sender(broker)
        for readers, named in (([Reader()], [77]), ([], [])):
            sent = sender.send("t", pack([b"a"]), PublishDetails(reads=[3]), readers=readers)
            asked = await caller.next()
            assert asked.publish.about is not None
            assert asked.publish.about.reads == named
            caller.publish(asked, 0)
            await sent


async def test_one_that_was_not_sent_is_withdrawn_here(joined: Joined) -> None:
    async with joined() as (broker, caller):
        sender = Sender(broker)
        sent = sender.send("t", pack([b"a"]))
        assert sender.waiting is not None
        assert sender.waiting.is_waiting
        assert sender.waiting.withdraw()
        assert (sender.waiting.is_waiting, broker.backend.link.publishing.outbox.bytes) == (False, 0)
        other = sender.send("t", pack([b"b"]))
        asked = await caller.next()
        assert asked.values == (b"b",)
        caller.publish(asked, 0)
        await other
        assert not sent.done()


async def test_one_that_waits_for_room_is_withdrawn_by_the_server(remote: Any) -> None:
    sender = Sender(remote)
    async with remote.subscribe("t", policy="block", buffer=1) as records:
        await sender.send("t", pack([b"a"]))
        blocked = sender.send("t", pack([b"b"]))
        await remote.topics()  # the server has looked at it
        assert sender.waiting is not None
        assert not sender.waiting.withdraw()
        with pytest.raises(PublishCancelled):
            await blocked
        other = sender.send("t", pack([b"c"]))
        assert [(await anext(records)).value for _ in range(2)] == [b"a", b"c"]
        await other


async def test_one_that_waits_for_readers_does_not_pass_for_unwritten_once_it_is_sent(joined: Joined) -> None:
    async with joined() as (broker, caller):
        sender = Sender(broker)
        sent = sender.send("t", pack([b"a"]), PublishDetails(wait=True, message_id="m"))
        assert sender.waiting is not None
        assert sender.waiting.is_waiting
        asked = await caller.next()
        assert not sender.waiting.is_waiting
        caller.publish(asked, 0)
        await sent


async def test_one_that_is_withdrawn_too_late_gets_its_position(joined: Joined, peer: Peer) -> None:
    async with joined() as (broker, caller):
        sender = Sender(broker)
        sent = sender.send("t", pack([b"a"], producer=7))
        asked = await caller.next()
        waiting = sender.waiting
        assert waiting is not None
        assert not waiting.withdraw()
        assert (await caller.next()).kind == FrameKind.CANCEL
        caller.cut()  # nobody knows whether it is stored: it is sent again, and withdrawn again
        caller = await peer.accept()
        again = await caller.next()
        assert again.publish._replace(about=None) == asked.publish
        assert (await caller.next()).kind == FrameKind.CANCEL
        caller.publish(again, 5)
        assert offsets(await sent) == (5, 5)
        assert not waiting.withdraw()


async def test_when_the_client_ends_all_waiters_are_notified(joined: Joined) -> None:
    async with joined() as (broker, caller):
        sent = Sender(broker).send("t", pack([b"a"]))
        await caller.next()
        broker.backend.link.end(ConnectionLost("there", "a test ends it"))
        with pytest.raises(ConnectionLost):
            await sent
        assert broker.connection.failed == 0, "it is not one that nobody waited for"


async def test_it_takes_part_in_transactions(remote: Any) -> None:
    publisher, request = RemotePackedPublisher(remote.backend.link), TransactionRequest()
    schema = Schema("json", Codec(int).schema)
    plans = [
        ("t", pack([b"a", b"b"], producer=3, producer_sequence=9), None),
        ("u", pack([b"1"]), PublishDetails(schema=schema, options={"retention_count": 5}, expected_offset=0)),
    ]
    found = [request.publish(*publisher.plan(*plan)) for plan in plans]
    await remote.backend.commit(request)
    assert [offsets(one.span) for one in found] == [(0, 1), (0, 0)]
    with pytest.raises(runnel.TopicConflict):
        await publisher.declare("u", {"retention_count": 6}, None)
    await publisher.declare("u", {"retention_count": 5}, schema)

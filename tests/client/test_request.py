"""Request and reply over a server."""

import asyncio
from datetime import UTC, datetime

import pytest

from runnel.core.batch_format import pack, unpack
from runnel.core.errors import ConnectionLost, InvalidOption, NoResponders
from runnel.core.record import NO_HEADERS, REPLY_TO, Meta, Record
from runnel.wire.frames import FrameKind
from tests.carried import columns_of
from tests.client.scripted_server import Joined

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def asked_by(reply_to: str | None) -> Record[bytes]:
    headers = NO_HEADERS if reply_to is None else {REPLY_TO: reply_to}
    return Record("q", 0, 0, 1, None, b"ping", headers, NOON)


async def test_the_reply_comes_as_a_record(joined: Joined) -> None:
    async with joined() as (broker, caller):
        asking = asyncio.create_task(broker.request("q", "ping", timeout=600.0, key="k", headers={"h": "v"}))
        asked = await caller.next_call("request")
        args = asked.call[1]
        assert (args["topic"], args["timeout"]) == ("q", 600.0)
        assert unpack(args["batch"]).metas[0] == Meta(b"k", {"h": "v"})
        batch = pack([b"pong"], columns_of([Meta(headers={"a": "b"})]))
        time = int(NOON.timestamp() * 1e6)
        caller.reply(asked, {"topic": "i", "offset": 1, "sequence": 2, "epoch": 3, "time": time, "batch": batch})
        assert await asking == Record("i", 1, 2, 3, None, b"pong", {"a": "b"}, NOON)


async def test_a_request_is_not_sent_twice(joined: Joined, peer: object) -> None:
    async with joined() as (broker, caller):
        asking = asyncio.create_task(broker.request("q", b"ping"))
        await caller.next_call("request")
        caller.cut()
        with pytest.raises(ConnectionLost):
            await asking


async def test_the_server_says_that_there_is_no_responder(joined: Joined) -> None:
    async with joined() as (broker, caller):
        asking = asyncio.create_task(broker.request("q", b"ping"))
        caller.refuse(await caller.next_call("request"), NoResponders("q"))
        with pytest.raises(NoResponders):
            await asking


async def test_one_who_stops_asking_tells_the_server(joined: Joined) -> None:
    async with joined() as (broker, caller):
        asking = asyncio.create_task(broker.request("q", b"ping"))
        asked = await caller.next_call("request")
        asking.cancel()
        cancel = await caller.next()
        assert (cancel.kind, cancel.id) == (FrameKind.CANCEL, asked.id)


@pytest.mark.parametrize("heard", [True, False])
async def test_a_reply_says_whether_its_requester_still_waited(joined: Joined, heard: bool) -> None:
    async with joined() as (broker, caller):
        record = asked_by("$runnel.inbox.1.2")
        replying = asyncio.create_task(broker.reply(record, "pong"))
        asked = await caller.next_call("reply")
        assert asked.call[1]["reply_to"] == "$runnel.inbox.1.2"
        unpacked = unpack(asked.call[1]["batch"])
        assert unpacked.values == (b"pong",)
        assert unpacked.metas[0].headers["traceparent"] == record.traceparent
        caller.reply(asked, heard)
        assert await replying is heard


async def test_a_reply_to_a_topic_is_published_there(joined: Joined) -> None:
    async with joined() as (broker, caller):
        replying = asyncio.create_task(broker.reply(asked_by("answers"), "pong"))
        asked = await caller.next()
        assert (asked.publish.topic, asked.values) == ("answers", (b"pong",))
        caller.publish(asked, 0)
        assert await replying


async def test_what_is_no_request_has_no_reply(joined: Joined) -> None:
    async with joined() as (broker, _):
        with pytest.raises(InvalidOption, match="not a request"):
            await broker.reply(asked_by(None), b"pong")

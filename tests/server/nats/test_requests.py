"""Requests between NATS clients and handlers of runnel, in both directions, and queue groups."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError

import runnel
from runnel.core.errors import RequestFailed
from runnel.server import Server, ServerOptions
from tests.patience import PATIENCE
from tests.server.nats.raw import port_of, raw, served


def url(server: Any) -> str:
    return f"nats://127.0.0.1:{port_of(server)}"


async def test_a_handler_of_runnel_answers_a_nats_client() -> None:
    async with served() as (broker, server):

        @broker.on("double", group="workers")
        def double(value: bytes) -> bytes:
            if value == b"x":
                raise runnel.Reject("not a number")
            return b"%d" % (2 * int(value))

        running = asyncio.create_task(broker.run(signals=False))
        await broker.ready()
        client = await nats.connect(url(server))
        assert (await client.request("double", b"21")).data == b"42"
        failed = await client.request("double", b"x")
        assert failed.headers is not None
        assert failed.headers["runnel-error"]
        with pytest.raises(NoRespondersError):
            await client.request("triple", b"1")
        assert "_INBOX" not in str(await broker.topics())
        await client.close()
        broker.stop()
        await running


async def test_a_nats_client_answers_a_request_of_runnel() -> None:
    async with served() as (broker, server):
        client = await nats.connect(url(server))

        async def answer(request: Any) -> None:
            await request.respond(request.data + b"!")

        await client.subscribe("shout", cb=answer)
        await client.flush()
        assert (await broker.request("shout", b"hey", timeout=PATIENCE)).value == b"hey!"
        await client.close()
    assert RequestFailed.code


async def test_inboxes_may_have_a_prefix_of_their_own() -> None:
    async with served() as (_, server):
        asker = await nats.connect(url(server), inbox_prefix=b"mine.box")
        service = await nats.connect(url(server))

        async def answer(request: Any) -> None:
            await request.respond(request.data + b"!")

        await service.subscribe("shout", cb=answer)
        await service.flush()
        assert (await asker.request("shout", b"hey", timeout=PATIENCE)).data == b"hey!"
        with pytest.raises(NoRespondersError):
            await asker.request("silence", b"?", timeout=PATIENCE)
        await asker.close()
        await service.close()


async def test_several_replies_reach_a_client_that_waits_for_them() -> None:
    async with served() as (_, server), raw(server) as client:
        client.send(b"SUB who 1", b"SUB who 2", b"SUB _INBOX.me 3", b"PUB who _INBOX.me 1", b"?")
        lines = await client.lines_before_pong()
        assert lines.count(b"MSG who 1 _INBOX.me 1\r\n") == lines.count(b"MSG who 2 _INBOX.me 1\r\n") == 1
        client.send(b"PUB _INBOX.me 1", b"a", b"PUB _INBOX.me 1", b"b")
        assert await client.lines_before_pong() == [
            b"MSG _INBOX.me 3 1\r\n", b"a\r\n", b"MSG _INBOX.me 3 1\r\n", b"b\r\n",
        ]  # fmt: skip


async def test_each_message_goes_to_one_member_of_a_queue_group_and_to_every_other_subscription() -> None:
    async with served() as (broker, server), raw(server) as client, raw(server) as other:
        client.send(b"SUB work q 1", b"SUB work q 2", b"SUB work p 3", b"SUB work 4", b"SUB _INBOX.q q 5")
        other.send(b"SUB work q 6", b"SUB _INBOX.q q 7")
        assert await client.lines_before_pong() == await other.lines_before_pong() == []
        for number in range(300):
            client.send(b"PUB work 3", b"%03d" % number, b"PUB _INBOX.q 1", b"x")
        sids: Counter[bytes] = Counter()
        async with asyncio.timeout(PATIENCE):
            while sids.total() < 5 * 300 - 300:
                lines = await client.lines_before_pong() + await other.lines_before_pong()
                sids.update(line.split()[2] for line in lines if line.startswith(b"MSG"))
        assert sids[b"4"] == sids[b"3"] == 300
        assert sids[b"1"] + sids[b"2"] + sids[b"6"] == 300
        assert sids[b"5"] + sids[b"7"] == 300
        assert min(sids.values()) > 30, sids
        client.send(b"UNSUB 1", b"UNSUB 2", b"UNSUB 3")
        other.send(b"UNSUB 6")
        await client.lines_before_pong()
        await other.lines_before_pong()
        async with asyncio.timeout(PATIENCE):
            while broker.statistics().groups:
                await broker.backend.flushed()
        client.send(b"PUB work 3", b"old")
        await client.lines_before_pong()
        client.send(b"UNSUB 4", b"SUB work q 8", b"PUB work 3", b"new")
        assert await client.lines(2) == [b"MSG work 8 3\r\n", b"new\r\n"], "it keeps nothing while it has no member"


async def test_a_queue_group_left_behind_by_a_server_that_died_begins_at_the_end(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        await broker.topic("work").declare()
        async with broker.subscribe("work", group="nats:q", start="latest"):
            pass
        await broker.publish("work", b"old")
        async with (
            Server(broker, ServerOptions(port=None, json_port=None, nats_port=0)) as server,
            raw(server) as client,
        ):
            client.send(b"SUB work q 1", b"PUB work 3", b"new")
            assert await client.lines(2) == [b"MSG work 1 3\r\n", b"new\r\n"]


async def test_a_queue_group_has_members_at_several_servers_and_requests_pass_between_them() -> None:
    async with served(port=0) as (_, server):
        async with served(runnel.open(f"runnel://127.0.0.1:{port_of(server, 'native')}")) as (_, gateway):
            async with raw(server) as here, raw(gateway) as there:
                for client in (here, there):
                    client.send(b"SUB work q 1", b"SUB echo 2")
                    assert await client.lines_before_pong() == []
                for number in range(200):
                    (here if number % 2 else there).send(b"PUB work 3", b"%03d" % number)
                found: Counter[bytes] = Counter()
                async with asyncio.timeout(PATIENCE):
                    while sum(found.values()) < 200:
                        for client in (here, there):
                            lines = await client.lines_before_pong()
                            found.update(line for line in lines if len(line) == 5)
                assert set(found.values()) == {1}, "each once, whichever server has the member"
            asker, service = await nats.connect(url(gateway)), await nats.connect(url(server))

            async def answer(request: Any) -> None:
                await request.respond(request.data + b"!")

            await service.subscribe("shout", cb=answer)
            await service.flush()
            assert (await asker.request("shout", b"hey", timeout=PATIENCE)).data == b"hey!"
            with pytest.raises(NoRespondersError):
                await asker.request("nobody.there", b"hey", timeout=PATIENCE)
            await asker.close()
            await service.close()

"""Presence at a server: over HTTP and JSON lines, with logins, and when connections are lost."""

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import runnel
from runnel.api import presence
from runnel.server import Server, ServerOptions, connections, tcp_info
from runnel.server.http import event_stream
from tests.patience import PATIENCE
from tests.security.guarded import Tokens, guarded
from tests.server.http.browser import Browser, web
from tests.server.json_lines_client import json_listener
from tests.server.native_client import until
from tests.server.nats import raw as nats_raw

MEMBER = """
import asyncio, sys, runnel
async def main():
    async with runnel.open(sys.argv[1]) as broker, broker.subscribe("room", presence="there"):
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_http_says_who_is_subscribed() -> None:
    async with web() as (broker, client), broker.subscribe("room.tea", presence='{"name":"Ada"}', name="ada"):
        found = (await client.get("/topics/room.tea/presence")).json()
        (member,) = found["members"]
        assert (found["topic"], member["name"], member["presence"]) == ("room.tea", "ada", '{"name":"Ada"}')
        assert member["since"].endswith("Z")
        assert (await client.get("/topics/empty/presence")).json() == {"topic": "empty", "members": []}
        assert (await client.get("/topics/room.*/presence")).status_code == 400


async def test_json_lines_say_who_is_there_and_who_comes_and_goes() -> None:
    async with json_listener() as listener:
        ada, grace = await listener.client(), await listener.client()
        await ada.ask(command="SUB", topic="room", presence="ada")
        told = await grace.ask(command="PRESENCE", topic="room", watch=False, id=1)
        assert (told["event"], told["id"], [one["presence"] for one in told["members"]]) == ("presence", 1, ["ada"])
        told = await grace.ask(command="PRESENCE", topic="room", id=2)
        assert (told["event"], [one["presence"] for one in told["members"]]) == ("presence", ["ada"])
        last = await listener.client()
        await last.ask(command="SUB", topic="room", presence="last")
        told = await asyncio.wait_for(grace.event(), PATIENCE)
        assert (told["event"], told["topic"], told["member"]["presence"], told["id"]) == ("join", "room", "last", 2)
        await ada.ask(command="UNSUB", topic="room")
        told = await asyncio.wait_for(grace.event(), PATIENCE)
        assert (told["event"], told["member"]["presence"]) == ("leave", "ada")
        assert await grace.ask(command="UNSUB", id=2) == {"event": "unsubscribed", "topic": "room", "count": 1, "id": 2}


async def test_members_have_the_names_that_they_logged_in_with(tmp_path: Path) -> None:
    tokens = Tokens()
    for name in ("ada", "grace"):
        tokens.add(name, ["subscribe:>", "create:>", "group:>"])
    async with guarded(tmp_path, tokens) as server, server.client(tokens.texts["ada"]) as ada:
        async with (
            server.client(tokens.texts["grace"]) as grace,
            ada.subscribe("room"),
            grace.subscribe("room", group="g"),
        ):
            assert [one.principal for one in await grace.presence("room")] == ["ada", "grace"]


async def test_a_process_that_dies_leaves_at_once_and_one_that_freezes_within_15_seconds() -> None:
    assert connections.CLOSE_PING + connections.CLOSE_PATIENCE + 1 < 15
    async with (
        runnel.open() as broker,
        Server(broker, ServerOptions(port=0, json_port=None, ping=0.2, ping_timeout=0.3)) as server,
    ):
        start = (sys.executable, "-c", MEMBER, server.listeners[0].url)
        members = [await asyncio.create_subprocess_exec(*start) for _ in range(2)]
        try:
            async with asyncio.timeout(PATIENCE), broker.presence("room").watch() as events:
                assert [(await anext(events)).event for _ in members] == ["join", "join"]
                for member, how in zip(members, (signal.SIGKILL, signal.SIGSTOP), strict=True):
                    member.send_signal(how)
                    assert (await anext(events)).event == "leave"
        finally:
            for member in members:
                with suppress(ProcessLookupError):
                    member.kill()
                await member.wait()


async def test_a_client_that_is_seen_is_pinged_sooner_than_others() -> None:
    async with runnel.open() as broker, Server(broker, ServerOptions(port=0, json_port=None)) as server:
        async with runnel.open(server.listeners[0].url) as client:
            assert server.serving is not None
            served: Any
            (served,) = server.serving.connections
            assert served._keepalive._ping == 15.0
            async with client.subscribe("room", presence="ada"):
                assert (served._keepalive._ping, served._keepalive._timeout) == (5.0, 8.0)


@pytest.mark.parametrize("line", [b"SUB room 1", b"SUB room.> 1", b"SUB room workers 1"])
async def test_a_nats_client_is_pinged_sooner_once_others_ask_who_is_there(line: bytes) -> None:
    async with nats_raw.served() as (broker, server), nats_raw.raw(server) as client:
        await broker.publish("room.tea", b"hello")
        client.send(line)
        assert await client.lines_before_pong() == []
        assert server.serving is not None
        served: Any
        (served,) = server.serving.connections
        assert (served._ping, served._patience) == (15.0, 15.0)
        assert len(await broker.presence("room" if line[8:9] != b"." else "room.tea")) == 1
        assert (served._ping, served._patience) == (5.0, 8.0)
        assert await client.lines_before_pong() == []


@pytest.mark.parametrize("group", [None, "workers"])
async def test_a_client_is_pinged_sooner_once_others_ask_who_is_there(group: str | None) -> None:
    async with runnel.open() as broker, Server(broker, ServerOptions(port=0, json_port=None)) as server:
        async with runnel.open(server.listeners[0].url) as client, client.subscribe("room.*", group=group):
            assert server.serving is not None
            served: Any
            (served,) = server.serving.connections
            await broker.presence("other")
            assert served._keepalive._ping == 15.0
            assert len(await broker.presence("room.tea")) == 1  # and there is no such topic yet
            close = served._keepalive
            assert (close._ping, close._timeout) == (5.0, 8.0)
            await broker.presence("room.tea")
            assert served._keepalive is close  # or asking would be taken for a sign of life


async def test_an_event_stream_that_is_lost_leaves_within_15_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    # A heartbeat, then no acknowledgement; a look to notice that, and one that reports it.
    assert event_stream.CLOSE_HEARTBEAT + tcp_info.UNANSWERED + 2 < 15
    monkeypatch.setattr(event_stream, "HEARTBEAT", 10 * PATIENCE)
    monkeypatch.setattr(event_stream, "CLOSE_HEARTBEAT", 0.02)
    monkeypatch.setattr(tcp_info, "UNANSWERED", 0.5)
    monkeypatch.setattr(presence, "INTERVAL", 0.05)
    async with runnel.open() as broker, Server(broker, ServerOptions(json_port=None, http_port=0, port=None)) as server:
        await broker.publish("room", b"a topic")
        browser = Browser(server.listeners[0].url, "topic=room")
        reading = asyncio.ensure_future(browser.read(lambda one: False))
        async with asyncio.timeout(PATIENCE), broker.presence("room").watch() as events:
            assert (await anext(events)).event == "join"
            await until(lambda: browser.comments > 2)  # a heartbeat follows each look
            # Packets can be lost by the system only: this is what it says then.
            lost = tcp_info.TcpInfo(in_flight=1, last_ack=60_000, acked=1, received=0)
            monkeypatch.setattr(event_stream, "tcp_info", lambda connection: lost)
            assert (await anext(events)).event == "leave"
        with pytest.raises(httpx.TransportError):
            await reading

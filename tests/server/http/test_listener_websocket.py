"""A websocket at a listener of ours: pinged, bounded in what it holds, and cut off when nobody is there."""

import asyncio
import gc
import json
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from websockets.frames import Frame

from runnel.server.http import listener
from runnel.server.http.listener import WebSocketConnection
from runnel.server.options import TlsOptions
from runnel.server.server import Server
from runnel.wire.frames import FrameKind, frame
from tests.server.certificates import Authority
from tests.server.http.browser import raw, serving
from tests.server.http.websocket_client import Place, by_hand, masked
from tests.server.native_client import until

PING, PONG, CLOSE = 9, 10, 8


def place(server: Server) -> Place:
    return Place(server.broker, f"{server.listeners[-1].url.replace('http', 'ws', 1)}/ws")


async def test_a_browser_that_is_gone_without_a_word_is_noticed() -> None:
    async with serving(ping=0.05, ping_timeout=0.05) as server:
        reader, writer = await by_hand(place(server).url)
        assert (await reader.readexactly(2))[0] == 0x80 | PING
        await reader.read()
        await until(lambda: server.connections == 0)
        writer.close()


async def test_one_that_answers_stays_and_so_does_one_that_says_anything() -> None:
    async with serving(ping=0.02, ping_timeout=3600.0) as server:
        async with place(server).page() as page:  # its library answers
            reader, writer = await by_hand(place(server).url)
            for _ in range(5):
                head = await reader.readexactly(2)
                assert head[0] == 0x80 | PING
                writer.write(masked(await reader.readexactly(head[1]), PONG))
            assert (await page.ask(command="PING"))["event"] == "pong"
            assert server.connections == 2
            writer.transport.abort()


async def test_silence_means_nothing_while_a_connection_is_not_read() -> None:
    """A publisher is not read from while there is no room for what it sends, so no pong of it arrives."""
    async with serving(ping=0.05, ping_timeout=0.5, max_pending_bytes=1) as server:
        at = place(server)
        async with at.broker.subscribe("t", policy="block", buffer=1) as slow, at.page() as page:
            await at.broker.publish("t", "fills it")
            for number in range(100):  # more than is read ahead
                await page.send(command="PUB", topic="t", payload=str(number) + "x" * 1000)
            assert server._http is not None
            connection = cast(WebSocketConnection, next(iter(server._http.state.connections)))
            await until(lambda: connection.read_paused)
            first = connection.ping_sent_at
            await until(lambda: connection.ping_sent_at > first + 1.0)  # many pings, twice the time for an answer
            values = [(await anext(slow)).value.rstrip(b"x") for _ in range(101)]
            assert values == [b"fills it", *(b"%d" % number for number in range(100))]
            assert [one["offset"] for one in await page.events(100)] == [*range(1, 101)]


async def test_unfinished_messages_of_many_connections_are_bounded_together() -> None:
    async with serving(max_held_bytes=1_500_000) as server:
        assert server.serving is not None
        memory = server.serving.memory
        pages = []
        for held in (900_000, 1_800_000):
            reader, writer = await by_hand(place(server).url)
            pages.append((reader, writer))
            writer.write(masked(bytes(500_000), fin=False))  # a part of a message,
            writer.write(masked(bytes(500_000), fin=True, opcode=0)[:-1])  # and of a fragment
            await until(partial(lambda held: memory.exceeded or memory.held >= held, held))
        assert (memory.exceeded, memory.held <= 1_500_000) == (1, True)
        assert (await pages[0][0].read()).endswith(b"limit_exceeded: max_held_bytes")  # it had more than the other
        await until(lambda: server.connections == 1)
        for _, writer in pages:
            writer.transport.abort()
        await until(lambda: server.connections == 0)
        assert memory.held == 0


async def test_a_message_that_is_never_whole_is_not_waited_for() -> None:
    async with serving(frame_timeout=0.05) as server:
        for begun in (masked(b"begun", fin=False), masked(b"whole") + masked(b"half of it")[:-3]):
            reader, writer = await by_hand(place(server).url)
            writer.write(begun)
            assert (await reader.read()).endswith(b"\x88\x02\x03\xf0")  # closed, with 1008
            await until(lambda: server.connections == 0)
            writer.close()


async def test_a_message_that_takes_its_time_is_taken() -> None:
    async with serving(frame_timeout=3600.0) as server:
        reader, writer = await by_hand(place(server).url)
        writer.write(masked(b'{"command":', fin=False))
        writer.write(masked(b"", PING))
        assert await reader.readexactly(2) == bytes([0x80 | PONG, 0])  # between its parts others may come
        writer.write(masked(b' "PING"}', 0))
        assert b"pong" in await reader.readexactly(18)
        writer.transport.abort()


async def test_a_message_in_too_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_FRAGMENTS", 100)
    async with serving() as server:
        reader, writer = await by_hand(place(server).url)
        writer.write(masked(b"{", fin=False) + masked(b"", 0, fin=False) * 100)
        assert (await reader.read()).endswith(b"\x88\x02\x03\xf1")  # 1009
        writer.close()


async def test_native_frames_may_be_larger_than_lines() -> None:
    async with serving(max_line=1000, max_frame=100_000) as server:
        async with place(server).native() as native:
            await native.published(native.publish("t", b"x" * 50_000))
            native.send(frame(FrameKind.CALL, 7, bytes(200_000)))
            await native.eof()
            assert native.code == 1009


async def test_a_head_that_is_too_much_for_a_websocket_is_answered() -> None:
    async with serving() as server:
        head = b"GET /ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        answer = await raw(server, head + b"cookie: " + b"x" * 20_000 + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert (await raw(server, head + b"\r\n")).startswith(b"HTTP/1.1 400 ")  # without a key
        await until(lambda: server.connections == 0)


async def test_it_speaks_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost")
    async with serving(host="localhost", ssl=TlsOptions(cert=cert, key=key)) as server:
        at = place(server)
        assert at.url.startswith("wss://")
        async with at.page(ssl=authority.trusting()) as page:
            assert (await page.ask(command="PING"))["event"] == "pong"
            closing = asyncio.ensure_future(server.close())
            assert await page.closed() == 1001
            await closing


@pytest.mark.parametrize("is_whole", [True, False])
async def test_no_frame_keeps_its_bytes_once_they_were_taken_from_it(is_whole: bool) -> None:
    """The parser keeps the last frame of each connection, for as long as the connection or its object lives."""

    message = json.dumps({"command": "PUB", "topic": "t", "payload": "x" * 212_345}).encode()

    def kept() -> int:
        return sum(len(one.data) == len(message) for one in gc.get_objects() if type(one) is Frame)

    async with serving() as server:
        _, writer = await by_hand(place(server).url)
        writer.write(masked(message, fin=is_whole))
        assert server._http is not None
        connection = cast(WebSocketConnection, next(iter(server._http.state.connections)))
        if is_whole:
            await until(lambda: server.broker.statistics().published == 1)
        else:
            await until(lambda: len(connection.frames) == 1)
        before = kept()
        writer.transport.abort()
        await until(lambda: server.connections == 0)
        assert (before, kept()) == (0, 0)

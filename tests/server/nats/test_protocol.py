"""The core protocol of NATS, as a client sees it on the wire."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx

import runnel
from runnel.server import Server
from runnel.server.options import TlsOptions
from tests.patience import PATIENCE
from tests.server.certificates import Authority
from tests.server.nats.raw import RawClient, port_of, raw, served

LONG = b"x" * 5_000


async def test_info_says_what_clients_look_for() -> None:
    async with served() as (_, server), raw(server, connected=False) as client:
        info = await client.connect()
        assert info["headers"] is True
        assert info["proto"] == 1
        assert info["max_payload"] == 1 << 20
        assert info["port"] == port_of(server)
        assert info["client_ip"] == "127.0.0.1"
        assert [int(part) for part in info["version"].split(".")] >= [2, 2, 0], "nats clients look for features by it"
        assert not {"auth_required", "tls_required"} & info.keys()


async def test_messages_go_to_every_matching_subscription_in_order() -> None:
    async with served() as (_, server), raw(server) as client, raw(server) as other:
        client.send(b"SUB a.* 1", b"SUB a.> 2", b"SUB a.b x-3", b"SUB c 4")
        assert await client.lines_before_pong() == []
        other.send(
            b"PUB a.b 2", b"hi", b"PUB a.b.c reply.to 0", b"", b"HPUB a.b 18 20", b"NATS/1.0", b"A: 1", b"", b"yo"
        )
        assert await other.lines_before_pong() == []
        lines = await client.lines_before_pong()
        for sid in (b"1", b"2", b"x-3"):
            first, second = lines.index(b"MSG a.b %b 2\r\n" % sid), lines.index(b"HMSG a.b %b 18 20\r\n" % sid)
            assert first < second
            assert lines[first + 1] == b"hi\r\n"
            assert lines[second + 1 : second + 5] == [b"NATS/1.0\r\n", b"A: 1\r\n", b"\r\n", b"yo\r\n"]
        assert b"MSG a.b.c 2 reply.to 0\r\n" in lines
        assert len(lines) == 3 * 2 + 3 * 5 + 2


async def test_verbose_clients_get_ok_and_pedantic_ones_get_errors_for_wrong_subjects() -> None:
    async with served() as (_, server), raw(server, verbose=True, pedantic=True) as client:
        assert await client.line() == b"+OK\r\n"
        client.send(b"SUB a 1", b"PUB a 1", b"x", b"UNSUB 1", b"PUB a.* 1", b"x")
        lines = [await client.line() for _ in range(6)]
        assert lines.count(b"+OK\r\n") == 3
        assert b"MSG a 1 1\r\n" in lines
        lines += await client.lines_before_pong()
        assert b"-ERR 'Invalid Publish Subject'\r\n" in lines


async def test_a_subscription_ends_after_as_many_messages_as_unsub_says() -> None:
    async with served() as (_, server), raw(server) as client:
        client.send(b"SUB a 1", b"UNSUB 1 2", b"SUB a 2", *[b"PUB a 1\r\nx"] * 4)
        lines = await client.lines_before_pong()
        assert (lines.count(b"MSG a 1 1\r\n"), lines.count(b"MSG a 2 1\r\n")) == (2, 4)
        client.send(b"UNSUB 2 3", b"PUB a 1", b"x")
        assert await client.lines_before_pong() == [], "it has had as many before"
        assert len(next(iter(server.serving.connections)).session.subscriptions) == 0  # type: ignore[union-attr]


async def test_without_echo_a_client_does_not_get_its_own_messages() -> None:
    async with served() as (_, server), raw(server, echo=False) as client, raw(server) as other:
        client.send(b"SUB a 1", b"SUB > 2", b"SUB _INBOX.x 3")
        assert await client.lines_before_pong() == []
        lines = []
        for one in (client, other, client):
            one.send(b"PUB a 5", b"other" if one is other else b"own..", b"PUB _INBOX.x 5", b"inbox")
            lines += await one.lines_before_pong()
        lines += await client.lines_before_pong()
        assert lines.count(b"own..\r\n") == 0
        assert lines.count(b"MSG a 1 5\r\n") == lines.count(b"MSG a 2 5\r\n") == 1
        assert lines.count(b"MSG _INBOX.x 3 5\r\n") == 1


async def test_a_request_that_no_one_reads_is_answered_at_once() -> None:
    async with served() as (broker, server), raw(server) as client:
        client.send(b"SUB _INBOX.a.* 1", b"PUB service _INBOX.a.b 1", b"x", b"PUB $JS.API.INFO _INBOX.a.c 0", b"")
        lines = await client.lines_before_pong()
        assert lines[0:1] + lines[4:5] == [b"HMSG _INBOX.a.b 1 16 16\r\n", b"HMSG _INBOX.a.c 1 16 16\r\n"]
        assert lines[1:4] == [b"NATS/1.0 503\r\n", b"\r\n", b"\r\n"]
        assert await broker.topics() == [], "nothing is kept of it"


async def test_wrong_bytes_end_the_connection_and_say_why() -> None:
    cases = {
        b"HELO": b"-ERR 'Unknown Protocol Operation'",
        b"PUB a 99999999": b"-ERR 'Maximum Payload Violation'",
        b"SUB " + LONG + b" 1": b"-ERR 'maximum control line exceeded'",
        b"PUB a": b"-ERR 'Parser Error'",
        b"MSG a 1 0\r\n": b"-ERR 'Parser Error'",
    }
    async with served() as (_, server):
        for line, answer in cases.items():
            async with raw(server) as client:
                client.send(line)
                assert (await client.rest()).startswith(answer), line


async def test_subjects_that_make_no_sense_are_refused_and_the_connection_stays() -> None:
    async with served() as (_, server), raw(server) as client:
        client.send(b"SUB a..b 1", b"SUB a.>.b 2", b"SUB .a 3", b"SUB foo* 4", b"PUB foo* 1", b"x")
        lines = await client.lines_before_pong()
        assert lines == [b"-ERR 'Invalid Subject'\r\n"] * 3 + [b"MSG foo* 4 1\r\n", b"x\r\n"]


async def test_a_client_may_say_something_before_connect() -> None:
    async with served() as (_, server), raw(server, connected=False) as client:
        client.send(b"SUB a 1", b"PING", b'CONNECT {"verbose":false}', b"PUB a 1", b"x", b"PING")
        assert (await client.line()).startswith(b"INFO ")
        assert await client.lines(5) == [b"+OK\r\n", b"PONG\r\n", b"MSG a 1 1\r\n", b"x\r\n", b"PONG\r\n"]


async def test_subjects_with_very_many_tokens_cost_little() -> None:
    deep = b".".join([b"a"] * 2_000)
    async with served() as (_, server), raw(server) as client:
        client.send(b"SUB " + deep + b" 1", b"SUB _INBOX.> 2", b"PUB _INBOX." + deep + b" 1", b"x")
        assert await client.lines_before_pong() == [
            b"-ERR 'Invalid Subject'\r\n", b"MSG _INBOX." + deep + b" 2 1\r\n", b"x\r\n",
        ]  # fmt: skip


async def test_too_many_subscriptions_are_refused() -> None:
    async with served(max_subscriptions=2) as (_, server), raw(server) as client:
        client.send(b"SUB a 1", b"SUB b 2", b"SUB c 3")
        assert await client.lines_before_pong() == [b"-ERR 'maximum subscriptions exceeded'\r\n"]


async def test_a_silent_client_is_pinged_and_then_gone() -> None:
    async with served(ping=0.05, ping_timeout=0.05, hello_timeout=0.05) as (_, server), raw(server) as client:
        client.send(b"PING")
        assert (await client.rest()) == b"PONG\r\nPING\r\n-ERR 'Stale Connection'\r\n"


async def test_a_client_that_is_not_read_from_is_not_taken_for_dead() -> None:
    async with served(ping=0.05, ping_timeout=0.05, hello_timeout=0.05) as (broker, server), raw(server) as client:
        async with broker.subscribe("a", policy="block", buffer=1) as records:
            client.send(b"PUB a 1", b"x", b"PUB a 1", b"y", b"PUB a 1", b"z")
            async with raw(server) as other:  # longer than a silent client may live
                assert b"-ERR 'Stale Connection'\r\n" in await other.rest()
            assert [(await anext(records)).value for _ in range(3)] == [b"x", b"y", b"z"]
        assert set(await client.lines_before_pong()) <= {b"PING\r\n"}


def connections(server: Server) -> list[Any]:
    assert server.serving is not None
    return list(server.serving.connections)


async def test_live_messages_that_a_client_does_not_read_are_bounded() -> None:
    limits: dict[str, Any] = {"high_water": 65_536, "max_pending_bytes": 1 << 20}
    async with served(**limits) as (_, server), raw(server) as slow, raw(server) as other:
        slow.send(b"SUB _INBOX.slow.* 1")
        assert await slow.lines_before_pong() == []
        (served_slow,) = [one for one in connections(server) if one.session.subscriptions]
        most = 0
        async with asyncio.timeout(PATIENCE):
            while served_slow in connections(server):
                other.send(*[b"PUB _INBOX.slow.x 60000\r\n" + bytes(60_000)] * 20)
                assert await other.lines_before_pong() == []
                most = max(most, served_slow.describe()["unsent_bytes"])
        assert most < 4 << 20
        assert server.serving is not None
        assert server.serving.nats is not None
        assert server.serving.nats.figures()["slow_consumers"] == 1


async def test_varz_shows_the_figures_of_the_listener() -> None:
    async with served(http_port=0) as (_, server), raw(server) as client:
        client.send(b"SUB a 1", b"SUB a 2", b"PUB a 5", b"hello", b"PUB _INBOX.x 3", b"you")
        assert len(await client.lines_before_pong()) == 4
        async with httpx.AsyncClient() as http:
            found = (await http.get(f"http://127.0.0.1:{port_of(server, 'http')}/varz")).json()
    shown = {"connections": 1, "subscriptions": 2, "in_msgs": 2, "in_bytes": 8, "out_msgs": 2, "out_bytes": 10}
    assert found | shown | {"slow_consumers": 0, "max_payload": 1 << 20, "auth_required": False} == found


async def test_what_else_is_written_to_a_full_connection_brings_no_records_with_it(tmp_path: Path) -> None:
    async with served(runnel.open(tmp_path), high_water=65_536) as (broker, server), raw(server) as slow:
        topic = broker.topic("orders")
        await topic.declare()
        slow.send(b"SUB orders 1", b"SUB _INBOX.slow 2")
        assert await slow.lines_before_pong() == []
        (served_slow,) = connections(server)
        async with asyncio.timeout(PATIENCE):
            while not served_slow._is_full:
                await topic.publish_many([bytes(60_000)] * 20)
        async with raw(server) as other:
            for _ in range(50):
                other.send(b"PUB _INBOX.slow 1", b"x")
                await topic.publish(bytes(60_000))
                assert await other.lines_before_pong() == []
        assert served_slow.describe()["unsent_bytes"] < 65_536 + 4 * 60_000


async def test_a_client_that_says_nothing_is_gone_after_hello_timeout() -> None:
    async with served(hello_timeout=0.05) as (_, server), raw(server, connected=False) as client:
        assert b"-ERR 'Authentication Timeout'\r\n" in await client.rest()


async def test_a_server_that_stops_says_so_first() -> None:
    async with served() as (_, server), raw(server) as client:
        assert await client.lines_before_pong() == []
        closing = asyncio.ensure_future(server.close(5))
        said = await client.rest()
        client.writer.close()
        await closing
        assert said.startswith(b"INFO ")
        assert b'"ldm":true' in said


async def test_tls_begins_after_info_or_at_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost")
    tls = TlsOptions(cert=cert, key=key, client_ca=authority.cert)
    trusting = authority.trusting(authority.issue("client"))
    async with served(ssl=tls) as (_, server):
        async with raw(server, connected=False) as client:  # the client waits for INFO
            assert b'"tls_required":true' in await client.reader.readline()
            await client.writer.start_tls(trusting, server_hostname="localhost")
            client.send(b'CONNECT {"verbose":false}', b"SUB a 1", b"PUB a 1", b"x")
            assert await client.lines_before_pong() == [b"MSG a 1 1\r\n", b"x\r\n"]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port_of(server), ssl=trusting, server_hostname="localhost"
        )
        client = RawClient(reader, writer)  # the handshake comes first
        assert (await client.connect())["tls_required"] is True
        assert await client.lines_before_pong() == []
        writer.close()
        async with raw(server, connected=False) as client:  # and without a certificate nothing comes of it
            await client.reader.readline()
            try:
                await client.writer.start_tls(authority.trusting(), server_hostname="localhost")
                client.send(b"CONNECT {}", b"PING")
                assert await client.rest() == b""
            except (ssl.SSLError, ConnectionError):
                pass

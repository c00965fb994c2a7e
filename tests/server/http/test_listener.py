"""The HTTP listener: counted and bounded like any other, and closed with them."""

import asyncio
import email.utils
import socket
import time
from pathlib import Path

import httpx
import pytest

from runnel.core.errors import NotSupported
from runnel.server import Server, ServerOptions, TlsOptions, http
from runnel.server.http import listener
from tests.patience import PATIENCE
from tests.server.certificates import Authority
from tests.server.http.browser import Browser, raw, serving
from tests.server.native_client import until

GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"


async def test_it_is_a_door_among_the_others() -> None:
    async with serving(port=0, json_port=0) as server:
        assert [one.name for one in server.listeners] == ["native", "json", "http"]
        assert server.listeners[2].url == f"http://127.0.0.1:{server.listeners[2].port}"
        answer = httpx.Response(200)
        async with httpx.AsyncClient(base_url=server.listeners[2].url) as client:
            answer = await client.get("/healthz")
            assert server.connections == 1
            assert server.serving is not None
            (told,) = server.serving.connections.describe()
            assert (told["door"], told["subscriptions"], told["connection"]) == ("http", 0, 1)
        sent = email.utils.parsedate_to_datetime(answer.headers["date"]).timestamp()
        assert abs(sent - time.time()) < 5
        await until(lambda: server.connections == 0)


async def test_it_speaks_tls_with_the_others(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost")
    async with serving(host="localhost", ssl=TlsOptions(cert=cert, key=key)) as server:
        assert server.listeners[0].url.startswith("https://")
        async with httpx.AsyncClient(base_url=server.listeners[0].url, verify=authority.trusting()) as client:
            assert (await client.post("/topics/t", content=b"x")).status_code == 201


async def test_more_connections_than_there_may_be_are_told() -> None:
    async with serving(max_connections=1) as server:
        async with httpx.AsyncClient(base_url=server.listeners[0].url) as client:
            assert (await client.get("/healthz")).status_code == 200
            answer = await raw(server, GET + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"max_connections" in answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),  # TLS to a port without
        (b"nonsense\r\n\r\n", b"400"),
        (GET + b"bad header: \0\r\n\r\n", b"400"),
        (GET + b"x: a\rb\r\n\r\n", b"400"),
        (b"GET /topics/\xff\xfe HTTP/1.1\r\n\r\n", b"400"),
        (GET + b"x: " + b"a" * 400_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"a" * 400_000 + b" HTTP/1.1\r\n\r\n", b"431"),
    ],
)
async def test_what_is_no_request_is_refused(request_: bytes, status: bytes) -> None:
    async with serving() as server:
        answer = await raw(server, request_)
        assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
        assert b"application/problem+json" in answer
        await until(lambda: server.connections == 0)


@pytest.mark.parametrize("begun", [b"", GET])
async def test_a_head_that_does_not_come_is_not_waited_for(begun: bytes) -> None:
    async with serving(hello_timeout=0.05) as server:
        answer = await raw(server, begun)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"hello_timeout" in answer


async def test_a_body_that_is_too_much_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HTTP_LINGER", 0.05)
    async with serving(max_body=10) as server:
        head = b"POST /topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
        answer = await raw(server, head + b"x" * 1000)
        assert answer.startswith(b"HTTP/1.1 413 ")
        await until(lambda: server.connections == 0)


async def test_requests_behind_each_other_are_answered_in_order() -> None:
    async with serving() as server:
        one = b"POST /topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx"
        last = one.replace(b"host: localhost", b"host: localhost\r\nconnection: close")
        answer = await raw(server, one * 4 + last)
        assert answer.count(b"HTTP/1.1 201 ") == 5
        assert [b'"offset":%d' % number in answer for number in range(5)] == [True] * 5


async def test_streams_end_with_the_server_and_what_is_under_way_is_answered() -> None:
    async with serving() as server:
        browser = Browser(server.listeners[0].url, "topic=t")
        reading = asyncio.ensure_future(browser.read(lambda one: False))
        await until(lambda: browser.readies)
        async with asyncio.timeout(PATIENCE):
            await server.close(3600.0)
        assert await reading is True
        assert (server.connections, browser.gaps, browser.ends) == (0, [], [])
        assert server.broker.statistics().subscriptions == ()


async def test_a_frozen_client_is_cut_off_at_the_deadline() -> None:
    async with serving(send_timeout=3600.0) as server:
        await server.broker.topic("t").publish_many([b"x" * 100_000] * 200)
        with socket.create_connection((server.listeners[0].host, server.listeners[0].port)) as frozen:
            frozen.sendall(b"GET /events?topic=t&start=earliest HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await until(lambda: server.broker.statistics().subscriptions)
            await server.close(0.05)
        assert server.connections == 0


async def test_without_the_packages_the_door_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "find_spec", lambda name: None)
    async with serving(http_port=None) as server:
        options = ServerOptions(port=None, json_port=None, http_port=0)
        with pytest.raises(NotSupported, match=r"pip install 'runnel-mq\[server\]'"):
            await Server(server.broker, options).__aenter__()


async def test_what_nobody_waits_for_any_more_is_given_up() -> None:
    async with serving() as server:
        async with server.broker.subscribe("t", policy="block", buffer=1):
            await server.broker.publish("t", b"fills it")
            _, writer = await asyncio.open_connection(server.listeners[0].host, server.listeners[0].port)
            writer.write(b"POST /topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx")
            await until(lambda: server.broker.statistics().waiting_publishers == 1)
            await server.close(0.05)
            assert server.broker.statistics().waiting_publishers == 0
            writer.close()

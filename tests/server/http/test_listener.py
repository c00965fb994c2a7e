"""The HTTP listener: counted and bounded like any other, and closed with them."""

import asyncio
import email.utils
import re
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from runnel.core.errors import NotSupported
from runnel.server import Server, ServerOptions, TlsOptions, http
from runnel.server.connections import RESERVED
from runnel.server.http import listener
from tests.patience import PATIENCE
from tests.server.certificates import Authority
from tests.server.http.browser import Browser, raw, serving
from tests.server.native_client import until

GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"


async def test_it_is_a_listener_among_the_others() -> None:
    async with serving(port=0, json_port=0) as server:
        assert [one.name for one in server.listeners] == ["native", "json", "http"]
        assert server.listeners[2].url == f"http://127.0.0.1:{server.listeners[2].port}"
        answer = httpx.Response(200)
        async with httpx.AsyncClient(base_url=server.listeners[2].url) as client:
            answer = await client.get("/healthz")
            assert server.connections == 1
            assert server.serving is not None
            (told,) = server.serving.connections.describe()
            assert (told["listener"], told["subscriptions"], told["connection"]) == ("http", 0, 1)
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


async def test_more_connections_than_the_limit_are_reported() -> None:
    async with serving(max_connections=1) as server:
        async with httpx.AsyncClient(base_url=server.listeners[0].url) as client:
            assert (await client.get("/healthz")).status_code == 200
            answer = await raw(server, GET.replace(b"/healthz", b"/topics") + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"max_connections" in answer


async def test_idle_connections_do_not_lock_out_health_checks() -> None:
    async with serving(max_connections=2) as server, AsyncExitStack() as stack:
        idle = [await connected(server, stack) for _ in range(2 + 2 * RESERVED)]
        await until(lambda: server.connections == 2)
        for path in (b"/healthz", b"/readyz", b"/metrics?x=1"):
            answer = await raw(server, GET.replace(b"/healthz", path) + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            assert b"connection: close" in answer  # others may want to ask, too
        assert server.connections == 2
        idle[0][1].write(GET + b"\r\n")  # those that were there first are served as ever
        assert (await idle[0][0].read(100)).startswith(b"HTTP/1.1 200 ")


async def connected(server: Server, stack: AsyncExitStack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that says nothing."""
    reader, writer = await asyncio.open_connection(server.listeners[0].host, server.listeners[0].port, limit=1)
    stack.callback(lambda: writer.transport.abort())  # it is closed as soon as nothing refers to the writer
    return reader, writer


# -- clients that do not read -----------------------------------------------------------------------------------


PAGE = GET.replace(b"/healthz", b"/topics/t/records?format=ndjson&limit=10000") + b"\r\n"


async def test_a_response_that_is_not_read_is_not_kept() -> None:
    async with serving(send_timeout=0.1) as server, AsyncExitStack() as stack:
        assert server.serving is not None
        await server.broker.topic("t").publish_many([b"x" * 1_000_000] * 7)
        _, writer = await connected(server, stack)
        writer.write(PAGE)
        await until(lambda: server.serving is not None and server.serving.memory.held > 1_000_000)
        await until(lambda: server.connections == 0)
        assert server.serving.memory.held == 0


async def test_a_response_that_is_read_slowly_comes_whole() -> None:
    async with serving(send_timeout=0.2) as server, AsyncExitStack() as stack:
        await server.broker.topic("t").publish_many([b"x" * 1_000_000] * 7)
        reader, writer = await connected(server, stack)
        writer.write(PAGE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        size = 0
        while data := await reader.read(1 << 20):
            size += len(data)
            await asyncio.sleep(0.02)  # more than the time allowed in all
        assert size > 7_000_000


async def test_unread_responses_of_many_connections_are_bounded_together() -> None:
    async with serving(max_held_bytes=10_000_000, send_timeout=3600.0) as server, AsyncExitStack() as stack:
        assert server.serving is not None
        memory = server.serving.memory
        await server.broker.topic("t").publish_many([b"x" * 1_000_000] * 8)
        for _ in range(6):
            _, writer = await connected(server, stack)
            writer.write(PAGE)
        await until(lambda: memory.exceeded >= 2 and server.connections <= 4)
        assert memory.held <= 10_000_000
        answer = await raw(server, GET + b"connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_slow_bodies_of_many_connections_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HTTP_LINGER", 0.05)
    async with serving(max_held_bytes=4_000_000, max_body=3_000_000) as server, AsyncExitStack() as stack:
        assert server.serving is not None
        memory = server.serving.memory
        head = b"POST /topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2500000\r\n\r\n"
        for _ in range(2):
            _, writer = await connected(server, stack)
            writer.write(head + bytes(2_400_000))
        await until(lambda: memory.exceeded == 1)
        assert memory.held <= 4_000_000
        await until(lambda: server.connections == 1)
        assert not server.broker.statistics().topics


async def test_the_body_of_a_get_is_not_kept() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        reader, writer = await connected(server, stack)
        writer.write(b"GET /events?topic=t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2000000\r\n\r\n" + bytes(10))
        await until(lambda: server.broker.statistics().subscriptions)
        writer.write(bytes(1_000_000))
        await writer.drain()
        (connection,) = server._http.state.connections  # type: ignore[union-attr]
        assert isinstance(connection, listener.HttpConnection)
        while b"\nevent: ready" not in await reader.read(10_000):
            pass
        assert connection.cycle.body == b""


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


async def test_what_is_no_request_is_refused_behind_the_answers_to_those_before_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as server:
        post = b"POST /topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx"
        chunked = b"POST /topics/u HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloXX\r\n"
        for garbage in (b"garbage garbage\r\n\r\n", GET + b"bad header: \0\r\n\r\n", chunked):
            answer = await raw(server, post * 2 + garbage)
            assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"201", b"201", b"400"]
        answer = await raw(server, chunked)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert await server.broker.topics() == ["t"]
        await until(lambda: server.connections == 0)
    assert [one for one in caplog.records if one.exc_info] == []


async def test_a_second_request_does_not_disturb_the_stream_before_it() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        reader, writer = await connected(server, stack)
        writer.write(b"GET /events?topic=t HTTP/1.1\r\nhost: localhost\r\n\r\n" + GET)  # and never the end of its head
        await until(lambda: server.broker.statistics().subscriptions)
        (connection,) = server._http.state.connections  # type: ignore[union-attr]
        assert isinstance(connection, listener.HttpConnection)
        connection._late()  # as its timer does when the time has passed
        assert connection._due is not None
        await server.broker.publish("t", b"goes on")
        assert b"408" not in await read_to(reader, b"goes on")


async def test_the_body_of_a_second_request_may_come_later() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        reader, writer = await connected(server, stack)
        post = b"POST /topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n"
        writer.write(post + b"x" + post)
        await read_to(reader, b'"offset":0')
        writer.write(b"y")
        await read_to(reader, b'"offset":1')


async def read_to(reader: asyncio.StreamReader, text: bytes) -> bytes:
    """What comes until `text` is in it."""
    seen = b""
    while text not in seen:
        data = await reader.read(1000)
        assert data, seen
        seen += data
    return seen


async def test_malformed_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        assert server._http is not None
        for _ in range(20):
            await raw(server, b"nonsense\r\n\r\n")
        (only,) = caplog.records
        assert "is refused: this is no HTTP request" in only.getMessage()
        server._http.refusals._next = 0.0  # as if it were later
        await raw(server, b"nonsense\r\n\r\n")
        assert caplog.records[-1].getMessage().endswith("(19 more like it since the last line)")


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


async def test_without_the_packages_the_listener_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "find_spec", lambda name: None)
    async with serving(http_port=None) as server:
        options = ServerOptions(port=None, json_port=None, http_port=0)
        with pytest.raises(NotSupported, match=r"pip install 'runnel-mq\[server\]'"):
            await Server(server.broker, options).__aenter__()


async def test_calls_without_a_waiter_are_given_up() -> None:
    async with serving() as server:
        async with server.broker.subscribe("t", policy="block", buffer=1):
            await server.broker.publish("t", b"fills it")
            _, writer = await asyncio.open_connection(server.listeners[0].host, server.listeners[0].port)
            writer.write(b"POST /topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx")
            await until(lambda: server.broker.statistics().waiting_publishers == 1)
            await server.close(0.05)
            assert server.broker.statistics().waiting_publishers == 0
            writer.close()

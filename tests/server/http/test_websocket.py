"""Websockets: the sessions of the TCP listeners, at a listener of ours and in an application of somebody else's."""

import asyncio
import base64
import json
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from runnel.core.batch_format import pack, unpack
from runnel.core.record import Meta
from runnel.server.http import websocket
from runnel.server.native import connection as native_connection
from runnel.wire.frames import PREFACE, FrameKind, frame
from runnel.wire.msgpack_messages import Goodbye, Hello, Settlement, SettleVerb, decode_message, encode_message
from tests.carried import columns_of
from tests.server.http.browser import serving
from tests.server.http.websocket_client import PLACES, Page, Place, by_hand, masked, place
from tests.server.json_lines_client import Client
from tests.server.native_client import Raw, connected, until

Seen = tuple[int, int, int, bytes, bytes | None]  # offset, epoch, sequence, value, key

both = pytest.mark.parametrize("where", PLACES)


# -- what can be said -------------------------------------------------------------------------------------------


@both
async def test_a_page_subscribes_publishes_and_unsubscribes(where: str) -> None:
    async with place(where) as at, at.page() as page:
        assert await page.ask(command="SUB", topic="t.*", id="s") == {"event": "subscribed", "topic": "t.*", "id": "s"}
        await page.send(command="PUB", topic="t.a", payload="1", id=1)
        told = await page.events(2)
        assert {one["event"] for one in told} == {"message", "published"}
        (message,) = [one for one in told if one["event"] == "message"]
        assert (message["topic"], message["payload"], message["id"]) == ("t.a", "1", "s")
        assert (await page.ask(command="UNSUB", id="s"))["event"] == "unsubscribed"
        assert (await page.ask(command="PUB", topic="t.a", payload="2"))["event"] == "published"
        assert (await page.ask(command="QUIT"))["event"] == "bye"
        assert await page.closed() == 1000


@both
async def test_a_page_is_a_member_of_a_group_that_acks_and_nacks(where: str) -> None:
    async with place(where) as at, at.page() as page:
        assert (await page.ask(command="SUB", topic="jobs", group="g", prefetch=1))["event"] == "subscribed"
        await at.broker.publish("jobs", "a")
        await at.broker.publish("jobs", "b")
        first = await page.event()
        assert (first["payload"], first["delivery"], first["attempt"]) == ("a", 1, 1)
        assert (await page.ask(command="NACK", delivery=1, delay=0))["event"] == "nacked"
        again = [await page.event()]
        while again[-1]["payload"] != "a":  # b may come before it
            assert (await page.ask(command="ACK", delivery=again[-1]["delivery"]))["event"] == "acked"
            again.append(await page.event())
        assert again[-1]["attempt"] == 2
        async with at.page() as other:
            await other.ask(command="SUB", topic="jobs", group="g")
            await page.socket.close()  # what it holds goes to others at once
            assert [(one["payload"], one["attempt"]) for one in await other.events(1)] in ([("a", 3)], [("b", 1)])


@both
async def test_a_command_may_be_written_over_several_lines_and_is_kept_as_it_came(where: str) -> None:
    async with place(where) as at, at.page() as page:
        await page.socket.send('\n{"command": "PUB",\n "topic": "t",\r\n "payload": {"a":\n1}}\n')
        assert (await page.event())["event"] == "published"
        async with at.broker.subscribe("t", start="earliest") as records:
            assert (await anext(records)).value == b'{"a":\n1}'
        await page.socket.send("")
        await page.socket.send("nonsense")
        refused = await page.event()
        assert (refused["event"], refused["code"]) == ("error", "bad_command")
        assert (await page.ask(command="PING"))["event"] == "pong"


@both
async def test_native_frames_do_all_that_they_do_at_their_own_listener(where: str) -> None:
    async with place(where) as at, at.native() as native:
        subscription = native.subscribe("t", start="earliest")
        await native.subscribed(subscription)
        epoch, first, last = await native.published(native.publish("t", b"a", b"b"))
        assert (first, last) == (0, 1)
        delivered = await native.deliver(subscription)
        assert (delivered.epoch, delivered.offset, unpack(delivered.batch).values) == (epoch, 0, (b"a", b"b"))
        member = native.subscribe("t", group="g", start="earliest")
        grant = await native.grant(member)
        native.settle(Settlement(member, grant.lease, SettleVerb.BEGIN, grant.place, grant.place + 1), answered=False)
        await native.reply(native.settle(Settlement(member, grant.lease, SettleVerb.ACK, grant.place, grant.place + 1)))
        assert await native.ask("topics") == ["t"]
        native.goodbye()
        await native.eof()
        assert native.code == 1000


@both
async def test_a_frame_may_come_in_any_pieces(where: str) -> None:
    async with place(where) as at, at.native(hello=False) as native:
        said = (
            PREFACE
            + frame(FrameKind.HELLO, 0, encode_message(Hello(version=1, client="slow")))
            + frame(FrameKind.PING, 7, b"here")
        )
        for at_byte in range(len(said)):
            await native.socket.send(said[at_byte : at_byte + 1])
        await native.next(FrameKind.WELCOME)
        assert (await native.next(FrameKind.PONG, id=7))[4] == b"here"
        big = b"x" * 700_000
        subscription = native.subscribe("t")
        await native.subscribed(subscription)
        await native.published(native.publish("t", big))
        assert await native.values(subscription, 1) == [big]


async def heard(source: Page | Client, count: int) -> list[Seen]:
    """The next records that a JSON client is told of."""
    found: list[Seen] = []
    while len(found) < count:
        event = await source.event()
        if event["event"] == "message":
            value, key = event["payload"], event.get("key")
            value = base64.b64decode(value) if "encoding" in event else value.encode()
            if key is not None:
                key = base64.b64decode(key) if "key_encoding" in event else key.encode()
            found.append((event["offset"], event["epoch"], event["sequence"], value, key))
    return found


async def delivered(raw: Raw, id: int, count: int) -> list[Seen]:
    """The next records of a native subscription."""
    found: list[Seen] = []
    while len(found) < count:
        part = await raw.deliver(id)
        batch = unpack(part.batch)
        for at, value in enumerate(batch.values):
            key = batch.keys[at] if batch.keys else None
            found.append((part.offset + at, part.epoch, part.sequence + at, value, key))
    return found


@pytest.mark.parametrize("publisher", ["page", "native", "lines", "process"])
async def test_records_are_the_same_for_every_publisher_and_reader(publisher: str) -> None:
    sent: list[tuple[bytes, bytes | None]] = [(b"text", b"k"), (b"\xff\x00", b"\xfe"), ("ü\n\0".encode(), None)]
    async with serving(port=0, json_port=0) as server:
        listeners = {listener.name: listener for listener in server.listeners}
        at = Place(server.broker, f"{listeners['http'].url.replace('http', 'ws', 1)}/ws")
        lines = Client(*await asyncio.open_connection(listeners["json"].host, listeners["json"].port))
        async with (
            at.page() as page,
            at.native() as native,
            connected(listeners["native"]) as raw,
            at.broker.subscribe("t") as records,
        ):
            ids = [(one, one.subscribe("t")) for one in (native, raw)]
            for one, id in ids:
                await one.subscribed(id)
            await page.ask(command="SUB", topic="t")
            await lines.ask(command="SUB", topic="t")
            for value, key in sent:
                command = {"command": "PUB", "topic": "t", "payload": base64.b64encode(value).decode()}
                command["encoding"] = "base64"
                if key is not None:
                    command |= {"key": base64.b64encode(key).decode(), "key_encoding": "base64"}
                if publisher == "page":
                    await page.send(**command)
                elif publisher == "lines":
                    lines.send(command)
                elif publisher == "native":
                    batch = pack([value], columns_of(None if key is None else [Meta(key=key)]))
                    await native.published(native.publish_batch("t", batch))
                else:
                    await at.broker.publish("t", value, key=key)
            read = [await anext(records) for _ in sent]
            expected = [(one.offset, one.epoch, one.sequence, one.value, one.key) for one in read]
            assert [seen[3:] for seen in expected] == sent
            assert await heard(page, len(sent)) == await heard(lines, len(sent)) == expected
            for one, id in ids:
                assert await delivered(one, id, len(sent)) == expected
        lines.close()


# -- which of the two is spoken ---------------------------------------------------------------------------------


@both
async def test_what_the_first_message_spoke_is_spoken_for_good(where: str) -> None:
    async with place(where) as at:
        async with at.page() as page:
            await page.ask(command="PING")
            await page.socket.send(b"\0")
            told = await page.event()
            assert (told["event"], told["code"]) == ("error", "protocol_error")
            assert "began with text" in told["message"]
            assert await page.closed() == 1003
        async with at.native() as native:
            await native.socket.send('{"command": "PING"}')
            assert "began with binary" in str(await native.error())
            await native.eof()
            assert native.code == 1003


@both
async def test_json_in_a_binary_message_gets_an_error_that_names_it(where: str) -> None:
    async with place(where) as at, at.page() as page:
        await page.socket.send(b'{"command": "PING"}')
        assert "text messages" in (await page.event())["message"]
        assert await page.closed() == 1003


@both
async def test_what_is_no_native_client_is_refused(where: str) -> None:
    async with place(where) as at, at.native(hello=False) as native:
        await native.socket.send(b"")
        await native.socket.send(b"\x16\x03\x01")
        assert (await native.error()).code == "protocol_error"
        await native.eof()
        assert native.code == 1008


@both
async def test_the_limits_of_the_other_listeners_hold(where: str) -> None:
    async with place(where, max_line=1000, max_subscriptions=1) as at:
        async with at.page() as page:
            await page.ask(command="SUB", topic="a")
            assert (await page.ask(command="SUB", topic="b"))["code"] == "limit_exceeded"
            await page.socket.send(json.dumps({"command": "PUB", "topic": "t", "payload": "x" * 1000}))
            if where == "mounted":  # at a listener of ours it does not even come in
                assert "max_line" in (await page.event())["message"]
            assert await page.closed() == (1008 if where == "mounted" else 1009)
    async with place(where, hello_timeout=0.5) as at, at.native(hello=False) as native:
        await native.socket.send(PREFACE)
        assert "hello_timeout" in str(await native.error())
        await native.eof()
        assert native.code == 1008


@both
async def test_who_never_speaks_is_sent_away_after_a_while(where: str) -> None:
    async with place(where, hello_timeout=0.1) as at, at.page() as page:
        assert "hello_timeout" in (await page.event())["message"]
        assert await page.closed() == 1008


# -- who may come -----------------------------------------------------------------------------------------------


@both
async def test_pages_of_other_origins_do_not_get_in(where: str) -> None:
    async with place(where, http_cors="https://app.example") as at:
        for origin in ("https://evil.example", "null", "http://localhost:1"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(at.url, origin=Origin(origin), proxy=None)
            assert refused.value.response.status_code == 403
            assert json.loads(refused.value.response.body)["code"] == "origin_refused"
        for origin in ("https://app.example", f"http://{urlsplit(at.url).netloc}"):
            async with at.page(origin=origin) as page:
                assert (await page.ask(command="PING"))["event"] == "pong"


@both
async def test_connections_over_the_limit_are_refused_at_the_handshake(where: str) -> None:
    async with place(where, max_connections=1) as at:
        async with at.page() as page:
            for _ in range(2):  # before it has spoken, and after
                with pytest.raises(InvalidStatus) as refused:
                    await connect(at.url, proxy=None)
                assert refused.value.response.status_code == 503
                assert b"max_connections" in (refused.value.response.body or b"")
                await page.ask(command="PING")
        async with at.page() as page:
            assert (await page.ask(command="PING"))["event"] == "pong"


@both
async def test_it_is_no_page(where: str) -> None:
    async with place(where) as at, httpx.AsyncClient() as client:
        answer = await client.get(at.url.replace("ws:", "http:"))
        assert (answer.status_code, answer.json()["code"]) == (426, "upgrade_required")
        assert answer.headers["upgrade"] == "websocket"


async def test_nothing_is_compressed_and_it_is_a_connection_like_others() -> None:
    async with serving() as server:
        at = Place(server.broker, f"{server.listeners[0].url.replace('http', 'ws', 1)}/ws")
        assert server.serving is not None
        connections = server.serving.connections
        async with at.page() as page, at.native() as native:
            assert page.socket.response is not None
            assert "sec-websocket-extensions" not in page.socket.response.headers
            assert [one["listener"] for one in connections.describe()] == ["websocket", "websocket"]
            await page.ask(command="SUB", topic="t")
            await native.subscribed(native.subscribe("t"))
            assert (
                sorted((one["listener"], one["subscriptions"]) for one in connections.describe())
                == [("websocket", 1)] * 2
            )
            assert server.connections == 2
        await until(lambda: server.connections == 0)
        assert at.broker.statistics().subscriptions == ()


# -- its end ----------------------------------------------------------------------------------------------------


async def test_the_end_of_the_server_is_reported_and_closes_it_as_going_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_connection, "LINGER", 0.2)
    async with serving() as server:
        at = Place(server.broker, f"{server.listeners[0].url.replace('http', 'ws', 1)}/ws")
        async with at.page() as page, at.native() as native, at.page() as silent:
            await page.ask(command="SUB", topic="t")
            closing = asyncio.ensure_future(server.close(3600.0))
            assert await page.event() == {"event": "bye", "reason": "the server stops"}
            assert await page.closed() == await silent.closed() == 1001
            goodbye = await native.next(FrameKind.GOODBYE)
            assert decode_message(Goodbye, goodbye[4]).reason == "the server stops"
            await native.eof()
            assert native.code == 1001
            await closing
        assert server.connections == 0


async def test_what_is_under_way_is_answered_before_the_end() -> None:
    async with serving() as server:
        at = Place(server.broker, f"{server.listeners[0].url.replace('http', 'ws', 1)}/ws")
        async with at.page() as page:
            async with at.broker.subscribe("t", policy="block", buffer=1) as slow:
                await at.broker.publish("t", "fills it")
                await page.send(command="PUB", topic="t", payload="waits")
                await until(lambda: at.broker.statistics().waiting_publishers == 1)
                closing = asyncio.ensure_future(server.close(3600.0))
                await until(lambda: server.serving is not None and server.serving.connections.draining)
                assert [(await anext(slow)).value for _ in range(2)] == [b"fills it", b"waits"]
                assert (await page.event())["event"] == "published"
            assert (await page.event())["event"] == "bye"
            assert await page.closed() == 1001
            await closing


async def test_a_mounted_one_ends_with_the_application() -> None:
    async with place("mounted") as at:
        page = Page(await connect(at.url, proxy=None))
        await page.ask(command="SUB", topic="t")
    assert await page.closed() == 1012
    assert at.broker.statistics().subscriptions == ()


# -- flow control -----------------------------------------------------------------------------------------------


@both
async def test_a_page_is_sent_what_it_has_asked_for(where: str) -> None:
    async with place(where) as at, at.page() as page:
        await page.ask(command="SUB", topic="t", id="s", credit=2)
        await at.broker.topic("t").publish_many([b"%d" % n for n in range(10)])
        assert [one["payload"] for one in await page.events(2)] == ["0", "1"]
        assert (await page.ask(command="PING"))["event"] == "pong"  # no third comes before it
        told = [*await page.events(0), await page.ask(command="CREDIT", id="s", records=3), *await page.events(3)]
        assert sorted(one["event"] for one in told) == ["credited", "message", "message", "message"]
        assert [one["payload"] for one in told if one["event"] == "message"] == ["2", "3", "4"]
        assert (await page.ask(command="PING"))["event"] == "pong"


@both
async def test_a_frozen_browser_is_dropped_at_its_bound_without_effect_on_others(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT", 0.2)
    async with place(where, send_timeout=0.3, high_water=65_536) as at:
        topic = at.broker.topic("t")
        await topic.publish_many([b"x" * 10_000] * 1000)
        _, frozen = await by_hand(at.url)
        frozen.write(masked(b'{"command": "SUB", "topic": "t", "from": "earliest"}'))
        await until(lambda: at.broker.statistics().subscriptions)
        async with at.page() as page:
            await until(lambda: not at.broker.statistics().subscriptions)
            assert (await page.ask(command="PING"))["event"] == "pong"
        frozen.transport.abort()


@both
async def test_a_slow_browser_is_not_dropped(where: str) -> None:
    async with place(where, send_timeout=0.6, high_water=65_536) as at:
        await at.broker.topic("t", retention_count=2000).publish_many([b"x" * 10_000] * 800)
        # A few segments of the loopback device: with less room TCP itself pauses, and with much more nothing waits.
        reader, writer = await by_hand(at.url, receive_buffer=262_144)
        writer.write(masked(b'{"command": "SUB", "topic": "t", "from": "earliest"}'))
        size = 0
        while size < 8_000_000:
            await asyncio.sleep(0.02)  # all in all longer than its bound
            some = await reader.read(131_072)
            assert some, "it was dropped"
            size += len(some)
        writer.transport.abort()

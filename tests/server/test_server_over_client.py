"""A server of another server's topics: all that holds between a client and a server holds through it.

It stores nothing that could be lost, and any number of them can run side by side.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

import runnel
from runnel.core.batch_format import pack
from runnel.core.errors import LimitExceeded, NoResponders, Unreachable
from runnel.server import Server, ServerOptions, TlsOptions
from runnel.wire.binary_messages import unsubscribe_frame
from runnel.wire.frames import FrameKind, frame
from runnel.wire.msgpack_messages import Goodbye, Subscribe, WirePolicy, encode_message
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.server.certificates import Authority
from tests.server.http.browser import Browser
from tests.server.json_lines_client import Client
from tests.server.native_client import connected, serving, until

TIMES: dict[str, Any] = {"backoff_min": 0.01, "backoff_max": 0.05}


@asynccontextmanager
async def front_of(behind: Server | str, *, waits: bool = True, **options: Any) -> AsyncIterator[Server]:
    """A server, on a port of its own, of the topics that `behind` has. `waits`: it is connected when this returns."""
    url = behind if isinstance(behind, str) else behind.listeners[0].url
    given: dict[str, Any] = {"port": 0, "json_port": None} | options
    broker = runnel.open(url, wait=PATIENCE, **TIMES)
    opening = asyncio.ensure_future(broker.__aenter__())
    try:
        if waits:
            await opening
        async with Server(broker, ServerOptions(**given)) as server:
            yield server
    finally:
        if opening.cancel():
            await asyncio.wait([opening])
        await broker.__aexit__(None, None, None)


@asynccontextmanager
async def through(behind: runnel.Broker | None = None, **options: Any) -> AsyncIterator[tuple[Server, runnel.Broker]]:
    """The server that has the topics, and a broker that reaches it through another one."""
    async with serving(behind, **options) as server, front_of(server) as front:
        async with runnel.open(front.listeners[0].url, **TIMES) as broker:
            yield server, broker


@asynccontextmanager
async def web(behind: Server) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the HTTP listener of a server before another."""
    async with front_of(behind, port=None, http_port=0) as front:
        async with httpx.AsyncClient(base_url=front.listeners[0].url, timeout=PATIENCE) as client:
            yield client


@asynccontextmanager
async def lines_of(server: Server) -> AsyncIterator[Client]:
    """A client of its JSON listener."""
    listener = next(listener for listener in server.listeners if listener.name == "json")
    client = Client(*await asyncio.open_connection(listener.host, listener.port))
    try:
        yield client
    finally:
        await client.gone()


async def bury(broker: runnel.Broker, *values: bytes) -> None:
    """Have these values be dead letters of a group."""
    for value in values:
        await broker.publish("orders", value, key=b"k")
    async with broker.subscribe("orders", group="billing") as deliveries:
        for _ in values:
            await (await anext(aiter(deliveries))).reject("no such customer")


# -- the native listener --------------------------------------------------------------------------------------------


async def test_a_client_does_not_notice_that_it_is_there() -> None:
    async with through() as (behind, broker):
        orders = broker.topic("orders", dict[str, int])
        async with orders.subscribe() as records, broker.subscribe("orders", group="billing") as work:
            await orders.publish_many([{"id": number} for number in range(1000)])
            seen = 0
            async for record in records:
                assert record.value == {"id": seen}
                seen += 1
                if seen == 1000:
                    break
            async for delivery in work:
                await delivery.ack()
                break
        async with broker.transaction() as tx:
            tx.publish("paid", b"42")
            tx.mark("done", 1)
        assert await broker.mark("done") == 1
        assert await broker.marks("d") == {"done": 1}
        assert await broker.topics() == ["orders", "paid"]
        assert broker.id == behind.broker.id
        assert behind.connections == 1, "one connection for all clients"


async def test_what_is_asked_about_topics_groups_and_names_is_answered_by_the_server_behind() -> None:
    async with through() as (behind, broker):
        await behind.broker.topic("t", retention_count=10).publish_many([b"x"] * 3)
        assert await broker.bounds() == await behind.broker.bounds()
        async with behind.broker.subscribe("t", group="g") as member:
            delivery = await anext(aiter(member))
            group = await asyncio.to_thread(broker.group, "g", "t")  # it waits for servers of this very loop
            await asyncio.to_thread(group.pause)
            assert (await asyncio.to_thread(group.statistics)).paused
            await asyncio.to_thread(group.resume)
            await delivery.ack()
        await broker.forget_group("g", "t")
        assert (await asyncio.to_thread(broker.statistics)).topics == behind.broker.statistics().topics
        await broker.place({"reader": ("t", delivery.position)})
        await broker.forget("reader")
        await broker.delete("t")
        assert await behind.broker.topics() == []


async def test_requests_are_answered_through_it() -> None:
    async with through() as (behind, broker):
        with pytest.raises(NoResponders):
            await broker.request("ask", b"anybody?")
        async with behind.broker.subscribe("ask") as questions:
            asked = asyncio.ensure_future(broker.request("ask", b"how much?"))
            question = await anext(aiter(questions))
            assert await behind.broker.reply(question, b"42")
            assert (await asked).value == b"42"
        async with broker.subscribe("ask") as questions:
            asked = asyncio.ensure_future(behind.broker.request("ask", b"how much?"))
            question = await anext(aiter(questions))
            assert await broker.reply(question, b"43")
            assert (await asked).value == b"43"


async def test_stages_and_producers_go_through_it(tmp_path: Path) -> None:
    async with through(runnel.open(tmp_path, share=False)) as (behind, broker):
        stage = broker.stage("t", writer="w", batch=1)
        await stage.write([b"a", b"b"])
        assert [info.records for info in await broker.stages()] == [2]
        async with broker.transaction() as tx:
            tx.commit(stage)
        producer = broker.producer("import")
        await producer.publish("t", b"c", sequence=0)
        assert (await producer.publish("t", b"c", sequence=0)).offset == 2
        assert behind.broker.statistics().topics["t"].end == 3
        assert broker.is_durable


async def test_dead_letters_are_put_back_through_it() -> None:
    async with through() as (behind, broker):
        await bury(behind.broker, b"a", b"b", b"c")
        assert await broker.replay("dead-letters.billing", offsets=[1]) == 1
        assert await broker.discard("dead-letters.billing", [0]) == 1
        assert await broker.replay("dead-letters.billing") == 1
        assert behind.broker.statistics().topics["orders"].end == 5


async def test_its_listeners_are_those_of_a_server(tmp_path: Path) -> None:
    async with serving() as behind, front_of(behind, json_port=0, http_port=0, unix=tmp_path / "sock") as front:
        assert [listener.name for listener in front.listeners] == ["native", "unix", "json", "http"]
        async with runnel.open(front.listeners[1].url) as broker:
            assert (await broker.publish("t", b"x")).offset == 0


async def test_servers_stand_in_a_row_and_the_last_one_may_be_a_socket_file(tmp_path: Path) -> None:
    async with serving(port=None, unix=tmp_path / "sock") as behind, front_of(behind) as first:
        async with front_of(first) as second, runnel.open(second.listeners[0].url) as broker:
            value = bytes(range(256)) * 40_000  # 10 MB: larger than any buffer in between
            async with broker.subscribe("t") as records:
                await broker.publish("t", value)
                assert (await anext(aiter(records))).value == value


async def test_tls_ends_at_its_near_side_and_begins_again_at_the_far_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    secured = TlsOptions(cert=cert, key=key, client_ca=authority.cert)
    own_cert, own_key = authority.issue("front")
    async with serving(ssl=secured) as behind:
        url = f"{behind.listeners[0].url}?ca={authority.cert}&cert={own_cert}&key={own_key}"
        async with front_of(url, ssl=TlsOptions(cert=cert, key=key)) as front:
            assert front.listeners[0].url.startswith("runnels://")
            async with runnel.open(front.listeners[0].url, ca=str(authority.cert)) as broker:
                async with broker.subscribe("t") as records:
                    await broker.publish("t", b"x" * 3_000_000)
                    assert len((await anext(aiter(records))).value) == 3_000_000


async def test_what_a_client_held_goes_back_when_it_vanishes() -> None:
    async with serving() as behind, front_of(behind) as front:
        async with connected(front.listeners[0]) as raw, runnel.open(front.listeners[0].url) as broker:
            member = raw.subscribe("jobs", group="g", ack_wait=3600.0)
            await broker.publish("jobs", b"one")
            await raw.grant(member)
            async with broker.subscribe("jobs", group="g") as work:
                raw.cut()
                delivery = await anext(aiter(work))
                assert delivery.value == b"one"
                await delivery.ack()


async def test_a_client_that_says_goodbye_is_answered_first_and_then_let_go() -> None:
    async with serving() as behind, front_of(behind) as front, connected(front.listeners[0]) as raw:
        reader = raw.subscribe("t")
        await raw.subscribed(reader)
        id = raw.publish("t", b"x")
        await raw.published(id)
        raw.goodbye()
        await raw.eof()
        await raw.close()
        await until(lambda: front.connections == 0)
        await until(lambda: not behind.broker.statistics().subscriptions)


async def test_a_publish_that_waits_for_room_is_taken_back_when_its_client_goes() -> None:
    async with serving() as behind, front_of(behind) as front:
        async with behind.broker.subscribe("t", policy="block", buffer=1) as records:
            async with connected(front.listeners[0]) as raw:
                await raw.published(raw.publish("t", b"0"))
                raw.publish("t", b"1")
                await until(lambda: behind.broker.statistics().waiting_publishers == 1)
                raw.cut()
            await until(lambda: behind.broker.statistics().waiting_publishers == 0)
            assert (await anext(aiter(records))).value == b"0"
            assert behind.broker.statistics().topics["t"].end == 1


# -- trouble --------------------------------------------------------------------------------------------------------


async def test_while_the_server_behind_cannot_be_reached_clients_are_refused_and_wait_for_it() -> None:
    port = free_port()
    async with front_of(f"runnel://127.0.0.1:{port}", waits=False, json_port=0, http_port=0) as front:
        native, _, http = front.listeners
        with pytest.raises(Unreachable, match=rf"127\.0\.0\.1:{port}"):
            await runnel.open(native.url).__aenter__()
        async with lines_of(front) as lines:
            (said,) = await lines.rest()
            assert (said["event"], said["code"]) == ("error", "unreachable")
        async with httpx.AsyncClient(base_url=http.url, timeout=PATIENCE) as client:
            assert (await client.get("/healthz")).status_code == 200
            for path in ("/readyz", "/topics", "/metrics", "/dead-letters", "/events?topic=t"):
                answer = await client.get(path)
                assert answer.status_code == 503, path
            assert (await client.post("/topics/t", content=b"x")).json()["code"] == "unreachable"
            coming = asyncio.ensure_future(runnel.open(native.url, wait=PATIENCE, **TIMES).__aenter__())
            async with serving(port=port):
                broker = await coming
                assert (await client.get("/readyz")).status_code == 200
                async with lines_of(front) as lines:
                    assert (await lines.ask(command="PUB", topic="t", payload="x"))["event"] == "published"
                assert (await broker.publish("t", b"x")).offset == 1
                await broker.__aexit__(None, None, None)


async def test_a_server_behind_that_dies_and_comes_back_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    port = free_port()
    broker = await runnel.open(tmp_path / "data").__aenter__()
    behind = await Server(broker, ServerOptions(port=port, json_port=None)).__aenter__()
    async with front_of(behind) as front:
        url = front.listeners[0].url
        async with runnel.open(url, **TIMES) as publisher, runnel.open(url, **TIMES) as reader:
            topic = publisher.topic("t")
            async with reader.subscribe("t", start="earliest") as records:
                stream = aiter(records)
                await topic.publish(b"0")
                assert (await anext(stream)).value == b"0"
                for life in range(3):
                    waiting = [asyncio.ensure_future(topic.publish(b"%d" % (life * 100 + n + 1))) for n in range(100)]
                    await asyncio.sleep(0)
                    behind.abort()
                    await behind.close(0.0)
                    behind = await Server(broker, ServerOptions(port=port, json_port=None)).__aenter__()
                    await asyncio.gather(*waiting)
                values = [int((await anext(stream)).value) for _ in range(300)]
                assert values == list(range(1, 301))
    await behind.close(0.0)
    await broker.__aexit__(None, None, None)


async def test_another_one_takes_the_clients_of_one_that_dies() -> None:
    async with serving() as behind, front_of(behind) as one, front_of(behind) as other:
        url = f"{one.listeners[0].url},127.0.0.1:{other.listeners[0].port}"
        async with runnel.open(url, **TIMES) as broker, broker.subscribe("t") as records:
            stream = aiter(records)
            await broker.publish("t", b"before")
            assert (await anext(stream)).value == b"before"
            assert (one.connections, other.connections) == (1, 0)
            waiting = [asyncio.ensure_future(broker.publish("t", b"%d" % number)) for number in range(100)]
            await asyncio.sleep(0)
            one.abort()
            await asyncio.gather(*waiting)
            assert [(await anext(stream)).value for _ in range(100)] == [b"%d" % number for number in range(100)]
            assert (one.connections, other.connections) == (0, 1)


async def test_one_that_stops_has_the_server_behind_answer_what_it_took() -> None:
    async with serving() as behind, front_of(behind) as one, front_of(behind) as other:
        url = f"{one.listeners[0].url},127.0.0.1:{other.listeners[0].port}"
        async with runnel.open(url, **TIMES) as broker, broker.subscribe("t") as records:
            done = asyncio.ensure_future(broker.topic("t").publish_many([b"%d" % number for number in range(1000)]))
            await until(lambda: behind.broker.statistics().published)
            await one.close(PATIENCE)
            assert (await done).last.offset == 999
            stream = aiter(records)
            for number in range(1000):
                assert (await anext(stream)).value == b"%d" % number
            assert one.connections == 0
            await until(lambda: other.connections == 1)


async def test_a_client_that_does_not_read_holds_no_more_than_its_bound_and_delays_no_other() -> None:
    bounded: dict[str, Any] = {"high_water": 64 << 10}
    async with serving(**bounded) as behind, front_of(behind, **bounded) as front:
        async with connected(front.listeners[0]) as frozen, runnel.open(front.listeners[0].url) as other:
            await frozen.subscribed(frozen.subscribe("t", start="earliest", credit=1 << 30))
            frozen.writer.transport.pause_reading()  # type: ignore[attr-defined]
            topic = other.topic("t", retention_count=1000)
            for _ in range(100):
                await topic.publish(b"x" * 1_000_000)
            assert front.serving is not None
            connections = front.serving.connections
            await until(lambda: connections.describe()[0]["unsent_bytes"])
            assert connections.describe()[0]["unsent_bytes"] <= 2 * (64 << 10) + 1_100_000
            assert (await other.publish("u", b"not held up")).offset == 0


async def test_a_full_reader_behind_has_the_publisher_wait_and_not_this_server_remember() -> None:
    options: dict[str, Any] = {"high_water": 64 << 10, "max_pending_bytes": 64 << 10}
    async with serving() as behind, front_of(behind, **options) as front:
        async with connected(front.listeners[0]) as raw:
            await raw.subscribed(raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1))
            for _ in range(100):
                raw.publish("t", b"x" * 100_000)
            await until(lambda: behind.broker.statistics().waiting_publishers)
            assert front.serving is not None
            (mine,) = front.serving.connections.describe()
            assert mine["pending_bytes"] <= (64 << 10) + 2 * 110_000
            # A reset: an end behind bytes that nobody takes would not be seen.
            raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.cut()
        await until(lambda: not behind.broker.statistics().waiting_publishers)


async def test_publishes_that_wait_behind_do_not_keep_others_from_being_heard() -> None:
    async with serving() as behind, front_of(behind) as front:
        front.serving.backend.link.publishing.outbox.limit = 64 << 10  # type: ignore[union-attr]
        async with connected(front.listeners[0]) as raw, runnel.open(front.listeners[0].url) as other:
            await raw.subscribed(raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1))
            sent = [raw.publish("t", b"x" * 60_000) for _ in range(4)]
            await until(lambda: behind.broker.statistics().waiting_publishers)
            assert await other.topics() == ["t"]
            publishing = asyncio.ensure_future(other.publish("u", b"y" * 60_000))
            raw.send(frame(FrameKind.CANCEL, sent[1]))
            assert (await raw.error(sent[1])).code == "publish_cancelled"
            for one in sent[2:]:
                raw.send(frame(FrameKind.CANCEL, one))
            assert (await publishing).offset == 0


@pytest.mark.parametrize("asked", [{}, {"name": "n"}, {"pattern": "t.*"}, {"group": "g"}])
async def test_a_subscription_that_is_left_before_it_stands_leaves_nothing_behind(asked: dict[str, Any]) -> None:
    async with serving() as behind, front_of(behind) as front:
        wanted: dict[str, Any] = {"pattern": "t", "credit": 1000} | asked
        subscribe = Subscribe(**wanted)
        async with connected(front.listeners[0]) as raw:
            raw.send(frame(FrameKind.SUBSCRIBE, 7, encode_message(subscribe)) + unsubscribe_frame(7, None))
            await raw.next(FrameKind.END, id=7)
            assert await raw.ask("topics") == []
            assert behind.connections == 1
            await until(lambda: not behind.serving.connections.describe()[0]["subscriptions"])  # type: ignore[union-attr]
        async with connected(front.listeners[0]) as raw:
            raw.send(frame(FrameKind.SUBSCRIBE, 7, encode_message(subscribe)))
            raw.cut()
        await until(lambda: not front.connections)
        async with runnel.open(front.listeners[0].url) as broker:
            await broker.topics()
            await until(lambda: not behind.serving.connections.describe()[0]["subscriptions"])  # type: ignore[union-attr]


async def test_publishes_of_one_client_keep_their_order_under_every_label() -> None:
    async with serving() as behind, front_of(behind) as front:
        async with runnel.open(front.listeners[0].url) as one, runnel.open(front.listeners[0].url) as other:
            for number in range(300):
                message_id = f"m{number}" if number % 2 else None
                one.topic("t").publish_nowait(b"%d" % number, message_id=message_id)
                other.topic("t").publish_nowait(b"other")
                if not number % 7:
                    await asyncio.sleep(0)
            await one.publish("t", b"last")
        page = await behind.broker.backend.history("t", "earliest", 1000, 1 << 20)
        assert [one.value for one in page.records if one.value.isdigit()] == [b"%d" % number for number in range(300)]


async def test_a_publish_that_waited_for_room_is_not_overtaken_and_not_withdrawn_once_it_went() -> None:
    async with serving() as behind, front_of(behind) as front:
        assert front.serving is not None
        publisher, publishing = front.serving.publisher, front.serving.backend.link.publishing  # type: ignore[attr-defined]
        await front.broker.topics()  # the limit of the server behind was asked for before
        publishing.outbox.limit = 20_000
        outcomes: dict[str, Any] = {}
        waiting: list[Any] = []

        def publish(value: bytes) -> None:
            name = value[:1].decode()
            waiting.append(
                publisher.publish("t", pack([value]), None, lambda outcome: outcomes.update({name: outcome}))
            )

        answered = publishing.published

        def published(id: int, payload: bytes) -> None:
            publishing.published = answered
            answered(id, payload)  # X is answered: it is the turn of A
            publish(b"B")
            outcomes["withdrawn"] = waiting[1].withdraw()

        publishing.published = published
        publish(b"X" * 15_000)
        publish(b"A" * 15_000)
        await until(lambda: {"X", "B"} <= outcomes.keys() and ("A" in outcomes or outcomes["withdrawn"]))
        stored = [one.value[:1] for one in (await behind.broker.backend.history("t", 0, 10, 1 << 20)).records]
        assert not outcomes["withdrawn"] or b"A" not in stored, "what is said to be taken back is not stored"
        assert stored == sorted(stored, key=b"XAB".index)


async def test_a_subscription_that_is_to_finish_before_it_stands_does() -> None:
    async with serving() as behind, front_of(behind) as front:
        await behind.broker.publish("t.a", b"0")
        async with connected(front.listeners[0]) as raw:
            subscribe = Subscribe(pattern="t.*", start="earliest", credit=1000)
            goodbye = frame(FrameKind.GOODBYE, 0, encode_message(Goodbye(reason="done")))
            raw.send(frame(FrameKind.SUBSCRIBE, 7, encode_message(subscribe)) + goodbye)
            await raw.next(FrameKind.END, id=7)
        await until(lambda: not behind.serving.connections.describe()[0]["subscriptions"])  # type: ignore[union-attr]


async def test_event_streams_that_open_at_once_keep_the_limit() -> None:
    async with serving() as behind, front_of(behind, port=None, http_port=0, max_streams=2) as front:
        async with httpx.AsyncClient(base_url=front.listeners[0].url, timeout=PATIENCE) as client:
            asked = [client.send(client.build_request("GET", "/events?topic=t"), stream=True) for _ in range(6)]
            answers = await asyncio.gather(*asked)
            assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503, 503, 503]
            for answer in answers:
                await answer.aclose()


async def test_members_over_the_limit_get_an_error_that_names_it() -> None:
    async with serving() as behind, front_of(behind, max_connections=1, json_port=0) as front:
        async with connected(front.listeners[0]) as raw:
            async with connected(front.listeners[0], hello=False) as late:
                error = await late.error()
                assert isinstance(error, LimitExceeded)
                assert error.limit == "max_connections"
                await late.eof()
            async with lines_of(front) as lines:
                assert (await lines.event())["code"] == "limit_exceeded"
            assert await raw.ask("topics") == []


# -- JSON lines -----------------------------------------------------------------------------------------------------


async def test_json_lines_are_spoken_before_another_server() -> None:
    async with serving() as behind, front_of(behind, json_port=0) as front:
        async with lines_of(front) as lines, lines_of(front) as other:
            assert (await lines.ask(command="SUB", topic="test"))["event"] == "subscribed"
            assert (await other.ask(command="PUB", topic="test", payload="100"))["offset"] == 0
            message = await lines.event()
            assert (message["event"], message["payload"]) == ("message", "100")
            assert (await other.ask(command="TOPICS"))["topics"] == ["test"]
        assert await behind.broker.topics() == ["test"]
        assert behind.connections == 1


# -- HTTP -----------------------------------------------------------------------------------------------------------


async def test_http_publishes_and_reads_history_of_the_server_behind() -> None:
    async with serving() as behind, web(behind) as client:
        answer = await client.post("/topics/t", content=b"hello", headers={"runnel-key": "k"})
        assert (answer.status_code, answer.json()["offset"]) == (201, 0)
        many = await client.post("/topics/t", content=b"a\nb\n", headers={"content-type": "application/x-ndjson"})
        assert many.json()["count"] == 2, many.text
        assert (await client.get("/topics")).json()["topics"] == ["t"]
        found = (await client.get("/topics/t/records?from=0&limit=2")).json()
        near = [(one["offset"], one.get("key")) for one in found["records"]]
        assert (near, found["next"], found["end"]) == ([(0, "k"), (1, None)], 2, 3)
        last = (await client.get("/topics/t/records?from=-1")).json()
        assert [one["offset"] for one in last["records"]] == [2]
        assert (await client.get("/topics/none/records")).json()["code"] == "unknown_topic"


async def test_http_tells_gaps_of_the_server_behind() -> None:
    async with serving() as behind, web(behind) as client:
        topic = behind.broker.topic("t")
        await topic.publish_many([b"0", b"1", b"2"])
        await topic.trim(2)
        found = (await client.get("/topics/t/records?from=0")).json()
        assert (found["first"], found["gap"]["end"], len(found["records"])) == (2, 2, 1)


async def test_server_sent_events_come_through_it_and_resume() -> None:
    async with serving() as behind, web(behind) as client:
        await behind.broker.publish("t", b"one")
        browser = Browser(str(client.base_url), "topic=t&start=earliest")
        await browser.read(lambda browser: browser.payloads)
        await behind.broker.publish("t", b"two")
        await browser.read(lambda browser: len(browser.payloads) == 2)
        assert (browser.payloads, browser.gaps) == (["one", "two"], [])


async def test_a_websocket_speaks_json_through_it() -> None:
    async with serving() as behind, front_of(behind, port=None, http_port=0) as front:
        listener = front.listeners[0]
        async with connect(f"ws://{listener.host}:{listener.port}/ws") as socket:
            await socket.send(json.dumps({"command": "SUB", "topic": "t"}))
            assert json.loads(await socket.recv())["event"] == "subscribed"
            await behind.broker.publish("t", b"100")
            assert json.loads(await socket.recv())["payload"] == "100"


async def test_http_lists_and_settles_dead_letters_of_the_server_behind() -> None:
    async with serving() as behind, web(behind) as client:
        await bury(behind.broker, b"a", b"b", b"c")
        (box,) = (await client.get("/dead-letters")).json()["topics"]
        assert (box["topic"], box["groups"], box["open"]) == ("dead-letters.billing", ["billing"], 3)
        page = (await client.get("/dead-letters/dead-letters.billing?limit=2")).json()
        assert (page["open"], len(page["letters"]), page["next"]) == (3, 2, 2)
        assert page["letters"][0]["story"]["reason"] == "no such customer"
        done = await client.post("/dead-letters/dead-letters.billing/replay", json={"offsets": [0]})
        assert done.json()["replayed"] == 1
        done = await client.post("/dead-letters/dead-letters.billing/discard", json={"offsets": [1]})
        assert done.json()["discarded"] == 1
        done = await client.post("/dead-letters/dead-letters.billing/replay", json={"all": True})
        assert done.json()["replayed"] == 1
        assert behind.broker.statistics().topics["orders"].end == 5
        stale = {"all": True, "epoch": 999}
        assert (await client.post("/dead-letters/dead-letters.billing/replay", json=stale)).status_code == 410


async def test_the_console_shows_the_figures_of_the_server_behind(tmp_path: Path) -> None:
    async with serving(runnel.open(tmp_path, share=False)) as behind, web(behind) as client:
        await behind.broker.topic("t", retention_count=10).publish_many([b"x"] * 3)
        await bury(behind.broker, b"a")
        await behind.broker.backend.flushed()  # the letter is there
        for view in ("topics", "subscribers", "groups", "dead-letters", "journal"):
            async with client.stream("GET", f"/console/updates?view={view}") as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        break
            shown = json.loads(line.removeprefix("data: "))
            assert (shown["totals"]["durable"], shown["totals"]["dead_letters"]) == (True, 1), shown
            assert shown["totals"]["published"] == 5
            if view == "topics":
                row = next(row for row in shown["rows"] if row["name"] == "t")
                assert (row["end"], row["durable"], row["retention"]) == (3, True, {"count": 10})
            elif view == "journal":
                assert (shown["journal"]["fsync"], len(shown["rows"])) == ("commit", 1)


async def test_metrics_are_those_of_the_server_behind() -> None:
    async with serving() as behind, web(behind) as client:
        await behind.broker.publish("t", b"x")
        assert 'runnel_events_published_total{topic="t"} 1' in (await client.get("/metrics")).text
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        behind.abort()
        await behind.close(0.0)
        await until_status(client, "/readyz", 503)


async def until_status(client: httpx.AsyncClient, path: str, status: int) -> None:
    """Return when that is answered with this status; fail after some seconds."""
    async with asyncio.timeout(PATIENCE):
        while (await client.get(path)).status_code != status:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)

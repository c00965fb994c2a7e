"""Subjects are topics: what is published by NATS is seen everywhere, and the other way round."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
from nats.js.errors import APIError

import runnel
from runnel.server.nats.memory_topics import MemoryTopics
from tests.patience import PATIENCE
from tests.server.json_lines_client import Client
from tests.server.nats.raw import port_of, raw, served


def url(server: Any) -> str:
    return f"nats://127.0.0.1:{port_of(server)}"


async def test_a_declared_topic_is_durable_and_a_publish_with_a_reply_is_answered_when_it_is_on_disk(
    tmp_path: Path,
) -> None:
    async with served(runnel.open(tmp_path)) as (broker, server):
        await broker.topic("orders").declare()
        client = await nats.connect(url(server))
        js = client.jetstream()
        first = await js.publish("orders", b"a", headers={"Nats-Msg-Id": "1", "Runnel-Key": "k"})
        again = await js.publish("orders", b"a", headers={"Nats-Msg-Id": "1"})
        assert (first.stream, first.seq, again.seq) == ("orders", 1, 1), "a message id is stored once"
        last = {"Nats-Expected-Last-Subject-Sequence": "1"}
        assert (await js.publish("orders", b"b", headers=last)).seq == 2
        with pytest.raises(APIError) as refused:
            await js.publish("orders", b"c", headers=last)
        assert refused.value.err_code == 10071
        answer = json.loads((await client.request("orders", b"d")).data)
        assert (answer["stream"], answer["seq"], answer["offset"]) == ("orders", 3, 2)
        await client.close()
    async with runnel.open(tmp_path) as broker, broker.subscribe("orders", start="earliest") as records:
        found = [await anext(records) for _ in range(3)]
        assert [one.value for one in found] == [b"a", b"b", b"d"]
        assert (found[0].key, dict(found[0].headers)) == (b"k", {"Nats-Msg-Id": "1"})


async def test_pong_says_that_what_was_published_to_durable_topics_is_on_disk(tmp_path: Path) -> None:
    async with served(runnel.open(tmp_path)) as (broker, server), raw(server) as client:
        await broker.topic("orders").declare()
        client.send(b"SUB orders 1", *[b"PUB orders 1\r\nx"] * 3)
        lines = await client.lines_before_pong()
        assert lines == [b"MSG orders 1 1\r\n", b"x\r\n"] * 3, "and its own subscription has them"
        assert broker.statistics().topics["orders"].published == 3


async def test_a_subject_without_a_topic_is_a_topic_in_memory(tmp_path: Path) -> None:
    async with served(runnel.open(tmp_path)) as (broker, server), raw(server) as client:
        client.send(b"PUB greetings 5", b"hello")
        assert await client.lines_before_pong() == []
        assert await broker.topics() == ["greetings"]
        async with broker.subscribe("greetings", start="earliest") as records:
            assert (await anext(records)).value == b"hello"
    async with runnel.open(tmp_path) as broker:
        assert await broker.topics() == []


async def test_a_record_of_any_listener_is_seen_at_every_other(tmp_path: Path) -> None:
    ports = {"port": 0, "json_port": 0, "http_port": 0}
    async with served(runnel.open(tmp_path), **ports) as (broker, server), raw(server) as client:
        await broker.topic("orders").declare()
        lines = Client(*await asyncio.open_connection("127.0.0.1", port_of(server, "json")))
        web = f"http://127.0.0.1:{port_of(server, 'http')}/topics/orders"
        async with (
            runnel.open(f"runnel://127.0.0.1:{port_of(server, 'native')}") as native,
            native.subscribe("orders") as records,
            httpx.AsyncClient() as http,
        ):
            assert (await lines.ask(command="SUB", topic="orders"))["event"] == "subscribed"
            client.send(b"SUB orders 1", b"PUB orders 4", b"nats")
            assert await client.lines_before_pong() == [b"MSG orders 1 4\r\n", b"nats\r\n"]
            await native.publish("orders", b"native")
            lines.send({"command": "PUB", "topic": "orders", "payload": "json"})
            payloads = [event["payload"] for event in await lines.events(4) if event["event"] == "message"]
            assert (await http.post(web, content=b"http")).status_code < 300
            payloads.append((await lines.event())["payload"])
            sent = ["nats", "native", "json", "http"]
            assert payloads == sent
            assert [(await anext(records)).value.decode() for _ in sent] == sent
            assert [line.decode().strip() for line in (await client.lines(6))[1::2]] == sent[1:]
            shown = (await http.get(f"{web}/records", params={"start": "earliest"})).json()["records"]
            assert [one["value"] for one in shown] == sent
        lines.close()


async def test_a_reply_subject_that_is_none_is_left_out() -> None:
    async with served() as (broker, server), raw(server) as client:
        client.send(b"SUB a 1")
        assert await client.lines_before_pong() == []
        for reply in ("two words", "a\tb", "x" * 5_000, "fine"):
            await broker.publish("a", b"x", headers={"runnel-reply-to": reply})
        lines = await client.lines_before_pong()
        assert lines[::2] == [b"MSG a 1 1\r\n"] * 3 + [b"MSG a 1 fine 1\r\n"]


async def test_what_is_published_elsewhere_reaches_nats_clients_with_key_and_headers() -> None:
    async with served() as (broker, server), raw(server) as client, raw(server, headers=False) as old:
        client.send(b"SUB orders.* 1")
        old.send(b"SUB orders.* 1")
        assert await client.lines_before_pong() == await old.lines_before_pong() == []
        await broker.publish("orders.eu", b"x", key="k", headers={"a": "b"})
        assert await client.lines_before_pong() == [
            b"HMSG orders.eu 1 33 34\r\n", b"NATS/1.0\r\n", b"a: b\r\n", b"Runnel-Key: k\r\n", b"\r\n", b"x\r\n",
        ]  # fmt: skip
        assert await old.lines_before_pong() == [b"MSG orders.eu 1 1\r\n", b"x\r\n"]


async def test_a_client_that_was_slow_gets_what_a_durable_topic_holds(tmp_path: Path) -> None:
    count, size = 200, 32_000
    async with served(runnel.open(tmp_path), high_water=65_536) as (broker, server), raw(server) as client:
        topic = broker.topic("orders")
        await topic.declare()
        client.send(b"SUB orders 1")
        assert await client.lines_before_pong() == []
        await topic.publish_many([str(number).encode().ljust(size) for number in range(count)])
        for number in range(count):
            assert await client.line() == b"MSG orders 1 %d\r\n" % size
            assert int(await client.line()) == number


async def test_a_topic_that_is_deleted_and_made_again_is_the_same_subject() -> None:
    async with served() as (broker, server), raw(server) as client:
        client.send(b"SUB a 1", b"PUB a 1", b"x")
        assert len(await client.lines_before_pong()) == 2
        await broker.topic("a").delete()
        client.send(b"PUB a 1", b"y")
        assert await client.lines_before_pong() == [b"MSG a 1 1\r\n", b"y\r\n"]
        client.send(b"UNSUB 1 3")
        assert await client.lines_before_pong() == []
        await broker.topic("a").delete()
        client.send(b"PUB a 1", b"z", b"PUB a 1", b"!", b"PUB a 1", b"!")
        assert await client.lines_before_pong() == [b"MSG a 1 1\r\n", b"z\r\n", b"MSG a 1 1\r\n", b"!\r\n"]


async def test_requests_leave_nothing_behind() -> None:
    await _many_requests(1_000)


@pytest.mark.nightly
async def test_a_million_requests_leave_nothing_behind() -> None:
    await _many_requests(1_000_000)


async def _many_requests(count: int) -> None:
    async with served() as (broker, server):
        asker, service = await nats.connect(url(server)), await nats.connect(url(server))

        async def answer(request: Any) -> None:
            await request.respond(request.data)

        await service.subscribe("service", cb=answer)
        await service.flush()
        for at in range(0, count, 100):
            found = await asyncio.gather(*(asker.request("service", b"%d" % (at + n), timeout=60) for n in range(100)))
            assert [one.data for one in found] == [b"%d" % (at + n) for n in range(100)]
        await asker.close()
        await service.close()
        assert await broker.topics() == ["service"]
        assert len(broker.statistics().topics) == 1


async def test_subjects_with_ids_in_them_do_not_grow_the_catalog() -> None:
    async with served() as (broker, server), raw(server) as client:
        assert server.serving is not None
        made = server.serving.nats.made  # type: ignore[union-attr]
        made._limit = made._allowed = 1_000
        await broker.publish("mine", b"x")
        client.send(b"SUB sensor.17 1", b"SUB sensor.> 2")
        client.send(*[b"PUB sensor.%d 1\r\nx" % number for number in range(3_000)])
        lines = await client.lines_before_pong()
        assert lines.count(b"MSG sensor.17 1 1\r\n") == 1
        assert sum(line.startswith(b"MSG") for line in lines) == 3_001, "none is lost"
        names = await broker.topics()
        assert len(names) <= 1_200
        assert {"mine", "sensor.17", "sensor.2999"} <= set(names), "what others made, what is read, and the newest stay"


async def test_topics_in_memory_that_are_large_together_are_reclaimed() -> None:
    async with served() as (broker, server), raw(server) as client:
        assert server.serving is not None
        server.serving.nats.made._max_bytes = 1_000_000  # type: ignore[union-attr]
        client.send(b"SUB photo.0 1")
        client.send(*[b"PUB photo.%d 50000\r\n" % number + bytes(50_000) for number in range(100)])
        assert len(await client.lines_before_pong()) == 2
        names = await broker.topics()
        assert {"photo.0", "photo.99"} <= set(names)
        assert 10 < len(names) <= 1 + (1_000_000 + 1_000_000 // 8) // 50_000 + 1


async def test_without_echo_little_is_remembered_of_what_was_published() -> None:
    async with served() as (_, server), raw(server, echo=False) as client:
        client.send(b"SUB sensor.> 1", *[b"PUB sensor.%d 1\r\nx" % number for number in range(5_000)])
        assert await client.lines_before_pong() == []
        assert server.serving is not None
        (connection,) = server.serving.connections
        assert len(connection.session._own) <= 4_096  # type: ignore[attr-defined]


async def test_topics_in_memory_that_are_idle_are_reclaimed() -> None:
    gone: list[str] = []

    def reclaim(topic: str) -> bool:
        gone.append(topic)
        return topic != "read"

    made = MemoryTopics(reclaim, len, limit=8, idle=60.0)
    for number, topic in enumerate(("a", "read", "b")):
        made.used(topic, float(number), 1)
    made.sweep(61.5)
    assert (gone, len(made)) == (["a", "read"], 2), "one that is read is looked at again"
    made.sweep(200.0)
    assert (gone[2:], len(made)) == (["read", "b"], 1)


async def test_a_topic_that_was_declared_meanwhile_is_taken_as_what_it_is(tmp_path: Path) -> None:
    async with served(runnel.open(tmp_path)) as (broker, server), raw(server) as client:
        client.send(b"PUB orders 1", b"x")
        assert await client.lines_before_pong() == []
        await broker.topic("orders").delete()
        await broker.topic("orders", durable=True).declare()
        client.send(b"PUB orders 1", b"y", b"SUB r 1", b"PUB orders r 1", b"z")
        lines = await asyncio.wait_for(client.lines_before_pong(), PATIENCE)
        assert json.loads(lines[1])["seq"] == 2

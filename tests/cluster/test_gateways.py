"""Several stateless servers over one cluster: a client that loses one goes on at another, on every listener."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from websockets.asyncio.client import connect

import runnel
from runnel.core.batch_format import pack
from runnel.core.columns import DUE, KEYS, Columns
from runnel.core.position import Span
from runnel.core.publishing import PublishDetails
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from tests.cluster.single import new_stream, open_cluster
from tests.patience import PATIENCE
from tests.server.http.browser import Browser


@asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[Server, Server]]:
    stream, options = new_stream(), ServerOptions(port=0, json_port=0, http_port=0)
    async with open_cluster(stream) as one, open_cluster(stream) as two:
        async with Server(one, options) as first, Server(two, options) as second:
            yield first, second


def address(server: Server, name: str) -> Any:
    return next(listener for listener in server.listeners if listener.name == name)


async def test_a_native_client_moves_to_another_server_and_misses_nothing() -> None:
    async with two_servers() as (first, second):
        there = address(second, "native").url.removeprefix("runnel://")
        async with runnel.open(f"{address(first, 'native').url},{there}") as client:
            await client.publish("t", b"0")
            async with client.subscribe("t", start="earliest") as records, asyncio.timeout(PATIENCE):
                assert (await anext(records)).value == b"0"
                await first.close(0)
                for number in range(1, 4):
                    await client.publish("t", b"%d" % number)
                assert [(await anext(records)).value for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_browser_resumes_its_event_stream_at_another_server_by_the_last_id() -> None:
    async with two_servers() as (first, second):
        async with httpx.AsyncClient(base_url=address(first, "http").url, timeout=PATIENCE) as client:
            for number in range(4):
                answer = await client.post("/topics/t", content=b"%d" % number)
                assert answer.status_code == 201, answer.text
        browser = Browser(address(first, "http").url, "topic=t&start=earliest")
        await browser.read(lambda browser: len(browser.payloads) == 2)
        await first.close(0)
        browser.url = f"{address(second, 'http').url}/events?topic=t"
        await second.broker.publish("t", b"4")
        await browser.read(lambda browser: len(browser.payloads) == 5)
        assert (browser.payloads, browser.gaps) == (["0", "1", "2", "3", "4"], [])


async def test_a_pattern_is_resumed_at_another_server_too() -> None:
    async with two_servers() as (first, second):
        browser = Browser(address(first, "http").url, "topic=a.*&start=earliest")
        for number in range(6):
            await first.broker.publish(f"a.{number % 2}", b"%d" % number)
        await browser.read(lambda browser: len(browser.payloads) == 3)
        await first.close(0)
        browser.url = f"{address(second, 'http').url}/events?topic=a.*"
        await second.broker.publish("a.1", b"6")
        await browser.read(lambda browser: len(browser.payloads) == 7)
        assert (browser.payloads, browser.gaps) == (["0", "1", "2", "3", "4", "5", "6"], [])


async def test_a_websocket_and_a_json_client_resume_at_another_server_behind_an_offset() -> None:
    async with two_servers() as (first, second):
        for number in range(3):
            await first.broker.publish("t", b"%d" % number)
        message: dict[str, Any] = {}
        web = address(first, "http")
        async with connect(f"ws://{web.host}:{web.port}/ws") as socket:
            await socket.send(json.dumps({"command": "SUB", "topic": "t", "from": "earliest"}))
            while message.get("payload") != "1":
                message = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
        await first.close(0)
        start = {"epoch": message["epoch"], "offset": str(int(message["offset"]) + 1)}
        web, lines = address(second, "http"), address(second, "json")
        subscribe = json.dumps({"command": "SUB", "topic": "t", "from": start})
        async with connect(f"ws://{web.host}:{web.port}/ws") as socket:
            await socket.send(subscribe)
            while message.get("payload") != "2":
                message = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
                assert message.get("payload") in (None, "2")
        reader, writer = await asyncio.open_connection(lines.host, lines.port)
        writer.write(f"{subscribe}\n".encode())
        message = {}
        while message.get("payload") != "2":
            message = json.loads(await asyncio.wait_for(reader.readline(), PATIENCE))
            assert message.get("payload") in (None, "2")
        writer.close()
        await writer.wait_closed()


async def test_what_a_client_numbered_is_stored_once_at_any_server_while_its_number_is_known() -> None:
    one, many = [b"0"], [b"%d" % number for number in range(20)]
    batches = [
        pack(one, producer=7, producer_sequence=0),
        pack(many, Columns({KEYS: [b"k%d" % number for number in range(20)]}), producer=7, producer_sequence=1),
        pack(many, Columns({DUE: [time.time() + 0.5] * 20}), producer=7, producer_sequence=21),
    ]

    async def publish(server: Server, data: bytes, ago: float | None = None) -> Any:
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        details = None if ago is None else PublishDetails(sent=time.time() - ago)
        server.broker.backend.packed_publisher().publish("t", data, details, outcome.set_result)
        return await asyncio.wait_for(outcome, PATIENCE)

    async with two_servers() as (first, second):
        for data in batches:
            span = await publish(first, data)
            assert isinstance(span, Span)
            assert await publish(second, data, ago=60) == span
            assert isinstance(await publish(second, data, ago=110), runnel.OutcomeUnknown)
        async with second.broker.subscribe("t", start="earliest") as records, asyncio.timeout(PATIENCE):
            found = [(await anext(records)).value for _ in range(41)]
        assert sorted(found) == sorted([*one, *many, *many])
        assert second.broker.statistics().topics["t"].published == 41

"""The type of a topic holds for every listener, also where only its schema is known, and in the next life."""

import asyncio
from pathlib import Path
from typing import Annotated

import httpx
import msgspec
import pytest

import runnel
from runnel.core.batch_format import JSON, pack
from runnel.server import Server, ServerOptions
from tests.patience import PATIENCE
from tests.server.http.websocket_client import Place
from tests.server.json_lines_client import Client
from tests.server.native_client import connected


class Order(msgspec.Struct):
    id: Annotated[int, msgspec.Meta(ge=0)]
    note: str = ""


GOOD, WRONG = b'{"id":1}', b'{"id":-1}'
NO_PORT = ServerOptions(port=0, json_port=0, http_port=0)


async def refused_everywhere(server: Server) -> None:
    """Publish what fits and what does not through each listener, without naming the type."""
    native, lines, http = server.listeners
    client = Client(*await asyncio.open_connection(lines.host, lines.port))
    assert (await client.ask(command="PUB", topic="orders", payload={"id": 1}))["event"] == "published"
    answer = await client.ask(command="PUB", topic="orders", payload={"id": -1})
    assert (answer["code"], "refused at id" in answer["message"]) == ("validation_failed", True)
    client.writer.close()

    async with Place(server.broker, f"{http.url.replace('http', 'ws', 1)}/ws").page() as page:
        assert (await page.ask(command="PUB", topic="orders", payload={"id": 1}))["event"] == "published"
        assert (await page.ask(command="PUB", topic="orders", payload="garbage"))["code"] == "validation_failed"

    async with httpx.AsyncClient(base_url=http.url, timeout=PATIENCE) as web:
        assert (await web.post("/topics/orders", content=GOOD)).status_code == 201
        answered = await web.post("/topics/orders", content=WRONG)
        assert (answered.status_code, answered.json()["code"]) == (422, "validation_failed")
        many = {"content-type": "application/x-ndjson"}
        answered = await web.post("/topics/orders", content=GOOD + b"\n" + WRONG, headers=many)
        assert answered.json()["code"] == "validation_failed"

    async with connected(server) as raw:
        await raw.published(raw.publish("orders", GOOD))
        assert (await raw.error(raw.publish("orders", GOOD, WRONG))).code == "validation_failed"
        claimed = raw.publish_batch("orders", pack([WRONG], content_type=JSON))
        assert (await raw.error(claimed)).code == "validation_failed"

    async with runnel.open(native.url) as untyped:
        await untyped.publish("orders", GOOD)
        with pytest.raises(runnel.ValidationFailed, match="takes Order; refused at id"):
            await untyped.publish("orders", WRONG)
        tx = untyped.transaction()
        await tx.__aenter__()
        tx.publish("orders", GOOD)
        tx.publish("orders", WRONG)
        with pytest.raises(runnel.ValidationFailed):
            await tx.__aexit__(None, None, None)


async def test_a_type_that_only_a_client_names_holds_for_all_others() -> None:
    async with runnel.open() as broker, Server(broker, NO_PORT) as server:
        async with runnel.open(server.listeners[0].url) as typed:
            await typed.topic("orders", Order).publish(Order(0))
        await refused_everywhere(server)
        assert broker.statistics().published == 6


async def test_a_type_of_an_earlier_life_holds(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        await broker.topic("orders", Order).declare()
    async with runnel.open(tmp_path) as broker, Server(broker, NO_PORT) as server:
        await refused_everywhere(server)
        assert broker.statistics().published == 5


async def test_objects_that_pass_by_reference_are_sent_by_no_listener() -> None:
    async with runnel.open() as broker, Server(broker, NO_PORT) as server:
        native, lines, http = server.listeners
        things = broker.topic("things.one", object)
        await things.publish(object())
        client = Client(*await asyncio.open_connection(lines.host, lines.port))
        await client.ask(command="SUB", **{"topic": "things.one", "from": "earliest"})
        ended = await client.event()
        assert (ended["event"], ended["code"]) == ("end", "not_supported")
        answer = await client.ask(command="PUB", topic="things.one", payload="text")
        assert answer["code"] == "validation_failed"
        client.writer.close()

        async with httpx.AsyncClient(base_url=http.url, timeout=PATIENCE) as web:
            for path in ("/topics/things.one/records", "/events?topic=things.one"):
                answered = await web.get(path)
                assert (answered.status_code >= 400, answered.json()["code"]) == (True, "not_supported"), path

        async with runnel.open(native.url) as remote:
            with pytest.raises(runnel.NotSupported, match="stay in their process"):
                async with remote.subscribe("things.one"):
                    pass
            with pytest.raises(runnel.NotSupported, match="stay in their process"):
                async with remote.subscribe("things.one", group="g") as member:
                    await anext(member)
            async with remote.subscribe("things.*") as pattern:
                await things.publish(object())
                await broker.publish("things.two", b"bytes")
                record = await anext(pattern)
            assert record.value == b"bytes"
            assert record.gap is not None
            assert (record.gap.count, "by reference" in record.gap.reason) == (1, True)
        async with things.subscribe(group="g") as near:  # what the far member could not have is here
            assert (await anext(near)).attempt == 1

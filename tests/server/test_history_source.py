"""A server whose folder has a source of history: every listener reads from the oldest record to the newest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

import runnel
from runnel.broker.read import history_reads
from runnel.core.errors import HistoryUnavailable
from runnel.server import Server, ServerOptions
from runnel.testing import MemoryHistory
from tests.patience import PATIENCE
from tests.server.http.browser import Browser
from tests.server.json_lines_client import Client

COUNT, KEPT = 40, 8  # records of each topic; of `t` the journal keeps the last


class Served:
    """A server, its source, and what was published."""

    def __init__(self, server: Server, source: MemoryHistory, records: list[Any]) -> None:
        self.server, self.source, self.records = server, source, records
        self.urls = {one.name: one.url for one in server.listeners}
        self.http = self.urls["http"]

    @property
    def old(self) -> list[Any]:
        """The records of `t`."""
        return [record for record in self.records if record.topic == "t"]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    source = MemoryHistory("t", chunk=7)
    options: dict[str, Any] = {"share": False, "fsync": "os", "tail_bytes": 1}
    async with runnel.open(tmp_path, history=source, **options) as broker:
        records: list[Any] = []
        async with broker.subscribe("*", start="earliest") as subscription:
            reading = aiter(subscription)
            for number in range(COUNT):
                await broker.topic("t", retention_count=KEPT).publish(f"t{number}", key=f"k{number}")
                await broker.publish("u", f"u{number}")
                records += [await anext(reading), await anext(reading)]
        source.add(record for record in records if record.topic == "t")
        async with Server(broker, ServerOptions(port=0, json_port=0, http_port=0)) as server:
            yield Served(server, source, records)


async def read(broker: Any, pattern: str, count: int, **options: Any) -> list[Any]:
    async with asyncio.timeout(PATIENCE), broker.subscribe(pattern, **options) as subscription:
        found: list[Any] = []
        async for record in subscription:
            found.append(record)
            if len(found) == count:
                break
        return found


async def test_a_client_reads_it(served: Served) -> None:
    async with runnel.open(served.urls["native"]) as client:
        assert await read(client, "t", COUNT, start="earliest") == served.old
        assert await read(client, "t", COUNT - 5, start=5) == served.old[5:]
        assert await read(client, "t", COUNT - 9, start=served.old[9].position) == served.old[9:]
        assert await read(client, "*", 2 * COUNT, start="earliest") == served.records
        first = await read(client, "t", 6, name="page")
        rest = await read(client, "t", COUNT - 5, name="page")
        assert [*first[:5], *rest] == served.old
        assert [(one.topic, one.first) for one in await client.bounds()] == [("t", 0), ("u", 0)]
        assert (await client.backend.snapshot()).history.records > 0


async def test_a_gateway_reads_it(served: Served) -> None:
    async with (
        runnel.open(served.urls["native"]) as behind,
        Server(behind, ServerOptions(port=0, json_port=None, http_port=0)) as front,
    ):
        urls = {one.name: one.url for one in front.listeners}
        async with runnel.open(urls["native"]) as client:
            assert await read(client, "t", COUNT, start="earliest") == served.old
        browser = Browser(urls["http"], "topic=t&start=-30")
        await browser.read(lambda seen: len(seen.records) == 30)
        assert browser.payloads == [f"t{number}" for number in range(COUNT - 30, COUNT)]


async def test_pages_go_on_from_the_source_into_the_journal(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.http, timeout=PATIENCE) as client:
        offsets: list[int] = []
        page = (await client.get("/topics/t/records?from=earliest&limit=9")).json()
        assert page["first"] == 0
        while page["records"]:
            offsets += [record["offset"] for record in page["records"]]
            page = (await client.get(f"/topics/t/records?from={page['next']}&limit=9")).json()
            assert "gap" not in page or page["gap"] is None
        assert offsets == list(range(COUNT))
        metrics = (await client.get("/metrics")).text
        assert "runnel_history_readers 0" in metrics
        assert f"runnel_history_records_total {COUNT - KEPT}" in metrics


async def test_a_stream_comes_back_below_the_journal(served: Served) -> None:
    for query in ("topic=t&start=earliest", "topic=t&start=-40"):
        browser = Browser(served.http, query)
        await browser.read(lambda seen: len(seen.records) >= 3)
        del browser.records[3:]
        await browser.read(lambda seen: len(seen.records) >= COUNT)
        offsets = [record["offset"] for record in browser.records]
        assert offsets == sorted(set(offsets)), "none twice"
        assert (offsets[-1], browser.gaps) == (COUNT - 1, [])
    several = Browser(served.http, "pattern=*&start=earliest")
    await several.read(lambda seen: len(seen.records) == 5)
    assert several.payloads == [record.value.decode() for record in served.records[:5]]
    await several.read(lambda seen: len(seen.records) == 2 * COUNT)
    assert several.payloads == [record.value.decode() for record in served.records]
    assert several.gaps == []


async def test_json_lines_and_websocket_read_it(served: Served) -> None:
    listener = next(one for one in served.server.listeners if one.name == "json")
    client = Client(*await asyncio.open_connection(listener.host, listener.port))
    async with asyncio.timeout(PATIENCE):
        assert (await client.ask(**{"command": "SUB", "topic": "t", "from": "earliest"}))["event"] == "subscribed"
        lines = await client.events(COUNT)
        assert [line["payload"] for line in lines] == [f"t{number}" for number in range(COUNT)]
    await client.gone()
    async with asyncio.timeout(PATIENCE), connect(f"{served.http.replace('http', 'ws', 1)}/ws") as socket:
        await socket.send(json.dumps({"command": "SUB", "topic": "t", "from": 4}))
        seen: list[int] = []
        while len(seen) < COUNT - 4:
            event = json.loads(await socket.recv())
            if event["event"] == "message":
                seen.append(event["offset"])
        assert seen == list(range(4, COUNT))


async def test_live_readers_do_not_wait_for_a_source_that_fails(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_reads, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(history_reads, "LAST_PAUSE", 0.01)
    served.source.error = OSError("the database is away")
    async with runnel.open(served.urls["native"]) as client:
        with pytest.raises(HistoryUnavailable, match="the database is away"):
            await client.bounds("t")
        async with httpx.AsyncClient(base_url=served.http, timeout=PATIENCE) as http:
            refused = await http.get("/topics/t/records?from=earliest")
            assert (refused.status_code, refused.json()["code"]) == (503, "history_unavailable")
            assert (await http.get(f"/topics/t/records?from={COUNT - 1}")).status_code == 200
        old = asyncio.create_task(read(client, "t", COUNT, start="earliest"))
        live = Browser(served.http, "topic=t")
        watching = asyncio.create_task(live.read(lambda seen: bool(seen.records)))
        async with asyncio.timeout(PATIENCE):
            while not live.readies:  # noqa: ASYNC110 - the browser tells nobody
                await asyncio.sleep(0.001)
        await client.publish("u", "not this")
        await client.publish("t", "live")
        await watching
        assert live.payloads == ["live"]
        assert not old.done()
        served.source.error = None
        assert [record.offset for record in await old] == list(range(COUNT))


async def test_no_listener_serves_what_was_trimmed_from_the_source(served: Served) -> None:
    stream = Browser(served.http, "topic=t&start=earliest")
    await stream.read(lambda seen: len(seen.records) >= 3)
    before = len(stream.records)
    async with runnel.open(served.urls["native"]) as client:
        await client.topic("t").trim(20)  # below the journal's first offset
        (floors,) = await client.floors("t")
        assert (floors.gone, floors.moved) == (20, COUNT - KEPT)
        assert [one.first for one in await client.bounds("t")] == [20]
        for start in ("earliest", 3, served.old[7].position):
            found = await read(client, "t", COUNT - 20, start=start)
            assert [record.offset for record in found] == list(range(20, COUNT))
        both = [record for record in served.records if record.topic == "u" or record.offset >= 20]
        assert await read(client, "*", len(both), start="earliest") == both
    await stream.read(lambda seen: seen.records[-1]["offset"] == COUNT - 1)  # it goes on behind its last event id
    assert [record["offset"] for record in stream.records[before:]] == list(range(max(20, before), COUNT))
    async with httpx.AsyncClient(base_url=served.http, timeout=PATIENCE) as http:
        page = (await http.get("/topics/t/records?from=5&limit=9")).json()
        assert [record["offset"] for record in page["records"]] == list(range(20, 29))
        assert (page["gap"]["first"], page["gap"]["end"]) == (5, 20)
    async with asyncio.timeout(PATIENCE), connect(f"{served.http.replace('http', 'ws', 1)}/ws") as socket:
        await socket.send(json.dumps({"command": "SUB", "topic": "t", "from": 4}))
        event = json.loads(await socket.recv())
        while event["event"] != "message":
            event = json.loads(await socket.recv())
        assert event["offset"] == 20

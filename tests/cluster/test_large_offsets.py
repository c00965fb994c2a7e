"""Offsets beyond 2^53 are strings in JSON, at every listener. The stream begins at a sequence that gives such ones."""

import asyncio
import json
from typing import Any

import httpx

import runnel
from runnel.cluster.jetstream import stream_config
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from runnel.wire.json_events import EXACT, json_number
from tests.cluster.single import new_stream, open_cluster
from tests.cluster.test_removed import read, soon

FIRST = 1 << 42  # stream sequences from here on: offsets of 2^54 and more


async def far_stream() -> str:
    """A stream whose first message has the sequence FIRST."""
    stream = new_stream()
    async with open_cluster() as broker:
        await broker.backend.js.api(f"STREAM.CREATE.{stream}", stream_config(stream, 1) | {"first_seq": FIRST})
    return stream


class Lines:
    """A client of the JSON lines listener."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Lines":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, **command: Any) -> dict[str, Any]:
        self._writer.write(json.dumps(command).encode() + b"\n")
        return await self.next()

    async def next(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await soon(self._reader.readline()))
        return found


async def test_json_lines_http_and_events_carry_them_as_strings_and_take_them_back() -> None:
    stream = await far_stream()
    async with (
        open_cluster(stream) as broker,
        Server(broker, ServerOptions(port=0, json_port=0, http_port=0)) as server,
    ):
        url = {one.url.partition(":")[0]: one.url for one in server.listeners}
        offsets = await _lines(int(url["tcp"].rpartition(":")[2]))
        async with httpx.AsyncClient(base_url=url["http"], timeout=30) as http:
            await _pages_and_events(http, offsets)
        figures = (await soon(broker.backend.snapshot())).topics["t"]
        assert (figures.kept, figures.total) == (5, 5)
        async with runnel.open(url["runnel"]) as client, client.subscribe("t", start=int(offsets[2])) as records:
            assert [(one.value, one.offset) for one in await read(records, 1)] == [(b"2", int(offsets[2]))]


async def _lines(port: int) -> list[str]:
    async with Lines(port) as lines:
        stored = [await lines.ask(command="PUB", topic="t", payload=f"{number}") for number in range(3)]
        offsets = [one["offset"] for one in stored]
        assert all(isinstance(offset, str) and int(offset) > EXACT for offset in offsets)
        answer = await lines.ask(command="PUB", topic="t", payload="3", expected_offset=str(int(offsets[2]) + 1))
        assert answer["event"] == "published"
        assert (await lines.ask(command="PUB", topic="t", payload="no", expected_offset=offsets[2]))["event"] == "error"
    for start in (offsets[1], {"epoch": stored[1]["epoch"], "offset": offsets[1]}):
        async with Lines(port) as lines:
            assert (await lines.ask(command="SUB", topic="t", **{"from": start}))["event"] == "subscribed"
            message = await lines.next()
            assert (message["payload"], message["offset"], message["sequence"]) == ("1", offsets[1], offsets[1])
    return offsets


async def _pages_and_events(http: httpx.AsyncClient, offsets: list[str]) -> None:
    page = (await http.get("/topics/t/records", params={"from": offsets[1], "limit": 2})).json()
    assert [one["value"] for one in page["records"]] == ["1", "2"]
    assert [one["offset"] for one in page["records"]] == offsets[1:3]
    assert page["first"] == offsets[0]
    further = (await http.get("/topics/t/records", params={"from": page["next"]})).json()
    assert [one["value"] for one in further["records"]] == ["3"]
    last = (await http.get("/topics/t/records", params={"from": "-2"})).json()
    assert [one["value"] for one in last["records"]] == ["2", "3"], "the last two records, not offsets"
    posted = (await http.post("/topics/t", content=b"4")).json()
    assert isinstance(posted["offset"], str)
    events = [event async for event in _events(http, {"topic": "t", "start": "-3"}, 3)]
    assert [event["data"]["value"] for event in events] == ["2", "3", "4"]
    again = [event async for event in _events(http, {"topic": "t", "lastEventId": events[0]["id"]}, 2)]
    assert [event["data"]["value"] for event in again] == ["3", "4"]


async def _events(http: httpx.AsyncClient, parameters: dict[str, str], count: int) -> Any:
    async with http.stream("GET", "/events", params=parameters) as response:
        event: dict[str, Any] = {}
        async for line in response.aiter_lines():
            name, _, text = line.partition(": ")
            if name == "id":
                event["id"] = text
            elif name == "data":
                event["data"] = json.loads(text)
            elif not line:
                if "value" in event.get("data", ()):
                    yield event
                    count -= 1
                if not count:
                    return
                event = {}


def test_numbers_up_to_2_to_the_53_stay_numbers() -> None:
    assert [json_number(number) for number in (0, 5, EXACT, EXACT + 1)] == [0, 5, EXACT, "9007199254740992"]

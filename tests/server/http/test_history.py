"""History over HTTP: by offset, time and from the end; bounded, and it says how to go on."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.api.broker import Broker
from runnel.server.http import history
from runnel.testing.clock import JumpingClock
from tests.brokers import local_broker
from tests.server.http.browser import web


async def filled(broker: Broker, count: int = 10) -> None:
    await broker.topic("t").publish_many([b"%d" % number for number in range(count)])


def values(answer: Any) -> list[str]:
    return [record["value"] for record in answer.json()["records"]]


async def test_topics_are_listed_by_pattern() -> None:
    async with web() as (broker, client):
        for name in ("b.x", "a", "b.y"):
            await broker.publish(name, b"")
        assert (await client.get("/topics")).json() == {"topics": ["a", "b.x", "b.y"]}
        assert (await client.get("/topics", params={"pattern": "b.*"})).json() == {"topics": ["b.x", "b.y"]}
        assert (await client.get("/topics", params={"pattern": "b*"})).json()["code"] == "invalid_pattern"


@pytest.mark.parametrize(
    ("start", "expected"),
    [("", "0123456789"), ("earliest", "0123456789"), ("7", "789"), ("-2", "89"), ("-99", "0123456789"), ("latest", "")],
)
async def test_records_from_a_place_on(start: str, expected: str, tmp_path: Path) -> None:
    async with web(runnel.open(tmp_path)) as (broker, client):
        await filled(broker)
        answer = await client.get("/topics/t/records", params={"from": start} if start else {})
        assert "".join(values(answer)) == expected
        found = answer.json()
        assert (found["first"], found["end"], found["next"]) == (0, 10, 10)
        assert "next_link" not in found


async def test_one_page_leads_to_the_next() -> None:
    async with web() as (broker, client):
        await filled(broker)
        seen, link, pages = [], "/topics/t/records?limit=4", 0
        while link:
            answer = await client.get(link)
            seen += values(answer)
            link = answer.json().get("next_link")
            assert (link is not None) == ("link" in answer.headers)
            pages += 1
        assert (seen, pages) == ([str(number) for number in range(10)], 3)


async def test_records_from_a_time_on() -> None:
    clock = JumpingClock()
    async with web(local_broker(clock=clock)) as (broker, client):
        await broker.publish("t", b"old")
        await clock.advance(60)
        answer = await client.get("/topics/t/records")
        after = answer.json()["records"][0]["time"].replace("Z", "+00:00")
        await broker.publish("t", b"new")
        assert values(await client.get("/topics/t/records", params={"from": after})) == ["old", "new"]
        later = (await client.get("/topics/t/records?from=1")).json()["records"][0]["time"]
        assert values(await client.get("/topics/t/records", params={"from": later})) == ["new"]
        assert (await client.get("/topics/t/records", params={"from": "2026-11-15T12:00:00"})).status_code == 400


async def test_lines_say_in_headers_how_to_go_on() -> None:
    async with web() as (broker, client):
        await filled(broker)
        answer = await client.get("/topics/t/records", params={"limit": 3, "format": "ndjson"})
        assert [json.loads(line)["value"] for line in answer.text.splitlines()] == ["0", "1", "2"]
        assert (answer.headers["runnel-next"], answer.headers["runnel-end"]) == ("3", "10")
        assert answer.headers["link"] == '</topics/t/records?from=3&limit=3&format=ndjson>; rel="next"'
        accepted = await client.get("/topics/t/records", headers={"accept": "application/x-ndjson"})
        assert accepted.headers["content-type"] == "application/x-ndjson"


async def test_a_page_is_bounded_by_bytes_and_holds_one_record_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_RESPONSE_BYTES", 10)
    async with web() as (broker, client):
        await broker.topic("t").publish_many([b"x" * 20, b"y" * 4, b"z" * 4, b"w" * 4])
        assert values(await client.get("/topics/t/records")) == ["x" * 20]
        assert values(await client.get("/topics/t/records?from=1")) == ["y" * 4, "z" * 4]


async def test_removed_records_are_reported() -> None:
    async with web() as (broker, client):
        await broker.topic("t", retention_count=3).publish_many([b"%d" % number for number in range(10)])
        answer = await client.get("/topics/t/records?from=2")
        assert values(answer) == ["7", "8", "9"]
        assert (answer.json()["gap"]["first"], answer.json()["gap"]["end"], answer.json()["gap"]["count"]) == (2, 7, 5)
        assert (await client.get("/topics/t/records?from=0")).json()["gap"]["count"] == 7
        assert "gap" not in (await client.get("/topics/t/records?from=earliest")).json()
        lines = await client.get("/topics/t/records?from=2&format=ndjson")
        assert json.loads(lines.headers["runnel-gap"])["count"] == 5


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("from=x", 400, "invalid_option"),
        ("from=99", 416, "offset_out_of_range"),
        ("from=1&from=2", 400, "invalid_option"),
        ("limit=0", 400, "invalid_option"),
        ("limit=10001", 400, "invalid_option"),
        ("limit=%D9%A1", 400, "invalid_option"),
        ("format=xml", 400, "invalid_option"),
        ("from=%FF", 400, "invalid_option"),
    ],
)
async def test_what_makes_no_sense_is_refused(query: str, status: int, code: str) -> None:
    async with web() as (broker, client):
        await filled(broker)
        answer = await client.get(f"/topics/t/records?{query}")
        assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_asking_makes_no_topic() -> None:
    async with web() as (broker, client):
        assert (await client.get("/topics/nothing/records")).status_code == 404
        assert await broker.topics() == []


async def test_a_name_with_a_slash_is_one_name() -> None:
    async with web() as (broker, client):
        assert (await client.post("/topics/a%2Fb", content=b"x")).json()["topic"] == "a/b"
        assert values(await client.get("/topics/a%2Fb/records")) == ["x"]
        assert await broker.topics() == ["a/b"]


async def test_few_pages_are_built_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page takes memory, and time of the event loop: a hundred requests must not take it from all others."""
    async with web() as (broker, client):
        await filled(broker)
        building, most = 0, 0
        read = broker.backend.history

        async def watched(*asked: Any) -> Any:
            nonlocal building, most
            building += 1
            most = max(most, building)
            await asyncio.sleep(0)
            building -= 1
            return await read(*asked)

        monkeypatch.setattr(broker.backend, "history", watched)
        answers = await asyncio.gather(*(client.get("/topics/t/records") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert most == history.PAGES_AT_ONCE

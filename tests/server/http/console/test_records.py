"""Records for a page: searched a bounded number at a time, and downloaded."""

import io
import json
from typing import Any

import httpx
import msgspec
import pyarrow.parquet as pq
import pytest

from runnel import Broker
from runnel.server.http.console import records
from tests.server.http.browser import web


class Order(msgspec.Struct):
    id: int


async def filled(broker: Broker, count: int) -> None:
    for number in range(count):
        await broker.publish(
            "t", f"Line {number}", key=f"k{number % 3}", headers={"shop": "eu" if number % 2 else "us"}
        )


async def found(client: httpx.AsyncClient, **asked: Any) -> dict[str, Any]:
    answer = await client.get("/console/records", params={"topic": "t", **asked})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def offsets(page: dict[str, Any]) -> list[int]:
    return [one["offset"] for one in page["records"]]


async def test_values_keys_and_headers_are_searched() -> None:
    async with web() as (broker, client):
        await filled(broker, 20)
        assert offsets(await found(client, find="LINE 1")) == [1, *range(10, 20)]
        assert offsets(await found(client, key="k1", find="line 1")) == [1, 10, 13, 16, 19]
        assert offsets(await found(client, find="shop: eu", limit=2)) == [1, 3]
        assert offsets(await found(client, **{"from": "-2"})) == [18, 19]
        assert (await found(client, find="nothing"))["searched"] == 20


async def test_a_search_is_bounded_and_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PAGE", 5)
    monkeypatch.setattr(records, "SEARCHED", 10)
    async with web() as (broker, client):
        await filled(broker, 42)
        seen, start, rounds = [], "0", 0
        while True:
            page = await found(client, find="line 4", **{"from": start})
            assert page["searched"] <= 10
            seen += offsets(page)
            rounds, start = rounds + 1, str(page["next"])
            if page["next"] >= page["end"]:
                break
        assert (seen, rounds) == ([4, 40, 41], 5)
        page = await found(client, find="line", limit=3)
        assert (offsets(page), page["next"]) == ([0, 1, 2], 3)


async def test_what_is_found_is_downloaded() -> None:
    async with web() as (broker, client):
        await filled(broker, 20)
        asked = {"topic": "t", "key": "k1", "from": "2", "to": "15"}
        answer = await client.get("/console/download", params=asked)
        assert "filename*=UTF-8''t.ndjson" in answer.headers["content-disposition"]
        assert [json.loads(line)["offset"] for line in answer.text.splitlines()] == [4, 7, 10, 13]
        answer = await client.get("/console/download", params=asked | {"format": "parquet"})
        table = pq.read_table(io.BytesIO(answer.content))
        assert table.column("offset").to_pylist() == [4, 7, 10, 13]
        assert table.column("value").to_pylist()[0] == b"Line 4"
        assert dict(table.column("headers").to_pylist()[0]) == {"shop": "us"}
        answer = await client.get("/console/download", params=asked | {"limit": "2"})
        assert len(answer.text.splitlines()) == 2


async def test_without_pyarrow_parquet_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "find_spec", lambda name: None)
    async with web() as (broker, client):
        await filled(broker, 1)
        answer = await client.get("/console/download", params={"topic": "t", "format": "parquet"})
        assert (answer.status_code, "pyarrow is not installed" in answer.json()["detail"]) == (501, True)
        assert (await client.get("/console/topic?topic=t")).json()["parquet"] is False


async def test_a_topic_tells_its_options_and_its_type() -> None:
    async with web() as (broker, client):
        await broker.topic("typed", Order, retention_count=7).publish(Order(1))
        told = (await client.get("/console/topic?topic=typed")).json()
        assert (told["options"], told["schema"]["encoding"]) == ({"retention_count": 7}, "json")
        assert told["schema"]["schema"]["$defs"]["Order"]["required"] == ["id"]
        assert (await client.get("/console/topic?topic=nothing")).status_code == 404


@pytest.mark.parametrize("asked", ["", "topic=a..b", "topic=t&from=x", "topic=t&limit=0", f"topic=t&find={'x' * 1001}"])
async def test_odd_questions_are_problems(asked: str) -> None:
    async with web() as (broker, client):
        await filled(broker, 1)
        assert (await client.get(f"/console/records?{asked}")).status_code == 400
        assert (await client.get(f"/console/download?{asked}")).status_code == 400

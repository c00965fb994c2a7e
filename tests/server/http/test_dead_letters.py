"""Dead letters over HTTP: listed with why they failed, put back or discarded, and not by pages of others."""

from pathlib import Path
from typing import Any

import httpx
import pytest

import runnel
from runnel import Broker
from tests.server.http.browser import web
from tests.server.http.test_openapi import fits

DEAD = "/dead-letters/dead-letters.billing"
HOSTILE = "<img src=x onerror=alert(1)>"


async def bury(broker: Broker, *values: bytes, reason: str = "bad") -> None:
    """Have records of `orders` rejected, and wait for their dead letters: on a disk they land after reject()."""
    for value in values:
        await broker.publish("orders", value, key=b"k-" + value, headers={"shop": "eu"})
    async with broker.subscribe("orders", group="billing") as deliveries:
        for _ in values:
            await (await anext(deliveries)).reject(reason)
    async with broker.subscribe("dead-letters.billing", start="earliest") as letters:
        for _ in values:
            await anext(letters)


async def listed(client: httpx.AsyncClient, query: str = "") -> list[int]:
    answer = await client.get(f"{DEAD}{query}")
    assert answer.status_code == 200, answer.text
    return [one["offset"] for one in answer.json()["letters"]]


@pytest.mark.parametrize("place", ["memory", "folder"])
async def test_letters_are_listed_with_their_story_and_settled(place: str, tmp_path: Path) -> None:
    async with web(runnel.open(tmp_path) if place == "folder" else None) as (broker, client):
        await bury(broker, b"a", b"\xff", b"c", reason=HOSTILE)
        topics = (await client.get("/dead-letters")).json()
        row = {"topic": "dead-letters.billing", "groups": ["billing"], "open": 3, "first": 0, "end": 3}
        assert topics == {"topics": [row]}
        assert fits(topics, {"$ref": "DeadTopics"})
        found = (await client.get(DEAD)).json()
        assert fits(found, {"$ref": "DeadLetters"})
        first, second, _ = found["letters"]
        assert (first["value"], first["key"], first["headers"]["shop"]) == ("a", "k-a", "eu")
        assert (second["value"], second["encoding"]) == ("/w==", "base64")
        story: dict[str, Any] = first["story"]
        facts = [story[fact] for fact in ("reason", "attempts", "group", "topic")]
        assert facts == [HOSTILE, "1", "billing", "orders"]
        assert not any(name.startswith("runnel-dead-letter") for name in first["headers"])

        answer = await client.post(f"{DEAD}/replay", json={"offsets": [0], "epoch": found["epoch"]})
        assert answer.json() == {"topic": "dead-letters.billing", "replayed": 1}
        assert fits(answer.json(), {"$ref": "Replayed"})
        assert (await client.get("/topics/orders/records?from=3")).json()["records"][0]["value"] == "a"
        assert await listed(client) == [1, 2]
        answer = await client.post(f"{DEAD}/discard", json={"all": True})
        assert answer.json() == {"topic": "dead-letters.billing", "discarded": 2}
        assert fits(answer.json(), {"$ref": "Discarded"})
        assert await listed(client) == []
        assert (await client.get("/dead-letters")).json()["topics"][0]["open"] == 0


async def test_a_long_list_has_pages() -> None:
    async with web() as (broker, client):
        await bury(broker, *(b"%d" % number for number in range(5)))
        page = (await client.get(f"{DEAD}?limit=2")).json()
        assert ([one["offset"] for one in page["letters"]], page["next"], page["open"]) == ([0, 1], 2, 5)
        last = (await client.get(f"{DEAD}?from=4&limit=2")).json()
        assert ([one["offset"] for one in last["letters"]], last["next"]) == ([4], None)


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b'{"offsets": [0]}', "text/plain", 400, "invalid_option"),
        (b'{"offsets": [0]}', "application/x-www-form-urlencoded", 400, "invalid_option"),
        (b"{", "application/json", 400, "invalid_option"),
        (b"\xff", "application/json", 400, "invalid_option"),
        (b"{}", "application/json", 400, "invalid_option"),
        (b'{"all": false}', "application/json", 400, "invalid_option"),
        (b'{"all": true, "offsets": [1]}', "application/json", 400, "invalid_option"),
        (b'{"offsets": ["zero"]}', "application/json", 400, "invalid_option"),
        (b'{"offsets": [-1]}', "application/json", 400, "invalid_option"),
        (b'{"offsets": [1], "surprise": 1}', "application/json", 400, "invalid_option"),
        (b'{"offsets": [%s]}' % b",".join([b"1"] * 10_001), "application/json", 400, "invalid_option"),
        (b'{"offsets": [0], "epoch": 1}', "application/json", 410, "topic_deleted"),
    ],
)
async def test_what_is_not_asked_for_properly_changes_nothing(body: bytes, kind: str, status: int, code: str) -> None:
    async with web() as (broker, client):
        await bury(broker, b"a")
        for what in ("replay", "discard"):
            answer = await client.post(f"{DEAD}/{what}", content=body, headers={"content-type": kind})
            assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert await listed(client) == [0]


async def test_a_page_of_another_origin_settles_nothing() -> None:
    async with web() as (broker, client):
        await bury(broker, b"a")
        for what in ("replay", "discard"):
            headers = {"origin": "https://evil.example"}
            answer = await client.post(f"{DEAD}/{what}", json={"all": True}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")
        assert await listed(client) == [0]


async def test_what_is_not_there_is_not_made() -> None:
    async with web() as (broker, client):
        for request in (
            client.get("/dead-letters/nothing"),
            client.post("/dead-letters/nothing/discard", json={"all": True}),
        ):
            assert (await request).json()["code"] == "unknown_topic"
        assert await broker.topics() == []
        for query in ("?from=-1", "?from=latest", "?from=x", "?limit=0"):
            await broker.publish("dead-letters.x", b"")
            assert (await client.get(f"/dead-letters/dead-letters.x{query}")).json()["code"] == "invalid_option", query
        answer = await client.post("/dead-letters/dead-letters.x/discard", json={"all": True})
        assert "is not a dead letter" in answer.json()["detail"]

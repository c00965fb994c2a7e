"""What operators do from a page, with the rights that the same calls have elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

import runnel
from runnel import Broker
from runnel.testing import JumpingClock
from tests.patience import PATIENCE
from tests.security.guarded import Tokens, guarded
from tests.server.http.browser import serving, web


async def act(client: httpx.AsyncClient, do: str, **facts: Any) -> dict[str, Any]:
    answer = await client.post("/console/actions", json={"do": do, **facts})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def code(client: httpx.AsyncClient, do: str, **facts: Any) -> str:
    answer = await client.post("/console/actions", json={"do": do, **facts})
    assert answer.status_code >= 400, answer.text
    return str(answer.json()["code"])


async def test_a_topic_is_made_changed_trimmed_and_deleted() -> None:
    async with web() as (broker, client):
        assert (await act(client, "create_topic", topic="a", options={"retention_count": 9}))["options"] == {
            "retention_count": 9
        }
        assert await code(client, "create_topic", topic="a", options={"retention_count": 8}) == "topic_conflict"
        assert await code(client, "create_topic", topic="b", options={"retention": 8}) == "invalid_option"
        told = await act(client, "configure_topic", topic="a", changes={"retention_count": None, "retention_age": 60.0})
        assert told["options"] == {"retention_age": 60.0}
        for number in range(5):
            await broker.publish("a", str(number))
        assert await act(client, "trim_topic", topic="a", before="3") == {"first": 3}
        assert await code(client, "trim_topic", topic="a", before="earliest") == "invalid_option"
        await act(client, "delete_topic", topic="a")
        assert await broker.topics() == []
        assert await code(client, "delete_topic", topic="a") == "unknown_topic"
        assert await code(client, "trim_topic", topic="a", before="1") == "unknown_topic"


async def test_a_group_is_paused_reset_and_forgotten() -> None:
    async with web() as (broker, client):
        for number in range(3):
            await broker.publish("a", str(number))
        async with broker.subscribe("a", group="g", start="earliest") as deliveries:
            await (await anext(deliveries)).ack()
            await act(client, "pause_group", group="g", pattern="a", paused=True)
            assert broker.group("g", "a").statistics().paused
            await act(client, "pause_group", group="g", pattern="a", paused=False)
            assert await code(client, "forget_group", group="g", pattern="a") == "group_in_use"
        await act(client, "reset_group", group="g", pattern="a", start="2")
        assert broker.group("g", "a").statistics().lag == 1
        await act(client, "forget_group", group="g", pattern="a")
        assert await code(client, "reset_group", group="g", pattern="a", start="2") == "unknown_group"


async def test_a_named_subscription_is_moved_and_forgotten() -> None:
    async with web() as (broker, client):
        for number in range(5):
            await broker.publish("a", str(number))
        async with broker.subscribe("a", name="n", start="earliest"):
            assert await code(client, "place_subscription", name="n", topic="a", start="3") == "name_in_use"
        assert await act(client, "place_subscription", name="n", topic="a", start="3") == {"offset": 3}
        async with broker.subscribe("a", name="n") as records:
            assert (await anext(records)).value == b"3"
        for start, offset in (("earliest", 0), ("latest", 5), ("-1", 4), ("2020-01-01T00:00:00Z", 0)):
            assert await act(client, "place_subscription", name="n", topic="a", start=start) == {"offset": offset}
        assert await code(client, "place_subscription", name="n", topic="a", start="6") == "invalid_option"
        assert await code(client, "place_subscription", name="n", topic="a.>", start="0") == "invalid_option", (
            "it reads a"
        )
        await act(client, "forget_subscription", name="n")
        assert await code(client, "forget_subscription", name="n") == "unknown_name"


async def test_a_named_subscription_on_a_pattern_is_moved_to_a_sequence_a_time_or_an_end() -> None:
    clock = JumpingClock()
    async with runnel.open(clock=clock) as broker, web(broker) as (_, client):
        for number in range(6):
            await broker.publish("ab"[number % 2], str(number))
            await broker.publish("other", "x")
            await clock.advance(1.0)
        moment = (await broker.backend.history("a", 1, 1, 1000)).records[0].time.isoformat()

        async def moved(start: str) -> tuple[str | None, int]:
            sequence = (await act(client, "place_subscription", name="n", topic="*", start=start))["sequence"]
            async with broker.subscribe("*", name="n") as records:
                return (await anext(records)).value.decode() if records.lag else None, sequence

        async with broker.subscribe("*", name="n", start="earliest"):
            assert await code(client, "place_subscription", name="n", topic="*", start="0") == "name_in_use"
        assert await moved("latest") == (None, 12)
        assert await moved("earliest") == ("0", 0)
        assert await moved("3") == ("x", 3)
        assert await moved(moment) == ("2", 4)
        assert await moved("2090-01-01T00:00:00Z") == (None, 12)
        for wrong in ("13", "-1", "yesterday"):
            assert await code(client, "place_subscription", name="n", topic="*", start=wrong) == "invalid_option"
        for topic in ("a..*", "* ", "b.*"):
            assert await code(client, "place_subscription", name="n", topic=topic, start="0") in (
                "invalid_option",
                "invalid_pattern",
            )


async def test_a_connection_is_closed_and_what_its_member_holds_goes_back() -> None:
    async with serving(port=0) as server:
        urls = {one.name: one.url for one in server.listeners}
        await server.broker.publish("a", b"x")
        async with (
            httpx.AsyncClient(base_url=urls["http"], timeout=PATIENCE) as client,
            runnel.open(urls["native"], reconnect=False) as remote,
            remote.subscribe("a", group="g", start="earliest") as deliveries,
        ):
            await anext(deliveries)
            assert server.serving is not None
            (number,) = [
                one["connection"] for one in server.serving.connections.describe() if one["listener"] == "native"
            ]
            await act(client, "close_connection", connection=number)
            async with asyncio.timeout(PATIENCE), server.broker.subscribe("a", group="g") as others:
                assert (await anext(others)).value == b"x"
            assert await code(client, "close_connection", connection=number) == "invalid_option"


RIGHTS: dict[str, dict[str, Any]] = {
    "create_topic": {"topic": "t.new"},
    "configure_topic": {"topic": "t.a", "changes": {"retention_count": 5}},
    "trim_topic": {"topic": "t.a", "before": "0"},
    "pause_group": {"group": "g", "pattern": "t.a", "paused": True},
    "reset_group": {"group": "g", "pattern": "t.a", "start": "earliest"},
    "forget_group": {"group": "g", "pattern": "t.a"},
    "forget_subscription": {"name": "n"},
    "close_connection": {"connection": 10_000},
    "delete_topic": {"topic": "t.a"},
}
OPERATOR = ("pause_group",)


async def prepared(broker: Broker) -> None:
    await broker.publish("t.a", b"x")
    async with broker.subscribe("t.a", group="g"), broker.subscribe("t.a", name="n"):
        pass


@pytest.mark.parametrize(("name", "allowed"), [("viewer", ()), ("operator", OPERATOR), ("admin", tuple(RIGHTS))])
async def test_each_role_may_do_what_it_may_elsewhere(name: str, allowed: tuple[str, ...], tmp_path: Path) -> None:
    made = Tokens()
    made.add("viewer", ["subscribe:t.>"], roles=["viewer"])
    made.add("operator", ["subscribe:t.>"], roles=["operator"])
    made.add("admin", roles=["admin"])
    async with guarded(tmp_path, made) as server:
        await prepared(server.server.broker)
        headers = {"authorization": f"Bearer {server.tokens[name]}"}
        async with httpx.AsyncClient(base_url=server.url("http"), headers=headers, timeout=PATIENCE) as client:
            for do, facts in RIGHTS.items():
                answer = await client.post("/console/actions", json={"do": do, **facts})
                refused = answer.status_code in (403, 409) or answer.json().get("code") == "unknown_topic"
                assert refused == (do not in allowed), (do, answer.text)


async def test_a_session_needs_its_csrf_token(tmp_path: Path) -> None:
    made = Tokens()
    made.add("admin", roles=["admin"])
    async with guarded(tmp_path, made) as server, httpx.AsyncClient(base_url=server.url("http")) as page:
        await page.post("/login", data={"token": server.tokens["admin"]})
        known = (await page.get("/session")).json()
        assert known["rules"]["admin"] == [">"]
        body = {"do": "create_topic", "topic": "t"}
        assert (await page.post("/console/actions", json=body)).status_code == 403
        headers = {"x-runnel-csrf": known["csrf"]}
        assert (await page.post("/console/actions", json=body, headers=headers)).status_code == 200
        answer = await page.post("/console/actions", content=b"do=delete_topic", headers=headers)
        assert answer.json()["code"] == "invalid_option", "no form can send it"

"""The console's figures as events: one sample for all who look, only while somebody does."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

import runnel
from runnel import Broker
from runnel.server import http
from runnel.server.http.console import sampler, sampling
from runnel.server.http.console.sampler import BrokerSampler
from runnel.server.http.console.sampling import ConsoleSampling
from runnel.server.http.console.updates import ConsoleUpdates
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ServedBroker
from tests.patience import PATIENCE
from tests.server.http.browser import serving, web


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "INTERVAL", 0.02)
    monkeypatch.setattr(sampler, "STEP", 0.05)


def updates(broker: Broker, options: ServerOptions) -> ConsoleUpdates:
    serving = ServedBroker(broker, options)
    return ConsoleUpdates(serving, ConsoleSampling(serving))


@asynccontextmanager
async def looking(url: str, query: str = "") -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """What a viewer is told."""
    async with asyncio.timeout(PATIENCE), httpx.AsyncClient(timeout=PATIENCE) as client:
        async with client.stream("GET", f"{url}/console/updates{query}") as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"].startswith("text/event-stream")

            async def told() -> AsyncIterator[dict[str, Any]]:
                name = ""
                async for line in response.aiter_lines():
                    field, _, value = line.partition(": ")
                    name = value if field == "event" else name
                    if field == "data":
                        assert name == "figures"
                        yield json.loads(value)

            yield told()


async def test_figures_come_at_once_and_then_again_and_again() -> None:
    async with serving() as server, looking(server.listeners[0].url) as told:
        await server.broker.publish("a", b"x")
        first = await anext(told)
        assert first["view"] == "topics"
        seen = first
        while not seen["rows"] or not seen["rows"][0]["rates"]:
            seen = await anext(told)
        assert seen["rows"][0]["name"] == "a"


async def test_the_broker_is_surveyed_once_for_all_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    surveys = 0
    take = BrokerSampler.take

    async def counting(self: BrokerSampler) -> bool:
        nonlocal surveys
        surveys += 1
        return await take(self)

    monkeypatch.setattr(BrokerSampler, "take", counting)
    async with serving() as server:
        url = server.listeners[0].url
        async with looking(url) as one, looking(url, "?view=groups") as other, looking(url) as third:
            await anext(one)
            before = surveys
            for _ in range(5):
                views = [(await anext(told))["view"] for told in (one, other, third)]
            assert views == ["topics", "groups", "topics"]
            assert surveys - before <= 10, "and not thrice as many"


async def test_without_a_page_nothing_is_sampled_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "STEP", 3600.0)
    surveys = 0
    take = BrokerSampler.take

    async def counting(self: BrokerSampler) -> bool:
        nonlocal surveys
        surveys += 1
        return await take(self)

    monkeypatch.setattr(BrokerSampler, "take", counting)
    async with serving() as server:
        url = server.listeners[0].url
        assert surveys == 0
        async with looking(url) as told:
            await anext(told)
            await anext(told)
        monkeypatch.setattr(sampling, "IDLE_TIMEOUT", 0.0)
        async with looking(url) as told:
            await anext(told)
            before = surveys
            await anext(told)
            assert surveys > before, "while a page is open it is sampled each second"


async def test_a_page_finds_the_minutes_before_it_was_loaded() -> None:
    async with serving() as server:
        async with looking(server.listeners[0].url) as told:
            while not (await anext(told))["totals"]["published_rates"]:
                pass
        async with looking(server.listeners[0].url) as told:
            assert (await anext(told))["totals"]["published_rates"] != []


async def test_a_server_that_stops_ends_the_stream() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving())
        async with looking(server.listeners[0].url) as told:
            await anext(told)
            stopping = asyncio.ensure_future(stack.aclose())
            async for _ in told:
                pass
            await stopping


async def test_a_broker_that_is_closed_ends_the_stream() -> None:
    async with runnel.open() as broker:
        sent: list[dict[str, Any]] = []
        ended = asyncio.Event()
        route = updates(broker, ServerOptions())

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if message["type"] == "http.response.body" and b"figures" in message["body"]:
                broker.close()

        async def receive() -> dict[str, Any]:
            await ended.wait()
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "GET", "query_string": b"", "headers": []}
        async with asyncio.timeout(PATIENCE):
            await route(scope, receive, send)  # type: ignore[arg-type]
        assert sent[-1]["more_body"] is False


async def test_a_viewer_that_reads_nothing_is_let_go() -> None:
    async with runnel.open() as broker:
        route = updates(broker, ServerOptions(send_timeout=0.05))

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body" and b"figures" in message["body"]:
                await asyncio.Event().wait()

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        scope = {"type": "http", "method": "GET", "query_string": b"", "headers": []}
        async with asyncio.timeout(PATIENCE):
            await route(scope, receive, send)  # type: ignore[arg-type]
        assert not route._sampling.viewers


async def test_a_survey_that_fails_is_logged_and_begun_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take = BrokerSampler.take

    async def failing(self: BrokerSampler) -> bool:
        if self.topics:
            raise ArithmeticError("planted")
        return await take(self)

    monkeypatch.setattr(BrokerSampler, "take", failing)
    async with serving() as server:
        await server.broker.publish("a", b"x")
        async with looking(server.listeners[0].url) as told:
            assert [one["total"] async for one in told] == [1], "the stream ends; the page comes back"
        assert "could not be made" in caplog.text
        async with looking(server.listeners[0].url) as told:
            assert (await anext(told))["total"] == 1


async def test_odd_requests_are_problems() -> None:
    async with web(max_streams=1) as (_, client):
        assert (await client.get("/console/updates?view=x")).json()["code"] == "invalid_option"
        assert (await client.post("/console/updates")).status_code == 405
        async with looking(str(client.base_url)) as told:
            await anext(told)
            assert (await client.get("/console/updates")).json()["code"] == "limit_exceeded"


async def test_it_is_refused_to_pages_of_other_origins() -> None:
    async with runnel.open() as broker:
        transport = httpx.ASGITransport(http.app(broker))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            answer = await client.get("/console/updates", headers={"origin": "https://evil.example"})
            assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")


async def test_a_closed_broker_is_reported(runnel_broker: Broker) -> None:
    transport = httpx.ASGITransport(http.app(runnel_broker))
    runnel_broker.close()
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        assert (await client.get("/console/updates")).json()["code"] == "broker_closed"

"""`runnel.fastapi.Router` in an application on uvicorn: lifespan, dependency, streams behind the user's own login."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import websockets.asyncio.client as ws
from fastapi import FastAPI, HTTPException
from starlette.requests import HTTPConnection
from websockets.exceptions import InvalidStatus

import runnel
from runnel.fastapi import Bus, Router, on_error
from tests.contract.reading import soon

SECRET = {"cookie": "session=ada"}


async def login(connection: HTTPConnection) -> str:
    user = connection.cookies.get("session")
    if user is None:
        raise HTTPException(401, "log in first")
    return user


def may(connection: HTTPConnection, action: str, topic: str) -> bool:
    return topic != "rooms.secret"


def chat(bus: Router) -> FastAPI:
    app = FastAPI()
    app.add_exception_handler(runnel.RunnelError, on_error)

    @bus.post("/rooms/{room}", status_code=201)
    async def say(room: str, text: str, broker: Bus) -> str:
        return str(await broker.publish(f"rooms.{room}", text))

    bus.sse("/rooms/{room}/events", "rooms.{room}", start="earliest", login=login, authorize=may)
    bus.sse("/me/events", lambda request: f"users.{request.cookies['session']}", login=login, start="earliest")
    bus.ws("/rooms/{room}/ws", "rooms.{room}", publish=True, login=login, authorize=may)
    bus.ws("/look/ws", "rooms.*")
    app.include_router(bus)
    return app


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The application on uvicorn, with its lifespan; host and port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on", ws="websockets-sansio"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        await server.shutdown()


async def values(client: httpx.AsyncClient, path: str, count: int, **headers: str) -> list[str]:
    """The values of the first events of a stream."""
    found: list[str] = []
    async with client.stream("GET", path, headers=SECRET | headers) as stream:
        assert stream.status_code == 200, await stream.aread()
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            if line.startswith("data:") and "value" in line:
                found.append(json.loads(line.removeprefix("data:"))["value"])
                if len(found) == count:
                    return found
    raise AssertionError(f"the stream ended after {found}")


async def test_an_application_has_a_broker_streams_and_its_own_login(tmp_path: Path) -> None:
    bus = Router(tmp_path / "data")
    async with served(chat(bus)) as where, httpx.AsyncClient(base_url=f"http://{where}") as client:
        for text in ("hello", "anyone?"):
            assert (await client.post("/rooms/tea", params={"text": text})).status_code == 201
        assert await soon(values(client, "/rooms/tea/events", 2)) == ["hello", "anyone?"]
        assert await soon(values(client, "/rooms/tea/events?start=-1&topic=rooms.secret", 1)) == ["anyone?"]
        await bus.broker.publish("users.ada", "for you")
        assert await soon(values(client, "/me/events", 1)) == ["for you"]

        assert (await client.get("/rooms/tea/events")).status_code == 401
        refused = await client.get("/rooms/secret/events", headers=SECRET)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_authorized")
        assert "the application decides that" in refused.json()["detail"]
        for room in ("*", ">", "a.b", "%24x"):  # would be other topics than were meant
            assert (await client.get(f"/rooms/{room}/events", headers=SECRET)).status_code == 404
        wrong = await client.get("/rooms/tea/events?start=yesterday", headers=SECRET)
        assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_option")
        assert (await client.post("/rooms/a b", params={"text": "x"})).json()["code"] == "invalid_name"
        assert "/rooms/{room}/events" in (await client.get("/openapi.json")).json()["paths"]


async def test_a_websocket_is_about_its_topic_and_nothing_else() -> None:
    bus = Router()
    async with served(chat(bus)) as where:

        async def ask(socket: Any, **command: Any) -> dict[str, Any]:
            await socket.send(json.dumps(command))
            found: dict[str, Any] = json.loads(await soon(socket.recv()))
            return found

        async with ws.connect(f"ws://{where}/rooms/tea/ws", additional_headers=SECRET) as socket:
            assert (await ask(socket, command="SUB", topic="rooms.tea"))["event"] == "subscribed"
            said = [await ask(socket, command="PUB", topic="rooms.tea", payload="hi"), json.loads(await socket.recv())]
            assert {one["event"] for one in said} == {"published", "message"}
            for command in (
                {"command": "SUB", "topic": "rooms.>"},
                {"command": "SUB", "topic": "rooms.coffee"},
                {"command": "PUB", "topic": "rooms.coffee", "payload": "x"},
                {"command": "SUB", "topic": "rooms.tea", "group": "g"},
                {"command": "SUB", "topic": "rooms.tea", "name": "n"},
            ):
                assert (await ask(socket, **command))["code"] in ("not_authorized", "name_owned"), command
        async with ws.connect(f"ws://{where}/look/ws") as socket:
            assert (await ask(socket, command="SUB", topic="rooms.*"))["event"] == "subscribed"
            assert (await ask(socket, command="PUB", topic="rooms.tea", payload="x"))["code"] == "not_authorized"
        async with ws.connect(f"ws://{where}/rooms/secret/ws", additional_headers=SECRET) as socket:
            assert (await ask(socket, command="SUB", topic="rooms.secret"))["code"] == "not_authorized"
        for headers, status in (({}, 401), (SECRET | {"origin": "https://evil.example"}, 403)):
            with pytest.raises(InvalidStatus) as caught:
                await ws.connect(f"ws://{where}/rooms/tea/ws", additional_headers=headers)
            assert caught.value.response.status_code == status


async def test_presence_has_the_names_that_the_login_returns() -> None:
    bus = Router()
    async with served(chat(bus)) as where, httpx.AsyncClient(base_url=f"http://{where}") as client:
        bob = {"cookie": "session=bob"}
        socket = ws.connect(f"ws://{where}/rooms/tea/ws", additional_headers=bob)
        async with socket as talking, client.stream("GET", "/rooms/tea/events", headers=SECRET) as stream:
            await talking.send('{"command": "SUB", "topic": "rooms.tea", "presence": "Ada"}')  # which he is not
            await soon(talking.recv())
            assert stream.status_code == 200
            there = await bus.broker.presence("rooms.tea")
            assert {(one.principal, one.presence) for one in there} == {("ada", None), ("bob", "Ada")}


async def test_handlers_run_with_the_application_each_time_that_it_starts(tmp_path: Path) -> None:
    bus, sent = Router(tmp_path / "data"), list[str]()

    @bus.on("mails", group="senders", publish="sent")
    async def send(address: str) -> str:
        sent.append(address)
        return address

    app = FastAPI()
    app.include_router(bus)
    for address in ("ada", "grace"):
        async with app.router.lifespan_context(app):
            broker = bus.broker
            await broker.topic("mails").publish_and_wait(address)
    assert sent == ["ada", "grace"]
    with pytest.raises(runnel.BrokerClosed):
        await broker.publish("mails", "late")


async def test_streams_end_when_the_application_stops() -> None:
    bus = Router()
    async with served(chat(bus)) as where, httpx.AsyncClient(base_url=f"http://{where}") as client:
        async with client.stream("GET", "/me/events", headers=SECRET) as stream:
            assert stream.status_code == 200
            bus.broker.close()
            async with asyncio.timeout(20):
                async for _ in stream.aiter_bytes():
                    pass


def test_a_template_that_no_request_can_fill_is_refused_at_once() -> None:
    bus = Router()
    for path, topic, why in (
        ("/events", "rooms.{room}", "no parameter of the path"),
        ("/{room}/events", "rooms..{room}", "empty"),
    ):
        with pytest.raises(runnel.RunnelError, match=why):
            bus.sse(path, topic)
        with pytest.raises(runnel.RunnelError, match=why):
            bus.ws(path, topic)

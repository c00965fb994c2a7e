"""The one connection of a page: figures and records over one WebSocket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import websockets.asyncio.client as ws

from runnel.server.http.console import sampling
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from tests.patience import PATIENCE
from tests.security.guarded import Tokens, guarded
from tests.server.http.browser import mounted, serving


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "INTERVAL", 0.02)


class Tab:
    """An open page."""

    def __init__(self, socket: ws.ClientConnection) -> None:
        self._socket = socket

    async def say(self, **command: Any) -> None:
        await self._socket.send(json.dumps(command))

    async def hear(self, event: str) -> dict[str, Any]:
        """The next event of that name."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found: dict[str, Any] = json.loads(await self._socket.recv())
                if found["event"] == event:
                    return found


@asynccontextmanager
async def tab(url: str, **options: Any) -> AsyncIterator[Tab]:
    async with ws.connect(f"{url.replace('http', 'ws', 1)}/console/live", **options) as socket:
        yield Tab(socket)


async def test_figures_and_records_come_over_one_connection() -> None:
    async with serving() as server, tab(server.listeners[0].url) as page:
        await page.say(command="LOOK", query="view=topics&filter=a")
        assert (await page.hear("figures"))["rows"] == []
        await page.say(command="SUB", topic="a", id=1, **{"from": "earliest"})
        await server.broker.publish("a", b"x")
        assert (await page.hear("message"))["payload"] == "x"
        while not (shown := await page.hear("figures"))["rows"]:
            pass
        assert shown["rows"][0]["name"] == "a"
        await page.say(command="LOOK", query="view=groups")
        while (await page.hear("figures"))["view"] != "groups":
            pass


async def test_a_wrong_look_is_answered_and_the_connection_goes_on() -> None:
    async with serving() as server, tab(server.listeners[0].url) as page:
        await page.say(command="LOOK", query="view=nothing", id="q")
        found = await page.hear("error")
        assert (found["code"], found["command"], found["id"]) == ("invalid_option", "LOOK", "q")
        await page.say(command="LOOK", query="")
        assert (await page.hear("figures"))["view"] == "topics"


async def test_it_works_in_an_application_of_another() -> None:
    async with serving() as server, mounted(server.broker) as url, tab(url) as page:
        await page.say(command="LOOK", query="")
        assert (await page.hear("figures"))["view"] == "topics"


async def test_a_page_that_only_looks_is_no_idle_connection() -> None:
    async with serving(idle_timeout=0.05) as server, tab(server.listeners[0].url) as page:
        await page.say(command="LOOK", query="")
        for _ in range(10):
            await page.hear("figures")


async def test_a_gateway_shows_the_figures_of_the_server_behind_and_its_own_connections() -> None:
    import runnel

    async with serving(port=0) as server:
        native = next(one.url for one in server.listeners if one.name == "native")
        options = ServerOptions(port=None, json_port=None, http_port=0)
        async with runnel.open(native) as broker, Server(broker, options) as gateway:
            await broker.publish("a", b"x")
            async with tab(gateway.listeners[0].url) as page:
                await page.say(command="LOOK", query="view=connections")
                shown = await page.hear("figures")
                assert (shown["totals"]["gateway"], shown["total"]) == (True, 1)
                await page.say(command="LOOK", query="view=topics")
                while (shown := await page.hear("figures"))["view"] != "topics":
                    pass
                assert shown["rows"][0]["name"] == "a"


async def test_a_login_is_needed_and_the_role_of_a_viewer(tmp_path: Path) -> None:
    made = Tokens()
    made.add("viewer", roles=["viewer"])
    made.add("reader", ["subscribe:t.>"])
    async with guarded(tmp_path, made) as server:
        async with tab(server.url("http")) as page:
            await page.say(command="LOOK", query="")
            assert (await page.hear("error"))["code"] == "not_authenticated"
        for name, event in (("reader", "error"), ("viewer", "figures")):
            headers = {"authorization": f"Bearer {server.tokens[name]}"}
            async with tab(server.url("http"), additional_headers=headers) as page:
                await page.say(command="LOOK", query="")
                await page.hear(event)

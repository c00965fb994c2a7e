"""The one connection of a page: figures and records over one WebSocket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets.asyncio.client as ws
from websockets.exceptions import ConnectionClosed

import runnel
from runnel.server.http.console import sampling
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from runnel.testing import JumpingClock
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


LIMITS = '[roles.viewer]\nconsole = "viewer"\n[session]\nidle = 600.0\nmost = 2000.0\n'
UNATTENDED = {"x-runnel-unattended": "1"}


@asynccontextmanager
async def signed_in(folder: Path) -> AsyncIterator[tuple[JumpingClock, httpx.AsyncClient, Tab]]:
    """A page of a session of 10 minutes without a request and 2,000 s at most, that looks at figures."""
    made, clock = Tokens(), JumpingClock()
    made.add("viewer", roles=["viewer"])
    async with (
        guarded(folder, made, LIMITS, runnel.open(clock=clock)) as server,
        httpx.AsyncClient(base_url=server.url("http"), timeout=PATIENCE) as browser,
    ):
        assert (await browser.post("/login", data={"token": server.tokens["viewer"]})).status_code == 303
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        async with tab(server.url("http"), additional_headers={"cookie": cookie}, origin=server.url("http")) as page:
            await page.say(command="LOOK", query="")
            await page.hear("figures")
            yield clock, browser, page


async def test_a_page_whose_user_does_nothing_ends_with_the_idle_time_of_its_session(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as (clock, browser, page):
        for _ in range(5):
            await clock.advance(110.0)
            await page.say(command="LOOK", query="view=groups")
            await page.hear("figures")
            assert (await browser.get("/console/charts?kind=totals&span=15m", headers=UNATTENDED)).status_code != 401
        await clock.advance(60.0)
        assert (await page.hear("error"))["code"] == "token_expired"
        with pytest.raises(ConnectionClosed):
            await page.hear("figures")
        assert (await browser.get("/topics")).status_code == 401


async def test_requests_of_the_user_keep_the_page_until_the_session_has_lasted_as_long_as_it_may(
    tmp_path: Path,
) -> None:
    async with signed_in(tmp_path) as (clock, browser, page):
        for _ in range(4):
            await clock.advance(490.0)
            assert (await browser.get("/session")).status_code == 200
            await page.say(command="LOOK", query="view=groups")
            await page.hear("figures")
        await clock.advance(60.0)
        assert (await page.hear("error"))["code"] == "token_expired"
        assert (await browser.get("/topics")).status_code == 401

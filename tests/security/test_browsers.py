"""Browsers: sessions, CSRF tokens, tickets, WebSockets with cookies, the console, health and metrics, embedding."""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets.asyncio.client as ws
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from websockets.exceptions import InvalidStatus

import runnel
from runnel.core.errors import InvalidOption
from runnel.server import http
from tests.patience import PATIENCE
from tests.security.guarded import Guarded, Tokens, guarded

JSON = {"content-type": "application/json"}


def tokens() -> Tokens:
    made = Tokens()
    made.add("alice", ["publish:t.>", "create:t.>", "subscribe:t.>"], roles=["viewer"])
    made.add("ops", ["subscribe:>"], roles=["operator"])
    made.add("root", roles=["admin"])
    return made


def browser(server: Guarded, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url("http"), timeout=PATIENCE, **options)


async def sign_in(page: httpx.AsyncClient, token: str) -> str:
    """Log in by the form; the CSRF token of the session."""
    answer = await page.post("/login", data={"token": token})
    assert answer.status_code == 303, answer.text
    return str((await page.get("/session")).json()["csrf"])


async def test_a_browser_signs_in_by_a_form_and_gets_cookies_that_scripts_of_others_cannot_use(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, browser(server) as page:
        start = await page.get("/")
        assert (start.status_code, start.headers["location"]) == (303, "login")
        form = await page.get("/login")
        assert 'name="token"' in form.text
        assert "script-src" not in form.headers["content-security-policy"]  # none runs there
        answer = await page.post("/login", data={"token": server.tokens["alice"]})
        cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith("runnel_session="))
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert server.tokens["alice"] not in cookie
        assert (await page.get("/")).status_code == 200
        known = (await page.get("/session")).json()
        assert (known["principal"], known["console"]) == ("alice", "viewer")
        assert server.tokens["alice"] not in json.dumps(known)


async def test_a_wrong_token_in_the_form_is_refused_with_the_page_again(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, browser(server) as page:
        answer = await page.post("/login", data={"token": "rnl_<script>"})
        assert answer.status_code == 401
        assert "<script>" not in answer.text
        assert "set-cookie" not in answer.headers


async def test_what_changes_something_needs_the_csrf_token_of_the_session(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, browser(server) as page, browser(server) as other:
        csrf = await sign_in(page, server.tokens["alice"])
        others = await sign_in(other, server.tokens["alice"])
        for headers in ({}, {"x-runnel-csrf": "0" * 64}, {"x-runnel-csrf": others}):
            assert (await page.post("/topics/t.a", content=b"x", headers=headers)).status_code == 403
            assert (await page.post("/tickets", json={"topics": ["t.a"]}, headers=headers)).status_code == 403
        assert (await page.post("/topics/t.a", content=b"x", headers={"x-runnel-csrf": csrf})).status_code == 201
        assert (await page.get("/topics/t.a/records")).json()["records"][0]["value"] == "x"
        elsewhere = {"x-runnel-csrf": csrf, "origin": "https://evil.example"}
        assert (await page.post("/topics/t.a", content=b"x", headers=elsewhere)).status_code == 403


async def test_signing_out_ends_the_session_everywhere_and_its_streams(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, browser(server) as page, asyncio.timeout(PATIENCE):
        csrf = await sign_in(page, server.tokens["alice"])
        kept = dict(page.cookies)
        async with page.stream("GET", "/events?topic=t.a") as stream:
            assert stream.status_code == 200
            assert (await page.post("/logout")).status_code == 403
            assert (await page.post("/logout", headers={"x-runnel-csrf": csrf})).status_code == 303
            said = "".join([part async for part in stream.aiter_text()])
            assert "not_authenticated" in said
        async with browser(server, cookies=kept) as thief:
            assert (await thief.get("/topics")).status_code == 401
        assert (await page.get("/console/updates")).status_code == 401


async def test_a_session_ends_when_it_is_idle_and_when_its_token_is_revoked(tmp_path: Path) -> None:
    rules = '[roles.viewer]\nconsole = "viewer"\n[roles.operator]\nconsole = "operator"\n[session]\nidle = 0.5\n'
    async with guarded(tmp_path, tokens(), rules) as server, browser(server) as page, asyncio.timeout(PATIENCE):
        await sign_in(page, server.tokens["alice"])
        until = time.monotonic() + 1.0
        while time.monotonic() < until:  # it is used, and goes on
            assert (await page.get("/topics")).status_code == 200
            await asyncio.sleep(0.05)
        kept = dict(page.cookies)
        async with browser(server, cookies=kept) as idle:
            while (await idle.get("/healthz")).status_code == 200:  # no request of the session
                await asyncio.sleep(0.1)
                if time.monotonic() > until + 1.0:
                    break
            assert (await idle.get("/topics")).json()["code"] == "token_expired"
        async with browser(server) as again:
            await sign_in(again, server.tokens["alice"])
            server.files.write_tokens(server.files.read_tokens().without("alice")[0])
            await _until_status(again, "/topics", 401)


async def _until_status(page: httpx.AsyncClient, path: str, status: int) -> None:
    while (await page.get(path)).status_code != status:  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.02)


async def ticket_of(server: Guarded, topics: list[str], **more: Any) -> str:
    async with browser(server) as client:
        headers = {"authorization": f"Bearer {server.tokens['alice']}"}
        answer = await client.post("/tickets", json={"topics": topics, **more}, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["expires_in"] == 30
        return str(answer.json()["ticket"])


async def test_a_ticket_works_once_for_its_topics_and_its_origin_and_leaves_a_cookie(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens(), http_cors="https://app.example") as server, asyncio.timeout(PATIENCE):
        ticket = await ticket_of(server, ["t.a"])
        assert server.tokens["alice"] not in ticket
        async with browser(server) as page:
            async with page.stream("GET", f"/events?topic=t.a&ticket={ticket}") as stream:
                assert stream.status_code == 200
                cookie = next(one for one in stream.headers.get_list("set-cookie"))
                assert re.match(r"runnel_events_[^;]+; Path=/events; HttpOnly; SameSite=Lax", cookie)
            another = await ticket_of(server, ["t.b"])
            async with page.stream("GET", f"/events?topic=t.b&ticket={another}") as second:
                assert second.status_code == 200
            for topic, same in (("t.a", ticket), ("t.b", another)):  # EventSource reconnects to the same address
                async with page.stream("GET", f"/events?topic={topic}&ticket={same}") as again:
                    assert again.status_code == 200
            assert (await page.get(f"/events?topic=t.b&ticket={ticket}")).status_code == 403  # not what it was for
            assert (await page.get("/events?topic=t.a")).status_code == 401  # the cookie alone logs no one in
            assert (await page.get(f"/topics/t.a/records?ticket={ticket}")).status_code == 401  # nor at another route
            for _ in range(10):
                more = await ticket_of(server, ["t.a"])
                async with page.stream("GET", f"/events?topic=t.a&ticket={more}"):
                    pass
            assert len(page.cookies) <= 8  # a page that is loaded again and again does not fill the jar
        async with browser(server) as other:
            answer = await other.get(f"/events?topic=t.a&ticket={ticket}")
            assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")
            assert ticket not in answer.text
            ours = await ticket_of(server, ["t.a"])
            elsewhere = {"origin": "https://app.example"}
            assert (await other.get(f"/events?topic=t.a&ticket={ours}", headers=elsewhere)).status_code == 401
            theirs = await ticket_of(server, ["t.a"], origin="https://app.example")
            async with other.stream("GET", f"/events?topic=t.a&ticket={theirs}", headers=elsewhere) as stream:
                assert stream.status_code == 200
            changed = f"{theirs[:-2]}AA"
            assert (await other.get(f"/events?topic=t.a&ticket={changed}", headers=elsewhere)).status_code == 401


async def test_a_ticket_is_for_what_its_principal_may_read(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, browser(server) as client:
        headers = {"authorization": f"Bearer {server.tokens['alice']}"}
        for topics, status in ((["secret"], 403), (["t.>", "secret"], 403), ([], 400), (["a..b"], 400), (7, 400)):
            answer = await client.post("/tickets", json={"topics": topics}, headers=headers)
            assert answer.status_code == status, answer.text


async def test_a_ticket_that_was_used_at_one_server_is_used_at_every_server_of_the_backend(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    made = tokens()
    async with runnel.open() as broker, asyncio.timeout(PATIENCE):

        class Kept:
            """The broker outlives each of its servers."""

            async def __aenter__(self) -> Any:
                return broker

            async def __aexit__(self, *_: object) -> None:
                pass

        async with (
            guarded(tmp_path / "one", made, broker=Kept()) as one,  # type: ignore[arg-type]
            guarded(tmp_path / "two", made, broker=Kept()) as two,  # type: ignore[arg-type]
        ):
            host = {"host": f"127.0.0.1:{one.port('http')}"}
            ticket = await ticket_of(one, ["t.a"])
            async with browser(two) as page:
                async with page.stream("GET", f"/events?topic=t.a&ticket={ticket}", headers=host) as stream:
                    assert stream.status_code == 200
            async with browser(one) as page:
                assert (await page.get(f"/events?topic=t.a&ticket={ticket}")).status_code == 401
                csrf = await sign_in(page, made.texts["alice"])
                kept = dict(page.cookies)
                async with browser(two, cookies=kept) as elsewhere:
                    assert (await elsewhere.get("/topics")).status_code == 200
                    await page.post("/logout", headers={"x-runnel-csrf": csrf})
                    await _until_status(elsewhere, "/topics", 401)


async def test_a_websocket_with_a_cookie_needs_an_allowed_origin(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, browser(server) as page, asyncio.timeout(PATIENCE):
        await sign_in(page, server.tokens["alice"])
        url = f"ws://127.0.0.1:{server.port('http')}/ws"
        cookie = {"cookie": f"runnel_session={page.cookies['runnel_session']}"}
        for origin in (None, "https://evil.example"):
            with pytest.raises(InvalidStatus):
                async with ws.connect(url, additional_headers=cookie, origin=origin):  # type: ignore[arg-type]
                    pass
        async with ws.connect(
            url,
            additional_headers=cookie,
            origin=f"http://127.0.0.1:{server.port('http')}",  # type: ignore[arg-type]
        ) as socket:
            await socket.send(json.dumps({"command": "PUB", "topic": "t.a", "value": "x"}))
            assert json.loads(await socket.recv())["event"] == "published"
            await socket.send(json.dumps({"command": "PUB", "topic": "secret", "value": "x"}))
            assert json.loads(await socket.recv())["code"] == "not_authorized"
            csrf = (await page.get("/session")).json()["csrf"]
            await page.post("/logout", headers={"x-runnel-csrf": csrf})
            assert json.loads(await socket.recv())["code"] == "not_authenticated"


async def test_a_websocket_takes_a_ticket_and_nothing_is_sent_before_a_login(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        url = f"ws://127.0.0.1:{server.port('http')}/ws"
        ticket = await ticket_of(server, ["t.a"])
        async with ws.connect(f"{url}?ticket={ticket}") as socket:
            await socket.send(json.dumps({"command": "SUB", "topic": "t.a"}))
            assert json.loads(await socket.recv())["event"] == "subscribed"
            await socket.send(json.dumps({"command": "SUB", "topic": "t.b"}))
            assert json.loads(await socket.recv())["code"] == "not_authorized"
        with pytest.raises(InvalidStatus):
            async with ws.connect(f"{url}?ticket={ticket}"):
                pass
        async with ws.connect(url) as socket:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(socket.recv(), 0.2)
            await socket.send(json.dumps({"command": "TOPICS"}))
            assert json.loads(await socket.recv())["code"] == "not_authenticated"


async def test_the_console_shows_figures_to_viewers_and_lets_operators_settle_dead_letters(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, asyncio.timeout(PATIENCE):
        async with server.client(server.tokens["root"]) as root:
            await root.publish("dead-letters.g", "x")
        body = json.dumps({"offsets": []})
        for name, status in (("alice", 404), ("ops", 200)):  # one that it may not see is not there
            async with browser(server) as page:
                csrf = await sign_in(page, server.tokens[name])
                async with page.stream("GET", "/console/updates") as stream:
                    assert stream.status_code == 200
                headers = JSON | {"x-runnel-csrf": csrf}
                answer = await page.post("/dead-letters/dead-letters.g/discard", content=body, headers=headers)
                assert answer.status_code in (status, 403), answer.text
                assert (answer.status_code == 200) == (name == "ops")


async def test_health_is_open_and_reveals_nothing_and_metrics_are_by_rule(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, browser(server) as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert (await client.get("/metrics")).status_code == 401
    open_metrics = "[metrics]\nopen_on_loopback = true\n[roles.viewer]\n[roles.operator]\n"
    async with guarded(tmp_path, tokens(), open_metrics) as server, browser(server) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/topics")).status_code == 401


async def test_headers_that_are_there_twice_or_malformed_log_no_one_in(tmp_path: Path) -> None:
    async with guarded(tmp_path, tokens()) as server, browser(server) as client:
        good = f"Bearer {server.tokens['alice']}"
        for headers in (
            [("authorization", good), ("authorization", good)],
            [("authorization", "Basic abc")],
            [("authorization", "Bearer")],
            [("authorization", server.tokens["alice"])],
            [("cookie", "runnel_session=x; runnel_session=y")],
            [("cookie", "runnel_session=" + "A" * 9000)],
        ):
            answer = await client.get("/topics", headers=headers)
            assert answer.status_code == 401, headers
            assert answer.headers["www-authenticate"] == "Bearer"
            assert server.tokens["alice"] not in answer.text


async def test_an_embedding_application_decides_by_its_own_login() -> None:
    asked: list[tuple[str, str, str]] = []

    def authorize(connection: HTTPConnection, action: str, topic: str) -> bool:
        user = connection.headers.get("x-user", "")
        asked.append((user, action, topic))
        return user == "root" or (action in ("publish", "create", "subscribe") and topic == f"chat.{user}")

    async with runnel.open() as broker:
        app = Starlette(routes=[Mount("/bus", http.app(broker, authorize=authorize))])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://t/bus", timeout=PATIENCE) as client:
            eve, root = {"x-user": "eve"}, {"x-user": "root"}
            assert (await client.post("/topics/chat.eve", content=b"x", headers=eve)).status_code == 201
            assert (await client.post("/topics/chat.bob", content=b"x", headers=eve)).status_code == 403
            assert (await client.get("/topics/chat.eve/records", headers=eve)).status_code == 200
            assert (await client.get("/events?pattern=chat.*", headers=eve)).status_code == 403
            assert (await client.get("/topics", headers=eve)).json() == {"topics": ["chat.eve"]}
            assert (await client.get("/metrics", headers=eve)).status_code == 403
            assert (await client.get("/metrics", headers=root)).status_code == 200
            assert (await client.get("/healthz")).status_code == 200
        assert ("eve", "publish", "chat.bob") in asked


async def test_a_callback_that_would_have_to_be_awaited_is_refused_at_once() -> None:
    async def authorize(connection: HTTPConnection, action: str, topic: str) -> bool:
        return False

    async with runnel.open() as broker:
        with pytest.raises(InvalidOption, match="answers at once"):
            http.app(broker, authorize=authorize)  # type: ignore[arg-type]


async def test_an_embedded_application_can_leave_out_console_and_publishing() -> None:
    async with runnel.open() as broker:
        transport = httpx.ASGITransport(http.app(broker, console=False, publish=False))
        async with httpx.AsyncClient(transport=transport, base_url="http://t", timeout=PATIENCE) as client:
            assert (await client.get("/")).status_code == 404
            assert (await client.get("/console/updates")).status_code == 404
            assert (await client.post("/topics/a", content=b"x")).status_code in (404, 405)
            assert (await client.get("/runnel.js")).status_code == 200

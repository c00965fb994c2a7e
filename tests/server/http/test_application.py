"""The routes as an application: mounted into another, and refusing what it does not serve."""

import logging

import httpx
import pytest
from fastapi import FastAPI

import runnel
from runnel.core.errors import NotSupported
from runnel.server import http
from tests.server.http.browser import Browser, on_uvicorn, web


async def test_it_is_mounted_into_an_application_of_yours() -> None:
    async with runnel.open() as broker:
        outer = FastAPI()
        outer.mount("/bus", http.app(broker))
        async with on_uvicorn(broker, outer) as address:
            url = f"http://{address}/bus"
            async with httpx.AsyncClient(base_url=url) as client:
                answer = await client.post("/topics/a.b", content=b"hello")
                assert answer.headers["location"] == "/bus/topics/a.b/records?from=0&limit=1"
                assert (await client.get("/topics/a.b/records")).json()["records"][0]["value"] == "hello"
            browser = Browser(url, "topic=a.*&start=earliest")
            await browser.read(lambda one: one.records)
            assert browser.payloads == ["hello"]


async def test_what_is_no_route_is_a_problem_too() -> None:
    async with web() as (_, client):
        for method, path, status, code in (
            ("GET", "/nothing", 404, "no_such_route"),
            ("DELETE", "/topics/t", 405, "method_not_allowed"),
            ("GET", "/topics/t", 405, "method_not_allowed"),
            ("POST", "/events?topic=t", 405, "method_not_allowed"),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (status, code), path
            assert (status == 405) == ("allow" in answer.headers)


async def test_a_fault_of_the_servers_own_stays_in_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with runnel.open() as broker:
        app = http.app(broker)
        monkeypatch.setattr(type(broker), "topics", lambda self: 1 / 0)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            with caplog.at_level(logging.ERROR, "runnel"):
                answer = await client.get("/topics")
    assert (answer.status_code, answer.json()["code"]) == (500, "runnel_error")
    assert "division" not in answer.text
    assert "division" in caplog.text


async def test_a_remote_broker_that_was_not_entered_raises_at_once() -> None:
    app = http.app(runnel.open("runnel://localhost:1"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here") as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/topics")).json()["code"] == "not_supported"


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "find_spec", lambda name: None if name == "starlette" else object())
    assert http.missing() == ["starlette"]
    with pytest.raises(NotSupported, match=r"starlette is not installed: pip install 'runnel-mq\[server\]'"):
        http.app(runnel.open())

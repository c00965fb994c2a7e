"""Pages of other origins: refused before anything happens, unless they are named."""

import pytest

from tests.server.http.web import web


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://[", "evil"])
async def test_a_page_of_another_origin_publishes_nothing(origin: str) -> None:
    async with web(http_cors="https://app.example") as (broker, client):
        answer = await client.post("/topics/t", content=b"x", headers={"origin": origin, "content-type": "text/plain"})
        assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")
        assert "access-control-allow-origin" not in answer.headers
        assert (await client.get("/topics", headers={"origin": origin})).status_code == 403
        assert await broker.topics() == []


async def test_its_own_pages_and_programs_may() -> None:
    async with web() as (_, client):
        own = str(client.base_url).rstrip("/")
        for headers in ({}, {"origin": own}, {"origin": own.replace("http:", "https:")}):
            assert (await client.post("/topics/t", content=b"x", headers=headers)).status_code == 201


@pytest.mark.parametrize("allowed", ["https://app.example, https://b.example:8443", "*"])
async def test_pages_that_are_named_may_and_browsers_are_told(allowed: str) -> None:
    async with web(http_cors=allowed) as (_, client):
        origin = {"origin": "https://app.example"}
        answer = await client.post("/topics/t", content=b"x", headers=origin)
        assert answer.status_code == 201
        assert answer.headers["access-control-allow-origin"] in ("https://app.example", "*")
        asked = origin | {"access-control-request-method": "POST", "access-control-request-headers": "runnel-header-a"}
        preflight = await client.options("/topics/t", headers=asked)
        assert preflight.status_code == 200
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "runnel-header-a" in preflight.headers["access-control-allow-headers"]


@pytest.mark.parametrize("path", ["/topics", "/nothing", "/healthz", "/openapi.json", "/topics/none/records"])
async def test_every_answer_has_the_headers_that_keep_pages_safe(path: str) -> None:
    async with web() as (_, client):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"

"""The files that browsers get, over HTTP: their types, the policy of pages, and that nothing is sent twice in vain."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import runnel
from runnel.server.http import app
from tests.server.http.browser import web

FILES = [
    ("/", "text/html; charset=utf-8"),
    ("/runnel.js", "text/javascript; charset=utf-8"),
    ("/runnel.d.ts", "application/typescript; charset=utf-8"),
]


@pytest.mark.parametrize(("path", "kind"), FILES)
async def test_a_file_is_served_with_its_type_and_a_strict_policy(path: str, kind: str) -> None:
    async with web() as (_, client):
        answer = await client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == kind
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        head = await client.head(path)
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("wrapped", ["{}", "W/{}", '"other", {}'])
async def test_a_browser_that_has_the_file_gets_not_modified(wrapped: str) -> None:
    async with web() as (_, client):
        first = await client.get("/runnel.js")
        assert first.headers["cache-control"] == "no-cache"
        again = await client.get("/runnel.js", headers={"if-none-match": wrapped.format(first.headers["etag"])})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        other = await client.get("/runnel.js", headers={"if-none-match": '"another"'})
        assert other.content == first.content


async def test_the_module_says_where_its_types_are() -> None:
    async with web() as (_, client):
        where = (await client.get("/runnel.js")).headers["x-typescript-types"]
        assert (await client.get(httpx.URL("/runnel.js").join(where))).status_code == 200


@pytest.mark.parametrize(
    "file", ["nothing.js", "runnel.js", "files.py", "__init__.py", "..%2Ffiles.py", "%2e%2e%2fpy.typed", "a/b", ""]
)
async def test_what_is_no_file_of_the_console_is_not_found(file: str) -> None:
    async with web() as (_, client):
        answer = await client.get(f"/console/{file}")
        assert (answer.status_code, answer.json()["code"]) == (404, "no_such_route")


async def test_the_page_is_below_the_prefix_that_it_is_mounted_at() -> None:
    async with runnel.open() as broker:
        outer = Starlette(routes=[Mount("/bus", app(broker))])
        transport = httpx.ASGITransport(outer)
        async with httpx.AsyncClient(transport=transport, base_url="http://outer", follow_redirects=True) as client:
            page = await client.get("/bus")
            assert (page.status_code, page.url.path) == (200, "/bus/")
            assert b'src="/' not in page.content
            assert b'href="/' not in page.content
            assert (await client.get("/bus/runnel.js")).status_code == 200

"""Pages of other origins, and names of others: refused before anything happens, unless they are named."""

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

import runnel
from runnel.server import http
from runnel.server.http.cross_origin import CACHED_HOSTS, AllowedHosts, CrossOriginGuard
from runnel.server.options import ServerOptions
from tests.server.http.browser import raw, serving, web


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://[", "evil"])
async def test_a_page_of_another_origin_publishes_nothing(origin: str) -> None:
    async with web(http_cors="https://app.example") as (broker, client):
        answer = await client.post("/topics/t", content=b"x", headers={"origin": origin, "content-type": "text/plain"})
        assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")
        assert "access-control-allow-origin" not in answer.headers
        assert (await client.get("/topics", headers={"origin": origin})).status_code == 403
        assert await broker.topics() == []


async def test_a_page_of_another_origin_loads_the_modules_and_can_read_why_it_gets_nothing_else() -> None:
    origin = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    for allowed in (None, "https://app.example", "*"):
        async with web(http_cors=allowed) as (_, client):
            for name in ("runnel.js", "runnel-socket.js", "runnel.d.ts"):
                answer = await client.get(f"/{name}", headers=origin)
                assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
                assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    async with web(http_cors="https://app.example") as (_, client):
        answer = await client.get("/events?topic=t", headers=origin)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (403, "*")
        assert "https://evil.example" in answer.json()["detail"]
        assert "--http-cors" in answer.json()["detail"]
        for path in ("/console/console.js", "/", "/topics", "/healthz"):
            assert (await client.get(path, headers=origin)).status_code == 403
        assert (await client.post("/runnel.js", headers=origin)).status_code == 403
        rebound = {"host": "evil.example", "origin": "http://evil.example"}
        assert (await client.get("/runnel.js", headers=rebound)).status_code == 421


async def test_what_a_browser_calls_cross_site_publishes_nothing_though_it_names_no_origin() -> None:
    async with web(http_cors="https://app.example") as (broker, client):
        site = {"sec-fetch-site": "cross-site"}
        answer = await client.post("/topics/t", content=b"x", headers=site)
        assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")
        assert await broker.topics() == []
        assert (await client.get("/topics", headers=site)).status_code == 200  # a link on another site
        named = site | {"origin": "https://app.example"}
        assert (await client.post("/topics/t", content=b"x", headers=named)).status_code == 201
        for other in ("same-origin", "none"):
            answer = await client.post("/topics/t", content=b"x", headers={"sec-fetch-site": other})
            assert answer.status_code == 201
    async with web(http_cors="*") as (_, client):
        assert (await client.post("/topics/t", content=b"x", headers=site)).status_code == 201


async def test_its_own_pages_and_programs_may() -> None:
    async with web() as (_, client):
        own = str(client.base_url).rstrip("/")
        for headers in ({}, {"origin": own}, {"origin": own.replace("http:", "https:")}):
            assert (await client.post("/topics/t", content=b"x", headers=headers)).status_code == 201


@pytest.mark.parametrize("allowed", ["https://app.example, https://b.example:8443", "*"])
async def test_pages_that_are_named_may_and_browsers_are_informed(allowed: str) -> None:
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


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7780", "localhost.evil.example", "127.0.0.1, evil"])
async def test_a_rebound_host_name_is_refused_before_anything_happens(host: str) -> None:
    async with web() as (broker, client):
        own = {"host": host, "origin": f"http://{host}"}  # to the browser the page and the server are one
        answer = await client.post("/topics/t", content=b"x", headers=own)
        assert (answer.status_code, answer.json()["code"]) == (421, "host_refused")
        assert "http_hosts" in answer.json()["detail"]
        assert (await client.get("/topics", headers={"host": host})).status_code == 421
        assert await broker.topics() == []


@pytest.mark.parametrize(
    "host", ["localhost:1", "127.0.0.1", "[::1]:7780", "me.localhost", "app.example", "x.b.example:1"]
)
async def test_addresses_localhost_and_names_that_are_given_are_answered(host: str) -> None:
    async with web(http_hosts="app.example, *.b.example") as (_, client):
        assert (await client.post("/topics/t", content=b"x", headers={"host": host})).status_code == 201


async def test_two_hosts_or_none_are_no_way_in() -> None:
    async with serving() as server:
        line = b"GET /topics HTTP/1.1\r\nConnection: close\r\n"
        both = await raw(server, line + b"Host: localhost\r\nHost: evil.example\r\n\r\n")
        assert b"421" in both.splitlines()[0]
        # No browser leaves it away: this is a program of HTTP/1.0.
        none = await raw(server, b"GET /topics HTTP/1.0\r\n\r\n")
        assert b"200" in none.splitlines()[0]


async def test_a_public_server_answers_to_every_name_unless_some_are_named() -> None:
    stranger = {"host": "whatever.example"}
    async with web(insecure_public=True) as (_, client):
        assert (await client.get("/topics", headers=stranger)).status_code == 200
    async with web(insecure_public=True, http_hosts="app.example") as (_, client):
        assert (await client.get("/topics", headers=stranger)).status_code == 421
        assert (await client.get("/topics", headers={"host": "app.example"})).status_code == 200


async def test_in_another_application_names_are_that_ones_business_unless_some_are_given() -> None:
    async with runnel.open() as broker:
        for hosts, status in ((None, 200), ("app.example", 421), ("there.example", 200)):
            app = http.app(broker, ServerOptions(http_hosts=hosts))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://there.example") as client:
                assert (await client.get("/topics")).status_code == status


def test_a_name_that_none_can_be_is_refused_when_the_options_are_made() -> None:
    for name in ("https://app.example", "app.example:80", "a;b", "*app.example", "app..example"):
        with pytest.raises(runnel.InvalidOption, match="http_hosts"):
            ServerOptions(http_hosts=f"ok.example, {name}")


async def handshake(extensions: dict[str, dict[str, Any]], **headers: str) -> list[Message]:
    """What a guard answers to the handshake of a WebSocket; [] if it was let through."""
    said: list[Message] = []
    passed: list[Scope] = []

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        said.append(message)

    raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "websocket", "path": "/ws", "headers": raw_headers, "extensions": extensions}
    await CrossOriginGuard(behind, ("https://app.example",), AllowedHosts(()))(scope, receive, send)
    assert bool(passed) == (not said)
    return said


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:1", "https://evil.example", 403),
        ("localhost:1", "null", 403),
        ("evil.example", "http://evil.example", 421),
    ],
)
async def test_a_page_of_another_origin_or_name_opens_no_websocket(host: str, origin: str, status: int) -> None:
    start, body = await handshake({"websocket.http.response": {}}, host=host, origin=origin)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", status)
    assert b"refused" in body["body"]
    (close,) = await handshake({}, host=host, origin=origin)  # a server that can only say no
    assert close["type"] == "websocket.close"


async def test_its_own_pages_those_that_are_named_and_programs_open_one() -> None:
    assert await handshake({}, host="localhost:1", origin="http://localhost:1") == []
    assert await handshake({}, host="localhost:1", origin="https://app.example") == []
    assert await handshake({}, host="localhost:1") == []


# -- hosts ---------------------------------------------------------------------------------------------------
# Names that a server answers to: addresses, localhost, those it was given; never a name that others point at it.


OWN = ["127.0.0.1", "127.0.0.1:7780", "[::1]", "[::1]:7780", "10.0.0.7:80", "localhost", "LOCALHOST:7780", "localhost."]


@pytest.mark.parametrize("host", [*OWN, "app.localhost", "a.b.localhost:1", "[::ffff:127.0.0.1]:80"])
def test_addresses_and_localhost_count(host: str) -> None:
    assert host in AllowedHosts(())


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evillocalhost",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example:7780",
        "localhost:80:80",
        "localhost evil.example",
        "localhost\n",
        "127.1",
        "0x7f000001",
        "[::1",
        "::1",
        "",
        "[evil.example]",
        ".localhost:80/",
    ],
)
def test_everything_else_does_not(host: str) -> None:
    assert host not in AllowedHosts(())
    assert host not in AllowedHosts(["app.example"])


def test_names_that_were_given_count_with_any_port_and_in_any_case() -> None:
    hosts = AllowedHosts(["App.example", "*.inner.example"])
    for host in ("app.example", "APP.example:8443", "a.inner.example", "a.b.inner.example:80", *OWN):
        assert host in hosts, host
    for host in ("x.app.example", "inner.example", "evilinner.example", "app.example.evil"):
        assert host not in hosts, host
    assert "whatever.example" in AllowedHosts(["*"])


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz-", min_size=1), st.integers(0, 65535))
def test_no_name_of_a_stranger_ever_counts(name: str, port: int) -> None:
    assert f"{name}.example:{port}" not in AllowedHosts(["app.localhost"])


def test_many_names_are_distinguished_and_not_all_remembered() -> None:
    hosts = AllowedHosts(())
    for number in range(CACHED_HOSTS * 2):
        assert f"{number}.example" not in hosts
        assert f"{number}.localhost" in hosts
    assert len(hosts._known) == CACHED_HOSTS

"""What could forge a line, a header or a name elsewhere is refused at every way in, and told what was wrong with it.

CR, LF, NUL, bytes that are no UTF-8 and text without end: in paths, parameters, headers and event ids. Keys and values
may be any bytes: they come back as data, never as a line of their own.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

import runnel
from runnel.server.http.requests import MAX_PARAMETERS
from runnel.server.server import Server
from tests.server.http.browser import Browser, raw, serving

MARK = "x-injected"
ENCODED = {
    "CR": "a%0Db",
    "LF": "a%0Ab",
    "a header": f"a%0D%0A{MARK}:%201",
    "a body": f"a%0D%0A%0D%0A<script>{MARK}</script>",
    "NUL": "a%00b",
    "no UTF-8": "a%FFb",
    "half a character": "a%C3",
    "an overlong zero": "a%C0%80",
    "a surrogate": "a%ED%A0%80",
    "without end": "a" * 5_000,
}
IN_PATHS = {
    "POST /topics/{}": "topic",
    "GET /topics/{}/records": "topic",
    "GET /dead-letters/{}": "topic",
    "POST /dead-letters/{}/replay": "topic",
    "POST /dead-letters/{}/discard": "topic",
}
IN_PARAMETERS = {
    "GET /topics?pattern={}": "pattern",
    "GET /topics/t/records?from={}": "from",
    "GET /topics/t/records?limit={}": "limit",
    "GET /topics/t/records?format={}": "format",
    "GET /events?topic={}": "a pattern|topic",
    "GET /events?pattern={}": "pattern",
    "GET /events?topic=t&start={}": "start",
    "GET /events?topic=t&lastEventId={}": "Last-Event-ID|lastEventId",
    "GET /dead-letters/t?from={}": "from",
    "GET /dead-letters/t?limit={}": "limit",
    "GET /console/updates?view={}": "view",
    "GET /console/updates?view=topic&topic={}": "topic",
    "GET /console/updates?sort={}": "sort",
    "GET /console/updates?limit={}": "limit",
    "GET /console/updates?from={}": "from",
    "GET /console/charts?kind={}": "kind",
    "GET /console/charts?span={}": "span",
    "GET /console/topic?topic={}": "topic",
    "GET /console/records?topic={}": "topic",
    "GET /console/records?topic=t&from={}": "from",
    "GET /console/records?topic=t&limit={}": "limit",
    "GET /console/download?topic={}": "topic",
    "GET /console/download?topic=t&to={}": "to",
    "GET /console/download?topic=t&format={}": "format",
    "GET /console/letters?topic={}": "topic",
    "GET /console/letters?topic=t&from={}": "from",
}
IN_HEADERS: dict[str, list[bytes]] = {
    "Runnel-Key": [b"a\xffb", b"a\x01b"],
    "Runnel-Delay": [b"1\t1", b"\xff", b"9" * 500],
    "Runnel-Expires": [b"-1", b"\xc3", b"9" * 500],
    "Runnel-Priority": [b"1%0D", b"\xff", b"9" * 500],
    "Runnel-Expected-Offset": [b"1%00", b"\xff", b"9" * 500],
    "Idempotency-Key": [b"a\xffb", b"a\x1fb", b"k" * 257],
    "Content-Type": [b"text/\xff", b"text/\x01plain"],
    "Content-Encoding": [b"gzip\xff"],
    "Runnel-Header-Shop": [b"a%0D%0Ab", b"a%00b", b"%ff", b"\xff", b"%C3"],
    "ce-id": [b"a%0Ab", b"%ff"],
    "Last-Event-ID": [b"a%0D%0Ab", b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff\xfe", b"A" * 5_000],
}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.body)
        return told


async def ask(server: Server, request: str, *headers: bytes, body: bytes = b"") -> Answer:
    """Send this as it stands, and read all that comes."""
    length = b"content-length: %d" % len(body)
    head = (f"{request} HTTP/1.1".encode("latin-1"), b"host: localhost", b"connection: close", length, *headers)
    answered = await raw(server, b"\r\n".join(head) + b"\r\n\r\n" + body)
    first, _, rest = answered.partition(b"\r\n")
    lines, _, content = rest.partition(b"\r\n\r\n")
    told = dict(line.split(": ", 1) for line in lines.decode("ascii").split("\r\n"))
    return Answer(int(first.split()[1]), told, content)


def check_refused(answer: Answer, *names: str, route: str = "") -> None:
    """It is refused, told which part was wrong, and nothing of it is in a header."""
    assert 400 <= answer.status < 500, (route, answer)
    assert answer.headers["content-type"] == "application/problem+json", route
    assert MARK not in answer.headers, route
    assert not [value for value in answer.headers.values() if "a" * 64 in value or MARK in value], route
    assert any(name in answer.problem["detail"] for name in names), (route, answer.problem)
    assert answer.problem["code"] != "runnel_error", route
    assert len(answer.body) < 2_000, "a long text is not repeated"


@pytest.mark.parametrize("what", ENCODED)
async def test_no_topic_of_a_path_holds_them(what: str) -> None:
    async with serving() as server:
        kind = b"content-type: application/json"
        for route, named in IN_PATHS.items():
            answer = await ask(server, route.format(ENCODED[what]), kind, body=b'{"all": true}')
            check_refused(answer, named, route=route)
            assert await server.broker.topics() == [], route


@pytest.mark.parametrize("what", ENCODED)
async def test_no_parameter_that_is_read_holds_them(what: str) -> None:
    async with serving() as server:
        await server.broker.publish("t", b"")
        for route, named in IN_PARAMETERS.items():
            check_refused(await ask(server, route.format(ENCODED[what])), *named.split("|"), route=route)


@pytest.mark.parametrize("name", IN_HEADERS)
async def test_no_header_that_is_read_holds_them(name: str) -> None:
    async with serving() as server:
        route = "GET /events?topic=t" if name == "Last-Event-ID" else "POST /topics/t"
        event = [b"ce-specversion: 1.0", b"ce-id: 1", b"ce-source: s", b"ce-type: t"] if name.startswith("ce-") else []
        for value in IN_HEADERS[name]:
            others = [one for one in event if not one.startswith(name.encode() + b":")]
            answer = await ask(server, route, *others, name.encode() + b": " + value)
            check_refused(answer, name, name.lower(), name.lower().removeprefix("runnel-header-"), "a header holds")
        assert await server.broker.topics() == []


@pytest.mark.parametrize("header", [b"x: a\x00b", b"x: a\rb", b"x\x00y: a", b"x y: a", b": a", b"\xff: a"])
async def test_what_is_no_header_is_refused_whatever_its_name(header: bytes) -> None:
    async with serving() as server:
        check_refused(await ask(server, "POST /topics/t", header, body=b"x"), "HTTP")
        assert await server.broker.topics() == []


@pytest.mark.parametrize("line", ["GET /topics\x00", "GET /\x0b", "G\x00T /topics", "GET  /topics x"])
async def test_what_is_no_request_line_is_refused(line: str) -> None:
    async with serving() as server:
        check_refused(await ask(server, line), "HTTP", "topics")


async def test_a_head_without_end_is_refused() -> None:
    async with serving() as server:
        check_refused(await ask(server, "GET /topics", b"x: " + b"a" * 100_000), "request line and its headers")
        many = "&".join(f"a{number}" for number in range(MAX_PARAMETERS + 1))
        check_refused(await ask(server, f"GET /topics?{many}"), "parameters")


@pytest.mark.parametrize("header", ["origin", "host"])
async def test_what_a_problem_repeats_of_a_header_is_short_and_in_its_body_alone(header: str) -> None:
    async with serving() as server:
        long = b"http://" + b"a" * 5_000 + b"\xff"
        length = b"content-length: 0"
        lines = [b"POST /topics/t HTTP/1.1", b"connection: close", length, header.encode() + b": " + long]
        answered = await raw(server, b"\r\n".join(lines) + b"\r\n\r\n")
        head, _, body = answered.partition(b"\r\n\r\n")
        assert b"aaaaaaaa" not in head
        assert json.loads(body)["code"] == f"{header}_refused"
        assert len(body) < 1_000


async def test_keys_and_values_may_be_anything_and_come_back_as_data() -> None:
    async with serving() as server:
        forged = b"a\r\nid: 1\r\nevent: end\r\n\r\ndata: x\x00"
        key = b"runnel-key: a%0D%0Aid:%201%0D%0A%0D%0A%00"
        answer = await ask(server, "POST /topics/t", key, body=forged)
        assert (answer.status, answer.headers["location"]) == (201, "/topics/t/records?from=0&limit=1")
        await ask(server, "POST /topics/t", b"runnel-key: %FF%FE", body=b"\xff\r\n")
        browser = Browser(server.listeners[0].url, "topic=t&start=earliest")
        await browser.read(lambda it: len(it.records) == 2)
        first, second = browser.records
        assert (first["value"], first["key"]) == (forged.decode(), "a\r\nid: 1\r\n\r\n\x00")
        assert (second["encoding"], second["key_encoding"]) == ("base64", "base64")
        assert browser.ends == browser.gaps == []


async def test_a_name_that_needs_it_is_encoded_in_every_header() -> None:
    async with serving() as server:
        for name in ("ü.€", "a/b", "a%0D%0Ab", 'a";x=<y', "a?b#c&d"):
            await server.broker.publish(name, b"1")
            await server.broker.publish(name, b"2")
        for coded, name in {
            "%C3%BC.%E2%82%AC": "ü.€",
            "a%2Fb": "a/b",
            "a%250D%250Ab": "a%0D%0Ab",
            "a%22%3Bx%3D%3Cy": 'a";x=<y',
            "a%3Fb%23c%26d": "a?b#c&d",
        }.items():
            answer = await ask(server, f"POST /topics/{coded}", body=b"3")
            assert answer.headers["location"] == f"/topics/{coded}/records?from=2&limit=1"
            for format in ("json", "ndjson"):
                answer = await ask(server, f"GET /topics/{coded}/records?limit=1&format={format}")
                assert answer.headers["link"].startswith(f"</topics/{coded}/records?from=1&limit=1"), answer.headers
                assert answer.headers["link"].endswith('>; rel="next"')
            assert json.loads((await ask(server, f"GET /topics/{coded}/records")).body)["topic"] == name


async def test_a_gap_that_goes_into_a_header_is_one_line_of_ascii() -> None:
    async with serving() as server:
        topic = server.broker.topic("ü€", retention_count=1)
        await topic.declare()
        for number in range(3):
            await topic.publish(b"%d" % number)
        answer = await ask(server, "GET /topics/%C3%BC%E2%82%AC/records?from=0&format=ndjson")
        assert answer.status == 200
        assert json.loads(answer.headers["runnel-gap"])["first"] == 0


def test_an_error_class_tells_of_what_it_was_given_in_one_line() -> None:
    assert "\n" not in str(runnel.InvalidName("a\r\nb", "it holds '\\r'"))

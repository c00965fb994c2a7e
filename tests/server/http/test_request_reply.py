"""Requests over HTTP: one reply, or all that come within a time."""

from typing import Any

import pytest

import runnel
from tests.contract.reading import running, soon
from tests.server.http.browser import web


def untraced(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without the trace that it has from its request."""
    assert reply["headers"].pop("traceparent")
    return reply


async def test_a_request_is_answered_with_the_reply() -> None:
    async with web() as (broker, client):

        @broker.on("rooms.square")
        async def square(record: runnel.Record[bytes]) -> Any:
            assert (record.key, record.headers["unit"]) == (b"k", "cm")
            return b"\xff" if record.value == b"bytes" else {"square": int(record.value) ** 2}

        async with running(broker.run(signals=False)):
            await broker.ready()
            headers = {"Runnel-Key": "k", "Runnel-Header-Unit": "cm"}
            answer = await client.post("/topics/rooms.square/request", content="12", headers=headers)
            assert (answer.status_code, untraced(answer.json())) == (200, {"value": '{"square":144}', "headers": {}})
            answer = await client.post("/topics/rooms%2Esquare/request", content="bytes", headers=headers)
            assert untraced(answer.json()) == {"value": "/w==", "encoding": "base64", "headers": {}}


async def test_all_replies_come_in_one_document() -> None:
    async with web() as (broker, client):
        async with broker.subscribe("ask") as good, broker.subscribe("ask") as bad:
            async with running(client.post("/topics/ask/request?limit=2&timeout=60", content="?")) as asking:
                await broker.reply(await anext(good), "yes", headers={"by": "me"})
                await broker.reply(await anext(bad), "no tea", headers={"runnel-error": "sold_out"})
                answer = await soon(asking)
    found = answer.json()
    assert found | {"replies": [untraced(one) for one in found["replies"]]} == {
        "replies": [{"value": "yes", "headers": {"by": "me"}}],
        "failures": [{"error": "sold_out", "why": "no tea"}],
    }


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ("?timeout=0.01", {}, 504, "request_timeout"),
        ("?timeout=0.010000000000000002", {}, 504, "request_timeout"),
        ("?timeout=1e-05", {}, 504, "request_timeout"),
        ("?timeout=1e999", {}, 400, "invalid_option"),
        ("?timeout=301", {}, 400, "invalid_option"),
        ("?timeout=0", {}, 400, "invalid_option"),
        ("?limit=0", {}, 400, "invalid_option"),
        ("", {"Runnel-Delay": "3"}, 400, "invalid_option"),
        ("", {"Content-Encoding": "gzip"}, 501, "not_supported"),
    ],
)
async def test_a_request_that_cannot_be_answered_says_why(
    query: str, headers: dict[str, str], status: int, code: str
) -> None:
    async with web() as (broker, client), broker.subscribe("ask"):
        answer = await client.post(f"/topics/ask/request{query}", content="?", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_responder_that_fails_and_one_that_is_missing() -> None:
    async with web() as (broker, client):
        answer = await client.post("/topics/ask/request", content="?")
        assert (answer.status_code, answer.json()["code"]) == (503, "no_responders")
        async with broker.subscribe("ask") as questions:
            async with running(client.post("/topics/ask/request", content="?")) as asking:
                await broker.reply(await anext(questions), "no tea", headers={"runnel-error": "sold_out"})
                answer = await soon(asking)
        assert (answer.status_code, answer.json()["code"], answer.json()["error"]) == (
            502,
            "request_failed",
            "sold_out",
        )

"""Lines of the JSON log say which request they are of."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from runnel.cli.process_settings import JsonLogFormatter
from runnel.server.http import history
from tests.patience import PATIENCE
from tests.security.guarded import Tokens, guarded


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a server with JSON logs at the level debug writes."""
    written, root = io.StringIO(), logging.getLogger("runnel")
    handler, level = logging.StreamHandler(written), root.level
    handler.setFormatter(JsonLogFormatter())
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


def logged(lines: io.StringIO, what: str) -> list[dict[str, str]]:
    return [found for one in lines.getvalue().splitlines() if what in (found := json.loads(one))["message"]]


async def test_a_client_chooses_the_id_of_its_request_or_the_server_does(
    tmp_path: Path, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens()
    tokens.add("root", ["publish:>", "create:>", "subscribe:>"], roles=["admin"])
    async with guarded(tmp_path, tokens) as server, asyncio.timeout(PATIENCE):
        bearer = {"authorization": f"Bearer {tokens.texts['root']}"}
        async with httpx.AsyncClient(base_url=server.url("http"), headers=bearer) as client:
            answer = await client.post("/topics/t", content="x", headers={"x-request-id": "order-17"})
            assert (answer.status_code, answer.headers["x-request-id"]) == (201, "order-17")
            for wrong in ('a"b', "a b", "x" * 65, ""):
                answer = await client.get("/topics?ticket=secret", headers={"x-request-id": wrong})
                assert (answer.status_code, "x-request-id" in answer.headers) == (200, False)
            await client.post("/tickets", json={"topics": ["t"]}, headers={"x-request-id": "for-a-ticket"})

            def fail(*_: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(history, "topic_of_request", fail)
            answer = await client.get("/topics/t/records")
            assert answer.status_code == 500
        async with server.client(tokens.texts["root"]) as native:
            await native.delete("t")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("json"))
        writer.write(json.dumps({"command": "AUTH", "token": tokens.texts["root"], "id": "mine"}).encode() + b"\n")
        await reader.readline()
        writer.close()
    assert [one["request"] for one in logged(lines, "POST '/topics/t': 201")] == ["order-17"]
    made = [one["request"] for one in logged(lines, "GET '/topics': 200")]
    assert len(set(made)) == 4
    failed = next(one for one in logged(lines, "the server failed at GET"))
    assert failed["request"] == answer.json()["request"]
    assert "ZeroDivisionError" in failed["error"]
    deleted = logged(lines, '"action":"delete"')[0]["request"]
    connection, call = deleted.split("-")
    assert connection.isdigit()
    assert call.isdigit()
    logins = [json.loads(one["message"]) for one in logged(lines, '"listener":"json"')]
    assert [one["request"].partition("-")[2] for one in logins] == ["mine"]
    assert "secret" not in lines.getvalue()
    assert tokens.texts["root"] not in lines.getvalue()

"""Every JSON block of a page is what a real server answers, or takes: the same fields with the same values.

Times, epochs and what follows from them differ from run to run; of those only the kind is compared.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import nats
import pytest

import runnel
from runnel.server import Server, ServerOptions
from tests.docs.shell import blocks_of, parsed_json
from tests.patience import PATIENCE
from tests.project.project import ROOT

BLOCKS = {
    (page.stem, number): parsed_json(block.text)[0]
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for number, block in enumerate(one for one in blocks_of(page.read_text(encoding="utf-8")) if one.language == "json")
}
OF_A_RUN = {"epoch", "sequence", "time", "position"}


def compare(shown: Any, found: Any, field: str = "") -> None:
    """What the page shows is what was found."""
    assert type(shown) is type(found), field
    if isinstance(shown, dict):
        assert [*shown] == [*found], field
        for name, value in shown.items():
            compare(value, found[name], name)
    elif isinstance(shown, list):
        assert len(shown) == len(found), field
        for one, other in zip(shown, found, strict=True):
            compare(one, other, field)
    elif field not in OF_A_RUN:
        assert shown == found, field


class Running(NamedTuple):
    """A broker with a server, its client over HTTP, and its listeners."""

    broker: runnel.Broker
    http: httpx.AsyncClient
    ports: dict[str, int]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    options = ServerOptions(port=0, json_port=None, http_port=0, nats_port=0)
    async with runnel.open(tmp_path / "data") as broker, Server(broker, options) as server:
        ports = {one.name: one.port for one in server.listeners}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports['http']}", timeout=PATIENCE) as client:
            yield Running(broker, client, ports)


async def publish(running: Running, values: list[str]) -> None:
    for value in values:
        await running.broker.publish("orders", value, key="42", headers={"shop": "eu"})


async def page_of_history(running: Running) -> Any:
    await publish(running, ["hello"] * 4)
    return (await running.http.get("/topics/orders/records?limit=1")).json()


async def dead_letters(running: Running) -> Any:
    broker = running.broker
    await publish(running, ["hello"])

    @broker.on("orders", group="billing", retries=2, backoff=[0])
    async def bill(value: bytes) -> None:
        raise ValueError("the card was declined")

    working = asyncio.create_task(broker.run(signals=False))
    async with asyncio.timeout(PATIENCE), broker.subscribe("dead-letters.billing", start="earliest") as letters:
        await anext(letters)
    broker.stop()
    await working
    found = (await running.http.get("/dead-letters/dead-letters.billing")).json()
    for letter in found["letters"]:
        letter["headers"].pop("traceparent", None)  # handlers have a span where OpenTelemetry is loaded
    return found


async def settled(running: Running) -> Any:
    """The page shows the body of the request: sent as it is, with the epoch of this run."""
    found = await dead_letters(running)
    body = BLOCKS["http", 2] | {"epoch": found["epoch"]}
    done = await running.http.post("/dead-letters/dead-letters.billing/discard", json=body)
    assert done.json() == {"topic": "dead-letters.billing", "discarded": 1}
    return body


async def problem(running: Running) -> Any:
    return (await running.http.get("/topics/orders/records")).json()


async def nats_reply(running: Running) -> Any:
    await publish(running, ["hello"] * 42)
    client = await nats.connect(f"nats://127.0.0.1:{running.ports['nats']}")
    try:
        return json.loads((await client.request("orders", b"hello", timeout=PATIENCE)).data)
    finally:
        await client.close()


async def line_of_a_record(running: Running) -> Any:
    await running.broker.publish("orders", "paid", key="42")
    command = ["sub", "orders", "--from", "earliest", "--count", "1", "--json"]
    server = f"runnel://127.0.0.1:{running.ports['native']}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "runnel", *command, "--server", server), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return json.loads(said)


ANSWERS: dict[tuple[str, int], Callable[[Running], Any]] = {
    ("command-line", 0): line_of_a_record,
    ("http", 0): page_of_history,
    ("http", 1): dead_letters,
    ("http", 2): settled,
    ("http", 3): problem,
    ("nats", 0): nats_reply,
}


def test_every_json_block_is_compared() -> None:
    assert BLOCKS.keys() == ANSWERS.keys()


@pytest.mark.parametrize("block", ANSWERS, ids=lambda one: f"{one[0]}-{one[1]}")
async def test_a_server_answers_what_the_page_shows(block: tuple[str, int], running: Running) -> None:
    compare(BLOCKS[block], await ANSWERS[block](running))

"""Rules at a server: what authentication costs.

How much processor time of a server does a record take with rules that are checked, against the same server without
authentication: lists of 100 records, single awaited publishes of 64 tasks, a subscriber of what is published, JSON
lines, and requests over HTTP?
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.disk import PER_SECOND
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.processes import free_port, listening

if TYPE_CHECKING:
    from runnel.api.broker import Broker

CPU = "µs of the server a record"
OFF, ON = "without authentication", "with rules"
LISTS, SINGLES, READ = "lists of 100", "64 tasks, one by one", "lists of 100, and a subscriber"
LINES, REQUESTS = "JSON lines, 500 under way", "HTTP, 16 connections"
LIST = 100
TOPICS = 20  # published to in turn: each is one decision that is kept


def question(*, quick: bool = False, folder: Path, records: int = 3_000_000) -> Question:
    """Each load without and with rules."""
    if quick:
        records //= 20
    loads = {
        LISTS: (records, _lists),
        SINGLES: (records // 30, _singles),
        READ: (records // 2, _read),
        LINES: (records // 30, _lines),
        REQUESTS: (records // 200, _requests),
    }
    calls = {
        LISTS: "await topic.publish_many(100)",
        SINGLES: "await topic.publish(v)",
        READ: "subscription.batches()",
        LINES: '{"command": "PUB", …}',
        REQUESTS: "POST /topics/{topic}",
    }
    return Question(
        name="security",
        text=asked(__doc__),
        ranked=CPU,
        contenders=[
            Contender(
                f"{name}, {league}",
                partial(_measure, load, count, guarded=name == ON),
                calls[league],
                league,
                peer=name == OFF,
                needs=("runnel",),
            )
            for league, (count, load) in loads.items()
            for name in (OFF, ON)
        ],
        aims=[Aim(f"{ON}, {league}", CPU, times_best_peer=0.97, peer=f"{OFF}, {league}") for league in loads],
        notes=[
            "a server in memory and a client, a process each; values of 100 B, to 20 topics in turn, crc on",
            "processor time of the server's process; the two of a league take turns",
            "with rules: a token with five rules, of which the last fits; decisions are kept for each connection",
        ],
    )


async def _measure(load, count: int, *, guarded: bool) -> Figures:  # type: ignore[no-untyped-def]
    import runnel

    with tempfile.TemporaryDirectory() as made:
        async with _server(Path(made), guarded=guarded) as (process, ports, token):
            async with runnel.open(f"runnel://127.0.0.1:{ports['port']}", token=token) as client:
                found = Place(client, ports, token)
                await load(found, count // 10)  # topics, caches
                before, begun = _spent(process.pid), time.perf_counter()
                await load(found, count)
                seconds = time.perf_counter() - begun
                return {CPU: (_spent(process.pid) - before) / count * 1e6, PER_SECOND: count / seconds}


class Place(NamedTuple):
    """A client, and where the other listeners are."""

    client: Broker
    ports: dict[str, int]
    token: str | None


@asynccontextmanager
async def _server(
    folder: Path, *, guarded: bool
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, int], str | None]]:
    ports = {name: free_port() for name in ("port", "json-port", "http-port")}
    token, auth = None, []
    if guarded:
        from runnel.security.tokens import TokenTable, make_token
        from runnel.server.access.files import AuthFiles, random_bytes

        file = folder / "auth.toml"
        file.write_text("")
        rules = [f"{action}:{topic}" for action in ("publish", "subscribe") for topic in ("a.*", "b.*.c", "d", "e.>")]
        rules += ["publish:orders.>", "create:orders.>", "subscribe:orders.>"]
        token, stored = make_token("bench", random_bytes(), allow=rules)
        AuthFiles(file).write_tokens(TokenTable([stored]))
        auth = ["--auth", str(file)]
    command = [sys.executable, "-m", "runnel", "serve", "--memory", "--log-level", "error", *auth]
    command += [f"--{name}={port}" for name, port in ports.items()]
    async with listening(command, ports["http-port"]) as process:
        yield process, ports, token


async def _lists(place: Place, count: int) -> None:
    client = place.client
    values = [os.urandom(100) for _ in range(LIST)]
    topics = [client.topic(f"orders.{number}") for number in range(TOPICS)]

    async def publish(first: int) -> None:
        for at in range(first, count // LIST, 8):
            await topics[at % TOPICS].publish_many(values)

    await asyncio.gather(*(publish(first) for first in range(8)))


async def _singles(place: Place, count: int) -> None:
    client = place.client
    value = os.urandom(100)
    topics = [client.topic(f"orders.{number}") for number in range(TOPICS)]

    async def publish(first: int) -> None:
        for at in range(first, count, 64):
            await topics[at % TOPICS].publish(value)

    await asyncio.gather(*(publish(first) for first in range(64)))


async def _read(place: Place, count: int) -> None:
    got, wanted = 0, count // LIST * LIST
    async with place.client.subscribe("orders.>", policy="block", buffer=65_536) as records:
        publishing = asyncio.ensure_future(_lists(place, count))
        async for batch in records.batches():
            got += len(batch)
            if got >= wanted:
                break
        await publishing


async def _lines(place: Place, count: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", place.ports["json-port"])
    if place.token is not None:
        writer.write(json.dumps({"command": "AUTH", "token": place.token}).encode() + b"\n")
        await reader.readline()
    said = [{"command": "PUB", "topic": f"orders.{number}", "payload": "x" * 100} for number in range(TOPICS)]
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in said) * 25  # 500
    for _ in range(count // 500):
        writer.write(lines)
        for _ in range(500):
            assert b"published" in await reader.readline()
    writer.close()


async def _requests(place: Place, count: int) -> None:
    login = "" if place.token is None else f"Authorization: Bearer {place.token}\r\n"

    async def publish(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.ports["http-port"])
        for at in range(first, count, 16):
            head = (
                f"POST /topics/orders.{at % TOPICS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n{login}\r\n"
            )
            writer.write(head.encode() + bytes(100))
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 201")
            length = next(one for one in answer.lower().split(b"\r\n") if one.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()

    await asyncio.gather(*(publish(first) for first in range(16)))


def _spent(pid: int) -> float:
    """Seconds of processor time of a process so far, of all of its threads."""
    spent = (task / "schedstat" for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int(one.read_text().split()[0]) for one in spent) / 1e9

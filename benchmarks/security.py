"""Rules at a server: what authentication costs.

How much processor time of a server does a record take with rules that are checked, against the same server without
authentication: lists of 100 records, single awaited publishes of 64 tasks, and a subscriber of what is published?
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.disk import PER_SECOND
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.processes import free_port, listening

CPU = "µs of the server a record"
OFF, ON = "without authentication", "with rules"
LISTS, SINGLES, READ = "lists of 100", "64 tasks, one by one", "lists of 100, and a subscriber"
LIST = 100
TOPICS = 20  # published to in turn: each is one decision that is kept


def question(*, quick: bool = False, folder: Path, records: int = 3_000_000) -> Question:
    """Each load without and with rules."""
    if quick:
        records //= 20
    loads = {LISTS: (records, _lists), SINGLES: (records // 30, _singles), READ: (records // 2, _read)}
    calls = {LISTS: "await topic.publish_many(100)", SINGLES: "await topic.publish(v)", READ: "subscription.batches()"}
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
        async with _server(Path(made), guarded=guarded) as (process, url, token):
            async with runnel.open(url, token=token) as client:
                await load(client, count // 10)  # topics, caches
                before, begun = _spent(process.pid), time.perf_counter()
                await load(client, count)
                seconds = time.perf_counter() - begun
                return {CPU: (_spent(process.pid) - before) / count * 1e6, PER_SECOND: count / seconds}


@asynccontextmanager
async def _server(folder: Path, *, guarded: bool) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, str | None]]:
    port, token, auth = free_port(), None, []
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
    command = [sys.executable, "-m", "runnel", "serve", "--memory", "--port", str(port), "--json-port", "off"]
    async with listening([*command, "--http-port", "off", "--log-level", "error", *auth], port) as process:
        yield process, f"runnel://127.0.0.1:{port}", token


async def _lists(client, count: int) -> None:  # type: ignore[no-untyped-def]
    values = [os.urandom(100) for _ in range(LIST)]
    topics = [client.topic(f"orders.{number}") for number in range(TOPICS)]

    async def publish(first: int) -> None:
        for at in range(first, count // LIST, 8):
            await topics[at % TOPICS].publish_many(values)

    await asyncio.gather(*(publish(first) for first in range(8)))


async def _singles(client, count: int) -> None:  # type: ignore[no-untyped-def]
    value = os.urandom(100)
    topics = [client.topic(f"orders.{number}") for number in range(TOPICS)]

    async def publish(first: int) -> None:
        for at in range(first, count, 64):
            await topics[at % TOPICS].publish(value)

    await asyncio.gather(*(publish(first) for first in range(64)))


async def _read(client, count: int) -> None:  # type: ignore[no-untyped-def]
    got, wanted = 0, count // LIST * LIST
    async with client.subscribe("orders.>", policy="block", buffer=65_536) as records:
        publishing = asyncio.ensure_future(_lists(client, count))
        async for batch in records.batches():
            got += len(batch)
            if got >= wanted:
                break
        await publishing


def _spent(pid: int) -> float:
    """Seconds of processor time of a process so far, of all of its threads."""
    spent = (task / "schedstat" for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int(one.read_text().split()[0]) for one in spent) / 1e9

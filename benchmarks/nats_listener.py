"""The NATS listener of a server, and a real nats-server, with the same clients.

What does a message cost through `runnel serve --nats-port` and through nats-server, with nats-py at both ends: from one
client to another, as a request with its reply, and published to disk with a reply that says so? And how long does one
take at 1,000 a second?
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.disk import PER_SECOND, bare_fsync, where
from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.processes import free_port, listening
from tests.cluster.nodes import Node

COST = "µs a message"
P50, P99 = "p50, µs", "p99, µs"
RUNNEL, PEER = "runnel", "nats-server"
THROUGH, LATE, REQUEST = "1 → 1", "latency at 1,000/s", "request, one at a time"
ALONE, TOGETHER = "durable with a reply, 1 task", "durable with a reply, 64 tasks"
VALUE = b"x" * 100
FSYNCS = 100

Load = Callable[[Any, Any, float], Awaitable[Figures]]


def question(*, quick: bool = False, folder: Path, seconds: float = 2.0) -> Question:
    """Each load, through both servers in turn."""
    seconds = 0.3 if quick else seconds
    loads: dict[str, tuple[Load, str]] = {
        THROUGH: (_one_to_one, "await nc.publish(s, v)"),
        LATE: (_latency, "await nc.publish(s, v)"),
        REQUEST: (_request, "await nc.request(s, v)"),
        ALONE: (partial(_durable, 1), "await nc.request(s, v)"),
        TOGETHER: (partial(_durable, 64), "await nc.request(s, v)"),
    }
    return Question(
        name="nats_listener",
        text=asked(__doc__),
        ranked=COST,
        contenders=[
            Contender(
                f"{name}, {league}",
                partial(_measured, server, load, folder, seconds),
                call,
                league,
                peer=name == PEER,
                needs=("nats",),
                programs=("nats-server",),
            )
            for league, (load, call) in loads.items()
            for name, server in ((RUNNEL, _runnel), (PEER, _nats_server))
        ],
        aims=[
            Aim(f"{RUNNEL}, {THROUGH}", COST, times_best_peer=1 / 3, peer=f"{PEER}, {THROUGH}"),
            Aim(f"{RUNNEL}, {LATE}", P50, times_best_peer=1 / 3, peer=f"{PEER}, {LATE}"),
            *(
                Aim(f"{RUNNEL}, {league}", COST, times_best_peer=2, peer=f"{PEER}, {league}")
                for league in (ALONE, TOGETHER)
            ),
        ],
        notes=[
            where(folder),
            "a server in its own process, new for each measurement; two connections of nats-py in one process; 100 B",
            'durable: runnel with `fsync="commit"`, JetStream with `sync_interval: always`; a reply means synced',
        ],
    )


async def _measured(server: Callable[[Path], Any], load: Load, folder: Path, seconds: float) -> Figures:
    import nats

    with tempfile.TemporaryDirectory(dir=folder) as made:
        async with server(Path(made)) as url:
            sender, receiver = await nats.connect(url), await nats.connect(url)
            try:
                return {**await load(sender, receiver, seconds), **bare_fsync(folder, FSYNCS)}
            finally:
                await sender.close()
                await receiver.close()


@asynccontextmanager
async def _runnel(folder: Path) -> AsyncIterator[str]:
    """`runnel serve` on a folder that has the durable topic `orders`."""
    import runnel

    async with runnel.open(folder / "data") as broker:
        await broker.topic("orders").declare()
    port = free_port()
    command = [sys.executable, "-m", "runnel", "serve", "--data", str(folder / "data"), "--nats-port", str(port)]
    async with listening([*command, "--port", "0", "--json-port", "off", "--http-port", "off"], port):
        yield f"nats://127.0.0.1:{port}"


@asynccontextmanager
async def _nats_server(folder: Path) -> AsyncIterator[str]:
    """nats-server with a stream of the subject `orders`."""
    import nats
    from nats.js.api import StreamConfig

    node = Node("single", folder / "nats", sync="always")
    node.start()
    try:
        await asyncio.to_thread(node.ready)
        client = await nats.connect(node.url)
        await client.jetstream().add_stream(StreamConfig(name="ORDERS", subjects=["orders"]))
        await client.close()
        yield node.url
    finally:
        await asyncio.to_thread(node.stop)


async def _flushed(client: Any) -> None:
    """The server has handled what the client said. nats-py sends the PING of a flush before what it has gathered."""
    await client.flush()
    await client.flush()


def _cost(count: int, seconds: float) -> Figures:
    return {COST: seconds / count * 1e6, PER_SECOND: count / seconds}


async def _one_to_one(sender: Any, receiver: Any, seconds: float) -> Figures:
    """From one client to another, until the last message is received."""
    seen, wanted, done = 0, int(25_000 * seconds), asyncio.Event()

    async def count(_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == wanted:
            done.set()

    await receiver.subscribe("bench", cb=count, pending_msgs_limit=0, pending_bytes_limit=0)
    await _flushed(receiver)
    began = time.perf_counter()
    for _ in range(wanted):
        await sender.publish("bench", VALUE)
    await _flushed(sender)
    await asyncio.wait_for(done.wait(), 60)
    return _cost(wanted, time.perf_counter() - began)


async def _latency(sender: Any, receiver: Any, seconds: float) -> Figures:
    """From publish to receipt, at 1,000 a second."""
    delays: list[float] = []

    async def note(message: Any) -> None:
        delays.append(time.perf_counter() - float(message.data))

    await receiver.subscribe("late", cb=note)
    await _flushed(receiver)
    began = time.perf_counter()
    for number in range(int(1000 * seconds)):
        await asyncio.sleep(max(0.0, began + number / 1000 - time.perf_counter()))
        await sender.publish("late", b"%.9f" % time.perf_counter())
    await _flushed(sender)
    await _flushed(receiver)
    points = quantiles(delays, n=100)
    return {P50: points[49] * 1e6, P99: points[98] * 1e6}


async def _request(sender: Any, receiver: Any, seconds: float) -> Figures:
    """Requests one at a time, that the other client answers."""

    async def answer(request: Any) -> None:
        await request.respond(request.data)

    await receiver.subscribe("service", cb=answer)
    await _flushed(receiver)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        await sender.request("service", VALUE, timeout=30)
        count += 1
    return _cost(count, time.perf_counter() - began)


async def _durable(tasks: int, sender: Any, receiver: Any, seconds: float) -> Figures:
    """Publishes whose reply says that they are on disk, by so many tasks."""
    began, count = time.perf_counter(), 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() - began < seconds:
            answer = json.loads((await sender.request("orders", VALUE, timeout=30)).data)
            assert "error" not in answer, answer
            count += 1

    await asyncio.gather(*(work() for _ in range(tasks)))
    return _cost(count, time.perf_counter() - began)

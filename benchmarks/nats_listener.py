"""Measure the NATS listener beside a real nats-server, in one run, with the same clients.

Both servers on loopback, each in a process of its own; nats-py at both ends, in one process. Values of 100 bytes.
1 -> 1: one client publishes, another receives, as fast as it goes. Latency: publish to receipt at 1,000 a second.
Request: one at a time. Durable: publishes with a reply to a stream or topic on disk, awaited by 64 tasks, and by one;
nats-server with `sync_interval: always`, runnel with `fsync=commit`. The two take turns; each figure is the median.

`python -m benchmarks.nats_listener [ROUNDS]`
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import nats
from nats.aio.client import Client
from nats.js.api import StreamConfig

from tests.cluster.nodes import Node

MESSAGES = 50_000
REQUESTS = 1_000
SECONDS = 2.0
TASKS = 64
VALUE = b"x" * 100


@contextmanager
def runnel_server(folder: Path) -> Iterator[str]:
    """`runnel serve` on a new folder; where its NATS listener is."""
    command = [sys.executable, "-m", "runnel", "serve", "--data", str(folder), "--port", "0", "--json-port", "off"]
    command += ["--http-port", "off", "--nats-port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        doors = json.loads(process.stdout.readline())["doors"]
        try:
            yield next(one["url"] for one in doors if one["name"] == "nats")
        finally:
            process.terminate()


async def one_to_one(sender: Client, receiver: Client) -> float:
    """Messages a second, until the last is received."""
    seen, done = 0, asyncio.Event()

    async def count(_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == MESSAGES:
            done.set()

    subscription = await receiver.subscribe("bench", cb=count, pending_msgs_limit=0, pending_bytes_limit=0)
    await receiver.flush()
    began = time.perf_counter()
    for _ in range(MESSAGES):
        await sender.publish("bench", VALUE)
    await sender.flush()
    await asyncio.wait_for(done.wait(), 60)
    took = time.perf_counter() - began
    await subscription.unsubscribe()
    return MESSAGES / took


async def latencies(sender: Client, receiver: Client) -> list[float]:
    """Seconds from publish to receipt, at 1,000 a second."""
    delays: list[float] = []

    async def note(message: Any) -> None:
        delays.append(time.perf_counter() - float(message.data))

    subscription = await receiver.subscribe("late", cb=note)
    await receiver.flush()
    began = time.perf_counter()
    for number in range(int(1000 * SECONDS)):
        await asyncio.sleep(max(0.0, began + number / 1000 - time.perf_counter()))
        await sender.publish("late", b"%.9f" % time.perf_counter())
    await sender.flush()
    await receiver.flush()
    await subscription.unsubscribe()
    return delays


async def request_time(sender: Client, receiver: Client) -> float:
    """Seconds that a request takes."""

    async def answer(request: Any) -> None:
        await request.respond(request.data)

    subscription = await receiver.subscribe("service", cb=answer)
    await receiver.flush()
    began = time.perf_counter()
    for _ in range(REQUESTS):
        await sender.request("service", VALUE, timeout=30)
    took = time.perf_counter() - began
    await subscription.unsubscribe()
    return took / REQUESTS


async def rate(publish: Callable[[], Awaitable[Any]], tasks: int) -> float:
    """Publishes a second, by so many tasks."""
    end, count = time.perf_counter() + SECONDS, 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await publish()
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return count / (time.perf_counter() - began)


async def figures(url: str) -> dict[str, float]:
    """All figures of one server, once."""
    sender, receiver = await nats.connect(url), await nats.connect(url)
    found = {"1 -> 1, messages/s": await one_to_one(sender, receiver)}
    points = quantiles(await latencies(sender, receiver), n=100)
    found |= {"latency p50, us": points[49] * 1e6, "latency p99, us": points[98] * 1e6}
    found["request, us"] = await request_time(sender, receiver) * 1e6

    async def publish() -> None:
        answer = json.loads((await sender.request("orders", VALUE, timeout=30)).data)
        assert "error" not in answer, answer

    found["durable with a reply, 1 task, /s"] = await rate(publish, 1)
    found[f"durable with a reply, {TASKS} tasks, /s"] = await rate(publish, TASKS)
    await sender.close()
    await receiver.close()
    return found


async def prepare(url: str, *, jetstream: bool) -> None:
    """The subject `orders` is on disk."""
    client = await nats.connect(url)
    if jetstream:
        await client.jetstream().add_stream(StreamConfig(name="ORDERS", subjects=["orders"]))
    await client.close()


async def run(rounds: int) -> None:
    """Both, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        node = Node("single", Path(folder) / "nats", sync="always")
        node.start()
        node.ready()
        try:
            await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "runnel", "pub", "orders", "first", "--data", str(Path(folder) / "runnel")],
                check=True,
                capture_output=True,
            )
            with runnel_server(Path(folder) / "runnel") as url:
                await prepare(node.url, jetstream=True)
                urls, all_found = {"runnel": url, "nats-server": node.url}, dict[str, list[dict[str, float]]]()
                for _ in range(rounds):
                    for name, where in urls.items():
                        all_found.setdefault(name, []).append(await figures(where))
        finally:
            node.stop()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {rounds} rounds")
    for what in all_found["runnel"][0]:
        ours, theirs = (median(one[what] for one in all_found[name]) for name in urls)
        print(f"{what:<36} runnel {ours:>10,.0f}   nats-server {theirs:>10,.0f}   ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else 3))

"""Measure runnel on a NATS cluster beside nats-py on the same cluster, in one run.

Three nats-servers on loopback, R3, `sync_interval: always`. Values of 100 random bytes. Awaited: one task. Pipelined:
256 tasks that await each publish; with `publish_nowait` none does, and all is stored at the end. Reading: ten readers
of one stored topic, batches in runnel, messages in nats-py, which has one message for each record. Group: one member
that acks each record. Latency: publish to receipt at 1,000 a second.

`python -m benchmarks.cluster [SECONDS]`
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

import runnel
from runnel.cluster.layout import UNIT, unit_header
from runnel.core.batch_format import pack
from tests.cluster.nodes import Nodes

READERS = 10
TASKS = 256


async def rate(publish: Callable[[], Awaitable[Any]], tasks: int, seconds: float) -> float:
    """Publishes a second, by so many tasks."""
    end, count = time.perf_counter() + seconds, 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await publish()
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return count / (time.perf_counter() - began)


async def paced(publish: Callable[[bytes], Awaitable[Any]], seconds: float) -> None:
    """Publish the time, 1,000 times a second."""
    began, sent = time.perf_counter(), set()
    for number in range(int(1000 * seconds)):
        await asyncio.sleep(max(0.0, began + number / 1000 - time.perf_counter()))
        sent.add(asyncio.ensure_future(publish(str(time.perf_counter()).encode())))
    await asyncio.gather(*sent)


def shown(delays: list[float]) -> str:
    """Median and 99th percentile."""
    points = quantiles(delays, n=100)
    return f"p50 {points[49] * 1e6:,.0f} us, p99 {points[98] * 1e6:,.0f} us"


async def of_runnel(nodes: Nodes, seconds: float) -> dict[str, Any]:
    """The figures of runnel."""
    found: dict[str, Any] = {}
    value = os.urandom(100)
    async with runnel.open(nodes.url, monitor=nodes.nodes[0].monitor) as broker:
        topic = broker.topic("bench")
        found["publish, awaited"] = await rate(lambda: topic.publish(value), 1, seconds)
        found["publish, pipelined"] = await rate(lambda: topic.publish(value), TASKS, seconds)
        found["publish_nowait"] = await unwaited(broker, topic, value, seconds)
        many = [os.urandom(100) for _ in range(1000)]
        found["publish, packs of 1,000"] = 1000 * await rate(lambda: topic.publish_many(many), 1, seconds)
        count = int(found["publish, packs of 1,000"] * seconds) // 2

        async def read() -> int:
            seen = 0
            async with topic.subscribe(start="earliest") as records:
                async for batch in records.batches():
                    seen += len(batch.values)
                    if seen >= count:
                        return seen
            return seen

        began = time.perf_counter()
        total = sum(await asyncio.gather(*(read() for _ in range(READERS))))
        found["read, 1 to 10"] = total / (time.perf_counter() - began)
        single = broker.topic("single")
        unpacked = 20_000
        for _ in range(unpacked // 1000):  # one record in each message: a topic each, so that nothing is packed
            await asyncio.gather(*(broker.backend.js.store(*_alone(broker, value)) for _ in range(1000)))
        began, seen = time.perf_counter(), 0
        async with single.subscribe(start="earliest") as records:
            async for batch in records.batches():
                seen += len(batch)
                if seen >= unpacked:
                    break
        found["read, unpacked"] = seen / (time.perf_counter() - began)
        began, seen = time.perf_counter(), 0
        async with topic.subscribe(group="bench", prefetch=1000) as deliveries:
            async for delivery in deliveries:
                await delivery.ack()
                seen += 1
                if time.perf_counter() - began > seconds:
                    break
        found["group with acks"] = seen / (time.perf_counter() - began)
        delays: list[float] = []
        late = broker.topic("late")
        async with late.subscribe() as records:
            task = asyncio.ensure_future(paced(late.publish, seconds))
            async for record in records:
                delays.append(time.perf_counter() - float(record.value))
                if len(delays) == int(1000 * seconds):
                    break
            await task
        found["latency at 1,000/s"] = shown(delays)
    return found


async def unwaited(broker: Any, topic: Any, value: bytes, seconds: float) -> float:
    """Records a second that are published without waiting, 2,000 at a time, and all stored at the end."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(2000):
            topic.publish_nowait(value)
        count += 2000
        await asyncio.sleep(0)
        if broker.backend.publishing.bytes > 4 << 20:
            await broker.backend.publishing.idle()
    await broker.backend.flushed()
    return count / (time.perf_counter() - began)


def _alone(broker: Any, value: bytes) -> tuple[str, bytes, dict[str, str]]:
    """A message with one record."""
    return broker.backend.js.subjects.records(0, "single"), pack([value]), {UNIT: unit_header(1, 0, 1, 1, 1)}


async def of_nats(nodes: Nodes, seconds: float) -> dict[str, Any]:
    """The figures of nats-py."""
    found: dict[str, Any] = {}
    value = os.urandom(100)
    client = await nats.connect(nodes.url.split(",")[0])
    js = client.jetstream()
    await js.add_stream(StreamConfig(name="PEER", subjects=["peer.>"], num_replicas=3))
    found["publish, awaited"] = await rate(lambda: js.publish("peer.a", value), 1, seconds)
    found["publish, pipelined"] = await rate(lambda: js.publish("peer.a", value), TASKS, seconds)
    count = min(20_000, int((await js.stream_info("PEER")).state.messages))

    async def read() -> int:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        pulled = await js.pull_subscribe("peer.a", config=config)
        seen = 0
        while seen < count:
            seen += len(await pulled.fetch(500, timeout=10))
        return seen

    began = time.perf_counter()
    seen = await read()
    found["read, unpacked"] = seen / (time.perf_counter() - began)
    began = time.perf_counter()
    total = sum(await asyncio.gather(*(read() for _ in range(READERS))))
    found["read, 1 to 10"] = total / (time.perf_counter() - began)
    pulled = await js.pull_subscribe("peer.a", "work")
    began, seen = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for message in await pulled.fetch(500, timeout=10):
            await message.ack()
            seen += 1
    found["group with acks"] = seen / (time.perf_counter() - began)
    delays: list[float] = []
    done = asyncio.get_running_loop().create_future()

    async def arrived(message: Any) -> None:
        delays.append(time.perf_counter() - float(message.data))
        if len(delays) == int(1000 * seconds):
            done.set_result(None)

    await js.subscribe("peer.b", cb=arrived, ordered_consumer=True)
    await paced(lambda data: js.publish("peer.b", data), seconds)
    await asyncio.wait_for(done, 30)
    found["latency at 1,000/s"] = shown(delays)
    await client.close()
    return found


def main() -> int:
    """Measure both, and print a table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    with tempfile.TemporaryDirectory(prefix="runnel-bench-") as folder:
        nodes = Nodes(Path(folder)).start()
        try:
            ours = asyncio.run(of_runnel(nodes, seconds))
            peers = asyncio.run(of_nats(nodes, seconds))
        finally:
            nodes.stop()
    for what, figure in ours.items():
        peer = peers.get("publish, pipelined" if what in ("publish_nowait", "publish, packs of 1,000") else what)
        if isinstance(figure, str):
            sys.stdout.write(f"{what:<26} {figure}   nats-py: {peer}\n")
        else:
            times = "" if peer is None else f"   nats-py {peer:>12,.0f}   {figure / peer:.1f} x"
            sys.stdout.write(f"{what:<26} {figure:>12,.0f}/s{times}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

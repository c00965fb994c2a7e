"""A NATS JetStream cluster, through runnel and through nats-py.

What does a record cost in a replicated cluster of three nats-servers: published awaited, by many tasks, in lists and
without waiting; read by ten readers, and one message for each record; in a group with acks; and how long does one take
from publish to receipt at 1,000 a second?
"""

from __future__ import annotations

import asyncio
import os
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
from tests.cluster.nodes import Nodes

COST = "µs a record"
P50, P99 = "p50, µs", "p99, µs"
RUNNEL, PEER = "runnel", "nats-py"
ONE, MANY, LISTS, UNAWAITED = "awaited, 1 task", "awaited, 256 tasks", "lists of 1,000", "not awaited"
TEN, SINGLE, GROUP, LATE = "read, 1 → 10", "read, a message a record", "group with acks", "latency at 1,000/s"
READERS = 10
TASKS = 256
LIST = 1_000
PENDING = 4 << 20  # bytes that are published and not stored, at most, where nothing is awaited
FETCH = 500
FSYNCS = 100

Load = Callable[[Nodes, float], Awaitable[Figures]]


def question(*, quick: bool = False, folder: Path, seconds: float = 2.0) -> Question:
    """Both, on a cluster of its own for each measurement."""
    seconds = 0.5 if quick else seconds
    calls: dict[str, tuple[tuple[Load, str], tuple[Load, str]]] = {
        ONE: ((_runnel_tasks(1), "await topic.publish(v)"), (_peer_tasks(1), "await js.publish(t, v)")),
        MANY: ((_runnel_tasks(TASKS), "await topic.publish(v)"), (_peer_tasks(TASKS), "await js.publish(t, v)")),
        LISTS: ((_runnel_lists, "await topic.publish_many(1,000)"), (_peer_unawaited, "await js.publish_async(t, v)")),
        UNAWAITED: ((_runnel_unawaited, "topic.publish_nowait(v)"), (_peer_unawaited, "await js.publish_async(t, v)")),
        TEN: ((_runnel_read_by_ten, "subscription.batches()"), (_peer_read_by_ten, "await pulled.fetch(500)")),
        SINGLE: ((_runnel_read_single, "subscription.batches()"), (_peer_read_single, "await pulled.fetch(500)")),
        GROUP: ((_runnel_group, "await delivery.ack()"), (_peer_group, "await message.ack()")),
        LATE: ((_runnel_latency, "async for record in subscription"), (_peer_latency, "js.subscribe(cb=…)")),
    }
    return Question(
        name="cluster",
        text=asked(__doc__),
        ranked=COST,
        contenders=[
            Contender(
                f"{name}, {league}",
                partial(_measured, load, folder, seconds),
                call,
                league,
                peer=name == PEER,
                needs=("nats",),
                programs=("nats-server",),
            )
            for league, both in calls.items()
            for name, (load, call) in zip((RUNNEL, PEER), both, strict=True)
        ],
        aims=[
            *(
                Aim(f"{RUNNEL}, {league}", COST, times_best_peer=10, peer=f"{PEER}, {league}")
                for league in (ONE, MANY, LISTS, TEN, GROUP)
            ),
            Aim(f"{RUNNEL}, {SINGLE}", COST, times_best_peer=5, peer=f"{PEER}, {SINGLE}"),
            Aim(f"{RUNNEL}, {LATE}", P50, times_best_peer=1 / 1.3, peer=f"{PEER}, {LATE}"),
        ],
        notes=[
            where(folder),
            "three nats-servers on loopback, R3, `sync_interval: always`, new for each measurement; 100 random B each",
            "ten readers read what is stored: batches in runnel, fetches of 500 messages in nats-py",
            "a group: one member that takes 1,000 records ahead and acks each; nats-py has one message for each record",
        ],
    )


async def _measured(load: Load, folder: Path, seconds: float) -> Figures:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        nodes = await asyncio.to_thread(Nodes(Path(made)).start)
        try:
            return {**await load(nodes, seconds), **bare_fsync(folder, FSYNCS)}
        finally:
            await asyncio.to_thread(nodes.stop)


def _cost(count: int, seconds: float) -> Figures:
    return {COST: seconds / count * 1e6, PER_SECOND: count / seconds}


async def _published(publish: Callable[[], Awaitable[Any]], tasks: int, seconds: float, records: int = 1) -> Figures:
    """What a record costs that so many tasks publish, one after the other each."""
    await publish()  # the topic, caches
    began, count = time.perf_counter(), 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() - began < seconds:
            await publish()
            count += records

    await asyncio.gather(*(work() for _ in range(tasks)))
    return _cost(count, time.perf_counter() - began)


async def _paced(publish: Callable[[bytes], Awaitable[Any]], seconds: float) -> None:
    """Publish the time, 1,000 times a second."""
    began, sent = time.perf_counter(), set()
    for number in range(int(1000 * seconds)):
        await asyncio.sleep(max(0.0, began + number / 1000 - time.perf_counter()))
        sent.add(asyncio.ensure_future(publish(str(time.perf_counter()).encode())))
    await asyncio.gather(*sent)


def _shown(delays: list[float]) -> Figures:
    points = quantiles(delays, n=100)
    return {P50: points[49] * 1e6, P99: points[98] * 1e6}


# -- runnel -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _broker(nodes: Nodes) -> AsyncIterator[Any]:
    import runnel

    async with runnel.open(nodes.url, monitor=nodes.nodes[0].monitor) as broker:
        yield broker


def _runnel_tasks(tasks: int) -> Load:
    async def load(nodes: Nodes, seconds: float) -> Figures:
        value = os.urandom(100)
        async with _broker(nodes) as broker:
            topic = broker.topic("bench")
            return await _published(lambda: topic.publish(value), tasks, seconds)

    return load


async def _runnel_lists(nodes: Nodes, seconds: float) -> Figures:
    values = [os.urandom(100) for _ in range(LIST)]
    async with _broker(nodes) as broker:
        topic = broker.topic("bench")
        return await _published(lambda: topic.publish_many(values), 1, seconds, LIST)


async def _runnel_unawaited(nodes: Nodes, seconds: float) -> Figures:
    """2,000 at a time, and all stored at the end."""
    value = os.urandom(100)
    async with _broker(nodes) as broker:
        topic = broker.topic("bench")
        await topic.publish(value)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for _ in range(2 * LIST):
                topic.publish_nowait(value)
            count += 2 * LIST
            await asyncio.sleep(0)
            if broker.backend.publishing.bytes > PENDING:
                await broker.backend.publishing.idle()
        await broker.backend.flushed()
        return _cost(count, time.perf_counter() - began)


async def _runnel_read_by_ten(nodes: Nodes, seconds: float) -> Figures:
    wanted = int(200_000 * seconds) // LIST * LIST
    values = [os.urandom(100) for _ in range(LIST)]
    async with _broker(nodes) as broker:
        topic = broker.topic("bench")
        for _ in range(wanted // LIST):
            await topic.publish_many(values)
        began = time.perf_counter()
        await asyncio.gather(*(_read(topic, wanted) for _ in range(READERS)))
        return _cost(READERS * wanted, time.perf_counter() - began)


async def _runnel_read_single(nodes: Nodes, seconds: float) -> Figures:
    from runnel.cluster.layout import UNIT, unit_header
    from runnel.core.batch_format import pack

    wanted = max(LIST, int(7_000 * seconds) // LIST * LIST)
    message = pack([os.urandom(100)])
    async with _broker(nodes) as broker:
        js = broker.backend.js
        for _ in range(wanted // LIST):  # a message for each record, as a program stores that publishes rarely
            await asyncio.gather(
                *(
                    js.store(js.subjects.records(0, "single"), message, {UNIT: unit_header(1, 0, 1, 1, 1)})
                    for _ in range(LIST)
                )
            )
        began = time.perf_counter()
        await _read(broker.topic("single"), wanted)
        return _cost(wanted, time.perf_counter() - began)


async def _read(topic: Any, wanted: int) -> None:
    seen = 0
    async with topic.subscribe(start="earliest") as records:
        async for batch in records.batches():
            seen += len(batch)
            if seen >= wanted:
                return


async def _runnel_group(nodes: Nodes, seconds: float) -> Figures:
    wanted = int(50_000 * seconds) // LIST * LIST
    values = [os.urandom(100) for _ in range(LIST)]
    async with _broker(nodes) as broker:
        topic = broker.topic("bench")
        for _ in range(wanted // LIST):
            await topic.publish_many(values)
        began, seen = time.perf_counter(), 0
        async with topic.subscribe(group="bench", prefetch=LIST) as deliveries:
            async for delivery in deliveries:
                await delivery.ack()
                seen += 1
                if seen == wanted:
                    break
        return _cost(seen, time.perf_counter() - began)


async def _runnel_latency(nodes: Nodes, seconds: float) -> Figures:
    delays: list[float] = []
    async with _broker(nodes) as broker:
        topic = broker.topic("late")
        await topic.publish(b"0")
        async with topic.subscribe() as records:
            publishing = asyncio.ensure_future(_paced(topic.publish, seconds))
            async for record in records:
                delays.append(time.perf_counter() - float(record.value))
                if len(delays) == int(1000 * seconds):
                    break
            await publishing
    return _shown(delays)


# -- nats-py ------------------------------------------------------------------------------------------------------


NO_PEERS = 10005  # a cluster that was just started does not know all of its servers yet


@asynccontextmanager
async def _jetstream(nodes: Nodes) -> AsyncIterator[Any]:
    import nats
    from nats.js.api import StreamConfig
    from nats.js.errors import BadRequestError

    client = await nats.connect(nodes.url.split(",")[0], error_cb=_silent)
    js = client.jetstream(timeout=60)  # a stream that was just made may have no leader yet
    async with asyncio.timeout(60):
        while True:
            try:
                await js.add_stream(StreamConfig(name="PEER", subjects=["peer.>"], num_replicas=3))
                break
            except BadRequestError as error:
                if error.err_code != NO_PEERS:
                    raise
                await asyncio.sleep(0.1)
    try:
        yield js
    finally:
        await client.close()


async def _silent(error: Exception) -> None:
    """The servers end before the client does."""


def _peer_tasks(tasks: int) -> Load:
    async def load(nodes: Nodes, seconds: float) -> Figures:
        value = os.urandom(100)
        async with _jetstream(nodes) as js:
            return await _published(lambda: js.publish("peer.a", value), tasks, seconds)

    return load


async def _peer_unawaited(nodes: Nodes, seconds: float) -> Figures:
    value = os.urandom(100)
    async with _jetstream(nodes) as js:
        await js.publish("peer.a", value)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            await js.publish_async("peer.a", value)
            count += 1
        await js.publish_async_completed()
        return _cost(count, time.perf_counter() - began)


async def _filled(js: Any, wanted: int) -> None:
    """Store messages, also where the stream was just made, or changes its leader."""
    from nats.js.errors import NoStreamResponseError

    value = os.urandom(100)

    async def store() -> None:
        while True:
            try:
                await js.publish("peer.a", value)
                return
            except NoStreamResponseError:
                await asyncio.sleep(0.05)

    for _ in range(0, wanted, FETCH):
        await asyncio.gather(*(store() for _ in range(FETCH)))


async def _fetched(js: Any, wanted: int) -> None:
    from nats.js.api import AckPolicy, ConsumerConfig

    pulled = await js.pull_subscribe("peer.a", config=ConsumerConfig(ack_policy=AckPolicy.NONE))
    seen = 0
    while seen < wanted:
        seen += len(await _fetch(pulled))


async def _fetch(pulled: Any) -> list[Any]:
    """The next messages, also of a consumer that was just made and has no leader yet."""
    from nats.js.errors import ServiceUnavailableError

    while True:
        try:
            return list(await pulled.fetch(FETCH, timeout=60))
        except ServiceUnavailableError:
            await asyncio.sleep(0.01)


async def _peer_read_single(nodes: Nodes, seconds: float) -> Figures:
    wanted = max(LIST, int(7_000 * seconds) // LIST * LIST)
    async with _jetstream(nodes) as js:
        await _filled(js, wanted)
        began = time.perf_counter()
        await _fetched(js, wanted)
        return _cost(wanted, time.perf_counter() - began)


async def _peer_read_by_ten(nodes: Nodes, seconds: float) -> Figures:
    wanted = int(7_000 * seconds) // FETCH * FETCH
    async with _jetstream(nodes) as js:
        await _filled(js, wanted)
        began = time.perf_counter()
        await asyncio.gather(*(_fetched(js, wanted) for _ in range(READERS)))
        return _cost(READERS * wanted, time.perf_counter() - began)


async def _peer_group(nodes: Nodes, seconds: float) -> Figures:
    wanted = int(7_000 * seconds) // FETCH * FETCH
    async with _jetstream(nodes) as js:
        await _filled(js, wanted)
        pulled = await js.pull_subscribe("peer.a", "work")
        began, seen = time.perf_counter(), 0
        while seen < wanted:
            for message in await _fetch(pulled):
                await message.ack()
                seen += 1
        return _cost(seen, time.perf_counter() - began)


async def _peer_latency(nodes: Nodes, seconds: float) -> Figures:
    delays: list[float] = []
    done = asyncio.get_running_loop().create_future()

    async def arrived(message: Any) -> None:
        delays.append(time.perf_counter() - float(message.data))
        if len(delays) == int(1000 * seconds):
            done.set_result(None)

    async with _jetstream(nodes) as js:
        await js.subscribe("peer.b", cb=arrived, ordered_consumer=True)
        await _paced(lambda data: js.publish("peer.b", data), seconds)
        await asyncio.wait_for(done, 30)
    return _shown(delays)

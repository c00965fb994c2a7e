"""Ways to publish, to ask and to read, each against the plain one.

What do a key, headers, a time, a priority and an id add to a publish? What does publishing by name cost, and a request,
alone and beside 10,000 subscribers? And what does a record cost that is read without asyncio?
"""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from benchmarks.harness import Aim, Contender, Figures, Question, asked
from benchmarks.load import PUBLISH, payloads

REQUEST = "ns a request"
RECORD = "ns a record"
PLAIN, BY_HANDLE, BY_BATCH = "plain", "by handle", "without asyncio, by batch"
BY_NAME, BESIDE, BY_RECORD = "by name", "a request beside others", "without asyncio, by record"
ALONE = "a request alone"
OPTIONS: dict[str, dict[str, Any]] = {
    "with a key": {"key": b"customer-42"},
    "with a priority": {"priority": 5},
    "with an expiry": {"expires": 60.0},
    "with headers": {"headers": {"content-type": "application/json"}},
}
WITH_ID = "with a message id"


def question(*, quick: bool = False) -> Question:
    """Each way beside the plain one of its league."""
    count, others = (10_000, 1_000) if quick else (100_000, 10_000)
    payloads(count)
    ways: dict[str, dict[str, Any]] = {PLAIN: {}, **OPTIONS}
    return Question(
        name="ways",
        text=asked(__doc__),
        ranked=PUBLISH,
        contenders=[
            *(
                Contender(
                    name, partial(_published, count, way), "topic.publish_nowait(v, ...)", "options", name == PLAIN
                )
                for name, way in ways.items()
            ),
            Contender(
                WITH_ID, partial(_published_with_ids, count), "topic.publish_nowait(v, message_id=id)", "options"
            ),
            Contender(BY_HANDLE, partial(_awaited, count, by_name=False), "await topic.publish(v)", "names", peer=True),
            Contender(BY_NAME, partial(_awaited, count, by_name=True), "await broker.publish(name, v)", "names"),
            Contender(ALONE, partial(_requests, count // 50, 0), "await broker.request(t, v)", "requests"),
            Contender(BESIDE, partial(_requests, count // 50, others), "await broker.request(t, v)", "requests"),
            Contender(BY_BATCH, partial(_blocking, count, by_batch=True), "for batch in s.batches()", "blocking"),
            Contender(BY_RECORD, partial(_blocking, count, by_batch=False), "for record in s", "blocking"),
        ],
        aims=[
            *(Aim(name, PUBLISH, times_best_peer=1 / 3) for name in (*OPTIONS, WITH_ID)),
            Aim(BY_NAME, PUBLISH, times_best_peer=1 / 1.5),
            Aim(ALONE, REQUEST, at_most=40_000),
            Aim(BESIDE, REQUEST, at_most=40_000),
            Aim(BY_RECORD, RECORD, at_most=1_000),
        ],
        notes=[
            f"{count:,} values of 100 B in memory, CPU time of the process; nobody subscribes to them",
            f"requests: a responder that replies at once; others: {others:,} subscribers of other topics and patterns",
            "without asyncio: wall clock, an event loop in a thread of its own, all records published before",
        ],
    )


async def _published(count: int, options: dict[str, Any]) -> Figures:
    import runnel

    async with runnel.open() as broker:
        publish, values = broker.topic("t").publish_nowait, payloads(count)
        begun = time.process_time()
        for value in values:
            publish(value, **options)
        return {PUBLISH: (time.process_time() - begun) / count * 1e9}


async def _published_with_ids(count: int) -> Figures:
    import runnel

    async with runnel.open() as broker:
        publish = broker.topic("t").publish_nowait
        pairs = [(value, f"message-{number}") for number, value in enumerate(payloads(count))]
        begun = time.process_time()
        for value, message_id in pairs:
            publish(value, message_id=message_id)
        return {PUBLISH: (time.process_time() - begun) / count * 1e9}


async def _awaited(count: int, *, by_name: bool) -> Figures:
    import runnel

    async with runnel.open() as broker:
        topic, values = broker.topic("t"), payloads(count)
        begun = time.process_time()
        if by_name:
            for value in values:
                await broker.publish("t", value)
        else:
            for value in values:
                await topic.publish(value)
        return {PUBLISH: (time.process_time() - begun) / count * 1e9}


async def _requests(count: int, others: int) -> Figures:
    import runnel

    async with runnel.open() as broker, AsyncExitStack() as stack:
        for number in range(others):
            await stack.enter_async_context(broker.subscribe(f"other.{number}" if number % 2 else f"{number}.*"))
        questions = await stack.enter_async_context(broker.subscribe("ask"))

        async def respond() -> None:
            async for question in questions:
                await broker.reply(question, question.value)

        responder = asyncio.ensure_future(respond())
        gc.collect()  # a collection that the others are due to is not a cost of the requests
        begun = time.process_time()
        for value in payloads(count):
            await broker.request("ask", value)
        spent = time.process_time() - begun
        responder.cancel()
    return {REQUEST: spent / count * 1e9}


async def _blocking(count: int, *, by_batch: bool) -> Figures:
    return await asyncio.to_thread(_read_blocking, count, by_batch=by_batch)


def _read_blocking(count: int, *, by_batch: bool) -> Figures:
    from runnel import blocking

    with blocking.open() as broker, broker.subscribe("t", buffer=count) as records:
        broker.topic("t").publish_many(payloads(count))
        left = count
        begun = time.perf_counter()
        if by_batch:
            for batch in records.batches():
                left -= len(batch.records)
                if not left:
                    break
        else:
            for _ in records:
                left -= 1
                if not left:
                    break
        return {RECORD: (time.perf_counter() - begun) / count * 1e9}

"""Every public operation: how it is set up, and what of it is timed.

An operation is an async context manager that yields `run`. `run(calls)` does the operation once for each of `calls`,
which are the keyword arguments of one call each; only this is timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import runnel
from benchmarks.matrix.backends import Backend
from benchmarks.matrix.options import LIST, VALUE, Given, Options, Variation, variations
from runnel import (
    Broker,
    Delivery,
    DeliveryBatch,
    Group,
    GroupSubscription,
    Position,
    Producer,
    Stage,
    Subscription,
    Topic,
    Transaction,
)

TOPIC, GROUP = "t", "g"

Run = Callable[[Sequence[Options]], Awaitable[None]]
Setup = Callable[[Backend, Given], AbstractAsyncContextManager[Run]]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation and its cells.

    `methods` are the public methods that it measures; the options of the first are varied, and those of the families
    that `varies` names. `per` is how many records one call handles.
    """

    title: str
    setup: Setup
    methods: tuple[Callable[..., Any], ...]
    varies: tuple[str, ...]
    per: int
    is_group: bool

    def variations(self) -> list[Variation]:
        """All that may be varied, each alone."""
        return [one for family in self.varies for one in variations(family, self.methods[0], group=self.is_group)]


OPERATIONS: dict[str, Operation] = {}
"""All operations, by title, in the order of the tables."""


def operation(
    title: str, *methods: Callable[..., Any], varies: tuple[str, ...] = ("call",), per: int = 1, group: bool = False
) -> Callable[[Callable[[Backend, Given], AsyncIterator[Run]]], Setup]:
    """Enter an operation into the table."""

    def enter(function: Callable[[Backend, Given], AsyncIterator[Run]]) -> Setup:
        setup = asynccontextmanager(function)
        assert title not in OPERATIONS, f"{title!r} is there already"
        OPERATIONS[title] = Operation(title, setup, methods, varies, per, group)
        return setup

    return enter


async def _topic(backend: Backend, given: Given) -> Any:
    """The topic, declared where it has options."""
    topic = backend.broker.topic(TOPIC, **given.topic)
    if given.topic:
        await topic.declare()
    return topic


async def _source(backend: Backend, given: Given, number: int = LIST) -> Callable[[], Awaitable[Any]]:
    """Publishes a list, for those who read it."""
    if given.topic:
        await _topic(backend, given)
    topic, values = backend.native.topic(TOPIC, **given.topic), [given.value] * number
    options = {name: value[:number] if name == "keys" else value for name, value in given.publish.items()}

    async def publish() -> Any:
        return await topic.publish_many(values, **options)

    return publish


async def _take(items: AsyncIterator[Any], number: int) -> None:
    """Take so many records. The iterator stays open."""
    async for _ in items:
        number -= 1
        if not number:
            return


async def _take_batches(batches: AsyncIterator[Any], number: int) -> None:
    async for batch in batches:
        number -= len(batch)
        if number <= 0:
            return


def _repeated(call: Callable[[Options], Awaitable[Any]]) -> Run:
    """A run that awaits one call after the other; for calls of which ten microseconds are the least."""

    async def run(calls: Sequence[Options]) -> None:
        for said in calls:
            await call(said)

    return run


def _numbered(options: Options, number: int) -> dict[str, Any]:
    """The options of one of several subscriptions: a name can be open once."""
    named = {"name": f"{options['name']}{number}"} if "name" in options else {}
    return {**options, **named}


# -- publishing -------------------------------------------------------------------------------------------------


@operation("publish", Topic.publish, varies=("call", "topic", "open"))
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    topic, value = await _topic(backend, given), given.value

    async def run(calls: Sequence[Options]) -> None:
        for said in calls:
            await topic.publish(value, **said)

    yield run


@operation("publish, 64 tasks", Topic.publish, varies=("call", "topic", "open"))
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    backend.needs_tasks()
    topic, value = await _topic(backend, given), given.value

    async def run(calls: Sequence[Options]) -> None:
        for first in range(0, len(calls), 64):
            await asyncio.gather(*(topic.publish(value, **said) for said in calls[first : first + 64]))

    yield run


@operation("publish_nowait", Topic.publish_nowait, varies=("call", "topic"))
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    topic, value = await _topic(backend, given), given.value
    flushed = backend.native.topic("flushed")

    async def run(calls: Sequence[Options]) -> None:
        put = topic.publish_nowait
        for said in calls:
            put(value, **said)
        await flushed.publish(VALUE)

    yield run


@operation("publish_many", Topic.publish_many, Broker.publish_many, varies=("call", "topic", "open"), per=LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    topic, values = await _topic(backend, given), [given.value] * LIST

    yield _repeated(lambda said: topic.publish_many(values, **_from_end(said)))


def _from_end(said: Options) -> Options:
    """An expected offset counts calls; here it counts records."""
    if "expected_offset" not in said:
        return said
    return {**said, "expected_offset": said["expected_offset"] * LIST}


@operation("Broker.publish", Broker.publish)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    async def run(calls: Sequence[Options]) -> None:
        publish = backend.broker.publish
        for said in calls:
            await publish(TOPIC, VALUE, **said)

    yield run


@operation("publish_and_wait", Topic.publish_and_wait)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    topic = await _topic(backend, given)
    async with backend.broker.subscribe(TOPIC) as records, backend.beside(_take(aiter(records), -1)):
        yield _repeated(lambda said: topic.publish_and_wait(VALUE, **said))


@operation("Producer.publish", Producer.publish, Broker.producer)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    producer = backend.broker.producer("p")

    yield _repeated(lambda said: producer.publish(TOPIC, VALUE, **said))


@operation("Producer.publish_many", Producer.publish_many, per=LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    producer, values = backend.broker.producer("p"), [VALUE] * LIST

    yield _repeated(lambda said: producer.publish_many(TOPIC, values, **said))


@operation("request and reply", Broker.request, Topic.request, Broker.reply)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    broker = backend.broker
    async with broker.subscribe("questions") as questions:

        async def answer() -> None:
            async for question in questions:
                await broker.reply(question, VALUE)

        async with backend.beside(answer()):
            yield _repeated(lambda said: broker.request("questions", VALUE, **said))


@operation("request_many, one reply", Broker.request_many, Topic.request_many)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    broker = backend.broker
    async with broker.subscribe("questions") as questions:

        async def answer() -> None:
            async for question in questions:
                await broker.reply(question, VALUE)

        async with backend.beside(answer()):
            yield _repeated(lambda said: broker.request_many("questions", VALUE, **{"limit": 1, **said}))


@operation("transaction: publish", Transaction.publish, Broker.transaction)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    async def run(calls: Sequence[Options]) -> None:
        for said in calls:
            async with backend.broker.transaction() as tx:
                tx.publish(TOPIC, VALUE, **said)

    yield run


@operation("transaction: publish_many", Transaction.publish_many, per=LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    values = [VALUE] * LIST

    async def run(calls: Sequence[Options]) -> None:
        for said in calls:
            async with backend.broker.transaction() as tx:
                tx.publish_many(TOPIC, values, **_from_end(said))

    yield run


@operation("transaction: mark", Transaction.mark)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    values = count(1)

    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            async with backend.broker.transaction() as tx:
                tx.mark("m", next(values))

    yield run


@operation("stage, write and commit", Stage.write, Broker.stage, Transaction.commit, per=LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    batches, values = count(1), [VALUE] * LIST

    async def run(calls: Sequence[Options]) -> None:
        for said in calls:
            stage = backend.broker.stage(TOPIC, writer="w", batch=next(batches))
            await stage.write(values, **said)
            async with backend.broker.transaction() as tx:
                tx.commit(stage)

    yield run


@operation("stage, write and drop", Stage.drop, per=LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    batches, values = count(1), [VALUE] * LIST

    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            stage = backend.broker.stage(TOPIC, writer="w", batch=next(batches))
            await stage.write(values)
            await stage.drop()

    yield run


# -- reading ----------------------------------------------------------------------------------------------------


@operation("subscribe and leave", Broker.subscribe, Topic.subscribe, varies=("subscribe",))
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    await backend.native.publish(TOPIC, VALUE)

    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            async with backend.broker.subscribe(TOPIC, **given.subscribe):
                pass

    yield run


@operation("subscribe to a pattern and leave", Broker.subscribe, varies=("subscribe",))
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    await backend.native.publish(TOPIC, VALUE)

    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            async with backend.broker.subscribe(">", **given.subscribe):
                pass

    yield run


@operation("read by record", Subscription.__aiter__, varies=("subscribe", "publish", "topic"), per=LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    publish = await _source(backend, given)
    async with backend.broker.subscribe(TOPIC, **given.subscribe) as records:
        following = aiter(records)

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                await publish()
                await _take(following, LIST)

        yield run


@operation("read by batch", Subscription.batches, varies=("call", "subscribe", "publish", "topic", "open"), per=LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    publish = await _source(backend, given)
    async with backend.broker.subscribe(TOPIC, **given.subscribe) as records:
        batches = records.batches(**given.call)

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                await publish()
                await _take_batches(batches, LIST)

        yield run


@operation("read by batch, 10 readers", Subscription.batches, varies=("subscribe", "publish", "topic"), per=10 * LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    publish = await _source(backend, given)
    async with AsyncExitStack() as stack:
        readers = [backend.broker.subscribe(TOPIC, **_numbered(given.subscribe, n)) for n in range(10)]
        following = [(await stack.enter_async_context(reader)).batches() for reader in readers]

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                await publish()
                for batches in following:
                    await _take_batches(batches, LIST)

        yield run


@operation("read a pattern by record", Subscription.__aiter__, varies=("subscribe", "publish", "topic"), per=LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    publish = await _source(backend, given)
    async with backend.broker.subscribe(">", **given.subscribe) as records:
        following = aiter(records)

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                await publish()
                await _take(following, LIST)

        yield run


@operation("publish, and wake a reader", Subscription.__aiter__, varies=("subscribe",))
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    backend.needs_tasks(several=False)
    topic, taken = backend.native.topic(TOPIC), asyncio.Queue[Any]()
    async with backend.broker.subscribe(TOPIC, **given.subscribe) as records:

        async def read() -> None:
            async for record in records:
                taken.put_nowait(record)

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                await topic.publish(VALUE)
                await taken.get()

        async with backend.beside(read()):
            yield run


@operation("catch up from the earliest", Broker.subscribe, varies=("topic",), per=10 * LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    publish = await _source(backend, given)
    for _ in range(10):
        await publish()

    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            async with backend.broker.subscribe(TOPIC, start="earliest") as records:
                await _take_batches(records.batches(), 10 * LIST)

    yield run


# -- groups -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _group(backend: Backend) -> AsyncIterator[None]:
    """Within it there is a group; afterwards it is forgotten, so that the next operation finds no backlog."""
    yield
    await backend.native.forget_group(GROUP, TOPIC)


def _joining(backend: Backend, given: Given, number: int = 0) -> Any:
    options = {"start": "latest", **_numbered(given.subscribe, number)}
    return backend.broker.subscribe(TOPIC, group=GROUP, **options)


@asynccontextmanager
async def _member(backend: Backend, given: Given) -> AsyncIterator[Any]:
    """The only member of a group."""
    async with _group(backend), _joining(backend, given) as deliveries:
        yield deliveries


@operation("join a group and leave", Broker.subscribe, varies=("subscribe",), group=True)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    await backend.native.publish(TOPIC, VALUE)
    async with _group(backend):

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                async with _joining(backend, given):
                    pass

        yield run


def _settling(
    title: str,
    *methods: Callable[..., Any],
    settle: Callable[[Any, Options], Awaitable[int]],
    by_batch: bool = False,
    varies: tuple[str, ...] = (),
) -> None:
    """Enter an operation that takes what was published and settles it; `settle` tells how many are done with."""

    async def setup(backend: Backend, given: Given) -> AsyncIterator[Run]:
        publish = await _source(backend, given)
        async with _member(backend, given) as deliveries:
            options = {name: given.call[name] for name in ("max_records", "max_wait") if name in given.call}
            items = deliveries.batches(**options) if by_batch else aiter(deliveries)

            async def run(calls: Sequence[Options]) -> None:
                for said in calls:
                    await publish()
                    left = LIST
                    async for item in items:
                        left -= await settle(item, said)
                        if left <= 0:
                            break

            yield run

    operation(title, *methods, varies=varies, per=LIST, group=True)(setup)


async def _ack(delivery: Any, said: Options) -> int:
    await delivery.ack(**said)
    return 1


async def _ack_batch(batch: Any, said: Options) -> int:
    await batch.ack()
    return len(batch)


async def _nack_first(delivery: Any, said: Options) -> int:
    if delivery.attempt > 1:
        await delivery.ack()
        return 1
    await delivery.nack(**{**said, "delay": 0.0})
    return 0


async def _reject(delivery: Any, said: Options) -> int:
    await delivery.reject("broken")
    return 1


async def _reject_batch(batch: Any, said: Options) -> int:
    await batch.reject("broken")
    return len(batch)


_ALL = ("call", "subscribe", "publish", "topic")
_settling("group by record, ack", Delivery.ack, GroupSubscription.__aiter__, settle=_ack, varies=_ALL)
_settling(
    "group by batch, ack", GroupSubscription.batches, DeliveryBatch.ack, settle=_ack_batch, by_batch=True, varies=_ALL
)
_settling("group: nack, take again, ack", Delivery.nack, settle=_nack_first, varies=("call", "subscribe"))
_settling("group: reject", Delivery.reject, settle=_reject, varies=("subscribe",))
_settling("group: reject a batch", DeliveryBatch.reject, settle=_reject_batch, by_batch=True)


@operation("group: nack a batch, take again, ack", DeliveryBatch.nack, per=LIST, group=True)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    publish = await _source(backend, given)
    async with _member(backend, given) as deliveries:
        batches = deliveries.batches()

        async def run(calls: Sequence[Options]) -> None:
            for said in calls:
                await publish()
                left = 2 * LIST
                async for batch in batches:
                    await (batch.nack(**{**said, "delay": 0.0}) if left > LIST else batch.ack())
                    left -= len(batch)
                    if left <= 0:
                        break

        yield run


@operation("group: extend", Delivery.extend, varies=(), group=True)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    publish = await _source(backend, given)
    async with _member(backend, given) as deliveries:
        await publish()
        delivery = await anext(aiter(deliveries))

        yield _repeated(lambda _: delivery.extend(30.0))


@operation("transaction: take, publish, ack", Transaction.ack, varies=("subscribe", "publish"), per=10, group=True)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    publish = await _source(backend, given, 10)
    async with _member(backend, given) as deliveries:
        following = aiter(deliveries)

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                await publish()
                for _ in range(10):
                    delivery = await anext(following)
                    async with backend.broker.transaction() as tx:
                        tx.publish("done", VALUE)
                        tx.ack(delivery)

        yield run


@operation(
    "group of 10 members, ack", GroupSubscription.__aiter__, varies=("subscribe", "publish"), per=LIST, group=True
)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    backend.needs_tasks(several=False)
    publish, done = await _source(backend, given), asyncio.Queue[int]()
    async with _group(backend), AsyncExitStack() as stack:
        for n in range(10):
            member = await stack.enter_async_context(_joining(backend, given, n))
            await stack.enter_async_context(backend.beside(_acking(member, done)))

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                await publish()
                for _ in range(LIST):
                    await done.get()

        yield run


async def _acking(member: Any, done: asyncio.Queue[int]) -> None:
    async for delivery in member:
        await delivery.ack()
        done.put_nowait(1)


@operation("handlers", Broker.on, Broker.run, per=LIST, group=True)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    publish, done = await _source(backend, given), asyncio.Queue[int]()

    async def handle(value: bytes) -> bytes:
        done.put_nowait(1)
        return value

    backend.broker.on(TOPIC, group=GROUP, start="latest", **given.call)(handle)

    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            await publish()
            for _ in range(LIST):
                await done.get()

    async with backend.beside(backend.broker.run(signals=False)):
        await backend.broker.ready()
        yield run


@operation("bridge to another broker", Broker.bridge, varies=(), per=LIST)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    publish = await _source(backend, given)
    async with (
        runnel.open() as other,
        other.subscribe(TOPIC) as records,
        backend.broker.bridge(TOPIC, other),
    ):
        batches = records.batches()

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                await publish()
                await _take_batches(batches, LIST)

        yield run


# -- the catalog ------------------------------------------------------------------------------------------------


@operation("declare a topic and delete it", Topic.declare, Topic.delete, Broker.delete, varies=("topic",))
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            topic = backend.broker.topic("made", **given.topic)
            await topic.declare()
            await topic.delete()

    yield run


@operation("delete a topic with 100 records", Topic.delete, varies=())
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    values = [VALUE] * LIST

    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            topic = backend.broker.topic("made")
            await topic.publish_many(values)
            await topic.delete()

    yield run


@operation("trim", Topic.trim)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    topic, values = backend.broker.topic(TOPIC), [VALUE] * 10

    async def run(calls: Sequence[Options]) -> None:
        for said in calls:
            span = await topic.publish_many(values)
            await topic.trim(span.last.offset, **said)

    yield run


@operation("bounds of a topic", Broker.bounds, varies=())
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    await backend.native.publish(TOPIC, VALUE)

    yield _repeated(lambda _: backend.broker.bounds(TOPIC))


@operation("bounds of all topics", Broker.bounds, varies=())
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    await backend.native.publish(TOPIC, VALUE)

    yield _repeated(lambda _: backend.broker.bounds())


@operation("topics", Broker.topics, varies=())
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    await backend.native.publish(TOPIC, VALUE)

    yield _repeated(lambda _: backend.broker.topics())


@operation("publish and sync", Broker.sync, varies=())
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            await backend.native.publish(TOPIC, VALUE)
            await backend.native.sync()

    yield run


@operation("statistics", Broker.statistics, varies=())
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    await backend.native.publish(TOPIC, VALUE)
    ask = backend.broker.statistics

    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            if asyncio.iscoroutine(found := ask()):
                await found

    yield run


@operation("info", Broker.info, varies=())
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    yield _repeated(lambda _: backend.broker.info())


@operation("mark and marks", Broker.mark, Broker.marks, varies=())
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    async with backend.broker.transaction() as tx:
        tx.mark("m", 1)

    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            await backend.broker.mark("m")
            await backend.broker.marks("m")

    yield run


@operation("place and forget a name", Broker.place, Broker.forget)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    place: Position = await backend.native.publish(TOPIC, VALUE)

    async def run(calls: Sequence[Options]) -> None:
        for said in calls:
            await backend.broker.place({"n": (TOPIC, place)}, **said)
            await backend.broker.forget("n")

    yield run


@operation("join, leave and forget a group", Broker.forget_group, varies=(), group=True)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    async def run(calls: Sequence[Options]) -> None:
        for _ in calls:
            async with _joining(backend, given):
                pass
            await backend.broker.forget_group(GROUP, TOPIC)

    yield run


@operation(
    "group: pause, resume, reset, statistics",
    Group.pause,
    Group.resume,
    Group.reset,
    Group.statistics,
    Broker.group,
    varies=(),
    group=True,
)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    async with _group(backend):
        async with _joining(backend, given):
            pass
        group = backend.broker.group(GROUP, TOPIC)

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                group.pause()
                group.resume()
                group.reset("latest")
                group.statistics()

        yield run


@operation("dead letters: reject and replay", Broker.replay, group=True)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    async with _member(backend, given) as deliveries:
        following = aiter(deliveries)
        await backend.native.publish(TOPIC, VALUE)

        async def run(calls: Sequence[Options]) -> None:
            for said in calls:
                await (await anext(following)).reject("broken")
                while not await backend.broker.replay(f"dead-letters.{GROUP}", **said):  # noqa: ASYNC110 - the letter is on its way
                    await asyncio.sleep(0)

        yield run


@operation("dead letters: reject and discard", Broker.discard, varies=(), group=True)
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    async with _member(backend, given) as deliveries:
        following = aiter(deliveries)

        async def run(calls: Sequence[Options]) -> None:
            for _ in calls:
                await backend.native.publish(TOPIC, VALUE)
                await (await anext(following)).reject("broken")
                while not await backend.broker.discard(f"dead-letters.{GROUP}"):  # noqa: ASYNC110
                    await asyncio.sleep(0)

        yield run


@operation("stages", Broker.stages, varies=())
async def _(backend: Backend, given: Given) -> AsyncIterator[Run]:
    await backend.broker.stage(TOPIC, writer="w", batch=1).write([VALUE])

    yield _repeated(lambda _: backend.broker.stages())


NOT_MEASURED = {
    "Broker.cancel": "one transaction with a marker",
    "Broker.cron": "registers a function; a firing is one transaction",
    "Broker.every": "registers a function; a firing is one transaction",
    "Broker.presence": "makes a handle; a look passes over the readers of a topic: docs/decisions/0081",
    "Broker.table": "makes a handle; its costs are in docs/decisions/0079",
    "Broker.close": "ends the broker",
    "Broker.confirm_archived": "asks a source of history: docs/decisions/0060",
    "Broker.floors": "reads state of topics that have a source of history",
    "Broker.ready": "waits for `run`",
    "Broker.stop": "ends `run`",
    "Broker.topic": "makes a handle; part of every operation that publishes",
    "Broker.use": "registers a function",
    "Broker.handlers": "reads counters of this object",
    "Topic.configure": "an operator's change of options: rare, and one entry of the journal",
    "Subscription.end": "part of leaving",
    "Subscription.next_at_hand": "reading through the blocking API",
    "Subscription.wake": "called by the backend",
    "GroupSubscription.end": "part of leaving",
    "GroupSubscription.next_at_hand": "reading through the blocking API",
    "GroupSubscription.wake": "called by the backend",
}
"""Public methods without an operation, and why."""

NO_COST = {
    "sequence": "the producer counts by itself",
    "ordinal": "for repeated writes",
    "expected": "compares one value",
    "part": "a name",
    "topic": "without it, a stage of many topics: docs/decisions/0056",
    "attempt": "a name",
    "time": "adds one search by time",
    "offsets": "another way to choose letters",
    "prefix": "a name",
    "pattern": "asks for fewer topics",
    "name": "a name",
    "into": "a name",
    "deadline": "of stopping",
    "signals": "of starting",
    "type": "see topics with a type",
    "group": "has operations of its own",
}
"""Keyword parameters that are not varied, and why."""

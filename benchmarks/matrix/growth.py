"""The things that there may be many of, and the operations that are timed beside them.

Nothing that an operation does not concern may make it dearer. Where an operation lists all things, its cost is divided
by their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from benchmarks.matrix.operations import TOPIC
from benchmarks.matrix.options import VALUE, Given
from runnel import Broker

COUNTS = (10, 1_000, 100_000)
CHUNK = 1_000
MAKING = "making one of them"  # a row of growth

Filled = Callable[[Broker, int, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Thing:
    """Something of which there may be many. `fill` makes those from `first` to `end`; they live as long as the broker.

    `topic` are the options of the topic that is measured. With `takes_part` they handle what is published there, so
    that the plain case is the least number of them, and not none.
    """

    title: str
    fill: Filled
    topic: dict[str, Any]
    takes_part: bool


THINGS: dict[str, Thing] = {}


def thing(title: str, *, topic: dict[str, Any] | None = None, takes_part: bool = False) -> Callable[[Filled], Filled]:
    """Enter a thing into the table."""

    def enter(fill: Filled) -> Filled:
        THINGS[title] = Thing(title, fill, topic or {}, takes_part)
        return fill

    return enter


async def _in_chunks(first: int, end: int, make: Callable[[int], Coroutine[Any, Any, Any]]) -> None:
    """Make all of them, many at once."""
    for at in range(first, end, CHUNK):
        await asyncio.gather(*(make(n) for n in range(at, min(at + CHUNK, end))))


def _subscribing(pattern: Callable[[int], str], **options: Any) -> Filled:
    """Subscriptions that are entered and never read."""

    async def fill(broker: Broker, first: int, end: int) -> None:
        async def make(n: int) -> None:
            await broker.subscribe(pattern(n), **options).__aenter__()

        await _in_chunks(first, end, make)

    return fill


@thing("topics")
async def _(broker: Broker, first: int, end: int) -> None:
    async def make(n: int) -> None:
        await broker.topic(f"many.{n}").declare()

    await _in_chunks(first, end, make)


thing("subscribers of another topic")(_subscribing(lambda n: "other"))
thing("subscribers of the topic, unread")(_subscribing(lambda n: TOPIC))
thing("subscribers of the topic, unread, drop_newest")(_subscribing(lambda n: TOPIC, policy="drop_newest", buffer=10))
thing("patterns")(_subscribing(lambda n: f"apart{n}.*"))
thing("patterns over the topic, unread")(_subscribing(lambda n: "*"))


@thing("names")
async def _(broker: Broker, first: int, end: int) -> None:
    place = await broker.publish("other", VALUE)
    for at in range(first, end, CHUNK):
        await broker.place({f"many-{n}": ("other", place) for n in range(at, min(at + CHUNK, end))})


def _grouping(topic: str, group: Callable[[int], str], *, stay: bool) -> Filled:
    async def fill(broker: Broker, first: int, end: int) -> None:
        async def make(n: int) -> None:
            member = broker.subscribe(topic, group=group(n), start="latest")
            await member.__aenter__()
            if not stay:
                await member.__aexit__(None, None, None)

        await _in_chunks(first, end, make)

    return fill


thing("groups")(_grouping("other", lambda n: f"many-{n}", stay=False))
thing("groups of the topic, no members")(_grouping(TOPIC, lambda n: f"many-{n}", stay=False))
thing("members of another group")(_grouping("other", lambda n: "many", stay=True))


@thing("members at work", takes_part=True)
async def _(broker: Broker, first: int, end: int) -> None:
    async def make(n: int) -> None:
        member = await broker.subscribe(TOPIC, group="many", start="latest").__aenter__()
        _WORK.add(asyncio.ensure_future(_acking(member)))

    await _in_chunks(first, end, make)


_WORK: set[asyncio.Future[None]] = set()  # or nothing would hold the tasks


async def _acking(member: Any) -> None:
    async for delivery in member:
        await delivery.ack()


LONG = {"retention_count": 10_000_000}  # in memory a topic keeps 1,024 records, unless it is told otherwise


@thing("history", topic=LONG)
async def _(broker: Broker, first: int, end: int) -> None:
    topic = broker.topic(TOPIC)
    for at in range(first, end, CHUNK):
        await topic.publish_many([VALUE] * min(CHUNK, end - at))


@thing("keys, unsettled in a group", topic=LONG, takes_part=True)
async def _(broker: Broker, first: int, end: int) -> None:
    if first == 0:
        await broker.subscribe(TOPIC, group="many", max_ack_pending=200_000, prefetch=200_000).__aenter__()
    topic = broker.topic(TOPIC)
    for at in range(first, end, CHUNK):
        keys = [f"many-{n}" for n in range(at, min(at + CHUNK, end))]
        await topic.publish_many([VALUE] * len(keys), keys=keys)


@dataclass(frozen=True, slots=True)
class Probe:
    """An operation that is timed beside many things.

    `each` are things that it lists, so that its cost is divided by them; `only` are those that it is timed beside.
    """

    operation: str
    label: str = ""
    given: Given = field(default_factory=Given)
    each: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """What tables call it."""
        return f"{self.operation}{self.label}"


PROBES = [
    Probe("publish"),
    Probe("publish_nowait"),
    Probe("publish_many"),
    Probe("publish_and_wait", only=frozenset({"members at work"})),
    Probe("publish", " with a key", Given(call={"key": "k1"})),
    Probe("Producer.publish"),
    Probe("request and reply"),
    Probe("transaction: publish"),
    Probe("transaction: mark"),
    Probe("read by batch"),
    Probe("read a pattern by record"),
    Probe("publish, and wake a reader"),
    Probe("subscribe and leave"),
    Probe("subscribe and leave", " with a name", Given(subscribe={"name": "n"})),
    Probe("subscribe and leave", " with a buffer", Given(subscribe={"buffer": 100})),
    Probe("subscribe to a pattern and leave"),
    Probe("join a group and leave"),
    Probe("group by record, ack"),
    Probe("declare a topic and delete it"),
    Probe("trim"),
    Probe("bounds of a topic"),
    Probe("bounds of all topics", each=frozenset({"topics"})),
    Probe("topics", each=frozenset({"topics"})),
    Probe("statistics", each=frozenset(THINGS) - {"history"}),
    Probe("place and forget a name"),
    Probe("join, leave and forget a group"),
]


def probes(thing: str) -> list[Probe]:
    """What is timed beside many of a thing."""
    return [probe for probe in PROBES if not probe.only or thing in probe.only]

"""What each backend supports: one probe for each feature that a user may ask about.

A probe uses the feature, and checks that it did what it promises. Where a backend cannot do it, it raises
`NotSupported`, and the reason is a note of the table in docs/reference/backends.md, which `tools/backend_table.py`
writes from these probes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from runnel import Broker, NotSupported, Record
from runnel.testing.clock import JumpingClock
from tests.cluster.real_clock import RealClock
from tests.cluster.single import new_stream, open_cluster
from tests.contract.afar import Served
from tests.contract.reading import at_rest, opened, read, running, soon, values
from tests.contract.working import fill, numbers, take, work


class Backend:
    """One backend of a kind: what is kept there, a later `open` finds again."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.clock: JumpingClock = RealClock() if kind == "cluster" else JumpingClock()
        self.stream = new_stream()  # of a cluster

    def open(self, **options: Any) -> AbstractAsyncContextManager[Broker]:
        """A broker there, with options of `runnel.open`."""
        made = BACKENDS[self.kind](self, options)
        if isinstance(made, Broker):
            opened.add(made)
        return made


Opens = Callable[[Backend, dict[str, Any]], AbstractAsyncContextManager[Broker]]

BACKENDS: dict[str, Opens] = {
    "memory": lambda at, options: runnel.open(clock=at.clock, **options),
    "folder": lambda at, options: runnel.open(at.folder, clock=at.clock, **options),
    "server in memory": lambda at, options: Served(at.clock, None, {}, unix=False, client=options),
    "server on a folder": lambda at, options: Served(at.clock, at.folder, {}, unix=False, client=options),
    "server before a server": lambda at, options: Served(
        at.clock, at.folder, {}, unix=False, front=True, client=options
    ),
    "cluster": lambda at, options: open_cluster(at.stream, **options),
}
"""The columns of the table. A server before a server serves the topics of one on a folder (`serve --backend runnel://…`)."""

Probe = Callable[[Backend], Awaitable[None]]

FEATURES: dict[str, Probe] = {}
"""The rows of the table, in their order."""


def feature(title: str) -> Callable[[Probe], Probe]:
    """Enter a probe into the table."""

    def enter(probe: Probe) -> Probe:
        assert title not in FEATURES, f"{title!r} is there already"
        FEATURES[title] = probe
        return probe

    return enter


async def outcome(title: str, at: Backend) -> str | None:
    """None: the feature works there. Else why it is not supported."""
    try:
        await soon(FEATURES[title](at))
    except NotSupported as error:
        return f"{error.what}: {error.why}"
    return None


# -- publishing and subscribing ---------------------------------------------------------------------------------


@feature("publish and subscribe")
async def publish_and_subscribe(at: Backend) -> None:
    async with at.open() as broker, broker.subscribe("t") as records:
        await broker.publish("t", b"a", key=b"k", headers={"h": "x"})
        record = await anext(records)
        assert (record.value, record.key, dict(record.headers)) == (b"a", b"k", {"h": "x"})


@feature("many records in one publish, all or none")
async def publish_many(at: Backend) -> None:
    async with at.open() as broker:
        span = await broker.topic("t").publish_many([b"a", b"b", b"c"])
        assert span.last.offset - span.first.offset == 2


@feature("publish without waiting (`publish_nowait`)")
async def publish_nowait(at: Backend) -> None:
    async with at.open() as broker, broker.subscribe("t") as records:
        broker.topic("t").publish_nowait(b"a")
        assert await values(records, 1) == [b"a"]


@feature("`publish_and_wait`")
async def publish_and_wait(at: Backend) -> None:
    async with at.open() as broker, broker.subscribe("t") as records:
        async with running(values(records, 2)) as reading:
            await soon(broker.topic("t").publish_and_wait(b"a"))
            assert not reading.done()


@feature("patterns")
async def patterns(at: Backend) -> None:
    async with at.open() as broker, broker.subscribe("orders.*") as records:
        for topic in ("orders.eu", "other", "orders.us"):
            await broker.publish(topic, topic)
        assert await values(records, 2) == [b"orders.eu", b"orders.us"]


@feature("typed topics")
async def typed_topics(at: Backend) -> None:
    class Order(msgspec.Struct):
        id: int

    async with at.open() as broker:
        orders = broker.topic("orders", Order)
        async with orders.subscribe() as records:
            await orders.publish(Order(7))
            assert (await anext(records)).value == Order(7)
        with pytest.raises(runnel.ValidationFailed):
            await broker.publish("orders", b'{"id": "seven"}')


@feature("`message_id`: a repeated publish is stored once")
async def message_id(at: Backend) -> None:
    async with at.open() as broker:
        first = await broker.publish("t", b"a", message_id="1")
        assert await broker.publish("t", b"a", message_id="1") == first


@feature("`expected_offset`")
async def expected_offset(at: Backend) -> None:
    async with at.open() as broker:
        await broker.publish("t", b"a", expected_offset=0)
        with pytest.raises(runnel.OffsetConflict):
            await broker.publish("t", b"b", expected_offset=0)


@feature("producers that number their records")
async def producers(at: Backend) -> None:
    async with at.open() as broker:
        producer = broker.producer("p")
        first = await producer.publish("t", b"a", sequence=0)
        assert await producer.publish("t", b"a", sequence=0) == first


@feature("request and reply")
async def request_and_reply(at: Backend) -> None:
    async with at.open() as broker, broker.subscribe("ask") as questions:
        asked = asyncio.ensure_future(broker.request("ask", b"how much?"))
        await broker.reply(await anext(questions), b"42")
        assert (await asked).value == b"42"


# -- history ----------------------------------------------------------------------------------------------------


async def _filled(broker: Broker, count: int = 3) -> None:
    await fill(broker, count, "t")


@feature("history from the earliest record, an offset or a time")
async def history(at: Backend) -> None:
    async with at.open() as broker:
        positions = [await broker.publish("t", value) for value in numbers(0, 3)]
        await at.clock.advance(0.5)
        time = datetime.fromtimestamp(at.clock.time(), UTC)
        await broker.publish("t", b"3")
        for start, expected in (("earliest", b"0"), (positions[2].offset, b"2"), (time, b"3")):
            async with broker.subscribe("t", start=start) as records:
                assert await values(records, 1) == [expected]


@feature("named subscriptions go on where they were")
async def named(at: Backend) -> None:
    async with at.open() as broker:
        await _filled(broker)
        async with broker.subscribe("t", name="me") as records:
            assert await values(records, 2) == [b"0", b"1"]  # the second is in hand: it comes again
        async with broker.subscribe("t", name="me") as records:
            assert await values(records, 2) == [b"1", b"2"]


@feature("positions of others (`place`)")
async def place(at: Backend) -> None:
    async with at.open() as broker:
        position = (await broker.topic("t").publish_many(numbers(0, 3))).last
        await broker.place({"me": ("t", position)})
        async with broker.subscribe("t", name="me") as records:
            assert await values(records, 1) == [b"2"]


@feature("records, positions and groups survive a restart")
async def restart(at: Backend) -> None:
    async with at.open() as broker:
        await broker.topic("t", durable=True).publish_many(numbers(0, 3))
        async with broker.subscribe("t", name="me") as records:
            await values(records, 2)  # the second is in hand
        async with broker.subscribe("t", group="g") as deliveries:
            await work(deliveries, 1)
    async with at.open() as broker:
        async with broker.subscribe("t", name="me") as records:
            assert await values(records, 2) == [b"1", b"2"]
        async with broker.subscribe("t", group="g") as deliveries:
            assert await work(deliveries, 2) == [b"1", b"2"]


@feature("retention by age")
async def retention_by_age(at: Backend) -> None:
    async with at.open() as broker:
        topic = broker.topic("t", retention_age=1.0)
        await topic.publish(b"old")
        await at.clock.advance(2.5)
        await topic.publish(b"new")
        async with topic.subscribe(start="earliest") as records:
            assert await values(records, 1) == [b"new"]


@feature("retention by count and bytes")
async def retention(at: Backend) -> None:
    async with at.open() as broker:
        topic = broker.topic("t", retention_count=2, retention_bytes=1000)
        await topic.declare()
        for number in range(5):
            await topic.publish(b"%d" % number)
        async with topic.subscribe(start="earliest") as records:
            assert await values(records, 2) == [b"3", b"4"]


@feature("`trim`")
async def trim(at: Backend) -> None:
    async with at.open() as broker:
        positions = [await broker.publish("t", value) for value in numbers(0, 3)]
        assert await broker.topic("t").trim(positions[2].offset) == positions[2].offset


@feature("`configure`: options of a topic that exists are changed")
async def configure(at: Backend) -> None:
    async with at.open() as broker:
        await _filled(broker)
        assert await broker.topic("t").configure(retention_age=3600.0) == {"retention_age": 3600.0}


@feature("`hold`: a name keeps retention away from what it has not read")
async def hold(at: Backend) -> None:
    async with at.open() as broker:
        await _filled(broker)
        async with broker.subscribe("t", name="me", hold=True) as records:
            await values(records, 1)
        with pytest.raises(runnel.TopicHeld):
            await broker.topic("t").trim(3)


@feature("key-value tables")
async def tables(at: Backend) -> None:
    async with at.open() as broker:
        table = broker.table("t", int)
        offset = await table.put("k", 1)
        await table.put("k", 2, expected=offset)
        with pytest.raises(runnel.KeyConflict):
            await table.delete("k", expected=offset)
        async with table.watch() as changes:
            assert (await soon(anext(changes))).value == 2
            await table.delete("k")
            assert (await soon(anext(changes))).value is None
        assert await table.get("k") is None


@feature("schedules")
async def schedules(at: Backend) -> None:
    async with at.open() as broker:
        fired = asyncio.Event()

        @broker.every(1)
        async def tick() -> None:
            fired.set()

        async with running(broker.run(signals=False)):
            await soon(broker.ready())
            await at.clock.advance(1)
            await soon(fired.wait())


@feature("delayed records are cancelled")
async def cancelling(at: Backend) -> None:
    async with at.open() as broker, broker.subscribe("t", group="g") as deliveries:
        await broker.publish("t", b"a", delay=1, message_id="1")
        await broker.publish("t", b"b", delay=1, message_id="2")
        await broker.cancel("t", "1")
        await at.clock.advance(1)
        assert await work(deliveries, 1) == [b"b"]


@feature("presence")
async def presence(at: Backend) -> None:
    async with at.open() as broker, broker.subscribe("t", presence="ada"):
        (member,) = await broker.presence("t")
        assert member.presence == "ada"


@feature("compaction: the newest record of each key")
async def compaction(at: Backend) -> None:
    async with at.open() as broker:
        topic = broker.topic("t", compact=True)
        await topic.publish(b"1", key=b"k")
        await topic.publish(None, key=b"k")  # only such a topic has tombstones


@feature("compression")
async def compression(at: Backend) -> None:
    async with at.open() as broker:
        topic = broker.topic("t", compression="zstd")
        await topic.publish_many([b"x" * 1000] * 10)
        async with topic.subscribe(start="earliest") as records:
            assert await values(records, 10) == [b"x" * 1000] * 10


# -- slow subscribers -------------------------------------------------------------------------------------------


@feature("policies for slow subscribers: `drop_oldest`, `drop_newest`, `disconnect`")
async def policies(at: Backend) -> None:
    async with at.open() as broker:
        topic = broker.topic("t")
        for policy, expected in (("drop_oldest", [b"1", b"2"]), ("drop_newest", [b"0", b"1"])):
            async with topic.subscribe(policy=policy, buffer=2) as records:
                await _filled(broker)
                await at_rest()
                assert await values(records, 2) == expected
        async with topic.subscribe(policy="disconnect:1", buffer=2) as records:
            await _filled(broker)
            await at_rest()
            with pytest.raises(runnel.Disconnected):
                await read(records, 4)


@feature("the policy `block`: publishers wait for a slow subscriber")
async def blocking_policy(at: Backend) -> None:
    async with at.open() as broker:
        async with broker.subscribe("t", policy="block", buffer=2) as records:
            async with running(_filled(broker)) as publishing:
                assert not publishing.done()
                assert await values(records, 3) == numbers(0, 3)
                await soon(publishing)


@feature("`on_drop`: dropped records are shown")
async def on_drop(at: Backend) -> None:
    dropped: list[Record[bytes]] = []
    async with at.open() as broker, broker.subscribe("t", policy="drop_newest", buffer=1, on_drop=dropped.append):
        await _filled(broker)
        while len(dropped) < 2:  # where they come from another machine
            await at_rest()
        assert [record.value for record in dropped] == [b"1", b"2"]


@feature("gaps are reported")
async def gaps(at: Backend) -> None:
    told: list[Any] = []
    async with at.open() as broker:
        topic = broker.topic("t")
        async with topic.subscribe(policy="drop_oldest", buffer=1, on_gap=told.append) as records:
            await topic.publish_many(numbers(0, 3))
            await at_rest()
            assert await values(records, 1) == [b"2"]
            assert [gap.count for gap in told] == [2]


# -- groups -----------------------------------------------------------------------------------------------------


@feature("groups: ack, nack, extend, reject")
async def groups(at: Backend) -> None:
    async with at.open() as broker:
        await fill(broker, 3)
        async with broker.subscribe("jobs", group="g") as deliveries:
            one, two, three = await take(deliveries, 3)
            await one.extend(60)
            await one.ack()
            await three.reject("no")
            await two.nack(delay=0)
            again = await anext(deliveries)
            assert (again.value, again.attempt) == (b"1", 2)


@feature("durable acks (`ack(durable=True)`)")
async def durable_acks(at: Backend) -> None:
    async with at.open() as broker:
        await fill(broker, 1)
        async with broker.subscribe("jobs", group="g") as deliveries:
            await (await anext(deliveries)).ack(durable=True)


@feature("`delay` and `expires`")
async def delay_and_expiry(at: Backend) -> None:
    async with at.open() as broker:
        await broker.publish("jobs", b"late", delay=1.0)
        await broker.publish("jobs", b"stale", expires=0.1)
        await at.clock.advance(0.2)
        await broker.publish("jobs", b"usual")
        async with broker.subscribe("jobs", group="g") as deliveries:
            assert await work(deliveries, 1) == [b"usual"]
            await at.clock.advance(1.0)
            assert await work(deliveries, 1) == [b"late"]


@feature("`priority`")
async def priority(at: Backend) -> None:
    async with at.open() as broker:
        await broker.publish("jobs", b"usual")
        await broker.publish("jobs", b"urgent", priority=9)
        async with broker.subscribe("jobs", group="g") as deliveries:
            assert await work(deliveries, 2) == [b"urgent", b"usual"]


@feature("pause, resume and reset of a group")
async def steering(at: Backend) -> None:
    async with at.open() as broker:
        await fill(broker, 2)
        async with broker.subscribe("jobs", group="g") as deliveries:
            await work(deliveries, 2)
            group = broker.group("g", "jobs")
            group.pause()
            assert group.statistics().paused
            group.resume()
            group.reset("earliest")
            assert await work(deliveries, 2) == [b"0", b"1"]


async def _bury(broker: Broker) -> None:
    await fill(broker, 3)
    async with broker.subscribe("jobs", group="g") as deliveries:
        for delivery in await take(deliveries, 3):
            await delivery.reject("no")
    async with broker.subscribe("dead-letters.g", start="earliest") as letters:
        await read(letters, 3)


@feature("dead letters are read as records")
async def dead_letters(at: Backend) -> None:
    async with at.open() as broker:
        await _bury(broker)


@feature("dead letters: listed, replayed, discarded")
async def replayed(at: Backend) -> None:
    async with at.open() as broker:
        await _bury(broker)
        assert await broker.replay("dead-letters.g", limit=1) == 1
        assert await broker.discard("dead-letters.g") == 2


@feature("`replay(where=…)` with a function")
async def replay_where(at: Backend) -> None:
    async with at.open() as broker:
        await _bury(broker)
        assert await broker.replay("dead-letters.g", where=lambda record: record.value == b"1") == 1


# -- transactions -----------------------------------------------------------------------------------------------


@feature("transactions: publishes to several topics, all or none")
async def transactions(at: Backend) -> None:
    async with at.open() as broker:
        with suppress(ZeroDivisionError):
            async with broker.transaction() as tx:
                tx.publish("done", b"never")
                raise ZeroDivisionError
        async with broker.transaction() as tx:
            tx.publish("done", b"0")
            tx.publish("count", b"1")
        async with broker.subscribe(">", start="earliest") as records:
            assert await values(records, 2) == [b"0", b"1"]


@feature("transactions that ack")
async def transactions_that_ack(at: Backend) -> None:
    async with at.open() as broker:
        await fill(broker, 1)
        async with broker.subscribe("jobs", group="g") as deliveries:
            async with broker.transaction() as tx:
                tx.publish("done", b"0")
                tx.publish("count", b"1")
                tx.ack(await anext(deliveries))
        assert await broker.topics() == ["count", "done", "jobs"]


@feature("marks")
async def marks(at: Backend) -> None:
    async with at.open() as broker:
        async with broker.transaction() as tx:
            tx.mark("done", 7)
        assert await broker.mark("done") == 7


@feature("stages: large transactions")
async def stages(at: Backend) -> None:
    async with at.open() as broker:
        stage = broker.stage("t", writer="w", batch=1)
        await stage.write(numbers(0, 3))
        async with broker.transaction() as tx:
            tx.commit(stage)
        async with broker.subscribe("t", start="earliest") as records:
            assert await values(records, 3) == numbers(0, 3)


@feature("closing ends a commit that waits for room with `BrokerClosed`, and nothing is written")
async def closing_a_commit(at: Backend) -> None:
    async with at.open() as broker:

        async def transact() -> None:
            async with broker.transaction() as tx:
                tx.publish("slow", b"1")

        async with broker.subscribe("slow", policy="block", buffer=1):
            await broker.publish("slow", b"0")
            async with running(transact()) as task:
                broker.close()
                try:
                    await task
                except runnel.BrokerClosed:
                    return
                except runnel.OutcomeUnknown:
                    why = "the server in front has sent the commit on, and raises `OutcomeUnknown`"
                    raise NotSupported("a known outcome", why) from None
    raise AssertionError("it was committed, though there was no room")


# -- programs ---------------------------------------------------------------------------------------------------


@feature("handlers (`broker.on`, `broker.run`)")
async def handlers(at: Backend) -> None:
    async with at.open() as broker:

        @broker.on("jobs", group="g")
        async def handle(value: bytes) -> None:
            assert value == b"0"
            broker.stop()

        await fill(broker, 1)
        await broker.run(signals=False)
        assert [one.handled for one in broker.handlers()] == [1]


@feature("bridges to another broker")
async def bridges(at: Backend) -> None:
    async with at.open() as broker, runnel.open(clock=at.clock) as central, central.subscribe("t") as there:
        async with broker.bridge("t", to=central):
            await _filled(broker)
            assert await values(there, 3) == numbers(0, 3)


@feature("publishing from other threads")
async def threads(at: Backend) -> None:
    async with at.open() as broker:
        topic = broker.topic("t")
        await topic.declare()
        async with topic.subscribe() as records:
            await asyncio.to_thread(topic.publish_nowait, b"a")
            assert await values(records, 1) == [b"a"]


@feature("statistics")
async def statistics(at: Backend) -> None:
    async with at.open() as broker:
        await _filled(broker)
        assert broker.statistics().topics["t"].published == 3


@feature("state of the connection (`broker.connection`)")
async def connection(at: Backend) -> None:
    async with at.open() as broker:
        assert broker.connection.state == "connected"


@feature("`open(auto_create=False)`: topics are declared first")
async def auto_create(at: Backend) -> None:
    async with at.open(auto_create=False) as broker:
        with pytest.raises(runnel.UnknownTopic):
            await broker.publish("t", b"a")

"""A disk that fails, a task that is cancelled, a broker that is closed in the middle: what was promised holds."""

import asyncio
import errno
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

import runnel
from runnel import Broker
from runnel.broker.durable.folder import BrokerFolder
from runnel.core.errors import DiskFull, JournalFailed, NotWritten, OutcomeUnknown
from runnel.journal.options import JournalOptions
from runnel.journal.storage import OsStorage
from runnel.testing.clock import JumpingClock
from runnel.testing.faulty_storage import CHANGING, FaultyStorage
from runnel.testing.memory_storage import MemoryStorage
from tests.brokers import local_broker
from tests.contract.lives import Folder
from tests.contract.reading import at_rest, opened, read, rest, running, soon, values
from tests.contract.working import fill, look, take, work
from tests.nightly import nightly_beyond
from tests.patience import PATIENCE

T = TypeVar("T")

FAILURES = (JournalFailed, OutcomeUnknown, NotWritten, DiskFull)


class Disk:
    """A folder on a storage that can be made to fail."""

    def __init__(self, path: Path, clock: JumpingClock) -> None:
        self.path, self.clock = path, clock
        self.storage = FaultyStorage(MemoryStorage())

    def open(self, **options: Any) -> Broker:
        chosen = JournalOptions(**({"segment_bytes": 64 * 1024, "min_free": 0} | options))
        broker = local_broker(clock=self.clock, folder=BrokerFolder(self.path, chosen, self.storage))
        opened.add(broker)
        return broker

    def fails(self, *, error: int = errno.EIO, kinds: tuple[str, ...] = CHANGING, lasting: bool = True) -> None:
        """From the next call on."""
        self.storage.kinds = frozenset(kinds)
        self.storage.error, self.storage.lasting = error, lasting
        self.storage.fail_at = self.storage.calls + 1

    def recovers(self) -> None:
        self.storage.fail_at = None


@pytest.fixture
def disk(tmp_path: Path, clock: JumpingClock) -> Disk:
    return Disk(tmp_path / "data", clock)


async def stored(broker: Broker, topic: str = "t") -> list[bytes]:
    """What a newcomer reads."""
    async with broker.subscribe(topic, start="earliest") as subscription:
        return [record.value for record in await read(subscription, subscription.lag)]


async def publish_until_full(broker: Broker, size: int) -> None:
    for _ in range(10_000):
        await broker.publish("t", bytes(size))


async def declare_until_full(broker: Broker) -> None:
    for number in range(10_000):
        await broker.topic(f"small{number}").declare()


# -- a disk that fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_publish_that_the_disk_refuses_has_an_unknown_outcome_and_reading_continues(
    disk: Disk, kind: str
) -> None:
    async with disk.open() as broker:
        await fill(broker, 3, "t")
        async with broker.subscribe("t", start="earliest") as subscription:
            disk.fails(kinds=(kind,))
            with pytest.raises(OutcomeUnknown, match="may or may not"):
                await soon(broker.publish("t", b"lost?"))
            for _ in range(2):
                with pytest.raises(JournalFailed, match="open the broker again"):
                    await soon(broker.publish("t", b"refused"))
                with pytest.raises(JournalFailed):
                    broker.topic("t").publish_nowait(b"refused")
            assert await values(subscription, 3) == [b"0", b"1", b"2"]
            assert await stored(broker) == [b"0", b"1", b"2"], "what is not known to be durable is not shown"
    disk.recovers()
    async with disk.open() as broker:
        found = await stored(broker)
        assert found[:3] == [b"0", b"1", b"2"]
        assert found[3:] in ([], [b"lost?"])
        assert (await broker.publish("t", b"again")).offset == len(found)


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_everything_in_flight_fails_with_the_journal_and_nothing_hangs(disk: Disk, kind: str) -> None:
    async with disk.open() as broker:
        await fill(broker, 3, "t")
        disk.fails(kinds=(kind,))
        publishers = []
        for number in range(50):
            publishers.append(asyncio.ensure_future(broker.publish("ab"[number % 2], b"%d" % number)))
            if number % 10 == 0:
                await asyncio.sleep(0)
        results = await soon(asyncio.gather(*publishers, return_exceptions=True))
        assert all(isinstance(result, FAILURES) for result in results), set(map(type, results))
        assert isinstance(results[0], OutcomeUnknown)


@pytest.mark.parametrize(
    "use",
    [
        lambda broker: broker.topic("new").declare(),
        lambda broker: broker.delete("t"),
        lambda broker: broker.topic("t").publish_many([b"x"] * 3),
        lambda broker: broker.topic("t").publish_and_wait(b"x"),
    ],
    ids=["declare", "delete", "publish_many", "publish_and_wait"],
)
async def test_what_needs_the_disk_says_that_the_journal_failed(
    disk: Disk, use: Callable[[Broker], Coroutine[Any, Any, Any]]
) -> None:
    async with disk.open() as broker:
        await fill(broker, 3, "t")
        disk.fails()
        with pytest.raises(OutcomeUnknown):
            await soon(broker.publish("t", b"x"))
        with pytest.raises(FAILURES):
            await soon(use(broker))


async def test_a_durable_ack_fails_with_the_journal_and_the_record_comes_again(disk: Disk) -> None:
    async with disk.open() as broker:
        await fill(broker, 2)
        async with broker.subscribe("jobs", group="g") as deliveries:
            await (await anext(deliveries)).ack(durable=True)
            disk.fails()
            with pytest.raises(FAILURES):
                await soon(_awaited((await anext(deliveries)).ack(durable=True)))
    disk.recovers()
    async with disk.open() as broker, broker.subscribe("jobs", group="g") as deliveries:
        assert await work(deliveries, 1) == [b"1"]


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def test_topics_in_memory_go_on_when_the_journal_failed(disk: Disk) -> None:
    async with disk.open() as broker:
        memory = broker.topic("memory", durable=False)
        await memory.publish(b"before")
        await broker.publish("t", b"x")
        disk.fails()
        with pytest.raises(OutcomeUnknown):
            await broker.publish("t", b"y")
        await memory.publish(b"after")
        assert await stored(broker, "memory") == [b"before", b"after"]
        async with broker.subscribe("*", start="earliest") as subscription:
            assert await values(subscription, 3) == [b"before", b"x", b"after"]


@pytest.mark.parametrize("kinds", [("create",), ("allocate",)])
async def test_a_full_disk_refuses_publishes_and_lets_acks_and_deletes_through(
    disk: Disk, kinds: tuple[str, ...]
) -> None:
    value = bytes(8000)
    async with disk.open() as broker:
        await fill(broker, 2)
        async with broker.subscribe("jobs", group="g") as deliveries:
            disk.fails(error=errno.ENOSPC, kinds=kinds)
            with pytest.raises(DiskFull, match="make room"):
                await publish_until_full(broker, 8000)
            published = len(await stored(broker))
            assert published > 0
            with pytest.raises(DiskFull):
                await broker.publish("t", value)
            await (await anext(deliveries)).ack(durable=True)
            await broker.topic("small").declare()
            await broker.delete("small")
            disk.recovers()
            assert (await broker.publish("t", value)).offset == published, "no offset is lost to what was refused"
    async with disk.open() as broker:
        assert len(await stored(broker)) == published + 1
        async with broker.subscribe("jobs", group="g") as deliveries:
            assert await work(deliveries, 1) == [b"1"]


async def test_a_disk_below_its_watermark_refuses_before_it_is_full(tmp_path: Path, clock: JumpingClock) -> None:
    disk = Disk(tmp_path / "data", clock)
    disk.storage = FaultyStorage(MemoryStorage(capacity=300_000))
    async with disk.open(min_free=64 * 1024) as broker:
        with pytest.raises(DiskFull):
            await publish_until_full(broker, 1000)
        with pytest.raises(DiskFull):
            broker.topic("t").publish_nowait(bytes(1000))
        assert len(await stored(broker)) > 50
        for _ in range(5):
            await broker.topic("small").declare()
            await broker.delete("small")


async def test_deleting_topics_makes_room_on_a_full_disk(tmp_path: Path, clock: JumpingClock) -> None:
    disk = Disk(tmp_path / "data", clock)
    disk.storage = FaultyStorage(MemoryStorage(capacity=300_000))
    async with disk.open(min_free=64 * 1024) as broker:
        with pytest.raises(DiskFull):
            await publish_until_full(broker, 1000)
        await broker.delete("t")
        assert (await broker.publish("u", bytes(1000))).offset == 0


async def test_when_even_the_reserve_is_used_up_the_calls_waiting_for_the_disk_raise(
    tmp_path: Path, clock: JumpingClock
) -> None:
    disk = Disk(tmp_path / "data", clock)
    disk.storage = FaultyStorage(MemoryStorage(capacity=300_000))
    async with disk.open(min_free=64 * 1024) as broker:
        with pytest.raises(DiskFull):
            await publish_until_full(broker, 1000)
        with pytest.raises(DiskFull):
            await asyncio.wait_for(declare_until_full(broker), PATIENCE)


async def _life(broker: Broker, acknowledged: list[tuple[str, bytes]], acked: set[bytes]) -> None:
    """A bit of everything; notes what was promised. Fails, if at all, as the journal does."""
    for number in range(6):
        value = b"%d" % number + bytes(9000)
        try:
            await soon(broker.publish("t", value, key="k"))
            acknowledged.append(("t", value))
            await soon(broker.topic("u").publish_many([value, value + b"!"]))
            acknowledged += [("u", value), ("u", value + b"!")]
        except FAILURES:
            pass
    try:
        async with broker.subscribe("t", group="g", prefetch=2) as deliveries:
            for _ in range(min(3, look(broker).lag)):
                delivery = await soon(_awaited(anext(deliveries)))
                await soon(_awaited(delivery.ack(durable=True)))
                acked.add(delivery.value)
        await soon(broker.topic("gone").declare())
        await soon(broker.delete("gone"))
    except FAILURES:
        pass


async def _judge(broker: Broker, acknowledged: list[tuple[str, bytes]], acked: set[bytes]) -> None:
    for topic in ("t", "u"):
        found = await stored(broker, topic) if topic in await broker.topics() else []
        promised = [value for name, value in acknowledged if name == topic]
        assert [value for value in found if value in promised] == promised
        assert len(found) == len(set(found))
    if "t" in await broker.topics():
        async with broker.subscribe("t", group="g") as deliveries:
            left = await work(deliveries, look(broker).lag)
        assert not set(left) & acked


@pytest.mark.parametrize("each", nightly_beyond(1, [4, 1]))
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("lasting", [False, True])
async def test_whichever_call_fails_nothing_acknowledged_is_lost(
    tmp_path: Path, clock: JumpingClock, error: int, lasting: bool, each: int
) -> None:
    """`each` 4: every call fails in one of the four ways; 1: every call fails in each of them."""
    whole = Disk(tmp_path / "whole", clock)
    async with whole.open() as broker:
        await _life(broker, [], set())
    way = 2 * lasting + (error == errno.EIO)
    for call in range(1 + way % each, whole.storage.calls + 1, each):
        disk = Disk(tmp_path / f"{call}", clock)
        disk.storage.error, disk.storage.lasting, disk.storage.fail_at = error, lasting, call
        acknowledged: list[tuple[str, bytes]] = []
        acked: set[bytes] = set()
        with suppress(*FAILURES):
            async with disk.open() as broker:
                await _life(broker, acknowledged, acked)
        disk.recovers()
        async with disk.open() as broker:
            await _judge(broker, acknowledged, acked)
            await broker.publish("t", b"new")


# -- tasks that are cancelled -----------------------------------------------------------------------------------


@types.coroutine
def cancelled_at(awaitable: Awaitable[T], number: int) -> Generator[Any, Any, T]:
    """`awaitable`, in a task that is cancelled the moment it waits for the `number`th time."""
    steps = awaitable.__await__()
    step: Callable[[], Any] = partial(next, steps)
    count = 0
    while True:
        try:
            waiting = step()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        count += 1
        task = asyncio.current_task()
        if count == number and task is not None:
            task.cancel()
        try:
            yield waiting
            step = partial(next, steps)
        except BaseException as error:
            step = partial(steps.throw, error)


async def every_await(attempt: Callable[[int], Awaitable[Any]]) -> int:
    """Do it again and again, cancelled one await later each time, until it ends by itself; how often it took."""
    for number in range(1, 100):
        task = asyncio.ensure_future(_awaited(cancelled_at(attempt(number), number)))
        try:
            await soon(task)
            return number
        except asyncio.CancelledError:
            await at_rest()
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("how", ["publish", "publish_many", "publish_and_wait"])
async def test_a_cancelled_publish_is_there_whole_or_not_at_all(data: Folder, how: str) -> None:
    async with data.life() as broker:
        topic = broker.topic("t")

        async def attempt(number: int) -> None:
            if how == "publish_many":
                await topic.publish_many([b"%d" % number] * 3)
            elif how == "publish":
                await topic.publish(b"%d" % number)
            else:
                await topic.publish_and_wait(b"%d" % number)

        last = await every_await(attempt)
        await topic.publish(b"after")
        found = await stored(broker)
    assert found[-1] == b"after"
    for number in range(1, last + 1):
        times = found.count(b"%d" % number)
        assert times in ((0, 3) if how == "publish_many" else (0, 1))
    assert b"%d" % last in found
    async with data.life() as broker:
        assert await stored(broker) == found


async def test_cancelling_one_publish_harms_none_of_those_beside_it(data: Folder) -> None:
    async with data.life() as broker:
        for turns in range(5):
            publishers = [asyncio.ensure_future(broker.publish("t", b"%d" % number)) for number in range(9)]
            for _ in range(turns):
                await asyncio.sleep(0)
            publishers[4].cancel()
            results = await soon(asyncio.gather(*publishers, return_exceptions=True))
            others = results[:4] + results[5:]
            assert all(isinstance(result, runnel.Position) for result in others), others
            assert len(set(others)) == 8
        assert (await broker.publish("t", b"end")).offset in range(40, 46)


async def test_a_cancelled_wait_for_room_writes_nothing_and_lets_the_next_one_in(data: Folder) -> None:
    async with data.life(max_pending_bytes=1000) as broker:

        async def attempt(number: int) -> None:
            broker.topic("t").publish_nowait(bytes(2000))
            others = [asyncio.ensure_future(broker.publish("t", b"other%d" % number)) for _ in range(2)]
            await asyncio.sleep(0)
            try:
                await broker.publish("t", b"%d" % number)
            finally:
                await soon(asyncio.shield(asyncio.gather(*others)))

        last = await every_await(attempt)
        found = await stored(broker)
        for number in range(1, last + 1):
            assert found.count(b"other%d" % number) == 2
            assert found.count(b"%d" % number) <= 1
        assert b"%d" % last in found


async def test_a_cancelled_declare_or_delete_leaves_a_broker_that_works(data: Folder) -> None:
    async with data.life() as broker:
        await every_await(lambda number: broker.topic(f"declared{number}").declare())

        async def delete(number: int) -> None:
            await broker.publish("gone", b"x")
            await broker.delete("gone")

        await every_await(delete)
        await broker.publish("t", b"x")
        topics = await broker.topics()
        assert "t" in topics
        assert "gone" not in topics
    async with data.life() as broker:
        assert await broker.topics() == topics
        assert await stored(broker) == [b"x"]


@pytest.mark.parametrize("pattern", ["jobs", "*"])
async def test_cancelled_readers_and_members_lose_nothing(data: Folder, pattern: str) -> None:
    async with data.life(tail_bytes=1, segment_bytes=16 * 1024) as broker:
        await fill(broker, 20)

        async def reading(number: int) -> list[bytes]:
            async with broker.subscribe(pattern, name="n") as subscription:
                return await values(subscription, 20)

        last = await every_await(reading)
        assert last >= 1

        async def working(number: int) -> None:
            async with broker.subscribe(pattern, group="g", backoff=(0,), max_deliver=100) as deliveries:
                for _ in range(look(broker).lag):
                    delivery = await anext(deliveries)
                    await delivery.ack(durable=True)

        await every_await(working)
        assert look(broker).lag == 0
        assert look(broker).dead_lettered == 0


async def test_a_cancelled_durable_ack_is_an_ack(data: Folder) -> None:
    async with data.life() as broker:
        await fill(broker, 10)
        async with broker.subscribe("jobs", group="g", prefetch=10) as deliveries:
            held = await take(deliveries, 10)
            last = await every_await(lambda number: _awaited(held[number - 1].ack(durable=True)))
            assert look(broker).acked == last
    async with data.life() as broker:
        assert look(broker).lag == 10 - last


async def test_a_cancelled_opening_lets_the_folder_go(data: Folder) -> None:
    async with data.life() as broker:
        await broker.publish("t", b"x")
    entered: list[Broker] = []

    async def attempt(number: int) -> None:
        broker = data.open()
        await broker.__aenter__()
        entered.append(broker)

    await every_await(attempt)
    assert await stored(entered[0]) == [b"x"]
    entered[0].close()
    async with data.life() as broker:
        assert (await broker.publish("t", b"y")).offset == 1


async def test_a_task_that_is_cancelled_inside_the_block_closes_the_broker(data: Folder) -> None:
    acknowledged: list[bytes] = []

    async def program() -> None:
        async with data.life() as broker:
            number = 0
            while True:
                await broker.publish("t", b"%d" % number)
                acknowledged.append(b"%d" % number)
                number += 1

    for turns in (0, 1, 2, 3, 10, 100, 1000):
        task = asyncio.ensure_future(program())
        for _ in range(turns):
            await asyncio.sleep(0)
        before = len(acknowledged)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
        assert len(acknowledged) >= before
    async with data.life() as broker:
        found = await stored(broker) if "t" in await broker.topics() else []
    assert len(found) >= len(acknowledged)


# -- a broker that is closed in the middle ----------------------------------------------------------------------


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 10])
async def test_closing_with_publishes_in_flight_settles_every_one_of_them(data: Folder, turns: int) -> None:
    async with data.life() as broker:
        publishers = [
            asyncio.ensure_future(broker.topic("ab"[number % 2]).publish(b"%d" % number)) for number in range(50)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        broker.close()
        results = await soon(asyncio.gather(*publishers, return_exceptions=True))
    done = [number for number, result in enumerate(results) if isinstance(result, runnel.Position)]
    assert all(isinstance(result, runnel.Position | runnel.BrokerClosed) for result in results), results
    async with data.life() as broker:
        topics = await broker.topics()
        found = [value for topic in topics for value in await stored(broker, topic)]
    assert {b"%d" % number for number in done} <= set(found)
    if turns >= 1:
        assert len(done) == 50, "what was handed over before the close is published"


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_closing_while_publishers_wait_for_room_settles_every_one_of_them(data: Folder, turns: int) -> None:
    async with data.life(max_pending_bytes=1000) as broker:
        broker.topic("t").publish_nowait(bytes(2000))
        publishers = [asyncio.ensure_future(broker.publish("t", b"%d" % number)) for number in range(10)]
        for _ in range(turns):
            await asyncio.sleep(0)
        broker.close()
        results = await soon(asyncio.gather(*publishers, return_exceptions=True))
    assert all(isinstance(result, runnel.Position | runnel.BrokerClosed) for result in results), results
    async with data.life() as broker:
        found = await stored(broker)
    assert found[0] == bytes(2000)
    done = [b"%d" % number for number, result in enumerate(results) if isinstance(result, runnel.Position)]
    assert found[1:] == done


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_closing_in_the_middle_of_declaring_deleting_and_acking_blocks_no_caller(
    data: Folder, turns: int
) -> None:
    async with data.life() as broker:
        await fill(broker, 2)
        await broker.topic("gone").declare()
        async with broker.subscribe("jobs", group="g") as deliveries:
            held = await take(deliveries, 2)
            tasks = [
                asyncio.ensure_future(broker.topic("new").declare()),
                asyncio.ensure_future(broker.delete("gone")),
                asyncio.ensure_future(_awaited(held[0].ack(durable=True))),
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            broker.close()
            results = await soon(asyncio.gather(*tasks, return_exceptions=True))
            with pytest.raises(runnel.Ended):
                await soon(_awaited(held[1].ack(durable=True)))
    assert all(result is None or isinstance(result, runnel.BrokerClosed) for result in results), results
    async with data.life() as broker:
        assert look(broker).lag == 1
        topics = await broker.topics()
        assert ("new" in topics) >= (results[0] is None)
        assert ("gone" not in topics) >= (results[1] is None)


async def test_full_is_raised_where_publish_would_wait_for_the_journal(data: Folder) -> None:
    async with data.life(max_pending_bytes=1000) as broker:
        broker.topic("t").publish_nowait(bytes(2000))
        with pytest.raises(runnel.Full, match="the journal"):
            broker.topic("t").publish_nowait(b"x")
        async with running(broker.publish("t", b"y")) as publisher:
            assert (await soon(publisher)).offset == 1


async def test_a_reader_that_waits_when_the_journal_fails_still_ends_with_the_broker(disk: Disk) -> None:
    async with disk.open() as broker:
        async with broker.subscribe("t") as subscription:
            async with running(rest(subscription)) as reader:
                await broker.publish("t", b"a")
                disk.fails()
                with pytest.raises(OutcomeUnknown):
                    await broker.publish("t", b"b")
                broker.close()
                assert [record.value for record in await soon(reader)] == [b"a"]


async def test_a_folder_on_a_real_disk_that_fails(tmp_path: Path, clock: JumpingClock) -> None:
    disk = Disk(tmp_path / "data", clock)
    disk.storage = FaultyStorage(OsStorage(tmp_path / "data"))
    async with disk.open() as broker:
        await broker.publish("t", b"a")
        disk.fails(kinds=("sync",))
        with pytest.raises(OutcomeUnknown):
            await broker.publish("t", b"b")
    disk.recovers()
    async with disk.open() as broker:
        assert (await stored(broker))[0] == b"a"

"""Publishing from other threads and other loops."""

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import runnel
from runnel import Broker, Position
from tests.contract.afar import on_every_socket
from tests.contract.conftest import Place
from tests.contract.reading import at_rest, read, running, soon, values


async def in_thread(call: Any) -> Any:
    """Run a plain function in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, call)


async def test_publish_nowait_from_a_thread_wakes_a_reader(broker: Broker) -> None:
    topic = broker.topic("t")
    async with topic.subscribe() as subscription:
        async with running(values(subscription, 2)) as reader:
            await in_thread(lambda: topic.publish_nowait(b"a"))
            await in_thread(lambda: broker.topic("t").publish_nowait(b"b", key=b"k"))
            assert await soon(reader) == [b"a", b"b"]


@on_every_socket
async def test_nothing_is_lost_and_each_thread_keeps_its_order(broker: Broker) -> None:
    threads, each = 8, 2000
    topic = broker.topic("t")
    await topic.declare()
    begin = threading.Barrier(threads)

    def work(thread: int) -> None:
        begin.wait()
        for number in range(each):
            topic.publish_nowait(b"%d:%d" % (thread, number))

    async with topic.subscribe(buffer=threads * each) as subscription:
        with ThreadPoolExecutor(threads) as pool:
            loop = asyncio.get_running_loop()
            work_done = asyncio.gather(*(loop.run_in_executor(pool, work, thread) for thread in range(threads)))
            seen = await soon(values(subscription, threads * each))
            await work_done
    for thread in range(threads):
        mine = [int(value.split(b":")[1]) for value in seen if value.startswith(b"%d:" % thread)]
        assert mine == list(range(each))


async def test_a_single_record_of_each_of_many_threads_arrives(broker: Broker) -> None:
    topic = broker.topic("t")
    await topic.declare()
    async with topic.subscribe() as subscription:
        for _ in range(30):
            begin = threading.Barrier(4)

            def work(begin: threading.Barrier = begin) -> None:
                begin.wait()
                topic.publish_nowait(b"x")

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            assert len(await soon(read(subscription, 4))) == 4
            for thread in threads:
                thread.join()


async def test_another_loop_may_await_its_publish(broker: Broker) -> None:
    topic = broker.topic("t")
    await topic.declare()

    async def elsewhere() -> list[Any]:
        return [
            await topic.publish(b"a", key=b"k"),
            await broker.publish("t", b"b"),
            await topic.publish_many([b"c", b"d"]),
            await topic.publish_and_wait(b"e"),
        ]

    one, two, span, last = await in_thread(lambda: asyncio.run(elsewhere()))
    assert isinstance(one, Position)
    assert [one.offset, two.offset, span.first.offset, span.last.offset, last.offset] == [0, 1, 2, 3, 4]


async def test_what_a_thread_publishes_is_checked_in_that_thread(broker: Broker) -> None:
    await broker.topic("t").declare()
    with pytest.raises(runnel.InvalidValue):
        await in_thread(lambda: broker.topic("t").publish_nowait(5))  # type: ignore[arg-type]


def refusals(caplog: pytest.LogCaptureFixture) -> int:
    """How many records the log says were refused; a client logs those that went together in one line."""
    alone = caplog.text.count("a record that another thread published was refused")
    return alone + sum(
        map(int, re.findall(r"(\d+) records published without waiting to 't' were refused", caplog.text))
    )


async def test_a_record_that_is_refused_later_is_logged(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    await broker.topic("t", retention_count=5).declare()
    await in_thread(lambda: broker.topic("t", retention_count=6).publish_nowait(b"a"))
    await at_rest()
    assert refusals(caplog) == 1
    assert broker.statistics().published == 0


async def test_a_threads_records_wait_for_room_in_their_order(broker: Broker) -> None:
    topic = broker.topic("t")
    async with topic.subscribe(policy="block", buffer=2) as subscription:

        def work() -> None:
            for number in range(10):
                topic.publish_nowait(b"%d" % number)

        await in_thread(work)
        assert await soon(values(subscription, 10)) == [b"%d" % number for number in range(10)]


async def test_room_made_before_a_threads_record_is_queued_is_not_missed(broker: Broker) -> None:
    topic = broker.topic("t")
    async with topic.subscribe(policy="block", buffer=1) as subscription:
        await topic.publish(b"a")
        await read(subscription, 1)
        thread = threading.Thread(target=lambda: topic.publish_nowait(b"b"))
        thread.start()
        thread.join()  # it is posted; the loop takes it in its next turn, in which this task asks for more
        assert await soon(values(subscription, 1)) == [b"b"]


async def test_records_of_a_thread_that_never_found_room_are_refused_when_the_broker_closes(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with place.open() as broker:
        topic = broker.topic("t")
        async with topic.subscribe(policy="block", buffer=2):
            await topic.publish_many([b"a", b"a"])
            thread = threading.Thread(target=lambda: list(map(topic.publish_nowait, [b"b", b"c"])))
            thread.start()
            thread.join()
            broker.close()
            await at_rest()
    assert refusals(caplog) == 2


@on_every_socket
async def test_a_closed_broker_refuses_other_threads_too(place: Place) -> None:
    async with place.open() as broker:
        topic = broker.topic("t")
        await topic.publish(b"a")
    with pytest.raises(runnel.BrokerClosed):
        await in_thread(lambda: topic.publish_nowait(b"b"))
    with pytest.raises(runnel.BrokerClosed):
        await in_thread(lambda: asyncio.run(topic.publish(b"b")))


async def test_what_threads_handed_over_before_closing_is_published(place: Place) -> None:
    async with place.open() as broker:
        topic = broker.topic("t")
        await topic.declare()
        async with topic.subscribe() as subscription:
            thread = threading.Thread(target=lambda: topic.publish_nowait(b"a"))
            thread.start()
            thread.join()
            broker.close()
            assert await values(subscription, 1) == [b"a"]


async def test_a_subscription_belongs_to_the_brokers_own_thread(broker: Broker) -> None:
    await broker.topic("t").declare()

    async def elsewhere() -> None:
        async with broker.subscribe("t"):
            pass

    with pytest.raises(runnel.NotSupported, match="another thread"):
        await in_thread(lambda: asyncio.run(elsewhere()))


def test_a_broker_needs_a_running_loop() -> None:
    broker = runnel.open()
    with pytest.raises(runnel.NotSupported, match=r"runnel\.blocking"):
        broker.topic("t").publish_nowait(b"")

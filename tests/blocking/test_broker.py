"""runnel without asyncio: the same promises from plain threads."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest

import runnel
from runnel import blocking
from tests.patience import PATIENCE


class Order(msgspec.Struct):
    id: int


def test_a_script_publishes_and_reads_without_asyncio() -> None:
    with blocking.open() as broker, broker.subscribe("greetings") as greetings:
        position = broker.publish("greetings", "hello", key="k", headers={"from": "me"})
        record = greetings.receive(timeout=PATIENCE)
        assert (record.value, record.key, record.headers["from"]) == (b"hello", b"k", "me")
        assert record.position == position


def test_deleting_the_topic_ends_a_loop_in_another_thread_with_the_reason() -> None:
    with blocking.open() as broker:
        seen: list[bytes] = []
        told: list[runnel.TopicDeleted] = []
        entered = threading.Event()
        subscription = broker.subscribe("t")

        def read() -> None:
            with subscription as records:
                entered.set()
                try:
                    seen.extend(record.value for record in records)
                except runnel.TopicDeleted as error:
                    told.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert entered.wait(PATIENCE)
        broker.topic("t").publish_and_wait("one", timeout=PATIENCE)
        broker.delete("t")
        reader.join(PATIENCE)
    assert not reader.is_alive()
    assert seen == [b"one"]
    assert [error.topic for error in told] == ["t"]


def test_closing_the_broker_ends_a_loop_in_another_thread() -> None:
    seen: list[bytes] = []
    entered = threading.Event()
    with blocking.open() as broker:

        def read() -> None:
            with broker.subscribe("t", start="earliest") as records:
                entered.set()
                for record in records:
                    seen.append(record.value)
                    if len(seen) == 2:
                        both.set()

        both = threading.Event()
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        assert entered.wait(PATIENCE)
        broker.topic("t").publish_many([b"one", b"two"])
        assert both.wait(PATIENCE)
    reader.join(PATIENCE)
    assert not reader.is_alive()
    assert seen == [b"one", b"two"]


def test_receive_gives_up_after_its_time_and_loses_nothing() -> None:
    with blocking.open() as broker, broker.subscribe("t") as records:
        with pytest.raises(TimeoutError, match="nothing for"):
            records.receive(timeout=0.01)
        broker.publish("t", "late")
        assert records.receive(timeout=PATIENCE).value == b"late"


def test_batches_arrive_whole() -> None:
    with blocking.open() as broker, broker.subscribe("t") as records:
        first, last = broker.topic("t").publish_many([b"%d" % n for n in range(100)])
        batch = next(records.batches())
        assert batch.values == tuple(b"%d" % n for n in range(100))
        assert (batch[0].position, batch[-1].position) == (first, last)


def test_a_typed_topic_is_typed_here_too() -> None:
    with blocking.open() as broker:
        orders = broker.topic("orders", Order)
        with orders.subscribe() as records:
            orders.publish(Order(7))
            assert records.receive(timeout=PATIENCE).value == Order(7)
        with pytest.raises(runnel.ValidationFailed, match="id"):
            orders.publish(Order("seven"))  # type: ignore[arg-type]


def test_request_and_reply_between_two_threads() -> None:
    with blocking.open() as broker, broker.subscribe("add") as questions:

        def answer() -> None:
            question = questions.receive(timeout=PATIENCE)
            broker.reply(question, str(sum(map(int, question.value.split()))))

        worker = threading.Thread(target=answer)
        worker.start()
        assert broker.request("add", "1 2 3").value == b"6"
        worker.join()


def test_many_threads_publish_and_every_record_arrives_in_each_threads_order() -> None:
    with blocking.open() as broker, broker.subscribe("t", buffer=10_000) as records:
        topic = broker.topic("t")

        def publish(name: int) -> None:
            for n in range(500):
                topic.publish_nowait(f"{name} {n}")

        threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        got: list[bytes] = []
        for batch in records.batches():
            got.extend(batch.values)
            if len(got) == 2000:
                break
        for thread in threads:
            thread.join()
        for name in range(4):
            mine = [int(value.split()[1]) for value in got if value.startswith(b"%d " % name)]
            assert mine == list(range(500))


def test_topics_statistics_and_delete() -> None:
    with blocking.open() as broker:
        broker.publish("a", "1")
        broker.topic("b").declare()
        assert broker.topics() == ["a", "b"]
        assert broker.statistics().topics["a"].published == 1
        broker.topic("a").delete()
        assert broker.topics() == ["b"]


def test_a_closed_broker_says_so() -> None:
    with blocking.open() as broker:
        pass
    with pytest.raises(runnel.BrokerClosed):
        broker.publish("t", "x")


async def test_attach_reaches_a_broker_on_a_loop_from_a_thread() -> None:
    async with runnel.open() as broker, broker.subscribe("t") as records:
        attached = blocking.attach(broker)
        position = await asyncio.to_thread(attached.publish, "t", "from a thread")
        record = await anext(records)
        assert (record.value, record.position) == (b"from a thread", position)


async def test_blocking_on_the_loops_own_thread_is_refused_rather_than_hung() -> None:
    async with runnel.open() as broker:
        await broker.topics()
        with pytest.raises(runnel.WouldDeadlock):
            blocking.attach(broker).publish("t", "x")


def test_attaching_to_a_broker_without_a_loop_is_refused() -> None:
    with pytest.raises(runnel.NotSupported, match="enter it first"):
        blocking.attach(runnel.open())


def test_names_and_groups_are_forgotten() -> None:
    with blocking.open() as broker:
        with broker.subscribe("t", name="n"), broker.subscribe("t", group="g"):
            with pytest.raises(runnel.NameInUse):
                broker.forget("n")
        broker.forget("n")
        broker.forget_group("g", "t")
        with pytest.raises(runnel.UnknownGroup):
            broker.forget_group("g", "t")


def test_a_server_that_is_not_there_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with pytest.raises(runnel.Unreachable), blocking.open("runnel://127.0.0.1:1"):
        raise AssertionError("never reached")
    assert threading.active_count() == before


def test_the_child_of_a_fork_gets_an_error_and_exits_cleanly() -> None:
    with blocking.open() as broker:
        broker.publish("t", b"parent")
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            told = "nothing"
            try:
                signal.alarm(10)  # a child that hangs fails the test, and not the run
                broker.publish("t", b"child")
            except runnel.Forked:
                broker.__exit__(None, None, None)
                told = "forked"
            finally:
                os.write(writing, told.encode())
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read() == b"forked"
        assert broker.publish("t", b"parent").offset == 1


def test_dead_letters_are_put_back_and_discarded() -> None:
    with blocking.open() as broker:
        for value in ("one", "two", "three"):
            broker.publish("jobs", value)
        with broker.subscribe("jobs", group="g") as deliveries:
            for _ in range(3):
                deliveries.receive(timeout=PATIENCE).reject("bad")
        assert broker.replay("dead-letters.g", offsets=[1]) == 1
        assert broker.discard("dead-letters.g", [0]) == 1
        assert broker.discard("dead-letters.g") == 1
        assert broker.replay("dead-letters.g") == 0


def test_it_says_what_it_is_and_syncs(tmp_path: Path) -> None:
    with blocking.open(tmp_path, fsync="interval") as broker:
        broker.publish("t", b"1")
        broker.sync()
        assert (broker.is_durable, broker.info()["journal"]) == (True, broker.id)
        with pytest.raises(runnel.NotSupported):
            _ = broker.connection


def test_a_delivery_has_the_fields_of_its_record_and_can_be_replied_to() -> None:
    with blocking.open() as broker, broker.subscribe("square", group="g") as requests:
        replies: list[bytes] = []
        asking = threading.Thread(target=lambda: replies.append(broker.request("square", "12", key="k").value))
        asking.start()
        with requests.receive(timeout=PATIENCE) as delivery:
            record = delivery.record
            names = ("topic", "offset", "sequence", "epoch", "position", "key", "value", "headers", "time", "reply_to")
            assert [getattr(delivery, name) for name in names] == [getattr(record, name) for name in names]
            assert not delivery.settled
            assert broker.reply(delivery, 144)
        asking.join(PATIENCE)
    assert replies == [b"144"]

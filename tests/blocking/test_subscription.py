"""Subscriptions and groups without asyncio: waiting with a limit, settling from any thread."""

from __future__ import annotations

import contextlib
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import blocking
from tests.patience import PATIENCE


def test_workers_in_threads_share_the_work_and_every_job_is_done_once() -> None:
    done: list[bytes] = []
    finished = threading.Event()
    with blocking.open() as broker:
        with broker.subscribe("jobs", group="workers"):
            pass  # the group exists from here on
        broker.topic("jobs").publish_many([b"%d" % n for n in range(50)])

        def work() -> None:
            with broker.subscribe("jobs", group="workers", prefetch=2) as jobs:
                for job in jobs:
                    with job:
                        done.append(job.value)
                    if len(done) == 50:
                        finished.set()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert finished.wait(PATIENCE)
        until = time.monotonic() + PATIENCE
        while broker.statistics().groups[0].lag:  # the last acks may still be on their way
            assert time.monotonic() < until
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(map(int, done)) == list(range(50))


def test_a_block_that_raises_nacks_and_the_next_attempt_says_so() -> None:
    with blocking.open() as broker, broker.subscribe("jobs", group="g", backoff=[0]) as jobs:
        broker.publish("jobs", "fragile")
        first = jobs.receive(timeout=PATIENCE)
        with pytest.raises(RuntimeError, match="oops"), first:
            raise RuntimeError("oops")
        second = jobs.receive(timeout=PATIENCE)
        assert (second.value, second.attempt) == (b"fragile", 2)
        second.extend(60)
        second.reject("never")
        with pytest.raises(runnel.AlreadySettled):
            second.ack()
        with broker.subscribe("dead-letters.g", start="earliest") as letters:
            assert letters.receive(timeout=PATIENCE).headers["runnel-dead-letter-reason"] == "never"
        assert broker.replay("dead-letters.g") == 1
        third = jobs.receive(timeout=PATIENCE)
        assert (third.record.offset, third.attempt) == (1, 1)


def test_threads_that_share_a_subscription_get_every_record_once() -> None:
    found: list[bytes] = []
    with blocking.open() as broker:
        with broker.subscribe("t") as records:

            def read() -> None:
                with contextlib.suppress(runnel.SubscriptionEnded):
                    while True:
                        found.append(records.receive().value)

            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            for n in range(100):
                broker.publish("t", b"%d" % n)
            broker.topic("t").publish_and_wait(b"last", timeout=PATIENCE)
        # Before the broker is closed: a thread that asks it for more after that gets BrokerClosed.
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert sorted(found) == sorted([*(b"%d" % n for n in range(100)), b"last"])


def test_batches_of_deliveries_are_acked_with_one_call() -> None:
    with blocking.open() as broker, broker.subscribe("jobs", group="g") as jobs:
        broker.topic("jobs").publish_many([b"a", b"b", b"c"])
        batch = next(jobs.batches(max_wait=0.0))
        assert batch.values == (b"a", b"b", b"c")
        assert [delivery.value for delivery in batch] == [b"a", b"b", b"c"]
        batch.ack()
        assert broker.statistics().groups[0].lag == 0


def test_a_group_is_paused_resumed_and_reset() -> None:
    with blocking.open() as broker, broker.subscribe("jobs", group="g") as jobs:
        broker.pause("g", "jobs")
        broker.publish("jobs", "x")
        with pytest.raises(TimeoutError, match="nothing for"):
            jobs.receive(timeout=0.01)
        broker.resume("g", "jobs")
        jobs.receive(timeout=PATIENCE).ack()
        broker.reset("g", "jobs", "earliest")
        assert jobs.receive(timeout=PATIENCE).value == b"x"


def test_after_the_end_there_is_no_next_record() -> None:
    with blocking.open() as broker:
        with broker.subscribe("t") as records:
            pass
        with pytest.raises(runnel.SubscriptionEnded):
            records.receive(timeout=PATIENCE)


# -- a slice per crossing ---------------------------------------------------------------------------------------


def crossings(broker: blocking.Broker, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Filled with what is called on the event loop from now on."""
    made: list[object] = []
    run = broker._portal.run

    def counted(call: Any) -> Any:
        made.append(call)
        return run(call)

    monkeypatch.setattr(broker._portal, "run", counted)
    return made


@pytest.mark.parametrize("how", ["for", "receive"])
@pytest.mark.parametrize("group", [None, "g"])
def test_what_is_there_is_read_in_one_crossing(how: str, group: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    with blocking.open() as broker:
        subscription: Any = broker.subscribe("t", group=group)
        with subscription:
            broker.topic("t").publish_many([b"%d" % number for number in range(50)])
            made = crossings(broker, monkeypatch)
            records = iter(subscription) if how == "for" else iter(lambda: subscription.receive(1), None)
            assert [next(records).value for _ in range(50)] == [b"%d" % number for number in range(50)]
            assert len(made) == 1


def test_a_named_position_is_that_of_the_record_in_hand(tmp_path: Path) -> None:
    with blocking.open(tmp_path) as broker:
        broker.topic("t").publish_many([b"%d" % number for number in range(10)])
        with broker.subscribe("t", name="n") as records:
            assert [next(iter(records)).value for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        with broker.subscribe("t", name="n") as records:
            assert records.receive(1).value == b"3"  # it was in hand when the block was left


def test_a_blocking_policy_makes_room_record_by_record() -> None:
    with blocking.open() as broker:
        topic = broker.topic("t")
        with broker.subscribe("t", policy="block", buffer=2) as records:
            topic.publish_many([b"0", b"1"])
            iterator = iter(records)
            assert next(iterator).value == b"0"
            with pytest.raises(runnel.Full):
                broker._portal.call(lambda: topic._topic.publish_nowait(b"2"))
            assert next(iterator).value == b"1"
            topic.publish(b"2")  # the first is processed
            assert next(iterator).value == b"2"


def test_deliveries_that_were_not_handed_out_have_no_attempt() -> None:
    with blocking.open() as broker:
        with broker.subscribe("t", group="g", name="first", backoff=[0]) as deliveries:
            broker.topic("t").publish_many([b"%d" % number for number in range(4)])
            assert [delivery.value for delivery in islice(deliveries, 2)] == [b"0", b"1"]
        with broker.subscribe("t", group="g", backoff=[0]) as deliveries:
            found = sorted((delivery.value, delivery.attempt) for delivery in islice(deliveries, 4))
            assert found == [(b"0", 2), (b"1", 2), (b"2", 1), (b"3", 1)]


def test_values_of_a_thread_keep_their_order_over_topics() -> None:
    with blocking.open() as broker:
        topics = [broker.topic("t.a"), broker.topic("t.b")]
        with broker.subscribe("t.*", buffer=10_000) as records:
            for number in range(1_000):
                topics[number % 3 == 0].publish_nowait(b"%d" % number)
            found = [records.receive(5) for _ in range(1_000)]
        assert [int(record.value) for record in found] == list(range(1_000))
        assert [record.topic for record in found[:4]] == ["t.b", "t.a", "t.a", "t.b"]


def test_values_of_a_thread_wait_one_by_one_for_a_policy_that_blocks() -> None:
    with blocking.open() as broker:
        with broker.subscribe("t", policy="block", buffer=3) as records:
            topic = broker.topic("t")
            for number in range(100):
                topic.publish_nowait(b"%d" % number)
            assert [int(records.receive(5).value) for _ in range(100)] == list(range(100))


# -- A delivery without asyncio: settled once, from the thread that worked -----------------------------------


def test_a_delivery_is_acked_by_leaving_its_block() -> None:
    with blocking.open() as broker, broker.subscribe("jobs", group="g") as jobs:
        broker.publish("jobs", "x", key="k")
        with jobs.receive(timeout=PATIENCE) as job:
            assert (job.value, job.record.key, job.attempt) == (b"x", b"k", 1)
        assert broker.statistics().groups[0].acked == 1


def test_a_nacked_delivery_comes_back_and_a_rejected_one_does_not() -> None:
    with blocking.open() as broker, broker.subscribe("jobs", group="g", backoff=[0]) as jobs:
        broker.topic("jobs").publish_many([b"a", b"b"])
        first = jobs.receive(timeout=PATIENCE)
        first.nack(reason="not yet")
        jobs.receive(timeout=PATIENCE).ack()
        again = jobs.receive(timeout=PATIENCE)
        assert (again.value, again.attempt) == (b"a", 2)
        again.reject("never")
        with pytest.raises(TimeoutError):
            jobs.receive(timeout=0.01)


def test_rejecting_needs_a_reason_and_counts() -> None:
    with blocking.open() as broker, broker.subscribe("jobs", group="g") as jobs:
        broker.publish("jobs", "x")
        jobs.receive(timeout=PATIENCE).reject("bad")
        assert broker.statistics().groups[0].dead_lettered == 1


def test_a_delivery_of_a_member_that_left_is_too_late() -> None:
    with blocking.open() as broker:
        with broker.subscribe("jobs", group="g") as jobs:
            broker.publish("jobs", "x")
            job = jobs.receive(timeout=PATIENCE)
        with pytest.raises(runnel.LeaseEnded):
            job.ack()

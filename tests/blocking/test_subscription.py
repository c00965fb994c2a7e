"""Subscriptions and groups without asyncio: waiting with a limit, settling from any thread."""

from __future__ import annotations

import contextlib
import threading
import time

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

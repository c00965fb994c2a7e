"""A delivery without asyncio: settled once, from the thread that worked."""

from __future__ import annotations

import pytest

import runnel
from runnel import blocking
from tests.patience import PATIENCE


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

"""A topic's handle without asyncio."""

from __future__ import annotations

import pytest

import runnel
from runnel import blocking
from tests.patience import PATIENCE


def test_a_handle_declares_publishes_and_deletes() -> None:
    with blocking.open(auto_create=False) as broker:
        topic = broker.topic("t", retention_count=5)
        with pytest.raises(runnel.UnknownTopic):
            topic.publish("x")
        topic.declare()
        assert (topic.name, topic.publish("x").offset) == ("t", 0)
        first, last = topic.publish_many(["y", "z"])
        assert (first.offset, last.offset) == (1, 2)
        topic.delete()
        assert broker.topics() == []


def test_publish_nowait_hands_over_and_a_later_call_sees_it() -> None:
    with blocking.open() as broker:
        topic = broker.topic("t")
        topic.declare()
        topic.publish_nowait(b"x")
        assert topic.publish("y").offset == 1


def test_publish_and_wait_names_the_staller() -> None:
    with blocking.open() as broker, broker.subscribe("t", name="sleepy", start="latest"):
        with pytest.raises(runnel.Stalled, match="sleepy"):
            broker.topic("t").publish_and_wait("x", timeout=0.01)


def test_a_handle_subscribes_with_its_type() -> None:
    with blocking.open() as broker:
        numbers = broker.topic("n", int)
        with numbers.subscribe() as records:
            numbers.publish(7)
            assert records.receive(timeout=PATIENCE).value == 7


def test_a_handle_joins_a_group_with_its_type() -> None:
    with blocking.open() as broker:
        numbers = broker.topic("n", int)
        with numbers.subscribe(group="g") as jobs:
            numbers.publish(7)
            with jobs.receive(timeout=PATIENCE) as job:
                assert job.value == 7
        assert broker.statistics().groups[0].acked == 1


def test_a_handle_trims() -> None:
    with blocking.open() as broker:
        topic = broker.topic("t")
        topic.publish_many(["x"] * 5)
        assert topic.trim(3) == 3
        with topic.subscribe(start="earliest") as records:
            assert records.receive(timeout=PATIENCE).offset == 3

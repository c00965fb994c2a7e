"""A producer without asyncio."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import runnel
from runnel import blocking
from runnel.core.errors import StageEnded
from tests.patience import PATIENCE


def test_a_producer_publishes_once_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    with blocking.open(tmp_path) as broker:
        producer = broker.producer("import")
        first = producer.publish("t", b"a", sequence=0)
        span = producer.publish_many("t", [b"b", b"c"])
        assert producer.publish("t", b"a", sequence=0) == first
        assert (span.last.offset, producer.next) == (2, 3)
    with blocking.open(tmp_path) as broker:
        producer = broker.producer("import")
        assert producer.next == 3
        assert producer.publish_many("t", [b"b", b"c"], sequence=1) == span
        with pytest.raises(runnel.SequenceGap):
            producer.publish("t", b"x", sequence=4)


def test_it_takes_typed_handles() -> None:
    with blocking.open() as broker:
        numbers = broker.topic("n", int)
        producer = broker.producer()
        producer.publish(numbers, 5)
        with numbers.subscribe(start="earliest") as found:
            assert found.receive(timeout=PATIENCE).value == 5
        with pytest.raises(runnel.ValidationFailed):
            producer.publish(numbers, "five")


def test_it_says_who_it_is() -> None:
    with blocking.open() as broker:
        producer = broker.producer("n")
        assert (producer.name, producer.id) == ("n", broker.producer("n").id)
        assert repr(producer) == "<Blocking <Producer 'n'>>"


# -- Staging without asyncio ---------------------------------------------------------------------------------


class Order(msgspec.Struct):
    id: int


def test_what_is_staged_is_seen_when_it_is_committed(tmp_path: Path) -> None:
    with blocking.open(tmp_path) as broker:
        orders = broker.topic("orders", Order)
        stage = broker.stage(orders, writer="w", batch=1, part=2, attempt=3)
        other = broker.stage("t", writer="w", batch=1)
        assert (stage.records, stage.topic, stage.key) == (0, "orders", ("w", 1, 2, 3))
        assert stage.write([Order(1), Order(2)], keys=["a", "b"]) == 2
        assert other.write([b"x"]) == 1
        assert (stage.records, stage.bytes > 0) == (2, True)
        assert [info.key for info in broker.stages()] == [other.key, stage.key]
        assert "'orders'" in repr(stage)
        with broker.transaction() as tx:
            first, second = tx.commit(stage, other.key)
        assert (first.span.last.offset, second.position.offset) == (1, 0)
        with orders.subscribe(start="earliest") as subscription:
            assert [subscription.receive(timeout=PATIENCE).value for _ in range(2)] == [Order(1), Order(2)]


def test_a_stage_can_be_given_up(tmp_path: Path) -> None:
    with blocking.open(tmp_path) as broker:
        stage = broker.stage("t", writer="w", batch=1)
        stage.write([b"x"])
        stage.drop()
        assert broker.stages() == []
        with pytest.raises(StageEnded, match="it was dropped"):
            stage.write([b"y"])

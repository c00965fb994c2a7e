"""A producer without asyncio."""

from __future__ import annotations

from pathlib import Path

import pytest

import runnel
from runnel import blocking
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

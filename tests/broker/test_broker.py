"""The broker itself: what it ties together."""

import pytest

import runnel
from runnel.broker.broker import Broker
from runnel.core.errors import NotSupported


async def test_a_pattern_that_never_reads_survives_the_compaction_of_the_timeline() -> None:
    async with Broker() as broker, broker.subscribe("*", buffer=10) as subscription:
        for number in range(3000):
            name = f"t{number % 3}"
            broker.topic(name, retention_count=1).publish_nowait(b"%d" % number)
        broker.close()
        records = [record async for record in subscription]
    missed = sum(record.gap.count or 0 for record in records if record.gap)
    assert missed + len(records) == 3000
    assert [record.value for record in records] == [b"2997", b"2998", b"2999"]


async def test_it_says_what_it_is() -> None:
    broker = Broker()
    async with broker, broker.subscribe("t"):
        assert repr(broker) == "<Broker in memory, open, 1 topics, 1 readers>"
    assert "closed" in repr(broker)


def test_without_a_loop_it_says_what_to_use() -> None:
    with pytest.raises(NotSupported, match=r"runnel\.blocking"):
        runnel.open().topic("t").publish_nowait(b"x")

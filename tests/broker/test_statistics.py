"""The sums behind the snapshot."""

import pytest

from runnel.broker.broker import Broker
from runnel.broker.statistics import ANONYMOUS, Totals, snapshot


async def test_totals_sum_by_pattern_and_name() -> None:
    async with Broker() as broker:
        totals = Totals()
        async with broker.subscribe("t", name="n", start="latest", buffer=2) as named, broker.subscribe("t") as other:
            await broker.topic("t").publish_many([b""] * 5)
            await anext(named.batches())
            await anext(other.batches())
            for one in (named, other, other):
                totals.add(one)
    assert totals.delivered == {("t", "n"): 2, ("t", ANONYMOUS): 10}
    assert totals.dropped == {("t", "n"): 3, ("t", ANONYMOUS): 0}


async def test_requests_leave_no_trace_in_the_totals() -> None:
    async with Broker() as broker:
        for _ in range(3):
            async with broker.subscribe("$runnel.x.>"):
                pass
        assert broker.ended.delivered == {}
        assert snapshot(broker).flowed == {}


async def test_a_snapshot_counts_what_was_published_the_short_way() -> None:
    async with Broker() as broker:
        topic = broker.topic("t")
        for _ in range(10):
            topic.publish_nowait(b"abc")
        found = snapshot(broker)
        assert (found.published, found.published_bytes, found.topics["t"].kept_bytes) == (10, 30, 30)


async def test_counters_never_go_back() -> None:
    async with Broker() as broker:
        last = (0, 0, 0)
        for _ in range(3):
            async with broker.subscribe("t", buffer=2, buffer_bytes=5) as subscription:
                await broker.topic("t").publish_many([b"xyz"] * 4)
                last = rising(broker, last)
                await anext(subscription)
                last = rising(broker, last)
                await broker.topic("t").publish_many([b"xyz"] * 4)
                await broker.delete("t")
                last = rising(broker, last)
            last = rising(broker, last)


def rising(broker: Broker, last: tuple[int, int, int]) -> tuple[int, int, int]:
    found = snapshot(broker)
    now = (found.published, found.delivered, found.dropped)
    assert all(after >= before for after, before in zip(now, last, strict=True)), (last, now)
    return now


async def test_a_snapshot_is_frozen() -> None:
    async with Broker() as broker:
        await broker.publish("t", b"")
        found = snapshot(broker)
        with pytest.raises(AttributeError):
            found.topics["t"].published = 5  # type: ignore[misc]

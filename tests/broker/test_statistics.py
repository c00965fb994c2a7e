"""The sums behind the snapshot."""

import pytest

from runnel.api.broker import Broker
from runnel.broker.statistics import snapshot
from tests.brokers import local_broker


async def test_totals_sum_by_pattern_and_name() -> None:
    async with local_broker() as broker:
        for name in (None, None, "me"):
            async with broker.subscribe("t", name=name, start="latest") as records:
                await broker.publish("t", b"x")
                await anext(records)
        sums = broker.statistics().flowed
        assert (sums["t", "anonymous"].delivered, sums["t", "me"].delivered) == (2, 1)


async def test_the_totals_stay_small_and_lose_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.broker.totals.MAX_FLOWS", 2)
    async with local_broker() as broker:
        for topic in ("a", "b", "c", "d", "a"):
            async with broker.subscribe(topic) as records:
                await broker.publish(topic, b"x")
                await anext(records)
        async with broker.subscribe("e") as still_open:
            await broker.publish("e", b"x")
            await anext(still_open)
            await broker.publish("e", b"x")
            found = broker.statistics()
    delivered = {key: sums.delivered for key, sums in found.flowed.items()}
    assert delivered == {("a", "anonymous"): 2, ("b", "anonymous"): 1, ("(other)", "(other)"): 3}
    assert found.flowed["(other)", "(other)"].lag == 1
    assert found.delivered == 6


async def test_requests_leave_no_trace_in_the_totals() -> None:
    async with local_broker() as broker:
        for _ in range(3):
            async with broker.subscribe("$runnel.x.>"):
                pass
        assert broker.statistics().flowed == {}


async def test_a_snapshot_counts_what_was_published_the_short_way() -> None:
    async with local_broker() as broker:
        topic = broker.topic("t")
        for _ in range(10):
            topic.publish_nowait(b"abc")
        found = snapshot(broker.backend)
        assert (found.published, found.published_bytes, found.topics["t"].kept_bytes) == (10, 30, 30)


async def test_counters_never_go_back() -> None:
    async with local_broker() as broker:
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
    found = snapshot(broker.backend)
    now = (found.published, found.delivered, found.dropped)
    assert all(after >= before for after, before in zip(now, last, strict=True)), (last, now)
    return now


async def test_a_snapshot_is_frozen() -> None:
    async with local_broker() as broker:
        await broker.publish("t", b"")
        found = snapshot(broker.backend)
        with pytest.raises(AttributeError):
            found.topics["t"].published = 5  # type: ignore[misc]

"""Lag on a cluster counts records, though a message holds many, and offsets have holes."""

import asyncio
import time

import pytest

from runnel.cluster import counting
from runnel.cluster.reader import ClusterReader
from tests.cluster.single import open_cluster
from tests.cluster.test_removed import read, soon


async def test_subscriptions_names_and_groups_lag_by_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_cluster() as broker:
        topic = broker.topic("t")
        keys = [b"k%d" % (number % 5) for number in range(100)]
        async with topic.subscribe(group="g", prefetch=1):
            pass
        await topic.publish_many([b"x"] * 100, keys=keys)
        await broker.publish("other", b"x")
        async with broker.subscribe("t", name="me") as records:
            await read(records, 31)  # the last one is in hand
        found = await soon(broker.backend.snapshot())
        assert {one.name: one.lag for one in found.cursors} == {"me": 70}
        assert [(one.name, one.lag, one.in_flight) for one in found.groups] == [("g", 100, 0)]
        async with topic.subscribe(group="g", prefetch=4) as deliveries:
            await soon(anext(deliveries))
            async with topic.subscribe(start="earliest"):
                (reader,) = [one for one in broker.backend._readers.open if isinstance(one, ClusterReader)]
                assert reader._consumer is not None
                reader._consumer.pause()
                await topic.publish_many([b"y"] * 50)
                found = await soon(broker.backend.snapshot())
                assert found.groups[0].lag == 150
                assert 0 < found.groups[0].in_flight <= 150
                (own,) = found.subscriptions
                assert own.lag == 150
        monkeypatch.setattr(counting, "MOST", 3)
        filters = [broker.backend.js.subjects.every_bucket("t")]
        counted = await counting.count_records(broker.backend.js, filters, 1)
        assert counted.messages == 6
        assert 100 < counted.records < 250, "the first messages say how many records the others have, about"


async def test_a_group_says_how_old_its_oldest_unsettled_record_is_and_a_member_when_it_acked() -> None:
    async with open_cluster() as broker:
        began = time.time()
        async with broker.subscribe("t", group="g", prefetch=1) as deliveries:
            await broker.topic("t").publish_many([b"1", b"2"], keys=["a", "b"])
            await (await soon(anext(deliveries))).ack(durable=True)
            second = await soon(anext(deliveries))
            await asyncio.sleep(0.2)  # it becomes older
            (group,) = (await soon(broker.backend.snapshot())).groups
            assert 0.2 <= group.oldest_unacked_age <= time.time() - began
            assert began <= group.members[0].last_ack <= time.time()
            await second.ack(durable=True)
            assert (await soon(broker.backend.snapshot())).groups[0].oldest_unacked_age == 0


async def test_the_last_records_of_a_topic_are_found_among_many_of_others() -> None:
    async with open_cluster() as broker:
        for number in range(6):
            await broker.publish("t", b"%d" % number)
        for _ in range(200):
            await broker.publish("other", b"x")
        await broker.publish("t", b"6")
        for count, expected in ((1, [b"6"]), (3, [b"4", b"5", b"6"]), (50, [b"%d" % number for number in range(7)])):
            page = await soon(broker.backend.history("t", -count, count, 1 << 20))
            assert [record.value for record in page.records] == expected

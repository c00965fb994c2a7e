"""What is gone from a cluster: gaps of readers that missed it, units that lost a part, removals beside publishes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

import runnel
from runnel import Broker, Position, Record
from tests.cluster.single import new_stream, open_cluster
from tests.patience import PATIENCE

T = TypeVar("T")


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, PATIENCE)


async def read(subscription: AsyncIterator[Any], count: int) -> list[Record[bytes]]:
    return [await soon(anext(subscription)) for _ in range(count)]


async def until(condition: Any) -> None:
    """Return when an awaitable condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def filled(broker: Broker, count: int = 6) -> list[Position]:
    return [await broker.publish("t", b"%d" % number) for number in range(count)]


async def test_a_reader_whose_position_was_trimmed_gets_a_gap() -> None:
    stream = new_stream()
    async with open_cluster(stream) as broker:
        at = await filled(broker)
        async with broker.subscribe("t", name="me") as records:
            await read(records, 2)  # the second is in hand
        await broker.topic("t").trim(at[4].offset)
        starts: list[dict[str, Any]] = [{"name": "me"}, {"start": at[1]}, {"start": at[1].offset}]
        for start in starts:
            async with broker.subscribe("t", **start) as records:
                (record,) = await read(records, 1)
                assert (record.value, record.gap is not None) == (b"4", True), start
                assert record.gap is not None
                assert (record.gap.first, record.gap.end) == (at[1].offset, at[4].offset)
                assert "no longer kept" in record.gap.reason
                assert (await read(records, 1))[0].gap is None


async def test_nothing_missed_is_no_gap_though_all_that_was_read_is_gone() -> None:
    async with open_cluster() as broker:
        at = await filled(broker)
        async with broker.subscribe("t", name="me") as records:
            await read(records, 5)
        await broker.topic("t").trim(at[5].offset)
        starts: list[dict[str, Any]] = [{"start": at[5]}, {"start": "earliest"}, {"start": at[4].offset + 1}]
        for start in starts:
            async with broker.subscribe("t", **start) as records:
                assert [(one.value, one.gap) for one in await read(records, 1)] == [(b"5", None)], start


async def test_a_reader_of_a_topic_that_was_trimmed_to_nothing_gets_a_gap_with_the_next_record() -> None:
    stream = new_stream()
    async with open_cluster(stream) as broker:
        at = await filled(broker)
        assert await broker.topic("t").trim(at[-1].offset + 1) == at[-1].offset + 1
        (bounds,) = await broker.bounds("t")
        assert (bounds.first, bounds.end) == (at[-1].offset + 1, at[-1].offset + 1)
    async with open_cluster(stream) as broker:  # another process: it knows nothing of the earlier units
        async with broker.subscribe("t", start=at[2]) as behind, broker.subscribe("t", start=at[-1].offset + 1) as even:
            await broker.publish("t", b"new")
            (record,) = await read(behind, 1)
            assert record.gap is not None
            assert (record.gap.first, record.gap.end) == (at[2].offset, at[-1].offset + 1)
            assert (await read(even, 1))[0].gap is None


async def test_an_open_reader_that_lags_behind_retention_gets_the_number_of_records_it_missed() -> None:
    async with open_cluster() as broker:
        topic = broker.topic("t")
        async with topic.subscribe(start="earliest") as records:
            await topic.publish_many([b"a", b"b"])
            assert [record.value for record in await read(records, 2)] == [b"a", b"b"]
            reader = next(iter(broker.backend._readers.open))
            reader._consumer.pause()  # nothing more reaches it, as behind a slow network
            await topic.publish_many([b"c", b"d", b"e"])
            last = await broker.publish("t", b"f")
            await topic.trim(last.offset)
            reader._consumer.resume()
            (record,) = await read(records, 1)
            assert (record.value, record.gap and record.gap.count) == (b"f", 3)


async def test_records_past_their_retention_are_a_gap_and_expired_ones_are_not() -> None:
    async with open_cluster() as broker:
        topic = broker.topic("t", retention_age=1)
        old = await topic.publish(b"old")
        await topic.publish(b"older than its reader")
        plain = await broker.publish("u", b"a")
        await broker.publish("u", b"b", expires=0.5)

        async def is_empty() -> bool:
            found = await broker.bounds(">")
            return [one.end - one.first for one in found] == [0, 1]

        await until(is_empty)
        async with topic.subscribe(start=old) as records, broker.subscribe("u", start=plain.offset + 1) as others:
            await topic.publish(b"new")
            await broker.publish("u", b"c")
            (record,) = await read(records, 1)
            assert record.value == b"new"
            assert record.gap is not None
            assert [(one.value, one.gap) for one in await read(others, 1)] == [(b"c", None)]


async def test_a_delayed_record_goes_when_its_retention_says_so() -> None:
    async with open_cluster() as broker:
        await broker.topic("t", retention_age=1).publish(b"late", delay=0.1)

        async def has(messages: int) -> bool:
            found = await broker.backend.js.last(broker.backend.js.subjects.every_bucket("t"))
            return (found is not None) == bool(messages)

        await until(lambda: has(1))
        await until(lambda: has(0))


async def test_a_unit_that_lost_a_part_is_delivered_and_its_pages_end() -> None:
    async with open_cluster() as broker:
        # Two keys of different buckets, published in one iteration: one unit of two messages, of which the last goes.
        await asyncio.gather(
            broker.publish("t", b"stays", key=b"a"), broker.publish("t", b"goes", key=b"b", expires=0.5)
        )
        js = broker.backend.js
        last = await js.last(js.subjects.every_bucket("t"))
        assert last is not None
        assert b",1,2,2,1," in last.head

        async def is_gone() -> bool:
            found = await js.last(js.subjects.every_bucket("t"))
            return found is not None and found.sequence < int(last.sequence)

        await until(is_gone)
        async with broker.subscribe("t", start="earliest") as records:
            assert [record.value for record in await read(records, 1)] == [b"stays"]
        page = await soon(broker.backend.history("t", "earliest", 10, 1 << 20))
        assert [record.value for record in page.records] == [b"stays"]


async def test_what_is_published_while_a_topic_is_trimmed_or_deleted_stays() -> None:
    stream = new_stream()
    async with open_cluster(stream) as broker, open_cluster(stream) as other:
        at = await filled(broker)
        purge = broker.backend.js.purge

        async def late_purge(subject: str, *, before: int | None = None) -> None:
            broker.backend.js.purge = purge
            await until(lambda: asyncio.sleep(0, other.backend.has_topic("t") == broker.backend.has_topic("t")))
            await other.publish("t", b"meanwhile")
            await purge(subject, before=before)

        broker.backend.js.purge = late_purge
        await broker.topic("t").trim(datetime.now(UTC) + timedelta(days=1))
        async with broker.subscribe("t", start="earliest") as records:
            assert [record.value for record in await read(records, 1)] == [b"meanwhile"]
        broker.backend.js.purge = late_purge
        await broker.topic("t").delete()
        async with other.subscribe("t", start="earliest") as records:
            (record,) = await read(records, 1)
            assert (record.value, record.epoch > at[0].epoch) == (b"meanwhile", True)


async def test_a_record_that_a_publisher_wrote_into_the_earlier_life_of_a_topic_is_not_read() -> None:
    stream = new_stream()
    async with open_cluster(stream) as broker, open_cluster(stream) as late:
        at = await filled(broker, 1)
        await late.publish("t", b"before")
        entry = late.backend._catalog.get("t")
        await broker.topic("t").delete()
        new = await broker.publish("t", b"new")
        late.backend._catalog.get = lambda topic: entry  # it has not heard of the deletion
        late.backend.publishing.source("t", entry.options, None)
        stale = await late.publish("t", b"stale")
        assert (stale.epoch, new.epoch > stale.epoch) == (at[0].epoch, True)
        await broker.publish("t", b"newer")
        async with broker.subscribe("t", start="earliest") as records:
            assert [record.value for record in await read(records, 2)] == [b"new", b"newer"]
        async with broker.subscribe("t", group="g") as deliveries:
            assert [delivery.value for delivery in await read(deliveries, 2)] == [b"new", b"newer"]


async def test_a_message_id_counts_for_one_life_of_its_topic() -> None:
    async with open_cluster() as broker:
        first = await broker.publish("t", b"old", message_id="1")
        assert await broker.publish("t", b"again", message_id="1") == first
        await broker.delete("t")
        await broker.publish("t", b"new", message_id="1")
        async with broker.subscribe("t", start="earliest") as records:
            assert [record.value for record in await read(records, 1)] == [b"new"]


async def test_a_position_whose_answer_was_lost_is_not_taken_for_another_reader() -> None:
    stream = new_stream()
    async with open_cluster(stream) as broker:
        await filled(broker)
        async with broker.subscribe("t", name="me") as records:
            await read(records, 2)
            await broker.backend.flushed()
            reader = next(iter(broker.backend._readers.open))
            assert reader._kept
            reader._kept -= 1  # the answer to the last write never came
            await read(records, 3)
            await broker.backend.flushed()
            assert (await read(records, 1))[0].value == b"5"
        async with open_cluster(stream) as other, other.subscribe("t", name="me") as records:
            assert (await read(records, 1))[0].value == b"5"


async def test_closing_says_that_a_publish_that_was_sent_may_be_stored() -> None:
    async with open_cluster(close_timeout=0.05) as broker:
        await broker.publish("t", b"a")

        async def never(*_: Any) -> Any:
            await asyncio.Event().wait()

        broker.backend.js.store = never
        sent = asyncio.ensure_future(broker.publish("t", b"sent"))

        async def is_sent() -> bool:
            queue = broker.backend.publishing.queues.get("t")
            return queue is not None and queue.units[0].is_sent

        await until(is_sent)
        waits = asyncio.ensure_future(broker.publish("t", b"waits"))
        await asyncio.sleep(0)
    with pytest.raises(runnel.OutcomeUnknown):
        await sent
    with pytest.raises(runnel.BrokerClosed):
        await waits


async def test_a_slow_reader_of_a_pattern_gets_a_gap_though_another_topic_came_behind_what_was_trimmed() -> None:
    stream = new_stream()
    async with open_cluster(stream) as broker, open_cluster(stream, credit=1) as slow:
        async with slow.subscribe("a.*") as records:
            for _ in range(30):
                last = await broker.publish("a.x", bytes(100_000))
            seen = await read(records, 1)
            await broker.topic("a.x").trim(last.offset + 1)
            await broker.publish("a.y", b"between")
            await broker.publish("a.x", b"the end")
            while seen[-1].value != b"the end":
                seen += await read(records, 1)
        missed = [record.gap.count or 0 for record in seen if record.gap is not None]
        assert len(seen) + sum(missed) == 32
        assert len(seen) < 32, "some were trimmed before they were received"

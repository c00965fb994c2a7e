"""A subscription: how it sleeps, is woken, ends, and where it stands meanwhile."""

import asyncio

import pytest

from runnel.core.backend import SLICE
from runnel.core.errors import RunnelError
from runnel.testing.clock import JumpingClock
from tests.brokers import local_broker


async def test_a_sleeping_reader_is_woken_once_per_run() -> None:
    async with local_broker() as broker, broker.subscribe("t") as subscription:
        reading = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        log = broker.backend.catalog.logs["t"]
        assert log.topic_readers is not None
        assert [*map(id, log.topic_readers.parked)] == [id(subscription._source)]
        broker.topic("t").publish_nowait(b"x")
        assert log.topic_readers.parked == {}
        assert (await reading).value == b"x"


async def test_a_position_is_that_of_the_record_in_hand() -> None:
    async with local_broker() as broker, broker.subscribe("t") as subscription:
        await broker.topic("t").publish_many([b"a", b"b"])
        assert subscription.position == 0
        for offset in (0, 1):
            await anext(subscription)
            assert subscription.position == offset
        reading = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        assert subscription.position == 2
        reading.cancel()


async def test_a_long_history_lets_others_run() -> None:
    async with local_broker() as broker:
        topic = broker.topic("t", retention_count=5 * SLICE)
        for _ in range(5):
            await topic.publish_many([b"x"] * SLICE)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(tick())
        async with topic.subscribe(start="earliest", buffer=5 * SLICE) as subscription:
            for _ in range(5 * SLICE):
                await anext(subscription)
        other.cancel()
        assert ticks >= 3


async def test_giving_up_on_a_patient_batch_calls_its_timer_off() -> None:
    clock = JumpingClock()
    async with local_broker(clock=clock) as broker, broker.subscribe("t") as subscription:
        await broker.publish("t", b"x")
        reading = asyncio.ensure_future(anext(subscription.batches(max_records=5, max_wait=60)))
        await asyncio.sleep(0)
        assert not reading.done()
        reading.cancel()
        await asyncio.wait([reading])
        assert all(timer.callback is None for _, _, timer in clock._timers)
        broker.close()
        assert len(await anext(subscription.batches(max_records=5, max_wait=60))) == 1


async def test_an_error_in_the_middle_of_a_batch_in_hand_does_not_take_it_away() -> None:
    async with local_broker() as broker, broker.subscribe("t") as subscription:
        await broker.topic("t").publish_many([b"a", b"b"])
        batch = await anext(subscription.batches())
        subscription._source.end(RunnelError("over"))
        assert batch.values == (b"a", b"b")
        with pytest.raises(RunnelError, match="over"):
            subscription.batches()


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize(("buffer", "buffer_bytes", "missing"), [(10, 1000, 4), (100, 100, 4), (8, 75, 7)])
async def test_a_publisher_goes_on_as_soon_as_its_records_fit(
    pattern: str, buffer: int, buffer_bytes: int, missing: int
) -> None:
    async with (
        local_broker() as broker,
        broker.subscribe(pattern, policy="block", buffer=buffer, buffer_bytes=buffer_bytes) as subscription,
    ):
        topic = broker.topic("t")
        for _ in range(7):
            await topic.publish(b"0123456789")
        first = [await anext(subscription)]
        publishing = asyncio.ensure_future(topic.publish_many([b"0123456789"] * 7))
        for done in range(1, missing + 1):
            await asyncio.sleep(0)
            assert not publishing.done(), f"{done - 1} records are done with"
            first.append(await anext(subscription))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert publishing.done()
        assert [record.offset for record in first] == [*range(missing + 1)]


@pytest.mark.parametrize("policy", ["block", "drop_newest", "disconnect"])
async def test_publishing_beside_a_bounded_reader_of_a_pattern_takes_the_fast_path(policy: str) -> None:
    async with local_broker() as broker, broker.subscribe("*", policy=policy, buffer=100) as subscription:
        topic = broker.topic("t")
        for at in range(100):
            topic.publish_nowait(b"%d" % at)
        log = broker.backend.catalog.logs["t"]
        assert len(log.runs) == 1, "no publish closed the run for a look at the reader"
        assert subscription.lag == 100
        assert [(await anext(subscription)).value for _ in range(100)] == [b"%d" % at for at in range(100)]

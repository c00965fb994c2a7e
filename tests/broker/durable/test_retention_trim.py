"""Taking records away because somebody asked: in every backend, by offset and by time, told as a gap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.testing import JumpingClock
from tests.broker.durable_broker import Disk, journal_of, open_on


@pytest.fixture(params=["memory", "tail", "disk"])
def broker(request: pytest.FixtureRequest, disk: Disk, tmp_path: Path, clock: JumpingClock) -> Broker:
    if request.param == "memory":
        return runnel.open(clock=clock)
    return open_on(disk, tmp_path, clock, tail_bytes=1 if request.param == "disk" else 1 << 20)


async def offsets(broker: Broker, count: int) -> list[int]:
    found: list[int] = []
    async with broker.subscribe("t", start="earliest") as records:
        while len(found) < count:
            found.append((await anext(records)).offset)
    return found


async def test_what_lies_before_an_offset_goes_and_the_rest_stays(broker: Broker) -> None:
    async with broker:
        topic = broker.topic("t")
        for _ in range(10):
            await topic.publish(b"x")
        assert await topic.trim(4) == 4
        assert await offsets(broker, 6) == [4, 5, 6, 7, 8, 9]
        assert await topic.trim(2) == 4, "nothing comes back"
        assert await topic.trim(10) == 10
        assert (await topic.publish(b"y")).offset == 10
        assert await offsets(broker, 1) == [10]


async def test_what_is_older_than_a_time_goes(broker: Broker, clock: JumpingClock) -> None:
    began = datetime.fromtimestamp(clock.time(), UTC)
    async with broker:
        topic = broker.topic("t")
        for _ in range(5):
            await topic.publish(b"x")
            await clock.advance(10)
        assert await topic.trim(began + timedelta(seconds=20)) == 2
        assert await topic.trim(began + timedelta(seconds=21)) == 3
        assert await topic.trim(began + timedelta(days=1)) == 5


async def test_a_reader_that_had_not_read_them_gets_the_reason_of_their_removal(broker: Broker) -> None:
    async with broker:
        topic = broker.topic("t")
        async with topic.subscribe(start="earliest") as records:
            for _ in range(6):
                await topic.publish(b"x")
            await topic.trim(4)
            record = await anext(records)
        assert (record.offset, record.gap) == (4, runnel.Gap("t", 0, 4, 4, "no longer kept (trimmed)"))


async def test_a_pattern_and_a_group_pass_over_what_was_trimmed(broker: Broker) -> None:
    async with broker:
        topic = broker.topic("t")
        async with (
            broker.subscribe("*", start="earliest") as records,
            broker.subscribe("t", group="g", prefetch=1) as deliveries,
        ):
            for _ in range(6):
                await topic.publish(b"x")
            await topic.trim(4)
            assert (await anext(records)).offset == 4
            async for delivery in deliveries:
                await delivery.ack()
                if delivery.record.offset == 5:
                    break
        assert broker.group("g", "t").statistics().lag == 0


@pytest.mark.parametrize("before", [-1, True, "1", 1.5, None, datetime(2026, 1, 1)])
async def test_a_place_that_makes_no_sense_is_refused(broker: Broker, before: Any) -> None:
    async with broker:
        await broker.publish("t", b"x")
        with pytest.raises(runnel.InvalidOption, match="before"):
            await broker.topic("t").trim(before)


async def test_nothing_is_taken_that_is_not_there_yet(broker: Broker) -> None:
    async with broker:
        await broker.publish("t", b"x")
        with pytest.raises(runnel.OffsetOutOfRange):
            await broker.topic("t").trim(2)
        with pytest.raises(runnel.UnknownTopic):
            await broker.topic("other").trim(0)
        assert await broker.topics() == ["t"], "asking makes no topic"


async def test_it_is_durable_when_it_returns_with_why_and_when(disk: Disk, tmp_path: Path, clock: JumpingClock) -> None:
    async with open_on(disk, tmp_path, clock) as broker:
        for _ in range(5):
            await broker.publish("t", b"x")
        await broker.topic("t").trim(3)
        (gone,) = journal_of(broker).ledger.topics[1].gone
        assert (gone.first, gone.end, gone.reason) == (0, 3, RemovalReason.ASKED)
        assert gone.time == int(clock.time() * 1e6)
        broker.backend.loop_owner.closed = True  # as if it was killed
        broker.backend.store.give_up()
        broker.backend.store._lock.release()
    async with open_on(disk, tmp_path, clock) as broker:
        assert await offsets(broker, 2) == [3, 4]


async def test_space_comes_back(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, segment_bytes=8192, tail_bytes=1) as broker:
        topic = broker.topic("t")
        for _ in range(100):
            await topic.publish(bytes(1000))
        before = len(journal_of(broker).history.sources)
        await topic.trim(95)
        assert before > 10
        assert len(journal_of(broker).history.sources) <= 3

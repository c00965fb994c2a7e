"""Retention holds: what a subscription has not read stays, whoever wants it gone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.broker.durable.holds import RetentionHolds
from runnel.core.errors import TopicHeld
from runnel.journal.read.segment_reader import SegmentReader
from runnel.testing import JumpingClock, power_loss
from runnel.testing.memory_storage import MemoryStorage
from tests.broker.durable_broker import Disk, journal_of, log_of, open_on, until

ON_DISK: dict[str, Any] = {"tail_bytes": 1, "segment_bytes": 8192, "scrub_interval": 0}


@pytest.fixture
async def broker(disk: Disk, tmp_path: Path, clock: JumpingClock) -> AsyncIterator[Broker]:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as opened:
        yield opened


def holding_of(broker: Broker) -> RetentionHolds:
    assert broker.backend.store is not None
    found: RetentionHolds = broker.backend.store.holding
    return found


def holds(broker: Broker) -> dict[str, int]:
    assert broker.backend.store is not None
    names = {topic.id: topic.name for topic in journal_of(broker).ledger.topics.values()}
    return {names[topic]: offset for topic, offset in broker.backend.store.holds().items()}


async def read(broker: Broker, pattern: str, count: int, **options: object) -> list[int]:
    """Read so many records as "archive", and leave."""
    offsets: list[int] = []
    async with broker.subscribe(pattern, name="archive", **options) as records:  # type: ignore[call-overload]
        while len(offsets) < count:
            offsets.append((await anext(records)).offset)
        if count:  # the last one is confirmed by asking beyond it
            task = asyncio.ensure_future(anext(records))
            await asyncio.sleep(0)
            task.cancel()
    await broker.backend.flushed()
    return offsets


async def fill(broker: Broker, topic: str, count: int, **options: Any) -> None:
    handle = broker.topic(topic, **options)
    for number in range(count):
        await handle.publish(b"%04d" % number * 50)


# -- retention --------------------------------------------------------------------------------------------------


async def test_count_takes_nothing_that_is_held_and_goes_on_when_it_was_read(broker: Broker) -> None:
    await fill(broker, "t", 5, retention_count=10)
    assert await read(broker, "t", 3, hold=True) == [0, 1, 2]
    await fill(broker, "t", 100)
    assert broker.statistics().topics["t"].first == 3
    assert await read(broker, "t", 50) == list(range(3, 53)), "it holds until it says otherwise"
    assert broker.statistics().topics["t"].first == 53
    assert await read(broker, "t", 52) == list(range(53, 105))
    await broker.backend.flushed()
    assert broker.statistics().topics["t"].first == 95


async def test_age_and_bytes_take_nothing_that_is_held(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, "t", 20, retention_age=100, retention_bytes=1000)
    assert await read(broker, "t", 0, hold=True) == []
    log = log_of(broker, "t")
    first = log.first
    await fill(broker, "t", 100)
    await clock.advance(1000)
    broker.backend.store.retention.sweep()
    await broker.backend.flushed()
    assert log.first == first == log.held
    await broker.forget("archive")
    assert log.held is None
    await until(lambda: broker.backend.timeline.first(log) == 120)


async def test_records_are_held_after_a_restart_without_a_reader(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, **ON_DISK) as broker:
        await fill(broker, "t", 10, retention_count=5)
        await read(broker, "t", 2, hold=True)  # of those that are left
    async with open_on(disk, tmp_path, **ON_DISK) as broker:
        assert holds(broker) == {"t": 7}
        await fill(broker, "t", 200)
        assert log_of(broker, "t").first == 7
    async with open_on(disk, tmp_path, **ON_DISK) as broker:
        assert await read(broker, "t", 3) == [7, 8, 9]


async def test_who_asks_to_let_go_holds_no_more_for_good(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, **ON_DISK) as broker:
        await fill(broker, "t", 10)
        await read(broker, "t", 2, hold=True)
        assert holds(broker) == {"t": 2}
        await read(broker, "t", 0, hold=False)
        assert holds(broker) == {}
    async with open_on(disk, tmp_path, **ON_DISK) as broker:
        assert holds(broker) == {}
        assert await read(broker, "t", 1) == [2], "its position is another matter"


async def test_the_lowest_of_several_counts(broker: Broker) -> None:
    await fill(broker, "t", 10)
    await read(broker, "t", 7, hold=True)
    async with broker.subscribe("t", name="other", hold=True) as records:
        await anext(records)
        assert holds(broker) == {"t": 0}
    await broker.forget("other")
    assert holds(broker) == {"t": 7}


async def test_a_topic_that_was_deleted_and_made_again_is_held_from_its_beginning(broker: Broker) -> None:
    await fill(broker, "t", 10)
    await read(broker, "t", 7, hold=True)
    await broker.delete("t")
    await fill(broker, "t", 10, retention_count=3)
    assert holds(broker) == {"t": 0}
    assert log_of(broker, "t").first == 0


async def test_records_read_on_are_removed_without_new_publishes(broker: Broker, clock: JumpingClock) -> None:
    await fill(broker, "count", 5, retention_count=10)
    await fill(broker, "bytes", 5, retention_bytes=20_000)
    await fill(broker, "age", 5, retention_age=100)
    for topic in ("count", "bytes", "age"):
        async with broker.subscribe(topic, name=topic, hold=True):
            pass
        await fill(broker, topic, 295)
    await clock.advance(200)
    retaining = broker.backend.store.retention
    await until(lambda: not retaining.is_busy)
    ledger = journal_of(broker).ledger
    assert {one.name: one.first for one in ledger.topics.values()} == {"count": 0, "bytes": 0, "age": 0}
    for topic in ("count", "bytes", "age"):
        async with broker.subscribe(topic, name=topic) as records:
            for _ in range(300):
                await anext(records)
            await broker.backend.flushed()
    await clock.advance(61)
    await until(lambda: not retaining.is_busy)
    await broker.backend.flushed()
    firsts = {one.name: one.first for one in ledger.topics.values()}
    assert (firsts["count"], firsts["age"]) == (290, 299), "the last one was not asked beyond"
    assert 200 < firsts["bytes"] < 240, "of about 260 bytes each"


# -- patterns ---------------------------------------------------------------------------------------------------


async def test_a_pattern_holds_every_topic_that_it_covers_also_later_ones(broker: Broker) -> None:
    await fill(broker, "a.x", 10, retention_count=1)
    await fill(broker, "b.x", 10, retention_count=1)
    await read(broker, "a.*", 0, hold=True)
    await fill(broker, "a.y", 10, retention_count=1)
    await fill(broker, "a.x", 100)
    assert log_of(broker, "a.x").first <= 9
    assert (log_of(broker, "a.y").first, log_of(broker, "b.x").first) == (0, 9)


async def test_until_it_is_known_what_a_pattern_holds_it_holds_everything(broker: Broker) -> None:
    await fill(broker, "a.x", 10)
    async with broker.subscribe("a.*", name="archive", start="latest", hold=True):
        assert holding_of(broker).holds["archive"].looking
        assert log_of(broker, "a.x").held == 0


async def test_a_pattern_that_reads_on_lets_go_a_segment_at_a_time(broker: Broker) -> None:
    await fill(broker, "a.x", 10, retention_count=1)
    await read(broker, "a.*", 0, hold=True)
    await fill(broker, "a.x", 200)
    assert len(journal_of(broker).history.sources) > 4
    assert log_of(broker, "a.x").first <= 9
    await read(broker, "a.*", 150)
    hold = holding_of(broker).holds["archive"]
    await until(lambda: not hold.looking and log_of(broker, "a.x").held)
    held = log_of(broker, "a.x").held
    assert held is not None
    assert 100 < held <= 159, "never past what was read, and at most a segment (about 30 here) behind"
    assert log_of(broker, "a.x").first == held
    await broker.backend.flushed()
    assert await read(broker, "a.*", 20) == list(range(159, 179)), "nothing was missed"


async def test_a_pattern_that_goes_back_holds_what_it_went_back_to(broker: Broker) -> None:
    await fill(broker, "a.x", 200)
    await read(broker, "a.*", 150, hold=True, start="earliest")
    holding = holding_of(broker)
    hold = holding.holds["archive"]
    await until(lambda: not hold.looking and (log_of(broker, "a.x").held or 0) > 100)
    holding.moved("archive", 40)
    assert log_of(broker, "a.x").held == 0, "until it is known what that means"
    await until(lambda: not hold.looking)
    held = log_of(broker, "a.x").held
    assert held is not None
    assert 0 < held <= 40


async def test_a_pattern_that_holds_keeps_no_segment_open(broker: Broker) -> None:
    await fill(broker, "a.x", 100)
    await read(broker, "a.*", 40, hold=True, start="earliest")
    hold = holding_of(broker).holds["archive"]
    await until(lambda: not hold.looking and hold.segment is not None)
    assert not [one for one in gc.get_referents(hold) if isinstance(one, SegmentReader)]
    first = journal_of(broker).history.sources[0].info.end_sequence
    assert hold.since <= 40 < hold.until
    assert hold.until >= first


async def test_a_pattern_in_the_segment_being_written_is_looked_up_again_when_that_is_sealed(broker: Broker) -> None:
    await fill(broker, "a.x", 10)
    await read(broker, "a.*", 5, hold=True, start="earliest")
    hold = holding_of(broker).holds["archive"]
    await until(lambda: not hold.looking and hold.segment is not None)
    assert hold.until == 0
    await fill(broker, "a.x", 190)
    await read(broker, "a.*", 150)
    await until(lambda: not hold.looking and (log_of(broker, "a.x").held or 0) > 100)


# -- trimming ---------------------------------------------------------------------------------------------------


async def test_trimming_what_is_held_is_refused_by_name_unless_forced(broker: Broker) -> None:
    await fill(broker, "t", 10)
    await read(broker, "t", 4, hold=True)
    topic = broker.topic("t")
    with pytest.raises(TopicHeld, match="'archive' \\(from offset 4 on\\)") as raised:
        await topic.trim(before=5)
    assert raised.value.holders == {"archive": 4}
    assert log_of(broker, "t").first == 0
    assert await topic.trim(before=4) == 4
    assert await topic.trim(before=6, force=True) == 6
    assert broker.statistics().topics["t"].first == 6


async def test_what_was_read_a_moment_ago_is_not_in_the_way_of_trimming(broker: Broker) -> None:
    await fill(broker, "t", 10)
    async with broker.subscribe("t", name="archive", hold=True) as records:
        for _ in range(5):
            await anext(records)
        assert log_of(broker, "t").held == 0, "that is not written yet"
        assert await broker.topic("t").trim(before=4) == 4


# -- what makes no sense ----------------------------------------------------------------------------------------


async def test_who_holds_needs_a_name_and_a_disk(broker: Broker) -> None:
    with pytest.raises(runnel.InvalidOption, match="name"):
        broker.subscribe("t", hold=True)
    with pytest.raises(runnel.InvalidOption, match="group"):
        broker.subscribe("t", group="g", hold=True)
    await broker.topic("memory", durable=False).declare()
    with pytest.raises(runnel.NotSupported, match="in memory"):
        async with broker.subscribe("memory", name="n", hold=True):
            pass
    async with runnel.open() as in_memory:
        with pytest.raises(runnel.NotSupported, match="memory"):
            in_memory.subscribe("t", name="n", hold=True)


async def test_a_topic_without_records_is_held_too(broker: Broker) -> None:
    await read(broker, "t", 0, hold=True)
    await fill(broker, "t", 50, retention_count=1)
    assert log_of(broker, "t").first == 0


# -- power ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("fate", [power_loss.keep_nothing, power_loss.keep_everything], ids=["nothing", "everything"])
async def test_after_any_power_cut_a_holding_subscription_finds_its_unread_records(
    disk: Disk, tmp_path: Path, clock: JumpingClock, pattern: str, fate: power_loss.PowerLossOutcome
) -> None:
    left: list[MemoryStorage] = []
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker:
        topic = broker.topic("t", retention_count=1, retention_age=100)
        await topic.publish(bytes(300))
        async with broker.subscribe(pattern, name="archive", hold=True) as records:
            for number in range(60):
                await topic.publish(b"%04d" % number * 60)
                if number % 3:
                    await anext(records)
                await clock.advance(7)
                assert isinstance(disk.inner, MemoryStorage)
                left.append(MemoryStorage.after_power_loss(disk.inner, fate))
    for number, storage in enumerate(left):
        async with open_on(Disk(inner=storage), tmp_path / str(number), clock, **ON_DISK) as broker:
            ledger = journal_of(broker).ledger
            place = ledger.cursors["archive"].place if "archive" in ledger.cursors else 0
            assert ledger.topics[1].first <= place, "here sequences are offsets"
            async with broker.subscribe(pattern, name="archive", strict=True) as records:
                assert (await anext(records)).offset == place, "and nothing is missing"

"""Delayed records: they come back when they are due, from memory or from disk, or the group says that they cannot."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from runnel import Broker, Delivery, GroupSubscription
from runnel.broker.group.logic.group import GroupLogic
from runnel.broker.group.reader import GroupReader
from runnel.broker.topic.log import CHUNK
from runnel.testing.clock import JumpingClock
from tests.broker.durable_broker import Disk, damage, journal_of, open_on, turns, until
from tests.patience import PATIENCE

ON_DISK: dict[str, Any] = {"tail_bytes": 1}
IN_MEMORY: dict[str, Any] = {}
HOUR = 3600.0
LARGE = 256 * 1024  # longer than a chunk, with what is around it


def subscribe(broker: Broker, pattern: str = "t", **options: Any) -> GroupSubscription[bytes]:
    return broker.subscribe(pattern, group="g", **options)


def reader_of(broker: Broker) -> GroupReader:
    reader: GroupReader
    (reader,) = broker.backend.groups
    return reader


def group_of(broker: Broker) -> GroupLogic:
    return reader_of(broker).group


async def publish(broker: Broker, *values: str, topic: str = "t", **options: Any) -> None:
    for value in values:
        await broker.publish(topic, value, **options)


async def scheduled(broker: Broker, count: int) -> None:
    """Wait until so many wait for their time, and nothing else does."""
    await until(lambda: (group_of(broker).scheduled, reader_of(broker).overflow.lag()) == (count, count))


async def take(deliveries: GroupSubscription[bytes], count: int) -> list[Delivery[bytes]]:
    async with asyncio.timeout(PATIENCE):
        return [await anext(deliveries) for _ in range(count)]


def forget_runs(broker: Broker) -> None:
    """Have the timeline forget what is not in memory, as it does now and then: only the disk can tell then."""
    timeline = broker.backend.timeline
    before, timeline._dead = len(timeline.runs), CHUNK + 1
    timeline._bury(len(timeline.runs))
    assert len(timeline.runs) < before


def values(deliveries: list[Delivery[bytes]]) -> list[bytes]:
    return [delivery.value for delivery in deliveries]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# -- coming back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("options", [IN_MEMORY, ON_DISK])
async def test_a_delayed_record_is_a_place_until_it_is_due_and_then_all_that_it_was(
    tmp_path: Path, disk: Disk, clock: JumpingClock, pattern: str, options: dict[str, Any]
) -> None:
    async with open_on(disk, tmp_path, clock, **options) as broker, subscribe(broker, pattern) as deliveries:
        await publish(broker, "x", topic="other")
        await publish(broker, "later", key="k", headers={"h": "v"}, delay=HOUR)
        await publish(broker, "now")
        others = 1 if pattern == "*" else 0
        for delivery in await take(deliveries, 1 + others):
            await delivery.ack()
        assert (group_of(broker).scheduled, group_of(broker).unsettled_bytes) == (1, 0)
        assert broker.statistics().groups[0].oldest_unacked_age == 0.0
        await clock.advance(HOUR - 1)
        assert broker.statistics().groups[0].oldest_unacked_age == HOUR - 1
        await clock.advance(1)
        (found,) = await take(deliveries, 1)
        assert (found.value, found.key, found.headers, found.attempt) == (b"later", b"k", {"h": "v"}, 1)
        assert (found.topic, found.offset) == ("t", 0)
        assert group_of(broker).unsettled_bytes == len(b"later")
        await found.ack()
        assert (group_of(broker).unsettled, group_of(broker).unsettled_bytes) == (0, 0)
        assert reader_of(broker).missed == 0


@pytest.mark.parametrize("durable", [True, False])
async def test_what_is_in_memory_only_is_held(tmp_path: Path, disk: Disk, clock: JumpingClock, durable: bool) -> None:
    async with open_on(disk, tmp_path, clock) as broker:
        await broker.topic("t", durable=durable).declare()
        async with subscribe(broker, "*") as deliveries:
            await publish(broker, "12345", delay=HOUR)
            await scheduled(broker, 1)
            assert group_of(broker).unsettled_bytes == (0 if durable else 5)
            await clock.advance(HOUR)
            assert values(await take(deliveries, 1)) == [b"12345"]


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("options", [IN_MEMORY, ON_DISK])
async def test_what_fails_again_and_again_comes_again_and_again(
    tmp_path: Path, disk: Disk, clock: JumpingClock, pattern: str, options: dict[str, Any]
) -> None:
    async with open_on(disk, tmp_path, clock, **options) as broker, subscribe(broker, pattern) as deliveries:
        await publish(broker, "a", "b", "c", delay=HOUR)
        await publish(broker, "d", delay=100 * HOUR)
        await scheduled(broker, 4)
        await clock.advance(HOUR)
        for attempt in range(1, 5):
            found = await take(deliveries, 3)
            assert [(one.value, one.attempt) for one in found] == [(b"a", attempt), (b"b", attempt), (b"c", attempt)]
            for one in found:
                await one.nack(delay=60)
            await scheduled(broker, 4)
            assert group_of(broker).unsettled_bytes == 0
            await clock.advance(60)


async def test_neighbours_share_one_read(tmp_path: Path, disk: Disk, clock: JumpingClock) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker, subscribe(broker, prefetch=200) as deliveries:
        await publish(broker, *[f"{number}" for number in range(100)], delay=HOUR)
        await scheduled(broker, 100)
        reads: list[str] = []
        disk.on_read = reads.append
        await clock.advance(HOUR)
        assert values(await take(deliveries, 100)) == [b"%d" % number for number in range(100)]
        assert len(reads) <= 2, "a chunk, and perhaps the rest of its last entry"


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_nothing_is_read_that_is_not_due(tmp_path: Path, disk: Disk, clock: JumpingClock, pattern: str) -> None:
    options = ON_DISK | {"segment_bytes": 1 << 21}
    async with open_on(disk, tmp_path, clock, **options) as broker, subscribe(broker, pattern) as deliveries:
        for hours in (1, 2, 3):
            await publish(broker, "x" * LARGE, delay=hours * HOUR)
        await scheduled(broker, 3)
        reads: list[str] = []
        disk.on_read = reads.append
        await clock.advance(HOUR)
        (found,) = await take(deliveries, 1)
        await found.ack()
        await asyncio.to_thread(lambda: None)
        await turns()
        assert len(reads) == 2, "a chunk, and the rest of its entry"
        assert group_of(broker).scheduled == 2


async def test_those_that_are_due_one_after_the_other_share_a_read_too(
    tmp_path: Path, disk: Disk, clock: JumpingClock
) -> None:
    """Two streams side by side, far apart on disk: each has its chunk in hand."""
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker, subscribe(broker) as deliveries:
        for number in range(10):
            await publish(broker, f"a{number}", delay=HOUR + 2 * number)
        await publish(broker, *["x" * 50_000] * 10, topic="other")
        for number in range(10):
            await publish(broker, f"b{number}", delay=HOUR + 2 * number + 1)
        await scheduled(broker, 20)
        reads: list[str] = []
        disk.on_read = reads.append
        await clock.advance(HOUR - 1)
        for number in range(10):
            for stream in "ab":
                await clock.advance(1)
                (found,) = await take(deliveries, 1)
                assert found.value == f"{stream}{number}".encode()
                await found.ack()
        assert len(reads) <= 4


async def test_no_more_is_held_than_the_window_allows(tmp_path: Path, disk: Disk, clock: JumpingClock) -> None:
    async with (
        open_on(disk, tmp_path, clock, **ON_DISK) as broker,
        subscribe(broker, max_ack_pending=4, prefetch=2) as deliveries,
    ):
        await publish(broker, *["12345"] * 40, delay=HOUR)
        await scheduled(broker, 40)
        await clock.advance(HOUR)
        for number in range(40):
            (found,) = await take(deliveries, 1)
            assert found.offset == number
            assert group_of(broker).unsettled_bytes <= 4 * 5
            assert group_of(broker).unsettled == 40 - number
            await found.ack()
        assert group_of(broker).unsettled == 0


@pytest.mark.parametrize("bounds", [{"delayed_records.BATCH": 3, "delayed_records.TURN": 5}, {"logic.ready.STEP": 7}])
async def test_more_than_may_come_in_one_turn_come_in_several(
    tmp_path: Path, disk: Disk, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int]
) -> None:
    for name, few in bounds.items():
        monkeypatch.setattr(f"runnel.broker.group.{name}", few)
    async with open_on(disk, tmp_path, clock) as broker, subscribe(broker) as deliveries:
        await publish(broker, *[f"{number}" for number in range(50)], delay=HOUR)
        await scheduled(broker, 50)
        await clock.advance(HOUR)
        assert values(await take(deliveries, 50)) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("options", [IN_MEMORY, ON_DISK])
async def test_behind_one_that_expired_while_it_waited_the_next_of_its_key_comes(
    tmp_path: Path, disk: Disk, clock: JumpingClock, options: dict[str, Any]
) -> None:
    async with open_on(disk, tmp_path, clock, **options) as broker, subscribe(broker) as deliveries:
        await publish(broker, "a", key="k", delay=HOUR, expires=HOUR / 2)
        await publish(broker, "b", key="k", delay=HOUR)
        await until(lambda: group_of(broker).unsettled == 2)
        await clock.advance(HOUR)
        assert values(await take(deliveries, 1)) == [b"b"]
        assert (group_of(broker).expired, group_of(broker).unsettled) == (1, 1)


async def test_a_group_that_looks_far_ahead_lets_others_have_the_loop(
    tmp_path: Path, disk: Disk, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.broker.group.reader.LOOK", 4)
    async with open_on(disk, tmp_path, clock) as broker:
        await publish(broker, *["x"] * 30, delay=HOUR)
        async with subscribe(broker, max_ack_pending=3):
            await turns(2)
            assert 0 < group_of(broker).scheduled < 30
            await scheduled(broker, 30)


async def test_a_publisher_that_waited_goes_on_when_values_were_let_go(
    tmp_path: Path, disk: Disk, clock: JumpingClock
) -> None:
    async with open_on(disk, tmp_path, clock) as broker, subscribe(broker, buffer_bytes=10):
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(publish(broker, "12345678", delay=HOUR) for _ in range(5)))
        await scheduled(broker, 5)


# -- what cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize(("options", "forgotten"), [(IN_MEMORY, False), (ON_DISK, False), (ON_DISK, True)])
async def test_what_retention_took_is_missed_and_its_key_goes_on(
    tmp_path: Path,
    disk: Disk,
    clock: JumpingClock,
    caplog: pytest.LogCaptureFixture,
    pattern: str,
    options: dict[str, Any],
    forgotten: bool,
) -> None:
    async with open_on(disk, tmp_path, clock, **options) as broker:
        await broker.topic("t", retention_count=2).declare()
        async with subscribe(broker, pattern) as deliveries:
            await publish(broker, "a", "b", key="k", delay=HOUR)
            await until(lambda: group_of(broker).unsettled == 2)
            await publish(broker, "c", key="k", delay=HOUR)
            await until(lambda: group_of(broker).unsettled == 3)
            if forgotten:
                forget_runs(broker)
            await clock.advance(HOUR)
            (found,) = await take(deliveries, 1)
            assert found.value == b"b"
            await found.ack()
            (found,) = await take(deliveries, 1)
            assert found.value == b"c"
            await found.ack()
            assert broker.statistics().groups[0].missed == 1
            assert (group_of(broker).unsettled, group_of(broker).unsettled_bytes) == (0, 0)
            assert ["missed 1 records" in line for line in warnings(caplog)] == [True]


@pytest.mark.parametrize(("options", "forgotten"), [(IN_MEMORY, False), (ON_DISK, False), (ON_DISK, True)])
async def test_what_went_with_its_topic_is_missed_and_the_rest_of_the_pattern_comes(
    tmp_path: Path,
    disk: Disk,
    clock: JumpingClock,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    forgotten: bool,
) -> None:
    async with open_on(disk, tmp_path, clock, **options) as broker, subscribe(broker, "*") as deliveries:
        await publish(broker, "a", "b", topic="old", delay=HOUR)
        await publish(broker, "c", topic="t", delay=HOUR)
        await scheduled(broker, 3)
        await broker.topic("old").delete()
        await publish(broker, "new", topic="old", delay=HOUR)
        await scheduled(broker, 4)
        if forgotten:
            forget_runs(broker)
        await clock.advance(HOUR)
        assert values(await take(deliveries, 2)) == [b"c", b"new"]
        assert reader_of(broker).missed == 2
        assert [line.endswith("topic was deleted") for line in warnings(caplog)] == [True]


async def test_when_the_last_stored_topic_is_gone_nothing_is_waited_for(
    tmp_path: Path, disk: Disk, clock: JumpingClock
) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker, subscribe(broker, "old.*"):
        await publish(broker, "a", "b", topic="old.t", delay=HOUR)
        await scheduled(broker, 2)
        await broker.topic("old.t").delete()
        await publish(broker, "x", topic="other")
        forget_runs(broker)
        reads: list[str] = []
        disk.on_read = reads.append
        await clock.advance(HOUR)
        assert (group_of(broker).unsettled, reader_of(broker).missed) == (0, 2)
        assert reads == []


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_what_is_damaged_is_missed_in_this_life_and_tried_again_in_the_next(
    tmp_path: Path, disk: Disk, clock: JumpingClock, pattern: str
) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker, subscribe(broker, pattern) as deliveries:
        await publish(broker, "a", "b", "c", delay=HOUR)
        await scheduled(broker, 3)
        damage(broker, disk, sequence=1)
        await clock.advance(HOUR)
        found = await take(deliveries, 2)
        assert values(found) == [b"a", b"c"]
        for one in found:
            await one.ack()
        assert reader_of(broker).missed == 1
        assert group_of(broker).unsettled == 0
        await reader_of(broker).flushed()
        (known,) = journal_of(broker).ledger.groups.values()
        await until(lambda: 2 in known.settled)
        assert 1 not in known.settled
        assert known.floor <= 1


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_read_that_fails_is_reported_and_the_group_continues(
    tmp_path: Path, disk: Disk, clock: JumpingClock, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker, subscribe(broker, pattern) as deliveries:
        await publish(broker, "a", delay=HOUR)
        await scheduled(broker, 1)
        disk.fail_next("read")
        await clock.advance(HOUR)
        await until(lambda: group_of(broker).unsettled == 0)
        assert reader_of(broker).missed == 1
        assert any("cannot be read" in line for line in warnings(caplog))
        await publish(broker, "b")
        assert values(await take(deliveries, 1)) == [b"b"]


# -- endings ----------------------------------------------------------------------------------------------------


async def test_a_broker_closes_while_something_is_read_and_it_comes_in_the_next_life(
    tmp_path: Path, disk: Disk, clock: JumpingClock
) -> None:
    async with asyncio.timeout(PATIENCE):
        async with open_on(disk, tmp_path, clock, **ON_DISK) as broker, subscribe(broker):
            await publish(broker, "a", delay=HOUR)
            await scheduled(broker, 1)
            disk.hold("read")
            await clock.advance(HOUR)
            await disk.reached()
            threading.Timer(0.05, disk.go_on).start()  # closing waits for the read, and the loop for closing
        async with open_on(disk, tmp_path, clock, **ON_DISK) as broker, subscribe(broker) as deliveries:
            assert values(await take(deliveries, 1)) == [b"a"]


async def test_a_reset_while_something_is_read_delivers_everything_once(
    tmp_path: Path, disk: Disk, clock: JumpingClock
) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker, subscribe(broker) as deliveries:
        await publish(broker, "a", "b", delay=HOUR)
        await scheduled(broker, 2)
        disk.hold("read")
        await clock.advance(HOUR)
        await disk.reached()
        broker.group("g", "t").reset("earliest")
        disk.go_on()
        found = await take(deliveries, 2)
        assert values(found) == [b"a", b"b"]
        for one in found:
            await one.ack()
        await turns()
        assert group_of(broker).unsettled == 0


async def test_a_paused_group_brings_back_and_hands_out_nothing(
    tmp_path: Path, disk: Disk, clock: JumpingClock
) -> None:
    async with open_on(disk, tmp_path, clock) as broker, subscribe(broker) as deliveries:
        await publish(broker, "a", delay=HOUR)
        await scheduled(broker, 1)
        broker.group("g", "t").pause()
        await clock.advance(HOUR)
        assert broker.statistics().groups[0].in_flight == 0
        broker.group("g", "t").resume()
        assert values(await take(deliveries, 1)) == [b"a"]


# -- the next life ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["t", "*"])
async def test_a_group_of_the_next_life_holds_none_of_what_waits(
    tmp_path: Path, disk: Disk, clock: JumpingClock, pattern: str
) -> None:
    async with open_on(disk, tmp_path, clock) as broker, subscribe(broker, pattern) as deliveries:
        await publish(broker, "failed")
        await publish(broker, *["delayed"] * 50, delay=HOUR)
        (found,) = await take(deliveries, 1)
        await found.nack(delay=HOUR / 2, reason="why")
        await scheduled(broker, 51)
    async with open_on(disk, tmp_path, clock) as broker, subscribe(broker, pattern, max_ack_pending=5) as deliveries:
        await scheduled(broker, 51)
        assert group_of(broker).unsettled_bytes == 0
        await clock.advance(HOUR / 2)
        (found,) = await take(deliveries, 1)
        assert (found.value, found.attempt) == (b"failed", 2)
        await found.ack()
        await clock.advance(HOUR / 2)
        for number in range(50):
            (found,) = await take(deliveries, 1)
            assert (found.value, found.offset) == (b"delayed", number + 1)
            await found.ack()

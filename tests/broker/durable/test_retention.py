"""Retention moves first offsets when their time comes, says why, and a few topics at a time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.api.broker import Broker
from runnel.broker.durable import retention
from runnel.broker.durable.retention import TopicRetention
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.removed_offsets import RemovalReason, RemovedRange
from runnel.testing import JumpingClock
from tests.broker.durable_broker import Disk, entries, journal_of, log_of, open_on, turns, until
from tests.patience import PATIENCE

ON_DISK: dict[str, Any] = {"tail_bytes": 1, "segment_bytes": 1 << 16, "scrub_interval": 0}


def retaining_of(broker: Broker) -> TopicRetention:
    assert broker.backend.store is not None
    found: TopicRetention = broker.backend.store.retention
    return found


def trims(broker: Broker) -> list[Part]:
    return [part for one in entries(journal_of(broker)) for part in one.parts if part.kind == PartKind.TRIM]


def gone(broker: Broker, topic: str) -> list[tuple[int, int, RemovalReason]]:
    (found,) = (one for one in journal_of(broker).ledger.topics.values() if one.name == topic)
    return [(one.first, one.end, RemovalReason(one.reason)) for one in found.gone]


async def published(broker: Broker, topic: str, values: Iterable[bytes]) -> None:
    for value in values:
        await broker.publish(topic, value)


async def known(broker: Broker, topic: str, first: int) -> None:
    """Return when the journal knows that `topic` begins there."""
    async with asyncio.timeout(PATIENCE):
        while not any(one.name == topic and one.first >= first for one in journal_of(broker).ledger.topics.values()):
            await broker.backend.flushed()


# -- age --------------------------------------------------------------------------------------------------------


async def test_a_topic_on_disk_without_publishes_expires_batch_by_batch(
    disk: Disk, tmp_path: Path, clock: JumpingClock
) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker:
        await broker.topic("t", retention_age=100).declare()
        for _ in range(10):
            await published(broker, "t", [b"x", b"y"])
            await clock.advance(10)
        log = log_of(broker, "t")
        assert log.base >= 19, "next to nothing is in memory"
        for second in range(1, 10):
            await clock.advance(2)
            await until(lambda second=second: log.first >= 2 * second)  # type: ignore[misc]
            assert log.first == 2 * second, "one batch after the other, each when its time comes"
            await clock.advance(8)
        await clock.advance(10)
        await known(broker, "t", 20)
        assert log.first == 20
        assert gone(broker, "t") == [(0, 20, RemovalReason.AGE)]


async def test_records_that_aged_while_the_folder_was_closed_are_removed_when_it_is_opened(
    disk: Disk, tmp_path: Path, clock: JumpingClock
) -> None:
    async with open_on(disk, tmp_path, clock) as broker:
        await broker.topic("t", retention_age=100).declare()
        await published(broker, "t", [b"old"] * 5)
        await clock.advance(60)
        await published(broker, "t", [b"young"] * 5)
    await clock.advance(60)
    async with open_on(disk, tmp_path, clock) as broker:
        await until(lambda: log_of(broker, "t").first)
        assert log_of(broker, "t").first == 5
        await known(broker, "t", 5)
        await clock.advance(60)
        await known(broker, "t", 10)
        assert log_of(broker, "t").first == 10


async def test_a_topic_that_became_empty_grows_old_again_when_it_is_published_to(
    disk: Disk, tmp_path: Path, clock: JumpingClock
) -> None:
    async with open_on(disk, tmp_path, clock) as broker:
        await broker.topic("t", retention_age=10).declare()
        for number in range(1, 4):
            await broker.publish("t", b"x")
            await clock.advance(11)
            await known(broker, "t", number)
            assert log_of(broker, "t").first == number


async def test_what_is_published_while_a_topic_is_looked_up_does_not_put_its_oldest_record_off(
    disk: Disk, tmp_path: Path, clock: JumpingClock
) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker:
        await broker.topic("t", retention_age=100).declare()
        await broker.publish("t", b"a")
        await clock.advance(50)
        await broker.publish("t", b"b")
        disk.hold("read")
        await clock.advance(51)
        await disk.reached()
        broker.topic("t").publish_nowait(b"c")
        await until(lambda: log_of(broker, "t").end == 3)
        disk.go_on()
        await known(broker, "t", 1)
        await clock.advance(50)
        await known(broker, "t", 2)


async def test_topics_that_are_not_due_cost_nothing(disk: Disk, tmp_path: Path, clock: JumpingClock) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker:
        for number in range(50):
            await broker.topic(f"t.{number}", retention_age=1000 + number).declare()
            await broker.publish(f"t.{number}", b"x")
        reads: list[str] = []
        disk.on_read = reads.append
        await clock.advance(999)
        assert reads == []
        assert trims(broker) == []
        await clock.advance(2)
        await known(broker, "t.0", 1)
        assert [log_of(broker, f"t.{number}").first for number in range(3)] == [1, 0, 0]


async def test_a_disk_that_cannot_be_read_is_asked_again_later(
    disk: Disk, tmp_path: Path, clock: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker:
        await broker.topic("t", retention_age=100).declare()
        await published(broker, "t", [b"x"] * 5)
        await clock.advance(99)
        await published(broker, "t", [b"y"])
        disk.fail_next("read", error=errno.EIO)
        await clock.advance(2)
        await until(lambda: "could not be looked up" in caplog.text)
        assert log_of(broker, "t").first == 0
        await clock.advance(retention.TELL)
        await known(broker, "t", 5)


# -- bytes ------------------------------------------------------------------------------------------------------


async def test_a_topic_on_disk_never_holds_much_more_than_its_limit_nor_less(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, **ON_DISK) as broker:
        await broker.topic("t", retention_bytes=200_000).declare()
        slack = retaining_of(broker).slack(200_000)
        assert slack == 12_500
        log, largest = log_of(broker, "t"), 0
        for number in range(600):
            await broker.publish("t", b"%04d" % number * 250)
            if number > 300:
                await until(lambda: not retaining_of(broker)._looking and not retaining_of(broker)._asked)
                held = 1000 * (log.end - log.first)
                largest = max(largest, held)
                assert held >= 190_000
        assert largest <= 200_000 + slack + 3000
        await known(broker, "t", log.first)
        assert {reason for _, _, reason in gone(broker, "t")} == {RemovalReason.BYTES}


async def test_bytes_of_an_earlier_life_count(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, **ON_DISK) as broker:
        await broker.topic("t", retention_bytes=300_000).declare()
        await published(broker, "t", [bytes(1000)] * 290)
        assert log_of(broker, "t").first == 0
    async with open_on(disk, tmp_path, **ON_DISK) as broker:
        await until(lambda: retaining_of(broker)._topics[log_of(broker, "t")].below is not None)
        await published(broker, "t", [bytes(1000)] * 100)
        await until(lambda: log_of(broker, "t").first >= 60)
        assert log_of(broker, "t").first <= 100


async def test_the_slack_is_a_sixteenth_of_the_limit_or_of_a_segment(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, segment_bytes=1 << 20) as broker:
        assert retaining_of(broker).slack(100) == (1 << 20) // 16
        assert retaining_of(broker).slack(1 << 30) == (1 << 30) // 16
    async with open_on(Disk(), tmp_path / "two", segment_bytes=1 << 26) as broker:
        assert retaining_of(broker).slack(100) == 1 << 20


# -- count ------------------------------------------------------------------------------------------------------


async def test_a_count_holds_at_once_and_is_written_within_a_minute(
    disk: Disk, tmp_path: Path, clock: JumpingClock
) -> None:
    async with open_on(disk, tmp_path, clock) as broker:
        await broker.topic("t", retention_count=3).declare()
        await published(broker, "t", [b"x"] * 10)
        assert (log_of(broker, "t").first, trims(broker)) == (7, [])
        await clock.advance(retention.TELL)
        await known(broker, "t", 7)
        assert gone(broker, "t") == [(0, 7, RemovalReason.COUNT)]
        told = journal_of(broker).ledger.topics[1].gone
        assert told == (RemovedRange(0, 7, RemovalReason.COUNT, int(clock.time() * 1e6)),)
        await clock.advance(10 * retention.TELL)
        await broker.backend.flushed()
        assert len(trims(broker)) == 1, "nothing is news"


async def test_what_is_not_written_yet_is_when_the_broker_closes(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        await broker.topic("t", retention_count=3).declare()
        await published(broker, "t", [b"x"] * 10)
    async with open_on(disk, tmp_path) as broker:
        assert gone(broker, "t") == [(0, 7, RemovalReason.COUNT)]


async def test_a_sealed_segment_has_all_that_moved_written_a_few_topics_a_turn(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PER_TURN", 4)
    async with open_on(disk, tmp_path) as broker:
        for number in range(20):
            await broker.topic(f"t.{number}", retention_count=1).declare()
            await published(broker, f"t.{number}", [b"x", b"y"])
        looked: list[int] = []
        inner = broker.backend.timeline.first
        broker.backend.timeline.first = lambda log: looked.append(1) or inner(log)  # type: ignore[func-returns-value]
        retaining_of(broker).sweep()
        most = 0
        while len(looked) < 20:
            before = len(looked)
            await asyncio.sleep(0)
            most = max(most, len(looked) - before)
        assert most == 4
        await broker.backend.flushed()
        assert len(trims(broker)) == 20


async def test_a_roll_lets_segments_go_in_which_nothing_is_wanted(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, segment_bytes=8192, tail_bytes=1) as broker:
        await broker.topic("t", retention_count=2).declare()
        await published(broker, "t", [bytes(1000)] * 100)
        async with asyncio.timeout(PATIENCE):
            while len(journal_of(broker).history.sources) > 4:
                await published(broker, "t", [bytes(1000)])


# -- the end ----------------------------------------------------------------------------------------------------


async def test_a_deleted_topic_is_looked_at_no_more(disk: Disk, tmp_path: Path, clock: JumpingClock) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker:
        await broker.topic("t", retention_age=100, retention_bytes=10, retention_count=5).declare()
        await published(broker, "t", [b"x"] * 10)
        retaining_of(broker).sweep()
        await broker.delete("t")
        await clock.advance(1000)
        await turns()
        assert trims(broker) == []
        assert retaining_of(broker)._topics == {}


async def test_closing_during_a_look_blocks_no_caller(disk: Disk, tmp_path: Path, clock: JumpingClock) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker:
        await broker.topic("t", retention_age=100).declare()
        await published(broker, "t", [b"x"] * 3)
        disk.hold("read")
        await clock.advance(101)
        await disk.reached()
        asyncio.get_running_loop().call_later(0.01, disk.go_on)  # the loop is blocked while the broker closes
        disk.go_on()
    assert broker.backend.loop_owner.closed


async def test_a_topic_without_retention_keeps_everything(disk: Disk, tmp_path: Path, clock: JumpingClock) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker:
        await published(broker, "t", [b"x"] * 10)
        await clock.advance(10**6)
        assert retaining_of(broker)._topics == {}
        async with broker.subscribe("t", start="earliest") as records:
            assert (await anext(records)).offset == 0


async def test_a_reader_that_retention_overtook_gets_a_gap(disk: Disk, tmp_path: Path, clock: JumpingClock) -> None:
    async with open_on(disk, tmp_path, clock, **ON_DISK) as broker:
        await broker.topic("t", retention_age=100).declare()
        await published(broker, "t", [b"x"] * 5)
        async with broker.subscribe("t", start="earliest") as records:
            await clock.advance(50)
            await published(broker, "t", [b"y"])
            await clock.advance(51)
            await until(lambda: log_of(broker, "t").first == 5)
            record = await anext(records)
            assert (record.offset, record.gap) == (
                5,
                runnel.Gap("t", 0, 5, 5, "no longer kept (retention)"),
            )

"""Pages of history: a range of records, read once, from memory and from disk."""

import asyncio
from pathlib import Path

import pytest

import runnel
from runnel import Broker
from runnel.broker import history as module
from runnel.broker.history import read_history
from runnel.broker.read.cursor import LogCursor
from runnel.core.backend import HistoryPage, Taken
from runnel.core.errors import BrokerClosed, OffsetOutOfRange, TopicDeleted, UnknownTopic
from runnel.testing.clock import JumpingClock

MUCH = 1 << 30


def values(found: HistoryPage) -> list[bytes]:
    return [record.value for record in found.records]


async def test_it_reads_what_is_there_and_waits_for_nothing(broker: Broker) -> None:
    topic = broker.topic("t")
    await topic.publish_many([b"0", b"1", b"2"])
    found = await read_history(broker.backend, "t", 1, 10, MUCH)
    assert (values(found), found.next, found.first, found.end, found.gap) == ([b"1", b"2"], 3, 0, 3, None)
    assert values(await read_history(broker.backend, "t", "latest", 10, MUCH)) == []
    assert values(await read_history(broker.backend, "t", -2, 1, MUCH)) == [b"1"]
    assert values(await read_history(broker.backend, "t", -9, 9, MUCH)) == [b"0", b"1", b"2"]


async def test_it_goes_on_where_it_stopped_whatever_the_bound(broker: Broker) -> None:
    sent = [b"%04d" % number for number in range(1000)]
    await broker.topic("t").publish_many(sent)
    for limit, size in ((7, MUCH), (1000, 30), (1, 1)):
        seen: list[bytes] = []
        place = 0
        while place < 40:
            found = await read_history(broker.backend, "t", place, limit, size)
            seen += values(found)
            place = found.next
        assert seen == sent[:place]


async def test_it_reads_from_disk_what_is_not_in_memory(tmp_path: Path) -> None:
    sent = [b"%06d" % number for number in range(5000)]
    async with runnel.open(tmp_path) as broker:
        await broker.topic("t").publish_many(sent)
    async with runnel.open(tmp_path) as broker:
        found = await read_history(broker.backend, "t", 10, 4000, MUCH)
        assert (values(found), found.next) == (sent[10:4010], 4010)


async def test_what_has_expired_is_left_out(broker: Broker, clock: JumpingClock) -> None:
    await broker.publish("t", b"short", expires=5)
    await broker.publish("t", b"long")
    await clock.advance(6)
    found = await read_history(broker.backend, "t", "earliest", 10, MUCH)
    assert (values(found), found.next) == ([b"long"], 2)


async def test_removed_records_are_reported_with_the_following_ones(broker: Broker) -> None:
    await broker.topic("t", retention_count=2).publish_many([b"0", b"1", b"2", b"3"])
    found = await read_history(broker.backend, "t", 0, 10, MUCH)
    assert values(found) == [b"2", b"3"]
    assert found.gap is not None
    assert (found.gap.first, found.gap.end, found.gap.count) == (0, 2, 2)


async def test_an_unreadable_record_is_reported(broker: Broker) -> None:
    with pytest.raises(UnknownTopic):
        await read_history(broker.backend, "nothing", 0, 1, MUCH)
    await broker.publish("t", b"x")
    with pytest.raises(OffsetOutOfRange):
        await read_history(broker.backend, "t", 2, 1, MUCH)
    broker.close()
    with pytest.raises(BrokerClosed):
        await read_history(broker.backend, "t", 0, 1, MUCH)


async def test_a_topic_deleted_while_it_is_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with runnel.open(tmp_path) as broker:
        await broker.topic("t").publish_many([b"x" * 1000] * 3000)
    monkeypatch.setattr(module, "STEP", 10)
    async with runnel.open(tmp_path) as broker:
        reading = asyncio.ensure_future(read_history(broker.backend, "t", 0, 3000, MUCH))
        await asyncio.sleep(0)
        await broker.delete("t")
        with pytest.raises(TopicDeleted):
            await reading


async def test_a_gap_in_the_middle_is_reported_at_the_beginning_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the disk is damaged: records, a hole, records."""
    async with runnel.open() as broker:
        await broker.topic("t").publish_many([b"%d" % number for number in range(6)])
        log = broker.backend.catalog.logs["t"]

        class Holed(LogCursor):
            def take(self, limit: int) -> Taken | None:
                limit = min(limit, 2)
                if self.position == 2:
                    missed = self.skip(2, "damaged")
                    found = super().take(limit)
                    assert found is not None
                    return Taken(found.slices, missed)
                return super().take(limit)

        def holed(_: object, start: int, **_options: object) -> tuple[LogCursor, None]:
            return Holed(broker.backend.timeline, log, start), None

        monkeypatch.setattr(broker.backend.cursors, "on_log", holed)
        first = await read_history(broker.backend, "t", 0, 10, MUCH)
        assert (values(first), first.gap, first.next) == ([b"0", b"1"], None, 2)
        then = await read_history(broker.backend, "t", first.next, 10, MUCH)
        assert values(then) == [b"4", b"5"]
        assert then.gap is not None
        assert (then.gap.first, then.gap.end, then.gap.reason) == (2, 4, "damaged")

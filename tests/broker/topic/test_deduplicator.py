"""Duplicates of a publish under way: those who send it again share its fate, and what failed may come again."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runnel.api.broker import Broker
from runnel.broker.topic.pending_batch import PendingBatch
from runnel.core.errors import (
    BrokerClosed,
    DiskFull,
    InvalidOption,
    NotWritten,
    OutcomeUnknown,
    SequenceGap,
    TooLarge,
    TopicDeleted,
    WouldDeadlock,
)
from runnel.core.options import NO_TOPIC_OPTIONS
from runnel.core.position import Position
from runnel.core.publishing import Append
from runnel.journal.format.entry import PartKind, WriteFailed
from tests.broker.durable_broker import ByHand, Disk, commits_of, entries, journal_of, log_of, open_on, turns, until
from tests.brokers import local_broker

FULL = DiskFull(0, 0)


@pytest.fixture
async def broker(disk: Disk, tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_on(disk, tmp_path) as opened:
        for name in ("t", "u"):
            await opened.topic(name).declare()
        yield opened


def numbered(sequence: int, *values: bytes, producer: int = 7) -> Append:
    values = values or (b"x",)
    entry = Append(values, None, sum(map(len, values)))
    entry.producer, entry.producer_sequence = producer, sequence
    return entry


def sending(broker: Broker, topic: str, sequence: int, *values: bytes, producer: int = 7) -> asyncio.Task[Position]:
    """An entry with numbers, from wherever: over a network, say."""
    publisher, log = broker.backend.publisher, broker.backend.writer(topic, None, NO_TOPIC_OPTIONS).resolve()
    return asyncio.create_task(publisher.publish_numbered(log, numbered(sequence, *values, producer=producer)))


def following(broker: Broker) -> int | None:
    found: int | None = broker.backend.publisher.deduplicator.next(7)
    return found


def end(broker: Broker, topic: str = "t") -> int:
    return broker.statistics().topics[topic].end


def batches(broker: Broker) -> list[tuple[int, int]]:
    """The first offset and the count of each batch in the journal."""
    parts = [part for entry in entries(journal_of(broker)) for part in entry.parts]
    return [(part.base, part.count) for part in parts if part.kind == PartKind.BATCH]


# -- on its way -------------------------------------------------------------------------------------------------


async def test_a_duplicate_of_something_in_flight_joins_its_commit(broker: Broker, disk: Disk) -> None:
    disk.hold("sync")
    tasks = [sending(broker, "t", 0, b"a", b"b"), sending(broker, "t", 0, b"a", b"b")]
    await disk.reached()
    tasks += [sending(broker, "t", 0, b"a", b"b"), sending(broker, "t", 1, b"b")]
    await turns()
    assert not any(task.done() for task in tasks)
    disk.go_on()
    assert [(await task).offset for task in tasks] == [0, 0, 0, 1]
    assert end(broker) == 2


async def test_a_duplicate_joins_a_commit_that_fails(broker: Broker, disk: Disk) -> None:
    disk.hold("sync")
    tasks = [sending(broker, "t", 0), sending(broker, "t", 0)]
    await disk.reached()
    tasks.append(sending(broker, "u", 0))  # of the same record, though it names another topic
    await turns()
    disk.fail_next("sync")
    disk.go_on()
    for task in tasks:
        with pytest.raises(OutcomeUnknown):
            await task


async def test_a_duplicate_of_a_list_waits_for_the_last_of_it(broker: Broker, disk: Disk) -> None:
    await sending(broker, "t", 0, b"a", b"b")
    disk.hold("sync")
    more = sending(broker, "t", 2, b"c", b"d")
    await disk.reached()
    both = sending(broker, "t", 1, b"b", b"c", b"d")
    await turns()
    assert not both.done(), "its first record is on disk, and its last is not"
    disk.go_on()
    assert [(await task).offset for task in (more, both)] == [2, 1]


async def test_what_is_numbered_on_becomes_one_batch(broker: Broker) -> None:
    before = len(batches(broker))
    tasks = [sending(broker, "t", number) for number in range(20)]
    assert [(await task).offset for task in tasks] == list(range(20))
    assert batches(broker)[before:] == [(0, 20)]
    assert log_of(broker, "t").coming == log_of(broker, "t").coming_bytes == 0


async def test_records_of_others_never_come_between_numbers(broker: Broker) -> None:
    before = len(batches(broker))
    topic = broker.topic("t")
    await topic.declare()
    places = await asyncio.gather(
        sending(broker, "t", 0),
        sending(broker, "t", 1),
        asyncio.create_task(topic.publish(b"plain")),
        asyncio.create_task(topic.publish(b"plain")),
        sending(broker, "t", 2),
        sending(broker, "t", 0, producer=8),
        sending(broker, "t", 3),
    )
    assert [place.offset for place in places] == list(range(7))
    assert batches(broker)[before:] == [(0, 2), (2, 2), (4, 1), (5, 1), (6, 1)]
    assert (await sending(broker, "t", 3)).offset == 6


# -- what failed ------------------------------------------------------------------------------------------------


async def test_what_failed_and_all_behind_it_may_come_again(broker: Broker) -> None:
    await sending(broker, "t", 0)
    hand = ByHand(broker)
    first = sending(broker, "t", 1)
    await turns()
    behind = [sending(broker, "u", 2), sending(broker, "t", 3)]
    await turns()
    gathered = sending(broker, "u", 4)
    await turns()
    one = hand.put_in[0]
    hand.round = 1
    hand.done(one, WriteFailed(0, 0, FULL))
    hand.done(hand.put_in[1], WriteFailed(0, 0, FULL))
    for task in (first, *behind, gathered):
        with pytest.raises(DiskFull):
            await task
    assert following(broker) == 1
    with pytest.raises(SequenceGap):
        await sending(broker, "u", 2)
    again = [sending(broker, "t", 0), sending(broker, "t", 1), sending(broker, "u", 2), sending(broker, "t", 3)]
    await turns()
    hand.done(hand.put_in[2])
    assert [(await task).offset for task in again] == [0, 1, 0, 2]
    hand.leave()


async def test_a_full_disk_forgets_what_found_no_room_and_nothing_else(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as broker:
        await broker.publish("t", b"first", message_id="0")
        await sending(broker, "t", 0, b"x" * 3000)
        disk.hold("create", "")
        failing = [sending(broker, "t", 1, b"y" * 5000), asyncio.create_task(_told(broker, "1"))]
        await disk.reached()
        failing += [sending(broker, "t", 2), sending(broker, "t", 1, b"y" * 5000)]
        await turns()
        disk.fail_next("allocate", "", errno.ENOSPC)
        disk.go_on()
        for task in failing:
            with pytest.raises(DiskFull):
                await task
        assert following(broker) == 1
        assert (await _told(broker, "0")).offset == 0
        assert (await _told(broker, "1")).offset == 2
        assert [(await sending(broker, "t", n)).offset for n in (0, 1, 2)] == [1, 3, 4]


async def _told(broker: Broker, message_id: str) -> Position:
    return await broker.publish("t", b"told apart", message_id=message_id)


async def test_a_producer_whose_first_publish_failed_may_begin_anywhere(broker: Broker) -> None:
    hand = ByHand(broker)
    task = sending(broker, "t", 5)
    await turns()
    hand.done(hand.put_in[0], WriteFailed(0, 0, FULL))
    with pytest.raises(DiskFull):
        await task
    hand.leave()
    assert following(broker) is None
    assert (await sending(broker, "t", 3)).offset == 0


async def test_a_batch_that_cannot_be_written_takes_along_what_is_numbered_behind_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = PendingBatch.pack

    def pack(one: PendingBatch) -> bytes:
        if b"bad" in one.values:
            raise TooLarge("a batch", 1, "max_raw", 0)
        return packed(one)

    monkeypatch.setattr(PendingBatch, "pack", pack)
    before = sending(broker, "u", 0)
    await before
    tasks = [sending(broker, "t", 1, b"bad"), sending(broker, "u", 2)]
    other = sending(broker, "v", 0, producer=8)
    for task in tasks:
        with pytest.raises(TooLarge):
            await task
    assert (await other).offset == 0, "of another producer, for another topic"
    assert following(broker) == 1
    assert [(await sending(broker, topic, n)).offset for n, topic in ((1, "t"), (2, "u"))] == [0, 1]


async def test_one_that_was_let_in_and_failed_in_the_same_turn_is_reported(broker: Broker) -> None:
    """Its task goes on a turn later: by then another record may have its offset, and be on disk."""
    hand, stored = ByHand(broker), log_of(broker, "t").stored
    assert stored is not None
    async with broker.subscribe("t", policy="block", buffer=1) as records:
        first = asyncio.create_task(broker.publish("t", b"0"))
        await turns()
        hand.done(hand.put_in.pop())
        assert (await first).offset == 0
        waiting = asyncio.create_task(broker.publish("t", b"1"))
        await turns()
        failing = asyncio.create_task(broker.publish("u", b"fails"))
        await turns()
        assert (await anext(records)).value == b"0"
        reading = asyncio.create_task(anext(records))
        await until(lambda: stored.next > 1)
        hand.round = 1
        hand.done(hand.put_in.pop(0), WriteFailed(0, 0, FULL))  # and so the record that was let in just now
        again = asyncio.create_task(broker.publish("u", b"2"))
        broker.backend.publisher.append(log_of(broker, "t"), Append((b"another",), None, 7))
        await turns()
        while hand.put_in:
            hand.done(hand.put_in.pop(0))
            await turns()
        with pytest.raises(DiskFull):
            await failing
        with pytest.raises((DiskFull, NotWritten)):
            await waiting
        assert (await reading).value == b"another"
        await again
        hand.leave()


# -- deleted topics ---------------------------------------------------------------------------------------------


async def test_what_goes_with_its_topic_before_it_was_written_may_come_again(broker: Broker) -> None:
    hand = ByHand(broker)
    blockers = []
    for _ in range(2):
        blockers.append(asyncio.create_task(broker.publish("u", b"x")))
        await turns()
    tasks = [sending(broker, "t", 0), sending(broker, "t", 1)]
    await turns()
    broker.backend.catalog.delete("t")
    for task in tasks:
        with pytest.raises(TopicDeleted):
            await task
    assert following(broker) is None
    for commit in hand.put_in:
        hand.done(commit)
    hand.leave()
    await asyncio.gather(*blockers)
    assert (await sending(broker, "t", 0)).offset == 0


async def test_numbers_before_others_that_are_stored_count_as_published_when_their_topic_goes(broker: Broker) -> None:
    hand = ByHand(broker)
    blockers = []
    for _ in range(2):
        blockers.append(asyncio.create_task(broker.publish("u", b"x")))
        await turns()
    lost, kept = sending(broker, "t", 0), sending(broker, "u", 1)
    await turns()
    epoch = log_of(broker, "t").epoch
    broker.backend.catalog.delete("t")
    with pytest.raises(TopicDeleted):
        await lost
    for commit in hand.put_in:
        hand.done(commit)
    hand.leave()
    await asyncio.gather(*blockers)
    assert (await kept).offset == 2
    assert await sending(broker, "t", 0) == Position(epoch, 0), "as if it had been deleted right behind it"
    assert (await sending(broker, "u", 1)).offset == 2


async def test_one_that_waits_in_line_is_notified_when_its_topic_is_deleted(broker: Broker) -> None:
    async with broker.subscribe("u", policy="block", buffer=1) as slow:
        await sending(broker, "u", 0)
        tasks = [sending(broker, "u", 1), sending(broker, "t", 2)]
        await turns()
        broker.backend.catalog.delete("t")
        assert (await anext(slow)).offset == 0
        assert (await anext(slow)).offset == 1
        assert (await tasks[0]).offset == 1
        with pytest.raises(TopicDeleted):
            await tasks[1]
    assert following(broker) == 2
    assert broker.backend.publisher._lines == {}


async def test_a_reader_does_not_wait_in_line_for_itself(broker: Broker) -> None:
    async with broker.subscribe("u", policy="block", buffer=2) as slow:
        await sending(broker, "u", 0)
        assert (await anext(slow)).offset == 0
        await sending(broker, "u", 1)
        head = sending(broker, "u", 2)
        await turns()
        with pytest.raises(WouldDeadlock) as caught:
            await broker.backend.publisher.publish_numbered(log_of(broker, "t"), numbered(3))
        assert (caught.value.topic, caught.value.subscriber) == ("u", slow.label)
        assert (await anext(slow)).offset == 1
        assert (await anext(slow)).offset == 2
        await head
    assert (await sending(broker, "t", 3)).offset == 0


async def test_those_in_line_are_refused_when_the_broker_closes() -> None:
    async with local_broker() as broker:
        async with broker.subscribe("u", policy="block", buffer=1):
            await sending(broker, "u", 0)
            tasks = [sending(broker, "u", 1), sending(broker, "t", 2)]
            await turns()
            log = log_of(broker, "t")
            broker.close()
            for task in tasks:
                with pytest.raises(BrokerClosed):
                    await task
            assert log.end == 0


# -- anything else ----------------------------------------------------------------------------------------------


async def test_an_entry_has_numbers_or_a_message_id_and_not_both(broker: Broker) -> None:
    entry = numbered(0)
    entry.message_id = "m"
    with pytest.raises(InvalidOption, match="one or the other"):
        await broker.backend.publisher.publish_numbered(log_of(broker, "t"), entry)
    assert following(broker) is None


async def test_a_duplicate_needs_no_room(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, max_pending_bytes=1000) as broker:
        await sending(broker, "t", 0)
        topic = broker.topic("t")
        await topic.publish(b"told apart", message_id="m")
        disk.hold("sync")
        filling = sending(broker, "t", 1, bytes(2000))
        await disk.reached()
        assert not commits_of(broker).pending.has_room()
        assert (await sending(broker, "t", 0)).offset == 0
        topic.publish_nowait(b"told apart", message_id="m")
        assert (await topic.publish(b"told apart", message_id="m")).offset == 1
        disk.go_on()
        await filling


async def test_what_waits_for_the_journal_keeps_its_order(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, max_pending_bytes=1000) as broker:
        disk.hold("sync")
        tasks: list[Any] = [sending(broker, "tu"[n % 2], n, bytes(600)) for n in range(12)]
        await disk.reached()
        await turns()
        disk.go_on()
        assert [(await task).offset for task in tasks] == [n // 2 for n in range(12)]


async def test_it_says_how_much_it_remembers(broker: Broker) -> None:
    await sending(broker, "t", 0)
    await broker.publish("t", b"x", message_id="m")
    assert repr(broker.backend.publisher.deduplicator) == "<Deduplicator, 1 producers, 1 message ids>"

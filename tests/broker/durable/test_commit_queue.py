"""The commit queue: many publishes share one write, what is not durable is not seen, failures reach callers."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runnel.api.broker import Broker
from runnel.broker.durable.commit_queue import UNDER_WAY
from runnel.broker.topic.pending_batch import BATCH_BYTES
from runnel.core.errors import BrokerClosed, DiskFull, Full, JournalFailed, NotWritten, OutcomeUnknown, TopicDeleted
from runnel.journal.format.entry import PartKind, WriteFailed
from tests.broker.durable_broker import ByHand, Disk, commits_of, entries, journal_of, log_of, open_on, turns, until
from tests.patience import PATIENCE


@pytest.fixture
async def broker(disk: Disk, tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_on(disk, tmp_path) as opened:
        await opened.topic("t").declare()
        yield opened


def publishing(broker: Broker, *values: bytes, topic: str = "t") -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(broker.publish(topic, value)) for value in values]


def end(broker: Broker, topic: str = "t") -> int:
    return broker.statistics().topics[topic].end


# -- sharing --------------------------------------------------------------------------------------------------------


async def test_what_is_published_while_a_commit_is_under_way_shares_the_next_ones(broker: Broker, disk: Disk) -> None:
    before = len(entries(journal_of(broker)))
    disk.hold("sync")
    first = publishing(broker, b"0")
    await disk.reached()
    rest = publishing(broker, *(b"%d" % number for number in range(1, 100)))
    await turns()
    assert len(commits_of(broker)._under_way) == UNDER_WAY == 2, "one is being written and one is ready behind it"
    later = publishing(broker, *(b"%d" % number for number in range(100, 200)))
    await turns()
    assert len(commits_of(broker)._under_way) == UNDER_WAY
    disk.go_on()
    positions = await asyncio.gather(*first, *rest, *later)
    assert [position.offset for position in positions] == list(range(200))
    assert len(entries(journal_of(broker))) == before + 3


async def test_one_turns_publishes_to_many_topics_are_one_entry_of_a_batch_each(broker: Broker) -> None:
    for name in ("a", "b", "c"):
        await broker.topic(name).declare()
    before = len(entries(journal_of(broker)))
    await asyncio.gather(*(broker.publish(name, b"x") for name in "abcabc"))
    (entry,) = entries(journal_of(broker))[before:]
    assert [part.kind for part in entry.parts] == [PartKind.BATCH] * 3
    assert [part.count for part in entry.parts] == [2, 2, 2]


async def test_a_batch_that_is_full_makes_way_for_another_in_the_same_entry(broker: Broker, disk: Disk) -> None:
    await asyncio.gather(*publishing(broker, b"x" * BATCH_BYTES, b"y", b"z"))
    parts = entries(journal_of(broker))[-1].parts
    assert [(part.base, part.last) for part in parts] == [(0, 0), (1, 2)]
    assert end(broker) == 3


async def test_a_topic_comes_before_its_first_batch_and_its_end_behind_the_last(broker: Broker) -> None:
    before = len(entries(journal_of(broker)))
    new = publishing(broker, b"x", topic="new")
    await asyncio.gather(*new)
    (entry,) = entries(journal_of(broker))[before:]
    assert [part.kind for part in entry.parts] == [PartKind.TOPIC, PartKind.BATCH]


# -- durable before visible -----------------------------------------------------------------------------------------


async def test_no_reader_sees_a_record_before_its_commit_has_landed(broker: Broker, disk: Disk) -> None:
    async with broker.subscribe("t") as one, broker.subscribe(">") as all_of_them:
        disk.hold("sync")
        (published,) = publishing(broker, b"soon")
        await disk.reached()
        readers = [asyncio.ensure_future(anext(one)), asyncio.ensure_future(anext(all_of_them))]
        await turns()
        assert not published.done()
        assert not any(reader.done() for reader in readers)
        assert end(broker) == 0
        assert broker.statistics().published == 0
        async with broker.subscribe("t", start="earliest") as late:
            assert late.lag == 0
        disk.go_on()
        assert (await published).offset == 0
        assert [(await reader).value for reader in readers] == [b"soon", b"soon"]
        assert end(broker) == 1


async def test_a_record_that_failed_was_never_seen_and_its_offset_is_given_again(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as broker:
        await broker.publish("t", b"x" * 3000)
        async with broker.subscribe("t", start="earliest") as records:
            disk.fail_next("allocate", "", errno.ENOSPC)
            with pytest.raises(DiskFull):
                await broker.publish("t", b"y" * 5000)
            assert end(broker) == 1
            assert (await broker.publish("t", b"z" * 5000)).offset == 1
            assert [(await anext(records)).value[:1] for _ in range(2)] == [b"x", b"z"]


# -- waiting --------------------------------------------------------------------------------------------------------


async def test_cancelling_one_of_three_who_wait_leaves_the_others_and_the_record(broker: Broker, disk: Disk) -> None:
    disk.hold("sync")
    one, two, three = publishing(broker, b"1", b"2", b"3")
    await disk.reached()
    two.cancel()
    await turns()
    disk.go_on()
    assert [(await task).offset for task in (one, three)] == [0, 2]
    assert two.cancelled()
    assert end(broker) == 3, "handed over is handed over"


async def test_those_who_wait_for_all_so_far_wait_for_what_is_under_way(broker: Broker, disk: Disk) -> None:
    disk.hold("sync")
    publishing(broker, b"1")
    await disk.reached()
    flushed = asyncio.ensure_future(commits_of(broker).flushed())
    await turns()
    assert not flushed.done()
    disk.go_on()
    await flushed
    assert end(broker) == 1
    await commits_of(broker).flushed()  # and return at once when nothing is


async def test_a_duplicate_of_something_in_flight_joins_its_commit(broker: Broker, disk: Disk) -> None:
    disk.hold("sync")
    publishing_twice = [asyncio.ensure_future(broker.publish("t", b"x", message_id="m")) for _ in range(2)]
    await disk.reached()
    late = asyncio.ensure_future(broker.publish("t", b"x", message_id="m"))
    await turns()
    assert not any(task.done() for task in (*publishing_twice, late))
    disk.go_on()
    assert {(await task).offset for task in (*publishing_twice, late)} == {0}
    assert end(broker) == 1


# -- room -----------------------------------------------------------------------------------------------------------


async def test_pending_bytes_are_bounded_and_those_who_wait_come_in_order(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, max_pending_bytes=1000) as broker:
        topic = broker.topic("t")
        await topic.declare()
        disk.hold("sync")
        tasks = publishing(broker, *(b"%d" % number + b"x" * 600 for number in range(6)))
        await disk.reached()
        await turns()
        assert commits_of(broker).pending.bytes < 1000 + 601
        with pytest.raises(Full) as caught:
            topic.publish_nowait(b"x")
        assert caught.value.subscriber == "the journal"
        assert caught.value.buffer == 1000
        disk.go_on()
        assert [(await task).offset for task in tasks] == list(range(6)), "first come first served"
        assert commits_of(broker).pending.bytes == 0
        topic.publish_nowait(b"x")


@pytest.mark.parametrize("fast", [True, False], ids=["publish", "publish_nowait"])
async def test_a_publish_never_overtakes_those_that_wait_for_room(tmp_path: Path, fast: bool) -> None:
    big = b"x" * 2000

    async def busy(broker: Broker) -> list[int]:
        """Publish again as soon as the journal has taken the last one, before others that wait can run."""
        topic, refused = broker.topic("t"), 0
        offsets: list[int] = []
        for _ in range(3):
            if fast:
                offsets.append((await topic.publish(big)).offset)
            else:
                await commits_of(broker).flushed()
                try:
                    topic.publish_nowait(big)
                except Full:
                    refused += 1
            await asyncio.sleep(0)
        assert fast or refused, "nothing ever waited"
        return offsets

    disk = Disk()
    async with open_on(disk, tmp_path, max_pending_bytes=1000) as broker:
        await broker.topic("t").declare()
        disk.hold("sync")
        first = publishing(broker, big)
        await disk.reached()
        waiting = publishing(broker, *[big] * 3)
        await turns()
        later = asyncio.ensure_future(busy(broker))
        await turns(1)
        disk.go_on()
        offsets = [(await task).offset for task in (*first, *waiting)]
        assert offsets == [0, 1, 2, 3]
        assert all(offset > 3 for offset in await later)


async def test_a_publisher_that_gives_up_waiting_for_room_has_written_nothing(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, max_pending_bytes=1000) as broker:
        await broker.topic("t").declare()
        disk.hold("sync")
        first, second, third = publishing(broker, b"1" * 2000, b"2" * 2000, b"3" * 2000)
        await disk.reached()
        await turns()
        second.cancel()
        await turns()
        disk.go_on()
        assert [(await first).offset, (await third).offset] == [0, 1]


async def test_closing_refuses_those_who_wait_for_room_and_writes_what_was_handed_over(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, max_pending_bytes=1000) as broker:
        await broker.topic("t").declare()
        first, second = publishing(broker, b"1" * 2000, b"2" * 2000)
        await asyncio.sleep(0)
    assert (await first).offset == 0
    with pytest.raises(BrokerClosed):
        await second
    async with open_on(disk, tmp_path) as broker:
        assert end(broker) == 1


# -- closing --------------------------------------------------------------------------------------------------------


async def test_closing_writes_what_was_handed_over_and_readers_see_it(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        await broker.topic("t").declare()
        async with broker.subscribe("t") as records:
            for number in range(10):
                broker.topic("t").publish_nowait(b"%d" % number)
            broker.close()
            assert [record.value async for record in records] == [b"%d" % number for number in range(10)]
    async with open_on(disk, tmp_path) as broker:
        assert end(broker) == 10


async def test_a_closed_broker_accepts_no_calls_and_no_caller_waits(broker: Broker) -> None:
    commits = commits_of(broker)
    broker.close()
    with pytest.raises(BrokerClosed):
        await commits.flushed()
    with pytest.raises(BrokerClosed):
        broker.topic("t").publish_nowait(b"x")


# -- failing --------------------------------------------------------------------------------------------------------


async def test_a_failed_sync_leaves_the_outcome_unknown_and_what_gathered_unwritten(
    broker: Broker, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.publish("t", b"before")
    await broker.topic("other").declare()
    disk.hold("sync")
    (under_way,) = publishing(broker, b"written")
    await disk.reached()
    (behind,) = publishing(broker, b"ready")
    await turns()
    (gathered,) = publishing(broker, b"gathered")
    broker.topic("other").publish_nowait(b"and nobody waits")
    await turns()
    disk.fail_next("sync")
    disk.go_on()
    with pytest.raises(OutcomeUnknown) as caught:
        await under_way
    assert caught.value.code == "outcome_unknown"
    for task in (behind, gathered):
        with pytest.raises(NotWritten):
            await task
    with pytest.raises(JournalFailed):  # at the door, from now on
        await broker.publish("t", b"later")
    with pytest.raises(JournalFailed):
        broker.topic("t").publish_nowait(b"later")
    with pytest.raises((JournalFailed, NotWritten)):
        await broker.topic("new").declare()
    assert commits_of(broker).pending.bytes == 0
    assert any("which no caller awaits" in record.message for record in caplog.records)
    async with broker.subscribe("t", start="earliest") as records:  # reading goes on
        assert (await anext(records)).value == b"before"
        assert records.lag == 0, "nothing that failed lies ahead"


async def test_state_that_found_no_room_is_said_again(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as broker:
        await broker.publish("t", b"x" * 3000)
        disk.fail_next("allocate", "", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await broker.publish("new", b"y" * 5000)  # the topic is said in the same entry
        await broker.publish("new", b"z")
    async with open_on(disk, tmp_path) as broker:
        async with broker.subscribe("new", start="earliest") as records:
            assert (await anext(records)).value == b"z"


async def test_a_full_disk_fails_what_is_behind_it_and_then_publishing_goes_on(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as broker:
        await broker.publish("t", b"x" * 3000)
        disk.hold("create", "")
        (full,) = publishing(broker, b"y" * 5000)
        await disk.reached()
        (behind,) = publishing(broker, b"small")
        await turns()
        disk.fail_next("allocate", "", errno.ENOSPC)
        disk.go_on()
        for task in (full, behind):
            with pytest.raises(DiskFull):
                await task
        for number in range(1, 6):
            assert (await broker.publish("t", b"again")).offset == number


async def test_a_retry_with_its_message_id_after_a_full_disk_is_stored(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, segment_bytes=8192) as broker:
        await broker.publish("t", b"x" * 3000)
        disk.fail_next("allocate", "", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await broker.publish("t", b"y" * 5000, message_id="m")
        other = await broker.publish("t", b"other")
        retried = await broker.publish("t", b"y", message_id="m")
        assert (other.offset, retried.offset, end(broker)) == (1, 2, 3)


async def test_offsets_given_after_a_failure_are_not_taken_back_by_one_that_is_reported_later(broker: Broker) -> None:
    hand = ByHand(broker)
    (failing,) = publishing(broker, b"1")
    await turns()
    (refused,) = publishing(broker, b"2")
    await turns()
    one, two = hand.put_in
    hand.round = 1
    hand.done(one, WriteFailed(0, 0, DiskFull(0, 0)))
    again = publishing(broker, b"a", b"b", b"c")  # the thread has not told about the second one yet
    await turns()
    (three,) = hand.put_in[2:]
    hand.done(two, WriteFailed(0, 0, DiskFull(0, 0)))
    later = publishing(broker, b"d")
    await turns()
    hand.done(three)
    for commit in hand.put_in[3:]:
        hand.done(commit)
    hand.leave()
    for task in (failing, refused):
        with pytest.raises(DiskFull):
            await task
    assert [(await task).offset for task in (*again, *later)] == [0, 1, 2, 3]
    assert end(broker) == 4


async def test_both_topics_of_one_commit_reach_a_bounded_reader_of_both(broker: Broker) -> None:
    await broker.topic("u").declare()
    for policy in ("drop_newest", "drop_oldest", "block"):
        dropped: list[Any] = []
        async with broker.subscribe(">", policy=policy, buffer=100, on_drop=dropped.append) as records:
            for name in ("t", "u"):
                broker.topic(name).publish_nowait(policy.encode())
            async with asyncio.timeout(PATIENCE):
                assert [(await anext(records)).topic for _ in range(2)] == ["t", "u"]


async def test_what_waits_to_be_written_of_a_deleted_topic_goes_with_it(broker: Broker, disk: Disk) -> None:
    disk.hold("sync")
    (written,) = publishing(broker, b"1")
    await disk.reached()
    publishing(broker, b"x", topic="other")
    await turns()
    (waiting,) = publishing(broker, b"2")
    await turns()
    deleting = asyncio.ensure_future(broker.delete("t"))
    await turns()
    with pytest.raises(TopicDeleted):
        await waiting
    disk.go_on()
    await deleting
    assert (await written).offset == 0
    assert commits_of(broker).pending.bytes == 0
    assert "t" not in broker.statistics().topics


async def test_a_bug_below_poisons_the_journal_and_blocks_no_caller(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(drafts: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(journal_of(broker), "write", fail)
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(OutcomeUnknown, match="a bug"):
        await broker.publish("t", b"x")
    with pytest.raises(JournalFailed):
        await broker.publish("t", b"x")


async def test_it_says_what_is_under_way(broker: Broker, disk: Disk) -> None:
    disk.hold("sync")
    (task,) = publishing(broker, b"x" * 1500)
    await disk.reached()
    assert repr(commits_of(broker)) == "<CommitQueue, 1 under way, 1,500 bytes pending>"
    disk.go_on()
    await task
    await until(lambda: not commits_of(broker)._under_way)
    assert log_of(broker, "t").coming == 0


async def test_state_behind_a_failed_commit_is_said_again_in_its_order(broker: Broker) -> None:
    hand = ByHand(broker)
    creating = asyncio.ensure_future(broker.topic("new").publish(b"1"))  # the topic, and its first record
    await turns()
    deleting = asyncio.ensure_future(broker.delete("new"))
    await turns()
    one, two = hand.put_in
    hand.round = 1
    hand.done(one, WriteFailed(0, 0, DiskFull(0, 0)))
    hand.done(two, WriteFailed(0, 0, DiskFull(0, 0)))
    with pytest.raises(DiskFull):
        await creating
    broker.backend.store.commits.flush_soon()
    await turns()
    (three,) = hand.put_in[2:]
    assert [part.kind for part in three.draft.parts] == [PartKind.TOPIC, PartKind.TOPIC_DELETED]
    hand.done(three)
    await deleting
    hand.leave()


async def test_a_publisher_that_waits_for_room_raises_when_the_journal_fails_and_its_reader_does_not(
    broker: Broker, disk: Disk
) -> None:
    async with broker.subscribe("t", policy="block", buffer=2) as records:
        for value in (b"1", b"2"):
            await broker.publish("t", value)
        (waiting,) = publishing(broker, b"3")
        await turns()
        disk.fail_next("sync")
        with pytest.raises(OutcomeUnknown):
            await broker.publish("other", b"x")
        assert [(await anext(records)).value for _ in range(2)] == [b"1", b"2"]
        reading = asyncio.ensure_future(anext(records))
        with pytest.raises(JournalFailed):
            await waiting
        assert not reading.done(), "it has nothing to do with it"
        reading.cancel()

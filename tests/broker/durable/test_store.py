"""The broker's side of the journal: brought to life, read from, retained, closed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runnel.api.broker import Broker
from runnel.broker.durable.journal_reads import READER_THREADS
from runnel.core.errors import FolderUnusable, Forked, TopicConflict
from runnel.journal.folder_lock import FolderLock
from runnel.journal.format.entry import PartKind
from runnel.journal.format.ledger import TopicState, topic_part
from runnel.journal.read.journal_reader import ReadPlan
from runnel.testing.clock import START, JumpingClock
from tests.broker.durable_broker import Disk, commits_of, entries, journal_of, kinds, log_of, open_on, until
from tests.patience import PATIENCE

BEGAN = datetime.fromtimestamp(START, UTC)


@pytest.fixture
async def broker(disk: Disk, tmp_path: Path, clock: JumpingClock) -> AsyncIterator[Broker]:
    async with open_on(disk, tmp_path, clock, tail_bytes=1000) as opened:
        yield opened


async def test_topics_come_back_as_they_were_and_go_on(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        topic = broker.topic("t", int, retention_count=100)
        await topic.publish(1)
        before = log_of(broker, "t")
    async with open_on(disk, tmp_path) as broker:
        log = log_of(broker, "t")
        assert (log.epoch, log.first, log.end, log.values) == (before.epoch, 0, 1, [])
        assert log.options.retention_count == 100
        assert log.type is not None
        assert log.type.encoding == "json"
        with pytest.raises(TopicConflict):
            await broker.topic("t", retention_count=5).declare()
        assert (await broker.topic("t", int).publish(2)).offset == 1
        async with broker.topic("t", int).subscribe(start="earliest") as records:
            assert [(await anext(records)).value for _ in range(2)] == [1, 2]


async def test_sequences_and_epochs_go_on_behind_those_of_an_earlier_life(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        await broker.publish("t", b"1")
        await broker.topic("m", durable=False).publish(b"2")
        await broker.delete("t")
        epoch = broker.backend.catalog.epoch
    async with open_on(disk, tmp_path, JumpingClock(1.0)) as broker:  # a clock that went back
        assert broker.backend.timeline.sequence >= 2
        assert (await broker.publish("t", b"3")).epoch > epoch


async def test_a_topic_that_gets_a_type_is_described_again(broker: Broker) -> None:
    await broker.topic("t").declare()
    await broker.topic("t", int).declare()
    await broker.topic("t", int).declare()
    assert sum(part == PartKind.TOPIC for entry in kinds(entries(journal_of(broker))) for part in entry) == 2


async def test_topics_that_are_not_durable_leave_no_trace(broker: Broker) -> None:
    before = kinds(entries(journal_of(broker)))
    await broker.topic("m", durable=False).publish(b"x")
    async with broker.subscribe("only.subscribed"):
        pass
    await broker.backend.flushed()
    assert kinds(entries(journal_of(broker))) == before
    assert log_of(broker, "m").stored is None


async def test_a_time_finds_its_record_on_disk_and_in_memory(broker: Broker, clock: JumpingClock) -> None:
    for _ in range(20):
        await broker.publish("t", b"x" * 200)
        await clock.advance(10)
    log = log_of(broker, "t")
    store = broker.backend.store
    assert store is not None
    assert 0 < log.base < 20
    for seconds, offset in ((-5, 0), (0, 0), (1, 1), (50, 5), (51, 6), (189, 19), (190, 19), (191, 20)):
        time = BEGAN + timedelta(seconds=seconds)
        assert store.reads.offset_at(log, time) == offset
        found = store.reads.sequence_at(time)
        assert (20 if found is None else found) == offset


async def test_a_time_before_what_retention_left_finds_the_first_that_is_left(tmp_path: Path) -> None:
    async with open_on(Disk(), tmp_path, tail_bytes=1) as broker:
        topic = broker.topic("t", retention_count=3)
        for _ in range(10):
            await topic.publish(b"x")
        assert broker.backend.store is not None
        assert broker.backend.store.reads.offset_at(log_of(broker, "t"), BEGAN - timedelta(days=999)) == 7


async def test_retention_moves_the_first_offset_when_a_segment_is_sealed(tmp_path: Path, clock: JumpingClock) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path, clock, segment_bytes=4096, tail_bytes=1) as broker:
        topic = broker.topic("t", retention_age=100)
        for _ in range(12):
            await topic.publish(b"x" * 1000)
            await clock.advance(50)
        await until(lambda: log_of(broker, "t").first > 0)
        first = log_of(broker, "t").first
        await broker.backend.flushed()
        assert journal_of(broker).ledger.topics[1].first == first
    async with open_on(disk, tmp_path, clock) as broker:
        assert log_of(broker, "t").first >= first


async def test_reading_after_the_end_blocks_no_caller(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path, tail_bytes=1) as broker:
        for _ in range(5):
            await broker.publish("t", b"x")
        async with broker.subscribe("t", start="earliest") as records:
            broker.close()
            async with asyncio.timeout(PATIENCE):
                async for _ in records:
                    pass


async def test_closing_writes_the_last_positions_even_if_nothing_else_did(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        for _ in range(5):
            await broker.publish("t", b"x")
        records = broker.subscribe("t", name="n")
        await records.__aenter__()
        for _ in range(3):
            await anext(records)
    async with open_on(disk, tmp_path) as broker:
        async with broker.subscribe("t", name="n") as records:
            assert (await anext(records)).offset == 2, "it never asked beyond that"


async def test_a_close_that_finds_the_disk_broken_lets_the_folder_go(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_on(disk, tmp_path) as broker:
        await broker.publish("t", b"x")
        disk.fail_next("create", "")
    assert "could not be sealed" in caplog.text
    async with open_on(disk, tmp_path) as broker:
        assert log_of(broker, "t").end == 1


async def test_the_last_state_that_cannot_be_written_is_said(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_on(disk, tmp_path) as broker:
        position = await broker.publish("t", b"x")
        store = broker.backend.store
        assert store is not None
        store.commits.drain()
        broker.backend.positions.keep("n", "t", position)  # as readers do that end now
        disk.fail_next("write")
        store.close()
        assert "the last positions and acks were not stored" in caplog.text
        broker.backend.loop_owner.close()


async def test_the_copy_in_a_fork_lets_go_and_writes_nothing(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        await broker.publish("t", b"x")
        store = broker.backend.store
        assert store is not None
        assert repr(store).startswith("<Store of <Journal")
        store.abandon()
        lock = FolderLock(tmp_path)
        lock.take()  # in a child this would be the parent's
        lock.release()


async def test_a_publish_in_the_child_of_a_fork_joins_no_batch(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        topic = broker.topic("t")
        await topic.publish(b"0")
        topic.publish_nowait(b"1")
        broker.backend.loop_owner.fork()  # as the child's copy is told
        with pytest.raises(Forked):
            topic.publish_nowait(b"2")
        with pytest.raises(Forked):
            await topic.publish(b"3")
        store = broker.backend.store
        assert store is not None
        store.give_up()


async def _answer(broker: Broker) -> object:
    """What comes of reading the first chunk of topic "t"."""
    store, log = broker.backend.store, log_of(broker, "t")
    assert store is not None
    assert log.stored is not None
    plan = store.journal.history.plan(log.stored.id, 0, None, 0)
    assert plan is not None
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    store.reads.read(plan, lambda _, found: answer.set_result(found))
    return await asyncio.wait_for(answer, PATIENCE)


async def test_a_read_that_fails_in_whatever_way_is_answered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.publish("t", b"x")
    assert isinstance(await _answer(broker), bytes)

    def broken(plan: ReadPlan) -> bytes:
        raise ValueError("a bug")

    monkeypatch.setattr(journal_of(broker).history, "fetch", broken)
    assert str(await _answer(broker)) == "a bug"
    assert "reading the journal failed" in caplog.text


async def test_reads_that_a_close_drops_or_finds_are_answered(disk: Disk, tmp_path: Path) -> None:
    async with open_on(disk, tmp_path) as broker:
        await broker.publish("t", b"x")
        disk.hold("read")
        reads = [asyncio.ensure_future(_answer(broker)) for _ in range(READER_THREADS + 2)]
        await disk.reached()
        asyncio.get_running_loop().run_in_executor(None, disk.go_on)
        broker.close()
        *_, last = await asyncio.gather(*reads)
        assert isinstance(last, bytes) or str(last) == "the broker is closed"
        assert str(await _answer(broker)) == "the broker is closed"


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"schema": {}}, "a schema without encoding or fields"),
        ({"encoding": "json"}, "a schema without encoding or fields"),
        ({"encoding": "pickle", "schema": {}}, "a schema without encoding or fields"),
        ({"encoding": "json", "schema": None}, "a schema without encoding or fields"),
        ({}, "a schema without encoding or fields"),
        (None, "options that are not valid"),
    ],
)
async def test_a_topic_that_is_stored_with_something_strange_is_named(
    disk: Disk, tmp_path: Path, stored: dict[str, object] | None, said: str
) -> None:
    options = {"colour": "red"} if stored is None else {}
    async with open_on(disk, tmp_path) as broker:
        commits_of(broker).tell(topic_part(TopicState(7, "odd", 1, options, stored)))
    with pytest.raises(FolderUnusable, match=f"topic 'odd' is stored with {said}.*with the version of runnel"):
        async with open_on(disk, tmp_path):
            pass

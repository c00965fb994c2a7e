"""Following commits of stages: staged records are read where they were committed, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.api.broker import Broker
from runnel.broker.read.catch_up import END, StagedReader
from runnel.core.batch import Slice
from runnel.core.batch_format import pack
from runnel.core.record import Record
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import STAGE_TOPIC
from runnel.journal.format.ledger import StageState, stage_commit_part, stage_part, staged_part
from runnel.journal.read.inspection import RecordExtract
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.read.segment_reader import LostRange, StageCommit
from runnel.testing.memory_storage import MemoryStorage
from tests.broker.durable_broker import Disk, journal_of, log_of, open_on
from tests.broker.read.test_catch_up import Reading
from tests.journal.check.test_scan import hurt
from tests.journal.cleaned_segments import clean, journal_with_stages
from tests.journal.journal_cleaning import World
from tests.journal.journal_cleaning import clean as cleaned
from tests.journal.written_journal import batch

TOPICS = ("a", "b", "c")

Place = tuple[str, int, int, bytes]


def storages() -> list[MemoryStorage]:
    """The same journal as it was written, and with a cleaned segment."""
    plain, other = journal_with_stages(), journal_with_stages()
    clean(other)
    return [plain, other]


def every(broker: Broker) -> list[Place]:
    """All records, in order, as other parts of the journal read them."""
    journal = journal_of(broker)
    extract = RecordExtract(journal.history, list(journal.ledger.topics.values()), ">", by_sequence=True)
    return [(o.topic, o.offset, o.sequence, o.value) for o in extract.read() if isinstance(o, Record)]


async def read(
    broker: Broker, *topics: str, place: int = 0, limit: int = 10**6, sequence: bool
) -> list[Place | LostRange]:
    reading, found = Reading(broker, *topics, sequence=sequence), list[Place | LostRange]()
    while (part := await reading.take(place, limit)) is not END:
        assert isinstance(part, (Slice, LostRange))
        if isinstance(part, LostRange):
            found.append(part)
            place = part.end
        else:
            found += [(one.topic, one.offset, one.sequence, one.value) for one in part.records]
            place = part.sequence + len(part) if sequence else part.end
    return found


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_from_every_start_all_records_come_once_in_order(tmp_path: Path, cleaned: bool, limit: int) -> None:
    async with open_on(Disk(inner=storages()[cleaned]), tmp_path, tail_bytes=1) as broker:
        expected = every(broker)
        assert len(expected) == 6 + 2 + 33
        for place in range(0, len(expected) + 1, 1 if limit == 3 else 7):
            behind = [one for one in expected if one[2] >= place]
            assert await read(broker, *TOPICS, place=place, limit=limit, sequence=True) == behind
        for topic in TOPICS:
            mine = [one for one in expected if one[0] == topic]
            for place in range(0, len(mine) + 1, 1 if limit == 3 else 7):
                assert await read(broker, topic, place=place, limit=limit, sequence=False) == mine[place:]


@pytest.mark.parametrize("cleaned", [False, True])
async def test_staged_records_are_invisible_before_the_commit(tmp_path: Path, cleaned: bool) -> None:
    async with open_on(Disk(inner=storages()[cleaned]), tmp_path, tail_bytes=1) as broker:
        values = [one[3] for one in await read(broker, *TOPICS, sequence=True) if not isinstance(one, LostRange)]
        assert b"never" not in values
        assert values.index(b"later 0") > values.index(b"s2")  # staged early, and committed last


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("cleaned", [False, True])
async def test_a_staged_batch_that_is_damaged_is_lost_alone(tmp_path: Path, cleaned: bool, sequence: bool) -> None:
    storage = storages()[cleaned]
    name = next(one for one in storage.names() if one.endswith(".seg") and b"s1" in read_whole(storage, one))
    hurt(storage, name, read_whole(storage, name).index(b"s1"))
    async with open_on(Disk(inner=storage), tmp_path, tail_bytes=1) as broker:
        found = await read(broker, "c", sequence=sequence)
        first = 6 if sequence else 0
        assert [one if isinstance(one, LostRange) else one[1] for one in found] == [
            0,
            1,
            LostRange(first + 2, first + 4, next(one.reason for one in found if isinstance(one, LostRange))),
            4,
            5,
        ]


def without_stage(broker: Broker, stage: int) -> None:
    """Have the journal forget the segments in which something was staged, as if they were gone."""
    journal = journal_of(broker)
    journal.history = JournalReader(
        [one for one in journal.history.sources if one.index.range_of(STAGE_TOPIC | stage) is None]
    )


@pytest.mark.parametrize("sequence", [False, True])
async def test_staged_batches_that_are_gone_are_reported(tmp_path: Path, sequence: bool) -> None:
    async with open_on(Disk(inner=storages()[0]), tmp_path, tail_bytes=1) as broker:
        (committed,) = [one for one in every(broker) if one[3] == b"later 0"]
        start = committed[2] if sequence else committed[1]
        without_stage(broker, 3)
        found = await read(broker, "a", place=start, sequence=sequence)
        assert found[0] == LostRange(start, start + 2, "a staged batch of it is not there any more")
        assert not isinstance(found[1], LostRange)


async def test_records_removed_by_retention_meanwhile_are_not_reported_twice(tmp_path: Path) -> None:
    async with open_on(Disk(inner=storages()[0]), tmp_path, tail_bytes=1) as broker:
        without_stage(broker, 3)
        log_of(broker, "a").begin_at(17)
        found = await read(broker, "a", place=15, sequence=False)
        assert [one if isinstance(one, LostRange) else one[1] for one in found] == [17, 18, 19]


async def test_a_disk_that_fails_in_a_stage_is_reported(tmp_path: Path) -> None:
    disk = Disk(inner=storages()[0])
    async with open_on(disk, tmp_path, tail_bytes=1) as broker:
        reading = Reading(broker, "c")
        assert reading.way.take(0, 10) is None
        await reading.woken.wait()
        disk.fail_next("read")
        found = await reading.take(0)
        assert isinstance(found, LostRange)
        assert (found.first, found.end) == (0, 6)
        assert "cannot be read" in found.reason


async def test_a_commit_whose_records_were_all_removed_is_passed_silently(tmp_path: Path) -> None:
    async with open_on(Disk(inner=storages()[0]), tmp_path, tail_bytes=1) as broker:
        without_stage(broker, 1)
        log_of(broker, "c").begin_at(6)
        found = await read(broker, *TOPICS, sequence=True)
        assert not [one for one in found if isinstance(one, LostRange)]
        assert {one[0] for one in found if not isinstance(one, LostRange)} == {"a", "b"}


@pytest.mark.parametrize("seed", range(4))
async def test_what_the_cleaner_left_is_read_once_and_in_order(tmp_path: Path, seed: int) -> None:
    storage = MemoryStorage()
    world = World(seed, storage)
    for _ in range(4):
        world.work(30)
        world.clean_some()
    names = {topic.id: topic.name for topic in world.journal.ledger.topics.values()}
    held = [(names[o.topic], o.offset, o.sequence, o.value) for o in world.wanted(world.journal.ledger)]
    world.journal.close()
    async with open_on(Disk(inner=storage), tmp_path, tail_bytes=1) as broker:
        found = await read(broker, *names.values(), sequence=True)
        firsts = {name: log_of(broker, name).first for name in names.values()}
        assert [one for one in found if isinstance(one, LostRange) or one[1] >= firsts[one[0]]] == held
        for name in names.values():
            mine = [one for one in held if one[0] == name]
            assert await read(broker, name, place=firsts[name], sequence=False) == mine


async def test_records_removed_by_retention_while_a_stage_is_read_are_not_reported_as_lost(tmp_path: Path) -> None:
    async with open_on(Disk(inner=storages()[0]), tmp_path, tail_bytes=1) as broker:
        store, log = broker.backend.store, log_of(broker, "c")
        assert store is not None
        gone = StageCommit(3, 0, 5, 6, 1, 99, (2, 2, 2))
        reading = StagedReader(store.reads, gone, log, 0, lambda: None, sequence=False, on_demand=False)
        log.begin_at(6)
        assert reading.take() is END


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("taken", range(1, 20, 3))
async def test_what_the_cleaner_puts_elsewhere_while_it_is_read_comes_once(
    tmp_path: Path, sequence: bool, taken: int
) -> None:
    storage = MemoryStorage()
    world = World(3, storage)
    topic = world.topics[0]
    values = [b"%d" % number for number in range(24)]
    world.writer.write([stage_part(StageState(1, "w", 0, 0, 0, topic, 5))])
    for ordinal in range(8):
        world.writer.write([staged_part(1, ordinal, pack(values[ordinal * 3 : ordinal * 3 + 3]), 5)])
        world.writer.publish(world.topics[1], b"x" * 900)
    ledger = world.journal.ledger
    commit = stage_commit_part(ledger.stages[1], 0, ledger.sequence, world.writer.now + 1)
    world.writer.write([commit, batch(topic, 24, commit.sequence + 24, world.writer.now + 1, [b"behind"])])
    for _ in range(6):
        world.writer.publish(world.topics[1], b"x" * 900)
        world.writer.publish(topic, b"later")
    world.journal.close()
    async with open_on(Disk(inner=storage), tmp_path, tail_bytes=1) as broker:
        journal, found, place = journal_of(broker), list[Place](), 0
        expected = [one for one in every(broker) if sequence or one[0] == "t0"]
        reading = Reading(broker, *(("t0", "t1") if sequence else ("t0",)), sequence=sequence)
        while (part := await reading.take(place, 2)) is not END:
            assert isinstance(part, Slice)
            found += [(one.topic, one.offset, one.sequence, one.value) for one in part.records]
            place = part.sequence + len(part) if sequence else part.end
            if len([one for one in found if one[0] == "t0"]) >= taken and journal.ledger.committed:
                cleaned(journal, placing=[1])
                journal.retain(1)
                cleaned(journal)
        assert found == expected
        assert not journal.ledger.committed

"""Following commits of blocks: records of many topics in their order, also where the cleaner puts them meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.broker.read.catch_up import END, BlocksReader
from runnel.core.batch import Slice
from runnel.journal.read.segment_reader import LostRange, blocks_commit
from runnel.testing.memory_storage import MemoryStorage
from tests.broker.durable_broker import Disk, journal_of, log_of, open_on
from tests.broker.read.test_catch_up import Reading
from tests.broker.read.test_catch_up_staged import TOPICS, Place, every, read
from tests.journal.blocks import BlockWriter, journal_with_blocks
from tests.journal.journal_cleaning import clean


@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_from_every_start_all_records_come_once_in_order(tmp_path: Path, limit: int) -> None:
    async with open_on(Disk(inner=journal_with_blocks()), tmp_path, tail_bytes=1) as broker:
        expected = every(broker)
        assert len(expected) == 29
        for place in range(0, len(expected) + 1, 1 if limit == 3 else 5):
            behind = [one for one in expected if one[2] >= place]
            assert await read(broker, *TOPICS, place=place, limit=limit, sequence=True) == behind
            some = [one for one in behind if one[0] != "b"]
            assert await read(broker, "a", "c", place=place, limit=limit, sequence=True) == some
        for topic in TOPICS:
            mine = [one for one in expected if one[0] == topic]
            for place in range(len(mine) + 1):
                assert await read(broker, topic, place=place, limit=limit, sequence=False) == mine[place:]


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("taken", range(1, 40, 6))
async def test_what_the_cleaner_puts_elsewhere_while_it_is_read_comes_once(
    tmp_path: Path, sequence: bool, taken: int
) -> None:
    storage = MemoryStorage()
    with BlockWriter(storage) as writer:
        for name in TOPICS:
            writer.publish(name, [b"before"])
        stage = writer.stage(*[[1, 2, 1, 3]] * 10, roll=True)
        writer.commit(stage)
        writer.publish("a", [b"after"])
        writer.journal._roll(0, writer.time)
    async with open_on(Disk(inner=storage), tmp_path, tail_bytes=1) as broker:
        journal, found, place = journal_of(broker), list[Place](), 0
        expected = [one for one in every(broker) if sequence or one[0] == "a"]
        reading = Reading(broker, *(TOPICS if sequence else "a"), sequence=sequence)
        while (part := await reading.take(place, 2)) is not END:
            assert isinstance(part, Slice), part
            found += [(one.topic, one.offset, one.sequence, one.value) for one in part.records]
            place = part.sequence + len(part) if sequence else part.end
            if len(found) >= min(taken, len(expected) - 2) and journal.ledger.blocks:
                clean(journal, placing=[stage.id])
                journal.retain(1)
                clean(journal)
        assert found == expected
        assert not journal.ledger.blocks


async def test_records_removed_by_retention_while_blocks_are_read_are_not_reported_as_lost(tmp_path: Path) -> None:
    async with open_on(Disk(inner=journal_with_blocks()), tmp_path, tail_bytes=1) as broker:
        store = broker.backend.store
        assert store is not None
        logs = {number: log_of(broker, name) for number, name in enumerate(TOPICS, 1)}
        gone = blocks_commit(99, 4, 20, 1, {1: (1, 8), 2: (2, 11)})
        woken: list[bool] = []
        for first, ends in ((9, True), (3, False)):
            logs[1]._floor, logs[2]._floor = first, 12
            reader = BlocksReader(store.reads, gone, logs, 4, lambda: woken.append(True), sequence=True)
            while (found := reader.take()) is None:
                await store.commits.flushed()
            assert (found is END) is ends


async def test_a_disk_that_fails_in_a_block_is_reported(tmp_path: Path) -> None:
    disk = Disk(inner=journal_with_blocks())
    async with open_on(disk, tmp_path, tail_bytes=1) as broker:
        reading = Reading(broker, *TOPICS, sequence=True)
        found, place = await reading.take(0), 0
        while isinstance(found, Slice) and place < 3:
            place = found.sequence + len(found)
            found = await reading.take(place)
        disk.fail_next("read")
        while isinstance(found, Slice):
            place = found.sequence + len(found)
            found = await reading.take(place)
        assert isinstance(found, LostRange)
        assert "cannot be read" in found.reason
        assert found.end == 27

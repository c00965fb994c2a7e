"""Chunks: one in hand, one on its way, in order, of segments as they were written and of cleaned ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runnel.api.broker import Broker
from runnel.broker.read.catch_up import END, ChunkReader
from runnel.journal.read.segment_reader import LostRange
from tests.broker.durable_broker import Disk, journal_of, log_of, open_on
from tests.journal.cleaned_segments import clean, journal_with_stages


class Reading:
    """Chunks of one topic, or of some by sequence, and a view of when their reader is woken."""

    def __init__(self, broker: Broker, *topics: str, sequence: bool = False, on_demand: bool = False) -> None:
        ids = [log.stored.id for topic in topics if (log := log_of(broker, topic)).stored is not None]
        self.woken = asyncio.Event()
        store: Any = broker.backend.store
        self.chunks = ChunkReader(store.reads, lambda: ids, self.woken.set, sequence=sequence, on_demand=on_demand)

    async def take(self, place: int = 0) -> list[Any] | None:
        """The items of the next chunk; None at the end."""
        while (found := self.chunks.take(place)) is None:
            await self.woken.wait()
            self.woken.clear()
        return None if found is END else list(found)


@pytest.fixture
def disk() -> Disk:
    storage = journal_with_stages()
    clean(storage)
    return Disk(inner=storage)


@pytest.fixture
async def broker(disk: Disk, tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_on(disk, tmp_path, tail_bytes=1) as opened:
        yield opened


async def all_of(reading: Reading) -> list[list[Any]]:
    chunks = []
    while (found := await reading.take()) is not None:
        chunks.append(found)
    return chunks


async def test_of_a_cleaned_segment_a_chunk_is_an_entry_by_topic_and_a_block_by_sequence(broker: Broker) -> None:
    index = journal_of(broker).history.sources[0].index
    by_topic = await all_of(Reading(broker, "a"))
    assert all(len(items) == 1 for items in by_topic[:2])
    assert by_topic[0][0].base == 0
    by_sequence = await all_of(Reading(broker, "a", "b", "c", sequence=True))
    first = index.block(0)
    assert first is not None
    assert {item.topic for item in by_sequence[0]} == {1, 2, 3}
    assert all(item.sequence < (first.behind or 0) for item in by_sequence[0])
    assert [one.sequence for chunk in by_sequence for one in chunk] == sorted(
        one.sequence for chunk in by_sequence for one in chunk
    )


async def test_the_next_chunk_is_asked_for_while_one_is_worked_on_unless_it_is_read_on_demand(broker: Broker) -> None:
    eager, lazy = Reading(broker, "a"), Reading(broker, "a", on_demand=True)
    await eager.take()
    await lazy.take()
    assert eager.chunks._plan is not None
    assert lazy.chunks._plan is None
    assert await all_of(eager) == await all_of(lazy)


async def test_it_says_how_far_it_has_read(broker: Broker) -> None:
    reading = Reading(broker, "a")
    assert reading.chunks.reach == 0
    items = await reading.take()
    assert items is not None
    assert reading.chunks.reach == items[-1].last + 1


async def test_a_disk_that_fails_costs_the_rest_of_the_segment_and_the_next_one_is_read(
    broker: Broker, disk: Disk
) -> None:
    source = journal_of(broker).history.sources[0]
    held = source.index.range_of(1)
    assert held is not None
    for sequence in (False, True):
        reading = Reading(broker, "a", sequence=sequence)
        disk.fail_next("read", source.info.name)
        chunks = await all_of(reading)
        (lost,) = chunks[0]
        assert isinstance(lost, LostRange)
        assert lost.end == (source.info.end_sequence if sequence else held.end)
        assert not [item for items in chunks[1:] for item in items if isinstance(item, LostRange)]
        assert chunks[1:]

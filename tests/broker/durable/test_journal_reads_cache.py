"""The chunk cache: chunks that were read lately are read once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.broker.durable.journal_reads import ChunkCache
from runnel.journal.read.segment_reader import FoundBatch, LostRange, ParsedChunk
from tests.contract.reading import read


def parsed(size: int, *more: Any) -> ParsedChunk:
    return ParsedChunk([FoundBatch(1, 0, 9, 0, 0, bytes(size)), *more], 100, 10)


def test_what_was_kept_is_found_until_there_is_too_much() -> None:
    recent = ChunkCache(limit=250)
    for at in range(3):
        recent.keep((7, at, 1, 0), parsed(100))
    assert recent.find((7, 0, 1, 0)) is None
    assert recent.find((7, 2, 1, 0)) == parsed(100)
    assert len(recent) == 2


def test_what_is_used_stays() -> None:
    recent = ChunkCache(limit=250)
    recent.keep((7, 0, 1, 0), parsed(100))
    recent.keep((7, 1, 1, 0), parsed(100))
    recent.find((7, 0, 1, 0))
    recent.keep((7, 2, 1, 0), parsed(100))
    assert recent.find((7, 1, 1, 0)) is None
    assert recent.find((7, 0, 1, 0)) is not None


def test_one_chunk_is_kept_however_large() -> None:
    recent = ChunkCache(limit=10)
    recent.keep((7, 0, 1, 0), parsed(100))
    assert recent.find((7, 0, 1, 0)) is not None
    recent.clear()
    assert len(recent) == 0


def test_damage_and_nothing_are_looked_at_anew() -> None:
    recent = ChunkCache()
    recent.keep((7, 0, 1, 0), parsed(100, LostRange(5, 6, "damaged")))
    recent.keep((7, 1, 1, 0), ParsedChunk([], 100, 10))
    assert len(recent) == 0


async def test_readers_that_are_behind_together_read_the_disk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runnel.open(tmp_path, tail_bytes=1024) as broker:
        topic = broker.topic("t")
        for _ in range(20):
            await topic.publish_many([bytes(100)] * 1000)
        store = broker.backend.store
        assert store is not None
        reads, real = 0, store.reads.read

        def counted(*args: Any) -> None:
            nonlocal reads
            reads += 1
            real(*args)

        monkeypatch.setattr(store.reads, "read", counted)

        async def reader() -> None:
            async with broker.subscribe("t", start="earliest") as subscription:
                records = await read(subscription, 20_000)
                assert [record.offset for record in records] == list(range(20_000))

        await reader()
        alone = reads
        assert alone > 1
        await asyncio.gather(*(reader() for _ in range(5)))
        assert reads == alone

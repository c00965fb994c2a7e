"""What the journal did and holds, in numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import runnel
from runnel.broker import sample
from runnel.core.statistics import HolderStatistics
from tests.broker.durable_broker import Disk, journal_of, open_on, until


async def test_a_broker_in_memory_has_no_journal() -> None:
    async with runnel.open() as broker:
        assert broker.statistics().journal is None


async def test_segments_syncs_and_bytes_are_counted(tmp_path: Path) -> None:
    async with open_on(Disk(), tmp_path, segment_bytes=8192) as broker:
        for _ in range(20):
            await broker.publish("t", bytes(1000))
        found = broker.statistics().journal
        assert found is not None
        assert found.segments == len(journal_of(broker).history.sources) > 2
        assert 20_000 < found.disk_bytes < 30_000
        assert found.syncs > 20
        assert found.sync_durations.count == found.syncs, "one for each"
        assert 0 < found.sync_durations.sum < 60
        assert (found.pending_bytes, found.min_free, found.low, found.full) == (0, 0, False, False)
        assert (found.failed, found.damage, found.holders) == (None, (), ())
        topic = broker.topic("t")
        topic.publish_nowait(b"12345")
        pending = broker.statistics().journal
        assert pending is not None
        assert pending.pending_bytes == 5


async def test_free_space_is_reported_after_the_first_look_and_a_full_disk_shows(tmp_path: Path) -> None:
    disk = Disk(capacity=300_000)
    async with open_on(disk, tmp_path, segment_bytes=65_536, min_free=140_000) as broker:
        await until(lambda: broker.backend.store.disk_monitor.free is not None)
        found = broker.statistics().journal
        assert found is not None
        assert found.free_bytes is not None
        assert 200_000 < found.free_bytes < 300_000
        assert (found.low, found.full) == (True, False), "below twice min_free, and there is room for a segment"
        broker.backend.store.disk_monitor.free = 200_000
        found = broker.statistics().journal
        assert found is not None
        assert found.full


async def test_a_journal_that_failed_says_why(tmp_path: Path) -> None:
    disk = Disk()
    async with open_on(disk, tmp_path) as broker:
        await broker.publish("t", b"x")
        disk.fail_next("sync")
        try:
            await broker.publish("t", b"y")
        except runnel.RunnelError:
            pass
        found = broker.statistics().journal
        assert found is not None
        assert found.failed is not None
        assert "open the broker again" in found.failed


async def test_those_who_hold_are_listed(tmp_path: Path) -> None:
    async with open_on(Disk(), tmp_path) as broker:
        async with broker.subscribe("t", name="archive", hold=True):
            found = broker.statistics().journal
        assert found is not None
        assert found.holders == (HolderStatistics("archive", "t", 0),)


async def test_offsets_that_a_crash_skipped_do_not_count_as_published_or_as_lag(tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    async with runnel.open(tmp_path / "data", fsync="os") as broker:
        await broker.topic("t").publish_many([b"x"] * 7)
        async with broker.subscribe("t", name="reader") as records:
            await anext(records)
        await broker.topic("t").publish_many([b"x"] * 2)
        # As a crash leaves it: not closed.
        shutil.copytree(tmp_path / "data", crashed, ignore=shutil.ignore_patterns("socket"))
    async with runnel.open(crashed) as broker:
        await broker.publish("t", b"x")
        found = broker.statistics()
        topic = found.topics["t"]
        assert topic.end > 1 << 31, "offsets were skipped"
        assert (topic.published, found.published) == (10, 10)
        (name,) = found.cursors
        assert name.lag == 10
        async with broker.subscribe("t", name="reader"):
            (reading,) = broker.statistics().subscriptions
            assert reading.lag == 10
        await broker.delete("t")
        assert broker.statistics().published == 10


async def test_segments_say_how_many_records_they_hold_also_where_a_crash_skipped_sequences(tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    async with runnel.open(tmp_path / "data", fsync="os") as broker:
        await broker.topic("t").publish_many([b"x"] * 7)
        await broker.topic("u").publish_many([b"x"] * 2)
        shutil.copytree(tmp_path / "data", crashed, ignore=shutil.ignore_patterns("socket"))
    async with runnel.open(crashed) as broker:
        await broker.publish("t", b"x")
    async with runnel.open(crashed) as broker:  # the segments of before are read from their files
        await broker.publish("t", b"x")
        journal = (await broker.backend.sample()).journal
        assert journal is not None
        assert [(one.sealed, one.records) for one in journal.segments] == [(True, 10), (False, 1)]
        assert await broker.backend.end_sequence() > 1 << 31, "sequences were skipped"


async def test_a_sample_counts_the_records_of_some_segments_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "COUNTED", 1)
    for _ in range(4):
        async with runnel.open(tmp_path) as broker:
            await broker.publish("t", b"x")
    async with runnel.open(tmp_path) as broker:
        await broker.publish("t", b"x")
        for known in range(1, 5):  # the newest first
            journal = (await broker.backend.sample()).journal
            assert journal is not None
            assert [one.records for one in journal.segments] == [None] * (4 - known) + [1] * (known + 1)

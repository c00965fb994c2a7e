"""Reading a folder: whatever happened to a journal, a range gives exactly its records, and none too early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runnel
from runnel.arrow import folder_reader
from runnel.arrow.folder_reader import FolderReader
from runnel.arrow.ranges import OffsetRange
from runnel.core.record import Record
from runnel.journal.format.ledger import trim_part
from runnel.journal.read.segment_reader import LostRange
from runnel.journal.storage import OsStorage
from tests.journal.folders import BEGAN, SECOND, Owner, fill, flip, other_owner, publish_numbered, segments_of
from tests.spark.rig import Row, clean, expected, live_through, read_all, rows_of, world


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """What one test's process knows of a folder is no other test's business."""
    yield
    for kept in folder_reader._idle_followers.values():
        kept.close()
    folder_reader._idle_followers.clear()


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 25), st.booleans()), min_size=1, max_size=6))
def test_any_history_gives_exactly_the_records_of_any_range(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rounds: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    made, random = world(folder, seed), Random(seed)
    reading = FolderReader(str(folder))
    try:
        for steps, clean in rounds:
            made.work(steps)
            if clean:
                made.clean_some()
            found = {one.topic: one for one in reading.bounds([">"])}
            assert sorted(found) == ["t0", "t1", "t2", "t3"]
            for name, one in found.items():
                known = next(topic for topic in made.journal.ledger.topics.values() if topic.name == name)
                assert (one.epoch, one.first, one.end) == (known.epoch, known.first, known.end)
                first = random.randint(one.first, one.end)
                end = random.randint(first, one.end)
                for wanted in (
                    OffsetRange(name, one.epoch, one.first, one.end),
                    OffsetRange(name, one.epoch, first, end),
                ):
                    read = rows_of(reading.read(wanted), wanted)
                    assert read == expected(made, name, wanted.first, wanted.end)
    finally:
        reading.close()
        made.journal.close()


async def test_a_folder_and_its_own_broker_tell_the_same(tmp_path: Path) -> None:
    """Published one by one, by many, staged, keyed and compacted, trimmed, cleaned: read beside the broker."""
    random = Random(8)
    options: dict[str, Any] = {
        "segment_bytes": 1 << 13,
        "clean_bytes_per_second": 1 << 30,
        "tombstone_age": 0,
        "tail_bytes": 1,
    }
    async with runnel.open(tmp_path, **options) as broker:
        await live_through(broker, random)
        await clean(broker)
        for name in ("prices", "many"):
            (bounds,) = await broker.bounds(name)
            told = await _told(broker, name, bounds.end)
            reading = await asyncio.to_thread(FolderReader, str(tmp_path))
            try:
                (seen,) = reading.bounds([name])
                assert (seen.epoch, seen.first, seen.end) == (bounds.epoch, bounds.first, bounds.end)
                assert read_all(reading, name) == [_row(one) for one in told]
            finally:
                reading.close()


async def _told(broker: runnel.Broker, topic: str, end: int) -> list[Record[bytes]]:
    last = await broker.publish("end", b"")  # what was published before it comes before it
    assert last.offset >= 0
    found: list[Record[bytes]] = []
    async with broker.subscribe(">", start="earliest") as records:
        async for record in records:
            if record.topic == "end" and record.offset == last.offset:
                return [one for one in found if one.offset < end]
            if record.topic == topic:
                found.append(record)
    raise AssertionError("it never came")


def _row(one: Record[bytes]) -> Row:
    micros = (one.time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return Row(one.offset, one.sequence, micros, one.key, one.value, dict(one.headers))


def test_what_is_not_durable_yet_is_never_read(tmp_path: Path) -> None:
    with Owner(tmp_path, fsync="interval") as owner:
        publish_numbered(owner, 0, 4)
        owner.journal.sync()
        publish_numbered(owner, 4, 8)  # written, and nobody has synced it
        reading = FolderReader(str(tmp_path))
        assert [one.end for one in reading.bounds([">"])] == [6, 6]
        owner.journal.sync()
        assert [one.end for one in reading.bounds([">"])] == [12, 12]
        publish_numbered(owner, 8, 12)
        owner.crash()  # the next owner would keep them; a power cut would not
        assert [one.end for one in reading.bounds([">"])] == [12, 12]
        reading.close()
        again = FolderReader(str(tmp_path))
        assert [one.end for one in again.bounds([">"])] == [12, 12]
        again.close()


def test_a_range_that_was_released_is_reported(tmp_path: Path) -> None:
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 0, 6)
        reading = FolderReader(str(tmp_path))
        (bounds,) = reading.bounds(["orders"])
        wanted = OffsetRange("orders", bounds.epoch, 2, 9)
        owner.write(trim_part(owner.topic("orders").id, 4, 0))
        reading.bounds(["orders"])
        found = rows_of(reading.read(wanted), wanted)
        assert found[0] == LostRange(2, 4, "the topic begins at offset 4 now (no longer kept)")
        assert [one.offset for one in found[1:] if isinstance(one, Row)] == [4, 5, 6, 7, 8]
        reading.close()


@pytest.mark.parametrize(
    ("topic", "epoch", "why"),
    [("orders", 1, "the topic was deleted and made again"), ("nobody", 7, "the topic was deleted")],
)
def test_another_life_of_a_topic_is_never_taken_for_it(tmp_path: Path, topic: str, epoch: int, why: str) -> None:
    fill(tmp_path, batches=6)
    reading = FolderReader(str(tmp_path))
    assert list(reading.read(OffsetRange(topic, epoch, 0, 4))) == [LostRange(0, 4, why)]
    reading.close()


def test_a_journal_that_shrank_is_reported(tmp_path: Path) -> None:
    fill(tmp_path, batches=6)
    reading = FolderReader(str(tmp_path))
    (bounds,) = reading.bounds(["orders"])
    wanted = OffsetRange("orders", bounds.epoch, 8, 12)
    found = rows_of(reading.read(wanted), wanted)
    assert [one.offset for one in found if isinstance(one, Row)] == [8]
    assert found[-1] == LostRange(9, 12, "the journal ends at offset 9: it has shrunk")
    reading.close()


def test_damage_is_reported_and_the_records_around_it_are_read(tmp_path: Path) -> None:
    fill(tmp_path, batches=60)
    name = segments_of(tmp_path)[0]
    flip(tmp_path / name, (tmp_path / name).stat().st_size // 2)
    reading = FolderReader(str(tmp_path))
    lost = [one for topic in ("orders", "jobs") for one in read_all(reading, topic) if isinstance(one, LostRange)]
    assert lost
    assert all("damaged on disk" in one.reason for one in lost)
    for topic in ("orders", "jobs"):
        found = read_all(reading, topic)
        there = {one.offset for one in found if isinstance(one, Row)}
        gone = {at for one in found if isinstance(one, LostRange) for at in range(one.first, one.end)}
        assert there | gone == set(range(90))
        assert not there & gone
    reading.close()


def test_bounds_tell_where_a_time_lies(tmp_path: Path) -> None:
    fill(tmp_path, batches=60)
    reading = FolderReader(str(tmp_path))
    for late in (0, 1, 31, 59, 60, 1000):
        time = datetime.fromtimestamp((BEGAN + late * SECOND) / SECOND, UTC)
        (bounds,) = reading.bounds(["orders"], time)
        assert bounds.at == min(3 * ((late + 1) // 2), 90)
    assert reading.bounds(["nobody"]) == []
    reading.close()


def test_a_process_that_looked_before_sees_what_is_new_and_lets_files_go_meanwhile(tmp_path: Path) -> None:
    with other_owner(tmp_path) as owner:
        owner.tell("publish", 4)
        reading = FolderReader(str(tmp_path))
        assert sum(one.end for one in reading.bounds([">"])) == 12
        reading.close()
        named = {path.name for path in tmp_path.iterdir()}
        owner.tell("publish", 100)
        for _ in range(20):  # more rolls than a chain of checkpoints has links: files go, since nobody holds a lease
            owner.tell("publish", 1)
            owner.tell("roll")
        assert not named <= {path.name for path in tmp_path.iterdir()}
        again = FolderReader(str(tmp_path))
        assert again._seen is not None
        assert sum(one.end for one in again.bounds([">"])) == 372
        assert len(read_all(again, "orders")) + len(read_all(again, "jobs")) == 372
        again.close()


def test_a_reading_says_what_it_reads(tmp_path: Path) -> None:
    fill(tmp_path, batches=2)
    reading = FolderReader(str(tmp_path))
    assert repr(reading) == f"<FolderReader of {str(tmp_path)!r}>"
    assert len(reading.journal) == 16
    reading.close()
    reading.close()
    assert OsStorage(tmp_path).names()

"""Reading over a connection: the records that the broker gives, up to exactly the end, whatever becomes of the line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from shutil import copytree, ignore_patterns
from time import monotonic, sleep

import pytest

import runnel
import runnel.arrow
from runnel import Broker
from runnel.arrow import server_reader
from runnel.arrow.folder_reader import FolderReader
from runnel.arrow.location import BrokerLocation
from runnel.arrow.ranges import OffsetRange
from runnel.arrow.reading import opened
from runnel.arrow.server_reader import ServerReader
from runnel.broker.read.catch_up import RANGE_CHUNK
from runnel.journal.read.journal_reader import CHUNK, JournalReader, ReadPlan
from runnel.journal.read.segment_reader import LostRange
from tests.patience import PATIENCE
from tests.spark.rig import Row, Served, clean, live_through, read_all, rows_of

CLIENT = {"timeout": 20.0, "wait": 0.0}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    options = {"segment_bytes": 1 << 13, "clean_bytes_per_second": 1 << 30, "tombstone_age": 0, "tail_bytes": 1}
    with Served(tmp_path, **options) as made:
        yield made


@pytest.fixture
def reading(served: Served) -> Iterator[ServerReader]:
    made = ServerReader(served.url, CLIENT)
    yield made
    made.close()


def test_a_server_tells_what_its_folder_tells(served: Served, reading: ServerReader, tmp_path: Path) -> None:
    random = Random(3)
    served.run(live_through(served.broker, random))
    served.run(clean(served.broker))
    folder = FolderReader(str(tmp_path))
    assert reading.journal == folder.journal
    for name in ("prices", "many"):
        (here,), (there,) = folder.bounds([name]), reading.bounds([name])
        assert (here.epoch, here.first, here.end) == (there.epoch, there.first, there.end)
        for _ in range(5):
            first = random.randint(here.first, here.end)
            wanted = OffsetRange(name, here.epoch, first, random.randint(first, here.end))
            assert rows_of(reading.read(wanted), wanted) == rows_of(folder.read(wanted), wanted)
        assert [one for one in read_all(reading, name) if isinstance(one, LostRange)] == []
    folder.close()


def test_a_compacted_topic_is_the_same_from_a_server_and_from_its_folder(tmp_path: Path) -> None:
    """Also where the server still has in memory what the cleaner took from the folder."""
    small = {"segment_bytes": 1 << 13, "clean_bytes_per_second": 1 << 30, "tombstone_age": 0}

    async def publish(broker: Broker) -> None:
        for number in range(400):
            await broker.topic("prices", compact=True).publish(b"%d" % number * 20, key=f"k{number % 7}")

    with Served(tmp_path, **small) as served:
        served.run(publish(served.broker))
        server, folder = ServerReader(served.url, CLIENT), FolderReader(str(tmp_path))
        end = monotonic() + PATIENCE
        while len(read_all(folder, "prices")) == 400:  # until the cleaner has come to it
            assert monotonic() < end
            sleep(0.01)
        served.run(clean(served.broker))
        served.run(served.broker.publish("prices", b"newest", key="k1"))
        rows = read_all(server, "prices")
        assert rows == read_all(folder, "prices")
        newest = {row.key: row.value for row in rows if isinstance(row, Row)}
        assert newest.pop(b"k1") == b"newest"
        assert newest == {b"k%d" % (at % 7): b"%d" % at * 20 for at in range(393, 400) if at % 7 != 1}
        server.close()
        folder.close()


def test_a_range_that_ends_in_a_hole_ends(tmp_path: Path) -> None:
    """After a crash offsets go on higher up: nothing tells where such a range ends but its end."""
    before, after = tmp_path / "before", tmp_path / "after"
    with Served(before, fsync="os") as served:
        served.publish_many("t", [b"x"] * 50)
        copytree(before, after, ignore=ignore_patterns("socket*"))  # as a crash would leave it
    with Served(after) as served:
        reading = ServerReader(served.url, CLIENT)
        (bounds,) = reading.bounds(["t"])
        assert bounds.end > 50
        assert len(read_all(reading, "t")) == 50
        wanted = OffsetRange("t", bounds.epoch, bounds.end - 1, bounds.end)
        assert list(reading.read(wanted)) == []
        reading.close()


def test_what_has_expired_does_not_keep_a_range_from_ending(served: Served, reading: ServerReader) -> None:
    served.publish_many("t", [b"x"] * 3)
    served.run(served.broker.publish("t", b"late", expires=0.001))
    clock = served.broker.backend.clock
    gone = clock.time() + 0.001
    while clock.time() <= gone:
        sleep(0.001)
    assert [one.offset for one in read_all(reading, "t") if isinstance(one, Row)] == [0, 1, 2, 3]  # for an audit
    assert runnel.arrow.read(served.url, "t")["value"].to_pylist() == [b"x"] * 3


def test_a_read_that_is_held_on_to_ends_with_its_reader(served: Served) -> None:
    """As that of a task does whose error keeps the frames in which it happened."""
    served.publish_many("t", [b"x"] * 50)
    reading = ServerReader(served.url, CLIENT)
    (bounds,) = reading.bounds(["t"])
    found = reading.read(OffsetRange("t", bounds.epoch, 0, 50, 1e6))
    next(found)
    reading.close()
    found.close()  # type: ignore[attr-defined]


async def test_a_read_beside_a_running_loop_can_be_left_early(served: Served) -> None:
    served.publish_many("t", [b"x"] * 50)
    reading = opened(BrokerLocation(url=served.url))
    for is_closed_first in (False, True):
        (bounds,) = reading.bounds(["t"])
        found = reading.read(OffsetRange("t", bounds.epoch, 0, 50, 1e6))
        next(found)
        if is_closed_first:
            reading.close()
        found.close()  # type: ignore[attr-defined]


def test_no_record_behind_the_end_is_sent(served: Served, reading: ServerReader) -> None:
    served.publish_many("t", [b"%d" % at for at in range(5000)])
    (bounds,) = reading.bounds(["t"])
    wanted = OffsetRange("t", bounds.epoch, 990, 1017)
    assert [one.offset for one in rows_of(reading.read(wanted), wanted) if isinstance(one, Row)] == list(
        range(990, 1017)
    )


def test_large_batches_are_read_in_large_chunks_and_sent_without_unpacking_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones are not: to find thousands of them in a chunk would hold up the server's other readers."""
    chunks: list[int] = []
    fetch = JournalReader.fetch

    def fetched(plan: ReadPlan) -> object:
        chunks.append(plan.size)
        return fetch(plan)

    with Served(tmp_path) as served:
        served.run(publish_lists(served.broker, "large", 30, 1000))
        served.run(publish_lists(served.broker, "small", 700, 8))
    with Served(tmp_path) as served:  # which has nothing in memory
        reading = ServerReader(served.url, CLIENT)
        monkeypatch.setattr(JournalReader, "fetch", staticmethod(fetched))
        monkeypatch.delattr("runnel.core.batch.unpack")
        assert len(read_all(reading, "large")) == 30_000
        assert max(chunks) == RANGE_CHUNK
        chunks.clear()
        assert len(read_all(reading, "small")) == 5600
        assert max(chunks) == CHUNK
        reading.close()


async def publish_lists(broker: Broker, topic: str, count: int, records: int) -> None:
    for _ in range(count):
        await broker.topic(topic).publish_many([bytes(100)] * records)


def test_trimmed_records_are_reported(served: Served, reading: ServerReader) -> None:
    served.publish_many("t", [b"x"] * 50)
    (bounds,) = reading.bounds(["t"])
    served.run(served.broker.topic("t").trim(20))
    wanted = OffsetRange("t", bounds.epoch, 10, 50)
    lost, *rows = rows_of(reading.read(wanted), wanted)
    assert lost == LostRange(10, 20, "no longer kept (trimmed)")
    assert len(rows) == 30


def test_a_topic_that_was_made_again_is_another_one(served: Served, reading: ServerReader) -> None:
    served.publish_many("t", [b"x"] * 50)
    (bounds,) = reading.bounds(["t"])
    served.run(served.broker.delete("t"))
    served.publish_many("t", [b"y"] * 50)
    (lost,) = reading.read(OffsetRange("t", bounds.epoch, 10, 50))
    assert isinstance(lost, LostRange)
    assert (lost.first, lost.end) == (10, 50)
    assert "deleted" in lost.reason


def test_a_topic_that_shrank_is_reported(served: Served, reading: ServerReader) -> None:
    served.publish_many("t", [b"x"] * 50)
    (bounds,) = reading.bounds(["t"])
    (lost,) = reading.read(OffsetRange("t", bounds.epoch, 40, 60))
    assert lost == LostRange(40, 60, "the topic ends at offset 50: it has shrunk")


def test_lost_connections_leave_nothing_out_and_bring_nothing_twice(
    served: Served, reading: ServerReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_reader, "CREDIT", 1 << 16)
    monkeypatch.setattr(server_reader, "TAKE", 1 << 14)
    for at in range(100):
        served.publish_many("t", [b"%d" % (at * 100 + number) * 10 for number in range(100)])
    (bounds,) = reading.bounds(["t"])
    wanted = OffsetRange("t", bounds.epoch, 0, 10_000, bounds.record_bytes)
    found: list[Row | LostRange] = []
    for number, one in enumerate(reading.read(wanted)):
        found += rows_of([one], wanted)
        if number % 20 == 10:
            assert served.server.serving is not None
            served._loop.call_soon_threadsafe(served.server.serving.connections.abort)
    assert [one.offset for one in found if isinstance(one, Row)] == list(range(10_000))


def test_bounds_tell_where_a_time_lies(served: Served, reading: ServerReader) -> None:
    served.publish_many("t", [b"x"] * 5)
    later = datetime.now(UTC) + timedelta(hours=1)
    (bounds,) = reading.bounds(["t"], later)
    assert bounds.at == 5
    (bounds,) = reading.bounds(["t"], later - timedelta(hours=2))
    assert bounds.at == 0
    assert bounds.record_bytes == 1.0


def test_a_closed_reading_is_closed(served: Served) -> None:
    made = ServerReader(served.url, CLIENT)
    assert "ServerReader" in repr(made)
    made.close()
    made.close()

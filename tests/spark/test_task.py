"""A task reads its ranges, all of them and nothing else, or says what it could not read."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from runnel import Broker
from runnel.arrow.folder_reader import FolderReader
from runnel.arrow.layout import PLAIN_LAYOUT
from runnel.arrow.location import open_range_reader
from runnel.arrow.ranges import OffsetRange
from runnel.arrow.server_reader import ServerReader
from runnel.core.errors import DataLost
from runnel.journal.format import entry
from runnel.journal.format.ledger import trim_part
from runnel.journal.read.journal_reader import JournalReader
from runnel.spark.options import BrokerLocation, SourceOptions
from runnel.spark.schema import spark_columns
from runnel.spark.source import RangePartition, freeze_modules, read_partition, read_task
from tests.journal.folders import Owner, fill, publish_numbered
from tests.spark.rig import Served
from tests.spark.test_columns import SCHEMA


def offsets(batches: list[pa.RecordBatch]) -> list[tuple[str, int]]:
    return [(row["topic"], row["offset"]) for batch in batches for row in batch.to_pylist()]


def place_of(folder: Path) -> tuple[BrokerLocation, str, dict[str, int]]:
    reading = open_range_reader(BrokerLocation(path=str(folder)))
    epochs = {one.topic: one.epoch for one in reading.bounds([">"])}
    journal = reading.journal
    reading.close()
    return BrokerLocation(path=str(folder)), journal, epochs


def test_the_ranges_of_a_task_are_read_in_order(tmp_path: Path) -> None:
    fill(tmp_path, batches=60)
    place, journal, epochs = place_of(tmp_path)
    ranges = [OffsetRange("orders", epochs["orders"], 5, 8), OffsetRange("jobs", epochs["jobs"], 88, 90)]
    found = list(read_task(place, journal, ranges, SCHEMA, fail=True))
    assert offsets(found) == [("orders", 5), ("orders", 6), ("orders", 7), ("jobs", 88), ("jobs", 89)]
    assert all(batch.schema.equals(SCHEMA) for batch in found)


def test_what_was_trimmed_after_the_plan_is_an_error_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Owner(tmp_path) as owner:
        publish_numbered(owner, 0, 6)
        place, journal, epochs = place_of(tmp_path)
        owner.write(trim_part(owner.topic("orders").id, 4, 0))
        ranges = [OffsetRange("orders", epochs["orders"], 2, 6)]
        with pytest.raises(DataLost, match=r"offsets \[2, 4\) of topic 'orders'"):
            list(read_task(place, journal, ranges, SCHEMA, fail=True))
        found = list(read_task(place, journal, ranges, SCHEMA, fail=False))
        assert offsets(found) == [("orders", 4), ("orders", 5)]
        assert "2 offsets" in caplog.text


def test_another_journal_is_not_read(tmp_path: Path) -> None:
    fill(tmp_path, batches=6)
    place, _, epochs = place_of(tmp_path)
    ranges = [OffsetRange("orders", epochs["orders"], 0, 3)]
    with pytest.raises(DataLost, match="another one"):
        list(read_task(place, "other", ranges, SCHEMA, fail=True))
    assert list(read_task(place, "other", ranges, SCHEMA, fail=False)) == []


def test_what_the_first_task_loads_is_exempt_from_garbage_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark collects garbage behind each task. What was frozen before the read would leave out what the read loads."""
    fill(tmp_path, batches=6)
    place, journal, epochs = place_of(tmp_path)
    options = SourceOptions(location=place, topics=("orders",))
    partition = RangePartition(journal, [OffsetRange("orders", epochs["orders"], 0, 3)])
    happened: list[str] = []
    close = FolderReader.close

    def closed(reader: FolderReader) -> None:
        happened.append("read")
        close(reader)

    monkeypatch.setattr(FolderReader, "close", closed)
    monkeypatch.setattr("gc.freeze", lambda: happened.append("frozen"))
    freeze_modules.cache_clear()
    for _ in range(2):
        assert list(read_partition(options, spark_columns(PLAIN_LAYOUT), PLAIN_LAYOUT, partition))
    assert happened == ["read", "frozen", "read"]


@pytest.mark.parametrize("where", ["path", "url"])
def test_many_small_topics_are_read_together(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost some chunks or round trips in all, not some each, and come to Spark as one batch."""
    names = [f"t.{number:03}" for number in range(300)]

    async def publish(broker: Broker) -> None:
        for turn in range(3):  # in one commit, about
            await asyncio.gather(*(broker.publish(name, b"%d of %s" % (turn, name.encode())) for name in names))
        for name in names[:50]:  # and in one each
            await broker.publish(name, b"3 of %s" % name.encode())

    with Served(tmp_path) as served:
        served.run(publish(served.broker))
        place = BrokerLocation(path=str(tmp_path)) if where == "path" else BrokerLocation(url=served.url)
        reading = open_range_reader(place)
        ranges = [OffsetRange(one.topic, one.epoch, one.first, one.end, 20.0) for one in reading.bounds(["t.*"])]
        journal, steps = reading.journal, Counter[str]()
        reading.close()
        fetch, run = JournalReader.fetch, ServerReader._run
        monkeypatch.setattr(JournalReader, "fetch", lambda *plan: steps.update(["fetch"]) or fetch(plan[-1]))
        monkeypatch.setattr(ServerReader, "_run", lambda self, work: steps.update(["run"]) or run(self, work))
        (batch,) = read_task(place, journal, ranges, SCHEMA, fail=True)
        monkeypatch.undo()
    expected = [(name, at) for number, name in enumerate(names) for at in range(3 + (number < 50))]
    assert offsets([batch]) == expected
    assert batch.column("value").to_pylist() == [b"%d of %s" % (at, name.encode()) for name, at in expected]
    assert 0 < steps.total() < len(names) / 2


@pytest.mark.parametrize("where", ["path", "url"])
def test_a_topic_is_not_looked_for_behind_the_end_of_its_range(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics of one record, published one by one: a chunk has all of them, and is read once for each."""
    names = [f"t.{number:03}" for number in range(200)]

    async def publish(broker: Broker) -> None:
        for name in names:
            await broker.publish(name, b"x")

    with Served(tmp_path) as served:
        served.run(publish(served.broker))
    looked: Counter[str] = Counter()
    read_head = entry.read_head
    with Served(tmp_path) as served:  # which has nothing in memory
        place = BrokerLocation(path=str(tmp_path)) if where == "path" else BrokerLocation(url=served.url)
        reading = open_range_reader(place)
        ranges = [OffsetRange(one.topic, one.epoch, one.first, one.end, 20.0) for one in reading.bounds(["t.*"])]
        journal = reading.journal
        reading.close()
        monkeypatch.setattr(entry, "read_head", lambda *what: looked.update(["head"]) or read_head(*what))
        found = list(read_task(place, journal, ranges, SCHEMA, fail=True))
        monkeypatch.undo()
    assert offsets(found) == [(name, 0) for name in names]
    assert looked["head"] < 5 * len(names)

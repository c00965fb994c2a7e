"""A task reads its ranges, all of them and nothing else, or says what it could not read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from runnel.core.errors import DataLost
from runnel.journal.format.ledger import trim_part
from runnel.spark.options import BrokerLocation
from runnel.spark.ranges import OffsetRange
from runnel.spark.source import read_task
from tests.journal.folders import Owner, fill, publish_numbered
from tests.spark.test_columns import SCHEMA


def offsets(batches: list[pa.RecordBatch]) -> list[tuple[str, int]]:
    return [(row["topic"], row["offset"]) for batch in batches for row in batch.to_pylist()]


def place_of(folder: Path) -> tuple[BrokerLocation, str, dict[str, int]]:
    from runnel.spark.range_reader import open_range_reader

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

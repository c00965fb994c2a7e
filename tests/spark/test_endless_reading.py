"""A stream that begins in a source of history: planned by sequence and read in ranges, on into the journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runnel import Broker, Position
from runnel.arrow.folder_reader import FolderReader
from runnel.arrow.ranges import OffsetRange
from runnel.arrow.server_reader import ServerReader
from runnel.journal.read.segment_reader import LostRange
from runnel.spark.options import SourceOptions
from runnel.spark.planning import StreamPlanner
from runnel.testing import MemoryHistory
from tests.spark.rig import Row, Served, rows_of

COUNT, KEPT, LIMIT = 120, 10, 25


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    options: dict[str, Any] = {"history": MemoryHistory(chunk=7), "tail_bytes": 1, "segment_bytes": 1 << 13}
    with Served(tmp_path, **options) as made:
        made.run(fill(made.broker, options["history"]))
        yield made


@pytest.fixture
def reading(served: Served) -> Iterator[ServerReader]:
    made = ServerReader(served.url, {"timeout": 60.0})
    yield made
    made.close()


async def fill(broker: Broker, source: MemoryHistory) -> None:
    """Two topics at different rates. All but the last records of each have left the journal."""
    async with broker.subscribe("*", start="earliest") as records:
        for number in range(COUNT):
            for name in ("a", "b", "b"):
                topic = broker.topic(name, retention_until="archived", retention_count=KEPT)
                await topic.publish(b"%d" % number)
        copied = [await anext(records) for _ in range(3 * COUNT)]
    source.add(copied)
    epochs = {record.topic: record.epoch for record in copied}
    await broker.confirm_archived({"a": Position(epochs["a"], COUNT), "b": Position(epochs["b"], 2 * COUNT)})


def planner(reader: ServerReader) -> StreamPlanner:
    said = {"path": "p", "topic": "*", "startingOffsets": "earliest", "maxRecordsPerTrigger": str(LIMIT)}
    return StreamPlanner(reader, SourceOptions.parse(said))


def test_a_limited_stream_is_cut_in_history_too(served: Served, reading: ServerReader) -> None:
    assert [one.moved for one in served.run(served.broker.floors())] == [COUNT - KEPT, 2 * COUNT - KEPT]
    query = planner(reading)
    place, seen, triggers = query.initial(), list[Row | LostRange](), 0
    while (end := query.latest(place)) != place:
        rows = [row for one in query.ranges(place, end) for row in rows_of(reading.read(one), one)]
        assert 0 < len(rows) <= LIMIT
        seen += sorted(rows, key=lambda row: row.sequence)  # type: ignore[union-attr]
        place, triggers = end, triggers + 1
    assert triggers >= 3 * COUNT // LIMIT
    assert [row.sequence for row in seen] == list(range(3 * COUNT))  # type: ignore[union-attr]


def test_no_range_passes_what_is_gone(served: Served, reading: ServerReader, tmp_path: Path) -> None:
    served.run(served.broker.topic("a").trim(30))
    (bounds,) = reading.bounds(["a"])
    assert bounds.first == reading.gone("a") == 30
    assert (reading.gone("b"), reading.gone("none")) == (0, 0)
    wanted = OffsetRange("a", bounds.epoch, 20, 50)
    lost, *rows = rows_of(reading.read(wanted), wanted)
    assert isinstance(lost, LostRange)
    assert (lost.first, lost.end, lost.reason) == (20, 30, "no longer kept (trimmed)")
    assert [row.offset for row in rows if isinstance(row, Row)] == list(range(30, 50))
    served.run(served.broker.sync())
    folder = FolderReader(str(tmp_path))  # it has the journal alone
    try:
        (found,) = folder.bounds(["a"])
        assert found.first == COUNT - KEPT
        (below,) = rows_of(folder.read(wanted), wanted)
        assert isinstance(below, LostRange)
    finally:
        folder.close()

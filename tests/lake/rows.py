"""Record batches as a source gives them, made of plain numbers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from runnel.core.clock import micros
from runnel.lake import Lake

START = micros(datetime(2026, 3, 4, 12, tzinfo=UTC))
HEADERS = pa.map_(pa.string(), pa.string())


def batch(
    topic: str, offsets: Iterable[int], *, epoch: int = 1, step: int = 1000, **columns: list[Any]
) -> pa.RecordBatch:
    """Records whose values, sequences and times follow from their offsets; `step`: microseconds between two."""
    there = list(offsets)
    count = len(there)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([topic] * count),
            "epoch": pa.array([epoch] * count, pa.int64()),
            "offset": pa.array(there, pa.int64()),
            "sequence": pa.array([10 * offset for offset in there], pa.int64()),
            "time": pa.array([START + step * offset for offset in there], pa.timestamp("us", "UTC")),
            "key": pa.array(columns.get("key", [None] * count), pa.binary()),
            "value": pa.array([b"%s %d" % (topic.encode(), offset) for offset in there], pa.binary()),
            "headers": pa.array(columns.get("headers", [[]] * count), HEADERS),
        }
    )


def places(lake: Lake) -> list[tuple[str, int, int]]:
    """The topic, epoch and offset of every row of the lake, as any reader of Delta sees them, in order."""
    table = DeltaTable(lake.records.uri, storage_options=lake.records.options).to_pyarrow_table(
        columns=["topic", "epoch", "offset"]
    )
    return sorted(zip(*(table[name].to_pylist() for name in ("topic", "epoch", "offset")), strict=True))


def due(topic: str, offsets: Iterable[int], epoch: int = 1) -> list[tuple[str, int, int]]:
    return [(topic, epoch, offset) for offset in offsets]


def created(folder: Path) -> Lake:
    lake = Lake(folder / "lake")
    lake.create()
    return lake

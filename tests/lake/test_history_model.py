"""Readers over a lake and the journal, while retention moves and an archive copies: the random model of sources."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runnel.core.record import Record
from runnel.lake import Lake, LakeHistory, files, history_source
from tests.broker.read.history_model import Model
from tests.nightly import nightly_beyond


class FilledLake(LakeHistory):
    """A source, and the archive that fills it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lake, self.number = Lake(folder), 0
        self.lake.create()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @is_closed.setter
    def is_closed(self, value: bool) -> None:
        self._is_closed, self._threads = value, None

    def add(self, records: Iterable[Record[bytes]]) -> None:
        written = self.lake.write(batches_of(records), behind=self.lake.next_offsets())
        self.lake.commit(written, application="archive", version=self.number)
        self.number += 1


def batches_of(records: Iterable[Record[bytes]]) -> Iterable[pa.RecordBatch]:
    rows: list[dict[str, Any]] = [
        {
            "topic": one.topic,
            "epoch": one.epoch,
            "offset": one.offset,
            "sequence": one.sequence,
            "time": one.time,
            "key": one.key,
            "value": one.value,
            "headers": list(one.headers.items()),
        }
        for one in records
    ]
    if rows:
        header = pa.map_(pa.string(), pa.string())
        kinds = {"time": pa.timestamp("us", "UTC"), "key": pa.binary(), "headers": header}
        yield pa.RecordBatch.from_arrays(
            [pa.array([row[name] for row in rows], kinds.get(name)) for name in rows[0]], names=list(rows[0])
        )


@pytest.mark.parametrize("seed", nightly_beyond(4, range(100)))
async def test_readers_miss_and_repeat_nothing(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_source, "PAGE_RECORDS", (2, 7, 1 << 15)[seed % 3])
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", (3, 1 << 15)[seed % 2])
    await Model(tmp_path / "data", seed, FilledLake(tmp_path / "lake")).run(lives=2, steps=40)

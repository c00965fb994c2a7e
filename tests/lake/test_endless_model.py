"""Endless history in a lake, while retention, the cleaner, trims and the archive work between a reader's steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from runnel.broker.durable import cleaner
from runnel.core.batch import Slice
from runnel.lake import files, history_source
from tests.broker.read.endless_model import EndlessModel
from tests.lake.test_history_model import FilledLake
from tests.nightly import nightly_beyond


class DisturbedLake(FilledLake):
    """A lake beside which others work: before it looks, and before its answer is taken."""

    disturb: Callable[[], Awaitable[None]]

    async def read(self, topic: str, epoch: int, start: int, end: int) -> Sequence[Slice]:
        await self.disturb()
        found = await super().read(topic, epoch, start, end)
        await self.disturb()
        return found

    async def read_sequences(self, patterns: Sequence[str], start: int, end: int) -> Sequence[Slice]:
        await self.disturb()
        found = await super().read_sequences(patterns, start, end)
        await self.disturb()
        return found


@pytest.mark.parametrize("seed", nightly_beyond(2, range(100)))
async def test_readers_miss_and_repeat_nothing(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "SETTLE", 0.001)
    monkeypatch.setattr(history_source, "PAGE_RECORDS", (2, 7, 1 << 15)[seed % 3])
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", (3, 1 << 15)[seed % 2])
    model = EndlessModel(tmp_path / "data", seed, DisturbedLake(tmp_path / "lake"), trims=seed % 2 == 1)
    await model.run(lives=2, steps=40)

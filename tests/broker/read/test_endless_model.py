"""Endless history while retention, the cleaner, trims and the archive work between every two steps of a reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from runnel.broker.durable import cleaner
from tests.broker.read.endless_model import EndlessModel
from tests.nightly import nightly_beyond


@pytest.mark.parametrize("seed", nightly_beyond(6, range(200)))
async def test_readers_miss_and_repeat_nothing(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "SETTLE", 0.001)
    model = EndlessModel(tmp_path / "data", seed, trims=seed % 2 == 1)
    await model.run(lives=2, steps=60)
    assert model.moved

"""Readers over a source of history and the journal, while retention moves and an archive copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.read.history_model import Model
from tests.nightly import nightly_beyond


@pytest.mark.parametrize("seed", nightly_beyond(4, range(200)))
async def test_readers_miss_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    await Model(tmp_path / "data", seed).run(lives=2, steps=40)

"""kill -9 of a process that archives: what it said was committed is there, each row once, and the next one goes on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runnel.lake import Lake
from tests.lake.rows import due, places
from tests.nightly import nightly_beyond
from tests.patience import PATIENCE


def killed(folder: Path, word: str, lines: int) -> int:
    """Archive until so many lines with `word` were printed, then kill. What the process said was committed last."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.lake.writing_process", str(folder), "1000"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    committed = 0
    try:
        for line in process.stdout:
            said, _, number = line.partition(" ")
            committed = int(number) if said == "committed" else committed
            lines -= said == word
            if lines == 0:
                process.send_signal(signal.SIGKILL)
                break
        rest = process.stdout.read()  # what it said before it died
        committed = max([committed, *(int(one.split()[1]) for one in rest.splitlines() if one[:4] == "comm")])
    finally:
        process.kill()
        process.wait(PATIENCE)
        process.stdout.close()
    return committed


@pytest.mark.parametrize("seed", nightly_beyond(2, range(30)))
def test_a_killed_writer_loses_and_repeats_nothing(tmp_path: Path, seed: int) -> None:
    chance, folder = random.Random(seed), tmp_path / "lake"
    for _ in range(2):  # between its files and their commit, or at the end of a commit
        committed = killed(folder, chance.choice(("written", "committed")), chance.randint(1, 4))
        lake = Lake(folder)
        end = lake.next_offsets().get(("orders", 1), 0)
        assert end >= committed, "what was confirmed is there"
        assert places(lake) == due("orders", range(end))
        files = {file.path for file in lake.snapshot().files}
        assert files <= {file.path for file in lake.records.files()}

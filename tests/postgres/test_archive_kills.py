"""`kill -9` of the archive, of its server and of PostgreSQL while records are published: each is a row once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from runnel import Record
from tests.nightly import nightly_beyond
from tests.postgres.archive_kills import Trial, judge
from tests.postgres.conftest import NEWEST
from tools.postgres import installations

OLDEST = min(installations(), default=0)
CASES = [(1, 4, "t.*", NEWEST)]
CASES += [(seed, 20, ("t.0", "t.*")[seed % 2], (OLDEST, NEWEST)[seed // 2 % 2]) for seed in range(2, 8)]  # 120 kills


@pytest.mark.parametrize(("seed", "kills", "pattern", "version"), nightly_beyond(1, CASES))
def test_every_record_is_in_the_table_once(tmp_path: Path, seed: int, kills: int, pattern: str, version: int) -> None:
    trial = Trial(seed, kills, tmp_path, pattern=pattern, version=version).run()
    assert not trial.broken, f"seed {seed}:\n" + "\n".join(trial.broken)[:5000]
    assert trial.rows > 10
    assert trial.killed.total() == kills


def test_the_judge_sees_what_is_wrong() -> None:
    def record(offset: int) -> Record[bytes]:
        return Record("t.0", offset, offset, 1, None, b"v", {}, datetime(2026, 1, 1, tzinfo=UTC))

    good = [record(offset) for offset in range(3)]
    assert judge(good, good) == []
    for sentence, rows in {
        "is not in the table": good[:2],
        "in the table 2 times": [*good, good[1]],
        "was not published": [*good, record(3)],
        "not Record": [*good[:2], msgspec.structs.replace(good[2], value=b"other")],
    }.items():
        assert any(sentence in one for one in judge(good, rows)), sentence

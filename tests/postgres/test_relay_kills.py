"""`kill -9` of the relay, of its broker's server and of PostgreSQL while rows are written: each row comes once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from runnel import Record
from tests.nightly import nightly_beyond
from tests.postgres.conftest import NEWEST
from tests.postgres.relay_kills import Trial, Writer, judge
from tools.postgres import installations

OLDEST = min(installations(), default=0)
CASES = [(1, 5, True, NEWEST), (2, 5, False, OLDEST)]
CASES += [(seed, 25, bool(seed % 2), (OLDEST, NEWEST)[seed // 2 % 2]) for seed in range(3, 16)]  # 325 kills


@pytest.mark.parametrize(("seed", "kills", "over_tcp", "version"), nightly_beyond(2, CASES))
def test_every_committed_row_comes_once_and_in_commit_order(
    tmp_path: Path, seed: int, kills: int, over_tcp: bool, version: int
) -> None:
    trial = Trial(seed, kills, tmp_path, over_tcp=over_tcp, version=version).run()
    assert not trial.broken, f"seed {seed}:\n" + "\n".join(trial.broken)[:5000]
    assert trial.rows > 10
    assert trial.killed.total() == kills


def test_the_judge_sees_what_is_wrong() -> None:
    def record(number: int, id: str, lsn: str) -> Record[bytes]:
        headers = {"pg-lsn": lsn, "pg-index": "1"}
        value = msgspec.json.encode({"id": id})
        return Record("chat.r0", number, number, 1, None, value, headers, datetime.now(UTC))

    writer = Writer("w", "", 1)
    writer.intended = [("chat.r0", f"w-{number}") for number in range(4)]
    writer.committed = ["w-0", "w-1", "w-2"]
    good = [record(number, f"w-{number}", f"0/{number}") for number in range(3)]
    table = {"w-0", "w-1", "w-2"}
    assert judge(good, table, [writer]) == []
    harms = {
        "was not relayed": (good[:2], table),
        "relayed 2 times": ([*good, record(3, "w-2", "0/3")], table),
        "is not in the table": ([*good, record(3, "w-3", "0/3")], table),
        "committed and is not in the table": (good[:2], {"w-0", "w-1"}),
        "came after": ([good[0], record(1, "w-2", "0/2"), record(2, "w-1", "0/1")], table),
    }
    for sentence, (records, rows) in harms.items():
        assert any(sentence in one for one in judge(records, rows, [writer])), sentence

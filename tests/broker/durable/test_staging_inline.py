"""A small stage, written as a publish: every record with what it carries, read from memory or from disk."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.durable.staging import OpenStage, append_of_stage, stage_batches
from runnel.core.batch_format import pack, unpack
from runnel.core.errors import StageEnded
from runnel.core.record import Meta
from runnel.journal.format.ledger import StageState
from tests.broker.broker_parts import make_log
from tests.broker.durable_broker import Disk, journal_of, open_on
from tests.carried import columns_of, metas_of

RECORDS = st.tuples(st.binary(max_size=5), st.none() | st.builds(Meta, key=st.binary(min_size=1, max_size=3)))
BATCHES = st.lists(st.lists(RECORDS, min_size=1, max_size=4), min_size=1, max_size=5)


def stage(*bodies: bytes, counts: list[int]) -> OpenStage:
    one = OpenStage(StageState(1, "w", 1, 0, 0, 1, 0), make_log(), announced=True)
    one.kept, one.state.counts = list(bodies), counts
    return one


@given(BATCHES)
def test_all_records_come_in_order_with_what_they_carry(batches: list[list[tuple[bytes, Meta | None]]]) -> None:
    bodies = [pack([value for value, _ in batch], columns_of([meta for _, meta in batch])) for batch in batches]
    entry = append_of_stage(stage(*bodies, counts=[len(batch) for batch in batches]))
    assert entry is not None
    expected = [record for batch in batches for record in batch]
    assert list(zip(entry.values, metas_of(entry.columns, len(entry.values)), strict=True)) == expected
    assert entry.size == sum(len(value) for value, _ in expected)
    assert entry.extra == sum(meta.weight for _, meta in expected if meta is not None)
    assert entry.checked


def test_what_is_not_in_memory_or_only_half_of_it_is_no_entry() -> None:
    assert append_of_stage(stage(counts=[])) is None
    assert append_of_stage(stage(pack([b"x"]), counts=[1, 1])) is None
    gone = stage(counts=[1])
    gone.kept = None
    assert append_of_stage(gone) is None
    large = pack([b"x" * 100], compression="zstd")
    assert append_of_stage(stage(large, counts=[1]), len(large)) is None  # in memory it is not that small
    assert append_of_stage(stage(large, counts=[1]), 200) is not None


def test_a_batch_that_does_not_decode_is_told() -> None:
    with pytest.raises(StageEnded, match="cannot be read any more"):
        append_of_stage(stage(pack([b"x"])[:-1], counts=[1]))


async def test_batches_are_read_again_from_wherever_they_lie(tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": 1 << 14}
    async with open_on(Disk(), tmp_path, **options) as broker:
        one, other = (broker.stage("t", writer="w", batch=batch) for batch in (1, 2))
        for number in range(30):
            await one.write([b"%d" % number * 400])
            await other.write([b"other" * 200])
        journal = journal_of(broker)
        assert len(journal.manifest.segments) > 3
        state = journal.ledger.stages[1]
        assert [unpack(body).values for body in stage_batches(journal, state)] == [
            (b"%d" % number * 400,) for number in range(30)
        ]
        missing = StageState(1, "w", 1, 0, 0, 1, 0, [1] * 31)
        with pytest.raises(OSError, match="batch 30 of 31 is missing or damaged"):
            list(stage_batches(journal, missing))

"""A batch and where its records belong: holes are kept, and any part can be cut out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runnel.arrow.range_reader import DecodedBatch, with_offsets
from runnel.core.batch_format import pack, unpack
from runnel.journal.format.merged_batch import RecordRun


def records(portion: DecodedBatch | None) -> list[tuple[int, int, int, bytes]]:
    if portion is None:
        return []
    found, at = [], portion.at
    for run in portion.runs:
        values = portion.batch.values[at : at + run.count]
        found += [(run.offset + number, run.sequence + number, run.time, one) for number, one in enumerate(values)]
        at += run.count
    return found


@given(st.sets(st.integers(1, 60), max_size=20), st.integers(0, 70), st.integers(0, 70))
def test_records_with_holes_between_them_are_where_they_belong(later: set[int], first: int, end: int) -> None:
    deltas = [0, *sorted(later)]
    values = [b"%d" % delta for delta in deltas]
    portion = with_offsets(unpack(pack(values, deltas=deltas)), 10, 100, 5)
    whole = [(10 + delta, 100 + delta, 5, b"%d" % delta) for delta in deltas]
    assert records(portion) == whole
    assert records(portion.within(first, end)) == [one for one in whole if first <= one[0] < end]


def test_a_batch_without_holes_is_one_run() -> None:
    assert with_offsets(unpack(pack([b"a", b"b"])), 3, 9, 1).runs == (RecordRun(3, 9, 1, 2),)


def test_a_piece_of_a_merged_batch_is_cut_where_it_begins() -> None:
    batch = unpack(pack([b"%d" % at for at in range(9)]))
    portion = DecodedBatch(batch, [RecordRun(0, 5, 1, 2), RecordRun(7, 30, 2, 3)], at=4)
    assert records(portion.within(1, 9)) == [(1, 6, 1, b"5"), (7, 30, 2, b"6"), (8, 31, 2, b"7")]
    assert portion.within(2, 7) is None

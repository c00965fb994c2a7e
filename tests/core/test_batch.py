"""Slices and batches, against records made one by one."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.batch import Batch, PackedSlice, Slice, SliceRun, without_expired
from runnel.core.batch_format import pack
from runnel.core.record import NO_HEADERS, Gap, Meta, Record
from tests.carried import columns_of

AT = datetime(2026, 1, 1, tzinfo=UTC)
GAP = Gap("t", 0, 3, 3, "the subscriber was too slow")


@st.composite
def slices(draw: st.DrawFn) -> tuple[Slice, list[Record[bytes]]]:
    """A slice that may begin inside its first stretch, and its records made one by one."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    skipped = draw(st.integers(0, sizes[0] - 1))
    offset = base = draw(st.integers(0, 100))
    sequence, stretches, records = draw(st.integers(0, 100)), [], []
    metas = {
        offset + at: Meta(b"k%d" % at, {"n": str(at)})
        for at in draw(st.sets(st.integers(0, sum(sizes) - 1)))
    }  # fmt: skip
    for turn, size in enumerate(sizes):
        time = AT + timedelta(seconds=turn)
        stretches.append(SliceRun(offset, sequence, time))
        for at in range(size):
            meta = metas.get(offset + at, Meta())
            records.append(
                Record("t", offset + at, sequence + at, 3, meta.key, b"v%d" % (offset + at), meta.headers, time)
            )
        offset += size
        sequence += size + draw(st.integers(0, 9))  # others published in between
    kept = records[skipped:]
    columns = columns_of([metas.get(one.offset) for one in kept])
    return Slice("t", 3, base + skipped, tuple(one.value for one in kept), stretches, columns), kept


@given(slices())
def test_the_records_of_a_slice_are_those_made_one_by_one(made: tuple[Slice, list[Record[bytes]]]) -> None:
    part, expected = made
    assert part.records == tuple(expected)
    assert (len(part), part.end, part.sequence) == (len(expected), expected[-1].offset + 1, expected[0].sequence)


@given(slices(), st.data())
def test_a_cut_is_the_slice_of_the_records(made: tuple[Slice, list[Record[bytes]]], data: st.DataObject) -> None:
    part, records = made
    start = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(start + 1, len(records)))
    cut = part.cut(part.start + start, part.start + end)
    assert cut.records == tuple(records[start:end])
    assert cut.values == tuple(one.value for one in records[start:end])
    assert cut.sequence == records[start].sequence


@given(slices(), st.data())
def test_a_cut_of_a_cut_is_a_cut(made: tuple[Slice, list[Record[bytes]]], data: st.DataObject) -> None:
    part, records = made
    middle = data.draw(st.integers(0, len(records) - 1))
    tail = part.cut(part.start + middle, part.end)
    last = tail.cut(part.end - 1, part.end)
    assert last.records == tuple(records[-1:])


def test_records_are_built_once_and_shared() -> None:
    part = Slice("t", 3, 0, (b"a",), [SliceRun(0, 0, AT)], None)
    assert part.records is part.records
    assert Batch([part])[0] is Batch([part])[0]
    assert part.records[0].headers is NO_HEADERS
    assert repr(part) == "<Slice 't' [0, 1)>"


@given(st.lists(slices(), min_size=1, max_size=3))
def test_a_batch_is_its_slices_side_by_side(made: list[tuple[Slice, list[Record[bytes]]]]) -> None:
    batch: Batch[bytes] = Batch([part for part, _ in made])
    expected = [record for _, records in made for record in records]
    assert len(batch) == len(expected)
    assert batch.values == tuple(record.value for record in expected)
    assert list(batch) == expected
    assert batch[0] == expected[0]
    assert batch[1:] == tuple(expected[1:])


def test_a_batch_of_records_knows_their_values() -> None:
    part = Slice("t", 3, 0, (b"a", b"b"), [SliceRun(0, 0, AT)], None)
    batch = Batch(records=part.records, gap=GAP)
    assert (len(batch), batch.values, batch.gap) == (2, (b"a", b"b"), GAP)
    assert batch.values is batch.values


def test_an_empty_batch_is_empty() -> None:
    batch: Batch[bytes] = Batch()
    assert (len(batch), batch.values, batch.records, batch.gap) == (0, (), (), None)


def test_a_batch_cannot_be_written_into() -> None:
    batch: Batch[bytes] = Batch([Slice("t", 3, 0, (b"a",), [SliceRun(0, 0, AT)], None)])
    with pytest.raises(TypeError):
        batch[0] = None  # type: ignore[index]
    with pytest.raises(TypeError):
        batch.values[0] = b"x"  # type: ignore[index]
    with pytest.raises(AttributeError):
        batch.values = ()  # type: ignore[misc]


def test_a_batch_says_how_many_it_holds_and_what_was_missed() -> None:
    part = Slice("t", 3, 3, (b"a",), [SliceRun(3, 0, AT)], None)
    assert repr(Batch([part])) == "<Batch of 1 records>"
    assert "missed 3 records" in repr(Batch([part], gap=GAP))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_slice_that_stays_packed_is_and_is_cut_like_one_that_does_not(sizes: list[int], data: st.DataObject) -> None:
    values = [[b"%d.%d" % (turn, at) for at in range(size)] for turn, size in enumerate(sizes)]
    starts = [7 + sum(sizes[:turn]) for turn in range(len(sizes))]
    stretches = [SliceRun(start, 2 * start, AT) for start in starts]
    packs: list[bytes | None] = [pack(some) for some in values]
    every = tuple(value for some in values for value in some)
    plain = Slice("t", 3, 7, every, stretches, None, packs)
    packed = PackedSlice("t", 3, 7, len(every), stretches, packs)
    start = data.draw(st.integers(7, plain.end - 1))
    end = data.draw(st.integers(start + 1, plain.end))
    for one, other in ((packed, plain), (packed.cut(start, end), plain.cut(start, end))):
        assert (len(one), one.end, one.sequence) == (len(other), other.end, other.sequence)
        assert one.packs == other.packs
        assert one.values == other.values
        assert one.records == other.records
    whole_batches = {start, end} <= {*starts, plain.end}
    assert isinstance(packed.cut(start, end), PackedSlice) == whole_batches


@pytest.mark.parametrize("gone", [[], [100], [109], [100, 101, 104], [103, 104], [*range(100, 110)]])
def test_what_is_left_without_what_has_expired(gone: list[int]) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    columns = columns_of([Meta(b"k", expires=now if offset in gone else now + 1) for offset in range(100, 110)])
    time = datetime(2026, 1, 1, tzinfo=UTC)
    values = tuple(b"%d" % offset for offset in range(100, 110))
    part = Slice("t", 3, 100, values, [SliceRun(100, 7, time), SliceRun(104, 50, time)], columns, None)
    left, count = without_expired([part], now)
    assert count == len(gone)
    kept = [record for one in left for record in one.records]
    assert [(one.offset, one.value) for one in kept] == [(n, b"%d" % n) for n in range(100, 110) if n not in gone]
    assert kept == [record for record in part.records if record.offset not in gone]
    if not gone:
        assert left == [part], "the same slice, with what was packed for it"


def test_what_expired_beside_a_cut_is_not_counted() -> None:
    time = datetime(2026, 1, 1, tzinfo=UTC)
    part = Slice("t", 3, 0, (b"a", b"b"), [SliceRun(0, 0, time)], columns_of([Meta(expires=1.0)]), None)
    rest = part.cut(1, 2)
    assert without_expired([rest], 2.0) == ([rest], 0)

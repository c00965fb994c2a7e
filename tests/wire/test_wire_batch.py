"""Wire batches: slices packed once, in the bytes that they came in where there are such."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.batch import Slice, SliceRun
from runnel.core.batch_format import JSON, MSGPACK, pack, unpack
from runnel.core.clock import micros
from runnel.core.record import Meta, Record
from runnel.wire.wire_batch import MAX_PACKED, WireBatch, wire_batch_of, wire_batches
from tests.carried import columns_of

T1, T2 = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
VALUES = tuple(b"%d" % n for n in range(10))


def part(*packs: bytes | None, metas: dict[int, Meta] | None = None) -> Slice:
    """Offsets [100, 110): four that came at one time, six at another."""
    stretches = [SliceRun(100, 7, T1), SliceRun(104, 50, T2)]
    columns = columns_of([(metas or {}).get(offset) for offset in range(100, 110)])
    return Slice("t", 3, 100, VALUES, stretches, columns, list(packs) or None)


def said(found: list[WireBatch]) -> list[tuple[int, int, int, tuple[bytes, ...]]]:
    return [(one.offset, one.sequence, one.time, unpack(one.packed).values) for one in found]


def test_each_stretch_is_a_piece_with_its_own_place_and_time() -> None:
    found = list(wire_batches(part(), None))
    assert said(found) == [(100, 7, micros(T1), VALUES[:4]), (104, 50, micros(T2), VALUES[4:])]
    assert {(one.topic, one.epoch) for one in found} == {("t", 3)}


def test_bytes_that_are_there_are_sent_as_they_are() -> None:
    came = pack(VALUES[:4])
    first, second = wire_batches(part(came, None), None)
    assert first.packed is came
    assert unpack(second.packed).values == VALUES[4:]


def test_what_had_to_be_packed_is_packed_once_for_all() -> None:
    shared = part()
    assert [one.packed for one in wire_batches(shared, None)] == [one.packed for one in wire_batches(shared, None)]
    first, again = next(wire_batches(shared, None)), next(wire_batches(shared, None))
    assert first.packed is again.packed


@pytest.mark.parametrize(("encoding", "content_type"), [("json", JSON), ("msgpack", MSGPACK)])
def test_keys_and_headers_travel_and_so_does_what_values_are_written_in(encoding: str, content_type: int) -> None:
    metas = {101: Meta(b"k", {"h": "x"})}
    first, second = (unpack(one.packed) for one in wire_batches(part(metas=metas), encoding))
    assert first.metas == {1: metas[101]}
    assert not second.metas
    assert first.header.content_type == second.header.content_type == content_type


@given(st.integers(100, 109), st.integers(101, 110), st.booleans(), st.booleans())
def test_any_range_is_the_same_records_in_every_packing(first: int, end: int, one: bool, two: bool) -> None:
    if first >= end:
        first, end = end - 1, first + 1
    whole = part(pack(VALUES[:4]) if one else None, pack(VALUES[4:]) if two else None)
    found = said(list(wire_batches(whole.cut(first, end), None)))
    records = [
        (offset + at, sequence + at, time, value)
        for offset, sequence, time, values in found
        for at, value in enumerate(values)
    ]
    expected = [(r.offset, r.sequence, micros(r.time), r.value) for r in whole.records if first <= r.offset < end]
    assert records == expected


def test_a_record_by_itself() -> None:
    record = Record("t", 5, 9, 3, b"k", b"value", {"h": "x"}, T1)
    piece = wire_batch_of(record, None)
    assert piece[:5] == ("t", 3, 5, 9, micros(T1))
    assert unpack(piece.packed).metas == {0: Meta(b"k", {"h": "x"})}


def test_a_large_run_is_packed_in_pieces_and_each_once_for_all() -> None:
    values = (b"a" * 100_000, b"b" * 100_000, b"c" * 100_000, b"d" * MAX_PACKED * 2, b"e")
    large = Slice("t", 3, 100, values, [SliceRun(98, 7, T1)], columns_of([None, None, None, Meta(b"k")]), None)
    found = list(wire_batches(large, None))
    places = [(one.offset, one.sequence, len(unpack(one.packed).values)) for one in found]
    assert places == [(100, 9, 2), (102, 11, 1), (103, 12, 1), (104, 13, 1)]
    assert [meta for one in found for meta in unpack(one.packed).metas.values()] == [Meta(b"k")]
    assert [one.packed for one in wire_batches(large, None)] == [one.packed for one in found]
    assert [record.sequence for record in large.records] == [9, 10, 11, 12, 13]

"""Merged batches: records come back with the offsets they had, and nothing is believed that is not proven."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.batch_format import pack, unpack
from runnel.core.checksum import crc_of
from runnel.core.errors import BadBatch
from runnel.core.record import Meta
from runnel.journal.format import merged_batch
from runnel.journal.format.entry import PartKind, body_crc
from runnel.journal.format.merged_batch import RecordRun, batch_of, encode, provable_runs, runs_of
from tests.carried import columns_of

BIG = 2**63
COUNT_AT = 4  # where the number of runs lies


@st.composite
def rising(draw: st.DrawFn) -> list[RecordRun]:
    """Runs as a cleaner makes them: offsets and sequences rise, and may skip."""
    offset, sequence, time = draw(st.integers(0, BIG)), draw(st.integers(0, BIG)), draw(st.integers(0, 2**50))
    runs = []
    for _ in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 5))
        runs.append(RecordRun(offset, sequence, time, count))
        offset += count + draw(st.integers(0, 3))
        sequence += count + draw(st.integers(0, 3))
        time += draw(st.integers(0, 2))
    return runs


def packed(runs: list[RecordRun], *, metas: bool = False) -> bytes:
    count = sum(run.count for run in runs)
    values = [b"%d" % at for at in range(count)]
    return pack(values, columns_of([Meta(key=value) for value in values] if metas else None))


def body_of(runs: list[RecordRun]) -> bytes:
    return encode(runs, packed(runs))


def resealed(body: bytes) -> bytes:
    """With a crc that fits, as if it had been written so."""
    return crc_of(body[4:]).to_bytes(4, "little") + body[4:]


@given(rising(), st.booleans())
def test_records_come_back_with_the_places_they_had(runs: list[RecordRun], metas: bool) -> None:
    batch = packed(runs, metas=metas)
    body = encode(runs, batch)
    assert runs_of(body) == runs_of(memoryview(body)) == runs
    assert batch_of(body) == batch
    assert unpack(batch_of(body)).values == unpack(batch).values
    assert body_crc(PartKind.MERGED, body) == int.from_bytes(body[:4], "little")


@given(rising(), st.data())
def test_runs_are_proven_although_the_records_are_damaged(runs: list[RecordRun], data: st.DataObject) -> None:
    body = bytearray(body_of(runs))
    crc = int.from_bytes(body[:4], "little")
    at = data.draw(st.integers(len(body) - len(packed(runs)) + 4, len(body) - 1))
    body[at] ^= 1 << data.draw(st.integers(0, 7))
    assert provable_runs(bytes(body), crc) == runs


@given(rising(), st.data())
def test_runs_that_are_damaged_are_never_proven(runs: list[RecordRun], data: st.DataObject) -> None:
    body = bytearray(body_of(runs))
    crc = int.from_bytes(body[:4], "little")
    front = len(body) - len(packed(runs)) + 4
    body[data.draw(st.integers(4, front - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for at in data.draw(st.lists(st.integers(front, len(body) - 1), max_size=3)):
        body[at] ^= 1
    assert provable_runs(bytes(body), crc) is None


@pytest.mark.parametrize("kept", range(0, 120, 7))
def test_runs_of_a_part_that_is_cut_off_are_not_proven(kept: int) -> None:
    body = body_of([RecordRun(1, 1, 1, 2), RecordRun(7, 9, 1, 2)])
    assert provable_runs(body[:kept], int.from_bytes(body[:4], "little")) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_runs_or_a_bad_batch(body: bytes) -> None:
    try:
        runs = runs_of(body)
    except BadBatch:
        return
    assert encode(runs, bytes(batch_of(body)))[4:] == body[4:]


@given(rising(), st.data())
def test_one_changed_byte_is_a_bad_batch_or_runs_that_could_be_written(
    runs: list[RecordRun], data: st.DataObject
) -> None:
    body = bytearray(body_of(runs))
    body[data.draw(st.integers(4, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = runs_of(bytes(body))
    except BadBatch:
        return
    assert encode(found, bytes(batch_of(bytes(body))))[4:] == body[4:]


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([], "count up to 0"),
        ([RecordRun(0, 0, 0, 1)], "count up to 1 records, and it has 3"),
        ([RecordRun(0, 0, 0, 4)], "count up to 4"),
        ([RecordRun(0, 0, 0, 3), RecordRun(9, 9, 0, 0)], "an empty run"),
        ([RecordRun(0, 0, 0, 2), RecordRun(1, 9, 0, 1)], "do not rise at offset 1"),
        ([RecordRun(0, 0, 0, 2), RecordRun(9, 1, 0, 1)], "do not rise at offset 9"),
        ([RecordRun(2**64 - 2, 0, 0, 3)], "behind all numbers"),
        ([RecordRun(0, 2**64 - 2, 0, 3)], "behind all numbers"),
        ([RecordRun(5, 0, 2**60, 3)], "run at offset 5 is of no time"),
    ],
)
def test_runs_that_cannot_be_are_neither_written_nor_read(runs: list[RecordRun], why: str) -> None:
    batch = pack([b"a", b"b", b"c"])
    with pytest.raises(ValueError, match=why):
        encode(runs, batch)
    good = encode([RecordRun(0, 0, 0, 3)], batch)
    forged = good[:COUNT_AT] + len(runs).to_bytes(4, "little") + b"".join(merged_batch._RUN.pack(*run) for run in runs)
    with pytest.raises(BadBatch, match=why if runs else "it has 0 runs"):
        runs_of(forged + batch)
    sealed = resealed(forged + batch)
    if runs and "count up" not in why:  # a damaged batch cannot say how many records it had
        assert provable_runs(sealed, int.from_bytes(sealed[:4], "little")) is None


def test_a_batch_with_deltas_of_its_own_has_no_place_in_it() -> None:
    batch = pack([b"a", b"b"], deltas=[0, 2])
    with pytest.raises(ValueError, match="offset deltas"):
        encode([RecordRun(0, 0, 0, 2)], batch)


@pytest.mark.parametrize("kept", [0, 3, 7, 8, 40, 80])
def test_a_body_that_ends_too_early_is_a_bad_batch(kept: int) -> None:
    body = body_of([RecordRun(1, 1, 1, 2), RecordRun(7, 9, 1, 2)])[:kept]
    with pytest.raises(BadBatch):
        runs_of(body)
    with pytest.raises(BadBatch):
        batch_of(body)


def test_it_takes_28_bytes_a_run() -> None:
    one, two = [RecordRun(0, 0, 0, 2)], [RecordRun(0, 0, 0, 1), RecordRun(5, 5, 0, 1)]
    assert len(body_of(one)) == 8 + 28 + len(packed(one))
    assert len(body_of(two)) == 8 + 56 + len(packed(two))

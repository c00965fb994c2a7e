"""Segments: a file that entries lie in, made whole and never mistaken for another."""

from __future__ import annotations

import errno
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.checksum import crc_of
from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Part, PartKind, size_of, state_part
from runnel.journal.format.segment import (
    SMALL_COMMIT,
    START,
    ZERO_STEP,
    ActiveSegment,
    SegmentInfo,
    check_header,
    encode_header,
    entries,
    next_whole_entry,
    written_end,
)
from runnel.testing import MemoryStorage
from tests.journal.written_journal import batch

INFO = SegmentInfo(3, 0x1122334455667788, first_sequence=42)
LIMIT = 8192


def written(*drafts: list[Part]) -> tuple[MemoryStorage, ActiveSegment]:
    storage = MemoryStorage()
    segment = ActiveSegment.create(storage, INFO, LIMIT, now=5)
    for parts in drafts:
        pieces = segment.encode(parts, segment.end, 9)
        segment.write(pieces, sum(map(len, pieces)))
    return storage, segment


def draft(number: int) -> list[Part]:
    return [batch(1, number, 42 + number, 9, [b"value %d" % number])]


def test_a_new_segment_is_made_under_another_name_until_it_is_whole() -> None:
    storage, segment = written()
    assert storage.trace[:3] == [
        ("create", "000000000003.seg.tmp"),
        ("allocate", "000000000003.seg.tmp"),
        ("write", "000000000003.seg.tmp"),
    ]
    assert storage.trace[-1] == ("rename", "000000000003.seg.tmp -> 000000000003.seg")
    data = read_whole(storage, INFO.name)
    check_header(data, INFO)
    assert (len(data), segment.end, segment.synced) == (LIMIT, START, START)
    assert not any(data[START:])


def test_a_full_disk_leaves_nothing_but_a_temporary_file() -> None:
    storage = MemoryStorage(capacity=LIMIT - 1)
    with pytest.raises(OSError, match="space") as raised:
        ActiveSegment.create(storage, INFO, LIMIT, now=5)
    assert raised.value.errno == errno.ENOSPC
    assert storage.names() == ["000000000003.seg.tmp"]


def test_the_header_is_these_bytes() -> None:
    header = encode_header(INFO, 5)
    body = (
        b"runnel/s\x01\x00\x00\x00\x00\x00\x00\x00"
        + (3).to_bytes(8, "little")
        + bytes.fromhex("8877665544332211")
        + (42).to_bytes(8, "little")
        + (5).to_bytes(8, "little")
    )
    assert header == body + crc_of(body).to_bytes(4, "little") + bytes(12)
    assert len(header) == START


HEADER = encode_header(INFO, 5)


def test_one_changed_bit_of_a_header_is_noticed() -> None:
    unnoticed = []
    for at, bit in product(range(START), range(8)):
        data = bytearray(HEADER)
        data[at] ^= 1 << bit
        try:
            check_header(bytes(data), INFO)
        except JournalDamaged:
            continue
        unnoticed.append((at, bit))
    assert unnoticed == []


@pytest.mark.parametrize("kept", [0, 7, 8, START - 1])
def test_a_header_cut_short_is_damage(kept: int) -> None:
    with pytest.raises(JournalDamaged, match="not a segment"):
        check_header(HEADER[:kept], INFO)


@pytest.mark.parametrize("other", [SegmentInfo(4, INFO.id), SegmentInfo(3, INFO.id + 1)])
def test_another_segment_under_this_name_is_damage(other: SegmentInfo) -> None:
    with pytest.raises(JournalDamaged, match="another journal or life"):
        check_header(encode_header(other, 5), INFO)


def test_a_segment_of_a_later_format_is_refused_by_its_version() -> None:
    body = HEADER[:8] + (2).to_bytes(4, "little") + HEADER[12:48]
    with pytest.raises(FormatUnknown) as raised:
        check_header((body + crc_of(body).to_bytes(4, "little")).ljust(START, b"\0"), INFO)
    assert (raised.value.version, raised.value.known) == (2, 1)


def test_entries_are_found_in_order_and_end_where_the_zeros_begin() -> None:
    drafts = [draft(number) for number in range(5)]
    storage, segment = written(*drafts)
    found = list(entries(read_whole(storage, INFO.name), START, INFO, START))
    assert [one.parts for one in found] == drafts
    assert found[-1].end == segment.end == START + sum(map(size_of, drafts))
    assert [one.position for one in found] == [START, *(one.end for one in found[:-1])]


def test_each_entry_says_up_to_where_the_segment_was_synced_before_it() -> None:
    storage, segment = written(draft(0))
    first_end = segment.end
    segment.sync()
    assert segment.synced == first_end
    pieces = segment.encode(draft(1), segment.end, 9)
    segment.write(pieces, sum(map(len, pieces)))
    assert [one.synced for one in entries(read_whole(storage, INFO.name), START, INFO, START)] == [START, first_end]


@given(st.integers(0, 400))
def test_the_next_whole_entry_is_found_from_anywhere(start: int) -> None:
    storage, _ = written(draft(0), draft(1), draft(2))
    data = read_whole(storage, INFO.name)
    places = [one.position for one in entries(data, START, INFO, START)]
    found = next_whole_entry(data, start, INFO)
    expected = [place for place in places if place >= start]
    assert (None if found is None else found.position) == (expected[0] if expected else None)


def test_a_value_that_looks_like_an_entry_is_not_taken_for_one() -> None:
    inner = b"".join(ActiveSegment(INFO, None, LIMIT).encode(draft(7), 500, 9))  # type: ignore[arg-type]
    storage, segment = written([batch(1, 0, 42, 9, [inner])], draft(1))
    data = read_whole(storage, INFO.name)
    found = next_whole_entry(data, START + 1, INFO)
    assert found is not None
    assert found.parts == draft(1)
    assert next_whole_entry(data, segment.end, INFO) is None


def test_small_commits_write_zeros_ahead_of_themselves_and_large_ones_do_not() -> None:
    storage = MemoryStorage()
    segment = ActiveSegment.create(storage, INFO, 4 * ZERO_STEP, now=5)
    before = storage.calls
    for number in range(100):
        pieces = segment.encode(draft(number), segment.end, 9)
        segment.write(pieces, sum(map(len, pieces)))
    assert storage.calls == before + 100 + 1, "zeros were written once"
    large = [state_part(PartKind.CURSOR, bytes(SMALL_COMMIT))]
    for _ in range(20):
        pieces = segment.encode(large, segment.end, 9)
        segment.write(pieces, sum(map(len, pieces)))
    assert storage.calls == before + 100 + 1 + 20
    found = list(entries(read_whole(storage, INFO.name), START, INFO, START))
    assert [one.parts for one in found] == [*(draft(number) for number in range(100)), *[large] * 20]
    assert read_whole(storage, INFO.name)[segment.end :].strip(b"\0") == b""


def test_zeros_are_never_written_past_the_space_that_was_reserved() -> None:
    storage = MemoryStorage()
    segment = ActiveSegment.create(storage, INFO, ZERO_STEP + 2 * START, now=5)
    for number in range(200):
        pieces = segment.encode(draft(number), segment.end, 9)
        segment.write(pieces, sum(map(len, pieces)))
    assert storage.open(INFO.name).size() == ZERO_STEP + 2 * START


def test_names_sort_as_numbers_do() -> None:
    assert (INFO.name, INFO.index_name) == ("000000000003.seg", "000000000003.idx")
    assert sorted(SegmentInfo(n, 0).name for n in (9, 10, 100)) == [SegmentInfo(n, 0).name for n in (9, 10, 100)]


def test_a_segment_is_sealed_once_it_has_an_end() -> None:
    assert not INFO.sealed
    assert SegmentInfo(3, 1, end=64).sealed


def test_it_shows_itself() -> None:
    _, segment = written(draft(0))
    assert repr(segment) == f"<ActiveSegment 3 [64, {segment.end}) of 8192>"


@pytest.mark.parametrize("zeros", [0, 1, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("begin", [b"", b"x", b"\0x", b"x" * 65_535 + b"y", b"x" * 70_000])
def test_what_was_written_ends_where_the_zeros_begin(begin: bytes, zeros: int) -> None:
    assert written_end(begin + bytes(zeros)) == len(begin)

"""The catalog of an archive: chains, spans, and bytes that are checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import ArchiveDamaged, FormatUnknown, NoArchive
from runnel.journal.backup import archive_catalog
from runnel.journal.backup.archive_catalog import (
    ArchiveBase,
    ArchiveCatalog,
    ArchivedSegment,
    as_utc,
    continues,
    open_catalog,
    pool_index_name,
    pool_name,
)
from runnel.journal.format.segment import SegmentInfo
from tests.journal.folders import flip


def piece(number: int, *, whole: bool = True, sequence: int | None = None, through: int = 0) -> ArchivedSegment:
    """A segment of ten records, and of a hundred bytes."""
    first = number * 10 if sequence is None else sequence
    return ArchivedSegment(SegmentInfo(number, 1000 + number, 100, first, first + 10), whole, through)


def base(name: str, number: int, time: int = 0, through: int = 0) -> ArchiveBase:
    return ArchiveBase(name, number, 64, time, 0, 0, through, "why")


def test_a_chain_goes_as_far_as_segments_follow_on_each_other() -> None:
    known = ArchiveCatalog("j", [piece(1), piece(2), piece(3), piece(5)], [base("a", 2), base("b", 5), base("c", 6)])
    assert [[one.info.number for one in known.chain(found)] for found in known.bases] == [[2, 3], [5], []]


@pytest.mark.parametrize(
    ("before", "after", "follows"),
    [
        (piece(1), piece(2), True),
        (piece(1), piece(3), False),
        (piece(1, whole=False), piece(2), False),
        (piece(1), piece(2, sequence=19), False),  # a repair wrote it
    ],
)
def test_what_follows_on_what(before: ArchivedSegment, after: ArchivedSegment, follows: bool) -> None:
    assert continues(before, after.info) is follows


def test_bases_whose_chains_meet_are_one_span() -> None:
    pieces = [piece(1, through=15), piece(2, whole=False, through=20), piece(5, through=50), piece(6, through=60)]
    bases = [base("a", 1, 10), base("b", 2, 18), base("c", 5, 40), base("d", 7, 60, 70)]
    first, second = ArchiveCatalog("j", pieces, bases).spans()
    assert ([one.name for one in first.bases], first.since, first.through, first.bytes) == (["a", "b"], 10, 20, 200)
    assert ([one.name for one in second.bases], second.since, second.through) == (["c", "d"], 40, 70)


def test_bases_with_nothing_behind_them_are_one_span_only_if_they_are_of_one_moment() -> None:
    same = ArchiveCatalog("j", [], [base("a", 3), base("b", 3)])
    other = ArchiveCatalog("j", [], [base("a", 3), base("b", 4)])
    assert (len(same.spans()), len(other.spans())) == (1, 2)


def test_the_tip_is_what_comes_last() -> None:
    assert ArchiveCatalog("j").tip is None
    assert ArchiveCatalog("j", [piece(1)], [base("a", 1)]).tip == piece(1)
    assert ArchiveCatalog("j", [piece(1)], [base("a", 2)]).tip == base("a", 2)


def test_files_carry_the_name_the_generation_and_the_id_of_their_segment() -> None:
    assert pool_name(SegmentInfo(12, 0xABC)) == "000000000012.0000000000000abc.seg"
    assert pool_index_name(SegmentInfo(12, 0xABC, generation=3)) == "000000000012-3.0000000000000abc.idx"


def test_times_are_printed_to_the_microsecond() -> None:
    assert as_utc(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"


@given(st.lists(st.integers(0, 1 << 63), max_size=5), st.text(max_size=20))
def test_what_was_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, numbers: list[int], why: str) -> None:
    folder = tmp_path_factory.mktemp("archive")
    made = ArchiveCatalog(
        "j", [ArchivedSegment(SegmentInfo(number, 5, 6, 7, 8, 9, 10, 2), True, 11) for number in numbers]
    )
    made.bases = [ArchiveBase("a", 1, 2, 3, 4, 5, 6, why)]
    archive_catalog.write(folder, made)
    assert open_catalog(folder) == made


def test_damage_and_later_versions_are_reported(tmp_path: Path) -> None:
    archive_catalog.write(tmp_path, ArchiveCatalog("j", [piece(1)], [base("a", 1)]))
    file = tmp_path / archive_catalog.NAME
    good = file.read_bytes()
    for position in (0, 12, 16, len(good) - 1):
        flip(file, position)
        with pytest.raises(ArchiveDamaged):
            open_catalog(tmp_path)
        file.write_bytes(good)
    file.write_bytes(good[:10])
    with pytest.raises(ArchiveDamaged, match="not a catalog"):
        open_catalog(tmp_path)
    file.write_bytes(good[:8] + b"\x02" + good[9:])
    with pytest.raises(FormatUnknown):
        open_catalog(tmp_path)


def test_no_catalog_no_archive(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(NoArchive):
            open_catalog(place)


def test_what_is_whole_is_safe() -> None:
    base = ArchiveBase("b", 4, 64, 0, 0, 0, 0, "")
    grows, whole = (
        ArchivedSegment(SegmentInfo(4, 44, 500), whole=False),
        ArchivedSegment(SegmentInfo(4, 44, 500), whole=True),
    )
    assert ArchiveCatalog("j").safe == 0
    assert ArchiveCatalog("j", [], [base]).safe == 3
    assert ArchiveCatalog("j", [grows], [base]).safe == 3
    assert ArchiveCatalog("j", [whole], [base]).safe == 4

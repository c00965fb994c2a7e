"""Committed blocks: read by topic and by sequence, from every place. Damage is told, never served, and repaired."""

from __future__ import annotations

import pytest

from runnel.core.record import Gap, Record
from runnel.journal.backup.restore import Point
from runnel.journal.check.repair import apply_repair, plan_repair
from runnel.journal.check.scan import JournalScan
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.ledger import trim_part
from runnel.journal.format.segment import START, SegmentInfo, entries
from runnel.journal.options import JournalOptions
from runnel.journal.read.inspection import RecordExtract
from runnel.journal.write.journal import Journal
from runnel.testing.memory_storage import MemoryStorage
from tests.journal.blocks import BlockWriter, journal_with_blocks
from tests.journal.check.test_salvage import load
from tests.journal.check.test_scan import hurt
from tests.journal.journal_cleaning import clean, sealed
from tests.nightly import nightly_beyond

FORMS = ["as written", "cleaned", "placed"]

Seen = tuple[str, int, int, bytes]


def opened(storage: MemoryStorage) -> Journal:
    return Journal.open(storage, JournalOptions(segment_bytes=8192, min_free=0), now=1)


def journal(form: str) -> MemoryStorage:
    """The same records in every form that they can have on disk."""
    storage = journal_with_blocks()
    if form != "as written":
        writer = opened(storage)
        clean(writer, placing=[1] if form == "placed" else ())
        assert writer.ledger.is_read(1) is (form != "placed")
        writer.close()
    return storage


def read(
    journal: Journal, *names: str, place: int = 0, by_sequence: bool = True, gaps: list[Gap] | None = None
) -> list[Seen]:
    topics = [topic for topic in journal.ledger.topics.values() if topic.name in names or not names]
    extract = RecordExtract(journal.history, topics, ">", by_sequence=by_sequence)
    found = []
    for one in extract.read(place):
        if isinstance(one, Record):
            found.append((one.topic, one.offset, one.sequence, one.value))
        else:
            assert gaps is not None, one
            gaps.append(one)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_from_every_place_all_records_come_once_and_in_order(form: str) -> None:
    found = opened(journal(form))
    every = read(found)
    assert [one[2] for one in every] == list(range(len(every))) == list(range(29))
    assert [value for _, _, _, value in every][4:27] == [b"%d" % number for number in range(23)]
    assert "".join(name for name, *_ in every) == "abcbababcbbba" + "abc" * 4 + "cacc"
    for place in range(30):
        assert read(found, place=place) == every[place:]
        assert read(found, "a", "c", place=place) == [one for one in every[place:] if one[0] != "b"]
    for name in "abc":
        mine = [one for one in every if one[0] == name]
        assert [one[1] for one in mine] == list(range(len(mine)))
        for place in range(len(mine) + 1):
            assert read(found, name, place=place, by_sequence=False) == mine[place:]


@pytest.mark.parametrize("form", FORMS)
def test_the_offsets_of_a_sequence_are_known_in_all_topics(form: str) -> None:
    found = opened(journal(form))
    every = read(found)
    ids = {topic.name: number for number, topic in found.ledger.topics.items()}
    for sequence in range(30):
        expected = {}
        for name, offset, _, _ in reversed(every[sequence:]):
            expected[ids[name]] = offset
        assert found.history.offsets_at(sequence, set(ids.values())) == expected, sequence


@pytest.mark.parametrize("form", FORMS)
def test_what_retention_leaves_comes_in_order_and_a_stage_goes_with_its_last_record(form: str) -> None:
    storage = journal(form)
    found = opened(storage)
    every = read(found)
    firsts = {"a": 9, "b": 12, "c": 7}
    for topic in list(found.ledger.topics.values()):
        writer = BlockWriter.__new__(BlockWriter)
        writer.journal, writer.time = found, found.ledger.time
        writer.write(trim_part(topic.id, firsts[topic.name], topic.end))
        left = {one.name: one.first for one in found.ledger.topics.values()}
        expected = [one for one in every if one[1] >= left[one[0]]]
        assert read(found) == expected
        found._roll(0, found.ledger.time)
        clean(found)
        assert read(found) == expected
    assert not found.ledger.blocks
    found.retain(found.ledger.time)
    found._roll(0, found.ledger.time)
    clean(found)
    assert read(found) == expected
    kinds = {part.kind for source in sealed(found) for part in parts_in(storage, source.info)}
    assert PartKind.STAGED_BLOCK not in kinds


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sparser", nightly_beyond(1, [11, 1]))
def test_whatever_byte_is_flipped_no_wrong_record_is_served_and_a_repair_keeps_the_rest(
    form: str, sparser: int
) -> None:
    original = journal(form)
    whole = {one[:2]: one for one in read(opened(original.after_kill()))}
    flips = 0
    for info in load(original).segments:
        for position in range(START, info.end, sparser):
            storage = original.after_kill()
            hurt(storage, info.name, position)
            survey = JournalScan(storage).run()
            if not survey.damages:
                continue
            flips += 1
            gaps: list[Gap] = []
            damaged = opened(storage.after_kill())
            found = read(damaged, gaps=gaps)
            assert all(whole[one[:2]] == one for one in found), (info.name, position)
            assert [one[2] for one in found] == sorted({one[2] for one in found})
            missing = {one[2] for one in whole.values()} - {one[2] for one in found}
            assert all(any(gap.first <= one < gap.end for gap in gaps) for one in missing), (info.name, position)
            for name in "abc":
                alone = read(damaged, name, by_sequence=False, gaps=[])
                assert all(whole[one[:2]] == one for one in alone)
            damaged.close()
            lost = {(one.topic, offset) for one in survey.lost for offset in range(one.first, one.end)}
            assert plan_repair(survey)
            apply_repair(survey)
            left = {one[:2]: one for one in read(opened(storage))}
            assert left == {place: whole[place] for place in left}, (info.name, position)
            assert whole.keys() - left.keys() == lost & whole.keys() or survey.guessed, (info.name, position)
            assert JournalScan(storage).run().damages == []
    assert flips > 20


@pytest.mark.parametrize("form", FORMS)
def test_a_journal_with_blocks_is_whole_in_every_form(form: str) -> None:
    survey = JournalScan(journal(form)).run()
    assert (survey.damages, survey.lost, survey.notes, survey.records) == ([], [], [], 29)


def test_an_open_stage_that_lacks_a_block_is_reported_and_dropped_by_a_repair() -> None:
    storage = MemoryStorage()
    writer = BlockWriter(storage)
    for name in "abc":
        writer.publish(name, [b"before"])
    writer.journal._roll(0, writer.time)
    stage = writer.stage([1, 2], [3, 1], [2, 2], roll=True)
    writer.journal.close()
    assert JournalScan(storage).run().torn_stages == []
    info = load(storage).segments[2]
    assert [part.kind for part in parts_in(storage, info)] == [PartKind.STAGED_BLOCK]
    hurt(storage, info.name, info.end - 3)
    survey = JournalScan(storage).run()
    assert survey.torn_stages == [stage.id]
    apply_repair(survey)
    assert opened(storage).ledger.stages == {}


def parts_in(storage: MemoryStorage, info: SegmentInfo) -> list[Part]:
    found = entries(read_whole(storage, info.name)[: info.end], START, info, START)
    return [part for one in found for part in one.parts]


def test_a_point_in_time_lies_before_a_commit_as_a_whole_or_behind_it() -> None:
    storage = journal_with_blocks(roll=False)
    (info,) = load(storage).segments
    every = entries(read_whole(storage, info.name), START, info, START)
    (commit,) = [one for one in every if any(part.kind == PartKind.BLOCKS_COMMIT for part in one.parts)]
    assert [Point(sequence=at).is_before(commit) for at in (3, 4, 25, 26, 27)] == [True, True, True, False, False]

"""Repair of journals with cleaned segments and stages: all but what was said to be lost is there afterwards."""

from __future__ import annotations

import pytest

from runnel.core.batch_format import pack
from runnel.core.errors import FormatUnknown, RunnelError
from runnel.core.record import Gap
from runnel.journal.check.repair import apply_repair, plan_repair
from runnel.journal.check.scan import JournalScan
from runnel.journal.format import checkpoint, manifest
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import STAGE_TOPIC
from runnel.journal.format.ledger import StageState, stage_commit_part, stage_part, staged_part, trim_part
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.journal.options import JournalOptions
from runnel.journal.read.inspection import RecordExtract
from runnel.journal.read.segment_reader import FoundBatch
from runnel.journal.storage import Storage
from runnel.journal.write.journal import Journal
from runnel.testing.memory_storage import MemoryStorage
from tests.journal.check.test_repair import everything, lost_by, mend_if_needed
from tests.journal.check.test_salvage import load
from tests.journal.check.test_scan import hurt
from tests.journal.cleaned_segments import clean, journal_with_stages
from tests.journal.journal_cleaning import World, sealed
from tests.journal.journal_cleaning import clean as clean_for_real
from tests.journal.written_journal import Writer, read_sequence
from tests.nightly import nightly_beyond


def cleaned_journal() -> MemoryStorage:
    storage = journal_with_stages()
    clean(storage)
    return storage


def gaps(storage: Storage) -> list[Gap]:
    """What a journal tells to be missing, which is opened for it."""
    journal = Journal.open(storage, JournalOptions(segment_bytes=8192, min_free=0), now=1)
    try:
        topics = list(journal.ledger.topics.values())
        every = [RecordExtract(journal.history, [topic], topic.name, by_sequence=False).read() for topic in topics]
        return [found for one in every for found in one if isinstance(found, Gap)]
    finally:
        journal.close()


def test_cleaning_changes_nothing_that_is_read_and_a_survey_finds_it_whole() -> None:
    storage = journal_with_stages()
    before, records = everything(storage.after_kill()), JournalScan(storage).run().records
    clean(storage)
    survey = JournalScan(storage).run()
    assert survey.damages == []
    assert survey.lost == []
    assert survey.records == records
    assert everything(storage.after_kill()) == before
    assert (b"never" in before.values()) is False
    assert [before["a", offset] for offset in range(15, 17)] == [b"later 0", b"later 1"]


@pytest.mark.parametrize("make", [journal_with_stages, cleaned_journal])
@pytest.mark.parametrize("kind", [".seg", ".idx"])
@pytest.mark.parametrize("sparser", nightly_beyond(1, [5, 1]))
def test_whatever_byte_is_flipped_all_but_what_was_said_is_there(kind: str, make: object, sparser: int) -> None:
    assert callable(make)
    original = make()
    whole = everything(original.after_kill())
    flips = lost = 0
    for name in [name for name in original.names() if name.endswith(kind)]:
        size = original.open(name).size()
        for position in range(0, min(size, 6000), sparser * (13 if kind == ".seg" else 7)):
            storage = original.after_kill()
            hurt(storage, name, position)
            try:
                survey = JournalScan(storage).run()
            except FormatUnknown:
                continue
            mend_if_needed(survey)
            flips += bool(survey.damages)
            found = everything(storage)
            assert found == {place: whole[place] for place in found}, (name, position)
            missing = whole.keys() - found.keys()
            said = {place for place in lost_by(survey) if place in whole}
            assert missing == said or (survey.guessed and said <= missing), (name, position)
            lost += len(missing)
            again = JournalScan(storage).run()
            assert again.damages == [], (name, position)
            assert gaps(storage) == [], (name, position)
    assert flips > 20
    assert (lost > 20) == (kind == ".seg")


def test_a_staged_batch_that_is_lost_costs_its_records_alone_and_the_rest_become_batches() -> None:
    storage = journal_with_stages()
    name = next(one for one in storage.names() if one.endswith(".seg"))
    data = read_whole(storage, name)
    hurt(storage, name, data.index(b"s1"))  # the second of three staged batches, of topic c
    survey = JournalScan(storage).run()
    assert [(one.topic, one.first, one.end) for one in survey.lost] == [("c", 2, 4)]
    apply_repair(survey)
    found = everything(storage)
    assert sorted(place for place in found if place[0] == "c") == [("c", 0), ("c", 1), ("c", 4), ("c", 5)]
    again = JournalScan(storage).run()
    assert again.damages == []
    assert 1 not in again.ledger.committed


def test_the_commit_is_rewritten_where_what_it_names_lies_in_another_segment() -> None:
    storage = journal_with_stages()
    whole = everything(storage.after_kill())
    segments = [one for one in storage.names() if one.endswith(".seg")]
    name = next(one for one in segments if b"later 1" in read_whole(storage, one))
    commits = segments[-1]
    hurt(storage, name, read_whole(storage, name).index(b"later 1"))
    survey = JournalScan(storage).run()
    assert [(one.topic, one.first, one.end) for one in survey.lost] == [("a", 16, 17)]
    assert {damage.file for damage in survey.damages} == {name, commits}
    apply_repair(survey)
    assert whole.keys() - everything(storage.after_kill()).keys() == {("a", 16)}
    assert JournalScan(storage).run().damages == []
    assert gaps(storage) == []


def test_a_stage_that_is_open_and_not_whole_any_more_is_given_up() -> None:
    storage = journal_with_stages()
    name = next(one for one in storage.names() if one.endswith(".seg") and b"never" in read_whole(storage, one))
    hurt(storage, name, read_whole(storage, name).index(b"never"))
    survey = JournalScan(storage).run()
    assert survey.lost == []
    assert survey.torn_stages == [2]
    assert any("stage 2" in note for note in survey.notes)
    apply_repair(survey)
    journal = Journal.open(storage, JournalOptions(segment_bytes=8192, min_free=0), now=1)
    assert journal.ledger.stages == {}
    assert JournalScan(storage).run().torn_stages == []


@pytest.mark.parametrize("what", ["manifest", "checkpoint"])
def test_without_a_manifest_or_checkpoint_cleaned_segments_are_found_and_nothing_is_there_twice(what: str) -> None:
    original = cleaned_journal()
    whole = everything(original.after_kill())
    known = manifest.load(original)
    assert known is not None
    storage = original.after_kill()
    storage.remove(manifest.NAME if what == "manifest" else checkpoint.name_of(known.checkpoints[0]))
    if what == "checkpoint":
        with pytest.raises(RunnelError):
            Journal.open(storage.after_kill(), JournalOptions(min_free=0), now=1)
    survey = JournalScan(storage).run()
    assert survey.damages
    assert plan_repair(survey)
    apply_repair(survey)
    found = everything(storage)
    assert sorted(found.values()) == sorted(whole.values())
    if what == "manifest":
        assert found == whole


def test_without_a_manifest_what_the_cleaner_had_replaced_is_not_served_twice() -> None:
    original = journal_with_stages()
    whole, count = everything(original.after_kill()), JournalScan(original).run().records
    names = [name for name in original.names() if name.endswith((".seg", ".idx"))]
    olds = {name: read_whole(original, name) for name in names}
    clean(original)
    gone = [name for name in names if name not in original.names()]
    for kept in (gone, gone[2:]):  # all originals are still there, or the cleaner had begun to remove them
        storage = original.after_kill()
        for name in kept:
            storage.create(name).write(0, [olds[name]])
        storage.remove(manifest.NAME)
        survey = JournalScan(storage).run()
        assert survey.records == count
        apply_repair(survey)
        assert everything(storage) == whole


def worked(seed: int) -> tuple[MemoryStorage, World, dict[tuple[str, int], bytes]]:
    """A journal that much happened to, and that was cleaned here and there; and what it holds."""
    storage = MemoryStorage()
    world = World(seed, storage)
    for _ in range(4):
        world.work(30)
        world.clean_some()
    names = {topic.id: topic.name for topic in world.journal.ledger.topics.values()}
    held = {(names[one.topic], one.offset): one.value for one in world.wanted(world.journal.ledger)}
    world.journal.close()
    return storage, world, held


@pytest.mark.parametrize("seed", range(8))
def test_what_the_cleaner_wrote_is_found_whole_and_can_be_read(seed: int) -> None:
    storage, _, held = worked(seed)
    survey = JournalScan(storage).run()
    assert survey.damages == []
    assert survey.lost == []
    assert survey.torn_stages == []
    assert everything(storage) == held
    assert gaps(storage) == []


@pytest.mark.parametrize("seed", range(4))
def test_after_any_damage_and_a_repair_all_but_what_was_said_is_there(seed: int) -> None:
    original, world, held = worked(seed)
    names = [name for name in original.names() if name.endswith((".seg", ".idx"))]
    damaged = 0
    for _ in range(25):
        storage = original.after_kill()
        for name in world.random.sample(names, world.random.choice((1, 1, 2))):
            hurt(storage, name, world.random.randrange(storage.open(name).size()))
        survey = JournalScan(storage).run()
        damaged += bool(survey.damages)
        mend_if_needed(survey)
        found = everything(storage)
        assert found == {place: held[place] for place in found}
        missing = held.keys() - found.keys()
        said = lost_by(survey) & held.keys()
        assert missing == said
        assert JournalScan(storage).run().damages == []
        assert gaps(storage) == []
    assert damaged > 10


def test_topics_that_only_a_cleaned_segment_remembers_keep_their_names_and_epochs() -> None:
    storage = journal_with_stages()
    journal = Journal.open(storage, JournalOptions(segment_bytes=8192, min_free=0), now=1)
    before = {topic.id: (topic.name, topic.epoch) for topic in journal.ledger.topics.values()}
    clean_for_real(journal)
    journal.close()
    whole = everything(storage.after_kill())
    for name in [name for name in storage.names() if name.endswith(".ckpt")]:
        storage.remove(name)
    survey = JournalScan(storage).run()
    assert survey.guessed
    assert survey.names == before
    apply_repair(survey)
    found = everything(storage)
    assert {place: found[place] for place in whole} == whole
    again = Journal.open(storage, JournalOptions(segment_bytes=8192, min_free=0), now=1)
    assert {topic.id: (topic.name, topic.epoch) for topic in again.ledger.topics.values()} == before


def test_readers_by_sequence_find_everything_behind_the_copy_of_a_segment_without_records() -> None:
    storage = MemoryStorage()
    writer = Writer(storage)
    topic = writer.topic("t")
    for number in range(4):
        writer.publish(topic, b"%d" % number + bytes(600))
    writer.journal.close()
    writer.reopen()
    writer.topic("another")  # and then the power fails
    hurt(storage, "000000000001.seg", 600)
    apply_repair(JournalScan(storage).run())
    ends = [info.end_sequence for info in load(storage).segments]
    assert ends == sorted(ends)
    journal = Journal.open(storage, JournalOptions(min_free=0))
    assert [one.sequence for one in read_sequence(journal.history, {topic}) if isinstance(one, FoundBatch)] == [1, 2, 3]


def test_without_a_manifest_a_cleaned_segment_with_nothing_but_staged_batches_is_kept() -> None:
    writer = Writer()
    topic = writer.topic("t")
    writer.publish(topic, bytes(200))
    writer.write([stage_part(StageState(1, "w", 1, 0, 0, topic, writer.now)), staged_part(1, 0, pack([b"x"]), 1)])
    while len(sealed(writer.journal)) < 1:
        writer.publish(topic, bytes(900))
    ledger = writer.journal.ledger
    writer.write([trim_part(topic, ledger.topics[topic].end, 0, RemovalReason.ASKED)])
    writer.write([stage_commit_part(ledger.stages[1], ledger.topics[topic].end, ledger.sequence, writer.now)])
    first = sealed(writer.journal)[:1]
    clean_for_real(writer.journal, first)
    assert [number >= STAGE_TOPIC for number, _ in writer.journal.history.sources[0].index.topics()] == [True]
    writer.journal.close()
    writer.storage.remove(manifest.NAME)
    survey = JournalScan(writer.storage).run()
    assert survey.lost == []
    apply_repair(survey)
    assert [value for _, value in everything(writer.storage).items()] == [b"x"]

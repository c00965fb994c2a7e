"""Scanning everything: each damage is found where it is, and no more is called lost than is."""

from __future__ import annotations

import pytest

from runnel.core.batch_format import pack, unpack
from runnel.core.checksum import crc_of
from runnel.journal.check.scan import (
    Damage,
    JournalScan,
    LossTracker,
    LostTopicRange,
    StageScan,
    TornTail,
    placed_batches,
)
from runnel.journal.format import checkpoint, manifest
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import PartKind, state_part
from runnel.journal.format.index import IndexFile
from runnel.journal.format.ledger import Ledger, StageState, TopicState, staged_part, trim_part
from runnel.journal.format.segment import START, SegmentInfo
from runnel.journal.read.segment_reader import StageCommit
from runnel.journal.write.journal import SKIPPED_OFFSETS
from runnel.testing.memory_storage import MemoryStorage
from tests.journal.check.test_salvage import load, overwrite
from tests.journal.cleaned_segments import clean, journal_with_stages
from tests.journal.folders import Writer, in_memory, publish_numbered
from tests.journal.journal_cleaning import clean as clean_for_real
from tests.journal.journal_cleaning import sealed
from tests.journal.written_journal import Writer as Cleaned


def hurt(storage: MemoryStorage, name: str, position: int) -> None:
    data = bytearray(read_whole(storage, name))
    data[position] ^= 0xFF
    overwrite(storage, name, bytes(data))


def test_a_whole_journal_has_no_damage_and_the_same_ledger() -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        publish_numbered(writer, 0, 60)
        writer.settle(writer.group("g", "orders"), 0, 7)
        writer.cursor("ada", "jobs", 3)
        wanted = writer.journal.ledger.changes(everything=True)
    survey = JournalScan(storage).run()
    assert survey.damages == []
    assert survey.lost == []
    assert survey.records == 180
    assert not survey.guessed
    assert survey.ledger.changes(everything=True) == wanted


def test_progress_rises_to_the_end() -> None:
    told: list[tuple[int, int]] = []
    storage = MemoryStorage()
    with Writer(storage, segment_bytes=1 << 20) as writer:
        for _ in range(8):
            writer.publish("t", [bytes(500_000)])
    survey = JournalScan(storage, progress=lambda done, total: told.append((done, total))).run()
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] == (survey.size, survey.size)


def test_holes_and_skipped_offsets_are_not_called_lost() -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        publish_numbered(writer, 0, 2, ["t"])
        topic = writer.topic("t")
        writer.write(trim_part(topic.id, 0, topic.end + SKIPPED_OFFSETS))
        publish_numbered(writer, 2, 4, ["t"])
        part = writer.batch("t", pack([b"after a hole"]), 1)
        part.base = part.last = part.base + 10
        writer.write(part)
    survey = JournalScan(storage).run()
    assert (survey.damages, survey.lost) == ([], [])


@pytest.mark.parametrize("link", [0, -1])
def test_state_behind_a_damaged_checkpoint_comes_from_the_segments_and_the_other_links(link: int) -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        publish_numbered(writer, 0, 60)
        writer.settle(writer.group("g", "orders"), 0, 7)
        wanted = writer.journal.ledger.changes(everything=True)
    chain = load(storage).checkpoints
    assert len(chain) > 1
    hurt(storage, checkpoint.name_of(chain[link]), 60)
    survey = JournalScan(storage).run()
    assert survey.bad_checkpoints == [chain[link]]
    assert not survey.guessed
    assert survey.ledger.changes(everything=True) == wanted


def test_records_whose_topic_is_unknown_are_orphans() -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        publish_numbered(writer, 0, 60)
    # The first segment, which says what the topics are called, and the full checkpoint.
    known = load(storage)
    storage.remove(known.segments[0].name)
    for number in known.checkpoints:
        storage.remove(checkpoint.name_of(number))
    survey = JournalScan(storage).run()
    assert survey.guessed
    assert sorted(survey.orphans) == [1, 2]
    assert all(end == 90 for _, end in survey.orphans.values())


def test_deleted_topics_are_no_orphans_and_lose_nothing() -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        publish_numbered(writer, 0, 60)
        writer.write(state_part(PartKind.TOPIC_DELETED, topic=writer.topic("jobs").id))
    hurt(storage, load(storage).segments[0].name, 300)
    survey = JournalScan(storage).run()
    assert survey.orphans == {}
    assert {one.topic for one in survey.lost} <= {"orders"}


def test_a_torn_tail_is_no_damage() -> None:
    storage = MemoryStorage()
    writer = Writer(storage)
    publish_numbered(writer, 0, 3)
    end = writer.journal.history.sources[-1].written
    name = load(storage).segments[-1].name
    data = read_whole(storage, name)
    overwrite(storage, name, data[:end] + b"rnle half an entry" + bytes(50))
    survey = JournalScan(storage).run()
    assert survey.damages == []
    assert survey.torn == TornTail(name, end, 18)


def test_bad_bytes_below_the_mark_are_damage() -> None:
    storage = MemoryStorage()
    writer = Writer(storage)
    publish_numbered(writer, 0, 3)
    name = load(storage).segments[-1].name
    end = writer.journal.history.sources[-1].written
    overwrite(storage, name, read_whole(storage, name)[: end - 10] + bytes(10))
    survey = JournalScan(storage).run()
    assert survey.torn is None
    (damage,) = survey.damages
    assert damage.file == name
    assert survey.guessed or survey.lost


def test_a_segment_cut_short_is_damage_even_at_an_entry_s_end() -> None:
    storage = in_memory(60)
    info = load(storage).segments[1]
    data = read_whole(storage, info.name)
    last = data.rindex(b"rnle")
    overwrite(storage, info.name, data[:last])
    survey = JournalScan(storage).run()
    assert survey.damages == [Damage(info.name, last, f"the segment was sealed with {info.end} bytes")]
    (lost,) = survey.lost
    assert lost.end - lost.first == 3


def test_a_batch_that_is_whole_and_makes_no_sense_is_damage() -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        body = bytes(44) + b"not a batch at all"
        writer.write(writer.batch("t", crc_of(body).to_bytes(4, "little") + body, 2))
        writer.write(writer.batch("t", pack([b"one"]), 2))  # says two, holds one
        epoch = writer.topic("t").epoch
    survey = JournalScan(storage).run()
    assert [damage.why.partition(": ")[2] for damage in survey.damages] == [
        "its version is 0, and this runnel reads version 1",
        "it spans 1 offsets, not 2",
    ]
    assert survey.lost == [LostTopicRange("t", epoch, 0, 4)]


def test_compressed_batches_are_checked_by_crc_where_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from runnel.core import compression

    storage = MemoryStorage()
    with Writer(storage) as writer:
        for _ in range(2):
            writer.publish("t", [b"x" * 1000], compression="zstd")

    def missing(name: str) -> None:
        raise ImportError(name)

    compression._library.cache_clear()
    monkeypatch.setattr(compression, "import_module", missing)
    try:
        survey = JournalScan(storage).run()
    finally:
        compression._library.cache_clear()
    assert survey.damages == []
    assert len(survey.notes) == 1
    assert "checked by crc only" in survey.notes[0]


def test_an_index_that_lies_is_damage() -> None:
    storage = in_memory(60)
    first, second, *_ = load(storage).segments
    from runnel.journal.read.segment_reader import rebuild_index

    overwrite(storage, first.index_name, rebuild_index(storage, second)[0].encode(first))
    survey = JournalScan(storage).run()
    assert survey.damages == [Damage(first.index_name, 0, "it does not say what the segment holds")]
    assert survey.bad_indexes == [first]
    assert survey.bad_segments == []


def test_without_a_manifest_the_files_are_read_all_the_same() -> None:
    storage = in_memory(60)
    storage.remove(manifest.NAME)
    survey = JournalScan(storage).run()
    assert survey.manifest_lost
    assert survey.records == 180
    assert [damage.file for damage in survey.damages] == [manifest.NAME]


def test_of_a_cleaned_segment_with_holes_no_more_is_called_lost_than_its_index_says() -> None:
    storage = journal_with_stages()
    info = clean(storage, block=4, wanted=lambda one: one.offset % 6 in (2, 3))
    index = IndexFile(memoryview(read_whole(storage, info.index_name)), info)
    at, following = index.window(1, 0)
    assert following is not None
    hurt(storage, info.name, at)  # the head of the first entry of topic a
    survey = JournalScan(storage).run()
    assert [(one.topic, one.first, one.end) for one in survey.lost] == [("a", 2, index.base_behind(1, at + 1))]
    hurt(storage, info.index_name, 60)  # and its index: then every hole may have been a record
    assert {one.topic for one in JournalScan(storage).run().lost} == {"a", "b"}


def test_a_topic_whose_deletion_was_cleaned_away_is_no_orphan_without_a_manifest() -> None:
    writer = Cleaned()
    kept, gone = writer.topic("kept"), writer.topic("gone")
    for _ in range(14):
        writer.publish(kept, bytes(700))
        writer.publish(gone, bytes(200))
    before = len(sealed(writer.journal))
    writer.write([state_part(PartKind.TOPIC_DELETED, topic=gone)])
    for _ in range(120):  # long enough for a full checkpoint
        writer.publish(kept, bytes(900))
    clean_for_real(writer.journal, sealed(writer.journal)[:1])  # that it was made,
    clean_for_real(writer.journal, sealed(writer.journal)[before:])  # and that it was deleted: nobody says so any more
    writer.journal.close()
    writer.storage.remove(manifest.NAME)
    survey = JournalScan(writer.storage).run()
    assert gone in survey._orphans
    assert survey.orphans == {}


def test_of_a_cleaned_segment_that_is_cut_short_all_that_is_missing_is_lost() -> None:
    writer = Cleaned()
    topics = {f"t{number}": writer.topic(f"t{number}") for number in range(4)}
    for number in range(8):
        for topic in topics.values():
            writer.publish(topic, b"%d" % number + b"x" * 200)
    clean_for_real(writer.journal)
    source = writer.journal.history.sources[0]
    begins = {name: source.index.window(topic, 0)[0] for name, topic in topics.items()}
    held = {name: source.index.range_of(topic) for name, topic in topics.items()}
    writer.journal.close()
    data = read_whole(writer.storage, source.info.name)
    for cut in sorted({*range(START, len(data), 97), *begins.values(), *(at + 1 for at in begins.values())}):
        for left in (data[:cut], data[:cut] + bytes(len(data) - cut)):
            overwrite(writer.storage, source.info.name, left)
            survey = JournalScan(writer.storage).run()
            whole = [at for at in (*sorted(begins.values()), len(data)) if at <= cut]
            names = [name for name, at in begins.items() if not whole or at >= whole[-1]]
            expected = [(name, held[name].first, held[name].end) for name in sorted(names)]  # type: ignore[union-attr]
            assert [(one.topic, one.first, one.end) for one in survey.lost] == expected, cut
            assert len(left) == len(data) or len(survey.damages) == 1, cut


@pytest.mark.parametrize("before", [0, 2])
def test_a_trim_behind_damage_does_not_hide_what_was_lost(before: int) -> None:
    storage = MemoryStorage()
    with Writer(storage) as writer:
        writer.topic("t")
        publish_numbered(writer, 0, before, ["t"])
        at = writer.journal.history.sources[-1].written
        publish_numbered(writer, 2, 3, ["t"])
        writer.write(trim_part(writer.topic("t").id, before, 0))
        publish_numbered(writer, 3, 4, ["t"])
    hurt(storage, "000000000001.seg", at)
    assert [(one.first, one.end) for one in JournalScan(storage).run().lost] == [(before * 3, before * 3 + 3)]


# -- Losses: a hole is no loss, unless something broke since its topic was last met --------------------------


def lost(losses: LossTracker) -> dict[int, list[tuple[int, int]]]:
    return {topic: list(ranges) for topic, ranges in losses}


def test_a_hole_is_no_loss() -> None:
    losses = LossTracker()
    losses.meet(1, 0, 5)
    losses.meet(1, 9, 12)
    assert lost(losses) == {}
    assert losses.expected(1, 0) == 12


def test_what_is_missing_behind_something_that_broke_is_lost_once_and_for_each_topic() -> None:
    losses = LossTracker()
    losses.meet(1, 0, 5)
    losses.meet(2, 0, 1)
    losses.broke()
    losses.meet(1, 9, 12)
    losses.meet(1, 14, 15)
    losses.meet(2, 1, 2)
    losses.meet(2, 7)
    assert lost(losses) == {1: [(5, 9)]}


def test_a_topic_that_was_never_met_lost_what_lies_behind_its_beginning() -> None:
    losses = LossTracker()
    losses.begin(1, 4)
    losses.begin(1, 2)
    losses.broke()
    losses.meet(1, 6)
    assert lost(losses) == {1: [(4, 6)]}
    assert losses.expected(2, 33) == 33


def test_what_is_known_to_be_lost_is_not_lost_again_as_a_hole() -> None:
    losses = LossTracker()
    losses.meet(1, 0, 5)
    losses.broke()
    losses.lose(1, 5, 8)
    losses.meet(1, 8, 9)
    assert lost(losses) == {1: [(5, 8)]}


def test_offsets_that_an_unclean_start_skipped_are_never_lost() -> None:
    losses = LossTracker()
    losses.meet(1, 0, 5)
    losses.broke()
    losses.meet(1, 5 + SKIPPED_OFFSETS, 6 + SKIPPED_OFFSETS)
    assert lost(losses) == {}


def test_an_end_that_was_known_before_says_nothing_of_what_broke_since() -> None:
    losses = LossTracker()
    losses.meet(1, 0, 5)
    losses.broke()
    losses.meet(1, 2)
    losses.meet(1, 8, 9)
    assert lost(losses) == {1: [(5, 8)]}


# -- Scanning stages: what is missing of a commit is known to the offset, as long as its topic wants it ------


INFO = SegmentInfo(1, 1, 100)
STAGED = StageCommit(1, 10, 15, 50, 7, 4, (2, 3, 1))


def ledger(first: int = 0) -> Ledger:
    made = Ledger()
    made.topics[1] = TopicState(1, "t", 1, {}, None, first, 20)
    return made


def surveyed(*ordinals: int, counts: tuple[int, ...] = (2, 3, 1)) -> StageScan:
    made = StageScan()
    for ordinal in ordinals:
        made.note_staged(staged_part(4, ordinal, pack([b"x"] * counts[ordinal]), 1), INFO, 64)
    made.note_commit(STAGED, INFO, 64)
    return made


def missing(survey: StageScan, state: Ledger) -> list[list[tuple[int, int]]]:
    return [ranges for _, ranges in survey.broken(state)]


def test_where_everything_is_there_nothing_is_broken() -> None:
    assert missing(surveyed(0, 1, 2), ledger()) == []


@pytest.mark.parametrize(
    ("kept", "lost"), [((0, 2), [(12, 15)]), ((), [(10, 12), (12, 15), (15, 16)]), ((1,), [(10, 12), (15, 16)])]
)
def test_what_is_missing_is_known_to_the_offset(kept: tuple[int, ...], lost: list[tuple[int, int]]) -> None:
    assert missing(surveyed(*kept), ledger()) == [lost]


def test_what_the_topic_let_go_of_is_not_missed() -> None:
    assert missing(surveyed(1, 2), ledger(first=12)) == []
    assert missing(surveyed(1, 2), ledger(first=11)) == [[(10, 12)]]
    assert missing(surveyed(), Ledger()) == []  # the topic is deleted


def test_a_batch_with_another_count_is_not_the_one_that_was_committed() -> None:
    assert missing(surveyed(0, 1, 2, counts=(2, 2, 1)), ledger()) == [[(12, 15)]]


def test_open_stages_that_are_not_whole_are_known() -> None:
    state = ledger()
    state.stages[4] = StageState(4, "w", 1, 0, 0, 1, 0, [2, 3, 1], 10)
    assert surveyed(0, 1).torn(state) == [4]
    assert surveyed(0, 1, 2).torn(state) == []


@pytest.mark.parametrize("cleaned", [False, True])
def test_the_batches_of_a_stage_can_be_had_with_their_places(cleaned: bool) -> None:
    storage = journal_with_stages()
    if cleaned:
        clean(storage)
    survey = JournalScan(storage).run()
    (commit,) = [one for one in survey.stages._commits if one.staged.stage == 1]
    assert isinstance(commit.staged, StageCommit)
    parts = list(survey.stages.batches_of(commit.staged, storage))
    assert [(part.topic, part.base, part.last) for part in parts] == [(3, 0, 1), (3, 2, 3), (3, 4, 5)]
    assert [part.sequence for part in parts] == [6, 8, 10]
    assert [unpack(part.body).values[0] for part in parts] == [b"s0", b"s1", b"s2"]


def test_offsets_of_a_stage_follow_its_counts() -> None:
    assert list(placed_batches(STAGED)) == [(0, 10, 12), (1, 12, 15), (2, 15, 16)]

"""Scanning everything: each damage is found where it is, and no more is called lost than is."""

from __future__ import annotations

import pytest

from runnel.core.batch_format import pack
from runnel.core.checksum import crc_of
from runnel.journal.check.scan import Damage, JournalScan, LostTopicRange, TornTail
from runnel.journal.format import checkpoint, manifest
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import PartKind, state_part
from runnel.journal.format.index import IndexFile
from runnel.journal.format.ledger import trim_part
from runnel.journal.format.segment import START
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


def test_records_whose_topic_nobody_knows_any_more_are_orphans() -> None:
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

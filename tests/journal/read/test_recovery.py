"""The way back: what a crash, a kill or a bad disk left, read as far as it can be believed and no further."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from runnel.core.batch_format import unpack
from runnel.core.checksum import crc_of
from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.format import manifest, watermark
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.checkpoint import name_of
from runnel.journal.format.entry import Draft, state_part
from runnel.journal.format.ledger import CursorState, cursor_part
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.journal.format.segment import HEADER, START, ActiveSegment, SegmentInfo, entries
from runnel.journal.read.recovery import Recovered, recover
from runnel.journal.read.segment_reader import FoundBatch
from runnel.journal.storage import OsStorage, Storage
from runnel.journal.write.journal import SKIPPED_EPOCHS, Journal
from runnel.testing import MemoryStorage
from tests.crash.observing import observe
from tests.journal.format.test_ledger import seen
from tests.journal.golden_journals import CLEANED, CURSORS, EARLY, FAILED, GOLDEN, NOW, TOPICS, WRITTEN, write_all
from tests.journal.written_journal import SMALL, Writer, batch, contents, flip, put, read_sequence, read_topic


def recovered(storage: Storage, *, up_to_watermark: bool = False) -> Recovered:
    return recover(storage, lambda: "a new one", up_to_watermark=up_to_watermark)


def memory(writer: Writer) -> MemoryStorage:
    assert isinstance(writer.storage, MemoryStorage)
    return writer.storage


def example(count: int = 3) -> Writer:
    writer = Writer()
    topic = writer.topic("a")
    for number in range(count):
        writer.publish(topic, b"value %d" % number)
    return writer


# -- what a later version wrote ---------------------------------------------------------------------------------


def several_segments() -> Writer:
    writer = example(count=60)
    assert len(writer.journal.manifest.segments) > 2
    return writer


@pytest.mark.parametrize("laid_out", ["as before", "anew"])
@pytest.mark.parametrize("which", [0, -1], ids=["sealed", "open"])
def test_a_segment_of_a_later_version_is_refused(which: int, laid_out: str) -> None:
    writer = several_segments()
    name = writer.journal.manifest.segments[which].name
    data = bytearray(read_whole(writer.storage, name))
    data[8] = 2
    if laid_out == "anew":
        data[20:30] = b"elsewhere "
    else:
        data[HEADER.size : HEADER.size + 4] = crc_of(bytes(data[: HEADER.size])).to_bytes(4, "little")
    put(writer.storage, name, bytes(data))
    with pytest.raises(FormatUnknown, match=f"{name} is written in format 2"):
        recovered(writer.storage)


def test_an_index_of_a_later_version_is_refused() -> None:
    writer = several_segments()
    name = writer.journal.manifest.segments[1].index_name
    data = bytearray(read_whole(writer.storage, name))
    data[8] = 2
    put(writer.storage, name, bytes(data) + b"and something new")
    with pytest.raises(FormatUnknown, match=f"{name} is written in format 2"):
        recovered(writer.storage)


def test_a_durable_mark_of_a_later_version_is_refused() -> None:
    writer = example()
    put(writer.storage, watermark.NAME, read_whole(writer.storage, watermark.NAME) + (2).to_bytes(4, "little"))
    with pytest.raises(FormatUnknown, match="DURABLE is written in format 2"):
        recovered(writer.storage)


def test_a_version_that_changed_on_the_disk_is_damage_and_keeps_no_folder_from_opening() -> None:
    writer = several_segments()
    sealed = writer.journal.manifest.segments[1]
    for name in (sealed.name, sealed.index_name):
        flip(writer.storage, name, 8, bit=1)
    assert recovered(writer.storage).tail is not None


# -- what version 1 wrote ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", [GOLDEN, EARLY], ids=lambda folder: folder.parent.name)
def test_a_folder_that_version_1_wrote_opens_with_every_record_and_all_state(golden: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(golden, tmp_path / "data")
    journal = Journal.open(OsStorage(folder), SMALL, now=NOW + 1_000)
    written = write_all(MemoryStorage())

    assert (journal.report.clean, journal.report.copied, journal.report.cut_bytes) == (False, 1, 0)
    assert journal.report.notes == ()
    assert read_topic(journal.history, 1) == [one for one in written if one.topic == 1]
    assert read_topic(journal.history, 2, 2) == [one for one in written if one.topic == 2 and one.last >= 2]
    assert read_sequence(journal.history, {1, 2}) == written
    assert not any(source.damage for source in journal.history.sources)

    ledger = journal.ledger
    for topic, known in zip(ledger.topics.values(), TOPICS, strict=True):
        assert {name: getattr(topic, name) for name in known} == known
    assert ledger.topics[1].schema == {"encoding": "json"}
    assert ledger.cursors == CURSORS
    billing, audit = ledger.groups[1], ledger.groups[2]
    assert sorted(ledger.groups) == [1, 2]
    assert (billing.floor, billing.settled.flat(), billing.failed) == (
        5,
        [at for n in range(2, 9) for at in (3 * n, 3 * n + 2)],
        FAILED,
    )
    assert (audit.floor, audit.settled.flat(), audit.options) == (10, [12, 13], {})
    assert (ledger.next_topic, ledger.next_group, ledger.epoch) == (4, 5, 3 + SKIPPED_EPOCHS)
    journal.close()


@pytest.mark.parametrize("golden", [GOLDEN, EARLY], ids=lambda folder: folder.parent.name)
def test_the_records_that_version_1_wrote_still_say_what_they_said(golden: Path, tmp_path: Path) -> None:
    journal = Journal.open(OsStorage(shutil.copytree(golden, tmp_path / "data")), SMALL, now=NOW + 1_000)
    *_, last = read_topic(journal.history, 1)
    assert isinstance(last, FoundBatch)
    batch_found = unpack(last.body)
    assert (last.base, last.last) == (27, 31)
    assert batch_found.values == (b"{}", b'{"n":1}', b"[]")
    assert (batch_found.deltas, batch_found.times) == ((0, 1, 4), (NOW, None, NOW + 5))
    assert [batch_found.metas[at].priority for at in (0, 2)] == [0, 7]
    assert batch_found.metas[0].key == b"key"
    journal.close()


def test_a_cleaned_folder_that_version_1_wrote_opens_with_all_that_lives(tmp_path: Path) -> None:
    journal = Journal.open(OsStorage(shutil.copytree(CLEANED, tmp_path / "data")), SMALL, now=NOW + 1_000)
    state_found = observe(journal)
    plain, keyed = state_found.topics[1], state_found.topics[2]
    assert [record.value for record in plain.records] == [
        *(b"plain %d " % number * 9 for number in range(2, 12)),
        *[b"staged 0"] * 3,
        *[b"staged 1"] * 3,
        b"last",
    ]
    assert [(record.offset, record.key, record.value) for record in keyed.records] == [
        (10, b"key 0", b"value 10"),
        (11, b"key 1", b"value 11"),
    ]
    assert any(info.generation for info in journal.manifest.segments)
    assert state_found.marks == {"numbers": 11, "job": b"done"}
    assert state_found.producers == {7: 12}
    assert {name for name, _, _ in state_found.ids[2]} == {f"id {number}" for number in range(12)}
    assert [stage.batches for stage in state_found.stages.values()] == [(((b"not yet", None),),)]
    assert (state_found.cursors, sorted(state_found.topics)) == ({}, [1, 2])
    assert [one.reason for one in journal.ledger.topics[1].gone] == [RemovalReason.ASKED]
    journal.close()


@pytest.mark.parametrize("folder", WRITTEN, ids=lambda folder: folder.parent.name)
def test_the_same_work_still_gives_the_same_bytes(folder: Path) -> None:
    storage = MemoryStorage()
    WRITTEN[folder](storage)
    golden = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    written = contents(storage)
    assert sorted(written) == sorted(golden)
    for name, data in written.items():
        assert data == golden[name], f"{name} is not what version 1 wrote: see tests/journal/golden_journals.py"


@pytest.mark.parametrize("name", ["MANIFEST", "000000000004.seg", "000000000003.ckpt"])
def test_a_file_of_a_later_version_is_refused_by_its_version(name: str) -> None:
    storage = MemoryStorage()
    write_all(storage)
    data = bytearray(read_whole(storage, name))
    data[8:12] = (2).to_bytes(4, "little")
    if name.endswith(".seg"):
        data[48:52] = crc_of(bytes(data[:48])).to_bytes(4, "little")
    put(storage, name, bytes(data))
    with pytest.raises(FormatUnknown) as raised:
        Journal.open(storage, SMALL)
    assert (raised.value.version, raised.value.known) == (2, 1)


def test_an_entry_of_a_later_version_is_refused_unless_it_says_that_it_may_be_skipped() -> None:
    for kind in (128, 127):
        writer = example()
        active = open_segment(writer)
        for parts in ([state_part(kind, b"of later")], []):  # type: ignore[arg-type]
            pieces = active.encode(parts, active.end, 9)
            active.write(pieces, sum(map(len, pieces)))
            active.sync()
        storage = memory(writer).after_kill()
        if kind == 128:
            assert seen(recovered(storage).ledger)["topics"] == writer.journal.ledger.topics
        else:
            with pytest.raises(FormatUnknown, match="kind 127"):
                recovered(storage)


def open_segment(writer: Writer) -> ActiveSegment:
    assert writer.journal._active is not None
    return writer.journal._active


# -- new, closed, cut off ---------------------------------------------------------------------------------------


def test_an_empty_folder_is_a_new_journal() -> None:
    found = recovered(MemoryStorage())
    assert found.manifest.journal == "a new one"
    assert (found.tail, found.notes, found.manifest.segments) == (None, [], [])


def test_looking_changes_nothing() -> None:
    storage = memory(example()).after_kill()
    before, calls = contents(storage), storage.calls
    recovered(storage)
    recovered(storage, up_to_watermark=True)
    assert (contents(storage), storage.calls) == (before, calls)


def test_a_journal_that_was_closed_has_no_tail() -> None:
    writer = example()
    writer.journal.close()
    found = recovered(writer.storage)
    assert found.tail is None
    assert seen(found.ledger) == seen(writer.journal.ledger)


def test_the_tail_of_a_cut_off_journal_is_taken_up_to_where_it_is_proven() -> None:
    writer = example()
    found = recovered(memory(writer).after_kill())
    assert found.tail is not None
    # The mark of the last sync was written, so everything is proven.
    assert (found.tail.entries, found.tail.unproven, found.tail.cut_bytes) == (5, [], 0)
    assert seen(found.ledger) == seen(writer.journal.ledger)


def test_without_the_mark_the_last_entry_proves_only_those_before_it() -> None:
    writer = example()
    storage = memory(writer).after_kill()
    storage.remove(watermark.NAME)
    tail = recovered(storage).tail
    assert tail is not None
    assert [one.parts[0].base for one in tail.unproven] == [2]
    assert tail.end == tail.unproven[0].position


def test_what_is_not_proven_is_copied_and_served() -> None:
    writer = example()
    storage = memory(writer).after_kill()
    storage.remove(watermark.NAME)
    writer.reopen(storage)
    assert (writer.journal.report.clean, writer.journal.report.copied) == (False, 1)
    assert read_topic(writer.journal.history, 1) == writer.written
    positions = [one.position for one in entries(read_whole(storage, "000000000001.seg"), START, first(writer), START)]
    assert len(positions) == 4, "the copied entry is no longer in the old segment"


def first(writer: Writer) -> SegmentInfo:
    return writer.journal.manifest.segments[0]


# -- torn tail and damage ---------------------------------------------------------------------------------------


def torn() -> tuple[Writer, int, int]:
    """Three acknowledged entries, and one that was being written: where that begins and ends."""
    writer = example()
    begin = open_segment(writer).end
    writer.journal._append([Draft([batch(1, 3, 3, 9, [b"the last one"])], 9)])
    return writer, begin, open_segment(writer).end


def test_a_torn_last_entry_is_cut_and_reported_and_the_others_survive() -> None:
    _, begin, end = torn()
    for kept in range(begin, end):
        writer = torn()[0]
        storage = memory(writer).after_kill()
        data = read_whole(storage, "000000000001.seg")
        put(storage, "000000000001.seg", data[:kept].ljust(len(data), b"\0"))
        writer.reopen(storage)
        report = writer.journal.report
        found = (report.clean, report.copied, report.cut_bytes)
        assert found == (False, 0, len(data[begin:kept].rstrip(b"\0"))), f"cut at {kept}"
        assert read_topic(writer.journal.history, 1) == writer.written, f"cut at {kept}"
        assert writer.journal.ledger.topics[1].end == 3, f"cut at {kept}"


@pytest.mark.parametrize("with_mark", [True, False])
def test_bad_bytes_below_what_was_synced_are_damage(with_mark: bool) -> None:
    writer = example(4)
    storage = memory(writer).after_kill()
    if not with_mark:
        storage.remove(watermark.NAME)
    found = list(entries(read_whole(storage, "000000000001.seg"), START, first(writer), START))
    for damaged in found[:-1]:  # all but the last are known to have been synced, by those behind them
        spoiled = storage.after_kill()
        flip(spoiled, "000000000001.seg", damaged.position + 20)
        with pytest.raises(JournalDamaged) as raised:
            recovered(spoiled)
        assert (raised.value.file, raised.value.position) == ("000000000001.seg", damaged.position)


def test_a_bad_last_entry_is_damage_if_the_mark_says_it_was_durable_and_a_torn_tail_if_not() -> None:
    writer = example()
    storage = memory(writer).after_kill()
    *_, last = entries(read_whole(storage, "000000000001.seg"), START, first(writer), START)
    flip(storage, "000000000001.seg", last.position)
    with pytest.raises(JournalDamaged):
        recovered(storage)
    storage.remove(watermark.NAME)
    tail = recovered(storage).tail
    assert tail is not None
    assert (tail.unproven[-1].end, tail.cut_bytes) == (last.position, last.end - last.position)


def test_the_mark_of_another_segment_proves_nothing() -> None:
    writer = example()
    storage = memory(writer).after_kill()
    *_, last = entries(read_whole(storage, "000000000001.seg"), START, first(writer), START)
    flip(storage, "000000000001.seg", last.position)
    file = storage.open(watermark.NAME, writable=True)
    watermark.write(file, 1, first(writer).id + 1, last.end)
    assert recovered(storage).tail is not None


def test_a_tail_shorter_than_what_was_synced_is_damage() -> None:
    storage = memory(example()).after_kill()
    data = read_whole(storage, "000000000001.seg")
    put(storage, "000000000001.seg", data[: torn()[1] - 1])
    with pytest.raises(JournalDamaged, match="synced up to"):
        recovered(storage)


def test_other_processes_read_up_to_the_mark() -> None:
    writer, begin, _ = torn()
    found = recovered(writer.storage, up_to_watermark=True)
    assert found.tail is not None
    assert (found.tail.end, found.tail.unproven) == (begin, [])
    assert found.ledger.topics[1].end == 3


def test_without_a_mark_other_processes_read_what_is_sealed() -> None:
    storage = memory(example()).after_kill()
    storage.remove(watermark.NAME)
    found = recovered(storage, up_to_watermark=True)
    assert found.tail is not None
    assert (found.tail.end, found.ledger.topics) == (START, {})


# -- files ------------------------------------------------------------------------------------------------------


def long_example() -> Writer:
    """Several segments and checkpoints, cut off."""
    writer = Writer()
    topic = writer.topic("a")
    for other in range(20):
        writer.topic(f"other.topic.{other}")
    for number in range(30):
        writer.publish(topic, b"%03d" % number * 100)
        writer.write([cursor_part(CursorState("reader", "a", 1, number))])
    assert len(writer.journal.manifest.checkpoints) > 2
    return writer


def test_a_missing_manifest_is_damage_where_there_are_segments() -> None:
    storage = memory(example()).after_kill()
    storage.remove(manifest.NAME)
    with pytest.raises(JournalDamaged, match="MANIFEST"):
        recovered(storage)


@pytest.mark.parametrize("at", [0, 1, -1])
def test_a_missing_segment_is_damage(at: int) -> None:
    writer = long_example()
    storage = memory(writer).after_kill()
    name = writer.journal.manifest.segments[at].name
    storage.remove(name)
    with pytest.raises(JournalDamaged, match="missing") as raised:
        recovered(storage)
    assert raised.value.file == name


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("at", [0, 1, -1])
def test_a_checkpoint_that_is_no_good_is_made_up_for_by_the_segments(at: int, how: str) -> None:
    writer = long_example()
    storage = memory(writer).after_kill()
    name = name_of(writer.journal.manifest.checkpoints[at])
    if how == "missing":
        storage.remove(name)
    else:
        flip(storage, name, 40)
    found = recovered(storage)
    assert seen(found.ledger) == seen(writer.journal.ledger)
    (note,) = found.notes
    assert name in note


def test_after_that_the_chain_of_checkpoints_is_whole_again() -> None:
    writer = long_example()
    storage = memory(writer).after_kill()
    flip(storage, name_of(writer.journal.manifest.checkpoints[-1]), 40)
    state_before = seen(writer.journal.ledger)
    writer.reopen(storage)
    assert writer.journal.report.notes
    writer.killed()
    assert writer.journal.report.notes == ()
    assert seen(writer.journal.ledger)["topics"] == state_before["topics"]
    assert seen(writer.journal.ledger)["cursors"] == state_before["cursors"]


def test_a_damaged_checkpoint_is_damage_where_a_segment_since_is_gone() -> None:
    writer = long_example()
    storage = memory(writer).after_kill()
    known = manifest.load(storage)
    assert known is not None
    del known.segments[-2]
    manifest.write(storage, known)
    flip(storage, name_of(known.checkpoints[-1]), 40)
    with pytest.raises(JournalDamaged, match="ckpt"):
        recovered(storage)


def test_damage_in_a_segment_that_has_to_stand_in_for_a_checkpoint_is_damage() -> None:
    writer = long_example()
    storage = memory(writer).after_kill()
    flip(storage, name_of(writer.journal.manifest.checkpoints[-1]), 40)
    info = writer.journal.manifest.segments[-2]
    flip(storage, info.name, info.end - 1)
    with pytest.raises(JournalDamaged) as raised:
        recovered(storage)
    assert raised.value.file == info.name


def test_damage_in_the_middle_of_history_does_not_prevent_opening_and_is_not_served() -> None:
    writer = long_example()
    storage = memory(writer).after_kill()
    flip(storage, writer.journal.manifest.segments[0].name, 3000)
    writer.reopen(storage)
    items = read_topic(writer.journal.history, 1)
    assert [one for one in items if isinstance(one, FoundBatch)] == [one for one in writer.of(1) if one in items]
    assert len(items) == len(writer.of(1))
    assert sum(not isinstance(one, FoundBatch) for one in items) == 1


def test_a_tail_is_indexed_as_it_was_while_it_was_written() -> None:
    writer = long_example()
    tail = recovered(memory(writer).after_kill()).tail
    assert tail is not None
    sealed = msgspec.structs.replace(tail.info, end=tail.end)
    assert tail.builder.encode(sealed) == writer.journal._builder.encode(sealed)

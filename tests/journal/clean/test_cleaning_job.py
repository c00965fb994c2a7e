from __future__ import annotations

import errno
from contextlib import nullcontext
from itertools import pairwise

import msgspec
import pytest

from runnel.core.batch_format import pack, unpack
from runnel.core.errors import FormatUnknown, JournalDamaged
from runnel.journal.clean import cleaning_job
from runnel.journal.clean.cleaning_job import CleaningJob
from runnel.journal.clean.live_records import TopicName
from runnel.journal.format import merged_batch
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import STAGE_TOPIC, Entry, PartKind, state_part
from runnel.journal.format.index import IndexFile
from runnel.journal.format.ledger import (
    StageState,
    stage_commit_part,
    stage_dropped_part,
    stage_part,
    staged_part,
    trim_part,
)
from runnel.journal.format.offset_sets import OffsetBitmap
from runnel.journal.format.segment import START, entries
from runnel.journal.read.segment_reader import LostRange, SegmentReader, rebuild_index
from runnel.journal.write import archive_holds
from runnel.testing import FaultyStorage, MemoryStorage
from runnel.testing.faulty_storage import CHANGING, READING
from tests.journal.journal_cleaning import World, by_sequence, by_topic, clean, committed_in, finished, sealed
from tests.journal.written_journal import Writer, flip, small_windows


def example(batches: int = 60) -> Writer:
    writer = Writer()
    for name in ("a", "b", "c"):
        writer.topic(name)
    for number in range(batches):
        writer.publish(1 + number % 3, b"%d" % number * 20, b"second")
    return writer


def entries_of(source: SegmentReader) -> list[Entry]:
    return list(entries(read_whole(source.storage, source.info.name), START, source.info, START))


@pytest.mark.parametrize("seed", range(16))
def test_a_cleaned_journal_reads_the_same_without_what_is_dead(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(cleaning_job, "BLOCK_BYTES", 700)  # many blocks in a small segment
    with small_windows() if seed % 3 else nullcontext():
        world = World(seed)
        for _ in range(5):
            world.work(40)
            world.clean_some()
            world.check()
        world.writer.killed() if seed % 4 else world.journal.close()
        world.writer.reopen()
        world.check()


def test_small_batches_of_a_topic_become_one() -> None:
    writer = example(30)
    clean(writer.journal)
    source = writer.journal.history.sources[0]
    found = [part for entry in entries_of(source) for part in entry.parts if part.kind == PartKind.MERGED]
    assert len(sealed(writer.journal)) == 1
    assert sorted(part.topic for part in found) == [1, 2, 3]
    assert source.info.generation == 1
    assert source.info.name == "000000000001-1.seg"


def test_state_is_left_out_and_the_topics_are_named() -> None:
    writer = example()
    clean(writer.journal)
    first, *rest = entries_of(writer.journal.history.sources[0])
    assert [part.kind for part in first.parts] == [PartKind.NAMES]
    assert first.synced == START
    names = msgspec.msgpack.decode(first.parts[0].body, type=list[TopicName])
    assert [name.name for name in names] == ["a", "b", "c"]
    assert {part.kind for entry in rest for part in entry.parts} == {PartKind.MERGED}


def test_the_index_is_the_one_that_is_made_again_from_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning_job, "BLOCK_BYTES", 700)
    world = World(5)
    world.work(150)
    clean(world.journal)
    for source in sealed(world.journal):
        assert isinstance(source.index, IndexFile)
        builder, whole = rebuild_index(world.writer.storage, source.info)
        assert whole
        assert builder.encode(source.info) == read_whole(world.writer.storage, source.info.index_name)


def test_blocks_are_bounded_and_lie_in_the_order_of_their_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning_job, "BLOCK_BYTES", 1000)
    writer = example(200)
    clean(writer.journal)
    clean(writer.journal)  # blocks are made of blocks
    blocks: dict[tuple[int, int], list[int]] = {}
    sizes: dict[tuple[int, int], int] = {}
    for source in sealed(writer.journal):
        for entry in entries_of(source):
            for part in entry.parts:
                if part.kind == PartKind.MERGED:
                    place = (source.info.number, entry.synced)
                    blocks.setdefault(place, []).append(part.sequence)
                    sizes[place] = sizes.get(place, 0) + len(part.body)
    assert len(blocks) > 10
    firsts = [min(found) for found in blocks.values()]
    assert firsts == sorted(firsts)
    assert max(sizes.values()) < 2000


def test_what_lies_below_the_first_offset_goes_even_from_the_middle_of_a_batch() -> None:
    writer = example()
    before = by_topic(writer.journal.history, 1)
    writer.write([trim_part(1, 5, 0)])
    clean(writer.journal)
    assert by_topic(writer.journal.history, 1) == before[5:]
    found = writer.journal.history.sources[0].index.range_of(1)
    assert found is not None
    assert found.first == 5


def test_a_deleted_topic_goes() -> None:
    writer = example()
    writer.write([state_part(PartKind.TOPIC_DELETED, topic=2)])
    clean(writer.journal)
    assert writer.journal.history.sources[0].index.range_of(2) is None


def test_offsets_that_compaction_takes_go_and_are_counted() -> None:
    writer = example()
    before = by_topic(writer.journal.history, 1)
    job = clean(writer.journal, taken={1: OffsetBitmap([0, 3, 4])})
    assert by_topic(writer.journal.history, 1) == [one for at, one in enumerate(before) if at not in (0, 3, 4)]
    assert job.taken == {1: 3}


@pytest.mark.parametrize("fate", ["open", "committed", "dropped", "trimmed"])
def test_staged_batches_stay_while_their_stage_is_open_or_read(fate: str) -> None:
    writer = example(10)
    stage = StageState(1, "w", 0, 0, 0, 1, 5)
    writer.write([stage_part(stage), staged_part(1, 0, pack([b"staged"]), 5)])
    if fate in ("committed", "trimmed"):
        topic = writer.journal.ledger.topics[1]
        made = writer.journal.ledger.stages[1]
        writer.write([stage_commit_part(made, topic.end, writer.journal.ledger.sequence, 6)])
    if fate == "dropped":
        writer.write([stage_dropped_part(1)])
    if fate == "trimmed":
        writer.write([trim_part(1, writer.journal.ledger.topics[1].end, 0)])
    for number in range(40):
        writer.publish(2, b"%d" % number * 50)
    clean(writer.journal)
    kinds = [part.kind for source in sealed(writer.journal) for entry in entries_of(source) for part in entry.parts]
    assert (PartKind.STAGED in kinds) == (fate in ("open", "committed"))
    assert (PartKind.STAGE_COMMIT in kinds) == (fate == "committed")
    if fate == "committed":
        assert by_topic(writer.journal.history, 1)[-1].value == b"staged"  # type: ignore[union-attr]


def test_nothing_is_written_when_nothing_lives() -> None:
    writer = example()
    for topic in (1, 2, 3):
        writer.write([state_part(PartKind.TOPIC_DELETED, topic=topic)])
    job = clean(writer.journal)
    assert job.made == []
    assert job.written == 0
    assert sealed(writer.journal) == []


def test_what_does_not_fit_into_one_segment_goes_into_several_never_more_than_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cleaning_job, "BLOCK_BYTES", 500)
    writer = example(200)
    before, sequences = by_sequence(writer.journal.history, {1, 2, 3}), sealed(writer.journal)
    job = clean(writer.journal)
    infos = [source.info for source in sealed(writer.journal)]
    assert 1 < len(infos) < len(job.sources)
    assert by_sequence(writer.journal.history, {1, 2, 3}) == before
    assert [info.number for info in infos] == [source.info.number for source in sequences[: len(infos)]]
    assert infos[0].first_sequence == sequences[0].info.first_sequence
    assert infos[-1].end_sequence == sequences[-1].info.end_sequence
    for one, two in pairwise(infos):
        assert one.end_sequence == two.first_sequence
        assert one.last_time <= two.first_time
    assert all(info.end <= writer.options.segment_bytes + 1500 for info in infos)


def test_one_segment_stays_one_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning_job, "BLOCK_BYTES", 300)
    writer = example()
    before, source = by_sequence(writer.journal.history, {1, 2, 3}), sealed(writer.journal)[0]
    job = finished(CleaningJob(writer.storage, [source], writer.journal.living(), 400, 1))
    assert len(job.made) == 1
    assert job.made[0].end > 2000
    assert writer.journal.replace(job)
    assert by_sequence(writer.journal.history, {1, 2, 3}) == before


def test_a_cleaned_segment_can_be_cleaned_again_under_a_name_of_its_own() -> None:
    writer = example()
    writer.write([state_part(PartKind.TOPIC_DELETED, topic=2), state_part(PartKind.TOPIC_DELETED, topic=3)])
    sources = sealed(writer.journal)
    clean(writer.journal, sources[:2])
    clean(writer.journal, sealed(writer.journal)[:2])
    assert [source.info.name for source in sealed(writer.journal)] == [
        "000000000001-2.seg",
        *[source.info.name for source in sources[3:]],
    ]


def test_a_step_reads_and_writes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning_job, "STEP_BYTES", 1000)
    writer = example(300)
    job = writer.journal.clean(sealed(writer.journal), writer.journal.living())
    moved = steps = 0
    while not job.done:
        job.step()
        assert job.read + job.written - moved < 4000
        moved = job.read + job.written
        steps += 1
    assert steps > 30
    assert f"{job.read:,} bytes read" in repr(job)


@pytest.mark.parametrize("bit", range(0, 4000, 211))
def test_damage_ends_a_job_and_nothing_that_is_lost_goes_unsaid(bit: int) -> None:
    writer = example()
    source = sealed(writer.journal)[1]
    before = by_topic(writer.journal.history, 1)
    flip(writer.storage, source.info.name, START + bit % (source.info.end - START), bit % 8)
    job = writer.journal.clean(sealed(writer.journal)[:3], writer.journal.living())
    with pytest.raises((JournalDamaged, FormatUnknown)):
        finished(job)
    assert not job.done
    assert not [name for name in writer.storage.names() if "-" in name]
    after = by_topic(writer.journal.history, 1)
    lost = [offset for one in after if isinstance(one, LostRange) for offset in range(one.first, one.end)]
    assert [one for one in before if one.offset not in lost] == [one for one in after if not isinstance(one, LostRange)]  # type: ignore[union-attr]


def test_a_part_of_a_later_version_ends_a_job() -> None:
    writer = example()
    writer.journal.ledger._apply_state[77] = lambda part: None  # as that version would
    writer.write([state_part(77)])  # type: ignore[arg-type]
    for number in range(40):
        writer.publish(1, b"%d" % number * 20)
    with pytest.raises(FormatUnknown, match="kind 77"):
        finished(writer.journal.clean(sealed(writer.journal), writer.journal.living()))


@pytest.mark.parametrize(("kinds", "error"), [(CHANGING, errno.EIO), (CHANGING, errno.ENOSPC), (READING, errno.EIO)])
def test_whatever_call_fails_the_journal_stays_as_it_was(kinds: tuple[str, ...], error: int) -> None:
    whole = Failing(None, kinds, error)
    whole.run()
    calls = whole.storage.calls - whole.before
    assert calls > 3
    for call in range(1, calls + 1):
        failing = Failing(call, kinds, error)
        operation, name = whole.storage.trace[whole.before + call - 1]
        # What cannot be removed is tried again; while it cannot be read what archives hold, nothing goes.
        goes_on = operation == "remove" or name == archive_holds.NAME
        with nullcontext() if goes_on else pytest.raises(OSError, match=r"Input/output|No space"):
            failing.run()
        failing.check()


class Failing:
    """A cleaning whose nth call to the storage fails."""

    def __init__(self, call: int | None, kinds: tuple[str, ...], error: int) -> None:
        self.storage = FaultyStorage(MemoryStorage(), error=error, kinds=kinds, short=0.5)
        self.writer = Writer(self.storage)
        self.writer.topic("a")
        for number in range(60):
            self.writer.publish(1, b"%d" % number * 20, b"second")
        self.expected = by_topic(self.writer.journal.history, 1)
        self.before = self.storage.calls
        self.storage.fail_at = None if call is None else self.before + call

    def run(self) -> None:
        job = self.writer.journal.clean(sealed(self.writer.journal), self.writer.journal.living())
        try:
            finished(job)
            self.writer.journal.replace(job)
        finally:
            job.abandon()

    def check(self) -> None:
        writer = self.writer
        self.storage.fail_at = None
        assert by_topic(writer.journal.history, 1) == self.expected
        if writer.journal.failed is None:
            left = set(writer.journal.manifest.unnamed(self.storage.names()))
            assert left <= {"MANIFEST.tmp", *writer.journal._removable}
            writer.publish(1, b"goes on")
            self.expected = by_topic(writer.journal.history, 1)
            clean(writer.journal)  # and so does cleaning
            assert by_topic(writer.journal.history, 1) == self.expected
            writer.journal.close()
        inner = self.storage.inner
        assert isinstance(inner, MemoryStorage)
        again = Writer(inner.after_kill())
        assert by_topic(again.journal.history, 1)[: len(self.expected)] == self.expected


def test_an_abandoned_job_leaves_nothing_behind_however_far_it_came() -> None:
    steps = 0
    while True:
        writer = example()
        names = writer.storage.names()
        job = writer.journal.clean(sealed(writer.journal), writer.journal.living())
        for _ in range(steps):
            if not job.done:
                job.step()
        over = job.done
        job.abandon()
        job.abandon()
        assert writer.storage.names() == names
        if over:
            break
        steps += 1
    assert steps > 5


def test_compressed_batches_are_read_and_written_as_such() -> None:
    writer = Writer()
    writer.topic("a")
    ledger = writer.journal.ledger
    for number in range(40):
        body = pack([b"%d" % number * 100] * 3, compression="zstd")
        end = ledger.topics[1].end
        part = staged_part(1, 0, body, writer.now + 1)
        part.kind, part.base, part.last, part.sequence = PartKind.BATCH, end, end + 2, ledger.sequence
        writer.write([part])
    before = by_topic(writer.journal.history, 1)
    clean(writer.journal)
    assert by_topic(writer.journal.history, 1) == before
    found = [part for entry in entries_of(sealed(writer.journal)[0]) for part in entry.parts]
    compressions = {
        unpack(merged_batch.batch_of(part.body)).header.compression for part in found if part.kind == PartKind.MERGED
    }
    assert compressions == {"zstd"}
    assert len(found) < 10


# -- stages that are put into their topics ----------------------------------------------------------------------


def with_a_stage(batches: int = 40, size: int = 300) -> Writer:
    """Topics 1 to 3, and a stage that was committed to the first, in the middle of what was published."""
    writer = example(20)
    writer.write([stage_part(StageState(1, "w", 0, 0, 0, 1, 5))])
    for ordinal in range(batches):
        writer.write([staged_part(1, ordinal, pack([b"%d" % ordinal * 20, b"s" * size]), 5)])
        if ordinal % 5 == 0:
            writer.publish(2, b"between")
    writer.publish(1, b"before")
    ledger = writer.journal.ledger
    commit = stage_commit_part(ledger.stages[1], ledger.topics[1].end, ledger.sequence, writer.now + 1)
    writer.write([commit])
    for number in range(40):
        writer.publish(1 + number % 3, b"%d" % number * 20, b"behind")
    return writer


def with_its_commit(writer: Writer) -> SegmentReader:
    (source,) = [one for one in sealed(writer.journal) if committed_in(writer.journal, [one])]
    return source


def kinds_in(writer: Writer) -> set[int]:
    return {part.kind for source in sealed(writer.journal) for entry in entries_of(source) for part in entry.parts}


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("block", [400, 1 << 20])
def test_a_stage_is_put_where_its_commit_was_and_reads_the_same(
    cleaned: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = with_a_stage()
    journal = writer.journal
    before = by_sequence(journal.history, {1, 2, 3})
    topics = [by_topic(journal.history, topic) for topic in (1, 2, 3)]
    if cleaned:
        clean(journal)
    monkeypatch.setattr(cleaning_job, "BLOCK_BYTES", block)
    job = clean(journal, [with_its_commit(writer)], placing=[1])
    assert job.placed == {1}
    assert not journal.ledger.committed
    assert by_sequence(journal.history, {1, 2, 3}) == before
    assert [by_topic(journal.history, topic) for topic in (1, 2, 3)] == topics
    assert PartKind.STAGE_COMMIT not in kinds_in(writer)
    journal.retain(writer.now)
    clean(journal)
    assert PartKind.STAGED not in kinds_in(writer)
    assert by_sequence(journal.history, {1, 2, 3}) == before
    for kill in (True, False):
        if kill:
            writer.killed()
        else:
            writer.journal.close()
            writer.reopen()
        assert not writer.journal.ledger.committed
        assert by_sequence(writer.journal.history, {1, 2, 3}) == before


@pytest.mark.parametrize("cleaned", [False, True])
def test_only_what_lives_of_a_stage_is_put_into_its_topic(cleaned: bool) -> None:
    writer = with_a_stage()
    journal = writer.journal
    if cleaned:
        clean(journal)
    base = next(iter(journal.ledger.committed.values())).base
    writer.write([trim_part(1, base + 31, 0)])
    taken = OffsetBitmap(range(base + 40, base + 50))
    expected = [one for one in by_topic(journal.history, 1, base + 31) if one.offset not in taken]  # type: ignore[union-attr]
    job = clean(journal, [with_its_commit(writer)], {1: taken}, [1])
    assert job.taken == {1: 10}
    assert by_topic(journal.history, 1, base + 31) == expected
    assert by_topic(journal.history, 1, base)[: len(expected)] == expected  # nothing of it is left before that


def test_a_commit_that_stays_says_which_offsets_were_left_alone() -> None:
    writer = with_a_stage()
    stage = next(iter(writer.journal.ledger.committed.values()))
    job = clean(writer.journal)
    assert job.left == {1: [(stage.base, stage.end)]}
    assert job.placed == set()


def test_a_large_stage_takes_as_many_segments_as_it_needs_all_of_names_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cleaning_job, "BLOCK_BYTES", 1000)
    writer = with_a_stage(80)
    before, source = by_sequence(writer.journal.history, {1, 2, 3}), with_its_commit(writer)
    job = clean(writer.journal, [source], placing=[1])
    assert len(job.made) > 5
    assert {info.number for info in job.made} == {source.info.number}
    assert all(info.end < writer.options.segment_bytes + 3000 for info in job.made)
    for one, two in pairwise(job.made):
        assert one.end_sequence == two.first_sequence
    assert by_sequence(writer.journal.history, {1, 2, 3}) == before
    made = [one for one in sealed(writer.journal) if one.info in job.made]
    clean(writer.journal, made[1:3])  # the names of its neighbours are taken
    at = sealed(writer.journal).index(made[0])
    clean(writer.journal, sealed(writer.journal)[at : at + 2])
    names = [one.info.name for one in sealed(writer.journal)]
    assert len(set(names)) == len(names)
    writer.killed()
    assert by_sequence(writer.journal.history, {1, 2, 3}) == before


def test_a_stage_that_was_not_committed_there_ends_a_job() -> None:
    writer = with_a_stage()
    source = with_its_commit(writer)
    others = [one for one in sealed(writer.journal) if one.info.number < source.info.number]
    job = writer.journal.clean(others, writer.journal.living(), [1])
    with pytest.raises(JournalDamaged, match="its commit is not where its records should be"):
        finished(job)
    assert job.following == 1
    assert not writer.journal.manifest.unnamed(writer.storage.names())


def test_a_staged_batch_that_is_damaged_ends_a_job_and_the_stage_is_named() -> None:
    writer = with_a_stage()
    staged = next(one for one in sealed(writer.journal) if one.index.range_of(STAGE_TOPIC | 1) is not None)
    position, _ = staged.index.window(STAGE_TOPIC | 1, 0)
    flip(writer.storage, staged.info.name, position + 200)
    before = by_topic(writer.journal.history, 1)
    job = writer.journal.clean([with_its_commit(writer)], writer.journal.living(), [1])
    with pytest.raises(JournalDamaged, match="stage 1"):
        finished(job)
    assert job.following == 1
    assert by_topic(writer.journal.history, 1) == before

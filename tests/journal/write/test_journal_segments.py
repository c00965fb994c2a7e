from __future__ import annotations

import errno
from weakref import ref

import pytest

from runnel.core.batch_format import pack
from runnel.core.errors import JournalDamaged, JournalFailed
from runnel.journal.clean.planning import LiveShares
from runnel.journal.folder_lock import FolderLost
from runnel.journal.format import manifest
from runnel.journal.format.atomic_file import encode_value, replace_file
from runnel.journal.format.checkpoint import name_of
from runnel.journal.format.entry import STAGE_TOPIC, PartKind, WriteFailed, state_part
from runnel.journal.format.ledger import (
    StageState,
    stage_commit_part,
    stage_dropped_part,
    stage_part,
    staged_part,
    trim_part,
)
from runnel.journal.options import JournalOptions
from runnel.journal.read.segment_reader import LostRange, SegmentReader
from runnel.journal.write import archive_holds
from runnel.journal.write.journal import Journal, JournalSegments
from runnel.testing import FaultyStorage, MemoryStorage
from tests.journal.journal_cleaning import Seen, by_sequence, by_topic, clean, finished, records, sealed
from tests.journal.written_journal import SMALL, Writer, flip, small_windows


def example(batches: int = 60, storage: MemoryStorage | FaultyStorage | None = None) -> Writer:
    writer = Writer(storage)
    for name in ("a", "b", "c"):
        writer.topic(name)
    for number in range(batches):
        writer.publish(1 + number % 3, b"%d" % number * 20, b"second")
    return writer


def trim_all(writer: Writer) -> None:
    writer.write([trim_part(topic.id, topic.end, topic.end) for topic in writer.journal.ledger.topics.values()])


# -- ownership --------------------------------------------------------------------------------------------------


def test_an_owner_finds_the_manifest_of_another_before_it_writes_its_own() -> None:
    writer = example(batches=1)
    other = Journal.open(writer.storage, SMALL)
    before = manifest.load(writer.storage)
    with pytest.raises(WriteFailed, match="another process has opened the folder"):
        example_until_it_rolls(writer)
    assert manifest.load(writer.storage) == before
    other.close()
    with pytest.raises(FolderLost, match="another process has opened the folder"):  # also when that has left again
        writer.journal.check_owner()


def example_until_it_rolls(writer: Writer) -> None:
    segments = len(writer.journal.manifest.segments)
    while len(writer.journal.manifest.segments) == segments:
        writer.publish(1, bytes(500))


@pytest.mark.parametrize("kind", ["MANIFEST", "sealed", "active"])
def test_an_owner_finds_its_files_removed(kind: str) -> None:
    writer = example()
    names = {"sealed": writer.journal.manifest.segments[0].name, "active": writer.journal.manifest.segments[-1].name}
    name = names.get(kind, kind)
    writer.storage.remove(name)
    with pytest.raises(FolderLost, match=f"{name} was removed"):
        writer.journal.check_owner()
    with pytest.raises(WriteFailed, match=f"{name} was removed"):
        writer.publish(1, b"never acknowledged")


def test_a_damaged_manifest_is_replaced_by_the_next_one() -> None:
    writer = example(batches=1)
    flip(writer.storage, manifest.NAME, 20)
    example_until_it_rolls(writer)
    assert manifest.load(writer.storage) == writer.journal.manifest


# -- replacing --------------------------------------------------------------------------------------------------


def test_what_was_replaced_is_named_no_more_and_removed() -> None:
    writer = example()
    old = {name for source in sealed(writer.journal) for name in (source.info.name, source.info.index_name)}
    clean(writer.journal)
    assert not old & writer.journal.manifest.files()
    assert not old & set(writer.storage.names())
    assert writer.journal.manifest == manifest.load(writer.storage)
    assert not writer.journal.manifest.unnamed(writer.storage.names())


def test_the_segment_that_is_written_goes_on() -> None:
    writer = example()
    clean(writer.journal)
    writer.publish(1, b"more")
    writer.journal.close()
    writer.reopen()
    assert [one.value for one in by_topic(writer.journal.history, 1)][-1:] == [b"more"]  # type: ignore[union-attr]


def test_a_segment_that_is_sealed_meanwhile_does_not_disturb() -> None:
    writer = example()
    job = finished(writer.journal.clean(sealed(writer.journal), writer.journal.living()))
    for number in range(60):
        writer.publish(1, b"%d" % number * 20)
    before = by_sequence(writer.journal.history, {1, 2, 3})
    assert writer.journal.replace(job)
    assert by_sequence(writer.journal.history, {1, 2, 3}) == before


def test_a_reader_that_came_upon_a_segment_before_it_went_still_reads_it() -> None:
    writer = example()
    writer.journal.close()
    writer.reopen()  # nothing is open or mapped yet
    history = writer.journal.history
    first = history.sources[0]
    clean(writer.journal)
    assert first not in history.sources
    assert first.info.name not in writer.storage.names()
    assert list(first.index.topics())
    assert first.file.read(0, first.info.end)


def test_segments_that_are_dropped_and_unreferenced_are_not_kept_open() -> None:
    writer = example(150)
    known = writer.journal.history.sources[1]
    gone = [ref(source) for source in sealed(writer.journal)]
    opened = writer.journal.handles.held
    most = 0
    hold_on = SegmentReader.hold_on

    def counted(source: SegmentReader) -> None:
        nonlocal most
        hold_on(source)
        most = max(most, sum(one() is not None and one()._held for one in gone))  # type: ignore[union-attr]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentReader, "hold_on", counted)
        trim_all(writer)
        writer.journal.retain(1)
    assert len(gone) > 4
    assert most == 2, "the one that is known, and the one that is just going"
    assert known in opened
    assert known.file.read(0, known.info.end)
    assert [one() for one in gone if one() is not None] == [known]


def test_running_out_of_handles_for_reading_drops_nothing_and_fails_nothing() -> None:
    storage = FaultyStorage(MemoryStorage(), kinds=("open",), error=errno.EMFILE, lasting=True)
    writer = example(storage=storage)
    writer.journal.close()
    writer.reopen(storage)
    before = list(writer.journal.history.sources)
    trim_all(writer)
    storage.fail_at = storage.calls + 1
    writer.journal.retain(1)
    assert storage.failed
    for number in range(60):
        writer.publish(1, b"%d" % number * 20)
    assert writer.journal.failed is None
    assert writer.journal.history.sources[: len(before)] == before
    storage.fail_at = None
    writer.journal.retain(1)
    assert not set(before[:-1]) & set(writer.journal.history.sources)
    assert not any(source.damage for source in before)


def test_what_went_before_a_job_began_is_not_cleaned() -> None:
    writer = example()
    chosen, living = sealed(writer.journal), writer.journal.living()
    clean(writer.journal)
    with pytest.raises(LookupError, match="gone"):
        writer.journal.clean(chosen, living)


def test_a_job_whose_segments_go_before_it_opened_them_still_ends() -> None:
    writer = example()
    writer.journal.close()
    writer.reopen()
    job = writer.journal.clean(sealed(writer.journal), writer.journal.living())
    clean(writer.journal)
    assert not writer.journal.replace(finished(job))


@pytest.mark.parametrize("at", [0, 1, -1])
def test_a_job_is_void_when_one_of_its_segments_went_meanwhile(at: int) -> None:
    writer = example()
    job = finished(writer.journal.clean(sealed(writer.journal), writer.journal.living()))
    clean(writer.journal, [job.sources[at]])
    before = by_sequence(writer.journal.history, {1, 2, 3})
    names = writer.journal.manifest.files()
    assert not writer.journal.replace(job)
    job.abandon()
    assert writer.journal.manifest.files() == names
    assert by_sequence(writer.journal.history, {1, 2, 3}) == before


def test_a_job_is_void_when_its_files_were_removed() -> None:
    writer = example()
    job = finished(writer.journal.clean(sealed(writer.journal), writer.journal.living()))
    writer.storage.remove(job.made[0].index_name)
    assert not writer.journal.replace(job)


def test_what_was_published_to_a_topic_that_is_newer_than_what_is_known_is_not_taken_for_dead() -> None:
    writer = example()
    living = writer.journal.living()
    topic = writer.topic("new")
    for number in range(60):
        writer.publish(topic, b"%d" % number * 20)
    later = [source for source in sealed(writer.journal) if source.index.range_of(topic) is not None]
    assert later
    shares = LiveShares()
    list(shares.look(writer.journal.history.sources, living))
    told = {share.source for share in shares.now if share is not None}
    assert not told & set(later)
    with pytest.raises(ValueError, match="sealed later"):
        writer.journal.clean(sealed(writer.journal), living)


def test_an_unfinished_job_cannot_be_put_in_place() -> None:
    writer = example()
    with pytest.raises(AssertionError, match="finished"):
        writer.journal.replace(writer.journal.clean(sealed(writer.journal), writer.journal.living()))


def test_what_died_while_a_job_ran_is_kept_until_the_next() -> None:
    writer = example()
    job = finished(writer.journal.clean(sealed(writer.journal), writer.journal.living()))
    before = by_topic(writer.journal.history, 2)
    writer.write([trim_part(2, 10, 0)])
    assert writer.journal.replace(job)
    assert by_topic(writer.journal.history, 2, 10) == before[10:]


@pytest.mark.parametrize("fsync", ["os", "interval"])
def test_what_made_records_unwanted_is_durable_before_they_are_gone(fsync: str) -> None:
    storage = MemoryStorage()
    writer = Writer(storage, JournalOptions(fsync, segment_bytes=4096, min_free=0))
    writer.topic("a")
    for number in range(60):
        writer.publish(1, b"%d" % number * 20)
    writer.write([trim_part(1, 30, 0)])
    clean(writer.journal)
    for _, found in storage.worst():
        again = Journal.open(found, SMALL)
        assert again.ledger.topics[1].first == 30
        assert isinstance(by_topic(again.history, 1, 30)[0], Seen)


def test_files_stay_while_another_process_looks() -> None:
    writer = example()
    old = {name for source in sealed(writer.journal) for name in (source.info.name, source.info.index_name)}
    looking = True
    writer.journal.may_remove = lambda: not looking
    clean(writer.journal)
    assert old <= set(writer.storage.names())
    looking = False
    writer.journal.retain(writer.now)
    clean(writer.journal, sealed(writer.journal)[:1])
    assert not old & set(writer.storage.names())


@pytest.mark.parametrize("topic", [None, 1])
def test_a_reader_in_the_middle_of_a_replaced_segment_goes_on_and_misses_nothing(topic: int | None) -> None:
    with small_windows():
        writer = example(120)
        history = writer.journal.history
        topics = {1, 2, 3} if topic is None else {topic}
        expected = by_sequence(history, topics)
        for cut in range(40):
            found: list[Seen | LostRange] = []
            place, plan, rounds = 0, history.plan_sequence(0) if topic is None else history.plan(topic, 0), 0
            while plan is not None:
                if rounds == cut:
                    there = sealed(writer.journal)
                    clean(writer.journal, there[cut % 3 : cut % 3 + 4] or there[-1:])
                parsed = history.parse(plan, history.fetch(plan), topics, by_sequence=topic is None)
                for one in records(parsed.items, history):
                    assert isinstance(one, Seen)
                    if (one.sequence if topic is None else one.offset) >= place:
                        found.append(one)
                place, rounds = max(place, parsed.place), rounds + 1
                args = (place, plan, parsed.position)
                plan = history.plan_sequence(*args) if topic is None else history.plan(topic, *args)
            assert found == expected


# -- failing ----------------------------------------------------------------------------------------------------


def test_a_full_disk_at_the_swap_leaves_everything_as_it_was() -> None:
    storage = FaultyStorage(MemoryStorage(), error=errno.ENOSPC, kinds=("create",))
    writer = example(storage=storage)
    before, files = by_sequence(writer.journal.history, {1, 2, 3}), writer.journal.manifest.files()
    job = finished(writer.journal.clean(sealed(writer.journal), writer.journal.living()))
    storage.fail_at = storage.calls + 1
    with pytest.raises(OSError, match="No space"):
        writer.journal.replace(job)
    job.abandon()
    assert writer.journal.failed is None
    assert writer.journal.manifest.files() == files == manifest.load(storage).files()  # type: ignore[union-attr]
    assert by_sequence(writer.journal.history, {1, 2, 3}) == before
    writer.publish(1, b"goes on")


def test_a_manifest_whose_name_is_not_durable_fails_the_journal_and_no_file_of_either_goes() -> None:
    storage = FaultyStorage(MemoryStorage(), kinds=("sync_names",))
    writer = example(storage=storage)
    before, old = by_sequence(writer.journal.history, {1, 2, 3}), writer.journal.manifest.files()
    job = finished(writer.journal.clean(sealed(writer.journal), writer.journal.living()))
    storage.fail_at = storage.calls + 2  # the names of the segments, and then that of the manifest
    with pytest.raises(OSError, match="manifest's name"):
        writer.journal.replace(job)
    job.abandon()
    assert writer.journal.failed is not None
    assert old <= set(storage.names())
    assert {info.name for info in job.made} <= set(storage.names())
    assert by_sequence(writer.journal.history, {1, 2, 3}) == before
    with pytest.raises(JournalFailed):
        writer.journal.replace(job)
    assert isinstance(storage.inner, MemoryStorage)
    for _, found in storage.inner.worst():
        assert by_sequence(Journal.open(found, SMALL).history, {1, 2, 3}) == before


def test_a_roll_that_finds_no_room_spares_the_files_of_a_job() -> None:
    storage = MemoryStorage()
    writer = example(30, storage)
    job = finished(writer.journal.clean(sealed(writer.journal), writer.journal.living()))
    storage.capacity = sum(storage.open(name).size() for name in storage.names())
    with pytest.raises(WriteFailed, match="the disk"):
        writer.publish(1, b"x" * 4000)
    assert job.files <= set(storage.names())
    assert writer.journal.failed is None
    writer.journal.let_go(job)
    with pytest.raises(WriteFailed, match="the disk"):
        writer.publish(1, b"x" * 4000)
    assert not job.files & set(storage.names())


# -- recovering -------------------------------------------------------------------------------------------------


def test_what_a_crash_leaves_of_a_job_is_cleared_up() -> None:
    writer = example()
    finished(writer.journal.clean(sealed(writer.journal), writer.journal.living()))
    before = by_sequence(writer.journal.history, {1, 2, 3})
    writer.killed()
    assert not [name for name in writer.storage.names() if "-" in name]
    assert by_sequence(writer.journal.history, {1, 2, 3}) == before


def test_a_damaged_checkpoint_is_not_made_up_for_by_cleaned_segments() -> None:
    writer = example(20)
    storage = writer.storage
    assert isinstance(storage, MemoryStorage)
    clean(writer.journal)
    writer.journal.close()
    for number in writer.journal.manifest.checkpoints:
        flip(storage, name_of(number), 40)
    with pytest.raises(JournalDamaged, match="ckpt"):
        Journal.open(storage, SMALL)


# -- giving back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [False, True])
def test_a_segment_with_staged_batches_stays_while_their_stage_counts(over: bool) -> None:
    writer = Writer()
    writer.topic("a")
    writer.write([stage_part(StageState(1, "w", 0, 0, 0, 1, 5)), staged_part(1, 0, pack([b"staged" * 300]), 5)])
    for number in range(60):
        writer.publish(1, b"%d" % number * 20)
    if over:
        writer.write([stage_dropped_part(1)])
    writer.write([trim_part(1, writer.journal.ledger.topics[1].end, 0)])
    writer.journal.retain(writer.now)
    kept = [source for source in sealed(writer.journal) if source.index.range_of(STAGE_TOPIC | 1) is not None]
    assert bool(kept) == (not over)
    assert sealed(writer.journal) == kept


def test_the_caller_is_notified_when_something_may_be_dead() -> None:
    writer = example()
    told: list[int] = []
    writer.journal.freed = lambda: told.append(1)
    writer.write([state_part(PartKind.TOPIC_DELETED, topic=1)])
    writer.journal.retain(writer.now)
    assert told == [1]
    for number in range(60):
        writer.publish(2, b"%d" % number * 20)
    assert len(told) > 1


def test_segments_alone_write_nothing() -> None:
    writer = example()
    journal = writer.journal
    with pytest.raises(TypeError, match="abstract"):
        JournalSegments(journal.storage, journal.options, journal.manifest, journal.ledger)  # type: ignore[abstract]


# -- archives that hold -----------------------------------------------------------------------------------------


def hold(writer: Writer, through: int) -> None:
    """As another process does."""
    holders = [archive_holds.ArchiveHolder("a", "archive", through, 1, 1)]
    data = encode_value(archive_holds.MAGIC, archive_holds.VERSION, holders)
    replace_file(writer.storage, archive_holds.NAME, [data])


def test_nothing_that_an_archive_waits_for_is_dropped() -> None:
    writer = example()
    numbers = [source.info.number for source in sealed(writer.journal)]
    hold(writer, numbers[1])
    for topic in (1, 2, 3):
        writer.write([trim_part(topic, writer.journal.ledger.topics[topic].end, 0)])
    writer.journal.retain(writer.now)
    assert [source.info.number for source in sealed(writer.journal)] == numbers[2:]
    hold(writer, numbers[-1])
    writer.journal.retain(writer.now)
    assert sealed(writer.journal) == []


@pytest.mark.parametrize("what", [b"", b"no such thing at all", b"runnel/h" + bytes(20)])
def test_when_the_state_of_the_archives_is_unknown_everything_stays(what: bytes) -> None:
    writer = example()
    before = sealed(writer.journal)
    replace_file(writer.storage, archive_holds.NAME, [what])
    for topic in (1, 2, 3):
        writer.write([trim_part(topic, writer.journal.ledger.topics[topic].end, 0)])
    writer.journal.retain(writer.now)
    assert sealed(writer.journal) == before
    assert writer.journal.safe_through() == 0


def test_a_job_is_not_put_in_place_of_what_an_archive_began_to_hold_meanwhile() -> None:
    writer = example()
    journal = writer.journal
    before = sealed(journal)
    job = finished(journal.clean(before, journal.living()))
    hold(writer, before[-1].info.number - 1)
    assert not journal.replace(job)
    assert sealed(journal) == before
    hold(writer, before[-1].info.number)
    assert journal.replace(job)


# -- stages that are put into their topics ----------------------------------------------------------------------


def test_the_manifest_says_which_stages_were_placed_until_a_checkpoint_does() -> None:
    writer = example(20)
    writer.write([stage_part(StageState(1, "w", 0, 0, 0, 1, 5)), staged_part(1, 0, pack([b"staged"]), 5)])
    ledger = writer.journal.ledger
    writer.write([stage_commit_part(ledger.stages[1], ledger.topics[1].end, ledger.sequence, writer.now + 1)])
    for number in range(60):
        writer.publish(2, b"%d" % number * 50)
    before = by_topic(writer.journal.history, 1)
    clean(writer.journal, placing=[1])
    assert writer.journal.manifest.placed == [1]
    killed = MemoryStorage.after_kill(writer.storage)  # type: ignore[arg-type]
    again = Journal.open(killed, SMALL, now=writer.now)
    assert again.manifest.placed == []  # what it was opened with is in a checkpoint
    assert not again.ledger.committed
    assert by_topic(again.history, 1) == before
    twice = Journal.open(killed.after_kill(), SMALL, now=writer.now)
    assert not twice.ledger.committed
    number = writer.journal.manifest.next_number
    while writer.journal.manifest.next_number == number:
        writer.publish(2, b"x" * 700)
    assert writer.journal.manifest.placed == []
    writer.killed()
    assert not writer.journal.ledger.committed
    assert by_topic(writer.journal.history, 1) == before

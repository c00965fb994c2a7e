"""The journal: durable when `write` returns, refusing when it cannot be, and the same after reopening."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.batch_format import pack
from runnel.core.errors import DiskFull, JournalFailed
from runnel.journal.format import checkpoint, manifest, watermark
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Draft, Part, PartKind, WriteFailed, size_of, state_part
from runnel.journal.format.ledger import CursorState, GroupState, cursor_part, group_part, progress_part, trim_part
from runnel.journal.format.segment import START, ActiveSegment, entries
from runnel.journal.format.watermark import Watermark
from runnel.journal.options import JournalOptions
from runnel.journal.read.segment_reader import FoundBatch
from runnel.journal.storage import Storage
from runnel.journal.write.journal import RESERVED_SEQUENCES, SKIPPED_OFFSETS, Journal
from runnel.testing import MemoryStorage, power_loss
from tests.journal.format.test_ledger import seen
from tests.journal.written_journal import SMALL, Writer, batch, contents, read_sequence, read_topic


def memory(writer: Writer) -> MemoryStorage:
    assert isinstance(writer.storage, MemoryStorage)
    return writer.storage


def open_segment(journal: Journal) -> ActiveSegment:
    assert journal._active is not None
    return journal._active


def example(options: JournalOptions = SMALL, storage: Storage | None = None) -> Writer:
    writer = Writer(storage, options)
    writer.topic("a")
    return writer


def long_example(count: int = 30) -> Writer:
    writer = example()
    for number in range(count):
        writer.publish(1, b"%03d" % number * 100)
    return writer


def fill(writer: Writer) -> None:
    for number in range(100):
        writer.publish(1, b"%03d" % number * 100)


# -- lives ------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 3), st.sampled_from([1, 300, 900])),
        st.tuples(st.just("cursor"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("progress"), st.integers(0, 50), st.integers(1, 5)),
        st.tuples(st.just("trim"), st.integers(0, 20), st.just(0)),
        st.tuples(st.sampled_from(["close", "kill", "power"]), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=80)
@given(STEPS)
def test_every_life_finds_what_the_one_before_acknowledged(steps: list[tuple[str, int, int]]) -> None:
    writer = example()
    writer.topic("b")
    writer.write([group_part(GroupState(1, "g", "a", {}, 0))])
    for step, one, two in steps:
        if step == "publish":
            writer.publish(1 + one % 2, *[b"x" * two] * one)
        elif step == "cursor":
            writer.write([cursor_part(CursorState("reader", "a", 1, one))])
        elif step == "progress":
            writer.write([progress_part(1, [one, one + two], [(one + two, 1, 0.5, "no")])])
        elif step == "trim":
            writer.write([trim_part(2, min(one, writer.journal.ledger.topics[2].end), 0)])
        else:
            before, sequence = seen(writer.journal.ledger), writer.journal.ledger.sequence
            if step == "close":
                writer.journal.close()
                writer.reopen()
            elif step == "kill":
                writer.killed()
            else:
                writer.reopen(memory(writer).after_power_loss(power_loss.keep_nothing))
            after = seen(writer.journal.ledger)
            for what in ("topics", "cursors", "groups"):
                assert after[what] == before[what]
            assert writer.journal.ledger.sequence >= sequence
            assert writer.journal.report.clean == (step == "close")
        history = writer.journal.history
        first = writer.journal.ledger.topics[2].first
        assert read_topic(history, 1) == writer.of(1)
        assert read_topic(history, 2, first) == [found for found in writer.of(2) if found.last >= first]


def test_a_new_journal_is_named_synced_and_empty() -> None:
    storage = MemoryStorage()
    journal = Journal.open(storage, SMALL, now=5)
    assert storage.names() == ["000000000001.ckpt", "000000000001.seg", "DURABLE", "MANIFEST"]
    found = storage.after_power_loss(power_loss.keep_nothing)
    again = Journal.open(found, SMALL, now=6)
    assert again.manifest.journal == journal.manifest.journal
    assert (again.report.clean, again.ledger.topics) == (False, {})


def test_a_closed_journal_is_sealed_cut_to_size_and_needs_no_scan() -> None:
    writer = example()
    writer.publish(1, b"one")
    end = open_segment(writer.journal).end
    writer.journal.close()
    storage = memory(writer).after_power_loss(power_loss.keep_nothing)
    known = manifest.load(storage)
    assert known is not None
    assert known.clean
    assert [info.end for info in known.segments] == [end]
    assert memory(writer).open("000000000001.seg").size() == end
    writer.reopen(storage)
    assert writer.journal.report.clean
    assert read_topic(writer.journal.history, 1) == writer.written


def test_closing_twice_is_harmless_and_a_closed_journal_says_so() -> None:
    writer = example()
    writer.journal.close()
    writer.journal.close()
    assert repr(writer.journal) == f"<Journal {writer.journal.manifest.journal}, closed, 0 segments>"
    assert repr(example().journal).endswith(", open, 1 segments>")


def test_a_segment_that_held_no_records_does_not_stay() -> None:
    writer = example()
    for _ in range(5):
        writer.journal.close()
        writer.reopen()
    assert [name for name in writer.storage.names() if name.endswith((".seg", ".idx"))] == ["000000000006.seg"]
    for _ in range(5):
        writer.killed()
    assert [name for name in writer.storage.names() if name.endswith((".seg", ".idx"))] == ["000000000011.seg"]
    assert list(writer.journal.ledger.topics) == [1]


def test_what_a_crash_left_lying_about_is_removed() -> None:
    writer = example()
    storage = memory(writer).after_kill()
    for name in ("000000000009.seg", "000000000009.idx", "000000000009.ckpt", "x.tmp"):
        storage.create(name)
    storage.create("notes.txt")
    writer.reopen(storage)
    assert not {"000000000009.seg", "000000000009.idx", "000000000009.ckpt", "x.tmp"} & set(storage.names())
    assert "notes.txt" in storage.names()


# -- places -----------------------------------------------------------------------------------------------------


def test_after_a_clean_close_places_go_on_without_a_hole() -> None:
    writer = example()
    writer.publish(1, b"one")
    writer.journal.close()
    writer.reopen()
    assert (writer.journal.ledger.sequence, writer.journal.ledger.topics[1].end) == (1, 1)


def test_after_a_kill_sequences_that_may_have_been_given_to_unstored_records_are_skipped() -> None:
    writer = example()
    writer.publish(1, b"one")
    writer.killed()
    assert writer.journal.ledger.sequence == RESERVED_SEQUENCES
    assert writer.journal.ledger.topics[1].end == 1
    writer.killed()
    assert writer.journal.ledger.sequence == 2 * RESERVED_SEQUENCES


@pytest.mark.parametrize("fsync", ["interval", "os"])
def test_after_a_cut_off_journal_that_did_not_sync_no_offset_is_given_twice(fsync: str) -> None:
    writer = example(JournalOptions(segment_bytes=4096, min_free=0, fsync=fsync))
    writer.journal.sync()
    for number in range(3):
        writer.publish(1, b"%d" % number)
    given = writer.written[-1].sequence
    writer.reopen(memory(writer).after_power_loss(power_loss.keep_nothing))
    ledger = writer.journal.ledger
    assert ledger.sequence >= SKIPPED_OFFSETS
    writer.publish(1, b"more")
    assert writer.written[-1].base >= SKIPPED_OFFSETS
    assert writer.written[-1].sequence > given
    assert read_topic(writer.journal.history, 1, 3) == writer.written[-1:]


def test_epochs_are_not_given_twice_even_if_the_topic_was_lost() -> None:
    writer = Writer(None, JournalOptions(segment_bytes=4096, min_free=0, fsync="os"))
    writer.topic("a")
    epoch = writer.journal.ledger.epoch
    writer.reopen(memory(writer).after_power_loss(power_loss.keep_nothing))
    assert writer.journal.ledger.topics == {}
    assert writer.journal.ledger.epoch >= epoch


def test_time_never_goes_back_when_the_clock_does() -> None:
    writer = example()
    writer.now = 5000
    writer.publish(1, b"one")
    writer.journal.close()
    writer.now = 10
    writer.reopen()
    info = writer.journal.manifest.segments[-1]
    assert [one.time for one in entries(read_whole(writer.storage, info.name), START, info, START)] == [5001]
    assert (writer.journal.ledger.time, info.first_time) == (5001, 5001)


# -- writing ----------------------------------------------------------------------------------------------------


def test_a_write_is_durable_when_it_returns() -> None:
    writer = example()
    for number in range(20):
        writer.publish(1, b"%d" % number * 300)
        found = memory(writer).after_power_loss(power_loss.keep_nothing)
        journal = Journal.open(found, SMALL, now=writer.now)
        assert read_topic(journal.history, 1) == writer.written


def test_many_entries_share_one_sync() -> None:
    writer = example()
    before = writer.journal.syncs
    writer.journal.write([Draft([batch(1, at, at, 9, [b"x"])], 9) for at in range(10)])
    assert writer.journal.syncs == before + 1
    assert writer.journal.sync_durations.snapshot().count == before + 1, "and each is timed"
    assert writer.journal.ledger.topics[1].end == 10


@pytest.mark.parametrize("fsync", ["interval", "os"])
def test_without_fsync_at_commit_nothing_is_synced_until_a_caller_asks(fsync: str) -> None:
    writer = example(JournalOptions(segment_bytes=4096, min_free=0, fsync=fsync))
    before = memory(writer).syncs
    writer.publish(1, b"one")
    assert memory(writer).syncs == before
    assert read_topic(writer.journal.history, 1) == writer.written
    writer.journal.sync()
    assert memory(writer).syncs == before + 1
    writer.journal.sync()
    assert memory(writer).syncs == before + 1, "there was nothing left to sync"
    assert writer.journal.manifest.fsync == fsync


def test_the_mark_follows_each_sync() -> None:
    writer = example()
    writer.publish(1, b"one")
    active = open_segment(writer.journal)
    assert watermark.read(writer.storage) == Watermark(1, active.info.id, active.end)


def test_an_entry_larger_than_a_segment_gets_one_of_its_own() -> None:
    writer = example()
    writer.publish(1, b"small")
    writer.publish(1, b"x" * 10_000)
    writer.publish(1, b"small")
    assert len(writer.journal.manifest.segments) >= 2
    assert read_topic(writer.journal.history, 1) == writer.written
    writer.killed()
    assert read_topic(writer.journal.history, 1) == writer.written


def test_many_entries_in_one_write_roll_as_they_would_one_by_one() -> None:
    writer = example()
    drafts = [Draft([batch(1, at, at, 9, [b"x" * 900])], 9) for at in range(20)]
    writer.journal.write(drafts)
    assert len(writer.journal.manifest.segments) == 7
    for info in writer.journal.manifest.segments[:-1]:
        assert info.end <= SMALL.segment_bytes - SMALL.reserve
    assert len(read_topic(writer.journal.history, 1)) == 20
    writer.killed()
    assert writer.journal.ledger.topics[1].end == 20


# -- rolling ----------------------------------------------------------------------------------------------------


def test_a_full_segment_is_sealed_cut_to_size_and_indexed() -> None:
    writer = long_example()
    known = manifest.load(writer.storage)
    assert known is not None
    assert known == writer.journal.manifest
    *sealed, active = known.segments
    assert len(sealed) == 3
    assert not active.sealed
    for info, following in zip(sealed, known.segments[1:], strict=True):
        assert writer.storage.open(info.name).size() == info.end
        assert (info.end_sequence, info.number + 1) == (following.first_sequence, following.number)
        assert info.first_time <= info.last_time <= following.first_time
    assert set(writer.storage.names()) == {*known.files(), watermark.NAME}


def test_a_segment_that_is_old_enough_is_followed_by_another() -> None:
    writer = example(JournalOptions(segment_bytes=4096, min_free=0, segment_age=10.0))
    writer.publish(1, b"one")
    writer.now += 9_000_000
    writer.publish(1, b"two")
    assert len(writer.journal.manifest.segments) == 1
    writer.now += 2_000_000
    writer.publish(1, b"three")
    assert len(writer.journal.manifest.segments) == 2
    assert read_topic(writer.journal.history, 1) == writer.written


def test_the_chain_of_checkpoints_is_bounded_and_old_ones_are_removed() -> None:
    writer = example()
    for number in range(200):
        writer.topic(f"a.topic.with.a.name.{number}")
    longest = 0
    for number in range(100):
        writer.publish(1, b"%03d" % number * 300)
        longest = max(longest, len(writer.journal.manifest.checkpoints))
    assert longest == checkpoint.MAX_CHAIN
    there = [name for name in writer.storage.names() if name.endswith(".ckpt")]
    assert there == [checkpoint.name_of(number) for number in writer.journal.manifest.checkpoints]


def test_links_never_outweigh_the_full_checkpoint_by_more_than_one() -> None:
    writer = long_example(60)
    known = writer.journal.manifest
    sizes = [len(contents(writer.storage)[checkpoint.name_of(number)]) for number in known.checkpoints]
    assert (known.full_bytes, known.chain_bytes) == (sizes[0], sum(sizes[1:]))
    assert sum(sizes[1:-1]) <= sizes[0]


# -- retention --------------------------------------------------------------------------------------------------


def test_segments_in_which_nothing_is_wanted_are_dropped_at_the_next_roll() -> None:
    writer = long_example()
    names = [info.name for info in writer.journal.manifest.segments[:-1]]
    writer.write([trim_part(1, 30, 30)])
    assert set(names) <= set(writer.storage.names())
    for number in range(10):
        writer.publish(1, b"%03d" % number * 100)
    assert not set(names) & set(writer.storage.names())
    assert read_topic(writer.journal.history, 1, 30) == writer.of(1)[30:]
    writer.killed()
    assert read_topic(writer.journal.history, 1, 30) == writer.of(1)[30:]


def test_the_records_of_a_deleted_topic_are_given_back() -> None:
    writer = long_example()
    writer.write([state_part(PartKind.TOPIC_DELETED, topic=1)])
    writer.journal.retain(writer.now)
    assert len(writer.journal.manifest.segments) == 1
    writer.killed()
    assert writer.journal.ledger.topics == {}
    assert read_sequence(writer.journal.history, writer.journal.ledger.topics) == []


def test_files_stay_while_another_process_is_looking() -> None:
    writer = long_example()
    looking = True
    writer.journal.may_remove = lambda: not looking
    names = {name for info in writer.journal.manifest.segments[:-1] for name in (info.name, info.index_name)}
    writer.write([trim_part(1, 30, 30)])
    for number in range(10):
        writer.publish(1, b"%03d" % number * 100)
    assert names <= set(writer.storage.names())
    assert not names & writer.journal.manifest.files()
    looking = False
    for number in range(10):
        writer.publish(1, b"%03d" % number * 100)
    assert not names & set(writer.storage.names())


def test_a_reader_goes_on_in_a_segment_that_was_dropped_under_it() -> None:
    writer = long_example()
    history = writer.journal.history
    plan = history.plan(1, 0)
    assert plan is not None
    data = history.fetch(plan)
    writer.write([trim_part(1, 30, 30)])
    writer.journal.retain(writer.now)
    writer.journal._remove_retired()
    assert plan.source not in history.sources
    assert history.fetch(plan) == data
    parsed = history.parse(plan, data, {1}, by_sequence=False)
    first = next(iter(parsed.items))
    assert isinstance(first, FoundBatch)
    following = history.plan(1, parsed.place, plan, parsed.position)
    assert following is None or following.source in history.sources
    by_sequence = history.plan_sequence(first.sequence, plan, parsed.position)
    assert by_sequence is None or by_sequence.source in history.sources


# -- what fails -------------------------------------------------------------------------------------------------


class Failing(MemoryStorage):
    """Fails as it is told: which operation on which kind of name, with what."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fail: tuple[str, str, int] | None = None

    def _step(self, operation: str, name: str) -> None:
        if self.fail is not None and operation == self.fail[0] and self.fail[1] in name:
            raise OSError(self.fail[2], "on purpose")
        super()._step(operation, name)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_a_failed_write_or_sync_nothing_more_is_taken_and_reading_goes_on(operation: str) -> None:
    storage = Failing()
    writer = example(storage=storage)
    writer.publish(1, b"one")
    storage.fail = (operation, ".seg", errno.EIO)
    with pytest.raises(WriteFailed) as raised:
        writer.journal.write([Draft([batch(1, 1, 1, 9, [b"two"])], 9)])
    assert (raised.value.done, raised.value.begun) == (0, 1)
    assert isinstance(raised.value.cause, OSError)
    storage.fail = None
    calls = storage.calls
    with pytest.raises(WriteFailed) as again:
        writer.journal.write([Draft([batch(1, 1, 1, 9, [b"two"])], 9)])
    assert (again.value.done, again.value.begun) == (0, 0)
    assert isinstance(again.value.cause, JournalFailed)
    assert ", failed, " in repr(writer.journal)
    writer.journal.sync()
    assert read_topic(writer.journal.history, 1) == writer.written
    writer.journal.close()
    assert storage.calls == calls, "a failed journal changes nothing"
    journal = Journal.open(storage.after_power_loss(power_loss.keep_nothing), SMALL, now=9)
    assert read_topic(journal.history, 1) == writer.written


def test_a_failed_write_says_which_entries_are_durable() -> None:
    storage = Failing()
    writer = example(storage=storage)
    drafts = [Draft([batch(1, at, at, 9, [b"x" * 900])], 9) for at in range(10)]
    storage.fail = ("create", "000000000003.seg", errno.EIO)
    with pytest.raises(WriteFailed) as raised:
        writer.journal.write(drafts)
    assert raised.value.done == raised.value.begun
    assert 0 < raised.value.done < 10
    journal = Journal.open(MemoryStorage.after_power_loss(storage, power_loss.keep_nothing), SMALL, now=9)
    assert journal.ledger.topics[1].end == raised.value.done


def test_a_full_disk_refuses_records_and_takes_state_and_is_no_failure() -> None:
    storage = MemoryStorage(capacity=14_000)
    writer = example(JournalOptions(segment_bytes=4096, min_free=2000), storage)
    with pytest.raises(WriteFailed) as raised:
        fill(writer)
    assert isinstance(raised.value.cause, DiskFull)
    assert (raised.value.done, raised.value.begun) == (0, 0)
    assert raised.value.cause.needed > raised.value.cause.free
    assert not writer.journal.has_room(1000)
    writer.write([cursor_part(CursorState("reader", "a", 1, 7))])
    assert read_topic(writer.journal.history, 1) == writer.written
    assert not [name for name in storage.names() if name.endswith(".tmp")]

    writer.write([trim_part(1, len(writer.written), 0)])
    storage.capacity = 100_000
    assert writer.journal.has_room(1000)
    writer.publish(1, b"there is room again")
    assert writer.journal.failed is None
    writer.killed()
    assert writer.journal.ledger.cursors["reader"].place == 7
    assert read_topic(writer.journal.history, 1, len(writer.written) - 1) == writer.written[-1:]


def test_state_goes_on_for_as_long_as_there_is_any_room_though_records_are_refused() -> None:
    storage = MemoryStorage(capacity=60_000)
    writer = example(JournalOptions(segment_bytes=4096, min_free=30_000), storage)
    with pytest.raises(WriteFailed):
        fill(writer)
    for place in range(1000):  # many times what is reserved in a segment
        writer.write([cursor_part(CursorState("reader", "a", 1, place))])
    assert not writer.journal.has_room(100)
    with pytest.raises(WriteFailed):
        writer.publish(1, bytes(100))
    assert storage.free() > 15_000, "segments with nothing but state in them are given back"
    storage.capacity = 200_000
    writer.publish(1, b"there is room again")
    writer.killed()
    assert writer.journal.ledger.cursors["reader"].place == 999
    assert read_topic(writer.journal.history, 1) == writer.written


def test_a_journal_that_is_opened_below_the_watermark_takes_no_records_until_there_is_room() -> None:
    storage = MemoryStorage()
    writer = example(storage=storage)
    writer.publish(1, b"x")
    writer.journal.close()
    used = sum(storage.open(name).size() for name in storage.names())
    storage.capacity = used + 20_000
    journal = Journal.open(storage, JournalOptions(segment_bytes=4096, min_free=20_000), now=9)
    assert not journal.has_room(100)
    assert storage.free() > 15_000
    storage.capacity = used + 40_000
    assert journal.has_room(100)
    journal.write([Draft([batch(1, 1, 1, 9, [b"y"])], 9)])
    assert journal.ledger.topics[1].end == 2


def test_publishing_stops_before_the_disk_is_full() -> None:
    storage = MemoryStorage(capacity=50_000)
    writer = example(JournalOptions(segment_bytes=4096, min_free=30_000), storage)
    with pytest.raises(WriteFailed):
        fill(writer)
    assert storage.free() > 25_000
    assert writer.journal.failed is None


def test_a_new_journal_on_a_full_disk_says_so() -> None:
    with pytest.raises(DiskFull):
        Journal.open(MemoryStorage(capacity=300), SMALL, now=1)


def test_a_journal_on_a_full_disk_can_be_opened_and_read_but_takes_no_records() -> None:
    storage = MemoryStorage()
    writer = example(storage=storage)
    writer.publish(1, b"x")
    writer.journal.close()
    used = sum(storage.open(name).size() for name in storage.names())
    storage.capacity = used + 2000  # less than a segment
    journal = Journal.open(storage, SMALL, now=9)
    assert not journal.has_room(100)
    journal.write([Draft([cursor_part(CursorState("me", "a", 1, 1))], 9)])
    assert journal.ledger.cursors["me"].place == 1
    body = pack([b"y" * 100])
    with pytest.raises(WriteFailed) as caught:
        journal.write([Draft([Part(PartKind.BATCH, body, int.from_bytes(body[:4], "little"), 1, 1, 1, 99, 9)], 9)])
    assert isinstance(caught.value.cause, DiskFull)
    assert journal.failed is None
    storage.capacity = None
    assert journal.has_room(100)


@pytest.mark.parametrize("name", ["000000000001.idx", "000000000002.ckpt", "000000000002.seg", "MANIFEST"])
@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
def test_a_roll_that_finds_no_room_leaves_the_old_segment_in_charge(operation: str, name: str) -> None:
    storage = Failing()
    writer = example(storage=storage)
    writer.publish(1, b"x" * 2000)
    # Only what the roll makes anew fails.
    storage.fail = (operation, name + ".tmp", errno.ENOSPC)
    with pytest.raises(WriteFailed) as raised:
        writer.journal.write([Draft([batch(1, 1, 1, 9, [b"y" * 2000])], 9)])
    assert isinstance(raised.value.cause, DiskFull)
    writer.write([cursor_part(CursorState("reader", "a", 1, 7))])
    storage.fail = None
    writer.publish(1, b"y" * 2000)
    assert len(writer.journal.manifest.segments) == 2
    assert read_topic(writer.journal.history, 1) == writer.written
    journal = Journal.open(storage.after_power_loss(power_loss.keep_nothing), SMALL, now=9)
    assert read_topic(journal.history, 1) == writer.written
    assert journal.ledger.cursors["reader"].place == 7


def test_a_failed_write_says_what_it_knows() -> None:
    assert str(WriteFailed(2, 5, OSError("bad disk"))) == "2 entries were written, 3 perhaps: bad disk"


def test_there_is_room_while_the_segment_has_some() -> None:
    writer = example()
    left = SMALL.segment_bytes - SMALL.reserve - open_segment(writer.journal).end
    storage = memory(writer)
    storage.capacity = 0
    assert writer.journal.has_room(left)
    assert not writer.journal.has_room(left + 1)
    writer.journal.write([Draft([batch(1, 0, 0, 9, [b"x"])], 9)])
    assert writer.journal.has_room(left - size_of([batch(1, 0, 0, 9, [b"x"])]))
    assert left > START

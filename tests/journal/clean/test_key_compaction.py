from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.batch_format import pack
from runnel.core.record import Meta
from runnel.journal.clean import key_compaction
from runnel.journal.clean.cleaning_job import CleaningJob
from runnel.journal.clean.key_compaction import (
    KEYS_FILE,
    Compaction,
    CompactionState,
    KeyPass,
    KeyPassState,
    PendingCleaning,
    TopicCompactionState,
)
from runnel.journal.clean.planning import RETRY_AFTER, LiveShares, choose_segments, live_share_of
from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.entry import Draft, Part, PartKind, state_part
from runnel.journal.format.ledger import StageState, stage_commit_part, stage_part, staged_part, trim_part
from runnel.journal.format.offset_sets import OffsetBitmap
from runnel.journal.format.removed_offsets import RemovalReason
from runnel.journal.options import JournalOptions
from runnel.testing import MemoryStorage, power_loss
from tests.carried import columns_of
from tests.journal.journal_cleaning import Seen, by_topic, clean, committed_in, finished, sealed
from tests.journal.written_journal import SMALL, Writer, flip, put
from tests.nightly import examples

AGE = 1000  # microseconds


class Keyed:
    """A compacted topic, written record by record; and what a dict would make of it."""

    def __init__(self, max_keys: int = 1000, options: JournalOptions = SMALL) -> None:
        self.writer = Writer(options=options)
        self.topic = self.writer.topic("t", compact=True)
        self.other = self.writer.topic("other")
        self.compaction = Compaction(self.writer.journal.history, AGE / 1e6, max_keys)
        self.published: list[tuple[int, bytes | None, bytes]] = []  # offset, key, value
        self.max_keys = max_keys
        self.under_way: KeyPass | None = None

    def publish(self, *records: tuple[bytes | None, bytes], compression: str | None = None) -> None:
        """One batch."""
        ledger, time = self.writer.journal.ledger, self.writer.now + 1
        base = ledger.topics[self.topic].end
        metas = [None if key is None else Meta(key) for key, _ in records]
        body = pack([value for _, value in records], columns_of(metas), compression=compression)
        crc, last = int.from_bytes(body[:4], "little"), base + len(records) - 1
        self.writer.write([Part(PartKind.BATCH, body, crc, self.topic, base, last, ledger.sequence, time)])
        self.published += [(base + at, key, value) for at, (key, value) in enumerate(records)]

    def stage(self, *batches: Sequence[tuple[bytes | None, bytes]]) -> None:
        """Batches that are staged, and committed at once."""
        writer, ledger = self.writer, self.writer.journal.ledger
        number, base = ledger.next_stage, ledger.topics[self.topic].end
        writer.write([stage_part(StageState(number, "w", number, 0, 0, self.topic, 5))])
        for ordinal, records in enumerate(batches):
            metas = [None if key is None else Meta(key) for key, _ in records]
            writer.write([staged_part(number, ordinal, pack([value for _, value in records], columns_of(metas)), 5)])
        writer.write([stage_commit_part(ledger.stages[number], base, ledger.sequence, writer.now + 1)])
        flat = [record for records in batches for record in records]
        self.published += [(base + at, key, value) for at, (key, value) in enumerate(flat)]

    def seal(self) -> None:
        """Have all that was published in sealed segments."""
        number = self.writer.journal.manifest.next_number
        while self.writer.journal.manifest.next_number == number:
            self.writer.publish(self.other, b"x" * 700)

    def later(self, micros: int = 2 * AGE) -> None:
        """Let time pass."""
        self.writer.now += micros

    def passes(self, holds: Mapping[int, int] | None = None) -> int:
        """Look as often as it is due."""
        count = 0
        while (found := self.under_way or self.due(holds)) is not None:
            self.under_way = None
            while not found.done:
                found.step()
            part = self.compaction.over(found, self.writer.now)
            if part is not None:
                self.writer.write([part])
            count += 1
            assert count < 50, "it looks for ever"
        return count

    def due(self, holds: Mapping[int, int] | None = None) -> KeyPass | None:
        return self.compaction.due(self.writer.journal.living(), holds or {}, self.writer.now)

    def clean(
        self,
        holds: Mapping[int, int] | None = None,
        which: slice = slice(None),
        *,
        place: bool = True,
        note: bool = False,
    ) -> None:
        """Look, and write some of the segments again, with the stages that were committed in them or without."""
        self.passes(holds)
        journal = self.writer.journal
        if not (sources := sealed(journal)[which]):
            return
        stages = committed_in(journal, sources) if place else []
        living = journal.living()
        living.taken = self.compaction.taken(holds or {})
        job = finished(journal.clean(sources, living, stages))
        if note:
            self.note(job)
        assert journal.replace(job)
        parts = self.compaction.replaced(job, self.writer.now)
        if parts:
            journal.write([Draft(parts, self.writer.now)])

    def look(self, steps: int = 1) -> None:
        """Begin a pass, or go on with it, and leave it in the middle."""
        if self.under_way is None:
            self.under_way = self.due()
        while self.under_way is not None and steps:
            self.under_way.step()
            steps -= 1
            if self.under_way.done:
                if (part := self.compaction.over(self.under_way, self.writer.now)) is not None:
                    self.writer.write([part])
                self.under_way = None

    def note(self, job: CleaningJob | None = None) -> None:
        """Note what is known."""
        journal = self.writer.journal
        key_compaction.save_state(journal.storage, self.compaction.note(journal.manifest.journal, job, self.under_way))

    def restart(self, *, kill: bool = False) -> None:
        """Another life, that knows what was noted."""
        if kill:
            self.writer.killed()
        else:
            self.writer.journal.close()
            self.writer.reopen()
        journal = self.writer.journal
        self.compaction = Compaction(journal.history, AGE / 1e6, self.max_keys)
        note = key_compaction.load_state(journal.storage, journal.manifest.journal)
        if note is not None:
            list(self.compaction.recall(note, journal.living()))
        self.under_way = self.compaction.under_way

    def left(self) -> list[tuple[int, bytes | None, bytes]]:
        """What there is on disk."""
        found = by_topic(self.writer.journal.history, self.topic)
        return [(one.offset, one.meta.key, one.value) for one in found if isinstance(one, Seen)]

    @property
    def compacted(self) -> int:
        return self.writer.journal.ledger.topics[self.topic].compacted


def newest(published: list[tuple[int, bytes | None, bytes]]) -> list[tuple[int, bytes | None, bytes]]:
    last = {key: offset for offset, key, _ in published}
    return [one for one in published if one[1] is None or last[one[1]] == one[0]]


def view(records: list[tuple[int, bytes | None, bytes]]) -> dict[bytes, bytes]:
    """What a reader makes of it that goes from the beginning to the end."""
    found: dict[bytes, bytes] = {}
    for _, key, value in records:
        if key is not None and value:
            found[key] = value
        elif key is not None:
            found.pop(key, None)
    return found


def test_the_newest_record_of_each_key_is_kept_and_those_without_a_key() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b"2"), (None, b"3"), (b"a", b"4"))
    keyed.publish((b"a", b"5"), (None, b"6"))
    keyed.seal()
    keyed.clean()
    assert keyed.left() == [(1, b"b", b"2"), (2, None, b"3"), (4, b"a", b"5"), (5, None, b"6")]


def test_why_records_are_gone_is_written_and_how_far_it_came() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    keyed.seal()
    keyed.clean()
    topic = keyed.writer.journal.ledger.topics[keyed.topic]
    assert [(one.first, one.end, one.reason) for one in topic.gone] == [(0, 3, RemovalReason.COMPACTED)]
    assert topic.compacted == 3
    keyed.restart()
    assert keyed.compacted == 3


def test_an_older_record_goes_when_a_newer_one_comes_much_later() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b"2"))
    keyed.seal()
    keyed.clean()
    for _ in range(3):
        keyed.publish((b"a", b"9"))
    keyed.seal()
    keyed.clean()
    assert keyed.left() == [(1, b"b", b"2"), (4, b"a", b"9")]


def test_what_is_not_in_a_sealed_segment_is_left_alone_and_takes_nothing() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"))
    keyed.seal()
    keyed.publish((b"a", b"2"))
    keyed.clean()
    assert keyed.left() == keyed.published


def test_only_topics_that_ask_for_it_are_looked_at() -> None:
    keyed = Keyed()
    keyed.seal()
    assert keyed.due() is None
    assert repr(keyed.compaction) == "<Compaction of 1 topics>"


def test_a_pass_is_due_when_there_is_as_much_that_is_new_as_was_kept() -> None:
    keyed = Keyed()
    keyed.publish(*[(b"%d" % number, b"x") for number in range(4)])
    keyed.seal()
    assert keyed.passes() == 1
    keyed.publish((b"0", b"y"), (b"1", b"y"), (b"2", b"y"))
    keyed.seal()
    assert keyed.passes() == 0
    keyed.publish((b"3", b"y"))
    keyed.seal()
    assert keyed.passes() == 1


# -- tombstones -------------------------------------------------------------------------------------------------


def test_a_tombstone_takes_all_that_is_older_and_stays_until_it_is_old() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b"2"), (b"a", b""))
    keyed.seal()
    keyed.clean()
    assert keyed.left() == [(1, b"b", b"2"), (2, b"a", b"")]
    keyed.clean()
    assert keyed.left() == [(1, b"b", b"2"), (2, b"a", b"")]
    keyed.later()
    keyed.clean()
    assert keyed.left() == [(1, b"b", b"2")]


def test_a_young_tombstone_stays_though_its_topic_is_looked_through() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"a", b""))
    keyed.seal()
    keyed.clean()
    keyed.publish((b"b", b"2"), (b"c", b"2"))
    keyed.seal()
    assert keyed.passes() == 1
    keyed.clean()
    assert keyed.left() == keyed.published[1:]


def test_a_tombstone_stays_while_what_it_took_is_still_on_disk() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"))
    keyed.seal()
    keyed.publish((b"a", b""))
    keyed.seal()
    keyed.later()
    last = slice(1, None)
    for _ in range(3):
        keyed.clean(which=last)  # the segment of the old record is never written again
        keyed.later()
    assert [value for _, _, value in keyed.left()] == [b"1", b""]
    assert keyed.compacted == 0
    keyed.clean()
    keyed.later()
    keyed.clean()
    assert keyed.left() == []


def test_a_tombstone_without_a_key_is_an_empty_value() -> None:
    keyed = Keyed()
    keyed.publish((None, b""), (None, b""))
    keyed.seal()
    keyed.later()
    keyed.clean()
    keyed.later()
    keyed.clean()
    assert keyed.left() == keyed.published


def test_records_that_were_staged_are_compacted_as_all_others() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b"2"))
    keyed.stage([(b"a", b"3"), (b"c", b"4"), (b"c", b"5")], [(b"d", b"6"), (None, b"7")])
    keyed.publish((b"d", b"8"), (b"e", b"9"))
    keyed.stage([(b"e", b"10")])
    keyed.seal()
    keyed.clean()
    assert keyed.left() == newest(keyed.published)
    assert not keyed.writer.journal.ledger.committed
    assert keyed.compacted == keyed.writer.journal.ledger.topics[keyed.topic].end


def test_a_tombstone_takes_what_was_staged_and_goes_after_it() -> None:
    keyed = Keyed()
    keyed.stage([(b"a", b"staged")])
    keyed.publish((b"a", b"1"), (b"a", b""))
    keyed.seal()
    keyed.clean()
    assert [value for _, _, value in keyed.left()] == [b""]
    keyed.later()
    keyed.clean()
    assert keyed.left() == []


def test_a_tombstone_stays_while_what_it_took_is_still_staged() -> None:
    keyed = Keyed()
    keyed.publish((b"b", b"0"), (b"b", b"1"))
    keyed.stage([(b"a", b"staged"), (b"c", b"2")])
    keyed.publish((b"a", b""), (b"b", b"3"))
    keyed.seal()
    for _ in range(3):  # its commit is written again, and it stays where it lies
        keyed.clean(place=False)
        keyed.later()
        assert [value for _, _, value in keyed.left()] == [b"staged", b"2", b"", b"3"]
    keyed.clean()
    keyed.later()
    keyed.clean()
    assert [value for _, _, value in keyed.left()] == [b"2", b"3"]


def test_a_tombstone_that_was_staged_is_one() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"))
    keyed.stage([(b"a", b""), (b"b", b"2")])
    keyed.seal()
    keyed.clean()
    keyed.later()
    keyed.clean()
    assert [value for _, _, value in keyed.left()] == [b"2"]


def test_a_stage_that_is_put_into_its_topic_while_it_is_looked_through_is_looked_through_once() -> None:
    for stop in range(1, 8):
        keyed = Keyed()
        keyed.stage(*[[(b"%d" % (number % 3), b"%d" % number * 200)] for number in range(12)])
        keyed.publish((b"1", b"last"))
        keyed.seal()
        found = keyed.due()
        assert found is not None
        for _ in range(stop):
            found.step()
        clean(keyed.writer.journal, placing=[1])
        keyed.writer.journal.retain(keyed.writer.now)
        while not found.done:
            found.step()
        keyed.compaction.over(found, keyed.writer.now)
        keyed.clean()
        assert keyed.left() == newest(keyed.published)


def test_a_tombstone_stays_behind_damage_that_may_hide_what_it_took() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1" * 50))
    keyed.seal()
    keyed.publish((b"a", b""))
    keyed.seal()
    source = sealed(keyed.writer.journal)[0]
    found = source.index.range_of(keyed.topic)
    assert found is not None
    position, _ = source.index.window(keyed.topic, 0)
    flip(keyed.writer.storage, source.info.name, position + 120)
    for _ in range(3):
        keyed.later()
        keyed.clean(which=slice(1, None))
    assert keyed.left() == [(1, b"a", b"")]


# -- bounds -----------------------------------------------------------------------------------------------------


def test_nothing_from_a_held_offset_on_is_taken() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"4"))
    keyed.seal()
    keyed.clean({keyed.topic: 2})
    assert keyed.left() == keyed.published[1:]
    keyed.clean({keyed.topic: 2})
    assert keyed.left() == keyed.published[1:]
    keyed.clean()
    assert keyed.left() == keyed.published[3:]


def test_what_was_found_before_a_hold_began_is_not_taken_while_it_holds() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"4"))
    keyed.seal()
    keyed.passes()
    keyed.clean({keyed.topic: 1})
    assert keyed.left() == keyed.published[1:]
    assert keyed.compacted == 1, "behind that there is more to be taken"
    keyed.clean({keyed.topic: 0})
    assert keyed.left() == keyed.published[1:]
    keyed.clean()  # what was found is not forgotten
    assert keyed.left() == keyed.published[3:]
    assert keyed.compacted == 4


def test_a_job_knows_what_has_come_to_be_held_since_it_was_made() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"a", b"2"), (b"b", b"3"))
    keyed.seal()
    keyed.passes()
    journal, living = keyed.writer.journal, keyed.writer.journal.living()
    living.taken = keyed.compaction.taken({})
    job = finished(journal.clean(sealed(journal), living))
    assert keyed.compaction.is_held(job, {keyed.topic: 0})
    assert not keyed.compaction.is_held(job, {keyed.topic: 1})
    assert not keyed.compaction.is_held(job, {keyed.other: 0})


def test_a_tombstone_that_is_held_stays_and_goes_when_it_is_not() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b""), (b"c", b"3"), (b"d", b""), (b"e", b"5"))
    keyed.seal()
    keyed.clean()
    keyed.later()
    assert keyed.due({keyed.topic: 0}) is None, "nothing could be taken"
    keyed.clean({keyed.topic: 1})
    assert keyed.left() == keyed.published
    assert keyed.compaction.taken({}) == {}, "nor is it looked for behind a hold"
    keyed.later()
    keyed.clean({keyed.topic: 3})
    assert [offset for offset, _, _ in keyed.left()] == [0, 2, 3, 4]
    keyed.later(AGE // 2)  # what was held is looked at soon
    keyed.clean()
    assert [offset for offset, _, _ in keyed.left()] == [0, 2, 4]


def test_a_quiet_topic_that_ended_with_a_tombstone_is_not_read_for_ever() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b""))
    keyed.seal()
    keyed.clean()
    keyed.later()
    keyed.clean()
    assert keyed.left() == keyed.published[:1]
    keyed.later()
    assert keyed.passes() == 1
    keyed.later(AGE // 2)
    assert keyed.passes() == 0


def test_records_without_a_key_count_for_what_was_kept() -> None:
    """Or a topic that has few keys would be read from its beginning for each segment."""
    keyed = Keyed()
    published = read = 0
    for number in range(300):
        keyed.publish((b"k" if number % 50 == 0 else None, bytes(200)))
        published += 260
        while (found := keyed.due()) is not None:
            while not found.done:
                found.step()
            read += found.read
            keyed.compaction.over(found, keyed.writer.now)
    assert 0 < read < 3 * published


def test_a_topic_that_cannot_be_read_is_left_alone_for_a_while() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"a", b"2"))
    keyed.seal()
    broken = keyed.due()
    assert broken is not None
    keyed.compaction.failed(broken, keyed.writer.now)
    assert keyed.due() is None
    keyed.later(RETRY_AFTER - 1)
    assert keyed.due() is None
    keyed.later(1)
    keyed.clean()
    assert keyed.left() == keyed.published[1:]


def test_a_pass_goes_as_far_as_its_keys_reach_and_the_next_one_goes_on() -> None:
    keyed = Keyed(max_keys=3)
    keyed.publish(*[(b"%d" % (number % 7), b"%d" % number) for number in range(21)])
    keyed.seal()
    assert keyed.passes() > 1
    keyed.clean()
    assert keyed.left() == newest(keyed.published)


def test_what_was_not_written_again_before_a_restart_is_found_again() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b"1"))
    keyed.seal()
    keyed.publish((b"a", b"2"), (b"b", b"2"))
    keyed.seal()
    keyed.passes()
    assert keyed.compacted == 0
    keyed.restart()
    keyed.clean()
    assert keyed.left() == newest(keyed.published)
    assert keyed.compacted == 4


def test_a_pass_is_done_in_small_steps() -> None:
    keyed = Keyed()
    for number in range(30):
        keyed.publish(*[(b"%d" % at, b"%d" % number) for at in range(20)])
    keyed.seal()
    found = keyed.due()
    assert found is not None
    steps = 0
    while not found.done:
        found.step()
        steps += 1
    assert steps > 3
    assert found.read > 0
    assert repr(found) == f"<KeyPass of topic {keyed.topic}, 0 keys>"


def test_a_topic_that_was_deleted_meanwhile_is_forgotten() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"a", b"2"))
    keyed.seal()
    found = keyed.due()
    assert found is not None
    while not found.done:
        found.step()
    keyed.writer.write([state_part(PartKind.TOPIC_DELETED, topic=keyed.topic)])
    assert keyed.due() is None
    assert keyed.compaction.over(found, 1) is None
    assert keyed.compaction.taken({}) == {}


# -- across restarts --------------------------------------------------------------------------------------------


def test_what_was_noted_is_not_looked_for_again_and_is_taken() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"))
    keyed.seal()
    assert keyed.passes() == 1
    keyed.note()
    keyed.restart(kill=True)
    assert keyed.due() is None
    assert [list(one.spans_without(0, 4)) for one in keyed.compaction.taken({}).values()] == [[(1, 4)]]
    keyed.clean()
    assert keyed.left() == newest(keyed.published)


def test_how_much_was_kept_is_known_after_a_restart() -> None:
    keyed = Keyed()
    for number in range(10):
        keyed.publish((b"%d" % number, b"1"))
    keyed.seal()
    assert keyed.passes() == 1
    keyed.note()
    keyed.restart()
    keyed.publish((b"0", b"2"))
    keyed.seal()
    assert keyed.due() is None, "one new record is not ten"


@pytest.mark.parametrize("noted", [False, True])
def test_a_job_that_was_put_in_place_before_a_crash_is_known_to_be_over(noted: bool) -> None:
    keyed = Keyed()
    keyed.publish((b"x", b"0"), (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    keyed.seal()
    keyed.passes()
    keyed.note()
    journal = keyed.writer.journal
    living = journal.living()
    living.taken = keyed.compaction.taken({})
    job = finished(journal.clean(sealed(journal), living))
    if noted:
        keyed.note(job)
    assert journal.replace(job)
    keyed.restart(kill=True)  # before anything was written about it
    assert keyed.compaction.taken({}) == {}
    assert (keyed.due() is None) == noted
    assert keyed.left() == newest(keyed.published)


def test_a_job_that_was_not_put_in_place_before_a_crash_is_as_if_it_had_never_been() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    keyed.seal()
    keyed.passes()
    journal = keyed.writer.journal
    living = journal.living()
    living.taken = keyed.compaction.taken({})
    keyed.note(finished(journal.clean(sealed(journal), living)))
    keyed.restart(kill=True)
    assert keyed.due() is None
    keyed.clean()
    assert keyed.left() == newest(keyed.published)


def test_what_others_wrote_again_is_looked_through_again() -> None:
    """A version that knows no notes may have been here."""
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    keyed.seal()
    keyed.passes()
    keyed.note()
    clean(keyed.writer.journal)
    keyed.restart()
    assert keyed.compaction.taken({}) == {}
    keyed.clean()
    assert keyed.left() == newest(keyed.published)


def test_what_was_trimmed_or_deleted_meanwhile_is_not_recalled() -> None:
    keyed = Keyed()
    keyed.publish((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    keyed.seal()
    keyed.passes()
    keyed.note()
    keyed.writer.write([trim_part(keyed.topic, 1, 0)])
    keyed.restart()
    assert keyed.compaction.taken({}) == {}
    keyed.note()
    keyed.writer.write([state_part(PartKind.TOPIC_DELETED, topic=keyed.topic)])
    keyed.restart()
    assert repr(keyed.compaction) == "<Compaction of 0 topics>"


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", None])
BATCHES = st.lists(st.tuples(KEYS, st.sampled_from([b"", b"1", b"2"])), min_size=1, max_size=5)
STEPS = st.lists(
    BATCHES
    | st.lists(BATCHES, min_size=1, max_size=3).map(tuple)
    | st.sampled_from(["seal", "clean", "clean some", "clean beside stages", "restart", "later", "trim"])
    | st.sampled_from(["note", "look", "clean and note", "kill"]),
    min_size=3,
    max_size=25,
)


@examples(50, 150, deadline=None)
@given(STEPS, st.integers(1, 6))
def test_whatever_happens_a_reader_finds_the_newest_values(steps: list[object], max_keys: int) -> None:
    keyed = Keyed(max_keys)
    first = 0
    for step in steps:
        if isinstance(step, list):
            keyed.publish(*step)
        elif isinstance(step, tuple):
            keyed.stage(*step)
        elif step == "seal":
            keyed.seal()
        elif step == "clean":
            keyed.clean()
        elif step == "clean some":
            keyed.clean(which=slice(1, 3))
        elif step == "clean beside stages":
            keyed.clean(place=False)
        elif step == "restart":
            keyed.restart()
        elif step == "later":
            keyed.later()
        elif step == "note":
            keyed.note()
        elif step == "look":
            keyed.look(2)
        elif step == "clean and note":
            keyed.clean(note=True)
        elif step == "kill":
            keyed.restart(kill=True)
        else:
            first = keyed.writer.journal.ledger.topics[keyed.topic].end // 2
            keyed.writer.write([trim_part(keyed.topic, first, 0)])
        published = [one for one in keyed.published if one[0] >= keyed.writer.journal.ledger.topics[keyed.topic].first]
        left = [one for one in keyed.left() if one[0] >= keyed.writer.journal.ledger.topics[keyed.topic].first]
        assert view(left) == view(published)
        assert [one for one in left if one[1] is None] == [one for one in published if one[1] is None]
        assert set(left) <= set(published)
    keyed.seal()
    keyed.clean()
    keyed.clean()
    keyed.later()
    keyed.clean()
    first = keyed.writer.journal.ledger.topics[keyed.topic].first
    expected = newest([one for one in keyed.published if one[0] >= first])
    left = [one for one in keyed.left() if one[0] >= first]
    assert {one for one in expected if one[2] or one[1] is None} <= set(left) <= {*expected}


# -- bytes ------------------------------------------------------------------------------------------------------


def wide(segment_bytes: int = 1 << 16) -> Keyed:
    """With segments in which there is room for more than some records."""
    return Keyed(options=JournalOptions(segment_bytes=segment_bytes, min_free=0))


def settled(keyed: Keyed, found: LiveShares, holds: Mapping[int, int] | None = None) -> int:
    """Look and clean for as long as it is worth it; how many jobs that were."""
    journal, jobs = keyed.writer.journal, 0
    while True:
        keyed.passes(holds)
        living = journal.living()
        living.taken = keyed.compaction.taken(holds or {})
        list(found.look(journal.history.sources, living))
        if not (picked := choose_segments(found.now, journal.options.segment_bytes)):
            return jobs
        job = clean(journal, picked, living.taken)
        found.made(job.made, living)
        if parts := keyed.compaction.replaced(job, keyed.writer.now):
            journal.write([Draft(parts, keyed.writer.now)])
        jobs += 1
        assert jobs < 30, "it cleans for ever"


def publish_each(keyed: Keyed, *sizes: int, together: bool, compression: str | None = None) -> None:
    """Of many keys, values of these sizes; and small records of other keys between them."""
    for number in range(150):
        key = b"session-%d" % number
        records = [(key, Random(at).randbytes(size)) for at, size in enumerate(sizes)]
        records.append((b"index-%d" % number, b"small"))
        for batch in [records] if together else [[one] for one in records]:
            keyed.publish(*batch, compression=compression)
    keyed.seal()


def length(records: list[tuple[int, bytes | None, bytes]]) -> int:
    return sum(len(value) for _, _, value in records)


def dead_share(keyed: Keyed) -> float:
    """Of what the first segment holds of the topic."""
    keyed.passes()
    living = keyed.writer.journal.living()
    living.taken = keyed.compaction.taken({})
    found = sealed(keyed.writer.journal)[0].index.range_of(keyed.topic)
    assert found is not None
    return 1 - living.share(keyed.topic, found)


@pytest.mark.parametrize("together", [True, False])
def test_large_values_that_small_ones_replaced_are_cleaned_away(together: bool) -> None:
    """By number, a third of the records is dead: less than the bound."""
    keyed, found = wide(), LiveShares()
    publish_each(keyed, 3000, 6, together=together)
    assert settled(keyed, found) > 0
    left = keyed.left()
    assert set(newest(keyed.published)) <= set(left)
    assert length(left) < length(keyed.published) / 10, "but for the last segment, most of which is another topic's"
    assert settled(keyed, found) == 0


@pytest.mark.parametrize("together", [True, False])
def test_small_values_that_large_ones_replaced_are_not_worth_it(together: bool) -> None:
    """By number, more than half of the records is dead."""
    keyed, found = wide(), LiveShares()
    publish_each(keyed, 1, 2, 3, 3000, together=together)
    assert settled(keyed, found) == 0
    assert keyed.left() == keyed.published


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_third_of_records_that_are_alike_is_a_third_of_their_bytes(together: bool, compression: str | None) -> None:
    keyed = wide()
    publish_each(keyed, 5, 5, together=together, compression=compression)
    assert abs(dead_share(keyed) - 1 / 3) < 0.04


def test_bytes_are_those_on_disk_where_values_are_compressed() -> None:
    keyed = wide()
    for number in range(300):
        records = [(b"%d" % number, value * 3000) for value in (b"a", b"b", b"c", b"d")]
        keyed.publish(*records, compression="zstd")
    keyed.seal()
    assert abs(dead_share(keyed) - 3 / 4) < 0.02


def test_what_supersedes_records_that_were_looked_at_before_has_their_bytes() -> None:
    keyed = wide()
    publish_each(keyed, 3000, together=True)
    assert dead_share(keyed) == 0
    for number in range(300):
        keyed.publish((b"session-%d" % (number % 150), b"closed"))
    keyed.seal()
    assert dead_share(keyed) > 0.98, "though half of the records live"


def test_what_is_held_gives_no_bytes_back() -> None:
    keyed, found = wide(), LiveShares()
    publish_each(keyed, 3000, 6, together=False)
    keyed.passes()
    assert settled(keyed, found, {keyed.topic: 0}) == 0
    assert keyed.left() == keyed.published
    assert settled(keyed, found) > 0
    left = keyed.left()
    assert set(newest(keyed.published)) <= set(left)
    assert length(left) < length(keyed.published) / 10, "but for the last segment, most of which is another topic's"


SIZES = st.lists(st.tuples(KEYS, st.sampled_from([0, 1, 30, 900])), min_size=1, max_size=6)


@settings(max_examples=50, deadline=None)
@given(st.lists(SIZES | st.just("settle"), min_size=4, max_size=50), st.sampled_from([None, "zstd"]))
def test_never_more_is_dead_than_there_is_and_what_was_cleaned_is_clean(steps: list[object], how: str | None) -> None:
    keyed, shares = wide(4096), LiveShares()
    for step in [*steps, "settle"]:
        if isinstance(step, list):
            keyed.publish(*[(key, Random(size).randbytes(size)) for key, size in step], compression=how)
            continue
        keyed.seal()
        keyed.passes()
        living, topic = keyed.writer.journal.living(), keyed.topic
        living.taken = keyed.compaction.taken({})
        sources = sealed(keyed.writer.journal)
        assert all(0 <= one.dead <= one.total for one in (live_share_of(source, living) for source in sources))
        ranges = [one for source in sources if (one := source.index.range_of(topic)) is not None]
        if topic in living.taken:
            assert living.taken[topic].size(0, 1 << 40) <= sum(one.bytes for one in ranges)
        settled(keyed, shares)
        assert settled(keyed, shares) == 0
        assert set(newest(keyed.published)) - set(keyed.left()) <= {one for one in keyed.published if not one[2]}


# -- state ---------------------------------------------------------------------------------------------------


PAGES = OffsetBitmap([1, 70, 5000]).encode()
NOTE = CompactionState(
    "abc",
    [1, 1 << 62],
    [TopicCompactionState(3, 100, 7, True, 12, PAGES)],
    PendingCleaning([1], [2], [(3, PAGES)]),
    KeyPassState(3, 100, (0, 200), 5, 6, 200, 1, 120, None, False, True, b"s" * 16, b"n" * 16, b"o" * 8, b"z" * 4),
)


def noted(note: CompactionState = NOTE) -> MemoryStorage:
    storage = MemoryStorage()
    assert key_compaction.save_state(storage, note) == len(read_whole(storage, KEYS_FILE))
    return storage


def test_what_was_noted_is_there_again() -> None:
    assert key_compaction.load_state(noted(), "abc") == NOTE


def test_a_later_note_takes_the_place_of_an_earlier_one() -> None:
    storage = noted()
    key_compaction.save_state(storage, CompactionState("abc", [], []))
    assert key_compaction.load_state(storage, "abc") == CompactionState("abc", [], [])


def test_it_survives_a_loss_of_power_once_its_name_is_synced() -> None:
    storage = noted()
    assert key_compaction.load_state(storage.after_power_loss(power_loss.keep_nothing), "abc") is None
    storage.sync_names()
    assert key_compaction.load_state(storage.after_power_loss(power_loss.keep_nothing), "abc") == NOTE


def test_that_of_another_journal_is_not_believed() -> None:
    assert key_compaction.load_state(noted(), "abd") is None


def test_none_is_none() -> None:
    assert key_compaction.load_state(MemoryStorage(), "abc") is None


@pytest.mark.parametrize("kept", range(0, 60, 3))
def test_one_that_is_cut_short_is_not_believed(kept: int) -> None:
    storage = MemoryStorage()
    put(storage, KEYS_FILE, read_whole(noted(), KEYS_FILE)[:kept])
    assert key_compaction.load_state(storage, "abc") is None


@pytest.mark.parametrize("position", range(0, 100, 7))
def test_one_that_is_damaged_is_not_believed(position: int) -> None:
    storage = noted()
    flip(storage, KEYS_FILE, position)
    assert key_compaction.load_state(storage, "abc") is None


def test_one_of_other_fields_is_not_believed() -> None:
    storage = noted(CompactionState("abc", ["one"], []))  # type: ignore[list-item]
    assert key_compaction.load_state(storage, "abc") is None

"""Scrubbing: every sealed segment is read now and then, a little at a time, and damage is told once."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.journal.check import scrub
from runnel.journal.check.scrub import Scrub, ScrubStep
from runnel.journal.options import JournalOptions
from runnel.testing import MemoryStorage
from runnel.testing.faulty_storage import CHANGING, READING, FaultyStorage
from tests.journal.journal_cleaning import clean
from tests.journal.written_journal import Writer

WEEK = 7 * 24 * 3600.0


def filled(count: int = 40, segment_bytes: int = 4096) -> Writer:
    writer = Writer(None, JournalOptions(segment_bytes=segment_bytes, min_free=0))
    topic = writer.topic("a")
    for number in range(count):
        writer.publish(topic, b"%03d" % number * 100)
    return writer


def scrub_of(writer: Writer, now: float = 0.0, chance: float = 0.0) -> Scrub:
    return Scrub(writer.storage, writer.journal.history, WEEK, now, lambda: chance)


def all_of(found: Scrub, now: float = 0.0) -> list[ScrubStep]:
    """All steps until nothing is due."""
    steps = []
    while (step := found.step(now)).bytes:
        steps.append(step)
    return steps


def content(writer: Writer, name: str) -> bytearray:
    assert isinstance(writer.storage, MemoryStorage)
    return writer.storage._names[name].content


def test_every_byte_of_every_sealed_segment_is_read_once_per_interval() -> None:
    writer = filled()
    sealed = [source.info for source in writer.journal.history.sources if source.info.sealed]
    found = scrub_of(writer)
    assert all(step.damage is None for step in all_of(found))
    assert found.segments == len(sealed) > 2
    assert found.bytes == sum(info.end for info in sealed)
    assert found.wait(10.0) == WEEK - 10.0
    assert all_of(found, WEEK - 1) == []
    all_of(found, WEEK)
    assert found.segments == 2 * len(sealed)


def test_a_step_reads_little_but_an_entry_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "STEP_BYTES", 1000)
    writer = filled(segment_bytes=16_384)
    writer.publish(1, bytes(14_000))
    writer.publish(1, bytes(14_000))
    steps = all_of(scrub_of(writer))
    assert sorted(step.bytes for step in steps)[-2] <= 1064
    assert max(step.bytes for step in steps) > 14_000
    assert all(step.damage is None for step in steps)


def test_the_longest_unread_is_first_and_chance_says_which_that_is_at_the_start() -> None:
    writer = filled()
    chances = iter([0.5, 0.1, 0.9, *[0.7] * 10])
    found = Scrub(writer.storage, writer.journal.history, WEEK, 0.0, lambda: next(chances))
    assert found.wait(0.0) == pytest.approx(0.1 * WEEK)
    assert found.step(0.05 * WEEK) == ScrubStep(0)
    found.step(0.95 * WEEK)
    assert found._source is writer.journal.history.sources[1]


def test_a_segment_that_was_just_written_waits_for_an_interval() -> None:
    writer = filled(12)
    found = scrub_of(writer)
    all_of(found)
    before = found.segments
    for number in range(20):
        writer.publish(1, b"%03d" % number * 100)
    assert all_of(found, 5.0) == []
    all_of(found, WEEK + 5.0)
    assert found.segments > 2 * before


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_flipped_bit_is_found_and_reported_once(data: st.DataObject) -> None:
    writer = filled(20)
    source = data.draw(st.sampled_from([one for one in writer.journal.history.sources if one.info.sealed]))
    name = data.draw(st.sampled_from([source.info.name, source.info.index_name]))
    end = source.info.end if name == source.info.name else len(content(writer, name))
    content(writer, name)[data.draw(st.integers(0, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found = scrub_of(writer)
    (damage,) = [step.damage for step in all_of(found) if step.damage is not None]
    assert damage.file == name
    assert "runnel log verify" in str(damage)
    assert list(found.damage.values()) == [damage]
    assert [step.damage for step in all_of(found, WEEK) if step.damage is not None] == [], "it was told"
    assert len(found.damage) == 1


def test_the_other_segments_are_read_though_one_is_damaged() -> None:
    writer = filled()
    sealed = [source.info for source in writer.journal.history.sources if source.info.sealed]
    content(writer, sealed[1].name)[100] ^= 1
    found = scrub_of(writer)
    all_of(found)
    assert found.segments == len(sealed) - 1


def test_a_file_that_is_missing_or_too_short_is_damage() -> None:
    writer = filled()
    first, second, *_ = (source.info for source in writer.journal.history.sources)
    writer.storage.remove(first.name)
    del content(writer, second.name)[-700:]
    found = scrub_of(writer)
    told = {step.damage.file: step.damage.why for step in all_of(found) if step.damage is not None}
    assert told[first.name] == "it is missing"
    assert second.name in told


def test_a_segment_that_is_given_up_meanwhile_is_no_damage() -> None:
    writer = filled()
    gone = writer.journal.history.sources[0]
    found = scrub_of(writer)
    found._source = gone  # it is about to be read
    writer.storage.remove(gone.info.name)
    del writer.journal.history.sources[0]
    assert all(step.damage is None for step in all_of(found))
    assert found.damage == {}


def test_what_was_damaged_and_is_gone_counts_no_more() -> None:
    writer = filled()
    gone = writer.journal.history.sources[0]
    content(writer, gone.info.name)[100] ^= 1
    found = scrub_of(writer)
    all_of(found)
    assert len(found.damage) == 1
    del writer.journal.history.sources[0]
    found.wait(1.0)
    assert found.damage == {}


def test_bytes_that_the_disk_does_not_give_are_damage_until_it_does() -> None:
    inner = filled()
    inner.journal.close()
    storage = FaultyStorage(inner.storage, kinds=(*CHANGING, *READING))
    writer = Writer(storage, inner.options)
    found = scrub_of(writer)
    storage.fail_at, storage.error = storage.calls + 2, errno.EIO
    (damage,) = [step.damage for step in all_of(found) if step.damage is not None]
    assert "Input/output error" in damage.why
    all_of(found, WEEK)
    assert found.damage == {}


def test_closing_lets_go_of_the_file_and_reading_can_begin_again() -> None:
    writer = filled()
    found = scrub_of(writer)
    found.step(0.0)
    found.close()
    found.close()
    assert all_of(found)
    assert "0 damaged" in repr(found)


def test_a_segment_that_is_replaced_while_it_is_read_is_no_damage() -> None:
    writer = filled()
    found = scrub_of(writer)
    assert found.step(1.0).bytes  # all of the first one but its index
    clean(writer.journal)
    assert all(step.damage is None for step in all_of(found))
    assert found.damage == {}

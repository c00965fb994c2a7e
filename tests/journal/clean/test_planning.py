from __future__ import annotations

import errno
from functools import cache
from random import Random
from typing import Any

import pytest

from runnel.core.batch_format import pack
from runnel.journal.clean import planning
from runnel.journal.clean.planning import LiveShare, LiveShares, choose_segments, live_share_of, stages_to_place
from runnel.journal.format.entry import PartKind, state_part
from runnel.journal.format.ledger import (
    StageState,
    progress_part,
    stage_commit_part,
    stage_part,
    staged_part,
    trim_part,
)
from runnel.journal.format.segment import SegmentInfo
from runnel.journal.options import JournalOptions
from runnel.journal.read.segment_reader import SegmentReader
from runnel.journal.storage import Storage
from runnel.testing import MemoryStorage
from tests.journal.journal_cleaning import World, clean, sealed
from tests.journal.written_journal import Writer, flip
from tests.nightly import nightly_beyond

FULL = 64_000


def shares(*sizes: tuple[int, int] | None) -> list[LiveShare | None]:
    """Segments of (total, live) bytes."""
    return [None if one is None else LiveShare(_source(number), *one) for number, one in enumerate(sizes)]


@cache
def _source(number: int) -> SegmentReader:
    return SegmentReader(MemoryStorage(), SegmentInfo(number, number))


def chosen(*sizes: tuple[int, int] | None, bound: float = 0.5, room: int | None = None) -> list[int]:
    return [source.info.number for source in choose_segments(shares(*sizes), FULL, bound, room)]


# -- what is dead -----------------------------------------------------------------------------------------------


def example() -> Writer:
    writer = Writer()
    for name in ("a", "b"):
        writer.topic(name)
    for number in range(60):
        writer.publish(1 + number % 2, *[b"%d" % number * 5] * 10)
    return writer


def dead_share(writer: Writer, at: int = 1) -> float:
    found = live_share_of(sealed(writer.journal)[at], writer.journal.living())
    return found.dead / found.total


def test_a_segment_in_which_all_is_wanted_is_hardly_dead() -> None:
    assert dead_share(example()) < 0.1


def test_half_of_a_segment_is_dead_when_one_of_two_topics_is_gone() -> None:
    writer = example()
    writer.write([state_part(PartKind.TOPIC_DELETED, topic=1)])
    assert 0.45 < dead_share(writer) < 0.6


def test_what_lies_below_the_first_offset_is_dead() -> None:
    writer = example()
    found = sealed(writer.journal)[1].index.range_of(1)
    assert found is not None
    writer.write([trim_part(1, found.first + (found.end - found.first) // 2, 0)])
    assert 0.2 < dead_share(writer) < 0.35


def test_state_is_dead_as_soon_as_its_segment_is_sealed() -> None:
    writer = example()
    for _ in range(40):
        writer.write([progress_part(1, list(range(200)), [])])
        writer.publish(1, b"one")
    assert dead_share(writer, -1) > 0.75


def test_a_segment_that_was_just_cleaned_is_not_worth_it_again() -> None:
    writer = example()
    writer.write([state_part(PartKind.TOPIC_DELETED, topic=1), trim_part(2, 7, 0)])
    clean(writer.journal)
    assert dead_share(writer, 0) < 0.1


# -- what is chosen ---------------------------------------------------------------------------------------------


def test_nothing_is_chosen_where_nothing_is_dead() -> None:
    assert chosen((FULL, FULL), (FULL, FULL), (100, 100)) == []
    assert chosen() == []


def test_a_segment_is_chosen_from_the_bound_on() -> None:
    assert chosen((FULL, FULL // 2 + 1)) == []
    assert chosen((FULL, FULL // 2)) == [0]
    assert chosen((FULL, FULL * 3 // 4), bound=0.25) == [0]


def test_the_deadest_comes_first() -> None:
    assert chosen((FULL, 30_000), (FULL, FULL), (FULL, 20_000), (FULL, FULL)) == [2]


def test_dead_neighbours_become_one_as_long_as_that_fits() -> None:
    assert chosen(*[(FULL, FULL // 3)] * 5) == [0, 1, 2]
    assert chosen((FULL, FULL // 2), (FULL, FULL), (FULL, FULL // 2)) == [0]


def test_a_small_neighbour_is_taken_along() -> None:
    assert chosen((FULL, FULL // 4), (600, 600), (FULL, FULL // 4)) == [0, 1, 2]


def test_no_job_has_more_than_eight_inputs() -> None:
    assert len(chosen(*[(FULL, 1000)] * 20)) == 8


def test_eight_small_ones_are_put_together_and_seven_are_not() -> None:
    assert chosen((FULL, FULL), *[(700, 650)] * 7, (FULL, FULL)) == []
    assert chosen((FULL, FULL), *[(700, 650)] * 8) == list(range(1, 9))


def test_a_small_one_that_grew_waits_for_its_like() -> None:
    assert chosen((8000, 8000), *[(100, 100)] * 7) == []
    assert chosen((8000, 8000), *[(100, 100)] * 8) == list(range(1, 9))


def test_one_that_is_not_to_be_touched_parts_its_neighbours() -> None:
    assert chosen((FULL, FULL // 3), None, (FULL, FULL // 3)) == [0]
    assert chosen(None, None) == []


def test_little_is_not_worth_a_job() -> None:
    assert chosen((900, 300)) == []
    assert chosen((1600, 300)) == [0]


def test_what_lives_must_fit_where_it_is_written() -> None:
    assert chosen((FULL, 20_000), room=19_000) == []
    assert chosen((FULL, 20_000), (FULL, 5_000), room=19_000) == [1]
    assert chosen((FULL, 20_000), room=20_000) == [0]


@pytest.mark.parametrize("seed", nightly_beyond(1, range(5)))
def test_all_writing_together_stays_below_two_and_a_half_times_what_was_published(seed: int) -> None:
    """Records die at random until half of all is dead, over and over."""
    random = Random(seed)
    segments: list[list[bool]] = []  # of records, which live
    written = published = 0
    size, records = FULL, 64
    for _ in range(400):
        segments.append([True] * records)
        published += size
        for segment in segments:
            for at in range(len(segment)):
                if segment[at] and random.random() < 0.02:
                    segment[at] = False
        while True:
            now = shares(*[(len(one) * 1000, sum(one) * 1000) for one in segments])
            picked = [source.info.number for source in choose_segments(now, FULL)]
            if not picked:
                break
            alive = [True for number in picked for lives in segments[number] if lives]
            written += len(alive) * 1000
            segments[picked[0] : picked[-1] + 1] = [alive] if alive else []
    live, total = sum(map(sum, segments)) * 1000, sum(map(len, segments)) * 1000
    assert (published + written) / published < 2.5
    assert total < 2.2 * live


# -- looking ----------------------------------------------------------------------------------------------------


def look(found: LiveShares, writer: Writer) -> int:
    """Look once; how many segments were looked into."""
    return len(list(found.look(writer.journal.history.sources, writer.journal.living())))


def test_a_segment_is_looked_into_again_only_when_something_in_it_died(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = example()
    writer.topic("c")
    found = LiveShares()
    assert look(found, writer) == len(sealed(writer.journal))
    assert look(found, writer) == 0
    writer.write([state_part(PartKind.TOPIC_DELETED, topic=3)])
    assert look(found, writer) == 0
    before = found.live
    writer.write([trim_part(1, 5, 0)])
    assert look(found, writer) == len(sealed(writer.journal))
    assert found.live < before <= found.total
    monkeypatch.setattr(planning, "FEW", 0)
    writer.write([trim_part(1, 6, 0)])
    assert look(found, writer) == len(sealed(writer.journal))
    fresh = LiveShares()
    look(fresh, writer)
    assert fresh.now == found.now


def test_what_is_written_refused_or_hard_to_read_is_not_touched() -> None:
    writer = example()
    sources = sealed(writer.journal)
    found = LiveShares()
    found.refuse(sources[:1])
    flip(writer.storage, sources[1].info.index_name, 20)  # it is made again from the segment
    flip(writer.storage, sources[2].info.index_name, 20)
    flip(writer.storage, sources[2].info.name, 200)  # and here that cannot be done
    for source in sources:
        source._index = None
    look(found, writer)
    assert [share is None for share in found.now] == [True, False, True, *[False] * (len(sources) - 3), True]


def test_one_that_could_not_be_read_is_tried_again_later_and_does_not_stop_the_others() -> None:
    writer = example()
    sources = sealed(writer.journal)
    found = LiveShares()
    found.refuse(sources[:1], until=100)
    flip(writer.storage, sources[1].info.index_name, 20)
    sources[1]._index = None
    flaky = Flaky(writer.storage)
    sources[1].storage = flaky
    living = writer.journal.living()
    list(found.look(sources, living, 99))
    assert [share is None for share in found.now[:3]] == [True, True, False]
    assert isinstance(found.error, OSError)
    flaky.works = True
    list(found.look(sources, living, 99 + planning.RETRY_AFTER - 1))
    assert [share is None for share in found.now[:3]] == [False, True, False]
    assert found.error is None
    list(found.look(sources, living, 99 + planning.RETRY_AFTER))
    assert None not in found.now


class Flaky:
    """A storage of which nothing can be read for a while."""

    def __init__(self, inner: Storage) -> None:
        self.inner, self.works = inner, False

    def __getattr__(self, name: str) -> Any:
        if not self.works:
            raise OSError(errno.EIO, "Input/output error")
        return getattr(self.inner, name)


# -- coming to an end -------------------------------------------------------------------------------------------


def settle(writer: Writer, found: LiveShares, bound: float) -> list[list[int]]:
    """Clean as long as it is worth it; the generations of what each job read."""
    jobs: list[list[int]] = []
    while True:
        look(found, writer)
        picked = choose_segments(found.now, writer.journal.options.segment_bytes, bound)
        if not picked:
            return jobs
        jobs.append([source.info.generation for source in picked])
        assert len(jobs) < 30, "it cleans for ever"
        living, stages = writer.journal.living(), stages_to_place(found.now, picked, bound)
        found.made(clean(writer.journal, picked, placing=stages).made, living)


@pytest.mark.parametrize("bound", [0.1, 0.5])
@pytest.mark.parametrize("length", [8, 30, 200])
def test_names_and_headers_of_a_cleaned_segment_are_not_dead(bound: float, length: int) -> None:
    writer = Writer(options=JournalOptions(segment_bytes=1 << 16, min_free=0))
    topics = [writer.topic(f"t{number:05d}".ljust(length, "n")) for number in range(120)]
    junk = writer.topic("junk")
    for topic in topics:
        writer.publish(topic, b"x")
    for _ in range(8):
        writer.publish(junk, bytes(1 << 14))
    writer.write([trim_part(junk, writer.journal.ledger.topics[junk].end, 0)])
    found = LiveShares()
    jobs = settle(writer, found, bound)
    assert jobs
    assert all(not any(job) for job in jobs), "nothing that was cleaned is worth it again"
    fresh = LiveShares()  # nor is it after a restart
    look(fresh, writer)
    assert choose_segments(fresh.now, 1 << 16, bound) == []
    for topic in topics[:100]:  # and when most has died, it is
        writer.write([state_part(PartKind.TOPIC_DELETED, topic=topic)])
    look(found, writer)
    assert found.live < found.total / 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bound", [0.1, 0.5])
def test_nothing_is_cleaned_twice_in_a_row_unless_something_died(seed: int, bound: float) -> None:
    world, found = World(seed), LiveShares()
    for _ in range(4):
        world.work(150)
        jobs = settle(world.writer, found, bound)
        assert settle(world.writer, found, bound) == []
        assert len(jobs) < 20


# -- stages -----------------------------------------------------------------------------------------------------


def with_a_stage(records: int = 1000, beside: int = 0) -> tuple[Writer, int]:
    """A topic with a committed stage of some 16,000 bytes in a sealed segment, beside others of so many bytes."""
    writer = Writer(options=JournalOptions(segment_bytes=1 << 14, min_free=0))
    topic, other = writer.topic("t"), writer.topic("other")
    values = [b"x" * 16] * (records // 10)
    writer.write([stage_part(StageState(1, "w", 0, 0, 0, topic, 5))])
    for ordinal in range(10):
        writer.write([staged_part(1, ordinal, pack(values), 5)])
    ledger = writer.journal.ledger
    writer.write([stage_commit_part(ledger.stages[1], 0, ledger.sequence, writer.now + 1)])
    for _ in range(beside // 1000):
        writer.publish(topic, bytes(1000))
    writer.publish(other, bytes(1 << 14))
    return writer, topic


@pytest.mark.parametrize("bound", [0.1, 0.5])
def test_a_stage_that_is_dead_enough_goes_into_its_topic_once(bound: float) -> None:
    writer, topic = with_a_stage()
    found = LiveShares()
    assert settle(writer, found, bound) == []
    writer.write([trim_part(topic, 900, 0)])
    assert settle(writer, found, bound)
    assert not writer.journal.ledger.committed
    ranges = [one for source in sealed(writer.journal) if (one := source.index.range_of(topic)) is not None]
    assert [(one.first, one.end, one.records) for one in ranges] == [(900, 1000, 100)]
    assert settle(writer, found, bound) == []
    assert settle(writer, LiveShares(), bound) == []  # nor is it after a restart


def test_a_stage_is_left_where_it_lies_while_most_of_it_lives() -> None:
    writer, topic = with_a_stage()
    writer.write([trim_part(topic, 200, 0)])
    assert settle(writer, LiveShares(), 0.5) == []
    assert list(writer.journal.ledger.committed) == [1]


def test_a_dead_stage_waits_while_much_lives_beside_its_commit() -> None:
    writer, topic = with_a_stage(records=100, beside=10_000)
    writer.write([trim_part(topic, 60, 0)])
    assert settle(writer, LiveShares(), 0.5) == []
    writer.write([trim_part(topic, 106, 0)])  # and now most of that is dead as well
    assert settle(writer, LiveShares(), 0.5)
    assert not writer.journal.ledger.committed


def test_what_is_dead_of_a_stage_is_not_live() -> None:
    writer, topic = with_a_stage()
    writer.write([trim_part(topic, 500, 0)])
    found = LiveShares()
    look(found, writer)
    there = [share for share in found.now if share is not None]
    (stage,) = [one for share in there for one in share.stages]
    assert stage.live == stage.total // 2
    assert found.live == sum(share.live for share in there) - stage.live


def test_a_stage_that_cannot_be_read_is_no_reason_to_clean() -> None:
    writer, topic = with_a_stage()
    writer.write([trim_part(topic, 900, 0)])
    found = LiveShares()
    look(found, writer)
    assert choose_segments(found.now, 1 << 14, 0.5)
    found.refuse_stage(1)
    look(found, writer)
    assert choose_segments(found.now, 1 << 14, 0.5) == []
    assert stages_to_place(found.now, sealed(writer.journal), 0.5) == frozenset()

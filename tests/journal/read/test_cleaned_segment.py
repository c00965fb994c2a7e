"""Cleaned segments: they read as what they were made from, from every start, and tell what is damaged in them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.format.atomic_file import read_whole
from runnel.journal.format.index import IndexFile
from runnel.journal.format.segment import START
from runnel.journal.read import cleaned_segment
from runnel.journal.read.cleaned_segment import CleanedChunk
from runnel.journal.read.journal_reader import JournalReader, ReadPlan
from runnel.journal.read.segment_reader import FoundBatch, LostRange, SegmentReader, rebuild_index
from runnel.testing import MemoryStorage
from tests.journal.cleaned_segments import Block, Rec, block_lists, by_topic, cleaned, in_sequence, plain, read_all
from tests.nightly import examples

TOPICS = (1, 2, 3, 4)


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with mock.patch.object(cleaned_segment, "FIRST_READ", 100):
        yield


def every(blocks: list[Block]) -> list[Rec]:
    return plain(one for block in blocks for one in block)


@st.composite
def histories(draw: st.DrawFn) -> tuple[JournalReader, list[Rec]]:
    """One or two cleaned segments, and what is in them."""
    blocks = draw(block_lists())
    most = draw(st.sampled_from([1, 3, 1000]))
    split = draw(st.integers(0, len(blocks)))
    storage = MemoryStorage()
    sources = [cleaned(some, storage, number, most) for number, some in ((1, blocks[:split]), (2, blocks[split:]))]
    return JournalReader([source for source in sources if source.info.end > START]), every(blocks)


@examples(25, 100)
@given(histories())
def test_by_topic_they_read_as_what_they_were_made_from(made: tuple[JournalReader, list[Rec]]) -> None:
    history, records = made
    for topic in TOPICS:
        mine = [one for one in records if one.topic == topic]
        for offset in {0, *(one.offset + more for one in mine for more in (0, 1))}:
            assert by_topic(history, topic, offset) == [one for one in mine if one.offset >= offset]


@examples(25, 100)
@given(histories(), st.sets(st.sampled_from(TOPICS), min_size=1))
def test_by_sequence_they_read_as_what_they_were_made_from(
    made: tuple[JournalReader, list[Rec]], topics: set[int]
) -> None:
    history, records = made
    mine = [one for one in records if one.topic in topics]
    for sequence in {0, *(one.sequence + more for one in records for more in (0, 1))}:
        assert in_sequence(history, topics, sequence) == [one for one in mine if one.sequence >= sequence]


@examples(20, 60)
@given(histories())
def test_times_are_found(made: tuple[JournalReader, list[Rec]]) -> None:
    history, records = made
    for time in range(999, max((one.time for one in records), default=1000) + 2):
        first = next((one for one in records if one.time >= time), None)
        assert history.sequence_at(time, TOPICS) == (None if first is None else first.sequence)
        for topic in TOPICS:
            own = next((one for one in records if one.topic == topic and one.time >= time), None)
            assert history.offset_at(topic, time) == (None if own is None else own.offset)
        plan = history.plan_sequence_at_time(time)
        found = read_all(history, plan, TOPICS, 0, by_sequence=True)
        assert [one for one in found if isinstance(one, Rec) and one.time >= time] == [
            one for one in records if one.time >= time
        ]


@examples(20, 60)
@given(histories())
def test_the_next_offset_of_each_topic_at_a_sequence_is_found(made: tuple[JournalReader, list[Rec]]) -> None:
    history, records = made
    for sequence in range((records[-1].sequence if records else 0) + 2):
        due = {
            topic: next(one.offset for one in records if one.topic == topic and one.sequence >= sequence)
            for topic in TOPICS
            if any(one.topic == topic and one.sequence >= sequence for one in records)
        }
        assert history.offsets_at(sequence, TOPICS) == due


@examples(20, 60)
@given(block_lists(min_size=1))
def test_an_index_made_again_is_the_one_that_was_written(blocks: list[Block]) -> None:
    source = cleaned(blocks)
    builder, whole = rebuild_index(source.storage, source.info)
    assert whole
    assert builder.encode(source.info) == read_whole(source.storage, source.info.index_name)


@given(block_lists(min_size=1, stages=False))
def test_pieces_of_a_block_are_as_few_as_its_order_allows(blocks: list[Block]) -> None:
    history = JournalReader([cleaned(blocks)])
    plan, pieces = history.plan_sequence(0), list[FoundBatch]()
    while plan is not None:
        parsed = history.parse(plan, history.fetch(plan), TOPICS, by_sequence=True)
        pieces += [item for item in parsed.items if isinstance(item, FoundBatch)]
        plan = history.plan_sequence(parsed.place, plan, parsed.position)
    changes = 0
    for block in blocks:
        topics = [one.topic for one in block]
        changes += 1 + sum(one != two for one, two in pairwise(topics))
    assert len(pieces) == changes


def test_a_block_is_merged_as_it_is_asked_for() -> None:
    blocks = [[Rec(1 + at % 2, at // 2, at, 1, b"x") for at in range(1000)]]
    history = JournalReader([cleaned(blocks)])
    plan = history.plan_sequence(0)
    assert plan is not None
    parsed = history.parse(plan, history.fetch(plan), TOPICS, by_sequence=True)
    made = 0

    def piece(*args: object) -> FoundBatch:
        nonlocal made
        made += 1
        return real(*args)  # type: ignore[arg-type]

    real = cleaned_segment._piece
    with mock.patch.object(cleaned_segment, "_piece", piece):
        items = iter(parsed.items)
        next(items)
        assert made == 1


def test_a_reader_of_one_topic_reads_its_entries_alone() -> None:
    blocks = [[Rec(topic, at, 10 * at + topic, at, b"v" * 50) for topic in TOPICS] for at in range(5)]
    source = cleaned(blocks)
    history, plans = JournalReader([source]), list[ReadPlan]()
    fetch = JournalReader.fetch

    def noted(plan: ReadPlan) -> bytes | CleanedChunk:
        plans.append(plan)
        return fetch(plan)

    with mock.patch.object(JournalReader, "fetch", staticmethod(noted)):
        assert len(by_topic(history, 3)) == 5
    assert [plan.position for plan in plans] == [source.index.window(3, at)[0] for at in range(5)]


# -- damage -----------------------------------------------------------------------------------------------------

EXAMPLE: list[Block] = [
    [
        Rec(1, 0, 10, 5, b"a"),
        Rec(2, 7, 11, 5, b"b"),
        Rec(1, 1, 12, 6, b"c"),
        Rec(1, 4, 13, 6, b"d"),
        Rec(2, 9, 16, 6, b"e"),
        Rec(3, 0, 17, 7, b"f", stage=1),
        Rec(3, 1, 18, 7, b"g", stage=1),
        Rec(3, 2, 19, 7, b"h", stage=1),
    ],
    [Rec(2, 10, 25, 8, b"i"), Rec(1, 6, 27, 8, b"j"), Rec(2, 11, 28, 9, b"k"), Rec(3, 4, 29, 9, b"l")],
]
LATER: Block = [Rec(1, 20, 40, 9, b"m"), Rec(2, 30, 41, 9, b"n"), Rec(3, 20, 42, 9, b"o")]
ALL = every([*EXAMPLE, LATER])


def check(told: list[Rec | LostRange], expected: list[Rec], what: str, *, by_sequence: bool) -> tuple[int, int]:
    """Nothing is served that was not written, and all that is missing is told; how much is missing, and more told."""
    served = [one for one in told if isinstance(one, Rec)]
    assert [one for one in expected if one in served] == served, f"{what}: {served}"
    places = {(one.sequence if by_sequence else one.offset) for one in expected if one not in served}
    said = {place for one in told if isinstance(one, LostRange) for place in range(one.first, one.end)}
    assert places <= said, f"{what}: {sorted(places - said)} are missing, and nobody says so"
    got = {one.sequence if by_sequence else one.offset for one in served}
    assert not said & got, f"{what}: {sorted(said & got)} are said to be lost, and were served"
    order = [one.first if isinstance(one, LostRange) else one.sequence if by_sequence else one.offset for one in told]
    assert order == sorted(order), what
    return len(places), len(said - places)


def check_reading(source: SegmentReader, what: str) -> tuple[int, int]:
    """Read it in every way; how many records are lost by topic, and how many by sequence."""
    history = JournalReader([source, cleaned([LATER], number=2)])  # what follows tells how far something was lost
    lost = 0
    for topic in (1, 2, 3):
        mine = [one for one in ALL if one.topic == topic]
        lost += check(by_topic(history, topic), mine, what, by_sequence=False)[0]
    return lost, check(in_sequence(history, TOPICS), ALL, what, by_sequence=True)[0]


@pytest.mark.parametrize("index", ["index kept", "index lost"])
def test_one_changed_bit_anywhere_is_reported_and_never_served(index: str) -> None:
    source = cleaned(EXAMPLE, most=3)
    storage = source.storage
    assert isinstance(storage, MemoryStorage)
    data = read_whole(storage, source.info.name)
    if index == "index lost":
        storage.remove(source.info.index_name)
    worst = total = 0
    for at in range(len(data)):
        copy = storage.after_kill()
        file = copy.open(source.info.name, writable=True)
        file.write(at, [bytes([data[at] ^ 1 << at % 8])])
        by_topics, by_order = check_reading(SegmentReader(copy, source.info), f"flipped at {at}")
        assert by_topics == by_order or at < START
        worst, total = max(worst, by_topics), total + by_topics
    assert 0 < worst <= 4  # never more than what one entry, or one commit, holds
    assert total > 100


@examples(25, 100)
@given(block_lists(min_size=1), st.data())
def test_however_many_bytes_change_all_that_is_missing_is_reported(blocks: list[Block], data: st.DataObject) -> None:
    later = [Rec(topic, 1000, 10_000 + topic, 9999, b"later") for topic in TOPICS]
    source, records = cleaned(blocks, most=2), [*every(blocks), *later]
    file = source.storage.open(source.info.name, writable=True)
    for at in data.draw(st.sets(st.integers(START, source.info.end - 1), min_size=1, max_size=6)):
        file.write(at, [bytes([file.read(at, 1)[0] ^ 16])])
    if data.draw(st.booleans()):
        source.storage.remove(source.info.index_name)
    history = JournalReader([source, cleaned([later], number=2)])
    for topic in TOPICS:
        mine = [one for one in records if one.topic == topic]
        check(by_topic(history, topic), mine, f"topic {topic}", by_sequence=False)
    check(in_sequence(history, TOPICS), records, "by sequence", by_sequence=True)


def test_a_segment_that_is_cut_anywhere_tells_what_is_missing() -> None:
    source = cleaned(EXAMPLE, most=3)
    storage = source.storage
    assert isinstance(storage, MemoryStorage)
    for at in range(START, source.info.end, 3):
        for kept in (True, False):
            copy = storage.after_kill()
            copy.open(source.info.name, writable=True).truncate(at)
            if not kept:
                copy.remove(source.info.index_name)
            by_topics, by_order = check_reading(SegmentReader(copy, source.info), f"cut at {at}")
            assert by_topics == by_order > 0


def test_a_damaged_index_is_made_again() -> None:
    source = cleaned(EXAMPLE, most=3)
    storage = source.storage
    assert isinstance(storage, MemoryStorage)
    data = read_whole(storage, source.info.index_name)
    for at in range(len(data)):
        copy = storage.after_kill()
        copy.open(source.info.index_name, writable=True).write(at, [bytes([data[at] ^ 4])])
        damaged = SegmentReader(copy, source.info)
        assert check_reading(damaged, f"index flipped at {at}") == (0, 0)
        assert damaged.damage
        assert not damaged.suspect


def test_damaged_records_cost_exactly_their_runs() -> None:
    source = cleaned(EXAMPLE)
    data = read_whole(source.storage, source.info.name)
    at = data.index(b"\xc4\x01a") + 2  # the value of the first record of topic 1: its runs are [0, 2) and [4, 5)
    source.storage.open(source.info.name, writable=True).write(at, [b"A"])
    told = by_topic(JournalReader([source]), 1)
    assert [(one.first, one.end) for one in told if isinstance(one, LostRange)] == [(0, 2), (4, 5)]
    told = in_sequence(JournalReader([source]), TOPICS)
    assert [(one.first, one.end) for one in told if isinstance(one, LostRange)] == [(10, 11), (12, 13), (13, 14)]
    assert not [one for one in in_sequence(JournalReader([source]), (2, 3)) if isinstance(one, LostRange)]


def test_without_an_account_of_the_contents_all_unexplained_records_are_lost() -> None:
    source = cleaned(EXAMPLE)
    index = source.index
    assert isinstance(index, IndexFile)
    at, _ = index.window(1, 0)
    source.storage.open(source.info.name, writable=True).write(at, [b"?"])  # the head of the first entry of topic 1
    told = in_sequence(JournalReader([source]), TOPICS)
    assert [(one.first, one.end) for one in told if isinstance(one, LostRange)] == [(10, 11), (12, 16), (20, 25)]
    told = by_topic(JournalReader([source]), 1)
    assert told == [LostRange(0, 6, f"damaged on disk (000000000001-1.seg at {at})"), ALL[9]]

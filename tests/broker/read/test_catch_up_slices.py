"""Batches as slices: every record once and in order, of merged batches too, and no batch is decoded too early."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.read import catch_up
from runnel.broker.read.catch_up import SLICE, slices
from runnel.broker.topic.log import Log
from runnel.core.batch import PackedSlice, Slice
from runnel.core.batch_format import pack, unpack
from runnel.core.record import Meta
from runnel.journal.format.merged_batch import RecordRun
from runnel.journal.read.journal_reader import JournalReader
from runnel.journal.read.segment_reader import FoundBatch, FoundItem, LostRange, StageCommit
from tests.broker.broker_parts import make_log
from tests.carried import columns_of
from tests.journal.cleaned_segments import Block, Rec, block_lists, cleaned
from tests.nightly import examples

TOPICS = (1, 2, 3, 4)
NAMES = {f"t{topic}": topic for topic in TOPICS}


def logs() -> dict[int, Log]:
    return {topic: make_log(name) for name, topic in NAMES.items()}


def found_in(blocks: list[Block], topics: tuple[int, ...], *, by_sequence: bool) -> list[FoundItem]:
    """What a cleaned segment of these blocks holds."""
    history, items, position = JournalReader([cleaned(blocks)]), list[FoundItem](), 0
    plan = history.plan_sequence(0) if by_sequence else history.plan(topics[0], 0)
    while plan is not None:
        parsed = history.parse(plan, history.fetch(plan), topics, by_sequence=by_sequence)
        items += parsed.items
        position = parsed.position
        again = (parsed.place, plan, position)
        plan = history.plan_sequence(*again) if by_sequence else history.plan(topics[0], *again)
    return items


def records_in(made: list[Slice]) -> list[tuple[int, int, int, bytes, bytes | None]]:
    return [(NAMES[one.topic], one.offset, one.sequence, one.value, one.key) for part in made for one in part.records]


@examples(25, 80)
@given(block_lists(stages=False), st.booleans())
def test_records_of_merged_batches_come_once_in_order_and_slices_have_no_holes(
    blocks: list[Block], by_sequence: bool
) -> None:
    for topics in (TOPICS,) if by_sequence else ((1,), (2,)):
        expected = [one for block in blocks for one in block if one.topic in topics]
        items = found_in(blocks, topics, by_sequence=by_sequence)
        made = [one for one in slices(items, logs(), by_sequence=by_sequence) if isinstance(one, Slice)]
        assert records_in(made) == [(one.topic, one.offset, one.sequence, one.value, one.key) for one in expected]
        for part in made:
            records = part.records
            assert all(two.offset == one.offset + 1 for one, two in pairwise(records))
            assert not by_sequence or all(two.sequence == one.sequence + 1 for one, two in pairwise(records))
        times = [one.time for part in made for one in part.records]
        assert [round(time.timestamp() * 1e6) for time in times] == [one.time for one in expected]


def test_a_batch_is_decoded_once_and_when_its_first_record_is_asked_for() -> None:
    blocks = [[Rec(1 + at % 2, at // 2, at, 1, b"x") for at in range(20)]]
    items = found_in(blocks, TOPICS, by_sequence=True)
    assert len(items) == 20
    with mock.patch.object(catch_up, "unpack", wraps=unpack) as decoding:
        made = slices(items, logs(), by_sequence=True)
        assert decoding.call_count == 0
        next(made)
        assert decoding.call_count == 2  # the second says that the first slice ends
        assert len(list(made)) == 19
        assert decoding.call_count == 2


def test_a_long_run_comes_in_slices_that_are_not_too_long() -> None:
    count = 3 * SLICE + 5
    item = FoundBatch(1, 0, count - 1, 0, 0, pack([b"x"] * count), [RecordRun(0, 0, 0, count)])
    made = [one for one in slices([item], logs(), by_sequence=False) if isinstance(one, Slice)]
    assert [len(one) for one in made] == [SLICE, SLICE, SLICE, 5]
    assert [one.start for one in made] == [0, SLICE, 2 * SLICE, 3 * SLICE]


@pytest.mark.parametrize("by_sequence", [True, False])
def test_a_merged_batch_that_cannot_be_decoded_is_lost_run_by_run(by_sequence: bool) -> None:
    bad = pack([b"x"] * 3)[:48] + b"\xff" * 8
    runs = [RecordRun(5, 50, 0, 2), RecordRun(9, 60, 0, 1)]
    good = FoundBatch(1, 10, 10, 61, 0, pack([b"y"]))
    made = list(slices([FoundBatch(1, 5, 9, 50, 0, bad, runs), good], logs(), by_sequence=by_sequence))
    lost = [(one.first, one.end) for one in made if isinstance(one, LostRange)]
    assert lost == ([(50, 52), (60, 61)] if by_sequence else [(5, 7), (9, 10)])
    assert isinstance(made[-1], Slice)


def test_what_was_staged_is_handed_on_between_slices() -> None:
    staged = StageCommit(1, 1, 3, 1, 0, 7, (3,))
    one, two = FoundBatch(1, 0, 0, 0, 0, pack([b"a"])), FoundBatch(1, 4, 4, 4, 0, pack([b"b"]))
    made = list(slices([one, staged, two], logs(), by_sequence=False))
    assert [type(item) for item in made] == [Slice, StageCommit, Slice]


def test_plain_and_merged_batches_that_go_on_become_one_slice() -> None:
    one = FoundBatch(1, 0, 1, 0, 0, pack([b"a", b"b"]))
    two = FoundBatch(1, 2, 4, 2, 0, pack([b"c", b"d", b"e"]), [RecordRun(2, 2, 0, 2), RecordRun(4, 9, 1, 1)])
    three = FoundBatch(1, 5, 5, 10, 1, pack([b"f"]))
    (whole,) = slices([one, two, three], logs(), by_sequence=False)
    assert isinstance(whole, Slice)
    assert whole.values == (b"a", b"b", b"c", b"d", b"e", b"f")
    assert [record.sequence for record in whole.records] == [0, 1, 2, 3, 9, 10]
    assert [len(part) for part in slices([one, two, three], logs(), by_sequence=True) if isinstance(part, Slice)] == [
        4,
        2,
    ]


@pytest.mark.parametrize("by_sequence", [True, False])
def test_a_batch_with_holes_becomes_slices_without(by_sequence: bool) -> None:
    item = FoundBatch(1, 10, 15, 50, 0, pack([b"a", b"b", b"c", b"d"], deltas=[0, 1, 4, 5]))
    made = [one for one in slices([item], logs(), by_sequence=by_sequence) if isinstance(one, Slice)]
    assert [(one.start, one.sequence, one.values) for one in made] == [(10, 50, (b"a", b"b")), (14, 54, (b"c", b"d"))]


def test_batches_of_values_alone_stay_packed_for_those_who_send_them_on_and_are_not_cut() -> None:
    count, key = SLICE // 2 - 10, columns_of([Meta(b"k")])
    bodies = [
        pack([b"v"] * count),
        pack([b"w"] * count),
        pack([b"x"] * count),
        pack([b"y"], key),
        pack([b"z"]),
    ]
    items, at = list[FoundItem](), 0
    for body in bodies:
        size = len(unpack(body))
        items.append(FoundBatch(1, at, at + size - 1, 100 + at, 5, body))
        at += size
    with mock.patch.object(catch_up, "unpack", wraps=unpack) as decoding:
        made = [one for one in slices(items, logs(), by_sequence=False, packed=True) if isinstance(one, Slice)]
    assert decoding.call_count == 1  # of the one with a key
    assert [type(one) for one in made] == [PackedSlice, PackedSlice, Slice, PackedSlice]
    assert [len(one) for one in made] == [2 * count, count, 1, 1]
    assert [one.packs for one in made] == [bodies[:2], bodies[2:3], bodies[3:4], bodies[4:]]
    plain = [one for one in slices(items, logs(), by_sequence=False) if isinstance(one, Slice)]
    assert [one for part in made for one in part.records] == [one for part in plain for one in part.records]


def test_a_batch_that_does_not_have_as_many_records_as_its_entry_says_is_looked_into() -> None:
    items = [FoundBatch(1, 0, 5, 100, 5, pack([b"v"] * 3))]
    (one,) = slices(items, logs(), by_sequence=False, packed=True)
    assert type(one) is Slice


def test_a_packed_batch_whose_header_makes_no_sense_is_lost() -> None:
    items = [FoundBatch(1, 0, 2, 100, 5, b"x" * 60)]
    (one,) = slices(items, logs(), by_sequence=False, packed=True)
    assert isinstance(one, LostRange)

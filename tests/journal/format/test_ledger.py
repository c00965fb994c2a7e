"""The ledger: what entries add up to is the same however one comes to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.batch_format import pack
from runnel.core.deduplication import MAX_MESSAGE_IDS, MAX_PRODUCER_SECONDS, SHRINK_DIVISOR
from runnel.core.errors import FormatUnknown
from runnel.core.position import Position
from runnel.core.stages import StageKey
from runnel.journal.format.entry import Part, PartKind, state_part
from runnel.journal.format.ledger import (
    CommittedStage,
    CursorState,
    DeliveryFailure,
    GroupState,
    Ledger,
    StageState,
    TopicState,
    compacted_part,
    confirmed_part,
    cursor_forgotten_part,
    cursor_part,
    group_part,
    ids_part,
    marker_part,
    progress_part,
    stage_commit_part,
    stage_dropped_part,
    stage_part,
    staged_part,
    topic_part,
    trim_part,
)
from runnel.journal.format.removed_offsets import RemovalReason, RemovedRange
from tests.journal.written_journal import batch

TOPIC, GROUP, STAGE, OFFSET = st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 30)


def made_topic(topic: int, epoch: int, kept: int) -> Part:
    return topic_part(TopicState(topic, f"topic.{topic}", epoch, {"retention_count": kept}, {"encoding": "json"}))


def made_group(group: int, topic: int, floor: int) -> Part:
    pattern = f"topic.{topic}" if topic < 4 else "topic.>"
    return group_part(GroupState(group, f"group.{group}", pattern, {"ack_wait": 30.0}, floor))


def published(topic: int, base: int, count: int, sequence: int, time: int) -> Part:
    return batch(topic, base, sequence, time, [b"x"] * count)


def produced(topic: int, base: int, count: int, producer: int, number: int) -> Part:
    body = pack([b"x"] * count, producer=producer, producer_sequence=number)
    return Part(PartKind.BATCH, body, int.from_bytes(body[:4], "little"), topic, base, base + count - 1, 0, 5)


def identified(topic: int, offset: int, ids: list[str]) -> Part:
    return ids_part(topic, ids, list(range(offset, offset + len(ids))), 7)


def opened(stage: int, topic: int) -> Part:
    return stage_part(StageState(stage, "writer", 7, 0, stage, topic, 9))


def staged(stage: int, ordinal: int, count: int) -> Part:
    return staged_part(stage, ordinal, pack([b"x"] * count), 11)


def committed(stage: int, topic: int, base: int, counts: list[int]) -> Part:
    return stage_commit_part(StageState(stage, "writer", 7, 0, stage, topic, 9, counts, 100), base, 3, 12)


def progressed(group: int, first: int, count: int, failed: int) -> Part:
    return progress_part(group, [first, first + count], [(failed, 2, 7.5, "ValueError: no")])


def cursor(name: str, place: int) -> Part:
    return cursor_part(CursorState(name, "topic.>", 0, place))


PARTS = st.one_of(
    st.builds(made_topic, TOPIC, st.integers(1, 9), st.integers(1, 9)),
    st.builds(published, TOPIC, OFFSET, st.integers(1, 3), st.integers(0, 99), st.integers(0, 99)),
    st.builds(lambda topic: state_part(PartKind.TOPIC_DELETED, topic=topic), TOPIC),
    st.builds(trim_part, TOPIC, OFFSET, OFFSET),
    st.builds(cursor, st.sampled_from("abc"), OFFSET),
    st.builds(made_group, GROUP, TOPIC, OFFSET),
    st.builds(progressed, GROUP, OFFSET, st.integers(0, 4), OFFSET),
    st.builds(lambda group: state_part(PartKind.GROUP_DELETED, topic=group), GROUP),
    st.builds(lambda base: state_part(PartKind.SEQUENCE, base=base), st.integers(0, 999)),
    st.builds(produced, TOPIC, OFFSET, st.integers(1, 3), st.integers(1, 3), st.integers(0, 9)),
    st.builds(identified, TOPIC, OFFSET, st.lists(st.sampled_from("abcdef"), max_size=3)),
    st.builds(marker_part, st.sampled_from("abc"), st.one_of(st.none(), OFFSET, st.text(max_size=2), st.binary())),
    st.builds(trim_part, TOPIC, OFFSET, OFFSET, st.sampled_from(RemovalReason), OFFSET),
    st.builds(compacted_part, TOPIC, OFFSET, OFFSET, OFFSET, OFFSET, OFFSET),
    st.builds(cursor_forgotten_part, st.sampled_from("abc")),
    st.builds(opened, STAGE, TOPIC),
    st.builds(staged, STAGE, st.integers(0, 2), st.integers(1, 3)),
    st.builds(committed, STAGE, TOPIC, OFFSET, st.lists(st.integers(1, 3), min_size=1, max_size=3)),
    st.builds(stage_dropped_part, STAGE),
    st.builds(lambda kind, body: state_part(kind, body), st.integers(128, 255), st.binary(max_size=5)),
)
ENTRIES = st.lists(st.tuples(st.lists(PARTS, max_size=4), st.integers(0, 99)), max_size=25)
Entries = list[tuple[list[Part], int]]


def seen(ledger: Ledger) -> dict[str, Any]:
    """All of it, to compare."""
    return {
        "topics": ledger.topics,
        "cursors": ledger.cursors,
        "groups": {group: found.encode() for group, found in ledger.groups.items()},
        "marks": ledger.marks,
        "producers": {producer: ledger.producers.encode(producer) for producer in ledger.producers},
        "ids": {topic: window.encode(everything=True) for topic, window in ledger.ids.items() if len(window)},
        "stages": (ledger.stages, ledger.committed),
        "scalars": [
            ledger.next_topic,
            ledger.next_group,
            ledger.epoch,
            ledger.sequence,
            ledger.reserved,
            ledger.time,
            ledger.next_stage,
        ],
    }


def replayed(entries: Entries) -> Ledger:
    ledger = Ledger()
    for parts, time in entries:
        ledger.apply(parts, time)
    return ledger


def through_bytes(pieces: list[list[Any]]) -> list[list[Any]]:
    return [msgspec.msgpack.decode(msgspec.msgpack.encode(piece)) for piece in pieces]


@given(ENTRIES, st.sets(st.integers(0, 25)))
def test_a_chain_of_checkpoints_is_what_replaying_everything_gives(entries: Entries, checkpoints: set[int]) -> None:
    ledger, chain = Ledger(), list[list[list[Any]]]()
    for at, (parts, time) in enumerate(entries):
        if at in checkpoints:
            chain.append(through_bytes(ledger.changes(everything=not chain)))
            ledger.checked()
        ledger.apply(parts, time)
    chain.append(through_bytes(ledger.changes(everything=not chain)))
    again = Ledger()
    for pieces in chain:
        again.restore(pieces)
    assert seen(again) == seen(ledger) == seen(replayed(entries))


@given(ENTRIES, st.integers(0, 25))
def test_a_checkpoint_and_the_entries_behind_it_are_what_replaying_everything_gives(
    entries: Entries, taken: int
) -> None:
    again = Ledger()
    again.restore(through_bytes(replayed(entries[:taken]).changes(everything=True)))
    for parts, time in entries[taken:]:
        again.apply(parts, time)
    assert seen(again) == seen(replayed(entries))


@given(ENTRIES)
def test_a_checkpoint_that_was_not_kept_costs_nothing(entries: Entries) -> None:
    ledger = Ledger()
    for parts, time in entries:
        ledger.apply(parts, time)
        ledger.changes(everything=False)  # written, and then the roll failed
    again = Ledger()
    again.restore(through_bytes(ledger.changes(everything=False)))
    assert seen(again) == seen(ledger)


@given(ENTRIES)
def test_numbers_once_given_are_never_given_again(entries: Entries) -> None:
    ledger = Ledger()
    before = seen(ledger)["scalars"]
    for parts, time in entries:
        ledger.apply(parts, time)
        after = seen(ledger)["scalars"]
        assert all(new >= old for new, old in zip(after, before, strict=True))
        assert all(ledger.next_topic > topic for topic in ledger.topics)
        assert all(ledger.next_group > group for group in ledger.groups)
        assert all(ledger.epoch >= topic.epoch for topic in ledger.topics.values())
        before = after


def of(*parts: Part) -> Ledger:
    return replayed([(list(parts), 5)])


def test_a_batch_moves_the_end_of_its_topic_and_of_the_journal() -> None:
    part = batch(1, 10, 100, 77, [b"a", b"b"])
    ledger = of(made_topic(1, 3, 9), part)
    topic = ledger.topics[1]
    assert (topic.first, topic.end, topic.bytes, topic.last_time) == (0, 12, len(part.body), 77)
    assert ledger.sequence == 102


def test_a_batch_of_a_topic_that_is_gone_moves_the_sequence_alone() -> None:
    ledger = of(batch(1, 10, 100, 77, [b"a", b"b"]))
    assert (ledger.topics, ledger.sequence) == ({}, 102)


def test_new_options_of_a_topic_leave_its_records_alone() -> None:
    ledger = of(made_topic(1, 3, 9), batch(1, 0, 0, 7, [b"a"]), trim_part(1, 1, 1), made_topic(1, 3, 2))
    topic = ledger.topics[1]
    assert (topic.options, topic.first, topic.end, topic.last_time) == ({"retention_count": 2}, 1, 1, 7)
    assert topic.bytes > 0


def test_a_trim_never_moves_backwards() -> None:
    ledger = of(made_topic(1, 3, 9), trim_part(1, 5, 8), trim_part(1, 3, 4))
    assert (ledger.topics[1].first, ledger.topics[1].end) == (5, 8)


def test_a_deleted_topic_takes_the_groups_on_it_along_and_no_others() -> None:
    ledger = of(made_topic(1, 1, 9), made_topic(2, 2, 9), made_group(1, 1, 0), made_group(2, 2, 0), made_group(3, 4, 0))
    ledger.checked()
    ledger.apply([state_part(PartKind.TOPIC_DELETED, topic=1)], 6)
    assert (list(ledger.topics), list(ledger.groups)) == ([2], [2, 3])
    assert (ledger.changed_topics, ledger.changed_groups) == ({1}, {1})


def test_progress_of_a_group_is_kept_with_its_failures() -> None:
    ledger = of(made_group(1, 1, 2), progress_part(1, [2, 4, 6, 7], [(5, 3, 12.5, "no")]))
    group = ledger.groups[1]
    assert (group.floor, group.settled.flat()) == (4, [6, 7])
    assert group.failed == {5: DeliveryFailure(3, 12.5, "no")}


def test_a_group_made_again_is_set_back() -> None:
    ledger = of(made_group(1, 1, 2), progress_part(1, [2, 9], []), made_group(1, 1, 0))
    assert ledger.groups[1].floor == 0


@pytest.mark.parametrize("kind", [0, 11, 15, 27, 127])
def test_state_of_a_kind_that_is_not_known_is_refused(kind: int) -> None:
    with pytest.raises(FormatUnknown):
        of(state_part(kind, b"later"))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [128, 200, 255])
def test_state_that_says_it_may_be_skipped_is_skipped(kind: int) -> None:
    assert seen(of(state_part(kind, b"later"))) == seen(of())  # type: ignore[arg-type]


def test_thousands_of_topics_and_cursors_are_checkpointed_in_pieces() -> None:
    ledger = Ledger()
    ledger.apply([topic_part(TopicState(topic, f"t{topic}", 1, {})) for topic in range(1, 2501)], 1)
    ledger.apply([cursor(f"c{number}", number) for number in range(1001)], 2)
    pieces = ledger.changes(everything=True)
    assert [(kind, len(items)) for kind, items in pieces[1:]] == [
        ("topics", 1000),
        ("topics", 1000),
        ("topics", 500),
        ("cursors", 1000),
        ("cursors", 1),
    ]
    again = Ledger()
    again.restore(through_bytes(pieces))
    assert seen(again) == seen(ledger)


@pytest.mark.parametrize(
    ("part", "body"),
    [
        (
            lambda: topic_part(TopicState(1, "a", 2, {"k": 1}, None, 3, 4, 5, 6)),
            [1, "a", 2, {"k": 1}, None, 3, 4, 5, 6, [], 0],
        ),
        (
            lambda: topic_part(
                TopicState(1, "a", 2, {}, gone=(RemovedRange(0, 3, RemovalReason.AGE, 9),), compacted=5, confirmed=4)
            ),
            [1, "a", 2, {}, None, 0, 0, 0, 0, [[0, 3, 3, 9]], 5, 4],
        ),
        (lambda: cursor_part(CursorState("n", "a.>", 0, 7)), ["n", "a.>", 0, 7, False]),
        (lambda: group_part(GroupState(1, "g", "a", {}, 5)), [1, "g", "a", {}, 5, [], []]),
        (lambda: progress_part(3, [1, 2], [(9, 1, 0.5, "no")]), [[1, 2], [[9, 1, 0.5, "no"]]]),
    ],
)
def test_the_bodies_of_state_are_these(part: Callable[[], Part], body: list[object]) -> None:
    assert msgspec.msgpack.decode(part().body) == body


def test_a_checkpoint_of_an_earlier_version_has_no_stages_in_its_numbers() -> None:
    ledger = Ledger()
    ledger.restore([["ledger", [2, 3, 4, 5, 6, 7]], ["topics", [[1, "a", 4, {}, None, 0, 9, 100, 7]]]])
    assert seen(ledger)["scalars"] == [2, 3, 4, 5, 6, 7, 1]
    assert ledger.topics[1] == TopicState(1, "a", 4, {}, None, 0, 9, 100, 7, (), 0, 0)


def test_what_is_confirmed_never_goes_back_and_survives_new_options_and_a_checkpoint() -> None:
    ledger = of(made_topic(1, 3, 9), confirmed_part(1, 7), confirmed_part(1, 5), confirmed_part(2, 5))
    assert ledger.topics[1].confirmed == 7
    ledger.apply([made_topic(1, 3, 10)], 6)
    assert ledger.topics[1].confirmed == 7
    again = Ledger()
    again.restore(through_bytes(ledger.changes(everything=False)))
    assert again.topics[1] == ledger.topics[1]


# -- publishers -------------------------------------------------------------------------------------------------


def test_a_batch_says_who_numbered_it() -> None:
    ledger = of(made_topic(1, 3, 9), produced(1, 10, 2, 77, 5), produced(1, 12, 1, 77, 7))
    assert ledger.producers.find(77, 6, 2, 1.0) == Position(3, 11)
    assert ledger.producers.next(77, 1.0) == 8
    assert list(of(made_topic(1, 3, 9), batch(1, 0, 0, 7, [b"a"])).producers) == []


def test_a_producer_outlives_the_topic_it_published_to() -> None:
    ledger = of(made_topic(1, 3, 9), produced(1, 10, 2, 77, 5), state_part(PartKind.TOPIC_DELETED, topic=1))
    assert ledger.producers.find(77, 5, 2, 1.0) == Position(3, 10)
    assert seen(of(produced(1, 10, 2, 77, 5)))["producers"] == {}  # it was deleted, later


def test_ids_are_those_of_their_topic_and_go_with_it() -> None:
    ledger = of(made_topic(1, 3, 9), made_topic(2, 4, 9), identified(1, 5, ["a", "b"]), identified(2, 5, ["a"]))
    assert [ledger.ids[topic].find("a", 1.0) for topic in (1, 2)] == [Position(3, 5), Position(4, 5)]
    assert ledger.ids[1].find("b", 1.0) == Position(3, 6)
    ledger.apply([state_part(PartKind.TOPIC_DELETED, topic=1)], 6)
    assert list(ledger.ids) == [2]
    assert ["ids", [1]] in ledger.changes(everything=False)


def test_a_checkpoint_holds_only_the_ids_that_are_new() -> None:
    ledger = of(made_topic(1, 3, 9), identified(1, 5, ["a", "b"]))
    ledger.checked()
    ledger.apply([identified(1, 7, ["c"])], 6)
    assert ["ids", [[1, [3, 2, [["c", 7e-6, 7]]]]]] in ledger.changes(everything=False)


def test_what_is_out_of_date_is_left_out_of_a_full_checkpoint() -> None:
    ledger = of(made_topic(1, 3, 9), identified(1, 5, ["a"]), produced(1, 10, 2, 77, 5))
    assert {kind for kind, _ in ledger.changes(everything=True)} == {"ledger", "topics", "producers", "ids"}
    ledger.apply([], int(MAX_PRODUCER_SECONDS * 1e6) + 7)
    assert {kind for kind, _ in ledger.changes(everything=True)} == {"ledger", "topics"}


def test_the_ids_of_all_topics_together_are_bounded() -> None:
    ledger = Ledger()
    topics, each = 6, MAX_MESSAGE_IDS // 16
    ledger._ids_allowed.limit = limit = each * topics - 1
    ledger.apply([made_topic(topic, topic, 9) for topic in range(1, topics + 1)], 1)
    for topic in range(1, topics + 1):
        ledger.apply([ids_part(topic, [str(n) for n in range(each)], list(range(each)), topic * 10)], topic * 10)
    assert sum(map(len, ledger.ids.values())) == limit - limit // SHRINK_DIVISOR
    assert ledger.ids[1].find("0", 0.0) is None
    assert len(ledger.ids[topics]) == each


def test_a_mark_has_its_last_value_until_it_is_forgotten() -> None:
    ledger = of(marker_part("a", 1), marker_part("b", "x"), marker_part("a", b"2"), marker_part("b", None))
    assert ledger.marks == {"a": b"2"}


# -- what is gone, what is staged -------------------------------------------------------------------------------


def test_a_trim_says_why_and_what_was_never_given() -> None:
    ledger = of(made_topic(1, 3, 9), batch(1, 0, 0, 7, [b"a"] * 10), trim_part(1, 4, 10, RemovalReason.AGE, 70))
    ledger.apply([trim_part(1, 4, 15, RemovalReason.UNKNOWN, 80)], 80)
    assert ledger.topics[1].gone == (
        RemovedRange(0, 4, RemovalReason.AGE, 70),
        RemovedRange(10, 15, RemovalReason.SKIPPED, 80),
    )


def test_what_was_compacted_is_noted() -> None:
    ledger = of(made_topic(1, 3, 9), batch(1, 0, 0, 7, [b"a"] * 10), compacted_part(1, 0, 8, 3, 5, 70))
    assert ledger.topics[1].gone == (RemovedRange(0, 8, RemovalReason.COMPACTED, 70),)
    assert ledger.topics[1].compacted == 8


def test_a_forgotten_cursor_is_gone_from_the_checkpoint_too() -> None:
    ledger = of(cursor("a", 1))
    ledger.checked()
    ledger.apply([cursor_forgotten_part("a"), cursor_forgotten_part("b")], 6)
    assert (ledger.cursors, ledger.changed_cursors) == ({}, {"a"})


def test_a_stage_counts_what_is_staged_in_order() -> None:
    ledger = of(made_topic(1, 3, 9), opened(1, 1), staged(1, 0, 2), staged(1, 0, 3), staged(1, 2, 3), staged(1, 1, 4))
    stage = ledger.stages[1]
    assert (stage.counts, stage.records, stage.time) == ([2, 4], 6, 11)
    assert stage.bytes == len(staged(1, 0, 2).body) + len(staged(1, 1, 4).body)
    assert ledger.next_stage == 2


def test_a_committed_stage_is_records_of_its_topic_until_those_are_gone() -> None:
    ledger = of(made_topic(1, 3, 9), opened(1, 1), staged(1, 0, 2), committed(1, 1, 5, [2]))
    assert (ledger.stages, ledger.committed) == ({}, {1: CommittedStage(1, 1, 5, 7, 100)})
    assert (ledger.topics[1].end, ledger.topics[1].bytes, ledger.sequence) == (7, 100, 5)
    ledger.apply([trim_part(1, 6, 7)], 6)
    assert list(ledger.committed) == [1]
    ledger.apply([trim_part(1, 7, 7)], 6)
    assert ledger.committed == {}


def test_a_dropped_stage_and_one_of_a_deleted_topic_are_gone() -> None:
    parts = [made_topic(1, 3, 9), opened(1, 1), opened(2, 1), opened(3, 9), committed(4, 1, 0, [1])]
    ledger = of(*parts, stage_dropped_part(1))
    assert list(ledger.stages) == [2]
    ledger.apply([state_part(PartKind.TOPIC_DELETED, topic=1)], 6)
    assert (ledger.stages, ledger.committed) == ({}, {})
    assert ledger.next_stage == 4


def test_it_shows_itself() -> None:
    assert repr(of(made_topic(1, 1, 1), cursor("a", 1))) == "<Ledger, 1 topics, 1 cursors, 0 groups>"


def test_a_trim_forgets_the_committed_stages_before_it_and_no_others() -> None:
    ledger = Ledger()
    for topic in (1, 2):
        ledger.apply([made_topic(topic, topic, 9)], 1)
    for stage, (topic, base) in enumerate([(1, 0), (2, 0), (1, 3), (1, 6), (2, 3)], 1):
        opened = StageState(stage, "w", stage, 0, 0, topic, 1)
        ledger.apply([stage_part(opened), staged_part(stage, 0, pack([b"x"] * 3), 1)], 1)
        ledger.apply([stage_commit_part(ledger.stages[stage], base, ledger.sequence, 1)], 1)
    ledger.checked()
    ledger.apply([trim_part(1, 5, 0)], 2)  # the second is cut in the middle
    assert set(ledger.committed) == {2, 3, 4, 5}
    assert ledger.changed_stages == {1}
    ledger.forget_placed([4, 99])
    assert set(ledger.committed) == {2, 3, 5}
    assert ledger.changed_stages == {1, 4}
    again = Ledger()
    again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(ledger.changes(everything=True))))
    again.apply([trim_part(1, 9, 0), trim_part(2, 3, 0)], 3)
    assert set(again.committed) == {5}
    again.apply([state_part(PartKind.TOPIC_DELETED, topic=2)], 4)
    assert not again.committed


# -- The state of stages: what they are called, how much they hold, and how they are written -----------------


NUMBER = st.integers(0, 2**40)


@given(NUMBER, st.text(max_size=9), NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, st.lists(st.integers(1, 9)), NUMBER)
def test_a_stage_comes_back_as_it_was_written(
    id: int, writer: str, batch: int, part: int, attempt: int, topic: int, time: int, counts: list[int], size: int
) -> None:
    stage = StageState(id, writer, batch, part, attempt, topic, time, counts, size)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stage), type=StageState) == stage
    assert stage.key == StageKey(writer, batch, part, attempt)
    assert stage.records == sum(counts)


def test_two_new_stages_do_not_share_what_they_count() -> None:
    one, other = StageState(1, "w", 0, 0, 0, 1, 0), StageState(2, "w", 0, 0, 0, 1, 0)
    one.counts.append(3)
    assert (one.records, other.records) == (3, 0)


def test_open_and_committed_stages_are_distinguished_by_their_length() -> None:
    lengths = {len(StageState.__struct_fields__), len(CommittedStage.__struct_fields__)}
    assert lengths == {9, 5}
    written = msgspec.msgpack.decode(msgspec.msgpack.encode(CommittedStage(1, 2, 3, 4, 5)))
    assert written == [1, 2, 3, 4, 5]

"""What named subscriptions hold, worked out of the journal alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.format.ledger import CursorState, cursor_part
from runnel.journal.write import retention
from tests.journal.written_journal import Writer


def filled(count: int = 60, topics: int = 3) -> Writer:
    """Topics t.0, t.1, … one after the other, over several segments; and `rare`, in the first alone."""
    writer = Writer()
    names = [writer.topic(f"t.{number}") for number in range(topics)]
    writer.publish(writer.topic("rare"), b"early")
    for number in range(count):
        writer.publish(names[number % topics], b"%03d" % number * 60)
    assert len(writer.journal.history.sources) > 3
    return writer


def held(writer: Writer, *cursors: CursorState) -> dict[int, int]:
    for cursor in cursors:
        writer.write([cursor_part(cursor)])
    return retention.held_offsets(writer.journal.ledger, writer.journal.history)


def test_no_cursor_holds_records_unless_asked() -> None:
    writer = filled()
    assert held(writer, CursorState("a", "t.0", 1, 3), CursorState("b", ">", 0, 3)) == {}


def test_one_topic_is_held_from_the_offset_on_and_the_lowest_counts() -> None:
    writer = filled()
    epoch = writer.journal.ledger.topics[1].epoch
    assert held(writer, CursorState("a", "t.0", epoch, 9, hold=True)) == {1: 9}
    assert held(writer, CursorState("b", "t.0", epoch, 4, hold=True)) == {1: 4}
    assert retention.holder_names(writer.journal.ledger, "t.0") == ["a", "b"]
    assert retention.holder_names(writer.journal.ledger, "t.1") == []


def test_a_topic_that_was_made_again_is_held_from_its_beginning() -> None:
    writer = filled()
    assert held(writer, CursorState("a", "t.0", 999, 9, hold=True)) == {1: 0}


def test_a_name_on_a_topic_that_is_not_there_holds_nothing() -> None:
    assert held(filled(), CursorState("a", "other", 1, 9, hold=True)) == {}


@pytest.mark.parametrize("few", [0, 64])
@given(sequence=st.integers(0, 70))
def test_a_pattern_holds_all_from_its_sequence_on_and_at_most_a_segment_more(few: int, sequence: int) -> None:
    writer = filled()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "FEW_TOPICS", few)
        found = held(writer, CursorState("a", ">", 0, sequence, hold=True))
    assert set(found) == {1, 2, 3, 4}
    source = retention.segment_at_sequence(writer.journal.history, sequence)
    assert source is not None
    begins = source.info.first_sequence
    for topic, floor in found.items():
        mine = [record for record in writer.written if record.topic == topic]
        needed = [record.base for record in mine if record.sequence >= sequence]
        assert floor <= min(needed, default=len(mine)), "never too little"
        assert floor >= min((record.base for record in mine if record.sequence >= begins), default=len(mine))


def test_a_pattern_holds_the_topics_that_it_covers() -> None:
    writer = filled()
    assert set(held(writer, CursorState("a", "t.*", 0, 0, hold=True))) == {1, 2, 3}
    assert retention.holder_names(writer.journal.ledger, "t.2") == ["a"]


def test_the_end_of_what_is_written_holds_nothing_that_is_there() -> None:
    writer = filled()
    ends = {topic.id: topic.end for topic in writer.journal.ledger.topics.values()}
    writer.journal.close()
    assert retention.held_floors(writer.journal.history, 10**9, ends) == ends

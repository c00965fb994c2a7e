"""The state of stages: what they are called, how much they hold, and how they are written."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.stages import StageKey
from runnel.journal.format.ledger import CommittedStage, StageState

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


def test_open_and_committed_stages_are_told_apart_by_their_length() -> None:
    lengths = {len(StageState.__struct_fields__), len(CommittedStage.__struct_fields__)}
    assert lengths == {9, 5}
    written = msgspec.msgpack.decode(msgspec.msgpack.encode(CommittedStage(1, 2, 3, 4, 5)))
    assert written == [1, 2, 3, 4, 5]

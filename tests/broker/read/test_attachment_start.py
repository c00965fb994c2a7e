"""Where to start: what may be said, and the cursor that it means."""

from datetime import UTC, datetime, timedelta

import pytest

from runnel.broker.read.attachment import open_log_cursor, open_pattern_cursor
from runnel.broker.topic.log import Log
from runnel.broker.topic.timeline import Timeline
from runnel.core.errors import OffsetOutOfRange
from runnel.core.position import Position, Start
from runnel.testing.clock import START, JumpingClock
from tests.broker.broker_parts import Covered, make_log, make_timeline, put

BEGIN = datetime.fromtimestamp(START, UTC)


async def two_turns() -> tuple[Timeline, Log]:
    """Offsets 0 and 1 at the beginning, 2 and 3 ten seconds later."""
    clock = JumpingClock()
    timeline, log = make_timeline(clock), make_log(epoch=7)
    for _ in range(2):
        put(timeline, log, b"x", b"x")
        timeline._tick()
        await clock.advance(10)
    return timeline, log


@pytest.mark.parametrize(
    ("start", "position"),
    [
        ("latest", 4),
        ("earliest", 0),
        (0, 0),
        (3, 3),
        (4, 4),
        (BEGIN, 0),
        (BEGIN + timedelta(seconds=1), 2),
        (BEGIN + timedelta(seconds=11), 4),
        (Position(7, 2), 2),
    ],
)
async def test_a_log_is_read_from_there(start: Start, position: int) -> None:
    timeline, log = await two_turns()
    cursor, missed = open_log_cursor(timeline, log, start)
    assert (cursor.position, missed) == (position, None)


@pytest.mark.parametrize(
    ("start", "pending"),
    [("latest", 0), ("earliest", 4), (3, 1), (BEGIN, 4), (BEGIN + timedelta(seconds=1), 2)],
)
async def test_a_pattern_is_read_from_there(start: Start, pending: int) -> None:
    timeline, log = await two_turns()
    cursor, missed = open_pattern_cursor(timeline, Covered(log), start)
    assert (cursor.pending(), missed) == (pending, None)


async def test_a_position_of_another_life_starts_over_and_tells() -> None:
    timeline, log = await two_turns()
    cursor, missed = open_log_cursor(timeline, log, Position(6, 3))
    assert cursor.position == 0
    assert missed is not None
    assert (missed.count, missed.first, missed.end) == (0, 0, 0)
    assert "epoch 6" in missed.reason


async def test_beyond_the_end_there_is_nothing() -> None:
    timeline, log = await two_turns()
    with pytest.raises(OffsetOutOfRange, match=r"\[0, 4\), not 5"):
        open_log_cursor(timeline, log, 5)


async def test_a_stored_place_of_a_pattern_reports_what_was_removed_since() -> None:
    timeline, log = make_timeline(), make_log(retention_count=1)
    put(timeline, log, b"a", b"b", b"c")
    stored, _ = open_pattern_cursor(timeline, Covered(log), 0)
    fresh, _ = open_pattern_cursor(timeline, Covered(log), "earliest")
    for cursor, missed in ((stored, 2), (fresh, 0)):
        taken = cursor.take(9)
        assert taken is not None
        assert (taken.missed.count if taken.missed else 0) == missed


def test_a_pattern_in_memory_reports_that_records_are_forgotten_though_not_how_many() -> None:
    timeline = make_timeline()
    log = make_log()
    log.forgotten = timeline.forgotten = 50
    for sequence, told in ((10, True), (50, False), (60, False)):
        _, missed = open_pattern_cursor(timeline, Covered(log), sequence)
        assert (missed is not None) == told
    assert open_pattern_cursor(timeline, Covered(log), "earliest")[1] is None

"""The overflow policy of a group: how much may wait in it before publishers do."""

from runnel.broker.group.logic.group import GroupLogic
from runnel.broker.group.reader import GroupOverflowPolicy
from runnel.broker.topic.log import CHUNK, Log
from runnel.broker.topic.timeline import Timeline
from runnel.journal.format.ledger import GroupState
from tests.broker.broker_parts import Notes, make_log, make_timeline, on_log, put
from tests.broker.group.group_builders import SHELF, make_group, size_of


def make(
    buffer: int = 5, buffer_bytes: int = 1000, *, lags: bool = False
) -> tuple[GroupOverflowPolicy, GroupLogic, Timeline, Log]:
    timeline, log, group = make_timeline(), make_log(), make_group()
    return (
        GroupOverflowPolicy(on_log(timeline, log), buffer, buffer_bytes, Notes(), group, lags=lags),
        group,
        timeline,
        log,
    )


def test_what_waits_and_what_is_not_settled_both_count() -> None:
    overflow, group, timeline, log = make()
    put(timeline, log, *[b"x"] * 2)
    assert overflow.lag() == 2
    overflow.take(2)
    group.bring(0, 2, SHELF)
    assert (overflow.lag(), group.unsettled) == (2, 2)
    assert overflow.fits(3, 3)
    assert not overflow.fits(4, 4)


def test_bytes_that_are_not_settled_count() -> None:
    overflow, group, _, _ = make(buffer=1000, buffer_bytes=100)
    group.bring(1, 5, SHELF)
    held = sum(map(size_of, range(1, 5)))
    assert overflow.fits(1, 100 - held)
    assert not overflow.fits(1, 101 - held)


def test_what_is_on_its_way_to_disk_counts() -> None:
    overflow, _, _, _ = make(buffer=5)
    assert overflow.fits(2, 2, coming=3)
    assert not overflow.fits(2, 2, coming=4)


def test_a_group_whose_records_are_on_disk_holds_nobody_up() -> None:
    overflow, group, timeline, log = make(buffer=1, lags=True)
    put(timeline, log, *[b"x"] * 10)
    group.bring(0, 10, SHELF)
    assert overflow.fits(10**6, 10**9)
    assert overflow.room() == CHUNK


def test_what_was_settled_in_an_earlier_life_is_no_lag() -> None:
    overflow, _, timeline, log = make()
    put(timeline, log, *[b"x"] * 10)
    overflow.revived = GroupState(1, "g", "t", {}, 0)
    overflow.revived.settled.add(3, 6)
    assert (overflow.settled_ahead(), overflow.lag()) == (3, 7)
    overflow.take(4)
    assert overflow.settled_ahead() == 2, "of those, one is passed"
    overflow.take(4)
    assert overflow.settled_ahead() == 0
    overflow.revive(None)
    assert overflow.settled_ahead() == 0

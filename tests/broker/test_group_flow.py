"""How much may wait in a group before publishers do."""

from runnel.broker.group.machine import Group
from runnel.broker.group_flow import GroupFlow
from runnel.broker.log import CHUNK, Log
from runnel.broker.timeline import Timeline
from runnel.journal.group_state import GroupState
from tests.broker.group.rig import SHELF, make_group, size_of
from tests.broker.rig import Notes, make_log, make_timeline, on_log, put


def make(buffer: int = 5, buffer_bytes: int = 1000, *, lags: bool = False) -> tuple[GroupFlow, Group, Timeline, Log]:
    timeline, log, group = make_timeline(), make_log(), make_group()
    return GroupFlow(on_log(timeline, log), buffer, buffer_bytes, Notes(), group, lags=lags), group, timeline, log


def test_what_waits_and_what_is_not_settled_both_count() -> None:
    flow, group, timeline, log = make()
    put(timeline, log, *[b"x"] * 2)
    assert flow.lag() == 2
    flow.take(2)
    group.bring(0, 2, SHELF)
    assert (flow.lag(), group.unsettled) == (2, 2)
    assert flow.fits(3, 3)
    assert not flow.fits(4, 4)


def test_bytes_that_are_not_settled_count() -> None:
    flow, group, _, _ = make(buffer=1000, buffer_bytes=100)
    group.bring(1, 5, SHELF)
    held = sum(map(size_of, range(1, 5)))
    assert flow.fits(1, 100 - held)
    assert not flow.fits(1, 101 - held)


def test_what_is_on_its_way_to_disk_counts() -> None:
    flow, _, _, _ = make(buffer=5)
    assert flow.fits(2, 2, coming=3)
    assert not flow.fits(2, 2, coming=4)


def test_a_group_whose_records_are_on_disk_holds_nobody_up() -> None:
    flow, group, timeline, log = make(buffer=1, lags=True)
    put(timeline, log, *[b"x"] * 10)
    group.bring(0, 10, SHELF)
    assert flow.fits(10**6, 10**9)
    assert flow.room() == CHUNK


def test_what_was_settled_in_an_earlier_life_is_no_lag() -> None:
    flow, _, timeline, log = make()
    put(timeline, log, *[b"x"] * 10)
    flow.revived = GroupState(1, "g", "t", {}, 0)
    flow.revived.settled.add(3, 6)
    assert (flow.settled_ahead(), flow.lag()) == (3, 7)
    flow.take(4)
    assert flow.settled_ahead() == 2, "of those, one is passed"
    flow.take(4)
    assert flow.settled_ahead() == 0
    flow.revive(None)
    assert flow.settled_ahead() == 0

"""The overflow policy of a group: how much may wait in it before publishers do."""

import pytest

from runnel import Broker
from runnel.broker.group.logic.group import GroupLogic
from runnel.broker.group.reader import GroupOverflowPolicy
from runnel.broker.topic.log import Log
from runnel.broker.topic.timeline import Timeline
from runnel.core.errors import Full
from runnel.core.record import Meta
from runnel.journal.format.ledger import GroupState
from tests.broker.broker_parts import Notes, make_log, make_timeline, on_log, put
from tests.broker.group.group_builders import KEPT, SHELF, make_group, size_of


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


def test_a_group_whose_records_are_on_disk_delays_no_publisher() -> None:
    overflow, _, _, _ = make(buffer=1, lags=True)
    assert not overflow.limited


@pytest.mark.parametrize(("buffer", "buffer_bytes"), [(1000, 10**9), (10**6, 100_000)])
def test_a_group_with_room_is_not_looked_at_by_each_publish_and_refuses_at_its_bound(
    buffer: int, buffer_bytes: int
) -> None:
    overflow, group, timeline, log = make(buffer, buffer_bytes)
    looks = 0

    class Counted(GroupLogic):
        @property
        def unsettled_bytes(self) -> int:
            nonlocal looks
            looks += 1
            return super().unsettled_bytes

    group.__class__ = Counted
    accepted = 0
    while overflow.fits(1, 100):
        put(timeline, log, b"x" * 100)
        accepted += 1
    assert accepted == 1000
    assert looks < 10
    overflow.take(1)  # and as good as settled: nothing was brought to the group
    assert overflow.fits(1, 100)
    assert not overflow.fits(2, 200)


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


def test_what_the_group_let_go_of_is_no_room_for_later() -> None:
    """It comes back without a publish: a bound that was noted while it was away must still hold then."""
    overflow, group, _, _ = make(buffer=1000, buffer_bytes=100)
    group.bring_one(5, Meta(due=100.0), size_of(5), KEPT, 0.0)  # 35 bytes, which the group lets go of
    assert (group.unsettled_bytes, group.open_bytes) == (0, 35)
    assert overflow.fits(1, 10)
    group.release(100.0)
    assert group.recall(1) == [5]
    group.came(5, 6, KEPT)
    assert not overflow.fits(1, 70)
    assert overflow.fits(1, 65)


async def test_a_publish_asks_no_group_while_all_of_its_topic_have_room(runnel_broker: Broker) -> None:
    """Whatever their number; and each of them is asked again in time."""
    asked = 0
    for number in range(10):
        async with runnel_broker.subscribe("t", group=f"g{number}", buffer=50 + number):
            pass

    class Counted(GroupOverflowPolicy):
        __slots__ = ()

        def fits(self, count: int, size: int, coming: int = 0, coming_bytes: int = 0) -> bool:
            nonlocal asked
            asked += 1
            return super().fits(count, size, coming, coming_bytes)

    readers = list(runnel_broker.backend.groups)
    for reader in readers:
        reader.overflow.__class__ = Counted
    topic = runnel_broker.topic("t")
    for _ in range(49):
        await topic.publish(b"x", key="k")
    assert asked <= 2 * len(readers)
    await topic.publish(b"x")
    with pytest.raises(Full):
        topic.publish_nowait(b"x")
    readers[0].reset("latest")
    topic.publish_nowait(b"x")
    with pytest.raises(Full):
        topic.publish_nowait(b"x")
    for reader in readers[1:]:
        reader.reset("latest")
    readers[0].reset("earliest")
    with pytest.raises(Full):
        topic.publish_nowait(b"x")

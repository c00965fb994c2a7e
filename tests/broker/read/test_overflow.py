"""Overflow policies: what each keeps, drops, tells and lets in."""

from typing import Any

import pytest

from runnel.broker.read.cursor import LogCursor
from runnel.broker.read.overflow import OVERFLOW_POLICIES, BlockPublishers, Disconnect, DropNewest, OverflowPolicy
from runnel.broker.topic.log import CHUNK, SMALL
from runnel.core.backend import Taken
from runnel.core.options import Policy, PolicyKind
from runnel.core.record import TOO_SLOW, MissedRange
from tests.broker.broker_parts import Notes, attached, make_flow, make_log, make_timeline, on_log, over, put


def rig(policy: Policy | str, pattern: bool = False, **bounds: Any) -> tuple[Any, Notes, Any]:
    """A flow on a log, its owner, and a way to publish to it."""
    timeline, log = make_timeline(), make_log()
    overflow, owner = make_flow(over(timeline, log) if pattern else on_log(timeline, log), policy, **bounds)
    attached(log, owner, pattern=pattern)
    return overflow, owner, lambda *values: put(timeline, log, *values)


class Behind(LogCursor):
    """A cursor whose next records are on disk, until they come."""

    came = False

    @property
    def is_behind(self) -> bool:
        return not self.came

    def take(self, limit: int) -> Taken | None:
        return super().take(limit) if self.came else None


def rig_behind(policy: Policy | str, **bounds: Any) -> tuple[Any, Notes, Any]:
    """As `rig`, of a subscriber that is behind by two records."""
    timeline, log = make_timeline(), make_log()
    put(timeline, log, b"old", b"old")
    overflow, owner = make_flow(Behind(timeline, log, 0), policy, **bounds)
    attached(log, owner)
    return overflow, owner, lambda *values: put(timeline, log, *values)


def done(overflow: OverflowPolicy, size: int) -> None:
    """The subscriber confirms a record."""
    overflow.passed(size, 1)
    overflow.told()


def values(taken: Taken | None) -> list[bytes]:
    return [value for part in taken.slices for value in part.values] if taken else []


def test_every_policy_has_its_flow() -> None:
    assert {
        PolicyKind.DROP_OLDEST: OverflowPolicy,
        PolicyKind.DROP_NEWEST: DropNewest,
        PolicyKind.BLOCK: BlockPublishers,
        PolicyKind.DISCONNECT: Disconnect,
    } == OVERFLOW_POLICIES


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "block", "disconnect"])
def test_within_its_bounds_every_flow_is_a_queue(policy: str) -> None:
    overflow, _, publish = rig(policy, buffer=5)
    publish(b"a", b"b")
    assert (overflow.lag(), overflow.drops()) == (2, 0)
    assert values(overflow.take(1)) == [b"a"]
    publish(b"c")
    assert values(overflow.take(9)) == [b"b", b"c"]
    assert overflow.take(9) is None


# -- drop oldest ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [False, True])
def test_drop_oldest_finds_out_when_it_reads(pattern: bool) -> None:
    overflow, owner, publish = rig("drop_oldest", pattern, buffer=2)
    publish(b"a", b"b", b"c", b"d", b"e")
    assert (overflow.lag(), overflow.drops(), overflow.limited) == (2, 3, False)
    taken = overflow.take(9)
    assert (values(taken), taken.missed) == ([b"d", b"e"], MissedRange(0, 3, 3, TOO_SLOW))
    assert overflow.drops() == 0
    assert owner.handed_on == []


def test_settled_records_stay_counted_until_they_are_reported() -> None:
    overflow, _, publish = rig("drop_oldest", buffer=2)
    publish(*[b"x"] * 5)
    overflow.settle()
    assert (overflow.lag(), overflow.drops()) == (2, 3)
    publish(b"y")
    assert (overflow.lag(), overflow.drops()) == (2, 4)
    assert overflow.take(9).missed == MissedRange(0, 4, 4, TOO_SLOW)


def test_the_bytes_count_like_the_records() -> None:
    overflow, _, publish = rig("drop_oldest", buffer_bytes=10)
    publish(b"12345", b"123", b"12", b"12345")
    taken = overflow.take(9)
    assert (values(taken), taken.missed) == ([b"123", b"12", b"12345"], MissedRange(0, 1, 1, TOO_SLOW))


def test_an_eager_flow_hands_on_what_it_drops_at_once() -> None:
    overflow, owner, publish = rig("drop_oldest", buffer=2, eager=True)
    publish(b"a", b"b", b"c")
    assert [record.value for record in owner.handed_on] == [b"a"]
    publish(b"d")
    assert [record.value for record in owner.handed_on] == [b"a", b"b"]
    assert (overflow.drops(), overflow.lag()) == (2, 2)
    assert overflow.take(9).missed == MissedRange(0, 2, 2, TOO_SLOW)


def test_an_eager_flow_drops_no_more_than_it_must_after_a_deletion() -> None:
    timeline, one, two = make_timeline(), make_log("a"), make_log("b")
    overflow, owner = make_flow(over(timeline, one, two), "drop_oldest", buffer=1, eager=True)
    for log in (one, two):
        attached(log, owner, pattern=True)
    put(timeline, one, b"gone")
    overflow.cursor.collect()
    timeline.cool()
    timeline.forget(one)
    put(timeline, two, b"kept")
    assert owner.handed_on == []
    assert values(overflow.take(9)) == [b"kept"]


# -- drop newest ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [False, True])
def test_drop_newest_keeps_what_it_has_until_one_is_done_with(pattern: bool) -> None:
    overflow, owner, publish = rig("drop_newest", pattern, buffer=2)
    publish(b"a", b"b", b"c")
    publish(b"d")
    assert (overflow.lag(), overflow.drops()) == (2, 2)
    assert values(overflow.take(1)) == [b"a"]
    publish(b"e")  # still full: what is in hand counts
    assert overflow.drops() == 3
    done(overflow, 1)
    assert (overflow.lag(), overflow.drops(), owner.limits) == (1, 3, [False, True])
    publish(b"f")
    assert values(overflow.take(9)) == [b"b"]
    taken = overflow.take(9)
    assert (values(taken), taken.missed) == ([b"f"], MissedRange(2, 5, 3, TOO_SLOW))


def test_a_full_drop_newest_costs_publishers_nothing() -> None:
    overflow, _, publish = rig("drop_newest", buffer=1)
    publish(b"a", b"b")
    assert overflow.room() == CHUNK
    eager, owner, publish = rig("drop_newest", buffer=1, eager=True)
    publish(b"a", b"b")
    assert eager.room() == 0
    assert [record.value for record in owner.handed_on] == [b"b"]


def test_what_drop_newest_put_aside_survives_retention() -> None:
    timeline, log = make_timeline(), make_log(retention_count=2)
    overflow, owner = make_flow(on_log(timeline, log), "drop_newest", buffer=1)
    attached(log, owner)
    put(timeline, log, b"a")
    put(timeline, log, b"b")
    put(timeline, log, b"c")
    assert overflow.put_aside().start == 0
    assert values(overflow.take(9)) == [b"a"]


def test_drop_newest_lets_in_what_fits_by_bytes() -> None:
    overflow, _, publish = rig("drop_newest", buffer_bytes=10)
    publish(b"1234", b"1234", b"1234", b"1")
    assert (overflow.lag(), overflow.drops()) == (2, 2)
    found = values(overflow.take(1)) + values(overflow.take(1))
    assert found == [b"1234", b"1234"]


def test_one_record_is_let_in_however_large() -> None:
    overflow, _, publish = rig("drop_newest", buffer_bytes=10)
    publish(bytes(100))
    publish(b"x")
    assert (overflow.lag(), overflow.drops()) == (1, 1)


def test_a_gap_put_aside_with_the_following_records_is_counted_until_reported() -> None:
    overflow, _, publish = rig("drop_newest", buffer=2)
    publish(b"a", b"b", b"c")
    overflow.take(1)
    done(overflow, 1)  # c is missed
    publish(b"d", b"e")  # d is put aside with the gap before it
    assert overflow.drops() == 2
    assert values(overflow.take(9)) == [b"b"]
    assert overflow.take(9).missed == MissedRange(2, 3, 1, TOO_SLOW)


def test_taking_part_of_what_was_put_aside_leaves_the_rest() -> None:
    overflow, _, publish = rig("drop_newest", buffer=3)
    publish(b"a", b"b", b"c", b"d")
    assert [values(overflow.take(2)), values(overflow.take(2))] == [[b"a", b"b"], [b"c"]]


def test_settling_a_full_drop_newest_lets_go_of_what_it_will_never_read() -> None:
    overflow, _, publish = rig("drop_newest", True, buffer=1)
    for _ in range(10):
        publish(b"x")
    overflow.settle()
    assert (overflow.cursor.pending(), overflow.drops()) == (0, 9)


# -- behind -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eager", [False, True])
def test_drop_newest_is_not_full_before_what_is_on_disk_has_come(eager: bool) -> None:
    overflow, owner, publish = rig_behind("drop_newest", buffer=1, eager=eager)
    publish(b"a", b"b", b"c")
    assert (overflow.take(9), overflow.lag(), overflow.drops()) == (None, 5, 0)
    overflow.cursor.came = True
    publish(b"d")
    assert values(overflow.take(9)) == [b"old", b"old", b"a"]
    assert (overflow.lag(), overflow.drops(), len(owner.handed_on)) == (3, 3, 3 if eager else 0)


@pytest.mark.parametrize("policy", ["drop_oldest", "disconnect"])
def test_an_eager_flow_hands_on_what_is_on_disk_when_it_has_come(policy: str) -> None:
    overflow, owner, publish = rig_behind(policy, buffer=1, eager=True)
    publish(b"a", b"b")
    overflow.settle()
    assert (overflow.take(9), overflow.lag(), overflow.drops(), owner.handed_on) == (None, 4, 0, [])
    overflow.cursor.came = True
    taken = overflow.take(9)
    assert (values(taken), taken.missed) == ([b"b"], MissedRange(0, 3, 3, TOO_SLOW))
    assert [record.value for record in owner.handed_on] == [b"old", b"old", b"a"]


def test_what_must_go_and_is_on_disk_counts_once_for_disconnect() -> None:
    _, owner, publish = rig_behind(Policy.disconnect(after=6), buffer=1, eager=True)
    for _ in range(4):
        publish(b"x")  # with history, 5 must go
    assert owner.disconnected == []
    publish(b"x")
    assert owner.disconnected == [6]


def test_lost_records_among_those_to_hand_on_are_reported() -> None:
    class Damaged(LogCursor):
        def take(self, limit: int) -> Taken | None:
            return super().take(limit) if self.position else Taken([], self.skip(1, "damaged"))

    timeline, log = make_timeline(), make_log()
    overflow, owner = make_flow(Damaged(timeline, log, 0), "drop_oldest", buffer=1, eager=True)
    attached(log, owner)
    put(timeline, log, b"a", b"b", b"c")
    assert [record.value for record in owner.handed_on] == [b"b"]
    assert overflow.missed == MissedRange(0, 2, 2, f"damaged; {TOO_SLOW}")


# -- block ------------------------------------------------------------------------------------------------------


def test_block_lets_in_what_fits_beside_what_is_held() -> None:
    overflow, owner, publish = rig("block", buffer=3, buffer_bytes=100)
    assert overflow.fits(3, 100)
    assert not overflow.fits(4, 4)
    assert overflow.fits(1, 1000), "one always fits when nothing waits"
    publish(b"x" * 40, b"x" * 40)
    assert overflow.fits(1, 20)
    assert not overflow.fits(1, 21)
    assert not overflow.fits(2, 2)
    overflow.take(9)
    assert not overflow.fits(2, 2), "in hand is not done with"
    assert overflow.fits(1, 20)
    assert not overflow.fits(1, 21), "nor are its bytes"
    done(overflow, 40)
    assert overflow.fits(2, 60)
    assert owner.room_made == 1
    assert overflow.drops() == 0


def test_block_tells_what_was_missed_and_that_it_makes_room() -> None:
    timeline, log = make_timeline(), make_log(retention_count=1)
    overflow, owner = make_flow(on_log(timeline, log), "block", buffer=3)
    overflow.missed = MissedRange(0, 0, 0, "another life")
    put(timeline, log, b"a", b"b", b"c")
    taken = overflow.take(9)
    assert taken.missed.count == 2
    assert "another life" in taken.missed.reason
    assert owner.room_made == 1
    assert overflow.lag() == 1


# -- disconnect -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("pattern", [False, True])
def test_disconnect_after_so_many_drops_since_it_last_read(pattern: bool, eager: bool) -> None:
    overflow, owner, publish = rig(Policy.disconnect(after=3), pattern, buffer=2, eager=eager)
    for _ in range(4):
        publish(b"x")
    assert owner.disconnected == []
    overflow.take(1)
    for _ in range(3):
        publish(b"x")  # one was read, so the first of these fits
    assert owner.disconnected == []
    publish(b"x")
    assert owner.disconnected == [3]


def test_disconnect_counts_what_was_settled() -> None:
    overflow, owner, publish = rig(Policy.disconnect(after=3), True, buffer=1)
    for _ in range(3):
        publish(b"x")
        overflow.settle()
    assert owner.disconnected == []
    publish(b"x")
    assert owner.disconnected == [3]


def test_disconnect_is_asked_before_the_drop_that_is_one_too_many() -> None:
    overflow, _, publish = rig(Policy.disconnect(after=5), buffer=10)
    publish(*[b"x"] * 8)
    assert overflow.room() == 10 - 8 + 4
    assert rig(Policy.disconnect(after=5), buffer=10, buffer_bytes=SMALL - 1)[0].room() == 0


def test_room_is_what_small_records_cannot_exceed() -> None:
    overflow, _, publish = rig("block", buffer=100, buffer_bytes=10 * SMALL)
    assert overflow.room() == 10
    publish(*[b""] * 95)
    assert overflow.room() == 5

"""Group logic: who gets what, what becomes of it, and what is refused. Time is an argument, so nothing here waits."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from runnel.broker.group.logic.group import BACKOFF, EXPIRED_LEASE, LEFT, GroupLogic, GroupOptions, MemberState
from runnel.broker.group.logic.leases import Lease
from runnel.core.errors import AlreadySettled, InvalidOption, LeaseEnded, RunnelError, UnknownMember
from runnel.core.record import Meta
from tests.broker.group.group_builders import (
    KEPT,
    SHELF,
    bring,
    granted,
    hand_all,
    keyed,
    look,
    make_group,
    of,
    size_of,
    whereabouts,
)
from tests.broker.group.logic.group_model import GroupMachine
from tests.nightly import examples

TestAnySequence = GroupMachine.TestCase
TestAnySequence.settings = examples(80, 400, stateful_step_count=50)


def grant(group: GroupLogic, now: float = 0.0) -> list[Lease]:
    """Grant, and have the members see all of it."""
    leases = group.grant(now)
    hand_all(leases)
    return leases


def one_out(group: GroupLogic, meta: Meta | None = None) -> Lease:
    """One record, in the hand of a member."""
    group.join("ann", 8)
    bring(group, meta or Meta(expires=10.0**9))
    (lease,) = grant(group)
    return lease


# -- spreading --------------------------------------------------------------------------------------------------


def test_what_is_ready_is_spread_evenly_in_stretches() -> None:
    group = make_group()
    members = [group.join(name, 64) for name in ("ann", "bob", "cas")]
    group.bring(0, 9, SHELF)
    leases = group.grant(0.0)
    assert [(lease.member, lease.first, lease.end) for lease in leases] == [
        (members[0], 0, 3),
        (members[1], 3, 6),
        (members[2], 6, 9),
    ]


def test_records_that_come_one_by_one_go_round() -> None:
    group = make_group()
    for name in ("ann", "bob", "cas"):
        group.join(name, 64)
    turns = []
    for place in range(9):
        group.bring(place, place + 1, SHELF)
        turns += [lease.member.name for lease in group.grant(0.0)]
    assert turns == ["ann", "bob", "cas"] * 3


def test_a_member_with_less_room_gets_less_and_the_others_get_the_rest() -> None:
    group = make_group()
    small, large = group.join("small", 2), group.join("large", 50)
    group.bring(0, 40, SHELF)
    leases = group.grant(0.0)
    assert (len(granted(leases, small)), len(granted(leases, large))) == (2, 38)
    assert sorted(granted(leases)) == list(range(40))


def test_no_member_holds_more_than_its_prefetch() -> None:
    group = make_group()
    ann, bob = group.join("ann", 3), group.join("bob", 1)
    group.bring(0, 10, SHELF)
    leases = group.grant(0.0)
    assert (ann.held, bob.held, ann.room, bob.room) == (3, 1, 0, 0)
    assert group.grant(0.0) == []
    group.ack(leases[0], leases[0].first, 0.0)
    assert len(granted(group.grant(0.0), ann)) == 1


def test_the_longest_waiter_is_served_first() -> None:
    group = make_group()
    group.join("ann", 1)
    group.join("bob", 1)
    group.bring(0, 1, SHELF)
    group.grant(0.0)
    group.join("cas", 1)
    group.bring(1, 2, SHELF)
    group.bring(2, 3, SHELF)
    assert [lease.member.name for lease in group.grant(0.0)] == ["bob", "cas"]


def test_members_that_hold_something_are_served_in_turn_and_a_turn_is_kept_until_it_was_used() -> None:
    group = make_group()
    for name in ("ann", "bob", "cas"):
        group.join(name, 64)
    group.bring(0, 3, SHELF)
    group.grant(0.0)
    turns = []
    for place in range(3, 27, 2):  # two at a time, for three
        group.bring(place, place + 2, SHELF)
        turns += [lease.member.name for lease in group.grant(0.0)]
    assert turns == ["ann", "bob", "cas"] * 8


def test_a_member_that_got_nothing_keeps_its_turn() -> None:
    group = make_group()
    for name in ("ann", "bob", "cas"):
        group.join(name, 64)
    group.bring(0, 3, SHELF)
    group.grant(0.0)
    group.bring(3, 7, SHELF)
    assert [lease.member.name for lease in group.grant(0.0)] == ["ann", "bob"], "two each"
    group.bring(7, 8, SHELF)
    assert [lease.member.name for lease in group.grant(0.0)] == ["cas"]


def test_members_that_are_equally_quick_get_equally_much() -> None:
    group = make_group()
    members = [group.join(name, prefetch) for name, prefetch in (("ann", 2), ("bob", 2), ("cas", 5))]
    held: list[Lease] = []
    for place in range(300):
        group.bring(place, place + 1, SHELF)
        held += group.grant(0.0)
        if len(held) > 3:  # the oldest is done
            lease = held.pop(0)
            group.ack(lease, lease.first, 0.0)
    assert [member.granted for member in members] == [100, 100, 100]


def test_a_member_that_holds_nothing_comes_before_one_that_does() -> None:
    group = make_group()
    ann, bob = group.join("ann", 64), group.join("bob", 64)
    group.bring(0, 2, SHELF)
    leases = group.grant(0.0)
    group.ack(of(leases, 0), 0, 0.0)
    group.bring(2, 3, SHELF)
    assert granted(group.grant(0.0), ann) == [2]
    group.ack(of(leases, 1), 1, 0.0)
    group.bring(3, 103, SHELF)
    leases = group.grant(0.0)
    assert (len(granted(leases, ann)), len(granted(leases, bob))) == (36, 64)


def test_a_member_whose_lease_ended_is_served_after_the_others() -> None:
    group = make_group(ack_wait=10.0)
    group.join("ann", 8)
    bob = group.join("bob", 8)
    for now in (0.0, 5.0):
        group.bring(int(now), int(now) + 2, SHELF)
        leases = grant(group, now)
        group.extend(leases[1], leases[1].first, 100.0, now)  # of bob
    group.expire(10.0)
    assert granted(group.grant(10.0), bob) == [0], "ann, whose turn it was, did not answer"


# -- taking back ------------------------------------------------------------------------------------------------


def busy_and_idle(**options: Any) -> tuple[GroupLogic, Lease, MemberState, MemberState]:
    """A member that holds ten records and has seen two, and one that holds nothing."""
    group = make_group(**options)
    busy = group.join("busy", 64)
    group.bring(0, 10, SHELF)
    (lease,) = group.grant(0.0)
    group.take_up(lease, 0.0)
    lease.handed = 2
    return group, lease, busy, group.join("idle", 64)


def test_what_a_busy_member_has_not_seen_goes_to_an_idle_one_up_to_an_equal_share() -> None:
    group, lease, busy, idle = busy_and_idle()
    assert group.take_back(1.0)
    assert (lease.end, busy.held, group.outstanding) == (5, 5, 5)
    (again,) = group.grant(1.0)
    assert (again.member, again.first, again.end, again.attempt) == (idle, 5, 10, 1)
    assert not group.take_back(1.0), "nobody is idle any more"


def test_nothing_is_taken_back_while_something_is_ready_or_the_group_is_paused() -> None:
    group, _, _, _ = busy_and_idle(max_ack_pending=10)
    group.bring(10, 11, SHELF)
    assert not group.take_back(1.0)
    group, _, _, _ = busy_and_idle()
    group.paused = True
    assert not group.take_back(1.0)


def test_what_was_seen_stays_where_it_is_and_is_not_looked_for_again() -> None:
    group, lease, busy, _ = busy_and_idle()
    lease.handed = 10
    assert not group.take_back(1.0)
    assert (busy.held, list(group._stocked)) == (10, [])


def test_a_member_far_away_is_asked_once_and_gives_back_what_it_has_not_begun() -> None:
    group, lease, busy, idle = busy_and_idle()
    asked: list[int] = []
    lease.on_recall = asked.append
    for _ in range(3):
        assert not group.take_back(1.0)
    assert (asked, busy.held) == ([5], 10), "it keeps everything until it says so"
    lease.handed = 7
    group.give_back(lease, 7, 2.0)
    assert granted(group.grant(2.0), idle) == [7, 8, 9]


def test_only_what_was_not_seen_can_be_given_back() -> None:
    group, lease, _, _ = busy_and_idle()
    with pytest.raises(AlreadySettled):
        group.give_back(lease, 1, 0.0)
    group.give_back(lease, 2, 0.0)
    with pytest.raises(AlreadySettled):
        group.give_back(lease, 5, 0.0)


def test_records_with_keys_are_taken_back_the_last_first_and_their_attempts_are_the_same() -> None:
    group = make_group()
    busy = group.join("busy", 64)
    bring(group, *keyed("a", "b", "c", "d", "a"))
    leases = group.grant(0.0)
    group.take_up(leases[0], 0.0)
    leases[0].handed = 1
    idle = group.join("idle", 64)
    assert group.take_back(0.0)
    assert [lease.ended for lease in leases] == [False, False, True, True]
    again = group.grant(0.0)
    assert (granted(again, idle), {lease.attempt for lease in again}) == ([2, 3], {1})
    assert busy.held == 2


def test_a_member_that_bounds_bytes_holds_at_most_one_record_too_many() -> None:
    group = make_group()
    member = group.join("ann", 64, prefetch_bytes=40)
    group.bring(0, 8, SHELF)  # sizes 0, 7, 14, 21, 28, 35, 2, 9
    leases = grant(group)
    assert granted(leases) == [0, 1, 2, 3]
    assert (member.held_bytes, member.room) == (42, 0)
    group.ack(of(leases, 1), 1, 0.0)
    assert member.held_bytes == 35
    assert granted(grant(group)) == [4]


def test_a_record_larger_than_a_members_bytes_still_comes() -> None:
    group = make_group()
    group.join("ann", 64, prefetch_bytes=1)
    group.bring(5, 6, SHELF)
    assert granted(group.grant(0.0)) == [5]


def test_bytes_bind_what_was_brought_before_such_a_member_came() -> None:
    group = make_group()
    group.bring(0, 40, SHELF)
    thrifty, other = group.join("thrifty", 64, prefetch_bytes=20), group.join("other", 64)
    leases = group.grant(0.0)
    assert sum(map(size_of, granted(leases, thrifty)[:-1])) < 20 <= thrifty.held_bytes
    assert granted(leases, other)
    assert sorted(granted(leases)) == list(range(40))


def test_bytes_bind_what_another_member_gave_back() -> None:
    group = make_group()
    group.join("ann", 64)
    group.bring(0, 10, SHELF)
    leases = grant(group)
    thrifty = group.join("thrifty", 64, prefetch_bytes=20)
    for place in (3, 4, 5):
        group.nack(of(leases, place), place, 0.0, "no", 0.0)
    group.leave("ann", 0.0)
    group.grant(0.0)
    assert thrifty.held_bytes >= 20
    assert thrifty.held < 7


def test_a_name_is_one_member() -> None:
    group = make_group()
    group.join("ann", 1)
    with pytest.raises(InvalidOption, match="has a member of that name"):
        group.join("ann", 1)
    assert list(group.members) == ["ann"]


# -- the window -------------------------------------------------------------------------------------------------


def test_no_more_is_wanted_than_may_be_unsettled() -> None:
    group = make_group(max_ack_pending=10)
    assert group.wants() == 10
    group.join("ann", 4)
    group.bring(0, 7, SHELF)
    assert group.wants() == 3
    leases = grant(group)
    assert group.wants() == 3
    bring(group, *keyed("k", "k"), first=7)
    assert group.wants() == 1
    group.ack_range(leases[0], 0, 2, 0.0)
    assert group.wants() == 3


def test_what_is_scheduled_waits_outside_the_window() -> None:
    group = make_group(max_ack_pending=2)
    group.join("ann", 8)
    bring(group, Meta(due=50.0), Meta(due=50.0), Meta(due=50.0))
    assert (group.wants(), group.scheduled) == (2, 3)


def test_what_comes_back_from_the_schedule_does_not_burst_the_window() -> None:
    group = make_group(max_ack_pending=2)
    group.join("ann", 8)
    group.join("bob", 8)
    bring(group, *[Meta(due=50.0)] * 5)
    leases = grant(group, 50.0)
    assert (group.outstanding, group.wants()) == (2, 0)
    group.ack(leases[0], leases[0].first, 50.0)
    grant(group, 50.0)
    assert group.outstanding == 2


def test_a_long_history_of_acks_leaves_nothing_behind() -> None:
    group = make_group()
    group.join("ann", 64)
    place = 0
    for _ in range(500):
        group.bring(place, place + 10, SHELF)
        bring(group, *keyed("a", f"key-{place}"), first=place + 10)
        place += 12
        while leases := grant(group):
            for lease in reversed(leases):
                group.ack_range(lease, lease.first, lease.end, 0.0)
    assert group.acked == 6000
    assert group.floor(place) == place
    assert whereabouts(group) == {}
    ready = group._ready
    for kept in (group._leases, group._leases._renewed, ready._keys, ready._schedule, ready._plain):
        assert not kept


def test_renewing_a_lease_over_and_over_takes_no_memory() -> None:
    group = make_group()
    lease = one_out(group)
    for second in range(1000):
        group.extend(lease, 0, 60.0, float(second))
    assert len(group._leases._renewed) <= 70
    assert group.expire(1058.0) == []
    assert not lease.ended
    group.expire(1059.0)
    assert lease.ended


@pytest.mark.parametrize("seconds", [60.0, 5.0])
def test_renewing_a_lease_at_one_moment_is_renewing_it_once(seconds: float) -> None:
    group = make_group()
    lease = one_out(group)
    for _ in range(500):
        group.extend(lease, 0, seconds, 0.0)
        group.extend(lease, 0, 2 * seconds, 0.0)
    group.extend(lease, 0, seconds, 0.0)
    assert len(group._leases._renewed) <= 70
    group.expire(seconds)
    assert lease.ended
    assert whereabouts(group) == {0: "ready"}


def test_a_lease_that_moved_on_is_not_forgotten_when_old_entries_are_swept() -> None:
    group = make_group()
    group.join("ann", 64)
    bring(group, *[Meta(expires=10.0**9)] * 20)
    leases = grant(group)
    for round_ in range(20):
        for lease in leases:
            group.extend(lease, lease.first, 100.0 + round_ + lease.first, 0.0)
    group.expire(125.0)
    assert [lease.first for lease in leases if lease.ended] == list(range(7))


# -- settling ---------------------------------------------------------------------------------------------------


def test_the_floor_is_the_least_place_that_is_not_settled() -> None:
    group = make_group()
    group.join("ann", 8)
    group.bring(0, 4, SHELF)
    (lease,) = grant(group)
    assert group.floor(4) == 0
    group.ack(lease, 2, 0.0)
    assert group.floor(4) == 0
    group.ack(lease, 0, 0.0)
    assert group.floor(4) == 1
    group.nack(lease, 1, 60.0, "later", 0.0)
    assert group.floor(4) == 1
    group.ack(lease, 3, 0.0)
    assert group.floor(4) == 1
    assert group.time_at(1) is not None
    assert make_group().floor(7) == 7
    assert make_group().time_at(7) is None


def test_the_first_attempt_is_one_and_every_further_one_counts() -> None:
    group = make_group()
    group.join("ann", 8)
    group.bring(0, 3, SHELF)
    (lease,) = grant(group)
    assert lease.attempt == 1
    for attempt in (2, 3, 4):
        group.nack(lease, lease.first + (attempt == 2), 0.0, "no", 0.0)
        (lease,) = grant(group)
        assert (lease.attempt, lease.first) == (attempt, 1)
    assert group.redelivered == 3


@pytest.mark.parametrize(("delay", "pause"), [(None, 5.5), (0.0, 0.0), (2.0, 2.0)])
def test_a_failed_attempt_pauses_as_asked_or_as_the_group_backs_off(delay: float | None, pause: float) -> None:
    group = make_group(backoff=(5.0, 9.0), jitter=0.2, chance=0.5)
    lease = one_out(group)
    group.nack(lease, 0, delay, "no", 100.0)
    if pause:
        assert group.grant(100.0 + pause - 0.001) == []
        assert group.next_event() == 100.0 + pause
    assert granted(group.grant(100.0 + pause)) == [0]


def test_the_pauses_grow_with_the_attempts() -> None:
    group = make_group(backoff=(5.0, 9.0), jitter=0.0)
    lease, now = one_out(group), 0.0
    for pause in (5.0, 9.0, 9.0):
        group.nack(lease, 0, None, "no", now)
        assert group.next_event() == now + pause
        now += pause
        (lease,) = grant(group, now)


def test_after_so_many_attempts_it_is_a_dead_letter() -> None:
    group = make_group(max_deliver=2)
    lease = one_out(group, Meta(key=b"k"))
    assert group.nack(lease, 0, 0.0, "first", 0.0) == []
    (lease,) = grant(group)
    (letter,) = group.nack(lease, 0, 0.0, "second", 0.0)
    assert (letter.place, letter.contents, letter.attempts, letter.reason) == (0, SHELF, 2, "second")
    assert (group.dead_lettered, group.unsettled, group.redelivered) == (1, 0, 1)


def test_a_dead_letter_makes_way_for_the_next_of_its_key() -> None:
    group = make_group(max_deliver=1)
    group.join("ann", 8)
    bring(group, *keyed("k", "k", "k"))
    (lease,) = grant(group)
    group.nack(lease, 0, 0.0, "no", 0.0)
    (lease,) = grant(group)
    group.reject(lease, 1, "never", 0.0)
    assert granted(grant(group)) == [2]


def test_rejecting_one_of_many_leaves_the_others() -> None:
    group = make_group()
    group.join("ann", 8)
    group.bring(0, 3, SHELF)
    (lease,) = grant(group)
    (letter,) = group.reject(lease, 1, "bad", 0.0)
    assert (letter.place, letter.attempts, letter.reason) == (1, 1, "bad")
    assert list(lease.open_places()) == [0, 2]
    assert (group.dead_lettered, group.acked, group.outstanding) == (1, 0, 2)


def test_an_expired_record_is_passed_over_and_counted_and_makes_way_for_its_key() -> None:
    group = make_group()
    group.join("ann", 8)
    bring(group, Meta(key=b"k", expires=5.0), Meta(key=b"k"), Meta(expires=5.001))
    assert granted(group.grant(5.0)) == [1, 2]
    assert group.expired == 1


def test_a_batch_ack_settles_what_is_open_and_says_how_many() -> None:
    group = make_group()
    member = group.join("ann", 8)
    group.bring(0, 6, SHELF)
    (lease,) = grant(group)
    group.ack(lease, 1, 0.0)
    group.nack(lease, 3, 60.0, "no", 0.0)
    assert group.ack_range(lease, 0, 5, 0.0) == 3
    assert (group.acked, member.acked, member.held, group.outstanding) == (4, 4, 1, 1)
    assert group.ack_range(lease, 0, 5, 0.0) == 0
    assert group.acked == 4


# -- leaving ----------------------------------------------------------------------------------------------------


def test_what_a_member_leaves_behind_goes_back_at_once_and_in_order() -> None:
    group = make_group()
    group.join("ann", 6)
    group.bring(0, 10, SHELF)
    (lease,) = group.grant(0.0)
    lease.handed = 3
    group.ack(lease, 1, 0.0)
    group.join("bob", 64)
    assert group.leave("ann", 0.0) == []
    leases = group.grant(0.0)
    assert granted(leases) == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    attempts = {place: of(leases, place).attempt for place in granted(leases)}
    assert attempts == {0: 2, 2: 2} | dict.fromkeys(range(3, 10), 1)
    hand_all(leases)
    assert group.redelivered == 2


def test_what_was_never_seen_is_not_an_attempt_however_often_members_come_and_go() -> None:
    group = make_group(max_deliver=1)
    bring(group, *keyed("k"))
    for round_ in range(10):
        group.join(f"m{round_}", 1)
        (lease,) = group.grant(0.0)
        assert lease.attempt == 1
        assert group.leave(f"m{round_}", 0.0) == []
    assert (group.unsettled, group.dead_lettered) == (1, 0)


def test_what_was_seen_and_left_behind_may_have_been_its_last_attempt() -> None:
    group = make_group(max_deliver=1)
    group.join("ann", 2)
    group.bring(0, 2, SHELF)
    (lease,) = group.grant(0.0)
    lease.handed = 1
    (letter,) = group.leave("ann", 0.0)
    assert (letter.place, letter.attempts, letter.reason) == (0, 1, LEFT)
    assert whereabouts(group) == {1: "ready"}


def test_members_that_are_gone_hold_nothing_and_are_not_given_anything() -> None:
    group = make_group()
    ann = group.join("ann", 2)
    bring(group, *keyed("a", "b"))
    group.grant(0.0)
    group.leave("ann", 0.0)
    assert (ann.held, ann.held_bytes, group.outstanding) == (0, 0, 0)
    assert group.grant(0.0) == []
    assert whereabouts(group) == {0: "ready", 1: "ready"}


def test_leases_that_were_extended_end_too_when_their_member_leaves() -> None:
    group = make_group()
    lease = one_out(group)
    group.extend(lease, 0, 500.0, 0.0)
    group.leave("ann", 0.0)
    assert lease.ended
    assert whereabouts(group) == {0: "ready"}
    assert group.expire(1000.0) == []


# -- time -------------------------------------------------------------------------------------------------------


def test_a_lease_ends_at_its_time_and_not_before() -> None:
    group = make_group(ack_wait=30.0)
    lease = one_out(group)
    assert group.next_event() == 30.0
    group.expire(29.999)
    assert not lease.ended
    group.expire(30.0)
    assert lease.ended
    assert granted(grant(group, 30.0)) == [0]


def test_what_was_seen_when_its_lease_ended_has_failed_and_the_rest_has_not() -> None:
    group = make_group(ack_wait=30.0, max_deliver=1)
    group.join("ann", 4)
    group.bring(0, 4, SHELF)
    (lease,) = group.grant(0.0)
    lease.handed = 2
    letters = group.expire(30.0)
    assert [(letter.place, letter.reason) for letter in letters] == [(0, EXPIRED_LEASE), (1, EXPIRED_LEASE)]
    assert granted(group.grant(30.0)) == [2, 3]


def test_a_working_member_gets_more_time_for_the_rest_of_the_lease() -> None:
    group = make_group(ack_wait=30.0)
    group.join("ann", 4)
    group.bring(0, 4, SHELF)
    (lease,) = grant(group)
    group.ack(lease, 0, 20.0)
    group.expire(49.0)
    group.nack(lease, 1, 500.0, "no", 49.0)
    group.expire(78.0)
    group.ack_range(lease, 2, 3, 78.0)
    group.expire(107.0)
    assert not lease.ended
    group.expire(108.0)
    assert lease.ended


def test_an_ack_takes_nothing_away_from_an_extended_lease() -> None:
    group = make_group(ack_wait=30.0)
    group.join("ann", 4)
    group.bring(0, 4, SHELF)
    (lease,) = grant(group)
    group.extend(lease, 1, 600.0, 0.0)
    group.ack(lease, 0, 1.0)
    group.expire(599.0)
    assert not lease.ended
    group.expire(600.0)
    assert lease.ended


def test_an_extension_counts_from_now() -> None:
    group = make_group(ack_wait=30.0)
    lease = one_out(group)
    group.extend(lease, 0, 40.0, 25.0)
    group.expire(64.0)
    assert not lease.ended
    assert group.next_event() == 65.0
    group.extend(lease, 0, 1.0, 64.0)
    group.expire(64.999)
    assert not lease.ended
    group.expire(65.0)
    assert lease.ended


def test_the_time_for_what_was_granted_runs_from_when_it_is_taken_up() -> None:
    group = make_group(ack_wait=30.0)
    lease = one_out(group)
    group.take_up(lease, 20.0)
    group.expire(49.999)
    assert not lease.ended
    group.expire(50.0)
    assert lease.ended


def test_taking_up_takes_nothing_away_from_an_extended_lease() -> None:
    group = make_group(ack_wait=30.0)
    lease = one_out(group)
    group.extend(lease, 0, 500.0, 0.0)
    group.take_up(lease, 10.0)
    group.expire(499.0)
    assert not lease.ended


def test_what_lies_before_a_busy_member_waits_for_it_and_before_an_idle_one_does_not() -> None:
    group = make_group(ack_wait=30.0)
    group.join("busy", 2)
    group.join("stuck", 2)
    bring(group, *keyed("a", "b", "c", "d"))
    first, second, third, fourth = group.grant(0.0)
    assert [lease.member.name for lease in (first, second, third, fourth)] == ["busy", "busy", "stuck", "stuck"]
    group.take_up(first, 0.0)
    first.handed = first.end
    group.ack(first, 0, 25.0)
    group.expire(30.0)
    assert (second.ended, third.ended, fourth.ended) == (False, True, True)
    group.expire(54.999)
    assert not second.ended
    group.expire(55.0)
    assert second.ended


def test_taking_something_up_is_a_sign_of_life() -> None:
    group = make_group(ack_wait=30.0)
    group.join("ann", 2)
    bring(group, *keyed("a", "b"))
    first, second = group.grant(0.0)
    group.take_up(first, 20.0)
    first.handed = first.end
    group.expire(49.0)
    assert not second.ended
    group.expire(50.0)
    assert first.ended
    assert second.ended


def test_what_was_begun_does_not_wait_for_what_else_its_member_does() -> None:
    group = make_group(ack_wait=30.0)
    group.join("ann", 2)
    bring(group, *keyed("a", "b"))
    first, second = group.grant(0.0)
    for lease in (first, second):
        group.take_up(lease, 0.0)
        lease.handed = lease.end
    group.ack(first, 0, 29.0)
    group.expire(30.0)
    assert second.ended


def test_a_redelivery_counts_when_it_is_taken_up_and_counters_never_go_back() -> None:
    group = make_group()
    ann = group.join("ann", 8)
    group.bring(0, 2, SHELF)
    bring(group, *keyed("k"), first=2)
    for lease in grant(group):
        for place in list(lease.open_places()):
            group.nack(lease, place, 0.0, "no", 0.0)
    leases = group.grant(0.0)
    assert (group.redelivered, ann.granted) == (0, 6)
    hand_all(leases[:2])
    assert group.redelivered == 2
    group.leave("ann", 0.0)
    assert (group.redelivered, ann.granted) == (2, 6), "what went back unseen was granted, and not delivered"


def test_what_expires_in_the_queue_of_a_member_is_not_handed_out() -> None:
    group = make_group()
    ann = group.join("ann", 8)
    group.bring_one(0, Meta(key=b"k", expires=5.0), 3, SHELF, 0.0)
    group.bring_one(1, Meta(key=b"k"), 4, SHELF, 0.0)
    (lease,) = group.grant(0.0)
    assert group.unsettled_bytes == 7
    assert not group.take_up(lease, 5.0)
    assert (group.expired, ann.held, group.unsettled, group.unsettled_bytes) == (1, 0, 1, 4)
    (following,) = group.grant(5.0)
    assert (following.first, group.take_up(following, 5.0)) == (1, True)


def test_the_bytes_of_what_is_not_settled_are_known_exactly() -> None:
    group = make_group(max_deliver=1)
    group.join("ann", 8)
    group.bring(0, 6, SHELF)
    (lease,) = grant(group)
    group.ack(lease, 1, 0.0)
    assert group.unsettled_bytes == sum(map(size_of, (0, 2, 3, 4, 5)))
    group.ack_range(lease, 0, 3, 0.0)
    assert group.unsettled_bytes == sum(map(size_of, (3, 4, 5)))
    group.nack(lease, 3, 0.0, "no", 0.0)
    group.reject(lease, 4, "no", 0.0)
    assert group.unsettled_bytes == size_of(5)
    group.clear()
    assert group.unsettled_bytes == 0


def test_leases_end_each_at_its_own_time() -> None:
    group = make_group(ack_wait=10.0)
    group.join("ann", 64)
    leases = []
    for place in range(5):
        group.bring(place, place + 1, SHELF)
        leases += grant(group, float(place))
    for passed, (one, two) in enumerate(pairwise(leases)):
        group.expire(10.0 + passed)
        assert one.ended
        assert not two.ended


def test_it_knows_when_something_is_due_without_a_notification() -> None:
    group = make_group(ack_wait=30.0)
    assert group.next_event() is None
    bring(group, Meta(due=45.0))
    assert group.next_event() == 45.0
    group.join("ann", 8)
    group.bring(1, 2, SHELF)
    (lease,) = grant(group)
    assert group.next_event() == 30.0
    group.extend(lease, 1, 40.0, 0.0)
    assert group.next_event() == 40.0
    group.ack(lease, 1, 0.0)
    group.expire(40.0)
    assert group.next_event() == 45.0


# -- keys and priorities ----------------------------------------------------------------------------------------


def test_a_key_is_with_one_member_at_a_time_while_other_keys_go_on() -> None:
    group = make_group()
    group.join("ann", 8)
    group.join("bob", 8)
    bring(group, *keyed("a", "b", "a", "b", "a"))
    leases = grant(group)
    assert granted(leases) == [0, 1]
    group.nack(of(leases, 0), 0, 60.0, "later", 0.0)
    group.ack(of(leases, 1), 1, 0.0)
    assert granted(grant(group)) == [3]
    assert granted(grant(group, 60.0)) == [0]


def test_priorities_do_not_starve_the_low_ones() -> None:
    group = make_group()
    group.join("ann", 1)
    bring(group, Meta(), *[Meta(priority=9)] * 50)
    order = []
    while leases := grant(group):
        order += granted(leases)
        group.ack(leases[0], leases[0].first, 0.0)
    assert order.index(0) < 10
    assert len(order) == 51


# -- steering ---------------------------------------------------------------------------------------------------


def test_a_paused_group_grants_nothing_and_loses_nothing() -> None:
    group = make_group()
    lease = one_out(group)
    bring(group, Meta(due=10.0), Meta(priority=3), first=1)
    group.paused = True
    assert group.grant(20.0) == []
    group.ack(lease, 0, 20.0)
    group.paused = False
    assert sorted(granted(group.grant(20.0))) == [1, 2]


def test_a_reset_forgets_all_and_voids_what_is_out() -> None:
    group = make_group()
    group.join("ann", 4)
    group.bring(0, 3, SHELF)
    bring(group, *keyed("k", "k"), Meta(due=50.0), first=3)
    leases = grant(group)
    group.extend(leases[0], 0, 99.0, 0.0)
    group.clear()
    assert whereabouts(group) == {}
    assert (group.outstanding, group.unsettled, group.next_event(), group.wants()) == (0, 0, None, 4096)
    assert [(m.held, m.held_bytes) for m in group.members.values()] == [(0, 0)]
    with pytest.raises(LeaseEnded):
        group.ack(leases[0], 0, 0.0)
    bring(group, *keyed("k"), first=3)
    assert granted(group.grant(0.0)) == [3]


# -- what is refused --------------------------------------------------------------------------------------------

Settling = Callable[[GroupLogic, Lease], object]

SETTLINGS: dict[str, Settling] = {
    "ack": lambda group, lease: group.ack(lease, 0, 0.0),
    "nack": lambda group, lease: group.nack(lease, 0, None, "no", 0.0),
    "reject": lambda group, lease: group.reject(lease, 0, "no", 0.0),
    "extend": lambda group, lease: group.extend(lease, 0, 5.0, 0.0),
    "ack_range": lambda group, lease: group.ack_range(lease, 0, 1, 0.0),
}


def refused(group: GroupLogic, error: type[RunnelError], call: Callable[[], object]) -> RunnelError:
    before = look(group)
    with pytest.raises(error) as caught:
        call()
    assert look(group) == before
    return caught.value


@pytest.mark.parametrize("settling", ["ack", "nack", "reject", "extend"])
def test_a_delivery_is_settled_once(settling: str) -> None:
    group = make_group()
    lease = one_out(group)
    group.ack(lease, 0, 0.0)
    error = refused(group, AlreadySettled, lambda: SETTLINGS[settling](group, lease))
    assert isinstance(error, AlreadySettled)
    assert (error.group, error.place) == ("g", 0)


@pytest.mark.parametrize("settling", SETTLINGS)
@pytest.mark.parametrize("end", ["expire", "leave", "clear"])
def test_after_its_lease_a_delivery_is_settled_too_late(settling: str, end: str) -> None:
    group = make_group()
    lease = one_out(group)
    ends: dict[str, Callable[[], object]] = {
        "expire": lambda: group.expire(31.0),
        "leave": lambda: group.leave("ann", 1.0),
        "clear": group.clear,
    }
    ends[end]()
    error = refused(group, LeaseEnded, lambda: SETTLINGS[settling](group, lease))
    assert isinstance(error, LeaseEnded)
    assert (error.group, error.place, error.attempt) == ("g", 0, 1)


@pytest.mark.parametrize("settling", SETTLINGS)
def test_what_another_group_delivered_is_settled_there(settling: str) -> None:
    group, other = make_group("g"), make_group("other")
    lease = one_out(other)
    one_out(group)
    before = look(other)
    error = refused(group, UnknownMember, lambda: SETTLINGS[settling](group, lease))
    assert isinstance(error, UnknownMember)
    assert (error.group, error.member) == ("g", "ann")
    assert look(other) == before


def test_an_unknown_member_cannot_leave() -> None:
    group = make_group()
    one_out(group)
    refused(group, UnknownMember, lambda: group.leave("zoe", 0.0))


@pytest.mark.parametrize("seconds", [-0.001, float("nan"), float("inf")])
def test_time_is_not_negative_and_not_endless(seconds: float) -> None:
    group = make_group()
    lease = one_out(group)
    refused(group, InvalidOption, lambda: group.nack(lease, 0, seconds, "no", 0.0))
    refused(group, InvalidOption, lambda: group.extend(lease, 0, seconds, 0.0))
    refused(group, InvalidOption, lambda: group.extend(lease, 0, 0, 0.0))


def test_it_says_who_is_there_and_what_is_out() -> None:
    group = make_group()
    lease = one_out(group)
    group.bring(1, 3, SHELF)
    assert repr(group) == "<GroupLogic 'g', 1 members, 1 out, 2 to come>"
    assert repr(lease.member) == "<MemberState 'ann' holds 1 of 8>"


# -- what is written down ---------------------------------------------------------------------------------------


class Written:
    """All that a group wants remembered."""

    def __init__(self) -> None:
        self.settled_places: list[int] = []
        self.failures: list[tuple[int, int, float, str]] = []

    def settled(self, place: int) -> None:
        self.settled_places.append(place)

    def settled_range(self, first: int, end: int) -> None:
        self.settled_places += range(first, end)

    def failed(self, place: int, attempts: int, due: float, reason: str) -> None:
        self.failures.append((place, attempts, due, reason))


def noted(count: int = 6, **options: Any) -> tuple[GroupLogic, Written]:
    """A group with a member that holds places [0, count) in one lease."""
    group, written = make_group(**options), Written()
    group.notes = written
    group.join("ann", 100)
    group.bring(0, count, SHELF)
    return group, written


def test_an_ack_is_written_down_once() -> None:
    group, written = noted()
    (lease,) = grant(group)
    group.ack(lease, 3, 0.0)
    with pytest.raises(AlreadySettled):
        group.ack(lease, 3, 0.0)
    assert written.settled_places == [3]


def test_a_batch_ack_writes_down_what_was_open_and_nothing_else() -> None:
    group, written = noted()
    (lease,) = grant(group)
    group.ack(lease, 1, 0.0)
    group.nack(lease, 3, 0, "no", 0.0)
    written.settled_places.clear()
    group.ack_range(lease, 0, 5, 0.0)
    assert written.settled_places == [0, 2, 4]
    group.ack_range(lease, 0, 6, 0.0)
    assert written.settled_places == [0, 2, 4, 5]


def test_a_failed_attempt_is_written_down_with_its_time_and_reason() -> None:
    group, written = noted()
    (lease,) = grant(group, 100.0)
    group.nack(lease, 2, 7.0, "no", 100.0)
    assert (written.failures, written.settled_places) == ([(2, 1, 107.0, "no")], [])


def test_the_last_attempt_and_a_rejection_settle() -> None:
    group, written = noted(max_deliver=1)
    (lease,) = grant(group)
    group.nack(lease, 2, None, "no", 0.0)
    group.reject(lease, 4, "never", 0.0)
    assert (written.settled_places, written.failures) == ([2, 4], [])


@pytest.mark.parametrize("end", ["expire", "leave"])
def test_the_end_of_a_lease_is_a_failure_of_what_was_seen_and_nothing_for_the_rest(end: str) -> None:
    group, written = noted(ack_wait=30)
    (lease,) = group.grant(0.0)
    group.take_up(lease, 0.0)
    lease.handed = 2
    if end == "expire":
        group.expire(31.0)
    else:
        group.leave("ann", 31.0)
    reason = EXPIRED_LEASE if end == "expire" else LEFT
    assert written.failures == [(0, 1, 31.0, reason), (1, 1, 31.0, reason)]
    assert written.settled_places == []


def test_what_expires_is_settled_before_and_after_it_was_granted() -> None:
    group, written = make_group(), Written()
    group.notes = written
    group.join("ann", 100)
    bring(group, Meta(expires=5.0), Meta(expires=50.0))
    (lease,) = group.grant(10.0)
    assert written.settled_places == [0]
    assert not group.take_up(lease, 60.0)
    assert written.settled_places == [0, 1]


@pytest.mark.parametrize("due", [0.0, 9.0])
def test_what_was_tried_in_an_earlier_life_comes_when_it_is_due_and_counts_on(due: float) -> None:
    group = make_group(max_deliver=3)
    group.join("ann", 100)
    group.bring_again(4, Meta(), SHELF, 2, "then", due, now=5.0)
    assert whereabouts(group) == {4: "scheduled" if due > 5.0 else "ready"}
    assert group.unsettled_bytes == size_of(4)
    (lease,) = grant(group, 10.0)
    assert lease.attempt == 3
    (dead,) = group.nack(lease, 4, None, "now", 10.0)
    assert (dead.attempts, dead.reason) == (3, "now")


def test_what_was_tried_in_an_earlier_life_keeps_the_order_of_its_key() -> None:
    group = make_group()
    group.join("ann", 100)
    group.bring_again(4, Meta(key=b"k"), SHELF, 1, "then", 9.0, now=5.0)
    bring(group, Meta(key=b"k"), first=5, now=5.0)
    assert whereabouts(group) == {4: "scheduled", 5: "waiting"}
    assert granted(grant(group, 10.0)) == [4]


def test_open_ranges_are_what_is_still_to_be_settled() -> None:
    group, _ = noted()
    (lease,) = grant(group)
    assert list(lease.open_ranges(1, 5)) == [(1, 5)]
    group.ack(lease, 0, 0.0)
    assert list(lease.open_ranges(0, 3)) == [(1, 3)]
    group.ack(lease, 3, 0.0)
    assert list(lease.open_ranges(0, 6)) == [(1, 2), (2, 3), (4, 5), (5, 6)]
    assert list(lease.open_ranges(3, 4)) == []
    assert list(lease.open_ranges(0, 1)) == []


def test_no_more_is_fetched_than_fits_into_memory_whatever_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    group = make_group()
    bring(group, Meta(due=100.0), first=7)
    assert group.wants() > 0, "what is scheduled is outside the window"
    monkeypatch.setattr("runnel.broker.group.logic.group.MAX_BYTES", group.unsettled_bytes)
    assert group.wants() == 0, "but not outside of memory"
    group.join("ann", 8)
    (lease,) = grant(group, 100.0)
    group.ack(lease, lease.first, 100.0)
    assert group.wants() > 0


# -- letting go -------------------------------------------------------------------------------------------------


def wait(group: GroupLogic, *metas: Meta, first: int = 0) -> None:
    """Records that can be read again come."""
    for place, meta in enumerate(metas, first):
        group.bring_one(place, meta, size_of(place), KEPT, 0.0)


def test_released_records_take_no_room_and_stall_no_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.broker.group.logic.group.MAX_BYTES", 20)
    group = make_group(max_ack_pending=4)
    wait(group, *[Meta(due=100.0)] * 50)
    assert (group.unsettled, group.scheduled, group.unsettled_bytes, group.wants()) == (50, 50, 0, 4)


def test_a_failed_attempt_lets_go_and_weighs_again_when_it_is_back() -> None:
    group = make_group()
    group.join("ann", 8)
    group.bring(3, 5, KEPT)
    (lease,) = grant(group)
    group.nack(lease, 3, 60.0, "later", 0.0)
    assert group.unsettled_bytes == size_of(4)
    group.release(60.0)
    assert group.recall(9) == [3]
    group.came(3, 4, KEPT)
    assert group.unsettled_bytes == size_of(3) + size_of(4)
    (again,) = grant(group, 60.0)
    assert again.attempt == 2
    group.ack(again, 3, 60.0)
    group.ack(lease, 4, 60.0)
    assert group.unsettled_bytes == 0


def test_what_is_due_comes_before_what_is_new() -> None:
    group = make_group(max_ack_pending=10)
    wait(group, *[Meta(due=5.0)] * 7)
    group.release(5.0)
    assert group.wants() == 3
    group.recall(4)
    assert group.wants() == 3, "those that are read count too"


def test_no_more_comes_back_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    group = make_group(max_ack_pending=3)
    group.join("ann", 8)
    wait(group, *[Meta(due=5.0)] * 7)
    group.release(5.0)
    assert (len(group.recall(9)), group.room()) == (7, 3)
    group.came(0, 2, KEPT)
    assert group.room() == 1
    leases = grant(group, 5.0)
    assert group.room() == 1
    group.ack(leases[0], 0, 5.0)
    assert group.room() == 2
    monkeypatch.setattr("runnel.broker.group.logic.group.MAX_BYTES", group.unsettled_bytes)
    assert group.room() == 0


def test_a_group_full_of_what_waits_for_a_key_still_takes_the_record_they_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = make_group(max_ack_pending=2)
    wait(group, Meta(key=b"k", due=5.0), *keyed("k", "k"))
    monkeypatch.setattr("runnel.broker.group.logic.group.MAX_BYTES", group.unsettled_bytes)
    group.release(5.0)
    assert (group.recall(9), group.wants(), group.room()) == ([0], 0, 1)


@pytest.mark.parametrize(("for_good", "settled"), [(True, [0]), (False, [])])
def test_what_is_gone_is_done_with_and_written_down_only_if_it_is_so_for_good(
    for_good: bool, settled: list[int]
) -> None:
    group, written = make_group(), Written()
    group.notes = written
    wait(group, Meta(key=b"k", due=5.0), Meta(key=b"k"))
    group.release(5.0)
    group.recall(1)
    assert group.gone(0, 5.0, for_good=for_good)
    assert whereabouts(group) == {1: "ready"}
    assert group.floor(2) == 1
    assert written.settled_places == settled
    assert (group.acked, group.expired, group.dead_lettered) == (0, 0, 0)
    assert not group.gone(0, 5.0, for_good=for_good)
    assert written.settled_places == settled


def test_acks_after_a_reset_belong_to_no_member() -> None:
    group = make_group()
    wait(group, Meta(due=5.0))
    group.release(5.0)
    group.recall(1)
    group.clear()
    group.came(0, 1, KEPT)
    assert (group.unsettled, group.unsettled_bytes) == (0, 0)


# -- A member says how much more it may be given -------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "held_bytes", "room"),
    [(0, 0, 4), (3, 99, 1), (4, 0, 0), (1, 100, 0), (1, 101, 0)],
)
def test_it_has_room_for_records_until_its_bytes_are_used_up(held: int, held_bytes: int, room: int) -> None:
    member = make_group().join("ann", 4, prefetch_bytes=100)
    member.held, member.held_bytes = held, held_bytes
    assert member.room == room


def test_without_a_bound_bytes_do_not_count() -> None:
    member = make_group().join("ann", 4)
    member.held_bytes = 10**12
    assert member.room == 4
    assert repr(member) == "<MemberState 'ann' holds 0 of 4>"


# -- What a group can be told, and how long it pauses between attempts ---------------------------------------


def test_the_defaults_are_those_that_are_documented() -> None:
    options = GroupOptions()
    assert (options.ack_wait, options.max_ack_pending, options.max_deliver) == (30.0, 4096, 20)
    assert (options.backoff, options.jitter, options.dead_letter) == (BACKOFF, 0.1, None)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ack_wait", 0),
        ("ack_wait", -1.0),
        ("ack_wait", float("nan")),
        ("ack_wait", "30"),
        ("ack_wait", True),
        ("max_ack_pending", 0),
        ("max_ack_pending", 2.5),
        ("max_ack_pending", True),
        ("max_deliver", 0),
        ("max_deliver", -3),
        ("max_deliver", "5"),
        ("backoff", ()),
        ("backoff", (1.0, -1.0)),
        ("backoff", (float("nan"),)),
        ("backoff", ("1",)),
        ("jitter", -0.1),
        ("jitter", 1.1),
        ("jitter", float("nan")),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        GroupOptions(**{option: value})
    assert caught.value.option == option


@pytest.mark.parametrize(
    "options", [{"ack_wait": 0.001}, {"max_deliver": 1}, {"backoff": (0,)}, {"jitter": 0}, {"jitter": 1}]
)
def test_the_bounds_themselves_are_allowed(options: dict[str, Any]) -> None:
    ((option, value),) = options.items()
    assert getattr(GroupOptions(**options), option) == value


@pytest.mark.parametrize(("attempts", "pause"), [(1, 1), (2, 5), (3, 30), (4, 30), (100, 30)])
def test_each_attempt_has_its_pause_and_the_last_holds_for_all_that_follow(attempts: int, pause: float) -> None:
    assert GroupOptions(backoff=(1, 5, 30), jitter=0.0).pause(attempts, 0.9) == pause


@pytest.mark.parametrize(("chance", "pause"), [(0.0, 10.0), (0.5, 11.0), (1.0, 12.0)])
def test_jitter_stretches_a_pause_and_never_shortens_it(chance: float, pause: float) -> None:
    assert GroupOptions(backoff=(10.0,), jitter=0.2).pause(1, chance) == pytest.approx(pause)


def test_options_cannot_be_changed_behind_the_groups_back() -> None:
    with pytest.raises(AttributeError):
        GroupOptions().ack_wait = 5.0  # type: ignore[misc]

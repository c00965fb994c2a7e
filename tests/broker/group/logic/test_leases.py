"""The leases of a group: each is looked at when it may be over, and not before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.group.logic.leases import Lease, LeaseTable
from tests.broker.group.group_builders import SHELF, make_group


def lease(deadline: float) -> Lease:
    return Lease(make_group().join("ann", 64), 0, 1, attempt=1, deadline=deadline, contents=SHELF, item=None)


def test_there_is_nothing_to_look_at_before_the_first_deadline() -> None:
    leases, first, second = LeaseTable(), lease(5.0), lease(7.0)
    assert leases.next_look() is None
    leases.add(first)
    leases.add(second)
    assert (len(leases), leases.next_look()) == (2, 5.0)
    assert leases.to_look_at(4.9) == []
    assert leases.to_look_at(5.0) == [first]
    assert leases.to_look_at(7.0) == [first, second]


def test_a_renewed_lease_is_looked_at_at_its_new_deadline_only() -> None:
    leases, renewed, other = LeaseTable(), lease(5.0), lease(7.0)
    leases.add(renewed)
    leases.add(other)
    for deadline in (8.0, 9.0):
        renewed.deadline = deadline
        leases.renew(renewed)
    assert leases.to_look_at(8.5) == [other]
    assert list(leases) == [other, renewed]
    assert leases.to_look_at(9.0) == [other, renewed]


def test_a_lease_that_is_over_is_not_looked_at() -> None:
    leases, fresh, renewed = LeaseTable(), lease(5.0), lease(6.0)
    for one in (fresh, renewed):
        leases.add(one)
    leases.renew(renewed)
    for one in (fresh, renewed):
        leases.remove(one)
    assert leases.to_look_at(100.0) == []
    assert len(leases) == 0


def test_notes_of_old_deadlines_do_not_pile_up_and_the_next_one_stays_known() -> None:
    leases, short, long = LeaseTable(), lease(5.0), lease(5.0)
    for one in (short, long):
        leases.add(one)
    short.deadline = 50.0
    leases.renew(short)
    for deadline in range(100, 600):
        long.deadline = float(deadline)
        leases.renew(long)
    assert len(leases._renewed) <= 70
    assert leases.to_look_at(50.0) == [short]


# -- One lease: it knows which of its records are open, whatever the order of acks, and keeps no more than it needs to.


FIRST, END = 10, 18


def make_lease() -> Lease:
    return Lease(make_group().join("ann", 64), FIRST, END, attempt=1, deadline=30.0, contents=SHELF, item=None)


def test_a_new_lease_is_open_throughout() -> None:
    lease = make_lease()
    assert len(lease) == 8
    assert list(lease.open_places()) == list(range(FIRST, END))
    assert (lease.low, lease.handed, lease.ended) == (FIRST, FIRST, False)
    assert not lease.is_open(FIRST - 1)
    assert not lease.is_open(END)


def test_acks_in_order_only_move_its_lower_end() -> None:
    lease = make_lease()
    for place in range(FIRST, END):
        lease.settle(place)
        assert lease.low == place + 1
        assert lease._settled is None
    assert len(lease) == 0


def test_an_ack_out_of_order_is_remembered_until_the_lower_end_has_passed_it() -> None:
    lease = make_lease()
    for place in (13, 11, 12):
        lease.settle(place)
    assert (lease.low, len(lease), lease._settled) == (10, 5, {11, 12, 13})
    lease.settle(10)
    assert (lease.low, len(lease), lease._settled) == (14, 4, set())


@given(st.permutations(range(FIRST, END)))
def test_any_order_of_acks_settles_each_place_once(order: list[int]) -> None:
    lease = make_lease()
    for done, place in enumerate(order, 1):
        assert lease.is_open(place)
        lease.settle(place)
        assert not lease.is_open(place)
        assert len(lease) == 8 - done
        assert list(lease.open_places()) == sorted(order[done:])
        assert lease.low == min(order[done:], default=END)
    assert not lease._settled


@given(st.lists(st.tuples(st.integers(FIRST, END), st.integers(FIRST, END)), max_size=6), st.sets(st.integers(10, 17)))
def test_any_ranges_settle_what_is_open_in_them_and_count_it(ranges: list[tuple[int, int]], single: set[int]) -> None:
    lease = make_lease()
    still = set(range(FIRST, END)) - single
    for place in sorted(single):
        lease.settle(place)
    for first, end in ranges:
        inside = still & set(range(first, end))
        assert lease.settle_range(first, end) == len(inside)
        still -= inside
        assert list(lease.open_places()) == sorted(still)
        assert len(lease) == len(still)
        assert lease.low == min(still, default=END)


@pytest.mark.parametrize(("first", "end", "count", "low"), [(10, 14, 4, 14), (10, 18, 8, 18), (9, 12, 2, 12)])
def test_a_range_at_the_lower_end_is_one_step(first: int, end: int, count: int, low: int) -> None:
    lease = make_lease()
    assert lease.settle_range(first, end) == count
    assert (lease.low, lease._settled) == (low, None)


def test_a_range_below_what_is_settled_changes_nothing() -> None:
    lease = make_lease()
    lease.settle_range(FIRST, 15)
    assert lease.settle_range(FIRST, 12) == 0
    assert lease.low == 15


def test_it_says_whose_it_is_and_what_is_open() -> None:
    lease = make_lease()
    lease.settle(12)
    assert repr(lease) == "<Lease of 'ann' [10, 18), attempt 1, 7 open>"
    lease.ended = True
    assert repr(lease) == "<Lease of 'ann' [10, 18), attempt 1, ended>"

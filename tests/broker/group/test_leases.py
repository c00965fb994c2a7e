"""All leases of a group: each is looked at when it may be over, and not before."""

from runnel.broker.group.logic.leases import Lease, LeaseTable
from tests.broker.group.rig import SHELF, make_group


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

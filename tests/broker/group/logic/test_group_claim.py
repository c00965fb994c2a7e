"""Claims: what is settled with something that is on its way is nobody else's until that has landed or failed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.group.logic.group import NOT_COMMITTED, Claim, GroupLogic
from runnel.broker.group.logic.leases import Lease
from runnel.core.errors import AlreadySettled
from tests.broker.group.group_builders import SHELF, bring, hand_all, keyed, make_group, size_of


def leased(count: int = 4, **options: Any) -> tuple[GroupLogic, Lease]:
    """A group, and one lease on plain places, all of them seen."""
    group = make_group(ack_wait=10.0, **options)
    group.join("one", 100)
    group.bring(0, count, SHELF)
    (lease,) = leases = group.grant(0.0)
    hand_all(leases)
    return group, lease


def test_what_is_claimed_is_settled_to_its_lease_and_outstanding_to_its_group() -> None:
    group, lease = leased()
    claim = Claim(group, lease, 1, 3, now=0.0)
    assert list(lease.open_places()) == [0, 3]
    assert (group.outstanding, group.members["one"].held) == (4, 2)
    with pytest.raises(AlreadySettled):
        group.ack(lease, 1, 0.0)
    group.ack(lease, 0, 0.0)
    assert group.floor(4) == 1, "it is not settled before it has landed"
    claim.settle(0.0)
    assert (group.outstanding, group.acked, group.members["one"].acked) == (1, 3, 3)
    assert group.unsettled_bytes == size_of(3)
    assert group.floor(4) == 3


def test_a_claim_never_expires_though_the_rest_of_its_lease_does() -> None:
    group, lease = leased()
    claim = Claim(group, lease, 0, 2, now=0.0)
    group.expire(1000.0)
    assert lease.ended
    assert group.outstanding == 2
    group.grant(1000.0)
    assert group.floor(4) == 0
    claim.settle(1001.0)
    assert group.floor(4) == 2


def test_a_claim_is_no_event() -> None:
    group, lease = leased(1)
    Claim(group, lease, 0, 1, now=0.0)
    assert group.next_event() in (None, float("inf"))


def test_what_is_given_back_is_open_again_with_a_fresh_deadline() -> None:
    group, lease = leased()
    claims = [Claim(group, lease, first, end, now=0.0) for first, end in ((0, 1), (2, 4))]
    group.ack(lease, 1, 0.0)
    assert lease.low == lease.end
    for claim in claims:
        assert claim.give_back(8.0) == []
    assert list(lease.open_places()) == [0, 2, 3]
    assert (group.outstanding, group.members["one"].held, lease.deadline) == (3, 3, 18.0)
    assert group.expire(17.0) == []
    assert not lease.ended
    group.ack(lease, 2, 17.0)
    group.expire(100.0)
    assert lease.ended, "and it ends like any other"


def test_what_is_given_back_and_whose_member_has_left_is_tried_again_by_another() -> None:
    group, lease = leased(2)
    claim = Claim(group, lease, 0, 2, now=0.0)
    group.leave("one", 0.0)
    group.join("one", 100)  # of the same name, and not the same
    assert group.grant(0.0) == []
    assert claim.give_back(0.0) == []
    again = group.grant(0.0)
    assert [(one.first, one.attempt) for one in again] == [(0, 2), (1, 2)]
    assert [one.item.reason for one in again if one.item is not None] == [NOT_COMMITTED] * 2


def test_a_record_out_of_attempts_without_a_member_to_return_to_is_a_dead_letter() -> None:
    group, lease = leased(1, max_deliver=1)
    claim = Claim(group, lease, 0, 1, now=0.0)
    group.leave("one", 0.0)
    (dead,) = claim.give_back(0.0)
    assert (dead.place, dead.attempts, dead.reason) == (0, 1, NOT_COMMITTED)
    assert (group.outstanding, group.unsettled_bytes) == (0, 0)


def test_a_claim_on_a_group_that_was_reset_is_void() -> None:
    for end in ("settle", "give_back"):
        group, lease = leased()
        claim = Claim(group, lease, 0, 2, now=0.0)
        group.clear()
        assert claim.void
        assert not getattr(claim, end)(0.0)
        assert (group.outstanding, group.acked, group.members["one"].held, group.unsettled_bytes) == (0, 0, 0, 0)


def test_the_next_of_a_key_waits_for_what_is_claimed() -> None:
    group = make_group(ack_wait=10.0)
    member = group.join("one", 100, prefetch_bytes=1000)
    bring(group, *keyed("k", "k"))
    (lease,) = leases = group.grant(0.0)
    hand_all(leases)
    claim = Claim(group, lease, 0, 1, now=0.0)
    assert member.held_bytes == 0
    assert group.grant(0.0) == []
    claim.give_back(0.0)
    assert (member.held_bytes, group.grant(0.0)) == (size_of(0), [])
    claim = Claim(group, lease, 0, 1, now=0.0)
    claim.settle(0.0)
    assert [one.first for one in group.grant(0.0)] == [1]


@given(
    claimed=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4), st.booleans()), max_size=6),
    acked=st.sets(st.integers(0, 7)),
)
def test_whatever_is_claimed_acked_and_given_back_adds_up(
    claimed: list[tuple[int, int, bool]], acked: set[int]
) -> None:
    group, lease = leased(8)
    is_open, done = set(range(8)), set()
    claims: list[tuple[Claim, bool]] = []
    for first, count, lands in claimed:
        for low, high in list(lease.open_ranges(first, min(8, first + count))):
            claims.append((Claim(group, lease, low, high, 0.0), lands))
            is_open -= set(range(low, high))
        for place in acked & is_open & {first}:
            group.ack(lease, place, 0.0)
            is_open.discard(place)
            done.add(place)
        assert set(lease.open_places()) == is_open
    for claim, lands in claims:
        places = set(range(claim.first, claim.end))
        if lands:
            claim.settle(0.0)
            done |= places
        else:
            claim.give_back(0.0)
            is_open |= places
        assert set(lease.open_places()) == is_open
    assert (group.acked, group.outstanding, group.members["one"].held) == (len(done), len(is_open), len(is_open))
    assert group.unsettled_bytes == sum(map(size_of, is_open))
    assert group.floor(8) == min(is_open, default=8)
    for place in is_open:
        group.ack(lease, place, 0.0)
    assert (group.outstanding, group.unsettled_bytes, len(group._leases)) == (0, 0, 0)


def test_it_says_what_it_claims() -> None:
    group, lease = leased()
    assert "[1, 3)" in repr(Claim(group, lease, 1, 3, 0.0))

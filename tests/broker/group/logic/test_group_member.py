"""A member says how much more it may be given."""

import pytest

from tests.broker.group.group_builders import make_group


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

"""Leases as a member knows them: what is open, and what lies where."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runnel.client.member import RemoteLease
from runnel.core.batch_format import pack
from runnel.wire.binary_messages import GrantPayload

MEMBER: Any = object()


def lease(*counts: int, first: int = 100) -> RemoteLease:
    grants, place = [], first
    for count in counts:
        batch = pack([b"%d" % number for number in range(place, place + count)])
        grants.append(GrantPayload(7, place - first, place, 0, 5, place, 2, "t", batch))
        place += count
    made = RemoteLease(MEMBER, grants, place)
    made.open(verify=True)
    return made


def test_it_says_what_it_is() -> None:
    made = lease(3)
    assert (made.number, made.attempt, made.first, made.end, len(made)) == (5, 2, 100, 103, 3)
    assert repr(made) == "<RemoteLease 5 [100, 103), attempt 2, 3 open>"
    made.ended = True
    assert "ended" in repr(made)


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=4), data=st.data())
def test_records_and_values_lie_at_their_places_over_all_frames(counts: list[int], data: st.DataObject) -> None:
    made = lease(*counts)
    first = data.draw(st.integers(made.first, made.end))
    end = data.draw(st.integers(first, made.end))
    assert made.values(first, end) == tuple(b"%d" % place for place in range(first, end))
    assert [record.sequence for record in made.records(first, end)] == list(range(first, end))


class Model:
    """The open places, as a set."""

    def __init__(self, made: RemoteLease) -> None:
        self.open = set(range(made.first, made.end))


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(100, 112), st.integers(1, 6)), max_size=30))
def test_what_is_open_is_what_a_set_would_say(steps: list[tuple[bool, int, int]]) -> None:
    made = lease(12)
    model = Model(made)
    for settles, first, count in steps:
        end = min(first + count, made.end)
        if settles:
            for low, high in made.open_ranges(first, end):
                made.settle(low, high)
            model.open -= set(range(first, end))
        else:
            taken = set(range(first, end)) - model.open
            for place in sorted(taken):
                made.reopen(place, place + 1)
            model.open |= taken
        assert {place for place in range(made.first - 1, made.end + 1) if made.is_open(place)} == model.open
        assert len(made) == len(model.open)
        ranges = made.open_ranges(made.first, made.end)
        assert [place for low, high in ranges for place in range(low, high)] == sorted(model.open)
        assert all(one[1] < two[0] for one, two in pairwise(ranges)), "side by side is one range"

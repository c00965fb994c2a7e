"""A group's progress against a model that remembers every offset."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.format.ledger import DeliveryFailure, GroupState

PLACE = st.integers(0, 25)
SETTLED = st.lists(st.tuples(PLACE, st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair))), max_size=3)
FAILED = st.lists(
    st.tuples(PLACE, st.integers(1, 9), st.floats(0, 1e9), st.sampled_from(["", "ValueError: no"])),
    max_size=3,
    unique_by=lambda one: one[0],
)
Step = tuple[list[tuple[int, int]], list[tuple[int, int, float, str]]]
STEPS = st.lists(st.tuples(SETTLED, FAILED), max_size=12)


class NaiveGroup:
    """Every place that was ever settled, and the last failure of those that were not."""

    def __init__(self, floor: int) -> None:
        self.settled = set(range(floor))
        self.failed: dict[int, DeliveryFailure] = {}

    def progress(self, step: Step) -> None:
        for first, end in step[0]:
            self.settled |= set(range(first, end))
        for place, *failure in step[1]:
            self.failed[place] = DeliveryFailure(*failure)  # type: ignore[arg-type]
        self.failed = {place: failure for place, failure in self.failed.items() if place not in self.settled}

    @property
    def floor(self) -> int:
        return next(place for place in range(100) if place not in self.settled)


def apply(group: GroupState, step: Step) -> None:
    group.progress([number for pair in step[0] for number in pair], step[1])


def same(group: GroupState, naive: NaiveGroup) -> None:
    assert group.floor == naive.floor
    above = {place for first, end in group.settled for place in range(first, end)}
    assert above == {place for place in naive.settled if place >= naive.floor}
    assert group.failed == naive.failed


@given(STEPS, st.integers(0, 10))
def test_it_comes_as_far_as_a_set_would(steps: list[Step], floor: int) -> None:
    group, naive = GroupState(1, "billing", "orders", {}, floor), NaiveGroup(floor)
    for step in steps:
        apply(group, step)
        naive.progress(step)
        same(group, naive)


@given(STEPS, st.integers(0, 10))
def test_progress_said_twice_changes_nothing(steps: list[Step], floor: int) -> None:
    group = GroupState(1, "billing", "orders", {}, floor)
    for step in steps:
        apply(group, step)
        once = group.encode()
        apply(group, step)
        assert group.encode() == once


@given(STEPS)
def test_it_comes_back_from_a_checkpoint(steps: list[Step]) -> None:
    group = GroupState(4, "billing", "orders.>", {"ack_wait": 3.0}, 2)
    for step in steps:
        apply(group, step)
    again = GroupState.decode(msgspec.msgpack.decode(msgspec.msgpack.encode(group.encode())))
    assert again.encode() == group.encode()
    assert (again.id, again.name, again.pattern, again.options) == (4, "billing", "orders.>", {"ack_wait": 3.0})
    assert again.failed == group.failed


def test_a_settled_record_cannot_fail_any_more() -> None:
    group = GroupState(1, "billing", "orders", {}, 0)
    group.progress([5, 6], [])
    group.progress([], [(5, 1, 0.0, "late")])
    group.progress([], [(4, 1, 0.0, "no")])
    assert list(group.failed) == [4]


@given(STEPS, st.integers(0, 10))
def test_its_end_is_behind_all_that_it_knows(steps: list[Step], floor: int) -> None:
    group = GroupState(1, "billing", "orders", {}, floor)
    for step in steps:
        apply(group, step)
        for one in (group, GroupState.decode(group.encode())):
            known = [group.floor, *(end for _, end in group.settled), *(place + 1 for place in group.failed)]
            assert one.end == max(known)


def test_an_ack_does_not_look_at_all_that_failed() -> None:
    class Counted(dict[int, DeliveryFailure]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            self.looks += 1
            return super().__iter__()

    group = GroupState(1, "billing", "orders", {}, 0)
    group.progress([], [(place, 1, 0.0, "no") for place in range(100)])
    group.failed = failed = Counted(group.failed)
    group.progress([3, 5, 60, 61], [])
    assert (group.failed is failed, failed.looks, len(failed)) == (True, 0, 97)
    group.progress([0, 1000], [])
    assert not failed


def test_it_shows_itself() -> None:
    group = GroupState(1, "billing", "orders", {}, 3)
    group.progress([], [(4, 1, 0.0, "no")])
    assert repr(group) == "<GroupState 'billing' on 'orders' from 3, 1 failed>"

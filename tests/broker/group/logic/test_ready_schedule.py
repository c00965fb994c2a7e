"""The schedule of delayed records: in order whatever came when, and in little room."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.group.logic import ready
from runnel.broker.group.logic.ready import SORTED_RUN, QueuedRecord, Schedule, ScheduledPlace, SortedRun
from runnel.core.record import Meta
from tests.broker.group.group_builders import SHELF


def item(place: int) -> QueuedRecord:
    return QueuedRecord(place, Meta(), 0, SHELF)


def filled(*dues: float) -> Schedule:
    """Places from 0 on, due then."""
    found = Schedule()
    for place, due in enumerate(dues):
        found.push(due, place, None, float(place))
    return found


def taken(found: Schedule) -> list[int]:
    return [found.pop().place for _ in range(len(found))]


@given(st.lists(st.integers(0, 5) | st.none(), max_size=60), st.sampled_from([1, 2, 4, 100]))
def test_the_earliest_comes_first_and_of_one_moment_the_least_place(steps: list[int | None], run: int) -> None:
    """Numbers are moments to put in, None takes one out. The model is a sorted list."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ready, "SORTED_RUN", run)
        found, model = Schedule(), list[ScheduledPlace]()
        for number, step in enumerate(steps):
            place = number * 37 % 61  # no two alike, and in no order
            if step is not None:
                row = ScheduledPlace(float(step), place, item(place) if place % 3 == 0 else None, place / 2)
                found.push(*row)
                model = sorted([*model, row])
            elif model:
                assert found.pop() == model.pop(0)
            assert len(found) == len(model)
            assert sorted(found) == model
            assert found.next_due() == (model[0].due if model else None)
            assert found.next_place() == (model[0].place if model else None)
            assert found.least() == min((row.place for row in model), default=None)
            assert all(found.find(row.place) == row for row in model)
            assert found.find(1000) is None


def test_what_is_sorted_away_and_what_came_later_are_one_order() -> None:
    found = filled(*(float(due) for due in range(SORTED_RUN)))
    found.push(2.5, 9000, None, 0.0)
    found.push(-1.0, 9001, None, 0.0)
    assert taken(found)[:5] == [9001, 0, 1, 2, 9000]


def test_a_place_that_was_taken_is_no_longer_found() -> None:
    found = filled(*[0.0] * SORTED_RUN)
    assert found.least() == 0
    found.pop()
    assert found.least() == 1
    assert found.find(0) is None


def test_a_hundred_thousand_places_take_little_room() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = Schedule()
        for place in range(100_000):
            found.push(1e9 + place % 977, 10**9 + place, None, 1e9)
        each = (tracemalloc.get_traced_memory()[0] - before) / len(found)
    finally:
        tracemalloc.stop()
    assert each < 40


def test_one_that_is_due_much_later_does_not_keep_the_others() -> None:
    run = SortedRun([ScheduledPlace(float(at), at, item(at), 0.0) for at in range(SORTED_RUN)])
    for _ in range(SORTED_RUN - 1):
        run.pop()
    assert len(run) == 1
    assert (len(run._places), len(run._dues), len(run._times), len(run._items or ())) == (1, 1, 1, 1)
    assert run.front() == (SORTED_RUN - 1.0, SORTED_RUN - 1)

"""Open files: the least recently used is closed first, and no reader is kept alive."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.journal.read.segment_reader import FILES, HELD, INDEX_BYTES, MAPPED, LruLimit, OpenFiles


class Thing:
    def __init__(self, name: int) -> None:
        self.name = name


def shelf(limit: int) -> tuple[LruLimit[Thing], list[int]]:
    told: list[int] = []
    return LruLimit(limit, lambda thing: told.append(thing.name)), told


def test_beyond_the_limit_those_that_were_used_longest_ago_let_go() -> None:
    found, told = shelf(3)
    things = [Thing(number) for number in range(5)]
    for thing in things[:3]:
        found.put(thing)
    assert told == []
    found.used(things[0])
    for thing in things[3:]:
        found.put(thing)
    assert told == [1, 2]
    assert [thing in found for thing in things] == [True, False, False, True, True]
    assert repr(found) == "<LruLimit, 3 that weigh 3 of 3>"


def test_one_that_is_put_again_weighs_what_it_weighs_now() -> None:
    found, told = shelf(10)
    first, second = Thing(1), Thing(2)
    found.put(first, 9)
    found.put(first, 2)
    found.put(second, 8)
    assert told == []
    found.put(second, 9)
    assert told == [1]


def test_one_that_is_too_heavy_stays_alone() -> None:
    found, told = shelf(10)
    light, heavy = Thing(1), Thing(2)
    found.put(light)
    found.put(heavy, 11)
    assert told == [1]
    assert heavy in found


def test_one_that_is_taken_out_gets_no_notification() -> None:
    found, told = shelf(1)
    first, second = Thing(1), Thing(2)
    found.put(first)
    found.take_out(first)
    found.take_out(first)
    found.used(first)
    found.put(second)
    assert told == []
    assert first not in found
    found.clear()
    assert told == [2]
    found.clear()
    assert told == [2]


def test_those_that_are_gone_make_room_first() -> None:
    found, told = shelf(3)
    lasting = Thing(0)
    found.put(lasting)
    for number in range(1, 10):
        found.put(Thing(number))
    assert lasting in found
    assert told == []


@given(st.lists(st.tuples(st.sampled_from(["put", "used", "take_out"]), st.integers(0, 5), st.integers(1, 4))))
def test_a_shelf_is_a_list_in_the_order_of_use(steps: list[tuple[str, int, int]]) -> None:
    found, told = shelf(8)
    things = [Thing(number) for number in range(6)]
    model: dict[int, int] = {}
    gone: list[int] = []
    for step, number, weight in steps:
        if step == "put":
            found.put(things[number], weight)
            model.pop(number, None)
            model[number] = weight
            while sum(model.values()) > 8:
                gone.append(next(iter(model)))
                del model[gone[-1]]
        elif step == "used":
            found.used(things[number])
            if number in model:
                model[number] = model.pop(number)
        else:
            found.take_out(things[number])
            model.pop(number, None)
        assert told == gone
        assert [thing.name for thing in things if thing in found] == sorted(model)


def test_a_journal_takes_fewer_handles_than_the_smallest_usual_limit() -> None:
    assert FILES + HELD + INDEX_BYTES // MAPPED < 128
    handles = OpenFiles()
    assert (handles.files.limit, handles.indexes.limit, handles.held.limit) == (FILES, INDEX_BYTES, HELD)
    assert "held: <LruLimit, 0 that" in repr(handles)


def test_any_other_error_is_that_of_who_opens() -> None:
    tried: list[int] = []

    def opening() -> None:
        tried.append(1)
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        OpenFiles().enough_for(opening)
    assert tried == [1]

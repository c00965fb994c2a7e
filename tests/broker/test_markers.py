"""Markers as a broker keeps them: what is on its way counts for those behind it, and is forgotten when it fails."""

import asyncio

import pytest

from runnel.broker.backend import LocalBackend
from runnel.broker.markers import Markers
from runnel.core.errors import InvalidOption, MarkConflict
from runnel.core.markers import ANYTHING, Marker
from runnel.journal.format.entry import PartKind
from runnel.runtime.clock import SystemClock


def marks() -> Markers:
    return LocalBackend(auto_create=True, clock=SystemClock()).markers


def moved(name: str, value: int | str | None) -> list[Marker]:
    return [Marker(name, value, ANYTHING)]


def test_a_mark_on_its_way_counts_for_those_behind_it_and_is_not_read() -> None:
    known = marks()
    flight = known.hand_over(moved("m", 5))
    assert known.values == {}
    assert known.are_past(moved("m", 5))
    assert not known.are_past(moved("m", 6))
    assert not known.are_past([Marker("m", 6, 5)])
    known.land(flight)
    assert known.values == {"m": 5}


def test_of_several_on_their_way_the_last_counts() -> None:
    known = marks()
    first, second = known.hand_over(moved("m", 5)), known.hand_over(moved("m", 6))
    assert known.are_past(moved("m", 6))
    known.land(first)
    assert known.values == {"m": 5}
    assert known.are_past(moved("m", 6)), "the second is still on its way"
    known.fail(second, ValueError())
    assert not known.are_past(moved("m", 6))
    assert known.values == {"m": 5}


def test_a_mark_that_is_being_forgotten_is_not_there() -> None:
    known = marks()
    known.land(known.hand_over(moved("m", 5)))
    flight = known.hand_over(moved("m", None))
    assert known.are_past(moved("m", None))
    assert not known.are_past([Marker("m", "other", None)])
    known.land(flight)
    assert known.values == {}


async def test_a_joining_call_waits_for_the_last_of_those_it_doubles() -> None:
    known = marks()
    first, second = known.hand_over(moved("m", 5)), known.hand_over(moved("n", 5))
    assert known.joined(moved("other", 1)) is None
    waiter = known.joined([*moved("n", 1), *moved("m", 1)])
    assert waiter is not None
    known.land(first)
    assert not waiter.done()
    known.fail(second, ValueError("second"))
    with pytest.raises(ValueError, match="second"):
        await waiter
    assert isinstance(waiter, asyncio.Future)


def test_an_expectation_is_of_a_type_too() -> None:
    known = marks()
    known.land(known.hand_over(moved("m", "5")))
    with pytest.raises(MarkConflict):
        known.are_past([Marker("m", "6", b"5")])
    with pytest.raises(InvalidOption, match="another type"):
        known.are_past(moved("m", 6))


def test_a_mark_is_one_part_of_an_entry() -> None:
    (part,) = Markers.parts(moved("m", 5))
    assert part.kind == PartKind.MARK


def test_they_say_what_they_are() -> None:
    known = marks()
    known.hand_over(moved("m", 5))
    assert repr(known) == "<Markers, 0 known, 1 on their way>"

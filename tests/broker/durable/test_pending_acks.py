"""Pending acks: what a group wants stored, until it is."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from runnel.broker.durable.pending_acks import PendingAcks
from runnel.journal.format.entry import Part, PartKind
from runnel.journal.format.ledger import GroupState


class Rig:
    def __init__(self) -> None:
        self.touched = self.woken = 0
        self.pending_acks = PendingAcks(3, {}, self._touch, self._wake)

    def _touch(self) -> None:
        self.touched += 1

    def _wake(self) -> None:
        self.woken += 1


def said(part: Part) -> tuple[list[int], list[Any]]:
    settled, failed = msgspec.msgpack.decode(part.body)
    return settled, failed


def taken(pending_acks: PendingAcks) -> Any:
    found = pending_acks.take()
    assert found is not None
    return found


def test_nothing_new_is_nothing_to_say() -> None:
    it = Rig()
    assert it.pending_acks.take() is None
    it.pending_acks.settled(1)
    taken(it.pending_acks)
    assert it.pending_acks.take() is None


def test_acks_go_out_as_ranges() -> None:
    it = Rig()
    for place in (5, 3, 4, 9):
        it.pending_acks.settled(place)
    it.pending_acks.settled_range(20, 30)
    part, _, _ = taken(it.pending_acks)
    assert (part.kind, part.topic) == (PartKind.PROGRESS, 3)
    assert said(part) == ([3, 6, 9, 10, 20, 30], [])
    assert it.touched == 5


def test_after_a_failed_attempt_it_waits_until_that_is_stored() -> None:
    it = Rig()
    it.pending_acks.failed(7, 2, 99.5, "no")
    assert (it.pending_acks.must_wait, it.pending_acks.is_urgent) == (True, True)
    part, landed, _ = taken(it.pending_acks)
    assert said(part) == ([], [[7, 2, 99.5, "no"]])
    assert (it.pending_acks.must_wait, it.pending_acks.is_urgent) == (True, False), "on its way is not stored"
    it.pending_acks.failed(8, 1, 0.0, "again")
    _, landed_too, _ = taken(it.pending_acks)
    landed()
    assert it.pending_acks.must_wait, "one of two"
    landed_too()
    assert (it.pending_acks.must_wait, it.woken) == (False, 2)


def test_acks_alone_hold_nothing_up() -> None:
    it = Rig()
    it.pending_acks.settled(1)
    assert not it.pending_acks.must_wait
    _, landed, _ = taken(it.pending_acks)
    assert not it.pending_acks.must_wait
    landed()
    assert it.woken == 0


def test_what_was_not_written_is_said_again_with_what_came_since() -> None:
    it = Rig()
    it.pending_acks.settled(1)
    it.pending_acks.failed(7, 1, 5.0, "first")
    it.pending_acks.failed(8, 1, 5.0, "only")
    _, _, undo = taken(it.pending_acks)
    it.pending_acks.settled(2)
    it.pending_acks.failed(7, 2, 6.0, "second")
    undo()
    part, landed, _ = taken(it.pending_acks)
    settled, failed = said(part)
    assert settled == [1, 3]
    assert failed == [[7, 2, 6.0, "second"], [8, 1, 5.0, "only"]], "the newest counts"
    landed()
    assert not it.pending_acks.must_wait


def test_a_reset_forgets_and_what_was_under_way_does_not_come_back() -> None:
    it = Rig()
    it.pending_acks.settled(1)
    it.pending_acks.failed(2, 1, 5.0, "no")
    _, _, undo = taken(it.pending_acks)
    it.pending_acks.settled(3)
    it.pending_acks.forget()
    undo()
    assert it.pending_acks.take() is None
    assert not it.pending_acks.must_wait


def test_trying_again_and_again_says_no_more_than_once() -> None:
    it = Rig()
    for place in range(0, 100, 2):
        it.pending_acks.settled(place)
        _, _, undo = taken(it.pending_acks)
        it.pending_acks.settled_range(place + 1, place + 2)
        undo()
        assert it.pending_acks._ranges == [0, place + 2]


def test_an_empty_place_goes_along_with_the_next_commit_and_asks_for_none() -> None:
    it = Rig()
    it.pending_acks.empty(0, 5)
    assert it.touched == 0
    it.pending_acks.settled(5)
    assert said(taken(it.pending_acks)[0]) == ([0, 6], [])


def test_a_place_that_is_held_is_settled_when_it_is_released() -> None:
    it = Rig()
    it.pending_acks.settled_range(0, 5)
    it.pending_acks.hold(3)
    assert said(taken(it.pending_acks)[0])[0] == [0, 3, 4, 5]
    it.pending_acks.release(3)
    assert said(taken(it.pending_acks)[0])[0] == [3, 4]
    it.pending_acks.release(3)
    assert it.pending_acks.take() is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4), st.sampled_from(("write", "fail", "wait")))))
def test_whatever_fails_on_the_way_the_journal_ends_up_with_all_of_it(steps: list[tuple[int, int, str]]) -> None:
    it, known, settled = Rig(), GroupState(3, "g", "t", {}, 0), set[int]()
    for first, count, then in steps:
        if count == 1:
            it.pending_acks.settled(first)
        else:
            it.pending_acks.settled_range(first, first + count)
        settled |= set(range(first, first + count))
        if then != "wait" and (found := it.pending_acks.take()) is not None:
            part, landed, undo = found
            if then == "write":
                known.progress(*msgspec.msgpack.decode(part.body))
                landed()
            else:
                undo()
    if (found := it.pending_acks.take()) is not None:
        known.progress(*msgspec.msgpack.decode(found[0].body))
    assert {place for place in range(40) if place < known.floor or place in known.settled} == settled

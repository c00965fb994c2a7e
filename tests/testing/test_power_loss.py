"""What a disk may hold after the power went: the questions that are asked, and the worst answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runnel.testing import power_loss
from runnel.testing.power_loss import Inode, PowerLossOutcome, found_names


class Asked:
    """A fate that keeps the questions, and answers each kind in its own way."""

    def __init__(self, **answers: int) -> None:
        self.answers = answers
        self.questions: list[tuple[str, list[int]]] = []

    def __call__(self, kind: str, calls: Sequence[int]) -> int:
        self.questions.append((kind, list(calls)))
        return self.answers.get(kind, 0)


def changed(durable: bytes, *changes: tuple[int, int, bytes | None]) -> Inode:
    inode = Inode(durable)
    for change in changes:
        inode.change(*change)
    return inode


KINDS = ["name", "length", "page", "torn", "sector"]


@pytest.mark.parametrize(
    ("fate", "newest"),
    [
        (power_loss.keep_nothing, []),
        (power_loss.keep_everything, KINDS),
        (power_loss.keep_names, ["name"]),
        (power_loss.keep_names_and_lengths, ["name", "length"]),
        (power_loss.keep_data, ["length", "page", "torn", "sector"]),
    ],
)
def test_a_fate_keeps_the_newest_of_some_and_the_durable_of_the_rest(fate: PowerLossOutcome, newest: list[str]) -> None:
    assert [fate(kind, [0, 5, 8]) for kind in KINDS] == [2 if kind in newest else 0 for kind in KINDS]


@pytest.mark.parametrize(("call", "after", "until"), [(4, 2, 0), (5, 2, 1), (7, 2, 1), (8, 0, 2), (9, 0, 2)])
def test_a_fate_may_part_what_came_before_a_call_from_what_came_after(call: int, after: int, until: int) -> None:
    assert power_loss.keep_after(call)("page", [0, 5, 8]) == after
    assert power_loss.keep_until(call)("page", [0, 5, 8]) == until


def test_nothing_is_asked_where_nothing_is_in_doubt() -> None:
    fate = Asked()
    assert Inode(b"abc").found(fate, 4, 4) == b"abc"
    assert changed(b"abc", (1, 1, b"b")).found(fate, 4, 4) == b"abc"  # the same byte again
    assert fate.questions == []


def test_the_length_is_asked_for_once_and_each_changed_page_within_it() -> None:
    inode = changed(b"aaaabbbb", (1, 2, b"XXXX"), (2, 8, b"cccc"), (3, 6, b"Y"))
    short, long = Asked(page=1), Asked(page=1, length=1)
    assert inode.found(short, 4, 4) == b"aaXXXXbb"
    assert short.questions == [("length", [0, 2]), ("page", [0, 1]), ("page", [0, 1, 3])]
    assert inode.found(long, 4, 4) == b"aaXXXXbbcccc"
    assert long.questions == [("length", [0, 2]), ("page", [0, 1]), ("page", [0, 1, 3]), ("page", [0, 2])]


def test_a_torn_page_is_asked_for_by_the_sector() -> None:
    inode = changed(b"aabbcc", (1, 0, b"AABB"), (2, 2, b"XX"))
    fate = Asked(torn=1, sector=1)
    assert inode.found(fate, 6, 2) == b"AABBcc"
    assert fate.questions == [("torn", [0, 2]), ("sector", [0, 1]), ("sector", [0, 1, 2])]


def test_the_last_page_may_be_a_short_one() -> None:
    inode = changed(b"aaaaa", (1, 3, b"XX"))
    assert inode.found(power_loss.keep_everything, 4, 4) == b"aaaXX"
    assert inode.found(power_loss.keep_after(0), 4, 4) == b"aaaXX"
    assert inode.found(power_loss.keep_nothing, 4, 4) == b"aaaaa"


def test_what_is_settled_is_what_is_found() -> None:
    inode = changed(b"aaaa", (1, 6, b"b"), (2, 3, None), (3, 5, None))
    assert inode.content == b"aaa\0\0"
    inode.settle()
    assert inode.found(power_loss.keep_nothing, 4, 4) == b"aaa\0\0"
    inode.change(4, 0, b"X")
    inode.settle()
    assert inode.found(power_loss.keep_nothing, 4, 4) == b"Xaa\0\0"


def test_a_file_has_one_name_even_when_the_renaming_in_between_is_lost() -> None:
    inode = Inode()
    assert found_names({"a": inode}, [inode], [(1, inode, "b"), (2, inode, "c")], power_loss.keep_after(1)) == {
        "c": inode
    }


def test_a_removal_that_survives_removes_the_file_by_whatever_name_it_has() -> None:
    inode, old = Inode(), Inode()
    changes = [(1, inode, "b"), (2, inode, None)]
    assert found_names({"a": inode, "b": old}, [], changes, power_loss.keep_after(1)) == {"b": old}


def test_a_name_is_not_taken_from_a_file_whose_own_renaming_was_lost() -> None:
    first, second = Inode(), Inode()
    changes = [(1, first, "b"), (2, second, "a")]
    assert found_names({"a": first}, [first, second], changes, power_loss.keep_after(1)) == {"a": first}
    assert found_names({"a": first}, [second], changes, power_loss.keep_after(1)) == {
        "a": second
    }  # it was removed since

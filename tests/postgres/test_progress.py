"""Where a relay goes on: each way in which markers and server can stand to each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runnel.postgres.progress import (
    START,
    MarkerNames,
    Resume,
    RowPlace,
    ServerFacts,
    Stored,
    other_systems,
    pack_generation,
    read_stored,
    resume,
)

NAMES = MarkerNames("77", "s")
U64 = st.integers(0, 2**64 - 1)
PLACE = RowPlace(500, 3)
STORED = Stored(generation=2, timeline=1, place=PLACE, confirmed=600)


def server(timeline: int = 1, end: int = 1000, forks: tuple[tuple[int, int], ...] = (), slot: int = 600) -> ServerFacts:
    return ServerFacts(timeline, end, forks, slot)


@given(U64, U64, U64, U64)
def test_packed_places_sort_as_places_and_unpack(a: int, b: int, c: int, d: int) -> None:
    one, other = RowPlace(a, b), RowPlace(c, d)
    assert (one < other) == (one.pack() < other.pack())
    assert RowPlace.unpack(one.pack()) == one


def test_generations_sort_as_numbers() -> None:
    assert pack_generation(9, 1) < pack_generation(10, 1) < pack_generation(10, 2)


def test_markers_are_read_back() -> None:
    marks: dict[str, int | str | bytes] = {
        NAMES.generation: pack_generation(2, 1),
        NAMES.place(1): RowPlace(9, 9).pack(),
        NAMES.place(2): PLACE.pack(),
        NAMES.confirmed(2): 600,
    }
    assert read_stored(NAMES, marks) == STORED
    assert read_stored(MarkerNames("78", "s"), marks) is None
    assert read_stored(NAMES, {NAMES.generation: pack_generation(3, 1)}) == Stored(3, 1, START, 0)
    assert other_systems(MarkerNames("78", "s"), marks) == ["77"]
    assert other_systems(NAMES, marks) == other_systems(MarkerNames("77", "t"), marks) == []


def test_the_first_start_begins_where_the_slot_is() -> None:
    assert resume(None, server()) == Resume(1, START, 600, None)
    found = resume(None, server(), ["77"])
    assert found.gap is not None
    assert "another PostgreSQL cluster" in found.gap


def test_a_slot_at_or_behind_what_was_stored_goes_on_there() -> None:
    for slot in (100, 500, 599, 600):
        assert resume(STORED, server(slot=slot)) == Resume(2, PLACE, 600, None)


def test_a_transaction_of_which_a_part_is_published_is_asked_for_again() -> None:
    found = resume(Stored(1, 1, RowPlace(900, 5), 600), server())
    assert found == Resume(1, RowPlace(900, 5), 600, None)


def test_a_slot_ahead_is_a_gap_and_rows_that_were_published_stay_so() -> None:
    generation, place, start, gap = resume(STORED, server(slot=601))
    assert (generation, place, start) == (3, PLACE, 601)
    assert gap is not None
    assert "created anew or moved" in gap


def test_a_log_that_ends_before_the_marker_was_restored_from_a_copy() -> None:
    generation, place, start, gap = resume(STORED, server(end=599, slot=300))
    assert (generation, place, start) == (3, START, 300)
    assert gap is not None
    assert "restored from a copy" in gap


def test_a_timeline_left_after_everything_stored_changes_nothing() -> None:
    assert resume(STORED, server(timeline=2, forks=((1, 600),))) == Resume(2, PLACE, 600, None)


def test_a_timeline_left_before_the_marker_skips_only_what_both_share() -> None:
    generation, place, start, gap = resume(STORED, server(timeline=2, forks=((1, 400),), slot=350))
    assert (generation, start) == (3, 350)
    assert RowPlace(399, 10**9) <= place < RowPlace(400, 0)
    assert gap is not None
    assert "left timeline 1" in gap


def test_a_timeline_left_between_marker_and_what_was_looked_at_loses_nothing() -> None:
    assert resume(STORED, server(timeline=2, forks=((1, 550),), slot=540)) == Resume(3, PLACE, 540, None)


def test_a_new_slot_on_a_new_timeline_is_a_gap() -> None:
    generation, place, start, gap = resume(STORED, server(timeline=2, forks=((1, 550),), slot=700))
    assert (generation, place, start) == (3, PLACE, 700)
    assert gap is not None
    generation, place, start, gap = resume(STORED, server(timeline=2, forks=((1, 600),), slot=700))
    assert (generation, place, start) == (3, PLACE, 700)
    assert gap is not None


def test_a_timeline_that_does_not_descend_from_the_stored_one_shares_nothing() -> None:
    stored = Stored(2, 3, PLACE, 600)
    for facts in (server(timeline=4, forks=((1, 900), (2, 950)), slot=600), server(timeline=2, forks=((1, 900),))):
        generation, place, _, gap = resume(stored, facts)
        assert (generation, place) == (3, START)
        assert gap is not None

"""What comes next: per key in order, by priority without starving, at its time."""

import pytest

from runnel.broker.group.ready import FAIRNESS, Item, Ready, Stretch, is_special
from runnel.core.record import Meta
from tests.broker.group.rig import SHELF, Shelf, in_queue, keyed, size_of


def item(place: int, meta: Meta | None = None) -> Item:
    return Item(place, meta or Meta(), size_of(place), SHELF)


def stretch(first: int, end: int) -> Stretch:
    return Stretch(first, end, SHELF)


def add(ready: Ready, *metas: Meta, first: int = 0, now: float = 0.0) -> None:
    for place, meta in enumerate(metas, first):
        ready.add(item(place, meta), now)


def places(picked: Stretch | Item | None) -> list[int]:
    if picked is None:
        return []
    return list(range(picked.first, picked.end)) if isinstance(picked, Stretch) else [picked.place]


def pick_all(ready: Ready, limit: int = 1) -> list[int]:
    """Everything that is ready, in the order it comes."""
    found: list[int] = []
    while ready.count:
        found += places(ready.pick(limit))
    return found


def pick_item(ready: Ready) -> Item:
    picked = ready.pick(1)
    assert isinstance(picked, Item)
    return picked


@pytest.mark.parametrize(
    ("meta", "special"),
    [
        (Meta(), False),
        (Meta(headers={"a": "b"}), False),
        (Meta(key=b""), True),
        (Meta(priority=1), True),
        (Meta(due=0.0), True),
        (Meta(expires=0.0), True),
    ],
)
def test_only_what_changes_how_a_record_is_treated_makes_it_special(meta: Meta, special: bool) -> None:
    assert is_special(meta) is special


# -- plain records ----------------------------------------------------------------------------------------------


def test_a_million_plain_records_are_one_stretch_and_are_cut_as_they_are_wanted() -> None:
    ready = Ready()
    ready.add_plain(stretch(0, 1_000_000))
    assert ready.count == 1_000_000
    assert ready.pick(64) == stretch(0, 64)
    assert ready.pick(10**9) == stretch(64, 1_000_000)
    assert ready.count == 0
    assert ready.pick(1) is None


def test_a_pick_never_joins_two_stretches() -> None:
    ready = Ready()
    ready.add_plain(stretch(0, 3))
    ready.add_plain(stretch(3, 9))
    assert [ready.pick(5), ready.pick(5), ready.pick(5)] == [stretch(0, 3), stretch(3, 8), stretch(8, 9)]


def test_plain_records_that_come_back_are_handed_out_in_their_old_place() -> None:
    ready = Ready()
    ready.add_plain(stretch(0, 9))
    for _ in range(3):
        ready.pick(2)
    ready.put_back_plain(stretch(4, 6))
    ready.put_back_plain(stretch(0, 2))
    assert ready.count == 7
    assert ready.oldest() == 0
    assert pick_all(ready, 8) == [0, 1, 4, 5, 6, 7, 8]


def test_plain_records_and_items_come_in_the_order_of_their_places() -> None:
    ready = Ready()
    ready.add_plain(stretch(0, 3))
    ready.add(item(3, Meta(key=b"k")), 0.0)
    ready.add_plain(stretch(4, 6))
    ready.add(item(6), 0.0)
    picked = [ready.pick(10) for _ in range(4)]
    assert [places(one) for one in picked] == [[0, 1, 2], [3], [4, 5], [6]]


def test_an_item_that_comes_back_is_not_overtaken_by_the_stretch_around_it() -> None:
    ready = Ready()
    ready.put_back(item(5))
    ready.add_plain(stretch(3, 5))
    ready.add_plain(stretch(6, 8))
    assert [places(ready.pick(10)) for _ in range(4)] == [[3, 4], [5], [6, 7], []]


# -- keys -------------------------------------------------------------------------------------------------------


def test_of_each_key_only_the_first_is_ready() -> None:
    ready = Ready()
    add(ready, *keyed("a", "b", "a", "a", "b"))
    assert (ready.count, ready.waiting) == (2, 3)
    assert in_queue(ready) == {0: "ready", 1: "ready", 2: "waiting", 3: "waiting", 4: "waiting"}
    assert pick_all(ready) == [0, 1]


def test_settling_the_first_of_a_key_lets_the_next_go_and_no_other() -> None:
    ready = Ready()
    add(ready, *keyed("a", "a", "b", "b"))
    first, other = pick_item(ready), pick_item(ready)
    assert (first.place, other.place) == (0, 2)
    ready.settled(first, 0.0)
    assert in_queue(ready) == {1: "ready", 3: "waiting"}
    assert (ready.count, ready.waiting) == (1, 1)


def test_a_key_is_forgotten_when_nothing_of_it_is_left() -> None:
    ready = Ready()
    for round_ in range(100):
        add(ready, *keyed(f"key-{round_}"), first=round_)
        ready.settled(pick_item(ready), 0.0)
    assert ready._keys == {}


def test_an_item_that_comes_back_still_blocks_its_key() -> None:
    ready = Ready()
    add(ready, *keyed("a", "a"))
    first = pick_item(ready)
    ready.put_back(first)
    assert pick_all(ready) == [0]
    ready.delay(first, 10.0)
    assert (ready.count, ready.waiting, ready.scheduled) == (0, 1, 1)
    ready.release_due(10.0)
    assert pick_item(ready) is first


def test_a_key_outranks_priority() -> None:
    ready = Ready()
    add(ready, Meta(key=b"a"), Meta(key=b"a", priority=9), Meta(priority=5))
    assert pick_all(ready) == [2, 0]


def test_the_next_of_a_key_waits_for_its_own_time_too() -> None:
    ready = Ready()
    add(ready, Meta(key=b"a"), Meta(key=b"a", due=50.0), Meta(key=b"a"))
    ready.settled(pick_item(ready), 10.0)
    assert in_queue(ready) == {1: "scheduled", 2: "waiting"}
    assert ready.next_due() == 50.0


def test_the_next_of_a_key_goes_at_once_when_its_time_has_come_meanwhile() -> None:
    ready = Ready()
    add(ready, Meta(key=b"a"), Meta(key=b"a", due=50.0))
    ready.settled(pick_item(ready), 50.0)
    assert in_queue(ready) == {1: "ready"}


def test_an_empty_key_is_a_key() -> None:
    ready = Ready()
    add(ready, *keyed("", ""))
    assert (ready.count, ready.waiting) == (1, 1)


# -- time -------------------------------------------------------------------------------------------------------


def test_what_is_due_later_is_ready_at_its_time_and_not_before() -> None:
    ready = Ready()
    add(ready, Meta(due=20.0), Meta(due=10.0), Meta(due=5.0), now=5.0)
    assert (ready.count, ready.scheduled, ready.next_due()) == (1, 2, 10.0)
    ready.release_due(9.999)
    assert ready.scheduled == 2
    ready.release_due(10.0)
    assert (ready.count, ready.scheduled, ready.next_due()) == (2, 1, 20.0)
    ready.release_due(1000.0)
    assert pick_all(ready) == [0, 1, 2]
    assert ready.next_due() is None


def test_what_waits_long_lets_go_of_its_neighbours() -> None:
    ready = Ready()
    add(ready, Meta(due=20.0))
    ready.release_due(20.0)
    stock = pick_item(ready).stock
    assert isinstance(stock, Shelf)
    assert stock.narrowed == 0


def test_the_oldest_may_be_scheduled_ready_or_plain() -> None:
    ready = Ready()
    assert ready.oldest() is None
    ready.add_plain(stretch(7, 9))
    assert ready.oldest() == 7
    ready.put_back(item(6, Meta(priority=3)))
    assert ready.oldest() == 6
    ready.delay(item(2), 10.0)
    assert ready.oldest() == 2


def test_what_lies_at_the_oldest_place_is_found_wherever_it_is() -> None:
    ready = Ready()
    plain, scheduled, again = Shelf(), Shelf(), Shelf()
    ready.add_plain(Stretch(7, 9, plain))
    assert ready.stock_at(7) is plain
    ready.put_back(Item(3, Meta(priority=2), 0, again))
    assert ready.stock_at(3) is again
    ready.delay(Item(2, Meta(), 0, scheduled), 10.0)
    stock = ready.stock_at(2)
    assert isinstance(stock, Shelf)
    assert stock.narrowed == 2
    add(ready, Meta(expires=9.0), first=20)
    assert ready.stock_at(20) is SHELF
    assert ready.stock_at(99) is None


# -- priorities -------------------------------------------------------------------------------------------------


def test_the_highest_priority_goes_first_and_within_one_the_oldest() -> None:
    ready = Ready()
    add(ready, Meta(priority=1), Meta(priority=9), Meta(priority=1), Meta(priority=9), Meta())
    assert pick_all(ready) == [1, 3, 0, 2, 4]


def test_what_comes_back_goes_before_what_is_newer_of_its_priority() -> None:
    ready = Ready()
    add(ready, Meta(priority=5), Meta(priority=5), Meta(priority=5))
    first, second = pick_item(ready), pick_item(ready)
    ready.put_back(second)
    ready.put_back(first)
    assert pick_all(ready) == [0, 1, 2]


@pytest.mark.parametrize("low", [Meta(), Meta(priority=3), Meta(key=b"k")])
def test_however_many_urgent_ones_there_are_the_oldest_goes_every_so_often(low: Meta) -> None:
    ready = Ready()
    add(ready, low, *[Meta(priority=9)] * 100)
    assert pick_all(ready).index(0) == FAIRNESS - 1


def test_plain_records_do_not_starve_behind_urgent_ones() -> None:
    ready = Ready()
    ready.add_plain(stretch(0, 10))
    add(ready, *[Meta(priority=9)] * 200, first=10)
    order = pick_all(ready)
    assert [order.index(place) for place in range(10)] == [FAIRNESS * turn - 1 for turn in range(1, 11)]


def test_without_urgent_ones_nothing_is_out_of_order() -> None:
    ready = Ready()
    add(ready, *keyed(*(f"k{number}" for number in range(50))))
    assert pick_all(ready) == list(range(50))


def test_it_counts_what_is_ready_whatever_way_it_came() -> None:
    ready = Ready()
    ready.add_plain(stretch(0, 5))
    add(ready, Meta(priority=2), Meta(key=b"a"), Meta(key=b"a"), Meta(due=9.0), first=5)
    assert (ready.count, ready.waiting, ready.scheduled) == (7, 1, 1)
    ready.release_due(9.0)
    assert (ready.count, ready.waiting, ready.scheduled) == (8, 1, 0)
    assert sorted(pick_all(ready, 3)) == [0, 1, 2, 3, 4, 5, 6, 8]
    assert (ready.count, ready._items, ready._urgent) == (0, 0, 0)


def test_an_item_says_where_it_is_and_how_often_it_was_tried() -> None:
    assert repr(Item(4, Meta(), 0, SHELF, attempts=2)) == "<Item at 4, 2 attempts>"

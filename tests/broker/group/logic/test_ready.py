"""The ready queue: per key in order, by priority without starving, at its time."""

import pytest

from runnel.broker.group.logic.ready import FAIRNESS, NEAR, PlainRange, QueuedRecord, ReadyQueue, is_special
from runnel.core.record import Meta
from tests.broker.group.group_builders import KEPT, SHELF, Shelf, in_queue, keyed, size_of


def item(place: int, meta: Meta | None = None) -> QueuedRecord:
    return QueuedRecord(place, meta or Meta(), size_of(place), SHELF)


def stretch(first: int, end: int) -> PlainRange:
    return PlainRange(first, end, SHELF)


def add(ready: ReadyQueue, *metas: Meta, first: int = 0, now: float = 0.0) -> None:
    for place, meta in enumerate(metas, first):
        ready.add(item(place, meta), now)


def places(picked: PlainRange | QueuedRecord | None) -> list[int]:
    if picked is None:
        return []
    return list(range(picked.first, picked.end)) if isinstance(picked, PlainRange) else [picked.place]


def pick_all(ready: ReadyQueue, limit: int = 1) -> list[int]:
    """Everything that is ready, in the order it comes."""
    found: list[int] = []
    while ready.count:
        found += places(ready.pick(limit))
    return found


def pick_item(ready: ReadyQueue) -> QueuedRecord:
    picked = ready.pick(1)
    assert isinstance(picked, QueuedRecord)
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
    ready = ReadyQueue()
    ready.add_plain(stretch(0, 1_000_000))
    assert ready.count == 1_000_000
    assert ready.pick(64) == stretch(0, 64)
    assert ready.pick(10**9) == stretch(64, 1_000_000)
    assert ready.count == 0
    assert ready.pick(1) is None


def test_a_pick_never_joins_two_stretches() -> None:
    ready = ReadyQueue()
    ready.add_plain(stretch(0, 3))
    ready.add_plain(stretch(3, 9))
    assert [ready.pick(5), ready.pick(5), ready.pick(5)] == [stretch(0, 3), stretch(3, 8), stretch(8, 9)]


def test_plain_records_that_come_back_are_handed_out_in_their_old_place() -> None:
    ready = ReadyQueue()
    ready.add_plain(stretch(0, 9))
    for _ in range(3):
        ready.pick(2)
    ready.put_back_plain(stretch(4, 6))
    ready.put_back_plain(stretch(0, 2))
    assert ready.count == 7
    assert ready.oldest() == 0
    assert pick_all(ready, 8) == [0, 1, 4, 5, 6, 7, 8]


def test_plain_records_and_items_come_in_the_order_of_their_places() -> None:
    ready = ReadyQueue()
    ready.add_plain(stretch(0, 3))
    ready.add(item(3, Meta(key=b"k")), 0.0)
    ready.add_plain(stretch(4, 6))
    ready.add(item(6), 0.0)
    picked = [ready.pick(10) for _ in range(4)]
    assert [places(one) for one in picked] == [[0, 1, 2], [3], [4, 5], [6]]


def test_an_item_that_comes_back_is_not_overtaken_by_the_stretch_around_it() -> None:
    ready = ReadyQueue()
    ready.put_back(item(5))
    ready.add_plain(stretch(3, 5))
    ready.add_plain(stretch(6, 8))
    assert [places(ready.pick(10)) for _ in range(4)] == [[3, 4], [5], [6, 7], []]


# -- keys -------------------------------------------------------------------------------------------------------


def test_of_each_key_only_the_first_is_ready() -> None:
    ready = ReadyQueue()
    add(ready, *keyed("a", "b", "a", "a", "b"))
    assert (ready.count, ready.waiting) == (2, 3)
    assert in_queue(ready) == {0: "ready", 1: "ready", 2: "waiting", 3: "waiting", 4: "waiting"}
    assert pick_all(ready) == [0, 1]


def test_settling_the_first_of_a_key_lets_the_next_go_and_no_other() -> None:
    ready = ReadyQueue()
    add(ready, *keyed("a", "a", "b", "b"))
    first, other = pick_item(ready), pick_item(ready)
    assert (first.place, other.place) == (0, 2)
    ready.settled(first, 0.0)
    assert in_queue(ready) == {1: "ready", 3: "waiting"}
    assert (ready.count, ready.waiting) == (1, 1)


def test_a_key_is_forgotten_when_nothing_of_it_is_left() -> None:
    ready = ReadyQueue()
    for round_ in range(100):
        add(ready, *keyed(f"key-{round_}"), first=round_)
        ready.settled(pick_item(ready), 0.0)
    assert ready._keys == {}


def test_an_item_that_comes_back_still_blocks_its_key() -> None:
    ready = ReadyQueue()
    add(ready, *keyed("a", "a"))
    first = pick_item(ready)
    ready.put_back(first)
    assert pick_all(ready) == [0]
    ready.delay(first, 10.0, 0.0)
    assert (ready.count, ready.waiting, ready.scheduled) == (0, 1, 1)
    ready.release_due(10.0)
    assert pick_item(ready) is first


def test_a_key_outranks_priority() -> None:
    ready = ReadyQueue()
    add(ready, Meta(key=b"a"), Meta(key=b"a", priority=9), Meta(priority=5))
    assert pick_all(ready) == [2, 0]


def test_the_next_of_a_key_waits_for_its_own_time_too() -> None:
    ready = ReadyQueue()
    add(ready, Meta(key=b"a"), Meta(key=b"a", due=50.0), Meta(key=b"a"))
    ready.settled(pick_item(ready), 10.0)
    assert in_queue(ready) == {1: "scheduled", 2: "waiting"}
    assert ready.next_due() == 50.0


def test_the_next_of_a_key_goes_at_once_when_its_time_has_come_meanwhile() -> None:
    ready = ReadyQueue()
    add(ready, Meta(key=b"a"), Meta(key=b"a", due=50.0))
    ready.settled(pick_item(ready), 50.0)
    assert in_queue(ready) == {1: "ready"}


def test_an_empty_key_is_a_key() -> None:
    ready = ReadyQueue()
    add(ready, *keyed("", ""))
    assert (ready.count, ready.waiting) == (1, 1)


# -- time -------------------------------------------------------------------------------------------------------


def test_what_is_due_later_is_ready_at_its_time_and_not_before() -> None:
    ready = ReadyQueue()
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
    ready = ReadyQueue()
    add(ready, Meta(due=20.0))
    ready.release_due(20.0)
    contents = pick_item(ready).contents
    assert isinstance(contents, Shelf)
    assert contents.narrowed == 0


def test_the_oldest_may_be_scheduled_ready_or_plain() -> None:
    ready = ReadyQueue()
    assert ready.oldest() is None
    ready.add_plain(stretch(7, 9))
    assert ready.oldest() == 7
    ready.put_back(item(6, Meta(priority=3)))
    assert ready.oldest() == 6
    ready.delay(item(2), 10.0, 0.0)
    assert ready.oldest() == 2


def test_the_time_of_the_oldest_place_is_known_wherever_it_is() -> None:
    ready = ReadyQueue()
    ready.add_plain(stretch(7, 9))
    ready.put_back(item(3, Meta(priority=2)))
    ready.delay(item(2), 10.0, 0.0)
    add(ready, Meta(expires=9.0), first=20)
    for place, due in ((30, 10.0), (31, 5.0), (32, 5.0)):
        ready.delay(QueuedRecord(place, Meta(), 7, KEPT), due, 0.0)
    ready.release_due(5.0)
    assert ready.call_back(1) == [31]
    assert in_queue(ready) == {
        **dict.fromkeys((3, 7, 8, 20), "ready"),
        **dict.fromkeys((2, 30), "scheduled"),
        **dict.fromkeys((31, 32), "due"),
    }
    for place in (7, 3, 2, 20, 30, 31, 32):
        assert ready.time_at(place) == float(place)
    assert ready.time_at(99) is None


# -- letting go -------------------------------------------------------------------------------------------------


def wait(ready: ReadyQueue, *metas: Meta, first: int = 0, now: float = 0.0) -> None:
    """Items that can be read again come, from place `first` on."""
    for place, meta in enumerate(metas, first):
        ready.add(QueuedRecord(place, meta, 7, KEPT), now)


@pytest.mark.parametrize(("due", "let_go"), [(NEAR - 0.001, 0), (NEAR, 7), (100.0, 7)])
def test_what_waits_long_lets_go_of_its_value_and_what_is_due_soon_does_not(due: float, let_go: int) -> None:
    ready = ReadyQueue()
    wait(ready, Meta(due=due))
    assert (ready.scheduled, ready.let_go) == (1, let_go)


def test_what_cannot_be_read_again_lets_go_of_nothing() -> None:
    ready = ReadyQueue()
    ready.delay(item(0), 100.0, 0.0)
    assert ready.let_go == 0
    ready.release_due(100.0)
    assert ready.call_back(9) == []
    assert pick_item(ready).contents is not None


def test_what_was_let_go_is_called_back_when_it_is_due_and_ready_when_it_came() -> None:
    ready = ReadyQueue()
    wait(ready, Meta(due=5.0), Meta(due=9.0))
    assert ready.call_back(9) == []
    ready.release_due(5.0)
    assert (ready.scheduled, ready.due, ready.count) == (1, 1, 0)
    assert ready.call_back(9) == [0]
    assert ready.call_back(9) == [], "each is called once"
    assert ready.came(0, KEPT) == size_of(0)
    assert (ready.due, ready.count) == (0, 1)
    assert pick_item(ready).contents is KEPT
    assert ready.came(0, KEPT) == 0, "nobody called it"
    assert ready.count == 0


def test_what_is_known_of_a_record_outlives_its_value_and_its_headers_do_not() -> None:
    ready = ReadyQueue()
    meta = Meta(key=b"k", headers={"long": "x" * 1000}, due=5.0, expires=50.0, priority=4)
    tried = QueuedRecord(3, meta, 7, KEPT, attempts=2)
    tried.reason = "why"
    ready.add(tried, 0.0)
    assert tried.meta.headers == {}
    ready.release_due(5.0)
    ready.call_back(1)
    ready.came(3, KEPT)
    back = pick_item(ready)
    assert (back.attempts, back.reason, back.size) == (2, "why", size_of(3))
    assert (back.meta.key, back.meta.expires, back.meta.priority) == (b"k", 50.0, 4)


def test_nothing_but_a_place_is_kept_of_a_record_that_only_waits() -> None:
    ready = ReadyQueue()
    wait(ready, Meta(due=5.0, headers={"a": "b"}))
    (row,) = ready._schedule
    assert row == (5.0, 0, None, 0.0)


def test_what_has_a_time_of_its_own_behind_its_key_is_outside_the_window() -> None:
    ready = ReadyQueue()
    wait(ready, Meta(key=b"k", due=5.0), Meta(key=b"k", due=7.0), Meta(key=b"k"), Meta(key=b"k", due=7.0))
    assert (ready.scheduled, ready.parked, ready.waiting) == (1, 2, 1)
    ready.release_due(5.0)
    ready.call_back(1)
    ready.came(0, KEPT)
    ready.settled(pick_item(ready), 6.0)
    assert in_queue(ready) == {1: "scheduled", 2: "waiting", 3: "parked"}
    ready.release_due(7.0)
    assert ready.call_back(9) == [1]
    assert ready.gone(1, 8.0), "the next of its key may go"
    assert in_queue(ready) == {2: "ready", 3: "parked"}
    ready.settled(pick_item(ready), 8.0)
    assert in_queue(ready) == {3: "due"}, "its time came while it stood behind"
    assert ready.parked == ready.waiting == 0


def test_what_is_urgent_is_called_back_first_but_not_always() -> None:
    ready = ReadyQueue()
    wait(ready, *[Meta(due=5.0)] * 3, *[Meta(due=5.0, priority=9)] * 20)
    ready.release_due(5.0)
    called = [place for _ in range(FAIRNESS * 2) for place in ready.call_back(1)]
    assert sorted(called[: FAIRNESS - 1]) == list(range(3, 2 + FAIRNESS))
    assert called[FAIRNESS - 1] == 0
    assert called[2 * FAIRNESS - 1] == 1


def test_places_are_called_back_in_order_however_they_are_due() -> None:
    ready = ReadyQueue()
    wait(ready, *[Meta(due=due) for due in (9.0, 7.0, 8.0, 5.0, 6.0)])
    ready.release_due(9.0)
    assert [ready.call_back(3), ready.call_back(3)] == [[0, 1, 2], [3, 4]]


def test_very_many_that_are_due_at_once_take_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.broker.group.logic.ready.STEP", 2)
    ready = ReadyQueue()
    wait(ready, *[Meta(due=5.0)] * 5)
    steps = []
    while ready.next_due() is not None:
        ready.release_due(5.0)
        steps.append(ready.due)
    assert steps == [2, 4, 5]


def test_the_oldest_may_be_due_or_called_back() -> None:
    ready = ReadyQueue()
    wait(ready, Meta(due=5.0), Meta(due=5.0))
    ready.release_due(5.0)
    assert ready.oldest() == 0
    ready.call_back(1)
    assert ready.oldest() == 0
    ready.gone(0, 5.0)
    assert ready.oldest() == 1
    assert not ready.gone(0, 5.0)


# -- priorities -------------------------------------------------------------------------------------------------


def test_the_highest_priority_goes_first_and_within_one_the_oldest() -> None:
    ready = ReadyQueue()
    add(ready, Meta(priority=1), Meta(priority=9), Meta(priority=1), Meta(priority=9), Meta())
    assert pick_all(ready) == [1, 3, 0, 2, 4]


def test_what_comes_back_goes_before_what_is_newer_of_its_priority() -> None:
    ready = ReadyQueue()
    add(ready, Meta(priority=5), Meta(priority=5), Meta(priority=5))
    first, second = pick_item(ready), pick_item(ready)
    ready.put_back(second)
    ready.put_back(first)
    assert pick_all(ready) == [0, 1, 2]


@pytest.mark.parametrize("low", [Meta(), Meta(priority=3), Meta(key=b"k")])
def test_however_many_urgent_ones_there_are_the_oldest_goes_every_so_often(low: Meta) -> None:
    ready = ReadyQueue()
    add(ready, low, *[Meta(priority=9)] * 100)
    assert pick_all(ready).index(0) == FAIRNESS - 1


def test_plain_records_do_not_starve_behind_urgent_ones() -> None:
    ready = ReadyQueue()
    ready.add_plain(stretch(0, 10))
    add(ready, *[Meta(priority=9)] * 200, first=10)
    order = pick_all(ready)
    assert [order.index(place) for place in range(10)] == [FAIRNESS * turn - 1 for turn in range(1, 11)]


def test_without_urgent_ones_nothing_is_out_of_order() -> None:
    ready = ReadyQueue()
    add(ready, *keyed(*(f"k{number}" for number in range(50))))
    assert pick_all(ready) == list(range(50))


def test_it_counts_what_is_ready_whatever_way_it_came() -> None:
    ready = ReadyQueue()
    ready.add_plain(stretch(0, 5))
    add(ready, Meta(priority=2), Meta(key=b"a"), Meta(key=b"a"), Meta(due=9.0), first=5)
    assert (ready.count, ready.waiting, ready.scheduled) == (7, 1, 1)
    ready.release_due(9.0)
    assert (ready.count, ready.waiting, ready.scheduled) == (8, 1, 0)
    assert sorted(pick_all(ready, 3)) == [0, 1, 2, 3, 4, 5, 6, 8]
    assert (ready.count, ready._ready, ready._priorities) == (0, [0] * 10, 0)


def test_an_item_says_where_it_is_and_how_often_it_was_tried() -> None:
    assert repr(QueuedRecord(4, Meta(), 0, SHELF, attempts=2)) == "<QueuedRecord at 4, 2 attempts>"

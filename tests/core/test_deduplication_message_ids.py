"""The window of message ids, against a list that remembers everything."""

from hypothesis import given
from hypothesis import strategies as st

from runnel.core.deduplication import (
    MAX_MESSAGE_ID_SECONDS,
    MAX_MESSAGE_IDS,
    MAX_TOTAL_MESSAGE_IDS,
    SHRINK_DIVISOR,
    MessageIdLimit,
    MessageIdWindow,
    shrink_windows,
)
from runnel.core.position import Position

STEPS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.floats(0, 5), st.sampled_from(["", "", "fails", "restart", "checkpoint"])),
    max_size=60,
)


class NaiveIds:
    """All ids ever stored, oldest first; looks at the bounds only when asked."""

    def __init__(self, max_ids: int, max_seconds: float) -> None:
        self.max_ids, self.max_seconds = max_ids, max_seconds
        self.stored: list[tuple[str, Position, float]] = []

    def find(self, message_id: str, now: float) -> Position | None:
        newest = [one for one in self.stored if one[2] > now - self.max_seconds][-self.max_ids :]
        return next((place for name, place, _ in newest if name == message_id), None)


@given(STEPS, st.integers(1, 5), st.floats(0.1, 20))
def test_it_remembers_what_a_list_would_and_no_more(
    steps: list[tuple[str, float, str]], max_ids: int, max_seconds: float
) -> None:
    ids, naive, now = MessageIdWindow(max_ids, max_seconds), NaiveIds(max_ids, max_seconds), 1000.0
    chain: list[list[object]] = []
    for offset, (message_id, passed, event) in enumerate(steps):
        now += passed
        found = ids.find(message_id, now)
        assert found == naive.find(message_id, now)
        if found is None:
            place = Position(1, offset)
            ids.remember(message_id, 1, offset, now)
            if event == "fails" and len(ids) < max_ids:  # or another was pushed out for it
                ids.forget_from(offset)
                continue
            naive.stored.append((message_id, place, now))
        if event == "checkpoint":
            chain.append(ids.encode(everything=not chain))
            ids.fresh = 0
        elif event == "restart":
            chain.append(ids.encode(everything=not chain))
            ids = MessageIdWindow(max_ids, max_seconds)
            for link in chain:
                ids.restore(link)
        assert len(ids) <= max_ids


def test_an_id_is_forgotten_when_its_time_is_over() -> None:
    ids = MessageIdWindow(max_seconds=10)
    ids.remember("a", 1, 0, 100.0)
    assert ids.find("a", 109.9) == Position(1, 0)
    assert ids.find("a", 110.0) is None
    assert len(ids) == 0


def test_the_oldest_goes_when_there_are_too_many() -> None:
    ids = MessageIdWindow(max_ids=2)
    for offset, message_id in enumerate("abc"):
        ids.remember(message_id, 1, offset, 0.0)
    assert [ids.find(message_id, 0.0) for message_id in "abc"] == [None, Position(1, 1), Position(1, 2)]


def test_by_default_it_holds_two_minutes_and_65536_ids() -> None:
    ids = MessageIdWindow()
    assert (ids.max_ids, ids.max_seconds) == (MAX_MESSAGE_IDS, MAX_MESSAGE_ID_SECONDS) == (65_536, 120.0)
    assert MessageIdLimit().limit == MAX_TOTAL_MESSAGE_IDS == 262_144


def window(*ids: tuple[str, int, float]) -> MessageIdWindow:
    made = MessageIdWindow()
    for name, offset, time in ids:
        made.remember(name, 4, offset, time)
    return made


def test_what_failed_is_forgotten_and_what_lies_before_it_is_not() -> None:
    ids = window(("a", 3, 1.0), ("b", 7, 1.0), ("c", 9, 2.0))
    ids.forget_from(7)
    assert [ids.find(name, 2.0) for name in "abc"] == [Position(4, 3), None, None]
    ids.forget_from(7)
    ids.forget_from(0)
    assert len(ids) == 0


def test_a_checkpoint_holds_the_new_ids_alone_and_a_chain_of_them_all() -> None:
    ids = window(("a", 3, 1.0), ("b", 7, 1.5))
    first = ids.encode(everything=True)
    ids.fresh = 0
    ids.remember("c", 4, 9, 2.0)
    second = ids.encode(everything=False)
    assert (first, second) == ([4, 0, [["a", 1.0, 3], ["b", 1.5, 7]]], [4, 2, [["c", 2.0, 9]]])
    again = MessageIdWindow()
    again.restore(first)
    again.restore(second)
    assert again.encode(everything=True) == ids.encode(everything=True)
    assert again.encode(everything=False) == [4, 3, []]


def test_a_window_that_was_emptied_since_says_so() -> None:
    again = MessageIdWindow()
    again.restore(window(("a", 3, 1.0)).encode(everything=True))
    again.restore(window(("b", 1, 1.0)).encode(everything=False))
    assert [again.find(name, 1.0) for name in "ab"] == [None, Position(4, 1)]


def test_a_copy_goes_its_own_way() -> None:
    ids = window(("a", 3, 1.0))
    twin = ids.copy()
    twin.forget_from(0)
    ids.remember("b", 4, 4, 1.0)
    assert (ids.find("a", 1.0), twin.find("a", 1.0), twin.find("b", 1.0)) == (Position(4, 3), None, None)
    assert ids.copy().find("a", 1.0 + MAX_MESSAGE_ID_SECONDS) is None


@given(st.lists(st.lists(st.floats(0, 9), min_size=0, max_size=8), max_size=6), st.integers(1, 30))
def test_of_all_topics_the_oldest_ids_go_first(times: list[list[float]], limit: int) -> None:
    windows = [window(*((f"{n}", n, time) for n, time in enumerate(sorted(some)))) for some in times]
    before = sorted(time for some in times for time in some)
    left = shrink_windows(windows, limit)
    after = sorted(time for one in windows for time, _ in one._seen.values())
    assert left == len(after) == (len(before) if len(before) <= limit else limit - limit // SHRINK_DIVISOR)
    assert after == before[len(before) - left :]


def test_the_windows_are_looked_at_only_when_there_may_be_too_many() -> None:
    windows = [window(), window()]
    allowance, looked = MessageIdLimit(2 * SHRINK_DIVISOR), 0

    def look() -> list[MessageIdWindow]:
        nonlocal looked
        looked += 1
        return windows

    for number in range(600):
        windows[number % 2].remember(str(number), 4, number, float(number) / 100)
        allowance.take(1, look)
        assert sum(map(len, windows)) <= 2 * SHRINK_DIVISOR
    assert looked <= 600 / 2 + 1, "some go at once, so that this is done now and then"
    assert windows[0].find("598", 6.0) == Position(4, 598)
    assert windows[0].find("400", 6.0) is None

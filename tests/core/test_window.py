"""The window of message ids, against a list that remembers everything."""

from hypothesis import given
from hypothesis import strategies as st

from runnel.core.position import Position
from runnel.core.window import MAX_IDS, MAX_SECONDS, MessageIds

STEPS = st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 5)), max_size=60)


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
    steps: list[tuple[str, float]], max_ids: int, max_seconds: float
) -> None:
    ids, naive, now = MessageIds(max_ids, max_seconds), NaiveIds(max_ids, max_seconds), 1000.0
    for offset, (message_id, passed) in enumerate(steps):
        now += passed
        found = ids.find(message_id, now)
        assert found == naive.find(message_id, now)
        if found is None:
            place = Position(1, offset)
            ids.remember(message_id, place, now)
            naive.stored.append((message_id, place, now))
        assert len(ids) <= max_ids


def test_an_id_is_forgotten_when_its_time_is_over() -> None:
    ids = MessageIds(max_seconds=10)
    ids.remember("a", Position(1, 0), 100.0)
    assert ids.find("a", 109.9) == Position(1, 0)
    assert ids.find("a", 110.0) is None
    assert len(ids) == 0


def test_the_oldest_goes_when_there_are_too_many() -> None:
    ids = MessageIds(max_ids=2)
    for offset, message_id in enumerate("abc"):
        ids.remember(message_id, Position(1, offset), 0.0)
    assert [ids.find(message_id, 0.0) for message_id in "abc"] == [None, Position(1, 1), Position(1, 2)]


def test_by_default_it_holds_two_minutes_and_65536_ids() -> None:
    ids = MessageIds()
    assert (ids.max_ids, ids.max_seconds) == (MAX_IDS, MAX_SECONDS) == (65_536, 120.0)

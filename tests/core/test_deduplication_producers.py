"""What producers published last: against a model that keeps everything, and at each bound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runnel.core import deduplication as module
from runnel.core.deduplication import MAX_POSITIONS, MAX_PRODUCER_SECONDS, MAX_PRODUCERS, ProducerTable, producer_id
from runnel.core.errors import OutcomeUnknown, SequenceForgotten, SequenceGap, SequenceOverlap
from runnel.core.position import Position

PRODUCER = st.integers(1, 4)
COUNT = st.integers(1, 5)


class Life:
    """All that one producer published since it was last forgotten: number by number."""

    def __init__(self, begun: int, time: float) -> None:
        self.begun, self.next, self.time = begun, begun, time
        self.places: dict[int, Position] = {}
        self.stored = begun  # numbers below this never fail any more


class AgainstEverything(RuleBasedStateMachine):
    """Producers publish to two topics, send again, fail, are forgotten and come back from checkpoints."""

    @initialize(limit=st.integers(1, 4), positions=st.integers(1, 4))
    def begin(self, limit: int, positions: int) -> None:
        self.was = (module.MAX_PRODUCERS, module.MAX_POSITIONS)
        module.MAX_PRODUCERS, module.MAX_POSITIONS = limit, positions
        self.limit, self.positions = limit, positions
        self.ours, self.lives, self.ends, self.now = ProducerTable(), dict[int, Life](), [0, 0], 1000.0
        self.stored: list[tuple[int, int, int, float]] = []  # producer, first number, count and time of every publish
        self.has_failed = False  # checkpoints are written by the journal, which hears of nothing that fails later

    def teardown(self) -> None:
        module.MAX_PRODUCERS, module.MAX_POSITIONS = self.was

    @rule(passed=st.sampled_from([0.0, 1.0, MAX_PRODUCER_SECONDS / 2, MAX_PRODUCER_SECONDS]))
    def time_passes(self, passed: float) -> None:
        self.now += passed
        self.lives = {name: one for name, one in self.lives.items() if one.time > self.now - MAX_PRODUCER_SECONDS}

    @rule(producer=PRODUCER, count=COUNT, topic=st.integers(0, 1), begun=st.integers(0, 3), other=st.integers(0, 3))
    def publishes(self, producer: int, count: int, topic: int, begun: int, other: int) -> None:
        life = self.lives.pop(producer, None)
        sequence = begun if life is None else life.next
        assert self.ours.find(producer, sequence, count, self.now) is None
        self.ends[topic] += other  # records of others lie between
        first = Position(topic + 7, self.ends[topic])
        self.ends[topic] += count
        self.ours.remember(producer, sequence, count, first, self.now)
        life = self.lives[producer] = life or Life(sequence, self.now)
        life.places |= {sequence + at: Position(first.epoch, first.offset + at) for at in range(count)}
        life.next, life.time = sequence + count, self.now
        self.stored.append((producer, sequence, count, self.now))
        while len(self.lives) > self.limit:
            del self.lives[next(iter(self.lives))]

    @rule(producer=PRODUCER, back=st.integers(1, 40), count=COUNT)
    def sends_again(self, producer: int, back: int, count: int) -> None:
        life = self.lives.get(producer)
        if life is None:
            assert self.ours.find(producer, back, count, self.now) is None
            assert self.ours.next(producer, self.now) is None
            return
        sequence = max(0, life.next - back)
        if sequence + count > life.next:
            with pytest.raises(SequenceOverlap) as overlap:
                self.ours.find(producer, sequence, count, self.now)
            assert overlap.value.stored == life.next
            return
        try:
            found = self.ours.find(producer, sequence, count, self.now)
        except SequenceForgotten:
            pieces = self.pieces(life)
            assert not any(start <= sequence and sequence + count <= end for start, end in pieces[-self.positions :])
        else:
            assert found == life.places[sequence]
            wanted = [Position(found.epoch, found.offset + at) for at in range(count)]
            assert [life.places[sequence + at] for at in range(count)] == wanted

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def retries_what_is_stored_and_forgotten(self, data: st.DataObject) -> None:
        producer, sequence, count, sent = data.draw(st.sampled_from(self.stored))
        if producer not in self.lives:
            with pytest.raises(OutcomeUnknown, match="no longer knows whether"):
                self.ours.find(producer, sequence, count, self.now, sent)

    @staticmethod
    def pieces(life: Life) -> list[tuple[int, int]]:
        """The numbers whose records lie side by side."""
        pieces: list[tuple[int, int]] = []
        for number, place in sorted(life.places.items()):
            before = life.places.get(number - 1)
            if before == Position(place.epoch, place.offset - 1):
                pieces[-1] = (pieces[-1][0], number + 1)
            else:
                pieces.append((number, number + 1))
        return pieces

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def fails(self, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(sorted(self.lives)))
        life = self.lives[producer]
        sequence = data.draw(st.integers(max(life.begun, life.stored), life.next))
        self.ours.take_back(producer, sequence)
        self.has_failed = True
        life.places = {number: place for number, place in life.places.items() if number < sequence}
        life.next = sequence
        self.stored = [one for one in self.stored if one[0] != producer or one[1] + one[2] <= sequence]
        if sequence == life.begun and life.stored == life.begun:
            del self.lives[producer]

    @rule(producer=PRODUCER, ahead=st.integers(1, 9), count=COUNT)
    def leaves_out_numbers(self, producer: int, ahead: int, count: int) -> None:
        if (life := self.lives.get(producer)) is not None:
            with pytest.raises(SequenceGap) as gap:
                self.ours.find(producer, life.next + ahead, count, self.now)
            assert (gap.value.expected, gap.value.got) == (life.next, life.next + ahead)

    @rule(way=st.sampled_from(["checkpoint", "copy"]))
    def is_stored_and_comes_back(self, way: str) -> None:
        before = self.ours
        if way == "copy" or self.has_failed:
            self.ours = before.copy()
        else:
            self.ours = ProducerTable()
            for producer in sorted(before):
                self.ours.restore(before.encode(producer))
        for life in self.lives.values():
            life.stored, life.begun = life.next, -1

    @invariant()
    def the_next_number_is_known(self) -> None:
        for producer, life in self.lives.items():
            assert self.ours.next(producer, self.now) == life.next
        assert len(self.ours) <= self.limit


AgainstEverything.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAgainstEverything = AgainstEverything.TestCase


def published(*publishes: tuple[int, int, int, int]) -> ProducerTable:
    ours = ProducerTable()
    for sequence, count, epoch, offset in publishes:
        ours.remember(9, sequence, count, Position(epoch, offset), 1.0)
    return ours


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerTable().find(9, 1_000, 5, 1.0) is None
    assert ProducerTable().next(9, 1.0) is None


def test_any_part_of_what_lies_side_by_side_is_found() -> None:
    ours = published((0, 10, 1, 100), (10, 10, 1, 110), (20, 5, 2, 0))
    assert ours.find(9, 0, 10, 1.0) == Position(1, 100)
    assert ours.find(9, 5, 10, 1.0) == Position(1, 105)
    assert ours.find(9, 0, 20, 1.0) == Position(1, 100)
    assert ours.find(9, 24, 1, 1.0) == Position(2, 4)


def test_what_lies_in_two_places_has_no_position() -> None:
    ours = published((0, 10, 1, 100), (10, 10, 2, 110))
    with pytest.raises(SequenceForgotten) as caught:
        ours.find(9, 5, 10, 1.0)
    assert (caught.value.sequence, caught.value.oldest) == (5, 0)


def test_a_list_that_is_half_new_is_refused_with_the_number_to_go_on_from() -> None:
    with pytest.raises(SequenceOverlap, match="numbers 5 to 14, and those before 10 are stored already") as caught:
        published((0, 10, 1, 0)).find(9, 5, 10, 1.0)
    assert (caught.value.sequence, caught.value.end, caught.value.stored) == (5, 15, 10)


def test_the_last_64_places_are_remembered() -> None:
    ours = published(*((number, 1, 1, number * 2) for number in range(MAX_POSITIONS + 1)))
    assert ours.find(9, 1, 1, 1.0) == Position(1, 2)
    with pytest.raises(SequenceForgotten) as caught:
        ours.find(9, 0, 1, 1.0)
    assert caught.value.oldest == 1


def test_a_failure_leaves_the_number_known_though_all_places_behind_it_were_forgotten() -> None:
    ours = published(*((number, 1, 1, number * 2) for number in range(MAX_POSITIONS + 9)))
    ours.take_back(9, 3)
    assert ours.next(9, 1.0) == 3
    with pytest.raises(SequenceForgotten):
        ours.find(9, 2, 1, 1.0)
    with pytest.raises(SequenceGap):
        ours.find(9, 4, 1, 1.0)
    assert ours.find(9, 3, 1, 1.0) is None
    ours.take_back(9, 2)  # nor does another one
    assert ours.next(9, 1.0) == 2


def test_a_producer_of_which_nothing_was_stored_is_not_known() -> None:
    ours = published((7, 3, 1, 0), (10, 3, 1, 3))
    ours.take_back(9, 7)
    assert (len(ours), ours.next(9, 1.0)) == (0, None)


def test_taking_back_what_is_not_there_changes_nothing() -> None:
    ours = published((0, 3, 1, 0))
    ours.take_back(9, 3)
    ours.take_back(8, 0)
    assert ours.next(9, 1.0) == 3


def test_part_of_a_stretch_can_be_taken_back() -> None:
    ours = published((0, 3, 1, 0), (3, 3, 1, 3))
    ours.take_back(9, 3)
    ours.remember(9, 3, 1, Position(1, 50), 1.0)
    assert [ours.find(9, number, 1, 1.0) for number in range(4)] == [
        Position(1, 0),
        Position(1, 1),
        Position(1, 2),
        Position(1, 50),
    ]
    with pytest.raises(SequenceForgotten):
        ours.find(9, 2, 2, 1.0)  # not side by side any more


def test_saying_it_twice_changes_nothing() -> None:
    ours = published((0, 3, 1, 0), (3, 3, 2, 0))
    before = ours.encode(9)
    ours.remember(9, 0, 3, Position(1, 0), 1.0)
    ours.remember(9, 3, 3, Position(2, 0), 1.0)
    assert ours.encode(9) == before


def test_a_producer_that_begins_anew_elsewhere_is_believed() -> None:
    ours = published((0, 300, 1, 0))
    ours.remember(9, 0, 2, Position(1, 900), 1.0)
    assert ours.next(9, 1.0) == 2
    assert ours.find(9, 0, 1, 1.0) == Position(1, 900)


def test_a_producer_is_forgotten_a_day_after_its_last_publish() -> None:
    ours = ProducerTable()
    ours.remember(9, 0, 1, Position(1, 0), 100.0)
    ours.remember(9, 1, 1, Position(1, 1), 200.0)
    assert ours.next(9, 199.0 + MAX_PRODUCER_SECONDS) == 2
    assert ours.find(9, 0, 1, 199.0 + MAX_PRODUCER_SECONDS) == Position(1, 0)
    assert ours.next(9, 200.0 + MAX_PRODUCER_SECONDS) is None
    assert ours.find(9, 0, 1, 200.0 + MAX_PRODUCER_SECONDS) is None
    ours.expire(200.0 + MAX_PRODUCER_SECONDS)
    assert len(ours) == 0


def test_one_that_comes_back_after_that_begins_anew() -> None:
    ours = ProducerTable()
    ours.remember(9, 0, 5, Position(1, 0), 100.0)
    ours.remember(9, 3, 1, Position(1, 9), 100.0 + MAX_PRODUCER_SECONDS)
    assert ours.next(9, 100.0 + MAX_PRODUCER_SECONDS) == 4
    with pytest.raises(SequenceForgotten):
        ours.find(9, 0, 1, 100.0 + MAX_PRODUCER_SECONDS)


def test_of_too_many_producers_those_go_that_published_longest_ago_also_after_a_checkpoint() -> None:
    before, ours = ProducerTable(), ProducerTable()
    for producer in range(1, MAX_PRODUCERS + 1):
        before.remember(producer, 0, 1, Position(1, producer), float(-producer))  # the highest id is the oldest
    for producer in sorted(before):
        ours.restore(before.encode(producer))
    ours.remember(MAX_PRODUCERS + 1, 0, 1, Position(1, 0), 5.0)
    assert len(ours) == MAX_PRODUCERS
    assert ours.next(MAX_PRODUCERS, 5.0) is None
    assert ours.next(MAX_PRODUCERS - 1, 5.0) == 1


def test_a_retry_that_no_forgotten_producer_can_have_sent_is_new() -> None:
    ours = ProducerTable()
    assert ours.find(9, 5, 1, 100.0, 90.0) is None  # none was forgotten
    for producer in range(1, MAX_PRODUCERS + 2):
        ours.remember(producer, 0, 1, Position(1, producer), 100.0 + producer / MAX_PRODUCERS)
    assert ours.find(1, 0, 1, 110.0, 101.5) is None  # the one that is forgotten published before that
    with pytest.raises(OutcomeUnknown):
        ours.find(1, 0, 1, 110.0, 100.0)


def test_of_too_many_positions_those_of_the_oldest_producers_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOTAL_POSITIONS", 10)
    ours = ProducerTable()
    for at in range(8):
        for producer in (1, 2):  # their records lie alternately, so that each is a position of its own
            ours.remember(producer, at, 1, Position(1, 2 * at + producer), 100.0 + at)
    assert list(ours) == [2]
    for table in (ours, ours.copy()):
        with pytest.raises(OutcomeUnknown):
            table.find(1, 0, 1, 110.0, 100.0)
    ours.take_back(2, 0)
    ours.remember(3, 0, 1, Position(1, 50), 120.0)
    ours.remember(4, 0, 1, Position(1, 60), 120.0)
    assert list(ours) == [3, 4]


def test_a_checkpoint_says_who_was_forgotten() -> None:
    ours = published((0, 3, 1, 0))
    assert ours.encode(8) == 8
    ours.restore(8)
    ours.restore(9)
    assert list(ours) == []


@given(st.lists(st.tuples(COUNT, st.integers(1, 3), st.integers(0, 2**40)), max_size=70))
def test_a_checkpoint_holds_all_of_a_producer(publishes: list[tuple[int, int, int]]) -> None:
    ours, sequence = ProducerTable(), 2**50
    for count, epoch, offset in publishes:
        ours.remember(9, sequence, count, Position(epoch, offset), 3.0)
        sequence += count
    again = ProducerTable()
    for producer in ours:
        again.restore(ours.encode(producer))
    assert [again.encode(one) for one in again] == [ours.encode(one) for one in ours]


def test_a_copy_goes_its_own_way() -> None:
    ours = published((0, 3, 1, 0))
    twin = ours.copy()
    twin.remember(9, 3, 3, Position(1, 3), 1.0)
    assert (ours.next(9, 1.0), twin.next(9, 1.0)) == (3, 6)
    twin.take_back(9, 3)
    assert twin.find(9, 0, 3, 1.0) == Position(1, 0)


def test_the_id_of_a_name_is_the_same_on_every_machine() -> None:
    assert producer_id("import") == 0xFE64929A300712D0
    assert producer_id("import") != producer_id("export")


def test_no_producer_has_the_id_that_means_none() -> None:
    assert 0 not in {producer_id(str(number)) for number in range(1000)}

"""What a member says, gathered: one entry for what lies side by side, and begun before settled."""

from runnel.client.settlements import Settlements
from runnel.wire.messages import Settlement, Verb
from tests.client.test_lease import lease


def test_acks_side_by_side_are_one() -> None:
    said, one = Settlements(), lease(5)
    for place in (100, 101, 102):
        said.say(one, Verb.ACK, place, place + 1)
    said.say(one, Verb.ACK, 104, 105)
    assert said.taken(9) == [Settlement(9, 5, Verb.ACK, 100, 103), Settlement(9, 5, Verb.ACK, 104, 105)]
    assert not said


def test_what_is_said_differently_is_said_apart() -> None:
    said, one = Settlements(), lease(5)
    said.say(one, Verb.NACK, 100, 101, 1.0, "a")
    said.say(one, Verb.NACK, 101, 102, 1.0, "a")
    said.say(one, Verb.NACK, 102, 103, 2.0, "a")
    said.say(one, Verb.REJECT, 103, 104, None, "a")
    said.say(one, Verb.EXTEND, 104, 105, 5.0)
    said.say(one, Verb.EXTEND, 105, 106, 5.0)
    spans = [(one.verb, one.first, one.end) for one in said.taken(1)]
    assert spans == [
        (Verb.NACK, 100, 102),
        (Verb.NACK, 102, 103),
        (Verb.REJECT, 103, 104),
        (Verb.EXTEND, 104, 105),
        (Verb.EXTEND, 105, 106),
    ]


def test_what_is_begun_is_told_first_and_once() -> None:
    said, one = Settlements(), lease(5)
    said.begin(one, 100, 101)
    said.say(one, Verb.ACK, 100, 101)
    one.settle(100, 101)
    said.begin(one, 101, 102)
    assert [(entry.verb, entry.first, entry.end) for entry in said.taken(1)] == [
        (Verb.BEGIN, 100, 102),
        (Verb.ACK, 100, 101),
    ]
    assert said.taken(1) == []


def test_what_is_settled_in_the_same_turn_needs_no_beginning_except_the_first_of_a_lease() -> None:
    said, one = Settlements(), lease(5)
    for place in (100, 101):
        said.begin(one, place, place + 1)
        one.settle(place, place + 1)
        said.say(one, Verb.ACK, place, place + 1)
        verbs = [entry.verb for entry in said.taken(1)]
        assert verbs == ([Verb.BEGIN, Verb.ACK] if place == 100 else [Verb.ACK])


def test_of_a_lease_that_ended_nothing_begins() -> None:
    said, one = Settlements(), lease(5)
    said.begin(one, 100, 101)
    one.ended = True
    assert said
    assert said.taken(1) == []

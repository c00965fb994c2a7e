"""Pending settlements of a member: one entry for what lies side by side, and begun before settled."""

from runnel.client.member import PendingSettlements
from runnel.wire.msgpack_messages import Settlement, SettleVerb
from tests.client.test_member import lease


def test_acks_side_by_side_are_one() -> None:
    said, one = PendingSettlements(), lease(5)
    for place in (100, 101, 102):
        said.say(one, SettleVerb.ACK, place, place + 1)
    said.say(one, SettleVerb.ACK, 104, 105)
    assert said.taken(9) == [Settlement(9, 5, SettleVerb.ACK, 100, 103), Settlement(9, 5, SettleVerb.ACK, 104, 105)]
    assert not said


def test_what_is_said_differently_is_said_apart() -> None:
    said, one = PendingSettlements(), lease(5)
    said.say(one, SettleVerb.NACK, 100, 101, 1.0, "a")
    said.say(one, SettleVerb.NACK, 101, 102, 1.0, "a")
    said.say(one, SettleVerb.NACK, 102, 103, 2.0, "a")
    said.say(one, SettleVerb.REJECT, 103, 104, None, "a")
    said.say(one, SettleVerb.EXTEND, 104, 105, 5.0)
    said.say(one, SettleVerb.EXTEND, 105, 106, 5.0)
    spans = [(one.verb, one.first, one.end) for one in said.taken(1)]
    assert spans == [
        (SettleVerb.NACK, 100, 102),
        (SettleVerb.NACK, 102, 103),
        (SettleVerb.REJECT, 103, 104),
        (SettleVerb.EXTEND, 104, 105),
        (SettleVerb.EXTEND, 105, 106),
    ]


def test_begun_records_are_reported_first_and_once() -> None:
    said, one = PendingSettlements(), lease(5)
    said.begin(one, 100, 101)
    said.say(one, SettleVerb.ACK, 100, 101)
    one.settle(100, 101)
    said.begin(one, 101, 102)
    assert [(entry.verb, entry.first, entry.end) for entry in said.taken(1)] == [
        (SettleVerb.BEGIN, 100, 102),
        (SettleVerb.ACK, 100, 101),
    ]
    assert said.taken(1) == []


def test_what_is_settled_in_the_same_turn_needs_no_beginning_except_the_first_of_a_lease() -> None:
    said, one = PendingSettlements(), lease(5)
    for place in (100, 101):
        said.begin(one, place, place + 1)
        one.settle(place, place + 1)
        said.say(one, SettleVerb.ACK, place, place + 1)
        verbs = [entry.verb for entry in said.taken(1)]
        assert verbs == ([SettleVerb.BEGIN, SettleVerb.ACK] if place == 100 else [SettleVerb.ACK])


def test_of_a_lease_that_ended_nothing_begins() -> None:
    said, one = PendingSettlements(), lease(5)
    said.begin(one, 100, 101)
    one.ended = True
    assert said
    assert said.taken(1) == []

from runnel.testing import history_events as events


def test_an_event_is_one_short_json_array_that_names_its_kind_first() -> None:
    event = events.Delivered(1.5, "alice", "orders", 1, 7, "o-7")
    assert events.encode(event) == b'["delivered",1.5,"alice","orders",1,7,"o-7",null]'


def test_every_event_survives_its_line() -> None:
    told: list[events.Event] = [
        events.Intended(1.0, "t", "a", "p"),
        events.Acknowledged(2.0, "t", 7, "life-1", 3),
        events.Failed(3.0, "t", "a"),
        events.Unknown(4.0, "t", "a"),
        events.Subscribed(5.0, "s", "t", None, None),
        events.Resumed(6.0, "s", "t"),
        events.Delivered(7.0, "s", "t", 1, 3, "a", 12),
        events.GapTold(8.0, "s", "t", 1, 3, 5, None),
        events.SequencesTold(9.0, "s", 3, 5, 2),
        events.Ended(10.0, "s", None, 4),
        events.Grouped(11.0, "g", "t", 0, None),
        events.Leased(12.0, "g", "m", "t", 1, 3, "a", 2, 30.0),
        events.Extended(13.0, "g", "m", "t", 1, 3, 40.0),
        events.Acked(14.0, "g", "m", "t", 1, 3),
        events.Nacked(15.0, "g", "m", "t", 1, 3),
        events.Rejected(16.0, "g", "m", "t", 1, 3),
        events.Left(17.0, "g", "m"),
        events.Drained(18.0, "g", "t"),
        events.Cleaned(19.0, "t", 1, 0, 3),
        events.Restarted(20.0),
    ]
    assert {type(event) for event in told} == set(events.Event.__args__)
    assert [events.decode(events.encode(event)) for event in told] == told
